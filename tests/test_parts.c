/* A problem cut into parts of its rows and keys, as ranks of context parallelism hold them: forwards merged into a
 * state of f32, backwards against the whole's LSE whose gradients are added up. Together they are what the whole is, by
 * every kernel of the CPU. */
#include "parts_support.h"

#include <math.h>

#include "num/half.h"
#include "problem/sequence.h"

enum { BATCH = 2, FEW_ROWS = 24, DIM = 24, DIM_V = 20, HOT = 64, STATE = CHUNKS * ROWS * HEADS * HOT };

/* ---- the whole of its parts ---------------------------------------------------------------------- */

static void merge(const attn_desc *of, int64_t batch, int64_t rows, const void *part_o, const float *part_lse, float *o,
                  float *lse)
{
    attn_merge_plan *plan;
    attn_merge_desc d = { .dtype = attn_out_dtype(of),
                          .out_dtype = ATTN_F32,
                          .first_dtype = ATTN_F32,
                          .parts = 2,
                          .batch = batch,
                          .rows = rows,
                          .heads = of->heads_q,
                          .dim = of->dim_v,
                          .threads = 1 };
    assert_ok(attn_merge_plan_create(&plan, &d));
    assert_ok(attn_merge_run(plan,
                             &(attn_merge_args){ .part_o = (const void *[]){ o, part_o },
                                                 .part_lse = (const float *[]){ lse, part_lse },
                                                 .o = o,
                                                 .lse = lse },
                             NULL));
    attn_merge_plan_destroy(plan);
}

/* Rows of a state, merged, to where the whole has them. */
static void scatter(const part *p, const float *state, const float *lse)
{
    const attn_desc *w = &p->whole->resolved;
    const attn_args *a = &p->whole->args;
    for (int c = 0; c < p->chunks; c++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < length(p->rows[c]); i++) {
                int64_t row = p->rows[c].from + i, to = attn_row_at(w, a, p->batch, h, row, w->o_stride);
                int64_t from = ((c * p->desc.len_q + i) * HEADS + h) * w->dim_v;
                for (int64_t k = 0; k < w->dim_v; k++)
                    attn_store_scalar(attn_out_dtype(w), a->o, to + k, state[from + k]);
                a->lse[attn_lse_at(w, a, p->batch, h, row)] = lse[(c * HEADS + h) * p->desc.len_q + i];
            }
}

/* The chunks of the rows of rank r of n: one, or the r-th from either end. */
static int chunks_of(bool zigzag, int64_t rows, int n, int r, range chunk[CHUNKS])
{
    chunk[0] = zigzag ? cut(rows, 2 * n, r) : cut(rows, n, r);
    if (zigzag) chunk[1] = cut(rows, 2 * n, 2 * n - 1 - r);
    return zigzag ? 2 : 1;
}

static void forward_in_parts(const check_problem *w, int n, bool zigzag, const char *kernel)
{
    static part p;
    static float part_o[STATE], part_lse[STATE], o[STATE], lse[STATE];
    for (int64_t b = 0; b < w->resolved.batch; b++)
        for (int r = 0; r < n; r++) {
            range chunk[CHUNKS];
            int chunks = chunks_of(zigzag, w->resolved.len_q, n, r, chunk);
            memset(o, 0xff, sizeof o);
            for (int i = 0; i < STATE; i++)
                lse[i] = -INFINITY;
            for (int j = 0; j < n; j++) {
                part_begin(&p, w, b, chunk, chunks, cut(w->resolved.len_kv, n, (r + j) % n), j == 0);
                memset(p.desc.o_stride, 0, sizeof p.desc.o_stride);
                memset(part_o, 0xff, sizeof part_o);
                for (int i = 0; i < STATE; i++)
                    part_lse[i] = -INFINITY;
                p.args.o = part_o, p.args.lse = part_lse;
                part_run(&p.desc, &p.args, kernel);
                merge(&p.desc, chunks, p.desc.len_q, part_o, part_lse, o, lse);
            }
            scatter(&p, o, lse);
        }
}

