/* What a descriptor may say. Ranges and flags are in one table; relations between fields in the functions below it.
 * A field whose flag is not set must be 0: ignoring it would be a wrong answer to a forgotten flag. */
#include "problem/desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/detect.h"
#include "num/half.h"
#include "num/philox.h"

enum {
    STRUCT_SIZE_MOST = 1 << 16, /* no header's struct is as large, and none as small as a pointer */
    HEADS_MOST = 1 << 20,
    ROWS_MOST = INT32_MAX - 64, /* a tile more still fits int32_t */
    E5M2 = 6,                   /* its number, which no type takes */
    FLAGS = (ATTN_ADD << 1) - 1
};

attn_status attn_struct_copy(void *out, size_t out_size, const void *in, size_t in_size, const char *name)
{
    if (!in) return attn_fail(ATTN_INVALID, "%s is NULL", name);
    if (in_size <= sizeof(void *) || in_size > STRUCT_SIZE_MOST) /* of a pointer to the struct, or garbage */
        return attn_fail(ATTN_INVALID, "%s_size = %zu is not the size of an attn_%s", name, in_size, name);
    for (size_t i = out_size; i < in_size; i++)
        if (((const unsigned char *)in)[i] != 0)
            return attn_fail(ATTN_UNSUPPORTED, "byte %zu of %s is set, but version %s knows its first %zu bytes only",
                             i, name, attn_version(), out_size);
    memset(out, 0, out_size);
    memcpy(out, in, in_size < out_size ? in_size : out_size);
    return ATTN_OK;
}

void attn_struct_fill(void *out, size_t out_size, const void *full, size_t full_size)
{
    if (out_size > full_size) memset((char *)out + full_size, 0, out_size - full_size);
    memcpy(out, full, out_size < full_size ? out_size : full_size);
}

attn_shape attn_shape_of(const attn_desc *desc)
{
    bool packed = desc->flags & ATTN_VARLEN;
    int64_t batch = packed ? 1 : desc->batch;
    bool paged = desc->flags & ATTN_PAGED;
    int64_t rows = packed ? desc->total_q : desc->len_q, keys = packed ? desc->total_kv : desc->len_kv;
    int64_t planes = paged ? desc->pages : batch;
    if (paged) keys = desc->page_size;
    return (attn_shape){ .q = { batch, rows, desc->heads_q, desc->dim_qk },
                         .k = { planes, keys, desc->heads_kv, desc->dim_qk },
                         .v = { planes, keys, desc->heads_kv, desc->dim_v },
                         .o = { batch, rows, desc->heads_q, desc->dim_v } };
}

attn_shape attn_scale_shape_of(const attn_desc *desc)
{
    const attn_desc *d = desc;
    bool paged = d->flags & ATTN_PAGED;
    int64_t q = d->q_scale_rows, k = d->k_scale_rows, v = d->v_scale_rows;
    int64_t keys = paged ? d->page_size : d->len_kv, planes = paged ? d->pages : d->batch;
    return (attn_shape){ .q = { d->batch, q ? attn_ceil_div(d->len_q, q) : 1, d->q_scale_heads, 1 },
                         .k = { k ? planes : d->batch, k ? attn_ceil_div(keys, k) : 1, d->heads_kv, 1 },
                         .v = { v ? planes : d->batch, v ? keys : 1, d->heads_kv, d->dim_v } };
}

int attn_reach(const int64_t extent[4], const int64_t stride[4], int64_t *lo, int64_t *hi)
{
    const int64_t most = INT64_MAX / 16; /* 8-byte elements, and hi - lo */
    *lo = *hi = 0;
    for (int i = 0; i < 4; i++)
        if (extent[i] == 0) return 1;
    for (int i = 0; i < 4; i++) {
        int64_t last, *end = stride[i] < 0 ? lo : hi;
        if (__builtin_mul_overflow(extent[i] - 1, stride[i], &last) || __builtin_add_overflow(*end, last, end))
            return 0;
    }
    *hi += *hi < INT64_MAX;
    return *lo >= -most && *hi <= most;
}

const attn_dtype_info *attn_dtype_of(attn_dtype dtype)
{
    static const attn_dtype_info table[] = {
#define ATTN_DTYPE_ROW(type, name, bytes, mantissa, sums, on_gpu) [type] = { name, mantissa, sums, on_gpu },
        ATTN_DTYPE_LIST(ATTN_DTYPE_ROW)
#undef ATTN_DTYPE_ROW
    };
    bool is = (int)dtype >= 0 && (size_t)dtype < sizeof table / sizeof *table && table[dtype].name;
    return is ? &table[dtype] : NULL;
}

const char *attn_dtype_name(attn_dtype dtype)
{
    const attn_dtype_info *info = attn_dtype_of(dtype);
    return info ? info->name : "unknown";
}

