/* What attn_args_check accepts and refuses, and the messages it leaves. */
#include "problem/args.h"
#include "support.h"

#include <math.h>
#include <stdalign.h>

#include "problem/desc.h"

/* A problem with every table, its arrays back to back: q first, then as in attn_args, then o, lse and the
 * gradients. */
enum {
    BATCH = 3,
    HEADS = 2,
    LEN_Q = 4,
    LEN_KV = 12,
    TOTAL_Q = 9,
    TOTAL_KV = 30,
    DIM = 2,
    LINES = 2 * BATCH * HEADS,
    COLUMNS = 3
};

typedef struct arrays {
    float q[TOTAL_Q * HEADS * DIM], k[TOTAL_KV * HEADS * DIM], v[TOTAL_KV * HEADS * DIM];
    int32_t cu_lens_q[BATCH + 1], cu_lens_kv[BATCH + 1], lens_q[BATCH], lens_kv[BATCH], prefix[BATCH], first_kv[BATCH];
    int32_t intervals[BATCH * HEADS * LEN_KV * 2];
    int32_t full_count[LINES], full[LINES * COLUMNS], partial_count[LINES], partial[LINES * COLUMNS];
    uint8_t bits[BATCH * HEADS * LEN_Q * 2];
    float alibi[BATCH * HEADS], bias[LEN_Q * LEN_KV], sink[HEADS];
    float o[TOTAL_Q * HEADS * DIM], lse[HEADS * TOTAL_Q];
    float grad_o[TOTAL_Q * HEADS * DIM], grad_lse[HEADS * TOTAL_Q];
    float grad_q[TOTAL_Q * HEADS * DIM], grad_k[TOTAL_KV * HEADS * DIM], grad_v[TOTAL_KV * HEADS * DIM];
    float grad_bias[LEN_Q * LEN_KV], grad_alibi[BATCH * HEADS], grad_sink[HEADS], delta[HEADS * TOTAL_Q];
    _Alignas(8) uint64_t seed, seed_offset;
    int64_t position_q[BATCH], position_kv[BATCH], dropout_row[BATCH], dropout_key[BATCH], dropout_head[BATCH];
} arrays;

typedef struct world {
    attn_desc desc;
    attn_args args;
    arrays at;
} world;

static world *create(attn_direction direction, uint32_t without)
{
    static world w;
    attn_desc d = {
        .dtype = ATTN_F32, .batch = BATCH, .heads_q = HEADS, .len_q = LEN_Q, .len_kv = LEN_KV, .dim_qk = DIM
    };
    d.direction = direction;
    d.flags = (((ATTN_POSITIONS << 1) - 1) | ATTN_DROPOUT_BASES) & ~ATTN_PAGED & ~without;
    if (!(d.flags & ATTN_DROPOUT)) d.flags &= ~(uint32_t)ATTN_DROPOUT_BASES;
    if (d.flags & ATTN_VARLEN) d.total_q = TOTAL_Q, d.total_kv = TOTAL_KV;
    if (d.flags & ATTN_CHUNK) d.chunk = 4;
    if (d.flags & ATTN_INTERVALS) d.interval_vectors = 2, d.interval_heads = HEADS;
    if (d.flags & ATTN_BLOCKS) d.block_rows = 2, d.block_keys = 5, d.block_batch = BATCH, d.block_heads = HEADS;
    if (d.flags & ATTN_BITS) d.bits_batch = BATCH, d.bits_heads = HEADS;
    if (d.flags & ATTN_ALIBI) d.alibi_batch = BATCH;
    if (d.flags & ATTN_BIAS)
        d.bias_dtype = ATTN_F32, d.bias_extent[0] = d.bias_extent[1] = 1, d.bias_extent[2] = LEN_Q,
        d.bias_extent[3] = LEN_KV;
    if (d.flags & ATTN_SOFTCAP) d.softcap = 1;
    memset(&w, 0, sizeof w);
    assert_ok(attn_desc_resolve(&w.desc, &d, sizeof d));

    arrays *a = &w.at;
    static const int32_t cu_q[] = { 0, 4, 4, 7 }, cu_kv[] = { 0, 10, 18, 30 }, lens_q[] = { 4, 0, 2 },
                         lens_kv[] = { 10, 7, 0 };
    memcpy(a->cu_lens_q, cu_q, sizeof cu_q), memcpy(a->cu_lens_kv, cu_kv, sizeof cu_kv);
    memcpy(a->lens_q, lens_q, sizeof lens_q), memcpy(a->lens_kv, lens_kv, sizeof lens_kv);
    a->prefix[1] = LEN_KV;
    a->intervals[5] = LEN_Q;
    for (int i = 0; i < LINES; i++) {
        a->full_count[i] = i % 3, a->full[COLUMNS * i] = 0, a->full[COLUMNS * i + 1] = 2;
        a->partial_count[i] = 1, a->partial[COLUMNS * i] = 1;
    }
    w.args = (attn_args){ a->q,
                          a->k,
                          a->v,
                          a->o,
                          a->lse,
                          a->cu_lens_q,
                          a->cu_lens_kv,
                          a->lens_q,
                          a->lens_kv,
                          a->prefix,
                          a->intervals,
                          a->full_count,
                          a->full,
                          a->partial_count,
                          a->partial,
                          a->bits,
                          a->alibi,
                          a->bias,
                          a->sink,
                          1,
                          1,
                          a->grad_o,
                          a->grad_lse,
                          a->grad_q,
                          a->grad_k,
                          a->grad_v,
                          a->grad_bias,
                          a->grad_alibi,
                          a->grad_sink,
                          &a->seed,
                          &a->seed_offset,
                          NULL,
                          NULL,
                          a->first_kv,
                          a->position_q,
                          a->position_kv,
                          NULL,
                          NULL,
                          NULL,
                          NULL,
                          NULL,
                          a->dropout_row,
                          a->dropout_key,
                          a->dropout_head,
                          direction == ATTN_BACKWARD ? a->delta : NULL,
                          NULL };
    return &w;
}

