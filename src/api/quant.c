/* Quantisation of attention's inputs: the descriptor, the plan and the arguments. */
#include "api/quant.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/detect.h"
#include "base/error.h"
#include "num/half.h"
#include "num/philox.h"
#include "problem/args.h"

enum { HEADS_MOST = 1 << 20, ROWS_MOST = INT32_MAX - 64, ROTATE_LEAST = 16 };

/* ---- descriptor ------------------------------------------------------------------------------ */

static attn_status check_kinds(const attn_quant_desc *d)
{
    const uint32_t known = ATTN_QUANT_VARLEN | ATTN_QUANT_MEAN | ATTN_QUANT_DOT;
    if (d->dtype != ATTN_F32 && d->dtype != ATTN_F16 && d->dtype != ATTN_BF16)
        return attn_fail(ATTN_INVALID, "dtype = %d is not ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->dtype);
    if (d->out_dtype != ATTN_E4M3 && d->out_dtype != ATTN_I8)
        return attn_fail(ATTN_INVALID, "out_dtype = %d is not ATTN_E4M3 or ATTN_I8", (int)d->out_dtype);
    if (d->device != ATTN_CPU && d->device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)d->device);
    if (d->flags & ~known) return attn_fail(ATTN_INVALID, "flags = %#" PRIx32 " has unknown bits", d->flags);
    if (d->flags & ATTN_QUANT_MEAN && d->flags & ATTN_QUANT_DOT)
        return attn_fail(ATTN_INVALID, "flags: ATTN_QUANT_MEAN is of k, ATTN_QUANT_DOT of q: not both");
    if (d->threads < 0 || d->threads > ATTN_THREADS_MOST)
        return attn_fail(ATTN_INVALID, "threads = %" PRId32 " is not in 0 to %d", d->threads, ATTN_THREADS_MOST);
    if (d->parallel_context && !d->parallel_for) return attn_fail(ATTN_INVALID, "parallel_context needs parallel_for");
    if (d->device == ATTN_CUDA && (d->threads || d->parallel_for))
        return attn_fail(ATTN_INVALID, "%s is set: ATTN_CUDA takes none", d->threads ? "threads" : "parallel_for");
    return ATTN_OK;
}

static attn_status check_sizes(const attn_quant_desc *d)
{
    const bool varlen = d->flags & ATTN_QUANT_VARLEN, dot = d->flags & ATTN_QUANT_DOT;
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = { { "batch", d->batch, 0, INT32_MAX },
                  { "heads", d->heads, 1, HEADS_MOST },
                  { "dim", d->dim, 1, ATTN_DIM_MOST },
                  { "rows", d->rows, 0, ROWS_MOST },
                  { "total", d->total, 0, ROWS_MOST },
                  { "scale_rows", d->scale_rows, 0, 128 },
                  { "scale_heads", d->scale_heads, 1, HEADS_MOST },
                  { "mean_heads", d->mean_heads, dot, HEADS_MOST } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not in %" PRId64 " to %" PRId64, sizes[i].name,
                             sizes[i].value, sizes[i].least, sizes[i].most);
    if (!varlen && d->total) return attn_fail(ATTN_INVALID, "total = %" PRId64 " needs ATTN_QUANT_VARLEN", d->total);
    if (!dot && d->mean_heads)
        return attn_fail(ATTN_INVALID, "mean_heads = %" PRId64 " needs ATTN_QUANT_DOT", d->mean_heads);
    if (d->heads % d->scale_heads)
        return attn_fail(ATTN_INVALID, "scale_heads = %" PRId64 " does not divide heads = %" PRId64, d->scale_heads,
                         d->heads);
    if (dot && d->heads % d->mean_heads)
        return attn_fail(ATTN_INVALID, "mean_heads = %" PRId64 " does not divide heads = %" PRId64, d->mean_heads,
                         d->heads);
    return ATTN_OK;
}

static attn_status check_rotation(const attn_quant_desc *d)
{
    int64_t n = d->rotate;
    if (!n && d->seed) return attn_fail(ATTN_INVALID, "seed = %" PRIu64 " needs rotate", d->seed);
    if (n && (n < ROTATE_LEAST || n > ATTN_DIM_MOST || (n & (n - 1)) != 0))
        return attn_fail(ATTN_INVALID, "rotate = %" PRId64 " is not 0, 16, 32, 64, 128, 256 or 512", n);
    if (n && d->dim % n)
        return attn_fail(ATTN_INVALID, "rotate = %" PRId64 " does not divide dim = %" PRId64, n, d->dim);
    return ATTN_OK;
}

static attn_status check_scales(const attn_quant_desc *d)
{
    int64_t extent[4];
    attn_quant_scale_extent(d, extent);
    attn_status status = attn_check_scales("scale", "scale_rows", d->scale_rows, true, extent, d->scale_stride);
    return status ? status : attn_check_output_strides("scale", extent, d->scale_stride);
}

static void tensor_extent(const attn_quant_desc *d, int64_t extent[4])
{
    bool varlen = d->flags & ATTN_QUANT_VARLEN;
    extent[0] = varlen ? 1 : d->batch, extent[1] = varlen ? d->total : d->rows;
    extent[2] = d->heads, extent[3] = d->dim;
}

