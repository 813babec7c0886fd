/* Which CUDA kernel a plan takes, and what is refused, on the driver of fake_cuda/. */
#define _GNU_SOURCE
#include "cuda_support.h"

static void features_find_their_kernels(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    assert_null(strstr(info_of(&desc).kernel, "fallback"));
    assert_string_equal(info_of(&desc).isa, "sm_90a");
    desc.dtype = ATTN_F32;
    assert_string_equal(info_of(&desc).kernel, "sm90_fallback_f32");
    desc = small();
    desc.dim_qk = 264;
    assert_string_equal(info_of(&desc).kernel, "sm90_fallback_bf16");
    desc = small();
    desc.kernel = "sm90_fallback_bf16";
    assert_string_equal(info_of(&desc).kernel, "sm90_fallback_bf16");
    desc = small();
    desc.flags = ATTN_CAUSAL | ATTN_WINDOW, desc.window_left = 512, desc.len_q = desc.len_kv = 4096;
    for (int i = 0; i < 3; i++)
        assert_null(strstr(info_of(&desc).kernel, (const char *[]){ "masks", "score_mod", "fallback" }[i]));
    desc = small();
    desc.batch = 1, desc.heads_q = desc.heads_kv = 1, desc.len_q = 1, desc.len_kv = 1 << 16;
    assert_string_equal(info_of(&desc).kernel, "sm90_decode_bf16_d64");
    desc.kernel = "sm90_bf16_d64_128x128";
    assert_true(info_of(&desc).splits > 8);
    desc.kernel = NULL, desc.len_q = 17;
    assert_null(strstr(info_of(&desc).kernel, "decode"));
    end_context(context);
}

/* A flag that the header will have one day: no kernel takes it and ignores it. */
static void new_flags_are_refused(void **state)
{
    (void)state;
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        for (int bit = 20; bit < 30; bit++) {
            const attn_cuda_kernel *k = &kernels[i];
            bool scales = bit == 20 || bit == 21; /* of elements of a byte */
            if (scales && k->kv_dtypes & (1u << ATTN_E4M3 | 1u << ATTN_I8)) continue;
            assert_non_null(attn_cuda_pass_of(k)); /* each form of the table has what plans and runs it */
            attn_desc desc = small();
            desc.dtype = k->dtype, desc.direction = attn_cuda_direction(k), desc.dim_v = desc.dim_qk;
            desc.kv_dtype = attn_cuda_kv_dtype(k);
            desc.flags = 1u << bit;
            const char *why = attn_cuda_obstacle(k, &desc);
            if (!why || strcmp(why, attn_lacking(desc.flags)) != 0)
                fail_msg("%s and flag %d: %s", k->name, bit, why ? why : "taken");
        }
    assert_true(count > 0);
}

/* Decode says up to what keys pass through L2. Boxes of pages do where one Q tile reads them, and they are no more than
 * L2 had better give up. */
static void keys_pass_through_l2(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    static const struct {
        int64_t batch, len_q, pages, page_size;
        bool passes;
    } cases[] = { { 4, 32, 256, 64, true },
                  { 4, 32, 1024, 16, true },
                  { 4, 256, 256, 64, false },
                  { 64, 32, 4096, 64, false },
                  { 4, 32, 1376, 12, false } };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        attn_desc desc = small();
        desc.dim_qk = desc.dim_v = 128, desc.heads_q = 32, desc.heads_kv = 8, desc.flags |= ATTN_PAGED | ATTN_LENS_KV;
        desc.batch = cases[n].batch, desc.len_q = cases[n].len_q, desc.len_kv = 4096;
        desc.pages = cases[n].pages, desc.page_size = cases[n].page_size;
        desc.table_width = attn_ceil_div(desc.len_kv, desc.page_size);
        desc.kernel = "sm90_bf16_d128_128x128_paged";
        expect_words(&desc, "L2 gives them up before other lines", cases[n].passes);
    }
    attn_desc one = small();
    one.len_q = 1, one.len_kv = 4096, one.kernel = "sm90_decode_bf16_d64";
    expect_words(&one, "gives up keys and values before other lines where they are at most 300", true);
    end_context(context);
}