static void expect(int line, const world *w, const char *text)
{
    attn_status status = attn_args_check(&w->desc, &w->args);
    if (status != ATTN_INVALID || !strstr(attn_error(), text))
        fail_msg("line %d: %s \"%s\", not \"%s\"", line, attn_status_name(status), attn_error(), text);
}

/* The problem without some flags, its arguments (g) or arrays (a) changed, is refused with this message. */
#define REFUSED_IN(direction, without, text, ...) \
    do {                                          \
        world *w = create(direction, without);    \
        attn_args *g = &w->args;                  \
        arrays *a = &w->at;                       \
        (void)g, (void)a;                         \
        __VA_ARGS__;                              \
        expect(__LINE__, w, text);                \
    } while (0)

#define ACCEPTED_IN(direction, without, ...)            \
    do {                                                \
        world *w = create(direction, without);          \
        attn_args *g = &w->args;                        \
        arrays *a = &w->at;                             \
        (void)g, (void)a;                               \
        __VA_ARGS__;                                    \
        assert_ok(attn_args_check(&w->desc, &w->args)); \
    } while (0)

#define REFUSED(without, text, ...) REFUSED_IN(ATTN_FORWARD, without, text, __VA_ARGS__)
#define ACCEPTED(without, ...) ACCEPTED_IN(ATTN_FORWARD, without, __VA_ARGS__)

static void whole_problems_pass(void **state)
{
    (void)state;
    ACCEPTED(0, (void)0);
    ACCEPTED(0, g->lse = NULL);
    ACCEPTED(0, g->block_full = g->block_full_count = NULL);
    ACCEPTED(0, g->block_partial = g->block_partial_count = NULL);
    ACCEPTED(ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS, g->intervals = g->block_full = g->block_full_count = NULL,
             g->block_partial = g->block_partial_count = NULL, g->bits = NULL);
    ACCEPTED(0, g->position_kv = NULL, a->first_kv[0] = LEN_KV);
    ACCEPTED(ATTN_FIRST_KV | ATTN_POSITIONS, g->first_kv = NULL, g->position_q = g->position_kv = NULL);
    ACCEPTED(ATTN_LENS_Q | ATTN_LENS_KV | ATTN_PREFIX, g->lens_q = g->lens_kv = g->prefix = NULL);
    ACCEPTED(ATTN_DROPOUT, g->seed_at = g->seed_offset_at = NULL, /* seed and seed_offset stay 1 */
             g->dropout_row = g->dropout_key = g->dropout_head = NULL);
    ACCEPTED(ATTN_DROPOUT_BASES, g->dropout_row = g->dropout_key = g->dropout_head = NULL);
    ACCEPTED(0, g->seed_at = g->seed_offset_at = NULL);
    ACCEPTED(0, a->sink[0] = -INFINITY);
    ACCEPTED(0, a->bias[0] = NAN, a->q[0] = INFINITY);                         /* data, not arguments */
    ACCEPTED(0, g->grad_q = a->q, g->grad_o = NULL, g->grad_lse = (float *)1); /* the forward has no gradients */
    ACCEPTED_IN(ATTN_BACKWARD, 0, (void)0);
    ACCEPTED_IN(ATTN_BACKWARD, 0, g->grad_lse = g->grad_bias = g->grad_alibi = g->grad_sink = g->delta = NULL);
    ACCEPTED_IN(ATTN_BACKWARD, 0, g->grad_o = g->o, g->grad_lse = g->lse);                   /* inputs may share */
    ACCEPTED(ATTN_BIAS | ATTN_ALIBI | ATTN_SINK, g->bias = NULL, g->alibi = g->sink = NULL); /* their gradients stay */
    ACCEPTED_IN(ATTN_BACKWARD, ATTN_BIAS | ATTN_ALIBI | ATTN_SINK, g->bias = NULL, g->alibi = g->sink = NULL,
                g->grad_bias = g->grad_alibi = g->grad_sink = NULL);
}

