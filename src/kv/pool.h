/* The inside of a pool, for its own files and for tests.
 *
 * Invariants
 *   1. refs[p] is the number of live sequences whose table has page p; no table has a page twice.
 *   2. A page with refs[p] = 0 is on the stack of free pages, or, if the prefix index has it, in the list of cached
 * ones, which begins with the least recently used.
 *   3. A sequence of `length` tokens has ceil(length / page_size) table entries; its first `dropped` ones are -1.
 *   4. In the index, a page is full, and so is each page before it. Its node's serial stands for all tokens up to its
 *      end, and `parent` for those before it: the serial of the page there, or, in a first page, the salt. A serial is
 *      given once, so what was evicted and written anew is never taken for what it was.
 *   5. Where several sequences computed the same page, the index has all of them: twins, with one serial, side by side
 * in their bucket. The first is found. A page that has a twin is freed when nobody holds it any more, so of twins one
 *      at most is cached; and as long as any of them is held, it is in the index.
 *   6. mark[p] = 2 id + 1 if page p is the target of a copy in list `id`, 2 id if it is only the source of one. Ids of
 *      lists rise over all pools, and a list is filled by one pool (or two) only. */
#ifndef ATTN_KV_POOL_H
#define ATTN_KV_POOL_H

#include <stdbool.h>

#include "attn_kv.h"

enum { ATTN_POOL_ALIGN = 64, ATTN_NO_PAGE = -1 };

/* What the prefix index knows of a page. */
typedef struct attn_pool_node {
    uint64_t hash;
    uint64_t serial; /* 0: none yet */
    uint64_t parent;
    int32_t chain;          /* the next page of its bucket */
    int32_t before, after;  /* in the list of cached pages */
    uint8_t first, indexed; /* first: page 0 of sequences */
} attn_pool_node;

typedef struct attn_pool_sequence {
    uint64_t generation; /* 0: not live */
    uint64_t salt;
    int64_t length;
    int32_t pages, dropped, published; /* table entries; of them dropped; handed to the index */
    int32_t next_free;
    uint64_t tail; /* the serial of entry `dropped` - 1, if it was published; else 0 */
} attn_pool_sequence;

struct attn_pool {
    attn_pool_desc desc;
    int32_t *refs;
    int32_t *free; /* a stack */
    uint64_t *mark;
    uint64_t list;   /* id of the last one that got a pair */
    int32_t *tables; /* (sequences, width) */
    attn_pool_sequence *sequence;
    int32_t sequence_first, sequence_last; /* a queue of those not live, so that one index does not wear out */
    uint64_t generation;                   /* the last one given */

    /* ATTN_POOL_PREFIX */
    attn_pool_node *node;
    int32_t *tokens; /* (pages, page_size) */
    int32_t *bucket;
    uint64_t bucket_mask, hash_mask; /* hash_mask: all bits; tests make prefixes collide */
    uint64_t serial;                 /* the last one given */
    int32_t oldest, newest;          /* cached pages */

    attn_pool_stats stats; /* kept up to date */
};

static inline int32_t *attn_pool_row(const attn_pool *pool, const attn_pool_sequence *s)
{
    return pool->tables + (s - pool->sequence) * pool->desc.width;
}

/* Checks `pool` and the handle: ATTN_OK, and *found, or ATTN_INVALID. */
attn_status attn_pool_open(const attn_pool *pool, attn_seq seq, attn_pool_sequence **found);

/* The same for sequence i of a batch, which has `width` pages at most; one of zeros pads the batch: NULL. */
attn_status attn_pool_open_row(const attn_pool *pool, const attn_seq *seqs, int64_t i, int64_t width,
                               attn_pool_sequence **found);

/* A new sequence without tokens; ATTN_POOL_FULL. And one, without pages, that is no more. */
attn_status attn_pool_sequence_new(attn_pool *pool, uint64_t salt, attn_pool_sequence **made, attn_seq *seq);
void attn_pool_sequence_end(attn_pool *pool, attn_pool_sequence *s);

/* ---- pages (pages.c) ------------------------------------------------------------------------- */

/* Pages that can be had. */
static inline int64_t attn_pool_room(const attn_pool *pool)
{
    return pool->stats.free + pool->stats.cached;
}

/* A page for one sequence; there is one (attn_pool_room). Evicts where none is free. */
int32_t attn_pool_take(attn_pool *pool);

/* The same, but none that copies of list `id` read or write; ATTN_NO_PAGE: there is none. */
int32_t attn_pool_take_apart(attn_pool *pool, uint64_t id);

/* One more sequence holds these pages, which somebody holds. */
void attn_pool_share(attn_pool *pool, const int32_t *pages, int64_t count);

/* One sequence fewer holds the page. */
void attn_pool_release(attn_pool *pool, int32_t page);

/* ---- lists of copies (copies.c) -------------------------------------------------------------- */

/* Whether *copies takes `count` more pairs from pool `from` to pool `to`; begins it if it is empty. */
attn_status attn_copies_open(attn_page_copies *copies, int64_t count, const attn_pool *from, const attn_pool *to);

/* Pages of `to`, the list's target, that could be had but for their part in the list. */
int64_t attn_copies_blocked(const attn_page_copies *copies, const attn_pool *to);

/* Whether the page may be the source of a copy in the list. */
attn_status attn_copies_check_source(const attn_page_copies *copies, const attn_pool *from, int32_t page);

void attn_copies_add(attn_page_copies *copies, attn_pool *from, int32_t page, attn_pool *to, int32_t target);

/* ---- the prefix index (prefix.c) ------------------------------------------------------------- */

void attn_prefix_clear(attn_pool *pool);
/* Whether the index has another page with what this one of the index holds. */
bool attn_prefix_has_twin(const attn_pool *pool, int32_t page);
/* Takes a page out of the index; not of the list of cached ones. */
void attn_prefix_remove(attn_pool *pool, int32_t page);
/* A page that nobody holds any more, and one that somebody holds again. */
void attn_prefix_cache(attn_pool *pool, int32_t page);
void attn_prefix_uncache(attn_pool *pool, int32_t page);

static inline int32_t *attn_pool_tokens(const attn_pool *pool, int32_t page)
{
    return pool->tokens + page * pool->desc.page_size;
}

#endif