/* Variants of paged keys take pages of any size, at multiples of 16 bytes; the fallback the rest. */
static void pages_find_their_kernels(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    attn_desc desc = small();
    desc.flags = ATTN_PAGED | ATTN_LENS_KV, desc.pages = 20, desc.page_size = 16, desc.table_width = 13;
    expect_why(&desc, "sm90_bf16_d64_128x128_paged", "of 16 keys, read 16 at a time");
    desc.dim_qk = 40, desc.page_size = 192;
    expect_why(&desc, "sm90_bf16_d64_128x128_paged", "of 192 keys, read 64 at a time");
    desc.flags |= ATTN_BITS, desc.bits_batch = desc.bits_heads = 1;
    expect_why(&desc, "sm90_bf16_d64_128x64_score_mod_paged", "predicted the fastest");
    desc.bits_keys = 7;
    expect_why(&desc, "sm90_bf16_d64_128x64_score_mod_paged", "bits       of the last 7 keys are widened to all first");
    desc.flags &= ~(uint32_t)ATTN_BITS, desc.bits_batch = desc.bits_heads = desc.bits_keys = 0;
    desc.page_size = 20;
    expect_why(&desc, "sm90_bf16_d64_128x128_paged", "of 20 keys, no multiple of 8: threads copy key by key");
    desc.page_size = 64, desc.dim_qk = 44;
    expect_why(&desc, "sm90_fallback_bf16", "of paged keys, TMA does not take pages of these strides");
    desc.dtype = ATTN_F32;
    expect_why(&desc, "sm90_fallback_f32", "the only one that takes ATTN_PAGED\n");
    desc = small();
    desc.kernel = "sm90_bf16_d64_128x128_paged";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it takes paged keys alone");
    end_context(context);
}

/* In a forward; and in a backward of spans, unless they come with a fixed order. */
static void first_keys_and_positions_take_kernels_of_ranges(void **state)
{
    (void)state;
    static const uint32_t flags[] = { ATTN_FIRST_KV, ATTN_POSITIONS };
    static const char *const names[] = { "sm90_bf16_d64_128x64_ranges", "sm90_backward_bf16_d64_128_spans" };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(flags) * 2; i++) {
        attn_desc desc = small();
        desc.flags = flags[i / 2] | ATTN_CAUSAL;
        desc.direction = i % 2 ? ATTN_BACKWARD : ATTN_FORWARD;
        expect_why(&desc, names[i % 2], "predicted the fastest");
        if (i % 2) {
            desc.flags |= ATTN_DETERMINISTIC;
            expect_why(&desc, "sm90_backward_bf16_d64_128_ranges", "predicted the fastest");
            desc.flags &= ~(uint32_t)ATTN_DETERMINISTIC;
        }
        desc.flags |= ATTN_ALIBI, desc.alibi_batch = 1;
        expect_why(&desc, i % 2 ? "sm90_backward_bf16_d64_128_spans_alibi" : "sm90_bf16_d64_128x128_ranges_alibi",
                   "predicted the fastest");
    }
    end_context(context);
}

/* Of rows whose keys lie side by side; where the device is to find whether they do, another kernel is there for them.
 */
static void keys_side_by_side_are_spans(void **state)
{
    (void)state;
    static const uint32_t flags[] = { ATTN_CHUNK,     ATTN_PREFIX,    ATTN_FIRST_KV,
                                      ATTN_POSITIONS, ATTN_INTERVALS, ATTN_PREFIX | ATTN_WINDOW };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(flags) * 3; i++) {
        attn_desc desc = small();
        desc.flags = flags[i / 3] | ATTN_CAUSAL, desc.dim_qk = desc.dim_v = 64 << i % 3;
        desc.len_q = desc.len_kv = 4096, desc.heads_q = desc.heads_kv = 16;
        if (desc.flags & ATTN_CHUNK) desc.chunk = 1024;
        if (desc.flags & ATTN_WINDOW) desc.window_left = 512;
        if (desc.flags & ATTN_INTERVALS) desc.interval_vectors = 1, desc.interval_heads = 1;
        bool gap = desc.flags & ATTN_WINDOW;
        if (!strstr(info_of(&desc).kernel, "_spans") != gap) fail_msg("%s for 0x%x", info_of(&desc).kernel, desc.flags);
        expect_words(&desc, "spans      a pass finds the first and the last key of each row\n", !gap);
        expect_words(&desc, "computes all, as the device finds", desc.flags & ATTN_INTERVALS);
        desc.kv_dtype = ATTN_E4M3; /* widened first, for either */
        if (!strstr(info_of(&desc).kernel, "_spans") != gap) fail_msg("%s for 0x%x", info_of(&desc).kernel, desc.flags);
        expect_words(&desc, "widened    k v of e4m3", true);
    }
    end_context(context);
}

