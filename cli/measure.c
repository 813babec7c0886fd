/* See measure.h. */
#include "measure.h"

#include <stdlib.h>

#include "base/error.h"
#include "device/clock.h"
#include "device/device.h"
#include "command.h"
#include "compute.h"
#include "num/half.h"
#include "progress.h"

enum { RUNS = 5, GPU_RUNS = 31, BUFFERS = 20 };

typedef struct memory {
    void *buffers[BUFFERS];
    int count;
    uint64_t state; /* of the generator */
    attn_status status;
} memory;

static void *take(memory *m, const int64_t extent[4], int64_t size)
{
    int64_t bytes = size;
    for (int i = 0; i < 4; i++)
        bytes = extent[i] && bytes > INT64_MAX / 2 / extent[i] ? INT64_MAX / 2 : bytes * extent[i];
    void *buffer = m->status ? NULL : malloc((size_t)bytes + 1);
    if (buffer)
        m->buffers[m->count++] = buffer;
    else if (!m->status)
        m->status = attn_fail(ATTN_NO_MEMORY, "no memory for an array of %lld bytes", (long long)bytes);
    return buffer;
}

/* Uniform in [-1, 1). */
static void *take_random(memory *m, const int64_t extent[4], attn_dtype dtype)
{
    void *buffer = take(m, extent, attn_dtype_size(dtype));
    int64_t count = buffer ? extent[0] * extent[1] * extent[2] * extent[3] : 0;
    for (int64_t i = 0; i < count; i++) {
        m->state = m->state * 6364136223846793005u + 1442695040888963407u;
        attn_store_scalar(dtype, buffer, i, (float)(m->state >> 40) * 0x1p-23f - 1);
    }
    return buffer;
}

static void fill_args(memory *m, const attn_desc *desc, int64_t prefix, attn_args *args)
{
    int64_t heads_kv = desc->heads_kv ? desc->heads_kv : desc->heads_q,
            dim_v = desc->dim_v ? desc->dim_v : desc->dim_qk;
    int64_t q[] = { desc->batch, desc->len_q, desc->heads_q, desc->dim_qk };
    int64_t k[] = { desc->batch, desc->len_kv, heads_kv, desc->dim_qk };
    int64_t v[] = { desc->batch, desc->len_kv, heads_kv, dim_v };
    int64_t o[] = { desc->batch, desc->len_q, desc->heads_q, dim_v };
    int64_t heads[] = { 1, 1, 1, desc->heads_q }, sequences[] = { 1, 1, 1, desc->batch };
    args->q = take_random(m, q, desc->dtype);
    args->k = take_random(m, k, attn_kv_dtype(desc));
    args->v = take_random(m, v, attn_kv_dtype(desc));
    args->o = take(m, o, attn_dtype_size(attn_out_dtype(desc)));
    if (desc->direction == ATTN_BACKWARD) {
        args->lse = take(m, (int64_t[]){ 1, desc->batch, desc->heads_q, desc->len_q }, sizeof *args->lse);
        args->grad_o = take_random(m, o, desc->dtype);
        args->grad_q = take(m, q, attn_dtype_size(desc->dtype));
        args->grad_k = take(m, k, attn_dtype_size(desc->dtype));
        args->grad_v = take(m, v, attn_dtype_size(desc->dtype));
    }
    if (desc->flags & ATTN_ALIBI) args->alibi = take_random(m, heads, ATTN_F32);
    if (desc->flags & ATTN_SINK) args->sink = take_random(m, heads, ATTN_F32);
    if (desc->flags & ATTN_BIAS) args->bias = take_random(m, desc->bias_extent, ATTN_F32);
    if (desc->flags & ATTN_PREFIX) {
        int32_t *each = take(m, sequences, sizeof *each);
        for (int64_t i = 0; each && i < desc->batch; i++)
            each[i] = (int32_t)prefix;
        args->prefix = each;
    }
}

static void release(memory *m)
{
    for (int i = 0; i < m->count; i++)
        free(m->buffers[i]);
}

/* A backward takes its forward's output and LSE. */
static attn_status run_forward(const attn_desc *desc, const attn_args *args)
{
    attn_computation forward;
    attn_desc d = *desc;
    d.direction = ATTN_FORWARD;
    attn_status status = attn_compute_plan(&forward, &d);
    if (!status) status = attn_compute_run(&forward, args, true);
    attn_compute_end(&forward);
    return status;
}

static attn_status measure_on_gpu(const attn_desc *desc, const attn_args *args, double *seconds)
{
    device_run run;
    double times[GPU_RUNS];
    attn_status status = device_begin(&run, desc, args, 0);
    if (status) return status;
    status = device_measure(&run, GPU_RUNS, times);
    attn_status ended = device_end(&run, false);
    *seconds = attn_median(times, GPU_RUNS);
    return status ? status : ended;
}

attn_status attn_measure(const attn_plan *plan, const attn_desc *desc, int64_t prefix, double predicted,
                         double *seconds)
{
    memory m = { .state = 1 };
    attn_args args = { .seed = 1 };
    fill_args(&m, desc, prefix, &args);
    if (!m.status && desc->direction == ATTN_BACKWARD) m.status = run_forward(desc, &args);
    if (desc->device == ATTN_CUDA) {
        if (!m.status) m.status = measure_on_gpu(desc, &args, seconds);
        release(&m);
        return m.status;
    }
    void *workspace = take(&m, (int64_t[]){ 1, 1, 1, (int64_t)attn_plan_workspace(plan) }, 1);
    double times[RUNS], total = 0;
    int runs = 0;
    attn_progress progress;
    attn_progress_start(&progress, RUNS * predicted < 1 ? RUNS * predicted : predicted, ATTN_PROGRESS_TERMINAL);
    while (!m.status && runs < RUNS && total < 1) {
        double start = attn_seconds();
        m.status = attn_run(plan, &args, workspace, NULL);
        total += times[runs++] = attn_seconds() - start;
    }
    attn_progress_stop(&progress);
    if (!m.status) *seconds = attn_median(times, runs);
    release(&m);
    return m.status;
}

static attn_status run_once_on_gpu(const attn_desc *desc, const attn_args *args)
{
    device_run run;
    attn_status status = device_begin(&run, desc, args, 0);
    if (status) return status;
    status = device_start(&run);
    attn_status ended = device_end(&run, false);
    return status ? status : ended;
}

attn_status attn_measure_once(const attn_plan *plan, const attn_desc *desc, int64_t prefix, attn_counters *counters,
                              double bytes[ATTN_CHOICE_LEVELS])
{
    memory m = { .state = 1 };
    attn_args args = { .seed = 1 };
    fill_args(&m, desc, prefix, &args);
    if (!m.status && desc->direction == ATTN_BACKWARD) m.status = run_forward(desc, &args);
    if (desc->device == ATTN_CUDA) {
        if (!m.status) m.status = run_once_on_gpu(desc, &args);
        release(&m);
        return m.status;
    }
    void *workspace = take(&m, (int64_t[]){ 1, 1, 1, (int64_t)attn_plan_workspace(plan) }, 1);
    if (counters) attn_counters_start(counters);
    if (!m.status) m.status = attn_run(plan, &args, workspace, NULL);
    if (counters) attn_counters_stop(counters, bytes);
    release(&m);
    return m.status;
}
