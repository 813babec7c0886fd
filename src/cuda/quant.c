/* Quantisation on a GPU. Scales that belong to one unit each are made and used by one kernel; wider ones are raised by
 * a first one, as bits, and used by a second. The mean of the keys is a pass before. Contract: api/quant.h,
 * common/quant_params.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/quant.h"
#include "base/error.h"
#include "cuda/common/quant_params.h"
#include "cuda/load.h"
#include "num/half.h"

enum {
    PIECE = 8, /* columns */
    WARP = 32,
    TILE = 64,          /* rows of a unit, where scale_rows does not say it */
    CHANNELS_TILE = 256 /* of which the greatest of each channel is kept in registers */
};

enum {
    BLOCKS_MOST = 1024, /* threads of a unit in registers */
    MEANS_MOST = 512,   /* the same where there are means */
    STEP = 256,         /* of a unit that is read in steps */
    SCALES = 256,
    MEAN_PARTS = 256,
    MEAN = 128
};

typedef struct kernel {
    CUfunction function; /* NULL: it is not needed */
    int64_t x, y;        /* blocks */
    unsigned threads;
} kernel;

typedef struct quant_plan {
    const attn_cuda_driver *driver;
    unsigned long long context;
    attn_cuda_quant_params params, sums; /* complete but for addresses and passes; sums: of the mean's parts */
    kernel values, dots, scales, mean_parts, mean;
    bool own; /* scales: of one unit each */
} quant_plan;

/* ---- plan ------------------------------------------------------------------------------------ */

/* Of a lane's 32 elements, as quant_params.h orders them. */
static void fill_signs(const attn_quant_plan *plan, attn_cuda_quant_params *p)
{
    for (int lane = 0; lane < p->lanes; lane++)
        for (int i = 0; i < PIECE * ATTN_CUDA_QUANT_PIECES; i++) {
            int column = PIECE * (lane + p->lanes * (i / PIECE)) + i % PIECE;
            if (column < p->dim && plan->sign[column] < 0) p->sign[lane] |= 1u << (i / 2 + i % 2 * 16);
        }
}

static void fill(const attn_quant_plan *plan, attn_cuda_quant_params *p)
{
    const attn_quant_desc *d = &plan->desc;
    int64_t extent[4], kv_heads = d->flags & ATTN_QUANT_DOT ? d->mean_heads : d->heads;
    attn_quant_scale_extent(d, extent);
    *p = (attn_cuda_quant_params){ .subtract = !!(d->flags & ATTN_QUANT_MEAN),
                                   .batch = (int)d->batch,
                                   .heads = (int)d->heads,
                                   .dim = (int)d->dim,
                                   .rows = (int)d->rows,
                                   .total = (int)d->total,
                                   .rotate = (int)d->rotate,
                                   .out_dtype = (int)d->out_dtype,
                                   .scale_rows = (int)d->scale_rows,
                                   .scale_group = (int)(d->heads / d->scale_heads),
                                   .mean_group = (int)(d->heads / kv_heads),
                                   .mean_heads = (int)kv_heads,
                                   .factor = attn_quant_factor(d),
                                   .lanes = 4 };
    while (PIECE * ATTN_CUDA_QUANT_PIECES * p->lanes < d->dim)
        p->lanes *= 2;
    for (int i = 0; i < 4; i++)
        p->scale_stride[i] = d->scale_stride[i], p->scale_extent[i] = extent[i];
    for (int i = 0; i < 3; i++)
        p->x_stride[i] = d->x_stride[i], p->out_stride[i] = d->out_stride[i];
    fill_signs(plan, p);
}

/* Tiles of so many rows, of all sequences. */
static int64_t tiles_of(const attn_quant_desc *d, attn_cuda_quant_params *p, int64_t rows)
{
    int64_t tiles = attn_ceil_div(d->rows, rows), all = d->batch * tiles;
    p->tile = (int)rows, p->tiles = (int)tiles;
    if (d->flags & ATTN_QUANT_VARLEN && d->total / rows + d->batch < all) return d->total / rows + d->batch;
    return all;
}

