/* attn_quant.h: q, k and v of attention in one byte (ATTN_E4M3, ATTN_I8): scales, rotation, the mean of the keys.
 *
 * A plan takes one tensor, (batch, row, head, dim), in f32, f16 or bf16 and writes its elements in one byte, and the
 * scales by which attn_desc multiplies them again:
 *
 *     out = x / scale, rounded to nearest even     scale = max |x| / 448 (ATTN_I8: / 127) of what has this scale
 *
 * Two changes come before it, which attention over all of a sequence's keys does not see but for rounding:
 *   - rotate: rows are multiplied by an orthogonal matrix (signs, then a Hadamard matrix), the same one for q and k. It
 *     spreads an outlier over the row: q.k stays what it was, and max |x| falls.
 *   - ATTN_QUANT_MEAN: the mean of a sequence's keys is removed from each. It adds the same to all scores of a row, so
 *     O stays; LSE lacks scale * (q . mean), which ATTN_QUANT_DOT computes from q. This does not hold where scores are
 *     changed, or where something beside these keys is in the denominator: ATTN_SOFTCAP, ATTN_SINK, and LSEs that are
 *     merged before they are corrected. A plan of attention cannot know where its keys come from: the caller must not
 *     use such keys there.
 * docs/FP8.md shows what each is worth.
 *
 *     attn_quant_desc desc = { .dtype = ATTN_BF16, .out_dtype = ATTN_E4M3, .batch = 1, .rows = 4096, .heads = 8,
 *                              .dim = 128, .rotate = 128, .scale_rows = 64, .scale_stride = { 0, 8, 1, 0 } };
 *     attn_quant_plan *plan;
 *     if (attn_quant_plan_create(&plan, &desc)) die(attn_error());
 *     if (attn_quant_run(plan, &(attn_quant_args){ .x = k, .out = k_e4m3, .scale = k_scale }, NULL)) die(attn_error());
 *
 * Describe -> plan -> run, and everything else, as attn.h says. Running allocates nothing and needs no workspace. The
 * same x gives the same bits, of means and products too, on every instruction set, for any number of threads and on a
 * GPU.
 */
#ifndef ATTN_QUANT_H
#define ATTN_QUANT_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attn_quant_desc.flags */
enum {
    ATTN_QUANT_VARLEN = 1 << 0, /* sequences packed back to back: cu_lens */
    ATTN_QUANT_MEAN = 1 << 1,   /* of k: the mean over the rows of each (sequence, head) is removed, and written */
    ATTN_QUANT_DOT = 1 << 2     /* of q: each row's product with the mean of its KV head is written */
};

/* Scales are where attn_desc has them: f32, at (sequence, block, head, dim) by strides, so scale_rows, scale_heads and
 * scale_stride are also what attn_desc takes. An axis of stride 0 has one scale for all: four zeros give one for the
 * tensor, { heads, 0, 1, 0 } one for each (sequence, head), { heads * dim, 0, dim, 1 } one for each channel too.
 *
 * Blocks without rows, and blocks of zeros, have a scale of 1. No other is below 2^-120: what is far smaller becomes 0.
 * If a NaN or infinity is in what shares a scale (or rotated sums overflow), the scale is NaN, and the bytes are 0x7f
 * (ATTN_I8: 0): so every row that sees one of these elements shows it. */
