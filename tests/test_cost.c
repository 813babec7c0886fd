/* The planner for Hopper against an H200: bytes that Nsight Compute counted there, kernels that must not be taken, and
 * waves of tiles. No GPU is asked. */
#include "support.h"

#include <math.h>

#include "problem/desc.h"
#include "cuda/sm90/host/backward.h"
#include "cuda/sm90/host/forward.h"
#include "mask/mask.h"
#include "planner/attention.h"

static const attn_cuda_device h200 = { .name = "NVIDIA H200",
                                       .major = 9,
                                       .multiprocessors = 132,
                                       .shared_bytes = 232448,
                                       .l2_bytes = 50 << 20,
                                       .clock_khz = 1980000,
                                       .memory_khz = 3201000,
                                       .memory_bits = 6144 };

static const attn_cuda_kernel *kernel_named(const char *name)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    fail_msg("there is no kernel %s", name);
    return NULL;
}

static attn_desc problem(int64_t heads, int64_t len_q, int64_t len_kv, int64_t dim, uint32_t flags)
{
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 1, .flags = flags }, resolved;
    desc.heads_q = heads, desc.len_q = len_q, desc.len_kv = len_kv, desc.dim_qk = dim;
    assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
    return resolved;
}

static attn_sm90_forward_choice forward(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs,
                                        const attn_tiles *tiles)
{
    attn_sm90_forward_choice c;
    assert_true(attn_sm90_cost_forward(&(attn_cuda_problem){ desc, &h200, pairs, tiles }, kernel, &c));
    return c;
}

static attn_sm90_backward_choice backward(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs)
{
    attn_sm90_backward_choice c;
    assert_true(attn_sm90_cost_backward(&(attn_cuda_problem){ desc, &h200, pairs, NULL }, kernel, &c));
    return c;
}

/* Of either direction. */
static double seconds(const attn_desc *desc, const attn_cuda_kernel *kernel, double pairs)
{
    attn_cuda_choice c;
    attn_cuda_problem of = { desc, &h200, pairs, NULL };
    assert_true(kernel->arch->pass[desc->direction]->predict(&of, kernel, &c));
    return c.choice.seconds;
}

static attn_sm90_forward_choice chosen(const attn_desc *desc, const attn_cuda_kernel *kernel, const attn_tiles *tiles)
{
    double pairs = attn_mask_pairs(desc) * (double)desc->batch * (double)desc->heads_q;
    return forward(desc, kernel, pairs, tiles);
}

static attn_choice cost(const attn_desc *desc, const attn_cuda_kernel *kernel, const attn_tiles *tiles)
{
    return chosen(desc, kernel, tiles).base.choice;
}

static const attn_tiles whole = { .splits = 1 };

/* Milliseconds that were measured of packed sequences and of documents (bench/results/h200.csv, suites shapes and
 * window): lengths of which the descriptor says only the sum and the greatest, or the share of the pairs. */
static void lengths_of_the_run_are_predicted(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        uint32_t flags;
        attn_direction direction;
        double milliseconds;
    } cases[] = {
        { "sm90_bf16_d128_192x64", ATTN_VARLEN, ATTN_FORWARD, 1.461 },
        { "sm90_bf16_d128_192x64", ATTN_VARLEN | ATTN_CAUSAL, ATTN_FORWARD, 0.780 },
        { "sm90_backward_bf16_d128_128", ATTN_VARLEN, ATTN_BACKWARD, 4.505 },
        { "sm90_backward_bf16_d128_128", ATTN_VARLEN | ATTN_CAUSAL, ATTN_BACKWARD, 2.512 },
        { "sm90_bf16_d128_128x96_masks", ATTN_CAUSAL | ATTN_INTERVALS, ATTN_FORWARD, 1.068 },
        { "sm90_backward_bf16_d128_128_masks", ATTN_CAUSAL | ATTN_INTERVALS, ATTN_BACKWARD, 2.641 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool packed = cases[i].flags & ATTN_VARLEN;
        attn_desc desc = { .dtype = ATTN_BF16,
                           .device = ATTN_CUDA,
                           .direction = cases[i].direction,
                           .flags = cases[i].flags,
                           .batch = packed ? 13 : 1,
                           .heads_q = 16,
                           .len_q = packed ? 7437 : 32768,
                           .len_kv = packed ? 7437 : 32768,
                           .total_q = packed ? 30958 : 0,
                           .total_kv = packed ? 30958 : 0,
                           .dim_qk = 128,
                           .interval_vectors = packed ? 0 : 1,
                           .interval_heads = packed ? 0 : 1,
                           .visible_share = packed ? 0 : 0.1227 },
                  resolved;
        assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
        attn_desc typical = attn_typical(&resolved);
        double predicted = seconds(&resolved, kernel_named(cases[i].kernel), attn_typical_pairs(&typical));
        double ratio = 1e3 * predicted / cases[i].milliseconds;
        if (!(ratio > 0.8 && ratio < 1.25)) fail_msg("case %d: predicted %.3f of what was measured", (int)i, ratio);
    }
}

