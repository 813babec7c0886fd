/* Merging of partial results of attention by their LSEs: the descriptor, the plan and the run on the CPU. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/detect.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "num/half.h"
#include "problem/desc.h"

enum { PARTS_MOST = 64, DIM_MOST = 512, ITEM_ROWS = 16 };

struct attn_merge_plan {
    attn_merge_desc desc;                /* resolved */
    attn_desc loop;                      /* what threads.h reads of a descriptor */
    int64_t part_bytes[2], out_bytes[2]; /* where elements lie: [lo, hi) from the first */
};

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
    if (d->device != ATTN_CPU && d->device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)d->device);
    if (d->parts < 1 || d->parts > PARTS_MOST)
        return attn_fail(ATTN_INVALID, "parts = %" PRId32 " is not in 1 to %d", d->parts, PARTS_MOST);
    if (d->threads < 0 || d->threads > ATTN_THREADS_MOST)
        return attn_fail(ATTN_INVALID, "threads = %" PRId32 " is not in 0 to %d", d->threads, ATTN_THREADS_MOST);
    if (d->parallel_context && !d->parallel_for) return attn_fail(ATTN_INVALID, "parallel_context needs parallel_for");
    if (d->device == ATTN_CUDA)
        return attn_fail(ATTN_UNSUPPORTED, "device = ATTN_CUDA: merging is not there yet on a GPU");
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
                  { "dim", d->dim, 1, DIM_MOST } };
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
    attn_status status = check_kinds(d);
    if (!status) status = check_sizes(d);
    const int64_t extent[4] = { d->batch, d->rows, d->heads, d->dim };
    if (!status) status = attn_resolve_tensor("part", extent, d->part_stride);
    if (!status) status = attn_resolve_output("o", extent, d->o_stride);
    if (status) return status;
    attn_reach(extent, d->part_stride, &plan->part_bytes[0], &plan->part_bytes[1]);
    attn_reach(extent, d->o_stride, &plan->out_bytes[0], &plan->out_bytes[1]);
    for (int i = 0; i < 2; i++)
        plan->part_bytes[i] *= attn_dtype_size(d->dtype), plan->out_bytes[i] *= attn_dtype_size(d->out_dtype);
    if (!d->threads) d->threads = attn_processors_available();
    plan->loop =
        (attn_desc){ .threads = d->threads, .parallel_for = d->parallel_for, .parallel_context = d->parallel_context };
    return attn_threads_reserve(&plan->loop, d->threads);
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
    if ((status = resolve(plan))) {
        free(plan);
        return status;
    }
    *out = plan;
    return ATTN_OK;
}

