/* Operations on pages, drawn (check/kv_case.h), of which the input spoils something: a field, a pointer, an entry of a
 * table, a byte of a tensor. What is refused names a field, and nothing was written; what is done leaves what attn_kv.h
 * says, and touches no byte beside the tensors. */
#include <math.h>
#include <sanitizer/asan_interface.h>

#include "check/kv_case.h"
#include "check/random.h"
#include "input.h"
#include "num/half.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const char *const fields[] = { "op",
                                      "dtype",
                                      "device",
                                      "flags",
                                      "pages",
                                      "page_size",
                                      "heads_kv",
                                      "dim_qk",
                                      "dim_v",
                                      "tokens",
                                      "batch",
                                      "table_width",
                                      "table_total",
                                      "len_kv",
                                      "pages_from",
                                      "copies",
                                      "heads_q",
                                      "rotary_dim",
                                      "positions",
                                      "k_pages_stride",
                                      "v_pages_stride",
                                      "k_stride",
                                      "v_stride",
                                      "k_from_stride",
                                      "q_stride",
                                      "v_from_stride",
                                      "q_out_stride",
                                      "threads",
                                      "pages_dtype",
                                      "k",
                                      "v",
                                      "k_pages",
                                      "v_pages",
                                      "q",
                                      "q_out",
                                      "k_out",
                                      "v_out",
                                      "k_from",
                                      "v_from",
                                      "count",
                                      "slots",
                                      "cu_lens",
                                      "lens_kv",
                                      "page_table",
                                      "page_starts",
                                      "pairs",
                                      "cos",
                                      "sin",
                                      "k_scale",
                                      "v_scale",
                                      "fault",
                                      "k_scale_from",
                                      "v_scale_from",
                                      "k_scale_rows",
                                      "v_scale_rows",
                                      "k_scale_stride",
                                      "v_scale_stride",
                                      "k_scale_from_stride",
                                      "v_scale_from_stride",
                                      "parallel_context" };

/* ---- spoiling -------------------------------------------------------------------------------- */

static void spoil_field(input *in, attn_kv_desc *d)
{
    enum { FIRST = offsetof(attn_kv_desc, pages), END = offsetof(attn_kv_desc, threads) };
    enum { SCALES = offsetof(attn_kv_desc, k_scale_rows) };
    int64_t sizes = (END - FIRST) / 8, scales = (int64_t)(sizeof *d - SCALES) / 8, i = below(in, sizes + scales + 6);
    int64_t value = below(in, 2) ? below(in, 140) - 4 : wild(in, 255);
    size_t offset = i < sizes ? FIRST + (size_t)i * 8 : SCALES + (size_t)(i - sizes) * 8;
    if (i < sizes + scales) {
        memcpy((char *)d + offset, &value, sizeof value);
        return;
    }
    if (i == sizes + scales) d->op = (attn_kv_op)value;
    if (i == sizes + scales + 1) d->dtype = (attn_dtype)(value % 16);
    if (i == sizes + scales + 2) d->device = (attn_device)(value == ATTN_CUDA ? 2 : value); /* this is about the CPU */
    if (i == sizes + scales + 3) d->flags ^= 1u << (value & 31);
    if (i == sizes + scales + 4) d->pages_dtype = (attn_dtype)(value % 16);
    if (i == sizes + scales + 5) d->threads = value < 4 ? (int32_t)value : 1025;
}

/* The size of an element of this array. */
static int64_t size_of(const attn_kv_desc *d, size_t offset)
{
    switch (offset) {
    case offsetof(attn_kv_args, k_pages):
    case offsetof(attn_kv_args, v_pages):
    case offsetof(attn_kv_args, k_from):
    case offsetof(attn_kv_args, v_from):
        return attn_dtype_size(d->pages_dtype ? d->pages_dtype : d->dtype);
    case offsetof(attn_kv_args, slots):
    case offsetof(attn_kv_args, positions):
        return 8;
    default:
        return offset < offsetof(attn_kv_args, count) ? attn_dtype_size(d->dtype) : 4;
    }
}

/* NULL, or not aligned to its elements. */
static void spoil_pointer(input *in, check_kv_case *c)
{
    size_t offset = sizeof(void *) * (size_t)below(in, sizeof c->args / sizeof(void *));
    char *at;
    if (offset == offsetof(attn_kv_args, count)) return;
    memcpy(&at, (char *)&c->args + offset, sizeof at);
    bool shifted = below(in, 2) && at && size_of(&c->desc, offset) > 1;
    at = shifted ? (char *)((uintptr_t)at | 1) : NULL;
    memcpy((char *)&c->args + offset, &at, sizeof at);
}

