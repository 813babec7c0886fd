/* Bytes -> descriptor of attn_quant -> plan -> run -> its definition (check/quant.h). What is refused names a field,
 * and nothing was written. What is done is right within rounding, has the same bits on another instruction set and
 * number of threads, and touches nothing between the elements or beyond the arrays, which end at guard pages. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "api/quant.h"
#include "base/detect.h"
#include "check/buffer.h"
#include "check/quant.h"
#include "check/random.h"
#include "input.h"
#include "num/half.h"
#include "problem/args.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

static const char *const fields[] = { "dtype",
                                      "out_dtype",
                                      "device",
                                      "flags",
                                      "batch",
                                      "heads",
                                      "dim",
                                      "rows",
                                      "total",
                                      "rotate",
                                      "seed",
                                      "x_stride",
                                      "out_stride",
                                      "scale_rows",
                                      "threads",
                                      "scale_heads",
                                      "scale_stride",
                                      "mean_heads",
                                      "parallel_context",
                                      "x",
                                      "out",
                                      "scale",
                                      "cu_lens",
                                      "mean",
                                      "dot" };

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Packed by zeros, by numbers, heads first, or backwards, with gaps; now and then anything. */
static void take_strides(input *in, const int64_t n[4], int64_t stride[4])
{
    int64_t kind = below(in, 5), gap = below(in, 3), pitch = n[3] + gap;
    if (kind == 0) return;
    bool heads_first = kind == 2;
    stride[3] = 1, stride[heads_first ? 1 : 2] = pitch;
    stride[heads_first ? 2 : 1] = pitch * (heads_first ? n[1] : n[2]) + gap;
    stride[0] = stride[heads_first ? 2 : 1] * (heads_first ? n[2] : n[1]) + gap;
    if (kind == 3) stride[below(in, 3)] *= -1;
    if (kind == 4) stride[below(in, 4)] = wild(in, below(in, 200) - 100);
}

static void take_scale_strides(input *in, attn_quant_desc *d)
{
    const int64_t n[4] = { d->batch, d->scale_rows > 0 ? attn_ceil_div(d->rows, d->scale_rows) : 1,
                           d->scale_heads ? d->scale_heads : d->heads, d->dim };
    int64_t step = 1 + below(in, 2);
    for (int i = 3; i >= 0; i--) {
        bool can = i == 1 ? d->scale_rows > 0 : i == 3 ? d->scale_rows == 0 && below(in, 2) : true;
        if (!can || below(in, 4) == 0) continue;
        d->scale_stride[i] = below(in, 8) ? step : -step, step = times(step, n[i] > 0 ? n[i] : 1);
    }
    if (below(in, 16) == 0) d->scale_stride[below(in, 4)] = wild(in, below(in, 100) - 50);
}

static attn_quant_desc take_desc(input *in)
{
    static const int64_t dims[] = { 1, 3, 7, 8, 15, 16, 24, 32, 33, 48, 64, 80, 96, 128, 256, 512 };
    attn_quant_desc d = { .dtype = (attn_dtype)wild(in, 1 + below(in, 3)) };
    d.out_dtype = (attn_dtype)wild(in, below(in, 2) ? ATTN_E4M3 : ATTN_I8);
    int64_t device = wild(in, ATTN_CPU);
    d.device = (attn_device)(device == ATTN_CUDA ? 2 : device); /* this is about the CPU */
    d.flags = (uint32_t)wild(in, below(in, 8) % 6), d.threads = (int32_t)below(in, 4);
    d.batch = wild(in, below(in, 4)), d.heads = wild(in, 1 + below(in, 4));
    d.dim = wild(in, dims[below(in, COUNT(dims))]), d.rows = wild(in, below(in, 150));
    if (d.flags & ATTN_QUANT_VARLEN) d.total = wild(in, below(in, 200));
    if (below(in, 2)) d.rotate = wild(in, (int64_t)((uint64_t)d.dim & -(uint64_t)d.dim)), d.seed = (uint64_t)take(in);
    d.scale_rows = wild(in, (const int64_t[]){ 0, 1, 64, 128 }[below(in, 4)]);
    if (below(in, 3) == 0) d.scale_heads = wild(in, 1 + below(in, 4));
    if (d.flags & ATTN_QUANT_DOT && below(in, 2)) d.mean_heads = wild(in, 1 + below(in, 4));
    return d;
}

static bool is_tiny(const attn_quant_desc *d)
{
    const int64_t sizes[] = { d->batch, d->heads, d->dim, d->rows, d->total, d->rotate };
    int64_t work = d->rotate ? d->rotate : 1;
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i] < 0 || sizes[i] > 600) return false;
    return (d->batch * d->rows + d->total) * d->heads * d->dim * work <= 1 << 20;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

enum { OUT, SCALE, MEAN, DOT, X, CU_LENS, ARRAYS, OUTPUTS = X };

typedef struct problem {
    attn_quant_desc desc; /* resolved */
    attn_quant_args args;
    int64_t tensor[4], scale[4];
    check_buffer array[ARRAYS];
} problem;

