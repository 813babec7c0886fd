/* Decode: the few query rows of some KV heads against keys streamed once from where they lie.
 *
 * A head's rows are ordered query head by query head, padded to the row step. For each tile of keys and each head:
 * scores by dot products (SUMS accumulators: 4 rows x SUMS/4 keys, or 1 x SUMS for a single row), softmax row by row,
 * then values added into the outputs (again SUMS accumulators). While a tile is computed the next one is fetched into
 * L2, evenly and in the order of memory, so that memory is never idle and hardware looks ahead too. */

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch; /* of one head */
    float *q, *o, *max, *sum;               /* of all heads; sum: VL per row */
    float *s, *bias;                        /* of the head under way */
    uint64_t *keep;
} decode;

/* Keys, or values, that are wanted next: items [at, end), key after key and in a key head after head. */
typedef struct fetch {
    const void *base; /* key 0 of head 0 */
    int64_t row, head, heads, dim;
    int64_t at, end;
    bool l2;
} fetch;

/* While one head's keys [lo, hi) are computed: its share of the next tile of all heads, or the next head's keys. */
static fetch fetch_start(const attn_decode_task *t, const void *base, int64_t row, int64_t head_step, int64_t dim,
                         int64_t head, int64_t lo, int64_t hi)
{
    bool last = head + 1 == t->heads;
    int64_t keys = hi - lo, left = t->key1 - hi < keys ? t->key1 - hi : keys;
    if (t->fetch_l2) {
        int64_t at = head * keys, end = at + keys < left * t->heads ? at + keys : left * t->heads;
        return (fetch){ row_at(t->dtype, base, hi * row), row, head_step, t->heads, dim, at, end, true };
    }
    const void *next = row_at(t->dtype, base, (last ? 0 : head + 1) * head_step);
    return (fetch){ next, row, 0, 1, dim, last ? hi : lo, last ? hi + left : hi, false };
}

ALWAYS_INLINE void fetch_next(fetch *f, attn_dtype dtype)
{
    if (f->at >= f->end) return;
    int64_t at = f->l2 ? f->at / f->heads * f->row + f->at % f->heads * f->head : f->at * f->row;
    f->at++;
    if (!f->l2) {
        prefetch_row(dtype, f->base, at, f->dim);
        return;
    }
    const char *row = row_at(dtype, f->base, at);
    for (int64_t i = 0; i < f->dim * attn_dtype_size(dtype); i += LINE)
        __builtin_prefetch(row + i, 0, 2);
}
