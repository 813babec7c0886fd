/* The kernels before and after a variant of the forward: bits of the last keys as bits of all, the summaries of
 * intervals and of bits, copies of tensors that TMA does not take, the combination of splits. */
#include "common/combine.h"
#include "common/gpu.h"
#include "common/mask_pair.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "sm90/common/bits.h"
#include "sm90/common/find_spans.h"
#include "sm90/params.h"

/* attn_<architecture>_<stem>_<dtype>: attn_cuda_load_dtype (cuda/load.c) puts such names together. */
#define COMBINE(dtype, name)                                                                   \
    extern "C" __global__ void __launch_bounds__(128)                                          \
        attn_sm90_combine_##name(const __grid_constant__ attn_sm90_params params)              \
    {                                                                                          \
        combine_row<dtype>(&params.shape, params.schedule.splits, params.schedule.split_rows); \
    }

COMBINE(F32, f32)
COMBINE(F16, f16)
COMBINE(BF16, bf16)

/* Rows [first, end), or all but these, as first and count modulo 2^32. */
DEVICE uint2 rows_between(int first, int end)
{
    first = max(first, 0);
    return make_uint2(first, max(end - first, 0));
}

DEVICE uint2 rows_outside(int first, int end)
{
    first = max(first, 0), end = max(end, 0);
    return first < end ? make_uint2(end, (u32)first - (u32)end) : make_uint2(0, 1u << 31);
}

/* Key `at` of a KV tile as variants read it; v: what its interval hides. */
DEVICE void store_interval(uint2 *tile, int keys, int vectors, int at, int4 v)
{
    tile[at] = vectors < 4 && v.w > 0 ? rows_outside(v.w, v.x) : rows_between(v.x, v.y);
    if (vectors == 4) tile[keys + at] = rows_between(v.z, v.w);
}

/* A block's: least and greatest of each bound over the keys of a KV tile, or of a group of tiles; of a tile, its
 * intervals as variants read them. */
DEVICE void summarise_intervals(const attn_sm90_params *p)
{
    __shared__ int part[4][8];
    int summary = blockIdx.x, heads = gridDim.y, count = ATTN_CUDA_SUMMARIES(p->shape.len_kv, p->mask.summary_keys),
        group = p->shape.heads_q / p->shape.heads_kv;
    struct {
        int batch;
    } sequence = { (int)blockIdx.z };
    int least[4] = { 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff }, most[4] = { -1, -1, -1, -1 };
    int keys = p->mask.summary_keys, tiles = (p->shape.len_kv + keys - 1) / keys;
    int number = summary < tiles ? summary : summary - tiles,
        span = summary < tiles ? keys : ATTN_CUDA_SUMMARY_GROUP * keys;
    int first = number * span, last = (int)min((long long)span, (long long)p->shape.len_kv - first);
    uint2 *tile = NULL;
    if (p->mask.interval_tiles && summary < tiles)
        tile = (uint2 *)interval_tile_of(&p->shape, &p->mask, &sequence, blockIdx.y * group, summary, keys);
#pragma unroll 8
    for (int at = threadIdx.x; at < (tile ? keys : last); at += 128) {
        int4 v = make_int4(0, 0, 0, 0);
        bool valid = at < last;
        if (valid) v = interval_of(&p->shape, &p->mask, &sequence, blockIdx.y * group, first + at);
        if (tile) store_interval(tile, keys, p->mask.interval_vectors, at, v);
        int bounds[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int i = 0; i < 4; i++)
            least[i] = valid ? min(least[i], bounds[i]) : least[i], most[i] = max(most[i], valid ? bounds[i] : -1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        least[i] = __reduce_min_sync(~0u, least[i]), most[i] = __reduce_max_sync(~0u, most[i]);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][i] = least[i], part[threadIdx.x / 32][i + 4] = most[i];
    }
    __syncthreads();
    if (threadIdx.x >= 8) return;
    int x = part[0][threadIdx.x];
    for (int i = 1; i < 4; i++)
        x = threadIdx.x < 4 ? min(x, part[i][threadIdx.x]) : max(x, part[i][threadIdx.x]);
    p->mask.summaries[(((long long)blockIdx.z * heads + blockIdx.y) * count + summary) * 8 + threadIdx.x] = x;
}

