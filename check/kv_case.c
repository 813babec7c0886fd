/* Descriptors, layouts, tables. Contract: kv_case.h. */
#include "check/kv_case.h"

#include <stdlib.h>
#include <string.h>

#include "check/random.h"
#include "num/half.h"

enum { PAD = 64 }; /* bytes before and after each tensor, which nothing may change */

/* ---- memory ---------------------------------------------------------------------------------- */

/* A tensor of `count` elements: random finite numbers; its first element, or NULL without memory. */
static void *tensor(check_kv_case *c, uint64_t *state, int64_t count)
{
    int64_t size = attn_dtype_size(c->desc.dtype);
    check_kv_array *a = &c->array[c->arrays++];
    a->size = (size_t)(count * size) + (size_t)2 * PAD;
    a->actual = malloc(a->size), a->expected = malloc(a->size);
    if (!a->actual || !a->expected) return NULL;
    memset(a->actual, 0xAB, a->size);
    for (int64_t i = 0; i < count; i++)
        attn_store_scalar(c->desc.dtype, a->actual + PAD, i, check_normal(state));
    memcpy(a->expected, a->actual, a->size);
    return a->actual + PAD;
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

/* Two pools, in arrays of their own or page by page in one. */
static bool pools(check_kv_case *c, uint64_t *state, int64_t pages, int64_t k_stride[4], int64_t v_stride[4], void **k,
                  void **v)
{
    const attn_kv_desc *d = &c->desc;
    int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    int64_t extent[4] = { pages, d->page_size, d->heads_kv, d->dim_qk };
    int64_t extent_v[4] = { pages, d->page_size, d->heads_kv, dim_v };
    if (check_chance(state, 30)) {
        int64_t of_k = d->page_size * d->heads_kv * d->dim_qk, of_v = d->page_size * d->heads_kv * dim_v;
        int64_t strides[4] = { of_k + of_v, d->heads_kv * d->dim_qk, d->dim_qk, 1 };
        memcpy(k_stride, strides, sizeof strides);
        memcpy(v_stride, (int64_t[4]){ of_k + of_v, d->heads_kv * dim_v, dim_v, 1 }, sizeof strides);
        *k = tensor(c, state, pages * (of_k + of_v));
        *v = *k ? (char *)*k + of_k * attn_dtype_size(d->dtype) : NULL;
        return *k;
    }
    *k = tensor(c, state, lay_out(state, extent, k_stride));
    *v = tensor(c, state, lay_out(state, extent_v, v_stride));
    return *k && *v;
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

static void draw_sizes(attn_kv_desc *d, uint64_t *state)
{
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    d->op = (attn_kv_op)(1 + check_below(state, 3));
    d->dtype = dtypes[check_below(state, 3)];
    d->page_size = 1 + check_below(state, 6);
    d->pages = 1 + check_below(state, 24);
    d->heads_kv = 1 + check_below(state, 3);
    d->dim_qk = check_chance(state, 30) ? 2 * (1 + check_below(state, 40)) : 1 + check_below(state, 80);
    d->dim_v = check_chance(state, 50) ? 0 : 1 + check_below(state, 40);
    d->threads = 1 + (int32_t)check_below(state, 3);
    if (d->op == ATTN_KV_APPEND || check_chance(state, 40)) d->tokens = check_below(state, 20);
    if (d->op == ATTN_KV_APPEND && check_chance(state, 40)) d->flags |= ATTN_KV_SLOTS;
    if (d->op == ATTN_KV_GATHER && d->tokens) d->flags |= ATTN_KV_PACKED;
    if (d->op == ATTN_KV_COPY) d->tokens = 0;
    if (d->op != ATTN_KV_COPY && !(d->flags & ATTN_KV_SLOTS))
        d->batch = check_below(state, check_chance(state, 80) ? 6 : 100);
    if (d->op != ATTN_KV_APPEND || d->dim_qk < 2 || check_chance(state, 30)) return;
    d->flags |= ATTN_KV_ROTARY;
    d->rotary_dim = d->dim_qk % 2 || check_chance(state, 50) ? 2 * (1 + check_below(state, d->dim_qk / 2)) : 0;
    d->positions = 64;
    if (check_chance(state, 50)) d->flags |= ATTN_KV_INTERLEAVED;
    if (check_chance(state, 50)) d->flags |= ATTN_KV_ROTARY_Q, d->heads_q = 1 + check_below(state, 4);
    if (d->flags & ATTN_KV_SLOTS || check_chance(state, 30)) d->flags |= ATTN_KV_POSITIONS;
}

static bool draw_arrays(check_kv_case *c, uint64_t *state)
{
    attn_kv_desc *d = &c->desc;
    attn_kv_args *a = &c->args;
    void *k, *v;
    if (!pools(c, state, d->pages, d->k_pages_stride, d->v_pages_stride, &a->k_pages, &a->v_pages)) return false;
    if (d->op == ATTN_KV_APPEND)
        return rows(c, state) && (d->flags & ATTN_KV_SLOTS ? slots(c, state) : sequences(c, state)) &&
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
        a->k_from = a->k_pages, a->v_from = a->v_pages;
        return pairs(c, state);
    }
    if (!pools(c, state, d->pages_from, d->k_from_stride, d->v_from_stride, &k, &v)) return false;
    a->k_from = k, a->v_from = v;
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
