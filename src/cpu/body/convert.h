/* Rows of one token, to a type of one byte and back. To bytes: x / scale, rounded to float, then to the byte; back:
 * byte times scale, rounded likewise. A scale that is found is a quotient, too. Quotients and products are rounded to
 * nearest, so every instruction set gives the same bits; a reciprocal's would be others. */

/* The scale of a row: so that its greatest absolute value becomes `end`. At least 2^-126: below that floats have fewer
 * digits, and where all is 0 it keeps 0 / scale a number. NaN where the row holds one, or an infinity. */
ALWAYS_INLINE float find_scale(attn_dtype dtype, const void *row, int64_t dim, float end)
{
    vf most = v_zero(), infinite = v_set1(INFINITY);
    for (int64_t i = 0; i < dim; i += VL) {
        vf x = v_abs(load_up_to(dtype, row, i, dim));
        most = v_max(most, v_select_less(x, infinite, x, infinite)); /* NaN counts as infinite */
    }
    float greatest = v_hmax(most), scale = greatest / end;
    if (greatest == INFINITY) return attn_bits_to_float(0x7fc00000u);
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}

/* VL floats, `stride` apart. Not inlined: under ASan's fake stacks gcc misaligns what a function with such an array
 * keeps of vectors. */
static __attribute__((noinline)) vf load_apart(const float *from, int64_t stride)
{
    float each[VL];
    for (int j = 0; j < VL; j++)
        each[j] = from[j * stride];
    return v_load(each);
}

/* scale[i * stride], ... */
ALWAYS_INLINE vf load_scales(const float *scale, int64_t stride, int64_t i)
{
    return stride == 0 ? v_set1(*scale) : load_apart(scale + i * stride, stride);
}

ALWAYS_INLINE void convert_row(attn_dtype from, attn_dtype to, const void *in, void *out, int64_t dim,
                               const float *scale, int64_t stride)
{
    bool divides = to == ATTN_E4M3 || to == ATTN_I8;
    int64_t i = 0;
    for (; i + VL <= dim; i += VL) {
        vf x = load_as(from, in, i), s = load_scales(scale, stride, i);
        store_as(to, out, i, divides ? v_div(x, s) : v_mul(x, s));
    }
    for (; i < dim; i++) {
        float x = attn_load_scalar(from, in, i), s = scale[i * stride];
        attn_store_scalar(to, out, i, divides ? x / s : x * s);
    }
}

ALWAYS_INLINE void convert_as(const attn_convert_task *t, attn_dtype from, attn_dtype to)
{
    float end = to == ATTN_E4M3 ? 448 : 127;
    for (int64_t head = 0; head < t->heads && t->finds; head++) /* one after another: none waits for another one's */
        t->scale[head * t->scale_stride] = find_scale(from, row_at(from, t->in, head * t->in_stride), t->dim, end);
    for (int64_t head = 0; head < t->heads; head++) {
        const void *in = row_at(from, t->in, head * t->in_stride);
        void *out = (char *)t->out + head * t->out_stride * attn_dtype_size(to);
        const float *scale = t->scale + head * t->scale_stride;
        if (t->channel_stride == 0)
            convert_row(from, to, in, out, t->dim, scale, 0);
        else
            convert_row(from, to, in, out, t->dim, scale, t->channel_stride);
    }
}

ALWAYS_INLINE void convert_with(const attn_convert_task *t, attn_dtype bytes)
{
    bool divides = t->to == bytes;
    switch (divides ? t->from : t->to) {
    case ATTN_F32:
        divides ? convert_as(t, ATTN_F32, bytes) : convert_as(t, bytes, ATTN_F32);
        break;
    case ATTN_F16:
        divides ? convert_as(t, ATTN_F16, bytes) : convert_as(t, bytes, ATTN_F16);
        break;
    case ATTN_BF16:
        divides ? convert_as(t, ATTN_BF16, bytes) : convert_as(t, bytes, ATTN_BF16);
        break;
    case ATTN_F64: /* no operation on pages takes it */
    case ATTN_E4M3:
    case ATTN_I8:
        break;
    }
}

static void convert(const attn_convert_task *t)
{
    if (t->from == ATTN_E4M3 || t->to == ATTN_E4M3)
        convert_with(t, ATTN_E4M3);
    else
        convert_with(t, ATTN_I8);
}
