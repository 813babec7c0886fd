/* What the forward and the backward share on Hopper: the kernels that read q, k and v by TMA, and how tensors, masks
 * and scores become their parameters (params.h). Neither direction knows the other's. */
#ifndef ATTN_CUDA_SM90_HOST_SM90_H
#define ATTN_CUDA_SM90_HOST_SM90_H

#include "cuda/cost.h"
#include "cuda/launch.h"
#include "cuda/sm90/params.h"

#include "cuda/common/pages_params.h"
#include "cuda/sm90/cache_params.h"

/* The tensors that kernels read by TMA, grad_o in the backward only, and the one that the forward stores by it. */
enum { ATTN_SM90_Q, ATTN_SM90_K, ATTN_SM90_V, ATTN_SM90_GRAD_O, ATTN_SM90_O, ATTN_SM90_TENSORS };

/* How many are read. */
static inline int attn_sm90_tensors(const attn_desc *desc)
{
    return desc->direction == ATTN_BACKWARD ? ATTN_SM90_O : ATTN_SM90_GRAD_O;
}

/* What the plans of both directions begin with. Byte offsets are from the workspace's first aligned address. */
typedef struct attn_sm90_plan {
    attn_cuda_plan cuda;
    double fallback_seconds;        /* predicted where addresses are none that TMA takes; of a variant */
    bool copied[ATTN_SM90_TENSORS]; /* TMA does not take them as they lie: copied into the workspace first; o: never */
    uint64_t counter, summaries_at, copies[ATTN_SM90_TENSORS];
    CUfunction variant, fallback, summarise, repack; /* NULL: not needed; variant: the kernel is a fallback kernel */
} attn_sm90_plan;

/* ---- tensors (tensors.c) ------------------------------------------------------------------- */

/* Extents and strides of one of q, k, v, grad_o, o. */
typedef struct attn_sm90_tensor {
    int64_t extent[4], stride[4];
} attn_sm90_tensor;

attn_sm90_tensor attn_sm90_tensor_of(const attn_desc *desc, int which);

/* Elements between the rows of heads in a repacked tensor. */
static inline int64_t attn_sm90_pitch(int64_t dim)
{
    return (dim + 7) / 8 * 8;
}

/* A tensor as it is copied: packed, in rows of heads of attn_sm90_pitch elements. */
attn_sm90_tensor attn_sm90_repacked(attn_sm90_tensor tensor);

/* Whether TMA takes its strides, and the kernels its dtype. */
bool attn_sm90_tma_takes(const attn_desc *desc, int which);

/* Whether o's rows are of whole 16 bytes, and begin at multiples of them if o does. */
bool attn_sm90_o_is_even(const attn_desc *desc);

/* Whether o cannot be stored by 16 bytes: then it comes from f32 parts, all Q tiles are split. */
bool attn_sm90_is_staged(const attn_desc *desc);

/* The map of a tensor at no address yet. pack: query heads of a Q tile. */
attn_status attn_sm90_fill_map(const attn_desc *desc, const attn_sm90_plan *plan, int which, int pack,
                               attn_sm90_map *map);

/* The same at the address of a run's tensor, or of its copy. */
attn_status attn_sm90_bind_map(const attn_cuda_call *call, int which, attn_sm90_map *map);

/* Whether a variant takes the addresses of all tensors that it reads where they lie. */
bool attn_sm90_aligned(const attn_cuda_call *call);

attn_status attn_sm90_repack(const attn_cuda_call *call, int which);

/* ---- a plan (plan.c) ----------------------------------------------------------------------- */

/* Which tensors are copied, and what the fallback kernel would take, by the direction's own prediction. */
void attn_sm90_start(const attn_cuda_problem *problem, attn_cuda_predict *predict, attn_sm90_plan *plan);

/* Appends count * size bytes, aligned, to the plan's workspace; their position goes to *at. False: more than can be
 * addressed. */
bool attn_sm90_append(attn_sm90_plan *plan, double count, double size, uint64_t *at);

/* The workspace of what both directions have, after a direction's own. */
attn_status attn_sm90_lay_out(const attn_desc *desc, bool fits, attn_sm90_plan *plan);

/* All parameters that both directions have but addresses and seeds, and the maps of q, k and v. */
attn_status attn_sm90_fill(const attn_desc *desc, const attn_sm90_plan *plan, const attn_sm90_schedule *schedule,
                           attn_sm90_params *params);

/* What caches of keys add to them. */
void attn_sm90_fill_cache(const attn_desc *desc, attn_sm90_cache *cache);

/* What 0 <= a < 2^31 is divided by (params.h). */
attn_sm90_divisor attn_sm90_divisor_of(int64_t d);

/* The functions that both directions have. fallback: stem of the fallback kernel's name. */
attn_status attn_sm90_load(const attn_desc *desc, const attn_cuda_place *place, const char *fallback,
                           attn_sm90_plan *plan);

/* attn_sm90_<stem>_<dtype> of the units that are no variant. */
attn_status attn_sm90_load_dtype(const attn_cuda_place *place, attn_dtype dtype, const char *stem,
                                 CUfunction *function);

/* What is copied first, and which addresses are to be aligned. stores_wide: that of o, too. */
void attn_sm90_describe(const attn_plan *plan, bool stores_wide, attn_words *words);

/* ---- a run (run.c) ------------------------------------------------------------------------- */

/* This run's output, tables and seeds. */
void attn_sm90_bind(const attn_cuda_call *call, attn_sm90_params *params);

/* This run's tables of caches, and the pages. */
void attn_sm90_bind_cache(const attn_desc *desc, const attn_args *args, attn_sm90_cached_params *params);

/* The fallback kernel of the forward, with bound parameters. */
attn_status attn_sm90_run_fallback(const attn_cuda_call *call, attn_sm90_cached_params *params);

/* Before a variant: maps at this run's addresses; q, k and v copied; the counter, if any, cleared; the summary of
 * intervals. */
attn_status attn_sm90_prepare(const attn_cuda_call *call, attn_sm90_params *params, unsigned *counter);

#endif
