/* Masks against the definition, key by key: an iterator may skip no visible key or row, "full" and bits are exact. */
#include "problem/sequence.h"
#include "support.h"

#include "mask/mask.h"
#include "ref/ref.h"

typedef struct sight {
    const check_problem *problem;
    attn_mask_view view;
    int64_t batch, head, len_q, len_kv;
} sight;

static bool sees(const sight *s, int64_t row, int64_t key)
{
    return attn_ref_visible(&s->problem->resolved, &s->problem->args, s->batch, s->head, row, key);
}

/* Rows of [row0, row1) that see the key. */
static int64_t seen_by(const sight *s, int64_t row0, int64_t row1, int64_t key)
{
    int64_t count = 0;
    for (int64_t i = row0; i < row1; i++)
        count += sees(s, i, key);
    return count;
}

static void check_tile(const sight *s, int64_t row0, int64_t row1, attn_mask_tile run, int64_t most, int64_t from)
{
    assert_true(from <= run.lo && run.lo < run.hi && run.hi <= s->len_kv && run.hi - run.lo <= most);
    for (int64_t j = run.lo; j < run.hi && run.full; j++)
        assert_int_equal(seen_by(s, row0, row1, j), row1 - row0);
    for (int64_t part0 = row0; part0 < row1; part0 += 6) {
        int64_t part1 = part0 + 6 < row1 ? part0 + 6 : row1;
        attn_mask_tile span = run, strip = run;
        attn_mask_span(&s->view, part0, part1, &span);
        attn_mask_strip(&s->view, part0, part1, &strip);
        for (int64_t j = run.lo; j < run.hi; j++) {
            int64_t seen = seen_by(s, part0, part1, j);
            bool inside = span.lo <= j && j < span.hi, within = strip.lo <= j && j < strip.hi;
            if (!inside || !within) assert_int_equal(seen, 0);
            if ((inside && span.full) || (within && strip.full)) assert_int_equal(seen, part1 - part0);
        }
        for (int64_t row = part0; row < part1 && strip.ranged; row++) {
            int64_t lo, hi;
            attn_mask_run(&s->view, row, &strip, &lo, &hi);
            for (int64_t j = strip.lo; j < strip.hi; j++)
                assert_int_equal(sees(s, row, j), lo <= j && j < hi);
        }
    }
}

static void check_rows(const sight *s, int64_t row0, int64_t row1, int64_t most)
{
    int64_t from = 0;
    attn_mask_tile run;
    while (from < s->len_kv && attn_mask_next(&s->view, row0, row1, from, most, &run)) {
        for (int64_t j = from; j < run.lo; j++)
            assert_int_equal(seen_by(s, row0, row1, j), 0);
        check_tile(s, row0, row1, run, most, from);
        from = run.hi;
    }
    for (int64_t j = from; j < s->len_kv; j++)
        assert_int_equal(seen_by(s, row0, row1, j), 0);
}

/* Along queries: no row that sees one of the keys is left out, and full is full. */
static void check_columns(const sight *s, int64_t key0, int64_t key1, int64_t most)
{
    int64_t from = 0;
    attn_mask_tile run;
    while (from < s->len_q && attn_mask_rows_next(&s->view, key0, key1, from, most, &run)) {
        assert_true(from <= run.lo && run.lo < run.hi && run.hi <= s->len_q && run.hi - run.lo <= most);
        for (int64_t j = key0; j < key1; j++) {
            assert_int_equal(seen_by(s, from, run.lo, j), 0);
            if (run.full) assert_int_equal(seen_by(s, run.lo, run.hi, j), run.hi - run.lo);
        }
        from = run.hi;
    }
    for (int64_t j = key0; j < key1; j++)
        assert_int_equal(seen_by(s, from, s->len_q, j), 0);
}

static void check_bits_of(const sight *s, int64_t row, int64_t key0, int64_t keys)
{
    uint64_t words[ATTN_MASK_MOST / 64];
    memset(words, 0xa5, sizeof words);
    bool all = attn_mask_row(&s->view, row, key0, keys, words), expected = true;
    for (int64_t j = 0; j < keys; j++) {
        bool visible = sees(s, row, key0 + j);
        expected &= visible;
        assert_int_equal(words[j / 64] >> (j % 64) & 1, visible);
    }
    assert_int_equal(all, expected);
}

