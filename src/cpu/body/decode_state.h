/* Decode: the few query rows of some KV heads against keys streamed once from where they lie.
 *
 * A head's rows are ordered query head by query head, padded to the row step. For each tile of keys and each head:
 * scores by dot products (SUMS accumulators: 4 rows x SUMS/4 keys, or 1 x SUMS for a single row), softmax row by row,
 * then values added into the outputs (again SUMS accumulators). While one head's tile is computed the next one's is
 * fetched into L1, evenly, so that memory is never idle. */

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch; /* of one head */
    float *q, *o, *max, *sum;               /* of all heads; sum: VL a row */
    float *s, *bias;                        /* of the head under way */
    uint64_t *keep;
} decode;

/* Rows of keys or of values that are wanted next: those of the next head, or of the next tile. */
typedef struct fetch {
    const void *base;
    int64_t row, dim;
    int64_t key, end;
} fetch;

ALWAYS_INLINE void fetch_next(fetch *f, attn_dtype dtype)
{
    if (f->key < f->end) prefetch_row(dtype, f->base, f->key++ * f->row, f->dim);
}
