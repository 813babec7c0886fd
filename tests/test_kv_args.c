/* Every field and argument of operations on pages that is out of range, missing or not asked for: its message, and
 * nothing written. */
#include "support.h"

#include <stdbool.h>

#include "attn_kv.h"
#include "kv/op.h"
#include "check/random.h"

/* ---- descriptors ------------------------------------------------------------------------------- */

static attn_kv_desc append_desc(void)
{
    return (attn_kv_desc){ .op = ATTN_KV_APPEND,
                           .dtype = ATTN_F32,
                           .flags = ATTN_KV_ROTARY | ATTN_KV_ROTARY_Q,
                           .pages = 4,
                           .page_size = 2,
                           .heads_kv = 1,
                           .dim_qk = 4,
                           .tokens = 4,
                           .batch = 2,
                           .table_width = 2,
                           .heads_q = 1,
                           .positions = 4,
                           .threads = 1 };
}

static void refuses(attn_kv_desc desc, attn_status want, const char *text, int line)
{
    attn_kv_plan *plan = NULL;
    attn_status status = attn_kv_plan_create(&plan, &desc);
    if (status != want || !strstr(attn_error(), text) || plan)
        fail_msg("line %d: %s \"%s\", not \"%s\"", line, attn_status_name(status), attn_error(), text);
}

#define BAD(base_, field_, value_, text_)           \
    do {                                            \
        attn_kv_desc d_ = base_;                    \
        d_.field_ = value_;                         \
        refuses(d_, ATTN_INVALID, text_, __LINE__); \
    } while (0)

static void bad_descriptors(void **state)
{
    (void)state;
    attn_kv_desc a = append_desc(), slots = a, gather = { 0 }, copies;
    slots.flags |= ATTN_KV_SLOTS | ATTN_KV_POSITIONS, slots.batch = slots.table_width = 0;
    gather = (attn_kv_desc){ .op = ATTN_KV_GATHER,
                             .dtype = ATTN_F32,
                             .pages = 4,
                             .page_size = 2,
                             .heads_kv = 1,
                             .dim_qk = 4,
                             .batch = 2,
                             .table_width = 2,
                             .len_kv = 4 };
    copies = (attn_kv_desc){ .op = ATTN_KV_COPY,
                             .dtype = ATTN_F32,
                             .pages = 4,
                             .page_size = 2,
                             .heads_kv = 1,
                             .dim_qk = 4,
                             .pages_from = 4,
                             .copies = 2 };
    const attn_kv_desc good[] = { a, slots, gather, copies };
    for (int i = 0; i < COUNT(good); i++) {
        attn_kv_plan *plan;
        assert_ok(attn_kv_plan_create(&plan, &good[i]));
        attn_kv_plan_destroy(plan);
    }
    BAD(a, op, 0, "op = 0 is not ATTN_KV_APPEND");
    BAD(a, dtype, ATTN_F64, "dtype = 4 is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3 or ATTN_I8");
    BAD(a, device, 2, "device = 2");
    BAD(a, flags, 1 << 8, "unknown bits");
    BAD(a, flags, ATTN_KV_PACKED, "ATTN_KV_PACKED needs op = ATTN_KV_GATHER");
    BAD(gather, flags, ATTN_KV_SLOTS, "ATTN_KV_SLOTS needs op = ATTN_KV_APPEND");
    BAD(copies, flags, ATTN_KV_ROTARY, "ATTN_KV_ROTARY needs op = ATTN_KV_APPEND");
    BAD(a, flags, ATTN_KV_ROTARY_Q, "ATTN_KV_ROTARY_Q needs ATTN_KV_ROTARY");
    BAD(a, flags, ATTN_KV_POSITIONS, "ATTN_KV_POSITIONS needs ATTN_KV_ROTARY");
    BAD(slots, flags, ATTN_KV_SLOTS | ATTN_KV_ROTARY, "with ATTN_KV_SLOTS needs ATTN_KV_POSITIONS");
    BAD(a, pages, -1, "pages = -1 is not in 0 to 2147483647");
    BAD(a, page_size, 0, "page_size = 0");
    BAD(a, heads_kv, 0, "heads_kv = 0");
    BAD(a, dim_qk, 1025, "dim_qk = 1025");
    BAD(a, dim_v, -1, "dim_v = -1");
    BAD(a, heads_q, 0, "heads_q = 0");
    BAD(a, rotary_dim, 3, "rotary_dim = 3 is odd");
    BAD(a, rotary_dim, 6, "rotary_dim = 6 exceeds dim_qk = 4");
    BAD(a, positions, -1, "positions = -1");
    BAD(a, table_total, 4, "table_total = 4 needs table_width = 0");
    BAD(a, len_kv, 4, "len_kv = 4 needs op = ATTN_KV_GATHER");
    BAD(a, copies, 4, "copies = 4 needs op = ATTN_KV_COPY");
    BAD(a, k_from_stride[1], 4, "k_from_stride[1] = 4 needs op = ATTN_KV_COPY");
    BAD(slots, batch, 1, "batch = 1 needs a page table");
    BAD(gather, tokens, 1, "tokens = 1 needs op = ATTN_KV_APPEND or ATTN_KV_PACKED");
    BAD(gather, heads_q, 1, "heads_q = 1 needs ATTN_KV_ROTARY_Q");
    BAD(gather, rotary_dim, 2, "rotary_dim = 2 needs ATTN_KV_ROTARY");
    BAD(gather, k_stride[0], 7, "k_stride[3] = 0 is not 1");
    BAD(gather, v_stride[3], 2, "v_stride[3] = 2 is not 1");
    BAD(copies, k_stride[0], 7, "k_stride[0] = 7 needs op = ATTN_KV_APPEND or ATTN_KV_GATHER");
    BAD(a, threads, -1, "threads = -1");
    BAD(a, parallel_context, &a, "parallel_context needs parallel_for");
    gather.batch = gather.table_width = INT32_MAX - 1;
    BAD(gather, len_kv, INT32_MAX, "page_table: the offsets");
    a.k_pages_stride[3] = 1;
    BAD(a, k_pages_stride[2], 2, "makes elements of k_pages overlap");
    BAD(a, device, ATTN_CUDA, "threads is set: ATTN_CUDA takes none");
    attn_kv_plan *plan;
    assert_int_equal(attn_kv_plan_create(NULL, &a), ATTN_INVALID);
    assert_int_equal(attn_kv_plan_create(&plan, NULL), ATTN_INVALID);
    attn_kv_plan_destroy(NULL);
}

