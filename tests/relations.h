/* Relations that hold whatever attention's formula is coded like: two ways to ask for the same thing. Each edits one
 * side, or both, of a random problem. */
#ifndef TESTS_RELATIONS_H
#define TESTS_RELATIONS_H

#include "support.h"

#include <math.h>

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, KEYS = 131, DIM_QK = 40, DIM_V = 24, ROWS_MOST = 67, ROOM = 4 * 131 * 131 };

typedef struct side {
    check_problem problem;
    attn_desc desc;
    attn_args args;
    int64_t rows;
    int32_t numbers[ROOM]; /* room for the tables that a relation makes */
    float floats[ROOM];
    uint8_t bytes[ROOM];
    float shift;   /* what the relation adds to the LSE */
    float factor;  /* that a query here is of the problem's */
    bool permuted; /* key j is the problem's key that permuted_keys puts there */
} side;

static attn_desc base_desc(int64_t rows, const char *kernel)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .batch = BATCH,
                        .heads_q = HEADS,
                        .heads_kv = HEADS_KV,
                        .len_q = rows,
                        .len_kv = KEYS,
                        .dim_qk = DIM_QK,
                        .dim_v = DIM_V,
                        .threads = 2,
                        .kernel = kernel };
}

/* ---- edits ----------------------------------------------------------------------------------- */

static void nothing(side *s)
{
    (void)s;
}

static void causal(side *s)
{
    s->desc.flags |= ATTN_CAUSAL;
}

static void window(side *s, int64_t left, int64_t right)
{
    s->desc.flags |= ATTN_WINDOW;
    s->desc.window_left = left, s->desc.window_right = right;
}

static void window_unbounded(side *s)
{
    window(s, -1, -1);
}

static void window_causal(side *s)
{
    window(s, -1, 0);
}

static void window_7_0(side *s)
{
    window(s, 7, 0);
}

static void chunk_huge(side *s)
{
    s->desc.flags |= ATTN_CHUNK;
    s->desc.chunk = 1 << 20;
}

static void chunk_16(side *s)
{
    s->desc.flags |= ATTN_CHUNK;
    s->desc.chunk = 16;
}

static int32_t row_of(const side *s, int64_t key)
{
    int64_t row = key - (KEYS - s->rows);
    return (int32_t)(row < 0 ? 0 : row > s->rows ? s->rows : row);
}

static void intervals(side *s, int vectors)
{
    s->desc.flags |= ATTN_INTERVALS;
    s->desc.interval_vectors = vectors, s->desc.interval_heads = 1;
    s->args.intervals = s->numbers;
}

static void intervals_causal(side *s)
{
    intervals(s, 2);
    for (int i = 0; i < BATCH * KEYS; i++)
        s->numbers[2 * i] = (int32_t)s->rows, s->numbers[2 * i + 1] = row_of(s, i % KEYS);
}

static void intervals_window(side *s)
{
    causal(s);
    intervals(s, 1);
    for (int i = 0; i < BATCH * KEYS; i++)
        s->numbers[i] = row_of(s, i % KEYS + 8);
}

/* Hides key j from row i by bits where the definition of a mask says so. */
static void bits(side *s, bool (*sees)(int64_t t, int64_t key))
{
    int64_t pitch = (KEYS + 7) / 8;
    s->desc.flags |= ATTN_BITS;
    s->desc.bits_batch = s->desc.bits_heads = 1;
    s->args.bits = s->bytes;
    memset(s->bytes, 0, (size_t)(s->rows * pitch));
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < KEYS; j++)
            if (sees(i + KEYS - s->rows, j)) s->bytes[i * pitch + j / 8] |= (uint8_t)(1 << j % 8);
}

static bool sees_causal(int64_t t, int64_t key)
{
    return key <= t;
}

static bool sees_chunk(int64_t t, int64_t key)
{
    return t / 16 == key / 16;
}

static bool sees_block(int64_t t, int64_t key)
{
    (void)t;
    return key / 32 % 2 == 0;
}

static void bits_causal(side *s)
{
    bits(s, sees_causal);
}

static void bits_chunk(side *s)
{
    bits(s, sees_chunk);
}

static void bits_block(side *s)
{
    bits(s, sees_block);
}

/* Every other block of 32 keys, for all rows. */
static void blocks_alternate(side *s)
{
    static const int32_t list[5] = { 0, 2, 4 }, count[1] = { 3 };
    s->desc.flags |= ATTN_BLOCKS;
    s->desc.block_rows = 1000, s->desc.block_keys = 32, s->desc.block_batch = s->desc.block_heads = 1;
    s->args.block_full = list, s->args.block_full_count = count;
}