/* The part's LSEs (or gradients of them) beside one another. */
static void gather(const part *p, const float *from, float *to)
{
    const attn_desc *w = &p->whole->resolved;
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < p->desc.len_q; i++)
            to[h * p->desc.len_q + i] = from[attn_lse_at(w, &p->whole->args, p->batch, h, p->rows[0].from + i)];
}

static void add_bias(const part *p, const float *from)
{
    const int64_t *to = p->whole->resolved.bias_extent, *extent = p->desc.bias_extent;
    int64_t b = to[0] > 1 ? p->batch : 0, row = to[2] > 1 ? p->rows[0].from : 0, key = to[3] > 1 ? p->keys.from : 0;
    for (int64_t h = 0; h < extent[1]; h++)
        for (int64_t i = 0; i < extent[2]; i++)
            for (int64_t j = 0; j < extent[3]; j++)
                p->whole->args.grad_bias[((b * to[1] + h) * to[2] + row + i) * to[3] + key + j] +=
                    from[(h * extent[2] + i) * extent[3] + j];
}

/* One part of the keys after the other, in an order that each rank begins with its own. The first gets o and writes
 * delta. */
static void backward_of_rows(const check_problem *w, int64_t b, range rows, int n, int own, const char *kernel)
{
    static part p;
    static float lse[HEADS * ROWS], grad_lse[HEADS * ROWS], delta[HEADS * ROWS], bias[HEADS * ROWS * KEYS];
    const attn_desc *d = &w->resolved;
    const attn_args *a = &w->args;
    memset(delta, 0xff, sizeof delta);
    for (int j = 0; j < n; j++) {
        part_begin(&p, w, b, &rows, 1, cut(d->len_kv, n, (own + j) % n), j == 0);
        int64_t row = p.rows[0].from, key = p.keys.from;
        attn_dtype out = attn_out_dtype(d);
        gather(&p, a->lse, lse);
        p.args.lse = lse, p.args.delta = delta;
        p.args.grad_o = element(out, a->grad_o, attn_row_at(d, a, b, 0, row, d->grad_o_stride));
        p.args.grad_q = (float *)a->grad_q + attn_row_at(d, a, b, 0, row, d->grad_q_stride);
        p.args.grad_k = (float *)a->grad_k + attn_key_at(d, a, b, 0, key, d->grad_k_stride);
        p.args.grad_v = (float *)a->grad_v + attn_key_at(d, a, b, 0, key, d->grad_v_stride);
        if (a->grad_alibi) p.args.grad_alibi = a->grad_alibi + (d->alibi_batch > 1 ? b * HEADS : 0);
        if (a->grad_sink && j == 0) p.args.grad_sink = a->grad_sink;
        if (a->grad_bias) p.args.grad_bias = bias, memset(bias, 0, sizeof bias);
        if (j > 0) p.desc.flags |= ATTN_DELTA;
        if (j == 0) p.args.o = (void *)(uintptr_t)element(out, a->o, attn_row_at(d, a, b, 0, row, d->o_stride));
        if (j == 0 && a->grad_lse) gather(&p, a->grad_lse, grad_lse), p.args.grad_lse = grad_lse;
        part_run(&p.desc, &p.args, kernel);
        if (a->grad_bias) add_bias(&p, bias);
    }
}

static void backward_in_parts(const check_problem *w, int n, bool zigzag, const char *kernel)
{
    check_fill_added(w);
    for (int64_t b = 0; b < w->resolved.batch; b++)
        for (int r = 0; r < n; r++) {
            range chunk[CHUNKS];
            int chunks = chunks_of(zigzag, w->resolved.len_q, n, r, chunk);
            for (int c = 0; c < chunks; c++)
                backward_of_rows(w, b, chunk[c], n, r, kernel);
        }
}

/* ---- every feature ------------------------------------------------------------------------------- */

typedef struct feature {
    const char *name;
    uint32_t flags;
    int intervals; /* check_interval */
    int blocks;    /* check_blocks */
    int bias;      /* extents that are 1: bits of (batch, head, row, key) */
    check_data data;
} feature;

