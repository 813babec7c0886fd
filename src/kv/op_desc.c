/* What a descriptor of an operation may say. Contract: op.h, attn_kv.h. */
#include <inttypes.h>
#include <string.h>

#include "base/detect.h"
#include "base/error.h"
#include "kv/op.h"
#include "problem/desc.h"

enum { DIM_MOST = 1024 };

uint32_t attn_kv_needs(const attn_kv_desc *d)
{
    bool append = d->op == ATTN_KV_APPEND, gather = d->op == ATTN_KV_GATHER, copy = d->op == ATTN_KV_COPY;
    bool slots = d->flags & ATTN_KV_SLOTS, packed = d->flags & ATTN_KV_PACKED, table = gather || (append && !slots);
    const bool has[] = { [ATTN_KV_NEED_BIT_ANY] = true,
                         [ATTN_KV_NEED_BIT_APPEND] = append,
                         [ATTN_KV_NEED_BIT_GATHER] = gather,
                         [ATTN_KV_NEED_BIT_COPY] = copy,
                         [ATTN_KV_NEED_BIT_ROWS] = append || packed,
                         [ATTN_KV_NEED_BIT_TABLE] = table,
                         [ATTN_KV_NEED_BIT_STARTS] = table && d->table_width == 0,
                         [ATTN_KV_NEED_BIT_CU_LENS] = packed || (append && !slots),
                         [ATTN_KV_NEED_BIT_TOKENS] = append || gather,
                         [ATTN_KV_NEED_BIT_COUNT] = slots || copy,
                         [ATTN_KV_NEED_BIT_SLOTS] = slots,
                         [ATTN_KV_NEED_BIT_ROTARY] = d->flags & ATTN_KV_ROTARY,
                         [ATTN_KV_NEED_BIT_ROTARY_Q] = d->flags & ATTN_KV_ROTARY_Q,
                         [ATTN_KV_NEED_BIT_POSITIONS] = d->flags & ATTN_KV_POSITIONS,
                         [ATTN_KV_NEED_BIT_SCALES] = d->flags & ATTN_KV_SCALES,
                         [ATTN_KV_NEED_BIT_SCALES_FROM] = copy && d->flags & ATTN_KV_SCALES };
    uint32_t needs = 0;
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        needs |= (uint32_t)has[i] << i;
    return needs;
}

const char *attn_kv_need_name(int bit)
{
    static const char *const names[] = {
#define NEED_NAME(name, text) text,
        ATTN_KV_NEED_LIST(NEED_NAME)
#undef NEED_NAME
    };
    return names[bit];
}

