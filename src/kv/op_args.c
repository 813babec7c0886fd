/* What the arguments of an operation must be. First every pointer, with the bytes behind it; then what the arrays say.
 * Nothing is written before all of it holds. Contract: op.h, attn_kv.h. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "kv/op.h"
#include "problem/args.h"
#include "problem/desc.h"

/* ---- arrays ---------------------------------------------------------------------------------- */

typedef struct pointer {
    const char *name;
    size_t offset;
    int need;
    int align; /* or OF_DTYPE, OF_PAGES */
} pointer;

#define POINTER(name, need, align)                                          \
    {                                                                       \
#name, offsetof(attn_kv_args, name), ATTN_KV_NEED_BIT_##need, align \
    }

enum { OF_DTYPE = 0, OF_PAGES = -1 };

static const pointer pointers[] = {
    POINTER(k, APPEND, OF_DTYPE),
    POINTER(v, APPEND, OF_DTYPE),
    POINTER(k_pages, ANY, OF_PAGES),
    POINTER(v_pages, ANY, OF_PAGES),
    POINTER(q, ROTARY_Q, OF_DTYPE),
    POINTER(q_out, ROTARY_Q, OF_DTYPE),
    POINTER(k_out, GATHER, OF_DTYPE),
    POINTER(v_out, GATHER, OF_DTYPE),
    POINTER(k_from, COPY, OF_PAGES),
    POINTER(v_from, COPY, OF_PAGES),
    POINTER(slots, SLOTS, 8),
    POINTER(positions, POSITIONS, 8),
    POINTER(cu_lens, CU_LENS, 4),
    POINTER(lens_kv, TABLE, 4),
    POINTER(page_table, TABLE, 4),
    POINTER(page_starts, STARTS, 4),
    POINTER(pairs, COPY, 4),
    POINTER(cos, ROTARY, 4),
    POINTER(sin, ROTARY, 4),
    POINTER(k_scale, SCALES, 4),
    POINTER(v_scale, SCALES, 4),
    POINTER(k_scale_from, SCALES_FROM, 4),
    POINTER(v_scale_from, SCALES_FROM, 4),
};

enum { POINTERS = sizeof pointers / sizeof *pointers };

typedef attn_args_array array;

static array tensor(const char *name, const void *base, int64_t size, const int64_t extent[4], const int64_t stride[4])
{
    return attn_array_strided(name, 0, base, size, extent, stride);
}

static array line(const char *name, const void *base, int64_t size, int64_t count)
{
    return attn_array_packed(name, 0, base, size, count);
}

typedef struct arrays {
    array k_pages, v_pages, k_from, v_from, k, v, q, q_out;
    array k_scale, v_scale, k_scale_from, v_scale_from;
    array table[9]; /* what is only read, beside */
} arrays;

