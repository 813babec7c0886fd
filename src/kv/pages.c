/* Pages: handed out, shared and given back. Contract and invariants: pool.h. */
#include "kv/pool.h"

/* A page that nobody holds becomes one sequence's. */
static int32_t held(attn_pool *pool, int32_t page)
{
    pool->refs[page] = 1;
    pool->stats.used++;
    return page;
}

static int32_t evict(attn_pool *pool, int32_t page)
{
    attn_prefix_uncache(pool, page);
    attn_prefix_remove(pool, page);
    pool->stats.evicted++;
    return held(pool, page);
}

int32_t attn_pool_take(attn_pool *pool)
{
    if (pool->stats.free == 0) return evict(pool, pool->oldest);
    return held(pool, pool->free[--pool->stats.free]);
}

static bool apart(const attn_pool *pool, int32_t page, uint64_t id)
{
    return pool->mark[page] / 2 != id;
}

int32_t attn_pool_take_apart(attn_pool *pool, uint64_t id)
{
    for (int64_t i = pool->stats.free - 1; i >= 0; i--) {
        int32_t page = pool->free[i];
        if (!apart(pool, page, id)) continue;
        pool->free[i] = pool->free[--pool->stats.free];
        return held(pool, page);
    }
    if (pool->stats.cached == 0) return ATTN_NO_PAGE;
    for (int32_t page = pool->oldest; page != ATTN_NO_PAGE; page = pool->node[page].after)
        if (apart(pool, page, id)) return evict(pool, page);
    return ATTN_NO_PAGE;
}

void attn_pool_share(attn_pool *pool, const int32_t *pages, int64_t count)
{
    int32_t *refs = pool->refs;
    int64_t shared = 0;
    for (int64_t i = 0; i < count; i++)
        shared += ++refs[pages[i]] == 2;
    pool->stats.shared += shared;
}

void attn_pool_release(attn_pool *pool, int32_t page)
{
    int32_t left = --pool->refs[page];
    if (left > 0) {
        pool->stats.shared -= left == 1;
        return;
    }
    pool->stats.used--;
    if (pool->node && pool->node[page].indexed) {
        if (!attn_prefix_has_twin(pool, page)) {
            attn_prefix_cache(pool, page);
            return;
        }
        attn_prefix_remove(pool, page);
    }
    pool->free[pool->stats.free++] = page;
}