/* An append of three tokens by slot into pages of e4m3, whose scales it finds. */
static attn_kv_desc bytes_desc(void)
{
    return (attn_kv_desc){ .op = ATTN_KV_APPEND,
                           .dtype = ATTN_F32,
                           .pages_dtype = ATTN_E4M3,
                           .flags = ATTN_KV_SLOTS | ATTN_KV_SCALES | ATTN_KV_TOKEN_SCALES,
                           .pages = 4,
                           .page_size = 2,
                           .heads_kv = 3,
                           .dim_qk = 4,
                           .tokens = 4,
                           .k_scale_rows = 1,
                           .v_scale_rows = 1,
                           .k_scale_stride = { 6, 3, 1, 0 },
                           .v_scale_stride = { 6, 1, 2, 0 },
                           .threads = 1 };
}

static void bad_descriptors_of_bytes(void **state)
{
    (void)state;
    attn_kv_plan *plan;
    attn_kv_desc a = bytes_desc(), given = a, gather = a, copies = a, raw = a;
    given.flags = ATTN_KV_SLOTS | ATTN_KV_SCALES;
    given.k_scale_rows = given.v_scale_rows = given.k_scale_stride[0] = given.k_scale_stride[1] = 0;
    memcpy(given.v_scale_stride, (int64_t[4]){ 0, 0, 7, 2 }, sizeof given.v_scale_stride);
    gather.op = ATTN_KV_GATHER, gather.flags = ATTN_KV_SCALES;
    gather.tokens = 0, gather.batch = gather.table_width = 2, gather.len_kv = 4, gather.k_scale_rows = 64;
    copies.op = ATTN_KV_COPY, copies.flags = ATTN_KV_SCALES;
    copies.tokens = 0, copies.pages_from = 4, copies.copies = 2, copies.dtype = ATTN_E4M3, copies.pages_dtype = 0;
    raw.dtype = ATTN_I8, raw.pages_dtype = 0, raw.flags = ATTN_KV_SLOTS;
    raw.k_scale_rows = raw.v_scale_rows = 0;
    memset(raw.k_scale_stride, 0, sizeof raw.k_scale_stride), memset(raw.v_scale_stride, 0, sizeof raw.v_scale_stride);
    const attn_kv_desc good[] = { a, given, gather, copies, raw };
    for (int i = 0; i < COUNT(good); i++) {
        assert_ok(attn_kv_plan_create(&plan, &good[i]));
        attn_kv_plan_destroy(plan);
    }
    BAD(a, dtype, 6, "dtype = 6 is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3 or ATTN_I8");
    BAD(a, pages_dtype, ATTN_BF16, "pages_dtype = 3 is not 0, dtype = f32, ATTN_E4M3 or ATTN_I8");
    BAD(a, pages_dtype, 6, "pages_dtype = 6 is not 0");
    BAD(raw, pages_dtype, ATTN_E4M3, "pages_dtype = 5 is not 0, dtype = i8");
    BAD(raw, pages_dtype, ATTN_F32, "pages_dtype = 1 is not 0, dtype = i8");
    BAD(raw, flags, ATTN_KV_ROTARY | ATTN_KV_SLOTS | ATTN_KV_POSITIONS, "ATTN_KV_ROTARY needs a dtype of f32, f16 or");
    BAD(raw, flags, ATTN_KV_SCALES | ATTN_KV_SLOTS, "ATTN_KV_SCALES needs a dtype of f32, f16 or bf16, not i8");
    BAD(a, pages_dtype, 0, "ATTN_KV_SCALES needs a pages_dtype of e4m3 or i8, not f32");
    BAD(a, flags, ATTN_KV_SLOTS | ATTN_KV_TOKEN_SCALES, "ATTN_KV_TOKEN_SCALES needs ATTN_KV_SCALES");
    BAD(gather, flags, ATTN_KV_SCALES | ATTN_KV_TOKEN_SCALES, "ATTN_KV_TOKEN_SCALES needs op = ATTN_KV_APPEND");
    BAD(raw, k_scale_rows, 1, "k_scale_rows = 1 needs ATTN_KV_SCALES");
    BAD(raw, v_scale_stride[2], 1, "v_scale_stride[2] = 1 needs ATTN_KV_SCALES");
    BAD(a, k_scale_from_stride[0], 1, "k_scale_from_stride[0] = 1 needs op = ATTN_KV_COPY with ATTN_KV_SCALES");
    BAD(a, k_scale_rows, 0, "k_scale_rows = 0 is not 1, as ATTN_KV_TOKEN_SCALES needs it");
    BAD(a, v_scale_rows, 0, "v_scale_rows = 0 is not 1, as ATTN_KV_TOKEN_SCALES needs it");
    BAD(a, k_scale_rows, 64, "k_scale_rows = 64 is not 1");
    BAD(gather, k_scale_rows, 2, "k_scale_rows = 2 is not 0, 1, 64 or 128");
    BAD(gather, v_scale_rows, 64, "v_scale_rows = 64 is not in 0 to 1");
    BAD(a, k_scale_stride[3], 1, "k_scale_stride[3] = 1 is not 0");
    BAD(a, v_scale_stride[3], 1, "v_scale_stride[3] = 1 is not 0, as v_scale_rows = 1 needs it");
    BAD(given, k_scale_stride[1], 1, "k_scale_stride[1] = 1 is not 0, as k_scale_rows = 0 needs it");
    BAD(given, v_scale_stride[0], 1, "v_scale_stride[0] = 1 is not 0: with ATTN_KV_SLOTS and v_scale_rows = 0");
    BAD(gather, k_scale_stride[0], INT64_MAX, "k_scale: the offsets of its elements overflow");
    BAD(a, k_scale_stride[1], 2, "makes elements of k_scale overlap");
    BAD(a, v_scale_stride[2], 0, "makes elements of v_scale overlap");
    BAD(copies, v_scale_stride[0], 5, "makes elements of v_scale overlap");
    BAD(copies, k_scale_rows, 0, "k_scale_stride is not 0: a copy needs k_scale_rows above 0");
}