static void check_head(const sight *s, uint64_t *state)
{
    if (s->len_q == 0) return;
    for (int i = 0; i < 4; i++) {
        int64_t row0 = check_below(state, s->len_q), rows = 1 + check_below(state, 40);
        int64_t row1 = row0 + rows < s->len_q ? row0 + rows : s->len_q;
        check_rows(s, row0, row1, i % 2 ? ATTN_KEYS_TILE : 1 + check_below(state, 100));
    }
    check_rows(s, 0, s->len_q, ATTN_KEYS_TILE);
    for (int i = 0; i < 4 && s->len_kv > 0; i++) {
        int64_t key0 = check_below(state, s->len_kv), keys = 1 + check_below(state, i % 2 ? 200 : 40);
        check_columns(s, key0, key0 + keys < s->len_kv ? key0 + keys : s->len_kv,
                      i < 2 ? ATTN_GRADIENT_TILE : 1 + check_below(state, 100));
    }
    for (int i = 0; i < 8 && s->len_kv > 0; i++) {
        int64_t key0 = check_below(state, s->len_kv), keys = 1 + check_below(state, ATTN_MASK_MOST);
        check_bits_of(s, check_below(state, s->len_q), key0, keys < s->len_kv - key0 ? keys : s->len_kv - key0);
    }
}

static attn_interval_node *summarize(const check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    int64_t nodes = attn_interval_node_count(desc), heads = nodes ? desc->interval_heads : 0;
    attn_interval_node *all = check_allocate((size_t)(nodes * heads * desc->batch) * sizeof *all);
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            attn_interval_summarize(desc, &problem->args, b, h, all + (b * heads + h) * nodes);
    return all;
}

static void check_problem_masks(const check_problem *problem)
{
    uint64_t state = problem->options.seed;
    attn_interval_node *nodes = summarize(problem);
    for (int64_t b = 0; b < problem->resolved.batch; b++)
        for (int64_t h = 0; h < problem->resolved.heads_q; h++) {
            attn_sequence seq = attn_sequence_of(&problem->resolved, &problem->args, b);
            sight s = { problem, .batch = b, .head = h, .len_q = seq.len_q, .len_kv = seq.len_kv };
            attn_mask_view_init(&s.view, &problem->resolved, &problem->args, nodes, b, h);
            check_head(&s, &state);
        }
    free(nodes);
}

/* The masks of the grid's smaller cases, from two seeds. */
static void masks_are_what_they_mean(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        check_grid *grid = check_grid_create(seed);
        for (int n = 0; n < grid->count; n += test_scale()) {
            attn_desc desc;
            check_options options;
            check_problem problem;
            check_grid_case(grid, n, ATTN_FORWARD, INT64_MAX, &desc, &options);
            if (desc.len_q * desc.len_kv > 300 * 300) continue;
            desc.dim_qk = desc.dim_v = 1;
            assert_ok(check_problem_create(&problem, &desc, &options));
            check_problem_masks(&problem);
            check_problem_destroy(&problem);
        }
        free(grid);
    }
}