static const feature features[] = {
    { "nothing", 0, 0, 0, 0, CHECK_PLAIN },
    { "large scores", 0, 0, 0, 0, CHECK_TIMES_5 },
    { "causal", ATTN_CAUSAL, 0, 0, 0, CHECK_TIMES_3 },
    { "window", ATTN_WINDOW | ATTN_LENS_Q | ATTN_LENS_KV, 0, 0, 0, CHECK_PLAIN },
    { "causal window", ATTN_CAUSAL | ATTN_WINDOW, 0, 0, 0, CHECK_PLAIN },
    { "chunk", ATTN_CHUNK, 0, 0, 0, CHECK_PLAIN },
    { "chunk by positions", ATTN_CHUNK | ATTN_CAUSAL | ATTN_POSITIONS, 0, 0, 0, CHECK_PLAIN },
    { "prefix", ATTN_CAUSAL | ATTN_PREFIX | ATTN_LENS_KV, 0, 0, 0, CHECK_PLAIN },
    { "first key", ATTN_CAUSAL | ATTN_FIRST_KV, 0, 0, 0, CHECK_PLAIN },
    { "documents", ATTN_INTERVALS, CHECK_DOCUMENT, 0, 0, CHECK_PLAIN },
    { "causal documents", ATTN_INTERVALS | ATTN_CAUSAL, CHECK_CAUSAL_DOCUMENT, 0, 0, CHECK_PLAIN },
    { "intervals of two", ATTN_INTERVALS | ATTN_CAUSAL, CHECK_RANDOM_CAUSAL_2, 0, 0, CHECK_PLAIN },
    { "intervals of four", ATTN_INTERVALS, CHECK_RANDOM_4, 0, 0, CHECK_PLAIN },
    { "blocks", ATTN_BLOCKS | ATTN_BITS, 0, CHECK_BLOCKS_BOTH, 0, CHECK_PLAIN },
    { "partial blocks", ATTN_BLOCKS | ATTN_CAUSAL, 0, CHECK_BLOCKS_PARTIAL, 0, CHECK_PLAIN },
    { "bits", ATTN_BITS | ATTN_LENS_Q, 0, 0, 0, CHECK_PLAIN },
    { "ALiBi", ATTN_ALIBI, 0, 0, 0, CHECK_PLAIN },
    { "softcap", ATTN_SOFTCAP | ATTN_CAUSAL, 0, 0, 0, CHECK_TIMES_3 },
    { "bias", ATTN_BIAS, 0, 0, 0, CHECK_PLAIN },
    { "bias of keys", ATTN_BIAS | ATTN_CAUSAL, 0, 0, 1 | 4, CHECK_PLAIN },
    { "bias of rows", ATTN_BIAS, 0, 0, 2 | 8, CHECK_PLAIN },
    { "sink", ATTN_SINK | ATTN_CAUSAL, 0, 0, 0, CHECK_PLAIN },
    { "dropout", ATTN_DROPOUT | ATTN_SINK, 0, 0, 0, CHECK_PLAIN },
    { "dropout from bases", ATTN_DROPOUT | ATTN_DROPOUT_BASES | ATTN_CAUSAL | ATTN_ALIBI, 0, 0, 0, CHECK_PLAIN },
};