/* ---- arguments --------------------------------------------------------------------------------- */

typedef struct problem {
    attn_kv_desc desc;
    attn_kv_args args;
    float k[4][4], v[4][4], q[8][4], k_pages[4][2][4], v_pages[4][2][4], k_out[2][4][4], v_out[2][4][4], cos[4][2],
        sin[4][2];
    int32_t cu[3], lens[2], table[2][2], pairs[2][2], starts[3];
    int64_t slots[4], positions[4];
} problem;

static void set_up(problem *b, attn_kv_op op)
{
    *b = (problem){ .desc = append_desc(),
                    .cu = { 0, 1, 3 },
                    .lens = { 3, 2 },
                    .table = { { 0, 1 }, { 2, 3 } },
                    .pairs = { { 0, 1 }, { 2, 3 } },
                    .slots = { 0, 3, -1, 7 },
                    .positions = { 0, 3, 1, 2 },
                    .starts = { 0, 2, 4 } };
    b->args = (attn_kv_args){ .k_pages = b->k_pages, .v_pages = b->v_pages };
    if (op == ATTN_KV_APPEND) {
        b->args.k = b->k, b->args.v = b->v, b->args.q = b->args.q_out = b->q, b->args.cos = b->cos[0];
        b->args.sin = b->sin[0], b->args.cu_lens = b->cu, b->args.lens_kv = b->lens, b->args.page_table = b->table[0];
        return;
    }
    b->desc = (attn_kv_desc){ .op = op, .dtype = ATTN_F32, .pages = 4, .page_size = 2, .heads_kv = 1, .dim_qk = 4 };
    if (op == ATTN_KV_GATHER) {
        b->desc.batch = b->desc.table_width = 2, b->desc.len_kv = 4;
        b->args.k_out = b->k_out, b->args.v_out = b->v_out, b->args.lens_kv = b->lens, b->args.page_table = b->table[0];
    } else {
        b->desc.pages_from = 4, b->desc.copies = 2;
        b->args.k_from = b->k_pages, b->args.v_from = b->v_pages, b->args.pairs = b->pairs[0], b->args.count = 2;
    }
}

