/* What the planner, the drivers (prefill.c, decode.c, backward.c) and the kernel bodies agree on. */
#ifndef ATTN_CPU_KERNEL_H
#define ATTN_CPU_KERNEL_H

#include "attn.h"
#include "cpu/score.h"
#include "mask/mask.h"
#include "problem/desc.h"
#include "problem/keys.h"

/* Prefill and decode compute the forward, gradient the backward. */
typedef enum attn_form { ATTN_PREFILL, ATTN_DECODE, ATTN_GRADIENT, ATTN_FORMS } attn_form;

enum {
    ATTN_KEYS_TILE = 256,       /* keys of a prefill tile */
    ATTN_SCORE_PITCH = 272,     /* between its rows of scores: no power of two, so that rows do not share cache sets */
    ATTN_KEY_ALIGN = 32,        /* tiles begin at its multiples: a multiple of every kernel's cols */
    ATTN_ROWS_MOST = 192,       /* query rows of a prefill tile */
    ATTN_ITEM_ROWS = 32,        /* most query rows and */
    ATTN_ITEM_KEYS = 128,       /* keys that bf16 pairs take at once */
    ATTN_PAIRS_ROWS_MOST = 384, /* query rows of a prefill tile of bf16 pairs */
    ATTN_PAIRS_ROWS = 96,       /* a multiple of every strip and depth of bf16 pairs */
    ATTN_DECODE_ROWS = 16,      /* query rows per head that DECODE takes */
    ATTN_DECODE_TILE = 128,     /* keys of a decode tile */
    ATTN_PACK_KEYS = 256,       /* keys that are packed at once */
    ATTN_GRADIENT_LEAST = 48,   /* least keys of a gradient tile, but for the last */
    ATTN_GRADIENT_TILE = 192,   /* most rows and most keys of a gradient tile: a multiple of every rows and cols */
};

/* Packs keys [key0, key0 + keys) of one KV head, ATTN_PACK_KEYS at most (kernels of bf16 pairs: as body/pairs.h says).
 * key0 is a multiple of the kernel's cols, and so is key0 + keys unless it is the end; the last panel is filled up with
 * zeros. k_pack: panels of `cols` keys; in a panel dim after dim, the cols keys of each together. v_pack: panels of
 * `cols` columns, `pitch` rows (keys) each; dim_v filled up with zero columns. */
typedef struct attn_pack_task {
    attn_dtype dtype;                /* of k and v */
    const void *const *k, *const *v; /* where each of the keys is, and its value */
    int64_t dim_qk, dim_v;
    int64_t key0, keys;
    int64_t base;  /* the key that is packed first: a multiple of ATTN_KEY_ALIGN */
    int64_t pitch; /* keys there is room for */
    float *k_pack, *v_pack;
} attn_pack_task;

/* Attends query rows [row0, row0 + rows) of one head to all of its packed keys and writes o and lse. */
typedef struct attn_attend_task {
    attn_dtype dtype, out_dtype;
    const attn_mask_view *mask;
    const attn_score *score;
    const attn_keys *keys; /* for their scales */
    int64_t row0, rows;
    const void *q; /* row 0 of the head */
    int64_t q_row;
    void *o; /* row 0 of the head */
    int64_t o_row;
    float *lse; /* row 0 of the head, or NULL */
    int64_t dim_qk, dim_v;
    const float *k_pack, *v_pack;
    int64_t base, pitch; /* as they were packed */
    float *scratch;      /* attn_attend_scratch floats, 64-byte aligned */
} attn_attend_task;

/* Attends all query rows of `heads` neighbouring KV heads, each with its group, to keys [key0, key1), tile after tile
 * and in a tile head after head: where the heads of a key lie side by side, memory is read in order. Writes a partial
 * state per head, `partial_step` floats apart: rows x (dim_v outputs, not yet divided), then rows maxima (log2 units),
 * then rows sums; the rows = group * len_q are ordered query head by query head. */
