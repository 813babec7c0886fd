/* attn_kv.h: KV caches in pages.
 *
 * Keys and values of many sequences lie in pools of pages: K in one array (page, slot, head, dim), V in another. A page
 * has page_size slots, and a slot holds one token. A sequence's page table lists the pages of its tokens in order:
 * token i lies in slot i % page_size of page table[i / page_size]. Attention reads it in place (attn.h).
 *
 * The pool below is the bookkeeping of page ids on the host: which page belongs to which sequence. It never touches K
 * or V. One pool serves all layers whose caches have the same layout, each with arrays of its own; layers of another
 * layout or window have a pool of their own. (PagedAttention, arXiv 2309.06180, section 4.)
 *
 *     attn_pool_desc desc = { .pages = 4096, .page_size = 16, .sequences = 64, .width = 512, .flags = ATTN_POOL_PREFIX,
 *                             .seed = { random_number, another } };
 *     size_t size = attn_pool_memory(&desc);
 *     attn_pool *pool;
 *     if (attn_pool_create(&pool, &desc, malloc(size), size)) die(attn_error());
 *
 *     attn_seq_create(pool, tenant, &seq);
 *     attn_seq_match(pool, seq, prompt, count - 1, &matched);                 // a prefix that is there already
 *     attn_seq_append(pool, seq, prompt + matched, count - matched, &copies); // ATTN_POOL_FULL: wait, or move one
 *     attn_pool_tables(pool, &seq, 1, table, width, lens);
 *     ... enqueue the copies, then K and V of the new tokens, then attention over the table ...
 *     attn_seq_publish(pool, seq);                                            // others may find its full pages
 *     attn_seq_free(pool, seq);
 *
 * What goes into the stream, and when
 *   A page that is given back (free, truncate, drop, move, eviction) may be handed out by the next call. That is right
 *   where all that reads and writes pages is put into one stream, in the order of these calls. With several streams, or
 *   threads that compute, call what gives pages back only after a fence: when the last work that reads them has ended,
 *   or when whatever comes after waits for it.
 *   Copies that a call adds to a list come before the K and V of the tokens that it appended. The pairs of one list may
 *   be copied in any order, all at once. Lists of different pools go in the order of their calls.
 *   Fork, publish and move a sequence after the K and V of all its tokens were put into the stream: what others then
 *   read or copy is there.
 *
 * Threads: a pool has no lock. Calls that take the same pool must not overlap, but for those with a const attn_pool,
 * which may overlap each other. Different pools are independent.
 *
 * Every call does all or nothing: one that fails changes nothing, and attn_error() says why. */
#ifndef ATTN_KV_H
#define ATTN_KV_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pool ---------------------------------------------------------------------------------- */

typedef struct attn_pool attn_pool;

/* attn_pool_desc.flags */
enum {
    ATTN_POOL_PREFIX = 1 << 0 /* keeps the tokens of pages, and an index by which sequences find common prefixes */
};

/* Nothing has a default. */
typedef struct attn_pool_desc {
    int64_t pages;     /* 1 to 2^31 - 1: ids are 0 to pages - 1 */
    int64_t page_size; /* slots of a page, >= 1 */
    int64_t sequences; /* most at a time, 1 to 2^31 - 1 */
    int64_t width;     /* most pages of a sequence, >= 1; width page_size < 2^31 */
    uint32_t flags;    /* ATTN_POOL_PREFIX */
    uint64_t seed[2];  /* ATTN_POOL_PREFIX: the key of its hash: random and secret, lest prompts be made to collide */
} attn_pool_desc;

/* Bytes that the pool needs, any alignment will do: about 4 sequences width + 16 pages, and with ATTN_POOL_PREFIX
 * (48 + 4 page_size) pages more. 0, with a message, for what attn_pool_create refuses. */
ATTN_API size_t attn_pool_memory_sized(const attn_pool_desc *desc, size_t desc_size);
static inline size_t attn_pool_memory(const attn_pool_desc *desc)
{
    return attn_pool_memory_sized(desc, sizeof *desc);
}

