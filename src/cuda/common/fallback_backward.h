/* Backward kernels for one dtype that need no tensor core: FALLBACK_DTYPE its number, FALLBACK_NAME(stem) its names;
 * included once a dtype.
 *
 * rows: LSE and delta, eight threads a row. convert, merge: sums in fragment order to a gradient, a warp 16 rows.
 * fallback_q: a warp a query row, 32 keys at a time: each lane makes one pair's gradient, then every lane sums its
 * columns; fallback_kv: a warp a key likewise; fallback_bias: a block an element. */

/* The thread's eighth of grad_o · o of two rows of a head, `row` and the one 32 below it; copies of grad_o. */
DEVICE void FALLBACK_NAME(products)(const attn_sm90_backward_params *params, int2 q, int plane, int head, int row,
                                    float *delta)
{
    const attn_sm90_params *p = &params->common;
    int part = threadIdx.x % 8, dtype = p->flags & FLAG_OUT_F32 ? F32 : FALLBACK_DTYPE, pitch = (p->dim_v + 7) / 8 * 8;
    long long o = plane * p->o_stride[0] + (q.x + row) * p->o_stride[1] + head * p->o_stride[2];
    long long g =
        plane * params->grad_o_stride[0] + (q.x + row) * params->grad_o_stride[1] + head * params->grad_o_stride[2];
    unsigned short *copy = (unsigned short *)params->grad_o_copy;
    copy += ((plane * (long long)p->len_q + q.x + row) * p->heads_q + head) * pitch;
    long long below = 32LL * p->heads_q * pitch;
    bool even = is_even(p->o, p->o_stride) && is_even(params->grad_o, params->grad_o_stride) && p->dim_v % 8 == 0;
    if (dtype != F32 && even) {
        for (int i = 8 * part; i < p->dim_v; i += 64) {
            uint4 words[4];
            float x[8], y[8];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                bool in = row + 32 * r < q.y;
                const unsigned short *from = (const unsigned short *)p->o + o + 32 * r * p->o_stride[1] + i;
                const unsigned short *grad =
                    (const unsigned short *)params->grad_o + g + 32 * r * params->grad_o_stride[1] + i;
                words[2 * r] = in ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
                words[2 * r + 1] = in ? *(const uint4 *)grad : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                unpack_eight(FALLBACK_DTYPE, words[2 * r], x), unpack_eight(FALLBACK_DTYPE, words[2 * r + 1], y);
                delta[r] = dot_eight(x, y, delta[r]);
                if (params->grad_o_copy && row + 32 * r < q.y) *(uint4 *)(copy + r * below + i) = words[2 * r + 1];
            }
        }
        return;
    }
    for (int r = 0; r < 2 && row + 32 * r < q.y; r++)
        for (int i = 8 * part; i < p->dim_v; i += 64) {
            float x[8], y[8];
            load_eight(dtype, p->o, o + 32 * r * p->o_stride[1] + i, p->dim_v - i, x);
            load_eight(dtype, params->grad_o, g + 32 * r * params->grad_o_stride[1] + i, p->dim_v - i, y);
            delta[r] = dot_eight(x, y, delta[r]);
            if (params->grad_o_copy)
                *(uint4 *)(copy + r * below + i) =
                    make_uint4(pack_as(FALLBACK_DTYPE, y[0], y[1]), pack_as(FALLBACK_DTYPE, y[2], y[3]),
                               pack_as(FALLBACK_DTYPE, y[4], y[5]), pack_as(FALLBACK_DTYPE, y[6], y[7]));
        }
}

