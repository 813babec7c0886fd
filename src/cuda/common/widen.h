/* Elements of a byte, times their scales, in a 16-bit type: a copy in the workspace, for kernels that take that type
 * alone. Bytes are exact in it, and so are their products with powers of two; other products are rounded once. Where a
 * scale is beyond what the type holds, `unfit` says so and the copy does not count. Grid: widen_params.h. */
#ifndef ATTN_CUDA_COMMON_WIDEN_H
#define ATTN_CUDA_COMMON_WIDEN_H

#include "common/cache.h"
#include "common/element.h"
#include "common/gpu.h"
#include "common/mask.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "common/widen_params.h"

/* A sequence: the keys that its rows see by ranges are among [lo, hi); those before `begin` and from `end` on no KV
 * tile of these has, or no page. Of q: its rows from `begin` to `end`. */
struct widened_sequence {
    int batch, lo, hi, begin, end;
    long long plane_in, start, out; /* row of in, and of the copy, where key or row 0 lies */
    page_list pages;
};

DEVICE widened_sequence sequence_to_widen(const attn_cuda_widen_params *p)
{
    const attn_cuda_shape *shape = &p->shape;
    widened_sequence s = {};
    bool varlen = shape->flags & FLAG_VARLEN;
    int len_kv, batch = s.batch = blockIdx.y;
    int len_q = sequence_of(queries_of(shape), batch).y;
    if (len_q <= 0) return s;
    if (p->queries) {
        s.start = start_of(queries_of(shape), batch), s.end = len_q;
        s.plane_in = varlen ? 0 : batch, s.out = varlen ? s.start : (long long)batch * shape->len_q;
        return s;
    }
    if (shape->flags & FLAG_PAGED) {
        cached_keys keys = paged_keys_of(&p->table, shape->lens_kv, shape->len_kv, batch);
        len_kv = keys.length, s.pages = keys.pages;
        s.out = (s.pages.ids - p->table.ids) * p->table.page_size;
    } else {
        int2 span = sequence_of(keys_of(shape), batch);
        s.start = span.x, len_kv = span.y;
        s.plane_in = varlen ? 0 : batch, s.out = varlen ? s.start : (long long)batch * shape->len_kv;
    }
    if (len_kv <= 0) return s;
    long long shift = position_shift(&p->mask, batch, len_q, len_kv);
    key_ranges first = placed_ranges(&p->mask, batch, len_kv, shift),
               last = placed_ranges(&p->mask, batch, len_kv, shift + len_q - 1);
    s.lo = first.lo[0] < last.hi[0] ? min(first.lo[0], first.lo[1]) : first.lo[1];
    s.hi = max(last.hi[0], last.hi[1]);
    if (s.lo >= s.hi) return s;
    s.begin = s.lo / p->tile * p->tile, s.end = min(len_kv, (s.hi + p->tile - 1) / p->tile * p->tile);
    if (!(shape->flags & FLAG_PAGED)) return s;
    int page_size = (int)p->table.page_size, last_page = divided(s.hi - 1, p->by_page);
    s.begin = max(s.begin, divided(s.lo, p->by_page) * page_size);
    s.end = (int)min((long long)s.end, (last_page + 1LL) * page_size);
    return s;
}

/* The page table of the copy, from the first entry that some row sees to the last. Others may say anything, here as in
 * the run's table: nobody reads them. */
DEVICE void write_ids(const attn_cuda_widen_params *p, const widened_sequence *s)
{
    if (s->lo >= s->hi) return;
    long long at = s->pages.ids - p->table.ids;
    int thread = blockIdx.x * ATTN_CUDA_WIDEN_THREADS + threadIdx.x, last = divided(s->hi - 1, p->by_page);
    for (long long i = divided(s->lo, p->by_page) + thread; i <= last; i += gridDim.x * ATTN_CUDA_WIDEN_THREADS)
        p->ids[at + i] = is_page(&p->table, s->pages.ids[i]) ? (int)(at + i) : -1;
}

/* A piece of the copy: the bytes that it comes from, their scale, or 1 where those of channels differ, and which piece
 * of its row it is; -1: it is not written. */
struct widened_piece {
    u32 low, high;
    float scale;
    int place;