static arrays arrays_of(const attn_kv_desc *d, const attn_kv_args *a)
{
    int64_t size = attn_dtype_size(d->dtype), of_pages = attn_dtype_size(d->pages_dtype), half = d->rotary_dim / 2;
    int64_t k[4], q[4];
    attn_kv_scale_shape scales = attn_kv_scale_shape_of(d);
    int64_t pool[4] = { d->pages, d->page_size, d->heads_kv, d->dim_qk };
    int64_t from[4] = { d->pages_from, pool[1], pool[2], pool[3] };
    bool gather = d->op == ATTN_KV_GATHER;
    attn_kv_extents(d, k, q);
    arrays all = { .k_pages = tensor("k_pages", a->k_pages, of_pages, pool, d->k_pages_stride),
                   .k_from = tensor("k_from", a->k_from, of_pages, from, d->k_from_stride),
                   .k = gather ? tensor("k_out", a->k_out, size, k, d->k_stride)
                               : tensor("k", a->k, size, k, d->k_stride),
                   .q = tensor("q", a->q, size, q, d->q_stride),
                   .q_out = tensor("q_out", a->q_out, size, q, d->q_out_stride),
                   .k_scale = tensor("k_scale", a->k_scale, 4, scales.k, d->k_scale_stride),
                   .v_scale = tensor("v_scale", a->v_scale, 4, scales.v, d->v_scale_stride),
                   .k_scale_from = tensor("k_scale_from", a->k_scale_from, 4, scales.k_from, d->k_scale_from_stride),
                   .v_scale_from = tensor("v_scale_from", a->v_scale_from, 4, scales.v_from, d->v_scale_from_stride) };
    pool[3] = from[3] = k[3] = d->dim_v;
    all.v_pages = tensor("v_pages", a->v_pages, of_pages, pool, d->v_pages_stride);
    all.v_from = tensor("v_from", a->v_from, of_pages, from, d->v_from_stride);
    all.v = gather ? tensor("v_out", a->v_out, size, k, d->v_stride) : tensor("v", a->v, size, k, d->v_stride);
    const array table[9] = {
        line("slots", a->slots, 8, a->count),
        line("positions", a->positions, 8, d->flags & ATTN_KV_SLOTS ? a->count : d->tokens),
        line("cu_lens", a->cu_lens, 4, d->batch + 1),
        line("lens_kv", a->lens_kv, 4, d->batch),
        line("page_table", a->page_table, 4, d->table_width ? d->batch * d->table_width : d->table_total),
        line("page_starts", a->page_starts, 4, d->batch + 1),
        line("pairs", a->pairs, 8, a->count),
        line("cos", a->cos, 4, d->positions * half),
        line("sin", a->sin, 4, d->positions * half),
    };
    memcpy(all.table, table, sizeof table);
    return all;
}

static attn_status check_pointer(const attn_kv_desc *d, const attn_kv_args *a, const pointer *p, uint32_t needs)
{
    const void *at;
    memcpy(&at, (const char *)a + p->offset, sizeof at);
    uintptr_t align = p->align > 0 ? (uintptr_t)p->align
                                   : (uintptr_t)attn_dtype_size(p->align == OF_PAGES ? d->pages_dtype : d->dtype);
    if (at && !(needs >> p->need & 1))
        return attn_fail(ATTN_INVALID, "%s = %p needs %s", p->name, at, attn_kv_need_name(p->need));
    if ((uintptr_t)at % align != 0)
        return attn_fail(ATTN_INVALID, "%s = %p is not aligned to its elements of %d bytes", p->name, at, (int)align);
    return ATTN_OK;
}

static attn_status check_there(const array *a)
{
    if (a->base || a->hi <= a->lo) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s is NULL, but has elements", a->name);
}

static attn_status check_apart(const array *out, const array *other)
{
    if (attn_arrays_are_apart(out, other)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s overlaps %s", out->name, other->name);
}

/* Of tensors that may lie in one array, each one's elements between the other's. */
static attn_status check_interleaved(const array *out, const array *other)
{
    attn_status status = check_apart(out, other);
    return status && !attn_arrays_share(out, other) ? ATTN_OK : status;
}

static attn_status check_apart_from(const array *out, const array *const *others, int count)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < count && !status; i++)
        status = check_apart(out, others[i]);
    return status;
}

static bool is_same(const void *a, const int64_t a_stride[4], const void *b, const int64_t b_stride[4])
{
    return a == b && memcmp(a_stride, b_stride, 4 * sizeof *a_stride) == 0;
}

