/* What the forward and the backward share on Hopper: the kernels that read q, k and v by TMA, and how tensors, masks
 * and scores become their parameters (params.h). Neither direction knows the other's. */
#ifndef ATTN_CUDA_SM90_HOST_SM90_H
#define ATTN_CUDA_SM90_HOST_SM90_H

#include "cuda/cost.h"
#include "cuda/fallback.h"
#include "cuda/launch.h"
#include "cuda/params.h"
#include "cuda/sm90/params.h"
#include "problem/desc.h"

/* The tensors that kernels read by TMA, grad_o in the backward only, the one that the forward stores by it, and the
 * bias, which kernels for it alone read by it, and which is never copied: (batch, row, head, key). */
enum { ATTN_SM90_Q, ATTN_SM90_K, ATTN_SM90_V, ATTN_SM90_GRAD_O, ATTN_SM90_O, ATTN_SM90_BIAS_MAP, ATTN_SM90_TENSORS };

/* Masks by which rows of sequences may differ. */
enum { ATTN_SM90_OF_SEQUENCES = ATTN_INTERVALS | ATTN_PREFIX | ATTN_CUDA_LENGTHS | ATTN_FIRST_KV | ATTN_POSITIONS };

/* How many are read, but for the bias. */
static inline int attn_sm90_tensors(const attn_desc *desc)
{
    return desc->direction == ATTN_BACKWARD ? ATTN_SM90_O : ATTN_SM90_GRAD_O;
}

/* What the plans of both directions begin with. Byte offsets are from the workspace's first aligned address. */
typedef struct attn_sm90_plan {
    attn_cuda_plan cuda;
    attn_cuda_params common;            /* complete but for addresses and seeds */
    attn_cuda_fallback_kernel fallback; /* at addresses that TMA does not take */
    attn_cuda_choice instead;       /* of a variant of spans, with intervals: which computes what is no span; or 0s */
    bool copied[ATTN_SM90_TENSORS]; /* TMA does not take them as they lie: copied into the workspace first; o: never */
    uint64_t counter, summaries_at, interval_tiles_at, bits_at, bit_tiles_at, spans_at, flags_at,
        copies[ATTN_SM90_TENSORS];
    uint64_t ids_at, unfit_at; /* of keys that are widened */
    /* NULL: not needed; variant: the kernel is a fallback kernel */
    CUfunction variant, summarise, find_spans, widen_bits, find_bit_tiles, repack, transpose, widen;
} attn_sm90_plan;

/* ---- tensors (tensors.c) ------------------------------------------------------------------- */

/* Extents and strides of one of them. */
typedef struct attn_sm90_tensor {
    int64_t extent[4], stride[4];
} attn_sm90_tensor;

attn_sm90_tensor attn_sm90_tensor_of(const attn_desc *desc, int which);

/* A kernel for a bias alone, which it reads by TMA. */
static inline bool attn_sm90_maps_bias(const attn_cuda_kernel *kernel)
{
    return kernel->tma && kernel->needs & ATTN_BIAS;
}

/* All rows of a Q tile, of `pack` heads, have the same bias: one row of it is a tile. */
static inline bool attn_sm90_bias_has_one_row(const attn_desc *desc, int64_t pack)
{
    return desc->bias_extent[2] == 1 && (pack == 1 || desc->bias_extent[1] == 1);
}

/* Sequences share its bias, of every pair: work items are then ordered so that L2 has it once. */
static inline bool attn_sm90_shares_bias(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    return attn_sm90_maps_bias(kernel) && desc->batch > 1 && desc->bias_extent[0] == 1 && desc->bias_extent[2] > 1 &&
           !(desc->flags & ATTN_VARLEN);
}

/* Whether k and v have a byte and the kernel takes them in 16 bits: a copy is written first, times their scales. */
static inline bool attn_sm90_widens_kv(const attn_desc *desc, const attn_cuda_kernel *kernel)
{
    return kernel->tma && attn_kv_dtype(desc) != desc->dtype;
}

static inline bool attn_sm90_transposes(const attn_cuda_kernel *kernel, int which)
{
    return which == ATTN_SM90_V && kernel->transposed;
}

/* Whether a pass of its own writes the tensor's copy, and repack does not: keys that are widened, V that is transposed.
 */
