/* Sequences of a pool: prefixes that are found, pinned, evicted and kept apart; windows, tables, moves. */
#include "pool_support.h"

/* ---- prefixes ---------------------------------------------------------------------------------- */

static void prefixes_are_found_and_pinned(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 5), b = create(&f, 5), c = create(&f, 6);
    append(&f, a, 0, 11);
    assert_int_equal(match(&f, b, 0, 11), 0); /* not yet published */
    assert_ok(attn_seq_publish(f.pool, a));
    assert_int_equal(match(&f, c, 0, 11), 0); /* another salt */
    assert_int_equal(match(&f, b, 0, 11), 8);
    assert_int_equal(page(&f, a, 1), page(&f, b, 1));
    assert_ok(attn_seq_free(f.pool, a));
    assert_ok(attn_seq_free(f.pool, b));
    assert_int_equal(stats_of(&f).cached, 2);
    assert_int_equal(match(&f, c, 4, 4), 0); /* the tokens of page 1, but not what comes before */
    a = create(&f, 5);
    assert_int_equal(match(&f, a, 0, 7), 4);
    append(&f, c, 100, 28); /* seven pages: only what nobody holds can go */
    assert_int_equal(stats_of(&f).evicted, 1);
    b = create(&f, 5);
    assert_int_equal(match(&f, b, 0, 11), 4);
    is_full(attn_seq_append(f.pool, c, &(int32_t){ 0 }, 1, NULL), "1 pages are needed, and 0 are free or cached");
    done(&f);
}

/* The least recently used goes first, of one sequence the end before the beginning. */
static void eviction_is_in_order(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b = create(&f, 0), c = create(&f, 0);
    append(&f, a, 0, 12);
    append(&f, b, 100, 12);
    assert_ok(attn_seq_publish(f.pool, a));
    assert_ok(attn_seq_publish(f.pool, b));
    assert_ok(attn_seq_free(f.pool, a));
    assert_ok(attn_seq_free(f.pool, b));
    a = create(&f, 0);
    assert_int_equal(match(&f, a, 0, 4), 4); /* page 0 of a is used again, and given back later than all of b */
    assert_ok(attn_seq_free(f.pool, a));
    append(&f, c, 1000, 16); /* two are free, a's last two go */
    assert_int_equal(stats_of(&f).evicted, 2);
    assert_int_equal(match(&f, b = create(&f, 0), 100, 12), 12);
    assert_ok(attn_seq_free(f.pool, b));
    append(&f, c, 1016, 4); /* a's first page is the oldest now */
    a = create(&f, 0);
    assert_int_equal(match(&f, a, 0, 12), 0);
    append(&f, c, 1020, 8); /* b's pages 2 and 1 */
    b = create(&f, 0);
    assert_int_equal(match(&f, b, 100, 12), 4);
    done(&f);
}

/* Whatever the hash says, nobody gets other tokens' pages, nor a prefix of another salt. */
static void collisions_serve_nobody(void **state)
{
    (void)state;
    attn_pool_desc desc = small();
    desc.pages = 64, desc.width = 16;
    fixture f = make(desc);
    f.pool->hash_mask = 0;
    for (int32_t i = 0; i < 5; i++) {
        attn_seq seq = create(&f, (uint64_t)i % 2);
        append(&f, seq, 10 * i, 8);
        assert_ok(attn_seq_publish(f.pool, seq));
        assert_ok(attn_seq_free(f.pool, seq));
    }
    for (int32_t i = 0; i < 5; i++)
        for (uint64_t salt = 0; salt < 2; salt++) {
            attn_seq seq = create(&f, salt);
            assert_int_equal(match(&f, seq, 10 * i, 8), salt == (uint64_t)i % 2 ? 8 : 0);
            assert_ok(attn_seq_free(f.pool, seq));
            seq = create(&f, salt);
            assert_int_equal(match(&f, seq, 10 * i + 4, 4), 0); /* a page in the middle is no beginning */
            assert_ok(attn_seq_free(f.pool, seq));
        }
    done(&f);
}

/* A parent that was evicted and written anew is another one: what followed the old one is not found after the new. */
static void children_of_the_evicted_are_not_found(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq b = create(&f, 0), c, d;
    append(&f, b, 0, 8);
    assert_ok(attn_seq_publish(f.pool, b));
    assert_int_equal(stats_of(&f).indexed, 2);
    assert_ok(attn_seq_drop(f.pool, b, 4));
    c = create(&f, 0);
    append(&f, c, 50, 28); /* b's first page is evicted, and holds something else */
    assert_int_equal(stats_of(&f).evicted, 1);
    assert_ok(attn_seq_publish(f.pool, c));
    d = create(&f, 0);
    assert_int_equal(match(&f, d, 0, 8), 0);
    assert_ok(attn_seq_free(f.pool, d));
    d = create(&f, 0);
    assert_int_equal(match(&f, d, 50, 28), 28);
    done(&f);
}