/* ---- one field after the other ------------------------------------------------------------- */

/* An int64_t field is min to max, or 1 or what the field `other` says. */
typedef struct field {
    const char *name;
    size_t offset;
    uint32_t flag; /* that switches it on; 0: always on */
    const char *flag_name;
    int64_t min, max;
    const char *other;
    size_t other_offset;
} field;

#define RANGE(name, flag, min, max)                                      \
    {                                                                    \
#name, offsetof(attn_desc, name), flag, #flag, min, max, NULL, 0 \
    }
#define ONE_OR(name, flag, other)                                                               \
    {                                                                                           \
#name, offsetof(attn_desc, name), flag, #flag, 0, 0, #other, offsetof(attn_desc, other) \
    }

#define STRIDES(name, flag)                                                                 \
    RANGE(name[0], flag, INT64_MIN, INT64_MAX), RANGE(name[1], flag, INT64_MIN, INT64_MAX), \
        RANGE(name[2], flag, INT64_MIN, INT64_MAX), RANGE(name[3], flag, INT64_MIN, INT64_MAX)

static const field fields[] = {
    RANGE(batch, 0, 0, INT32_MAX),
    RANGE(heads_q, 0, 1, HEADS_MOST),
    RANGE(heads_kv, 0, 1, HEADS_MOST),
    RANGE(len_q, 0, 0, ROWS_MOST),
    RANGE(len_kv, 0, 0, ROWS_MOST),
    RANGE(total_q, ATTN_VARLEN, 0, ROWS_MOST),
    RANGE(total_kv, ATTN_VARLEN, 0, ROWS_MOST),
    RANGE(dim_qk, 0, 1, ATTN_DIM_MOST),
    RANGE(dim_v, 0, 1, ATTN_DIM_MOST),
    RANGE(window_left, ATTN_WINDOW, -1, INT64_MAX),
    RANGE(window_right, ATTN_WINDOW, -1, INT64_MAX),
    RANGE(chunk, ATTN_CHUNK, 1, INT64_MAX),
    RANGE(interval_vectors, ATTN_INTERVALS, 1, 4),
    ONE_OR(interval_heads, ATTN_INTERVALS, heads_kv),
    RANGE(block_rows, ATTN_BLOCKS, 1, INT64_MAX),
    RANGE(block_keys, ATTN_BLOCKS, 1, INT64_MAX),
    ONE_OR(block_batch, ATTN_BLOCKS, batch),
    ONE_OR(block_heads, ATTN_BLOCKS, heads_q),
    ONE_OR(bits_batch, ATTN_BITS, batch),
    ONE_OR(bits_heads, ATTN_BITS, heads_q),
    ONE_OR(alibi_batch, ATTN_ALIBI, batch),
    ONE_OR(bias_extent[0], ATTN_BIAS, batch),
    ONE_OR(bias_extent[1], ATTN_BIAS, heads_q),
    ONE_OR(bias_extent[2], ATTN_BIAS, len_q),
    ONE_OR(bias_extent[3], ATTN_BIAS, len_kv),
    STRIDES(bias_stride, ATTN_BIAS),
    RANGE(pages, ATTN_PAGED, 0, INT32_MAX),
    RANGE(page_size, ATTN_PAGED, 1, ROWS_MOST),
    RANGE(table_width, ATTN_PAGED, 0, ROWS_MOST),
    RANGE(table_total, ATTN_PAGED, 0, ROWS_MOST),
    RANGE(bits_keys, ATTN_BITS, 0, ROWS_MOST),
    RANGE(q_scale_rows, ATTN_SCALES_Q, 0, 128),
    RANGE(q_scale_heads, ATTN_SCALES_Q, 0, HEADS_MOST),
    RANGE(k_scale_rows, ATTN_SCALES_KV, 0, 128),
    RANGE(v_scale_rows, ATTN_SCALES_KV, 0, 1),
    STRIDES(q_scale_stride, ATTN_SCALES_Q),
    STRIDES(k_scale_stride, ATTN_SCALES_KV),
    STRIDES(v_scale_stride, ATTN_SCALES_KV),
    RANGE(alignment, 0, 0, 16),
};

static int64_t value_at(const attn_desc *desc, size_t offset)
{
    int64_t value;
    memcpy(&value, (const char *)desc + offset, sizeof value);
    return value;
}

static attn_status check_fields(const attn_desc *desc)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        int64_t value = value_at(desc, f->offset);
        if (f->flag && !(desc->flags & f->flag)) {
            if (value != 0) return attn_fail(ATTN_INVALID, "%s = %" PRId64 " needs %s", f->name, value, f->flag_name);
        } else if (f->other) {
            int64_t other = value_at(desc, f->other_offset);
            if (value != 1 && value != other)
                return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is neither 1 nor %s = %" PRId64, f->name, value,
                                 f->other, other);
        } else if (value < f->min || value > f->max) {
            return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not in %" PRId64 " to %" PRId64, f->name, value, f->min,
                             f->max);
        }
    }
    return ATTN_OK;
}