/* The same of keys whose rows lie side by side, in the backward. They may lie apart where an interval has two ends; who
 * adds in a fixed order takes no spans. */
static void rows_side_by_side_are_spans(void **state)
{
    (void)state;
    static const struct {
        uint32_t flags;
        int vectors;
        bool apart, spans;
    } masks[] = {
        { ATTN_CHUNK, 0, false, true },
        { ATTN_PREFIX, 0, false, true },
        { ATTN_PREFIX | ATTN_WINDOW, 0, false, true },
        { ATTN_FIRST_KV, 0, false, true },
        { ATTN_POSITIONS, 0, false, true },
        { ATTN_INTERVALS, 1, false, true },
        { ATTN_INTERVALS, 2, true, true },
        { ATTN_INTERVALS, 4, true, true },
        { ATTN_INTERVALS | ATTN_DETERMINISTIC, 1, false, false },
        { ATTN_WINDOW, 0, false, false },
    };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(masks) * 3; i++) {
        attn_desc desc = small();
        desc.direction = ATTN_BACKWARD;
        desc.flags = masks[i / 3].flags | (masks[i / 3].vectors == 4 ? 0 : ATTN_CAUSAL);
        desc.dim_qk = desc.dim_v = 64 << i % 3;
        desc.len_q = desc.len_kv = 4096, desc.heads_q = desc.heads_kv = 16;
        if (desc.flags & ATTN_CHUNK) desc.chunk = 1024;
        if (desc.flags & ATTN_WINDOW) desc.window_left = 512;
        if (desc.flags & ATTN_INTERVALS) desc.interval_vectors = masks[i / 3].vectors, desc.interval_heads = 1;
        bool spans = strstr(info_of(&desc).kernel, "_spans");
        if (spans != masks[i / 3].spans) fail_msg("%s for 0x%x", info_of(&desc).kernel, desc.flags);
        expect_words(&desc, "spans      a pass finds the first and the last row of each key\n", spans);
        expect_words(&desc, "rows of a key that lie apart: sm90_backward_bf16_d", masks[i / 3].apart);
        if (desc.dim_qk <= 128 && spans) expect_words(&desc, "postprocess fused", !masks[i / 3].apart);
    }
    end_context(context);
}

/* A kernel that NVRTC compiles is predicted faster here, but by less than it has to be. */
static void what_nvrtc_compiles_has_to_save_more(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.batch = 1, desc.heads_q = desc.heads_kv = 16, desc.len_q = desc.len_kv = 512, desc.dim_qk = desc.dim_v = 64;
    desc.flags = ATTN_SOFTCAP, desc.softcap = 30;
    attn_desc asked = desc;
    asked.kernel = "sm90_bf16_d64_128x128_ranges_softcap";
    expect_why(&desc, "sm90_bf16_d64_256x64_softcap", "predicted the fastest");
    assert_true(info_of(&asked).seconds < info_of(&desc).seconds);
    end_context(context);
}

/* Two changes, or one and a mask beyond causal, have kernels of their own, of each head dim: no plan takes one that
 * changes scores as flags say. */
