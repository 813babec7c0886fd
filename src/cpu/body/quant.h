/* Rows on their way to one byte: attn_quant_task in kernel.h. Sums are of two floats, products are rounded by
 * themselves, and which elements meet does not depend on VL: so every instruction set gives the same bits. */

enum { QUANT_SUMS = ATTN_QUANT_LANES / VL, QUANT_GROUP = 8 /* vectors that are rotated in registers */ };

/* ---- rotation: a fast Walsh-Hadamard transform, elements 1 apart first, then 2, 4, ... ---- */

/* Elements that are less than VL apart: in a vector. */
ALWAYS_INLINE vf rotate_lanes_of(vf x)
{
    x = v_butterfly(x, 1);
    x = v_butterfly(x, 2);
    if (VL > 4) x = v_butterfly(x, 4);
    if (VL > 8) x = v_butterfly(x, 8);
    return x;
}

/* Vectors of a group of `count`, a power of two. */
ALWAYS_INLINE void rotate_group(vf r[QUANT_GROUP], const int count)
{
    UNROLL
    for (int apart = 1; apart < count; apart *= 2) {
        UNROLL
        for (int i = 0; i < count; i++) {
            if (i & apart) continue;
            vf a = r[i], b = r[i + apart];
            r[i] = v_add(a, b), r[i + apart] = v_sub(a, b);
        }
    }
}

/* Groups, `apart` elements from each other, up to the whole of `rotate` elements. */
static void rotate_far(float *row, int64_t dim, int64_t rotate, int64_t apart)
{
    for (; apart < rotate; apart *= 2)
        for (int64_t i = 0; i < dim; i += VL) {
            if (i & apart) continue;
            vf a = v_load(row + i), b = v_load(row + i + apart);
            v_store(row + i, v_add(a, b)), v_store(row + i + apart, v_sub(a, b));
        }
}

/* ---- measure ---- */

/* Elements [i, i + VL) of a row: without the mean, then with the signs of the rotation. */
ALWAYS_INLINE vf quant_load(const attn_quant_task *t, attn_dtype dtype, const void *row, int64_t i)
{
    return v_fma(load_as(dtype, row, i), v_load(t->sign + i), v_load(t->shift + i));
}

/* A row becomes values, rotated in groups of `count` vectors. Returns the greatest |value| in each lane. */
ALWAYS_INLINE vf rotate_row(const attn_quant_task *t, attn_dtype dtype, const void *row, float *values, vf most,
                            const int count)
{
    const int64_t apart = count * VL, dim = t->dim;
    bool far = t->rotate > apart;
    for (int64_t i = 0; i < dim; i += apart) {
        vf r[QUANT_GROUP];
        UNROLL
        for (int j = 0; j < count; j++)
            r[j] = rotate_lanes_of(quant_load(t, dtype, row, i + j * VL));
        rotate_group(r, count);
        UNROLL
        for (int j = 0; j < count; j++) {
            v_store(values + i + j * VL, r[j]);
            most = far ? most : v_most(most, r[j]);
        }
    }
    if (!far) return most;
    rotate_far(values, dim, t->rotate, apart);
    for (int64_t i = 0; i < dim; i += VL)
        most = v_most(most, v_load(values + i));
    return most;
}

/* The same without a rotation; what follows the row in values is zero. */
ALWAYS_INLINE vf plain_row(const attn_quant_task *t, attn_dtype dtype, const void *row, float *values, vf most)
{
    int64_t i = 0;
    for (; i + VL <= t->dim; i += VL) {
        vf x = quant_load(t, dtype, row, i);
        v_store(values + i, x);
        most = v_most(most, x);
    }
    if (i == t->dim) return most;
    vf x = v_add(load_part(dtype, row, i, t->dim - i), load_part(ATTN_F32, t->shift, i, t->dim - i));
    v_store(values + i, x);
    return v_most(most, x);
}

/* x, but for NaN, whose sign depends on which instruction made it: one of all. */
ALWAYS_INLINE float one_nan(float x)
{
    return isnan(x) ? attn_bits_to_float(0x7fc00000u) : x;
}

/* The row's product with t->with, in sums of every 16th element. */
ALWAYS_INLINE float quant_dot(const attn_quant_task *t, attn_dtype dtype, const void *row)
{
    float lanes[ATTN_QUANT_LANES], sum = 0;
    vf sums[QUANT_SUMS];
    for (int j = 0; j < QUANT_SUMS; j++)
        sums[j] = v_zero();
    for (int64_t i = 0; i < t->dim; i += ATTN_QUANT_LANES)
        for (int j = 0; j < QUANT_SUMS && i + j * VL < t->dim; j++) {
            int64_t at = i + j * VL;
            sums[j] =
                v_add(sums[j], v_mul(load_up_to(dtype, row, at, t->dim), load_up_to(ATTN_F32, t->with, at, t->dim)));
        }
    for (int j = 0; j < QUANT_SUMS; j++)
        v_store(lanes + j * VL, sums[j]);
    for (int i = 0; i < ATTN_QUANT_LANES; i++)
        sum += lanes[i];
    return one_nan(sum);
}

/* The greatest of a row's, or of all rows', into where it belongs. */
static void quant_raise(uint32_t *most, vf lanes)
{
    float x[VL];
    v_store(x, lanes);
    for (int i = 0; i < VL; i++)
        if (attn_float_to_bits(x[i]) > *most) *most = attn_float_to_bits(x[i]);
}