extern "C" __global__ void __launch_bounds__(256)
    FALLBACK_NAME(attn_sm90_backward_rows)(const __grid_constant__ attn_sm90_backward_params params)
{
    const attn_sm90_params *p = &params.common;
    __shared__ float sink_part[8];
    int head = blockIdx.y, batch = blockIdx.z, row0 = blockIdx.x * Q_ROWS, row = row0 + (int)threadIdx.x / 8;
    int2 q = sequence_of(p->cu_lens_q, p->lens_q, batch, p->len_q);
    long long line0 = row_offset(p, p->cu_lens_q, p->heads_q, params.q_pitch, batch, head) + row0;
    long long line = p->flags & FLAG_VARLEN ? (long long)head * p->total_q + q.x + row
                                            : ((long long)batch * p->heads_q + head) * p->len_q + row;
    float sink = p->sink ? p->sink[head] : 0, sink_sum = 0, delta[2] = { 0, 0 }, lse[2] = { INFINITE, INFINITE };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 32 * r >= q.y) continue;
        lse[r] = p->lse[line + 32 * r];
        if (params.grad_lse && threadIdx.x % 8 == 0) delta[r] = -params.grad_lse[line + 32 * r];
    }
    FALLBACK_NAME(products)(&params, q, p->flags & FLAG_VARLEN ? 0 : batch, head, row, delta);
#pragma unroll
    for (int r = 0; r < 2 && row0 < q.y; r++) {
        delta[r] = sum_of(delta[r], 8);
        if (fabsf(lse[r]) > LSE_MOST && lse[r] < INFINITE) lse[r] = INFINITE, delta[r] = 0;
        if (threadIdx.x % 8) continue;
        float *statistics = params.stats + 2 * line0 + statistic_position((int)threadIdx.x / 8 + 32 * r);
        statistics[0] = lse[r] * LOG2_E, statistics[Q_ROWS] = delta[r];
        if (p->sink && row + 32 * r < q.y) sink_sum -= exp2_approx((sink - lse[r]) * LOG2_E) * delta[r];
    }
    if (params.grad_q_sum && !params.schedule.whole && !params.schedule.folded && row0 < q.y) {
        float4 *sums = (float4 *)(params.grad_q_sum + line0 * params.dim);
        for (int i = threadIdx.x; i < Q_ROWS * params.dim / 4; i += 256)
            sums[i] = make_float4(0, 0, 0, 0);
    }
    if (params.turns && threadIdx.x == 0 && row0 < q.y) params.turns[line0 / Q_ROWS] = 0;
    if (params.added && blockIdx.x == 0 && threadIdx.x == 0)
        params.added[batch * p->heads_kv + head * p->heads_kv / p->heads_q] = 0;
    if (params.alibi_parts && blockIdx.x == 0)
        for (int i = threadIdx.x; i < params.alibi_count; i += 256)
            params.alibi_parts[((long long)batch * p->heads_q + head) * params.alibi_count + i] = 0;
    if (!params.sink_parts) return;
    sink_sum = warp_sum(sink_sum);
    if (threadIdx.x % 32 == 0) sink_part[threadIdx.x / 32] = sink_sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        sink_sum += sink_part[i];
    params.sink_parts[((long long)head * gridDim.z + batch) * gridDim.x + blockIdx.x] = sink_sum;
}

/* A tile of `parts` sums from `in` on, to rows (or keys) from row0 on of those of a sequence (start and length). */
DEVICE void FALLBACK_NAME(convert_tile)(const attn_sm90_convert_params *p, const float *in, int parts, int batch,
                                        int head, int2 rows, int row0)
{
    bool varlen = p->flags & FLAG_VARLEN;
    int dtype = p->flags & FLAG_OUT_F32 ? F32 : FALLBACK_DTYPE;
    for (int group = 0; group < p->dim_pitch / 8; group += 4) {
        float x[16];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int part = 0; part < parts && group + j < p->dim_pitch / 8; part++) {
                float4 y = *(const float4 *)(in + part * p->part_step +
                                             accumulator_offset((int)threadIdx.x, p->dim_pitch, group + j));
                sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
            }
            x[4 * j] = sum.x * p->scale, x[4 * j + 1] = sum.y * p->scale;
            x[4 * j + 2] = sum.z * p->scale, x[4 * j + 3] = sum.w * p->scale;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + fragment_row(2 * r);
            long long at = (varlen ? 0 : batch * p->stride[0]) + (rows.x + row) * p->stride[1] + head * p->stride[2];
            bool even = !((at | p->dim) & 7) && !((unsigned long long)p->out & 15);
            store_row(dtype, p->out, at + 8 * group, x, 32, r, p->dim - 8 * group, row < rows.y, even);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128)
    FALLBACK_NAME(attn_sm90_backward_convert)(const __grid_constant__ attn_sm90_convert_params p)
{
    int row0 = blockIdx.x * Q_ROWS, head = blockIdx.y, batch = blockIdx.z;
    int2 rows = sequence_of(p.cu_lens, p.lens, batch, p.length);
    if (row0 >= rows.y) return;
    long long line = p.flags & FLAG_VARLEN
                         ? (long long)head * p.pitch + (long long)(p.cu_lens[batch] / Q_ROWS + batch) * Q_ROWS
                         : ((long long)batch * p.heads + head) * p.pitch;
    FALLBACK_NAME(convert_tile)(&p, p.in + (line + row0) * p.dim_pitch, p.parts, batch, head, rows, row0);
}