extern "C" __global__ void __launch_bounds__(128)
    attn_sm90_interval_summary(const __grid_constant__ attn_sm90_params params)
{
    summarise_intervals(&params);
}

/* ---- spans --------------------------------------------------------------------------------- */

/* The rows that a key's intervals leave it; fits: they lie side by side. */
struct rows_left {
    int first, end;
    bool fits;
};

DEVICE rows_left rows_between_intervals(int4 v, int len_q)
{
    bool below = v.x < min(v.y, len_q) && v.y > 0, above = v.z < min(v.w, len_q) && v.w > 0;
    int first = above ? min(v.w, len_q) : 0, end = below ? max(v.x, 0) : len_q;
    if (first >= end) first = end = len_q; /* as of keys after all others */
    return { first, end, !(below && v.y < len_q) && !(above && v.z > 0) };
}

/* What ranges leave a row. */
DEVICE int2 ranged_span(const attn_sm90_params *p, const sequence_lengths *w, int row)
{
    key_ranges seen = ranges_of_row(&p->mask, w, row);
    if (!p->mask.prefix) return make_int2(seen.lo[1], seen.hi[1]);
    return make_int2(min(seen.lo[0], seen.lo[1]), max(seen.hi[0], seen.hi[1]));
}

/* The spans of a head's rows, and the intervals of its keys. */
struct spans_writer {
    const attn_sm90_params *p;
    sequence_lengths w;
    int2 *spans;
    const int *intervals;

    INLINE rows_left left(int key) const
    {
        bool causal = p->shape.flags & FLAG_CAUSAL;
        int vectors = p->mask.interval_vectors;
        return rows_between_intervals(interval_at(intervals + (long long)key * vectors, vectors, causal), w.len_q);
    }

    /* Rows see keys from `key` on, or up to it. */
    INLINE void start(int row, int key) const
    {
        spans[row].x = max(ranged_span(p, &w, row).x, key);
    }

    INLINE void end(int row, int key) const
    {
        spans[row].y = min(ranged_span(p, &w, row).y, key);
    }

    /* Each key leaves a run of rows; both ends of the runs ascend with the keys. So a row's first key is the first one
     * whose run ends after the row, and the end of its keys is the first one whose run begins after it. Here: rows for
     * which that is key 0, or no key. */
    INLINE void write_outer(int row) const
    {
        rows_left first = left(0), last = left(w.len_kv - 1);
        if (row < first.end || row >= last.end) start(row, row < first.end ? 0 : w.len_kv);
        if (row < first.first || row >= last.first) end(row, row < first.first ? 0 : w.len_kv);
    }

    /* Rows [first, end_row), for which it is the thread's key. The warp writes long runs of rows together. */
    template <bool starts> INLINE void write_between(int first, int end_row, int key) const
    {
        const int few = 4;
        int lane = threadIdx.x % 32;
        bool is_long = end_row - first > few;
        for (int row = first; row < end_row && !is_long; row++)
            starts ? start(row, key) : end(row, key);
        for (u32 rest = __ballot_sync(~0u, is_long); rest; rest &= rest - 1) {
            int of = __ffs(rest) - 1, last = __shfl_sync(~0u, end_row, of), at = __shfl_sync(~0u, key, of);
            for (int row = __shfl_sync(~0u, first, of) + lane; row < last; row += 32)
                starts ? start(row, at) : end(row, at);
        }
    }

    /* By the thread's key, and the one before. False: rows may see keys that do not lie side by side. */
    INLINE bool write_inner(int key) const
    {
        rows_left rows = { 0, 0, true }, before = rows;
        if (key < w.len_kv) before = rows = left(key);
        if (key > 0 && key < w.len_kv) before = left(key - 1);
        write_between<true>(before.end, rows.end, key);
        write_between<false>(before.first, rows.first, key);
        return rows.fits && before.first <= rows.first && before.end <= rows.end;
    }
};

