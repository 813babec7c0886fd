/* The kernels around the forward: slow ones that compute everything, the merge of splits, the summary of intervals, and
 * copies of tensors that TMA does not take. */
#include "sm90/params.h"
#include "sm90/common/ptx.h"
#include "common/sequence.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/dropout.h"
#include "common/support.h"

/* Whether a row of the tensor is some sequence's: a split stored it. VARLEN: `row` counts over all sequences. */
DEVICE bool combined_row(const attn_sm90_params *p, int batch, int row)
{
    if (!(p->flags & FLAG_VARLEN)) return row < sequence_of(0, p->lens_q, batch, p->len_q).y;
    int lo = 0,
        hi = p->batch; /* the last sequence that starts at or before the row; empty ones before it do not count */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (p->cu_lens_q[mid + 1] <= row)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo >= p->batch) return false;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, lo, 0);
    return row >= q.x && row < q.x + q.y;
}

#define FALLBACK_DTYPE F32
#define FALLBACK_NAME(stem) stem##_f32
#include "common/fallback_forward.h"
#undef FALLBACK_DTYPE
#undef FALLBACK_NAME
#define FALLBACK_DTYPE F16
#define FALLBACK_NAME(stem) stem##_f16
#include "common/fallback_forward.h"
#undef FALLBACK_DTYPE
#undef FALLBACK_NAME
#define FALLBACK_DTYPE BF16
#define FALLBACK_NAME(stem) stem##_bf16
#include "common/fallback_forward.h"

/* Least and greatest of each bound over a node's keys. */
extern "C" __global__ void __launch_bounds__(128) attn_sm90_nodes(const __grid_constant__ attn_sm90_params params)
{
    const attn_sm90_params *p = &params;
    __shared__ int part[4][8];
    int node = blockIdx.x, heads = gridDim.y, group = p->heads_q / p->heads_kv;
    work_item w = { 0 };
    w.batch = blockIdx.z;
    int least[4] = { 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff }, most[4] = { -1, -1, -1, -1 };
    int keys = p->mask.node_keys, tiles = (p->len_kv + keys - 1) / keys;
    int place = node < tiles ? node : node - tiles, span = node < tiles ? keys : ATTN_SM90_NODE_GROUP * keys;
    int end = (int)min((long long)p->len_kv, (place + 1LL) * span);
    for (int key = place * span + threadIdx.x; key < end; key += 128) {
        int4 v = interval_of(p, &w, blockIdx.y * group, key);
        int bounds[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int i = 0; i < 4; i++)
            least[i] = min(least[i], bounds[i]), most[i] = max_of(most[i], bounds[i]);
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
        x = threadIdx.x < 4 ? min(x, part[i][threadIdx.x]) : max_of(x, part[i][threadIdx.x]);
    p->mask.nodes[(((long long)blockIdx.z * heads + blockIdx.y) * gridDim.x + node) * 8 + threadIdx.x] = x;
}

extern "C" __global__ void __launch_bounds__(256) attn_sm90_repack(const __grid_constant__ attn_sm90_repack_params p)
{
    long long row = blockIdx.x, batch = blockIdx.y;
    const unsigned short *in = (const unsigned short *)p.in + batch * p.stride[0] + row * p.stride[1];
    unsigned short *out = (unsigned short *)p.out + (batch * p.rows + row) * p.heads * p.pitch;
    for (int i = threadIdx.x; i < p.heads * p.dim; i += 256)
        out[(long long)(i / p.dim) * p.pitch + i % p.dim] = in[i / p.dim * p.stride[2] + i % p.dim];
}