static void set_up_slots(problem *b)
{
    set_up(b, ATTN_KV_APPEND);
    b->desc.flags |= ATTN_KV_SLOTS | ATTN_KV_POSITIONS, b->desc.batch = b->desc.table_width = 0;
    b->args.cu_lens = b->args.lens_kv = b->args.page_table = NULL;
    b->args.slots = b->slots, b->args.positions = b->positions, b->args.count = 4;
}

/* Runs it; text NULL: it must do. Else the message must have the text, and nothing may be written. */
static void run(problem *b, const char *text, int line)
{
    attn_kv_plan *plan;
    problem before;
    for (int i = 0; i < 16; i++)
        b->k[i / 4][i % 4] = b->v[i / 4][i % 4] = b->q[i / 4][i % 4] = 1, b->cos[i % 4][i % 2] = 1;
    memcpy(&before, b, sizeof before);
    assert_ok(attn_kv_plan_create(&plan, &b->desc));
    attn_status status = attn_kv_run(plan, &b->args, NULL);
    if (status != (text ? ATTN_INVALID : ATTN_OK) || (text && !strstr(attn_error(), text)))
        fail_msg("line %d: %s \"%s\", not \"%s\"", line, attn_status_name(status), attn_error(), text ? text : "");
    if (text && memcmp(&before, b, sizeof before) != 0) fail_msg("line %d: something was written", line);
    attn_kv_plan_destroy(plan);
}

#define RUN(setup_, change_, text_) \
    do {                            \
        problem b;                  \
        setup_;                     \
        change_;                    \
        run(&b, text_, __LINE__);   \
    } while (0)
#define APPEND(change_, text_) RUN(set_up(&b, ATTN_KV_APPEND), change_, text_)
#define SLOTS(change_, text_) RUN(set_up_slots(&b), change_, text_)
#define GATHER(change_, text_) RUN(set_up(&b, ATTN_KV_GATHER), change_, text_)
#define COPY(change_, text_) RUN(set_up(&b, ATTN_KV_COPY), change_, text_)
#define CSR(b_) b_.desc.table_width = 0, b_.desc.table_total = 4, b_.args.page_starts = b_.starts

