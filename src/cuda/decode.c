/* Decode: prediction, plan and run. Work is scheduled on the device, so a plan decides little: how many CTAs run,
 * and whether parts have a fixed length. Contract: decode.h, arch.h. */
#include "cuda/decode.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "cuda/cost.h"
#include "cuda/fallback.h"
#include "cuda/launch.h"
#include "cuda/params.h"
#include "num/half.h"
#include "planner/attention.h"
#include "problem/desc.h"

#include "cuda/common/decode/params.h"

/* Where the machine says nothing of the kernel, clocks: of a warp for a KV tile; of a CTA for a KV head; of a run. */
static const double step_clocks = 1500, head_clocks = 1000, run_clocks = 2.77e4;
/* Clocks of a KV tile where other warps leave memory to it [m]; the fewer they are, the less it takes. */
static const double alone_clocks = 2300;
/* With split-keys the end of each part, and each round of combining so many, takes as long as a head besides [m]. */
static const double parts_at_once = 8;

typedef struct decode_plan {
    attn_cuda_plan base;
    attn_cuda_fallback_kernel fallback; /* at addresses that are no multiples of 16 */
    CUfunction variant;
    uint64_t partial_o, partial_lse, arrivals; /* byte offsets */
    int grid, teams;                           /* CTAs, and teams of each */
    attn_decode_params params;                 /* complete but for addresses and seeds */
} decode_plan;

/* ---- what is legal --------------------------------------------------------------------------- */

static int64_t keys_of_part(const attn_overrides *overrides)
{
    return attn_override_or(overrides, ATTN_STRATEGY_SPLIT_KEYS, 0);
}

static int teams_most(const attn_cuda_kernel *k)
{
    return ATTN_DECODE_WARPS / ATTN_DECODE_TEAM_LEAST(k->dim);
}

/* Teams of a CTA: several where it has three KV heads or more [m], so that one ends while others are read; one where
 * bits do not depend on the batch. */
static int teams_of(const attn_desc *d, const attn_cuda_kernel *k, const attn_overrides *overrides, int ctas)
{
    bool many = d->batch * d->heads_kv >= 3 * (int64_t)ctas;
    return (int)attn_override_or(overrides, ATTN_STRATEGY_TEAMS, many && !keys_of_part(overrides) ? teams_most(k) : 1);
}

/* KV tiles that a KV head of a sequence has at most: its keys may be two runs. */
static int64_t tiles_most(const attn_desc *d, const attn_cuda_kernel *k)
{
    return attn_ceil_div(d->len_kv, k->kv_tile) + 1;
}

/* Elements of k and v that are read at once. */
static int64_t elements_at_once(const attn_desc *d)
{
    return 16 / attn_dtype_size(attn_kv_dtype(d));
}

/* Whether k and v are read 16 bytes at a time from where they lie, and q is 4. */
static bool lies_well(const attn_desc *d)
{
    int64_t each = elements_at_once(d);
    bool even = d->alignment >= 16 && d->dim_qk % each == 0 && d->dim_v % each == 0;
    for (int i = 0; i < 3; i++)
        even = even && d->q_stride[i] % 8 == 0 && d->k_stride[i] % each == 0 && d->v_stride[i] % each == 0;
    return even;
}