/* Of more than one byte. */
static bool is_wide(attn_dtype dtype)
{
    return attn_dtype_of(dtype) && attn_dtype_size(dtype) > 1;
}

static attn_status check_kinds(const attn_desc *desc)
{
    if (!is_wide(desc->dtype) && desc->dtype != ATTN_E4M3)
        return attn_fail(ATTN_INVALID, "dtype = %d is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64 or ATTN_E4M3%s",
                         (int)desc->dtype,
                         (int)desc->dtype == ATTN_I8 ? ": ATTN_I8 is of k and v alone (kv_dtype)"
                         : (int)desc->dtype == E5M2  ? ": the library does not compute E5M2"
                                                     : "");
    if (desc->direction != ATTN_FORWARD && desc->direction != ATTN_BACKWARD)
        return attn_fail(ATTN_INVALID, "direction = %d is not ATTN_FORWARD or ATTN_BACKWARD", (int)desc->direction);
    if (desc->device != ATTN_CPU && desc->device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)desc->device);
    if (desc->flags & ~(uint32_t)FLAGS)
        return attn_fail(ATTN_INVALID, "flags = 0x%" PRIx32 " has unknown bits 0x%" PRIx32, desc->flags,
                         desc->flags & ~(uint32_t)FLAGS);
    if (!(desc->flags & ATTN_BIAS) && desc->bias_dtype)
        return attn_fail(ATTN_INVALID, "bias_dtype = %d needs ATTN_BIAS", (int)desc->bias_dtype);
    if ((desc->flags & ATTN_BIAS) && !is_wide(desc->bias_dtype))
        return attn_fail(ATTN_INVALID, "bias_dtype = %d is not ATTN_F32, ATTN_F16, ATTN_BF16 or ATTN_F64",
                         (int)desc->bias_dtype);
    if (desc->bias_dtype == ATTN_F64 && desc->dtype != ATTN_F64)
        return attn_fail(ATTN_INVALID, "bias_dtype = ATTN_F64 needs dtype = ATTN_F64");
    if (desc->dtype == ATTN_F64 && desc->flags & ATTN_OUT_F32)
        return attn_fail(ATTN_INVALID, "dtype = ATTN_F64 does not take ATTN_OUT_F32");
    if (desc->grad_dtype && desc->grad_dtype != ATTN_F32)
        return attn_fail(ATTN_INVALID, "grad_dtype = %d is neither 0 nor ATTN_F32", (int)desc->grad_dtype);
    if (desc->alignment & (desc->alignment - 1))
        return attn_fail(ATTN_INVALID, "alignment = %" PRId64 " is no power of two", desc->alignment);
    if (desc->grad_dtype && desc->dtype == ATTN_F64)
        return attn_fail(ATTN_INVALID, "grad_dtype = ATTN_F32: with dtype = ATTN_F64 it is 0");
    if (desc->device != ATTN_CPU && !attn_dtype_of(desc->dtype)->on_gpu)
        return attn_fail(ATTN_UNSUPPORTED, "dtype = %s is computed on the CPU alone", attn_dtype_name(desc->dtype));
    return ATTN_OK;
}

