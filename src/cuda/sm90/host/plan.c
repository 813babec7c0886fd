/* Plans on Hopper: what both directions have of them. Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include <stdio.h>

#include "base/error.h"
#include "num/half.h"
#include "num/philox.h"
#include "problem/desc.h"

enum { UNBOUNDED = 1 << 30 };

/* ---- workspace ----------------------------------------------------------------------------- */

/* Seconds predicted of the kernel that computes what lies at addresses that TMA does not take. */
static double fallback_seconds(const attn_cuda_problem *problem, const attn_cuda_arch *arch, attn_cuda_predict *predict)
{
    int count;
    const attn_desc *d = problem->desc;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_cuda_problem undecided = { d, problem->device, problem->pairs, NULL };
    attn_cuda_choice c = { .choice.seconds = 0 };
    for (int i = 0; i < count; i++)
        if (kernels[i].arch == arch && !attn_cuda_is_variant(&kernels[i]) && !attn_cuda_obstacle(&kernels[i], d))
            predict(&undecided, &kernels[i], &c);
    return c.choice.seconds;
}

void attn_sm90_start(const attn_cuda_problem *problem, attn_cuda_predict *predict, attn_sm90_plan *plan)
{
    if (!attn_cuda_is_variant(plan->cuda.chosen.kernel)) return;
    bool copies = attn_cuda_uses_tma(plan->cuda.chosen.kernel);
    for (int i = 0; i < attn_sm90_tensors(problem->desc) && copies; i++)
        plan->copied[i] = !attn_sm90_tma_takes(problem->desc, i);
    plan->fallback_seconds = fallback_seconds(problem, plan->cuda.chosen.kernel->arch, predict);
}

bool attn_sm90_append(attn_sm90_plan *plan, double count, double size, uint64_t *at)
{
    double bytes = count * size;
    *at = plan->cuda.workspace;
    if (bytes > 0x1p52) return false;
    plan->cuda.workspace += ((uint64_t)bytes + ATTN_CUDA_ALIGN - 1) / ATTN_CUDA_ALIGN * ATTN_CUDA_ALIGN;
    return plan->cuda.workspace < (uint64_t)1 << 52;
}

static int64_t summary_count(const attn_desc *d, const attn_cuda_kernel *k)
{
    return d->flags & ATTN_INTERVALS && attn_cuda_uses_tma(k) ? ATTN_SM90_SUMMARIES(d->len_kv, k->kv_tile) : 0;
}

static bool lay_out(const attn_desc *d, attn_sm90_plan *plan)
{
    const attn_cuda_choice *c = &plan->cuda.chosen;
    double summaries = (double)summary_count(d, c->kernel) * (double)d->interval_heads * (double)d->batch;
    bool fits = attn_sm90_append(plan, c->dynamic, sizeof(unsigned), &plan->counter) &&
                attn_sm90_append(plan, summaries, 32, &plan->summaries_at);
    for (int i = 0; i < attn_sm90_tensors(d) && fits; i++) {
        attn_sm90_tensor t = attn_sm90_repacked(attn_sm90_tensor_of(d, i));
        double elements = (double)t.extent[0] * (double)t.extent[1] * (double)t.stride[1];
        fits =
            attn_sm90_append(plan, plan->copied[i] ? elements : 0, (double)attn_dtype_size(d->dtype), &plan->copies[i]);
    }
    return fits;
}

attn_status attn_sm90_lay_out(const attn_desc *d, bool fits, attn_sm90_plan *plan)
{
    if (fits && lay_out(d, plan)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "len_kv = %lld: the workspace would be too large to address", (long long)d->len_kv);
}

/* ---- parameters ---------------------------------------------------------------------------- */

static int bounded(int64_t x)
{
    return x < 0 || x > UNBOUNDED ? UNBOUNDED : (int)x;
}

static void fill_mask(const attn_desc *d, attn_sm90_mask *m)
{
    bool window = d->flags & ATTN_WINDOW;
    m->left = window ? bounded(d->window_left) : UNBOUNDED;
    m->right = window ? bounded(d->window_right) : UNBOUNDED;
    if (d->flags & ATTN_CAUSAL) m->right = 0;
    m->chunk = bounded(d->chunk);
    m->interval_vectors = (int)d->interval_vectors, m->interval_heads = (int)d->interval_heads;
    m->block_rows = bounded(d->block_rows), m->block_keys = bounded(d->block_keys);
    m->block_batch = (int)d->block_batch, m->block_heads = (int)d->block_heads;
    m->bits_batch = (int)d->bits_batch, m->bits_heads = (int)d->bits_heads;
}

static void fill_score(const attn_desc *d, attn_sm90_score *s)
{
    s->softcap = d->softcap;
    s->alibi_batch = (int)d->alibi_batch;
    s->bias_dtype = d->bias_dtype;
    for (int i = 0; i < 4; i++)
        s->bias_extent[i] = (int)d->bias_extent[i], s->bias_stride[i] = d->bias_stride[i];
    s->dropout_threshold = attn_dropout_threshold(d->dropout_p);
}