/* Two sequences compute the same pages; whoever lives has them found, though the other's were given away. */
static void what_several_published_is_found_while_one_lives(void **state)
{
    (void)state;
    for (int first_goes = 0; first_goes < 2; first_goes++)
        for (int again = 0; again < 2; again++) {
            fixture f = make(small());
            attn_seq two[2] = { create(&f, 0), create(&f, 0) }, other = create(&f, 0), found = create(&f, 0);
            for (int i = 0; i < 2; i++) {
                append(&f, two[i], 0, 8);
                assert_ok(attn_seq_publish(f.pool, two[i]));
            }
            assert_int_equal(stats_of(&f).indexed, 2);
            attn_seq stays = two[first_goes];
            assert_ok(attn_seq_free(f.pool, two[!first_goes]));
            assert_int_equal(stats_of(&f).cached, 0); /* its tokens are held: they need no second page */
            append(&f, other, 50, 24);                /* all pages but those that are held */
            if (again) assert_ok(attn_seq_publish(f.pool, stays));
            assert_int_equal(match(&f, found, 0, 8), 8);
            assert_int_equal(page(&f, found, 1), page(&f, stays, 1));
            assert_ok(attn_seq_free(f.pool, found));
            assert_ok(attn_seq_free(f.pool, stays));
            assert_int_equal(stats_of(&f).cached, 2);
            done(&f);
        }
}

/* The same where the other's page is rewritten, and where it was cached when its tokens were computed again. */
static void what_is_computed_again_is_found(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b = create(&f, 0), c;
    append(&f, a, 0, 8);
    append(&f, b, 0, 8);
    assert_ok(attn_seq_publish(f.pool, a));
    assert_ok(attn_seq_publish(f.pool, b));
    assert_ok(attn_seq_truncate(f.pool, a, 7));
    append(&f, a, 70, 1);
    assert_int_equal(match(&f, c = create(&f, 0), 0, 8), 8);
    assert_ok(attn_seq_free(f.pool, c));
    assert_ok(attn_seq_free(f.pool, b));
    assert_int_equal(stats_of(&f).cached, 1); /* page 0 is a's, too */
    b = create(&f, 0);
    assert_int_equal(match(&f, b, 0, 7), 4);
    append(&f, b, 4, 4);
    assert_ok(attn_seq_publish(f.pool, b)); /* beside the cached page */
    append(&f, a, 100, 20);                 /* which is evicted */
    assert_int_equal(stats_of(&f).evicted, 1);
    assert_int_equal(match(&f, create(&f, 0), 0, 8), 8);
    done(&f);
}

static void own_pages_leave_the_index_when_rewritten(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b;
    append(&f, a, 0, 8);
    assert_ok(attn_seq_publish(f.pool, a));
    assert_ok(attn_seq_truncate(f.pool, a, 6));
    assert_int_equal(match(&f, b = create(&f, 0), 0, 8), 8); /* still there, as it was */
    assert_ok(attn_seq_free(f.pool, b));
    append(&f, a, 70, 2);
    assert_int_equal(f.copies.count, 0);
    assert_int_equal(match(&f, b = create(&f, 0), 0, 8), 4);
    assert_ok(attn_seq_free(f.pool, b));
    assert_ok(attn_seq_publish(f.pool, a));
    int32_t tokens[8] = { 0, 1, 2, 3, 4, 5, 70, 71 };
    int64_t matched;
    b = create(&f, 0);
    assert_ok(attn_seq_match(f.pool, b, tokens, 8, &matched));
    assert_int_equal(matched, 8);
    assert_ok(attn_seq_truncate(f.pool, a, 7)); /* now b holds the page too: a goes on in a copy */
    append(&f, a, 9, 1);
    assert_int_equal(f.copies.count, 1);
    done(&f);
}

static void forgotten_prefixes(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b = create(&f, 0);
    append(&f, a, 0, 8);
    append(&f, b, 100, 8);
    assert_ok(attn_seq_publish(f.pool, a));
    assert_ok(attn_seq_publish(f.pool, b));
    assert_ok(attn_seq_free(f.pool, b));
    assert_ok(attn_pool_forget(f.pool));
    attn_pool_stats stats = stats_of(&f);
    assert_int_equal(stats.cached + stats.indexed, 0);
    assert_int_equal(stats.free, 6);
    assert_int_equal(match(&f, create(&f, 0), 0, 8), 0);
    append(&f, a, 8, 4);
    done(&f);
}

/* ---- windows, tables, moves -------------------------------------------------------------------- */

