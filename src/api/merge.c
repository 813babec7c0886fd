/* Merging of partial results of attention by their LSEs: the descriptor, the plan and the arguments. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "api/merge.h"
#include "base/detect.h"
#include "base/error.h"
#include "num/half.h"
#include "problem/desc.h"

/* ---- descriptor ------------------------------------------------------------------------------ */

static bool is_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

static attn_status check_kinds(const attn_merge_desc *d)
{
    if (!is_dtype(d->dtype))
        return attn_fail(ATTN_INVALID, "dtype = %d is not ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->dtype);
    if (!is_dtype(d->out_dtype))
        return attn_fail(ATTN_INVALID, "out_dtype = %d is not 0, ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->out_dtype);
    if (!is_dtype(d->first_dtype))
        return attn_fail(ATTN_INVALID, "first_dtype = %d is not 0, ATTN_F32, ATTN_F16 or ATTN_BF16",
                         (int)d->first_dtype);
    if (d->device != ATTN_CPU && d->device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)d->device);
    if (d->parts < 1 || d->parts > ATTN_MERGE_PARTS)
        return attn_fail(ATTN_INVALID, "parts = %" PRId32 " is not in 1 to %d", d->parts, ATTN_MERGE_PARTS);
    if (d->sums != 0 && d->sums != 1) return attn_fail(ATTN_INVALID, "sums = %" PRId32 " is not 0 or 1", d->sums);
    if (d->threads < 0 || d->threads > ATTN_THREADS_MOST)
        return attn_fail(ATTN_INVALID, "threads = %" PRId32 " is not in 0 to %d", d->threads, ATTN_THREADS_MOST);
    if (d->parallel_context && !d->parallel_for) return attn_fail(ATTN_INVALID, "parallel_context needs parallel_for");
    if (d->device == ATTN_CUDA && (d->threads || d->parallel_for))
        return attn_fail(ATTN_INVALID, "%s is set: ATTN_CUDA takes none", d->threads ? "threads" : "parallel_for");
    return ATTN_OK;
}

/* What part 0 is, if it is not as the others. */
static attn_status resolve_first(attn_merge_desc *d)
{
    for (int i = 0; i < 4 && !d->first_dtype; i++)
        if (d->first_stride[i])
            return attn_fail(ATTN_INVALID, "first_stride[%d] = %" PRId64 " needs first_dtype", i, d->first_stride[i]);
    if (d->first_dtype && d->device == ATTN_CUDA)
        return attn_fail(ATTN_UNSUPPORTED, "first_dtype = %d: ATTN_CUDA takes parts of one dtype", (int)d->first_dtype);
    if (!d->first_dtype) d->first_dtype = d->dtype, memcpy(d->first_stride, d->part_stride, sizeof d->first_stride);
    return ATTN_OK;
}

static attn_status check_sizes(const attn_merge_desc *d)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = { { "batch", d->batch, 0, INT32_MAX },
                  { "rows", d->rows, 0, INT32_MAX },
                  { "heads", d->heads, 1, 1 << 20 },
                  { "dim", d->dim, 1, ATTN_MERGE_DIM } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not in %" PRId64 " to %" PRId64, sizes[i].name,
                             sizes[i].value, sizes[i].least, sizes[i].most);
    return ATTN_OK;
}

static attn_status resolve(attn_merge_plan *plan)
{
    attn_merge_desc *d = &plan->desc;
    if (!d->out_dtype) d->out_dtype = d->dtype;
    const int64_t extent[4] = { d->batch, d->rows, d->heads, d->dim };
    attn_status status = resolve_first(d);
    if (!status) status = check_kinds(d);
    if (!status) status = check_sizes(d);
    if (!status) status = attn_resolve_tensor("part", extent, d->part_stride);
    if (!status) status = attn_resolve_tensor("first", extent, d->first_stride);
    if (!status) status = attn_resolve_output("o", extent, d->o_stride);
    if (status) return status;
    attn_reach(extent, d->part_stride, &plan->part_bytes[0], &plan->part_bytes[1]);
    attn_reach(extent, d->first_stride, &plan->first_bytes[0], &plan->first_bytes[1]);
    attn_reach(extent, d->o_stride, &plan->out_bytes[0], &plan->out_bytes[1]);
    for (int i = 0; i < 2; i++) {
        plan->part_bytes[i] *= attn_dtype_size(d->dtype);
        plan->first_bytes[i] *= attn_dtype_size(d->first_dtype);
        plan->out_bytes[i] *= attn_dtype_size(d->out_dtype);
    }
    if (!d->threads && d->device == ATTN_CPU) d->threads = attn_processors_available();
    return ATTN_OK;
}

attn_status attn_merge_plan_create_sized(attn_merge_plan **out, const attn_merge_desc *desc, size_t desc_size)
{
    attn_merge_desc given;
    if (!out) return attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    attn_status status = attn_struct_copy(&given, sizeof given, desc, desc_size, "desc");
    if (status) return status;
    attn_merge_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    plan->desc = given;
    plan->backend = given.device == ATTN_CUDA ? &attn_merge_cuda_backend : &attn_merge_cpu_backend;
    status = resolve(plan);
    if (!status) status = plan->backend->create(plan);
    if (status) {
        free(plan);
        return status;
    }
    *out = plan;
    return ATTN_OK;
}