static inline bool attn_sm90_has_own_pass(const attn_desc *desc, const attn_cuda_kernel *kernel, int which)
{
    bool keys = which == ATTN_SM90_K || which == ATTN_SM90_V;
    return (keys && attn_sm90_widens_kv(desc, kernel)) || attn_sm90_transposes(kernel, which);
}

/* One of q, k and v as it is copied: packed, in rows of heads of whole 16 bytes. Where pages are widened, of each entry
 * of the page table. */
attn_sm90_tensor attn_sm90_repacked(const attn_desc *desc, int which);

/* The copy of a tensor that a kernel reads in its place: V as attn_sm90_transpose_params has it, keys in the place of
 * dims and dims in that of rows, where the kernel takes it so; else as repacked. */
attn_sm90_tensor attn_sm90_copied(const attn_desc *desc, const attn_cuda_kernel *kernel, int which);

/* Whether that copy of V can be described to TMA. */
bool attn_sm90_may_transpose(const attn_desc *desc, const attn_cuda_kernel *kernel);

/* Whether TMA takes its strides, and the kernels its dtype. */
bool attn_sm90_tma_takes(const attn_desc *desc, int which);

/* Whether o cannot be stored by 16 bytes: then it comes from f32 parts, all Q tiles are split. */
bool attn_sm90_is_staged(const attn_desc *desc);

/* The map of a tensor at no address yet. pack: query heads of a Q tile. */
attn_status attn_sm90_fill_map(const attn_desc *desc, const attn_sm90_plan *plan, int which, int pack,
                               attn_sm90_map *map);

/* The same at the address of a run's tensor, or of its copy. */
attn_status attn_sm90_bind_map(const attn_cuda_call *call, int which, attn_sm90_map *map);

/* Whether a variant takes the addresses of all tensors that it reads where they lie. */
bool attn_sm90_aligned(const attn_cuda_call *call);

/* Copies of q, k and v where they are copied first; and of V where it is transposed, of a run's shape. */
attn_status attn_sm90_repack(const attn_cuda_call *call);
attn_status attn_sm90_transpose(const attn_cuda_call *call, const attn_cuda_shape *shape);

/* What these take: launches, reading and writing. */
double attn_sm90_repack_seconds(const attn_desc *desc, const attn_cuda_kernel *kernel, const attn_cuda_device *device);
double attn_sm90_transposing_seconds(const attn_desc *desc, const attn_cuda_kernel *kernel,
                                     const attn_cuda_device *device);

/* ---- keys of a byte, widened (widen.c) ----------------------------------------------------- */

/* Entries of the page table. */
int64_t attn_sm90_page_entries(const attn_desc *desc);

/* What widening needs beside the copies. */
bool attn_sm90_lay_out_widened(const attn_desc *desc, attn_sm90_plan *plan);

/* Bytes that it reads and writes, and what it takes with its launches. desc: typical. */
double attn_sm90_widened_traffic(const attn_desc *desc, double pairs);
double attn_sm90_widening_seconds(const attn_desc *desc, double pairs, const attn_cuda_device *device);

/* Writes the copy; then common parameters as of a problem of 16 bits whose keys are the copy. */
attn_status attn_sm90_widen_kv(const attn_cuda_call *call, const attn_cuda_params *common);
void attn_sm90_take_widened(const attn_cuda_call *call, attn_cuda_params *common);

/* After the variant: where the copy does not count, the same from the bytes. common: of the run, before these. */
attn_status attn_sm90_run_unwidened(const attn_cuda_call *call, const attn_cuda_params *common);

void attn_sm90_say_widened(const attn_desc *desc, const attn_sm90_plan *plan, attn_text_buffer *words);

/* ---- a plan (plan.c) ----------------------------------------------------------------------- */

/* Which tensors are copied, and the common parameters. */
void attn_sm90_start(const attn_desc *desc, attn_sm90_plan *plan);

/* The workspace of what both directions have, after a direction's own. */
attn_status attn_sm90_lay_out(const attn_desc *desc, bool fits, attn_sm90_plan *plan);

/* Whether a kernel before the variant finds which tiles bits leave empty and full: not for a Q tile by itself, which
 * would wait longer for that than it takes to read its bits. */