typedef struct attn_decode_task {
    attn_dtype dtype, kv_dtype;
    const attn_mask_view *mask; /* of the query heads, heads * group of them */
    const attn_score *score;
    int64_t heads, group, len_q;
    const void *q; /* row 0 of the first query head */
    int64_t q_row, q_head;
    attn_keys keys;         /* of the first KV head */
    int64_t k_head, v_head; /* bytes */
    int64_t dim_qk, dim_v;
    int64_t key0, key1, kv_tile; /* kv_tile: at most ATTN_DECODE_TILE */
    bool fetch_l2;               /* fetch the next tile into L2; else the next head into L1 */
    float *partial;
    int64_t partial_step;
    float *scratch; /* attn_decode_scratch floats, 64-byte aligned */
} attn_decode_task;

/* delta[i] = grad_o[i] . o[i] - grad_lse[i] of rows [row0, row0 + rows) of one head; 0 where lse is -inf. */
typedef struct attn_delta_task {
    attn_dtype dtype; /* of o and grad_o */
    int64_t row0, rows;
    const void *o, *grad_o; /* row 0 of the head */
    int64_t o_row, grad_o_row;
    const float *lse, *grad_lse; /* row 0 of the head; grad_lse may be NULL */
    int64_t dim_v;
    float *delta; /* row 0 of the head */
} attn_delta_task;

/* One tile of keys [key0, key1) of one KV head against all rows of its `group` query heads that see some of it:
 *     P = exp(S - LSE)   dS = P (grad_o V^T - delta)   grad_v = P^T grad_o   grad_k = dS^T q   grad_q += dS k
 * (with dropout grad_o V^T and, in grad_v, P are dropped and scaled; softcap takes its derivative between dS and the
 * gradients of q and k). Writes, or adds to, rows [key0, key1) of grad_k and grad_v; adds to grad_q, which is in f32
 * and lacks the factor `scale`, to grad_bias and to grad_alibi. Where grad_k is NULL, only the latter two are computed.
 * Tasks of a KV head that share grad_q, grad_bias and grad_alibi run one after the other, in an order that does not
 * depend on who runs them. */
typedef struct attn_backward_task {
    attn_dtype dtype, out_dtype; /* of q, k, v; of grad_o */
    attn_dtype grad_dtype;       /* of the gradients of k and v */
    bool add;                    /* they are f32, and added to */
    const attn_mask_view *mask;  /* of the query heads, `group` of them */
    const attn_score *score;
    int64_t group, len_q, q_tile; /* q_tile: at most ATTN_GRADIENT_TILE */
    const void *q, *grad_o;       /* row 0 of the first query head */
    int64_t q_row, q_head, grad_o_row, grad_o_head;
    int64_t row0, row1;      /* the rows that count: row0 a multiple of q_tile, row1 another or len_q */
    float *max, *factor;     /* row 0 of the first query head: P = factor 2^(s - max), s in units of log2 */
    const float *delta;      /* likewise */
    int64_t statistics_head; /* of the three, from head to head */
    bool statistics;         /* only finds max and, in factor, the sum of 2^(s - max): both begin with -inf and 0 */
    float *own_delta; /* or NULL: only adds the row's sum of P (grad_o V^T) to it; row 0, of one head; dtype f32 */
    attn_keys keys;   /* of the KV head */
    int64_t dim_qk, dim_v;
    int64_t key0, key1;    /* at most ATTN_GRADIENT_TILE; key0 is a multiple of the kernel's cols */
    void *grad_k, *grad_v; /* row 0 of the KV head, or NULL */
    int64_t grad_k_row, grad_v_row;
    float *grad_q; /* row 0 of the first query head; rows attn_gradient_pitch(dim_qk) apart, heads grad_q_head apart; */
    int64_t grad_q_head; /* after the last head ATTN_GRADIENT_SLACK rows to spare, to which zeros may be added */
    float *grad_bias;    /* element (0, 0) of the first query head, or NULL */
    int64_t grad_bias_head, grad_bias_row, grad_bias_key; /* its strides, 0 where it repeats */
    double *grad_alibi;                                   /* one per query head, or NULL */
    float *rows;    /* attn_backward_rows floats, 64-byte aligned: as the kernel's `rows` packed them; or NULL */
    float *scratch; /* attn_backward_scratch floats, 64-byte aligned */
} attn_backward_task;

/* Rows [row0, row0 + rows) of grad_q of one head: the sum of `parts` of them, part_step apart, in their order, times
 * scale. */
