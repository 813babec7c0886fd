/* A pool in the caller's memory: how it is laid out, its sequences' handles, its figures. Contract: attn_kv.h, pool.h.
 */
#include "kv/pool.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "problem/desc.h"

/* ---- layout ---------------------------------------------------------------------------------- */

static attn_status check_field(const char *name, int64_t value, int64_t most)
{
    if (value >= 1 && value <= most) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s = %" PRId64 " is not in 1 to %" PRId64, name, value, most);
}

static attn_status check_desc(attn_pool_desc *d, const attn_pool_desc *desc, size_t size)
{
    attn_status status = attn_struct_copy(d, sizeof *d, desc, size, "desc");
    if (!status) status = check_field("pages", d->pages, INT32_MAX);
    if (!status) status = check_field("page_size", d->page_size, INT32_MAX);
    if (!status) status = check_field("sequences", d->sequences, INT32_MAX);
    if (!status) status = check_field("width", d->width, INT32_MAX / d->page_size);
    if (status) return status;
    if (d->flags & ~(uint32_t)ATTN_POOL_PREFIX)
        return attn_fail(ATTN_INVALID, "flags = %#" PRIx32 ": ATTN_POOL_PREFIX is the only one", d->flags);
    if (!(d->flags & ATTN_POOL_PREFIX) && (d->seed[0] || d->seed[1]))
        return attn_fail(ATTN_INVALID, "seed is set, but needs ATTN_POOL_PREFIX");
    return ATTN_OK;
}

/* Where everything lies: offsets from an aligned start. */
typedef struct layout {
    uint64_t refs, free, mark, sequence, node, bucket, tokens, tables, total;
    int64_t buckets;
    bool overflow;
} layout;

static uint64_t place(layout *l, int64_t count, int64_t times, size_t size)
{
    uint64_t at = l->total, bytes;
    l->overflow |= __builtin_mul_overflow((uint64_t)count, (uint64_t)times, &bytes);
    l->overflow |= __builtin_mul_overflow(bytes, (uint64_t)size, &bytes);
    l->overflow |= __builtin_add_overflow(bytes, ATTN_POOL_ALIGN - 1, &bytes);
    l->overflow |= __builtin_add_overflow(l->total, bytes / ATTN_POOL_ALIGN * ATTN_POOL_ALIGN, &l->total);
    return at;
}

/* The tables last: of them only what sequences use is ever touched. */
static attn_status lay_out(const attn_pool_desc *d, layout *l)
{
    bool prefix = d->flags & ATTN_POOL_PREFIX;
    *l = (layout){ .buckets = 1 };
    while (l->buckets < d->pages)
        l->buckets *= 2;
    place(l, 1, 1, sizeof(attn_pool));
    l->refs = place(l, d->pages, 1, sizeof(int32_t));
    l->free = place(l, d->pages, 1, sizeof(int32_t));
    l->mark = place(l, d->pages, 1, sizeof(uint64_t));
    l->sequence = place(l, d->sequences, 1, sizeof(attn_pool_sequence));
    l->node = place(l, prefix ? d->pages : 0, 1, sizeof(attn_pool_node));
    l->bucket = place(l, prefix ? l->buckets : 0, 1, sizeof(int32_t));
    l->tokens = place(l, prefix ? d->pages : 0, d->page_size, sizeof(int32_t));
    l->tables = place(l, d->sequences, d->width, sizeof(int32_t));
    l->overflow |= l->total > (uint64_t)INT64_MAX - ATTN_POOL_ALIGN || l->total > SIZE_MAX - ATTN_POOL_ALIGN;
    if (!l->overflow) return ATTN_OK;
    return attn_fail(ATTN_INVALID,
                     "pages = %" PRId64 ", page_size = %" PRId64 ", sequences = %" PRId64 ", width = %" PRId64
                     ": the pool would be too large to address",
                     d->pages, d->page_size, d->sequences, d->width);
}

size_t attn_pool_memory_sized(const attn_pool_desc *desc, size_t desc_size)
{
    attn_pool_desc d;
    layout l;
    if (check_desc(&d, desc, desc_size) || lay_out(&d, &l)) return 0;
    return (size_t)l.total + ATTN_POOL_ALIGN - 1;
}

static void fill(attn_pool *pool)
{
    const attn_pool_desc *d = &pool->desc;
    memset(pool->refs, 0, sizeof *pool->refs * (size_t)d->pages);
    memset(pool->mark, 0, sizeof *pool->mark * (size_t)d->pages);
    for (int64_t i = 0; i < d->pages; i++)
        pool->free[i] = (int32_t)(d->pages - 1 - i); /* page 0 first */
    for (int64_t i = 0; i < d->sequences; i++)
        pool->sequence[i] = (attn_pool_sequence){ .next_free = i + 1 < d->sequences ? (int32_t)i + 1 : -1 };
    pool->sequence_last = (int32_t)d->sequences - 1;
    pool->stats.pages = pool->stats.free = d->pages;
    if (!pool->node) return;
    memset(pool->node, 0, sizeof *pool->node * (size_t)d->pages);
    attn_prefix_clear(pool);
}

