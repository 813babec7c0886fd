/* Plans of elements of a byte on GPUs: which kernels take them, what is widened or transposed first, and what is
 * refused, on the driver of fake_cuda/. */
#define _GNU_SOURCE
#include "cuda_support.h"

static attn_desc of_bytes(void)
{
    return (attn_desc){ .dtype = ATTN_E4M3,
                        .out_dtype = ATTN_BF16,
                        .device = ATTN_CUDA,
                        .batch = 2,
                        .heads_q = 8,
                        .heads_kv = 2,
                        .len_q = 512,
                        .len_kv = 4096,
                        .dim_qk = 64 };
}

/* Those of E4M3 take pages of whole boxes alone. */
static void pages_of_bytes_hold_whole_boxes(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    attn_desc desc = of_bytes();
    desc.flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_CAUSAL;
    desc.pages = 400, desc.page_size = 64, desc.table_width = 210;
    expect_why(&desc, "sm90_e4m3_d64_192x128_paged", "of 64 keys, read 64 at a time");
    desc.page_size = 256;
    expect_why(&desc, "sm90_e4m3_d64_192x128_paged", "of 256 keys, read 128 at a time");
    desc.flags |= ATTN_SCALES_KV, desc.k_scale_stride[0] = desc.v_scale_stride[0] = 1;
    assert_string_equal(info_of(&desc).kernel, "sm90_e4m3_d64_192x128_paged");
    desc.page_size = 20, desc.kernel = "sm90_e4m3_d64_192x128_paged";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it takes pages of a multiple of 8 slots");
    desc.page_size = 64, desc.k_scale_rows = 64;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it takes no scales of blocks of rows");
    end_context(context);
}

/* More rows than decode takes over keys of a byte: kernels of 16 bits, which a copy of the keys is written for. It has
 * the keys of all sequences, or of all entries of the page table; with scales, a word says whether it counts. */
static void keys_of_a_byte_are_widened(void **state)
{
    (void)state;
    static const char widened[] = "widened    k v of ";
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    desc.batch = 2, desc.heads_q = 8, desc.heads_kv = 2, desc.len_q = 512, desc.len_kv = 4096, desc.dim_qk = 64;
    desc.flags = ATTN_CAUSAL, desc.kv_dtype = ATTN_I8;
    attn_desc wide = desc;
    wide.kv_dtype = (attn_dtype)0;
    expect_why(&desc, "sm90_bf16_d64_256x64", "widened    k v of i8 to bf16 first, 4 MiB\n");
    assert_string_equal(info_of(&wide).kernel, info_of(&desc).kernel);
    assert_true(info_of(&desc).workspace_bytes >= info_of(&wide).workspace_bytes + (4 << 20));
    assert_true(info_of(&desc).seconds > info_of(&wide).seconds + 3e-6);
    assert_true(info_of(&desc).memory_bytes >= info_of(&wide).memory_bytes + 3 * (2 << 20));
    desc.flags |= ATTN_SCALES_KV, desc.kv_dtype = ATTN_E4M3;
    expect_words(
        &desc, "k v of e4m3, times their scales, to bf16 first, 4 MiB; if a scale is beyond bf16, the fallback", true);
    desc.dim_qk = 60; /* whatever their layout */
    expect_words(&desc, "copied     q first, which TMA does not take", true);
    desc.dim_qk = 64, desc.flags |= ATTN_PAGED | ATTN_LENS_KV;
    desc.pages = 1 << 20, desc.page_size = 16, desc.table_total = 300; /* a copy of as many pages, not of the pool */
    expect_why(&desc, "sm90_bf16_d64_128x128_paged", "to bf16 first, 2.344 MiB");
    desc.len_q = 4; /* 16 packed rows */
    expect_words(&desc, widened, false);
    desc.len_q = 512, desc.kernel = "sm90_fallback_bf16";
    expect_words(&desc, widened, false);
    end_context(context);
}

