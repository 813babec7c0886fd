/* Decode: the few query rows of some KV heads against keys streamed once from where they lie.
 *
 * A head's rows are ordered query head by query head, padded to the row step. For each tile of keys and each head:
 * scores by dot products (SUMS accumulators: 4 rows x SUMS/4 keys, or 1 x SUMS for a single row), softmax row by row,
 * then values added into the outputs (again SUMS accumulators). While a tile is computed the next one is fetched into
 * L2, evenly and in the order of memory, so that memory is never idle and hardware looks ahead too. */

/* Where keys [lo, lo + count) of the first KV head, and their values, are. */
typedef struct decode_rows {
    int64_t lo, count;
    const void *k[ATTN_DECODE_TILE], *v[ATTN_DECODE_TILE];
} decode_rows;

typedef struct decode {
    const attn_decode_task *task;
    int64_t rows, padded, q_pitch, o_pitch; /* of one head */
    float *q, *o, *max, *sum;               /* of all heads; sum: VL per row */
    float *s, *bias;                        /* of the head under way */
    float *k_scale, *v_scale;               /* of its keys, where they differ */
    const decode_rows *keys;                /* of the tile under way, */
    int64_t k_head, v_head;                 /* from which those of the head under way lie so many bytes */
    uint64_t *keep;
} decode;

/* Keys, or values, that are wanted next: items [at, end), key after key and in a key head after head. */
typedef struct fetch {
    const void *const *rows;    /* of head 0 */
    int64_t first, head, heads; /* bytes to the first head, and from head to head */
    int64_t bytes;              /* of a row */
    int64_t at, end;
    bool l2;
} fetch;

/* While one head's tile is computed: its share of the next tile of all heads, or the next head's rows. tile, next:
 * `keys` and `next_keys` rows of head 0. */
static fetch fetch_start(const attn_decode_task *t, const void *const *tile, int64_t keys, const void *const *next,
                         int64_t next_keys, int64_t head_step, int64_t dim, int64_t head)
{
    bool last = head + 1 == t->heads;
    int64_t bytes = dim * attn_dtype_size(t->kv_dtype);
    if (t->fetch_l2) {
        int64_t at = head * keys, end = at + keys < next_keys * t->heads ? at + keys : next_keys * t->heads;
        return (fetch){ next, 0, head_step, t->heads, bytes, at, end, true };
    }
    if (last) return (fetch){ next, 0, 0, 1, bytes, 0, next_keys, false };
    return (fetch){ tile, (head + 1) * head_step, 0, 1, bytes, 0, keys, false };
}

/* Into L1 too where the next tile of all heads is fetched, though it is evicted from there before it is read: fetching
 * into L2 alone is slower (docs/KERNELS.md). */
ALWAYS_INLINE void fetch_next(fetch *f)
{
    if (f->at >= f->end) return;
    int64_t at = f->at++;
    const char *row =
        (const char *)f->rows[f->l2 ? at / f->heads : at] + f->first + (f->l2 ? at % f->heads * f->head : 0);
    for (int64_t i = 0; i < f->bytes; i += LINE)
        __builtin_prefetch(row + i);
}
