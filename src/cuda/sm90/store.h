/* The end of a row tile: the sums' inverses, LSE, and the output from fragments to memory.
 *
 * A quad holds 8 neighbouring columns as 2 a thread; it exchanges four such groups so that each thread has 8 columns of one: 16
 * bytes of 16-bit output, 64 bytes a quad side by side. So no shared memory is needed, any row may be missing, and
 * any strides do. */
#ifndef ATTN_CUDA_SM90_STORE_H
#define ATTN_CUDA_SM90_STORE_H

/* words[j]: of column group j, this thread's columns. Returns column group threadIdx.x % 4 whole. */
DEVICE uint4 quad_transpose(const u32 words[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    u32 keep0 = high ? words[2] : words[0], keep1 = high ? words[3] : words[1];
    u32 from0 = __shfl_xor_sync(~0u, high ? words[0] : words[2], 2);
    u32 from1 = __shfl_xor_sync(~0u, high ? words[1] : words[3], 2);
    u32 next0 = __shfl_xor_sync(~0u, odd ? keep0 : keep1, 1), next1 = __shfl_xor_sync(~0u, odd ? from0 : from1, 1);
    u32 mine0 = odd ? keep1 : keep0, mine1 = odd ? from1 : from0;
    u32 near0 = odd ? next0 : mine0, near1 = odd ? mine0 : next0; /* of this pair of lanes */
    u32 far0 = odd ? next1 : mine1, far1 = odd ? mine1 : next1;   /* of the quad's other pair */
    return high ? make_uint4(far0, far1, near0, near1) : make_uint4(near0, near1, far0, far1);
}

/* One row of the fragment (r: which of the thread's two) as 16-bit elements. */
DEVICE void store_row16(unsigned short *to, const float *out, int r, int dim_v, bool valid)
{
    bool whole = ((u64)to & 15) == 0;
#pragma unroll
    for (int c = 0; c < DIM_V / 8; c += 4) {
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            words[j] = c + j < DIM_V / 8 ? pack16(out[4 * (c + j) + 2 * r], out[4 * (c + j) + 2 * r + 1]) : 0;
        uint4 row = quad_transpose(words);
        int col = 8 * (c + threadIdx.x % 4);
        if (!valid || col >= dim_v) continue;
        if (whole && col + 8 <= dim_v) {
            *(uint4 *)(to + col) = row;
            continue;
        }
        u32 parts[4] = { row.x, row.y, row.z, row.w };
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (col + j < dim_v) to[col + j] = (unsigned short)(parts[j / 2] >> j % 2 * 16);
    }
}

DEVICE void store_row32(float *to, const float *out, int r, int dim_v, bool valid)
{
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < DIM_V / 4; i++) {
        int col = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (col < dim_v) to[col] = out[i / 2 * 4 + 2 * r + i % 2];
    }
}

DEVICE void rescale_row(float *out, int r, float scale)
{
#pragma unroll
    for (int i = 0; i < DIM_V / 4; i++)
        out[i / 2 * 4 + 2 * r + i % 2] *= scale;
}

/* Divides, and stores output and LSE of a warpgroup's rows. */
DEVICE void finish(const attn_sm90_params *p, const work *w, float *out, const softmax *soft, int group)
{
    int pack = p->schedule.pack, splits = p->schedule.splits;
    bool varlen = p->flags & FLAG_VARLEN;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int place = group * 64 + fragment_row(2 * r), row = w->row0 + place / pack, head = w->head + place % pack;
        bool valid = row < w->len_q && place / pack < ROWS / pack;
        float sum = quad_sum(soft->sum[r]), max = soft->max[r];
        if (p->sink && splits == 1 && valid) {
            float sink = p->sink[head] * 1.44269504f, top = fmaxf(max, sink), scale = exp2_approx(max - top);
            if (top == -INFINITE) top = 0, scale = 1;
            sum = sum * scale + exp2_approx(sink - top);
            rescale_row(out, r, scale);
            max = top;
        }
        float lse = sum == 0 ? -INFINITE : (max + log2_approx(sum)) * 0.693147181f, inverse = 1 / sum;
#pragma unroll
        for (int i = 0; i < DIM_V / 4; i++) {
            float *x = &out[i / 2 * 4 + 2 * r + i % 2];
            *x = sum == 0 ? 0 : *x * inverse;
        }
        long long line = (long long)w->batch * p->heads_q + head, lse_at = line * p->len_q + row;
        if (varlen) lse_at = (long long)head * p->total_q + w->start_q + row;
        if (splits > 1) {
            long long lines = (long long)p->heads_q * (varlen ? p->total_q : (long long)p->batch * p->len_q);
            lse_at += w->split * lines;
            store_row32(p->partial_o + lse_at * p->dim_v, out, r, p->dim_v, valid);
            if (valid && threadIdx.x % 4 == 0) p->partial_lse[lse_at] = lse;
            continue;
        }
        long long at = (varlen ? 0 : w->batch * p->o_stride[0]) + (w->start_q + row) * p->o_stride[1] +
                       head * p->o_stride[2];
        if (p->flags & FLAG_OUT_F32)
            store_row32((float *)p->o + at, out, r, p->dim_v, valid);
        else
            store_row16((unsigned short *)p->o + at, out, r, p->dim_v, valid);
        if (p->lse && valid && threadIdx.x % 4 == 0) p->lse[lse_at] = lse;
    }
}

#endif