static inline bool attn_sm90_summarises_bits(const attn_desc *desc, const attn_cuda_kernel *kernel)
{
    return desc->flags & ATTN_BITS && !(desc->flags & ATTN_BLOCKS) && kernel->tma && !kernel->paged &&
           desc->len_q > kernel->q_tile;
}

/* Whether a kernel before all others writes bits of the last keys out as bits of all: only the fallback kernel of the
 * forward, and decode, read them as they are. */
static inline bool attn_sm90_widens_bits(const attn_desc *desc, const attn_cuda_kernel *kernel)
{
    return desc->bits_keys && (kernel->tma || desc->direction == ATTN_BACKWARD);
}

/* Planes of the spans that a kernel before the variant finds, of rows, or in the backward of keys: of intervals, one
 * for each head that has its own, of each sequence; else one of a sequence where all are alike. */
static inline int64_t attn_sm90_span_heads(const attn_desc *desc)
{
    return desc->flags & ATTN_INTERVALS ? desc->interval_heads : 1;
}

static inline int64_t attn_sm90_span_batch(const attn_desc *desc)
{
    return desc->flags & ATTN_SM90_OF_SEQUENCES ? desc->batch : 1;
}

/* Blocks that find those of a plane. */
static inline int64_t attn_sm90_span_blocks(const attn_desc *desc)
{
    bool keys = desc->direction == ATTN_BACKWARD || (desc->flags & ATTN_INTERVALS && desc->len_kv > desc->len_q);
    int64_t most = keys ? desc->len_kv : desc->len_q;
    int64_t blocks = attn_ceil_div(most, ATTN_SM90_SPAN_ROWS);
    return blocks < ATTN_SM90_SPAN_BLOCKS ? blocks : ATTN_SM90_SPAN_BLOCKS;
}

/* Whether the intervals of a problem may leave what is no span, so that another variant must be there for it. Of a key
 * those that reach to the first or the last row leave rows that lie side by side. */
static inline bool attn_sm90_wants_instead(const attn_desc *desc, const attn_cuda_kernel *kernel)
{
    if (!kernel->spans || !(desc->flags & ATTN_INTERVALS)) return false;
    if (desc->direction == ATTN_FORWARD) return true;
    return desc->interval_vectors == 4 || (desc->interval_vectors == 2 && desc->flags & ATTN_CAUSAL);
}

/* Why a variant of spans cannot do without it. */
extern const char attn_sm90_no_instead[];

/* That variant: of those that can follow the words the one predicted the fastest. best: NULL: whether there is one. */
bool attn_sm90_find_instead(const attn_cuda_problem *problem, const attn_cuda_kernel *spans,
                            const attn_overrides *words, attn_cuda_choice *best);

/* What bits take before the variant: a launch each, and reading the bits once, or writing them. */
double attn_sm90_bits_seconds(const attn_desc *desc, const attn_cuda_kernel *kernel, const attn_cuda_device *device);

/* The schedule, and the maps of q, k and v. */
attn_status attn_sm90_fill(const attn_desc *desc, const attn_sm90_plan *plan, const attn_sm90_schedule *schedule,
                           attn_sm90_params *params);

/* The functions that both directions have. fallback: stem of the fallback kernel's name. */
attn_status attn_sm90_load(const attn_cuda_problem *problem, const attn_cuda_context *context, const char *fallback,
                           attn_sm90_plan *plan);

/* What is copied first, and which addresses are to be aligned. stores_wide: that of o, too. */
void attn_sm90_describe(const attn_plan *plan, bool stores_wide, attn_text_buffer *words);

/* ---- a run (run.c) ------------------------------------------------------------------------- */

/* The common parameters, bound, among those of a variant. */
void attn_sm90_take(const attn_cuda_params *common, attn_sm90_params *params);

/* Bits of the last keys as bits of all, where the plan has it so: params then have these. */
attn_status attn_sm90_widen_bits(const attn_cuda_call *call, attn_sm90_params *params);

/* The maps of q, k and v at this run's addresses. */
attn_status attn_sm90_bind_maps(const attn_cuda_call *call, attn_sm90_params *params);

/* Before a variant: these maps; q, k and v copied; the counter, if any, cleared; bits of the last keys widened; the
 * summaries of intervals and of bits; spans. */
attn_status attn_sm90_prepare(const attn_cuda_call *call, attn_sm90_params *params, unsigned *counter);

#endif
