/* attn_kv.h: KV caches in pages.
 *
 * Keys and values of many sequences lie in pages: K in one array (page, slot, head, dim), V in another. A page
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
 *   A page that is given back (free, truncate, drop, move, eviction) may be handed out by the next call. With one
 *   stream, in the order of these calls, this is safe. With several, or with threads that compute, give pages back only
 *   after the work that reads them has ended, or when whatever comes after waits for it.
 *   Copies that a call adds to a list come before the K and V of the tokens that it appended. The pairs of one list may
 *   be copied in any order, all at once. Start a new list only when the old one of its pool is complete; enqueue lists
 *   in the order in which you started them.
 *   On a GPU kernels read tables in device memory: copy what the pool wrote on the host (tables, lengths, pairs) there,
 *   in the same stream, before the runs; the host's stay unchanged until the copies are done.
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
    uint64_t seed[2];  /* ATTN_POOL_PREFIX: the key of its hash: random and secret, lest prompts be made to collide;
                        * without the flag 0 */
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
 * that sequences hold stay theirs; publish nothing more of sequences with tokens from before. */
ATTN_API attn_status attn_pool_forget(attn_pool *pool);

/* ---- sequences ----------------------------------------------------------------------------- */

/* A sequence of a pool. Each has a generation that no other of that pool ever has, so a handle whose sequence was freed
 * is refused: ATTN_INVALID. A handle of another pool is not told from one of this: keep them apart. All zero: no
 * sequence. */
typedef struct attn_seq {
    uint64_t generation;
    uint32_t index;
} attn_seq;

/* Page copies that a call asks for: pair i is (pairs[2 i], pairs[2 i + 1]), from and to. Calls add pairs after the
 * first `count`; the caller sets count to 0 once they are in the stream. Before the first use set pairs and
 * room, and all else to 0. A list is for the pool it began with (attn_seq_move: for the two). */
typedef struct attn_page_copies {
    int32_t *pairs;
    int64_t room;  /* pairs that fit */
    int64_t count; /* pairs that are there */
    uint64_t id;   /* the library's, from here on */
    const attn_pool *from, *to;
} attn_page_copies;

/* A new sequence without tokens. salt: whatever must keep its pages apart from others' besides the tokens, such as a
 * number of the tenant, the adapter or both: sequences find prefixes of their own salt only. (Where tokens stand for an
 * image, let them hold a hash of it: tokens are any int32 and compared whole.) Without ATTN_POOL_PREFIX it is 0.
 * ATTN_POOL_FULL: the pool has as many sequences as its descriptor allows. */
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
 * this is ATTN_INVALID). ATTN_POOL_FULL: too few pages are free or cached. Pages named in *copies do not count as free:
 * put the copies into the stream, set count to 0, and try again. ATTN_INVALID: the sequence would exceed `width` pages;
 * *copies has no room; the page to be copied is itself the target of a copy in the list. */
ATTN_API attn_status attn_seq_append(attn_pool *pool, attn_seq seq, const int32_t *tokens, int64_t count,
                                     attn_page_copies *copies);

/* ATTN_POOL_PREFIX: lets attn_seq_match find the sequence's full pages. Where the index has a page with the same tokens
 * and the same prefix already, that one is found as long as it is there, then this sequence's. Published pages that no
 * sequence holds any more are cached, unless another page with the same tokens and prefix is there. When no page is
 * free, the cached page that was used least recently is evicted, a sequence's last page before its first. A page that a
 * sequence holds is never evicted: to pin a prefix, keep a sequence of it. A sequence whose first pages were dropped
 * (attn_seq_drop) before it published them can publish nothing after them; and what follows dropped pages is found only
 * until these are evicted. */
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

/* A level of a batch, as a cascade takes it (below). Arrays have room for as many groups as there are sequences,
 * `count`. Those after the last group have no rows and no keys, so a plan whose levels have `count` groups takes every
 * batch. */
enum { ATTN_CASCADE_LEVELS = 8 }; /* most shared levels */
typedef struct attn_pool_level {
    int32_t *cu_lens_q; /* (count + 1): written */
    int32_t *lens_kv;   /* (count): written */
    int32_t *table;     /* (count, width): written, unused ids -1 */
    int64_t groups;     /* written */
    int64_t saved;      /* written: keys that need not be read: of each group its keys, times its sequences less one */
} attn_pool_level;

