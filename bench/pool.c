/* The suite "pool": what the bookkeeping of pages costs, one thing a case; nothing is computed:
 *   page      a page taken and given back, of a sequence of len pages
 *   fork      a sequence of len pages forked
 *   append    a token appended to each of 64 sequences in turn
 *   lookup    a page of len found in the prefix index */
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "bench/bench.h"
#include "check/random.h"
#include "device/clock.h"

enum { PAGE_SIZE = 16, APPENDING = 64, APPENDED = 1024 };

typedef struct pool_bench {
    attn_pool *pool;
    void *memory;
    attn_seq seq[APPENDING];
    int32_t *tokens;
    int64_t pages; /* of a long sequence */
    int64_t appended;
    attn_seq made;
    attn_status (*operation)(struct pool_bench *); /* `per_call` of what is counted */
    attn_status (*after)(struct pool_bench *);     /* not timed; or NULL */
    int64_t per_call;
} pool_bench;

static attn_status take_and_give_back(pool_bench *b)
{
    attn_seq seq;
    attn_status status = attn_seq_create(b->pool, 0, &seq);
    if (!status) status = attn_seq_append(b->pool, seq, b->tokens, b->pages * PAGE_SIZE, NULL);
    return status ? status : attn_seq_free(b->pool, seq);
}

static attn_status fork_long(pool_bench *b)
{
    return attn_seq_fork(b->pool, b->seq[0], &b->made);
}

static attn_status free_made(pool_bench *b)
{
    return attn_seq_free(b->pool, b->made);
}

static attn_status append_one(pool_bench *b)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < APPENDING && !status; i++)
        status = attn_seq_append(b->pool, b->seq[i], b->tokens, 1, NULL);
    if (++b->appended < APPENDED) return status;
    b->appended = 0;
    for (int i = 0; i < APPENDING && !status; i++)
        status = attn_seq_truncate(b->pool, b->seq[i], 0);
    return status;
}

static attn_status look_up(pool_bench *b)
{
    int64_t matched = 0;
    attn_status status = attn_seq_create(b->pool, 0, &b->made);
    if (!status) status = attn_seq_match(b->pool, b->made, b->tokens, b->pages * PAGE_SIZE, &matched);
    if (!status && matched != b->pages * PAGE_SIZE) return attn_bench_fail("a prefix was not found"), ATTN_INVALID;
    return status;
}

static double run_pool(void *self, int calls)
{
    pool_bench *b = self;
    double seconds = 0.0;
    for (int i = 0; i < calls; i++) {
        double start = attn_seconds();
        attn_status status = b->operation(b);
        seconds += attn_seconds() - start;
        if (!status && b->after) status = b->after(b);
        if (status) return attn_bench_fail("%s", attn_error()), -1.0;
    }
    return seconds / calls;
}

static attn_status fill_pool(pool_bench *b, bool published)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < APPENDING && !status; i++)
        status = attn_seq_create(b->pool, 0, &b->seq[i]);
    if (!published) return status;
    if (!status) status = attn_seq_append(b->pool, b->seq[0], b->tokens, b->pages * PAGE_SIZE, NULL);
    return status ? status : attn_seq_publish(b->pool, b->seq[0]);
}

static bool start_pool(pool_bench *b, const attn_bench_case *item)
{
    static const struct {
        const char *name;
        attn_status (*operation)(pool_bench *), (*after)(pool_bench *);
        bool filled, each_page;
        int64_t per_call;
    } operations[] = { { "page", take_and_give_back, NULL, false, true, 1 },
                       { "fork", fork_long, free_made, true, false, 1 },
                       { "append", append_one, NULL, false, false, APPENDING },
                       { "lookup", look_up, free_made, true, true, 1 } };
    int which = 0;
    while (strcmp(operations[which].name, item->mask) != 0)
        which++;
    b->pages = item->desc.len_kv;
    b->operation = operations[which].operation, b->after = operations[which].after;
    b->per_call = operations[which].each_page ? b->pages : operations[which].per_call;
    attn_pool_desc desc = { .pages = 2 * b->pages + APPENDING * APPENDED / PAGE_SIZE,
                            .page_size = PAGE_SIZE,
                            .sequences = APPENDING + 1,
                            .width = b->pages + APPENDED / PAGE_SIZE,
                            .flags = ATTN_POOL_PREFIX,
                            .seed = { 1, 2 } };
    size_t size = attn_pool_memory(&desc);
    uint64_t random = 1;
    b->memory = attn_bench_alloc((int64_t)size);
    b->tokens = attn_bench_alloc(b->pages * PAGE_SIZE * (int64_t)sizeof *b->tokens);
    if (!b->memory || !b->tokens) return false;
    for (int64_t i = 0; i < b->pages * PAGE_SIZE; i++)
        b->tokens[i] = (int32_t)check_below(&random, 50000);
    attn_status status = attn_pool_create(&b->pool, &desc, b->memory, size);
    if (!status) status = fill_pool(b, operations[which].filled);
    return !status || attn_bench_fail("%s", attn_error());
}

bool attn_bench_pool(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    pool_bench b = { 0 };
    attn_bench_runner runner = { run_pool, &b };
    b.per_call = 1;
    bool done = start_pool(&b, item) && attn_bench_take_turns(options, &runner, &result->subject, 1);
    double each = 1.0 / (double)b.per_call;
    result->subject.median *= each, result->subject.min *= each, result->subject.max *= each;
    snprintf(result->kernel, sizeof result->kernel, "pool");
    free(b.memory);
    free(b.tokens);
    return done;
}