/* ---- fields ---------------------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    size_t offset;
    int need;
    int64_t min, max;
} field;

#define FIELD(name, need, min, max)                                            \
    {                                                                          \
#name, offsetof(attn_kv_desc, name), ATTN_KV_NEED_BIT_##need, min, max \
    }
#define STRIDE(name, need, i) FIELD(name[i], need, INT64_MIN, INT64_MAX)
#define STRIDES(name, need) STRIDE(name, need, 0), STRIDE(name, need, 1), STRIDE(name, need, 2), STRIDE(name, need, 3)

static const field fields[] = {
    FIELD(pages, ANY, 0, INT32_MAX),
    FIELD(page_size, ANY, 1, INT32_MAX),
    FIELD(heads_kv, ANY, 1, INT32_MAX),
    FIELD(dim_qk, ANY, 1, DIM_MOST),
    FIELD(dim_v, ANY, 1, DIM_MOST),
    FIELD(tokens, ROWS, 0, INT32_MAX),
    FIELD(batch, TABLE, 0, INT32_MAX - 1),
    FIELD(table_width, TABLE, 0, INT32_MAX),
    FIELD(table_total, TABLE, 0, INT32_MAX),
    FIELD(len_kv, GATHER, 0, INT32_MAX),
    FIELD(pages_from, COPY, 0, INT32_MAX),
    FIELD(copies, COPY, 0, INT32_MAX),
    FIELD(heads_q, ROTARY_Q, 1, INT32_MAX),
    FIELD(rotary_dim, ROTARY, 2, DIM_MOST),
    FIELD(positions, ROTARY, 0, INT64_MAX / DIM_MOST / 4),
    STRIDES(k_pages_stride, ANY),
    STRIDES(v_pages_stride, ANY),
    STRIDES(k_from_stride, COPY),
    STRIDES(v_from_stride, COPY),
    STRIDES(k_stride, TOKENS),
    STRIDES(v_stride, TOKENS),
    STRIDES(q_stride, ROTARY_Q),
    STRIDES(q_out_stride, ROTARY_Q),
    FIELD(k_scale_rows, SCALES, 0, 128),
    FIELD(v_scale_rows, SCALES, 0, 1),
    STRIDES(k_scale_stride, SCALES),
    STRIDES(v_scale_stride, SCALES),
    STRIDES(k_scale_from_stride, SCALES_FROM),
    STRIDES(v_scale_from_stride, SCALES_FROM),
};

static attn_status check_fields(const attn_kv_desc *d)
{
    uint32_t needs = attn_kv_needs(d);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        int64_t value;
        memcpy(&value, (const char *)d + f->offset, sizeof value);
        if (!(needs >> f->need & 1) && value != 0)
            return attn_fail(ATTN_INVALID, "%s = %" PRId64 " needs %s", f->name, value, attn_kv_need_name(f->need));
        if (needs >> f->need & 1 && (value < f->min || value > f->max))
            return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not in %" PRId64 " to %" PRId64, f->name, value, f->min,
                             f->max);
    }
    return ATTN_OK;
}

static attn_status check_flags(const attn_kv_desc *d)
{
    static const struct {
        uint32_t flag, with;
        int need;
        const char *name;
    } rules[] = {
        { ATTN_KV_SLOTS, 0, ATTN_KV_NEED_BIT_APPEND, "ATTN_KV_SLOTS" },
        { ATTN_KV_ROTARY, 0, ATTN_KV_NEED_BIT_APPEND, "ATTN_KV_ROTARY" },
        { ATTN_KV_ROTARY_Q, ATTN_KV_ROTARY, ATTN_KV_NEED_BIT_ROTARY, "ATTN_KV_ROTARY_Q" },
        { ATTN_KV_INTERLEAVED, ATTN_KV_ROTARY, ATTN_KV_NEED_BIT_ROTARY, "ATTN_KV_INTERLEAVED" },
        { ATTN_KV_POSITIONS, ATTN_KV_ROTARY, ATTN_KV_NEED_BIT_ROTARY, "ATTN_KV_POSITIONS" },
        { ATTN_KV_PACKED, 0, ATTN_KV_NEED_BIT_GATHER, "ATTN_KV_PACKED" },
        { ATTN_KV_SCALES, 0, ATTN_KV_NEED_BIT_ANY, "ATTN_KV_SCALES" },
        { ATTN_KV_TOKEN_SCALES, ATTN_KV_SCALES, ATTN_KV_NEED_BIT_SCALES, "ATTN_KV_TOKEN_SCALES" },
        { ATTN_KV_TOKEN_SCALES, ATTN_KV_SCALES, ATTN_KV_NEED_BIT_APPEND, "ATTN_KV_TOKEN_SCALES" },
    };
    uint32_t needs = attn_kv_needs(d), known = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        known |= rules[i].flag;
        if (d->flags & rules[i].flag && !(needs >> rules[i].need & 1))
            return attn_fail(ATTN_INVALID, "flags: %s needs %s", rules[i].name, attn_kv_need_name(rules[i].need));
    }
    if (d->flags & ~known) return attn_fail(ATTN_INVALID, "flags = %#" PRIx32 " has unknown bits", d->flags);
    if (d->flags & ATTN_KV_SLOTS && d->flags & ATTN_KV_ROTARY && !(d->flags & ATTN_KV_POSITIONS))
        return attn_fail(ATTN_INVALID, "flags: ATTN_KV_ROTARY with ATTN_KV_SLOTS needs ATTN_KV_POSITIONS");
    return ATTN_OK;
}

static bool is_wide(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

static bool is_byte(attn_dtype dtype)
{
    return dtype == ATTN_E4M3 || dtype == ATTN_I8;
}

static attn_status check_dtypes(const attn_kv_desc *d)
{
    bool converts = d->pages_dtype != d->dtype, copy = d->op == ATTN_KV_COPY;
    if (!is_wide(d->dtype) && !is_byte(d->dtype))
        return attn_fail(ATTN_INVALID, "dtype = %d is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3 or ATTN_I8",
                         (int)d->dtype);
    if (converts && (!is_byte(d->pages_dtype) || is_byte(d->dtype)))
        return attn_fail(ATTN_INVALID, "pages_dtype = %d is not 0, dtype = %s%s", (int)d->pages_dtype,
                         attn_dtype_name(d->dtype), is_byte(d->dtype) ? "" : ", ATTN_E4M3 or ATTN_I8");
    if (d->flags & ATTN_KV_ROTARY && is_byte(d->dtype))
        return attn_fail(ATTN_INVALID, "flags: ATTN_KV_ROTARY needs a dtype of f32, f16 or bf16, not %s",
                         attn_dtype_name(d->dtype));
    if (d->flags & ATTN_KV_SCALES && !is_byte(d->pages_dtype))
        return attn_fail(ATTN_INVALID, "flags: ATTN_KV_SCALES needs a pages_dtype of e4m3 or i8, not %s",
                         attn_dtype_name(d->pages_dtype));
    if (d->flags & ATTN_KV_SCALES && !converts && !copy)
        return attn_fail(ATTN_INVALID,
                         "flags: ATTN_KV_SCALES needs a dtype of f32, f16 or bf16, not %s: bytes are "
                         "copied as they are",
                         attn_dtype_name(d->dtype));
    return ATTN_OK;
}

static attn_status check_kinds(const attn_kv_desc *d)
{
    if (d->op < ATTN_KV_APPEND || d->op > ATTN_KV_COPY)
        return attn_fail(ATTN_INVALID, "op = %d is not ATTN_KV_APPEND, ATTN_KV_GATHER or ATTN_KV_COPY", (int)d->op);
    if (d->device != ATTN_CPU && d->device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)d->device);
    if (d->device == ATTN_CUDA && (d->threads || d->parallel_for))
        return attn_fail(ATTN_INVALID, "%s is set: ATTN_CUDA takes none", d->threads ? "threads" : "parallel_for");
    if (d->threads < 0 || d->threads > ATTN_THREADS_MOST)
        return attn_fail(ATTN_INVALID, "threads = %" PRId32 " is not in 0 to %d", d->threads, ATTN_THREADS_MOST);
    if (d->parallel_context && !d->parallel_for) return attn_fail(ATTN_INVALID, "parallel_context needs parallel_for");
    attn_status status = check_flags(d);
    return status ? status : check_dtypes(d);
}

static attn_status check_relations(const attn_kv_desc *d)
{
    if (d->table_width && d->table_total)
        return attn_fail(ATTN_INVALID, "table_total = %" PRId64 " needs table_width = 0, which is %" PRId64,
                         d->table_total, d->table_width);
    if (d->rotary_dim % 2 != 0) return attn_fail(ATTN_INVALID, "rotary_dim = %" PRId64 " is odd", d->rotary_dim);
    if (d->rotary_dim > d->dim_qk)
        return attn_fail(ATTN_INVALID, "rotary_dim = %" PRId64 " exceeds dim_qk = %" PRId64, d->rotary_dim, d->dim_qk);
    return ATTN_OK;
}

/* ---- layout ---------------------------------------------------------------------------------- */