static void *allocate(problem *p, int which, attn_args_array span, bool front)
{
    p->array[which] = check_buffer_create((size_t)(span.hi - span.lo), front && span.lo % span.size == 0);
    return p->array[which].data - span.lo;
}

static bool fits(attn_args_array span)
{
    return span.hi - span.lo <= 1 << 20;
}

/* False: an array takes too much. */
static bool create(problem *p, bool front)
{
    const attn_quant_desc *d = &p->desc;
    attn_quant_args *a = &p->args;
    bool varlen = d->flags & ATTN_QUANT_VARLEN, dot = d->flags & ATTN_QUANT_DOT, mean = d->flags & ATTN_QUANT_MEAN;
    int64_t means = d->batch * (dot ? d->mean_heads : d->heads) * d->dim;
    memcpy(p->tensor, (int64_t[4]){ varlen ? 1 : d->batch, varlen ? d->total : d->rows, d->heads, d->dim },
           sizeof p->tensor);
    attn_quant_scale_extent(d, p->scale);
    attn_args_array x = attn_array_strided("x", 0, NULL, attn_dtype_size(d->dtype), p->tensor, d->x_stride);
    attn_args_array out = attn_array_strided("out", 0, NULL, 1, p->tensor, d->out_stride);
    attn_args_array scale = attn_array_strided("scale", 0, NULL, 4, p->scale, d->scale_stride);
    if (!fits(x) || !fits(out) || !fits(scale)) return false;
    a->x = allocate(p, X, x, front), a->out = allocate(p, OUT, out, front);
    a->scale = allocate(p, SCALE, scale, front);
    if (mean || dot) a->mean = allocate(p, MEAN, attn_array_packed("mean", 0, NULL, 4, means), front);
    if (dot)
        a->dot = allocate(
            p, DOT, attn_array_packed("dot", 0, NULL, 4, d->heads * (varlen ? d->total : d->batch * d->rows)), front);
    if (varlen) a->cu_lens = allocate(p, CU_LENS, attn_array_packed("cu_lens", 0, NULL, 4, d->batch + 1), front);
    return true;
}

static float draw(uint64_t *state, int64_t kind, float offset)
{
    static const float odd[] = { NAN, INFINITY, -INFINITY, 0, -0.0f, 1e30f, 1e-40f, 1e-45f };
    float x = check_normal(state);
    if (kind == 1 && check_chance(state, 3)) return odd[check_below(state, 8)];
    if (kind == 2) return check_chance(state, 2) ? x * 100 : 0;
    if (kind == 3) return x * 1e-39f;
    if (kind == 4) return x * 1e29f;
    if (kind == 5) return offset;
    return x + offset;
}

/* True: all starts are what a run takes. */
static bool fill(problem *p, input *in)
{
    const attn_quant_desc *d = &p->desc;
    uint64_t state = (uint64_t)take(in);
    int64_t kind = below(in, 6), size = attn_dtype_size(d->dtype);
    float offset = 3 * check_normal(&state);
    for (int64_t i = 0; i < (int64_t)p->array[X].size / size; i++)
        attn_store_scalar(d->dtype, p->array[X].data, i, draw(&state, kind, offset));
    for (size_t i = 0; i < p->array[MEAN].size / 4 && d->flags & ATTN_QUANT_DOT; i++)
        p->args.mean[i] = check_normal(&state);
    if (!p->args.cu_lens) return true;
    int32_t *cu = (int32_t *)(void *)p->array[CU_LENS].data;
    bool right = true;
    int64_t left = d->total;
    cu[0] = (int32_t)wild(in, 0);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t most = left < d->rows ? left : d->rows, rows = most > 0 ? below(in, most + 1) : 0;
        cu[b + 1] = (int32_t)wild(in, cu[b] < 0 || cu[b] > d->total ? 0 : cu[b] + rows);
        right = right && cu[b + 1] >= cu[b] && cu[b + 1] <= d->total && cu[b + 1] - cu[b] <= d->rows;
        left = d->total - cu[b + 1];
    }
    return right && cu[0] == 0;
}

/* ---- what was written ------------------------------------------------------------------------ */

static bool is_output(const problem *p, int which)
{
    return which < OUTPUTS && (which != MEAN || p->desc.flags & ATTN_QUANT_MEAN);
}

static void must_be_fresh(const problem *p, const char *when)
{
    for (int which = 0; which < OUTPUTS; which++)
        for (size_t i = 0; i < p->array[which].size && is_output(p, which); i++)
            if (p->array[which].data[i] != CHECK_FRESH) {
                fprintf(stderr, "%s, but byte %zu of output %d was written\n", when, i, which);
                abort();
            }
}

static void refresh(const problem *p)
{
    for (int which = 0; which < OUTPUTS; which++)
        if (is_output(p, which)) check_buffer_refresh(&p->array[which]);
}

