/* The pool of pages: millions of random operations beside a model, and by hand what the model leaves out: its memory,
 * what is refused and how it says so, lists whose pairs must not meet. test_prefix.c has the rest. */
#include "pool_support.h"

#include "check/random.h"

/* ---- the model --------------------------------------------------------------------------------- */

static int64_t from_random(void *state, int64_t below)
{
    return check_below(state, below);
}

static void random_operations(void **state)
{
    (void)state;
    const char *asked = getenv("ATTN_TEST_POOL"); /* how many */
    int64_t most = asked ? atoll(asked) : 10000000 / test_scale();
    check_pool_counts counts = { 0 };
    for (uint64_t seed = 1; counts.operations < most; seed++) {
        uint64_t random = seed;
        const char *wrong = check_pool_run((check_draw){ from_random, &random }, 1000, &counts);
        if (wrong)
            fail_msg("seed %llu, after %lld operations: %s", (unsigned long long)seed, (long long)counts.operations,
                     wrong);
    }
    print_message("%lld operations: %lld full, %lld copied, %lld matched (%lld whole), %lld evicted, %lld moved, %lld "
                  "dropped, %lld forked\n",
                  (long long)counts.operations, (long long)counts.full, (long long)counts.copied,
                  (long long)counts.matched, (long long)counts.found_whole, (long long)counts.evicted,
                  (long long)counts.moved, (long long)counts.dropped, (long long)counts.shared);
    const int64_t each[] = { counts.full,    counts.copied, counts.matched, counts.found_whole,
                             counts.evicted, counts.moved,  counts.dropped, counts.shared };
    for (int i = 0; i < COUNT(each); i++)
        assert_true(each[i] > counts.operations / 1000);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void memory_is_whole_and_anywhere(void **state)
{
    (void)state;
    for (int shift = 0; shift < 70; shift += 7) {
        attn_pool_desc desc = small();
        size_t size = attn_pool_memory(&desc);
        unsigned char *memory = malloc(size + 200);
        memset(memory, 0xEE, size + 200);
        fixture f = { .memory = memory, .copies.room = 32 };
        assert_ok(attn_pool_create(&f.pool, &desc, memory + shift, size));
        refused(attn_pool_create(&f.pool, &desc, memory + shift, size - 1), "the pool needs");
        attn_seq seq = create(&f, 3), other;
        append(&f, seq, 0, 32);
        assert_ok(attn_seq_publish(f.pool, seq));
        is_full(attn_seq_append(f.pool, create(&f, 3), &(int32_t){ 1 }, 1, copies_of(&f)), "0 are free or cached");
        while (!attn_seq_create(f.pool, 0, &other))
            ;
        for (int i = 0; i < shift; i++)
            assert_int_equal(memory[i], 0xEE);
        for (size_t i = size + (size_t)shift; i < size + 200; i++)
            assert_int_equal(memory[i], 0xEE);
        done(&f);
    }
}

static void bad_descriptors(void **state)
{
    (void)state;
    attn_pool *pool = NULL;
    char memory[64];
#define BAD(field_, value_, text_)                                          \
    do {                                                                    \
        attn_pool_desc d = small();                                         \
        d.field_ = value_;                                                  \
        assert_int_equal(attn_pool_memory(&d), 0);                          \
        refused(attn_pool_create(&pool, &d, memory, sizeof memory), text_); \
        assert_null(pool);                                                  \
    } while (0)
    BAD(pages, 0, "pages = 0 is not in 1 to 2147483647");
    BAD(pages, (int64_t)1 << 31, "pages = 2147483648");
    BAD(pages, INT64_MIN, "pages = ");
    BAD(page_size, 0, "page_size = 0");
    BAD(page_size, (int64_t)1 << 40, "page_size = ");
    BAD(sequences, -1, "sequences = -1");
    BAD(width, 0, "width = 0");
    BAD(width, 1 << 29, "width = 536870912 is not in 1 to 536870911");
    BAD(flags, 2, "flags = 0x2");
    attn_pool_desc d = small();
    d.flags = 0, d.seed[1] = 1;
    refused(attn_pool_create(&pool, &d, memory, sizeof memory), "needs ATTN_POOL_PREFIX");
    d = (attn_pool_desc){ .pages = INT32_MAX, .page_size = INT32_MAX, .sequences = INT32_MAX, .width = 1, .flags = 1 };
    assert_int_equal(attn_pool_memory(&d), 0);
    refused(attn_pool_create(&pool, &d, memory, sizeof memory), "too large to address");
    d = small();
    refused(attn_pool_create(&pool, &d, NULL, 1 << 20), "memory is NULL");
    refused(attn_pool_create(NULL, &d, memory, 1 << 20), "pool = NULL");
    refused(attn_pool_create(&pool, NULL, memory, 1 << 20), "desc is NULL");
    assert_int_equal(attn_pool_memory(NULL), 0);
}

/* ---- handles and arguments --------------------------------------------------------------------- */

static void stale_handles_are_refused(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq seq = create(&f, 0), other;
    int32_t ids[8], lens[2], starts[2];
    int64_t matched;
    append(&f, seq, 0, 6);
    assert_ok(attn_seq_free(f.pool, seq));
    attn_seq bad[] = {
        seq, { 0 }, { .generation = 9, .index = 6 }, { .generation = 1, .index = UINT32_MAX }, { .index = 1 }
    };
    for (int round = 0; round < 20; round++) { /* the index is used again, with other generations */
        for (int i = 0; i < COUNT(bad); i++) {
            const char *text = bad[i].generation ? "is not a live sequence" : "no sequence";
            refused(attn_seq_free(f.pool, bad[i]), text);
            refused(attn_seq_fork(f.pool, bad[i], &other), text);
            refused(attn_seq_append(f.pool, bad[i], ids, 1, copies_of(&f)), text);
            refused(attn_seq_truncate(f.pool, bad[i], 0), text);
            refused(attn_seq_drop(f.pool, bad[i], 0), text);
            refused(attn_seq_publish(f.pool, bad[i]), text);
            refused(attn_seq_match(f.pool, bad[i], ids, 1, &matched), text);
            refused(attn_seq_move(f.pool, bad[i], f.pool, &other, copies_of(&f)), text);
            assert_int_equal(attn_seq_length(f.pool, bad[i]), -1);
            if (bad[i].generation == 0 && bad[i].index == 0) continue; /* a row that pads */
            refused(attn_pool_tables(f.pool, &bad[i], 1, ids, 8, lens), text);
            refused(attn_pool_tables_csr(f.pool, &bad[i], 1, starts, ids, 8, lens), text);
        }
        attn_seq next = create(&f, 0);
        if (round % 2) assert_ok(attn_seq_free(f.pool, next));
        if (round == 10) break;
    }
    done(&f);
}

static void bad_arguments(void **state)
{
    (void)state;
    fixture f = make(small()), plain = make((attn_pool_desc){ .pages = 4, .page_size = 2, .sequences = 2, .width = 3 });
    attn_seq seq = create(&f, 0), other = create(&plain, 0), out;
    int32_t tokens[64] = { 0 }, ids[8], lens[2], starts[3];
    int64_t matched = 7;
    append(&f, seq, 0, 6);
    refused(attn_seq_append(f.pool, seq, tokens, -1, copies_of(&f)), "count = -1 is below 0");
    refused(attn_seq_append(f.pool, seq, tokens, INT64_MAX, copies_of(&f)), "width = 8 pages hold 32");
    refused(attn_seq_append(f.pool, seq, tokens, 27, copies_of(&f)), "count = 27");
    refused(attn_seq_append(f.pool, seq, NULL, 1, copies_of(&f)), "tokens is NULL");
    refused(attn_seq_append(plain.pool, other, tokens, 1, copies_of(&f)), "needs ATTN_POOL_PREFIX");
    assert_ok(attn_seq_append(f.pool, seq, NULL, 0, NULL));
    refused(attn_seq_match(f.pool, seq, tokens, 4, &matched), "has 6 tokens");
    refused(attn_seq_match(plain.pool, other, tokens, 4, &matched), "no prefix index");
    refused(attn_seq_publish(plain.pool, other), "no prefix index");
    refused(attn_seq_create(plain.pool, 1, &out), "salt");
    out = create(&f, 0);
    refused(attn_seq_match(f.pool, out, tokens, -1, &matched), "count = -1");
    refused(attn_seq_match(f.pool, out, NULL, 4, &matched), "tokens is NULL");
    refused(attn_seq_match(f.pool, out, tokens, 4, NULL), "matched is NULL");
    assert_int_equal(matched, 7);
    refused(attn_seq_truncate(f.pool, seq, -1), "length = -1 is not in 0 to 6");
    refused(attn_seq_truncate(f.pool, seq, 7), "length = 7");
    refused(attn_seq_drop(f.pool, seq, 7), "tokens = 7 is not in 0 to the sequence's 6");
    refused(attn_seq_drop(f.pool, seq, -1), "tokens = -1");
    refused(attn_seq_fork(f.pool, seq, NULL), "fork is NULL");
    refused(attn_seq_create(f.pool, 0, NULL), "seq is NULL");
    refused(attn_seq_move(f.pool, seq, f.pool, &out, copies_of(&f)), "the same pool");
    refused(attn_seq_move(f.pool, seq, NULL, &out, copies_of(&f)), "to is NULL");
    refused(attn_seq_move(f.pool, seq, plain.pool, &out, copies_of(&f)), "page_size = 4");
    refused(attn_pool_tables(f.pool, &seq, 1, ids, 1, lens), "width = 1: sequence 0 has 2 pages");
    refused(attn_pool_tables(f.pool, &seq, 1, ids, 0, lens), "width = 0");
    refused(attn_pool_tables(f.pool, &seq, -1, ids, 8, lens), "count = -1");
    refused(attn_pool_tables(f.pool, NULL, 1, ids, 8, lens), "seqs is NULL");
    refused(attn_pool_tables(f.pool, &seq, 1, NULL, 8, lens), "page ids");
    refused(attn_pool_tables(f.pool, &seq, 1, ids, 8, NULL), "lens is NULL");
    refused(attn_pool_tables_csr(f.pool, &seq, 1, starts, ids, 1, lens), "room = 1: the sequences have 2 pages");
    refused(attn_pool_tables_csr(f.pool, &seq, 1, NULL, ids, 8, lens), "starts is NULL");
    refused(attn_pool_get_stats(f.pool, NULL), "stats is NULL");
    refused(attn_pool_get_stats(NULL, &(attn_pool_stats){ 0 }), "pool is NULL");
    refused(attn_seq_free(NULL, seq), "pool is NULL");
    refused(attn_seq_create(NULL, 0, &out), "pool is NULL");
    refused(attn_pool_forget(NULL), "pool is NULL");
    done(&f), done(&plain);
}

/* ---- copies ------------------------------------------------------------------------------------ */

static void forks_part_where_they_write(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b;
    append(&f, a, 0, 6);
    b = fork_of(&f, a);
    assert_int_equal(stats_of(&f).used, 2);
    assert_int_equal(stats_of(&f).shared, 2);
    refused(attn_seq_append(f.pool, b, &(int32_t){ 9 }, 1, NULL), "copies = NULL");
    attn_page_copies none = { 0 }, broken = { .room = 1 };
    refused(attn_seq_append(f.pool, b, &(int32_t){ 9 }, 1, &none), "copies->room = 0");
    refused(attn_seq_append(f.pool, b, &(int32_t){ 9 }, 1, &broken), "copies->pairs is NULL");
    broken = (attn_page_copies){ .pairs = f.pairs, .room = 4, .count = 5 };
    refused(attn_seq_append(f.pool, b, &(int32_t){ 9 }, 1, &broken), "copies->count = 5");
    int32_t shared = page(&f, a, 1);
    append(&f, b, 9, 1);
    assert_int_equal(f.copies.count, 1);
    assert_int_equal(f.pairs[0], shared);
    assert_int_equal(f.pairs[1], page(&f, b, 1));
    assert_int_equal(page(&f, a, 1), shared);
    assert_int_equal(page(&f, a, 0), page(&f, b, 0));
    append(&f, a, 6, 1); /* alone with its page now */
    assert_int_equal(f.copies.count, 1);
    assert_int_equal(page(&f, a, 1), shared);
    done(&f);
}

/* A fork at the end of a page needs no copy; a rollback into a shared page does, at the next append. */
static void rollback_into_a_shared_page(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b;
    append(&f, a, 0, 8);
    b = fork_of(&f, a);
    append(&f, b, 8, 1);
    assert_int_equal(f.copies.count, 0);
    assert_ok(attn_seq_truncate(f.pool, b, 7));
    assert_int_equal(stats_of(&f).used, 2);
    append(&f, b, 9, 1);
    assert_int_equal(f.copies.count, 1);
    assert_int_not_equal(page(&f, a, 1), page(&f, b, 1));
    assert_ok(attn_seq_truncate(f.pool, a, 7));
    append(&f, a, 9, 1);
    assert_int_equal(f.copies.count, 1);
    done(&f);
}

/* No page of a list's pairs becomes the target of another pair; a page that is one never becomes a source. */
static void pairs_of_a_list_do_not_meet(void **state)
{
    (void)state;
    attn_pool_desc desc = small();
    desc.pages = 4, desc.flags = 0;
    fixture f = make(desc);
    attn_seq a = create(&f, 0), b, c = create(&f, 0), d;
    append(&f, a, 0, 2);
    b = fork_of(&f, a);
    append(&f, c, 0, 2);
    d = fork_of(&f, c);
    append(&f, a, 2, 1); /* (0, 2) */
    assert_int_equal(f.pairs[1], page(&f, a, 0));
    assert_ok(attn_seq_free(f.pool, b)); /* page 0 is free, but to be copied; page 3 is free */
    append(&f, c, 2, 1);
    assert_int_equal(f.copies.count, 2);
    assert_int_equal(f.pairs[3], 3);
    b = fork_of(&f, d);
    is_full(attn_seq_append(f.pool, b, NULL, 1, copies_of(&f)), "put it into the stream");
    assert_ok(attn_seq_free(f.pool, b));
    b = fork_of(&f, c);
    refused(attn_seq_append(f.pool, b, NULL, 1, copies_of(&f)), "page 3 is the target of a copy");
    f.copies.count = 0;
    append(&f, b, 3, 1); /* in another list page 0 will do */
    assert_int_equal(f.pairs[0], 3);
    assert_int_equal(f.pairs[1], 0);
    done(&f);
}

static void lists_keep_apart(void **state)
{
    (void)state;
    fixture f = make(small()), host = make(small());
    attn_seq a = create(&f, 0), b, c, moved;
    int32_t pairs[16];
    attn_page_copies other = { .pairs = pairs, .room = 8 };
    append(&f, a, 0, 2);
    b = fork_of(&f, a), c = fork_of(&f, a);
    append(&f, b, 2, 1);
    refused(attn_seq_move(f.pool, a, host.pool, &moved, copies_of(&f)), "pairs of other pools");
    refused(attn_seq_move(f.pool, b, host.pool, &moved, &f.copies), "pairs of other pools");
    assert_ok(attn_seq_append(f.pool, c, &(int32_t){ 4 }, 1, &other));
    attn_seq d = fork_of(&f, a);
    refused(attn_seq_append(f.pool, d, &(int32_t){ 4 }, 1, copies_of(&f)), "another list was begun since its 1 pairs");
    f.copies.count = 0;
    append(&f, d, 4, 1);
    done(&f), done(&host);
}

/* ---- figures ------------------------------------------------------------------------------------ */

/* A million tokens in 64 sequences of drawn lengths: of their slots less than 4 % are empty. */
static void little_is_wasted(void **state)
{
    (void)state;
    fixture f = make((attn_pool_desc){ .pages = 70000, .page_size = 16, .sequences = 64, .width = 4096 });
    attn_seq seqs[64];
    uint64_t random = 1;
    for (int i = 0; i < 64; i++)
        seqs[i] = create(&f, 0);
    for (int64_t left = 1000000; left > 0;) {
        int64_t n = 1 + check_below(&random, 200);
        if (n > left) n = left;
        assert_ok(attn_seq_append(f.pool, seqs[check_below(&random, 64)], NULL, n, NULL));
        left -= n;
    }
    attn_pool_stats stats = stats_of(&f);
    assert_int_equal(stats.tokens, 1000000);
    assert_int_equal(stats.used * 16 - stats.tokens, stats.waste);
    assert_true((double)stats.waste < 0.04 * (double)stats.tokens);
    done(&f);
}

/* An older caller's struct is shorter, a newer one's longer. */
static void stats_of_other_versions(void **state)
{
    (void)state;
    fixture f = make(small());
    struct {
        attn_pool_stats stats;
        int64_t more;
    } longer = { .more = 5 };
    int64_t two[3] = { 9, 9, 9 };
    assert_ok(attn_pool_get_stats_sized(f.pool, &longer.stats, sizeof longer));
    assert_int_equal(longer.more, 0);
    assert_int_equal(longer.stats.pages, 8);
    assert_ok(attn_pool_get_stats_sized(f.pool, (attn_pool_stats *)(void *)two, 2 * sizeof *two));
    assert_int_equal(two[1], 8);
    assert_int_equal(two[2], 9);
    refused(attn_pool_get_stats_sized(f.pool, &longer.stats, 0), "stats_size = 0");
    done(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_whole_and_anywhere),
        cmocka_unit_test(bad_descriptors),
        cmocka_unit_test(stale_handles_are_refused),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(forks_part_where_they_write),
        cmocka_unit_test(rollback_into_a_shared_page),
        cmocka_unit_test(pairs_of_a_list_do_not_meet),
        cmocka_unit_test(lists_keep_apart),
        cmocka_unit_test(little_is_wasted),
        cmocka_unit_test(stats_of_other_versions),
        cmocka_unit_test(random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