static attn_desc whole_of(const feature *f, attn_dtype dtype, attn_direction direction, int64_t rows, int seed)
{
    static const struct {
        int vectors;
    } interval[] = {
#define VECTORS(enumerator, name, causal, vectors) { vectors },
        CHECK_INTERVAL_LIST(VECTORS)
#undef VECTORS
    };
    const int64_t extents[4] = { BATCH, HEADS, rows, KEYS };
    bool odd = seed % 2;
    attn_desc d = { .dtype = dtype,
                    .direction = direction,
                    .flags = f->flags,
                    .batch = BATCH,
                    .heads_q = HEADS,
                    .heads_kv = HEADS_KV,
                    .len_q = rows,
                    .len_kv = KEYS,
                    .dim_qk = DIM,
                    .dim_v = DIM_V,
                    .threads = 1 };
    if (f->flags & ATTN_WINDOW) d.window_left = 21, d.window_right = 9;
    if (f->flags & ATTN_CHUNK) d.chunk = 37;
    if (f->flags & ATTN_INTERVALS)
        d.interval_vectors = interval[f->intervals].vectors, d.interval_heads = odd ? HEADS_KV : 1;
    if (f->flags & ATTN_BLOCKS)
        d.block_rows = d.block_keys = BLOCK, d.block_batch = odd ? BATCH : 1, d.block_heads = odd ? 1 : HEADS;
    if (f->flags & ATTN_BITS) d.bits_batch = odd ? 1 : BATCH, d.bits_heads = odd ? HEADS : 1;
    if (f->flags & ATTN_SOFTCAP) d.softcap = 5;
    if (f->flags & ATTN_ALIBI) d.alibi_batch = odd ? BATCH : 1;
    if (f->flags & ATTN_DROPOUT) d.dropout_p = 0.3f;
    if (f->flags & ATTN_BIAS) d.bias_dtype = odd ? ATTN_F16 : ATTN_F32;
    for (int i = 0; i < 4 && f->flags & ATTN_BIAS; i++)
        d.bias_extent[i] = f->bias >> i & 1 ? 1 : extents[i];
    if (direction == ATTN_BACKWARD) d.grad_dtype = ATTN_F32, d.flags |= ATTN_ADD;
    return d;
}

/* Whether the kernel takes chunks of so many rows. */
static bool takes(const attn_cpu_kernel *k, attn_dtype dtype, attn_direction direction, int64_t rows)
{
    bool can = direction == ATTN_BACKWARD ? runs_backward(k) : runs(k);
    return can && k->dtypes >> dtype & 1 && (k->form != ATTN_DECODE || rows == FEW_ROWS);
}

static void check_feature(const feature *f, attn_dtype dtype, attn_direction direction, int64_t rows, int seed)
{
    int count;
    static uint32_t number;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    attn_desc desc = whole_of(f, dtype, direction, rows, seed);
    check_options options = { .data = f->data,
                              .layout = seed % 3 == 1   ? CHECK_PADDED
                                        : seed % 3 == 2 ? CHECK_HEAD_MAJOR
                                                        : CHECK_PACKED,
                              .interval = (check_interval)f->intervals,
                              .blocks = (check_blocks)f->blocks,
                              .seed = (uint64_t)seed };
    check_problem whole;
    assert_ok(check_problem_create(&whole, &desc, &options));
    check_reference reference = check_reference_create(&whole);
    for (int i = 0; i <= count; i++) {
        const char *kernel = i < count ? kernels[i].name : NULL;
        if (kernel && !takes(&kernels[i], dtype, direction, rows)) continue;
        for (int n = 2; n <= 4; n++) {
            bool zigzag = (n + i + seed) % 2;
            if (rows == FEW_ROWS && n == 2 && !zigzag) continue; /* chunks of more rows than decode kernels take */
            if (!test_takes(number++)) continue;
            if (direction == ATTN_BACKWARD)
                backward_in_parts(&whole, n, zigzag, kernel);
            else
                forward_in_parts(&whole, n, zigzag, kernel);
            check_error error = check_compare(&whole, &reference);
            if (error.message[0])
                fail_msg("%s, %s, %d rows, %s, %d%s parts: %s", f->name, attn_dtype_name(dtype), (int)rows,
                         kernel ? kernel : "planner", n, zigzag ? " zigzag" : "", error.message);
        }
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&whole);
}

static void forwards_are_merged(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(features); i++) {
        check_feature(&features[i], ATTN_F32, ATTN_FORWARD, ROWS, 4 * i);
        check_feature(&features[i], ATTN_BF16, ATTN_FORWARD, ROWS, 4 * i + 1);
        check_feature(&features[i], i % 2 ? ATTN_F32 : ATTN_BF16, ATTN_FORWARD, FEW_ROWS, 4 * i + 2);
    }
}

static void backwards_are_added(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(features); i++) {
        check_feature(&features[i], ATTN_F32, ATTN_BACKWARD, ROWS, 4 * i);
        check_feature(&features[i], ATTN_BF16, ATTN_BACKWARD, ROWS, 4 * i + 1);
    }
}

