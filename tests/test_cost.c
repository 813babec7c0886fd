/* What the planner for Hopper predicts, against an H200: bytes that Nsight Compute counted there, times that were
 * measured, kernels that must not be taken. No GPU is asked. */
#include "cost_support.h"
#include "processor.h"

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

/* Decode of a batch takes as long with its rows packed as without: over pages only they are. */
static void packed_rows_over_pages_have_keys(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        attn_desc desc = { .dtype = ATTN_BF16,
                           .device = n % 2 ? ATTN_CUDA : ATTN_CPU,
                           .flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_CAUSAL,
                           .batch = 24,
                           .heads_q = 32,
                           .heads_kv = 8,
                           .len_q = n < 2 ? 1 : 64,
                           .len_kv = 4096,
                           .dim_qk = 128,
                           .pages = 8192,
                           .page_size = 16,
                           .table_width = 256,
                           .threads = n % 2 ? 0 : 2 },
                  packed = desc;
        packed.flags |= ATTN_VARLEN, packed.total_q = packed.batch * packed.len_q;
        attn_desc resolved[2];
        assert_ok(attn_desc_resolve(&resolved[0], &desc, sizeof desc));
        assert_ok(attn_desc_resolve(&resolved[1], &packed, sizeof packed));
        double took[2];
        for (int i = 0; i < 2; i++) {
            attn_desc typical = attn_typical(&resolved[i]);
            assert_int_equal(typical.len_kv, 4096);
            if (n % 2) {
                took[i] =
                    seconds(&resolved[i], kernel_named("sm90_bf16_d128_128x128_paged"), attn_typical_pairs(&typical));
            } else {
                took[i] = info_of(&resolved[i]).seconds;
            }
        }
        double ratio = took[1] / took[0];
        if (!(ratio > 0.8 && ratio < 1.25)) fail_msg("case %d: packed %.3f of the time without", n, ratio);
    }
}

/* Sequences whose lengths are a quarter of len_kv, as visible_share says, take as long as those of that len_kv. */
static void a_share_of_lengths_is_a_length(void **state)
{
    (void)state;
    static const char *const kernel[] = { NULL, "sm90_decode_bf16_d128", "sm90_bf16_d128_128x128" };
    for (int n = 0; n < 3; n++) {
        attn_desc desc = { .dtype = ATTN_BF16,
                           .device = kernel[n] ? ATTN_CUDA : ATTN_CPU,
                           .flags = ATTN_LENS_KV,
                           .batch = 16,
                           .heads_q = 32,
                           .heads_kv = 8,
                           .len_q = n == 2 ? 128 : 1,
                           .len_kv = 8192,
                           .dim_qk = 128,
                           .threads = kernel[n] ? 0 : 2 };
        double took[2];
        for (int i = 0; i < 2; i++) {
            attn_desc resolved;
            if (i) desc.len_kv *= 4, desc.visible_share = 0.25;
            assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
            attn_desc typical = attn_typical(&resolved);
            took[i] = kernel[n] ? seconds(&resolved, kernel_named(kernel[n]), attn_typical_pairs(&typical))
                                : info_of(&resolved).seconds;
        }
        double ratio = took[1] / took[0];
        if (!(ratio > 0.9 && ratio < 1.1)) fail_msg("case %d: %.3f of the time", n, ratio);
    }
}

/* A window's decode on the CPU takes the same kernel in a long context, and as many parts. (Prefill may be faster than
 * decode where tiles of AMX take 16 rows.) */
