/* Plans on Hopper: what both directions have of them. Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include "base/error.h"
#include "cuda/arch.h"
#include "num/half.h"
#include "problem/desc.h"

/* ---- workspace ----------------------------------------------------------------------------- */

/* The tensor is a copy already. */
static bool holds(const attn_sm90_plan *plan, int which)
{
    return which == ATTN_SM90_Q && plan->cuda.holds_q;
}

/* The kernel that reads summaries of intervals and bits. */
static const attn_cuda_kernel *summarised(const attn_sm90_plan *plan)
{
    return plan->instead.kernel ? plan->instead.kernel : plan->cuda.chosen.kernel;
}

void attn_sm90_start(const attn_desc *d, attn_sm90_plan *plan)
{
    const attn_cuda_kernel *k = plan->cuda.chosen.kernel;
    for (int i = 0; i < attn_sm90_tensors(d) && k->tma; i++)
        plan->copied[i] = attn_sm90_has_own_pass(d, k, i) || !(attn_sm90_tma_takes(d, i) || holds(plan, i));
    attn_cuda_fill(d, summarised(plan)->kv_tile, &plan->common);
}

static int64_t summary_count(const attn_desc *d, const attn_cuda_kernel *k)
{
    return d->flags & ATTN_INTERVALS && k->tma && !k->spans ? ATTN_CUDA_SUMMARIES(d->len_kv, k->kv_tile) : 0;
}

/* Words of the forward's interval tiles. */
static double interval_words(const attn_desc *d, const attn_cuda_kernel *k)
{
    if (!summary_count(d, k) || d->direction != ATTN_FORWARD) return 0;
    int64_t keys = (d->len_kv + k->kv_tile - 1) / k->kv_tile * k->kv_tile;
    return 2.0 * ATTN_CUDA_INTERVAL_PAIRS(d->interval_vectors) * (double)keys * (double)d->interval_heads *
           (double)d->batch;
}

/* Planes of bits that kernels read: widened ones are of each sequence where these have lengths of their own. */
static int64_t bits_planes(const attn_desc *d, const attn_cuda_kernel *k)
{
    bool own = attn_sm90_widens_bits(d, k) && d->flags & (ATTN_VARLEN | ATTN_LENS_KV);
    return d->bits_heads * (own ? d->batch : d->bits_batch);
}

/* Bytes of the bits of all keys. */
static double bits_bytes(const attn_desc *d, const attn_cuda_kernel *k)
{
    return (double)bits_planes(d, k) * (double)d->len_q * (double)attn_ceil_div(d->len_kv, 8);
}

/* Pairs of words of the summary of bits. */
static double bit_tiles(const attn_desc *d, const attn_cuda_kernel *k)
{
    if (!attn_sm90_summarises_bits(d, k)) return 0;
    return (double)ATTN_CUDA_BIT_TILES(d->len_q, d->len_kv, k->kv_tile) * (double)bits_planes(d, k);
}

/* Of the spans of a variant that has them. */
static double span_bytes(const attn_desc *d, const attn_cuda_kernel *k)
{
    if (!k->spans) return 0;
    double planes = (double)attn_sm90_span_batch(d) * (double)attn_sm90_span_heads(d);
    if (d->direction == ATTN_BACKWARD) return planes * (double)ATTN_SM90_KEY_SPAN_BYTES(d->len_kv);
    double rows = planes * (double)(d->len_q + 1);
    return 8 * rows + ATTN_SM90_SPAN_BYTES(k->q_tile);
}

static double span_flags(const attn_desc *d)
{
    return ATTN_SM90_SPAN_FLAGS(attn_sm90_span_batch(d) * attn_sm90_span_heads(d) * attn_sm90_span_blocks(d));
}

