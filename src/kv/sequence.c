/* Sequences: created, forked, appended to, truncated, moved and freed. Contract: attn_kv.h, pool.h. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "kv/pool.h"
#include "problem/desc.h"

static int64_t waste_of(const attn_pool *pool, const attn_pool_sequence *s)
{
    return s->pages * pool->desc.page_size - s->length;
}

/* Sets the length and the number of table entries, and what the figures say of them. */
static void resize(attn_pool *pool, attn_pool_sequence *s, int64_t length, int32_t pages)
{
    pool->stats.tokens += length - s->length;
    pool->stats.waste -= waste_of(pool, s);
    s->length = length, s->pages = pages;
    pool->stats.waste += waste_of(pool, s);
}

/* Gives back entries [from, to), the last one first: of a prefix the index then evicts the end before the beginning. */
static void give_back(attn_pool *pool, const int32_t *table, int32_t from, int32_t to)
{
    for (int32_t i = to; i-- > from;)
        attn_pool_release(pool, table[i]);
}

attn_status attn_seq_create(attn_pool *pool, uint64_t salt, attn_seq *seq)
{
    attn_pool_sequence *s;
    if (!pool) return attn_fail(ATTN_INVALID, "pool is NULL");
    if (!seq) return attn_fail(ATTN_INVALID, "seq is NULL");
    if (salt && !pool->node) return attn_fail(ATTN_INVALID, "salt is not 0, but needs ATTN_POOL_PREFIX");
    return attn_pool_sequence_new(pool, salt, &s, seq);
}

attn_status attn_seq_fork(attn_pool *pool, attn_seq seq, attn_seq *fork)
{
    attn_pool_sequence *s, *made;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (status) return status;
    if (!fork) return attn_fail(ATTN_INVALID, "fork is NULL");
    status = attn_pool_sequence_new(pool, s->salt, &made, fork);
    if (status) return status;
    const int32_t *table = attn_pool_row(pool, s);
    memcpy(attn_pool_row(pool, made), table, sizeof *table * (size_t)s->pages);
    attn_pool_share(pool, table + s->dropped, s->pages - s->dropped);
    made->dropped = s->dropped, made->published = s->published, made->tail = s->tail;
    resize(pool, made, s->length, s->pages);
    return ATTN_OK;
}

/* ---- append ---------------------------------------------------------------------------------- */

static attn_status check_append(const attn_pool *pool, const attn_pool_sequence *s, const int32_t *tokens,
                                int64_t count)
{
    int64_t most = pool->desc.width * pool->desc.page_size;
    if (count < 0) return attn_fail(ATTN_INVALID, "count = %" PRId64 " is below 0", count);
    if (pool->node && !tokens && count > 0)
        return attn_fail(ATTN_INVALID, "tokens is NULL: ATTN_POOL_PREFIX keeps them");
    if (!pool->node && tokens) return attn_fail(ATTN_INVALID, "tokens is set, but needs ATTN_POOL_PREFIX");
    if (count > most - s->length)
        return attn_fail(ATTN_INVALID,
                         "count = %" PRId64 ": the sequence has %" PRId64 " tokens, and width = %" PRId64
                         " pages hold %" PRId64,
                         count, s->length, pool->desc.width, most);
    return ATTN_OK;
}

static attn_status no_pages(const attn_pool *pool, int64_t need)
{
    return attn_fail(ATTN_POOL_FULL, "%" PRId64 " pages are needed, and %" PRId64 " are free or cached", need,
                     attn_pool_room(pool));
}

/* The sequence goes on in a copy of its last page, which others hold too. `need`: pages that the append takes. */
static attn_status copy_last(attn_pool *pool, int32_t *last, int64_t slots, int64_t need, attn_page_copies *copies)
{
    attn_status status = attn_copies_open(copies, 1, pool, pool);
    if (!status) status = attn_copies_check_source(copies, pool, *last);
    if (status) return status;
    int32_t target = attn_pool_take_apart(pool, copies->id);
    if (target == ATTN_NO_PAGE)
        return attn_fail(ATTN_POOL_FULL,
                         "%" PRId64 " pages are needed, and the %" PRId64
                         " free or cached ones are in *copies: put it into the stream, and set its count to 0",
                         need, attn_pool_room(pool));
    if (pool->node)
        memcpy(attn_pool_tokens(pool, target), attn_pool_tokens(pool, *last), sizeof(int32_t) * (size_t)slots);
    attn_copies_add(copies, pool, *last, pool, target);
    attn_pool_release(pool, *last);
    *last = target;
    return ATTN_OK;
}

static void keep_tokens(attn_pool *pool, const int32_t *table, int64_t at, const int32_t *tokens, int64_t count)
{
    int64_t size = pool->desc.page_size;
    while (count > 0) {
        int64_t slot = at % size, n = size - slot < count ? size - slot : count;
        memcpy(attn_pool_tokens(pool, table[at / size]) + slot, tokens, sizeof *tokens * (size_t)n);
        at += n, tokens += n, count -= n;
    }
}