/* Scales may lie between elements of the pages; those of a copy in the same pool may be its own. */
static attn_status check_scales_overlap(const attn_kv_desc *d, const attn_kv_args *a, const arrays *all, bool one_pool)
{
    bool same = is_same(a->k_scale_from, d->k_scale_from_stride, a->k_scale, d->k_scale_stride) &&
                is_same(a->v_scale_from, d->v_scale_from_stride, a->v_scale, d->v_scale_stride);
    bool written = attn_kv_writes_scales(d), gather = d->op == ATTN_KV_GATHER;
    const array *scales[] = { &all->k_scale, &all->v_scale }, *pools[] = { &all->k_pages, &all->v_pages };
    const array *from[] = { &all->k_scale_from, &all->v_scale_from }, *old[] = { &all->k_from, &all->v_from };
    const array *rows[] = { &all->k, &all->v, &all->q, &all->q_out };
    attn_status status = written ? check_interleaved(scales[0], scales[1]) : ATTN_OK;
    for (int i = 0; i < 2 && !status; i++) {
        for (int j = 0; j < 2 && !status && !gather; j++)
            status = check_interleaved(scales[i], pools[j]);
        for (int j = 0; j < 2 && !status && written; j++)
            status = one_pool ? check_interleaved(scales[i], old[j]) : check_apart(scales[i], old[j]);
        if (!status && written && !same) status = check_apart_from(scales[i], from, 2);
        if (!status && written && !same) status = check_apart_from(pools[i], from, 2);
        if (!status && (written || gather)) status = check_apart_from(scales[i], rows, 4);
        if (!status) status = check_apart(&all->q_out, scales[i]);
        for (size_t t = 0; t < sizeof all->table / sizeof *all->table && !status && written; t++)
            status = check_apart(scales[i], &all->table[t]);
    }
    return status;
}

/* Pools of K and V may lie in one array, and q, k and v too: their bytes may interleave. */
static attn_status check_overlap(const attn_kv_desc *d, const attn_kv_args *a, const arrays *all)
{
    bool gather = d->op == ATTN_KV_GATHER;
    bool in_place = is_same(a->q, d->q_stride, a->q_out, d->q_out_stride);
    bool one_pool = is_same(a->k_from, d->k_from_stride, a->k_pages, d->k_pages_stride) &&
                    is_same(a->v_from, d->v_from_stride, a->v_pages, d->v_pages_stride);
    const array *rows[] = { &all->k, &all->v, &all->q, &all->q_out }, *from[] = { &all->k_from, &all->v_from };
    const array *pools[] = { &all->k_pages, &all->v_pages };
    attn_status status = ATTN_OK;
    if (d->op != ATTN_KV_GATHER) status = check_interleaved(&all->k_pages, &all->v_pages);
    if (!status && gather) status = check_interleaved(&all->k, &all->v);
    for (int i = 0; i < 2 && !status && in_place; i++)
        status = check_interleaved(&all->q_out, rows[i]);
    for (int i = 0; i < 2 && !status; i++) {
        status = check_apart_from(pools[i], rows, 4);
        if (!status && !one_pool) status = check_apart_from(pools[i], from, 2);
    }
    if (!status && !in_place) status = check_apart_from(&all->q_out, rows, 3);
    const array *outputs[] = { gather ? &all->k : &all->k_pages, gather ? &all->v : &all->v_pages, &all->q_out };
    for (int i = 0; i < 3; i++)
        for (size_t t = 0; t < sizeof all->table / sizeof *all->table && !status; t++)
            status = check_apart(outputs[i], &all->table[t]);
    if (!status && d->flags & ATTN_KV_SCALES) status = check_scales_overlap(d, a, all, one_pool);
    const array fault = line("fault", a->fault, 4, 1);
    const array *tensors[] = { &all->k_pages, &all->v_pages, &all->k_from, &all->v_from,
                               &all->k,       &all->v,       &all->q,      &all->q_out };
    if (!status) status = check_apart_from(&fault, tensors, 8);
    for (size_t t = 0; t < sizeof all->table / sizeof *all->table && !status; t++)
        status = check_apart(&fault, &all->table[t]);
    return status;
}

/* Of scales: which may be NULL, and which must. */
static attn_status check_scales_there(const attn_kv_desc *d, const arrays *all)
{
    const array *scales[] = { &all->k_scale, &all->v_scale, &all->k_scale_from, &all->v_scale_from };
    bool copy = d->op == ATTN_KV_COPY;
    attn_status status = ATTN_OK;
    for (int i = 0; i < 4 && !status; i++) {
        int64_t rows = i % 2 ? d->v_scale_rows : d->k_scale_rows;
        if (copy && rows == 0 && scales[i]->base)
            return attn_fail(ATTN_INVALID, "%s = %p needs %c_scale_rows above 0: a copy takes the scales of pages",
                             scales[i]->name, scales[i]->base, i % 2 ? 'v' : 'k');
        if (attn_kv_writes_scales(d) && rows > 0 && (copy || i < 2)) status = check_there(scales[i]);
    }
    return status;
}