/* ---- what is kept ---------------------------------------------------------------------------------- */

/* With one-hot values O shows which pairs are kept: those of the whole, and no others. */
static void parts_keep_the_same_pairs(void **state)
{
    (void)state;
    static const feature dropout = { "dropout", ATTN_DROPOUT, 0, 0, 0, CHECK_ONE_HOT };
    static bool kept[BATCH * ROWS * HEADS * HOT];
    enum { ALL = BATCH * FEW_ROWS * HEADS * HOT };
    int count, some = 0;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (!takes(&kernels[i], dtype_of(&kernels[i]), ATTN_FORWARD, FEW_ROWS)) continue;
        attn_desc desc = whole_of(&dropout, dtype_of(&kernels[i]), ATTN_FORWARD, FEW_ROWS, 0);
        check_problem whole;
        desc.len_kv = desc.dim_v = HOT;
        assert_ok(check_problem_create(&whole, &desc, &(check_options){ .data = CHECK_ONE_HOT, .seed = 3 }));
        assert_ok(check_problem_run(&whole, &desc, NULL));
        for (int at = 0; at < ALL; at++) {
            kept[at] = attn_load_scalar(desc.dtype, whole.args.o, at) != 0;
            some += kept[at];
        }
        for (int n = 2; n <= 4; n++) {
            forward_in_parts(&whole, n, true, kernels[i].name);
            for (int at = 0; at < ALL; at++)
                if (kept[at] != (attn_load_scalar(desc.dtype, whole.args.o, at) != 0))
                    fail_msg("%s, %d parts: pair %d is %s", kernels[i].name, n, at, kept[at] ? "dropped" : "kept");
        }
        assert_true(some > ALL / 2 && some < ALL);
        some = 0;
        check_problem_destroy(&whole);
    }
}

/* ---- an LSE of more keys ---------------------------------------------------------------------------- */

/* Large scores, of which a key elsewhere has so small a share that the LSE of the keys here might be taken for the
 * whole's, rounded: it is not, where a delta says that there may be others. */
static void the_lse_of_the_whole_counts(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    attn_desc desc = whole_of(&features[0], ATTN_F32, ATTN_BACKWARD, ROWS, 0), forward = desc;
    check_problem whole;
    desc.scale = forward.scale = 1;
    forward.direction = ATTN_FORWARD, forward.flags = 0, forward.grad_dtype = (attn_dtype)0;
    assert_ok(check_problem_create(&whole, &desc, &(check_options){ .seed = 5 }));
    float *q = (float *)(uintptr_t)whole.args.q, *k = (float *)(uintptr_t)whole.args.k;
    for (int i = 0; i < BATCH * ROWS * HEADS; i++)
        for (int d = 0; d < DIM; d++)
            q[i * DIM + d] = d ? q[i * DIM + d] / 64 : 1;
    for (int i = 0; i < BATCH * KEYS * HEADS_KV; i++) {
        int key = i / HEADS_KV % KEYS;
        k[i * DIM] = key == 3 ? 1e4f : key == KEYS - 2 ? 1e4f - 4 : 9e3f;
    }
    assert_ok(check_problem_run(&whole, &forward, NULL));
    check_reference reference = check_reference_create(&whole);
    for (int i = 0; i < count; i++)
        for (int n = 2; n <= 4 && takes(&kernels[i], ATTN_F32, ATTN_BACKWARD, ROWS); n++) {
            backward_in_parts(&whole, n, false, kernels[i].name);
            check_error error = check_compare(&whole, &reference);
            if (error.message[0]) fail_msg("%s, %d parts: %s", kernels[i].name, n, error.message);
        }
    check_reference_destroy(&reference);
    check_problem_destroy(&whole);
}

/* ---- packed sequences ------------------------------------------------------------------------------ */

/* A range of packed rows, or keys: what each sequence has of it. */
static void cut_packed(const int32_t *cu, range r, int32_t *starts)
{
    for (int b = 0; b <= BATCH + 1; b++)
        starts[b] = clamp(cu[b] - r.from, length(r));
}