    /* Piece i of the rows from `key0` on. */
    INLINE void load(const attn_cuda_widen_params *p, const attn_cuda_widened *w, const widened_sequence *s, int key0,
                     int i)
    {
        const attn_cuda_scale *by = &w->scale;
        int row = divided(i, w->by_row), head, column, key = key0 + row;
        place = i - row * w->heads * w->pieces, head = divided(place, w->by_head);
        column = (place - head * w->pieces) * ATTN_CUDA_WIDEN_COLUMNS;
        long long plane = s->plane_in, line = s->start + key, block_plane = s->batch;
        int slot = key, count = min(w->dim - column, ATTN_CUDA_WIDEN_COLUMNS);
        low = high = 0, scale = 1;
        if (p->shape.flags & FLAG_PAGED) {
            int entry = divided(key, p->by_page);
            plane = s->pages.ids[entry], line = slot = key - entry * (int)p->table.page_size;
            if (by->rows) block_plane = plane;
            if (!is_page(&p->table, plane)) {
                place = -1;
                return;
            }
        }
        if (by->at && !by->stride[3]) {
            int block = by->rows ? slot >> (__ffs(by->rows) - 1) : 0;
            scale = by->at[block_plane * by->stride[0] + block * by->stride[1] +
                           divided(head, w->by_group) * by->stride[2]];
        }
        const unsigned char *from =
            (const unsigned char *)w->in + plane * w->stride[0] + line * w->stride[1] + head * w->stride[2] + column;
        if (count == ATTN_CUDA_WIDEN_COLUMNS && (u64)from % 8 == 0) {
            uint2 bytes = *(const uint2 *)from;
            low = bytes.x, high = bytes.y;
            return;
        }
#pragma unroll
        for (int j = 0; j < ATTN_CUDA_WIDEN_COLUMNS; j++)
            if (j < count) (j < 4 ? low : high) |= (u32)from[j] << j % 4 * 8;
    }

    /* Writes it. True: a scale is beyond dtype, and elements are not zeros. */
    template <int dtype, int in> INLINE bool store(const attn_cuda_widened *w, int batch, uint4 *out) const
    {
        /* Twice the greatest element that a scale may have, 2^8 of f16's 2^16, or of bf16's 2^127; but of V less, which
         * P multiplies before a row's maximum is known. The least still leaves f16 eight bits of an integer. */
        const float most = dtype == F16 ? 128
                           : blockIdx.z ? 0x1p40f
                                        : 0x1p100f,
                    least = dtype == F16 ? 0x1p-16f : 0x1p-100f;
        const long long step = w->scale.stride[3]; /* of channels, whose scales have no blocks */
        u32 halves[4], words[4];
        if (place < 0) return false;
        halves_of_bytes<in>(low, &halves[0], &halves[1]);
        halves_of_bytes<in>(high, &halves[2], &halves[3]);
        bool some = (low | high) & (in == E4M3 ? 0x7f7f7f7f : ~0u),
             beyond = fabsf(scale) > most || (fabsf(scale) < least && some);
        int head = divided(place, w->by_head), column = (place - head * w->pieces) * ATTN_CUDA_WIDEN_COLUMNS,
            count = min(w->dim - column, ATTN_CUDA_WIDEN_COLUMNS);
        const float *channels = w->scale.at + batch * w->scale.stride[0] + head * w->scale.stride[2] + column * step;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float by = scale;
                x[j] = half_to_float((unsigned short)(halves[i] >> 16 * j));
                if (w->scale.at && step) {
                    by = 2 * i + j < count ? channels[(2 * i + j) * step] : 1;
                    beyond = beyond || fabsf(by) > most || (fabsf(by) < least && x[j] != 0);
                }
                x[j] = __fmul_rn(x[j], by);
            }
            words[i] = pack_as(dtype, x[0], x[1]);
        }
        if (count < ATTN_CUDA_WIDEN_COLUMNS) /* zero times NaN */
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i] &= 2 * i + 1 < count ? ~0u : 2 * i < count ? 0xffff : 0;
        *out = make_uint4(words[0], words[1], words[2], words[3]);
        return beyond;
    }
};

/* in: of the bytes. Each thread has several pieces on their way. */
template <int dtype, int in> DEVICE void widen(const attn_cuda_widen_params *p)
{
    enum { EACH = ATTN_CUDA_WIDEN_PIECES / ATTN_CUDA_WIDEN_THREADS };
    const attn_cuda_widened *w = &p->of[blockIdx.z];
    widened_sequence s = sequence_to_widen(p);
    int of_row = w->heads * w->pieces, step = gridDim.x * p->block_rows;
    bool beyond = false;
    if (p->shape.flags & FLAG_PAGED && blockIdx.z == 0) write_ids(p, &s);
    for (int key0 = s.begin + blockIdx.x * p->block_rows; key0 < s.end; key0 += step) {
        int count = min(p->block_rows, s.end - key0) * of_row;
        uint4 *out = (uint4 *)w->out + (s.out + key0) * of_row;
        for (int first = threadIdx.x; first < count; first += ATTN_CUDA_WIDEN_PIECES) {
            widened_piece x[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int at = first + ATTN_CUDA_WIDEN_THREADS * i;
                x[i].load(p, w, &s, key0, min(at, count - 1));
                if (at >= count) x[i].place = -1;
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (x[i].template store<dtype, in>(w, s.batch, out + first + ATTN_CUDA_WIDEN_THREADS * i))
                    beyond = true;
        }
    }
    if (beyond) *p->unfit = 1;
}

template <int dtype> DEVICE void widen(const attn_cuda_widen_params *p)
{
    if (p->in_dtype == E4M3)
        widen<dtype, E4M3>(p);
    else
        widen<dtype, I8>(p);
}

#endif