/* Types of k, v and o that are not q's. */
static attn_status check_other_kinds(const attn_desc *desc)
{
    attn_dtype dtype = desc->dtype, kv = desc->kv_dtype, out = desc->out_dtype;
    bool bytes = kv == ATTN_E4M3 || (kv == ATTN_I8 && dtype != ATTN_E4M3),
         wide = out == ATTN_F32 || out == ATTN_F16 || out == ATTN_BF16;
    if (kv && kv != dtype && (!bytes || dtype == ATTN_F64))
        return attn_fail(ATTN_INVALID, "kv_dtype = %d is not 0, dtype = %s, ATTN_E4M3 or ATTN_I8%s", (int)kv,
                         attn_dtype_name(dtype),
                         dtype == ATTN_F64 ? ", and with ATTN_F64 not of one byte"
                         : kv == ATTN_I8   ? ", and ATTN_I8 needs a dtype of f32, f16 or bf16"
                                           : "");
    if (out && out != dtype && ((!wide && out != ATTN_E4M3) || dtype == ATTN_F64))
        return attn_fail(ATTN_INVALID, "out_dtype = %d is not 0, %s", (int)out,
                         dtype == ATTN_F64 ? "as ATTN_F64 needs it" : "ATTN_F32, ATTN_F16, ATTN_BF16 or ATTN_E4M3");
    if (desc->flags & ATTN_OUT_F32 && out && out != ATTN_F32)
        return attn_fail(ATTN_INVALID, "out_dtype = %s contradicts ATTN_OUT_F32", attn_dtype_name(out));
    if (desc->flags & ATTN_SCALES_Q && dtype != ATTN_E4M3)
        return attn_fail(ATTN_INVALID, "flags: ATTN_SCALES_Q needs dtype = ATTN_E4M3, not %s", attn_dtype_name(dtype));
    if (desc->flags & ATTN_SCALES_KV && attn_dtype_size(attn_kv_dtype(desc)) != 1)
        return attn_fail(ATTN_INVALID, "flags: ATTN_SCALES_KV needs k and v of one byte, not %s",
                         attn_dtype_name(attn_kv_dtype(desc)));
    if (desc->direction == ATTN_BACKWARD && attn_dtype_size(attn_kv_dtype(desc)) == 1)
        return attn_fail(ATTN_UNSUPPORTED, "direction = ATTN_BACKWARD: k and v of %s are computed forward only",
                         attn_dtype_name(attn_kv_dtype(desc)));
    if (desc->direction == ATTN_BACKWARD && attn_out_dtype(desc) != dtype && attn_out_dtype(desc) != ATTN_F32)
        return attn_fail(ATTN_UNSUPPORTED, "direction = ATTN_BACKWARD: out_dtype = %s is neither dtype nor ATTN_F32",
                         attn_dtype_name(out));
    if (desc->device != ATTN_CPU && out && out != dtype && out != ATTN_F32 && dtype != ATTN_E4M3)
        return attn_fail(ATTN_UNSUPPORTED, "out_dtype = %s beside dtype = %s is computed on the CPU alone",
                         attn_dtype_name(out), attn_dtype_name(dtype));
    return ATTN_OK;
}

static attn_status check_numbers(const attn_desc *desc)
{
    char text[ATTN_DECIMAL_SIZE];
    if (desc->scale_f64 != 0 && desc->dtype != ATTN_F64)
        return attn_fail(ATTN_INVALID, "scale_f64 = %s needs dtype = ATTN_F64", attn_decimal(text, desc->scale_f64));
    if (desc->scale_f64 != 0 && !((float)desc->scale_f64 > 0 && isfinite((float)desc->scale_f64)))
        return attn_fail(ATTN_INVALID, "scale_f64 = %s is not a finite number above 0, as a float holds it too",
                         attn_decimal(text, desc->scale_f64));
    if (desc->scale_f64 != 0 && desc->scale != (float)desc->scale_f64)
        return attn_fail(ATTN_INVALID, "scale = %s is neither 0 nor scale_f64 rounded to float",
                         attn_decimal(text, desc->scale));
    if (!(desc->scale > 0 && isfinite(desc->scale)))
        return attn_fail(ATTN_INVALID, "scale = %s is not a finite number above 0", attn_decimal(text, desc->scale));
    if (!(desc->flags & ATTN_SOFTCAP) && desc->softcap != 0)
        return attn_fail(ATTN_INVALID, "softcap = %s needs ATTN_SOFTCAP", attn_decimal(text, desc->softcap));
    if ((desc->flags & ATTN_SOFTCAP) && !(desc->softcap > 0 && isfinite(desc->softcap)))
        return attn_fail(ATTN_INVALID, "softcap = %s is not a finite number above 0",
                         attn_decimal(text, desc->softcap));
    if (!(desc->flags & ATTN_DROPOUT) && desc->dropout_p != 0)
        return attn_fail(ATTN_INVALID, "dropout_p = %s needs ATTN_DROPOUT", attn_decimal(text, desc->dropout_p));
    if (!(desc->dropout_p >= 0 && desc->dropout_p < 1))
        return attn_fail(ATTN_INVALID, "dropout_p = %s is not at least 0 and below 1",
                         attn_decimal(text, desc->dropout_p));
    if (attn_dropout_threshold(desc->dropout_p) >= 256)
        return attn_fail(ATTN_INVALID, "dropout_p = %s drops everything: it is applied as round(256 p) / 256",
                         attn_decimal(text, desc->dropout_p));
    if (desc->visible_share != 0 && !(desc->flags & (ATTN_MASK_TABLES | ATTN_RUN_LENGTHS)))
        return attn_fail(ATTN_INVALID,
                         "visible_share = %s needs ATTN_INTERVALS, ATTN_BLOCKS, ATTN_BITS, ATTN_LENS_Q or ATTN_LENS_KV",
                         attn_decimal(text, desc->visible_share));
    if (!(desc->visible_share >= 0 && desc->visible_share <= 1))
        return attn_fail(ATTN_INVALID, "visible_share = %s is not in 0 to 1", attn_decimal(text, desc->visible_share));
    return ATTN_OK;
}

/* ---- fields against one another ------------------------------------------------------------ */

