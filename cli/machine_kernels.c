/* Constants of kernels. A kernel runs a few problems; the planner says how much of what each took (attn_choice.count),
 * and the clocks of each are what fits the measured times best, none below 0. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cuda/driver.h"
#include "cuda/kernel.h"
#include "machine.h"
#include "bench/point.h"
#include "cpu/kernel.h"

enum { POINTS_MOST = 32, SWEEPS = 20000, CAUSAL = -1 };

typedef struct points {
    int count;
    attn_point point[POINTS_MOST];
} points;

/* ---- least squares ------------------------------------------------------------------------- */

/* Coordinate descent on the squares of (predicted - measured) / measured; columns are scaled to length 1. */
static void fit(const points *p, double hertz, double clocks[ATTN_CONSTANTS])
{
    double a[POINTS_MOST][ATTN_CONSTANTS] = { { 0 } }, rest[POINTS_MOST], length[ATTN_CONSTANTS] = { 0 };
    for (int i = 0; i < p->count; i++) {
        double took = fmax(p->point[i].seconds, 1e-9) * hertz;
        rest[i] = 1;
        for (int j = 0; j < ATTN_CONSTANTS; j++)
            a[i][j] = p->point[i].choice.count[j] / took, length[j] += a[i][j] * a[i][j];
    }
    memset(clocks, 0, ATTN_CONSTANTS * sizeof *clocks);
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int j = 0; j < ATTN_CONSTANTS; j++) {
            double along = 0;
            if (length[j] <= 0) continue;
            for (int i = 0; i < p->count; i++)
                along += a[i][j] * rest[i];
            double next = fmax(0, clocks[j] + along / length[j]), by = next - clocks[j];
            for (int i = 0; i < p->count; i++)
                rest[i] -= by * a[i][j];
            clocks[j] = next;
        }
}

static void say(const points *p, const char *name, double hertz, const double clocks[ATTN_CONSTANTS])
{
    double worst = 0, sum = 0;
    for (int i = 0; i < p->count; i++) {
        double predicted = 0;
        for (int j = 0; j < ATTN_CONSTANTS; j++)
            predicted += p->point[i].choice.count[j] * clocks[j];
        double off = fabs(predicted / hertz / p->point[i].seconds - 1);
        worst = fmax(worst, off), sum += off;
    }
    fprintf(stderr, "%s: %d points, off by %.1f %% on average, %.1f %% at worst\n", name, p->count,
            100 * sum / p->count, 100 * worst);
}

/* ---- problems ------------------------------------------------------------------------------ */

/* None of them is a point of a grid of `attn bench`. */
typedef struct shape {
    int64_t heads, kv, rows, keys, dim, tile;
    int64_t mask; /* 0: none; CAUSAL; or a window of so many keys before the row's own */
} shape;

static const shape prefill_shapes[] = {
    { 3, 3, 384, 384, 64, 0, 0 },         { 3, 3, 768, 768, 64, 0, CAUSAL },    { 2, 2, 1536, 1536, 64, 0, 0 },
    { 1, 1, 3072, 3072, 64, 0, CAUSAL },  { 3, 3, 384, 384, 128, 0, CAUSAL },   { 2, 2, 768, 768, 128, 0, 0 },
    { 1, 1, 3072, 3072, 128, 0, 0 },      { 2, 2, 1536, 1536, 128, 0, CAUSAL }, { 2, 2, 768, 1536, 32, 0, 0 },
    { 2, 2, 768, 768, 256, 0, 0 },        { 2, 2, 768, 768, 64, 48, 0 },        { 2, 2, 768, 768, 128, 48, 0 },
    { 3, 1, 1536, 1536, 96, 96, CAUSAL }, { 2, 2, 96, 3072, 128, 0, 0 },        { 2, 2, 1536, 1536, 64, 48, 192 },
    { 2, 2, 1536, 1536, 64, 192, 192 },   { 2, 2, 1536, 1536, 128, 96, 320 },
};
static const shape decode_shapes[] = {
    { 8, 8, 1, 2048, 64, 0, 0 },   { 8, 2, 1, 4096, 128, 0, 0 },  { 8, 8, 1, 1024, 128, 0, 0 },
    { 4, 4, 4, 1024, 96, 0, 0 },   { 16, 2, 1, 4096, 64, 0, 0 },  { 4, 1, 8, 2048, 128, 0, 0 },
    { 8, 4, 1, 2048, 128, 0, 0 },  { 2, 2, 1, 3072, 256, 0, 0 },  { 8, 2, 1, 2048, 128, 128, 0 },
    { 8, 8, 1, 1024, 64, 128, 0 }, { 4, 4, 1, 2048, 128, 32, 0 },
};
static const shape gradient_shapes[] = {
    { 2, 2, 384, 384, 64, 0, 0 },         { 2, 2, 768, 768, 64, 0, CAUSAL },    { 1, 1, 1536, 1536, 64, 0, 0 },
    { 1, 1, 3072, 3072, 64, 0, CAUSAL },  { 2, 2, 384, 384, 128, 0, CAUSAL },   { 2, 2, 768, 768, 128, 0, 0 },
    { 1, 1, 3072, 3072, 128, 0, CAUSAL }, { 1, 1, 1536, 1536, 128, 0, CAUSAL }, { 2, 2, 768, 768, 32, 0, 0 },
    { 1, 1, 768, 768, 256, 0, 0 },        { 2, 2, 768, 768, 64, 48, 0 },        { 3, 1, 768, 768, 96, 0, CAUSAL },
};

