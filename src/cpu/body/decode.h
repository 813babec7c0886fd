static decode decode_start(const attn_decode_task *task)
{
    decode p = { .task = task, .rows = task->group * task->len_q };
    p.padded = p.rows == 1 ? 1 : attn_round_up(p.rows, 4);
    p.q_pitch = attn_round_up(task->dim_qk, VL);
    p.o_pitch = attn_round_up(task->dim_v, 2 * VL);
    int64_t rows = task->heads * p.padded;
    p.q = task->scratch;
    p.o = p.q + rows * p.q_pitch;
    p.sum = p.o + rows * p.o_pitch;
    p.s = p.sum + rows * VL;
    p.bias = p.s + p.padded * ATTN_DECODE_TILE;
    p.keep = (uint64_t *)(void *)(p.bias + ATTN_DECODE_TILE);
    p.max = p.bias + ATTN_DECODE_TILE + ATTN_DECODE_TILE / 32;
    if (task->keys.k_scale.base) p.k_scale = p.max + rows;
    if (task->keys.v_scale.base) p.v_scale = p.max + rows + ATTN_DECODE_TILE;
    for (int64_t i = 0; i < rows * (p.q_pitch + p.o_pitch + VL); i += VL)
        v_store(p.q + i, v_zero());
    for (int64_t r = 0; r < rows; r++)
        p.max[r] = -INFINITY;
    for (int64_t h = 0; h < task->heads; h++)
        for (int64_t r = 0; r < p.rows; r++) {
            int64_t at = (h * task->group + r / task->len_q) * task->q_head + r % task->len_q * task->q_row;
            float scale = attn_score_scale(&task->score[h * task->group + r / task->len_q], r % task->len_q);
            store_query(task, row_at(task->dtype, task->q, at), scale, p.q + (h * p.padded + r) * p.q_pitch);
        }
    return p;
}

/* One head's share of the state and of the tensors. */
static decode decode_head(const decode *all, int64_t head, attn_decode_task *task)
{
    decode p = *all;
    int64_t row = head * p.padded;
    *task = *all->task;
    task->mask += head * task->group, task->score += head * task->group;
    p.task = task;
    p.k_head = head * task->k_head, p.v_head = head * task->v_head;
    p.q += row * p.q_pitch, p.o += row * p.o_pitch, p.max += row, p.sum += row * VL;
    return p;
}

/* The keys from `from` on that some query head sees, at most a tile of them, and none that may not be read. */
static bool decode_next(const attn_decode_task *task, int64_t from, attn_mask_tile *tile)
{
    const attn_mask_view *mask = task->mask;
    bool alike = !(mask->lists[0] || mask->lists[1] || mask->bits || mask->intervals), found = false;
    for (int64_t h = 0; h < (alike ? 1 : task->heads * task->group); h++) {
        attn_mask_tile t;
        if (!attn_mask_next(&mask[h], 0, task->len_q, from, task->kv_tile, &t)) t = (attn_mask_tile){ .lo = INT64_MAX };
        if (h == 0) *tile = t;
        tile->full = tile->full && t.full && t.lo == tile->lo && t.hi == tile->hi;
        if (t.lo < tile->lo) tile->lo = t.lo;
        if (t.hi > tile->hi) tile->hi = t.hi;
        found = found || t.hi > 0;
    }
    if (!found || tile->lo >= task->key1) return false;
    if (tile->hi > tile->lo + task->kv_tile) tile->hi = tile->lo + task->kv_tile;
    if (tile->hi > task->key1) tile->hi = task->key1;
    const attn_runs *seen = &task->keys.seen;
    int64_t end = tile->lo;
    for (int i = 0; i < 2; i++)
        if (seen->lo[i] <= tile->lo && seen->hi[i] > end) end = seen->hi[i];
    if (tile->hi > end) tile->hi = end;
    return true;
}

/* Keys [lo, lo + count), unless they are those of the tile that was thought to be next. */
static void decode_list(const attn_decode_task *task, decode_rows *rows, int64_t lo, int64_t count)
{
    if (rows->count >= count && rows->lo == lo) return;
    rows->lo = lo, rows->count = count;
    attn_keys_rows(&task->keys, lo, count, rows->k, rows->v);
}

ALWAYS_INLINE void decode_scores(const decode *p, attn_dtype dtype, fetch *next, int64_t keys)
{
    int64_t step = p->padded == 1 ? SUMS : SUMS / 4;
    for (int64_t key = 0; key < keys; key += step) {
        for (int64_t j = key; j < key + step && j < keys; j++)
            fetch_next(next);
        if (p->padded == 1)
            dot_tile(p, dtype, 0, 1, key, keys, p->s + key);
        else
            for (int64_t r = 0; r < p->padded; r += 4)
                dot_tile(p, dtype, r, 4, key, keys, p->s + r * ATTN_DECODE_TILE + key);
    }
}

ALWAYS_INLINE void decode_output(const decode *p, attn_dtype dtype, fetch *next, int64_t keys)
{
    if (p->padded == 1)
        add_values(p, dtype, 0, 1, keys, next);
    else
        for (int64_t r = 0; r < p->padded; r += 4)
            add_values(p, dtype, r, 4, keys, next);
}