static void bad_ids_and_lengths(void **state)
{
    (void)state;
    APPEND((void)0, NULL);
    APPEND(b.table[0][1] = 4, "page_table: sequence 0, entry 1 = 4 is no page of 0 to 3");
    APPEND(b.table[1][0] = -1, "page_table: sequence 1, entry 0 = -1");
    APPEND(b.table[0][0] = 99, NULL); /* no new token goes there */
    APPEND(b.table[1][1] = INT32_MIN, NULL);
    APPEND(b.cu[0] = 1, "cu_lens[0] = 1 is not 0");
    APPEND(b.cu[1] = 4, "cu_lens[2] = 3 is below cu_lens[1] = 4");
    APPEND(b.cu[2] = 5, "cu_lens[2] = 5 exceeds tokens = 4");
    APPEND(b.lens[1] = 1, "lens_kv[1] = 1 is below the 2 new tokens");
    APPEND(b.lens[1] = -1, "lens_kv[1] = -1 is below 0");
    APPEND(b.lens[0] = 5, "lens_kv[0] = 5 exceeds positions = 4");
    APPEND((b.lens[0] = 5, b.desc.flags = 0, b.desc.heads_q = b.desc.positions = 0, b.args.q = b.args.q_out = NULL,
            b.args.cos = b.args.sin = NULL),
           "lens_kv[0] = 5 needs 3 pages, but there are 2 ids");
    APPEND((CSR(b)), NULL);
    APPEND((CSR(b), b.starts[1] = 1, b.starts[2] = 3), "lens_kv[0] = 3 needs 2 pages, but there are 1 ids");
    APPEND((CSR(b), b.starts[0] = 1), "page_starts[0] = 1 is not 0");
    APPEND((CSR(b), b.starts[2] = 5), "page_starts[2] = 5 exceeds table_total = 4");
    APPEND((CSR(b), b.starts[1] = -1), "page_starts[1] = -1 is below");
    SLOTS((void)0, NULL);
    SLOTS(b.slots[2] = -2, "slots[2] = -2 is not in -1 to 7");
    SLOTS(b.slots[3] = 8, "slots[3] = 8 is not in -1 to 7");
    SLOTS(b.slots[3] = INT64_MAX, "slots[3] = ");
    SLOTS(b.positions[1] = 4, "positions[1] = 4 is not in 0 to 3");
    SLOTS(b.positions[2] = -1, "positions[2] = -1");
    SLOTS((b.args.count = 2, b.slots[2] = 99), NULL);
    SLOTS(b.args.count = 5, "count = 5 is not in 0 to tokens = 4");
    SLOTS(b.args.count = -1, "count = -1");
    GATHER((void)0, NULL);
    GATHER(b.table[0][0] = -1, NULL);
    GATHER(b.table[0][0] = -2, "page_table: sequence 0, entry 0 = -2");
    GATHER(b.lens[0] = 5, "lens_kv[0] = 5 exceeds len_kv");
    GATHER((b.desc.flags = ATTN_KV_PACKED, b.desc.tokens = 8, b.args.cu_lens = b.cu),
           "lens_kv[0] = 3 exceeds the sequence's share of cu_lens");
    COPY((void)0, NULL);
    COPY(b.pairs[1][0] = 4, "pairs[1] is from page 4, which is not in -1 to pages_from - 1 = 3");
    COPY(b.pairs[1][1] = -1, "pairs[1] is to page -1");
    COPY((b.pairs[1][0] = -1, b.pairs[1][1] = -1), NULL);
    COPY(b.args.count = 3, "count = 3 is not in 0 to copies = 2");
}

static void bad_pointers(void **state)
{
    (void)state;
    attn_kv_plan *plan;
    attn_kv_desc desc = append_desc();
    APPEND(b.args.k = NULL, "k is NULL, but has elements");
    APPEND(b.args.k_pages = NULL, "k_pages is NULL");
    APPEND(b.args.q_out = NULL, "q_out is NULL");
    APPEND(b.args.cos = NULL, "cos is NULL");
    APPEND(b.args.lens_kv = NULL, "lens_kv is NULL");
    APPEND(b.args.page_table = NULL, "page_table is NULL");
    APPEND(b.args.cu_lens = NULL, "cu_lens is NULL");
    APPEND(b.args.slots = b.slots, "needs ATTN_KV_SLOTS");
    APPEND(b.args.positions = b.positions, "needs ATTN_KV_POSITIONS");
    APPEND(b.args.page_starts = b.starts, "needs a page table with table_width = 0");
    APPEND(b.args.k_out = b.k_out, "needs op = ATTN_KV_GATHER");
    APPEND(b.args.k_from = b.k_out, "needs op = ATTN_KV_COPY");
    APPEND(b.args.pairs = b.pairs[0], "needs op = ATTN_KV_COPY");
    APPEND(b.args.count = 1, "count = 1 needs ATTN_KV_SLOTS or op = ATTN_KV_COPY");
    APPEND(b.args.fault = (uint32_t *)(void *)b.starts, "fault is not NULL");
    APPEND(b.args.k = (char *)b.k + 2, "is not aligned to its elements of 4 bytes");
    APPEND(b.args.lens_kv = (const int32_t *)(const void *)((char *)b.lens + 1), "is not aligned");
    APPEND(b.args.k = b.k_pages, "k_pages overlaps k");
    APPEND(b.args.v_pages = b.k_pages, "k_pages overlaps v_pages");
    APPEND(b.args.q_out = b.k_pages, "k_pages overlaps q_out");
    APPEND(b.args.q_out = b.q[1], "q_out overlaps q");
    APPEND((b.desc.q_out_stride[1] = 5, b.desc.q_out_stride[3] = 1), "q_out overlaps q");
    APPEND(b.args.page_table = (int32_t *)(void *)b.v_pages, "v_pages overlaps page_table");
    SLOTS(b.args.slots = NULL, "slots is NULL");
    SLOTS(b.args.positions = NULL, "positions is NULL");
    GATHER(b.args.k_out = b.k_pages, "k_pages overlaps k_out");
    GATHER(b.args.k = b.k, "needs op = ATTN_KV_APPEND");
    COPY(b.args.v_from = b.k_pages, "overlaps");
    COPY(b.args.pairs = NULL, "pairs is NULL");
    assert_ok(attn_kv_plan_create(&plan, &desc));
    assert_int_equal(attn_kv_run(NULL, &(attn_kv_args){ 0 }, NULL), ATTN_INVALID);
    assert_int_equal(attn_kv_run(plan, NULL, NULL), ATTN_INVALID);
    problem b;
    set_up(&b, ATTN_KV_APPEND);
    assert_int_equal(attn_kv_run(plan, &b.args, &b), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "stream is not NULL"));
    attn_kv_plan_destroy(plan);
}

