/* What predictions on any architecture share: the machine's figures, words that say what a plan decides, and the clocks
 * of the fallback kernels. */
#ifndef ATTN_CUDA_COST_H
#define ATTN_CUDA_COST_H

#include "cuda/arch.h"

static inline double max_of(double a, double b)
{
    return a > b ? a : b;
}

static inline double min_of(double a, double b)
{
    return a < b ? a : b;
}

/* What words of either direction make illegal, NULL: nothing: a fallback kernel has no strategies but to do
 * without. */
const char *attn_cuda_not_legal(const attn_cuda_device *device, const attn_cuda_kernel *kernel,
                                const attn_overrides *overrides);

/* The device as if it had only as many SMs as the overrides have CTAs. */
attn_cuda_device attn_cuda_device_of(const attn_cuda_device *device, const attn_overrides *overrides);

/* What is known of the machine that the device is. */
const attn_machine *attn_cuda_machine_of(const attn_cuda_device *device);

/* Bytes per second into a level, of the machine or of as many SMs as there are; infinite where nobody knows. */
double attn_cuda_bandwidth(const attn_cuda_device *device, const char *level);

/* A launch beside others that copies tensors into another type, of which it reads and writes so many bytes. looks: at
 * scales, and the run later at what it saw. */
double attn_cuda_converting_seconds(const attn_cuda_device *device, double bytes, bool looks);

/* Keys and values that are read once, up to which L2 had better give them up before other lines. */
int64_t attn_cuda_passing_bytes(const attn_cuda_device *device);

/* What the machine says of a kernel, or NULL. f16 takes what was measured of bf16, and a variant of paged keys what was
 * of the same tiles with contiguous ones. */
const attn_machine_kernel *attn_cuda_constants(const attn_cuda_device *device, const attn_cuda_kernel *kernel);

/* What was measured of a fallback kernel, clocks, each with as many for a column of the head dims' mean: of a warp for
 * 32 pairs when it has the SM to itself; of all warps of a full SM for a pair. */
typedef struct attn_cuda_fallback {
    double alone, alone_dim, pair, pair_dim;
} attn_cuda_fallback;

/* Clocks of `rows` rows (or keys) of each of so many heads, a warp each, against `each` others. CTAs are of 8 warps.
 */
double attn_cuda_fallback_clocks(const attn_cuda_device *device, double heads, int64_t rows, double each, double dims,
                                 const attn_cuda_fallback *measured);

/* The greatest common divisor. */
int64_t attn_cuda_common(int64_t a, int64_t b);

/* Blocks of a list that a tile of so many rows, or keys, has in the mean. */
double attn_cuda_blocks_of_tile(int64_t block, int64_t size);

/* The share of the visible pairs that bits alone leave and that no tile can be without, since it may be spread over all
 * of them; 1 where nothing is known of it. */
double attn_cuda_spread_share(const attn_desc *desc);

/* Sets time and what bounds it from the SM that computes longest and from the bytes of each level. */
void attn_cuda_set_time(const attn_cuda_device *device, double clocks, double start, attn_choice *choice);

/* Heads, of `all`, that are taken together, each with so many tiles: `fit` of them, 1 at least, whose memory stays in
 * L2. Where tiles differ in length, more if need be, and groups alike: a tile that its group begins late is then short
 * beside what the group leaves each of the `ctas` (or clusters). The same where the tiles of a head are `ordered`, each
 * waiting for the one before: fewer of a head's are then under way at once. */
int64_t attn_cuda_head_group(const attn_desc *desc, int64_t all, double fit, int64_t tiles, int ctas, bool ordered);

/* Estimate of what a kernel's changes of scores take beside no product, clocks per score of an SM: exponentials and
 * reciprocals of a softcap, Philox of dropout; of a kernel for all changes, asked for or not. */
double attn_cuda_change_clocks(const attn_cuda_kernel *kernel);

/* The same of what a problem asks for of a variant that changes scores as flags say, beside what it takes for a problem
 * that asks for nothing: from times of an H100 and an H200 at 64 and 128 dims. */
double attn_cuda_asked_clocks(const attn_cuda_kernel *kernel, const attn_desc *desc);

#endif
