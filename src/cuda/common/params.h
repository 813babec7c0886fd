/* What the host passes to kernels of every architecture, in types that C11 and device code lay out alike. No include:
 * after pages_params.h.
 *
 * Rows and keys count from the start of their sequence and fit 31 bits; strides and offsets are in elements, 64-bit.
 * Feature bits are those of attn_desc.flags (attn.h). Each architecture has its kernels' parameters in params.h of its
 * folder, made of these parts and of its own.
 *
 * Kernels that every architecture makes of this folder's headers, each with its parameter struct as the only argument
 * (__grid_constant__); they take every feature, dtype, stride and dim to ATTN_CUDA_DIM_MOST, and are not fast:
 *
 *   attn_<arch>_fallback_<dtype>: the forward. attn_cuda_fallback_params; grid (ceil(len_q / 8), heads_q, batch), block
 * 256.
 *
 *   attn_<arch>_backward_fallback_q_<dtype>: dQ, parts of grad_alibi. attn_cuda_backward_params; grid (ceil(len_q / 8),
 *   heads_q, batch), block 256.
 *
 *   attn_<arch>_backward_fallback_kv_<dtype>: dK, dV. attn_cuda_backward_params; grid (ceil(len_kv / 8), heads_kv,
 *   batch), block 256.
 *
 *   attn_<arch>_backward_fallback_bias_<dtype>: grad_bias, each element from its pairs in a fixed order.
 *   attn_cuda_backward_params; grid (extent[3], extent[2], extent[0] * extent[1]), block 128. */
#ifndef ATTN_CUDA_COMMON_PARAMS_H
#define ATTN_CUDA_COMMON_PARAMS_H

/* Of shape.flags, beside those of attn_desc: gradients are f32, whatever o and grad_o are. Kernels that read neither of
 * these, but store gradients, are told ATTN_OUT_F32 too. */
#define ATTN_CUDA_GRADIENTS_F32 (1 << 29)

#define ATTN_CUDA_DIM_MOST 512                               /* of a head */
#define ATTN_CUDA_FALLBACK_COLUMNS (ATTN_CUDA_DIM_MOST / 32) /* of a lane of the fallback kernels */

/* What 0 <= a < 2^31 is divided by, some d from 1 to 2^31: (the high word of a * factor, plus a) >> shift, where
 * 2^shift is the least >= d and factor = 2^32 (2^shift - d) / d + 1 (Granlund, Montgomery, Division by Invariant
 * Integers using Multiplication, 1994, figure 4.1). */
typedef struct attn_cuda_divisor {
    unsigned factor;
    int shift;
} attn_cuda_divisor;

/* What is computed: extents, lengths, and where results go. */
typedef struct attn_cuda_shape {
    unsigned flags; /* attn_desc.flags, ATTN_CUDA_GRADIENTS_F32 */
    int batch, heads_q, heads_kv;
    int len_q, len_kv;     /* of a sequence; VARLEN: of the longest */
    int total_q, total_kv; /* VARLEN: rows of q, o and lse; of k and v */
    int dim_qk, dim_v;
    float scale;

    void *o;               /* of dtype (E4M3: of out_dtype), or f32 with ATTN_OUT_F32 */
    int o_wide;            /* o is stored by more than an element: as a kernel's own parameters say */
    int out_dtype;         /* attn_dtype of o */
    long long o_stride[3]; /* batch, row, head; VARLEN: the batch's is not used */
    float *lse;            /* (batch, heads_q, len_q), VARLEN (heads_q, total_q); or NULL */
    const int *cu_lens_q, *cu_lens_kv, *lens_q, *lens_kv; /* NULL where their flag is missing */
    const float *sink;                                    /* NULL: none */

    /* Workspace, or NULL: results of parts of the keys, which are combined later. */
    float *partial_o, *partial_lse;
} attn_cuda_shape;

typedef struct attn_cuda_mask {
    int left, right; /* t - left <= j <= t + right; 1 << 30 where unbounded. ATTN_CAUSAL: right = 0 */
    int chunk;       /* 0: none */
    int interval_vectors, interval_heads;
    int block_rows, block_keys, block_batch, block_heads;
    int bits_batch, bits_heads;
    const int *prefix;    /* NULL: none */
    const int *intervals; /* as attn_args has it */
    int summary_keys;     /* keys of the variant: an interval summary is of as many, or of a group of such tiles */
    int *summaries; /* workspace: ATTN_CUDA_SUMMARIES per head, of 8 ints: least LTS, LTE, UTS, UTE, then greatest */
    unsigned *interval_tiles; /* workspace of the forward's variants: of each head and KV tile ATTN_CUDA_INTERVAL_PAIRS
                               * for each key, {first, count} of the rows that it is hidden from, modulo 2^32; of keys
                               * after the last, none */
    const int *block_full_count; /* pairs may be NULL */
    union {
        const int *block_full;
        unsigned *bit_tiles; /* workspace, of ATTN_BITS without ATTN_BLOCKS, or NULL: for each plane of bits, 64 rows
                              * and 32 KV tiles of summary_keys two words, of a bit per tile: some pair is visible,
                              * all are */
    };
    const int *block_partial_count, *block_partial;
    const unsigned char *bits;

    /* A first key, and positions of row 0 and key 0; NULL where their flag is missing. Then left, right and chunk are
     * those of positions: 1 << 61 where unbounded; chunk 0: none. */
    const int *first_kv;
    const long long *position_q, *position_kv;
    long long far_left, far_right, far_chunk;
} attn_cuda_mask;