/* Writes what a batch's sequences have in common: full pages, without those of the tokens that are rows of this run.
 * cu_lens_q (count + 1): rows of the run. level: `levels` shared levels, 1 to ATTN_CASCADE_LEVELS, then the sequences'
 * own keys. At level 0 sequences that follow one another and begin with the same pages, `least` keys of them at least,
 * are a group; at the next level those of a group that go on with the same pages, as many at least; and so on. So let
 * sequences that share much stand together. Three sequences of 10, 10 and 6 tokens in pages of 4, `least` = 4, one row
 * each:
 *
 *     pages: 0 1 2, 0 1 3 and 0 4        cu_lens_q = 0 1 2 3
 *     level[0]: groups = 1, cu_lens_q = 0 3 3 3, lens_kv = 4 0 0, pages 0            page 0, for all: saved = 8
 *     level[1]: groups = 2, cu_lens_q = 0 2 3 3, lens_kv = 4 0 0, pages 1 and none   page 1, for two: saved = 4
 *     level[2]: groups = 3, cu_lens_q = 0 1 2 3, lens_kv = 2 2 2, pages 2, 3 and 4   each one's own: saved = 0
 *
 * Where all levels together save less than attn_cascade_info.saved_least, a run without levels is faster
 * (attn_pool_tables, attn_run).
 *
 * ATTN_INVALID: a sequence has more than `width` pages, or more rows than tokens; cu_lens_q does not begin with 0, or
 * falls. A sequence of zeros may have rows: they see no key. */
ATTN_API attn_status attn_pool_levels(const attn_pool *pool, const attn_seq *seqs, int64_t count,
                                      const int32_t *cu_lens_q, int64_t least, int64_t width, attn_pool_level *level,
                                      int32_t levels);

/* ---- operations on pages ------------------------------------------------------------------- */

/* Describe -> plan -> run, as in attn.h, for what is done to the pages themselves. A plan never changes; any number of
 * threads may run it at once. Running allocates nothing and needs no workspace. */
typedef enum attn_kv_op {
    ATTN_KV_APPEND = 1, /* K and V of new tokens go into pages; rotary embedding on the way */
    ATTN_KV_GATHER = 2, /* K and V of sequences go from their pages to one contiguous tensor each */
    ATTN_KV_COPY = 3    /* whole pages: the pairs of an attn_page_copies, within a pool or from another one */
} attn_kv_op;

/* attn_kv_desc.flags */
enum {
    ATTN_KV_SLOTS = 1 << 0,       /* APPEND: slots says where each token goes. Without: cu_lens, lens_kv, page_table */
    ATTN_KV_ROTARY = 1 << 1,      /* APPEND: k is rotated before it is stored */
    ATTN_KV_ROTARY_Q = 1 << 2,    /* and q */
    ATTN_KV_INTERLEAVED = 1 << 3, /* pairs are elements 2 i and 2 i + 1 of a row; without: i and i + rotary_dim / 2 */
    ATTN_KV_POSITIONS = 1 << 4,   /* positions says where in cos and sin each token stands; SLOTS with ROTARY need it */
    ATTN_KV_PACKED = 1 << 5,      /* GATHER: sequences lie back to back: cu_lens says where they start */
    ATTN_KV_SCALES = 1 << 6,      /* pages of one byte have scales: k_scale, v_scale */
    ATTN_KV_TOKEN_SCALES = 1 << 7 /* APPEND: and finds them, one for each token and head; needs ATTN_KV_SCALES */
};

