/* Decode: the few query rows of some KV heads against keys streamed once from where they lie.
 *
 * A head's rows are ordered query head by query head, padded to the row step. For each tile of keys and each head:
 * scores by dot products (SUMS accumulators: 4 rows x SUMS/4 keys, or 1 x SUMS for a single row), softmax row by row,
 * then values added into the outputs (again SUMS accumulators). While a tile is computed the next one is fetched into
 * L2, evenly and in the order of memory, so that memory is never idle and hardware looks ahead too. */

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch; /* of one head */
    float *q, *o, *max, *sum;               /* of all heads; sum: VL a row */
    float *s, *bias;                        /* of the head under way */
    uint64_t *keep;
} decode;

/* One head's share of the next tile's keys, or values: items [at, end), key after key and in a key head after head. */
typedef struct fetch {
    const void *base; /* key 0 of head 0 */
    int64_t row, head, heads, dim;
    int64_t at, end;
} fetch;

ALWAYS_INLINE void fetch_next(fetch *f, attn_dtype dtype)
{
    if (f->at >= f->end) return;
    const char *row = row_at(dtype, f->base, f->at / f->heads * f->row + f->at % f->heads * f->head);
    f->at++;
    for (int64_t i = 0; i < f->dim * attn_dtype_size(dtype); i += LINE)
        __builtin_prefetch(row + i, 0, 2);
}