static const char *illegal_words(const attn_overrides *s, const attn_desc *d, const attn_cuda_kernel *k)
{
    static const attn_strategy_word others[] = { ATTN_STRATEGY_SPLIT_KV, ATTN_STRATEGY_SPLIT_TAIL };
    int count;
    int64_t keys = keys_of_part(s), teams = attn_override_or(s, ATTN_STRATEGY_TEAMS, 1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!attn_overrides_allow(s, others[i], attn_strategies(&count)[others[i]].off))
            return "split-kv, split-tail: decode kernels schedule keys on the device";
    if (!attn_overrides_allow(s, ATTN_STRATEGY_PACK_GQA, d->heads_q > d->heads_kv))
        return "pack-gqa: decode kernels always pack the query heads of a KV head";
    if (s && (s->set[ATTN_STRATEGY_SCHEDULER] || s->set[ATTN_STRATEGY_HEAD_GROUP]))
        return "scheduler, head-group: decode kernels schedule keys, not heads";
    if (teams & (teams - 1) || teams > teams_most(k))
        return "teams: it is none of 1, 2 and, up to a head dim of 128, 4";
    if (keys % k->kv_tile) return "split-keys: it is no multiple of the kernel's KV tile";
    if (keys && attn_ceil_div(tiles_most(d, k), keys / k->kv_tile) > ATTN_DECODE_PARTS_MOST)
        return "split-keys: len_kv would be in more than 65535 parts";
    return NULL;
}

static const char *not_legal(const attn_cuda_problem *of, const attn_cuda_kernel *k)
{
    const attn_desc *d = of->desc;
    const attn_overrides *overrides = of->tiles ? of->tiles->overrides : NULL;
    const char *why_not = attn_cuda_not_legal(of->device, k, overrides);
    if (why_not) return why_not;
    if (d->len_q * (d->heads_q / d->heads_kv) > ATTN_DECODE_GROUP_ROWS)
        return "it takes 16 packed rows at most: len_q * heads_q / heads_kv";
    if (!lies_well(d) && elements_at_once(d) == 16)
        return "beside keys of a byte it takes an alignment of 16, head dims and strides of k and v that are multiples "
               "of 16, and strides of q that are multiples of 8";
    if (!lies_well(d))
        return "it takes head dims and strides of q, k and v that are multiples of 8, at an alignment of 16";
    if ((double)d->batch * (double)d->heads_kv * (double)tiles_most(d, k) > INT32_MAX) return "its tiles are too many";
    return illegal_words(overrides, d, k);
}

/* ---- prediction ------------------------------------------------------------------------------ */

/* A team's range: its units (schedule.h), and the heads that they are of. teams: that have one. */
typedef struct decode_range {
    double units, heads, teams;
} decode_range;

/* The longest, of `heads` heads of `units` units each, shared out as schedule.h does. whole: units of a range up to
 * which it ends where a head does. */
static decode_range longest_range(double heads, double units, double teams, double whole)
{
    double each = ceil(heads / teams), teams_each = fmax(1, fmin(floor(teams / heads), units));
    double used = heads < teams ? teams_each * heads : ceil(heads / each);
    decode_range ends = { ceil(each * units / teams_each), each, used };
    if (used >= 0.9 * teams || ends.units <= whole) return ends;
    return (decode_range){ ceil(heads * units / teams), each, teams };
}

