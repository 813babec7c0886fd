/* One row of attention, from the definition; included once a precision.
 *   real               the type it computes in
 *   fn(name)           the function of <math.h> for real
 *   rounded(dtype, x)  x as a value of dtype, where unfused attention stores it
 *   attend_row         the function's name
 * The scores' greatest (or the sink) is taken out before the exponential. NaN stays NaN;
 * a hidden key is not read, while a visible one counts even at probability 0 (0 times infinity is NaN). */

/* scale q.k of a visible pair, with all that the flags add to it. */
static real fn(score)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row, int64_t key)
{
    attn_sequence seq = attn_sequence_of(d, args, batch);
    int64_t plane = d->flags & ATTN_VARLEN ? 0 : batch, kv_head = head / (d->heads_q / d->heads_kv);
    int64_t q = plane * d->q_stride[0] + (seq.start_q + row) * d->q_stride[1] + head * d->q_stride[2];
    int64_t k = plane * d->k_stride[0] + (seq.start_kv + key) * d->k_stride[1] + kv_head * d->k_stride[2];
    int64_t t = row + seq.len_kv - seq.len_q;

    real s = 0;
    for (int64_t i = 0; i < d->dim_qk; i++)
        s += (real)attn_load_scalar(d->dtype, args->q, q + i) * (real)attn_load_scalar(d->dtype, args->k, k + i);
    s *= (real)d->scale;
    if (d->flags & ATTN_SOFTCAP) s = (real)d->softcap * fn(tanh)(s / (real)d->softcap);
    if (d->flags & ATTN_ALIBI)
        s -= (real)args->alibi[repeat(d->alibi_batch, batch) * d->heads_q + head] * (real)(t < key ? key - t : t - key);
    if (d->flags & ATTN_BIAS) s += (real)attn_load_scalar(d->bias_dtype, args->bias, bias_at(d, batch, head, row, key));
    return rounded(d->dtype, s);
}

void attend_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, real *o,
                real *lse, real *scratch)
{
    const attn_desc *d = desc;
    attn_sequence seq = attn_sequence_of(d, args, batch);
    int64_t plane = d->flags & ATTN_VARLEN ? 0 : batch, kv_head = head / (d->heads_q / d->heads_kv);
    uint32_t batch_head = (uint32_t)(batch * d->heads_q + head), threshold = attn_dropout_threshold(d->dropout_p);

    real sink = d->flags & ATTN_SINK ? (real)args->sink[head] : -INFINITY, max = sink, sum = 0;
    for (int64_t key = 0; key < seq.len_kv; key++) {
        bool seen = attn_ref_visible(d, args, batch, head, row, key);
        scratch[key] = seen ? fn(score)(d, args, batch, head, row, key) : -INFINITY;
        if (scratch[key] > max || isnan(scratch[key])) max = scratch[key];
    }

    for (int64_t i = 0; i < d->dim_v; i++)
        o[i] = 0;
    *lse = max;
    if (max == -INFINITY) return;

    for (int64_t key = 0; key < seq.len_kv; key++)
        sum += fn(exp)(scratch[key] - max);
    sum += fn(exp)(sink - max);
    *lse = max + fn(log)(sum);

    for (int64_t key = 0; key < seq.len_kv; key++) {
        if (!attn_ref_visible(d, args, batch, head, row, key)) continue;
        real p = fn(exp)(scratch[key] - max) / sum;
        if (d->flags & ATTN_DROPOUT)
            p *= attn_dropout_byte(args->seed, args->seed_offset, batch_head, row, key) < threshold
                     ? 0
                     : (real)256 / (real)(256 - threshold);
        p = rounded(d->dtype, p);
        int64_t v = plane * d->v_stride[0] + (seq.start_kv + key) * d->v_stride[1] + kv_head * d->v_stride[2];
        for (int64_t i = 0; i < d->dim_v; i++)
            o[i] += p * (real)attn_load_scalar(d->dtype, args->v, v + i);
    }
    if (!(d->flags & ATTN_OUT_F32))
        for (int64_t i = 0; i < d->dim_v; i++)
            o[i] = rounded(d->dtype, o[i]);
}