static void two_changes_take_their_own_kernels(void **state)
{
    (void)state;
    static const struct {
        uint32_t flags;
        const char *forward, *backward; /* how their names end */
    } pairs[] = {
        { ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_DROPOUT, "_softcap_dropout", "_softcap_dropout" },
        { ATTN_CAUSAL | ATTN_ALIBI | ATTN_DROPOUT, "_alibi_dropout", "_alibi_dropout" },
        { ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_ALIBI, "_softcap_alibi", "_softcap_alibi" },
        { ATTN_BIAS | ATTN_DROPOUT, "_bias_dropout", "_bias_dropout" },
        { ATTN_CAUSAL | ATTN_INTERVALS | ATTN_DROPOUT, "_ranges_dropout", "_dropout" }, /* of spans, or of ranges */
        { ATTN_CAUSAL | ATTN_INTERVALS | ATTN_SOFTCAP, "_softcap", "_softcap" },
        { ATTN_ALIBI, "_ranges_alibi", "_ranges_alibi" }, /* rows see keys on both sides */
        { ATTN_BIAS | ATTN_INTERVALS, "_ranges_bias", "_spans_bias" },
        { ATTN_BITS | ATTN_DROPOUT, "_bits_dropout", "_masks_dropout" },
        { ATTN_BITS | ATTN_ALIBI, "_bits_alibi", "_masks_alibi" },
        { ATTN_BITS | ATTN_BIAS, "_bits_bias", "_masks_bias" },
        { ATTN_SOFTCAP | ATTN_BIAS, "_score_mod", "_score_mod" },
    };
    CUcontext context = fresh_context(0);
    for (int i = 0; i < COUNT(pairs) * 6; i++) {
        attn_desc desc = small();
        bool backward = i % 2;
        int dim = 64 << i / 2 % 3;
        desc.flags = pairs[i / 6].flags, desc.direction = backward ? ATTN_BACKWARD : ATTN_FORWARD;
        desc.dim_qk = desc.dim_v = dim, desc.len_q = desc.len_kv = 4096, desc.heads_q = desc.heads_kv = 16;
        if (desc.flags & ATTN_SOFTCAP) desc.softcap = 30;
        if (desc.flags & ATTN_ALIBI) desc.alibi_batch = 1;
        if (desc.flags & ATTN_DROPOUT) desc.dropout_p = 0.1f;
        if (desc.flags & ATTN_INTERVALS) desc.interval_vectors = 2, desc.interval_heads = 1;
        if (desc.flags & ATTN_BITS) desc.bits_batch = desc.bits_heads = 1;
        if (desc.flags & ATTN_BIAS) {
            if (backward && dim > 128) continue; /* not at these dims */
            desc.bias_dtype = desc.dtype, desc.bias_extent[0] = 1, desc.bias_extent[1] = 16;
            desc.bias_extent[2] = desc.bias_extent[3] = 4096;
        }
        const char *end = backward ? pairs[i / 6].backward : pairs[i / 6].forward,
                   *found = strstr(info_of(&desc).kernel, end);
        if (!found || strcmp(found, end) != 0) fail_msg("%s for %s", info_of(&desc).kernel, end);
        expect_words(&desc, "predicted the fastest", true);
    }
    end_context(context);
}

/* Blocks of 64 keys take kernels that gather them; of whole tiles those of ranges; with bits, or smaller, those of all
 * masks. */
static void small_blocks_are_gathered(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    attn_desc desc = small();
    desc.len_q = desc.len_kv = 4096, desc.dim_qk = desc.dim_v = 64, desc.flags = ATTN_BLOCKS;
    desc.batch = 2, desc.heads_q = desc.heads_kv = 32;
    desc.block_rows = desc.block_keys = 64, desc.block_batch = desc.block_heads = 1;
    expect_why(&desc, "sm90_bf16_d64_128x128_blocks", "predicted the fastest");
    desc.visible_share = 0.125f;
    expect_why(&desc, "sm90_bf16_d64_128x128_blocks", "predicted the fastest");
    desc.block_rows = desc.block_keys = 128;
    expect_why(&desc, "sm90_bf16_d64_128x128_ranges", "predicted the fastest");
    desc.block_keys = 32;
    desc.kernel = "sm90_bf16_d64_128x128_blocks";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it does not take blocks of this size");
    desc.flags = ATTN_CAUSAL, desc.block_rows = desc.block_keys = desc.block_batch = desc.block_heads = 0;
    desc.visible_share = 0;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "for block lists");
    end_context(context);
}

