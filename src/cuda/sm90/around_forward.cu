/* The kernels before and after a variant of the forward: the summary of intervals, copies of tensors that TMA does not
 * take, the combination of splits. */
#include "common/combine.h"
#include "common/gpu.h"
#include "common/mask_pair.h"
#include "common/pages_params.h"
#include "common/params.h"
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
