/* The suites "pool" and "append".
 *
 * pool: what the bookkeeping of pages costs, one thing a case; nothing is computed:
 *   page      a page taken and given back, of a sequence of len pages
 *   fork      a sequence of len pages forked
 *   append    a token appended to each of 64 sequences in turn
 *   lookup    a page of len found in the prefix index
 * append: K and V of len new tokens go into pages of 16 that lie in any order, K with its rotary embedding. The peer,
 * and the limit, is memcpy of as many bytes. */
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "bench/bench.h"
#include "check/random.h"
#include "device/clock.h"
#include "num/half.h"
#include "problem/desc.h"

enum { PAGE_SIZE = 16, APPENDING = 64, APPENDED = 1024 };

/* ---- the pool ------------------------------------------------------------------------------------ */

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

/* ---- append -------------------------------------------------------------------------------------- */

typedef struct append_bench {
    attn_kv_plan *plan;
    attn_kv_args args;
    char *k, *v, *k_pages, *v_pages;
    float *cosines, *sines;
    int32_t *table, starts[2], length;
    int64_t k_bytes, v_bytes;
} append_bench;

static double run_append(void *self, int calls)
{
    append_bench *b = self;
    double start = attn_seconds();
    for (int i = 0; i < calls; i++)
        if (attn_kv_run(b->plan, &b->args, NULL)) return attn_bench_fail("%s", attn_error()), -1.0;
    return (attn_seconds() - start) / calls;
}

static double run_copy(void *self, int calls)
{
    append_bench *b = self;
    double start = attn_seconds();
    for (int i = 0; i < calls; i++) {
        memcpy(b->k_pages, b->k, (size_t)b->k_bytes);
        memcpy(b->v_pages, b->v, (size_t)b->v_bytes);
    }
    return (attn_seconds() - start) / calls;
}

static bool start_append(append_bench *b, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int64_t tokens = d->len_kv, pages = attn_ceil_div(tokens, PAGE_SIZE), half = d->dim_qk / 2;
    attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                          .dtype = d->dtype,
                          .flags = ATTN_KV_ROTARY,
                          .pages = pages,
                          .page_size = PAGE_SIZE,
                          .heads_kv = d->heads_kv,
                          .dim_qk = d->dim_qk,
                          .dim_v = d->dim_v,
                          .tokens = tokens,
                          .batch = 1,
                          .table_width = pages,
                          .positions = tokens,
                          .threads = d->threads };
    uint64_t random = 1;
    if (strcmp(item->mask, "neighbours") == 0) desc.flags |= ATTN_KV_INTERLEAVED;
    b->k_bytes = tokens * d->heads_kv * d->dim_qk * attn_dtype_size(d->dtype);
    b->v_bytes = tokens * d->heads_kv * d->dim_v * attn_dtype_size(d->dtype);
    b->k = attn_bench_alloc(b->k_bytes), b->v = attn_bench_alloc(b->v_bytes);
    b->k_pages = attn_bench_alloc(b->k_bytes + PAGE_SIZE * b->k_bytes / tokens);
    b->v_pages = attn_bench_alloc(b->v_bytes + PAGE_SIZE * b->v_bytes / tokens);
    b->cosines = attn_bench_alloc(4 * tokens * half), b->sines = attn_bench_alloc(4 * tokens * half);
    b->table = attn_bench_alloc(4 * pages);
    if (!b->k || !b->v || !b->k_pages || !b->v_pages || !b->cosines || !b->sines || !b->table) return false;
    for (int64_t i = 0; i < tokens * half; i++)
        b->cosines[i] = check_normal(&random), b->sines[i] = check_normal(&random);
    for (int64_t i = 0; i < pages; i++) {
        int64_t j = check_below(&random, i + 1);
        b->table[i] = b->table[j], b->table[j] = (int32_t)i;
    }
    b->starts[1] = b->length = (int32_t)tokens;
    b->args = (attn_kv_args){ .k = b->k,
                              .v = b->v,
                              .k_pages = b->k_pages,
                              .v_pages = b->v_pages,
                              .cu_lens = b->starts,
                              .lens_kv = &b->length,
                              .page_table = b->table,
                              .cos = b->cosines,
                              .sin = b->sines };
    return attn_kv_plan_create(&b->plan, &desc) == ATTN_OK || attn_bench_fail("%s", attn_error());
}

bool attn_bench_append(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    append_bench b = { 0 };
    attn_bench_runner runners[2] = { { run_append, &b }, { run_copy, &b } };
    attn_bench_times times[2];
    bool done = start_append(&b, item) && attn_bench_take_turns(options, runners, times, 2);
    if (done) {
        snprintf(result->kernel, sizeof result->kernel, "append");
        result->subject = times[0], result->peer = times[1];
        result->peer_name = "memcpy";
        result->kv_bytes = 2.0 * (double)(b.k_bytes + b.v_bytes); /* read and written */
        result->limit = times[1].median;
        result->read = result->kv_bytes / result->limit;
    }
    attn_kv_plan_destroy(b.plan);
    void *arrays[] = { b.k, b.v, b.k_pages, b.v_pages, b.cosines, b.sines, b.table };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    return done;
}