static bool predict(const attn_cuda_problem *of, const attn_cuda_kernel *k, attn_cuda_choice *choice)
{
    attn_desc typical = attn_typical(of->desc);
    const attn_overrides *overrides = of->tiles ? of->tiles->overrides : NULL;
    attn_cuda_device device = attn_cuda_device_of(of->device, overrides);
    const attn_machine_kernel *measured = attn_cuda_constants(&device, k);
    attn_choice *c = &choice->choice;
    *choice = (attn_cuda_choice){ .kernel = k, .choice.pairs = of->pairs, .ctas = device.multiprocessors };
    c->flops = 2 * of->pairs * (double)(of->desc->dim_qk + of->desc->dim_v);
    if ((choice->why_not = not_legal(of, k))) return false;
    double clocks[ATTN_CONSTANTS] = {
        [ATTN_PER_STEP] = step_clocks, [ATTN_PER_TILE] = head_clocks, [ATTN_PER_RUN] = run_clocks
    };
    if (measured) memcpy(clocks, measured->clocks, sizeof clocks);
    double rows = (double)typical.batch * (double)typical.heads_q * (double)typical.len_q;
    double keys = attn_keys_seen(&typical, rows > 0 ? of->pairs / rows : 0);
    double heads = (double)typical.batch * (double)typical.heads_kv, bytes = attn_tensor_bytes(&typical, keys), all = 0;
    int team = ATTN_DECODE_WARPS / teams_of(&typical, k, overrides, device.multiprocessors);
    double part = (double)(keys_of_part(overrides) / k->kv_tile), unit = fmax(1, part), /* in tiles */
        tiles = ceil(keys / k->kv_tile), units = ceil(tiles / unit);
    double most = (double)device.multiprocessors * ATTN_DECODE_WARPS / team;
    double teams = fmax(1, fmin(most, part > 0 ? heads * units : fmax(heads, floor(heads * tiles / team))));
    decode_range range = longest_range(heads, units, teams, floor(ATTN_DECODE_WHOLE_TILES / unit));
    double ends = part > 0 ? range.units + ceil(units / parts_at_once) : 0;
    double step = clocks[ATTN_PER_STEP];
    clocks[ATTN_PER_STEP] = fmax(step * fmin(1, range.teams / most), fmin(step, alone_clocks));
    c->q_tile = k->q_tile, c->kv_tile = k->kv_tile, c->splits = 1;
    c->count[ATTN_PER_STEP] = ceil(range.units * fmin(unit, tiles) / team);
    c->count[ATTN_PER_TILE] = range.heads;
    c->count[ATTN_PER_RUN] = 1;
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        all += i == ATTN_PER_RUN ? 0 : c->count[i] * clocks[i];
    c->levels = 2;
    c->level[0].name = "memory", c->level[1].name = "L2 to shared";
    c->level[0].bytes = c->level[1].bytes = bytes;
    double start = clocks[ATTN_PER_RUN] + ends * clocks[ATTN_PER_TILE];
    attn_cuda_set_time(&device, all, start / attn_cuda_machine_of(&device)->hertz, c);
    return true;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* A word that no other plan of this process has; what another process left in memory is not seen. */
static unsigned long long unique_tag(void)
{
    static atomic_ullong made;
    unsigned long long x = ((unsigned long long)time(NULL) << 24) + atomic_fetch_add(&made, 1) + 1;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    return (x ^ x >> 27) * 0x94D049BB133111EBu & ~0xFFFFull;
}

/* Bytes of keys and values of a unit of schedule.h. */
static int64_t unit_bytes(const attn_desc *d, const attn_cuda_kernel *k, int part_tiles)
{
    int64_t size = attn_dtype_size(attn_kv_dtype(d));
    return k->kv_tile * (k->dim + k->dim_v) * size * (part_tiles ? part_tiles : 1);
}

static bool lay_out(const attn_desc *d, const attn_cuda_kernel *k, decode_plan *plan)
{
    double heads = (double)d->batch * (double)d->heads_kv, slots = (double)ATTN_DECODE_PARTS(plan->grid * plan->teams);
    if (plan->params.part_tiles) slots = heads * (double)attn_ceil_div(tiles_most(d, k), plan->params.part_tiles);
    return attn_cuda_append(&plan->base, slots * ATTN_DECODE_GROUP_ROWS, 4.0 * k->dim_v, &plan->partial_o) &&
           attn_cuda_append(&plan->base, slots * ATTN_DECODE_GROUP_ROWS, 4, &plan->partial_lse) &&
           attn_cuda_append(&plan->base, heads, 8, &plan->arrivals);
}

static attn_status create(const attn_cuda_problem *of, const attn_cuda_context *context, attn_cuda_plan *cuda)
{
    decode_plan *plan = (decode_plan *)cuda;
    const attn_desc *d = of->desc;
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    const attn_overrides *overrides = of->tiles ? of->tiles->overrides : NULL;
    int64_t keys = keys_of_part(overrides);
    predict(of, k, &cuda->chosen);
    attn_override(&cuda->decided, ATTN_STRATEGY_SPLIT_KEYS, keys);
    plan->teams = teams_of(d, k, overrides, cuda->chosen.ctas);
    attn_override(&cuda->decided, ATTN_STRATEGY_TEAMS, plan->teams);
    attn_override(&cuda->decided, ATTN_STRATEGY_CTAS, cuda->chosen.ctas);
    plan->grid = cuda->chosen.ctas;
    plan->params.team = ATTN_DECODE_WARPS / plan->teams;
    plan->params.part_tiles = (int)(keys / k->kv_tile), plan->params.tag = unique_tag();
    plan->params.passing_units =
        (unsigned)(attn_cuda_passing_bytes(of->device) / unit_bytes(d, k, plan->params.part_tiles));
    plan->params.group = (int)(d->heads_q / d->heads_kv);
    plan->params.by_page = attn_cuda_divisor_of(d->page_size ? d->page_size : 1);
    plan->params.by_group = attn_cuda_divisor_of(plan->params.group);
    attn_cuda_fill(d, k->kv_tile, &plan->params.base);
    if (!lay_out(d, k, plan)) return attn_cuda_too_large(d);
    attn_status status = attn_cuda_load_fallback(of, context, k, "fallback", &plan->fallback);
    if (!status) status = attn_cuda_load(context, k, k->symbol, k->shared, &plan->variant);
    return status;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static bool is_aligned(const void *at)
{
    return (uintptr_t)at % 16 == 0;
}

static attn_status run(const attn_cuda_call *c)
{
    const decode_plan *plan = (const decode_plan *)c->cuda;
    const attn_desc *d = &c->plan->desc;
    const attn_args *a = c->args;
    attn_decode_params p = plan->params;
    attn_cuda_shape *shape = &p.base.shape;
    attn_cuda_bind(d, a, &p.base);
    p.scales = attn_cuda_scales_of(d, a);
    if (!is_aligned(a->q) || !is_aligned(a->k) || !is_aligned(a->v) || !lies_well(d))
        return attn_cuda_run_fallback(c, &plan->fallback, &p.base, NULL);
    shape->partial_o = attn_cuda_at(c, plan->partial_o), shape->partial_lse = attn_cuda_at(c, plan->partial_lse);
    shape->o_wide = is_aligned(a->o) && attn_cuda_o_is_even(d), p.arrivals = attn_cuda_at(c, plan->arrivals);
    return attn_cuda_launch_variant(c, plan->variant, plan->grid, &p);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    const decode_plan *own = plan->own;
    const attn_desc *d = &plan->desc;
    const attn_cuda_kernel *k = own->base.chosen.kernel;
    int64_t group = d->heads_q / d->heads_kv;
    attn_say(words, "tiles      Q %lld rows of %lld heads (PackGQA), KV %d keys per warp\n", (long long)d->len_q,
             (long long)group, k->kv_tile);
    if (own->params.part_tiles)
        attn_say(words, "keys       in parts of %d, combined by LSE\n", own->params.part_tiles * k->kv_tile);
    else
        attn_say(words, "keys       of all sequences shared evenly by %s, on the device; parts combined by LSE\n",
                 own->teams > 1 ? "teams of warps" : "the CTAs");
    attn_say(words, "grid       %d CTAs of %u threads and %u KiB", own->grid, k->threads, k->shared / 1024);
    if (own->teams > 1) attn_say(words, ", in %d teams", own->teams);
    attn_say(words, "\n");
    attn_say(words, "L2         gives up keys and values before other lines where they are at most ");
    attn_say_bytes(words, (double)own->params.passing_units * (double)unit_bytes(d, k, own->params.part_tiles));
    attn_say(words, "\n");
    attn_say(words, "addresses %s k v", own->base.holds_q ? "" : " q");
    attn_cuda_say_fallback(&own->fallback, words);
}

const attn_cuda_pass attn_cuda_decode = { sizeof(decode_plan), predict, create, run, describe };
