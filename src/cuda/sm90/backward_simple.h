/* Backward kernels for one dtype that need no tensor core: SIMPLE_DTYPE its number, SIMPLE_NAME(stem) its names;
 * included once a dtype.
 *
 * rows: LSE and delta, eight threads a row. convert: sums in fragment order to a gradient, a warp 16 rows. */

extern "C" __global__ void __launch_bounds__(256)
    SIMPLE_NAME(attn_sm90_backward_rows)(const __grid_constant__ attn_sm90_backward_params params)
{
    const attn_sm90_params *p = &params.common;
    __shared__ float sink_part[8];
    int head = blockIdx.y, batch = blockIdx.z, row0 = blockIdx.x * BLOCK_ROWS, dtype = SIMPLE_DTYPE;
    int part = threadIdx.x % 8, plane = p->flags & FLAG_VARLEN ? 0 : batch;
    if (p->flags & FLAG_OUT_F32) dtype = F32;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, batch, p->len_q);
    long long line0 = line_of(p, p->cu_lens_q, p->heads_q, params.q_pitch, batch, head) + row0;
    float sink = p->sink ? p->sink[head] : 0, sink_sum = 0;
    for (int at = threadIdx.x / 8; at < BLOCK_ROWS && row0 < q.y; at += 32) {
        int row = row0 + at;
        float delta = 0, lse = INFINITE;
        if (row < q.y) {
            long long o = plane * p->o_stride[0] + (q.x + row) * p->o_stride[1] + head * p->o_stride[2];
            long long g = plane * params.grad_o_stride[0] + (q.x + row) * params.grad_o_stride[1] +
                          head * params.grad_o_stride[2];
            bool o_even = !((o & 7) || ((unsigned long long)p->o & 15));
            bool g_even = !((g & 7) || ((unsigned long long)params.grad_o & 15));
            int pitch = (p->dim_v + 7) / 8 * 8;
            long long tensor_row = plane * (long long)p->len_q + q.x + row;
            unsigned short *copy = (unsigned short *)params.grad_o_copy + (tensor_row * p->heads_q + head) * pitch;
            for (int i = 8 * part; i < p->dim_v; i += 64) {
                float x[8], y[8];
                load_eight(dtype, p->o, o + i, p->dim_v - i, o_even, x);
                load_eight(dtype, params.grad_o, g + i, p->dim_v - i, g_even, y);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    delta = fmaf(x[j], y[j], delta);
                if (params.grad_o_copy)
                    *(uint4 *)(copy + i) =
                        make_uint4(pack_as(SIMPLE_DTYPE, y[0], y[1]), pack_as(SIMPLE_DTYPE, y[2], y[3]),
                                   pack_as(SIMPLE_DTYPE, y[4], y[5]), pack_as(SIMPLE_DTYPE, y[6], y[7]));
            }
        }
        delta = sum_of(delta, 8);
        if (row < q.y) {
            long long line = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + q.x + row
                                                    : ((long long)batch * p->heads_q + head) * p->len_q + row;
            lse = p->lse[line];
            if (params.grad_lse) delta -= params.grad_lse[line];
            if (lse == -INFINITE) lse = INFINITE, delta = 0;
            if (p->sink && part == 0) sink_sum -= exp2_approx((sink - lse) * LOG2_E) * delta;
        }
        float *statistics = params.stats + 2 * line0 + stat_place(at);
        if (part == 0) statistics[0] = lse * LOG2_E, statistics[BLOCK_ROWS] = delta;
        if (params.grad_q_sum)
            for (int i = part; i < params.dim / 4; i += 8)
                ((float4 *)(params.grad_q_sum + (line0 + at) * params.dim))[i] = make_float4(0, 0, 0, 0);
    }
    if (params.turns && threadIdx.x == 0 && row0 < q.y) params.turns[line0 / BLOCK_ROWS] = 0;
    if (!params.sink_parts) return;
    sink_sum = warp_sum(sink_sum);
    if (threadIdx.x % 32 == 0) sink_part[threadIdx.x / 32] = sink_sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        sink_sum += sink_part[i];
    params.sink_parts[((long long)head * gridDim.z + batch) * gridDim.x + blockIdx.x] = sink_sum;
}

extern "C" __global__ void __launch_bounds__(128)
    SIMPLE_NAME(attn_sm90_backward_convert)(const __grid_constant__ attn_sm90_convert_params p)
{
    int row0 = blockIdx.x * BLOCK_ROWS, head = blockIdx.y, batch = blockIdx.z;
    int2 rows = sequence_of(p.cu_lens, p.lens, batch, p.length);
    if (row0 >= rows.y) return;
    bool varlen = p.flags & FLAG_VARLEN;
    int dtype = p.flags & FLAG_OUT_F32 ? F32 : SIMPLE_DTYPE;
    long long line = varlen
                         ? (long long)head * p.pitch + (long long)(p.cu_lens[batch] / BLOCK_ROWS + batch) * BLOCK_ROWS
                         : ((long long)batch * p.heads + head) * p.pitch;
    const float4 *in = (const float4 *)(p.in + (line + row0) * p.dim_pitch) + threadIdx.x;
    for (int group = 0; group < p.dim_pitch / 8; group += 4) {
        float x[16];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int part = 0; part < p.parts && group + j < p.dim_pitch / 8; part++) {
                float4 y = in[part * p.part_step / 4 + (group + j) * 128];
                sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
            }
            x[4 * j] = sum.x * p.scale, x[4 * j + 1] = sum.y * p.scale;
            x[4 * j + 2] = sum.z * p.scale, x[4 * j + 3] = sum.w * p.scale;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + fragment_row(2 * r);
            long long at = (varlen ? 0 : batch * p.stride[0]) + (rows.x + row) * p.stride[1] + head * p.stride[2];
            bool even = !((at | p.dim) & 7) && !((unsigned long long)p.out & 15);
            store_row(dtype, p.out, at + 8 * group, x, 32, r, p.dim - 8 * group, row < rows.y, even);
        }
    }
}
