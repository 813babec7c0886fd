/* The inside of a pool against its invariants, by brute force. Contract: pool_model.h. */
#include <stdlib.h>

#include "check/pool_model.h"

static const char *tables_hold(const attn_pool *pool, int32_t *refs)
{
    for (int64_t i = 0; i < pool->desc.sequences; i++) {
        const attn_pool_sequence *s = &pool->sequence[i];
        const int32_t *row = attn_pool_row(pool, s);
        if (s->generation == 0) continue;
        if (s->length > s->pages * pool->desc.page_size || s->length <= (s->pages - 1) * pool->desc.page_size)
            return "a sequence has more or fewer pages than its length asks for";
        for (int32_t p = 0; p < s->pages; p++) {
            if (p < s->dropped ? row[p] != ATTN_NO_PAGE : row[p] < 0 || row[p] >= pool->desc.pages)
                return "a table has an id that is none";
            if (p >= s->dropped) refs[row[p]]++;
        }
    }
    for (int64_t p = 0; p < pool->desc.pages; p++)
        if (refs[p] != pool->refs[p]) return "a page's count is not the number of tables that have it";
    return NULL;
}

/* Adds 1000 to pages that are free, 2000 to those that are cached. */
static const char *lists_hold(const attn_pool *pool, int32_t *seen)
{
    for (int64_t i = 0; i < pool->stats.free; i++) {
        if (seen[pool->free[i]] != 0) return "a free page is held, or free twice";
        seen[pool->free[i]] = 1000;
        if (pool->node && pool->node[pool->free[i]].indexed) return "a free page is in the index";
    }
    if (!pool->node) return NULL;
    int64_t count = 0;
    int32_t before = ATTN_NO_PAGE;
    for (int32_t p = pool->oldest; p != ATTN_NO_PAGE; before = p, p = pool->node[p].after, count++) {
        if (seen[p] != 0) return "a cached page is held, free, or in its list twice";
        seen[p] = 2000;
        if (!pool->node[p].indexed) return "a cached page is not in the index";
        if (pool->node[p].before != before) return "the list of cached pages does not lead back";
    }
    if (before != pool->newest || count != pool->stats.cached)
        return "the list of cached pages has another end or length";
    return NULL;
}

/* Twins are side by side, so each serial begins once: `begun` serials, and of each one cached page at most. */
static const char *index_holds(const attn_pool *pool, const int32_t *seen)
{
    int64_t indexed = 0, chained = 0, begun = 0, cached = 0;
    for (int64_t p = 0; p < pool->desc.pages; p++)
        indexed += pool->node[p].indexed;
    for (uint64_t b = 0; b <= pool->bucket_mask; b++) {
        uint64_t serial = 0;
        for (int32_t p = pool->bucket[b]; p != ATTN_NO_PAGE; p = pool->node[p].chain, chained++) {
            if (!pool->node[p].indexed || (pool->node[p].hash & pool->bucket_mask) != b || chained > indexed)
                return "a bucket has a page that does not belong there";
            if (pool->node[p].serial != serial) begun++, cached = 0;
            serial = pool->node[p].serial;
            cached += seen[p] == 2000;
            if (cached > 1) return "two pages with the same tokens are cached";
        }
    }
    if (indexed != chained) return "a page of the index is in no bucket";
    return begun == pool->stats.indexed ? NULL : "pages that the index finds are miscounted, or twins are apart";
}

static const char *stats_hold(const attn_pool *pool, const int32_t *refs)
{
    attn_pool_stats want = { .pages = pool->desc.pages };
    for (int64_t p = 0; p < pool->desc.pages; p++)
        want.used += refs[p] > 0, want.shared += refs[p] > 1;
    for (int64_t i = 0; i < pool->desc.sequences; i++) {
        const attn_pool_sequence *s = &pool->sequence[i];
        if (s->generation == 0) continue;
        want.sequences++, want.tokens += s->length, want.waste += s->pages * pool->desc.page_size - s->length;
    }
    const attn_pool_stats *got = &pool->stats;
    if (got->pages != want.pages || got->free + got->cached + got->used != got->pages) return "pages do not add up";
    if (got->used != want.used || got->shared != want.shared) return "used or shared pages are miscounted";
    if (got->sequences != want.sequences || got->tokens != want.tokens || got->waste != want.waste)
        return "sequences, tokens or waste are miscounted";
    return NULL;
}

const char *check_pool_invariants(const attn_pool *pool)
{
    int32_t *refs = calloc((size_t)pool->desc.pages, sizeof *refs);
    if (!refs) return "no memory for the check";
    const char *wrong = tables_hold(pool, refs);
    if (!wrong) wrong = stats_hold(pool, refs);
    if (!wrong) wrong = lists_hold(pool, refs);
    for (int64_t p = 0; p < pool->desc.pages && !wrong; p++)
        if (refs[p] == 0) wrong = "a page is neither held, nor free, nor cached";
    if (!wrong && pool->node) wrong = index_holds(pool, refs);
    free(refs);
    return wrong;
}