static attn_status resolve(attn_quant_desc *d)
{
    int64_t extent[4];
    if (d->scale_heads == 0) d->scale_heads = d->heads;
    if (d->mean_heads == 0 && d->flags & ATTN_QUANT_DOT) d->mean_heads = d->heads;
    attn_status status = check_kinds(d);
    if (!status) status = check_sizes(d);
    if (!status && d->flags & ATTN_QUANT_VARLEN && d->rows > d->total) d->rows = d->total;
    if (!status) status = check_rotation(d);
    if (!status) status = check_scales(d);
    tensor_extent(d, extent);
    if (!status) status = attn_resolve_tensor("x", extent, d->x_stride);
    if (!status) status = attn_resolve_output("out", extent, d->out_stride);
    const int64_t mean[4] = { 1, d->batch, d->heads, d->dim }, dot[4] = { 1, d->batch, d->heads, d->rows };
    if (!status) status = attn_resolve_tensor("mean", mean, (int64_t[4]){ 0 });
    if (!status) status = attn_resolve_tensor("dot", dot, (int64_t[4]){ 0 });
    if (!status && !d->threads && d->device == ATTN_CPU) d->threads = attn_processors_available();
    return status;
}

static void draw_signs(attn_quant_plan *plan)
{
    for (uint32_t i = 0; i < ATTN_DIM_MOST; i++) {
        uint32_t bits[4];
        attn_philox((const uint32_t[4]){ i / 128, 0, 0, 0 }, plan->desc.seed, bits);
        plan->sign[i] = plan->desc.rotate && bits[i / 32 % 4] >> i % 32 & 1 ? -1.0f : 1.0f;
    }
}

attn_status attn_quant_plan_create_sized(attn_quant_plan **out, const attn_quant_desc *desc, size_t desc_size)
{
    attn_quant_desc given;
    if (!out) return attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    attn_status status = attn_struct_copy(&given, sizeof given, desc, desc_size, "desc");
    if (!status) status = resolve(&given);
    if (status) return status;
    attn_quant_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    plan->desc = given;
    draw_signs(plan);
    plan->backend = given.device == ATTN_CUDA ? &attn_quant_cuda_backend : &attn_quant_cpu_backend;
    status = plan->backend->create(plan);
    if (status) {
        free(plan);
        return status;
    }
    *out = plan;
    return ATTN_OK;
}

void attn_quant_plan_destroy(attn_quant_plan *plan)
{
    if (plan) plan->backend->destroy(plan);
    free(plan);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static attn_status check_flagged(const attn_quant_desc *d, const attn_quant_args *a)
{
    const struct {
        const char *name;
        const void *base;
        uint32_t flags; /* one of them makes it an argument */
        const char *needs;
    } pointers[] = { { "cu_lens", a->cu_lens, ATTN_QUANT_VARLEN, "ATTN_QUANT_VARLEN" },
                     { "mean", a->mean, ATTN_QUANT_MEAN | ATTN_QUANT_DOT, "ATTN_QUANT_MEAN or ATTN_QUANT_DOT" },
                     { "dot", a->dot, ATTN_QUANT_DOT, "ATTN_QUANT_DOT" } };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        if (pointers[i].base && !(d->flags & pointers[i].flags))
            return attn_fail(ATTN_INVALID, "%s = %p needs %s", pointers[i].name, pointers[i].base, pointers[i].needs);
    return ATTN_OK;
}

static attn_status check_lengths(const attn_quant_desc *d, const int32_t *cu_lens)
{
    attn_status status = attn_check_starts("cu_lens", cu_lens, d->batch, "total", d->total);
    for (int64_t b = 0; b < d->batch && !status; b++)
        if (cu_lens[b + 1] - cu_lens[b] > d->rows)
            status = attn_fail(ATTN_INVALID,
                               "cu_lens gives sequence %" PRId64 " %" PRId32 " rows, which exceeds rows = %" PRId64, b,
                               cu_lens[b + 1] - cu_lens[b], d->rows);
    return status;
}

static attn_status check_args(const attn_quant_desc *d, const attn_quant_args *a)
{
    bool varlen = d->flags & ATTN_QUANT_VARLEN, dot = d->flags & ATTN_QUANT_DOT;
    int64_t tensor[4], scale[4], lines = varlen ? d->total : d->batch * d->rows;
    int64_t means = d->batch * (dot ? d->mean_heads : d->heads) * d->dim;
    attn_args_array inputs[3], outputs[4];
    int in = 0, out = 0;
    tensor_extent(d, tensor);
    attn_quant_scale_extent(d, scale);
    inputs[in++] = attn_array_strided("x", 0, a->x, attn_dtype_size(d->dtype), tensor, d->x_stride);
    outputs[out++] = attn_array_strided("out", 0, a->out, 1, tensor, d->out_stride);
    outputs[out++] = attn_array_strided("scale", 0, a->scale, 4, scale, d->scale_stride);
    if (varlen) inputs[in++] = attn_array_packed("cu_lens", 0, a->cu_lens, 4, d->batch + 1);
    if (dot) inputs[in++] = attn_array_packed("mean", 0, a->mean, 4, means);
    if (dot) outputs[out++] = attn_array_packed("dot", 0, a->dot, 4, d->heads * lines);
    if (d->flags & ATTN_QUANT_MEAN) outputs[out++] = attn_array_packed("mean", 0, a->mean, 4, means);
    attn_status status = check_flagged(d, a);
    if (!status) status = attn_check_arrays(inputs, in, outputs, out);
    return status || !varlen || d->device == ATTN_CUDA ? status : check_lengths(d, a->cu_lens);
}

attn_status attn_quant_run_sized(const attn_quant_plan *plan, const attn_quant_args *args, size_t args_size,
                                 void *stream)
{
    attn_quant_args full;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_quant_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    if (!status) status = check_args(&plan->desc, &full);
    return status ? status : plan->backend->run(plan, &full, stream);
}
