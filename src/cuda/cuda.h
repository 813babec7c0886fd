/* What the parts of the CUDA backend share. */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "api/plan.h"
#include "cuda/kernel.h"
#include "cuda/load.h"
#include "cuda/sm90/params.h"

#include "cuda/sm90/backward_params.h"

/* How a kernel would run a problem: the schedule of its direction but for its counter, whether it takes one (dynamic),
 * and what is predicted. */
typedef struct attn_cuda_choice {
    const attn_cuda_kernel *kernel;
    attn_sm90_schedule schedule;
    attn_sm90_backward_schedule backward;
    bool dynamic;
    int ctas; /* that may run at once */
    attn_choice choice;
    const char *why_not; /* where there is none: why */
} attn_cuda_choice;

/* tiles: NULL, or what is decided already (splits, pack, said). desc: resolved, with rows and keys (but for the
 * fallback kernels), and within the kernel's features. pairs: visible ones, over batch and heads. False: it cannot be
 * as it is said, or there are more tiles than a schedule counts; why_not says so. */
typedef bool attn_cuda_cost_function(const attn_desc *desc, const attn_cuda_device *device,
                                     const attn_cuda_kernel *kernel, double pairs, const attn_tiles *tiles,
                                     attn_cuda_choice *choice);
attn_cuda_cost_function attn_cuda_cost, attn_cuda_cost_backward;

/* What words of either direction make illegal, NULL: nothing: a kernel that is no line has no strategies but to do
 * without. */
const char *attn_cuda_not_legal(const attn_cuda_device *device, const attn_cuda_kernel *kernel, const attn_said *said);

/* The device as if it had as many multiprocessors as CTAs are said to run. */
attn_cuda_device attn_cuda_device_of(const attn_cuda_device *device, const attn_said *said);

/* All that a choice decides. */
attn_said attn_cuda_decided(const attn_desc *desc, const attn_cuda_choice *choice);
attn_said attn_cuda_decided_backward(const attn_desc *desc, const attn_cuda_choice *choice);

/* Bytes a second into a level, of the machine or of as many SMs as there are; infinite where nobody knows. */
double attn_cuda_bandwidth(const attn_cuda_device *device, const char *level);

/* What the machine says of a kernel, or NULL. f16 takes what was measured of bf16. */
const attn_machine_kernel *attn_cuda_constants(const attn_cuda_device *device, const attn_cuda_kernel *kernel);

/* What was measured of a fallback kernel, clocks, each with as many for a column of the head dims' mean: of a warp for
 * 32 pairs when it has the multiprocessor to itself; of all warps of a full multiprocessor for a pair. */
typedef struct attn_cuda_fallback {
    double alone, alone_dim, pair, pair_dim;
} attn_cuda_fallback;

/* Clocks of `lines` rows (or keys) of each of so many heads, a warp each, against `each` others. CTAs are of 8 warps.
 */
double attn_cuda_fallback_clocks(const attn_cuda_device *device, double heads, int64_t lines, double each, double dims,
                                 const attn_cuda_fallback *measured);

/* Sets time and what bounds it from the SM that computes longest and from the bytes of each level. */
void attn_cuda_set_time(const attn_cuda_device *device, double clocks, double start, attn_choice *choice);

/* Heads, of `all`, that are worked off together, each with so many tiles: `fit` of them, 1 at least, whose memory stays
 * in L2. Where tiles differ in length, more if need be, and groups alike: a tile that its group begins late is then
 * short beside what the group leaves each of its takers (multiprocessors, or clusters). The same where tiles wait
 * `in_turns` for those of their head: fewer of a head's are then under way at once, each behind the one before. */
int64_t attn_cuda_head_group(const attn_desc *desc, int64_t all, double fit, int64_t tiles, int takers, bool in_turns);

/* The tensors that kernels read by TMA, grad_o in the backward only, and the one that the forward stores by it. */
enum { ATTN_CUDA_Q, ATTN_CUDA_K, ATTN_CUDA_V, ATTN_CUDA_GRAD_O, ATTN_CUDA_O, ATTN_CUDA_TENSORS };

/* How many are read. */
static inline int attn_cuda_tensors(const attn_desc *desc)
{
    return desc->direction == ATTN_BACKWARD ? ATTN_CUDA_O : ATTN_CUDA_GRAD_O;
}

enum { ATTN_CUDA_ALIGN = 256 }; /* of everything in the workspace */

/* Byte offsets from the workspace's first aligned one. */
typedef struct attn_cuda_layout {
    uint64_t counter, nodes, copies[ATTN_CUDA_TENSORS];
    uint64_t partial_o, partial_lse;                                                           /* forward */
    uint64_t stats, grad_q_sum, grad_k_sum, grad_v_sum, turns, added, alibi_parts, sink_parts; /* backward */
    uint64_t total;
} attn_cuda_layout;

