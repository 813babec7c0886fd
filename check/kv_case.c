/* Descriptors, layouts, tables. Contract: kv_case.h. */
#include "check/kv_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/random.h"
#include "num/half.h"

enum { PAD = CHECK_KV_PAD };

/* ---- memory ---------------------------------------------------------------------------------- */

/* A tensor of `count` elements: random finite numbers; its first element, or NULL without memory. */
static void *tensor_of(check_kv_case *c, uint64_t *state, attn_dtype dtype, int64_t count)
{
    int64_t size = attn_dtype_size(dtype);
    check_kv_array *a = &c->array[c->arrays++];
    a->size = (size_t)(count * size) + (size_t)2 * PAD, a->dtype = dtype;
    a->actual = malloc(a->size), a->expected = malloc(a->size);
    if (!a->actual || !a->expected) return NULL;
    memset(a->actual, 0xAB, a->size);
    for (int64_t i = 0; i < count; i++)
        attn_store_scalar(dtype, a->actual + PAD, i, check_normal(state) * (dtype == ATTN_I8 ? 50 : 1));
    memcpy(a->expected, a->actual, a->size);
    return a->actual + PAD;
}

static void *tensor(check_kv_case *c, uint64_t *state, int64_t count)
{
    return tensor_of(c, state, c->desc.dtype, count);
}

static attn_dtype pages_dtype(const attn_kv_desc *d)
{
    return d->pages_dtype ? d->pages_dtype : d->dtype;
}

static bool converts(const attn_kv_desc *d)
{
    return pages_dtype(d) != d->dtype;
}

