/* Loads of any dtype as floats, and fetching ahead. */

enum { LINE = 64 }; /* bytes of a cache line */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

/* Elements [i, i + VL) of a row of `dtype`, a constant where this is inlined. */
ALWAYS_INLINE vf load_as(attn_dtype dtype, const void *row, int64_t i)
{
    switch (dtype) {
    case ATTN_F32:
        return v_load((const float *)row + i);
    case ATTN_F16:
        return v_load_f16((const uint16_t *)row + i);
    case ATTN_BF16:
        return v_load_bf16((const uint16_t *)row + i);
    case ATTN_E4M3:
        return v_load_e4m3((const uint8_t *)row + i);
    case ATTN_I8:
        return v_load_i8((const int8_t *)row + i);
    case ATTN_F64: /* the reference's */
        break;
    }
    return v_set1(attn_bits_to_float(0x7fc00000u)); /* NaN */
}

/* Stores them, rounded. */
ALWAYS_INLINE void store_as(attn_dtype dtype, void *row, int64_t i, vf x)
{
    switch (dtype) {
    case ATTN_F32:
        v_store((float *)row + i, x);
        break;
    case ATTN_F16:
        v_store_f16((uint16_t *)row + i, x);
        break;
    case ATTN_BF16:
        v_store_bf16((uint16_t *)row + i, x);
        break;
    case ATTN_E4M3:
        v_store_e4m3((uint8_t *)row + i, x);
        break;
    case ATTN_I8:
        v_store_i8((int8_t *)row + i, x);
        break;
    case ATTN_F64: /* the reference's */
        break;
    }
}

/* The first `count` < VL of them, zeros after them; nothing past them is read. */
static vf load_part(attn_dtype dtype, const void *row, int64_t i, int64_t count)
{
    float part[VL] = { 0 };
    for (int64_t j = 0; j < count; j++)
        part[j] = attn_load_scalar(dtype, row, i + j);
    return v_load(part);
}

ALWAYS_INLINE vf load_up_to(attn_dtype dtype, const void *row, int64_t i, int64_t end)
{
    return i + VL <= end ? load_as(dtype, row, i) : load_part(dtype, row, i, end - i);
}

/* The same of a dtype that is no constant. */
ALWAYS_INLINE vf load_any(attn_dtype dtype, const void *row, int64_t i, int64_t end)
{
    return dtype == ATTN_F32   ? load_up_to(ATTN_F32, row, i, end)
           : dtype == ATTN_F16 ? load_up_to(ATTN_F16, row, i, end)
                               : load_up_to(ATTN_BF16, row, i, end);
}

static inline const void *row_at(attn_dtype dtype, const void *base, int64_t elements)
{
    return (const char *)base + elements * attn_dtype_size(dtype);
}

/* Fetches a row into L1. */
ALWAYS_INLINE void prefetch_row(attn_dtype dtype, const void *base, int64_t at, int64_t dim)
{
    const char *row = row_at(dtype, base, at);
    for (int64_t i = 0; i < dim * attn_dtype_size(dtype); i += LINE)
        __builtin_prefetch(row + i);
}

/* The same into L2, where more can be under way at once. */
ALWAYS_INLINE void prefetch_row_l2(attn_dtype dtype, const void *base, int64_t at, int64_t dim)
{
    const char *row = row_at(dtype, base, at);
    for (int64_t i = 0; i < dim * attn_dtype_size(dtype); i += LINE)
        __builtin_prefetch(row + i, 0, 2);
}

/* Where rows [row, row + count) of a tensor are. */
static inline void list_rows(attn_dtype dtype, const void *base, int64_t pitch, int64_t row, int64_t count,
                             const void **rows)
{
    for (int64_t i = 0; i < count; i++)
        rows[i] = row_at(dtype, base, (row + i) * pitch);
}

/* Fetches rows [row, row + count) that lie before `end`: they lie far apart, where no hardware looks ahead. */
ALWAYS_INLINE void prefetch_rows(attn_dtype dtype, const void *const *rows, int64_t row, int64_t count, int64_t end,
                                 int64_t dim)
{
    for (int64_t i = row; i < row + count && i < end; i++)
        prefetch_row(dtype, rows[i], 0, dim);
}

/* VL rows by VL columns from column d, transposed; rows at or past `count` are zero. */
ALWAYS_INLINE void load_square(attn_dtype dtype, const void *const *rows, int64_t count, int64_t d, int64_t dim,
                               vf r[VL])
{
    for (int i = 0; i < VL; i++)
        r[i] = i < count ? load_up_to(dtype, rows[i], d, dim) : v_zero();
    v_transpose(r);
}