void attn_merge_plan_destroy(attn_merge_plan *plan)
{
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

static bool is_in_place(const attn_merge_desc *d)
{
    bool alike = d->dtype == d->out_dtype;
    for (int i = 0; i < 4; i++)
        alike = alike && d->part_stride[i] == d->o_stride[i];
    return alike;
}

static attn_status check_args(const attn_merge_plan *plan, const attn_merge_args *a)
{
    const attn_merge_desc *d = &plan->desc;
    int64_t lses = d->batch * d->heads * d->rows * 4, size = attn_dtype_size(d->dtype);
    const extent o = { "o", a->o, plan->out_bytes[0], plan->out_bytes[1], attn_dtype_size(d->out_dtype) };
    const extent lse = { "lse", a->lse, 0, lses, 4 };
    if (!a->part_o || !a->part_lse)
        return attn_fail(ATTN_INVALID, "%s = NULL: it takes an array of %" PRId32 " addresses",
                         a->part_o ? "part_lse" : "part_o", d->parts);
    if (!a->o && lses) return attn_fail(ATTN_INVALID, "o is NULL, but has elements");
    if ((uintptr_t)a->o % (uintptr_t)o.size || (uintptr_t)a->lse % 4)
        return attn_fail(ATTN_INVALID, "o = %p or lse = %p is not aligned to its elements", a->o, (void *)a->lse);
    if (!is_apart(&o, &lse)) return attn_fail(ATTN_INVALID, "o overlaps lse");
    for (int32_t i = 0; i < d->parts; i++) {
        const extent part[2] = { { "part_o", a->part_o[i], plan->part_bytes[0], plan->part_bytes[1], size },
                                 { "part_lse", a->part_lse[i], 0, lses, 4 } };
        for (int j = 0; j < 2; j++) {
            attn_status status = check_array(&part[j], i);
            if (status) return status;
            bool same = j == 0 ? a->o == part[j].base && is_in_place(d) : a->lse == part[j].base;
            if (!is_apart(&o, &part[j]) && !(j == 0 && same))
                return attn_fail(ATTN_INVALID, "o overlaps %s of part %" PRId32, part[j].name, i);
            if (!is_apart(&lse, &part[j]) && !(j == 1 && same))
                return attn_fail(ATTN_INVALID, "lse overlaps %s of part %" PRId32, part[j].name, i);
        }
    }
    return ATTN_OK;
}

/* ---- run ------------------------------------------------------------------------------------- */

typedef struct call {
    const attn_merge_desc *desc;
    const attn_merge_args *args;
    int64_t blocks; /* of rows, of a head */
} call;

static int64_t place(const int64_t stride[4], int64_t batch, int64_t row, int64_t head)
{
    return batch * stride[0] + row * stride[1] + head * stride[2];
}

/* Row `at` of (batch, head, row). */
static void merge_row(const call *c, int64_t at, int64_t batch, int64_t head, int64_t row)
{
    const attn_merge_desc *d = c->desc;
    int64_t from = place(d->part_stride, batch, row, head), to = place(d->o_stride, batch, row, head);
    float weight[PARTS_MOST], out[DIM_MOST] = { 0 }, top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < d->parts; i++) {
        float lse = c->args->part_lse[i][at];
        if (lse > top || isnan(lse)) top = lse;
        if (isnan(top)) break;
    }
    for (int32_t i = 0; i < d->parts; i++) {
        float lse = c->args->part_lse[i][at];
        weight[i] = lse == -INFINITY ? 0 : expf(lse - top);
        sum += weight[i];
        for (int64_t k = 0; k < d->dim && lse != -INFINITY; k++)
            out[k] += weight[i] * attn_load_scalar(d->dtype, c->args->part_o[i], from + k);
    }
    for (int64_t k = 0; k < d->dim; k++)
        attn_store_scalar(d->out_dtype, c->args->o, to + k, sum != 0 ? out[k] / sum : 0);
    if (c->args->lse) c->args->lse[at] = sum != 0 ? top + logf(sum) : -INFINITY;
}

static void merge_item(void *arg, int64_t item, int worker)
{
    const call *c = arg;
    const attn_merge_desc *d = c->desc;
    int64_t plane = item / c->blocks, row = item % c->blocks * ITEM_ROWS;
    (void)worker;
    for (int64_t end = row + ITEM_ROWS < d->rows ? row + ITEM_ROWS : d->rows; row < end; row++)
        merge_row(c, plane * d->rows + row, plane / d->heads, plane % d->heads, row);
}

attn_status attn_merge_run_sized(const attn_merge_plan *plan, const attn_merge_args *args, size_t args_size,
                                 void *stream)
{
    attn_merge_args full;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_merge_plan_create");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    if (status) return status;
    if (stream) return attn_fail(ATTN_INVALID, "stream is not NULL: the CPU has none");
    if ((status = check_args(plan, &full))) return status;
    const attn_merge_desc *d = &plan->desc;
    call c = { d, &full, attn_ceil_div(d->rows, ITEM_ROWS) };
    attn_threads_each(&plan->loop, d->threads, d->batch * d->heads * c.blocks, merge_item, &c);
    return ATTN_OK;
}
