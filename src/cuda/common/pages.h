/* Operations on KV pages (pages_params.h): plain loads and stores, the widest that layouts take. What an id, a slot, a
 * length or a position out of range stands for is not written, and *fault says so. */

#include "common/element.h"
#include "common/gpu.h"
#include "common/page_table.h"
#include "common/pages_params.h"
#include "common/warp.h"

/* Few threads per appended row, so that the loads of many rows are under way at once. */
enum { PAGES_THREADS = ATTN_PAGES_THREADS, PAGES_ROW_THREADS = ATTN_PAGES_ROW_THREADS };

DEVICE void pages_fault(const attn_pages_params *p)
{
    if (threadIdx.x == 0) page_fault(&p->table);
}

/* ---- rows ---------------------------------------------------------------------------------- */

template <int BYTES> struct pages_unit;
template <> struct pages_unit<16> {
    typedef uint4 type;
};
template <> struct pages_unit<4> {
    typedef u32 type;
};
template <> struct pages_unit<2> {
    typedef unsigned short type;
};

DEVICE char *pages_at(const attn_pages_params *p, const attn_pages_side *side, long long outer, long long middle,
                      long long head)
{
    return (char *)side->at +
           (outer * side->stride[0] + middle * side->stride[1] + head * side->stride[2]) * p->element;
}

/* Rows [0, rows) of all heads, from (from_outer, from_middle) on to (to_outer, to_middle) on: fewer than 2^31 elements.
 */
template <int BYTES, int THREADS>
DEVICE void pages_move(const attn_pages_params *p, const attn_pages_side *to, long long to_outer, long long to_middle,
                       const attn_pages_side *from, long long from_outer, long long from_middle, int rows, int dim)
{
    typedef typename pages_unit<BYTES>::type unit;
    u32 units = (u32)(dim * p->element / BYTES), of_row = units * (u32)p->heads_kv, all = of_row * (u32)rows;
    for (u32 i = threadIdx.x % THREADS; i < all; i += THREADS) {
        u32 row = i / of_row, rest = i - row * of_row, head = rest / units, u = rest - head * units;
        ((unit *)pages_at(p, to, to_outer, to_middle + row, head))[u] =
            ((const unit *)pages_at(p, from, from_outer, from_middle + row, head))[u];
    }
}

/* Asks for the row's K, or V, while tables are read that say where it goes. */
DEVICE void pages_prefetch(const attn_pages_params *p, long long row)
{
    enum { LINE = 128 };
    bool second = threadIdx.x >= PAGES_ROW_THREADS;
    const attn_pages_side *from = second ? &p->v : &p->k;
    int lines = ((second ? p->dim_v : p->dim_qk) * p->element + LINE - 1) / LINE;
    for (int i = threadIdx.x % PAGES_ROW_THREADS; i < p->heads_kv * lines; i += PAGES_ROW_THREADS)
        prefetch_to_l2(pages_at(p, from, 0, row, i / lines) + i % lines * LINE);
}

/* ---- rotary embedding ---------------------------------------------------------------------- */

/* COUNT neighbouring elements, moved at once. */
template <class T, int COUNT> struct alignas(COUNT * sizeof(T)) pages_piece {
    T e[COUNT];
};

template <int DTYPE, class T> DEVICE float pages_float(T x)
{
    static_assert(sizeof(T) == element<DTYPE>::bytes, "T holds an element");
    if constexpr (DTYPE == F32)
        return __int_as_float((int)x);
    else
        return unpack<DTYPE>((unsigned short)x);
}

template <int DTYPE, class T> DEVICE T pages_element(float x)
{
    static_assert(sizeof(T) == element<DTYPE>::bytes, "T holds an element");
    if constexpr (DTYPE == F32)
        return (T)__float_as_int(x);
    else if constexpr (DTYPE == BF16)
        return float_to_bf16(x);
    else if constexpr (DTYPE == F16)
        return float_to_half(x);
}

/* Turns the pair (a, b). Products and their sum are rounded each. */
template <int DTYPE, class T> DEVICE void pages_turn_pair(float c, float s, T *a, T *b)
{
    float x = pages_float<DTYPE, T>(*a), y = pages_float<DTYPE, T>(*b);
    *a = pages_element<DTYPE, T>(__fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s)));
    *b = pages_element<DTYPE, T>(__fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s)));
}

/* Pairs [i, i + COUNT) of one head's row. */
template <int DTYPE, class T, int COUNT, bool INTERLEAVED>
DEVICE void pages_turn_pairs(const attn_pages_params *p, const float *cosines, const float *sines, int i, const T *from,
                             T *to)
{
    typedef pages_piece<T, COUNT> piece;
    int x = INTERLEAVED ? 2 * i : i, y = INTERLEAVED ? 2 * i + COUNT : i + p->rotary_dim / 2;
    piece first = *(const piece *)(from + x), second = *(const piece *)(from + y);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        int a = INTERLEAVED ? 2 * j : j, b = INTERLEAVED ? 2 * j + 1 : j + COUNT;
        T *low = a < COUNT ? &first.e[a] : &second.e[a - COUNT], *high = b < COUNT ? &first.e[b] : &second.e[b - COUNT];
        pages_turn_pair<DTYPE, T>(cosines[i + j], sines[i + j], low, high);
    }
    *(piece *)(to + x) = first, *(piece *)(to + y) = second;
}