static attn_status check_pages(const attn_desc *desc)
{
    int64_t table = desc->table_width ? desc->table_width : desc->table_total;
    if (!(desc->flags & ATTN_PAGED)) return ATTN_OK;
    if (!(desc->flags & ATTN_LENS_KV)) return attn_fail(ATTN_INVALID, "flags: ATTN_PAGED needs ATTN_LENS_KV");
    if (desc->total_kv)
        return attn_fail(ATTN_INVALID, "total_kv = %" PRId64 " is not 0: with ATTN_PAGED no keys are packed",
                         desc->total_kv);
    if (desc->table_width && desc->table_total)
        return attn_fail(ATTN_INVALID, "table_total = %" PRId64 " is not 0, as table_width = %" PRId64 " needs it",
                         desc->table_total, desc->table_width);
    if (table < attn_ceil_div(desc->len_kv, desc->page_size))
        return attn_fail(ATTN_INVALID,
                         "%s = %" PRId64 " pages of %" PRId64 " keys hold less than len_kv = %" PRId64 " keys",
                         desc->table_total ? "table_total" : "table_width", table, desc->page_size, desc->len_kv);
    if (desc->direction == ATTN_BACKWARD)
        return attn_fail(ATTN_UNSUPPORTED, "direction = ATTN_BACKWARD: ATTN_PAGED is computed forward only");
    return ATTN_OK;
}

static attn_status check_relations(const attn_desc *desc)
{
    int64_t vectors = desc->interval_vectors;
    if (desc->heads_q % desc->heads_kv != 0)
        return attn_fail(ATTN_INVALID, "heads_q = %" PRId64 " is not a multiple of heads_kv = %" PRId64, desc->heads_q,
                         desc->heads_kv);
    if ((desc->flags & ATTN_INTERVALS) && (desc->flags & ATTN_CAUSAL) && vectors > 2)
        return attn_fail(ATTN_INVALID, "interval_vectors = %" PRId64 " is not 1 or 2, as ATTN_CAUSAL takes", vectors);
    if ((desc->flags & ATTN_INTERVALS) && !(desc->flags & ATTN_CAUSAL) && vectors != 2 && vectors != 4)
        return attn_fail(ATTN_INVALID,
                         "interval_vectors = %" PRId64 " is not 2 or 4, as a mask without ATTN_CAUSAL takes", vectors);
    if (desc->bits_keys > desc->len_kv)
        return attn_fail(ATTN_INVALID, "bits_keys = %" PRId64 " exceeds len_kv = %" PRId64, desc->bits_keys,
                         desc->len_kv);
    if (desc->flags & ATTN_DROPOUT_BASES && !(desc->flags & ATTN_DROPOUT))
        return attn_fail(ATTN_INVALID, "flags: ATTN_DROPOUT_BASES needs ATTN_DROPOUT");
    if (desc->flags & ATTN_ADD && attn_dtype_size(attn_grad_dtype(desc)) == 2)
        return attn_fail(ATTN_INVALID, "flags: ATTN_ADD needs gradients of f32: grad_dtype = ATTN_F32");
    if ((desc->flags & ATTN_DROPOUT) && desc->batch * desc->heads_q > (int64_t)1 << 32)
        return attn_fail(ATTN_INVALID,
                         "batch * heads_q = %" PRId64 " exceeds 2^32, the most that ATTN_DROPOUT can count",
                         desc->batch * desc->heads_q);
    return ATTN_OK;
}

attn_status attn_check_scales(const char *name, const char *rows_name, int64_t rows, bool channels,
                              const int64_t extent[4], const int64_t stride[4])
{
    int64_t lo, hi;
    if (rows > 1 && rows != 64 && rows != 128)
        return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not 0, 1, 64 or 128", rows_name, rows);
    if (stride[3] && (!channels || rows))
        return channels ? attn_fail(ATTN_INVALID, "%s_stride[3] = %" PRId64 " is not 0, as %s = %" PRId64 " needs it",
                                    name, stride[3], rows_name, rows)
                        : attn_fail(ATTN_INVALID, "%s_stride[3] = %" PRId64 " is not 0", name, stride[3]);
    if (!rows && stride[1])
        return attn_fail(ATTN_INVALID, "%s_stride[1] = %" PRId64 " is not 0, as %s = 0 needs it", name, stride[1],
                         rows_name);
    if (!attn_reach(extent, stride, &lo, &hi))
        return attn_fail(ATTN_INVALID, "%s: the offsets of its elements overflow 64 bits", name);
    return ATTN_OK;
}