typedef struct attn_sum_task {
    attn_dtype grad_dtype;
    bool add; /* to what is there, which is f32 */
    int64_t row0, rows, dim;
    const float *part; /* row 0 of the head; rows attn_gradient_pitch(dim) apart */
    int64_t parts, part_step;
    float scale;
    void *out; /* row 0 of the head */
    int64_t out_row;
} attn_sum_task;

enum { ATTN_GRADIENT_SLACK = 32 };

/* Floats of scratch, enough for every register tile. A row: scores, output, query, maximum and lane sums, dropout's
 * bits; then one row of bias and room for alignment. */
static inline int64_t attn_attend_scratch(int64_t rows, int64_t dim_qk, int64_t dim_v)
{
    int64_t row = ATTN_SCORE_PITCH + attn_round_up(dim_v, 32) + dim_qk + 17 + ATTN_KEYS_TILE / 32;
    return attn_round_up(attn_round_up(rows, 16) * row + ATTN_KEYS_TILE + 48, 16);
}

/* With bf16 pairs. A row: output, query, maximum and lane sums; scores and probabilities of two items, dropout's bits
 * of one; a row of bias and room for alignment. */
static inline int64_t attn_pairs_scratch(int64_t rows, int64_t dim_qk, int64_t dim_v)
{
    int64_t row = attn_round_up(dim_v, 32) + attn_round_up(dim_qk, 32) / 2 + 17;
    int64_t item_row = 3 * (ATTN_ITEM_KEYS + 32) + ATTN_ITEM_KEYS / 32;
    return attn_round_up((rows + ATTN_ITEM_ROWS) * row + ATTN_ITEM_ROWS * item_row + ATTN_ITEM_KEYS + 48, 16);
}

static inline int64_t attn_decode_scratch(int64_t heads, int64_t rows, int64_t dim_qk, int64_t dim_v)
{
    int64_t padded = attn_round_up(rows, 4), row = attn_round_up(dim_v, 32) + attn_round_up(dim_qk, 16) + 17;
    int64_t tile = 3 * ATTN_DECODE_TILE + ATTN_DECODE_TILE / 32; /* bias, scales of k and v; bits */
    return attn_round_up((heads * row + ATTN_DECODE_TILE) * padded + tile + 16, 16);
}

static inline int64_t attn_gradient_pitch(int64_t dim)
{
    return attn_round_up(dim, 32);
}

/* Queries and grad_o of a group, packed. */
static inline int64_t attn_backward_rows(int64_t group, int64_t len_q, int64_t rows, int64_t dim_qk, int64_t dim_v)
{
    return group * attn_round_up(len_q, rows) * (attn_gradient_pitch(dim_qk) + attn_gradient_pitch(dim_v));
}

/* A row: two rows of scores, maximum, factor and delta, dropout's bits. A key: K twice, V, both gradients. */
static inline int64_t attn_backward_scratch(int64_t rows, int64_t keys, int64_t dim_qk, int64_t dim_v)
{
    int64_t dims = attn_gradient_pitch(dim_qk) + attn_gradient_pitch(dim_v);
    int64_t row = 2 * ATTN_SCORE_PITCH + 3 + ATTN_KEYS_TILE / 32;
    int64_t key = 2 * dims + attn_gradient_pitch(dim_qk);
    return attn_round_up((rows + 16) * row + (attn_round_up(keys, 32) + 16) * key + 2 * ATTN_SCORE_PITCH, 16);
}

/* With bf16 pairs. A row: query and grad_o twice, P and dS; maximum, factor, delta, dropout's bits. A key: K twice, V,
 * both gradients. A row of a strip: two of scores, P and dS. */
static inline int64_t attn_pairs_backward_scratch(int64_t rows, int64_t keys, int64_t dim_qk, int64_t dim_v)
{
    int64_t room = attn_round_up(rows, ATTN_PAIRS_ROWS), padded = attn_round_up(keys, 32);
    int64_t q = attn_round_up(dim_qk, 32), v = attn_round_up(dim_v, 32), most = ATTN_ITEM_ROWS;
    int64_t row = q + v + most + padded + 3 + ATTN_KEYS_TILE / 32, key = 2 * q + 2 * v + 2 * most;
    int64_t strip_row = 2 * ATTN_SCORE_PITCH + ATTN_GRADIENT_TILE + 32;
    return room * row + padded * key + most * strip_row + 2 * ATTN_KEYS_TILE + 25 * 16;
}