extern "C" __global__ void __launch_bounds__(128)
    FALLBACK_NAME(attn_sm90_backward_merge)(const __grid_constant__ attn_sm90_merge_params m)
{
    const attn_sm90_convert_params *p = blockIdx.y ? &m.of[1] : &m.of[0];
    int tiles = m.keys / Q_ROWS, unit = blockIdx.x / tiles, inside = blockIdx.x % tiles * Q_ROWS;
    int share = m.schedule.share, first = unit * m.steps / share, last = ((unit + 1) * m.steps - 1) / share;
    item_index at = item_index_of(&m.schedule, p->heads * m.batch, unit);
    int row0 = (m.schedule.key_tiles - 1 - at.tile) * m.keys + inside;
    if (row0 >= p->length) return;
    const float *in = p->in + (first + unit) * p->part_step + (long long)inside * p->dim_pitch;
    FALLBACK_NAME(convert_tile)
    (p, in, last - first + 1, at.head / p->heads, at.head % p->heads, make_int2(0, p->length), row0);
}

/* ---- everything, slowly ---------------------------------------------------------------------- */

/* Adds up what the visible pair of a row of *w's head and a key makes: P as grad_v sees it, and dS before (the gradient
 * of the score) and behind (that of scale q k) the softcap. */
DEVICE pair_gradient FALLBACK_NAME(pair)(const attn_sm90_backward_params *params, const work_item *w, int row, int key)
{
    const attn_sm90_params *p = &params->common;
    const attn_sm90_fallback *in = &p->fallback;
    int head = w->head, kv_head = head / (p->heads_q / p->heads_kv), plane = p->flags & FLAG_VARLEN ? 0 : w->batch;
    long long q = plane * in->q_stride[0] + (w->start_q + row) * in->q_stride[1] + head * in->q_stride[2];
    long long k = plane * in->k_stride[0] + (w->start_kv + key) * in->k_stride[1] + kv_head * in->k_stride[2];
    long long v = plane * in->v_stride[0] + (w->start_kv + key) * in->v_stride[1] + kv_head * in->v_stride[2];
    long long g = plane * params->grad_o_stride[0] + (w->start_q + row) * params->grad_o_stride[1] +
                  head * params->grad_o_stride[2];
    int g_dtype = p->flags & FLAG_OUT_F32 ? F32 : FALLBACK_DTYPE;
    const float *statistics = params->stats + stats_of(params, w, row);
    float score = 0, dp = 0, slope = 1, kept = 1;
#pragma unroll 2
    for (int i = 0; i < p->dim_qk; i++)
        score = fmaf(load_element(FALLBACK_DTYPE, in->q, q + i), load_element(FALLBACK_DTYPE, in->k, k + i), score);
#pragma unroll 2
    for (int i = 0; i < p->dim_v; i++)
        dp = fmaf(load_element(g_dtype, params->grad_o, g + i), load_element(FALLBACK_DTYPE, in->v, v + i), dp);
    score *= p->scale;
    if (p->flags & FLAG_SOFTCAP) {
        float share = tanh_of(score / p->score.softcap);
        score = p->score.softcap * share;
        slope = 1 - share * share;
    }
    if (p->flags & FLAG_ALIBI) score -= alibi_slope(p, w->batch, head) * (float)abs(row + w->len_kv - w->len_q - key);
    if (p->flags & FLAG_BIAS)
        score += load_element(p->score.bias_dtype, p->score.bias, bias_row(p, w->batch, head, row) + bias_key(p, key));
    if (p->flags & FLAG_DROPOUT) {
        u32 bytes = dropout_bytes(p, w->batch * p->heads_q + head, row, key, (key & 7) / 2);
        bool drops = (bytes >> 8 * ((key & 1) + (key & 8) / 4) & 255) < p->score.dropout_threshold;
        kept = drops ? 0 : 256.0f / (256 - p->score.dropout_threshold);
    }
    float weight = exp2_approx(fmaf(score, LOG2_E, -statistics[0])), ds = weight * (dp * kept - statistics[Q_ROWS]);
    pair_gradient pair = { weight * kept, ds, ds * slope };
    return pair;
}

