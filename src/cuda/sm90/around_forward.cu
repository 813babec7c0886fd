/* The kernels before and after a variant of the forward: the summaries of intervals and of bits, copies of tensors that
 * TMA does not take, the combination of splits. */
#include "common/combine.h"
#include "common/gpu.h"
#include "common/mask_pair.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "sm90/common/bits.h"
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

/* Least and greatest of each bound over the keys of a KV tile, or of a group of tiles; of a tile, its intervals as
 * variants read them. */
extern "C" __global__ void __launch_bounds__(128)
    attn_sm90_interval_summary(const __grid_constant__ attn_sm90_params params)
{
    const attn_sm90_params *p = &params;
    __shared__ int part[4][8];
    int summary = blockIdx.x, heads = gridDim.y, group = p->shape.heads_q / p->shape.heads_kv;
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
    p->mask.summaries[(((long long)blockIdx.z * heads + blockIdx.y) * gridDim.x + summary) * 8 + threadIdx.x] = x;
}

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

template <class type> DEVICE void repack_row(const attn_sm90_repack_params *p)
{
    long long row = blockIdx.x, batch = blockIdx.y;
    constexpr int each = 16 / sizeof(type), in_word = 4 / sizeof(type);
    const type *in = (const type *)p->in + batch * p->stride[0] + row * p->stride[1];
    u32 pieces = p->pitch / each;
    uint4 *out = (uint4 *)p->out + (batch * p->rows + row) * p->heads * pieces;
    for (u32 i = threadIdx.x; i < p->heads * pieces; i += 256) {
        int head = (int)(i / pieces), column = (int)(i % pieces * each);
        const type *from = in + head * p->stride[2] + column;
        u32 word[4] = { 0, 0, 0, 0 };
#pragma unroll
        for (int j = 0; j < each; j++) /* after the last dim is nothing that a kernel reads */
            word[j / in_word] |= column + j < p->dim ? (u32)from[j] << j % in_word * 8 * sizeof(type) : 0;
        out[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

extern "C" __global__ void __launch_bounds__(256) attn_sm90_repack(const __grid_constant__ attn_sm90_repack_params p)
{
    if (p.bytes == 1)
        repack_row<unsigned char>(&p);
    else
        repack_row<unsigned short>(&p);
}