/* Scales that lack, overlap, or are not asked for. */
static void bad_scales(void **state)
{
    (void)state;
    static union {
        unsigned char bytes[4096];
        float floats[1024];
        int64_t numbers[512];
    } m, before;
    attn_kv_desc copies = bytes_desc(), given = bytes_desc(), gather = bytes_desc();
    copies.op = ATTN_KV_COPY, copies.flags = ATTN_KV_SCALES, copies.tokens = 0, copies.pages_from = 4;
    copies.copies = 1, copies.dtype = ATTN_E4M3, copies.v_scale_rows = 0;
    memcpy(copies.k_scale_from_stride, copies.k_scale_stride, sizeof copies.k_scale_stride);
    memset(copies.v_scale_stride, 0, sizeof copies.v_scale_stride);
    given.flags = ATTN_KV_SLOTS | ATTN_KV_SCALES;
    gather.op = ATTN_KV_GATHER, gather.flags = ATTN_KV_SCALES;
    gather.tokens = 0, gather.batch = gather.table_width = gather.len_kv = 1;
    /* pages 0 to 95 and 96 to 191, scales 200 to 295 and 300 to 395, rows from 400 */
    const attn_kv_args append = { .k = m.floats + 100,
                                  .v = m.floats + 150,
                                  .k_pages = m.bytes,
                                  .v_pages = m.bytes + 96,
                                  .count = 1,
                                  .slots = m.numbers + 400,
                                  .k_scale = m.floats + 50,
                                  .v_scale = m.floats + 75 };
    const attn_kv_args copied = { .k_pages = m.bytes,
                                  .v_pages = m.bytes + 96,
                                  .k_from = m.bytes,
                                  .v_from = m.bytes + 96,
                                  .count = 1,
                                  .pairs = (const int32_t[]){ 0, 1 },
                                  .k_scale = m.floats + 50,
                                  .k_scale_from = m.floats + 50 };
    const attn_kv_args gathered = { .k_pages = m.bytes,
                                    .v_pages = m.bytes + 96,
                                    .k_out = m.floats + 100,
                                    .v_out = m.floats + 150,
                                    .lens_kv = (const int32_t[]){ 1 },
                                    .page_table = (const int32_t[]){ 0 },
                                    .k_scale = m.floats + 50 };
#define ARGS(desc_, args_, field_, value_, text_)                                             \
    do {                                                                                      \
        attn_kv_plan *plan;                                                                   \
        attn_kv_args args = args_;                                                            \
        args.field_ = value_;                                                                 \
        assert_ok(attn_kv_plan_create(&plan, &desc_));                                        \
        attn_status want = *(text_) ? ATTN_INVALID : ATTN_OK, got;                            \
        before = m, got = attn_kv_run(plan, &args, NULL);                                     \
        if (got != want || (*(text_) && !strstr(attn_error(), text_)))                        \
            fail_msg("line %d: %s \"%s\"", __LINE__, attn_status_name(got), attn_error());    \
        if (got && memcmp(&m, &before, sizeof m)) fail_msg("line %d: was written", __LINE__); \
        attn_kv_plan_destroy(plan);                                                           \
    } while (0)
    attn_kv_desc tokens = bytes_desc(), plain = bytes_desc();
    plain.flags = ATTN_KV_SLOTS, plain.k_scale_rows = plain.v_scale_rows = 0;
    memset(plain.k_scale_stride, 0, sizeof plain.k_scale_stride);
    memset(plain.v_scale_stride, 0, sizeof plain.v_scale_stride);
    ARGS(tokens, append, count, 1, "");
    ARGS(given, append, k_scale, NULL, "");
    ARGS(copies, copied, count, 1, "");
    ARGS(gather, gathered, k_scale, NULL, "");
    ARGS(tokens, append, k_scale, NULL, "k_scale is NULL, but has elements");
    ARGS(tokens, append, v_scale, NULL, "v_scale is NULL, but has elements");
    ARGS(copies, copied, k_scale, NULL, "k_scale is NULL, but has elements");
    ARGS(copies, copied, k_scale_from, NULL, "k_scale_from is NULL, but has elements");
    ARGS(copies, copied, v_scale, m.floats + 75, "needs v_scale_rows above 0: a copy takes the scales of pages");
    ARGS(copies, copied, v_scale_from, m.floats + 75, "needs v_scale_rows above 0");
    ARGS(tokens, append, k_scale_from, m.floats + 75, "needs op = ATTN_KV_COPY with ATTN_KV_SCALES");
    ARGS(plain, append, k_scale, m.floats + 50, "needs ATTN_KV_SCALES");
    ARGS(tokens, append, k_scale, (float *)(void *)(m.bytes + 201), "is not aligned to its elements of 4 bytes");
    ARGS(tokens, append, k_scale, m.floats + 23, "k_scale overlaps k_pages");
    ARGS(tokens, append, k_scale, m.floats + 47, "k_scale overlaps v_pages");
    ARGS(tokens, append, k_scale, m.floats + 52, "k_scale overlaps v_scale");
    ARGS(tokens, append, k_scale, m.floats + 99, "k_scale overlaps k");
    ARGS(tokens, append, v_scale, m.floats + 149, "v_scale overlaps v");
    ARGS(tokens, append, slots, m.numbers + 25, "k_scale overlaps slots");
    ARGS(given, append, v_scale, m.floats + 47, "v_scale overlaps v_pages");
    ARGS(given, append, v_scale, m.floats + 52, "");
    ARGS(copies, copied, k_scale, m.floats + 60, "k_scale overlaps k_scale_from");
    ARGS(copies, copied, k_scale_from, m.floats + 40, "overlaps k_scale_from");
    ARGS(gather, gathered, k_scale, m.floats + 99, "k_scale overlaps k_out");
    ARGS(gather, gathered, k_scale, m.floats, "");
    attn_kv_desc between = bytes_desc(); /* scales in the 4 bytes behind the 4 of each head, then a byte nearer */
    attn_kv_args behind = append;
    memcpy(between.k_pages_stride, (int64_t[4]){ 48, 24, 8, 1 }, sizeof between.k_pages_stride);
    memcpy(between.k_scale_stride, (int64_t[4]){ 12, 6, 2, 0 }, sizeof between.k_scale_stride);
    behind.k_scale = m.floats + 1, behind.v_pages = m.bytes + 2400;
    ARGS(between, behind, k_pages, m.bytes + 8, "");
    ARGS(between, behind, k_pages, m.bytes + 7, "k_scale overlaps k_pages");
#undef ARGS
}

