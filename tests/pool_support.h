/* A pool of a few pages, and short words for what tests ask of it. */
#ifndef TESTS_POOL_SUPPORT_H
#define TESTS_POOL_SUPPORT_H

#include "support.h"

#include "check/pool_model.h"

typedef struct fixture {
    attn_pool *pool;
    void *memory;
    int32_t pairs[64];
    attn_page_copies copies;
} fixture;

static inline fixture make(attn_pool_desc desc)
{
    fixture f = { .copies.room = 32 };
    size_t size = attn_pool_memory(&desc);
    assert_true(size > 0);
    f.memory = malloc(size);
    assert_ok(attn_pool_create(&f.pool, &desc, f.memory, size));
    return f;
}

/* Pairs are set here: the fixture was moved. */
static inline attn_page_copies *copies_of(fixture *f)
{
    f->copies.pairs = f->pairs;
    return &f->copies;
}

static inline attn_pool_desc small(void)
{
    return (attn_pool_desc){ .pages = 8, .page_size = 4, .sequences = 6, .width = 8, .flags = ATTN_POOL_PREFIX };
}

static inline void done(fixture *f)
{
    const char *wrong = check_pool_invariants(f->pool);
    if (wrong) fail_msg("%s", wrong);
    free(f->memory);
}

static inline attn_pool_stats stats_of(const fixture *f)
{
    attn_pool_stats stats;
    assert_ok(attn_pool_get_stats(f->pool, &stats));
    return stats;
}

static inline attn_seq create(fixture *f, uint64_t salt)
{
    attn_seq seq;
    assert_ok(attn_seq_create(f->pool, salt, &seq));
    return seq;
}

static inline attn_seq fork_of(fixture *f, attn_seq seq)
{
    attn_seq made;
    assert_ok(attn_seq_fork(f->pool, seq, &made));
    return made;
}

/* A sequence of `count` tokens first, first + 1, ... */
static inline void append(fixture *f, attn_seq seq, int32_t first, int64_t count)
{
    int32_t tokens[64];
    for (int i = 0; i < count; i++)
        tokens[i] = first + i;
    assert_ok(attn_seq_append(f->pool, seq, f->pool->node ? tokens : NULL, count, copies_of(f)));
}

static inline int64_t match(fixture *f, attn_seq seq, int32_t first, int64_t count)
{
    int32_t tokens[64];
    int64_t matched = -1;
    for (int i = 0; i < count; i++)
        tokens[i] = first + i;
    assert_ok(attn_seq_match(f->pool, seq, tokens, count, &matched));
    assert_int_equal(matched, attn_seq_length(f->pool, seq));
    return matched;
}

static inline int32_t page(const fixture *f, attn_seq seq, int64_t i)
{
    int32_t row[64], length;
    assert_ok(attn_pool_tables(f->pool, &seq, 1, row, 64, &length));
    return row[i];
}

static inline void expect(attn_status status, attn_status want, const char *text, int line)
{
    if (status != want || !strstr(attn_error(), text))
        fail_msg("line %d: %s \"%s\", not %s \"%s\"", line, attn_status_name(status), attn_error(),
                 attn_status_name(want), text);
}

#define refused(call, text) expect(call, ATTN_INVALID, text, __LINE__)
#define is_full(call, text) expect(call, ATTN_POOL_FULL, text, __LINE__)

#endif