/* One row of `heads` heads: pairs turn; what lies after them is copied, unless it is there already. */
template <int DTYPE, class T, int COUNT, bool INTERLEAVED>
DEVICE void pages_turn_row(const attn_pages_params *p, int heads, long long position, const attn_pages_side *to,
                           long long to_outer, long long to_middle, const attn_pages_side *from, long long row)
{
    int half = p->rotary_dim / 2, groups = half / COUNT, rest = p->dim_qk - p->rotary_dim;
    const float *cosines = p->cos + position * half, *sines = p->sin + position * half;
    for (int i = threadIdx.x % PAGES_ROW_THREADS; i < heads * groups; i += PAGES_ROW_THREADS)
        pages_turn_pairs<DTYPE, T, COUNT, INTERLEAVED>(p, cosines, sines, i % groups * COUNT,
                                                       (const T *)pages_at(p, from, 0, row, i / groups),
                                                       (T *)pages_at(p, to, to_outer, to_middle, i / groups));
    for (int i = threadIdx.x % PAGES_ROW_THREADS; i < heads * rest && from->at != to->at; i += PAGES_ROW_THREADS)
        ((T *)pages_at(p, to, to_outer, to_middle, i / rest))[p->rotary_dim + i % rest] =
            ((const T *)pages_at(p, from, 0, row, i / rest))[p->rotary_dim + i % rest];
}

template <int DTYPE, class T, int COUNT>
DEVICE void pages_turn(const attn_pages_params *p, int heads, long long position, const attn_pages_side *to,
                       long long to_outer, long long to_middle, const attn_pages_side *from, long long row)
{
    if (p->interleaved)
        pages_turn_row<DTYPE, T, COUNT, true>(p, heads, position, to, to_outer, to_middle, from, row);
    else
        pages_turn_row<DTYPE, T, COUNT, false>(p, heads, position, to, to_outer, to_middle, from, row);
}

/* ---- where a row goes ---------------------------------------------------------------------- */

typedef struct pages_target {
    long long page, slot, position; /* page -1: nowhere */
    bool used;                      /* there is such a row, and nothing of it is out of range */
} pages_target;

/* The first of the sequences that ends after the row, `batch` if none does: by the whole warp, since each load waits
 * for the one before. */
DEVICE int sequence_of_row(const attn_pages_params *p, long long row)
{
    int lo = 0, count = p->batch, lane = threadIdx.x % 32;
    do {
        int step = (count + 31) / 32, end = min((lane + 1) * step, count);
        u32 after = __ballot_sync(~0u, p->cu_lens[lo + end] > row);
        if (!after) return p->batch;
        int found = __ffs(after) - 1;
        lo += found * step, count = min(step, count - found * step);
    } while (count > 1);
    return lo;
}

DEVICE pages_target pages_by_position(const attn_pages_params *p, long long row)
{
    pages_target t = { -1, 0, 0, false };
    if (p->batch == 0) return t;
    if (row < p->batch) prefetch_to_l2(p->lens_kv + row); /* its sequence's, where new tokens are one each */
    int lo = sequence_of_row(p, row);
    if (lo == p->batch) return t; /* a row that this run does not have */
    pages_prefetch(p, row);
    long long token = p->lens_kv[lo] - (p->cu_lens[lo + 1] - row);
    long long page = NO_ENTRY;
    u32 page_size = (u32)p->table.page_size, entry = (u32)token / page_size; /* of a token that is in 31 bits */
    if (row >= p->cu_lens[lo] && token >= 0) page = page_entry(page_list_of(&p->table, lo), entry);
    t.used = is_page(&p->table, page);
    if (!t.used) pages_fault(p);
    t.page = page, t.slot = (u32)token - entry * page_size, t.position = token;
    return t;
}

DEVICE pages_target pages_by_slot(const attn_pages_params *p, long long row)
{
    long long slot = p->slots[row], page_size = p->table.page_size;
    pages_target t = { slot < 0 ? -1 : slot / page_size, slot % page_size, 0, true };
    if (slot >= -1 && slot < p->table.pages * page_size) return t;
    pages_fault(p);
    t.used = false;
    return t;
}

/* ---- kernels ------------------------------------------------------------------------------- */