#define AT(name)                            \
    {                                       \
#name, offsetof(attn_kv_args, name) \
    }

/* Every array that an operation writes against every other one that it takes, with the fault that a GPU has. */
static void every_overlap_is_refused(void **state)
{
    (void)state;
    enum { APPENDS, SLOTTED, GATHERS, COPIES, OPS };
    typedef struct member {
        const char *name;
        size_t offset;
    } member;
    static const struct {
        int written;
        member list[16];
    } table[OPS] = {
        [APPENDS] = { 4,
                      { AT(k_pages), AT(v_pages), AT(q_out), AT(fault), AT(k), AT(v), AT(q), AT(cu_lens), AT(lens_kv),
                        AT(page_table), AT(cos), AT(sin) } },
        [SLOTTED] = { 4,
                      { AT(k_pages), AT(v_pages), AT(q_out), AT(fault), AT(k), AT(v), AT(q), AT(slots), AT(positions),
                        AT(cos), AT(sin) } },
        [GATHERS] = { 3, { AT(k_out), AT(v_out), AT(fault), AT(k_pages), AT(v_pages), AT(lens_kv), AT(page_table) } },
        [COPIES] = { 3, { AT(k_pages), AT(v_pages), AT(fault), AT(k_from), AT(v_from), AT(pairs) } },
    };
    static _Alignas(8) char memory[16][1 << 12];
    for (int op = 0; op < OPS; op++) {
        problem b;
        attn_kv_desc d;
        attn_kv_args good;
        int count = 0;
        if (op == SLOTTED) set_up_slots(&b);
        if (op != SLOTTED) set_up(&b, op == APPENDS ? ATTN_KV_APPEND : op == GATHERS ? ATTN_KV_GATHER : ATTN_KV_COPY);
        b.desc.device = ATTN_CUDA, b.desc.threads = 0;
        assert_ok(attn_kv_resolve(&d, &b.desc, sizeof b.desc));
        good = b.args;
        for (; table[op].list[count].name; count++) {
            const void *apart = memory[count];
            memcpy((char *)&good + table[op].list[count].offset, &apart, sizeof apart);
        }
        assert_ok(attn_kv_check_arrays(&d, &good));
        for (int out = 0; out < table[op].written; out++)
            for (int other = out + 1; other < count; other++) {
                const member *a = &table[op].list[out], *o = &table[op].list[other];
                attn_kv_args args = good;
                if (strcmp(a->name, "q_out") == 0 && strcmp(o->name, "q") == 0) continue; /* in place */
                memcpy((char *)&args + o->offset, (char *)&good + a->offset, sizeof(void *));
                if (attn_kv_check_arrays(&d, &args) != ATTN_INVALID || !strstr(attn_error(), "overlaps") ||
                    !strstr(attn_error(), a->name) || !strstr(attn_error(), o->name))
                    fail_msg("operation %d, %s on %s: \"%s\"", op, o->name, a->name, attn_error());
            }
        if (op >= GATHERS) continue;
        good.q_out = (void *)(uintptr_t)good.q;
        assert_ok(attn_kv_check_arrays(&d, &good));
        good.k = good.q; /* q in place on k */
        assert_int_equal(attn_kv_check_arrays(&d, &good), ATTN_INVALID);
    }
}

