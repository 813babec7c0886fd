/* Rows of scores: their changes, and the online softmax in units of log2 (Milakov & Gimelshein, arXiv 1805.02867; the
 * lazy rescale of FlashAttention-4).
 *
 * A row's max is stale: it moves only when a tile's maximum passes it by more than LAZY: until then probabilities stay
 * below 2^LAZY, which f32 takes without loss, and the output needs no rescaling. A NaN score passes by the maximum but
 * not by the exponential, and so reaches the output. */

#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f
#define LAZY 8.0f

/* A maximum above it is known to less than 2^-12: scale s - max in one step, before scale s is rounded as the maximum
 * was, would be off by the rest. */
#define LARGE_MAX 0x1p12f

/* attn.h: a bias beyond counts as this; times log2 e, a score is still finite. */
#define BIAS_MOST 0x1p126f

/* 2^x for x <= 127: 0 for x <= -127 (also -inf), NaN for NaN. Minimax polynomial of degree 5, relative error 1.7e-7. */
ALWAYS_INLINE vf exp2_of(vf x)
{
    const vf magic = v_set1(12582912.0f + 127.0f); /* rounds to an integer and leaves it, biased, in the low bits */
    x = v_max(v_set1(-127.0f), x);
    vf t = v_add(x, magic);
    vf f = v_sub(x, v_sub(t, magic));
    vf p = v_set1(0.001326465280726552f);
    p = v_fma(p, f, v_set1(0.009671511128544807f));
    p = v_fma(p, f, v_set1(0.05550733953714371f));
    p = v_fma(p, f, v_set1(0.24022242426872253f));
    p = v_fma(p, f, v_set1(0.6931470036506653f));
    p = v_fma(p, f, v_set1(1.0f));
    return v_scale2(p, t);
}

/* Relative error 3e-7, at most 1: x P(x^2) / Q(x^2), a minimax of degree 4 by 4 on [-8, 8], where tanh reaches 1 but
 * for 2.3e-7. */
ALWAYS_INLINE vf tanh_of(vf x)
{
    const vf most = v_set1(8.0f);
    x = v_max(v_set1(-8.0f), x);
    x = v_select_less(most, x, most, x); /* NaN passes both */
    vf z = v_mul(x, x);
    vf p = v_set1(1.52310347380539e-08f), q = v_set1(8.522705628678205e-07f);
    p = v_fma(p, z, v_set1(2.1895128727776722e-05f));
    q = v_fma(q, z, v_set1(0.0003411339240300357f));
    p = v_fma(p, z, v_set1(0.0035716272854366075f));
    q = v_fma(q, z, v_set1(0.026164555198329584f));
    p = v_fma(p, z, v_set1(0.1344452292433664f));
    q = v_fma(q, z, v_set1(0.4677785026555547f));
    p = v_fma(p, z, v_set1(1.0f));
    q = v_fma(q, z, v_set1(1.0f));
    return v_div(v_mul(x, p), q);
}

enum { BIAS_AHEAD = 8 }; /* rows by which a bias is fetched before it is read */

/* Bounds biases as attn.h says. */
static void bound_bias(float *bias, int64_t lo, int64_t hi)
{
    const vf most = v_set1(BIAS_MOST);
    for (int64_t i = lo; i < hi; i += VL) {
        vf x = v_load(bias + i), size = v_abs(x);
        vf bound = v_select_less(x, v_zero(), v_set1(-BIAS_MOST), most);
        bound = v_select_less(size, v_set1(INFINITY), bound, x);
        v_store(bias + i, v_select_less(most, size, bound, x));
    }
}

/* Elements [lo, end) of a row whose keys lie together, and zeros to hi; returns the greatest magnitude, lane by lane.
 */