/* What kernels of E4M3 do not take, those of bf16 compute from a copy of q, k and v. */
static void queries_of_a_byte_are_widened(void **state)
{
    (void)state;
    static const uint32_t flags[] = {
        ATTN_CHUNK,   ATTN_CAUSAL | ATTN_PREFIX,    ATTN_INTERVALS, ATTN_BLOCKS, ATTN_BITS, ATTN_ALIBI, ATTN_BIAS,
        ATTN_DROPOUT, ATTN_POSITIONS | ATTN_CAUSAL, ATTN_FIRST_KV
    };
    static const int64_t dims[] = { 64, 128, 192, 256, 40 };
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    for (size_t i = 0; i < 5 * (sizeof flags / sizeof *flags); i++) {
        attn_desc desc = small();
        desc.dtype = ATTN_E4M3, desc.len_q = desc.len_kv = 512, desc.dim_qk = dims[i % 5], desc.flags = flags[i / 5];
        desc.out_dtype = i % 3 == 0 ? ATTN_E4M3 : i % 3 == 1 ? ATTN_F16 : (attn_dtype)0;
        if (desc.flags & ATTN_CHUNK) desc.chunk = 100;
        if (desc.flags & ATTN_INTERVALS) desc.interval_vectors = 2, desc.interval_heads = 1;
        if (desc.flags & ATTN_BLOCKS) desc.block_rows = desc.block_keys = 64, desc.block_batch = desc.block_heads = 1;
        if (desc.flags & ATTN_BITS) desc.bits_batch = desc.bits_heads = 1;
        if (desc.flags & ATTN_ALIBI) desc.alibi_batch = 1;
        if (desc.flags & ATTN_DROPOUT) desc.dropout_p = 0.1f;
        if (desc.flags & ATTN_BIAS) desc.bias_dtype = ATTN_BF16, desc.bias_extent[0] = desc.bias_extent[1] = 1;
        if (desc.flags & ATTN_BIAS) desc.bias_extent[2] = desc.bias_extent[3] = 512;
        expect_words(&desc, "kernel     sm90_bf16_", true);
        expect_words(&desc, "widened    q of e4m3 to bf16 first, ", true);
        expect_words(&desc, "widened    k v of e4m3 to bf16 first, ", true);
        expect_words(&desc, "narrowed   o of f32 to ", i % 3 != 2);
    }
    attn_desc desc = small();
    desc.batch = 2, desc.heads_q = 8, desc.heads_kv = 2, desc.len_q = 512, desc.len_kv = 4096, desc.dim_qk = 64;
    desc.flags = ATTN_CAUSAL | ATTN_ALIBI, desc.alibi_batch = 1;
    attn_desc keys = desc, wide = desc;
    keys.kv_dtype = ATTN_E4M3, desc.dtype = ATTN_E4M3;
    assert_string_equal(info_of(&desc).kernel, info_of(&wide).kernel);
    assert_true(info_of(&desc).workspace_bytes >= info_of(&keys).workspace_bytes + (1 << 20));
    assert_true(info_of(&desc).seconds > info_of(&keys).seconds + 3e-6);
    assert_true(info_of(&desc).memory_bytes >= info_of(&keys).memory_bytes + 3 * (1 << 19));
    expect_words(&desc, "addresses", false); /* keys are split */
    desc.batch = 32;
    expect_words(&desc, "addresses  o are to be multiples of 16", true);
    desc.batch = 2;
    desc.alignment = 1; /* q's copy is not copied again */
    expect_words(&desc, "copied", false);
    desc.alignment = 0, desc.flags |= ATTN_SCALES_Q, desc.q_scale_rows = desc.q_scale_stride[1] = 1;
    expect_words(&desc, "q of e4m3, times its scales, to bf16 first, 1 MiB; if a scale is beyond bf16, the fallback",
                 true);
    desc.out_dtype = ATTN_E4M3;
    assert_true(info_of(&desc).workspace_bytes >= info_of(&keys).workspace_bytes + (3 << 20));
    expect_words(&desc, "narrowed   o of f32 to e4m3 at last, 2 MiB\n", true);
    desc.kernel = "sm90_fallback_e4m3"; /* reads bytes, and stores them */
    expect_words(&desc, "widened", false);
    expect_words(&desc, "narrowed", false);
    desc.kernel = "sm90_bf16_d64_128x64_score_mod";
    expect_words(&desc, "kernel     sm90_bf16_d64_128x64_score_mod: asked for by name", true);
    desc.kernel = "sm90_f16_d64_128x64_score_mod";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it does not take dtype");
    desc.kernel = "sm90_fallback_bf16";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it does not take dtype");
    desc.kernel = NULL, desc.len_q = 4; /* 16 packed rows: decode reads keys as they are */
    expect_why(&desc, "sm90_decode_bf16_d64_e4m3", "widened    q of e4m3, times its scales, to bf16 first");
    expect_words(&desc, "widened    k v", false);
    expect_words(&desc, "addresses  k v are", true);
    desc.len_q = 512, desc.flags |= ATTN_PAGED | ATTN_LENS_KV;
    desc.pages = 1000, desc.page_size = 16, desc.table_width = 256;
    expect_why(&desc, "sm90_bf16_d64_128x64_score_mod_paged", "widened    k v of e4m3 to bf16 first");
    desc = small();
    desc.dtype = desc.out_dtype = ATTN_E4M3, desc.len_q = desc.len_kv = 4096, desc.dim_qk = 128; /* fast, but for o */
    expect_why(&desc, "sm90_e4m3_d128_128x192", "narrowed   o of f32 to e4m3 at last");
    expect_words(&desc, "widened", false);
    desc.dim_qk = 264;
    expect_why(&desc, "sm90_fallback_e4m3", "the only one that computes this");
    end_context(context);
}

/* Scales of blocks and channels have kernels of their own; of single rows, and with a softcap, those of bf16 have them.
 * Query heads share a Q tile where its rows have one scale. */
