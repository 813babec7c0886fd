/* What of a plan is the backward's alone. Its workspace: two numbers a row (LSE and delta), the f32 sums of grad_q that
 * all tiles of keys add to, of all rows or, of whole heads, those in hand, and where heads that share keys are split,
 * sums of grad_k and grad_v; beside these only small tables, and copies of what TMA does not take. */
#include "cuda/cuda.h"

#include "problem/desc.h"
#include "num/half.h"
#include "num/philox.h"

enum { TILE = ATTN_SM90_BACKWARD_ROWS };

/* ---- workspace ----------------------------------------------------------------------------- */

/* Lines of a head, and of all: of rows, or of keys. */
static int64_t pitch_of(const attn_desc *d, int64_t length, int64_t total)
{
    return d->flags & ATTN_VARLEN ? (total / TILE + d->batch) * TILE : attn_ceil_div(length, TILE) * TILE;
}

static double lines_of(const attn_desc *d, int64_t pitch, int64_t heads)
{
    return (d->flags & ATTN_VARLEN ? 1 : (double)d->batch) * (double)heads * (double)pitch;
}

int64_t attn_cuda_sum_lines(const attn_desc *d, bool of_keys)
{
    int64_t pitch = of_keys ? pitch_of(d, d->len_kv, d->total_kv) : pitch_of(d, d->len_q, d->total_q);
    return (int64_t)lines_of(d, pitch, of_keys ? d->heads_kv : d->heads_q);
}

int64_t attn_cuda_whole_lines(const attn_desc *d, int takers)
{
    return takers * (d->heads_q / d->heads_kv) * pitch_of(d, d->len_q, d->total_q);
}

/* Lines of the sums of grad_q. A head with one tile of keys needs none. */
static double query_lines(const attn_desc *d, const attn_cuda_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->backward;
    if (!attn_cuda_is_line(c->kernel) || (s->whole && s->key_tiles == 1)) return 0;
    return (double)(s->whole ? attn_cuda_whole_lines(d, s->grid / c->kernel->cluster) : attn_cuda_sum_lines(d, false));
}

/* Lines of the sums of grad_k, and of grad_v. */
static double key_lines(const attn_desc *d, const attn_cuda_choice *c)
{
    const attn_sm90_backward_schedule *s = &c->backward;
    if (s->splits > 1) return s->splits * (double)attn_cuda_sum_lines(d, true);
    return (double)(s->shares + s->parted) * attn_cuda_unit_keys(c->kernel);
}

/* Parts of a slope's gradient in each sequence: by tiles of keys or, in the fallback kernel, to which a run may have to
 * turn, of rows. */
static int64_t alibi_parts(const attn_desc *d, const attn_cuda_kernel *k)
{
    int64_t fallback = attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS),
            line = attn_cuda_is_line(k) ? ATTN_SM90_BACKWARD_ALIBI(d->len_kv, k->keys) : 0;
    return fallback > line ? fallback : line;
}

bool attn_cuda_lay_out_backward(const attn_desc *d, attn_cuda_plan *cuda)
{
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    attn_cuda_layout *l = &cuda->layout;
    bool turns = attn_cuda_is_line(k) && attn_cuda_takes_turns(d, &cuda->chosen.backward);
    double rows = (double)attn_cuda_sum_lines(d, false), keys = attn_cuda_is_line(k) ? key_lines(d, &cuda->chosen) : 0;
    double heads = (double)d->batch * (double)d->heads_q;
    double added = cuda->chosen.backward.conversions ? (double)d->batch * (double)d->heads_kv : 0;
    double slopes = d->flags & ATTN_ALIBI ? heads * (double)alibi_parts(d, k) : 0;
    double sinks = d->flags & ATTN_SINK ? heads * (double)attn_ceil_div(d->len_q, TILE) : 0;
    return attn_cuda_append(&l->total, rows, 2 * sizeof(float), &l->stats) &&
           attn_cuda_append(&l->total, query_lines(d, &cuda->chosen), sizeof(float) * (double)k->dim, &l->grad_q_sum) &&
           attn_cuda_append(&l->total, keys, sizeof(float) * (double)k->dim, &l->grad_k_sum) &&
           attn_cuda_append(&l->total, keys, sizeof(float) * (double)k->dim_v, &l->grad_v_sum) &&
           attn_cuda_append(&l->total, turns ? rows / TILE : 0, sizeof(unsigned), &l->turns) &&
           attn_cuda_append(&l->total, added, sizeof(unsigned), &l->added) &&
           attn_cuda_append(&l->total, slopes, sizeof(float), &l->alibi_parts) &&
           attn_cuda_append(&l->total, sinks, sizeof(float), &l->sink_parts);
}