static void *table(check_kv_case *c, int64_t bytes)
{
    c->table_size[c->tables] = (size_t)bytes;
    return c->table[c->tables++] = malloc((size_t)bytes + 1);
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* Strides of (outer, middle, heads, dim), the middle before heads or behind, with gaps; elements of all. */
static int64_t lay_out(uint64_t *state, const int64_t extent[4], int64_t stride[4])
{
    int64_t gap = check_chance(state, 50) ? 0 : check_below(state, 5);
    if (check_chance(state, 30)) { /* packed, as zeros say */
        memset(stride, 0, 4 * sizeof *stride);
        return extent[0] * extent[1] * extent[2] * extent[3];
    }
    bool heads_first = check_chance(state, 40);
    stride[3] = 1;
    stride[heads_first ? 1 : 2] = extent[3] + gap;
    stride[heads_first ? 2 : 1] = (extent[3] + gap) * extent[heads_first ? 1 : 2] + gap;
    stride[0] = stride[heads_first ? 2 : 1] * extent[heads_first ? 2 : 1] + gap;
    return stride[0] * extent[0];
}

/* K, V and their scales of pages; scales may be NULL. */
typedef struct pool {
    void *k, *v;
    float *k_scale, *v_scale;
    int64_t *k_stride, *v_stride, *k_scale_stride, *v_scale_stride;
} pool;

/* One array, page by page: K, V and, if slots have scales, the scales of K and V. */
static bool one_array(check_kv_case *c, uint64_t *state, int64_t pages, int64_t dim_v, pool *p)
{
    const attn_kv_desc *d = &c->desc;
    attn_dtype dtype = pages_dtype(d);
    int64_t heads = d->heads_kv, of_k = d->page_size * heads * d->dim_qk, of_v = d->page_size * heads * dim_v;
    int64_t scales = d->k_scale_rows == 1 && d->v_scale_rows == 1 ? d->page_size * heads : 0;
    int64_t behind = (of_k + of_v + 3) / 4 * 4, page = scales ? behind + 8 * scales : of_k + of_v;
    char *all = tensor_of(c, state, dtype, page * pages);
    if (!all) return false;
    memcpy(p->k_stride, (int64_t[4]){ page, heads * d->dim_qk, d->dim_qk, 1 }, 4 * sizeof *p->k_stride);
    memcpy(p->v_stride, (int64_t[4]){ page, heads * dim_v, dim_v, 1 }, 4 * sizeof *p->v_stride);
    p->k = all, p->v = all + of_k * attn_dtype_size(dtype);
    if (!scales) return true;
    const int64_t stride[4] = { page / 4, heads, 1, 0 };
    memcpy(p->k_scale_stride, stride, sizeof stride), memcpy(p->v_scale_stride, stride, sizeof stride);
    p->k_scale = (float *)(void *)(all + behind), p->v_scale = p->k_scale + scales;
    for (int64_t i = 0; i < 2 * scales * pages; i++)
        p->k_scale[i / (2 * scales) * page / 4 + i % (2 * scales)] = check_normal(state);
    check_kv_array *array = &c->array[c->arrays - 1];
    memcpy(array->expected, array->actual, array->size);
    return true;
}

/* Two pools, in arrays of their own or in one. */
static bool pools(check_kv_case *c, uint64_t *state, int64_t pages, pool *p)
{
    const attn_kv_desc *d = &c->desc;
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    int64_t extent[4] = { pages, d->page_size, d->heads_kv, d->dim_qk };
    int64_t extent_v[4] = { pages, d->page_size, d->heads_kv, dim_v };
    if (check_chance(state, 30)) return one_array(c, state, pages, dim_v, p);
    p->k = tensor_of(c, state, pages_dtype(d), lay_out(state, extent, p->k_stride));
    p->v = tensor_of(c, state, pages_dtype(d), lay_out(state, extent_v, p->v_stride));
    return p->k && p->v;
}

/* Scales with `rows` slots to a block, or of sequences, in an array of their own: heads before blocks or behind, with
 * gaps; those that are only read may be one for all. */
static float *scales(check_kv_case *c, uint64_t *state, int64_t rows, int64_t pages, int64_t channels,
                     int64_t stride[4])
{
    const attn_kv_desc *d = &c->desc;
    bool read = !(d->flags & ATTN_KV_TOKEN_SCALES) && d->op != ATTN_KV_COPY, slots = d->flags & ATTN_KV_SLOTS;
    bool per_channel = rows == 0 && channels && check_chance(state, 30), heads_first = check_chance(state, 40);
    int64_t step = 1 + check_below(state, 3), gap = check_below(state, 3), dim = per_channel ? channels : 1;
    int64_t blocks = rows ? (d->page_size + rows - 1) / rows : 1, planes = rows ? pages : slots ? 1 : d->batch;
    stride[3] = per_channel ? step : 0;
    stride[heads_first ? 1 : 2] = step * dim + gap;
    stride[heads_first ? 2 : 1] = (step * dim + gap) * (heads_first ? blocks : d->heads_kv) + gap;
    stride[0] = stride[heads_first ? 2 : 1] * (heads_first ? d->heads_kv : blocks) + gap;
    int64_t count = stride[0] * planes + 1;
    if (rows == 0) stride[1] = 0;
    if (rows == 0 && slots) stride[0] = 0;
    for (int i = 0; i < 4 && read; i++)
        if (check_chance(state, 20)) stride[i] = 0;
    return tensor_of(c, state, ATTN_F32, count);
}

/* k, v and q of new tokens, each for itself or as parts of one row. */
static bool rows(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    attn_kv_args *a = &c->args;
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk, size = attn_dtype_size(d->dtype);
    int64_t q[4] = { 1, d->tokens, d->heads_q, d->dim_qk }, k[4] = { 1, d->tokens, d->heads_kv, d->dim_qk };
    int64_t v[4] = { 1, d->tokens, d->heads_kv, dim_v };
    if (check_chance(state, 30)) {
        int64_t row = (d->heads_q + d->heads_kv) * d->dim_qk + d->heads_kv * dim_v;
        char *all = tensor(c, state, row * d->tokens);
        int64_t strides[4] = { row * d->tokens, row, d->dim_qk, 1 };
        memcpy(d->k_stride, strides, sizeof strides), memcpy(d->v_stride, strides, sizeof strides);
        d->v_stride[2] = dim_v;
        if (!all) return false;
        a->k = all + d->heads_q * d->dim_qk * size;
        a->v = all + (d->heads_q + d->heads_kv) * d->dim_qk * size;
        if (d->heads_q == 0) return true;
        memcpy(d->q_stride, strides, sizeof strides), a->q = all;
    } else {
        a->k = tensor(c, state, lay_out(state, k, d->k_stride));
        a->v = tensor(c, state, lay_out(state, v, d->v_stride));
        if (d->heads_q == 0) return a->k && a->v;
        a->q = tensor(c, state, lay_out(state, q, d->q_stride));
    }
    if (check_chance(state, 50)) {
        a->q_out = (void *)(uintptr_t)a->q;
        memcpy(d->q_out_stride, d->q_stride, sizeof d->q_stride);
    } else {
        a->q_out = tensor(c, state, lay_out(state, q, d->q_out_stride));
    }
    return a->k && a->v && a->q && a->q_out;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Distinct numbers below n, in some order. */
static void shuffled(uint64_t *state, int64_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = check_below(state, i + 1);
        list[i] = list[j], list[j] = i;
    }
}

static bool rotary_tables(check_kv_case *c, uint64_t *state)
{
    int64_t half = (c->desc.rotary_dim ? c->desc.rotary_dim : c->desc.dim_qk) / 2, count = c->desc.positions * half;
    float *cosines = table(c, 4 * count), *sines = table(c, 4 * count);
    if (!cosines || !sines) return false;
    for (int64_t i = 0; i < count; i++)
        cosines[i] = check_normal(state), sines[i] = check_normal(state);
    c->args.cos = cosines, c->args.sin = sines;
    return true;
}

static bool slots(check_kv_case *c, uint64_t *state)
{
    int64_t all = c->desc.pages * c->desc.page_size;
    int64_t *list = table(c, 8 * (all + c->desc.tokens));
    if (!list) return false;
    shuffled(state, list, all);
    c->args.count = check_below(state, c->desc.tokens + 1);
    for (int64_t i = 0; i < c->args.count; i++)
        if (i >= all || check_chance(state, 15)) list[i] = -1;
    c->args.slots = list;
    return true;
}

/* Sequences with pages of their own; a page table, or page_starts; poison where nothing may be read. */
static bool sequences(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    bool append = d->op == ATTN_KV_APPEND, csr = check_chance(state, 40), packed = d->flags & ATTN_KV_PACKED;
    int64_t width = 1 + check_below(state, 4), left = d->tokens, next = 0, ids[64], total = 0;
    int32_t *cu = append || packed ? table(c, 4 * (d->batch + 1)) : NULL, *lens = table(c, 4 * d->batch);
    int32_t *pages = table(c, 4 * (d->batch * (width + 1) + 1)), *starts = csr ? table(c, 4 * (d->batch + 1)) : NULL;
    if ((!cu && (append || packed)) || !lens || !pages || (csr && !starts)) return false;
    shuffled(state, ids, d->pages);
    d->len_kv = append ? 0 : width * d->page_size;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t most = width * d->page_size, row = csr ? total : b * width;
        if (cu) cu[b] = (int32_t)(d->tokens - left);
        if (csr) starts[b] = (int32_t)total;
        int64_t fresh = cu ? check_below(state, (left < most ? left : most) + 1) : most;
        if (cu && d->batch > 5 && check_chance(state, 80)) fresh = 0; /* for others */
        int64_t len = append ? fresh + check_below(state, most - fresh + 1) : check_below(state, fresh + 1);
        int64_t first = append ? (len - fresh) / d->page_size : 0, used = (len + d->page_size - 1) / d->page_size;
        if (append && fresh == 0) first = used;
        if (next + used - first > d->pages) fresh = len = used = first = 0;
        for (int64_t i = 0; i < (csr ? used + check_chance(state, 20) : width); i++, total += csr)
            pages[row + i] = i >= first && i < used ? (int32_t)ids[next + i - first] : 1 << 30;
        for (int64_t i = 0; i < used && !append; i++)
            if (check_chance(state, 15)) pages[row + i] = -1;
        next += used - first, lens[b] = (int32_t)len;
        if (cu) left -= fresh;
    }
    if (cu) cu[d->batch] = (int32_t)(d->tokens - left);
    if (csr) starts[d->batch] = (int32_t)total;
    d->table_width = csr ? 0 : width, d->table_total = csr ? total : 0;
    c->args.cu_lens = cu, c->args.lens_kv = lens, c->args.page_table = pages, c->args.page_starts = starts;
    if (d->batch == 0 && !csr) d->table_width = 0, c->args.page_starts = table(c, 4);
    if (d->batch == 0 && c->args.page_starts) *(int32_t *)(uintptr_t)c->args.page_starts = 0;
    return true;
}