/* Makes a pool whose pages are all free, in `size` bytes at `memory`, which is the caller's, needs no clearing and must
 * stay where it is while the pool is used. There is nothing to destroy. ATTN_INVALID: a field is out of range, memory
 * is NULL or too small. */
ATTN_API attn_status attn_pool_create_sized(attn_pool **pool, const attn_pool_desc *desc, size_t desc_size,
                                            void *memory, size_t size);
static inline attn_status attn_pool_create(attn_pool **pool, const attn_pool_desc *desc, void *memory, size_t size)
{
    return attn_pool_create_sized(pool, desc, sizeof *desc, memory, size);
}

/* pages = free + cached + used. */
typedef struct attn_pool_stats {
    int64_t pages;
    int64_t free;    /* pages that hold nothing */
    int64_t cached;  /* pages that no sequence holds, but the prefix index: used again, or evicted when none is free */
    int64_t used;    /* pages that sequences hold */
    int64_t shared;  /* of these, pages that several hold */
    int64_t indexed; /* pages, cached or used, that the prefix index finds */
    int64_t evicted; /* cached pages given away since the pool was made */
    int64_t sequences; /* live */
    int64_t tokens;    /* the sum of their lengths */
    int64_t waste;     /* the sum of their last pages' slots without a token of theirs */
} attn_pool_stats;

/* ATTN_INVALID: an argument is NULL. */
ATTN_API attn_status attn_pool_get_stats_sized(const attn_pool *pool, attn_pool_stats *stats, size_t stats_size);
static inline attn_status attn_pool_get_stats(const attn_pool *pool, attn_pool_stats *stats)
{
    return attn_pool_get_stats_sized(pool, stats, sizeof *stats);
}

/* Empties the prefix index: no sequence finds what was published before. For models whose weights have changed. Pages
 * that sequences hold stay theirs. */
ATTN_API attn_status attn_pool_forget(attn_pool *pool);

/* ---- sequences ----------------------------------------------------------------------------- */

/* A sequence of a pool. Each has a generation that no other of that pool ever has, so a handle whose sequence was freed
 * is refused: ATTN_INVALID. All zero: no sequence. */
typedef struct attn_seq {
    uint64_t generation;
    uint32_t index;
} attn_seq;

/* Page copies that a call asks for: pair i is (pairs[2 i], pairs[2 i + 1]), from and to. Calls add pairs after the
 * first `count`; the caller sets count to 0 once they are in the stream. Zero but for pairs and room before
 * the first use. A list is for the pool it began with (attn_seq_move: for the two). */
typedef struct attn_page_copies {
    int32_t *pairs;
    int64_t room;  /* pairs that fit */
    int64_t count; /* pairs that are there */
    uint64_t id;   /* the library's, from here on */
    const attn_pool *from, *to;
} attn_page_copies;

/* A new sequence without tokens. salt: whatever must keep its pages apart from others' besides the tokens, such as a
 * number of the tenant, the adapter or both: sequences find prefixes of their own salt only. (Where tokens stand for an
 * image, let them hold a hash of it: tokens are any int32 and compared whole.) ATTN_POOL_FULL: no sequence is left. */
ATTN_API attn_status attn_seq_create(attn_pool *pool, uint64_t salt, attn_seq *seq);

/* ATTN_POOL_PREFIX: finds the longest prefix of the `count` tokens, in full pages, that was published with the same
 * salt, and begins the sequence, which has no tokens yet, with these pages. *matched is its length, 0 if there is none.
 * What the hash finds is compared, token by token. Pass one token less than the prompt has, if its logits are wanted.
 */
ATTN_API attn_status attn_seq_match(attn_pool *pool, attn_seq seq, const int32_t *tokens, int64_t count,
                                    int64_t *matched);