static attn_status measure(const shape *s, attn_dtype dtype, const char *kernel, attn_direction direction, points *p)
{
    attn_tiles tiles = { .rows = s->rows > 16 ? s->tile : 0, .keys = s->rows > 16 ? 0 : s->tile };
    attn_desc desc = { .dtype = dtype,
                       .direction = direction,
                       .batch = 1,
                       .heads_q = s->heads,
                       .heads_kv = s->kv,
                       .len_q = s->rows,
                       .len_kv = s->keys,
                       .dim_qk = s->dim,
                       .dim_v = s->dim,
                       .flags = s->mask == CAUSAL ? ATTN_CAUSAL
                                : s->mask > 0     ? ATTN_WINDOW
                                                  : 0,
                       .window_left = s->mask > 0 ? s->mask : 0,
                       .threads = 1,
                       .kernel = kernel };
    return attn_point_measure(&desc, &tiles, 0.02, &p->point[p->count++]);
}

static attn_status measure_cpu_kernel(const attn_cpu_kernel *k, points *p)
{
    static const struct {
        const shape *shapes;
        int count;
    } lists[ATTN_FORMS] = { [ATTN_PREFILL] = { prefill_shapes, sizeof prefill_shapes / sizeof *prefill_shapes },
                            [ATTN_DECODE] = { decode_shapes, sizeof decode_shapes / sizeof *decode_shapes },
                            [ATTN_GRADIENT] = { gradient_shapes, sizeof gradient_shapes / sizeof *gradient_shapes } };
    attn_status status = ATTN_OK;
    bool f32 = k->dtypes >> ATTN_F32 & 1, both = f32 && k->form == ATTN_DECODE;
    for (int i = 0; i < lists[k->form].count && !status; i++) {
        const shape *s = &lists[k->form].shapes[i];
        attn_direction direction = k->form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD;
        status = measure(s, f32 ? ATTN_F32 : ATTN_BF16, k->name, direction, p);
        if (!status && both) status = measure(s, ATTN_BF16, k->name, direction, p);
    }
    return status;
}

/* Rounds of tiles over all SMs, short and long; then with a mask that cuts. In the backward tiles are of keys. */
static attn_status measure_cuda_kernel(const attn_cuda_device *device, const attn_cuda_kernel *k, points *p)
{
    static const int full[][2] = { { 4, 8 }, { 4, 32 }, { 4, 96 }, { 16, 8 }, { 16, 32 }, { 32, 16 } };
    static const int causal[][2] = { { 24, 768 }, { 16, 3072 }, { 8, 6144 } };
    attn_status status = ATTN_OK;
    for (int i = 0; i < 9 && !status; i++) {
        int64_t tiles = device->multiprocessors / 4;
        attn_desc desc = { .dtype = k->dtype, .device = ATTN_CUDA, .batch = 1, .kernel = k->name };
        desc.dim_qk = k->dim, desc.dim_v = k->dim_v;
        desc.heads_q = desc.heads_kv = i < 6 ? full[i][0] : causal[i - 6][0];
        desc.len_q = i < 6 ? tiles * k->q_tile : causal[i - 6][1];
        desc.len_kv = i < 6 ? (int64_t)full[i][1] * k->kv_tile : causal[i - 6][1];
        desc.flags = i < 6 ? 0 : ATTN_CAUSAL;
        desc.direction = attn_cuda_direction(k);
        if (i < 6 && desc.direction == ATTN_BACKWARD)
            desc.len_q = (int64_t)full[i][1] * k->q_tile, desc.len_kv = tiles * k->kv_tile;
        status = attn_point_measure(&desc, &(attn_tiles){ .splits = 1, .pack = 1 }, 0.005, &p->point[p->count++]);
    }
    return status;
}

/* ---- every kernel -------------------------------------------------------------------------- */

static attn_status keep(attn_machine *m, const char *name, const points *p, bool says)
{
    int i = 0;
    while (i < m->kernels && strcmp(m->kernel[i].name, name) != 0)
        i++;
    if (i == ATTN_MACHINE_KERNELS) return attn_fail(ATTN_UNSUPPORTED, "a machine holds at most %d kernels", i);
    if (i == m->kernels) m->kernels++;
    snprintf(m->kernel[i].name, sizeof m->kernel[i].name, "%s", name);
    fit(p, m->hertz, m->kernel[i].clocks);
    if (says) say(p, name, m->hertz, m->kernel[i].clocks);
    return ATTN_OK;
}

static attn_status measure_cpu_kernels(attn_machine *m, const char *only, bool says)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    attn_status status = ATTN_OK;
    for (int i = 0; i < count && !status; i++) {
        points p = { .count = 0 };
        if (!kernels[i].ops || !attn_isa_available(kernels[i].isa) || (only && !strstr(kernels[i].name, only)))
            continue;
        status = measure_cpu_kernel(&kernels[i], &p);
        if (!status) status = keep(m, kernels[i].name, &p, says);
    }
    return status;
}

/* f16 goes by what is measured of bf16, a variant of paged keys by that of contiguous ones. */
static attn_status measure_cuda_kernels(attn_machine *m, const char *only, bool says)
{
    int count;
    const attn_cuda_machine *cuda = attn_cuda_machine_get();
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_status status = cuda ? ATTN_OK : ATTN_UNSUPPORTED;
    for (int i = 0; i < count && !status; i++) {
        points p = { .count = 0 };
        if (!attn_cuda_is_variant(&kernels[i]) || kernels[i].dtype != ATTN_BF16 || kernels[i].paged) continue;
        if (only && !strstr(kernels[i].name, only)) continue;
        status = measure_cuda_kernel(&cuda->device[0], &kernels[i], &p);
        if (!status) status = keep(m, kernels[i].name, &p, says);
    }
    return status;
}

attn_status attn_measure_kernels(attn_machine *m, const char *only, bool says)
{
    return m->device == ATTN_CUDA ? measure_cuda_kernels(m, only, says) : measure_cpu_kernels(m, only, says);
}