/* Scores of one row to probabilities, as in prefill. */
static void decode_row(const decode *p, int64_t r, const attn_mask_tile *tile)
{
    const attn_decode_task *task = p->task;
    const attn_score *score = &task->score[r / task->len_q];
    const attn_mask_view *mask = &task->mask[r / task->len_q];
    int64_t row = r % task->len_q, keys = tile->hi - tile->lo, hi = attn_round_up(keys, 2 * VL);
    float *s = p->s + r * ATTN_DECODE_TILE, *sum = p->sum + r * VL, scale = scale_left(score, row);
    if (p->k_scale) scale_each(s, 0, hi, p->k_scale);
    if (score->flags & ATTN_RICH) {
        change_scores(score, scale, row, tile->lo, 0, hi, mask->ranges.len_kv, s, p->bias, NULL);
        scale = 1;
    }
    scale = scale_at_once(s, 0, hi, scale);
    uint64_t words[ATTN_DECODE_TILE / 64] = { 0 };
    if (tile->full)
        attn_words_set(words, 0, keys);
    else
        attn_mask_row(mask, row, tile->lo, keys, words);
    hide_keys(s, 0, hi, words, -INFINITY);
    raise_max(row_max(s, 0, hi) * scale, p->max + r, sum, p->o + r * p->o_pitch, p->o_pitch);
    if (scale != 1 && fabsf(p->max[r]) > LARGE_MAX) {
        scale_row(s, 0, hi, scale);
        scale = 1;
    }
    if (score->flags & ATTN_DROPOUT) dropout_keep(score, row, 1, tile->lo, keys, ATTN_DECODE_TILE / 64, p->keep);
    probabilities(s, hi, scale, p->max[r], sum, p->v_scale, score->flags & ATTN_DROPOUT ? p->keep : NULL);
}

/* Pages lie anywhere: where one begins, memory and the address's translation are waited for, and hardware has not
 * looked ahead. So each row's first line is asked for a tile before the row is fetched; these are one head's share.
 * Inlined: gcc takes a call that only prefetches for one without effect. */
ALWAYS_INLINE void decode_ask(const decode_rows *rows, int64_t head, int64_t heads)
{
    for (int64_t j = head * rows->count / heads; j < (head + 1) * rows->count / heads; j++) {
        __builtin_prefetch(rows->k[j], 0, 2);
        __builtin_prefetch(rows->v[j], 0, 2);
    }
}

/* How many of `keys` keys from `from` on are the task's. */
static int64_t decode_left(const attn_decode_task *task, int64_t from, int64_t keys)
{
    int64_t left = task->key1 > from ? task->key1 - from : 0;
    return left < keys ? left : keys;
}

ALWAYS_INLINE void decode_tiles(const decode *all, attn_dtype dtype)
{
    const attn_decode_task *t = all->task;
    attn_mask_tile tile = { .hi = t->key0 };
    bool ask = t->keys.pages && t->fetch_l2;
    decode_rows rows[3];
    rows[0].lo = rows[1].lo = rows[2].lo = -1, rows[0].count = rows[1].count = rows[2].count = 0;
    for (int now = 0; decode_next(t, tile.hi, &tile); now = (now + 1) % 3) {
        int64_t keys = tile.hi - tile.lo, left = decode_left(t, tile.hi, keys);
        decode_rows *next = &rows[(now + 1) % 3], *after = &rows[(now + 2) % 3];
        decode_list(t, &rows[now], tile.lo, keys);
        decode_list(t, next, tile.hi, left);
        if (ask) decode_list(t, after, tile.hi + left, decode_left(t, tile.hi + left, keys));
        for (int64_t h = 0; h < t->heads; h++) {
            fetch k = fetch_start(t, rows[now].k, keys, next->k, left, t->k_head, t->dim_qk, h);
            fetch v = fetch_start(t, rows[now].v, keys, next->v, left, t->v_head, t->dim_v, h);
            if (ask) decode_ask(after, h, t->heads);
            attn_decode_task task;
            decode p = decode_head(all, h, &task);
            p.keys = &rows[now];
            attn_keys_scales(&t->keys, h, tile.lo, attn_round_up(keys, 2 * VL), p.k_scale, p.v_scale);
            decode_scores(&p, dtype, &k, keys);
            for (int64_t r = 0; r < p.rows; r++)
                decode_row(&p, r, &tile);
            decode_output(&p, dtype, &v, keys);
        }
    }
}

static void decode_finish(const decode *p)
{
    const attn_decode_task *task = p->task;
    for (int64_t h = 0; h < task->heads; h++) {
        float *out = task->partial + h * task->partial_step, *max = out + p->rows * task->dim_v;
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t at = h * p->padded + r;
            memcpy(out + r * task->dim_v, p->o + at * p->o_pitch, (size_t)task->dim_v * sizeof *out);
            max[r] = p->max[at];
            max[p->rows + r] = v_hsum(v_load(p->sum + at * VL));
        }
    }
}

ALWAYS_INLINE void decode_as(const attn_decode_task *task, attn_dtype dtype)
{
    decode p = decode_start(task);
    decode_tiles(&p, dtype);
    decode_finish(&p);
}
