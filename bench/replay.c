/* Contract: replay.h. */
#include "bench/replay.h"

#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"
#include "base/error.h"
#include "base/detect.h"
#include "cpu/cpu.h"
#include "num/half.h"

/* ---- caches -------------------------------------------------------------------------------- */

enum { NONE = -1, SLOTS_FIRST = 1 << 12 };

/* Blocks in a table by open addressing, and in a list from the last touched to the first. Those forgotten keep their
 * slot in the table. */
typedef struct entry {
    uint64_t key; /* 0: free */
    double bytes;
    int64_t newer, older;
    bool here, written;
} entry;

struct attn_cache {
    attn_cache *outer;
    double size, held, moved;
    entry *entries;
    int64_t slots, used, newest, oldest;
};

attn_cache *attn_cache_create(double bytes, attn_cache *outer)
{
    attn_cache *c = calloc(1, sizeof *c);
    if (!c || !(c->entries = calloc(SLOTS_FIRST, sizeof *c->entries))) {
        free(c);
        return NULL;
    }
    c->outer = outer, c->size = bytes, c->slots = SLOTS_FIRST, c->newest = c->oldest = NONE;
    return c;
}

void attn_cache_free(attn_cache *c)
{
    if (c) free(c->entries);
    free(c);
}

double attn_cache_bytes(const attn_cache *c)
{
    return c->moved;
}

static int64_t find(const attn_cache *c, uint64_t key)
{
    int64_t at = (int64_t)((key * 0x9e3779b97f4a7c15u >> 20) & (uint64_t)(c->slots - 1));
    while (c->entries[at].key && c->entries[at].key != key)
        at = (at + 1) & (c->slots - 1);
    return at;
}

/* Twice the table: the list is threaded anew, oldest first. */
static void grow(attn_cache *c)
{
    attn_cache larger = *c;
    larger.slots *= 2, larger.used = 0, larger.newest = larger.oldest = NONE;
    larger.entries = calloc((size_t)larger.slots, sizeof *larger.entries);
    if (!larger.entries) abort();
    for (int64_t i = c->oldest; i != NONE; i = c->entries[i].newer) {
        int64_t at = find(&larger, c->entries[i].key);
        larger.entries[at] = c->entries[i];
        larger.entries[at].older = larger.newest, larger.entries[at].newer = NONE;
        if (larger.newest != NONE) larger.entries[larger.newest].newer = at;
        if (larger.oldest == NONE) larger.oldest = at;
        larger.newest = at, larger.used++;
    }
    free(c->entries);
    *c = larger;
}

static void unlink_entry(attn_cache *c, int64_t at)
{
    entry *e = &c->entries[at];
    if (e->newer != NONE)
        c->entries[e->newer].older = e->older;
    else
        c->newest = e->older;
    if (e->older != NONE)
        c->entries[e->older].newer = e->newer;
    else
        c->oldest = e->newer;
}

static void link_newest(attn_cache *c, int64_t at)
{
    entry *e = &c->entries[at];
    e->older = c->newest, e->newer = NONE;
    if (c->newest != NONE) c->entries[c->newest].newer = at;
    if (c->oldest == NONE) c->oldest = at;
    c->newest = at;
}

static void touch_key(attn_cache *c, uint64_t key, double bytes, bool written);

static void write_back(attn_cache *c, entry *e)
{
    if (!e->written) return;
    e->written = false;
    c->moved += e->bytes;
    if (c->outer) touch_key(c->outer, e->key, e->bytes, true);
}

/* A block that is written is written whole: it need not come in. */
static void touch_key(attn_cache *c, uint64_t key, double bytes, bool written)
{
    int64_t at = find(c, key);
    entry *e = &c->entries[at];
    if (!e->key) {
        if (2 * ++c->used > c->slots) {
            grow(c);
            at = find(c, key), e = &c->entries[at];
        }
        *e = (entry){ .key = key, .bytes = bytes };
    }
    if (e->here) {
        unlink_entry(c, at);
    } else {
        e->here = true;
        c->held += e->bytes;
        if (!written) {
            c->moved += e->bytes;
            if (c->outer) touch_key(c->outer, key, bytes, false);
        }
    }
    link_newest(c, at);
    e->written |= written;
    while (c->held > c->size && c->oldest != at) {
        int64_t old = c->oldest;
        unlink_entry(c, old);
        c->entries[old].here = false;
        c->held -= c->entries[old].bytes;
        write_back(c, &c->entries[old]);
    }
}

void attn_cache_touch(attn_cache *c, int array, int64_t block, double bytes, bool written)
{
    touch_key(c, (uint64_t)(array + 1) << 48 | (uint64_t)block, bytes, written);
}

void attn_cache_flush(attn_cache *c, int array)
{
    for (int64_t i = c->oldest; i != NONE; i = c->entries[i].newer)
        if (c->entries[i].key >> 48 == (uint64_t)array + 1) write_back(c, &c->entries[i]);
}

/* ---- plans --------------------------------------------------------------------------------- */

enum { Q, K, V, O, PACKED_K, PACKED_V, STRIPS, SCORES, SUMS };