ALWAYS_INLINE vf bias_as(attn_dtype dtype, const void *row, int64_t lo, int64_t end, int64_t hi, float *bias)
{
    vf top[2] = { v_zero(), v_zero() };
    int64_t at = lo;
    for (; at + 2 * VL <= end; at += 2 * VL)
        UNROLL for (int u = 0; u < 2; u++)
        {
            vf x = load_as(dtype, row, at + u * VL);
            v_store(bias + at + u * VL, x);
            top[u] = v_max(v_abs(x), top[u]);
        }
    for (; at < hi; at += VL) {
        vf x = at < end ? load_up_to(dtype, row, at, end) : v_zero();
        v_store(bias + at, x);
        top[0] = v_max(v_abs(x), top[0]);
    }
    return v_max(top[0], top[1]);
}

/* bias[i] of key key0 + i for lo <= i < hi, bounded; 0 for keys at or past `keys`, which are not read. */
static void load_bias(const attn_score *score, int64_t row, int64_t key0, int64_t lo, int64_t hi, int64_t keys,
                      float *bias)
{
    attn_dtype dtype = score->bias_dtype;
    int64_t step = score->bias_key, end = keys - key0 < lo ? lo : keys - key0 < hi ? keys - key0 : hi;
    const void *from = row_at(dtype, score->bias, row * score->bias_row + key0 * step);
    vf top = v_set1(INFINITY);
    if (step == 1 && score->bias_row) /* a few keys of each row: no hardware looks ahead */
        prefetch_row(dtype, from, BIAS_AHEAD * score->bias_row + lo, end - lo);
    if (step == 1 && dtype == ATTN_F32)
        top = bias_as(ATTN_F32, from, lo, end, hi, bias);
    else if (step == 1 && dtype == ATTN_F16)
        top = bias_as(ATTN_F16, from, lo, end, hi, bias);
    else if (step == 1 && dtype == ATTN_BF16)
        top = bias_as(ATTN_BF16, from, lo, end, hi, bias);
    else
        for (int64_t i = lo; i < hi; i++)
            bias[i] = i < end ? attn_load_scalar(dtype, from, i * step) : 0;
    if (v_hmax(top) > BIAS_MOST) bound_bias(bias, lo, hi);
}

/* Rich rows: scores of keys key0 + [lo, hi) times `scale`, changed, in units of log2. bias: hi floats of room.
 * derivative: NULL, or where that of the softcap goes. */
static void change_scores(const attn_score *score, float scale, int64_t row, int64_t key0, int64_t lo, int64_t hi,
                          int64_t keys, float *s, float *bias, float *derivative)
{
    bool cap = score->flags & ATTN_SOFTCAP, alibi = score->flags & ATTN_ALIBI, add = score->flags & ATTN_BIAS;
    if (add) load_bias(score, row, key0, lo, hi, keys, bias);
    vf factor = v_set1(cap ? scale / score->softcap : scale * LOG2E), softcap = v_set1(score->softcap * LOG2E);
    vf slope = v_set1(-score->slope * LOG2E), distance = v_sub(v_set1((float)(row + score->shift - key0)), v_iota());
    for (int64_t i = lo; i < hi; i += VL) {
        vf x = v_mul(v_load(s + i), factor);
        if (cap) {
            vf t = tanh_of(x);
            if (derivative) v_store(derivative + i, v_sub(v_set1(1.0f), v_mul(t, t)));
            x = v_mul(softcap, t);
        }
        if (alibi) x = v_fma(slope, v_abs(v_sub(distance, v_set1((float)i))), x);
        if (add) x = v_fma(v_load(bias + i), v_set1(LOG2E), x);
        v_store(s + i, x);
    }
}

/* Hides the keys whose bit is clear. */
ALWAYS_INLINE void hide_keys(float *s, int64_t lo, int64_t hi, const uint64_t *words, float hidden)
{
    for (int64_t i = lo, end; i < hi; i = end) {
        end = i / 64 * 64 + 64 < hi ? i / 64 * 64 + 64 : hi;
        if (words[i / 64] == ~UINT64_C(0)) continue;
        for (; i < end; i += VL)
            v_store(s + i, v_keep(words, i, v_load(s + i), v_set1(hidden)));
    }
}