static void prefix_all(side *s)
{
    causal(s);
    s->desc.flags |= ATTN_PREFIX;
    s->numbers[0] = s->numbers[1] = KEYS;
    s->args.prefix = s->numbers;
}

static void prefix_none(side *s)
{
    prefix_all(s);
    s->numbers[0] = s->numbers[1] = 0;
}

static void lens_50(side *s)
{
    s->desc.flags |= ATTN_LENS_KV;
    s->numbers[0] = s->numbers[1] = 50;
    s->args.lens_kv = s->numbers;
}

/* The first 50 keys of each sequence, by strides. */
static void keys_50(side *s)
{
    for (int i = 0; i < 4; i++)
        s->desc.k_stride[i] = s->problem.resolved.k_stride[i], s->desc.v_stride[i] = s->problem.resolved.v_stride[i];
    s->desc.len_kv = 50;
}

/* The same as one packed row of sequences. */
static void packed(side *s)
{
    s->desc.flags |= ATTN_VARLEN;
    s->desc.total_q = BATCH * s->rows, s->desc.total_kv = BATCH * KEYS;
    for (int b = 0; b <= BATCH; b++)
        s->numbers[b] = (int32_t)(b * s->rows), s->numbers[10 + b] = b * KEYS;
    s->args.cu_lens_q = s->numbers, s->args.cu_lens_kv = s->numbers + 10;
    for (int64_t n = 0; s->args.grad_lse && n < BATCH * HEADS * s->rows; n++) {
        int64_t i = n % s->rows, h = n / s->rows % HEADS, b = n / s->rows / HEADS;
        s->floats[(h * BATCH + b) * s->rows + i] = s->args.grad_lse[n];
    }
    if (s->args.grad_lse) s->args.grad_lse = s->floats;
}

/* Each query head gets a KV head of its own: what it shared, again. */
static void repeated_heads(side *s)
{
    const float *k = s->args.k, *v = s->args.v;
    float *k2 = s->floats, *v2 = k2 + BATCH * KEYS * HEADS * DIM_QK;
    for (int i = 0; i < BATCH * KEYS; i++)
        for (int h = 0; h < HEADS; h++) {
            int from = i * HEADS_KV + h / (HEADS / HEADS_KV), to = i * HEADS + h;
            memcpy(k2 + to * DIM_QK, k + from * DIM_QK, DIM_QK * sizeof *k);
            memcpy(v2 + to * DIM_V, v + from * DIM_V, DIM_V * sizeof *v);
        }
    s->args.k = k2, s->args.v = v2;
    s->desc.heads_kv = HEADS;
}

static int permuted_place(int key)
{
    return key * 50 % KEYS; /* KEYS is prime */
}

/* Keys and values in another order. */
static void permuted_keys(side *s)
{
    const float *k = s->args.k, *v = s->args.v;
    float *k2 = s->floats, *v2 = k2 + BATCH * KEYS * HEADS_KV * DIM_QK;
    for (int i = 0; i < BATCH * KEYS; i++) {
        int to = i / KEYS * KEYS + permuted_place(i % KEYS);
        memcpy(k2 + to * HEADS_KV * DIM_QK, k + i * HEADS_KV * DIM_QK, HEADS_KV * DIM_QK * sizeof *k);
        memcpy(v2 + to * HEADS_KV * DIM_V, v + i * HEADS_KV * DIM_V, HEADS_KV * DIM_V * sizeof *v);
    }
    s->args.k = k2, s->args.v = v2;
    s->permuted = true;
}

static void bias_constant(side *s)
{
    s->desc.flags |= ATTN_BIAS;
    s->desc.bias_dtype = ATTN_F32;
    for (int i = 0; i < 4; i++)
        s->desc.bias_extent[i] = 1;
    s->floats[0] = 2.5f;
    s->args.bias = s->floats;
    s->shift = 2.5f;
}

/* -inf where the causal mask hides. */
static void bias_causal(side *s)
{
    s->desc.flags |= ATTN_BIAS;
    s->desc.bias_dtype = ATTN_F32;
    const int64_t extent[4] = { 1, 1, s->rows, KEYS };
    memcpy(s->desc.bias_extent, extent, sizeof extent);
    for (int64_t i = 0; i < s->rows * KEYS; i++)
        s->floats[i] = sees_causal(i / KEYS + KEYS - s->rows, i % KEYS) ? 0 : -INFINITY;
    s->args.bias = s->floats;
}