/* Ids and slots become such as are none, so that no two rows go to one place; lengths and starts may change by one. */
static void spoil_table(input *in, check_kv_case *c, bool *shared)
{
    if (c->tables == 0) return;
    const attn_kv_desc *d = &c->desc;
    int64_t t = below(in, c->tables), end = d->pages > d->pages_from ? d->pages : d->pages_from;
    char *table = c->table[t];
    bool of_slots = table == (const char *)c->args.slots, wide = of_slots || table == (const char *)c->args.positions;
    bool lengths = table == (const char *)c->args.lens_kv || table == (const char *)c->args.cu_lens ||
                   table == (const char *)c->args.page_starts;
    int64_t size = wide ? 8 : 4, count = (int64_t)c->table_size[t] / size;
    if (count == 0) return;
    if (of_slots) end = d->pages * d->page_size;
    const int64_t values[] = { -1, -2, end, end + 1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX };
    int64_t at = (take(in) << 8 | take(in)) % count, choice = below(in, 16), value = values[choice % 8];
    if (lengths && choice >= 8) {
        int32_t old;
        memcpy(&old, table + at * 4, 4);
        value = (int64_t)old + (choice % 2 ? 1 : -1);
    }
    if (!wide && (value > INT32_MAX || value < INT32_MIN)) value = -1;
    if (table == (const char *)c->args.page_starts) *shared = true;
    memcpy(table + at * size, &value, (size_t)size);
}

static void spoil_count(input *in, check_kv_case *c)
{
    int64_t count = wild(in, take(in));
    if (c->desc.op == ATTN_KV_COPY && count > c->desc.pages && count <= c->desc.copies) return; /* no such pairs */
    c->args.count = count;
}

static void spoil_byte(input *in, check_kv_case *c)
{
    const check_kv_array *a = &c->array[below(in, c->arrays)];
    int64_t size = (int64_t)a->size - 2 * CHECK_KV_PAD, at = take(in) << 8 | take(in);
    unsigned char value = (unsigned char)take(in);
    if (size) a->actual[CHECK_KV_PAD + at % size] = value;
}

/* ---- running --------------------------------------------------------------------------------- */

static void set_pads(const check_kv_case *c, bool closed)
{
    for (int i = 0; i < c->arrays; i++) {
        const check_kv_array *a = &c->array[i];
        if (closed) __asan_poison_memory_region(a->actual, CHECK_KV_PAD);
        if (closed) __asan_poison_memory_region(a->actual + a->size - CHECK_KV_PAD, CHECK_KV_PAD);
        if (!closed) __asan_unpoison_memory_region(a->actual, a->size);
    }
}

/* One NaN is as good as another where the operation computes. */
static void settle_nans(const check_kv_array *a)
{
    unsigned char *sides[] = { a->actual + CHECK_KV_PAD, a->expected + CHECK_KV_PAD };
    int64_t size = attn_dtype_size(a->dtype), count = (int64_t)(a->size - 2 * CHECK_KV_PAD) / size;
    for (int side = 0; side < 2 && size > 1; side++)
        for (int64_t i = 0; i < count; i++)
            if (isnan(attn_load_scalar(a->dtype, sides[side], i))) memset(sides[side] + i * size, 0xff, (size_t)size);
}

static void run(check_kv_case *c, const attn_kv_plan *plan, bool spoiled, bool shared)
{
    int array;
    for (int i = 0; i < c->arrays; i++)
        memcpy(c->array[i].expected, c->array[i].actual, c->array[i].size);
    set_pads(c, true);
    attn_status status = attn_kv_run(plan, &c->args, NULL);
    set_pads(c, false);
    check_refusal(status, fields, COUNT(fields));
    if (status && !spoiled) abort();
    if (status == ATTN_OK && shared) return; /* rows that go to one place: what is there is nobody's to say */
    if (status == ATTN_OK) check_kv_expect(c);
    for (int i = 0; i < c->arrays && status == ATTN_OK; i++)
        settle_nans(&c->array[i]);
    int64_t at = check_kv_compare(c, &array);
    if (at == -1) return;
    fprintf(stderr, "op %d: %s: tensor %d, byte %lld is %d, not %d\n", (int)c->desc.op, status ? attn_error() : "done",
            array, (long long)at, c->array[array].actual[at + CHECK_KV_PAD],
            c->array[array].expected[at + CHECK_KV_PAD]);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = { data, data + size };
    check_kv_case c;
    uint64_t state = (uint64_t)(take(&in) << 16 | take(&in) << 8 | take(&in));
    bool of_field = false, shared = false, spoiled = false;
    if (!check_kv_draw(&c, &state)) abort();
    while (in.at < in.end && c.arrays > 0) {
        int64_t kind = of_field ? 0 : below(&in, 8); /* nothing else tells more of a spoiled descriptor */
        if (kind == 0) spoil_field(&in, &c.desc), of_field = true;
        if (kind == 1) spoil_pointer(&in, &c);
        if (kind == 2) spoil_count(&in, &c);
        if (kind == 3 || kind == 4) spoil_table(&in, &c, &shared);
        if (kind > 4) spoil_byte(&in, &c);
        spoiled = spoiled || kind <= 4;
    }
    attn_kv_plan *const none = (attn_kv_plan *)(void *)&c, *plan = none;
    attn_status status = attn_kv_plan_create(&plan, &c.desc);
    check_refusal(status, fields, COUNT(fields));
    if ((status == ATTN_OK) == (plan == none) || (status && !of_field)) abort();
    if (status == ATTN_OK && !of_field) run(&c, plan, spoiled, shared); /* else the arrays are another descriptor's */
    if (status == ATTN_OK) attn_kv_plan_destroy(plan);
    check_kv_destroy(&c);
    return 0;
}
