/* The model of pool_model.h, between its two files. */
#ifndef CHECK_POOL_INSIDE_H
#define CHECK_POOL_INSIDE_H

#include "check/pool_model.h"

typedef struct check_pool_seq {
    bool live;
    bool flies; /* a copy of its page is not yet in the stream */
    int where;  /* which pool */
    attn_seq handle;
    uint64_t salt;
    int64_t length, written, published; /* tokens; written: their K and V were put into the stream */
    bool forgotten; /* began before the index was last emptied: what it publishes need not be found */
    int64_t dropped, pages;
    int32_t tokens[CHECK_POOL_TOKENS];
    uint64_t history[CHECK_POOL_TOKENS]; /* what stands for tokens 0 to i, and the salt */
    int32_t table[CHECK_POOL_WIDTH];
} check_pool_seq;

typedef struct check_pool {
    check_draw draw;
    check_pool_counts *counts;
    attn_pool_desc desc[2];
    attn_pool *pool[2];
    void *memory[2];
    uint64_t cache[2][CHECK_POOL_PAGES * CHECK_POOL_PAGE_SIZE];
    attn_page_copies list[2][2]; /* from, to */
    int32_t pairs[2][2][2 * CHECK_POOL_ROOM];
    check_pool_seq seq[2 * CHECK_POOL_SEQUENCES];
    attn_seq stale;
    int64_t indexed[2]; /* pages, before the last operation */
    bool clean[2];      /* nothing has left the index */
    bool entangled;     /* a list had pairs that depend on each other */
} check_pool;

/* Keeps the message and returns it. */
const char *check_pool_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A number in [0, n). */
int64_t check_pool_below(check_pool *m, int64_t n);

/* Everything goes into the stream: the copies of all lists, then K and V. And only if the sequence's has not. */
void check_pool_flush(check_pool *m);
void check_pool_settle(check_pool *m, const check_pool_seq *s);

/* The list for copies from one pool to the other, the only one that has pairs. */
attn_page_copies *check_pool_list(check_pool *m, int from, int to);

/* Reads the sequence's table and length; checks them and the caches behind them. And all of them, and the pools. */
const char *check_pool_read_back(check_pool *m, check_pool_seq *s);
const char *check_pool_all(check_pool *m);

/* One operation, drawn. */
const char *check_pool_step(check_pool *m);

static inline bool check_pool_prefix(const check_pool *m)
{
    return m->desc[0].flags & ATTN_POOL_PREFIX;
}

#endif