/* Whatever lengths are likely, none is taken as longer than the longest: what a tile has room for it has then, too. */
static void no_typical_length_is_above_the_longest(void **state)
{
    (void)state;
    for (int64_t batch = 1; batch < 9; batch++)
        for (int64_t total = 100; total <= batch * 100; total += 7) {
            attn_desc desc = { .flags = ATTN_VARLEN, .batch = batch, .len_q = 100, .len_kv = 90 };
            desc.total_q = total, desc.total_kv = 95 * batch;
            attn_desc typical = attn_typical(&desc);
            assert_true(typical.batch >= 1 && typical.len_q <= 100 && typical.len_kv <= 90);
            assert_true(typical.batch * typical.len_q >= total);
        }
}

/* Milliseconds of the fallback kernels that were measured on an H200: full and hardly used multiprocessors. */
static void the_fallback_is_predicted(void **state)
{
    (void)state;
    static const struct {
        int64_t heads_q, heads_kv, len_q, len_kv, dim;
        uint32_t flags;
        attn_dtype dtype;
        double forward, backward;
    } cases[] = {
        { 4, 4, 256, 256, 64, 0, ATTN_F32, 0.2946, 0.4618 },
        { 16, 16, 1024, 1024, 64, 0, ATTN_F32, 7.198, 24.88 },
        { 16, 16, 1024, 1024, 64, ATTN_CAUSAL, ATTN_F32, 3.848, 13.38 },
        { 8, 8, 2048, 2048, 128, 0, ATTN_F32, 23.72, 86.38 },
        { 8, 8, 2048, 2048, 128, ATTN_CAUSAL, ATTN_F32, 12.68, 46.11 },
        { 4, 4, 2048, 2048, 256, 0, ATTN_F32, 21.56, 80.10 },
        { 4, 4, 2048, 2048, 512, 0, ATTN_F32, 38.79, 153.9 },
        { 8, 8, 1024, 1024, 32, 0, ATTN_F32, 2.336, 7.875 },
        { 2, 2, 64, 64, 64, 0, ATTN_F32, 0.0782, 0.1245 },
        { 32, 8, 1, 16384, 128, 0, ATTN_F32, 18.89, 18.13 },
        { 8, 8, 64, 8192, 128, 0, ATTN_F32, 11.83, 16.62 },
        { 4, 4, 2048, 2048, 512, 0, ATTN_BF16, 38.52, 170.1 },
        { 4, 4, 2048, 2048, 320, 0, ATTN_BF16, 25.43, 102.9 },
        { 16, 16, 1024, 1024, 288, ATTN_CAUSAL, ATTN_BF16, 12.87, 50.83 },
    };
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        bool is_backward = i % 2;
        attn_desc desc = { .dtype = cases[i / 2].dtype,
                           .device = ATTN_CUDA,
                           .direction = is_backward ? ATTN_BACKWARD : ATTN_FORWARD,
                           .flags = cases[i / 2].flags,
                           .batch = 1,
                           .heads_q = cases[i / 2].heads_q,
                           .heads_kv = cases[i / 2].heads_kv,
                           .len_q = cases[i / 2].len_q,
                           .len_kv = cases[i / 2].len_kv,
                           .dim_qk = cases[i / 2].dim },
                  resolved;
        char name[64];
        snprintf(name, sizeof name, "sm90_%sfallback_%s", is_backward ? "backward_" : "",
                 desc.dtype == ATTN_F32 ? "f32" : "bf16");
        assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
        double predicted = seconds(&resolved, kernel_named(name), attn_typical_pairs(&resolved));
        double ratio = 1e3 * predicted / (is_backward ? cases[i / 2].backward : cases[i / 2].forward);
        if (!(ratio > 0.8 && ratio < 1.25)) fail_msg("case %d: predicted %.3f of what was measured", (int)i, ratio);
    }
}