DEVICE void FALLBACK_NAME(store_line)(const attn_sm90_params *p, void *out, long long at, const float *x, int dim)
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int col = threadIdx.x % 32 + 32 * i;
        if (col >= dim) continue;
        if (FALLBACK_DTYPE == F32 || p->flags & FLAG_OUT_F32)
            ((float *)out)[at + col] = x[i];
        else
            ((unsigned short *)out)[at + col] = (unsigned short)pack_as(FALLBACK_DTYPE, x[i], 0);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    FALLBACK_NAME(attn_sm90_backward_fallback_q)(const __grid_constant__ attn_sm90_backward_params params)
{
    const attn_sm90_params *p = &params.common;
    __shared__ float alibi_part[8];
    int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    work_item w = place_at(p, blockIdx.z, blockIdx.y);
    int plane = p->flags & FLAG_VARLEN ? 0 : w.batch, kv_head = w.head / (p->heads_q / p->heads_kv);
    int t = row + w.len_kv - w.len_q;
    key_ranges ranges = ranges_of_row(p, &w, t);
    float out[16] = { 0 }, alibi = 0;
    for (int key0 = 0; key0 < w.len_kv && row < w.len_q; key0 += 32) {
        int key = key0 + lane;
        pair_gradient pair = { 0, 0, 0 };
        bool seen = key < w.len_kv && visible(p, &w, &ranges, w.head, row, key);
        if (seen) pair = FALLBACK_NAME(pair)(&params, &w, row, key);
        alibi -= pair.ds * (float)abs(t - key);
        for (u32 some = __ballot_sync(~0u, seen); some; some &= some - 1) {
            int from = __ffs(some) - 1;
            float share = __shfl_sync(~0u, pair.dqk, from);
            long long k = plane * p->fallback.k_stride[0] + (w.start_kv + key0 + from) * p->fallback.k_stride[1] +
                          kv_head * p->fallback.k_stride[2];
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (lane + 32 * i < p->dim_qk)
                    out[i] = fmaf(share, load_element(FALLBACK_DTYPE, p->fallback.k, k + lane + 32 * i), out[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        out[i] *= p->scale;
    long long at = plane * params.grad_q_stride[0] + (w.start_q + row) * params.grad_q_stride[1] +
                   w.head * params.grad_q_stride[2];
    if (row < w.len_q) FALLBACK_NAME(store_line)(p, params.grad_q, at, out, p->dim_qk);
    if (!params.alibi_parts) return;
    alibi = warp_sum(alibi);
    if (lane == 0) alibi_part[threadIdx.x / 32] = alibi;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 8; i++)
        alibi += alibi_part[i];
    params.alibi_parts[((long long)w.batch * p->heads_q + w.head) * params.alibi_count + blockIdx.x] = alibi;
}

extern "C" __global__ void __launch_bounds__(256)
    FALLBACK_NAME(attn_sm90_backward_fallback_kv)(const __grid_constant__ attn_sm90_backward_params params)
{
    const attn_sm90_params *p = &params.common;
    int lane = threadIdx.x % 32, key = blockIdx.x * 8 + threadIdx.x / 32, group = p->heads_q / p->heads_kv;
    int kv_head = blockIdx.y, g_dtype = p->flags & FLAG_OUT_F32 ? F32 : FALLBACK_DTYPE;
    work_item w = place_at(p, blockIdx.z, kv_head * group);
    int plane = p->flags & FLAG_VARLEN ? 0 : w.batch;
    if (key >= w.len_kv) return;
    float grad_k[16] = { 0 }, grad_v[16] = { 0 };
    for (; w.head < (kv_head + 1) * group; w.head++)
        for (int row0 = 0; row0 < w.len_q; row0 += 32) {
            int row = row0 + lane;
            pair_gradient pair = { 0, 0, 0 };
            bool seen = false;
            if (row < w.len_q) {
                key_ranges ranges = ranges_of_row(p, &w, row + w.len_kv - w.len_q);
                seen = visible(p, &w, &ranges, w.head, row, key);
            }
            if (seen) pair = FALLBACK_NAME(pair)(&params, &w, row, key);
            for (u32 some = __ballot_sync(~0u, seen); some; some &= some - 1) {
                int from = __ffs(some) - 1, place = w.start_q + row0 + from;
                float dqk = __shfl_sync(~0u, pair.dqk, from), weight = __shfl_sync(~0u, pair.p, from);
                long long q = plane * p->fallback.q_stride[0] + place * p->fallback.q_stride[1] +
                              w.head * p->fallback.q_stride[2];
                long long g = plane * params.grad_o_stride[0] + place * params.grad_o_stride[1] +
                              w.head * params.grad_o_stride[2];
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    int col = lane + 32 * i;
                    if (col < p->dim_qk)
                        grad_k[i] = fmaf(dqk, load_element(FALLBACK_DTYPE, p->fallback.q, q + col), grad_k[i]);
                    if (col < p->dim_v)
                        grad_v[i] = fmaf(weight, load_element(g_dtype, params.grad_o, g + col), grad_v[i]);
                }
            }
        }
#pragma unroll
    for (int i = 0; i < 16; i++)
        grad_k[i] *= p->scale;
    long long place = w.start_kv + key;
    FALLBACK_NAME(store_line)
    (p, params.grad_k,
     plane * params.grad_k_stride[0] + place * params.grad_k_stride[1] + kv_head * params.grad_k_stride[2], grad_k,
     p->dim_qk);
    FALLBACK_NAME(store_line)
    (p, params.grad_v,
     plane * params.grad_v_stride[0] + place * params.grad_v_stride[1] + kv_head * params.grad_v_stride[2], grad_v,
     p->dim_v);
}

extern "C" __global__ void __launch_bounds__(128)
    FALLBACK_NAME(attn_sm90_backward_fallback_bias)(const __grid_constant__ attn_sm90_backward_params params)
{
    const attn_sm90_params *p = &params.common;
    const int *extent = p->score.bias_extent;
    __shared__ float part[4];
    int plane = blockIdx.z, first[4] = { plane / extent[1], plane % extent[1], (int)blockIdx.y, (int)blockIdx.x };
    int whole[4] = { p->batch, p->heads_q, 0, 0 }, count[4];
    for (int i = 0; i < 2; i++) /* the pairs of axes that repeat */
        count[i] = extent[i] == 1 ? whole[i] : 1, first[i] = extent[i] == 1 ? 0 : first[i];
    float sum = 0;
    for (int at = 0; at < count[0] * count[1]; at++) {
        work_item w = place_at(p, first[0] + at / count[1], first[1] + at % count[1]);
        count[2] = extent[2] == 1 ? w.len_q : 1, count[3] = extent[3] == 1 ? w.len_kv : 1;
        int row0 = extent[2] == 1 ? 0 : first[2], key0 = extent[3] == 1 ? 0 : first[3];
        for (long long i = threadIdx.x; i < (long long)count[2] * count[3]; i += 128) {
            int row = row0 + (int)(i / count[3]), key = key0 + (int)(i % count[3]);
            if (row >= w.len_q || key >= w.len_kv) continue;
            key_ranges ranges = ranges_of_row(p, &w, row + w.len_kv - w.len_q);
            if (visible(p, &w, &ranges, w.head, row, key)) sum += FALLBACK_NAME(pair)(&params, &w, row, key).ds;
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        params.grad_bias[((long long)plane * extent[2] + blockIdx.y) * extent[3] + blockIdx.x] =
            sum + part[1] + part[2] + part[3];
}