static bool lay_out(const attn_desc *d, attn_sm90_plan *plan)
{
    const attn_cuda_choice *c = &plan->cuda.chosen;
    double summaries = (double)summary_count(d, summarised(plan)) * (double)d->interval_heads * (double)d->batch;
    double flags = plan->instead.kernel ? span_flags(d) : 0;
    bool fits = attn_cuda_append(&plan->cuda, c->dynamic || plan->instead.dynamic, sizeof(unsigned), &plan->counter) &&
                attn_cuda_append(&plan->cuda, summaries, 32, &plan->summaries_at) &&
                attn_cuda_append(&plan->cuda, interval_words(d, summarised(plan)), 4, &plan->interval_tiles_at) &&
                attn_cuda_append(&plan->cuda, span_bytes(d, c->kernel), 1, &plan->spans_at) &&
                attn_cuda_append(&plan->cuda, flags, 1, &plan->flags_at) &&
                attn_cuda_append(&plan->cuda, attn_sm90_widens_bits(d, c->kernel) ? bits_bytes(d, c->kernel) : 0, 1,
                                 &plan->bits_at) &&
                attn_cuda_append(&plan->cuda, bit_tiles(d, c->kernel), 8, &plan->bit_tiles_at) &&
                attn_sm90_lay_out_widened(d, plan);
    for (int i = 0; i < attn_sm90_tensors(d) && fits; i++) {
        attn_sm90_tensor t = attn_sm90_copied(d, c->kernel, i);
        double elements = (double)t.extent[0] * (double)t.stride[0];
        fits = attn_cuda_append(&plan->cuda, plan->copied[i] ? elements : 0, (double)attn_dtype_size(d->dtype),
                                &plan->copies[i]);
    }
    return fits;
}

attn_status attn_sm90_lay_out(const attn_desc *d, bool fits, attn_sm90_plan *plan)
{
    if (fits && lay_out(d, plan)) return ATTN_OK;
    return attn_cuda_too_large(d);
}

/* ---- spans ----------------------------------------------------------------------------------- */

const char attn_sm90_no_instead[] = "no variant is there for intervals that are no spans";

bool attn_sm90_find_instead(const attn_cuda_problem *of, const attn_cuda_kernel *spans, const attn_overrides *words,
                            attn_cuda_choice *best)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_tiles tiles = { .overrides = words };
    attn_cuda_problem problem = { of->desc, of->device, of->pairs, &tiles };
    if (best) best->kernel = NULL;
    for (int i = 0; i < count; i++) {
        attn_cuda_choice c;
        const attn_cuda_kernel *k = &kernels[i];
        bool backward = k->form == ATTN_CUDA_BACKWARD; /* shares maps and the workspace */
        bool takes =
            k->arch == spans->arch && k->form == spans->form && !k->spans &&
            (!backward || (k->dim == spans->dim && k->dim_v == spans->dim_v && k->kv_tile == spans->kv_tile)) &&
            !attn_cuda_obstacle(k, of->desc) && attn_cuda_can_load(k);
        if (!takes || !attn_cuda_pass_of(k)->predict(&problem, k, &c)) continue;
        if (!best) return true;
        if (!best->kernel || c.choice.seconds < best->choice.seconds) *best = c;
    }
    return best && best->kernel;
}

/* ---- time ---------------------------------------------------------------------------------- */

double attn_sm90_bits_seconds(const attn_desc *d, const attn_cuda_kernel *k, const attn_cuda_device *device)
{
    const double launch = 3e-6; /* beside another kernel */
    int passes = attn_sm90_widens_bits(d, k) + attn_sm90_summarises_bits(d, k);
    return passes * (launch + bits_bytes(d, k) / attn_cuda_bandwidth(device, "l2"));
}

/* ---- parameters ---------------------------------------------------------------------------- */

attn_status attn_sm90_fill(const attn_desc *d, const attn_sm90_plan *plan, const attn_sm90_schedule *schedule,
                           attn_sm90_params *p)
{
    attn_sm90_map *const maps[] = { &p->q_map, &p->k_map, &p->v_map };
    attn_status status = ATTN_OK;
    p->schedule = *schedule;
    for (int i = 0; i < 3 && plan->cuda.chosen.kernel->tma && !status; i++)
        status = attn_sm90_fill_map(d, plan, i, schedule->pack, maps[i]);
    return status;
}

/* ---- functions ----------------------------------------------------------------------------- */