static void quant_raise_channels(const attn_quant_task *t, const float *values)
{
    for (int64_t i = 0; i < t->dim; i++) {
        uint32_t bits = attn_float_to_bits(values[i]) & 0x7fffffffu;
        t->most[i] = bits > t->most[i] ? bits : t->most[i];
    }
}

/* What is needed next: spread over the rows, since all at once would wait for each other. */
ALWAYS_INLINE void quant_fetch(const attn_quant_task *t, attn_dtype dtype, int64_t row)
{
    const char *next = t->next ? row_at(dtype, t->next, row * t->next_row) : NULL;
    const uint8_t *out = t->next_out + row * t->next_out_row;
    for (int64_t i = 0; next && i < t->dim * attn_dtype_size(dtype); i += LINE)
        __builtin_prefetch(next + i, 0, 2);
    for (int64_t i = 0; i < t->dim; i += LINE)
        __builtin_prefetch(out + i, 1, 2);
}

ALWAYS_INLINE void measure_as(const attn_quant_task *t, attn_dtype dtype, const int count)
{
    int64_t pitch = attn_quant_pitch(t->dim);
    vf most = v_zero();
    for (int64_t i = 0; i < t->rows; i++) {
        const void *row = row_at(dtype, t->x, i * t->x_row);
        float *values = t->values + i * pitch;
        quant_fetch(t, dtype, i);
        most = count ? rotate_row(t, dtype, row, values, most, count) : plain_row(t, dtype, row, values, most);
        if (t->with) t->dot[i] = quant_dot(t, dtype, row);
        if (t->channel_step) quant_raise_channels(t, values);
        if (t->row_step) quant_raise(t->most + i, most), most = v_zero();
    }
    if (!t->channel_step && !t->row_step) quant_raise(t->most, most);
}

ALWAYS_INLINE void measure_dtype(const attn_quant_task *t, attn_dtype dtype)
{
    int64_t vectors = t->rotate / VL;
    if (vectors >= 8)
        measure_as(t, dtype, 8);
    else if (vectors == 4)
        measure_as(t, dtype, 4);
    else if (vectors == 2)
        measure_as(t, dtype, 2);
    else if (vectors == 1)
        measure_as(t, dtype, 1);
    else
        measure_as(t, dtype, 0);
}

static void quant_measure(const attn_quant_task *t)
{
    switch (t->dtype) {
    case ATTN_F32:
        measure_dtype(t, ATTN_F32);
        break;
    case ATTN_F16:
        measure_dtype(t, ATTN_F16);
        break;
    case ATTN_BF16:
        measure_dtype(t, ATTN_BF16);
        break;
    case ATTN_F64: /* refused */
    case ATTN_E4M3:
    case ATTN_I8:
        break;
    }
}

/* ---- store ---- */

ALWAYS_INLINE void store_byte(attn_dtype dtype, uint8_t *out, vf x)
{
    if (dtype == ATTN_E4M3)
        v_store_e4m3(out, x);
    else
        v_store_i8((int8_t *)out, x);
}

/* step: 1 where each channel has its inverse, else 0. */
ALWAYS_INLINE void store_bytes(attn_dtype dtype, uint8_t *out, const float *values, const float *inverse,
                               const int step, int64_t dim)
{
    int64_t i = 0;
    vf all = v_set1(*inverse);
    for (; i + VL <= dim; i += VL)
        store_byte(dtype, out + i, v_mul(v_load(values + i), step ? v_load(inverse + i) : all));
    if (i == dim) return;
    uint8_t last[VL];
    store_byte(dtype, last, v_mul(v_load(values + i), step ? load_part(ATTN_F32, inverse, i, dim - i) : all));
    memcpy(out + i, last, (size_t)(dim - i));
}

ALWAYS_INLINE void store_rows(const attn_quant_task *t, attn_dtype dtype, const int step)
{
    int64_t pitch = attn_quant_pitch(t->dim);
    for (int64_t i = 0; i < t->rows; i++)
        store_bytes(dtype, t->out + i * t->out_row, t->values + i * pitch, t->inverse + i * t->row_step, step, t->dim);
}

static void quant_store(const attn_quant_task *t)
{
    if (t->channel_step && t->out_dtype == ATTN_E4M3)
        store_rows(t, ATTN_E4M3, 1);
    else if (t->channel_step)
        store_rows(t, ATTN_I8, 1);
    else if (t->out_dtype == ATTN_E4M3)
        store_rows(t, ATTN_E4M3, 0);
    else
        store_rows(t, ATTN_I8, 0);
}

/* ---- mean ---- */

/* Of all rows: 64 of them are summed in f32, these sums in f64. */
static void quant_mean(const attn_quant_task *t, float *mean)
{
    enum { STEP = 64 };
    double sums[ATTN_DIM_MOST] = { 0 };
    for (int64_t row = 0; row < t->rows; row += STEP) {
        int64_t end = row + STEP < t->rows ? row + STEP : t->rows;
        for (int64_t i = 0; i < t->dim; i += VL) {
            float part[VL];
            vf sum = v_zero();
            for (int64_t at = row; at < end; at++) {
                const void *from = row_at(t->dtype, t->x, at * t->x_row);
                sum = v_add(sum, load_any(t->dtype, from, i, t->dim));
            }
            v_store(part, sum);
            for (int64_t j = 0; j < VL && i + j < t->dim; j++)
                sums[i + j] += (double)part[j];
        }
    }
    for (int64_t i = 0; i < t->dim; i++)
        mean[i] = one_nan((float)(sums[i] / (double)t->rows));
}