/* Where a range begins in sequence b; 0 where it has nothing of it. */
static int64_t begin_of(const int32_t *cu, range r, int b)
{
    return r.from > cu[b] && r.from < cu[b + 1] ? r.from - cu[b] : 0;
}

typedef struct packed {
    attn_desc desc;
    attn_args args;
    int32_t cu_q[BATCH + 2], cu_kv[BATCH + 2];
    int64_t position_q[BATCH + 1], position_kv[BATCH + 1], row[BATCH + 1], key[BATCH + 1], head[BATCH + 1];
} packed;

static void packed_begin(packed *p, const check_problem *whole, range rows, range keys)
{
    const attn_desc *w = &whole->resolved;
    const attn_args *a = &whole->args;
    p->desc = *w, p->args = *a;
    p->desc.total_q = length(rows), p->desc.total_kv = length(keys);
    p->desc.flags |= ATTN_POSITIONS | ATTN_DROPOUT_BASES;
    cut_packed(a->cu_lens_q, rows, p->cu_q), cut_packed(a->cu_lens_kv, keys, p->cu_kv);
    for (int b = 0; b <= BATCH; b++) {
        attn_sequence seq = attn_sequence_of(w, a, b);
        p->row[b] = begin_of(a->cu_lens_q, rows, b), p->key[b] = begin_of(a->cu_lens_kv, keys, b);
        p->position_q[b] = p->row[b] + seq.position_q, p->position_kv[b] = p->key[b], p->head[b] = b * HEADS;
    }
    p->args.q = element(w->dtype, a->q, rows.from * w->q_stride[1]);
    p->args.k = element(w->dtype, a->k, keys.from * w->k_stride[1]);
    p->args.v = element(w->dtype, a->v, keys.from * w->v_stride[1]);
    p->args.cu_lens_q = p->cu_q, p->args.cu_lens_kv = p->cu_kv;
    p->args.position_q = p->position_q, p->args.position_kv = p->position_kv;
    p->args.dropout_row = p->row, p->args.dropout_key = p->key, p->args.dropout_head = p->head;
}

static void packed_forward(const check_problem *w, range rows, const range *keys, int parts, const char *kernel)
{
    static packed p;
    static float part_o[STATE], part_lse[STATE], o[STATE], lse[STATE];
    for (int i = 0; i < STATE; i++)
        lse[i] = -INFINITY;
    for (int j = 0; j < parts; j++) {
        packed_begin(&p, w, rows, keys[j]);
        for (int i = 0; i < STATE; i++)
            part_lse[i] = -INFINITY;
        p.args.o = part_o, p.args.lse = part_lse;
        part_run(&p.desc, &p.args, kernel);
        merge(&p.desc, 1, length(rows), part_o, part_lse, o, lse);
    }
    for (int64_t i = 0; i < length(rows) && rows.from + i < w->args.cu_lens_q[BATCH + 1]; i++)
        for (int64_t h = 0; h < HEADS; h++) {
            for (int64_t k = 0; k < DIM_V; k++)
                attn_store_scalar(w->desc.dtype, w->args.o, ((rows.from + i) * HEADS + h) * DIM_V + k,
                                  o[(i * HEADS + h) * DIM_V + k]);
            w->args.lse[h * w->desc.total_q + rows.from + i] = lse[h * length(rows) + i];
        }
}

