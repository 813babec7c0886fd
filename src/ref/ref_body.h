/* One row of attention and of its gradient, from the definition; included once per precision.
 *   real                the type it computes in
 *   fn(name)            the function of <math.h> for real
 *   rounded(dtype, x)   x as a value of dtype, where unfused attention stores it
 *   attend_row          the function's name
 *   gradient_row        likewise
 *   gradients           the type of what gradient_row adds to
 * The scores' greatest (or the sink) is taken out before the exponential. NaN stays NaN;
 * a hidden key is not read, while a visible one counts even at probability 0 (0 times infinity is NaN). */

/* `n` neighbouring elements from `at` on: a loop a type, or finding out the type would take longer than all that is
 * done with them. */
static void fn(load)(attn_dtype dtype, const void *base, int64_t at, int64_t n, real *to)
{
    switch (dtype) {
#define LOAD(type, name, bytes, mantissa, sums, on_gpu)         \
    case type:                                                  \
        for (int64_t i = 0; i < n; i++)                         \
            to[i] = (real)attn_load_double(type, base, at + i); \
        return;
        ATTN_DTYPE_LIST(LOAD)
#undef LOAD
    }
}

/* Element i of what attn_args declares as float. */
static real fn(number)(const attn_desc *d, const float *base, int64_t i)
{
    return (real)attn_load_double(attn_float_dtype(d), base, i);
}

/* attn.h: a finite bias beyond 2^126 counts as that. */
static real fn(bounded)(real bias)
{
    return isfinite(bias) && fn(fabs)(bias) > (real)0x1p126 ? fn(copysign)((real)0x1p126, bias) : bias;
}

/* attn.h: what exceeds 448 is stored as that where o has a byte. */
static real fn(saturated)(const attn_desc *d, real x)
{
    return attn_out_dtype(d) == ATTN_E4M3 && fn(fabs)(x) > 448 ? fn(copysign)(448, x) : x;
}

/* Query row `row`; key `key`, and its value: what is stored, times its scale. */
static void fn(load_query)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row, real *q)
{
    real scale = (real)q_scale(d, args, batch, head, row);
    fn(load)(d->dtype, args->q, attn_row_at(d, args, batch, head, row, d->q_stride), d->dim_qk, q);
    for (int64_t i = 0; i < d->dim_qk; i++)
        q[i] *= scale;
}

static void fn(load_key)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key, real *k)
{
    real scale = (real)k_scale(d, args, batch, head, key);
    fn(load)(attn_kv_dtype(d), args->k, attn_key_at(d, args, batch, head, key, d->k_stride), d->dim_qk, k);
    for (int64_t i = 0; i < d->dim_qk; i++)
        k[i] *= scale;
}

static void fn(load_value)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key, real *v)
{
    fn(load)(attn_kv_dtype(d), args->v, attn_key_at(d, args, batch, head, key, d->v_stride), d->dim_v, v);
    if (!(d->flags & ATTN_SCALES_KV)) return;
    for (int64_t i = 0; i < d->dim_v; i++)
        v[i] *= (real)v_scale(d, args, batch, head, key, i);
}

/* scale q.k of a visible pair, with all that the flags add to it. slope: what its change is of that of scale q.k. */
static real fn(score)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row, int64_t key,
                      const real *q, const real *k, real *slope)
{
    real s = 0;
    for (int64_t i = 0; i < d->dim_qk; i++)
        s += q[i] * k[i];
    s *= (real)attn_scale_of(d);
    *slope = 1;
    if (d->flags & ATTN_SOFTCAP) {
        real share = fn(tanh)(s / (real)d->softcap);
        s = (real)d->softcap * share;
        *slope = 1 - share * share;
    }
    if (d->flags & ATTN_ALIBI)
        s -= fn(number)(d, args->alibi, alibi_at(d, batch, head)) * (real)distance(d, args, batch, row, key);
    if (d->flags & ATTN_BIAS)
        s += fn(bounded)((real)attn_load_double(d->bias_dtype, args->bias, bias_at(d, batch, head, row, key)));
    return rounded(score_dtype(d), s);
}

/* What dropout multiplies a probability with. */
static real fn(dropped)(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                        int64_t key)
{
    uint32_t threshold = attn_dropout_threshold(d->dropout_p);
    if (!(d->flags & ATTN_DROPOUT)) return 1;
    attn_dropout_base base = attn_dropout_base_of(d, args, batch, head);
    if (attn_dropout_byte(attn_seed_of(args), attn_seed_offset_of(args), base.head, base.row + row, base.key + key) <
        threshold)
        return 0;
    return (real)256 / (real)(256 - threshold);
}