/* A pointer is an error without its flag, whatever else is right; no array is read for it. */
static void missing_flags_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t field;
        uint32_t flag;
        const char *flag_name;
    } pointers[] = {
#define POINTER(name, flag) { #name, offsetof(attn_args, name), flag, #flag }
        POINTER(cu_lens_q, ATTN_VARLEN),
        POINTER(cu_lens_kv, ATTN_VARLEN),
        POINTER(lens_q, ATTN_LENS_Q),
        POINTER(lens_kv, ATTN_LENS_KV),
        POINTER(prefix, ATTN_PREFIX),
        POINTER(intervals, ATTN_INTERVALS),
        POINTER(block_full_count, ATTN_BLOCKS),
        POINTER(block_full, ATTN_BLOCKS),
        POINTER(block_partial_count, ATTN_BLOCKS),
        POINTER(block_partial, ATTN_BLOCKS),
        POINTER(bits, ATTN_BITS),
        POINTER(alibi, ATTN_ALIBI),
        POINTER(bias, ATTN_BIAS),
        POINTER(sink, ATTN_SINK),
        POINTER(seed_at, ATTN_DROPOUT),
        POINTER(seed_offset_at, ATTN_DROPOUT),
        POINTER(q_scale, ATTN_SCALES_Q),
        POINTER(k_scale, ATTN_SCALES_KV),
        POINTER(v_scale, ATTN_SCALES_KV),
        POINTER(page_table, ATTN_PAGED),
        POINTER(page_starts, ATTN_PAGED),
        POINTER(fault, ATTN_PAGED),
        POINTER(first_kv, ATTN_FIRST_KV),
        POINTER(position_q, ATTN_POSITIONS),
        POINTER(position_kv, ATTN_POSITIONS),
        POINTER(dropout_row, ATTN_DROPOUT_BASES),
        POINTER(dropout_key, ATTN_DROPOUT_BASES),
        POINTER(dropout_head, ATTN_DROPOUT_BASES),
        POINTER(grad_bias, ATTN_BIAS),
        POINTER(grad_alibi, ATTN_ALIBI),
        POINTER(grad_sink, ATTN_SINK),
#undef POINTER
    };
    for (int i = 0; i < COUNT(pointers); i++)
        for (int direction = ATTN_FORWARD; direction <= ATTN_BACKWARD; direction++) {
            world *w = create((attn_direction)direction, ~0u);
            w->desc.batch = 2; /* whose rows the arrays hold without ATTN_VARLEN, too */
            char text[100], *nowhere = (char *)8;
            bool ignored = direction == ATTN_FORWARD && !strncmp(pointers[i].name, "grad_", 5);
            for (int j = 0; j < COUNT(pointers); j++)
                memset((char *)&w->args + pointers[j].field, 0, sizeof(void *));
            assert_ok(attn_args_check(&w->desc, &w->args));
            memcpy((char *)&w->args + pointers[i].field, &nowhere, sizeof nowhere);
            snprintf(text, sizeof text, "%s = 0x8 needs %s", pointers[i].name, pointers[i].flag_name);
            if (ignored)
                assert_ok(attn_args_check(&w->desc, &w->args));
            else
                expect(__LINE__, w, text);
            assert_int_equal(attn_args_check_arrays(&w->desc, &w->args, NULL, 0), ignored ? ATTN_OK : ATTN_INVALID);
        }
}

static void empty_arrays_may_be_missing(void **state)
{
    (void)state;
    attn_desc d = { .dtype = ATTN_BF16, .batch = 2, .heads_q = 1, .len_q = 3, .len_kv = 0, .dim_qk = 8 }, whole;
    uint16_t q[48], o[48];
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    assert_ok(attn_args_check(&whole, &(attn_args){ .q = q, .o = o }));
    d.batch = 0;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    assert_ok(attn_args_check(&whole, &(attn_args){ 0 }));
    d.flags = ATTN_BLOCKS, d.block_rows = d.block_keys = 4, d.block_batch = d.block_heads = 1;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d)); /* one row of blocks, of no columns */
    assert_ok(attn_args_check(&whole, &(attn_args){ .block_full_count = (int32_t[]){ 0 } }));
}

static void missing_arrays_are_named(void **state)
{
    (void)state;
    REFUSED(0, "q is NULL, but has elements", g->q = NULL);
    REFUSED(0, "k is NULL, but has elements", g->k = NULL);
    REFUSED(0, "v is NULL, but has elements", g->v = NULL);
    REFUSED(0, "o is NULL, but has elements", g->o = NULL);
    REFUSED(0, "cu_lens_q is NULL, but has elements", g->cu_lens_q = NULL);
    REFUSED(0, "cu_lens_kv is NULL, but has elements", g->cu_lens_kv = NULL);
    REFUSED(0, "lens_q is NULL, but has elements", g->lens_q = NULL);
    REFUSED(0, "lens_kv is NULL, but has elements", g->lens_kv = NULL);
    REFUSED(0, "prefix is NULL, but has elements", g->prefix = NULL);
    REFUSED(0, "first_kv is NULL, but has elements", g->first_kv = NULL);
    REFUSED(0, "position_q is NULL, but has elements", g->position_q = NULL);
    REFUSED(0, "dropout_row is NULL, but has elements", g->dropout_row = NULL);
    REFUSED(0, "dropout_key is NULL, but has elements", g->dropout_key = NULL);
    REFUSED(0, "dropout_head is NULL, but has elements", g->dropout_head = NULL);
    REFUSED(0, "intervals is NULL, but has elements", g->intervals = NULL);
    REFUSED(0, "bits is NULL, but has elements", g->bits = NULL);
    REFUSED(0, "alibi is NULL, but has elements", g->alibi = NULL);
    REFUSED(0, "bias is NULL, but has elements", g->bias = NULL);
    REFUSED(0, "sink is NULL, but has elements", g->sink = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "o is NULL, but has elements", g->o = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "lse is NULL, but has elements", g->lse = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_o is NULL, but has elements", g->grad_o = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_q is NULL, but has elements", g->grad_q = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_k is NULL, but has elements", g->grad_k = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_v is NULL, but has elements", g->grad_v = NULL);
    REFUSED(0, "block_full is NULL, but block_full_count is not", g->block_full = NULL);
    REFUSED(0, "block_full_count is NULL, but block_full is not", g->block_full_count = NULL);
    REFUSED(0, "block_partial is NULL, but block_partial_count is not", g->block_partial = NULL);
    REFUSED(0, "block_partial_count is NULL, but block_partial is not", g->block_partial_count = NULL);
    REFUSED(0, "block_full_count and block_partial_count are both NULL", g->block_full_count = g->block_full = NULL,
            g->block_partial_count = g->block_partial = NULL);
}