typedef struct walk {
    const attn_plan *plan;
    const attn_args *args;
    attn_cache *cache; /* the innermost */
    double size, kv_size, out, packed;
    int64_t head, strip, panel, dim, dim_v;
} walk;

static void touch(const walk *w, int array, int64_t block, int64_t elements, double size, bool written)
{
    attn_cache_touch(w->cache, array, block, (double)elements * size, written);
}

/* Blocks of an input or output are `step` rows of one head. */
static int64_t block_of(const walk *w, int64_t head, int64_t row, int64_t step)
{
    return head * (w->plan->desc.len_q + w->plan->desc.len_kv + 1) + row / step;
}

/* Keys are packed panel by panel, over those of the head before. */
static void walk_packing(const walk *w, int64_t kv_head, int64_t keys)
{
    for (int64_t key = 0; key < keys; key += w->panel) {
        touch(w, K, block_of(w, kv_head, key, w->panel), w->panel * w->dim, w->kv_size, false);
        touch(w, PACKED_K, key / w->panel, w->panel * w->dim, w->packed, true);
        touch(w, V, block_of(w, kv_head, key, w->panel), w->panel * w->dim_v, w->kv_size, false);
        for (int64_t column = 0; column < w->dim_v; column += w->panel)
            touch(w, PACKED_V, column / w->panel << 32 | key / w->panel, w->panel * w->panel, w->packed, true);
    }
}

/* A tile of keys against a tile of rows: both products panel by panel, and the softmax strip by strip. */
static void walk_step(const walk *w, const attn_mask_view *mask, int64_t row0, int64_t row1, const attn_mask_tile *tile)
{
    int64_t key0 = tile->lo / w->panel * w->panel;
    attn_mask_tile span[ATTN_PAIRS_ROWS_MOST];
    int64_t strips = (row1 - row0 + w->strip - 1) / w->strip;
    for (int64_t i = 0; i < strips; i++) {
        int64_t first = row0 + i * w->strip, end = first + w->strip < row1 ? first + w->strip : row1;
        span[i] = *tile;
        if (!tile->full) attn_mask_span(mask, first, end, &span[i]);
    }
    for (int64_t key = key0; key < tile->hi; key += w->panel)
        for (int64_t i = 0; i < strips; i++) {
            if (span[i].lo >= key + w->panel || span[i].hi <= key) continue;
            touch(w, PACKED_K, key / w->panel, w->panel * w->dim, w->packed, false);
            touch(w, STRIPS, i, w->strip * w->dim, w->packed, false);
            touch(w, SCORES, i << 16 | (key - key0) / w->panel, w->strip * w->panel, 4, true);
        }
    for (int64_t pass = 0, column = 0; column < w->dim_v || pass == 0; pass++, column += pass > 1 ? w->panel : 0)
        for (int64_t i = 0; i < strips; i++)
            for (int64_t key = span[i].lo / w->panel * w->panel; key < span[i].hi; key += w->panel) {
                touch(w, SCORES, i << 16 | (key - key0) / w->panel, w->strip * w->panel, 4, false);
                if (pass == 0) {
                    touch(w, SCORES, i << 16 | (key - key0) / w->panel, w->strip * w->panel, 4, true);
                    continue;
                }
                touch(w, PACKED_V, column / w->panel << 32 | key / w->panel, w->panel * w->panel, w->packed, false);
                touch(w, SUMS, i << 16 | column / w->panel, w->strip * w->panel, 4, false);
                touch(w, SUMS, i << 16 | column / w->panel, w->strip * w->panel, 4, true);
            }
}

static void walk_rows(const walk *w, const attn_mask_view *mask, int64_t head, int64_t row0, int64_t row1)
{
    attn_mask_tile tile = { 0 };
    for (int64_t row = row0; row < row1; row += w->strip) {
        touch(w, Q, block_of(w, head, row, w->strip), w->strip * w->dim, w->size, false);
        touch(w, STRIPS, (row - row0) / w->strip, w->strip * w->dim, w->packed, true);
    }
    while (attn_mask_next(mask, row0, row1, tile.hi, w->plan->choice.kv_tile, &tile))
        walk_step(w, mask, row0, row1, &tile);
    for (int64_t row = row0; row < row1; row += w->strip)
        touch(w, O, block_of(w, head, row, w->strip), w->strip * w->dim_v, w->out, true);
}

static void walk_prefill(const walk *w)
{
    const attn_desc *d = &w->plan->desc;
    int64_t group = d->heads_q / d->heads_kv, rows = w->plan->choice.q_tile;
    for (int64_t unit = 0; unit < d->batch * d->heads_kv; unit++) {
        walk_packing(w, unit, d->len_kv);
        for (int64_t last = (d->len_q + rows - 1) / rows - 1; last >= 0; last--)
            for (int64_t g = 0; g < group; g++) {
                attn_mask_view mask;
                int64_t head = unit * group + g, row0 = last * rows;
                attn_mask_view_init(&mask, d, w->args, NULL, unit / d->heads_kv, head % d->heads_q);
                walk_rows(w, &mask, head, row0, row0 + rows < d->len_q ? row0 + rows : d->len_q);
            }
    }
}