/* Where ranges, or intervals alike over whole nodes of the summary, decide, rows that see nothing are left out. */
static void rows_that_see_nothing_are_skipped(void **state)
{
    (void)state;
    enum { LENGTH = 1024, DOCUMENT = 256 };
    attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = LENGTH, .len_kv = LENGTH, .dim_qk = 1 };
    desc.flags = ATTN_CAUSAL | ATTN_WINDOW, desc.window_left = 50;
    check_problem problem;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ 0 }));
    attn_mask_view view;
    attn_mask_tile rows;
    attn_mask_view_init(&view, &problem.resolved, &problem.args, NULL, 0, 0);
    assert_true(attn_mask_rows_next(&view, 400, 500, 0, LENGTH, &rows));
    assert_true(rows.lo == 400 && rows.hi == 550 && !rows.full);
    assert_false(attn_mask_rows_next(&view, 400, 500, rows.hi, LENGTH, &rows));
    check_problem_destroy(&problem);

    static int32_t intervals[LENGTH][4]; /* a document sees itself alone */
    for (int j = 0; j < LENGTH; j++)
        intervals[j][0] = j / DOCUMENT * DOCUMENT + DOCUMENT, intervals[j][1] = LENGTH, intervals[j][2] = 0,
        intervals[j][3] = j / DOCUMENT * DOCUMENT;
    desc.flags = ATTN_INTERVALS, desc.window_left = 0, desc.interval_vectors = 4, desc.interval_heads = 1;
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ 0 }));
    problem.args.intervals = intervals[0];
    attn_interval_node *nodes = summarize(&problem);
    attn_mask_view_init(&view, &problem.resolved, &problem.args, nodes, 0, 0);
    assert_true(attn_mask_rows_next(&view, DOCUMENT, 2 * DOCUMENT, 0, LENGTH, &rows));
    assert_true(rows.lo == DOCUMENT && rows.hi == 2 * DOCUMENT && rows.full);
    assert_false(attn_mask_rows_next(&view, DOCUMENT, 2 * DOCUMENT, rows.hi, LENGTH, &rows));
    free(nodes);
    check_problem_destroy(&problem);
}

static void expect_strip(const attn_mask_view *view, int64_t row0, attn_mask_tile run, attn_mask_tile expected)
{
    attn_mask_strip(view, row0, row0 + 16, &run);
    bool empty = expected.lo == expected.hi;
    assert_true(empty ? run.lo >= run.hi : run.lo == expected.lo && run.hi == expected.hi && run.full == expected.full);
}

/* A run of listed blocks ends where row blocks begin to differ; a strip sees the blocks of its own. */
static void strips_see_their_own_blocks(void **state)
{
    (void)state;
    static const int32_t full[2][4] = { { 0, 2, 3 }, { 1, 2, 3 } }, counts[2] = { 3, 3 };
    static const attn_mask_tile none = { .hi = 0 }, runs[] = { { .lo = 0, .hi = 64 },
                                                               { .lo = 64, .hi = 128 },
                                                               { .lo = 128, .hi = 256, .full = true } };
    attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = 128, .len_kv = 256, .dim_qk = 1 };
    desc.flags = ATTN_BLOCKS, desc.block_rows = desc.block_keys = 64, desc.block_batch = desc.block_heads = 1;
    check_problem problem;
    attn_mask_view view;
    attn_mask_tile run = { .hi = 0 };
    assert_ok(check_problem_create(&problem, &desc, &(check_options){ 0 }));
    problem.args.block_full = full[0], problem.args.block_full_count = counts;
    problem.args.block_partial = problem.args.block_partial_count = NULL;
    attn_mask_view_init(&view, &problem.resolved, &problem.args, NULL, 0, 0);
    for (int i = 0; i < COUNT(runs); i++) {
        assert_true(attn_mask_next(&view, 0, 128, run.hi, 256, &run));
        assert_true(run.lo == runs[i].lo && run.hi == runs[i].hi && run.full == runs[i].full);
    }
    expect_strip(&view, 0, runs[0], (attn_mask_tile){ .hi = 64, .full = true });
    expect_strip(&view, 64, runs[0], none);
    expect_strip(&view, 0, runs[1], none);
    expect_strip(&view, 0, (attn_mask_tile){ .lo = 64, .hi = 256 },
                 (attn_mask_tile){ .lo = 128, .hi = 256, .full = true });
    expect_strip(&view, 0, (attn_mask_tile){ .hi = 256 }, (attn_mask_tile){ .hi = 256 });
    check_problem_destroy(&problem);
}