/* A thread takes a row and a key at a time. With intervals there are more blocks, which come first and summarise them;
 * and each of the others has a flag: it found rows whose keys are no span. */
extern "C" __global__ void __launch_bounds__(ATTN_SM90_SPAN_ROWS, 1)
    attn_sm90_find_spans(const __grid_constant__ attn_sm90_params params)
{
    const attn_sm90_params *p = &params;
    bool intervals = p->shape.flags & FLAG_INTERVALS;
    int summaries = intervals ? ATTN_CUDA_SUMMARIES(p->shape.len_kv, p->mask.summary_keys) : 0;
    let_dependents_start();
    if ((int)blockIdx.x < summaries) {
        summarise_intervals(p);
        return;
    }
    int block = (int)blockIdx.x - summaries, blocks = (int)gridDim.x - summaries, batch = blockIdx.z;
    int plane = batch * (int)gridDim.y + (int)blockIdx.y,
        head = (int)blockIdx.y * (p->shape.heads_q / p->shape.heads_kv);
    spans_writer to = { p,
                        lengths_of(p, batch),
                        (int2 *)p->spans.of + (long long)plane * p->spans.pitch,
                        NULL };
    if (intervals) to.intervals = intervals_of(&p->shape, &p->mask, &to.w, head);
    bool fits = true;
    int most = intervals ? max(p->shape.len_q, to.w.len_kv) : p->shape.len_q;
    for (int first = block * ATTN_SM90_SPAN_ROWS; first < most; first += blocks * ATTN_SM90_SPAN_ROWS) {
        int at = first + (int)threadIdx.x;
        if (at >= to.w.len_q || !to.w.len_kv) {
            if (at < p->shape.len_q) to.spans[at] = make_int2(0, 0);
        } else if (intervals) {
            to.write_outer(at);
        } else {
            to.spans[at] = ranged_span(p, &to.w, at);
        }
        if (intervals) fits = to.write_inner(at) && fits;
    }
    end_block_of_spans(p, plane * blocks + block, fits);
}

/* ---- bits ---------------------------------------------------------------------------------- */

/* Of 128 keys: which some row sees, and which all see. */
struct seen_keys {
    uint4 some, all;

    INLINE void add(uint4 row)
    {
        some.x |= row.x, some.y |= row.y, some.z |= row.z, some.w |= row.w;
        all.x &= row.x, all.y &= row.y, all.z &= row.z, all.w &= row.w;
    }
};

/* 128 keys of rows first, first + step, ... of ATTN_CUDA_BIT_ROWS, up to `last`, of which some come twice. */
DEVICE seen_keys look_at_rows(const unsigned char *bits, int at, int pitch, int first, int step, int last)
{
    enum { MOST = ATTN_CUDA_BIT_ROWS / 8 }; /* step is 8 at least */
    seen_keys seen = { make_uint4(0, 0, 0, 0), make_uint4(~0u, ~0u, ~0u, ~0u) };
    if (((u64)bits | (u32)pitch) % 16 == 0) {
        uint4 row[MOST];
#pragma unroll
        for (int i = 0; i < MOST; i++)
            row[i] = *(const uint4 *)(bits + (long long)min(first + i * step, last) * pitch + at);
#pragma unroll
        for (int i = 0; i < MOST; i++)
            seen.add(row[i]);
        return seen;
    }
    bool whole = ((u64)bits | (u32)pitch) % 4 == 0;
#pragma unroll 1
    for (int i = 0; i < MOST; i++) {
        const unsigned char *row = bits + (long long)min(first + i * step, last) * pitch;
        seen.add(make_uint4(load_bits<4>(row, at, pitch, whole), load_bits<4>(row, at + 4, pitch, whole),
                            load_bits<4>(row, at + 8, pitch, whole), load_bits<4>(row, at + 12, pitch, whole)));
    }
    return seen;
}