static void bytes_are_as_counted(void **state)
{
    (void)state;
    static const struct {
        int rows, keys; /* of kernels as they were then */
        int64_t heads, len, dim;
        uint32_t flags;
        double memory, registers; /* counted */
    } counted[] = {
        { 192, 128, 32, 4096, 64, 0, 58.693e6, 2.8920e9 },
        { 128, 160, 21, 4096, 96, 0, 63.360e6, 2.5937e9 },
        { 128, 176, 16, 4096, 128, 0, 58.041e6, 2.6346e9 },
        { 128, 128, 16, 4096, 128, 0, 58.142e6, 2.7020e9 },
        { 128, 112, 10, 4096, 192, 0, 52.748e6, 2.6350e9 },
        { 128, 80, 8, 4096, 256, 0, 55.588e6, 3.0707e9 },
        { 128, 64, 8, 4096, 256, 0, 55.628e6, 3.2385e9 },
        { 128, 128, 16, 4096, 128, ATTN_CAUSAL, 60.100e6, 1.4017e9 },
        { 128, 176, 8, 8192, 128, ATTN_CAUSAL, 58.593e6, 2.6448e9 },
    };
    for (int i = 0; i < COUNT(counted); i++) {
        attn_desc desc = problem(counted[i].heads, counted[i].len, counted[i].len, counted[i].dim, counted[i].flags);
        const attn_cuda_kernel kernel = { .name = "counted",
                                          .form = ATTN_CUDA_FORWARD,
                                          .dtype = ATTN_BF16,
                                          .dim = (int)counted[i].dim,
                                          .dim_v = (int)counted[i].dim,
                                          .q_tile = counted[i].rows,
                                          .kv_tile = counted[i].keys };
        attn_choice c = cost(&desc, &kernel, &whole);
        double memory = c.level[0].bytes / counted[i].memory, registers = c.level[2].bytes / counted[i].registers;
        if (fabs(memory - 1) > 0.1) fail_msg("case %d: %.3f of the bytes of memory", i, memory);
        if (fabs(registers - 1) > 0.1) fail_msg("case %d: %.3f of shared memory's", i, registers);
    }
}

/* Keys that L2 does not hold come once a wave of tiles. */
static void long_keys_come_again(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128");
    attn_desc desc = problem(1, 1 << 18, 1 << 18, 128, 0);
    double once = 2.0 * 128 * 0x1p18 * 4, keys = 2.0 * 128 * 0x1p18 * 2, waves = ceil(0x1p18 / 128 / 132);
    assert_true(fabs(cost(&desc, k, NULL).level[0].bytes / (once + (waves - 1) * keys) - 1) < 0.02);
}

/* Kernels that can change scores, or mask anything, are slower at what all compute. */
static void plain_problems_take_plain_kernels(void **state)
{
    (void)state;
    static const int64_t dims[] = { 40, 64, 96, 128, 192, 256 }, lens[] = { 128, 512, 1000, 2048, 8192, 16384 };
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int d = 0; d < COUNT(dims); d++)
        for (int n = 0; n < COUNT(lens); n++)
            for (uint32_t flags = 0; flags <= ATTN_CAUSAL; flags += ATTN_CAUSAL) {
                attn_desc desc = problem(2048 / dims[d], lens[n], lens[n], dims[d], flags);
                const attn_cuda_kernel *best = NULL;
                double least = INFINITY;
                for (int i = 0; i < count; i++) {
                    const attn_cuda_kernel *k = &kernels[i];
                    if (k->form != ATTN_CUDA_FORWARD || k->dtype != ATTN_BF16 || k->dim < dims[d] || k->dim_v < dims[d])
                        continue;
                    double seconds = cost(&desc, k, NULL).seconds;
                    if (seconds < least) least = seconds, best = k;
                }
                assert_non_null(best);
                if (best->features & ATTN_CUDA_SCORES)
                    fail_msg("dim %d, %d rows: %s", (int)dims[d], (int)lens[n], best->name);
            }
}

/* Tiles of all groups of heads but the last to fill up; none is much smaller than the others. */
static void assert_groups(int64_t heads, int64_t group, int64_t tiles, double least)
{
    int64_t rest = heads % group;
    assert_true((double)(group * tiles) >= least || group == heads);
    assert_true(rest == 0 || group - rest < attn_ceil_div(heads, group));
}

/* Of so many bytes each, in half of L2. */
static int64_t heads_in_l2(int64_t bytes, int64_t heads)
{
    int64_t fit = h200.l2_bytes / 2 / bytes;
    return heads < fit ? heads : fit;
}

/* Where Q tiles differ in length, those of a group of heads are several per SM: under a causal mask alone,
 * which lets the longest come first, one and a half, else eight. Where units wait for turns, one and a half. */