/* As in attn_desc: zero but for what is set; a field that the operation and its flags do not use must be 0. */
typedef struct attn_kv_desc {
    attn_kv_op op;
    attn_dtype dtype;   /* of k, v and q, and of the pages (but see pages_dtype): ATTN_F32, ATTN_F16, ATTN_BF16; or
                         * ATTN_E4M3 or ATTN_I8, without ROTARY: bytes are copied as they are */
    attn_device device; /* ATTN_CPU, or ATTN_CUDA, which takes no threads or parallel_for */
    uint32_t flags;     /* ATTN_KV_SLOTS | ... */

    int64_t pages;       /* of k_pages, and of v_pages; ids are below it */
    int64_t page_size;   /* slots of a page, >= 1 */
    int64_t heads_kv;    /* >= 1 */
    int64_t dim_qk;      /* 1 to 1024 */
    int64_t dim_v;       /* 1 to 1024; 0: dim_qk */
    int64_t tokens;      /* APPEND: most tokens of a run; PACKED: rows of k_out and v_out */
    int64_t batch;       /* without SLOTS: sequences of a run */
    int64_t table_width; /* without SLOTS: page_table has room for table_width ids of each sequence */
    int64_t table_total; /* or, where that is 0, for table_total ids, and page_starts says whose they are */
    int64_t len_kv;      /* GATHER: most tokens of a sequence: without PACKED, rows of k_out and v_out for each */
    int64_t pages_from;  /* COPY: of k_from, and of v_from */
    int64_t copies;      /* COPY: most pairs of a run */

    int64_t heads_q;    /* ROTARY_Q: >= 1 */
    int64_t rotary_dim; /* ROTARY: the first rotary_dim elements of a row turn: even, 2 to dim_qk; 0: dim_qk */
    int64_t positions;  /* ROTARY: rows of cos and sin */

    /* In elements; all 0: packed; else dim's is 1. (page, slot, head, dim) of pages: slots before heads or heads before
     * slots, and any distance between pages, so that K and V may share an array, but no element; nor may
     * k_out and v_out. */
    int64_t k_pages_stride[4], v_pages_stride[4];
    int64_t k_from_stride[4], v_from_stride[4]; /* COPY */
    int64_t k_stride[4], v_stride[4];           /* APPEND: of k, v; GATHER: of k_out, v_out; (batch, row, head, dim) */
    int64_t q_stride[4], q_out_stride[4];       /* ROTARY_Q: (1, token, head, dim) */

    int32_t threads;                /* 0: one for each processor the caller may use; at most 1024 */
    attn_parallel_for parallel_for; /* NULL: the library's own threads */
    void *parallel_context;         /* its first argument */

    /* Pages of one byte. An element's value is what is stored, times its scale: without ATTN_KV_SCALES the
     * scale is 1. APPEND and GATHER convert where pages_dtype is not dtype, and only there take scales. Scales are f32,
     * at (sequence, block, head, dim) by strides in elements, as in attn_desc: strides of 0 mean one for all. With
     * k_scale_rows (v_scale_rows) above 0 it is (page, block, head, dim): a block is that many slots of a page. COPY
     * copies scales of pages with their pages; it takes no others. */
    attn_dtype pages_dtype; /* of k_pages, v_pages, k_from and v_from; 0: dtype. ATTN_E4M3 or ATTN_I8, beside a dtype of
                             * f32, f16 or bf16 */
    int64_t k_scale_rows;   /* 0, 1, 64 or 128; with TOKEN_SCALES 1, as v_scale_rows */
    int64_t v_scale_rows;   /* 0 or 1 */
    int64_t k_scale_stride[4]; /* [3] is 0; with SLOTS [0] is 0 where k_scale_rows is: there are no sequences */
    int64_t v_scale_stride[4]; /* likewise, but [3], of channels, may be any where v_scale_rows is 0 */
    int64_t k_scale_from_stride[4], v_scale_from_stride[4]; /* COPY */
} attn_kv_desc;

typedef struct attn_kv_plan attn_kv_plan;

/* Checks *desc and makes *plan, to be freed with attn_kv_plan_destroy. Writes *plan only on success. ATTN_INVALID,
 * ATTN_UNSUPPORTED or ATTN_NO_MEMORY otherwise. */
ATTN_API attn_status attn_kv_plan_create_sized(attn_kv_plan **plan, const attn_kv_desc *desc, size_t desc_size);
static inline attn_status attn_kv_plan_create(attn_kv_plan **plan, const attn_kv_desc *desc)
{
    return attn_kv_plan_create_sized(plan, desc, sizeof *desc);
}

