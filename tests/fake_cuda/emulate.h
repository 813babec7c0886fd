/* What the kernels of emulate.c, emulate_backward.c and emulate_around.c share. */
#ifndef TESTS_FAKE_CUDA_EMULATE_H
#define TESTS_FAKE_CUDA_EMULATE_H

#include "cuda/sm90/host/backward.h"
#include "cuda/sm90/host/forward.h"
#include "fake.h"

void fake_expect(bool right, const char *symbol, const char *what);

/* The problem that parameters describe: everything but q, k, v and their strides; and these from the maps of `kernel`.
 */
void fake_take(const attn_cuda_params *params, attn_dtype dtype, attn_desc *desc, attn_args *args);
void fake_take_maps(const char *symbol, const attn_cuda_kernel *kernel, const attn_sm90_params *params, attn_desc *desc,
                    attn_args *args);

/* Reads a map, which must be what params.h says; returns its address. */
const void *fake_take_map(const char *symbol, const attn_sm90_map *map, attn_dtype dtype, const int64_t extent[4],
                          const uint32_t box[4], int64_t stride[4]);

/* What a variant of a bias reads it by; tile_rows: of a Q tile, of all its heads. */
void fake_check_bias(const char *symbol, const attn_sm90_params *params, const attn_sm90_map *map, int bias_rows,
                     int tile_rows, const attn_desc *desc);

/* The summary of bits is there if, and only if, the variant wants it, and of its tiles. */
/* A variant of spans that do not fit, or the one behind it where they do. */
bool fake_stands_aside(const char *symbol, const attn_cuda_kernel *kernel, const attn_sm90_params *params);

void fake_check_bit_tiles(const char *symbol, const attn_cuda_kernel *kernel, const attn_sm90_params *params);

/* The common ones among a variant's. */
attn_cuda_params fake_common(const attn_sm90_params *params);

/* q, k and v as kernels have them that read them where they lie. */
void fake_take_tensors(const attn_cuda_params *params, attn_desc *desc, attn_args *args);

/* Whether kernels compute (fake.h). */
bool fake_computes(void);

/* Computes it on the CPU, if kernels compute. */
void fake_compute(const char *symbol, const attn_desc *desc, const attn_args *args);

/* The dtype that a symbol ends with. */
attn_dtype fake_dtype_of(const char *symbol);

/* Whether the kernel is one of the backward's, and then done; bytes of its parameters, and of all others 0. kernel: the
 * line that it is, or NULL. */
bool fake_launch_backward(const char *symbol, const attn_cuda_kernel *kernel, const CUlaunchConfig *config,
                          const void *params);
size_t fake_backward_params_size(const char *symbol, const attn_cuda_kernel *kernel);

/* Whether the kernel is one that summarises, copies or merges, and then done; bytes of its parameters, and of all
 * others 0. */
bool fake_launch_around(const char *symbol, const CUlaunchConfig *config, const void *params);
size_t fake_around_params_size(const char *symbol);

/* V again, packed, from the copy that a TRANSPOSED variant's map leads to. v: room for it. */
void fake_untranspose(const attn_sm90_params *params, const unsigned char *copy, int64_t pitch, int tile,
                      unsigned char *v);

#endif