/* Of what the table of fields does not say. */
static attn_status check_scales(const attn_desc *desc)
{
    attn_shape shape = attn_scale_shape_of(desc);
    attn_status status =
        attn_check_scales("q_scale", "q_scale_rows", desc->q_scale_rows, false, shape.q, desc->q_scale_stride);
    if (!status)
        status = attn_check_scales("k_scale", "k_scale_rows", desc->k_scale_rows, false, shape.k, desc->k_scale_stride);
    if (!status)
        status = attn_check_scales("v_scale", "v_scale_rows", desc->v_scale_rows, true, shape.v, desc->v_scale_stride);
    if (status) return status;
    if (desc->q_scale_heads && desc->q_scale_heads != desc->heads_q && desc->q_scale_heads != desc->heads_kv)
        return attn_fail(ATTN_INVALID,
                         "q_scale_heads = %" PRId64 " is neither heads_q = %" PRId64 " nor heads_kv = %" PRId64,
                         desc->q_scale_heads, desc->heads_q, desc->heads_kv);
    return ATTN_OK;
}

/* No packed sequence is longer than all rows together, so no kernel, workspace or prediction needs a looser bound.
 * Tables are the exception: they are laid out by the bound, so with them it stays. */
static void tighten_lengths(attn_desc *desc)
{
    bool tables = desc->flags & ATTN_MASK_TABLES;
    if (!(desc->flags & ATTN_VARLEN)) return;
    if (!tables && desc->bias_extent[2] <= 1 && desc->len_q > desc->total_q) desc->len_q = desc->total_q;
    if (!tables && desc->bias_extent[3] <= 1 && desc->len_kv > desc->total_kv && !(desc->flags & ATTN_PAGED))
        desc->len_kv = desc->total_kv;
}

/* The forward has no gradients to lay out, to be given or to be added to. */
static attn_status check_direction(const attn_desc *desc)
{
    bool forward = desc->direction != ATTN_BACKWARD;
    if (forward && desc->flags & (ATTN_DELTA | ATTN_ADD))
        return attn_fail(ATTN_INVALID, "flags: %s needs direction = ATTN_BACKWARD",
                         desc->flags & ATTN_DELTA ? "ATTN_DELTA" : "ATTN_ADD");
    if (forward && desc->grad_dtype)
        return attn_fail(ATTN_INVALID, "grad_dtype = %d needs direction = ATTN_BACKWARD", (int)desc->grad_dtype);
    const struct {
        const char *name;
        const int64_t *stride;
    } gradients[] = { { "grad_o", desc->grad_o_stride },
                      { "grad_q", desc->grad_q_stride },
                      { "grad_k", desc->grad_k_stride },
                      { "grad_v", desc->grad_v_stride } };
    for (int i = 0; i < 16 && forward; i++)
        if (gradients[i / 4].stride[i % 4] != 0)
            return attn_fail(ATTN_INVALID, "%s_stride[%d] = %" PRId64 " needs direction = ATTN_BACKWARD",
                             gradients[i / 4].name, i % 4, gradients[i / 4].stride[i % 4]);
    return ATTN_OK;
}

static attn_status check_machine(const attn_desc *desc)
{
    if (desc->threads < 0 || desc->threads > ATTN_THREADS_MOST)
        return attn_fail(ATTN_INVALID, "threads = %" PRId32 " is not in 0 to %d", desc->threads, ATTN_THREADS_MOST);
    if (!attn_isa_name(desc->isa)) return attn_fail(ATTN_INVALID, "isa = %d is not an attn_isa", (int)desc->isa);
    if (desc->isa != ATTN_ISA_AUTO && !attn_isa_available(desc->isa))
        return attn_fail(ATTN_UNSUPPORTED, "isa = %s is not run by this machine or not built into this library",
                         attn_isa_name(desc->isa));
    if (desc->parallel_context && !desc->parallel_for)
        return attn_fail(ATTN_INVALID, "parallel_context needs parallel_for");
    if (desc->device != ATTN_CPU && (desc->threads || desc->isa || desc->parallel_for))
        return attn_fail(ATTN_INVALID, "%s is set: ATTN_CUDA takes none",
                         desc->threads ? "threads"
                         : desc->isa   ? "isa"
                                       : "parallel_for");
    return ATTN_OK;
}

/* ---- layout -------------------------------------------------------------------------------- */

static attn_status too_large(const char *name, const int64_t extent[4])
{
    return attn_fail(ATTN_INVALID,
                     "%s: the offsets of its %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                     " elements overflow 64 bits",
                     name, extent[0], extent[1], extent[2], extent[3]);
}

/* Four zeros become packed strides; any others are checked. */
static attn_status resolve_strides(const char *name, const int64_t extent[4], int64_t stride[4])
{
    int64_t lo, hi;
    if (!stride[0] && !stride[1] && !stride[2] && !stride[3]) {
        stride[3] = 1;
        for (int i = 3; i > 0; i--)
            if (__builtin_mul_overflow(stride[i], extent[i], &stride[i - 1])) return too_large(name, extent);
    }
    return attn_reach(extent, stride, &lo, &hi) ? ATTN_OK : too_large(name, extent);
}