/* Addresses that are known to be odd when it is planned cost copies, not the fast kernel. */
static void other_addresses_are_planned(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.dim_qk = 64, desc.len_q = desc.len_kv = 300, desc.flags = ATTN_CAUSAL, desc.alignment = 2;
    expect_why(&desc, "sm90_bf16_d64_128x128", "copied     q k v first, which TMA does not take as they lie");
    expect_why(&desc, "sm90_bf16_d64_128x128", "addresses of 2 bytes");
    desc.direction = ATTN_BACKWARD;
    expect_why(&desc, "sm90_backward_bf16_d64_128", "copied     q k v grad_o first");
    desc.direction = ATTN_FORWARD, desc.alignment = 16;
    expect_why(&desc, "sm90_bf16_d64_128x128", "addresses  q k v o are to be multiples of 16");
    end_context(context);
}

/* Variants take bits of the last keys widened, a plane for each sequence where lengths differ, and so do the fallback
 * kernels of the backward; that of the forward, and decode, read them as they are. */
static void bits_of_the_last_keys_are_widened(void **state)
{
    (void)state;
    static const char widened[] = "bits       of the last 9 keys are widened to all first, ";
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.dim_qk = 64, desc.batch = 3, desc.len_q = 1024, desc.len_kv = 2048, desc.flags = ATTN_BITS | ATTN_CAUSAL;
    desc.bits_batch = desc.bits_heads = 1, desc.bits_keys = 9;
    expect_why(&desc, "sm90_bf16_d64_128x128_masks", "of the last 9 keys are widened to all first, 0.25 MiB");
    expect_words(&desc, "a pass finds KV tiles", true);
    desc.flags |= ATTN_LENS_KV;
    expect_why(&desc, "sm90_bf16_d64_128x128_masks", "of the last 9 keys are widened to all first, 0.75 MiB");
    assert_true(info_of(&desc).workspace_bytes >= 3 * 1024 * 256);
    desc.direction = ATTN_BACKWARD;
    expect_why(&desc, "sm90_backward_bf16_d64_128_masks", widened);
    desc.dtype = ATTN_F32;
    expect_why(&desc, "sm90_backward_fallback_f32", widened);
    desc.direction = ATTN_FORWARD;
    expect_words(&desc, widened, false);
    desc.dtype = ATTN_BF16, desc.len_q = 1, desc.kernel = "sm90_decode_bf16_d64";
    expect_words(&desc, widened, false);
    end_context(context);
}

/* A pass before the kernel finds what bits show of tiles; not if one Q tile is all there is, or there are block lists.
 */
static void bits_have_a_summary(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.dim_qk = 64, desc.len_q = 300, desc.len_kv = 4097, desc.flags = ATTN_BITS | ATTN_CAUSAL;
    desc.bits_batch = 1, desc.bits_heads = desc.heads_q;
    expect_why(&desc, "sm90_bf16_d64_128x128_masks", "bits       a pass finds KV tiles that they leave empty or full");
    assert_true(info_of(&desc).workspace_bytes >= 8 * 5 * 2 * (uint64_t)desc.heads_q);
    desc.len_q = 128;
    expect_words(&desc, "a pass finds", false);
    desc.len_q = 300, desc.direction = ATTN_BACKWARD;
    expect_why(&desc, "sm90_backward_bf16_d64_128_masks", "bits       a pass finds");
    desc.direction = ATTN_FORWARD, desc.dim_qk = 256;
    expect_why(&desc, "sm90_bf16_d256_128x64_bits", "bits       a pass finds");
    desc.flags |= ATTN_BLOCKS, desc.block_rows = desc.block_keys = 64, desc.block_batch = desc.block_heads = 1;
    expect_why(&desc, "sm90_bf16_d256_128x64_masks", "predicted the fastest");
    expect_words(&desc, "a pass finds", false);
    end_context(context);
}

static double predicted(const attn_desc *desc)
{
    return info_of(desc).seconds;
}

/* What was measured of features decides (bench/results/h200-features.csv): a share of bits is in all tiles, documents
 * and stores by elements cost more than their pairs, and what NVRTC has to compile is no match for what is there. */
