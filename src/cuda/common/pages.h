/* Operations on KV pages (pages_params.h): plain loads and stores, the widest that layouts take. What an id, a slot, a
 * length or a position out of range stands for is not written, and *fault says so. */

#include "common/element.h"
#include "common/gpu.h"
#include "common/page_table.h"
#include "common/pages_params.h"
#include "common/reduce.h"
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
template <> struct pages_unit<1> {
    typedef unsigned char type;
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

/* What becomes of the pair (x, y): its first or second element. Products and their sum are rounded each. */
DEVICE float pages_turned(float c, float s, float x, float y, bool second)
{
    return second ? __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s)) : __fadd_rn(__fmul_rn(x, c), -__fmul_rn(y, s));
}

template <int DTYPE, class T> DEVICE void pages_turn_pair(float c, float s, T *a, T *b)
{
    float x = pages_float<DTYPE, T>(*a), y = pages_float<DTYPE, T>(*b);
    *a = pages_element<DTYPE, T>(pages_turned(c, s, x, y, false));
    *b = pages_element<DTYPE, T>(pages_turned(c, s, x, y, true));
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
    int sequence;
    bool used; /* there is such a row, and nothing of it is out of range */
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
    pages_target t = { -1, 0, 0, 0, false };
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
    t.page = page, t.slot = (u32)token - entry * page_size, t.position = token, t.sequence = lo;
    return t;
}

DEVICE pages_target pages_by_slot(const attn_pages_params *p, long long row)
{
    long long slot = p->slots[row], page_size = p->table.page_size;
    pages_target t = { slot < 0 ? -1 : slot / page_size, slot % page_size, 0, 0, true };
    if (slot >= -1 && slot < p->table.pages * page_size) return t;
    pages_fault(p);
    t.used = false;
    return t;
}

/* Of a row that the run has; false: it has none there, or nothing of it is right. */
DEVICE bool pages_find_target(const attn_pages_params *p, long long row, pages_target *t)
{
    *t = p->slots ? pages_by_slot(p, row) : pages_by_position(p, row);
    if (!t->used) return false;
    if (p->positions) t->position = p->positions[row];
    if (!p->cos || (t->position >= 0 && t->position < p->cos_rows)) return true;
    pages_fault(p);
    return false;
}

/* ---- pages of one byte --------------------------------------------------------------------- */

/* Those of a slot of a page, or of a sequence: of its head 0. */
DEVICE float *pages_scales_of(const attn_pages_scales *s, int sequence, long long page, long long slot)
{
    if (!s->at) return NULL;
    return s->at + (s->rows ? page * s->stride[0] + slot / s->rows * s->stride[1] : sequence * s->stride[0]);
}

/* Element i of one head's row of floats or halves, turned where the row's cosines are there. */
template <int DTYPE, class T>
DEVICE float pages_value(const attn_pages_params *p, const T *row, const float *cosines, const float *sines, int i)
{
    float x = pages_float<DTYPE, T>(row[i]);
    if (!cosines || i >= p->rotary_dim) return x;
    int half = p->rotary_dim / 2, pair = p->interleaved ? i / 2 : i % half;
    bool second = p->interleaved ? i % 2 : i >= half;
    float other = pages_float<DTYPE, T>(row[p->interleaved ? i ^ 1 : second ? i - half : i + half]);
    return pages_turned(cosines[pair], sines[pair], second ? other : x, second ? x : other, second);
}

DEVICE unsigned char pages_byte(int dtype, float x)
{
    return dtype == E4M3 ? (unsigned char)pack_e4m3(x, 0, 0, 0) : (unsigned char)float_to_i8(x);
}

/* The scale by which the greatest of the warp's row becomes the greatest byte. */
DEVICE float pages_found_scale(int dtype, float most)
{
    const float least = __int_as_float(1 << 23); /* 2^-126 */
    float scale = __fdiv_rn(most, dtype == E4M3 ? 448 : 127);
    return most == INFINITE ? __int_as_float(0x7fc00000) : scale > least ? scale : least;
}

/* One head's row to bytes, by a warp: four neighbouring elements a lane. */
template <int DTYPE, class T>
DEVICE void pages_quantise(const attn_pages_params *p, const T *row, unsigned char *to, int dim, const float *cosines,
                           const float *sines, float *scale, long long channel)
{
    int lane = threadIdx.x % 32;
    float found = 1;
    if (scale && p->finds_scales) {
        float most = 0;
        for (int i = lane; i < dim; i += 32) {
            float x = fabsf(pages_value<DTYPE, T>(p, row, cosines, sines, i));
            most = fmaxf(most, x < INFINITE ? x : INFINITE); /* NaN counts as infinite */
        }
        found = pages_found_scale(p->pages_dtype, warp_max(most));
        if (lane == 0) *scale = found;
    } else if (scale) {
        found = *scale;
    }
    bool even = ((size_t)to | dim) % 4 == 0;
    for (int i = 4 * lane; i < dim; i += 128) {
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j >= dim) break;
            float x = pages_value<DTYPE, T>(p, row, cosines, sines, i + j);
            unsigned char byte = pages_byte(p->pages_dtype, __fdiv_rn(x, channel ? scale[(i + j) * channel] : found));
            word |= (u32)byte << 8 * j;
            if (!even) to[i + j] = byte;
        }
        if (even) *(u32 *)(to + i) = word;
    }
}