static bool positions(check_kv_case *c, uint64_t *state)
{
    int64_t *list = table(c, 8 * c->desc.tokens);
    for (int64_t i = 0; i < c->desc.tokens && list; i++)
        list[i] = check_below(state, c->desc.positions);
    c->args.positions = list;
    return list;
}

static bool pairs(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    bool same = c->args.k_from == c->args.k_pages;
    int64_t ids[64], targets = same ? d->pages / 2 : d->pages;
    int32_t *list = table(c, 8 * d->pages);
    if (!list) return false;
    shuffled(state, ids, d->pages);
    c->args.count = check_below(state, targets + 1);
    for (int64_t i = 0; i < c->args.count; i++) {
        list[2 * i] =
            (int32_t)(same ? ids[targets + check_below(state, d->pages - targets)] : check_below(state, d->pages_from));
        list[2 * i + 1] = (int32_t)ids[i];
        if (check_chance(state, 10)) list[2 * i] = -1, list[2 * i + 1] = 1 << 30;
    }
    d->copies = c->args.count + check_below(state, 3);
    c->args.pairs = list;
    return true;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Pages of one byte, converted or not, with scales or without. */
static void draw_bytes(attn_kv_desc *d, uint64_t *state)
{
    d->pages_dtype = check_chance(state, 50) ? ATTN_E4M3 : ATTN_I8;
    if (check_chance(state, 20)) d->dtype = d->pages_dtype;
    if ((!converts(d) && d->op != ATTN_KV_COPY) || check_chance(state, 15)) return;
    d->flags |= ATTN_KV_SCALES;
    if (check_chance(state, 6)) d->page_size = 60 + check_below(state, 80), d->pages = 1 + d->pages % 3;
    d->k_scale_rows = (const int64_t[]){ 0, 1, 1, 64, 128 }[check_below(state, 5)],
    d->v_scale_rows = check_below(state, 2);
    if (d->op != ATTN_KV_APPEND || check_chance(state, 30)) return;
    d->flags |= ATTN_KV_TOKEN_SCALES;
    d->k_scale_rows = d->v_scale_rows = 1;
}

static void draw_sizes(attn_kv_desc *d, uint64_t *state)
{
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    d->op = (attn_kv_op)(1 + check_below(state, 3));
    d->dtype = dtypes[check_below(state, 3)];
    d->page_size = 1 + check_below(state, 6);
    d->pages = 1 + check_below(state, 24);
    d->heads_kv = 1 + check_below(state, 3);
    d->dim_qk = check_chance(state, 30) ? 2 * (1 + check_below(state, 40)) : 1 + check_below(state, 80);
    if (check_chance(state, 5)) d->dim_qk = 350 + 2 * check_below(state, 338); /* a head or two fill a buffer */
    d->dim_v = check_chance(state, 50) ? 0 : 1 + check_below(state, 40);
    d->threads = 1 + (int32_t)check_below(state, 3);
    if (d->op == ATTN_KV_APPEND || check_chance(state, 40)) d->tokens = check_below(state, 20);
    if (d->op == ATTN_KV_APPEND && check_chance(state, 40)) d->flags |= ATTN_KV_SLOTS;
    if (d->op == ATTN_KV_GATHER && d->tokens) d->flags |= ATTN_KV_PACKED;
    if (d->op == ATTN_KV_COPY) d->tokens = 0;
    if (check_chance(state, 50)) draw_bytes(d, state);
    if (d->op != ATTN_KV_COPY && !(d->flags & ATTN_KV_SLOTS))
        d->batch = check_below(state, check_chance(state, 80) || d->dim_qk > 80 ? 6 : 100); /* few of wide rows */
    if (d->op != ATTN_KV_APPEND || attn_dtype_size(d->dtype) == 1) return;
    if (d->dim_qk < 2 || check_chance(state, 30)) return;
    d->flags |= ATTN_KV_ROTARY;
    d->rotary_dim = d->dim_qk % 2 || check_chance(state, 50) ? 2 * (1 + check_below(state, d->dim_qk / 2)) : 0;
    d->positions = 64 + 4 * d->page_size; /* tables have 4 pages at most */
    if (check_chance(state, 50)) d->flags |= ATTN_KV_INTERLEAVED;
    if (check_chance(state, 50)) d->flags |= ATTN_KV_ROTARY_Q, d->heads_q = 1 + check_below(state, 4);
    if (d->flags & ATTN_KV_SLOTS || check_chance(state, 30)) d->flags |= ATTN_KV_POSITIONS;
}

/* Numbers that a row of bytes must survive: NaN, infinity, the largest and the least, and rows of zeros. */
static void spoil(check_kv_case *c, uint64_t *state, const void *base)
{
    static const float odd[] = { NAN, INFINITY, -INFINITY, 0, 3e38f, 1e-40f, -0.0f, 1e-38f };
    for (int i = 0; i < c->arrays; i++) {
        check_kv_array *a = &c->array[i];
        if (base != a->actual + PAD) continue;
        int64_t count = (int64_t)(a->size - 2 * PAD) / attn_dtype_size(c->desc.dtype), zeros = 0;
        for (int64_t e = 0; e < count; e++, zeros--) {
            if (check_chance(state, 1)) zeros = check_below(state, 100);
            if (zeros > 0 || check_chance(state, 1))
                attn_store_scalar(c->desc.dtype, a->actual + PAD, e, zeros > 0 ? 0 : odd[check_below(state, 8)]);
        }
        memcpy(a->expected, a->actual, a->size);
    }
}

static bool draw_scales(check_kv_case *c, uint64_t *state, int64_t pages, pool *p)
{
    const attn_kv_desc *d = &c->desc;
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    bool copy = d->op == ATTN_KV_COPY, any = !copy && !(d->flags & ATTN_KV_TOKEN_SCALES);
    if (!(d->flags & ATTN_KV_SCALES) || p->k_scale) return true;
    if ((!copy || d->k_scale_rows) && !(any && check_chance(state, 10)) &&
        !(p->k_scale = scales(c, state, d->k_scale_rows, pages, 0, p->k_scale_stride)))
        return false;
    if ((!copy || d->v_scale_rows) && !(any && check_chance(state, 10)) &&
        !(p->v_scale = scales(c, state, d->v_scale_rows, pages, dim_v, p->v_scale_stride)))
        return false;
    return true;
}

static bool draw_pages(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    pool p = { .k_stride = d->k_pages_stride,
               .v_stride = d->v_pages_stride,
               .k_scale_stride = d->k_scale_stride,
               .v_scale_stride = d->v_scale_stride };
    if (!pools(c, state, d->pages, &p) || !draw_scales(c, state, d->pages, &p)) return false;
    c->args.k_pages = p.k, c->args.v_pages = p.v, c->args.k_scale = p.k_scale, c->args.v_scale = p.v_scale;
    return true;
}

static bool draw_arrays(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    attn_kv_args *a = &c->args;
    if (!draw_pages(c, state)) return false;
    if (d->op == ATTN_KV_APPEND && !rows(c, state)) return false;
    if (d->op == ATTN_KV_APPEND && converts(d) && d->heads_q == 0 && check_chance(state, 30))
        spoil(c, state, a->k), spoil(c, state, a->v);
    if (d->op == ATTN_KV_APPEND)
        return (d->flags & ATTN_KV_SLOTS ? slots(c, state) : sequences(c, state)) &&
               (!(d->flags & ATTN_KV_ROTARY) || rotary_tables(c, state)) &&
               (!(d->flags & ATTN_KV_POSITIONS) || positions(c, state));
    if (d->op == ATTN_KV_GATHER) {
        if (!sequences(c, state)) return false;
        bool packed = d->flags & ATTN_KV_PACKED;
        int64_t extent[4] = { packed ? 1 : d->batch, packed ? d->tokens : d->len_kv, d->heads_kv, d->dim_qk };
        a->k_out = tensor(c, state, lay_out(state, extent, d->k_stride));
        extent[3] = d->dim_v ? d->dim_v : d->dim_qk;
        a->v_out = tensor(c, state, lay_out(state, extent, d->v_stride));
        return a->k_out && a->v_out;
    }
    d->pages_from = check_chance(state, 50) ? d->pages : 1 + check_below(state, 20);
    if (d->pages_from == d->pages && check_chance(state, 70)) {
        memcpy(d->k_from_stride, d->k_pages_stride, sizeof d->k_from_stride);
        memcpy(d->v_from_stride, d->v_pages_stride, sizeof d->v_from_stride);
        memcpy(d->k_scale_from_stride, d->k_scale_stride, sizeof d->k_scale_stride);
        memcpy(d->v_scale_from_stride, d->v_scale_stride, sizeof d->v_scale_stride);
        a->k_from = a->k_pages, a->v_from = a->v_pages;
        a->k_scale_from = a->k_scale, a->v_scale_from = a->v_scale;
        return pairs(c, state);
    }
    pool p = { .k_stride = d->k_from_stride,
               .v_stride = d->v_from_stride,
               .k_scale_stride = d->k_scale_from_stride,
               .v_scale_stride = d->v_scale_from_stride };
    if (!pools(c, state, d->pages_from, &p) || !draw_scales(c, state, d->pages_from, &p)) return false;
    a->k_from = p.k, a->v_from = p.v, a->k_scale_from = p.k_scale, a->v_scale_from = p.v_scale;
    return pairs(c, state);
}

bool check_kv_draw(check_kv_case *c, uint64_t *state)
{
    *c = (check_kv_case){ .arrays = 0 };
    draw_sizes(&c->desc, state);
    if (!draw_arrays(c, state)) return false;
    check_kv_expect(c);
    return true;
}

int64_t check_kv_compare(const check_kv_case *c, int *array)
{
    for (*array = 0; *array < c->arrays; (*array)++) {
        const check_kv_array *a = &c->array[*array];
        for (size_t i = 0; i < a->size; i++)
            if (a->actual[i] != a->expected[i]) return (int64_t)i - PAD;
    }
    return -1;
}

void check_kv_destroy(check_kv_case *c)
{
    for (int i = 0; i < c->arrays; i++)
        free(c->array[i].actual), free(c->array[i].expected);
    for (int i = 0; i < c->tables; i++)
        free(c->table[i]);
}