/* The block's first half turns or moves K, and turns q; the second one moves V. */
template <int DTYPE, class T, int BYTES> DEVICE void pages_append(const attn_pages_params *p)
{
    enum { COUNT = BYTES / sizeof(T) };
    long long row = blockIdx.x;
    pages_target t = p->slots ? pages_by_slot(p, row) : pages_by_position(p, row);
    if (!t.used) return;
    if (p->positions) t.position = p->positions[row];
    if (p->cos && (t.position < 0 || t.position >= p->cos_rows)) {
        pages_fault(p);
        return;
    }
    if (threadIdx.x >= PAGES_ROW_THREADS) {
        if (t.page >= 0)
            pages_move<BYTES, PAGES_ROW_THREADS>(p, &p->v_pages, t.page, t.slot, &p->v, 0, row, 1, p->dim_v);
        return;
    }
    if (p->q.at) pages_turn<DTYPE, T, COUNT>(p, p->heads_q, t.position, &p->q_out, 0, row, &p->q, row);
    if (t.page < 0) return;
    if (p->cos)
        pages_turn<DTYPE, T, COUNT>(p, p->heads_kv, t.position, &p->k_pages, t.page, t.slot, &p->k, row);
    else
        pages_move<BYTES, PAGES_ROW_THREADS>(p, &p->k_pages, t.page, t.slot, &p->k, 0, row, 1, p->dim_qk);
}

template <int BYTES> DEVICE void pages_gather(const attn_pages_params *p)
{
    int b = (int)(blockIdx.x / p->entries), entry = (int)(blockIdx.x % p->entries);
    long long len = p->lens_kv[b], page_size = p->table.page_size, first = entry * page_size;
    long long start = p->cu_lens ? p->cu_lens[b] : 0;
    long long room = p->cu_lens ? p->cu_lens[b + 1] - start : p->len_kv;
    if (len < 0 || len > p->len_kv || len > room || start < 0 || start + len > p->rows) {
        pages_fault(p);
        return;
    }
    if (first >= len) return;
    long long page = page_entry(page_list_of(&p->table, b), entry);
    if (page == -1) return; /* it was dropped */
    if (!is_page(&p->table, page)) {
        pages_fault(p);
        return;
    }
    int slots = (int)(len - first < page_size ? len - first : page_size);
    int plane = p->cu_lens ? 0 : b;
    pages_move<BYTES, PAGES_THREADS>(p, &p->k, plane, start + first, &p->k_pages, page, 0, slots, p->dim_qk);
    pages_move<BYTES, PAGES_THREADS>(p, &p->v, plane, start + first, &p->v_pages, page, 0, slots, p->dim_v);
}

template <int BYTES> DEVICE void pages_copy(const attn_pages_params *p)
{
    long long from = p->pairs[2LL * blockIdx.x], to = p->pairs[2LL * blockIdx.x + 1];
    if (from == -1) return;
    if (from < 0 || from >= p->pages_from || !is_page(&p->table, to)) {
        pages_fault(p);
        return;
    }
    pages_move<BYTES, PAGES_THREADS>(p, &p->k_pages, to, 0, &p->k, from, 0, (int)p->table.page_size, p->dim_qk);
    pages_move<BYTES, PAGES_THREADS>(p, &p->v_pages, to, 0, &p->v, from, 0, (int)p->table.page_size, p->dim_v);
}

/* attn_pages_append_<dtype>_<bytes>, attn_pages_gather_<bytes>, attn_pages_copy_<bytes>: load (cuda/kv.c) puts such
 * names together. bytes: of an access. */
#define PAGES_KERNEL(name, threads, call)                                   \
    extern "C" __global__ void __launch_bounds__(threads)                   \
        attn_pages_##name(const __grid_constant__ attn_pages_params params) \
    {                                                                       \
        call(&params);                                                      \
    }

PAGES_KERNEL(append_f32_4, 2 * PAGES_ROW_THREADS, (pages_append<F32, u32, 4>))
PAGES_KERNEL(append_f32_16, 2 * PAGES_ROW_THREADS, (pages_append<F32, u32, 16>))
PAGES_KERNEL(append_f16_2, 2 * PAGES_ROW_THREADS, (pages_append<F16, unsigned short, 2>))
PAGES_KERNEL(append_f16_16, 2 * PAGES_ROW_THREADS, (pages_append<F16, unsigned short, 16>))
PAGES_KERNEL(append_bf16_2, 2 * PAGES_ROW_THREADS, (pages_append<BF16, unsigned short, 2>))
PAGES_KERNEL(append_bf16_16, 2 * PAGES_ROW_THREADS, (pages_append<BF16, unsigned short, 16>))
PAGES_KERNEL(gather_2, PAGES_THREADS, pages_gather<2>)
PAGES_KERNEL(gather_4, PAGES_THREADS, pages_gather<4>)
PAGES_KERNEL(gather_16, PAGES_THREADS, pages_gather<16>)
PAGES_KERNEL(copy_2, PAGES_THREADS, pages_copy<2>)
PAGES_KERNEL(copy_4, PAGES_THREADS, pages_copy<4>)
PAGES_KERNEL(copy_16, PAGES_THREADS, pages_copy<16>)