static void heads_come_in_even_groups(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128"),
                           *single = kernel_named("sm90_backward_bf16_d128_128"),
                           *pair = kernel_named("sm90_backward_bf16_d256_64_2cta");
    const double sms = h200.multiprocessors;
    for (int64_t heads = 1; heads < 40; heads++) {
        attn_desc window = problem(heads, 32768, 32768, 128, ATTN_CAUSAL | ATTN_WINDOW);
        attn_sm90_schedule window_s = forward(&window, k, 1e9, NULL).schedule;
        assert_groups(heads, window_s.head_group, window_s.q_tiles, 8 * sms);
        attn_desc causal = problem(heads, 16384, 16384, 128, ATTN_CAUSAL);
        attn_sm90_schedule causal_s = forward(&causal, k, 1e9, NULL).schedule;
        assert_groups(heads, causal_s.head_group, causal_s.q_tiles, 1.5 * sms);
        causal.direction = ATTN_BACKWARD, causal.dim_qk = causal.dim_v = 256, causal.len_q = causal.len_kv = 8192;
        attn_sm90_backward_schedule b = backward(&causal, pair, 1e9).schedule;
        assert_groups(heads, b.head_group, b.key_tiles, 1.5 * sms / 2);
        attn_desc full = problem(heads, 16384, 16384, 128, 0);
        assert_int_equal(forward(&full, k, 1e9, NULL).schedule.head_group, 1);
        full.direction = ATTN_BACKWARD, full.len_q = full.len_kv = 2048;
        assert_int_equal(backward(&full, single, 1e9).schedule.head_group, 1);
        full.flags = ATTN_DETERMINISTIC;
        b = backward(&full, single, 1e9).schedule;
        assert_groups(heads, b.head_group, b.key_tiles, 1.5 * sms);
        assert_true(b.head_group >= heads_in_l2(2048 * 128 * (2 + 2 + 4), heads));
        full.flags = 0, full.dim_qk = full.dim_v = 256;
        assert_int_equal(backward(&full, pair, 1e9).schedule.head_group, heads_in_l2(2048 * 256 * (2 + 2 + 4), heads));
    }
}

static attn_sm90_backward_schedule schedule_of(int64_t heads, int64_t length, uint32_t flags)
{
    attn_desc d = problem(heads, length, length, 128, flags);
    d.direction = ATTN_BACKWARD;
    d.grad_q_stride[0] = d.grad_q_stride[1] = d.grad_q_stride[2] = 128;
    return backward(&d, kernel_named("sm90_backward_bf16_d128_128"), 1e9).schedule;
}

/* Units that take turns come in groups of the sizes that were the fastest (docs/notebook/backward.md). */
static void turns_are_taken_in_short_rows(void **state)
{
    (void)state;
    assert_int_equal(schedule_of(16, 16384, ATTN_DETERMINISTIC).head_group, 2);
    assert_int_equal(schedule_of(32, 8192, ATTN_DETERMINISTIC).head_group, 4);
}

/* Persistent CTAs convert dQ, that of the last heads after all work items: of as many as can be while the last wave of
 * equal work items leaves CTAs over. Not where their rows are in pieces, or work items add in a fixed order. */
static void ctas_convert_dq(void **state)
{
    (void)state;
    attn_sm90_backward_schedule full = schedule_of(128, 2048, 0), causal = schedule_of(128, 2048, ATTN_CAUSAL),
                                waves = schedule_of(132, 2048, 0), longer = schedule_of(32, 8192, 0);
    assert_int_equal(full.conversions, 4);
    assert_int_equal(full.total, 128 * (16 + 4));
    assert_int_equal(full.takes, full.total);
    assert_true(full.late > 40 && full.late < 128);
    assert_int_equal(waves.late, 11); /* 165 units */
    assert_int_equal(longer.late, 32);
    assert_true(causal.head_group > 1);
    assert_int_equal(causal.late, causal.head_group);
    assert_int_equal(schedule_of(128, 2048, ATTN_DETERMINISTIC).conversions, 0);
    assert_int_equal(schedule_of(128, 2048, ATTN_OUT_F32).conversions, 0);
    assert_int_equal(schedule_of(4, 2048, 0).conversions, 0); /* no more work items than CTAs */
}

/* What the kernels make of a divisor (schedule.h), beside the division. */
static void assert_divides(attn_sm90_divisor by, int64_t d)
{
    const uint32_t close[] = { 0, 1, (uint32_t)d - 1, (uint32_t)d, (uint32_t)d + 1, INT32_MAX - 1, INT32_MAX };
    for (uint32_t i = 0; i < 1000 + COUNT(close); i++) {
        uint32_t a = i < 1000 ? (i * 2654435761u >> 1) / (uint32_t)d * (uint32_t)d + i % 3 - 1 : close[i - 1000];
        if (a > INT32_MAX) continue;
        uint32_t high = (uint32_t)((uint64_t)a * by.factor >> 32);
        if ((high + a) >> by.shift != a / (uint32_t)d)
            fail_msg("%u / %lld is not %u", a, (long long)d, (high + a) >> by.shift);
    }
}