void attn_kv_extents(const attn_kv_desc *d, int64_t k[4], int64_t q[4])
{
    bool batched = d->op == ATTN_KV_GATHER && !(d->flags & ATTN_KV_PACKED);
    k[0] = batched ? d->batch : 1, k[1] = batched ? d->len_kv : d->tokens, k[2] = d->heads_kv, k[3] = d->dim_qk;
    q[0] = 1, q[1] = d->tokens, q[2] = d->heads_q, q[3] = d->dim_qk;
}

attn_kv_scale_shape attn_kv_scale_shape_of(const attn_kv_desc *d)
{
    int64_t k = d->k_scale_rows, v = d->v_scale_rows, sequences = d->flags & ATTN_KV_SLOTS ? 1 : d->batch;
    attn_kv_scale_shape shape = {
        .k = { k ? d->pages : sequences, k ? attn_ceil_div(d->page_size, k) : 1, d->heads_kv, 1 },
        .v = { v ? d->pages : sequences, v ? attn_ceil_div(d->page_size, v) : 1, d->heads_kv, v ? 1 : d->dim_v }
    };
    memcpy(shape.k_from, shape.k, sizeof shape.k), memcpy(shape.v_from, shape.v, sizeof shape.v);
    shape.k_from[0] = shape.v_from[0] = d->pages_from;
    return shape;
}

static attn_status check_scales_of(const attn_kv_desc *d, const char *name, int64_t rows, const int64_t extent[4],
                                   const int64_t stride[4])
{
    char letter = *name;
    bool any = stride[0] || stride[1] || stride[2] || stride[3];
    if (rows == 0 && d->op == ATTN_KV_COPY && any)
        return attn_fail(ATTN_INVALID, "%s_stride is not 0: a copy needs %c_scale_rows above 0 for it", name, letter);
    if (rows == 0 && d->flags & ATTN_KV_SLOTS && stride[0])
        return attn_fail(ATTN_INVALID,
                         "%s_stride[0] = %" PRId64 " is not 0: with ATTN_KV_SLOTS and %c_scale_rows = 0 all rows have "
                         "the same scales",
                         name, stride[0], letter);
    return attn_check_scales(name, letter == 'k' ? "k_scale_rows" : "v_scale_rows", rows, letter == 'v', extent,
                             stride);
}