#define NOT_TAKEN(flag)                 \
    {                                   \
        flag, "it does not take " #flag \
    }

const char *attn_lacking(uint32_t flags)
{
    static const struct {
        uint32_t flag;
        const char *words;
    } each[] = {
        NOT_TAKEN(ATTN_CAUSAL),   NOT_TAKEN(ATTN_WINDOW),        NOT_TAKEN(ATTN_CHUNK),
        NOT_TAKEN(ATTN_PREFIX),   NOT_TAKEN(ATTN_INTERVALS),     NOT_TAKEN(ATTN_BLOCKS),
        NOT_TAKEN(ATTN_BITS),     NOT_TAKEN(ATTN_VARLEN),        NOT_TAKEN(ATTN_LENS_Q),
        NOT_TAKEN(ATTN_LENS_KV),  NOT_TAKEN(ATTN_SOFTCAP),       NOT_TAKEN(ATTN_ALIBI),
        NOT_TAKEN(ATTN_BIAS),     NOT_TAKEN(ATTN_SINK),          NOT_TAKEN(ATTN_DROPOUT),
        NOT_TAKEN(ATTN_OUT_F32),  NOT_TAKEN(ATTN_DETERMINISTIC), NOT_TAKEN(ATTN_PAGED),
        NOT_TAKEN(ATTN_FIRST_KV), NOT_TAKEN(ATTN_POSITIONS),     NOT_TAKEN(ATTN_SCALES_KV),
        NOT_TAKEN(ATTN_SCALES_Q), NOT_TAKEN(ATTN_DROPOUT_BASES), NOT_TAKEN(ATTN_DELTA),
        NOT_TAKEN(ATTN_ADD),
    };
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (flags & each[i].flag) return each[i].words;
    return "it lacks a feature that flags ask for";
}

attn_status attn_resolve_tensor(const char *name, const int64_t extent[4], int64_t stride[4])
{
    if (stride[3] != 1 && (stride[0] || stride[1] || stride[2] || stride[3]))
        return attn_fail(ATTN_INVALID, "%s_stride[3] = %" PRId64 " is not 1", name, stride[3]);
    return resolve_strides(name, extent, stride);
}

/* From the shortest stride to the longest, each must step over all that the shorter ones reach. */
attn_status attn_check_output_strides(const char *name, const int64_t extent[4], const int64_t stride[4])
{
    int order[4] = { 0, 1, 2, 3 };
    int64_t step[4], reach = 1;
    for (int i = 0; i < 4; i++) {
        if (extent[i] == 0) return ATTN_OK;
        step[i] = extent[i] == 1 ? 0 : stride[i] < 0 ? -stride[i] : stride[i];
    }
    for (int i = 1; i < 4; i++)
        for (int j = i; j > 0 && step[order[j]] < step[order[j - 1]]; j--) {
            int swapped = order[j];
            order[j] = order[j - 1], order[j - 1] = swapped;
        }
    for (int i = 0; i < 4; i++) {
        int axis = order[i];
        if (extent[axis] == 1) continue;
        if (step[axis] < reach)
            return attn_fail(ATTN_INVALID,
                             "%s_stride[%d] = %" PRId64 " makes elements of %s overlap: it must step over %" PRId64
                             " elements",
                             name, axis, stride[axis], name, reach);
        reach += (extent[axis] - 1) * step[axis];
    }
    return ATTN_OK;
}

attn_status attn_resolve_output(const char *name, const int64_t extent[4], int64_t stride[4])
{
    attn_status status = attn_resolve_tensor(name, extent, stride);
    return status ? status : attn_check_output_strides(name, extent, stride);
}

static attn_status resolve_gradients(attn_desc *desc)
{
    attn_shape shape = attn_shape_of(desc);
    attn_status status = attn_resolve_tensor("o", shape.o, desc->o_stride);
    if (!status) status = attn_resolve_tensor("grad_o", shape.o, desc->grad_o_stride);
    if (!status) status = attn_resolve_output("grad_q", shape.q, desc->grad_q_stride);
    if (!status) status = attn_resolve_output("grad_k", shape.k, desc->grad_k_stride);
    if (!status) status = attn_resolve_output("grad_v", shape.v, desc->grad_v_stride);
    if (!status && desc->flags & ATTN_BIAS) status = resolve_strides("grad_bias", desc->bias_extent, (int64_t[4]){ 0 });
    return status;
}

static attn_status resolve_layout(attn_desc *desc)
{
    attn_shape shape = attn_shape_of(desc);
    attn_status status = attn_resolve_tensor("q", shape.q, desc->q_stride);
    if (!status) status = attn_resolve_tensor("k", shape.k, desc->k_stride);
    if (!status) status = attn_resolve_tensor("v", shape.v, desc->v_stride);
    if (!status && desc->flags & ATTN_BIAS) status = resolve_strides("bias", desc->bias_extent, desc->bias_stride);
    if (status) return status;
    return desc->direction == ATTN_BACKWARD ? resolve_gradients(desc)
                                            : attn_resolve_output("o", shape.o, desc->o_stride);
}