/* Rows across the border of two documents see one run each; of keys whose ends do not rise, more. */
static void documents_are_runs(void **state)
{
    (void)state;
    enum { LEN = 128, BORDER = 70 };
    int32_t ends[LEN][2];
    attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = LEN, .len_kv = LEN, .dim_qk = 1 };
    desc.flags = ATTN_INTERVALS, desc.interval_heads = 1;
    for (int both = 0; both < 2; both++) { /* causal ones have ends alone */
        desc.flags ^= ATTN_CAUSAL, desc.interval_vectors = 2 - !both;
        int32_t *end = ends[0];
        for (int32_t j = 0; j < LEN; j++) {
            *end++ = j < BORDER ? BORDER : LEN;
            if (both) *end++ = j < BORDER ? 0 : BORDER;
        }
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ 0 }));
        problem.args.intervals = ends[0];
        for (int swapped = 0; swapped < 2; swapped++) {
            if (swapped) ends[0][0] = LEN;
            attn_interval_node *nodes = summarize(&problem);
            sight s = { &problem, .len_q = LEN, .len_kv = LEN };
            attn_mask_tile strip = { .hi = LEN };
            attn_mask_view_init(&s.view, &problem.resolved, &problem.args, nodes, 0, 0);
            attn_mask_strip(&s.view, 64, 96, &strip);
            assert_true(!strip.full && strip.ranged == !swapped);
            check_rows(&s, 0, LEN, ATTN_KEYS_TILE);
            check_rows(&s, 64, 96, ATTN_KEYS_TILE);
            free(nodes);
        }
        problem.args.intervals = NULL;
        check_problem_destroy(&problem);
    }
}

/* Chunks begin at positions, not at keys: at one that key 0 does not have, before it and far from it. */
static void chunks_count_from_positions(void **state)
{
    (void)state;
    enum { ROWS = 70, KEYS = 90 };
    static const int64_t starts[] = { 0, 5, -3, 16, 1000003, -((int64_t)1 << 59), (int64_t)1 << 58 };
    for (int n = 0; n < 2 * COUNT(starts); n++) {
        int64_t position_kv = starts[n / 2], position_q = position_kv + (n % 2 ? 11 : KEYS - ROWS);
        attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = ROWS, .len_kv = KEYS, .dim_qk = 1 };
        desc.flags = ATTN_CHUNK | ATTN_POSITIONS, desc.chunk = 16;
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 1 }));
        problem.args.position_q = &position_q, problem.args.position_kv = &position_kv;
        check_problem_masks(&problem);
        check_problem_destroy(&problem);
    }
}

/* attn_mask_pairs counts what ranges leave visible exactly. */
static void pairs_are_counted(void **state)
{
    (void)state;
    static const int64_t windows[][2] = { { 0, 0 }, { 5, -1 }, { -1, 3 }, { 17, 40 }, { INT64_MAX, 2 } };
    static const int64_t lengths[][2] = { { 1, 1 }, { 60, 37 }, { 37, 60 }, { 64, 64 }, { 1, 90 }, { 0, 5 }, { 5, 0 } };
    static const int64_t chunks[] = { 1, 7, 32, 1000 };
    enum { VARIANTS = 2 * (COUNT(windows) + 1) * (COUNT(chunks) + 1) };
    for (int n = 0; n < VARIANTS * COUNT(lengths); n++) {
        int l = n / VARIANTS, w = n / 2 % (COUNT(windows) + 1), c = n / 2 / (COUNT(windows) + 1) % (COUNT(chunks) + 1);
        attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .dim_qk = 1, .flags = n % 2 ? ATTN_CAUSAL : 0 };
        desc.len_q = lengths[l][0], desc.len_kv = lengths[l][1];
        if (w) desc.flags |= ATTN_WINDOW, desc.window_left = windows[w - 1][0], desc.window_right = windows[w - 1][1];
        if (c) desc.flags |= ATTN_CHUNK, desc.chunk = chunks[c - 1];
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ 0 }));
        sight s = { &problem, .len_q = desc.len_q, .len_kv = desc.len_kv };
        int64_t pairs = 0;
        for (int64_t j = 0; j < s.len_kv; j++)
            pairs += seen_by(&s, 0, s.len_q, j);
        if (attn_mask_pairs(&problem.resolved) != (double)pairs)
            fail_msg("%lld x %lld, causal %d, window %d, chunk %d: %g pairs, not %lld", (long long)s.len_q,
                     (long long)s.len_kv, n % 2, w, c, attn_mask_pairs(&problem.resolved), (long long)pairs);
        check_problem_destroy(&problem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_they_mean),    cmocka_unit_test(rows_that_see_nothing_are_skipped),
        cmocka_unit_test(strips_see_their_own_blocks), cmocka_unit_test(documents_are_runs),
        cmocka_unit_test(chunks_count_from_positions), cmocka_unit_test(pairs_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