static attn_status check_scales(const attn_kv_desc *d)
{
    attn_kv_scale_shape shape = attn_kv_scale_shape_of(d);
    bool written = attn_kv_writes_scales(d);
    const struct {
        const char *name;
        int64_t rows;
        const int64_t *extent, *stride;
        bool written;
    } scales[] = { { "k_scale", d->k_scale_rows, shape.k, d->k_scale_stride, written },
                   { "v_scale", d->v_scale_rows, shape.v, d->v_scale_stride, written },
                   { "k_scale_from", d->k_scale_rows, shape.k_from, d->k_scale_from_stride, false },
                   { "v_scale_from", d->v_scale_rows, shape.v_from, d->v_scale_from_stride, false } };
    for (int i = 0; i < 2 && d->flags & ATTN_KV_TOKEN_SCALES; i++)
        if (scales[i].rows != 1)
            return attn_fail(ATTN_INVALID, "%s_rows = %" PRId64 " is not 1, as ATTN_KV_TOKEN_SCALES needs it",
                             scales[i].name, scales[i].rows);
    attn_status status = ATTN_OK;
    for (int i = 0; i < (d->op == ATTN_KV_COPY ? 4 : 2) && !status; i++) {
        status = check_scales_of(d, scales[i].name, scales[i].rows, scales[i].extent, scales[i].stride);
        if (!status && scales[i].written && scales[i].rows)
            status = attn_check_output_strides(scales[i].name, scales[i].extent, scales[i].stride);
    }
    return status;
}

static attn_status resolve_pools(attn_kv_desc *d)
{
    const int64_t k[4] = { d->pages, d->page_size, d->heads_kv, d->dim_qk };
    const int64_t v[4] = { d->pages, d->page_size, d->heads_kv, d->dim_v };
    const int64_t k_from[4] = { d->pages_from, k[1], k[2], k[3] }, v_from[4] = { d->pages_from, v[1], v[2], v[3] };
    bool written = d->op != ATTN_KV_GATHER;
    attn_status status = (written ? attn_resolve_output : attn_resolve_tensor)("k_pages", k, d->k_pages_stride);
    if (!status) status = (written ? attn_resolve_output : attn_resolve_tensor)("v_pages", v, d->v_pages_stride);
    if (status || d->op != ATTN_KV_COPY) return status;
    status = attn_resolve_tensor("k_from", k_from, d->k_from_stride);
    return status ? status : attn_resolve_tensor("v_from", v_from, d->v_from_stride);
}

static attn_status resolve_rows(attn_kv_desc *d)
{
    int64_t k[4], q[4];
    attn_status (*resolve)(const char *, const int64_t *, int64_t *) =
        d->op == ATTN_KV_GATHER ? attn_resolve_output : attn_resolve_tensor;
    if (d->op == ATTN_KV_COPY) return ATTN_OK;
    attn_kv_extents(d, k, q);
    attn_status status = resolve("k", k, d->k_stride);
    k[3] = d->dim_v;
    if (!status) status = resolve("v", k, d->v_stride);
    if (status || !(d->flags & ATTN_KV_ROTARY_Q)) return status;
    status = attn_resolve_tensor("q", q, d->q_stride);
    return status ? status : attn_resolve_output("q_out", q, d->q_out_stride);
}

attn_status attn_kv_resolve(attn_kv_desc *out, const attn_kv_desc *desc, size_t size)
{
    attn_kv_desc d;
    attn_status status = attn_struct_copy(&d, sizeof d, desc, size, "desc");
    if (status) return status;
    if (d.dim_v == 0) d.dim_v = d.dim_qk;
    if (d.rotary_dim == 0 && d.flags & ATTN_KV_ROTARY) d.rotary_dim = d.dim_qk;
    if (d.pages_dtype == 0) d.pages_dtype = d.dtype;
    status = check_kinds(&d);
    if (!status) status = check_fields(&d);
    if (!status) status = check_relations(&d);
    if (!status && d.flags & ATTN_KV_SCALES) status = check_scales(&d);
    const int64_t table[4] = { 1, 1, d.batch, d.table_width };
    if (!status) status = attn_resolve_tensor("page_table", table, (int64_t[4]){ 0 });
    if (!status) status = resolve_pools(&d);
    if (!status) status = resolve_rows(&d);
    if (status) return status;
    if (d.threads == 0 && d.device == ATTN_CPU) d.threads = attn_processors_available();
    *out = d;
    return ATTN_OK;
}