static void windows_are_split_by_their_keys(void **state)
{
    (void)state;
    static const uint32_t flags[] = { 0, ATTN_DETERMINISTIC };
    for (int n = 0; n < 4; n++) {
        attn_desc desc = { .dtype = ATTN_BF16,
                           .flags = ATTN_WINDOW | ATTN_CAUSAL | flags[n % 2],
                           .batch = 1,
                           .heads_q = 16,
                           .heads_kv = 4,
                           .len_q = n < 2 ? 1 : 16,
                           .dim_qk = 128,
                           .window_left = 4095,
                           .window_right = -1,
                           .threads = 2,
                           .strategy = "form=decode" },
                  resolved;
        attn_plan_info info[2];
        for (int i = 0; i < 2; i++) {
            desc.len_kv = i ? 1 << 20 : 8192;
            assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
            info[i] = info_of(&resolved);
        }
        assert_string_equal(info[0].kernel, info[1].kernel);
        assert_int_equal(info[0].splits, info[1].splits);
        assert_in_range(info[0].splits, 1, 9); /* parts of 512 keys at least */
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
                    if (k->form != ATTN_CUDA_FORWARD || k->dtype != ATTN_BF16 || k->needs || k->dim < dims[d] ||
                        k->dim_v < dims[d])
                        continue;
                    double seconds = cost(&desc, k, NULL).seconds;
                    if (seconds < least) least = seconds, best = k;
                }
                assert_non_null(best);
                if (best->features & ATTN_CUDA_SCORES)
                    fail_msg("dim %d, %d rows: %s", (int)dims[d], (int)lens[n], best->name);
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

/* Lists of square blocks at random, two sequences, bf16, measured on an H100: within a fifth; and what is faster is
 * predicted to be. */
static void block_lists_are_predicted(void **state)
{
    (void)state;
    static const struct {
        int heads, rows, dim, block;
        float share;
        const char *kernel;
        double milliseconds;
    } measured[] = {
        { 16, 16384, 128, 64, 0.5f, "sm90_bf16_d128_128x128_blocks", 4.358 },
        { 16, 16384, 128, 64, 0.25f, "sm90_bf16_d128_128x128_blocks", 2.663 },
        { 16, 16384, 128, 64, 0.125f, "sm90_bf16_d128_128x128_blocks", 1.673 },
        { 16, 4096, 128, 64, 0.5f, "sm90_bf16_d128_128x128_blocks", 0.334 },
        { 16, 4096, 128, 64, 0.125f, "sm90_bf16_d128_128x128_blocks", 0.161 },
        { 32, 4096, 64, 64, 0.5f, "sm90_bf16_d64_128x128_blocks", 0.485 },
        { 32, 4096, 64, 64, 0.125f, "sm90_bf16_d64_128x128_blocks", 0.203 },
        { 8, 4096, 256, 64, 0.25f, "sm90_bf16_d256_128x64_blocks", 0.171 },
        { 16, 4096, 128, 64, 0.5f, "sm90_bf16_d128_128x64_ranges", 0.419 },
        { 16, 4096, 128, 64, 0.125f, "sm90_bf16_d128_128x64_ranges", 0.173 },
        { 16, 4096, 128, 128, 0.5f, "sm90_bf16_d128_128x64_ranges", 0.25 },
        { 16, 4096, 128, 128, 0.5f, "sm90_bf16_d128_128x128_ranges", 0.232 },
        { 16, 16384, 128, 128, 0.25f, "sm90_bf16_d128_128x128_ranges", 1.72 },
        { 16, 16384, 128, 128, 0.25f, "sm90_bf16_d128_128x128_blocks", 1.889 },
    };
    double predicted[COUNT(measured)];
    for (int i = 0; i < COUNT(measured); i++) {
        attn_desc desc = problem(measured[i].heads, measured[i].rows, measured[i].rows, measured[i].dim, 0);
        desc.flags = ATTN_BLOCKS, desc.batch = 2, desc.visible_share = measured[i].share;
        desc.block_rows = desc.block_keys = measured[i].block;
        predicted[i] = seconds(&desc, kernel_named(measured[i].kernel), attn_typical_pairs(&desc)) * 1e3;
        if (fabs(predicted[i] / measured[i].milliseconds - 1) > 0.2)
            fail_msg("%d rows, %g of blocks of %d, %s: %.3f ms for %.3f", measured[i].rows, (double)measured[i].share,
                     measured[i].block, measured[i].kernel, predicted[i], measured[i].milliseconds);
    }
    assert_true(predicted[3] < predicted[8] && predicted[4] < predicted[9] && predicted[11] < predicted[10] &&
                predicted[12] < predicted[13]);
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

/* One query row per sequence, bf16, measured on an H200 as docs/notebook/decode.md says: within a fifth. */
static void few_rows_are_predicted(void **state)
{
    (void)state;
    static const struct {
        int batch, heads_q, heads_kv, dim, keys;
        const char *kernel;
        double microseconds;
    } measured[] = {
        { 16, 32, 8, 128, 4096, "sm90_bf16_d128_128x128", 79.1 },
        { 16, 32, 8, 128, 8192, "sm90_bf16_d128_128x128", 144.2 },
        { 16, 32, 8, 64, 8192, "sm90_bf16_d64_128x128", 79.9 },
        { 16, 32, 8, 256, 8192, "sm90_bf16_d256_128x80", 271.4 },
        { 16, 32, 8, 128, 4096, "sm90_decode_bf16_d128", 76.7 },
        { 16, 32, 8, 128, 8192, "sm90_decode_bf16_d128", 135.5 },
        { 16, 32, 8, 128, 32768, "sm90_decode_bf16_d128", 488 },
        { 64, 32, 8, 128, 8192, "sm90_decode_bf16_d128", 493 },
        { 1, 32, 8, 128, 512, "sm90_decode_bf16_d128", 12.9 },
        { 1, 32, 8, 128, 4096, "sm90_decode_bf16_d128", 16.9 },
        { 1, 32, 8, 128, 8192, "sm90_decode_bf16_d128", 22.2 },
        { 1, 32, 8, 128, 32768, "sm90_decode_bf16_d128", 49.5 },
        { 1, 64, 8, 128, 131072, "sm90_decode_bf16_d128", 139 },
        { 16, 28, 4, 128, 8192, "sm90_decode_bf16_d128", 79.2 },
        { 16, 32, 8, 64, 8192, "sm90_decode_bf16_d64", 78.5 },
        { 16, 32, 8, 256, 8192, "sm90_decode_bf16_d256", 260 },
    };
    for (int i = 0; i < COUNT(measured); i++) {
        attn_desc desc = problem(measured[i].heads_q, 1, measured[i].keys, measured[i].dim, 0);
        desc.batch = measured[i].batch, desc.heads_kv = measured[i].heads_kv;
        double pairs = attn_mask_pairs(&desc) * (double)desc.batch * (double)desc.heads_q;
        double predicted = seconds(&desc, kernel_named(measured[i].kernel), pairs) * 1e6;
        if (fabs(predicted / measured[i].microseconds - 1) > 0.2)
            fail_msg("%d x %d, %s: %.1f us for %.1f", measured[i].batch, measured[i].keys, measured[i].kernel,
                     predicted, measured[i].microseconds);
    }
}

/* Parts of 512 keys, measured on an H100: within a sixth, and longer than without. */
static void fixed_parts_are_predicted(void **state)
{
    (void)state;
    static const struct {
        int batch, keys;
        double microseconds;
    } measured[] = { { 16, 8192, 202.6 }, { 1, 32768, 66.4 }, { 1, 512, 13.9 } };
    attn_cuda_device h100 = h200;
    attn_overrides overrides = { .set = { false } };
    attn_tiles parts = { .exact = true, .overrides = &overrides };
    strcpy(h100.name, "NVIDIA H100 80GB HBM3");
    attn_override(&overrides, ATTN_STRATEGY_SPLIT_KEYS, 512);
    const attn_cuda_kernel *kernel = kernel_named("sm90_decode_bf16_d128");
    for (int i = 0; i < COUNT(measured); i++) {
        attn_desc desc = problem(32, 1, measured[i].keys, 128, 0);
        attn_cuda_choice freely, fixed;
        desc.batch = measured[i].batch, desc.heads_kv = 8;
        double pairs = attn_mask_pairs(&desc) * (double)desc.batch * (double)desc.heads_q;
        attn_cuda_problem of[] = { { &desc, &h100, pairs, NULL }, { &desc, &h100, pairs, &parts } };
        assert_true(attn_cuda_pass_of(kernel)->predict(&of[0], kernel, &freely));
        assert_true(attn_cuda_pass_of(kernel)->predict(&of[1], kernel, &fixed));
        double predicted = fixed.choice.seconds * 1e6;
        if (fabs(predicted / measured[i].microseconds - 1) > 1 / 6.0 || fixed.choice.seconds < freely.choice.seconds)
            fail_msg("%d x %d: %.1f us for %.1f, freely %.1f", measured[i].batch, measured[i].keys, predicted,
                     measured[i].microseconds, 1e6 * freely.choice.seconds);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_of_the_run_are_predicted),
        cmocka_unit_test(the_fallback_is_predicted),
        cmocka_unit_test(no_typical_length_is_above_the_longest),
        cmocka_unit_test(packed_rows_over_pages_have_keys),
        cmocka_unit_test(a_share_of_lengths_is_a_length),
        cmocka_unit_test(windows_are_split_by_their_keys),
        cmocka_unit_test(few_rows_are_predicted),
        cmocka_unit_test(fixed_parts_are_predicted),
        cmocka_unit_test(bytes_are_as_counted),
        cmocka_unit_test(long_keys_come_again),
        cmocka_unit_test(plain_problems_take_plain_kernels),
        cmocka_unit_test(tiles_fit_blocks),
        cmocka_unit_test(block_lists_are_predicted),
        cmocka_unit_test(tiles_come_in_waves),
    };
    return cmocka_run_group_tests(tests, test_processor_asked, NULL);
}