typedef struct attn_quant_desc {
    attn_dtype dtype;     /* of x: ATTN_F32, ATTN_F16 or ATTN_BF16 */
    attn_dtype out_dtype; /* ATTN_E4M3 or ATTN_I8 */
    attn_device device;   /* ATTN_CPU, or ATTN_CUDA, which takes no threads or parallel_for */
    uint32_t flags;       /* ATTN_QUANT_VARLEN | ... */

    int64_t batch, heads, dim; /* sequences; heads of x; dim: 1 to 512 */
    int64_t rows;              /* of a sequence; ATTN_QUANT_VARLEN: any bound on the longest; where it
                                * exceeds total, total replaces it, as in attn_desc */
    int64_t total;             /* ATTN_QUANT_VARLEN: rows of the packed x (a batch extent of 1) */

    int64_t rotate; /* 0: no; else elements that are rotated together: 16, 32, ... 512, which divides dim. Best all of
                     * them, else the greatest of these that divides dim */
    uint64_t seed;  /* rotate: element i is negated where bit i % 128 of Philox4x32-10 is set, whose key this is and
                     * whose  counter is (i / 128, 0, 0, 0). The same for q and k */

    int64_t x_stride[4], out_stride[4]; /* all 0: packed; else dim's is 1 */

    int64_t scale_rows;      /* rows of a block, counted from the sequence's first one: 0 (all), 1, 64 or 128 */
    int64_t scale_heads;     /* divides heads: neighbouring heads share a scale, as q's of a KV head do; 0: heads */
    int64_t scale_stride[4]; /* [1] is 0 if scale_rows is, [3] if scale_rows is not */

    int64_t mean_heads; /* ATTN_QUANT_DOT: KV heads, which divide heads; 0: heads */

    int32_t threads;                /* 0: one for each processor the caller may use; at most 1024 */
    attn_parallel_for parallel_for; /* NULL: the library's own threads */
    void *parallel_context;         /* its first argument */
} attn_quant_desc;

typedef struct attn_quant_plan attn_quant_plan;

/* As attn_plan_create and attn_plan_destroy. */
ATTN_API attn_status attn_quant_plan_create_sized(attn_quant_plan **plan, const attn_quant_desc *desc,
                                                  size_t desc_size);
static inline attn_status attn_quant_plan_create(attn_quant_plan **plan, const attn_quant_desc *desc)
{
    return attn_quant_plan_create_sized(plan, desc, sizeof *desc);
}
ATTN_API void attn_quant_plan_destroy(attn_quant_plan *plan);

/* An output overlaps no input and no other output. mean and dot are of x as it is given, before it is rotated. */
typedef struct attn_quant_args {
    const void *x;          /* (batch, rows, heads, dim); ATTN_QUANT_VARLEN: (1, total, ...) */
    void *out;              /* likewise; rows outside every sequence are not written */
    float *scale;           /* as scale_stride says */
    const int32_t *cu_lens; /* ATTN_QUANT_VARLEN: (batch + 1): starts, then the end; from 0, never falling */
    float *mean;            /* ATTN_QUANT_MEAN: (batch, heads, dim), written, 0 of a sequence without rows.
                             * ATTN_QUANT_DOT: (batch, mean_heads, dim), read */
    float *dot;             /* ATTN_QUANT_DOT: as lse in attn_args: (batch, heads, rows); ATTN_QUANT_VARLEN: (heads,
                             * total). The LSE is what attn_run wrote plus the scale of the scores times dot */
} attn_quant_args;

/* Quantises *args as the plan says. stream: NULL on the CPU. ATTN_INVALID for bad lengths and pointers, plan or args =
 * NULL.
 *
 * ATTN_CUDA: the plan is for the context in which it was made, pointers are of device memory, and the call puts one to
 * six kernels into the stream (a CUstream, which may be capturing a graph) and returns. They read cu_lens, and replace
 * what is out of range by the nearest value in range. Scales that belong to a block of rows and a head are fastest: x
 * is read once then. x is read fastest at an address that is a multiple of 16 bytes, in rows that are, too. */
ATTN_API attn_status attn_quant_run_sized(const attn_quant_plan *plan, const attn_quant_args *args, size_t args_size,
                                          void *stream);
static inline attn_status attn_quant_run(const attn_quant_plan *plan, const attn_quant_args *args, void *stream)
{
    return attn_quant_run_sized(plan, args, sizeof *args, stream);
}

#ifdef __cplusplus
}
#endif

#endif