/* What bits show of 32 KV tiles to ATTN_CUDA_BIT_ROWS rows. */
extern "C" __global__ void __launch_bounds__(256) attn_sm90_bit_tiles(const __grid_constant__ attn_sm90_params params)
{
    const attn_sm90_params *p = &params;
    __shared__ uint4 some[256], all[256]; /* of a thread, its own; later those that share keys with it */
    const int keys = p->mask.summary_keys, pieces = keys / 4, step = 256 / pieces, thread = threadIdx.x;
    int words = (p->shape.len_kv + 32 * keys - 1) / (32 * keys), group = blockIdx.x % words,
        row0 = (int)(blockIdx.x / words) * ATTN_CUDA_BIT_ROWS, pitch = bits_pitch(&p->shape);
    long long plane = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const unsigned char *bits = p->mask.bits + (plane * p->shape.len_q + row0) * pitch;
    int at = group * keys * 4 + thread % pieces * 16, last = min(ATTN_CUDA_BIT_ROWS, p->shape.len_q - row0) - 1;
    if (thread < step * pieces && at < pitch) {
        seen_keys seen = look_at_rows(bits, at, pitch, thread / pieces, step, last);
        some[thread] = seen.some, all[thread] = seen.all;
    }
    __syncthreads();
    u32 *some_words = (u32 *)some, *all_words = (u32 *)all;
    for (int i = 1; i < step && thread < keys; i++)
        some_words[thread] |= some_words[i * keys + thread], all_words[thread] &= all_words[i * keys + thread];
    __syncthreads();
    if (thread >= 32) return;
    int count = min(keys, p->shape.len_kv - (group * 32 + thread) * keys); /* of the keys of the thread's tile */
    bool is_seen = false, is_full = true;
    for (int key = 0; key < count; key += 16) {
        u32 mask = count - key < 16 ? (1u << (count - key)) - 1 : 0xffff;
        int half = (thread * keys + key) / 16;
        is_seen = is_seen || some_words[half / 2] >> half % 2 * 16 & mask;
        is_full = is_full && !(~(all_words[half / 2] >> half % 2 * 16) & mask);
    }
    uint2 tiles = make_uint2(__ballot_sync(~0u, is_seen), __ballot_sync(~0u, is_full));
    if (thread == 0) ((uint2 *)p->mask.bit_tiles)[plane * gridDim.x + blockIdx.x] = tiles;
}

/* 32 bits from bit `first` on of a row of `pitch` bytes; what comes before and after these are ones. */
DEVICE u32 widened_bits(const unsigned char *row, int pitch, int first)
{
    u64 bits = 0;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        int at = (first >> 3) + i;
        bits |= (u64)(at >= 0 && at < pitch ? row[at] : 0xff) << 8 * i;
    }
    return (u32)(bits >> (first & 7));
}

/* A warp writes a row. */
extern "C" __global__ void __launch_bounds__(256) attn_sm90_widen_bits(const __grid_constant__ attn_sm90_widen_params p)
{
    const attn_cuda_shape *shape = &p.shape;
    int row = blockIdx.x * 8 + threadIdx.x / 32, sequence = blockIdx.z;
    if (row >= shape->len_q) return;
    int len_kv = sequence_of(keys_of(shape), sequence).y, before = len_kv - p.bits_keys;
    int pitch = bits_pitch(shape), known = bits_pitch(shape, p.bits_keys);
    long long line = ((long long)sequence * gridDim.y + blockIdx.y) * shape->len_q + row;
    long long from = ((long long)(p.bits_batch == 1 ? 0 : sequence) * gridDim.y + blockIdx.y) * shape->len_q + row;
    const unsigned char *bits = p.bits + from * known;
    unsigned char *out = p.out + line * pitch;
    for (int at = threadIdx.x % 32 * 4; at < pitch; at += 128) {
        u32 word = widened_bits(bits, known, at * 8 - before);
        if (pitch % 4 == 0) *(u32 *)(out + at) = word;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (pitch % 4 && at + i < pitch) out[at + i] = (unsigned char)(word >> 8 * i);
    }
}

/* 16 bytes at a multiple of 16; those outside of the tensor are zeros, and not read. */
DEVICE uint4 load_within(const attn_sm90_copy *copy, const unsigned char *at)
{
    if (at >= copy->begin && at + 16 <= copy->end) return *(const uint4 *)at;
    u64 low = 0, high = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        u64 byte = at + i >= copy->begin && at + i < copy->end ? at[i] : 0;
        low |= i < 8 ? byte << 8 * i : 0, high |= i < 8 ? 0 : byte << 8 * (i - 8);
    }
    return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}