/* K and V may share an array, but no element: compared with marks in it, for distances, layouts and dims by chance. */
static void shared_arrays_share_no_element(void **state)
{
    (void)state;
    enum { SPAN = 400 };
    static float memory[4 * SPAN];
    uint64_t random = 7;
    int refused = 0, runs = 20000;
    for (int n = 0; n < runs; n++) {
        attn_kv_desc desc = { .op = ATTN_KV_COPY, .dtype = ATTN_F32, .copies = 1 }, d;
        desc.pages = desc.pages_from = check_below(&random, 3) + 1, desc.page_size = check_below(&random, 3) + 1;
        desc.heads_kv = check_below(&random, 3) + 1;
        desc.dim_qk = check_below(&random, 5) + 1, desc.dim_v = check_below(&random, 5) + 1;
        for (int t = 0; t < 2; t++) {
            int64_t *stride = t ? desc.v_pages_stride : desc.k_pages_stride;
            int64_t head = 5 + check_below(&random, 6), slot = head * desc.heads_kv + check_below(&random, 9);
            int64_t page = slot * desc.page_size + check_below(&random, 9);
            bool down = check_below(&random, 4) == 0;
            stride[0] = down ? -page : page, stride[1] = slot, stride[2] = head, stride[3] = 1;
            memcpy(t ? desc.v_from_stride : desc.k_from_stride, stride, sizeof desc.k_pages_stride);
        }
        assert_ok(attn_kv_resolve(&d, &desc, sizeof desc));
        float *base[2] = { memory + 2 * SPAN, memory + 2 * SPAN + check_below(&random, 120) - 60 };
        unsigned char marks[4 * SPAN] = { 0 };
        bool both = false;
        for (int t = 0; t < 2; t++)
            for (int64_t i = 0; i < d.pages * d.page_size * d.heads_kv * (t ? d.dim_v : d.dim_qk); i++) {
                int64_t dim = t ? d.dim_v : d.dim_qk, *stride = t ? d.v_pages_stride : d.k_pages_stride;
                int64_t row = i / dim, token = row / d.heads_kv;
                int64_t at = base[t] - memory + token / d.page_size * stride[0] + token % d.page_size * stride[1] +
                             row % d.heads_kv * stride[2] + i % dim;
                marks[at] |= (unsigned char)(1 << t);
                if (marks[at] == 3) both = true;
            }
        int32_t pair[2] = { -1, 0 };
        attn_kv_args args = {
            .k_pages = base[0], .v_pages = base[1], .k_from = base[0], .v_from = base[1], .pairs = pair
        };
        attn_status status = attn_kv_check_arrays(&d, &args);
        if ((status != ATTN_OK) != both) fail_msg("case %d: %d, marks %d", n, (int)status, both);
        refused += both;
    }
    if (refused < runs / 20 || refused > runs * 19 / 20) fail_msg("%d of %d were refused", refused, runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_descriptors),
        cmocka_unit_test(bad_descriptors_of_bytes),
        cmocka_unit_test(bad_scales),
        cmocka_unit_test(bad_ids_and_lengths),
        cmocka_unit_test(bad_pointers),
        cmocka_unit_test(every_overlap_is_refused),
        cmocka_unit_test(shared_arrays_share_no_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