static void schedules_divide(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_192x64");
    for (int64_t heads = 1; heads < 100; heads++) {
        attn_desc desc = problem(heads, 1000, 1000, 128, ATTN_CAUSAL);
        desc.batch = 3 * heads, desc.heads_q = 3 * heads;
        const attn_sm90_forward_choice c = forward(&desc, k, 1e9, NULL);
        const attn_sm90_schedule *s = &c.schedule;
        int64_t rest = s->heads * desc.batch % s->head_group;
        assert_divides(s->by_splits, s->splits);
        assert_divides(s->by_group, (int64_t)s->head_group * s->q_tiles);
        assert_divides(s->by_head_group, s->head_group);
        if (rest) assert_divides(s->by_rest, rest);
        assert_divides(s->by_heads, s->heads);
        assert_divides(s->by_ratio, desc.heads_q / desc.heads_kv);
    }
}

/* A block of keys that lies across tiles makes each of them whole: shorter tiles pay where blocks are theirs. */
static void tiles_fit_blocks(void **state)
{
    (void)state;
    const attn_cuda_kernel *wide = kernel_named("sm90_bf16_d128_128x128_masks"),
                           *narrow = kernel_named("sm90_bf16_d128_128x96_masks");
    attn_desc documents = problem(16, 32768, 32768, 128, ATTN_CAUSAL), blocks = documents;
    documents.flags |= ATTN_INTERVALS, documents.interval_vectors = documents.interval_heads = 1;
    blocks.flags = ATTN_BLOCKS, blocks.block_rows = blocks.block_keys = 128;
    assert_true(cost(&documents, narrow, NULL).seconds < cost(&documents, wide, NULL).seconds);
    assert_true(cost(&blocks, narrow, NULL).seconds > 1.3 * cost(&blocks, wide, NULL).seconds);
    blocks.block_keys = 96;
    assert_true(cost(&blocks, narrow, NULL).seconds < cost(&blocks, wide, NULL).seconds);
}

static void tiles_come_in_waves(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128");
    attn_desc full = problem(4, 33 * 128, 8192, 128, 0), more = problem(4, 34 * 128, 8192, 128, 0);
    double one = cost(&full, k, &whole).seconds, two = cost(&more, k, &whole).seconds;
    assert_true(two > 1.8 * one && two < 2.1 * one);
    attn_tiles split = { .splits = 4 };
    assert_int_equal(cost(&full, k, &split).splits, 4);
    attn_desc few = problem(8, 1, 65536, 128, 0);
    assert_true(cost(&few, k, NULL).splits > 1 && cost(&few, k, NULL).seconds < cost(&few, k, &whole).seconds / 3);
}

/* Waves of whole tiles, then the tiles over, in as many parts as fill their wave best, if that saves what merging
 * takes.
 */
static void last_waves_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t batch, heads, len, dim;
        int tiles, splits; /* over; their parts */
        double waves, whole;
    } cases[] = {
        { "sm90_bf16_d128_192x64", 2, 16, 8192, 128, 56, 2, 10.5, 11 },
        { "sm90_bf16_d128_192x64", 1, 16, 16384, 128, 56, 2, 10.5, 11 },
        { "sm90_bf16_d128_192x64", 1, 32, 4096, 128, 44, 3, 5 + 1.0 / 3, 6 },
        { "sm90_bf16_d96_192x64", 1, 32, 4096, 96, 0, 1, 6, 6 }, /* it would save less than it takes */
        { "sm90_bf16_d128_128x128", 3, 11, 512, 128, 0, 1, 1, 1 },
        { "sm90_bf16_d128_128x128", 1, 133, 128, 128, 0, 1, 2, 2 }, /* a step a tile */
        { "sm90_bf16_d128_128x128", 1, 263, 128, 128, 0, 1, 2, 2 }, /* a wave that is full but for a tile */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const attn_cuda_kernel *k = kernel_named(cases[i].kernel);
        attn_desc desc = problem(cases[i].heads, cases[i].len, cases[i].len, cases[i].dim, 0);
        desc.batch = cases[i].batch;
        attn_sm90_forward_choice c = chosen(&desc, k, NULL);
        const attn_sm90_schedule *s = &c.schedule;
        int64_t tiles = (int64_t)s->q_tiles * s->heads * desc.batch, steps = attn_ceil_div(cases[i].len, k->kv_tile);
        assert_int_equal(s->split_tiles, cases[i].tiles);
        assert_int_equal(s->splits, cases[i].splits);
        assert_int_equal(s->total, tiles + s->split_tiles * (s->splits - 1));
        int64_t heads = s->split_tiles / s->q_tiles,
                more = s->split_tiles % s->q_tiles; /* tiles of a head that is cut */
        int64_t lines = more ? cases[i].len - (s->q_tiles - more) * k->q_tile : 0;
        assert_int_equal(s->split_rows, heads * cases[i].len + lines);
        assert_true(fabs(c.base.choice.count[ATTN_PER_STEP] / (double)steps / cases[i].waves - 1) < 0.01);
        if (cases[i].tiles)
            assert_true(c.base.choice.seconds / cost(&desc, k, &whole).seconds < 1.1 * cases[i].waves / cases[i].whole);
    }
}