static void windows_drop_pages(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq a = create(&f, 0), b, c;
    append(&f, a, 0, 18);
    assert_ok(attn_seq_publish(f.pool, a));
    assert_ok(attn_seq_drop(f.pool, a, 11));
    assert_ok(attn_seq_drop(f.pool, a, 3)); /* nothing more */
    assert_int_equal(page(&f, a, 1), -1);
    assert_true(page(&f, a, 2) >= 0);
    assert_int_equal(attn_seq_length(f.pool, a), 18);
    assert_int_equal(stats_of(&f).used, 3);
    assert_int_equal(stats_of(&f).cached, 2);
    b = fork_of(&f, a);
    assert_int_equal(page(&f, b, 0), -1);
    refused(attn_seq_truncate(f.pool, a, 7), "length = 7 is not in 8 to 18: tokens below it were dropped");
    append(&f, a, 18, 6); /* publishing goes on after what was dropped */
    assert_ok(attn_seq_publish(f.pool, a));
    assert_int_equal(match(&f, c = create(&f, 0), 0, 24), 24);
    assert_ok(attn_seq_free(f.pool, c));
    assert_ok(attn_seq_truncate(f.pool, a, 8));
    assert_ok(attn_seq_free(f.pool, b));
    append(&f, a, 70, 4);
    assert_ok(attn_seq_publish(f.pool, a));
    c = create(&f, 0);
    append(&f, c, 200, 8);
    assert_ok(attn_seq_drop(f.pool, c, 8));
    append(&f, c, 208, 4);
    assert_ok(attn_seq_publish(f.pool, c)); /* its beginning went unpublished: nothing */
    assert_int_equal(match(&f, create(&f, 0), 200, 12), 0);
    done(&f);
}

static void tables_of_many(void **state)
{
    (void)state;
    fixture f = make(small());
    attn_seq seqs[4] = { create(&f, 0), { 0 }, create(&f, 0), create(&f, 0) };
    append(&f, seqs[0], 0, 9);
    append(&f, seqs[3], 0, 4);
    assert_ok(attn_seq_drop(f.pool, seqs[0], 4));
    int32_t table[4][4], lens[4], starts[5], ids[5];
    memset(ids, 0x77, sizeof ids);
    assert_ok(attn_pool_tables(f.pool, seqs, 4, table[0], 4, lens));
    const int32_t want[4][4] = { { -1, 1, 2, -1 }, { -1, -1, -1, -1 }, { -1, -1, -1, -1 }, { 3, -1, -1, -1 } };
    const int32_t want_lens[4] = { 9, 0, 0, 4 }, want_starts[5] = { 0, 3, 3, 3, 4 }, want_ids[4] = { -1, 1, 2, 3 };
    assert_memory_equal(table, want, sizeof want);
    assert_memory_equal(lens, want_lens, sizeof lens);
    assert_ok(attn_pool_tables_csr(f.pool, seqs, 4, starts, ids, 4, lens));
    assert_memory_equal(starts, want_starts, sizeof starts);
    assert_memory_equal(ids, want_ids, sizeof want_ids);
    assert_int_equal(ids[4], 0x77777777);
    assert_memory_equal(lens, want_lens, sizeof lens);
    assert_ok(attn_pool_tables_csr(f.pool, NULL, 0, starts, NULL, 0, NULL));
    assert_ok(attn_pool_tables(f.pool, NULL, 0, NULL, 1, NULL));
    done(&f);
}

static void moved_out_and_in(void **state)
{
    (void)state;
    fixture f = make(small()), host = make(small());
    attn_seq a = create(&f, 3), b, out, in, held;
    append(&f, a, 0, 11);
    assert_ok(attn_seq_publish(f.pool, a));
    b = fork_of(&f, a);
    assert_ok(attn_seq_drop(f.pool, a, 4));
    assert_ok(attn_seq_create(host.pool, 0, &held));
    append(&host, held, 0, 28);
    is_full(attn_seq_move(f.pool, a, host.pool, &out, copies_of(&host)), "2 pages are needed, and 1 are free");
    assert_ok(attn_seq_truncate(host.pool, held, 1));
    assert_ok(attn_seq_move(f.pool, a, host.pool, &out, copies_of(&host)));
    assert_int_equal(host.copies.count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(host.pairs[2 * i], page(&f, b, i + 1));
        assert_int_equal(host.pairs[2 * i + 1], page(&host, out, i + 1));
    }
    assert_int_equal(attn_seq_length(f.pool, a), -1);
    assert_int_equal(attn_seq_length(host.pool, out), 11);
    assert_int_equal(page(&host, out, 0), -1);
    assert_int_equal(stats_of(&f).used, 3);
    assert_ok(attn_seq_move(host.pool, out, f.pool, &in, copies_of(&f)));
    append(&f, in, 11, 2);
    assert_int_equal(attn_seq_length(f.pool, in), 13);
    done(&f), done(&host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_found_and_pinned),
        cmocka_unit_test(eviction_is_in_order),
        cmocka_unit_test(collisions_serve_nobody),
        cmocka_unit_test(children_of_the_evicted_are_not_found),
        cmocka_unit_test(what_several_published_is_found_while_one_lives),
        cmocka_unit_test(what_is_computed_again_is_found),
        cmocka_unit_test(own_pages_leave_the_index_when_rewritten),
        cmocka_unit_test(forgotten_prefixes),
        cmocka_unit_test(windows_drop_pages),
        cmocka_unit_test(tables_of_many),
        cmocka_unit_test(moved_out_and_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