/* Appends count * size bytes, aligned, to *total; their place goes to *at. False: more than can be addressed. */
bool attn_cuda_append(uint64_t *total, double count, double size, uint64_t *at);

typedef struct attn_cuda_plan {
    unsigned long long context; /* that the functions live in */
    const attn_cuda_driver *driver;
    attn_cuda_choice chosen;
    attn_cuda_layout layout;
    double elsewhere;               /* seconds predicted where addresses are none that TMA takes; of a line's kernel */
    bool copied[ATTN_CUDA_TENSORS]; /* TMA does not take them as they lie: copied into the workspace first; o: never */
    CUfunction line, nodes, repack, combine; /* NULL: not needed; line: the kernel is a fallback one */
    CUfunction rows, convert, merge, totals; /* backward */
    CUfunction fallback, fallback_kv, fallback_bias;
    attn_sm90_backward_params params; /* complete but for addresses and seeds; of a forward .common alone */
} attn_cuda_plan;

/* Whether a line's kernel stores o by 16 bytes: what is parted it stores as f32. */
static inline bool attn_cuda_stores_wide(const attn_desc *desc, const attn_sm90_schedule *s)
{
    return desc->direction == ATTN_FORWARD && s->total > s->parted * s->splits && !(desc->flags & ATTN_OUT_F32);
}

/* Whether o cannot be stored by 16 bytes: then it comes from f32 parts, all row tiles are parted. */
bool attn_cuda_is_staged(const attn_desc *desc);

/* Extents and strides of one of q, k, v, grad_o, o. */
typedef struct attn_cuda_tensor {
    int64_t extent[4], stride[4];
} attn_cuda_tensor;

attn_cuda_tensor attn_cuda_tensor_of(const attn_desc *desc, int which);

/* Elements between the rows of heads in a repacked tensor. */
static inline int64_t attn_cuda_pitch(int64_t dim)
{
    return (dim + 7) / 8 * 8;
}

/* The parts of a plan that are its direction's: workspace behind what both have, parameters, functions, words. */
bool attn_cuda_lay_out_backward(const attn_desc *desc, attn_cuda_plan *cuda);
void attn_cuda_fill_backward(const attn_desc *desc, attn_cuda_plan *cuda);
int64_t attn_cuda_sum_lines(const attn_desc *desc, bool of_keys); /* lines of sums over rows, or over keys */
int64_t attn_cuda_whole_lines(const attn_desc *desc, int takers); /* over rows, where so many take whole heads */

/* Keys of a backward unit. */
static inline int attn_cuda_unit_keys(const attn_cuda_kernel *kernel)
{
    return kernel->keys * kernel->cluster;
}

/* Row tiles that may see one. */
static inline int64_t attn_cuda_unit_steps(const attn_desc *desc)
{
    int64_t rows = ATTN_SM90_BACKWARD_ROWS;
    return (desc->len_q + rows - 1) / rows * (desc->heads_q / desc->heads_kv);
}

/* Whether units of keys add to grad_q in turns. */
static inline bool attn_cuda_takes_turns(const attn_desc *desc, const attn_sm90_backward_schedule *s)
{
    return s->folded || (desc->flags & ATTN_DETERMINISTIC && !s->whole);
}

/* Whether the line's kernel finishes grad_q: no sums of it are converted behind. */
static inline bool attn_cuda_finishes(const attn_sm90_backward_schedule *s)
{
    return s->folded || s->whole;
}

attn_status attn_cuda_load_backward(const attn_desc *desc, const attn_cuda_place *place, attn_cuda_plan *cuda);
void attn_cuda_describe_backward(const attn_plan *plan, attn_words *words);

/* All parameters that both directions have, and the maps of all tensors that are read, and with maps_o of o, at no
 * address yet (params.c). */
attn_status attn_cuda_fill(const attn_desc *desc, attn_cuda_plan *cuda, bool maps_o);

/* The map that a tensor is read or stored by. */
attn_sm90_map *attn_cuda_map_of(attn_sm90_backward_params *params, int which);

/* A tensor as it is copied: packed, in rows of heads of attn_cuda_pitch elements. */
attn_cuda_tensor attn_cuda_repacked(attn_cuda_tensor tensor);

/* attn_sm90_<stem>_<dtype> of the units that belong to no line. */
attn_status attn_cuda_load_dtype(const attn_cuda_place *place, attn_dtype dtype, const char *stem,
                                 CUfunction *function);

attn_status attn_cuda_run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream);

#endif