attn_status attn_pool_create_sized(attn_pool **pool, const attn_pool_desc *desc, size_t desc_size, void *memory,
                                   size_t size)
{
    attn_pool_desc d;
    layout l;
    if (!pool) return attn_fail(ATTN_INVALID, "pool = NULL: it takes the address of a pointer");
    attn_status status = check_desc(&d, desc, desc_size);
    if (!status) status = lay_out(&d, &l);
    if (status) return status;
    if (!memory) return attn_fail(ATTN_INVALID, "memory is NULL");
    if (size < l.total + ATTN_POOL_ALIGN - 1)
        return attn_fail(ATTN_INVALID, "size = %zu: the pool needs %" PRIu64 " bytes", size,
                         l.total + ATTN_POOL_ALIGN - 1);
    char *start = (char *)memory + (ATTN_POOL_ALIGN - (uintptr_t)memory % ATTN_POOL_ALIGN) % ATTN_POOL_ALIGN;
    bool prefix = d.flags & ATTN_POOL_PREFIX;
    attn_pool *p = (attn_pool *)(void *)start;
    *p = (attn_pool){ .desc = d,
                      .refs = (int32_t *)(void *)(start + l.refs),
                      .free = (int32_t *)(void *)(start + l.free),
                      .mark = (uint64_t *)(void *)(start + l.mark),
                      .tables = (int32_t *)(void *)(start + l.tables),
                      .sequence = (attn_pool_sequence *)(void *)(start + l.sequence),
                      .node = prefix ? (attn_pool_node *)(void *)(start + l.node) : NULL,
                      .tokens = prefix ? (int32_t *)(void *)(start + l.tokens) : NULL,
                      .bucket = prefix ? (int32_t *)(void *)(start + l.bucket) : NULL,
                      .bucket_mask = (uint64_t)l.buckets - 1,
                      .hash_mask = UINT64_MAX };
    fill(p);
    *pool = p;
    return ATTN_OK;
}

attn_status attn_pool_get_stats_sized(const attn_pool *pool, attn_pool_stats *stats, size_t stats_size)
{
    if (!pool) return attn_fail(ATTN_INVALID, "pool is NULL");
    if (!stats) return attn_fail(ATTN_INVALID, "stats is NULL");
    if (stats_size == 0 || stats_size > 4096)
        return attn_fail(ATTN_INVALID, "stats_size = %zu is not the size of an attn_pool_stats", stats_size);
    attn_struct_fill(stats, stats_size, &pool->stats, sizeof pool->stats);
    return ATTN_OK;
}

/* ---- handles --------------------------------------------------------------------------------- */

attn_status attn_pool_open(const attn_pool *pool, attn_seq seq, attn_pool_sequence **found)
{
    if (!pool) return attn_fail(ATTN_INVALID, "pool is NULL");
    if (seq.generation == 0) return attn_fail(ATTN_INVALID, "seq is all zero: no sequence");
    if (seq.index >= pool->desc.sequences || pool->sequence[seq.index].generation != seq.generation)
        return attn_fail(ATTN_INVALID, "seq (index %" PRIu32 ", generation %" PRIu64 ") is not a live sequence here",
                         seq.index, seq.generation);
    *found = &pool->sequence[seq.index];
    return ATTN_OK;
}

attn_status attn_pool_open_row(const attn_pool *pool, const attn_seq *seqs, int64_t i, int64_t width,
                               attn_pool_sequence **found)
{
    attn_pool_sequence *s = *found = NULL;
    if (seqs[i].generation == 0 && seqs[i].index == 0) return ATTN_OK;
    attn_status status = attn_pool_open(pool, seqs[i], &s);
    if (status) return status;
    *found = s;
    if (s->pages <= width) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "width = %" PRId64 ": sequence %" PRId64 " has %" PRId32 " pages", width, i,
                     s->pages);
}

attn_status attn_pool_sequence_new(attn_pool *pool, uint64_t salt, attn_pool_sequence **made, attn_seq *seq)
{
    int32_t index = pool->sequence_first;
    if (index < 0)
        return attn_fail(ATTN_POOL_FULL, "all of the pool's sequences = %" PRId64 " are live", pool->desc.sequences);
    attn_pool_sequence *s = &pool->sequence[index];
    pool->sequence_first = s->next_free;
    *s = (attn_pool_sequence){ .generation = ++pool->generation, .salt = salt };
    pool->stats.sequences++;
    *seq = (attn_seq){ .generation = s->generation, .index = (uint32_t)index };
    *made = s;
    return ATTN_OK;
}

void attn_pool_sequence_end(attn_pool *pool, attn_pool_sequence *s)
{
    int32_t index = (int32_t)(s - pool->sequence);
    s->generation = 0, s->next_free = -1;
    if (pool->sequence_first < 0)
        pool->sequence_first = index;
    else
        pool->sequence[pool->sequence_last].next_free = index;
    pool->sequence_last = index;
    pool->stats.sequences--;
}

int64_t attn_seq_length(const attn_pool *pool, attn_seq seq)
{
    attn_pool_sequence *s = NULL;
    attn_pool_open(pool, seq, &s);
    return s ? s->length : -1;
}