/* Rotary embedding of one token (attn_kv.h): `heads` rows of `dim` elements, of which the first rotary_dim turn and the
 * others are copied. in = out: in place. */
typedef struct attn_rotary_task {
    attn_dtype dtype;     /* of in: f32, f16 or bf16 */
    attn_dtype out_dtype; /* dtype, or ATTN_F32 */
    bool interleaved;
    const void *in;
    void *out;
    int64_t in_stride, out_stride; /* elements from one head to the next */
    int64_t heads, dim, rotary_dim;
    const float *cos, *sin; /* rotary_dim / 2 */
} attn_rotary_task;

/* Rows of one token (attn_kv.h), from f32, f16 or bf16 to a type of one byte or back. */
typedef struct attn_convert_task {
    attn_dtype from, to;
    bool finds; /* to bytes: the scale of each row is found and written first */
    const void *in;
    void *out;
    int64_t in_stride, out_stride; /* elements from one head to the next */
    int64_t heads, dim;
    float *scale;
    int64_t scale_stride, channel_stride; /* from one head's to the next, from one element's to the next */
} attn_convert_task;

/* Rows of one head on their way to one byte (attn_quant.h). measure: row0 to row0 + rows of x, each without its mean
 * and rotated, become `values`, and each of `most` the greatest bits of a |x| that has it, if these are greater: so a
 * NaN is greater than infinity, and that greater than any number. Values of a rotation lack the factor 1 /
 * sqrt(rotate). store: values times `inverse` become bytes. Row i and channel j have most[i row_step + j channel_step].
 */
typedef struct attn_quant_task {
    attn_dtype dtype, out_dtype;
    int64_t rows, dim, rotate; /* rotate: 0 or a power of two, at least 16, that divides dim */
    const void *x;
    uint8_t *out;
    int64_t x_row, out_row; /* elements from one row to the next */
    const float *sign;      /* of the elements of a row; 1 where nothing is rotated */
    const float *shift;     /* - mean times sign */
    const float *with;      /* NULL, or with which each row's product becomes `dot` */
    float *dot;
    const void *next;  /* or NULL: to fetch into L2 on the way, next_row elements of x apart, as many as a row has */
    uint8_t *next_out; /* to fetch, to be written, likewise, next_out_row bytes apart */
    int64_t next_row, next_out_row;
    float *values; /* rows of attn_quant_pitch(dim), 64-byte aligned */
    uint32_t *most;
    const float *inverse;           /* as most */
    int64_t row_step, channel_step; /* 0 or 1 */
} attn_quant_task;

enum { ATTN_QUANT_LANES = 16 }; /* at least every instruction set's */

static inline int64_t attn_quant_pitch(int64_t dim)
{
    return attn_round_up(dim, ATTN_QUANT_LANES);
}

typedef struct attn_cpu_ops {
    void (*pack)(const attn_pack_task *);
    void (*attend)(const attn_attend_task *);
    void (*decode)(const attn_decode_task *);
    void (*delta)(const attn_delta_task *);
    void (*rows)(const attn_backward_task *); /* packs task->rows for tasks that differ in their keys; or NULL */
    void (*backward)(const attn_backward_task *);
    void (*sum)(const attn_sum_task *);
    /* NULL together: a lesser instruction set's will do */
    void (*rotate)(const attn_rotary_task *);
    void (*convert)(const attn_convert_task *);
    void (*quant_mean)(const attn_quant_task *, float *mean);
    void (*quant_measure)(const attn_quant_task *);
    void (*quant_store)(const attn_quant_task *);
} attn_cpu_ops;

typedef struct attn_cpu_kernel {
    const char *name;
    attn_isa isa;
    attn_form form;
    uint32_t dtypes, kv_dtypes; /* bit attn_dtype: of q, and of k and v besides */
    uint32_t features;
    int64_t dim_max;
    int64_t rows, cols;
    const attn_cpu_ops *ops; /* NULL where this build lacks the instruction set */
} attn_cpu_kernel;

/* Its products are of bf16 pairs: what it packs takes the place of half as many floats, dims filled up to 32. */
static inline bool attn_multiplies_pairs(const attn_cpu_kernel *k)
{
    return !(k->dtypes >> ATTN_F32 & 1);
}

/* The table, best first, and its length. */
const attn_cpu_kernel *attn_cpu_kernels(int *count);

#endif