/* Of 32 bytes, 16 from byte `first` on, which is below 16. Where none of b is wanted, it may be anything. */
DEVICE uint4 bytes_from(uint4 a, uint4 b, int first)
{
    bool two = first & 8, one = first & 4;
    u32 x[6] = { two ? a.z : a.x, two ? a.w : a.y, two ? b.x : a.z, two ? b.y : a.w, two ? b.z : b.x, two ? b.w : b.y };
#pragma unroll
    for (int i = 0; i < 5; i++)
        x[i] = one ? x[i + 1] : x[i];
    int shift = first % 4 * 8;
    return make_uint4(__funnelshift_r(x[0], x[1], shift), __funnelshift_r(x[1], x[2], shift),
                      __funnelshift_r(x[2], x[3], shift), __funnelshift_r(x[3], x[4], shift));
}

/* The low bytes of a word; count: at most 0: none. */
DEVICE u32 low_bytes(u32 word, int count)
{
    return count >= 4 ? word : count > 0 ? word & ((1u << 8 * count) - 1) : 0;
}

/* 16 bytes of a copy. */
struct copied_piece {
    const unsigned char *at; /* where they come from */
    int count;               /* how many are before the end of their row */
    uint4 low, high;         /* the aligned pieces of the tensor that hold the first and the last of these */

    INLINE void find(const attn_sm90_copy *copy, int row0, int i)
    {
        int row = divided(i, copy->by_row), rest = i - row * copy->heads * copy->pieces;
        int head = divided(rest, copy->by_head), column = (rest - head * copy->pieces) * 16;
        at = copy->in + blockIdx.y * copy->stride[0] + (row0 + row) * copy->stride[1] + head * copy->stride[2] + column;
        count = min(copy->bytes - column, 16);
    }

    INLINE const unsigned char *piece_of(int i) const
    {
        return at + i - (u64)(at + i) % 16;
    }

    INLINE bool is_within(const attn_sm90_copy *copy) const
    {
        return piece_of(0) >= copy->begin && piece_of(count - 1) + 16 <= copy->end;
    }

    INLINE uint4 bytes() const
    {
        uint4 x = bytes_from(low, high, (int)((u64)at % 16));
        if (count == 16) return x;
        return make_uint4(low_bytes(x.x, count), low_bytes(x.y, count - 4), low_bytes(x.z, count - 8),
                          low_bytes(x.w, count - 12));
    }
};

/* Each thread has several pieces on their way, of which those after the last are the last once more. */
extern "C" __global__ void __launch_bounds__(256) attn_sm90_repack(const __grid_constant__ attn_sm90_repack_params p)
{
    enum { EACH = ATTN_SM90_COPY_PIECES / 256 };
    const attn_sm90_copy *copy = &p.of[blockIdx.z];
    int row0 = blockIdx.x * copy->block_rows, batch = blockIdx.y, of_row = copy->heads * copy->pieces;
    if (batch >= copy->batch || row0 >= copy->rows) return;
    int count = min(copy->block_rows, copy->rows - row0) * of_row;
    uint4 *out = (uint4 *)copy->out + ((long long)batch * copy->rows + row0) * of_row;
    for (int first = threadIdx.x; first < count; first += ATTN_SM90_COPY_PIECES) {
        copied_piece x[EACH];
        bool within = true;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i].find(copy, row0, min(first + 256 * i, count - 1)), within = within && x[i].is_within(copy);
        if (within) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                x[i].low = *(const uint4 *)x[i].piece_of(0), x[i].high = *(const uint4 *)x[i].piece_of(x[i].count - 1);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                x[i].low = load_within(copy, x[i].piece_of(0)),
                x[i].high = load_within(copy, x[i].piece_of(x[i].count - 1));
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (first + 256 * i < count) out[first + 256 * i] = x[i].bytes();
    }
}