/* Elements of a row of bytes, times their scales, by a warp. */
template <int DTYPE, class T>
DEVICE void pages_restore(const attn_pages_params *p, const unsigned char *row, T *to, int dim, const float *scale,
                          long long channel)
{
    for (int i = threadIdx.x % 32; i < dim; i += 32) {
        float x = p->pages_dtype == E4M3 ? e4m3_to_float(row[i]) : (signed char)row[i];
        to[i] = pages_element<DTYPE, T>(scale ? __fmul_rn(x, scale[i * channel]) : x);
    }
}

/* A head's row of a slot. */
DEVICE unsigned char *pages_slot(const attn_pages_side *side, long long page, long long slot, int head)
{
    return (unsigned char *)side->at + page * side->stride[0] + slot * side->stride[1] + head * side->stride[2];
}

/* A warp per head of K or V; the first half of the block turns q besides. */
template <int DTYPE, class T> DEVICE void pages_append_to_bytes(const attn_pages_params *p)
{
    long long row = blockIdx.x;
    pages_target t;
    if (!pages_find_target(p, row, &t)) return;
    if (p->q.at && threadIdx.x < PAGES_ROW_THREADS)
        pages_turn<DTYPE, T, 1>(p, p->heads_q, t.position, &p->q_out, 0, row, &p->q, row);
    if (t.page < 0) return;
    const float *cosines = p->cos ? p->cos + t.position * (p->rotary_dim / 2) : NULL,
                *sines = p->cos ? p->sin + t.position * (p->rotary_dim / 2) : NULL;
    for (int i = threadIdx.x / 32; i < 2 * p->heads_kv; i += blockDim.x / 32) {
        bool second = i >= p->heads_kv;
        int head = second ? i - p->heads_kv : i;
        const attn_pages_scales *scales = second ? &p->v_scale : &p->k_scale;
        float *scale = pages_scales_of(scales, t.sequence, t.page, t.slot);
        pages_quantise<DTYPE, T>(p, (const T *)pages_at(p, second ? &p->v : &p->k, 0, row, head),
                                 pages_slot(second ? &p->v_pages : &p->k_pages, t.page, t.slot, head),
                                 second ? p->dim_v : p->dim_qk, second ? NULL : cosines, sines,
                                 scale ? scale + head * scales->stride[2] : NULL, scale ? scales->stride[3] : 0);
    }
}

/* ---- kernels ------------------------------------------------------------------------------- */

/* The block's first half turns or moves K, and turns q; the second one moves V. */
template <int DTYPE, class T, int BYTES> DEVICE void pages_append(const attn_pages_params *p)
{
    enum { COUNT = BYTES / sizeof(T) };
    long long row = blockIdx.x;
    pages_target t;
    if (!pages_find_target(p, row, &t)) return;
    if (threadIdx.x >= PAGES_ROW_THREADS) {
        if (t.page >= 0)
            pages_move<BYTES, PAGES_ROW_THREADS>(p, &p->v_pages, t.page, t.slot, &p->v, 0, row, 1, p->dim_v);
        return;
    }
    if constexpr (sizeof(T) > 1)
        if (p->q.at) pages_turn<DTYPE, T, COUNT>(p, p->heads_q, t.position, &p->q_out, 0, row, &p->q, row);
    if (t.page < 0) return;
    bool turns = false; /* bytes never */
    if constexpr (sizeof(T) > 1) {
        turns = p->cos;
        if (turns) pages_turn<DTYPE, T, COUNT>(p, p->heads_kv, t.position, &p->k_pages, t.page, t.slot, &p->k, row);
    }
    if (!turns) pages_move<BYTES, PAGES_ROW_THREADS>(p, &p->k_pages, t.page, t.slot, &p->k, 0, row, 1, p->dim_qk);
}

/* The first `slots` slots of a page are rows from `first` on of `plane`. False: there is nothing to gather. */
typedef struct pages_gathered {
    long long page, first;
    int sequence, plane, slots;
} pages_gathered;

DEVICE bool pages_find_gathered(const attn_pages_params *p, pages_gathered *g)
{
    int b = (int)(blockIdx.x / p->entries), entry = (int)(blockIdx.x % p->entries);
    long long len = p->lens_kv[b], page_size = p->table.page_size, first = entry * page_size;
    long long start = p->cu_lens ? p->cu_lens[b] : 0;
    long long room = p->cu_lens ? p->cu_lens[b + 1] - start : p->len_kv;
    if (len < 0 || len > p->len_kv || len > room || start < 0 || start + len > p->rows) {
        pages_fault(p);
        return false;
    }
    if (first >= len) return false;
    long long page = page_entry(page_list_of(&p->table, b), entry);
    if (page == -1) return false; /* it was dropped */
    if (!is_page(&p->table, page)) {
        pages_fault(p);
        return false;
    }
    g->page = page, g->first = start + first, g->sequence = b, g->plane = p->cu_lens ? 0 : b;
    g->slots = (int)(len - first < page_size ? len - first : page_size);
    return true;
}