/* NULL is allowed. No run of the plan may be under way. */
ATTN_API void attn_kv_plan_destroy(attn_kv_plan *plan);

/* What the operation and its flags do not use must be NULL or 0. The bytes of what is written, `fault` included, may
 * not overlap those of anything else here, but where a field says so.
 *
 * APPEND by position (without SLOTS): the tokens of sequence b are rows cu_lens[b] to cu_lens[b + 1] - 1 of k and v,
 * the last ones of its lens_kv[b] tokens: row cu_lens[b + 1] - 1 is token lens_kv[b] - 1. Token i goes to slot i %
 * page_size of page_table's entry i / page_size; other entries are not read. APPEND by SLOTS: row i goes to slot
 * slots[i] % page_size of page slots[i] / page_size; -1: nowhere (its q turns all the same, and its position must be
 * one, too). No two rows may go to one slot, by whichever way. Nobody checks that: what is then in the slot is one of
 * them, or parts of both.
 *
 * Into pages of one byte APPEND stores x / scale: the quotient is rounded to float, then to the byte, to nearest even;
 * what exceeds 448 (ATTN_I8: 127, below -128) becomes that, NaN becomes 0x7f (ATTN_I8: 0). TOKEN_SCALES: the scale of a
 * row of one token and head is its greatest absolute value / 448 (ATTN_I8: 127), but at least 2^-126, which a row of
 * zeros gets, too. NaN where an element is NaN or infinite: then all elements of the row are NaN. ROTARY comes first,
 * in float, not rounded to dtype between. GATHER writes the product of what is stored and its scale, rounded to float,
 * then to dtype. All of this has the same bits on every instruction set, but for those of a NaN that GATHER writes.
 *
 * ROTARY (RoFormer, arXiv 2104.09864): of a row x at position p, with c = cos[p, i] and s = sin[p, i], pair i, (a, b),
 * becomes (a c - b s, b c + a s). Products, sums and the result are each rounded once, on every device alike. p is the
 * token's index in its sequence, or what positions says. */
typedef struct attn_kv_args {
    const void *k;            /* APPEND: (1, tokens, heads_kv, dim_qk) */
    const void *v;            /* APPEND: (1, tokens, heads_kv, dim_v) */
    void *k_pages;            /* (pages, page_size, heads_kv, dim_qk): written by APPEND and COPY, read by GATHER */
    void *v_pages;            /* (pages, page_size, heads_kv, dim_v): likewise */
    const void *q;            /* ROTARY_Q: (1, tokens, heads_q, dim_qk) */
    void *q_out;              /* ROTARY_Q: q turned; q itself, with the same strides, or apart from it */
    void *k_out, *v_out;      /* GATHER: (batch, len_kv, heads_kv, dim); PACKED: (1, tokens, heads_kv, dim) */
    const void *k_from;       /* COPY: (pages_from, page_size, heads_kv, dim_qk): k_pages itself, or apart from it */
    const void *v_from;       /* COPY: (pages_from, page_size, heads_kv, dim_v): likewise */
    int64_t count;            /* SLOTS: tokens of this run, 0 to tokens; COPY: pairs, 0 to copies */
    const int64_t *slots;     /* SLOTS: (count): -1, or 0 to pages page_size - 1 */
    const int64_t *positions; /* POSITIONS: (count), or (cu_lens[batch]): 0 to desc.positions - 1 */
    const int32_t *cu_lens; /* APPEND without SLOTS, PACKED: (batch + 1): starts, then the end; from 0, never falling */
    const int32_t *lens_kv; /* without SLOTS: (batch): tokens of each sequence, the new ones included */
    const int32_t *page_table;  /* without SLOTS: (batch, table_width), or (table_total) ids; of GATHER -1: rows whose
                                 * page was dropped, which are not written */
    const int32_t *page_starts; /* table_width = 0: (batch + 1): ids of sequence b are entries page_starts[b] to
                                 * page_starts[b + 1] - 1 */
    const int32_t *pairs;   /* COPY: (count, 2): from, to; from = -1: none. No page is the target of two, or of one and
                             * the source of another */
    const float *cos, *sin; /* ROTARY: (positions, rotary_dim / 2) */
    uint32_t *fault;        /* ATTN_CUDA: see attn_kv_run; NULL: nobody is told. On the CPU NULL */

    /* SCALES: as the strides of desc say. APPEND and GATHER read them: either may be NULL: 1. TOKEN_SCALES and COPY
     * write them; of COPY NULL where the rows are 0. They may lie in the pages' arrays, between the pages' elements. */
    float *k_scale, *v_scale;
    const float *k_scale_from, *v_scale_from; /* COPY: k_scale and v_scale themselves, or apart from them */
} attn_kv_args;