attn_status attn_seq_append(attn_pool *pool, attn_seq seq, const int32_t *tokens, int64_t count,
                            attn_page_copies *copies)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (!status) status = check_append(pool, s, tokens, count);
    if (status || count == 0) return status;
    int32_t *table = attn_pool_row(pool, s), *last = table + s->pages - 1;
    int64_t size = pool->desc.page_size, length = s->length + count, slots = s->length % size;
    int32_t pages = (int32_t)attn_ceil_div(length, size);
    bool copy = slots > 0 && pool->refs[*last] > 1;
    int64_t need = pages - s->pages + copy;
    if (need > attn_pool_room(pool)) return no_pages(pool, need);
    if (copy && (status = copy_last(pool, last, slots, need, copies))) return status;
    if (slots > 0 && pool->node && pool->node[*last].indexed) attn_prefix_remove(pool, *last);
    for (int32_t i = s->pages; i < pages; i++)
        table[i] = attn_pool_take(pool);
    if (pool->node) keep_tokens(pool, table, s->length, tokens, count);
    resize(pool, s, length, pages);
    return ATTN_OK;
}

/* ---- back ------------------------------------------------------------------------------------ */

attn_status attn_seq_truncate(attn_pool *pool, attn_seq seq, int64_t length)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (status) return status;
    int64_t size = pool->desc.page_size;
    if (length < s->dropped * size || length > s->length)
        return attn_fail(ATTN_INVALID, "length = %" PRId64 " is not in %" PRId64 " to %" PRId64 ": %s", length,
                         s->dropped * size, s->length,
                         length < 0 || length > s->length ? "the sequence's own" : "tokens below it were dropped");
    int32_t pages = (int32_t)attn_ceil_div(length, size), full = (int32_t)(length / size);
    give_back(pool, attn_pool_row(pool, s), pages, s->pages);
    resize(pool, s, length, pages);
    if (s->published > full) s->published = full;
    return ATTN_OK;
}

attn_status attn_seq_drop(attn_pool *pool, attn_seq seq, int64_t tokens)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (status) return status;
    if (tokens < 0 || tokens > s->length)
        return attn_fail(ATTN_INVALID, "tokens = %" PRId64 " is not in 0 to the sequence's %" PRId64, tokens,
                         s->length);
    int32_t *table = attn_pool_row(pool, s), upto = (int32_t)(tokens / pool->desc.page_size);
    if (upto <= s->dropped) return ATTN_OK;
    s->tail = pool->node && s->published >= upto ? pool->node[table[upto - 1]].serial : 0;
    give_back(pool, table, s->dropped, upto);
    for (int32_t i = s->dropped; i < upto; i++)
        table[i] = ATTN_NO_PAGE;
    s->dropped = upto;
    return ATTN_OK;
}

static void end(attn_pool *pool, attn_pool_sequence *s)
{
    give_back(pool, attn_pool_row(pool, s), s->dropped, s->pages);
    resize(pool, s, 0, 0);
    attn_pool_sequence_end(pool, s);
}

attn_status attn_seq_free(attn_pool *pool, attn_seq seq)
{
    attn_pool_sequence *s;
    attn_status status = attn_pool_open(pool, seq, &s);
    if (!status) end(pool, s);
    return status;
}

/* ---- move ------------------------------------------------------------------------------------ */

static attn_status check_move(const attn_pool *from, const attn_pool_sequence *s, const attn_pool *to)
{
    if (!to) return attn_fail(ATTN_INVALID, "to is NULL");
    if (from == to) return attn_fail(ATTN_INVALID, "from and to are the same pool");
    if (from->desc.page_size != to->desc.page_size)
        return attn_fail(ATTN_INVALID, "page_size = %" PRId64 " of `from` is not the %" PRId64 " of `to`",
                         from->desc.page_size, to->desc.page_size);
    if (from->desc.flags != to->desc.flags)
        return attn_fail(ATTN_INVALID, "flags = %#" PRIx32 " of `from` are not the %#" PRIx32 " of `to`",
                         from->desc.flags, to->desc.flags);
    if (s->pages > to->desc.width)
        return attn_fail(ATTN_INVALID, "the sequence has %" PRId32 " pages, and width = %" PRId64 " of `to`", s->pages,
                         to->desc.width);
    return ATTN_OK;
}

/* One page of the sequence. */
static int32_t moved_page(attn_pool *from, int32_t page, attn_pool *to, int32_t target, attn_page_copies *copies)
{
    attn_copies_add(copies, from, page, to, target);
    if (to->node)
        memcpy(attn_pool_tokens(to, target), attn_pool_tokens(from, page),
               sizeof(int32_t) * (size_t)to->desc.page_size);
    return target;
}

attn_status attn_seq_move(attn_pool *from, attn_seq seq, attn_pool *to, attn_seq *moved, attn_page_copies *copies)
{
    attn_pool_sequence *s, *made;
    attn_status status = attn_pool_open(from, seq, &s);
    if (!status) status = check_move(from, s, to);
    if (status) return status;
    if (!moved) return attn_fail(ATTN_INVALID, "moved is NULL");
    int64_t need = s->pages - s->dropped;
    const int32_t *table = attn_pool_row(from, s);
    if (need > 0) status = attn_copies_open(copies, need, from, to);
    for (int64_t i = s->dropped; i < s->pages && !status; i++)
        status = attn_copies_check_source(copies, from, table[i]);
    if (status) return status;
    if (need > 0 && need > attn_pool_room(to) - attn_copies_blocked(copies, to)) return no_pages(to, need);
    if ((status = attn_pool_sequence_new(to, s->salt, &made, moved))) return status;
    int32_t *row = attn_pool_row(to, made);
    for (int32_t i = 0; i < s->pages; i++)
        row[i] = i < s->dropped ? ATTN_NO_PAGE
                                : moved_page(from, table[i], to, attn_pool_take_apart(to, copies->id), copies);
    made->dropped = s->dropped;
    resize(to, made, s->length, s->pages);
    end(from, s);
    return ATTN_OK;
}
