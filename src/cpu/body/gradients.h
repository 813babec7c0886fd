/* What of the backward is the same whatever multiplies: rows of dS, and what comes before and after the tiles. ds holds
 * keys key0 + [lo, hi) of a row of one head. */

/* Adds a row's dS to the gradient of the bias; no key from `end` on is touched. */
static void add_bias_gradient(const attn_backward_task *t, int64_t head, int64_t row, const float *ds, int64_t lo,
                              int64_t hi)
{
    int64_t end = t->key1 - t->key0 < hi ? t->key1 - t->key0 : hi, i = lo;
    float *out = t->grad_bias + head * t->grad_bias_head + row * t->grad_bias_row;
    if (t->grad_bias_key == 0) {
        vf sum = v_zero();
        for (; i + VL <= end; i += VL)
            sum = v_add(sum, v_load(ds + i));
        float rest = 0;
        for (; i < end; i++)
            rest += ds[i];
        *out += v_hsum(sum) + rest;
        return;
    }
    out += t->key0;
    if (t->grad_bias_row) prefetch_row(ATTN_F32, out, BIAS_AHEAD * t->grad_bias_row + lo, end - lo);
    for (; i + VL <= end; i += VL)
        v_store(out + i, v_add(v_load(out + i), v_load(ds + i)));
    for (; i < end; i++)
        out[i] += ds[i];
}

/* What score changes make of a row's dS: gradients of their own, and the softcap's derivative. */
static void change_gradients(const attn_backward_task *t, int64_t head, int64_t row, const float *derivative, float *ds,
                             int64_t lo, int64_t hi)
{
    const attn_score *score = t->score + head;
    if (t->grad_bias) add_bias_gradient(t, head, row, ds, lo, hi);
    if (t->grad_alibi) {
        vf distance = v_sub(v_set1((float)(row + score->shift - t->key0)), v_iota()), sum = v_zero();
        for (int64_t i = lo; i < hi; i += VL)
            sum = v_fma(v_load(ds + i), v_abs(v_sub(distance, v_set1((float)i))), sum);
        t->grad_alibi[head] -= v_hsum(sum);
    }
    if (score->flags & ATTN_SOFTCAP)
        for (int64_t i = lo; i < hi; i += VL)
            v_store(ds + i, v_mul(v_load(ds + i), v_load(derivative + i)));
}

/* The maximum, factor and delta of rows [row0, row0 + rows) of a head. */
static void load_statistics(const attn_backward_task *t, int64_t head, int64_t row0, int64_t rows, float *max,
                            float *factor, float *delta)
{
    int64_t at = head * t->statistics_head + row0;
    memcpy(max, t->max + at, (size_t)rows * sizeof *max);
    memcpy(factor, t->factor + at, (size_t)rows * sizeof *factor);
    memcpy(delta, t->delta + at, (size_t)rows * sizeof *delta);
}

/* attn_backward_task.statistics: takes a row's scores in, in units of log2. */
static void add_statistics(const attn_backward_task *t, int64_t head, int64_t row, float *s, int64_t lo, int64_t hi)
{
    float *max = t->max + head * t->statistics_head + row, *sum = t->factor + head * t->statistics_head + row;
    float top = row_max(s, lo, hi), lanes[VL] = { 0 };
    if (top > *max) *sum *= exp2f(*max - top), *max = top;
    if (*max == -INFINITY) return;
    exponentials(s, lo, hi, *max, lanes);
    *sum += v_hsum(v_load(lanes));
}

/* The first run of the task's keys at or after run->hi that some row of [row0, row1) sees. False: none. */
static bool next_run(const attn_backward_task *t, const attn_mask_view *mask, int64_t row0, int64_t row1,
                     attn_mask_tile *run)
{
    if (run->hi >= t->key1 || !attn_mask_next(mask, row0, row1, run->hi, t->key1 - run->hi, run)) return false;
    if (run->hi > t->key1) run->hi = t->key1;
    return run->lo < t->key1;
}

ALWAYS_INLINE void delta_as(const attn_delta_task *t, attn_dtype dtype)
{
    for (int64_t row = t->row0; row < t->row0 + t->rows; row++) {
        const void *o = row_at(dtype, t->o, row * t->o_row), *g = row_at(dtype, t->grad_o, row * t->grad_o_row);
        vf sum = v_zero();
        for (int64_t d = 0; d < t->dim_v; d += VL)
            sum = v_fma(load_up_to(dtype, o, d, t->dim_v), load_up_to(dtype, g, d, t->dim_v), sum);
        float delta = v_hsum(sum) - (t->grad_lse ? t->grad_lse[row] : 0);
        t->delta[row] = t->lse[row] == -INFINITY ? 0 : delta;
    }
}

static void backward_delta(const attn_delta_task *task)
{
    switch (task->dtype) {
    case ATTN_F32:
        delta_as(task, ATTN_F32);
        break;
    case ATTN_F16:
        delta_as(task, ATTN_F16);
        break;
    case ATTN_BF16:
        delta_as(task, ATTN_BF16);
        break;
    case ATTN_F64: /* the reference's */
    case ATTN_E4M3:
    case ATTN_I8:
        break;
    }
}

/* Row `row` of a gradient of q, k or v. */
static void store_gradient(attn_dtype dtype, bool add, void *out, int64_t row, int64_t stride, const float *sums,
                           int64_t dim, float factor)
{
    char *at = (char *)out + row * stride * attn_dtype_size(dtype);
    if (add)
        add_row((float *)(void *)at, sums, dim, factor);
    else
        store_row(dtype, at, sums, dim, factor);
}

static void backward_sum(const attn_sum_task *t)
{
    int64_t pitch = attn_gradient_pitch(t->dim);
    for (int64_t row = t->row0; row < t->row0 + t->rows; row++) {
        float sum[ATTN_DIM_MOST];
        for (int64_t d = 0; d < t->dim; d += VL) {
            vf x = v_load(t->part + row * pitch + d);
            for (int64_t part = 1; part < t->parts; part++)
                x = v_add(x, v_load(t->part + part * t->part_step + row * pitch + d));
            v_store(sum + d, x);
        }
        store_gradient(t->grad_dtype, t->add, t->out, row, t->out_row, sum, t->dim, t->scale);
    }
}