/* Every array of the world in the order of attn_args, with its end. */
typedef struct part {
    const char *name;
    size_t field, begin, end;
} part;

#define PART(argument, array)                                              \
    {                                                                      \
#argument, offsetof(attn_args, argument), offsetof(arrays, array), \
            offsetof(arrays, array) + sizeof((arrays *)0)->array           \
    }

static const part parts[] = {
    PART(q, q),
    PART(k, k),
    PART(v, v),
    PART(cu_lens_q, cu_lens_q),
    PART(cu_lens_kv, cu_lens_kv),
    PART(lens_q, lens_q),
    PART(lens_kv, lens_kv),
    PART(prefix, prefix),
    PART(first_kv, first_kv),
    PART(intervals, intervals),
    PART(block_full_count, full_count),
    PART(block_full, full),
    PART(block_partial_count, partial_count),
    PART(block_partial, partial),
    PART(bits, bits),
    PART(alibi, alibi),
    PART(bias, bias),
    PART(sink, sink),
    PART(o, o),
    PART(lse, lse),
    PART(grad_o, grad_o),
    PART(grad_lse, grad_lse),
    PART(grad_q, grad_q),
    PART(grad_k, grad_k),
    PART(grad_v, grad_v),
    PART(grad_bias, grad_bias),
    PART(grad_alibi, grad_alibi),
    PART(grad_sink, grad_sink),
    PART(delta, delta),
};

/* Outputs of the forward are o and lse, of the backward the gradients from grad_q on. */
enum { PARTS = COUNT(parts), PARTS_FORWARD = PARTS - 9, OUTPUTS_FORWARD = 2, OUTPUTS_BACKWARD = 7 };

static void set_pointer(attn_args *args, const part *p, const void *to)
{
    memcpy((char *)args + p->field, &to, sizeof to);
}

static void misaligned_arrays_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < PARTS; i++) {
        if (!strcmp(parts[i].name, "bits")) continue;
        for (size_t off = 1; off < 4; off++) {
            world *w = create(i < PARTS_FORWARD ? ATTN_FORWARD : ATTN_BACKWARD, 0);
            char text[64];
            set_pointer(&w->args, &parts[i], (char *)&w->at + parts[i].begin + off);
            snprintf(text, sizeof text, "%s = 0x", parts[i].name);
            expect(__LINE__, w, text);
            expect(__LINE__, w, "is not aligned to its elements of 4 bytes");
        }
    }
    attn_desc d = { .dtype = ATTN_F16, .batch = 1, .heads_q = 1, .len_q = 1, .len_kv = 1, .dim_qk = 1 }, whole;
    alignas(8) char q[8], k[8], v[8], o[8];
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    assert_ok(attn_args_check(&whole, &(attn_args){ .q = q + 2, .k = k + 2, .v = v + 6, .o = o + 2 }));
    assert_int_equal(attn_args_check(&whole, &(attn_args){ .q = q, .k = k + 3, .v = v, .o = o }), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "is not aligned to its elements of 2 bytes"));
    d.flags = ATTN_OUT_F32;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    assert_int_equal(attn_args_check(&whole, &(attn_args){ .q = q, .k = k, .v = v, .o = o + 2 }), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "is not aligned to its elements of 4 bytes"));
}

/* Outputs may touch their neighbours (as they do here) but not share a byte with an input or one another. */
static void outputs_overlap_nothing(void **state)
{
    (void)state;
    for (int direction = ATTN_FORWARD; direction <= ATTN_BACKWARD; direction++) {
        int end = direction == ATTN_FORWARD ? PARTS_FORWARD : PARTS;
        int first = end - (direction == ATTN_FORWARD ? OUTPUTS_FORWARD : OUTPUTS_BACKWARD);
        for (int out = first; out < end; out++)
            for (int i = 0; i < out; i++) {
                world *w = create((attn_direction)direction, 0);
                char text[64];
                snprintf(text, sizeof text, "%s overlaps %s", parts[i < first ? out : i].name,
                         parts[i < first ? i : out].name);
                set_pointer(&w->args, &parts[out], (char *)&w->at + (parts[i].end - 1) / 4 * 4); /* its last bytes */
                expect(__LINE__, w, text);
            }
    }
    REFUSED(0, "o overlaps q", g->o = a->q);
    REFUSED(0, "o overlaps sink", g->o = a->sink + HEADS - 1);
    REFUSED(0, "lse overlaps bias", g->lse = a->bias + LEN_Q * LEN_KV - 1, g->o = a->lse);
}

static void expect_workspace(int line, const world *w, const void *workspace, uint64_t bytes, const char *text)
{
    attn_status status = attn_args_check_run(&w->desc, &w->args, workspace, bytes);
    if (text ? status != ATTN_INVALID || !strstr(attn_error(), text) : status != ATTN_OK)
        fail_msg("line %d: %s \"%s\", not \"%s\"", line, attn_status_name(status), attn_error(), text ? text : "");
}