/* ALiBi, and the same as a bias by distance. */
static void alibi(side *s)
{
    s->desc.flags |= ATTN_ALIBI;
    s->desc.alibi_batch = 1;
    for (int h = 0; h < HEADS; h++)
        s->floats[h] = 0.05f * (float)(h + 1);
    s->args.alibi = s->floats;
}

static void bias_alibi(side *s)
{
    s->desc.flags |= ATTN_BIAS;
    s->desc.bias_dtype = ATTN_F32;
    const int64_t extent[4] = { 1, HEADS, s->rows, KEYS };
    memcpy(s->desc.bias_extent, extent, sizeof extent);
    for (int64_t i = 0; i < HEADS * s->rows * KEYS; i++) {
        int64_t h = i / KEYS / s->rows, t = i / KEYS % s->rows + KEYS - s->rows, j = i % KEYS;
        s->floats[i] = -0.05f * (float)(h + 1) * (float)(t < j ? j - t : t - j);
    }
    s->args.bias = s->floats;
}

static void softcap_huge(side *s)
{
    s->desc.flags |= ATTN_SOFTCAP;
    s->desc.softcap = 1e5f;
}

static void sink_tiny(side *s)
{
    s->desc.flags |= ATTN_SINK;
    for (int h = 0; h < HEADS; h++)
        s->floats[h] = -100;
    s->args.sink = s->floats;
}

static void dropout_none(side *s)
{
    s->desc.flags |= ATTN_DROPOUT;
    s->desc.dropout_p = 0.001f; /* applied as 0 / 256 */
}

/* A scale of its own, and queries that already hold it. */
static void scale_2(side *s)
{
    s->desc.scale = 0.5f;
}

static void scaled_queries(side *s)
{
    int64_t count = BATCH * s->rows * HEADS * DIM_QK;
    for (int64_t i = 0; i < count; i++)
        s->floats[i] = ((const float *)s->args.q)[i] * 0.5f;
    s->factor = 0.5f;
    s->args.q = s->floats;
    s->desc.scale = 1;
}

static void other_threads(side *s)
{
    s->desc.threads = 1;
}

static void caller_threads(side *s)
{
    s->desc.parallel_for = check_parallel_for;
}

static const struct relation {
    const char *name;
    void (*left)(side *), (*right)(side *);
} relations[] = {
    { "an unbounded window hides nothing", nothing, window_unbounded },
    { "a chunk of everything hides nothing", nothing, chunk_huge },
    { "a prefix of everything sees everything", nothing, prefix_all },
    { "causal is a window to 0", causal, window_causal },
    { "causal as intervals", causal, intervals_causal },
    { "causal as bits", causal, bits_causal },
    { "causal as a bias of -inf", causal, bias_causal },
    { "causal with an empty prefix", causal, prefix_none },
    { "a window as intervals", window_7_0, intervals_window },
    { "chunks as bits", chunk_16, bits_chunk },
    { "blocks as bits", blocks_alternate, bits_block },
    { "used keys as a shorter problem", lens_50, keys_50 },
    { "packed sequences are the batch", nothing, packed },
    { "a group reads its own KV head", nothing, repeated_heads },
    { "the order of keys does not matter", nothing, permuted_keys },
    { "a constant bias moves the LSE only", nothing, bias_constant },
    { "ALiBi as a bias", alibi, bias_alibi },
    { "a high softcap changes little", nothing, softcap_huge },
    { "a low sink takes nothing", nothing, sink_tiny },
    { "dropout at 0 drops nothing", nothing, dropout_none },
    { "scale is a factor of the query", scale_2, scaled_queries },
    { "threads do not matter", nothing, other_threads },
    { "nor whose they are", nothing, caller_threads },
};

/* Makes one side: the problem of `desc`, edited. To be ended with check_problem_destroy. */
static void side_create(side *s, void (*edit)(side *), const attn_desc *desc)
{
    assert_ok(check_problem_create(&s->problem, desc, &(check_options){ .seed = 77 }));
    s->desc = *desc, s->args = s->problem.args, s->rows = desc->len_q;
    s->shift = 0, s->factor = 1, s->permuted = false;
    edit(s);
}

static void side_run(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, desc));
    void *workspace = check_allocate(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

#endif