/* attn_quant_<kernel>_<dtype>: as QUANT_KERNELS_OF of common/quant.h writes it. */
static attn_status load(const attn_quant_desc *d, const attn_cuda_context *context, const char *name, kernel *k)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "attn_quant_%s_%s", name, attn_dtype_name(d->dtype));
    if (k->x > INT32_MAX)
        return attn_fail(ATTN_UNSUPPORTED, "batch = %lld: on a GPU there are fewer than 2^31 blocks of rows, not %lld",
                         (long long)d->batch, (long long)k->x);
    return attn_cuda_load(context, NULL, symbol, 0, &k->function);
}

/* A unit of one tile and the heads of a scale, if its scale is of nothing else, or of a tile and a head. */
static attn_status load_values(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    attn_cuda_quant_params *p = &own->params;
    bool means = d->flags & (ATTN_QUANT_MEAN | ATTN_QUANT_DOT), channels = d->scale_stride[3] != 0;
    int64_t most = means ? MEANS_MOST : BLOCKS_MOST, lanes = p->lanes, heads = p->scale_group;
    int64_t rows = d->scale_rows > 1                                      ? d->scale_rows
                   : d->scale_rows == 1 || d->rows * heads * lanes > most ? TILE
                                                                          : d->rows;
    if (d->rows < rows) rows = d->rows;
    own->own = rows > 0 && !channels && attn_quant_is_own(d, attn_ceil_div(d->rows, rows)) &&
               (d->scale_rows != 1 || heads == 1);
    if (!own->own) rows = channels ? CHANNELS_TILE : TILE;
    p->unit_heads = own->own ? (int)heads : 1;
    own->values.x = tiles_of(d, p, rows) * (d->heads / p->unit_heads);
    int64_t threads = attn_round_up(rows * p->unit_heads * lanes, WARP);
    bool fits = own->own && d->scale_rows != 1 && threads <= most;
    own->values.threads = (unsigned)(fits ? threads : threads < STEP && !channels ? threads : STEP);
    const char *name = channels ? "channels" : !fits ? "rows" : means ? "blocks_means" : "blocks";
    attn_status status = load(d, context, name, &own->values);
    if (status || !channels || !(d->flags & ATTN_QUANT_DOT)) return status;
    own->dots = own->values;
    return load(d, context, "rows", &own->dots);
}

static attn_status load_scales(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    const long long *n = own->params.scale_extent;
    bool empty = d->rows == 0 || d->flags & ATTN_QUANT_VARLEN; /* blocks without rows */
    own->scales = (kernel){ .x = attn_ceil_div(n[0] * n[1] * n[2] * n[3], SCALES), .y = 1, .threads = SCALES };
    return own->own && !empty ? ATTN_OK : load(d, context, "scales", &own->scales);
}

static attn_status load_means(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    if (!(d->flags & ATTN_QUANT_MEAN)) return ATTN_OK;
    own->sums = own->params;
    own->mean_parts = (kernel){ .x = tiles_of(d, &own->sums, ATTN_CUDA_QUANT_SUM),
                                .y = attn_ceil_div(d->heads * attn_ceil_div(d->dim, PIECE), MEAN_PARTS),
                                .threads = MEAN_PARTS };
    own->mean = (kernel){ .x = d->batch * attn_ceil_div(d->heads * d->dim, MEAN), .y = 1, .threads = MEAN };
    attn_status status = load(d, context, "mean_parts", &own->mean_parts);
    return status ? status : load(d, context, "mean", &own->mean);
}