/* A workspace may touch every array, but share a byte with none. */
static void workspaces_overlap_nothing(void **state)
{
    (void)state;
    char apart[64], text[160];
    for (int direction = ATTN_FORWARD; direction <= ATTN_BACKWARD; direction++) {
        world *w = create((attn_direction)direction, 0);
        for (int i = 0; i < (direction == ATTN_FORWARD ? PARTS_FORWARD : PARTS); i++) {
            char *at = (char *)&w->at;
            char *begin = at + parts[i].begin, *last = at + parts[i].end - 1;
            snprintf(text, sizeof text, "workspace = %p overlaps %s = %p: it takes 1 bytes of its own", (void *)last,
                     parts[i].name, (void *)begin);
            expect_workspace(__LINE__, w, last, 1, text);
            expect_workspace(__LINE__, w, begin, 1, parts[i].name);
            expect_workspace(__LINE__, w, last, 0, NULL);
        }
        expect_workspace(__LINE__, w, apart, sizeof apart, NULL);
        expect_workspace(__LINE__, w, (char *)&w->at - 64, 64, NULL);
        expect_workspace(__LINE__, w, (char *)&w->at - 64, 65, "overlaps q");
    }
}

/* It may lie between the elements of one, as in a slab of memory for each sequence. */
static void workspaces_lie_in_gaps(void **state)
{
    (void)state;
    enum { SLAB = 100, KEYS = 4, WIDTH = 2 * 3 };
    float slabs[3 * SLAB], o[3 * WIDTH];
    attn_desc d = { .dtype = ATTN_F32, .batch = 3, .heads_q = 2, .len_q = 1, .len_kv = KEYS, .dim_qk = 3 }, whole;
    d.q_stride[0] = d.k_stride[0] = SLAB, d.v_stride[0] = -SLAB;
    d.q_stride[1] = d.k_stride[1] = d.v_stride[1] = WIDTH, d.q_stride[2] = d.k_stride[2] = d.v_stride[2] = 3;
    d.q_stride[3] = d.k_stride[3] = d.v_stride[3] = 1;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    attn_args args = { .q = slabs, .k = slabs + WIDTH, .v = slabs + 2 * SLAB + (KEYS + 1) * WIDTH, .o = o };
    int used = (2 * KEYS + 1) * WIDTH; /* of each slab, from its beginning */
    for (int at = 0; at < 3 * SLAB; at++)
        for (int floats = 1; floats < 3 * SLAB - at; floats += 7) {
            bool apart = at % SLAB >= used && at % SLAB + floats <= SLAB;
            if (at >= 2 * SLAB + used) apart = true;
            attn_status status = attn_args_check_run(&whole, &args, slabs + at, 4 * (uint64_t)floats);
            assert_int_equal(status, apart ? ATTN_OK : ATTN_INVALID);
        }
}

/* With strides the bytes between first and last element count, whichever way the axis runs. */
static void strides_widen_arrays(void **state)
{
    (void)state;
    float data[100] = { 0 };
    attn_desc d = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = 2, .len_kv = 1, .dim_qk = 4 }, whole;
    d.q_stride[1] = -40, d.q_stride[3] = 1, d.o_stride[1] = 20, d.o_stride[3] = 1;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    attn_args args = { .q = data + 40, .k = data + 90, .v = data + 94, .o = data + 44 }; /* q: 0 to 44, o: 44 to 68 */
    assert_ok(attn_args_check(&whole, &args));
    args.o = data + 43;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "o overlaps q");
    args.o = data + 10; /* between the rows of q */
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "o overlaps q");
    args.o = data + 66;
    assert_ok(attn_args_check(&whole, &args));
    args.o = data + 67;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "o overlaps k");
}

static void lengths_are_checked(void **state)
{
    (void)state;
    REFUSED(0, "cu_lens_q[0] = 1 is not 0", a->cu_lens_q[0] = 1);
    REFUSED(0, "cu_lens_kv[0] = -1 is not 0", a->cu_lens_kv[0] = -1);
    REFUSED(0, "cu_lens_q[2] = 3 is below cu_lens_q[1] = 4", a->cu_lens_q[2] = 3);
    REFUSED(0, "cu_lens_kv[1] = -2147483648 is below cu_lens_kv[0] = 0", a->cu_lens_kv[1] = INT32_MIN);
    REFUSED(0, "cu_lens_q gives sequence 0 5 rows, which exceeds len_q = 4", a->cu_lens_q[1] = 5);
    REFUSED(0, "cu_lens_kv gives sequence 0 13 rows, which exceeds len_kv = 12", a->cu_lens_kv[1] = 13);
    REFUSED(0, "cu_lens_q[3] = 10 exceeds total_q = 9", a->cu_lens_q[2] = 7, a->cu_lens_q[3] = 10);
    REFUSED(0, "cu_lens_kv[3] = 2147483647 exceeds total_kv = 30", a->cu_lens_kv[3] = INT32_MAX);
    REFUSED(0, "cu_lens_kv[3] = 31 exceeds total_kv = 30", a->cu_lens_kv[2] = 20, a->cu_lens_kv[3] = 31);
    REFUSED(0, "lens_q[1] = 1 exceeds the sequence's share of cu_lens = 0", a->lens_q[1] = 1);
    REFUSED(0, "lens_q[2] = -3 is below 0", a->lens_q[2] = -3);
    REFUSED(0, "lens_kv[1] = 9 exceeds the sequence's share of cu_lens = 8", a->lens_kv[1] = 9);
    REFUSED(0, "prefix[2] = 13 exceeds len_kv = 12", a->prefix[2] = 13);
    REFUSED(0, "prefix[0] = -1 is below 0", a->prefix[0] = -1);
    REFUSED(0, "first_kv[1] = 13 exceeds len_kv = 12", a->first_kv[1] = 13);
    REFUSED(0, "first_kv[2] = -1 is below 0", a->first_kv[2] = -1);
    REFUSED(0, "position_q[2] = 576460752303423489 is not in -2^59 to 2^59", a->position_q[2] = (INT64_C(1) << 59) + 1);
    REFUSED(0, "position_kv[0] = -9223372036854775808 is not in", a->position_kv[0] = INT64_MIN);
    ACCEPTED(0, a->position_q[0] = INT64_C(1) << 59, a->position_kv[1] = -(INT64_C(1) << 59));
    REFUSED(0, "position_q = ", g->position_q = (int64_t *)((char *)a->position_q + 4));
    REFUSED(0, "is not aligned to its elements of 8 bytes", g->position_kv = (int64_t *)((char *)a->position_kv + 4));
}