attn_status attn_kv_check_arrays(const attn_kv_desc *d, const attn_kv_args *a)
{
    uint32_t needs = attn_kv_needs(d);
    int64_t most = d->op == ATTN_KV_COPY ? d->copies : d->tokens;
    if (a->count && !(needs >> ATTN_KV_NEED_BIT_COUNT & 1))
        return attn_fail(ATTN_INVALID, "count = %" PRId64 " needs %s", a->count,
                         attn_kv_need_name(ATTN_KV_NEED_BIT_COUNT));
    if (a->count < 0 || a->count > most)
        return attn_fail(ATTN_INVALID, "count = %" PRId64 " is not in 0 to %s = %" PRId64, a->count,
                         d->op == ATTN_KV_COPY ? "copies" : "tokens", most);
    attn_status status = ATTN_OK;
    for (int i = 0; i < POINTERS && !status; i++)
        status = check_pointer(d, a, &pointers[i], needs);
    if (status) return status;
    arrays all = arrays_of(d, a);
    const array *tensors[] = {
        &all.k_pages, &all.v_pages, &all.k_from, &all.v_from, &all.k, &all.v, &all.q, &all.q_out
    };
    const int tensor_needs[] = { ATTN_KV_NEED_BIT_ANY,      ATTN_KV_NEED_BIT_ANY,     ATTN_KV_NEED_BIT_COPY,
                                 ATTN_KV_NEED_BIT_COPY,     ATTN_KV_NEED_BIT_TOKENS,  ATTN_KV_NEED_BIT_TOKENS,
                                 ATTN_KV_NEED_BIT_ROTARY_Q, ATTN_KV_NEED_BIT_ROTARY_Q };
    const int table_needs[] = { ATTN_KV_NEED_BIT_SLOTS, ATTN_KV_NEED_BIT_POSITIONS, ATTN_KV_NEED_BIT_CU_LENS,
                                ATTN_KV_NEED_BIT_TABLE, ATTN_KV_NEED_BIT_TABLE,     ATTN_KV_NEED_BIT_STARTS,
                                ATTN_KV_NEED_BIT_COPY,  ATTN_KV_NEED_BIT_ROTARY,    ATTN_KV_NEED_BIT_ROTARY };
    for (int i = 0; i < 8 && !status; i++)
        if (needs >> tensor_needs[i] & 1) status = check_there(tensors[i]);
    for (int i = 0; i < 9 && !status; i++)
        if (needs >> table_needs[i] & 1) status = check_there(&all.table[i]);
    if (!status && d->flags & ATTN_KV_SCALES) status = check_scales_there(d, &all);
    return status ? status : check_overlap(d, a, &all);
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Entries [first, last) of a sequence's page table. */
static attn_status check_ids(const attn_kv_desc *d, const attn_kv_args *a, int64_t b, int64_t first, int64_t last)
{
    int64_t entries = d->table_width ? d->table_width : (int64_t)a->page_starts[b + 1] - a->page_starts[b];
    int32_t least = d->op == ATTN_KV_GATHER ? -1 : 0;
    const int32_t *ids = attn_kv_table(d, a, b);
    if (last > entries)
        return attn_fail(ATTN_INVALID,
                         "lens_kv[%" PRId64 "] = %" PRId32 " needs %" PRId64 " pages, but there are %" PRId64 " ids", b,
                         a->lens_kv[b], last, entries);
    for (int64_t i = first; i < last; i++)
        if (ids[i] < least || ids[i] >= d->pages)
            return attn_fail(ATTN_INVALID,
                             "page_table: sequence %" PRId64 ", entry %" PRId64 " = %" PRId32
                             " is no page of 0 to %" PRId64,
                             b, i, ids[i], d->pages - 1);
    return ATTN_OK;
}

/* Of a sequence: `rows` tokens at its end are new, or all are gathered. */
static attn_status check_sequence(const attn_kv_desc *d, const attn_kv_args *a, int64_t b)
{
    bool append = d->op == ATTN_KV_APPEND;
    int64_t rows = a->cu_lens ? (int64_t)a->cu_lens[b + 1] - a->cu_lens[b] : d->len_kv, len = a->lens_kv[b];
    if (len < 0) return attn_fail(ATTN_INVALID, "lens_kv[%" PRId64 "] = %" PRId64 " is below 0", b, len);
    if (append && len < rows)
        return attn_fail(ATTN_INVALID, "lens_kv[%" PRId64 "] = %" PRId64 " is below the %" PRId64 " new tokens", b, len,
                         rows);
    if (!append && (len > rows || len > d->len_kv))
        return attn_fail(ATTN_INVALID, "lens_kv[%" PRId64 "] = %" PRId64 " exceeds %s", b, len,
                         len > d->len_kv ? "len_kv" : "the sequence's share of cu_lens");
    if (append && rows > 0 && d->flags & ATTN_KV_ROTARY && !(d->flags & ATTN_KV_POSITIONS) && len > d->positions)
        return attn_fail(ATTN_INVALID, "lens_kv[%" PRId64 "] = %" PRId64 " exceeds positions = %" PRId64, b, len,
                         d->positions);
    int64_t first = append ? (len - rows) / d->page_size : 0, last = attn_ceil_div(len, d->page_size);
    return append && rows == 0 ? ATTN_OK : check_ids(d, a, b, first, last);
}

static attn_status check_pairs(const attn_kv_desc *d, const attn_kv_args *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        int32_t from = a->pairs[2 * i], to = a->pairs[2 * i + 1];
        if (from < -1 || from >= d->pages_from)
            return attn_fail(ATTN_INVALID,
                             "pairs[%" PRId64 "] is from page %" PRId32
                             ", which is not in -1 to pages_from - 1 = %" PRId64,
                             i, from, d->pages_from - 1);
        if (from >= 0 && (to < 0 || to >= d->pages))
            return attn_fail(ATTN_INVALID,
                             "pairs[%" PRId64 "] is to page %" PRId32 ", which is not in 0 to pages - 1 = %" PRId64, i,
                             to, d->pages - 1);
    }
    return ATTN_OK;
}