static attn_status create(attn_quant_plan *plan)
{
    const attn_quant_desc *d = &plan->desc;
    attn_cuda_context context;
    attn_status status = attn_cuda_context_with_kernels(&context);
    if (status) return status;
    quant_plan *own = calloc(1, sizeof *own);
    if (!own) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *own);
    fill(plan, &own->params);
    own->driver = &context.machine->driver, own->context = context.id;
    own->values.y = 1;
    status = load_values(d, &context, own);
    if (!status) status = load_scales(d, &context, own);
    if (!status) status = load_means(d, &context, own);
    if (status) {
        free(own);
        return status;
    }
    plan->own = own;
    return ATTN_OK;
}

static void destroy(attn_quant_plan *plan)
{
    free(plan->own);
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Whether pieces of 8 elements are aligned as one access of `bytes` takes them. */
static bool is_wide(const attn_quant_desc *d, const void *at, int64_t element, int64_t bytes, const int64_t stride[4])
{
    bool wide = d->dim % PIECE == 0 && (uintptr_t)at % (uintptr_t)bytes == 0;
    for (int i = 0; i < 3; i++)
        wide = wide && stride[i] * element % bytes == 0;
    return wide;
}

static void bind(const attn_quant_desc *d, const attn_quant_args *a, attn_cuda_quant_params *p)
{
    p->x = a->x, p->out = a->out, p->scale = a->scale, p->cu_lens = a->cu_lens, p->mean = a->mean, p->dot = a->dot;
    p->wide_x = is_wide(d, a->x, attn_dtype_size(d->dtype), 16, d->x_stride);
    p->wide_out = is_wide(d, a->out, 1, PIECE, d->out_stride);
    p->wide_mean = d->dim % PIECE == 0 && (uintptr_t)a->mean % 16 == 0;
}

static attn_status launch(const quant_plan *own, const kernel *k, attn_cuda_quant_params *p, void *stream)
{
    CUlaunchConfig config = { .gridDimX = (unsigned)k->x,
                              .gridDimY = (unsigned)k->y,
                              .gridDimZ = 1,
                              .blockDimX = k->threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = stream };
    if (!k->function || k->x == 0) return ATTN_OK;
    CUresult result = own->driver->cuLaunchKernelEx(&config, k->function, (void *[]){ p }, NULL);
    return result ? attn_cuda_fail(result, "quantisation") : ATTN_OK;
}

static attn_status pass(const quant_plan *own, const kernel *k, int passes, attn_cuda_quant_params *p, void *stream)
{
    p->passes = passes;
    return launch(own, k, p, stream);
}

static attn_status fill_scales(const quant_plan *own, int with, attn_cuda_quant_params *p, void *stream)
{
    p->fill = with;
    return launch(own, &own->scales, p, stream);
}

static attn_status run(const attn_quant_plan *plan, const attn_quant_args *args, void *stream)
{
    const quant_plan *own = plan->own;
    attn_status status = attn_cuda_check_context(own->driver, own->context);
    if (status) return status;
    attn_cuda_quant_params p = own->params, sums = own->sums;
    bind(&plan->desc, args, &p), bind(&plan->desc, args, &sums);
    status = launch(own, &own->mean_parts, &sums, stream);
    if (!status) status = launch(own, &own->mean, &sums, stream);
    if (!status) status = pass(own, &own->dots, 0, &p, stream);
    if (!status) status = fill_scales(own, own->own ? ATTN_CUDA_QUANT_EMPTY : ATTN_CUDA_QUANT_CLEAR, &p, stream);
    if (own->own || status)
        return status ? status : pass(own, &own->values, ATTN_CUDA_QUANT_MEASURE | ATTN_CUDA_QUANT_STORE, &p, stream);
    status = pass(own, &own->values, ATTN_CUDA_QUANT_MEASURE, &p, stream);
    if (!status) status = pass(own, &own->values, ATTN_CUDA_QUANT_STORE, &p, stream);
    return status ? status : fill_scales(own, ATTN_CUDA_QUANT_FINISH, &p, stream);
}

const attn_quant_backend attn_quant_cuda_backend = { create, destroy, run };