/* A new sequence with the same tokens, salt and pages. Time: a copy of the page table and a count per page.
 * ATTN_POOL_FULL: no sequence is left. */
ATTN_API attn_status attn_seq_fork(attn_pool *pool, attn_seq seq, attn_seq *fork);

/* Adds `count` tokens. tokens: `count` of them with ATTN_POOL_PREFIX, NULL without. If the sequence ends within a page
 * that another one holds too, it goes on in a copy: then one pair is added to *copies (NULL: no fork is expected, and
 * this is ATTN_INVALID). ATTN_POOL_FULL: too few pages are free or cached. ATTN_INVALID: the sequence would exceed
 * `width` pages; *copies has no room; the page to be copied is itself the target of a copy in the list. */
ATTN_API attn_status attn_seq_append(attn_pool *pool, attn_seq seq, const int32_t *tokens, int64_t count,
                                     attn_page_copies *copies);

/* ATTN_POOL_PREFIX: lets attn_seq_match find the sequence's full pages. A page whose prefix and tokens another one of
 * the index has stays the sequence's own. Published pages that no sequence holds any more are cached; when no page is
 * free, the one that was used least recently, of one sequence the last, is evicted. A page that a sequence holds never
 * is: to pin a prefix, keep a sequence of it. Pages dropped before they were published end what can be published. */
ATTN_API attn_status attn_seq_publish(attn_pool *pool, attn_seq seq);

/* Takes back all but the first `length` tokens: rejected drafts. Into a page that others hold: the next append copies
 * it. Into a published page of its own: the next append takes it out of the index. ATTN_INVALID: length is above the
 * sequence's or below its dropped tokens. */
ATTN_API attn_status attn_seq_truncate(attn_pool *pool, attn_seq seq, int64_t length);

/* Gives back the pages all of whose tokens are among the first `tokens`, which no row will see again: a window left
 * them behind. In tables their ids are -1. The length stays. ATTN_INVALID: tokens is above the length. */
ATTN_API attn_status attn_seq_drop(attn_pool *pool, attn_seq seq, int64_t tokens);

/* Moves the sequence to another pool of the same page size, as from GPU to host memory and back: a new sequence there,
 * a pair from the one pool to the other for each page, and `seq` is freed. What was shared is then held twice, and what
 * was published must be published again. Both pools have ATTN_POOL_PREFIX, or neither. ATTN_POOL_FULL: `to` has too few
 * pages or no sequence left. ATTN_INVALID: pools are the same or differ in page size or flags, the sequence is longer
 * than `to` allows, *copies has no room. */
ATTN_API attn_status attn_seq_move(attn_pool *from, attn_seq seq, attn_pool *to, attn_seq *moved,
                                   attn_page_copies *copies);

/* Gives back all pages of the sequence, and its handle. */
ATTN_API attn_status attn_seq_free(attn_pool *pool, attn_seq seq);

/* Tokens of the sequence; -1, with a message, if it is none. */
ATTN_API int64_t attn_seq_length(const attn_pool *pool, attn_seq seq);

/* Writes the page tables of `count` sequences as attention takes them: table (count, width), unused ids -1, and lens
 * (count). A sequence of zeros is a row that pads a batch: length 0. ATTN_INVALID: a sequence has more than `width`
 * pages. */
ATTN_API attn_status attn_pool_tables(const attn_pool *pool, const attn_seq *seqs, int64_t count, int32_t *table,
                                      int64_t width, int32_t *lens);

/* The same, one after another: the pages of sequence i are ids[starts[i]] to ids[starts[i + 1] - 1]. starts (count +
 * 1), ids (room), of which starts[count] are written, lens (count). ATTN_INVALID: there is no room. */
ATTN_API attn_status attn_pool_tables_csr(const attn_pool *pool, const attn_seq *seqs, int64_t count, int32_t *starts,
                                          int32_t *ids, int64_t room, int32_t *lens);

#ifdef __cplusplus
}
#endif

#endif