/* Does *args as the plan says. stream: NULL on the CPU. ATTN_INVALID for bad ids, slots, lengths, positions and
 * pointers, plan or args = NULL: nothing was written.
 *
 * ATTN_CUDA: the plan is for the context in which it was made, pointers are of device memory, and the call puts one
 * kernel into the stream (a CUstream, which may be capturing a graph) and returns. Only the kernel reads ids, slots,
 * lengths and positions. A token, page or sequence of which one is out of range is not written, all others are, and
 * *fault, a word that the caller clears, becomes 1. Rows of k and v behind cu_lens[batch] pad the run: nothing is done
 * with them. `count` is the launch's size: a captured graph keeps it, and slots and pairs of -1 pad it. To copy
 * pages to host memory, let k_pages and v_pages be pinned memory that the GPU addresses (cuMemHostAlloc), or copy the
 * pairs yourself (cuMemcpyAsync). */
ATTN_API attn_status attn_kv_run_sized(const attn_kv_plan *plan, const attn_kv_args *args, size_t args_size,
                                       void *stream);
static inline attn_status attn_kv_run(const attn_kv_plan *plan, const attn_kv_args *args, void *stream)
{
    return attn_kv_run_sized(plan, args, sizeof *args, stream);
}

/* ---- cascade ------------------------------------------------------------------------------- */

/* Attention of a batch whose sequences have keys in common: a system prompt, a document that many ask about. Keys come
 * in levels. At a shared level, sequences that follow one another in the batch form a group, whose keys are computed
 * once for all its rows; the last level is each sequence's own. What the levels give is merged by LSE, once rounded.
 * (Hydragen, arXiv 2402.05099, section 3; FlashInfer, arXiv 2501.01005, section 3.1.)
 *
 *     attn_cascade_level prompt = { .groups = 1, .len_q = 64, .len_kv = 8192, .table_width = 512 };
 *     if (attn_cascade_plan_create(&plan, &desc, &prompt, 1)) die(attn_error());
 *     ...
 *     attn_cascade_keys shared = { .cu_lens_q = rows, .lens_kv = lens, .page_table = pages };
 *     attn_cascade_run(plan, &args, &shared, workspace, stream);
 *
 * A sequence's keys are those of its group at the first level, then at the next, at last its own. With ATTN_CAUSAL its
 * rows are its last own keys; if it has no keys at any level, they see none. */

/* A shared level. Sequences that share nothing at it are groups of 0 keys or, at the batch's end, in no group. */
typedef struct attn_cascade_level {
    int64_t groups;                   /* as attn_desc.batch */
    int64_t len_q;                    /* most query rows of a group, over all its sequences */
    int64_t len_kv;                   /* most keys of a group */
    int64_t table_width, table_total; /* as in attn_desc, of the groups' page table */
    const char *kernel, *strategy;    /* as in attn_desc; NULL: the planner's choice */
} attn_cascade_level;

typedef struct attn_cascade_plan attn_cascade_plan;

/* desc: as for attn_run over each sequence's own keys; flags: ATTN_VARLEN, ATTN_PAGED and ATTN_LENS_KV, which it must
 * have, ATTN_CAUSAL, ATTN_SOFTCAP, ATTN_SINK, ATTN_OUT_F32, ATTN_DETERMINISTIC and ATTN_SCALES_KV, of scales that
 * lie with pages' slots or are the same for all sequences; no visible_share. Rows see all shared keys. levels: `count`
 * of them, 1 to ATTN_CASCADE_LEVELS. All levels' pages lie in the same arrays. Else as attn_plan_create. */