/* Makes fresh what a run has to write. */
static void wipe(const problem *p)
{
    const attn_quant_desc *d = &p->desc;
    const attn_quant_args *a = &p->args;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t rows = a->cu_lens ? a->cu_lens[b + 1] - a->cu_lens[b] : d->rows;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t head = 0; head < d->heads; head++) {
                int64_t line = a->cu_lens ? a->cu_lens[b] + row : row, batch = a->cu_lens ? 0 : b;
                memset((char *)a->out + batch * d->out_stride[0] + line * d->out_stride[1] + head * d->out_stride[2],
                       CHECK_FRESH, (size_t)d->dim);
                if (a->dot) memset(&a->dot[(batch * d->heads + head) * p->tensor[1] + line], CHECK_FRESH, 4);
            }
    }
    const int64_t *n = p->scale, *stride = d->scale_stride;
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++)
        memset(&a->scale[i / n[3] / n[2] / n[1] * stride[0] + i / n[3] / n[2] % n[1] * stride[1] +
                         i / n[3] % n[2] * stride[2] + i % n[3] * stride[3]],
               CHECK_FRESH, 4);
    if (is_output(p, MEAN)) check_buffer_refresh(&p->array[MEAN]);
}

static attn_status run(const attn_quant_plan *plan, const attn_quant_args *args)
{
    attn_status status = attn_quant_run(plan, args, NULL);
    check_refusal(status, fields, COUNT(fields));
    return status;
}

/* The same bits by another plan. */
static void check_again(input *in, problem *p)
{
    unsigned char *first[OUTPUTS];
    attn_quant_plan *plan;
    attn_isa isa = (attn_isa)below(in, 8);
    if (!attn_isa_name(isa) || !attn_isa_available(isa)) isa = ATTN_ISA_PORTABLE;
    for (int which = 0; which < OUTPUTS; which++) {
        first[which] = check_allocate(p->array[which].size + 1);
        if (p->array[which].size) memcpy(first[which], p->array[which].data, p->array[which].size);
    }
    refresh(p);
    p->desc.threads = 1 + (int32_t)below(in, 3);
    setenv("ATTN_ISA", attn_isa_name(isa), 1);
    if (attn_quant_plan_create(&plan, &p->desc) || run(plan, &p->args)) abort();
    unsetenv("ATTN_ISA");
    attn_quant_plan_destroy(plan);
    for (int which = 0; which < OUTPUTS; which++) {
        if (p->array[which].size && memcmp(first[which], p->array[which].data, p->array[which].size) != 0) {
            fprintf(stderr, "%s, %d threads: output %d has other bits\n", attn_isa_name(isa), p->desc.threads, which);
            abort();
        }
        free(first[which]);
    }
}

/* One pointer is missing, not there for the taking, or not aligned. */
static void check_spoiled(input *in, const attn_quant_plan *plan, problem *p)
{
    attn_quant_args spoiled = p->args;
    size_t offset = sizeof(void *) * (size_t)below(in, sizeof spoiled / sizeof(void *));
    char *at;
    memcpy(&at, (char *)&spoiled + offset, sizeof at);
    at = !at ? (char *)p : below(in, 2) || offset == offsetof(attn_quant_args, out) ? NULL : at + 1;
    memcpy((char *)&spoiled + offset, &at, sizeof at);
    if (run(plan, &spoiled))
        must_be_fresh(p, attn_error());
    else if (p->array[X].size && p->array[SCALE].size)
        abort();
    refresh(p);
}

static void check(input *in, const attn_quant_plan *plan)
{
    problem p = { .desc = plan->desc };
    if (create(&p, below(in, 2))) {
        bool right = fill(&p, in);
        if (below(in, 4) == 0) check_spoiled(in, plan, &p);
        attn_status status = run(plan, &p.args);
        if ((status == ATTN_OK) != right) abort();
        const char *wrong = right ? check_quant_wrong(&plan->desc, &p.args) : NULL;
        if (wrong) {
            fprintf(stderr, "%s\n", wrong);
            abort();
        }
        if (right) check_again(in, &p), wipe(&p);
        must_be_fresh(&p, right ? "done" : attn_error());
    }
    for (int which = 0; which < ARRAYS; which++)
        check_buffer_destroy(&p.array[which]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = { data, data + size };
    attn_quant_desc desc = take_desc(&in);
    const bool varlen = desc.flags & ATTN_QUANT_VARLEN;
    const int64_t n[4] = { varlen ? 1 : desc.batch, varlen ? desc.total : desc.rows, desc.heads, desc.dim };
    bool tiny = is_tiny(&desc);
    if (tiny) take_strides(&in, n, desc.x_stride), take_strides(&in, n, desc.out_stride);
    if (tiny) take_scale_strides(&in, &desc);
    attn_quant_plan *const none = (attn_quant_plan *)(void *)&desc, *plan = none;
    attn_status status = attn_quant_plan_create(&plan, &desc);
    check_refusal(status, fields, COUNT(fields));
    if ((status == ATTN_OK) == (plan == none)) abort();
    if (status) return 0;
    if (tiny) check(&in, plan);
    attn_quant_plan_destroy(plan);
    return 0;
}