static void scales_of_blocks_find_their_kernels(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    attn_desc desc = of_bytes();
    desc.flags = ATTN_CAUSAL | ATTN_SCALES_Q | ATTN_SCALES_KV;
    const char *plain = "sm90_e4m3_d64_192x128", *blocks = "sm90_e4m3_d64_192x128_block_scales";
    assert_string_equal(info_of(&desc).kernel, plain);
    desc.k_scale_rows = 64, desc.k_scale_stride[1] = 1;
    assert_string_equal(info_of(&desc).kernel, blocks);
    desc.k_scale_rows = 128;
    assert_string_equal(info_of(&desc).kernel, blocks);
    desc.kernel = plain;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_e4m3_d64_192x128: it takes no scales of blocks of rows");
    desc.kernel = NULL, desc.k_scale_rows = 0, desc.k_scale_stride[1] = 0, desc.v_scale_stride[3] = 1;
    assert_string_equal(info_of(&desc).kernel, blocks);
    desc.dim_qk = 128;
    assert_string_equal(info_of(&desc).kernel, "sm90_e4m3_d128_128x192_block_scales");
    desc.kernel = "sm90_e4m3_d128_128x192";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_e4m3_d128_128x192: it takes no scales of channels");
    desc.kernel = "sm90_e4m3_d128_128x192_block_scales", desc.v_scale_stride[3] = 0;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it is for scales of blocks of rows or of channels");
    desc.kernel = NULL, desc.q_scale_rows = 1, desc.q_scale_stride[1] = 1;
    expect_words(&desc, "kernel     sm90_bf16_d128_", true);
    desc.q_scale_rows = 64, desc.flags |= ATTN_SOFTCAP, desc.softcap = 30;
    expect_words(&desc, "kernel     sm90_bf16_d128_", true);
    desc.flags &= ~(uint32_t)ATTN_SOFTCAP, desc.softcap = 0, desc.strategy = "pack-gqa";
    desc.kernel = "sm90_e4m3_d128_128x192_block_scales";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "pack-gqa: blocks of query rows have scales of their own");
    desc.len_q = 64;
    assert_string_equal(info_of(&desc).kernel, "sm90_e4m3_d128_128x192_block_scales");
    desc.kernel = NULL;
    desc.strategy = NULL, desc.batch = 64, desc.len_q = 96, desc.q_scale_heads = desc.heads_kv,
    desc.flags &= ~(uint32_t)ATTN_CAUSAL;
    expect_words(&desc, "of 4 heads (PackGQA)", false);
    desc.q_scale_rows = 128;
    expect_words(&desc, "of 4 heads (PackGQA)", true);
    end_context(context);
}

/* Kernels to which a pass brings V transposed: the copy in the workspace, with room for zeros behind each packed
 * sequence; the pass counted; TMA refuses no V. */
static void transposed_values_have_room(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    attn_desc desc = of_bytes();
    desc.len_kv = 1000, desc.dim_v = 48, desc.kernel = "sm90_e4m3_d192_128x128", desc.strategy = "no-split-kv";
    attn_plan_info plain = info_of(&desc);
    desc.kernel = "sm90_e4m3_d192_128x128_transposed";
    attn_plan_info transposed = info_of(&desc);
    expect_words(&desc, "values     transposed by a pass before, to a copy", true);
    assert_true(transposed.seconds > plain.seconds);
    int64_t rows = desc.batch * desc.heads_kv * desc.dim_v,
            room = (int64_t)(transposed.workspace_bytes - plain.workspace_bytes);
    assert_in_range(room, rows * 1008, rows * 1008 + 255);
    desc.v_stride[0] = 1000 * desc.heads_kv * 49, desc.v_stride[1] = desc.heads_kv * 49, desc.v_stride[2] = 49,
    desc.v_stride[3] = 1;
    expect_words(&desc, "copied     v", false);
    expect_words(&desc, "addresses  q k o are to be multiples of 16", true);
    memset(desc.v_stride, 0, sizeof desc.v_stride);
    desc.flags |= ATTN_VARLEN, desc.total_q = 3000, desc.total_kv = 1500;
    desc.kernel = "sm90_e4m3_d192_128x128";
    plain = info_of(&desc), desc.kernel = "sm90_e4m3_d192_128x128_transposed", transposed = info_of(&desc);
    int64_t columns = (1500 + desc.batch * (128 + 16) + 15) / 16 * 16;
    rows = desc.heads_kv * desc.dim_v, room = (int64_t)(transposed.workspace_bytes - plain.workspace_bytes);
    assert_in_range(room, rows * columns, rows * columns + 255);
    desc.total_kv = INT32_MAX - 300;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "transposed v would have more than 2^31 keys, or 2^40 bytes of a sequence");
    desc.flags ^= ATTN_VARLEN, desc.total_q = desc.total_kv = 0, desc.len_kv = 1 << 30;
    desc.heads_q = desc.heads_kv = 64;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "or 2^40 bytes of a sequence");
    desc.flags |= ATTN_SOFTCAP, desc.softcap = 30;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "kernel = sm90_e4m3_d192_128x128_transposed");
    end_context(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_bytes_hold_whole_boxes), cmocka_unit_test(keys_of_a_byte_are_widened),
        cmocka_unit_test(queries_of_a_byte_are_widened),   cmocka_unit_test(scales_of_blocks_find_their_kernels),
        cmocka_unit_test(transposed_values_have_room),
    };
    cuda_begin();
    return cuda_end(cmocka_run_group_tests(tests, NULL, NULL));
}
