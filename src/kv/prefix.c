/* The prefix index: pages found by the tokens they hold and all before them. A chained hash table whose entries are
 * pages, and the list of cached ones. Contract and invariants: pool.h. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "kv/pool.h"
#include "kv/siphash.h"

/* ---- the list of cached pages ---------------------------------------------------------------- */

void attn_prefix_cache(attn_pool *pool, int32_t page)
{
    attn_pool_node *n = &pool->node[page];
    n->before = pool->newest, n->after = ATTN_NO_PAGE;
    *(pool->newest == ATTN_NO_PAGE ? &pool->oldest : &pool->node[pool->newest].after) = page;
    pool->newest = page;
    pool->stats.cached++;
}

void attn_prefix_uncache(attn_pool *pool, int32_t page)
{
    const attn_pool_node *n = &pool->node[page];
    *(n->before == ATTN_NO_PAGE ? &pool->oldest : &pool->node[n->before].after) = n->after;
    *(n->after == ATTN_NO_PAGE ? &pool->newest : &pool->node[n->after].before) = n->before;
    pool->stats.cached--;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* What a page is to hold: `tokens`, a page of them, after what `parent` stands for. */
typedef struct content {
    const int32_t *tokens;
    uint64_t parent;
    bool first;
    uint64_t hash;
} content;

static content content_of(const attn_pool *pool, const int32_t *tokens, uint64_t parent, bool first)
{
    int64_t size = pool->desc.page_size, i = 0;
    attn_siphash h = attn_siphash_begin(pool->desc.seed);
    attn_siphash_add(&h, parent);
    for (; i + 2 <= size; i += 2) {
        uint64_t word;
        memcpy(&word, tokens + i, sizeof word);
        attn_siphash_add(&h, word);
    }
    if (i < size) attn_siphash_add(&h, (uint32_t)tokens[i]);
    return (content){ tokens, parent, first, attn_siphash_end(&h, first) & pool->hash_mask };
}

static int32_t find(const attn_pool *pool, const content *c)
{
    size_t bytes = sizeof *c->tokens * (size_t)pool->desc.page_size;
    for (int32_t page = pool->bucket[c->hash & pool->bucket_mask]; page != ATTN_NO_PAGE;
         page = pool->node[page].chain) {
        const attn_pool_node *n = &pool->node[page];
        if (n->hash == c->hash && n->parent == c->parent && n->first == c->first &&
            memcmp(attn_pool_tokens(pool, page), c->tokens, bytes) == 0)
            return page;
    }
    return ATTN_NO_PAGE;
}

/* `known`: the page that is found today, behind which this one waits; ATTN_NO_PAGE: the content is new. */
static void insert(attn_pool *pool, int32_t page, const content *c, int32_t known)
{
    attn_pool_node *n = &pool->node[page];
    bool twin = known != ATTN_NO_PAGE;
    int32_t *at = twin ? &pool->node[known].chain : &pool->bucket[c->hash & pool->bucket_mask];
    n->hash = c->hash, n->parent = c->parent, n->first = c->first;
    n->serial = twin ? pool->node[known].serial : ++pool->serial;
    n->chain = *at, n->indexed = 1;
    *at = page;
    pool->stats.indexed += !twin;
}

static bool same(const attn_pool *pool, int32_t page, const attn_pool_node *n)
{
    return page != ATTN_NO_PAGE && pool->node[page].serial == n->serial;
}

/* The link that leads to a page of the index; *twin: whether a twin stands before or behind it. */
static int32_t *link_to(const attn_pool *pool, int32_t page, bool *twin)
{
    const attn_pool_node *n = &pool->node[page];
    int32_t *at = &pool->bucket[n->hash & pool->bucket_mask], before = ATTN_NO_PAGE;
    for (; *at != page; at = &pool->node[before].chain)
        before = *at;
    *twin = same(pool, before, n) || same(pool, n->chain, n);
    return at;
}

bool attn_prefix_has_twin(const attn_pool *pool, int32_t page)
{
    bool twin;
    link_to(pool, page, &twin);
    return twin;
}

void attn_prefix_remove(attn_pool *pool, int32_t page)
{
    bool twin;
    *link_to(pool, page, &twin) = pool->node[page].chain;
    pool->node[page].indexed = 0;
    pool->stats.indexed -= !twin;
}

void attn_prefix_clear(attn_pool *pool)
{
    for (uint64_t i = 0; i <= pool->bucket_mask; i++)
        pool->bucket[i] = ATTN_NO_PAGE;
    pool->oldest = pool->newest = ATTN_NO_PAGE;
    pool->stats.cached = pool->stats.indexed = 0;
}

attn_status attn_pool_forget(attn_pool *pool)
{
    if (!pool) return attn_fail(ATTN_INVALID, "pool is NULL");
    if (!pool->node) return ATTN_OK;
    while (pool->oldest != ATTN_NO_PAGE) {
        int32_t page = pool->oldest;
        attn_prefix_uncache(pool, page);
        pool->free[pool->stats.free++] = page;
    }
    attn_prefix_clear(pool);
    for (int64_t page = 0; page < pool->desc.pages; page++)
        pool->node[page].indexed = 0;
    return ATTN_OK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static attn_status need_index(const attn_pool *pool)
{
    return pool->node ? ATTN_OK : attn_fail(ATTN_INVALID, "the pool has no prefix index: it needs ATTN_POOL_PREFIX");
}

/* Holds a page that the index found. */
static void hold(attn_pool *pool, int32_t page)
{
    if (pool->refs[page]++ == 0) {
        attn_prefix_uncache(pool, page);
        pool->stats.used++;
    } else {
        pool->stats.shared += pool->refs[page] == 2;
    }
}

attn_status attn_seq_match(attn_pool *pool, attn_seq seq, const int32_t *tokens, int64_t count, int64_t *matched)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (!status) status = need_index(pool);
    if (status) return status;
    if (!matched) return attn_fail(ATTN_INVALID, "matched is NULL");
    if (count < 0) return attn_fail(ATTN_INVALID, "count = %" PRId64 " is below 0", count);
    if (count > 0 && !tokens) return attn_fail(ATTN_INVALID, "tokens is NULL, but count = %" PRId64, count);
    if (s->length > 0)
        return attn_fail(ATTN_INVALID, "the sequence has %" PRId64 " tokens: a prefix is found for one without",
                         s->length);
    int32_t *table = attn_pool_row(pool, s);
    int64_t size = pool->desc.page_size, pages = count / size;
    uint64_t parent = s->salt;
    if (pages > pool->desc.width) pages = pool->desc.width;
    int32_t n = 0;
    for (; n < pages; n++) {
        content c = content_of(pool, tokens + n * size, parent, n == 0);
        int32_t page = find(pool, &c);
        if (page == ATTN_NO_PAGE) break;
        hold(pool, page);
        table[n] = page;
        parent = pool->node[page].serial;
    }
    s->pages = s->published = n;
    s->length = *matched = n * size;
    pool->stats.tokens += s->length;
    return ATTN_OK;
}

/* Puts a sequence's page into the index. If its content is there, the page becomes a twin of the one that is. */
static void publish(attn_pool *pool, int32_t page, const content *c)
{
    int32_t known = find(pool, c);
    if (pool->node[page].indexed) {
        if (same(pool, known, &pool->node[page])) return;
        attn_prefix_remove(pool, page); /* after a parent that is there no more */
    }
    insert(pool, page, c, known);
}

attn_status attn_seq_publish(attn_pool *pool, attn_seq seq)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (!status) status = need_index(pool);
    if (status) return status;
    const int32_t *table = attn_pool_row(pool, s);
    int32_t full = (int32_t)(s->length / pool->desc.page_size);
    if (s->published < s->dropped) return ATTN_OK;
    for (int32_t i = s->published; i < full; i++) {
        uint64_t parent = i == 0 ? s->salt : i == s->dropped ? s->tail : pool->node[table[i - 1]].serial;
        content c = content_of(pool, attn_pool_tokens(pool, table[i]), parent, i == 0);
        publish(pool, table[i], &c);
    }
    s->published = full;
    return ATTN_OK;
}