/* ---- parameters and functions -------------------------------------------------------------- */

void attn_cuda_fill_backward(const attn_desc *d, attn_cuda_plan *cuda)
{
    attn_sm90_backward_params *p = &cuda->params;
    p->schedule = cuda->chosen.backward;
    for (int i = 0; i < 3; i++) {
        p->grad_o_stride[i] = d->grad_o_stride[i], p->grad_q_stride[i] = d->grad_q_stride[i];
        p->grad_k_stride[i] = d->grad_k_stride[i], p->grad_v_stride[i] = d->grad_v_stride[i];
    }
    p->dim = cuda->chosen.kernel->dim;
    p->q_pitch = (int)pitch_of(d, d->len_q, d->total_q), p->kv_pitch = (int)pitch_of(d, d->len_kv, d->total_kv);
}

attn_status attn_cuda_load_backward(const attn_desc *d, const attn_cuda_place *place, attn_cuda_plan *cuda)
{
    const attn_sm90_backward_schedule *s = &cuda->chosen.backward;
    bool converts = attn_cuda_is_line(cuda->chosen.kernel) && (!attn_cuda_finishes(s) || s->splits > 1);
    const struct {
        bool wanted;
        const char *stem;
        CUfunction *function;
    } functions[] = {
        { true, "backward_rows", &cuda->rows },
        { true, "backward_fallback_q", &cuda->fallback },
        { true, "backward_fallback_kv", &cuda->fallback_kv },
        { d->flags & ATTN_BIAS, "backward_fallback_bias", &cuda->fallback_bias },
        { converts, "backward_convert", &cuda->convert },
        { s->parted, "backward_merge", &cuda->merge },
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && !status; i++)
        if (functions[i].wanted)
            status = attn_cuda_load_dtype(place, d->dtype, functions[i].stem, functions[i].function);
    if (!status && d->flags & (ATTN_ALIBI | ATTN_SINK))
        status = attn_cuda_load(place, NULL, "attn_sm90_backward_total", 0, &cuda->totals);
    return status;
}

/* ---- words --------------------------------------------------------------------------------- */

void attn_cuda_describe_backward(const attn_plan *plan, attn_words *words)
{
    const attn_cuda_choice *c = &plan->cuda->chosen;
    const attn_sm90_backward_schedule *s = &c->backward;
    const attn_desc *d = &plan->desc;
    const double mib = 1 << 20, rows = (double)attn_cuda_sum_lines(d, false);
    attn_say(words, "tiles      Q %d rows, KV %d keys\n", c->kernel->rows, c->kernel->keys);
    if (!attn_cuda_is_line(c->kernel)) {
        attn_say(words, "grid       a CTA of %u threads per tile\n", c->kernel->threads);
        return;
    }
    attn_say(words,
             "grid       %d CTAs of %u threads and %u KiB, %d work items, scheduler %s, %d KV head%s at a time\n",
             s->grid, c->kernel->threads, c->kernel->shared / 1024, s->total, c->dynamic ? "dynamic" : "static",
             s->head_group, s->head_group == 1 ? "" : "s");
    attn_say(words, "dQ         accumulator in f32, %.4g MiB, %s", query_lines(d, c) * c->kernel->dim * 4 / mib,
             s->whole                      ? "head-persistent: a CTA adds up all of a head, in a fixed order"
             : s->folded                   ? "in a fixed order (dQ semaphore); the last work item stores dQ"
             : s->conversions              ? "atomic; postprocess fused"
             : attn_cuda_takes_turns(d, s) ? "in a fixed order (dQ semaphore)"
                                           : "atomic");
    double parts = key_lines(d, c) * (c->kernel->dim + c->kernel->dim_v) * 4 / mib;
    if (s->splits > 1)
        attn_say(words, "; dK and dV of %d parts of the query heads that share keys, %.4g MiB", s->splits, parts);
    if (s->parted)
        attn_say(words, "; dK and dV of the last %d work items, stream-K by %d rows, %.4g MiB", s->parted,
                 s->share * c->kernel->rows, parts);
    attn_say(words, "; LSE and delta of rows, %.4g MiB\n", rows * 8 / mib);
}