static attn_status check_tables(const attn_desc *desc)
{
    const int64_t intervals[4] = { desc->batch, desc->interval_heads, desc->len_kv, desc->interval_vectors };
    const int64_t bits[4] = { desc->bits_batch, desc->bits_heads, desc->len_q, attn_bits_pitch(desc) };
    const int64_t pages[4] = { 1, 1, desc->batch, desc->table_width };
    attn_status status = resolve_strides("intervals", intervals, (int64_t[4]){ 0 });
    if (!status) status = resolve_strides("bits", bits, (int64_t[4]){ 0 });
    if (!status) status = resolve_strides("page_table", pages, (int64_t[4]){ 0 });
    if (!status && desc->flags & ATTN_BLOCKS) {
        const int64_t blocks[4] = { desc->block_batch, desc->block_heads, attn_ceil_div(desc->len_q, desc->block_rows),
                                    attn_ceil_div(desc->len_kv, desc->block_keys) };
        status = resolve_strides("blocks", blocks, (int64_t[4]){ 0 });
    }
    return status;
}

attn_status attn_desc_resolve(attn_desc *out, const attn_desc *desc, size_t size)
{
    attn_desc d;
    attn_status status = attn_struct_copy(&d, sizeof d, desc, size, "desc");
    if (status) return status;
    if (d.heads_kv == 0) d.heads_kv = d.heads_q;
    if (d.dim_v == 0) d.dim_v = d.dim_qk;
    if (d.alignment == 0) d.alignment = 16;

    status = check_kinds(&d);
    if (!status) status = check_other_kinds(&d);
    if (!status) status = check_fields(&d);
    if (status) return status;
    if (d.out_dtype == ATTN_F32 && d.dtype != ATTN_F32) d.flags |= ATTN_OUT_F32;
    if (d.flags & ATTN_SCALES_Q && d.q_scale_heads == 0) d.q_scale_heads = d.heads_q;
    if (d.dtype == ATTN_F64 && d.scale_f64 == 0) d.scale_f64 = d.scale == 0 ? 1 / sqrt((double)d.dim_qk) : d.scale;
    if (d.scale == 0) d.scale = (float)(d.scale_f64 != 0 ? d.scale_f64 : 1 / sqrt((double)d.dim_qk));

    status = check_numbers(&d);
    if (!status) status = check_relations(&d);
    if (!status) status = check_scales(&d);
    if (!status) tighten_lengths(&d);
    if (!status) status = check_pages(&d);
    if (!status) status = check_direction(&d);
    if (d.grad_dtype == attn_out_dtype(&d)) d.grad_dtype = (attn_dtype)0; /* theirs anyway */
    if (!status) status = check_machine(&d);
    if (!status) status = resolve_layout(&d);
    if (!status) status = check_tables(&d);
    if (status) return status;
    if (d.threads == 0 && d.device == ATTN_CPU) d.threads = attn_processors_available();
    *out = d;
    return ATTN_OK;
}

attn_status attn_desc_lay_kv(attn_desc *desc, const attn_kv_layout *kv)
{
    if (desc->direction != ATTN_FORWARD || desc->flags & (ATTN_VARLEN | ATTN_PAGED))
        return attn_fail(ATTN_INVALID, "kv_layout is not NULL: it takes a forward without ATTN_VARLEN and ATTN_PAGED");
    if (kv->len_kv < desc->bits_keys || kv->len_kv > desc->len_kv)
        return attn_fail(ATTN_INVALID, "kv_layout: len_kv = %" PRId64 " is not in %" PRId64 " to %" PRId64, kv->len_kv,
                         desc->bits_keys, desc->len_kv);
    if (desc->flags & ATTN_BIAS && desc->bias_extent[3] != 1 && desc->bias_extent[3] != kv->len_kv)
        return attn_fail(ATTN_INVALID, "kv_layout: bias_extent[3] = %" PRId64 " is neither 1 nor len_kv = %" PRId64,
                         desc->bias_extent[3], kv->len_kv);
    desc->len_kv = kv->len_kv;
    memcpy(desc->k_stride, kv->k_stride, sizeof desc->k_stride);
    memcpy(desc->v_stride, kv->v_stride, sizeof desc->v_stride);
    attn_shape shape = attn_shape_of(desc);
    attn_status status = attn_resolve_tensor("kv_layout: k", shape.k, desc->k_stride);
    return status ? status : attn_resolve_tensor("kv_layout: v", shape.v, desc->v_stride);
}