static attn_status check_list(const char *name, const int64_t *list, int64_t count, int64_t least, int64_t end)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i] < least || list[i] >= end)
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId64 " is not in %" PRId64 " to %" PRId64, name, i,
                             list[i], least, end - 1);
    return ATTN_OK;
}

attn_status attn_kv_check_contents(const attn_kv_desc *d, const attn_kv_args *a)
{
    uint32_t needs = attn_kv_needs(d);
    attn_status status = ATTN_OK;
    if (needs >> ATTN_KV_NEED_BIT_CU_LENS & 1)
        status = attn_check_starts("cu_lens", a->cu_lens, d->batch, "tokens", d->tokens);
    if (!status && needs >> ATTN_KV_NEED_BIT_STARTS & 1)
        status = attn_check_starts("page_starts", a->page_starts, d->batch, "table_total", d->table_total);
    for (int64_t b = 0; b < d->batch && !status; b++)
        status = check_sequence(d, a, b);
    if (!status && d->op == ATTN_KV_COPY) status = check_pairs(d, a);
    if (!status && d->flags & ATTN_KV_SLOTS)
        status = check_list("slots", a->slots, a->count, -1, d->pages * d->page_size);
    if (!status && d->flags & ATTN_KV_POSITIONS)
        status = check_list("positions", a->positions, attn_kv_rows(d, a), 0, d->positions);
    return status;
}
