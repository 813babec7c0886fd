/* Quantisation on a GPU. Scales that belong to one unit each are made and used by one kernel; wider ones are raised by
 * a first one, as bits, and used by a second. The mean of the keys is a pass before. Contract: api/quant.h,
 * common/quant_params.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/quant.h"
#include "base/error.h"
#include "cuda/common/pages_params.h"
#include "cuda/common/params.h"
#include "cuda/common/quant_params.h"
#include "cuda/load.h"
#include "cuda/params.h"
#include "num/half.h"

enum { PIECE = 8 /* columns */, WARP = 32, CHANNELS_TILE = 256 /* rows */, MEAN_COLUMNS = 32 };

enum {
    THREADS = 256,     /* of a block, where nothing else is said */
    BLOCKS_MOST = 768, /* of a unit in registers; a multiprocessor has registers for so many, too */
    MEANS_MOST = 512   /* of a unit where there are means */
};

typedef struct kernel {
    CUfunction function; /* NULL: it is not needed */
    int64_t x, y;        /* blocks */
    unsigned threads, shared;
} kernel;

typedef struct quant_plan {
    const attn_cuda_driver *driver;
    unsigned long long context;
    attn_cuda_quant_params params, sums,
        products; /* complete but for addresses and passes; sums: of the mean's parts */
    kernel values, stream, whole, dots, scales, mean_parts, mean; /* stream: values where x is wide; whole: and out */
    bool own;                                                     /* scales: of one unit each */
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
    int64_t extent[4], mean_heads = d->flags & ATTN_QUANT_DOT ? d->mean_heads : d->heads;
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
                                   .scale_shift = d->scale_rows ? __builtin_ctz((unsigned)d->scale_rows) : 31,
                                   .by_group = attn_cuda_divisor_of(d->heads / d->scale_heads),
                                   .by_mean = attn_cuda_divisor_of(d->heads / mean_heads),
                                   .mean_heads = (int)mean_heads,
                                   .factor = attn_quant_factor(d),
                                   .lane_bits = 1 };
    while ((PIECE * ATTN_CUDA_QUANT_PIECES) << p->lane_bits < d->dim)
        p->lane_bits++;
    p->lanes = 1 << p->lane_bits;
    for (int i = 0; i < 4; i++)
        p->scale_stride[i] = d->scale_stride[i], p->scale_extent[i] = extent[i];
    for (int i = 0; i < 3; i++)
        p->x_stride[i] = d->x_stride[i], p->out_stride[i] = d->out_stride[i];
    fill_signs(plan, p);
}

/* Tiles of so many rows, at least one, of all sequences; units of so many heads. Returns how many units there are. */
static int64_t cut(const attn_quant_desc *d, attn_cuda_quant_params *p, int64_t rows, int64_t heads)
{
    int64_t tiles = attn_ceil_div(d->rows, rows), all = d->batch * tiles;
    p->tile = (int)rows, p->tiles = (int)tiles, p->unit_heads = (int)heads, p->tile_units = (int)(d->heads / heads);
    p->by_tiles = attn_cuda_divisor_of(tiles ? tiles : 1);
    p->by_units = attn_cuda_divisor_of(d->heads / heads), p->by_unit_heads = attn_cuda_divisor_of(heads);
    if (d->flags & ATTN_QUANT_VARLEN && d->total / rows + d->batch < all) all = d->total / rows + d->batch;
    return all * (d->heads / heads);
}

/* attn_quant_<kernel>_<dtype>: as QUANT_KERNELS_OF of common/quant.h writes it. */
static attn_status load(const attn_quant_desc *d, const attn_cuda_context *context, const char *name, kernel *k)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "attn_quant_%s_%s", name, attn_dtype_name(d->dtype));
    if (k->x > INT32_MAX)
        return attn_fail(ATTN_UNSUPPORTED, "batch = %lld: on a GPU there are fewer than 2^31 blocks of rows, not %lld",
                         (long long)d->batch, (long long)k->x);
    return attn_cuda_load(context, NULL, symbol, k->shared, &k->function);
}

/* Units whose scales are of nothing else: a block of all rows and heads that share one. False: there are none such. */
static bool cut_own(const attn_quant_desc *d, quant_plan *own, int64_t most)
{
    int64_t heads = d->heads / d->scale_heads, lanes = own->params.lanes, rows = d->scale_rows;
    if (rows == 0 && d->rows * heads * lanes <= most) rows = d->rows;
    if (rows > d->rows) rows = d->rows;
    if (rows < 1 || d->scale_rows == 1 || d->scale_stride[3] || !attn_quant_is_own(d, attn_ceil_div(d->rows, rows)))
        return false;
    own->values = (kernel){ .x = cut(d, &own->params, rows, heads), .y = 1, .threads = THREADS };
    int64_t threads = attn_round_up(rows * heads * lanes, WARP);
    if (threads <= most) own->values.threads = (unsigned)threads;
    return true;
}

/* Units of one head, whose rows have scales of their own, or whose scales others share. */
static void cut_shared(const attn_quant_desc *d, quant_plan *own)
{
    int64_t lanes = own->params.lanes, rows = d->scale_stride[3] ? CHANNELS_TILE : THREADS / lanes;
    if (d->scale_rows > 1 && rows > d->scale_rows) rows = d->scale_rows;
    if (d->rows < rows && d->rows > 0) rows = d->rows;
    unsigned threads = (unsigned)attn_round_up(rows * lanes, WARP);
    own->values =
        (kernel){ .x = cut(d, &own->params, rows, 1), .y = 1, .threads = threads < THREADS ? threads : THREADS };
}