/* Hides keys [lo, hi), a vector at a time: elements written one by one would keep the vectors that are read next
 * waiting. */
ALWAYS_INLINE void hide_range(float *s, int64_t lo, int64_t hi)
{
    for (int64_t at = lo / VL * VL, end; at < hi; at = end) {
        end = at + VL;
        uint64_t shown = lo > at ? (UINT64_C(1) << (lo - at)) - 1 : 0;
        if (hi < end) shown |= ~UINT64_C(0) << (hi - at);
        v_store(s + at, shown ? v_keep(&shown, 0, v_load(s + at), v_set1(-INFINITY)) : v_set1(-INFINITY));
    }
}

/* Each by its own factor. */
ALWAYS_INLINE void scale_each(float *s, int64_t lo, int64_t hi, const float *by)
{
    for (int64_t i = lo; i < hi; i += VL)
        v_store(s + i, v_mul(v_load(s + i), v_load(by + i)));
}

ALWAYS_INLINE void scale_row(float *s, int64_t lo, int64_t hi, float scale)
{
    for (int64_t i = lo; i < hi; i += VL)
        v_store(s + i, v_mul(v_load(s + i), v_set1(scale)));
}

/* What is left to multiply scores by: those of a scale that is not above 0 are multiplied before some are hidden, whose
 * -inf it would change, and before the greatest is looked for. */
ALWAYS_INLINE float scale_at_once(float *s, int64_t lo, int64_t hi, float scale)
{
    if (scale > 0) return scale;
    scale_row(s, lo, hi, scale);
    return 1;
}

ALWAYS_INLINE float row_max(const float *s, int64_t lo, int64_t hi)
{
    vf best[4];
    for (int u = 0; u < 4; u++)
        best[u] = v_set1(-INFINITY);
    int64_t i = lo;
    for (; i + 4 * VL <= hi; i += 4 * VL)
        UNROLL for (int u = 0; u < 4; u++) best[u] = v_max(v_load(s + i + u * VL), best[u]);
    for (; i < hi; i += VL)
        best[0] = v_max(v_load(s + i), best[0]);
    return v_hmax(v_max(v_max(best[0], best[1]), v_max(best[2], best[3])));
}

/* s = 2^(s - max), added up lane by lane in sum[VL]: one reduction per row at the very end. */
ALWAYS_INLINE void exponentials(float *s, int64_t lo, int64_t hi, float max, float *sum)
{
    vf from = v_set1(max == -INFINITY ? 0 : max), total[2] = { v_load(sum), v_zero() };
    int64_t i = lo;
    for (; i + 2 * VL <= hi; i += 2 * VL)
        UNROLL for (int u = 0; u < 2; u++)
        {
            vf p = exp2_of(v_sub(v_load(s + i + u * VL), from));
            v_store(s + i + u * VL, p);
            total[u] = v_add(total[u], p);
        }
    if (i < hi) {
        vf p = exp2_of(v_sub(v_load(s + i), from));
        v_store(s + i, p);
        total[0] = v_add(total[0], p);
    }
    v_store(sum, v_add(total[0], total[1]));
}

/* Moves a row's max to `top` if that passes it by enough, and rescales its sum and its output. */
ALWAYS_INLINE void raise_max(float top, float *max, float *sum, float *o, int64_t dim)
{
    if (!(top > *max + LAZY || *max == -INFINITY)) return;
    if (*max != -INFINITY) {
        vf factor = v_set1(exp2f(*max - top));
        for (int64_t i = 0; i < dim; i += VL)
            v_store(o + i, v_mul(v_load(o + i), factor));
        v_store(sum, v_mul(v_load(sum), factor));
    }
    *max = top;
}