/* Counters of 32 bits: of 4 rows or keys of 16, or of a head. */
static void bases_are_checked(void **state)
{
    (void)state;
    const int64_t pairs = INT64_C(1) << 34, heads = INT64_C(1) << 32;
    REFUSED(0, "dropout_row[1] = 24 is no multiple of 16", a->dropout_row[1] = 24);
    REFUSED(0, "dropout_key[2] = 1 is no multiple of 16", a->dropout_key[2] = 1);
    REFUSED(0, "dropout_row[0] = -16 is not in 0 to 17179869180", a->dropout_row[0] = -16);
    REFUSED(0, "dropout_row[2] = 17179869184 is not in 0 to 17179869180", a->dropout_row[2] = pairs);
    REFUSED(0, "dropout_key[1] = -9223372036854775808 is not in", a->dropout_key[1] = INT64_MIN);
    REFUSED(0, "dropout_key[1] = 9223372036854775807 is not in 0 to 17179869172", a->dropout_key[1] = INT64_MAX);
    REFUSED(0, "dropout_head[0] = -1 is not in 0 to 4294967294", a->dropout_head[0] = -1);
    REFUSED(0, "dropout_head[2] = 4294967295 is not in 0 to 4294967294", a->dropout_head[2] = heads - HEADS + 1);
    ACCEPTED(0, a->dropout_row[0] = a->dropout_key[0] = pairs - 16, a->dropout_head[0] = heads - HEADS);
    ACCEPTED(0, a->dropout_row[0] = 16, a->dropout_key[1] = 160, a->dropout_head[2] = 7);
    REFUSED(0, "is not aligned to its elements of 8 bytes", g->dropout_row = (int64_t *)((char *)a->dropout_row + 4));
}

/* Written without ATTN_DELTA; with it given, in place of what is in it. */
static void deltas_are_checked(void **state)
{
    (void)state;
    REFUSED(0, "delta = 0x8 needs direction = ATTN_BACKWARD", g->delta = (float *)8);
#define GIVEN w->desc.flags |= ATTN_DELTA
    ACCEPTED_IN(ATTN_BACKWARD, 0, GIVEN, g->o = NULL, g->grad_lse = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "o is not NULL: with ATTN_DELTA it is in delta", GIVEN);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_lse is not NULL: with ATTN_DELTA it is in delta", GIVEN, g->o = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "delta is NULL, but has elements", GIVEN, g->o = NULL, g->grad_lse = NULL,
               g->delta = NULL);
    REFUSED_IN(ATTN_BACKWARD, 0, "grad_q overlaps delta", GIVEN, g->o = NULL, g->grad_lse = NULL, g->delta = g->grad_q);
    REFUSED_IN(ATTN_BACKWARD, 0, "o is NULL, but has elements", g->o = NULL); /* a forgotten flag */
#undef GIVEN
    world *w = create(ATTN_BACKWARD, 0);
    w->desc.device = ATTN_CUDA;
    assert_int_equal(attn_args_check_arrays(&w->desc, &w->args, NULL, 0), ATTN_UNSUPPORTED);
    assert_non_null(strstr(attn_error(), "ATTN_CUDA does not write it"));
}

/* Gradients of f32 beside tensors of 16 bits take their room. */
static void gradients_have_their_type(void **state)
{
    (void)state;
    attn_desc d = { .dtype = ATTN_BF16, .direction = ATTN_BACKWARD, .batch = 1, .heads_q = 1 }, whole;
    d.len_q = 2, d.len_kv = 2, d.dim_qk = 4, d.grad_dtype = ATTN_F32;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    uint16_t q[8], k[8], v[8], o[8], grad_o[8];
    float lse[2], room[3 * 8];
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .lse = lse, .grad_o = grad_o, .grad_q = room };
    args.grad_k = room + 8, args.grad_v = room + 16;
    assert_ok(attn_args_check(&whole, &args));
    args.grad_v = room + 15;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "grad_k overlaps grad_v");
    args.grad_v = (uint16_t *)(void *)(room + 16) + 1;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "is not aligned to its elements of 4 bytes"));
}

static void lengths_without_varlen_are_checked(void **state)
{
    (void)state;
    attn_desc d = { .dtype = ATTN_F32, .batch = 2, .heads_q = 1, .len_q = 3, .len_kv = 6, .dim_qk = 1 }, whole;
    d.flags = ATTN_LENS_Q | ATTN_LENS_KV;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    float q[6], k[12], v[12], o[6];
    int32_t lens_q[] = { 3, 0 }, lens_kv[] = { 0, 6 };
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .lens_q = lens_q, .lens_kv = lens_kv };
    assert_ok(attn_args_check(&whole, &args));
    lens_q[0] = 4;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "lens_q[0] = 4 exceeds len_q = 3");
    lens_q[0] = 3, lens_kv[1] = 7;
    assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
    assert_string_equal(attn_error(), "lens_kv[1] = 7 exceeds len_kv = 6");
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Three sequences of 7, 0 and 12 keys in pages of 4; entries that are not looked at are no page's. */
typedef struct paged {
    attn_desc desc;
    attn_args args;
    int32_t lens[3], table[3][3], starts[4], lens_q[3];
    float q[6], o[6], pool[20];
} paged;