/* The fallback kernel is loaded always: it computes what a variant cannot at addresses that TMA does not take. */
attn_status attn_sm90_load(const attn_cuda_problem *problem, const attn_cuda_context *context, const char *fallback,
                           attn_sm90_plan *plan)
{
    const attn_cuda_kernel *k = plan->cuda.chosen.kernel;
    const attn_desc *d = problem->desc;
    bool widens = attn_sm90_widens_kv(d, k), copies = false;
    for (int i = ATTN_SM90_Q; i <= ATTN_SM90_V; i++)
        copies = copies || (plan->copied[i] && !attn_sm90_has_own_pass(d, k, i));
    attn_status status = attn_cuda_load_fallback(problem, context, k, fallback, &plan->fallback);
    if (!status && attn_sm90_widens_bits(d, k))
        status = attn_cuda_load(context, NULL, "attn_sm90_widen_bits", 0, &plan->widen_bits);
    if (status || !attn_cuda_is_variant(k)) return status;
    status = attn_cuda_load(context, k, k->symbol, k->shared, &plan->variant);
    bool finds = k->spans && d->direction == ATTN_FORWARD; /* the summaries, too */
    if (!status && summary_count(d, summarised(plan)) && !finds)
        status = attn_cuda_load(context, NULL, "attn_sm90_interval_summary", 0, &plan->summarise);
    const char *pass = d->direction == ATTN_FORWARD ? "attn_sm90_find_spans" : "attn_sm90_find_key_spans";
    if (!status && k->spans) status = attn_cuda_load(context, NULL, pass, 0, &plan->find_spans);
    if (!status && attn_sm90_summarises_bits(d, k))
        status = attn_cuda_load(context, NULL, "attn_sm90_bit_tiles", 0, &plan->find_bit_tiles);
    if (!status && copies) status = attn_cuda_load(context, NULL, "attn_sm90_repack", 0, &plan->repack);
    if (!status && k->transposed) status = attn_cuda_load(context, NULL, "attn_sm90_transpose", 0, &plan->transpose);
    if (!status && widens) status = attn_cuda_load_dtype(context, d->dtype, "widen", &plan->widen);
    return status;
}

/* ---- words --------------------------------------------------------------------------------- */

/* Those of the tensors that kernels read which repack copies first, or those which nobody copies. */
static void say_tensors(const attn_desc *d, const attn_sm90_plan *plan, bool copied, attn_text_buffer *words)
{
    static const char *const names[] = { " q", " k", " v", " grad_o" };
    for (int i = 0; i < attn_sm90_tensors(d); i++)
        if (plan->copied[i] == copied && !attn_sm90_has_own_pass(d, plan->cuda.chosen.kernel, i) && !holds(plan, i))
            attn_say(words, "%s", names[i]);
}

void attn_sm90_describe(const attn_plan *plan, bool stores_wide, attn_text_buffer *words)
{
    const attn_desc *d = &plan->desc;
    const attn_sm90_plan *own = plan->own;
    int copied = 0, others = own->widen ? 2 : own->transpose ? 1 : 0, tensors = attn_sm90_tensors(d);
    bool of_keys = d->direction == ATTN_BACKWARD;
    const char *one = of_keys ? "key" : "row", *other = of_keys ? "row" : "key";
    if (own->find_spans) attn_say(words, "spans      a pass finds the first and the last %s of each %s\n", other, one);
    if (own->instead.kernel)
        attn_say(words, "           %ss of a %s that lie apart: %s computes all, as the device finds\n", other, one,
                 own->instead.kernel->name);
    if (own->widen_bits)
        attn_say(words, "bits       of the last %lld keys are widened to all first, %.4g MiB\n",
                 (long long)d->bits_keys, bits_bytes(d, own->cuda.chosen.kernel) / (1 << 20));
    if (own->find_bit_tiles)
        attn_say(words, "bits       a pass finds KV tiles that they leave empty or full, %.4g MiB\n",
                 8 * bit_tiles(d, own->cuda.chosen.kernel) / (1 << 20));
    for (int i = 0; i < tensors; i++)
        copied += own->copied[i];
    if (own->widen) attn_sm90_say_widened(d, own, words);
    if (copied > others) {
        attn_say(words, "copied    ");
        say_tensors(d, own, true, words);
        attn_say(words, " first, which TMA does not take as they lie\n");
    }
    bool bias = attn_sm90_maps_bias(own->cuda.chosen.kernel);
    if (!own->variant || (copied + own->cuda.holds_q == tensors && !stores_wide && !bias)) return;
    attn_say(words, "addresses ");
    say_tensors(d, own, false, words);
    if (bias) attn_say(words, " bias");
    if (stores_wide) attn_say(words, " o");
    attn_cuda_say_fallback(&own->fallback, words);
}