static void features_are_predicted_as_measured(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_desc plain = small();
    plain.batch = 2, plain.heads_q = plain.heads_kv = 16, plain.dim_qk = plain.dim_v = 128;
    plain.len_q = plain.len_kv = 4096;
    for (int i = 0; i < 2; i++) {
        plain.direction = i ? ATTN_BACKWARD : ATTN_FORWARD;
        attn_desc desc = plain, causal = plain;
        causal.flags = ATTN_CAUSAL;
        desc.flags = ATTN_BITS, desc.bits_batch = desc.bits_heads = 1, desc.visible_share = 1;
        double all = predicted(&desc);
        desc.visible_share = 0.5;
        double half = predicted(&desc);
        assert_true(half > all && half < 1.5 * all);
        expect_words(&desc, i ? "sm90_backward_bf16_d128_128_masks" : "sm90_bf16_d128_128x128_masks", true);
        desc = causal, desc.flags |= ATTN_INTERVALS, desc.interval_heads = desc.interval_vectors = 1;
        desc.visible_share = 0.17;
        double share = desc.visible_share * predicted(&causal) / predicted(&desc);
        assert_true(share > 0.25 && share < (i ? 0.5 : 0.4));
        desc = causal, desc.alignment = 2;
        assert_true(predicted(&desc) > (i ? 1.05 : 1.4) * predicted(&causal));
        desc = plain, desc.flags = ATTN_BLOCKS, desc.block_batch = desc.block_heads = 1;
        desc.block_rows = desc.block_keys = 128, desc.visible_share = 0.25;
        double wide = predicted(&desc);
        desc.block_rows = desc.block_keys = 64;
        assert_true(predicted(&desc) > 1.3 * wide); /* a tile of 128 has two of them, or four */
    }
    attn_desc desc = small();
    desc.batch = 2, desc.heads_q = desc.heads_kv = 32, desc.len_q = desc.len_kv = 4096, desc.dim_qk = desc.dim_v = 64;
    desc.flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_ALIBI, desc.window_left = 512, desc.window_right = -1;
    desc.alibi_batch = 1;
    expect_why(&desc, "sm90_bf16_d64_256x64_spans_alibi", "predicted the fastest");
    desc = plain, desc.direction = ATTN_FORWARD, desc.flags = ATTN_CAUSAL | ATTN_WINDOW;
    desc.window_left = 512, desc.window_right = -1;
    expect_why(&desc, "sm90_bf16_d128_192x64_spans", "predicted the fastest");
    desc.window_left = desc.len_kv - 1; /* hides nothing */
    expect_why(&desc, "sm90_bf16_d128_192x64", "predicted the fastest");
    end_context(context);
}

static void wrong_wishes_are_refused(void **state)
{
    (void)state;
    attn_plan *plan;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.kernel = "avx2_prefill";
    refused(attn_plan_create(&plan, &desc), ATTN_INVALID, "kernel = avx2_prefill is no CUDA kernel");
    desc.kernel = "sm90_fallback_f16";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "kernel = sm90_fallback_f16: it does not take dtype");
    desc = small();
    desc.batch = 70000;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "batch or heads_q is above the 65535 it takes");
    desc = small();
    desc.kernel = "sm90_backward_fallback_bf16";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_backward_fallback_bf16: it computes the other direction");
    end_context(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_flags_are_refused),
        cmocka_unit_test(features_find_their_kernels),
        cmocka_unit_test(pages_find_their_kernels),
        cmocka_unit_test(keys_pass_through_l2),
        cmocka_unit_test(first_keys_and_positions_take_kernels_of_ranges),
        cmocka_unit_test(keys_side_by_side_are_spans),
        cmocka_unit_test(rows_side_by_side_are_spans),
        cmocka_unit_test(what_nvrtc_compiles_has_to_save_more),
        cmocka_unit_test(two_changes_take_their_own_kernels),
        cmocka_unit_test(small_blocks_are_gathered),
        cmocka_unit_test(other_addresses_are_planned),
        cmocka_unit_test(bits_of_the_last_keys_are_widened),
        cmocka_unit_test(bits_have_a_summary),
        cmocka_unit_test(features_are_predicted_as_measured),
        cmocka_unit_test(wrong_wishes_are_refused),
    };
    cuda_begin();
    return cuda_end(cmocka_run_group_tests(tests, NULL, NULL));
}