static void packed_backward(const check_problem *w, range rows, const range *keys, int parts, const char *kernel)
{
    static packed p;
    static float lse[STATE], grad_lse[STATE], delta[STATE];
    for (int64_t i = 0; i < HEADS * length(rows); i++) {
        int64_t at = i / length(rows) * w->desc.total_q + rows.from + i % length(rows);
        lse[i] = w->args.lse[at], grad_lse[i] = w->args.grad_lse[at];
    }
    for (int j = 0; j < parts; j++) {
        packed_begin(&p, w, rows, keys[j]);
        p.args.o = (void *)(uintptr_t)element(w->desc.dtype, w->args.o, rows.from * HEADS * DIM_V);
        p.args.grad_o = element(w->desc.dtype, w->args.grad_o, rows.from * HEADS * DIM_V);
        p.args.lse = lse, p.args.grad_lse = grad_lse, p.args.delta = delta;
        p.args.grad_q = (float *)w->args.grad_q + rows.from * HEADS * DIM;
        p.args.grad_k = (float *)w->args.grad_k + keys[j].from * HEADS_KV * DIM;
        p.args.grad_v = (float *)w->args.grad_v + keys[j].from * HEADS_KV * DIM_V;
        if (j > 0) p.desc.flags |= ATTN_DELTA, p.args.o = NULL, p.args.grad_lse = NULL;
        part_run(&p.desc, &p.args, kernel);
    }
}

/* Three documents back to back, of which a rank has pieces: in each call a sequence has those that lie there. */
static void documents_cross_ranks(void **state)
{
    (void)state;
    enum { PARTS = 3, TOTAL = 150 };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype += 2) {
            attn_direction direction = kernels[i].form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD;
            if (kernels[i].form == ATTN_DECODE || !takes(&kernels[i], (attn_dtype)dtype, direction, ROWS)) continue;
            static const feature causal = {
                "documents", ATTN_CAUSAL | ATTN_VARLEN | ATTN_DROPOUT, 0, 0, 0, CHECK_PLAIN
            };
            attn_desc desc = whole_of(&causal, (attn_dtype)dtype, direction, ROWS, 1);
            check_problem whole;
            desc.batch = BATCH + 1, desc.len_kv = ROWS, desc.total_q = desc.total_kv = TOTAL;
            assert_ok(check_problem_create(&whole, &desc, &(check_options){ .seed = 11 }));
            check_reference reference = check_reference_create(&whole);
            range rows[PARTS], keys[PARTS];
            for (int r = 0; r < PARTS; r++) {
                const int32_t *q = whole.args.cu_lens_q, *kv = whole.args.cu_lens_kv;
                rows[r] = (range){ r ? rows[r - 1].to : 0, r < 2 ? q[r] + (q[r + 1] - q[r]) / 32 * 16 : TOTAL };
                keys[r] = (range){ r ? keys[r - 1].to : 0, r < 2 ? kv[r] + (kv[r + 1] - kv[r]) / 32 * 16 : TOTAL };
            }
            if (direction == ATTN_BACKWARD) check_fill_added(&whole);
            for (int r = 0; r < PARTS; r++)
                (direction == ATTN_BACKWARD ? packed_backward : packed_forward)(&whole, rows[r], keys, PARTS,
                                                                                kernels[i].name);
            check_error error = check_compare(&whole, &reference);
            if (error.message[0]) fail_msg("%s: %s", kernels[i].name, error.message);
            check_reference_destroy(&reference);
            check_problem_destroy(&whole);
        }
}

/* ---- what is outside -------------------------------------------------------------------------------- */

/* Nothing is added to what lies outside the sequences and between the rows. */
static void what_is_outside_stays(void **state)
{
    (void)state;
    static const feature lens = { "lens", ATTN_LENS_Q | ATTN_LENS_KV, 0, 0, 0, CHECK_PLAIN };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        attn_dtype dtype = dtype_of(&kernels[i]);
        if (!takes(&kernels[i], dtype, ATTN_BACKWARD, ROWS)) continue;
        attn_desc desc = whole_of(&lens, dtype, ATTN_BACKWARD, ROWS, 0);
        check_problem whole;
        assert_ok(check_problem_create(&whole, &desc, &(check_options){ .layout = CHECK_PADDED, .seed = 4 }));
        for (int g = CHECK_GRAD_Q; g <= CHECK_GRAD_V; g++) {
            float *data = (float *)(void *)whole.gradients[g].data;
            for (size_t at = 0; at < whole.gradients[g].size / 4; at++)
                data[at] = 7;
        }
        check_fill_added(&whole); /* from -2 to 2 */
        float *was[3];
        for (int g = CHECK_GRAD_Q; g <= CHECK_GRAD_V; g++) {
            was[g] = check_allocate(whole.gradients[g].size);
            memcpy(was[g], whole.gradients[g].data, whole.gradients[g].size);
        }
        part_run(&whole.desc, &whole.args, kernels[i].name);
        for (int g = CHECK_GRAD_Q; g <= CHECK_GRAD_V; g++) {
            const float *data = (const float *)(const void *)whole.gradients[g].data;
            int outside = 0, changed = 0;
            for (size_t at = 0; at < whole.gradients[g].size / 4; at++) {
                if (was[g][at] == 7 && data[at] != 7) fail_msg("%s, gradient %d is added outside", kernels[i].name, g);
                outside += was[g][at] == 7, changed += data[at] != was[g][at];
            }
            assert_true(outside > 0 && changed > 0);
            free(was[g]);
        }
        check_problem_destroy(&whole);
    }
}