static void fill_common(const attn_desc *d, const attn_cuda_kernel *kernel, const attn_sm90_schedule *schedule,
                        attn_sm90_params *p)
{
    p->flags = d->flags;
    p->batch = (int)d->batch, p->heads_q = (int)d->heads_q, p->heads_kv = (int)d->heads_kv;
    p->len_q = (int)d->len_q, p->len_kv = (int)d->len_kv, p->total_q = (int)d->total_q;
    p->dim_qk = (int)d->dim_qk, p->dim_v = (int)d->dim_v;
    p->scale = d->scale;
    for (int i = 0; i < 3; i++)
        p->o_stride[i] = d->o_stride[i];
    for (int i = 0; i < 4; i++) {
        p->fallback.q_stride[i] = d->q_stride[i];
        p->fallback.k_stride[i] = d->k_stride[i];
        p->fallback.v_stride[i] = d->v_stride[i];
    }
    p->schedule = *schedule;
    p->mask.summary_keys = kernel->kv_tile;
    fill_mask(d, &p->mask);
    fill_score(d, &p->score);
}

attn_status attn_sm90_fill(const attn_desc *d, const attn_sm90_plan *plan, const attn_sm90_schedule *schedule,
                           attn_sm90_params *p)
{
    attn_sm90_map *const maps[] = { &p->q_map, &p->k_map, &p->v_map };
    attn_status status = ATTN_OK;
    fill_common(d, plan->cuda.chosen.kernel, schedule, p);
    for (int i = 0; i < 3 && attn_cuda_uses_tma(plan->cuda.chosen.kernel) && !status; i++)
        status = attn_sm90_fill_map(d, plan, i, schedule->pack, maps[i]);
    return status;
}

attn_sm90_divisor attn_sm90_divisor_of(int64_t d)
{
    attn_sm90_divisor by = { .shift = 0 };
    while ((int64_t)1 << by.shift < d)
        by.shift++;
    by.factor = (unsigned)(((((uint64_t)1 << by.shift) - (uint64_t)d) << 32) / (uint64_t)d + 1);
    return by;
}

/* ---- caches of keys ------------------------------------------------------------------------ */

static long long bounded_long(int64_t x)
{
    const long long unbounded = 1LL << 61;
    return x < 0 || x > unbounded ? unbounded : x;
}

void attn_sm90_fill_cache(const attn_desc *d, attn_sm90_cache *c)
{
    bool window = d->flags & ATTN_WINDOW;
    *c = (attn_sm90_cache){
        .table = { .width = d->table_width, .total = d->table_total, .pages = d->pages, .page_size = d->page_size },
        .left = bounded_long(window ? d->window_left : -1),
        .right = d->flags & ATTN_CAUSAL ? 0 : bounded_long(window ? d->window_right : -1),
        .chunk = bounded_long(d->chunk),
        .bits_keys = (int)d->bits_keys,
    };
}

/* ---- functions ----------------------------------------------------------------------------- */

attn_status attn_sm90_load_dtype(const attn_cuda_place *place, attn_dtype dtype, const char *stem, CUfunction *function)
{
    static const char *const names[] = { "", "f32", "f16", "bf16" };
    char symbol[48];
    snprintf(symbol, sizeof symbol, "attn_sm90_%s_%s", stem, names[dtype]);
    return attn_cuda_load(place, NULL, symbol, 0, function);
}

/* The fallback kernel is loaded always: it computes what a variant cannot at addresses that TMA does not take. */
attn_status attn_sm90_load(const attn_desc *d, const attn_cuda_place *place, const char *fallback, attn_sm90_plan *plan)
{
    const attn_cuda_kernel *k = plan->cuda.chosen.kernel;
    bool copies = plan->copied[ATTN_SM90_Q] || plan->copied[ATTN_SM90_K] || plan->copied[ATTN_SM90_V];
    attn_status status = attn_sm90_load_dtype(place, d->dtype, fallback, &plan->fallback);
    if (status || !attn_cuda_is_variant(k)) return status;
    status = attn_cuda_load(place, k, k->symbol, k->shared, &plan->variant);
    if (!status && summary_count(d, k))
        status = attn_cuda_load(place, NULL, "attn_sm90_interval_summary", 0, &plan->summarise);
    if (!status && copies) status = attn_cuda_load(place, NULL, "attn_sm90_repack", 0, &plan->repack);
    return status;
}

/* ---- words --------------------------------------------------------------------------------- */

/* Those of the tensors that kernels read which are copied first, or those which are not. */
static void say_tensors(const attn_desc *d, const attn_sm90_plan *plan, bool copied, attn_words *words)
{
    static const char *const names[] = { " q", " k", " v", " grad_o" };
    for (int i = 0; i < attn_sm90_tensors(d); i++)
        if (plan->copied[i] == copied) attn_say(words, "%s", names[i]);
}

void attn_sm90_describe(const attn_plan *plan, bool stores_wide, attn_words *words)
{
    const attn_desc *d = &plan->desc;
    const attn_sm90_plan *own = plan->own;
    int copied = 0, tensors = attn_sm90_tensors(d);
    for (int i = 0; i < tensors; i++)
        copied += own->copied[i];
    if (copied) {
        attn_say(words, "copied    ");
        say_tensors(d, own, true, words);
        attn_say(words, " first, which TMA does not take as they lie\n");
    }
    if (!own->variant || (copied == tensors && !stores_wide)) return;
    attn_say(words, "addresses ");
    say_tensors(d, own, false, words);
    attn_say(words, "%s are to be multiples of 16: at others the fallback kernel computes it, predicted ",
             stores_wide ? " o" : "");
    attn_say_number(words, own->fallback_seconds * 1e3);
    attn_say(words, " ms\n");
}