/* What was measured to gain, or not to (docs/notebook/strategies.md), in the kernel that was measured. */
static void what_does_not_gain_is_not_taken(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        uint32_t flags;
        int64_t heads_kv, batch, len_q, len_kv;
        bool packs, splits_tail;
    } cases[] = {
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 1024, 1024, false, false },
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 2048, 2048, false, false },
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 4096, 4096, false, false },
        { "sm90_bf16_d128_128x128", 0, 8, 1, 1, 32768, true, false },
        { "sm90_bf16_d128_192x64", 0, 16, 1, 4096, 4096, false, false },
        { "sm90_bf16_d128_192x64", 0, 16, 1, 16384, 16384, false, true },
        { "sm90_bf16_d128_192x64", 0, 16, 2, 8192, 8192, false, true },
        { "sm90_bf16_d128_192x64", 0, 8, 1, 4096, 4096, false, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_desc desc =
            problem(cases[i].heads_kv == 8 ? 32 : 16, cases[i].len_q, cases[i].len_kv, 128, cases[i].flags);
        desc.heads_kv = cases[i].heads_kv, desc.batch = cases[i].batch;
        attn_sm90_forward_choice c = chosen(&desc, kernel_named(cases[i].kernel), NULL);
        bool tail = c.base.choice.splits > 1 && c.base.choice.split_tiles * c.base.choice.splits < c.schedule.total;
        if ((c.schedule.pack > 1) != cases[i].packs || tail != cases[i].splits_tail)
            fail_msg("case %d: %d heads packed, %d Q tiles split", (int)i, c.schedule.pack,
                     (int)c.base.choice.split_tiles);
    }
}

/* Row tiles that are alike are taken at a fixed stride; where the first of a head is shorter, or a mask or lengths make
 * them differ, as blocks get free. */
static void tiles_that_differ_are_taken_as_blocks_get_free(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t len, dim;
        uint32_t flags;
        bool dynamic;
    } cases[] = {
        { "sm90_bf16_d128_192x64", 512, 128, 0, true },
        { "sm90_bf16_d128_192x64", 576, 128, 0, false },
        { "sm90_bf16_d128_192x64", 128, 128, 0, false },
        { "sm90_bf16_d256_128x64", 512, 256, 0, false },
        { "sm90_bf16_d256_128x64", 512, 256, ATTN_CAUSAL, true },
        { "sm90_bf16_d256_128x64", 512, 256, ATTN_LENS_Q, true },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_desc desc = problem(512, cases[i].len, cases[i].len, cases[i].dim, cases[i].flags);
        assert_int_equal(chosen(&desc, kernel_named(cases[i].kernel), NULL).base.dynamic, cases[i].dynamic);
    }
}

/* Where tiles may differ, or o is stored by merging alone, all are split or none; packed heads as wholes. */
static void some_tiles_are_not_split_alone(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128");
    static const uint32_t flags[] = { ATTN_CAUSAL, ATTN_LENS_Q, ATTN_LENS_KV, ATTN_WINDOW };
    for (int i = 0; i < COUNT(flags); i++) {
        attn_desc desc = problem(27, 1280, 8192, 128, flags[i]);
        assert_int_equal(chosen(&desc, k, NULL).schedule.split_tiles, 0);
    }
    attn_desc odd = problem(27, 1280, 8192, 124, 0);
    assert_int_equal(chosen(&odd, k, NULL).schedule.split_tiles, 270);
    attn_desc packed = problem(8, 150, 65536, 128, 0);
    packed.heads_kv = 2, packed.batch = 14;
    attn_sm90_schedule s = chosen(&packed, k, &(attn_tiles){ .pack = 4 }).schedule;
    assert_int_equal(s.q_tiles, 5);
    assert_int_equal(s.split_tiles, 10);
    assert_int_equal(s.split_rows, 8 * 150);
}

/* Of the backward without a mask, or with flags, by bf16 kernels of head dim 128 or pairs of 256. */
static attn_sm90_backward_choice shared_out(const char *kernel, int64_t heads_q, int64_t heads_kv, int64_t len,
                                            uint32_t flags)
{
    const attn_cuda_kernel *k = kernel_named(kernel);
    attn_desc desc = problem(heads_q, len, len, k->dim, flags);
    desc.heads_kv = heads_kv, desc.direction = ATTN_BACKWARD;
    double pairs = attn_mask_pairs(&desc) * (double)heads_q;
    return backward(&desc, k, pairs);
}