/* ---- f64 ------------------------------------------------------------------------------------------- */

/* Gradients that are written, and added once more from the delta that was written with them, are twice what they were;
 * what lies outside the sequences is nobody's. */
static void gradients_are_added_in_f64(void **state)
{
    (void)state;
    enum { LEN = 5, WIDE = 3, ALL = 2 * LEN * 2 * WIDE };
    double x[4][ALL], o[ALL], lse[4 * LEN], delta[4 * LEN], grad_lse[4 * LEN], alibi[2] = { 0.25, 0.5 };
    double sink[2] = { 0.1, 0.2 }, grads[5][ALL], once[5][ALL];
    int32_t lens[2] = { 4, 5 };
    uint64_t random = 1;
    for (int i = 0; i < 4 * ALL; i++)
        x[i / ALL][i % ALL] = (double)check_normal(&random);
    for (int i = 0; i < 4 * LEN; i++)
        grad_lse[i] = (double)check_normal(&random);
    attn_desc desc = { .dtype = ATTN_F64, .flags = ATTN_LENS_Q | ATTN_LENS_KV | ATTN_ALIBI | ATTN_SINK, .batch = 2 };
    desc.heads_q = 2, desc.len_q = desc.len_kv = LEN, desc.dim_qk = WIDE, desc.alibi_batch = 1;
    attn_args args = { .q = x[0], .k = x[1], .v = x[2], .o = o, .lse = (float *)(void *)lse, .lens_q = lens };
    args.lens_kv = lens, args.alibi = (float *)(void *)alibi, args.sink = (float *)(void *)sink, args.grad_o = x[3];
    part_run(&desc, &args, NULL);
    for (int i = 0; i < 5 * ALL; i++)
        grads[i / ALL][i % ALL] = 7;
    args.grad_q = grads[0], args.grad_k = grads[1], args.grad_v = grads[2];
    args.grad_alibi = (float *)(void *)grads[3], args.grad_sink = (float *)(void *)grads[4];
    args.grad_lse = (float *)(void *)grad_lse, args.delta = (float *)(void *)delta;
    desc.direction = ATTN_BACKWARD;
    part_run(&desc, &args, NULL);
    memcpy(once, grads, sizeof once);
    desc.flags |= ATTN_DELTA | ATTN_ADD, args.o = NULL, args.grad_lse = NULL;
    part_run(&desc, &args, NULL);
    for (int g = 0; g < 5; g++)
        for (int i = 0; i < ALL; i++) {
            bool outside = g < 3 ? i / (LEN * 2 * WIDE) == 0 && i / (2 * WIDE) == 4 : i >= 2;
            double want = outside ? 7 : 2 * once[g][i];
            if (!(fabs(grads[g][i] - want) <= 1e-13 * (1 + fabs(want))) || (!outside && once[g][i] == 7))
                fail_msg("gradient %d, element %d: %g, not %g", g, i, grads[g][i], want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forwards_are_merged),        cmocka_unit_test(backwards_are_added),
        cmocka_unit_test(parts_keep_the_same_pairs),  cmocka_unit_test(the_lse_of_the_whole_counts),
        cmocka_unit_test(documents_cross_ranks),      cmocka_unit_test(what_is_outside_stays),
        cmocka_unit_test(gradients_are_added_in_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