void attend_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, real *o,
                real *lse, real *scratch)
{
    const attn_desc *d = desc;
    int64_t keys = attn_sequence_of(d, args, batch).len_kv;
    real q[ATTN_DIM_MOST], k[ATTN_DIM_MOST], v[ATTN_DIM_MOST], slope;

    real sink = d->flags & ATTN_SINK ? fn(number)(d, args->sink, head) : -INFINITY, max = sink, sum = 0;
    fn(load_query)(d, args, batch, head, row, q);
    for (int64_t key = 0; key < keys; key++) {
        scratch[key] = -INFINITY;
        if (!attn_ref_visible(d, args, batch, head, row, key)) continue;
        fn(load_key)(d, args, batch, head, key, k);
        scratch[key] = fn(score)(d, args, batch, head, row, key, q, k, &slope);
        if (scratch[key] > max || isnan(scratch[key])) max = scratch[key];
    }

    for (int64_t i = 0; i < d->dim_v; i++)
        o[i] = 0;
    *lse = max;
    if (max == -INFINITY) return;

    for (int64_t key = 0; key < keys; key++)
        sum += fn(exp)(scratch[key] - max);
    sum += fn(exp)(sink - max);
    *lse = max + fn(log)(sum);

    for (int64_t key = 0; key < keys; key++) {
        if (!attn_ref_visible(d, args, batch, head, row, key)) continue;
        real p =
            rounded(score_dtype(d), fn(exp)(scratch[key] - max) / sum * fn(dropped)(d, args, batch, head, row, key));
        fn(load_value)(d, args, batch, head, key, v);
        for (int64_t i = 0; i < d->dim_v; i++)
            o[i] += p * v[i];
    }
    for (int64_t i = 0; i < d->dim_v; i++)
        o[i] = rounded(attn_out_dtype(d), fn(saturated)(d, o[i] / (real)o_scale(d, args)));
}

void gradient_row(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row, const real *o,
                  real lse, const gradients *g)
{
    const attn_desc *d = desc;
    int64_t keys = attn_sequence_of(d, args, batch).len_kv;
    real q[ATTN_DIM_MOST], grad_o[ATTN_DIM_MOST], k[ATTN_DIM_MOST], v[ATTN_DIM_MOST], slope, delta = 0;
    if (lse == -INFINITY) return;

    fn(load_query)(d, args, batch, head, row, q);
    fn(load)(attn_out_dtype(d), args->grad_o, attn_row_at(d, args, batch, head, row, d->grad_o_stride), d->dim_v,
             grad_o);
    for (int64_t i = d->dim_v - 1; o && i >= 0; i--) /* in another order than dp below, or one key's would cancel */
        delta += grad_o[i] * o[i];
    if (!o) delta = fn(number)(d, args->delta, attn_lse_at(d, args, batch, head, row));
    if (o && args->grad_lse) delta -= fn(number)(d, args->grad_lse, attn_lse_at(d, args, batch, head, row));
    for (int64_t i = 0; i < d->dim_v; i++)
        grad_o[i] = rounded(d->dtype, grad_o[i]);
    if (g->sink) g->sink[head] -= fn(exp)(fn(number)(d, args->sink, head) - lse) * delta;

    for (int64_t key = 0; key < keys; key++) {
        if (!attn_ref_visible(d, args, batch, head, row, key)) continue;
        fn(load_key)(d, args, batch, head, key, k);
        fn(load_value)(d, args, batch, head, key, v);
        real p = fn(exp)(fn(score)(d, args, batch, head, row, key, q, k, &slope) - lse), dp = 0;
        real kept = fn(dropped)(d, args, batch, head, row, key), p_kept = rounded(d->dtype, p * kept);
        for (int64_t i = 0; i < d->dim_v; i++)
            dp += grad_o[i] * v[i];
        real ds = rounded(d->dtype, rounded(d->dtype, p) * (rounded(d->dtype, dp * kept) - delta));
        real dqk = rounded(d->dtype, ds * slope) * (real)attn_scale_of(d);

        real *dq = g->q + attn_row_at(d, args, batch, head, row, d->grad_q_stride);
        real *dk = g->k + attn_key_at(d, args, batch, head, key, d->grad_k_stride);
        real *dv = g->v + attn_key_at(d, args, batch, head, key, d->grad_v_stride);
        for (int64_t i = 0; i < d->dim_qk; i++)
            dq[i] += dqk * k[i], dk[i] += dqk * q[i];
        for (int64_t i = 0; i < d->dim_v; i++)
            dv[i] += p_kept * grad_o[i];
        if (g->alibi) g->alibi[alibi_at(d, batch, head)] -= ds * (real)distance(d, args, batch, row, key);
        if (g->bias) g->bias[grad_bias_at(d, batch, head, row, key)] += ds;
    }
}