/* Units of keys that full waves leave over are shared out by row tiles, if that saves what merging takes: the time is
 * that of the waves before and a share. */
static void units_left_over_are_shared_out(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t heads_q, heads_kv, len;
        int units, takers, share; /* share 0: none */
    } cases[] = {
        { "sm90_backward_bf16_d128_128", 3, 3, 12000, 282, 132, 26 },
        { "sm90_backward_bf16_d128_128", 12, 3, 12000, 282, 132, 103 },
        { "sm90_backward_bf16_d256_64_2cta", 3, 3, 6000, 141, 66, 13 },
        { "sm90_backward_bf16_d128_128", 5320, 133, 128, 133, 132, 8 },  /* not one row tile each */
        { "sm90_backward_bf16_d128_128", 133, 133, 128, 133, 132, 0 },   /* two row tiles a unit */
        { "sm90_backward_bf16_d128_128", 133, 133, 4096, 4256, 132, 0 }, /* 32.2 waves */
        { "sm90_backward_bf16_d128_128", 133, 133, 1024, 1064, 132, 0 },
        { "sm90_backward_bf16_d128_128", 131, 131, 128, 131, 132, 0 },
        { "sm90_backward_bf16_d128_128", 132, 132, 128, 132, 132, 0 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_sm90_backward_choice c = shared_out(cases[i].kernel, cases[i].heads_q, cases[i].heads_kv, cases[i].len, 0);
        const attn_sm90_backward_schedule *s = &c.schedule;
        int over = cases[i].share ? cases[i].units % cases[i].takers : 0, steps = (int)attn_ceil_div(cases[i].len, 64);
        steps *= (int)(cases[i].heads_q / cases[i].heads_kv);
        assert_int_equal(s->parted, over);
        assert_int_equal(s->share, cases[i].share);
        assert_int_equal(s->shares, over ? attn_ceil_div(over * steps, s->share) : 0);
        int taken = cases[i].units - over + s->conversions * (int)cases[i].heads_kv;
        assert_int_equal(s->total, taken + 2 * s->shares);
        assert_int_equal(s->takes, taken + s->shares);
        double waves = ceil(1.0 * (cases[i].units - over) / cases[i].takers);
        if (!over) continue;
        assert_true(c.base.choice.count[ATTN_PER_STEP] == waves * steps + s->share);
        assert_true(c.base.choice.count[ATTN_PER_TILE] == waves + 2);
    }
    static const uint32_t flags[] = { ATTN_CAUSAL, ATTN_WINDOW, ATTN_LENS_KV, ATTN_LENS_Q, ATTN_DETERMINISTIC };
    for (int i = 0; i < COUNT(flags); i++)
        assert_int_equal(shared_out("sm90_backward_bf16_d128_128", 3, 3, 12000, flags[i]).schedule.parted, 0);
    assert_int_equal(shared_out("sm90_backward_bf16_d128_128_masks", 3, 3, 12000, 0).schedule.parted, 0);
    assert_int_equal(shared_out("sm90_backward_bf16_d128_128", 3, 3, 1 << 29, 0).schedule.parted, 0);
}

/* ---- strategies ------------------------------------------------------------------------------ */

/* All that is decided as it is said; or why it cannot be. */
static const char *said(const char *kernel, attn_desc desc, const char *strategy, attn_said *all)
{
    attn_said words;
    attn_tiles tiles = { .said = &words };
    desc.strategy = strategy;
    assert_ok(attn_strategy_read(&words, &desc));
    double pairs = attn_mask_pairs(&desc) * (double)desc.batch * (double)desc.heads_q;
    attn_cuda_problem of = { &desc, &h200, pairs, &tiles };
    if (desc.direction == ATTN_BACKWARD) {
        attn_sm90_backward_choice c;
        if (!attn_sm90_cost_backward(&of, kernel_named(kernel), &c)) return c.base.why_not;
        *all = attn_sm90_decided_backward(&desc, &c);
    } else {
        attn_sm90_forward_choice c;
        if (!attn_sm90_cost_forward(&of, kernel_named(kernel), &c)) return c.base.why_not;
        *all = attn_sm90_decided_forward(&desc, &c);
    }
    return NULL;
}

static attn_desc grouped(attn_direction direction, int64_t rows, int64_t keys, int64_t dim, uint32_t flags)
{
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 2, .heads_q = 8, .heads_kv = 2 }, resolved;
    desc.direction = direction, desc.flags = flags, desc.len_q = rows, desc.len_kv = keys, desc.dim_qk = dim;
    assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
    return resolved;
}