void attn_merge_plan_destroy(attn_merge_plan *plan)
{
    if (plan) plan->backend->destroy(plan);
    free(plan);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* An array by the bytes that its elements lie in. */
typedef struct extent {
    const char *name;
    const void *base;
    int64_t lo, hi, size; /* size: of an element */
} extent;

static attn_status check_array(const extent *e, int32_t part)
{
    if (!e->base && e->hi > e->lo)
        return attn_fail(ATTN_INVALID, "%s of part %" PRId32 " is NULL, but has elements", e->name, part);
    if ((uintptr_t)e->base % (uintptr_t)e->size != 0)
        return attn_fail(ATTN_INVALID,
                         "%s = %p of part %" PRId32 " is not aligned to its elements of %" PRId64 " bytes", e->name,
                         e->base, part, e->size);
    return ATTN_OK;
}

static bool is_apart(const extent *a, const extent *b)
{
    uintptr_t x = (uintptr_t)a->base, y = (uintptr_t)b->base;
    if (!a->base || !b->base || a->lo == a->hi || b->lo == b->hi) return true;
    return x + (uintptr_t)a->hi <= y + (uintptr_t)b->lo || y + (uintptr_t)b->hi <= x + (uintptr_t)a->lo;
}

/* o may be the o of parts like this one. */
static bool is_in_place(const attn_merge_desc *d, attn_dtype dtype, const int64_t stride[4])
{
    bool alike = dtype == d->out_dtype;
    for (int i = 0; i < 4; i++)
        alike = alike && stride[i] == d->o_stride[i];
    return alike;
}

static attn_status check_args(const attn_merge_plan *plan, const attn_merge_args *a)
{
    const attn_merge_desc *d = &plan->desc;
    int64_t lses = 4 * attn_merge_lines(d);
    const extent o = { "o", a->o, plan->out_bytes[0], plan->out_bytes[1], attn_dtype_size(d->out_dtype) };
    const extent lse = { "lse", a->lse, 0, lses, 4 };
    if (!a->part_o || (!a->part_lse && !d->sums))
        return attn_fail(ATTN_INVALID, "%s = NULL: it takes an array of %" PRId32 " addresses",
                         a->part_o ? "part_lse" : "part_o", d->parts);
    if (d->sums && (a->part_lse || a->lse))
        return attn_fail(ATTN_INVALID, "%s is not NULL: sums have no LSEs", a->lse ? "lse" : "part_lse");
    if (!a->o && lses) return attn_fail(ATTN_INVALID, "o is NULL, but has elements");
    if ((uintptr_t)a->o % (uintptr_t)o.size || (uintptr_t)a->lse % 4)
        return attn_fail(ATTN_INVALID, "o = %p or lse = %p is not aligned to its elements", a->o, (void *)a->lse);
    if (!is_apart(&o, &lse)) return attn_fail(ATTN_INVALID, "o overlaps lse");
    const extent addresses[2] = { { "part_o", a->part_o, 0, d->parts * (int64_t)sizeof *a->part_o, 1 },
                                  { "part_lse", a->part_lse, 0, d->parts * (int64_t)sizeof *a->part_lse, 1 } };
    int arrays = d->sums ? 1 : 2;
    for (int i = 0; i < 4; i++)
        if (d->device == ATTN_CPU && !is_apart(i < 2 ? &o : &lse, &addresses[i % 2]))
            return attn_fail(ATTN_INVALID, "%s overlaps %s, the array of addresses", i < 2 ? "o" : "lse",
                             addresses[i % 2].name);
    for (int32_t i = 0; i < d->parts; i++) {
        attn_dtype dtype = i ? d->dtype : d->first_dtype;
        const int64_t *bytes = i ? plan->part_bytes : plan->first_bytes;
        const extent part[2] = { { "part_o", a->part_o[i], bytes[0], bytes[1], attn_dtype_size(dtype) },
                                 { "part_lse", d->sums ? NULL : a->part_lse[i], 0, lses, 4 } };
        bool in_place = is_in_place(d, dtype, i ? d->part_stride : d->first_stride);
        for (int j = 0; j < arrays; j++) {
            attn_status status = check_array(&part[j], i);
            if (status) return status;
            bool same = j == 0 ? a->o == part[j].base && in_place : a->lse == part[j].base;
            if (!is_apart(&o, &part[j]) && !(j == 0 && same))
                return attn_fail(ATTN_INVALID, "o overlaps %s of part %" PRId32, part[j].name, i);
            if (!is_apart(&lse, &part[j]) && !(j == 1 && same))
                return attn_fail(ATTN_INVALID, "lse overlaps %s of part %" PRId32, part[j].name, i);
        }
    }
    return ATTN_OK;
}

attn_status attn_merge_run_sized(const attn_merge_plan *plan, const attn_merge_args *args, size_t args_size,
                                 void *stream)
{
    attn_merge_args full;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_merge_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    if (!status) status = check_args(plan, &full);
    attn_merge_call call = { &full, plan->desc.parts, NULL };
    return status ? status : plan->backend->run(plan, &call, stream);
}