static paged *create_paged(bool by_starts)
{
    static paged p;
    attn_desc d = { .dtype = ATTN_F32, .flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_LENS_Q, .batch = 3 };
    d.heads_q = 1, d.len_q = 2, d.len_kv = 12, d.dim_qk = 1, d.pages = 5, d.page_size = 4;
    d.table_width = by_starts ? 0 : 3, d.table_total = by_starts ? 9 : 0;
    p = (paged){ .lens = { 7, 0, 12 }, .table = { { 4, 0, -1 }, { -1, 9, 9 }, { 1, 2, 1 } }, .starts = { 0, 3, 6, 9 } };
    p.lens_q[0] = p.lens_q[1] = p.lens_q[2] = 2;
    p.args = (attn_args){ .q = p.q, .k = p.pool, .v = p.pool, .o = p.o, .lens_q = p.lens_q, .lens_kv = p.lens };
    p.args.page_table = p.table[0], p.args.page_starts = by_starts ? p.starts : NULL;
    assert_ok(attn_desc_resolve(&p.desc, &d, sizeof d));
    return &p;
}

#define PAGES_ARE(by_starts, text, ...)                                                                 \
    do {                                                                                                \
        paged *p = create_paged(by_starts);                                                             \
        __VA_ARGS__;                                                                                    \
        attn_status status = attn_args_check(&p->desc, &p->args);                                       \
        if ((status != ATTN_OK) != (text != NULL) || (text && !strstr(attn_error(), text ? text : ""))) \
            fail_msg("line %d: %s \"%s\"", __LINE__, attn_status_name(status), attn_error());           \
    } while (0)

/* Every id that is read is one of the pool's; no other is looked at. */
static void pages_are_checked(void **state)
{
    (void)state;
    const char *right = NULL;
    for (int starts = 0; starts < 2; starts++) {
        PAGES_ARE(starts, right, (void)0);
        PAGES_ARE(starts, "page_table: sequence 0, entry 1 = 5 is no page of 0 to 4", p->table[0][1] = 5);
        PAGES_ARE(starts, "page_table: sequence 0, entry 0 = -1 is no page of 0 to 4", p->table[0][0] = -1);
        PAGES_ARE(starts, "page_table: sequence 2, entry 2 = -2147483648 is no", p->table[2][2] = INT32_MIN);
        PAGES_ARE(starts, "page_table: sequence 0, entry 2 = -1 is no page", p->lens[0] = 9);
        PAGES_ARE(starts, right, p->lens[0] = 8);
        PAGES_ARE(starts, right, p->lens_q[2] = 0, p->table[2][0] = 77); /* no row that could see a key */
        PAGES_ARE(starts, "lens_kv[2] = 13 exceeds len_kv = 12", p->lens[2] = 13);
        PAGES_ARE(starts, "page_table is NULL, but has elements", p->args.page_table = NULL);
        PAGES_ARE(starts, "fault is not NULL: the CPU", p->args.fault = (uint32_t *)(void *)p->starts);
    }
    paged *pages = create_paged(false); /* those that no table names are the pool's, too */
    assert_int_equal(attn_args_check_run(&pages->desc, &pages->args, pages->pool + 3 * 4, 16), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "overlaps k = 0x"));
    PAGES_ARE(false, "page_starts = 0x", p->args.page_starts = p->starts);
    PAGES_ARE(true, "page_starts is NULL, but has elements", p->args.page_starts = NULL);
    PAGES_ARE(true, "page_starts[0] = 1 is not 0", p->starts[0] = 1);
    PAGES_ARE(true, "page_starts[2] = 2 is below page_starts[1] = 3", p->starts[2] = 2);
    PAGES_ARE(true, "page_starts[3] = 10 exceeds table_total = 9", p->starts[3] = 10);
    PAGES_ARE(true, "page_starts gives sequence 2 2 pages, but lens_kv[2] = 12 needs 3", p->starts[2] = 7);
    PAGES_ARE(true, "page_starts[1] = -2 is below page_starts[0] = 0", p->starts[1] = -2);
}