static void walk_decode(const walk *w)
{
    const attn_desc *d = &w->plan->desc;
    int64_t group = d->heads_q / d->heads_kv, keys = w->plan->choice.kv_tile;
    for (int64_t unit = 0; unit < d->batch * d->heads_kv; unit++) {
        attn_mask_view mask;
        attn_mask_tile tile = { 0 };
        attn_mask_view_init(&mask, d, w->args, NULL, unit / d->heads_kv, unit % d->heads_kv * group);
        touch(w, Q, unit, group * d->len_q * w->dim, w->size, false);
        while (attn_mask_next(&mask, 0, d->len_q, tile.hi, keys, &tile)) {
            int64_t block = block_of(w, unit, tile.lo, 1), count = tile.hi - tile.lo;
            touch(w, K, block, count * w->dim, w->kv_size, false);
            touch(w, V, block, count * w->dim_v, w->kv_size, false);
        }
        touch(w, O, unit, group * d->len_q * w->dim_v, w->out, true);
    }
}

attn_status attn_replay(const attn_plan *plan, const attn_args *args, const double *sizes, int levels, double *bytes)
{
    const attn_cpu_kernel *k = attn_cpu_kernel_of(plan);
    const uint32_t tables = ATTN_MASK_TABLES | ATTN_VARLEN | ATTN_RUN_LENGTHS;
    if (!k || k->form == ATTN_GRADIENT || plan->desc.flags & tables)
        return attn_fail(ATTN_UNSUPPORTED, "accesses are counted only for forwards on the CPU without tables");
    attn_cache *cache[8] = { NULL };
    bool all = true;
    for (int i = 0; i < levels; i++)
        all &= (cache[i] = attn_cache_create(sizes[i], i > 0 ? cache[i - 1] : NULL)) != NULL;
    attn_dtype out = attn_out_dtype(&plan->desc);
    walk w = { .plan = plan,
               .args = args,
               .cache = cache[levels - 1],
               .size = (double)attn_dtype_size(plan->desc.dtype),
               .kv_size = (double)attn_dtype_size(attn_kv_dtype(&plan->desc)),
               .out = (double)attn_dtype_size(out),
               .packed = attn_multiplies_pairs(k) ? 2 : 4,
               .strip = k->rows,
               .panel = k->cols,
               .dim = plan->desc.dim_qk,
               .dim_v = plan->desc.dim_v };
    if (all && k->form == ATTN_PREFILL) walk_prefill(&w);
    if (all && k->form == ATTN_DECODE) walk_decode(&w);
    for (int i = levels - 1; i >= 0 && all; i--)
        attn_cache_flush(cache[i], O);
    for (int i = 0; i < levels; i++) {
        bytes[i] = all ? attn_cache_bytes(cache[i]) : 0;
        attn_cache_free(cache[i]);
    }
    if (attn_multiplies_pairs(k)) bytes[levels - 1] = 0; /* inside L2 these bodies go another way */
    return all ? ATTN_OK : attn_fail(ATTN_NO_MEMORY, "no memory to count accesses");
}

attn_status attn_replay_here(const attn_plan *plan, int64_t prefix, double *bytes)
{
    attn_cpu_info info;
    attn_cpu_detect(&info);
    const double sizes[] = { info.l3 > 0 ? (double)info.l3 : 32e6, info.l2 > 0 ? (double)info.l2 : 512e3,
                             info.l1 > 0 ? (double)info.l1 : 32e3 };
    int32_t *prefixes = calloc((size_t)plan->desc.batch + 1, sizeof *prefixes);
    for (int64_t i = 0; prefixes && i < plan->desc.batch; i++)
        prefixes[i] = (int32_t)prefix;
    attn_args args = { .prefix = prefixes };
    attn_status status = attn_replay(plan, &args, sizes, 3, bytes);
    free(prefixes);
    return status;
}

/* ---- the theorem --------------------------------------------------------------------------- */

double attn_replay_theorem(int64_t len, int64_t dim, double element, int64_t rows, int64_t keys, double memory,
                           bool (*kept)(int64_t row_block, int64_t key_block))
{
    enum { BLOCK = 64 };
    attn_cache *c = attn_cache_create(memory, NULL);
    if (!c) return 0;
    for (int64_t row0 = 0; row0 < len; row0 += rows) {
        int64_t count = len - row0 < rows ? len - row0 : rows;
        double tile = (double)(count * dim) * element;
        attn_cache_touch(c, Q, row0, tile, false);
        for (int64_t key = 0; key < len; key += keys) {
            if (kept && !kept(row0 / BLOCK, key / BLOCK)) continue;
            int64_t here = len - key < keys ? len - key : keys;
            attn_cache_touch(c, K, key, (double)(here * dim) * element, false);
            attn_cache_touch(c, Q, row0, tile, false);
            attn_cache_touch(c, V, key, (double)(here * dim) * element, false);
            attn_cache_touch(c, SUMS, row0, tile, true);
        }
    }
    attn_cache_flush(c, SUMS);
    double bytes = attn_cache_bytes(c);
    attn_cache_free(c);
    return bytes;
}