typedef struct attn_cuda_score {
    float softcap; /* > 0 with ATTN_SOFTCAP */
    float to_cap;  /* with ATTN_SOFTCAP: log2(e^2) / softcap */
    int alibi_batch;
    const float *alibi;
    const void *bias;
    int bias_dtype; /* attn_dtype */
    int bias_extent[4];
    long long bias_stride[4];
    unsigned long long seed;
    unsigned seed_offset;
    unsigned dropout_threshold; /* attn_dropout_threshold(p) */
} attn_cuda_score;

/* Tensors as in attn_desc, for kernels that read them where they lie. */
typedef struct attn_cuda_tensors {
    const void *q, *k, *v;
    long long q_stride[4], k_stride[4], v_stride[4]; /* batch, row, head, dim (1); VARLEN: the batch's is not used;
                                                      * ATTN_PAGED: k and v: page, slot, head, dim */
} attn_cuda_tensors;

/* A run's seeds that the device is to read. */
typedef struct attn_cuda_seeds {
    const unsigned long long *seed_at;        /* in place of score.seed; NULL: none */
    const unsigned long long *seed_offset_at; /* its low word is added to score.seed_offset; NULL: none */
} attn_cuda_seeds;

/* The scales of one tensor, whose elements have one byte, as attn_desc has them. */
typedef struct attn_cuda_scale {
    const float *at;     /* NULL: 1 */
    long long stride[4]; /* sequence (or page), block, head, dim */
    int rows;            /* of a block; 0: all */
    int of_kv_heads;     /* its heads are KV heads */
} attn_cuda_scale;

typedef struct attn_cuda_scales {
    attn_cuda_scale q, k, v;
    const float *o; /* ATTN_E4M3 outputs are divided by it; NULL: 1 */
    int kv_dtype;   /* attn_dtype of k and v */
} attn_cuda_scales;

/* What caches of keys add to a problem. Tables are NULL where their flag is missing. ATTN_PAGED: k and v are (page,
 * slot, head, dim), and what of a sequence's lens_kv, table or ids is out of range makes its keys invisible and sets
 * table.fault. */
typedef struct attn_cuda_kv_cache {
    attn_page_table table;
    int bits_keys; /* attn_desc's */
    int box;       /* a variant of pages: keys that it reads at once: page_size and the KV tile are multiples; 0: it
                    * reads key by key */
    int passes;    /* a variant of pages: L2 gives keys up before other lines */
} attn_cuda_kv_cache;

typedef struct attn_cuda_params {
    attn_cuda_shape shape;
    attn_cuda_mask mask;
    attn_cuda_score score;
    attn_cuda_tensors tensors;
    attn_cuda_seeds seeds;
    attn_cuda_kv_cache cache;
} attn_cuda_params;

/* Of the fallback kernels, whose q, k and v may have a byte. unfit: NULL, or a word of what was widened before
 * (widen_params.h): where it is 0, nothing is computed. */
typedef struct attn_cuda_fallback_params {
    attn_cuda_params common;
    attn_cuda_scales scales;
    const unsigned *unfit;
} attn_cuda_fallback_params;

/* ---- backward ------------------------------------------------------------------------------ */

/* What a backward reads beside the forward's tensors, and what it writes. */
typedef struct attn_cuda_gradients {
    const void *o; /* of dtype, or f32 with ATTN_OUT_F32; so are q, k, v */
    void *q, *k, *v;
    long long o_stride[3], q_stride[3], k_stride[3], v_stride[3]; /* batch, row, head */
    const float *lse;                                             /* NULL: 0 */
    float *bias; /* packed as bias_extent; NULL: it is not asked for, or another kernel computes it */
} attn_cuda_gradients;

/* Rows of statistics' tiles, and of all that is aligned to them: row `row` of head h is aligned row
 *   (b * heads_q + h) * pitch + row                         pitch = ceil(len_q / R) * R
 *   VARLEN: h * pitch + (cu_lens_q[b] / R + b) * R + row    pitch = (total_q / R + batch) * R
 * with R = ATTN_CUDA_ALIGNED_ROWS, and there are batch (VARLEN: 1) * heads_q * pitch of them. Over keys of KV heads the
 * same, with len_kv, total_kv, heads_kv. */
#define ATTN_CUDA_ALIGNED_ROWS 64

typedef struct attn_cuda_backward_params {
    attn_cuda_params common; /* but for the cache; shape.o: the forward's, read; lse likewise, not NULL */
    attn_cuda_gradients grad;
    const float *stats; /* 2 floats per aligned row, of all rows of a tile one, then the other (statistics.h) */
    int q_pitch;        /* in aligned rows */
    int alibi_count;    /* ceil(len_q / 8) */
    float *alibi_parts; /* NULL, or (batch, heads_q, alibi_count) floats */
} attn_cuda_backward_params;

/* Pairs of words that say which rows an interval of `vectors` numbers hides. */
#define ATTN_CUDA_INTERVAL_PAIRS(vectors) ((vectors) == 4 ? 2 : 1)

/* Interval summaries of a head: one per KV tile, then one per group of these. */
#define ATTN_CUDA_SUMMARY_GROUP 32
#define ATTN_CUDA_SUMMARIES(len_kv, keys) \
    (((len_kv) + (keys)-1) / (keys) +     \
     ((len_kv) + ATTN_CUDA_SUMMARY_GROUP * (keys)-1) / (ATTN_CUDA_SUMMARY_GROUP * (keys)))

/* Of the summary of a plane of bits: rows that share words, and how many pairs of words there are. */
#define ATTN_CUDA_BIT_ROWS 64
#define ATTN_CUDA_BIT_TILES(len_q, len_kv, keys) \
    (((len_q) + ATTN_CUDA_BIT_ROWS - 1LL) / ATTN_CUDA_BIT_ROWS * (((len_kv) + 32LL * (keys)-1) / (32LL * (keys))))

#endif