template <int BYTES> DEVICE void pages_gather(const attn_pages_params *p)
{
    pages_gathered g;
    if (!pages_find_gathered(p, &g)) return;
    pages_move<BYTES, PAGES_THREADS>(p, &p->k, g.plane, g.first, &p->k_pages, g.page, 0, g.slots, p->dim_qk);
    pages_move<BYTES, PAGES_THREADS>(p, &p->v, g.plane, g.first, &p->v_pages, g.page, 0, g.slots, p->dim_v);
}

/* A warp per slot and head. */
template <int DTYPE, class T> DEVICE void pages_gather_from_bytes(const attn_pages_params *p)
{
    pages_gathered g;
    if (!pages_find_gathered(p, &g)) return;
    for (int i = threadIdx.x / 32; i < g.slots * p->heads_kv; i += PAGES_THREADS / 32) {
        int slot = i / p->heads_kv, head = i - slot * p->heads_kv;
        for (int second = 0; second < 2; second++) {
            const attn_pages_scales *scales = second ? &p->v_scale : &p->k_scale;
            const float *scale = pages_scales_of(scales, g.sequence, g.page, slot);
            pages_restore<DTYPE, T>(p, pages_slot(second ? &p->v_pages : &p->k_pages, g.page, slot, head),
                                    (T *)pages_at(p, second ? &p->v : &p->k, g.plane, g.first + slot, head),
                                    second ? p->dim_v : p->dim_qk, scale ? scale + head * scales->stride[2] : NULL,
                                    scales->stride[3]);
        }
    }
}

/* Scales of a page. */
DEVICE void pages_copy_scales(const attn_pages_params *p, const attn_pages_scales *to, long long page,
                              const attn_pages_scales *from, long long from_page)
{
    if (!to->at || !to->rows) return;
    u32 blocks = (u32)((p->table.page_size + to->rows - 1) / to->rows), heads = (u32)p->heads_kv;
    for (u32 i = threadIdx.x; i < blocks * heads; i += PAGES_THREADS) {
        u32 block = i / heads, head = i - block * heads;
        to->at[page * to->stride[0] + block * to->stride[1] + head * to->stride[2]] =
            from->at[from_page * from->stride[0] + block * from->stride[1] + head * from->stride[2]];
    }
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
    pages_copy_scales(p, &p->k_scale, to, &p->k_scale_from, from);
    pages_copy_scales(p, &p->v_scale, to, &p->v_scale_from, from);
}

/* attn_pages_append_<dtype>_<bytes>, attn_pages_gather_<bytes>, attn_pages_copy_<bytes>, and of pages of one byte
 * attn_pages_append_<dtype>_to_bytes, attn_pages_gather_<dtype>_from_bytes: load (cuda/kv.c) puts such names together.
 * bytes: of an access. */
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
PAGES_KERNEL(append_bytes_1, 2 * PAGES_ROW_THREADS, (pages_append<I8, unsigned char, 1>))
PAGES_KERNEL(append_bytes_16, 2 * PAGES_ROW_THREADS, (pages_append<I8, unsigned char, 16>))
PAGES_KERNEL(append_f32_to_bytes, 2 * PAGES_ROW_THREADS, (pages_append_to_bytes<F32, u32>))
PAGES_KERNEL(append_f16_to_bytes, 2 * PAGES_ROW_THREADS, (pages_append_to_bytes<F16, unsigned short>))
PAGES_KERNEL(append_bf16_to_bytes, 2 * PAGES_ROW_THREADS, (pages_append_to_bytes<BF16, unsigned short>))
PAGES_KERNEL(gather_f32_from_bytes, PAGES_THREADS, (pages_gather_from_bytes<F32, u32>))
PAGES_KERNEL(gather_f16_from_bytes, PAGES_THREADS, (pages_gather_from_bytes<F16, unsigned short>))
PAGES_KERNEL(gather_bf16_from_bytes, PAGES_THREADS, (pages_gather_from_bytes<BF16, unsigned short>))
PAGES_KERNEL(gather_1, PAGES_THREADS, pages_gather<1>)
PAGES_KERNEL(gather_2, PAGES_THREADS, pages_gather<2>)
PAGES_KERNEL(gather_4, PAGES_THREADS, pages_gather<4>)
PAGES_KERNEL(gather_16, PAGES_THREADS, pages_gather<16>)
PAGES_KERNEL(copy_1, PAGES_THREADS, pages_copy<1>)
PAGES_KERNEL(copy_2, PAGES_THREADS, pages_copy<2>)
PAGES_KERNEL(copy_4, PAGES_THREADS, pages_copy<4>)
PAGES_KERNEL(copy_16, PAGES_THREADS, pages_copy<16>)