ATTN_API attn_status attn_cascade_plan_create_sized(attn_cascade_plan **plan, const attn_desc *desc, size_t desc_size,
                                                    const attn_cascade_level *levels, size_t level_size, int32_t count);
static inline attn_status attn_cascade_plan_create(attn_cascade_plan **plan, const attn_desc *desc,
                                                   const attn_cascade_level *levels, int32_t count)
{
    return attn_cascade_plan_create_sized(plan, desc, sizeof *desc, levels, sizeof *levels, count);
}

/* NULL is allowed. No run of the plan may be under way. */
ATTN_API void attn_cascade_plan_destroy(attn_cascade_plan *plan);

/* As attn_plan_workspace: the workspaces of the levels (on the CPU the largest of them), and their results, which take
 * 4 (dim_v + 1) bytes per row, query head and level. */
ATTN_API size_t attn_cascade_plan_workspace(const attn_cascade_plan *plan);

/* As attn_plan_describe: each level's plan, the merge, what it is predicted to take, with levels and if every sequence
 * read all of its keys itself, and what levels must save to pay. */
ATTN_API size_t attn_cascade_plan_describe(const attn_cascade_plan *plan, char *text, size_t size);

/* Whether levels pay. A cascade always runs its levels: which page lists are whose, only the caller knows, and how much
 * a batch has in common changes from run to run while a plan has capacities. So ask for each batch: where its levels
 * save fewer keys than saved_least, attn_run over all keys of each sequence is predicted to be faster than levels in
 * turn. seconds and seconds_alone are of both at the capacities. On a GPU all reads of a shared key but the first are
 * taken as from its L2 cache. ATTN_INVALID: an argument is NULL. */
typedef struct attn_cascade_info {
    double seconds, seconds_alone; /* predicted: levels in turn, and merge; attn_run over all keys, 0 if not known */
    uint64_t workspace_bytes;
    int64_t saved_least;     /* keys that the levels must save, all together (attn_pool_level.saved); -1: not known,
                              * INT64_MAX: they never pay */
    double seconds_captured; /* seconds in a captured graph, where levels may run at once */
} attn_cascade_info;
ATTN_API attn_status attn_cascade_plan_get_info_sized(const attn_cascade_plan *plan, attn_cascade_info *info,
                                                      size_t info_size);
static inline attn_status attn_cascade_plan_get_info(const attn_cascade_plan *plan, attn_cascade_info *info)
{
    return attn_cascade_plan_get_info_sized(plan, info, sizeof *info);
}

/* The keys of a shared level. */
typedef struct attn_cascade_keys {
    const int32_t *cu_lens_q;   /* (groups + 1): where each group's rows begin in the packed q: from 0, never falling */
    const int32_t *lens_kv;     /* (groups): 0 to len_kv */
    const int32_t *page_table;  /* as in attn_args, of groups in place of sequences */
    const int32_t *page_starts; /* likewise */
} attn_cascade_keys;

/* As attn_run. args: as for attn_run over each sequence's own keys, which with ATTN_CAUSAL are those of its query rows
 * at least, unless it has none at any level. shared: one for each level. Rows of no sequence become 0, and their LSE
 * -inf. workspace: as for attn_run, and apart from the arrays of shared. On the CPU a run that fails has written
 * nothing but workspace.
 *
 * ATTN_CUDA: the call puts a kernel per level and one that merges into the stream, and now and then a small one before
 * a level. In a captured graph the levels are branches, which run at once: each on a share of the multiprocessors where
 * that is predicted to be faster, and neither a kernel or strategy nor ATTN_DETERMINISTIC is asked for. Bits may differ
 * from those of a run that was not captured. */
ATTN_API attn_status attn_cascade_run_sized(const attn_cascade_plan *plan, const attn_args *args, size_t args_size,
                                            const attn_cascade_keys *shared, size_t shared_size, void *workspace,
                                            void *stream);
static inline attn_status attn_cascade_run(const attn_cascade_plan *plan, const attn_args *args,
                                           const attn_cascade_keys *shared, void *workspace, void *stream)
{
    return attn_cascade_run_sized(plan, args, sizeof *args, shared, sizeof *shared, workspace, stream);
}

#ifdef __cplusplus
}
#endif

#endif