static attn_status load_stream(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    const bool whole = d->rotate == d->dim && (d->dim == 64 || d->dim == 128 || d->dim == 256);
    kernel k = { .x = own->values.x, .y = 1, .threads = own->values.threads };
    char name[32];
    int64_t most = (int64_t)context->device->multiprocessors * (BLOCKS_MOST / k.threads);
    if (k.x > INT32_MAX - most) return ATTN_OK; /* blocks count one turn further than there are units */
    own->params.units = (int)k.x;
    k.shared = ATTN_CUDA_QUANT_STREAMED(k.threads);
    if (k.x > most) k.x = most;
    own->stream = own->whole = k;
    attn_status status = load(d, context, "stream", &own->stream);
    if (status || !whole) return status;
    snprintf(name, sizeof name, "stream_%d", (int)d->dim);
    return load(d, context, name, &own->whole);
}

/* Products of queries whose scales are of channels: a pass of their own, in units that fit a block. */
static attn_status load_dots(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    own->products = own->params;
    own->dots = (kernel){ .x = cut(d, &own->products, THREADS / own->params.lanes, 1), .y = 1, .threads = THREADS };
    return load(d, context, "blocks_means", &own->dots);
}

static attn_status load_values(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    bool means = d->flags & (ATTN_QUANT_MEAN | ATTN_QUANT_DOT), channels = d->scale_stride[3] != 0;
    int64_t most = means ? MEANS_MOST : BLOCKS_MOST, group = d->heads / d->scale_heads;
    own->own = cut_own(d, own, most);
    if (!own->own) {
        cut_shared(d, own);
        own->own = d->scale_rows == 1 && group == 1 && d->rows > 0 && attn_quant_is_own(d, own->params.tiles);
    }
    bool fits = (int64_t)own->params.tile * own->params.unit_heads * own->params.lanes <= own->values.threads;
    const char *name = channels ? "channels" : !fits ? "steps" : means ? "blocks_means" : "blocks";
    attn_status status = load(d, context, name, &own->values);
    if (!status && fits && !channels && !means && d->dtype != ATTN_F32) return load_stream(d, context, own);
    if (status || !channels || !(d->flags & ATTN_QUANT_DOT)) return status;
    return load_dots(d, context, own);
}

static attn_status load_scales(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    const long long *n = own->params.scale_extent;
    bool empty = d->rows == 0 || d->flags & ATTN_QUANT_VARLEN; /* blocks without rows */
    own->scales = (kernel){ .x = attn_ceil_div(n[0] * n[1] * n[2] * n[3], THREADS), .y = 1, .threads = THREADS };
    return own->own && !empty ? ATTN_OK : load(d, context, "scales", &own->scales);
}

static attn_status load_means(const attn_quant_desc *d, const attn_cuda_context *context, quant_plan *own)
{
    if (!(d->flags & ATTN_QUANT_MEAN)) return ATTN_OK;
    own->sums = own->params;
    own->mean_parts = (kernel){ .x = cut(d, &own->sums, ATTN_CUDA_QUANT_SUM, d->heads),
                                .y = attn_ceil_div(d->heads * attn_ceil_div(d->dim, PIECE), THREADS),
                                .threads = THREADS };
    own->mean = (kernel){ .x = d->batch * d->heads * attn_ceil_div(d->dim, MEAN_COLUMNS), .y = 1, .threads = THREADS };
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
                              .sharedMemBytes = k->shared,
                              .hStream = stream };
    if (!k->function || k->x == 0) return ATTN_OK;
    CUresult result = own->driver->cuLaunchKernelEx(&config, k->function, (void *[]){ p }, NULL);
    return result ? attn_cuda_fail(result, "quantisation") : ATTN_OK;
}

static attn_status pass(const quant_plan *own, int passes, attn_cuda_quant_params *p, void *stream)
{
    p->passes = passes;
    const kernel *k = !p->wide_x || !own->stream.function    ? &own->values
                      : !p->wide_out || !own->whole.function ? &own->stream
                                                             : &own->whole;
    return launch(own, k, p, stream);
}

static attn_status fill_scales(const quant_plan *own, int with, attn_cuda_quant_params *p, void *stream)
{
    p->fill = with;
    return launch(own, &own->scales, p, stream);
}

/* What goes before the bytes: means, products that have a pass of their own, scales of no rows. */
static attn_status begin(const attn_quant_plan *plan, const attn_quant_args *args, attn_cuda_quant_params *p,
                         void *stream)
{
    const quant_plan *own = plan->own;
    attn_cuda_quant_params sums = own->sums, products = own->products;
    *p = own->params;
    bind(&plan->desc, args, p), bind(&plan->desc, args, &sums), bind(&plan->desc, args, &products);
    attn_status status = launch(own, &own->mean_parts, &sums, stream);
    if (!status) status = launch(own, &own->mean, &sums, stream);
    if (!status) status = launch(own, &own->dots, &products, stream);
    return status ? status : fill_scales(own, own->own ? ATTN_CUDA_QUANT_EMPTY : ATTN_CUDA_QUANT_CLEAR, p, stream);
}

static attn_status run(const attn_quant_plan *plan, const attn_quant_args *args, void *stream)
{
    const quant_plan *own = plan->own;
    attn_cuda_quant_params p;
    attn_status status = attn_cuda_check_context(own->driver, own->context);
    if (!status) status = begin(plan, args, &p, stream);
    if (status) return status;
    if (own->own) return pass(own, ATTN_CUDA_QUANT_MEASURE | ATTN_CUDA_QUANT_STORE, &p, stream);
    status = pass(own, ATTN_CUDA_QUANT_MEASURE, &p, stream);
    if (!status) status = pass(own, ATTN_CUDA_QUANT_STORE, &p, stream);
    return status ? status : fill_scales(own, ATTN_CUDA_QUANT_FINISH, &p, stream);
}

const attn_quant_backend attn_quant_cuda_backend = { create, destroy, run };