static void strategies_are_followed_or_refused(void **state)
{
    (void)state;
    static const struct {
        attn_direction direction;
        uint32_t flags;
        const char *words, *refused; /* NULL: it is followed */
    } cases[] = {
        { ATTN_FORWARD, 0, "split-kv=3,split-tail=5", NULL },
        { ATTN_FORWARD, 0, "split-tail=5,head-group=2", "exclude" },
        { ATTN_FORWARD, ATTN_CAUSAL, "split-tail=5", "split-tail" },
        { ATTN_FORWARD, ATTN_CAUSAL, "split-kv=2,pack-gqa,scheduler=static,head-group=3,ctas=2", NULL },
        { ATTN_FORWARD, ATTN_OUT_F32, "split-kv=9", "split-kv" },
        { ATTN_FORWARD, 0, "ctas=133", "ctas" },
        { ATTN_BACKWARD, 0, "split-gqa=2", NULL },
        { ATTN_BACKWARD, 0, "split-gqa=3", "split-gqa" },
        { ATTN_BACKWARD, 0, "stream-k=1", "stream-k" },
        { ATTN_BACKWARD, 0, "stream-k=1,ctas=3", NULL },
        { ATTN_BACKWARD, ATTN_CAUSAL, "stream-k=1,ctas=3", "stream-k" },
        { ATTN_BACKWARD, 0, "stream-k=9,ctas=3", "stream-k" },
        { ATTN_BACKWARD, ATTN_CAUSAL, "head-persistent-dq", NULL },
        { ATTN_BACKWARD, ATTN_LENS_Q, "head-persistent-dq", "head-persistent-dq" },
        { ATTN_BACKWARD, 0, "dq-postprocess=fused,dq-late=0", NULL },
        { ATTN_BACKWARD, ATTN_CAUSAL, "dq-late=4,head-group=4", NULL },
        { ATTN_BACKWARD, 0, "dq-late=3,head-group=2", "dq-late" },
        { ATTN_BACKWARD, 0, "dq-late=5", "dq-late" },
        { ATTN_BACKWARD, 0, "dq-postprocess=fused,scheduler=static", "exclude" },
        { ATTN_BACKWARD, ATTN_OUT_F32, "dq-postprocess=fused", "f32" },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "dq-postprocess=fused", "fixed order" },
        { ATTN_BACKWARD, 0, "dq-semaphore", "exclude" },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "dq-semaphore", NULL },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "no-dq-semaphore,no-head-persistent-dq", "exclude" },
        { ATTN_BACKWARD, 0, "head-group=5", "head-group" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_said asked, all;
        attn_desc desc = grouped(cases[i].direction, 100, 600, 40, cases[i].flags);
        const char *kernel = desc.direction == ATTN_BACKWARD ? "sm90_backward_bf16_d64_128" : "sm90_bf16_d64_128x128";
        const char *why_not = said(kernel, desc, cases[i].words, &all);
        if (!why_not != !cases[i].refused || (why_not && !strstr(why_not, cases[i].refused)))
            fail_msg("%s: %s", cases[i].words, why_not ? why_not : "taken");
        if (why_not) continue;
        desc.strategy = cases[i].words;
        assert_ok(attn_strategy_read(&asked, &desc));
        for (int w = 0; w < ATTN_STRATEGIES; w++)
            if (asked.said[w] && (!all.said[w] || all.value[w] != asked.value[w]))
                fail_msg("%s: word %d is not followed", cases[i].words, w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_of_the_run_are_predicted),
        cmocka_unit_test(the_fallback_is_predicted),
        cmocka_unit_test(no_typical_length_is_above_the_longest),
        cmocka_unit_test(bytes_are_as_counted),
        cmocka_unit_test(long_keys_come_again),
        cmocka_unit_test(plain_problems_take_plain_kernels),
        cmocka_unit_test(heads_come_in_even_groups),
        cmocka_unit_test(turns_are_taken_in_short_rows),
        cmocka_unit_test(ctas_convert_dq),
        cmocka_unit_test(schedules_divide),
        cmocka_unit_test(tiles_fit_blocks),
        cmocka_unit_test(tiles_come_in_waves),
        cmocka_unit_test(last_waves_are_split),
        cmocka_unit_test(what_does_not_gain_is_not_taken),
        cmocka_unit_test(tiles_that_differ_are_taken_as_blocks_get_free),
        cmocka_unit_test(some_tiles_are_not_split_alone),
        cmocka_unit_test(units_left_over_are_shared_out),
        cmocka_unit_test(strategies_are_followed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