/* Pages that a window, a chunk or first_kv leaves to no row are gone; those of a prefix stay. */
static void pages_that_nobody_sees_are_not_looked_at(void **state)
{
    (void)state;
    const char *right = NULL, *first = "sequence 2, entry 0 = -1", *second = "sequence 2, entry 1 = -1";
#define WINDOW(left) p->desc.flags |= ATTN_CAUSAL | ATTN_WINDOW, p->desc.window_left = left
    PAGES_ARE(false, right, WINDOW(2), p->table[2][0] = p->table[2][1] = -1);
    PAGES_ARE(false, second, WINDOW(3), p->table[2][0] = p->table[2][1] = -1); /* row 0 is at 10 and sees key 7 */
    PAGES_ARE(false, right, WINDOW(6), p->table[2][0] = -1);
    PAGES_ARE(false, first, WINDOW(7), p->table[2][0] = -1);
    int32_t prefix[3] = { 0, 0, 1 }, first_kv[3] = { 0, 0, 4 };
    int64_t position[3] = { 0, 0, 3 };
    PAGES_ARE(false, right, WINDOW(2), p->table[2][1] = -1, p->desc.flags |= ATTN_PREFIX, p->args.prefix = prefix);
    PAGES_ARE(false, first, WINDOW(2), p->table[2][0] = -1, p->desc.flags |= ATTN_PREFIX, p->args.prefix = prefix);
    PAGES_ARE(false, right, p->table[2][0] = -1, p->desc.flags |= ATTN_FIRST_KV, p->args.first_kv = first_kv);
    first_kv[2] = 3;
    PAGES_ARE(false, first, p->table[2][0] = -1, p->desc.flags |= ATTN_FIRST_KV, p->args.first_kv = first_kv);
    PAGES_ARE(false, right, p->table[2][0] = p->table[2][1] = -1, p->desc.flags |= ATTN_CHUNK, p->desc.chunk = 8);
    PAGES_ARE(false, second, p->table[2][1] = -1, p->desc.flags |= ATTN_CHUNK | ATTN_POSITIONS, p->desc.chunk = 8,
              p->args.position_q = position); /* rows at 3 and 4 */
    position[2] = 2;
    PAGES_ARE(false, right, p->table[2][1] = p->table[2][2] = -1, p->desc.flags |= ATTN_CAUSAL | ATTN_POSITIONS,
              p->args.position_q = position); /* rows at 2 and 3 */
#undef WINDOW
}

static void blocks_are_checked(void **state)
{
    (void)state;
    REFUSED(0, "block_full_count[7] = -1 is not in 0 to 3 key blocks", a->full_count[7] = -1);
    REFUSED(0, "block_partial_count[11] = 4 is not in 0 to 3 key blocks", a->partial_count[11] = 4);
    REFUSED(0, "block_full[7] = 3 is not one of the key blocks 0 to 2", a->full[7] = 3);
    REFUSED(0, "block_partial[33] = -1 is not one of the key blocks 0 to 2", a->partial[33] = -1);
    REFUSED(0, "block_full[7] = 0 does not rise above 0 before it", a->full[7] = 0);
    REFUSED(0, "block_full[7] = 1 does not rise above 2 before it", a->full[6] = 2, a->full[7] = 1);
    REFUSED(0, "line 8 of the block lists has block 2 in both block_full and block_partial", a->partial[24] = 2);
    REFUSED(0, "line 1 of the block lists has block 1 in both", a->full[3] = 1);
    REFUSED(0, "line 4 of the block lists has block 2 in both", a->full[12] = 2, a->partial_count[4] = 2,
            a->partial[13] = 2);
}

static void logits_are_checked(void **state)
{
    (void)state;
    REFUSED(0, "alibi[5] = nan is not finite", a->alibi[5] = NAN);
    REFUSED(0, "alibi[0] = -inf is not finite", a->alibi[0] = -INFINITY);
    REFUSED(0, "sink[1] = nan is neither finite nor -inf", a->sink[1] = NAN);
    REFUSED(0, "sink[0] = inf is neither finite nor -inf", a->sink[0] = INFINITY);
}

/* The scan goes by parts: one bad value, wherever it is, is found and named. */
static void every_interval_is_checked(void **state)
{
    (void)state;
    enum { KEYS = 301, ROWS = 5, VALUES = 2 * KEYS };
    static const int32_t bad[] = { -1, ROWS + 1, INT32_MIN, INT32_MAX };
    static float q[ROWS], k[KEYS], v[KEYS], o[ROWS];
    int32_t intervals[VALUES];
    attn_desc d = { .dtype = ATTN_F32, .flags = ATTN_INTERVALS, .batch = 1, .heads_q = 1, .dim_qk = 1 }, whole;
    d.len_q = ROWS, d.len_kv = KEYS, d.interval_heads = 1, d.interval_vectors = 2;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .intervals = intervals };
    for (int i = 0; i < VALUES; i++)
        intervals[i] = i % (ROWS + 1);
    assert_ok(attn_args_check(&whole, &args));
    for (int i = 0; i < VALUES; i++) {
        char text[100];
        int32_t kept = intervals[i];
        intervals[i] = bad[i % COUNT(bad)];
        snprintf(text, sizeof text, "intervals[%d] = %d is not in 0 to len_q = 5", i, intervals[i]);
        assert_int_equal(attn_args_check(&whole, &args), ATTN_INVALID);
        assert_string_equal(attn_error(), text);
        intervals[i] = kept;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_problems_pass),         cmocka_unit_test(missing_flags_are_named),
        cmocka_unit_test(empty_arrays_may_be_missing), cmocka_unit_test(missing_arrays_are_named),
        cmocka_unit_test(misaligned_arrays_are_named), cmocka_unit_test(outputs_overlap_nothing),
        cmocka_unit_test(strides_widen_arrays),        cmocka_unit_test(lengths_are_checked),
        cmocka_unit_test(bases_are_checked),           cmocka_unit_test(deltas_are_checked),
        cmocka_unit_test(gradients_have_their_type),   cmocka_unit_test(lengths_without_varlen_are_checked),
        cmocka_unit_test(pages_are_checked),           cmocka_unit_test(pages_that_nobody_sees_are_not_looked_at),
        cmocka_unit_test(blocks_are_checked),          cmocka_unit_test(logits_are_checked),
        cmocka_unit_test(every_interval_is_checked),   cmocka_unit_test(workspaces_overlap_nothing),
        cmocka_unit_test(workspaces_lie_in_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
