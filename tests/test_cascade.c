/* Attention over keys in levels is attention over all of them: random batches, and what it refuses. */
#include "support.h"

#include "cascade_support.h"
#include "pool_support.h"

enum { PROBLEMS = 240 };

static cascade_arrays got, want;

static void run_cascade(const cascade_problem *p, cascade_arrays *at)
{
    attn_cascade_plan *plan;
    attn_cascade_keys keys[CASCADE_SHARED];
    attn_args args = cascade_args(p, at, false);
    cascade_shared_keys(p, at, keys);
    assert_ok(attn_cascade_plan_create(&plan, &p->own, p->level, p->levels));
    char *workspace = malloc(attn_cascade_plan_workspace(plan) + 1);
    assert_ok(attn_cascade_run(plan, &args, keys, workspace + 1, NULL));
    free(workspace);
    attn_cascade_plan_destroy(plan);
}

static void levels_are_all_keys(void **state)
{
    (void)state;
    for (int n = 0; n < PROBLEMS; n += test_scale()) {
        cascade_problem p = cascade_draw(&got, n, (attn_dtype)(ATTN_F32 + n % 3));
        want = got;
        run_cascade(&p, &got);
        assert_ok(cascade_run_all(&p, &want));
        int64_t line = cascade_difference(&p, &got, &want);
        if (line >= 0) fail_msg("problem %d: line %lld differs", n, (long long)line);
    }
}

/* Keys of a byte in pages, with a scale for each block of a page, or each slot, and head. */
static void make_bytes(attn_desc *d, int n)
{
    d->kv_dtype = n % 2 ? ATTN_I8 : ATTN_E4M3;
    if (n % 5 == 0) d->dtype = ATTN_E4M3;
    if (d->dtype == ATTN_E4M3) d->kv_dtype = ATTN_E4M3;
    d->flags |= ATTN_SCALES_KV;
    d->k_scale_rows = n % 3 ? 1 : 64, d->v_scale_rows = 1;
    memcpy(d->k_scale_stride, (int64_t[]){ d->page_size * d->heads_kv, d->heads_kv, 1, 0 }, sizeof d->k_scale_stride);
    memcpy(d->v_scale_stride, (int64_t[]){ d->page_size * d->heads_kv, d->heads_kv, 1, 0 }, sizeof d->v_scale_stride);
}

static void levels_of_bytes_are_all_keys(void **state)
{
    (void)state;
    for (int n = 0; n < PROBLEMS / 4; n += test_scale()) {
        cascade_problem p = cascade_draw(&got, n, (attn_dtype)(ATTN_F32 + n % 3));
        uint64_t random = (uint64_t)n;
        make_bytes(&p.own, n), make_bytes(&p.all, n);
        for (int64_t i = 0; i < CASCADE_SLOTS * CASCADE_WIDTH; i++) {
            attn_store_scalar(p.own.kv_dtype, got.k, i, 30 * check_normal(&random));
            attn_store_scalar(p.own.kv_dtype, got.v, i, 30 * check_normal(&random));
        }
        for (int64_t i = 0; i < p.own.total_q * p.own.heads_q * p.own.dim_qk && p.own.dtype == ATTN_E4M3; i++)
            attn_store_scalar(ATTN_E4M3, got.q, i, check_normal(&random));
        for (int i = 0; i < CASCADE_SLOTS * 4; i++)
            got.k_scale[i] = 0.02f + 0.0001f * (float)(i % 300), got.v_scale[i] = 0.05f - 0.0001f * (float)(i % 500);
        want = got;
        run_cascade(&p, &got);
        assert_ok(cascade_run_all(&p, &want));
        int64_t line = cascade_difference(&p, &got, &want);
        if (line >= 0) fail_msg("problem %d: line %lld differs", n, (long long)line);
    }
}

/* The same bits for any number of threads. */
static void fixed_order(void **state)
{
    (void)state;
    for (int n = 0; n < 12; n++) {
        cascade_problem p = cascade_draw(&got, n, ATTN_BF16);
        p.own.flags |= ATTN_DETERMINISTIC;
        want = got;
        p.own.threads = 1;
        run_cascade(&p, &got);
        p.own.threads = 3;
        run_cascade(&p, &want);
        assert_memory_equal(got.o, want.o, sizeof got.o);
        assert_memory_equal(got.lse, want.lse, sizeof got.lse);
    }
}

/* ---- the levels of a pool's batch ------------------------------------------------------------- */

enum { WIDTH = 64, MEMBERS = 24, DEEP = 3 };

typedef struct level_arrays {
    int32_t cu_lens_q[MEMBERS + 1], lens_kv[MEMBERS], table[MEMBERS * WIDTH];
} level_arrays;

static level_arrays level_of[DEEP + 1];
static attn_pool_level levels[DEEP + 1];

/* Sequences in random order of random forks, of 4 tokens a page. */
static int64_t draw_sequences(fixture *f, attn_seq seqs[MEMBERS], uint64_t *random)
{
    int64_t count = 1 + check_below(random, MEMBERS);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = check_below(random, i + 1);
        seqs[i] = from < i && check_chance(random, 80) ? fork_of(f, seqs[i - 1 - (check_chance(random, 20) ? from : 0)])
                                                       : create(f, 0);
        f->copies.count = 0;
        assert_ok(attn_seq_append(f->pool, seqs[i], NULL, check_below(random, 14), copies_of(f)));
    }
    for (int64_t i = 0; i < count; i++) {
        if (check_chance(random, 10)) assert_ok(attn_seq_drop(f->pool, seqs[i], attn_seq_length(f->pool, seqs[i]) / 2));
        if (check_chance(random, 10)) seqs[i] = (attn_seq){ 0 };
    }
    return count;
}

/* Level by level a sequence's pages are those of its table, and its keys all of its keys. */
static void check_levels(const fixture *f, const attn_seq *seqs, int64_t count, const int32_t *rows, int64_t least)
{
    static int32_t table[MEMBERS * WIDTH], lens[MEMBERS];
    assert_ok(attn_pool_tables(f->pool, seqs, count, table, WIDTH, lens));
    int64_t saved[DEEP + 1] = { 0 };
    for (int n = 0; n < DEEP; n++)
        for (int64_t group = 0; group < levels[n].groups; group++)
            saved[n] -= levels[n].lens_kv[group];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0, keys = 0;
        for (int n = 0; n <= DEEP; n++) {
            int64_t group = n == DEEP ? i : 0;
            while (n < DEEP && levels[n].cu_lens_q[group + 1] <= rows[i])
                group++;
            int64_t len = levels[n].lens_kv[group], pages = (len + 3) / 4;
            if (n < DEEP && len) assert_true(len % 4 == 0 && len >= least);
            assert_memory_equal(levels[n].table + group * WIDTH, table + i * WIDTH + at, (size_t)pages * 4);
            at += pages, keys += len;
            if (n < DEEP) saved[n] += len;
        }
        assert_int_equal(keys, lens[i]);
        if (lens[i]) assert_true(levels[DEEP].lens_kv[i] >= rows[i + 1] - rows[i]);
    }
    for (int n = 0; n <= DEEP; n++)
        assert_int_equal(levels[n].saved, saved[n]);
}

static void levels_of_a_pool(void **state)
{
    (void)state;
    int64_t shared[DEEP] = { 0 };
    for (int n = 0; n < 400; n++) {
        uint64_t random = (uint64_t)n;
        fixture f = make((attn_pool_desc){ .pages = 400, .page_size = 4, .sequences = MEMBERS, .width = 100 });
        attn_seq seqs[MEMBERS];
        int32_t rows[MEMBERS + 1] = { 0 };
        int64_t count = draw_sequences(&f, seqs, &random), least = 1 + check_below(&random, 9);
        for (int64_t i = 0; i < count; i++) {
            int64_t length = seqs[i].generation ? attn_seq_length(f.pool, seqs[i]) : 0;
            if (length == 0) seqs[i] = (attn_seq){ 0 };
            rows[i + 1] = rows[i] + 1 + (int32_t)check_below(&random, length > 2 ? 3 : length > 0 ? length : 1);
        }
        for (int i = 0; i <= DEEP; i++)
            levels[i] = (attn_pool_level){ level_of[i].cu_lens_q, level_of[i].lens_kv, level_of[i].table, 0, 0 };
        assert_ok(attn_pool_levels(f.pool, seqs, count, rows, least, WIDTH, levels, DEEP));
        check_levels(&f, seqs, count, rows, least);
        for (int i = 0; i < DEEP; i++)
            shared[i] += levels[i].groups < count;
        free(f.memory);
    }
    for (int i = 0; i < DEEP; i++) /* groups of several are not rare */
        assert_true(shared[i] > 20);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void descriptors_are_refused(void **state)
{
    (void)state;
    cascade_problem p = cascade_draw(&got, 2, ATTN_F32);
    attn_cascade_plan *plan = NULL;
    attn_desc d = p.own;
    refused(attn_cascade_plan_create(NULL, &d, p.level, p.levels), "plan = NULL");
    refused(attn_cascade_plan_create(&plan, NULL, p.level, p.levels), "desc is NULL");
    refused(attn_cascade_plan_create(&plan, &d, NULL, p.levels), "levels is NULL");
    refused(attn_cascade_plan_create(&plan, &d, p.level, 0), "count = 0 is not in 1 to 8");
    refused(attn_cascade_plan_create(&plan, &d, p.level, 9), "count = 9");
    refused(attn_cascade_plan_create_sized(&plan, &d, sizeof d, p.level, 0, 1), "level_size = 0");
    d.flags |= ATTN_WINDOW, d.window_left = d.window_right = -1;
    refused(attn_cascade_plan_create(&plan, &d, p.level, p.levels), "beside what it needs");
    d = p.own, d.visible_share = 0.5;
    refused(attn_cascade_plan_create(&plan, &d, p.level, p.levels), "visible_share = 0.5: a cascade takes none");
    d.visible_share = 0;
    d.kv_dtype = ATTN_I8, d.flags |= ATTN_SCALES_KV, d.k_scale_stride[0] = 4;
    refused(attn_cascade_plan_create(&plan, &d, p.level, p.levels),
            "k_scale_stride[0] = 4: keys that sequences share have no scales of a sequence");
    d.k_scale_stride[0] = 0, d.v_scale_stride[0] = 3;
    refused(attn_cascade_plan_create(&plan, &d, p.level, p.levels), "v_scale_stride[0] = 3: keys that");
    d = p.own, d.flags = 0, d.softcap = 0, d.pages = d.page_size = d.table_width = d.total_q = 0;
    refused(attn_cascade_plan_create(&plan, &d, p.level, p.levels), "needs ATTN_VARLEN, ATTN_PAGED");
    p.level[1].groups = -1;
    refused(attn_cascade_plan_create(&plan, &p.own, p.level, p.levels), "levels[1]: groups = -1 is below 0");
    p.level[1].groups = 1, p.level[0].kernel = "none";
    refused(attn_cascade_plan_create(&plan, &p.own, p.level, p.levels), "levels[0]: kernel");
    assert_null(plan);
    refused((attn_cascade_plan_destroy(NULL), attn_cascade_run(NULL, NULL, NULL, NULL, NULL)), "plan = NULL");
    assert_int_equal(attn_cascade_plan_workspace(NULL), 0);
    assert_int_equal(attn_cascade_plan_describe(NULL, NULL, 0), 0);
}

static void arguments_are_refused(void **state)
{
    (void)state;
    int number = 0;
    cascade_problem p = cascade_draw(&got, number, ATTN_F32);
    while (!(p.own.flags & ATTN_CAUSAL))
        p = cascade_draw(&got, ++number, ATTN_F32);
    attn_cascade_plan *plan;
    attn_cascade_keys keys[CASCADE_SHARED];
    attn_args good = cascade_args(&p, &got, false), bad = good;
    cascade_level_arrays *level = &got.level[0], *own = &got.level[p.levels];
    cascade_shared_keys(&p, &got, keys);
    assert_ok(attn_cascade_plan_create(&plan, &p.own, p.level, p.levels));
    char *workspace = malloc(attn_cascade_plan_workspace(plan));
    refused(attn_cascade_run(plan, NULL, keys, workspace, NULL), "args is NULL");
    refused(attn_cascade_run(plan, &good, NULL, workspace, NULL), "shared is NULL");
    refused(attn_cascade_run(plan, &good, keys, NULL, NULL), "workspace = NULL");
    bad.o = got.k;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "overlap");
    bad.o = workspace + attn_cascade_plan_workspace(plan) / 8 * 8 - 8;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "overlaps o = 0x");
    keys[0].page_table = (int32_t *)(void *)workspace;
    refused(attn_cascade_run(plan, &good, keys, workspace, NULL), "shared[0]: workspace = 0x");
    cascade_shared_keys(&p, &got, keys);
    bad = good, bad.page_table = NULL;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "page_table");
    keys[0].page_table = NULL;
    refused(attn_cascade_run(plan, &good, keys, workspace, NULL), "shared[0]: page_table");
    cascade_shared_keys(&p, &got, keys);
    bad = good, bad.o = level->cu_lens_q;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "shared[0]: o overlaps cu_lens_q");
    bad.o = level->lens_kv;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "shared[0]: o overlaps");
    bad = good, bad.lse = (float *)(void *)level->table;
    refused(attn_cascade_run(plan, &bad, keys, workspace, NULL), "shared[0]: lse overlaps page_table");
    for (int64_t b = 0; b < p.own.batch; b++) {
        int32_t kept = own->lens_kv[b], rows = own->cu_lens_q[b + 1] - own->cu_lens_q[b];
        own->lens_kv[b] = rows - 1;
        if (rows > 1 || (rows == 1 && got.all.lens_kv[b] > kept)) /* those without any key pad the batch */
            refused(attn_cascade_run(plan, &good, keys, workspace, NULL), "keys of their own");
        own->lens_kv[b] = 0;
        if (rows > 0 && got.all.lens_kv[b] > kept)
            refused(attn_cascade_run(plan, &good, keys, workspace, NULL), "keys of their own");
        own->lens_kv[b] = kept;
    }
    level->lens_kv[0] = (int32_t)p.level[0].len_kv + 1;
    refused(attn_cascade_run(plan, &good, keys, workspace, NULL), "shared[0]: lens_kv[0]");
    for (size_t i = 0; i < sizeof got.o; i++) /* nothing was written */
        assert_int_equal((unsigned char)got.o[i], 0xff);
    free(workspace);
    attn_cascade_plan_destroy(plan);
}

static void levels_are_refused(void **state)
{
    (void)state;
    fixture f = make(small());
    int32_t rows[3] = { 0, 1, 4 };
    attn_seq seqs[2] = { create(&f, 0), create(&f, 0) };
    append(&f, seqs[0], 0, 9);
    append(&f, seqs[1], 0, 3);
    for (int i = 0; i <= DEEP; i++)
        levels[i] = (attn_pool_level){ level_of[i].cu_lens_q, level_of[i].lens_kv, level_of[i].table, 0, 0 };
    assert_ok(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 1));
    refused(attn_pool_levels(NULL, seqs, 2, rows, 1, 3, levels, 1), "pool is NULL");
    refused(attn_pool_levels(f.pool, NULL, 2, rows, 1, 3, levels, 1), "seqs is NULL");
    refused(attn_pool_levels(f.pool, seqs, 2, NULL, 1, 3, levels, 1), "cu_lens_q is NULL");
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, NULL, 1), "level is NULL");
    refused(attn_pool_levels(f.pool, seqs, -1, rows, 1, 3, levels, 1), "count = -1");
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 0, 3, levels, 1), "least = 0");
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 2, levels, 1), "width = 2: sequence 0 has 3 pages");
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 0), "levels = 0");
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 9), "levels = 9");
    rows[2] = 5;
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 1), "4 rows, but the sequence has 3 tokens");
    rows[0] = 1, rows[2] = 4;
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 1), "cu_lens_q[0] = 1 is not 0");
    attn_seq padded[3] = { seqs[0], { 0 }, seqs[1] };
    const int32_t falling[] = { 0, 1, 0, 2 }, rising[] = { 0, 1, 2, 3 };
    refused(attn_pool_levels(f.pool, padded, 3, falling, 1, 3, levels, 1),
            "cu_lens_q[2] = 0 is below the one before, 1");
    assert_ok(attn_pool_levels(f.pool, padded, 3, rising, 1, 3, levels, 1));
    rows[0] = 0, levels[1].table = NULL;
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 1), "level[1] has no table");
    levels[1].table = level_of[1].table;
    assert_ok(attn_seq_free(f.pool, seqs[1]));
    refused(attn_pool_levels(f.pool, seqs, 2, rows, 1, 3, levels, 1), "");
    done(&f);
}

static void plans_are_described(void **state)
{
    (void)state;
    cascade_problem p = cascade_draw(&got, 1, ATTN_BF16);
    attn_cascade_plan *plan;
    char text[8192], part[100];
    assert_ok(attn_cascade_plan_create(&plan, &p.own, p.level, p.levels));
    size_t length = attn_cascade_plan_describe(plan, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "level 1: keys that groups of sequences share\nproblem    forward, bf16"));
    assert_non_null(strstr(text, "level 2: each sequence's own keys\nproblem    forward, bf16"));
    assert_non_null(strstr(text, "merge of 3 parts"));
    assert_non_null(strstr(text, "; if every sequence read all of its keys"));
    assert_non_null(strstr(text, "levels pay where they save"));
    assert_int_equal(attn_cascade_plan_describe(plan, NULL, 0), length);
    assert_int_equal(attn_cascade_plan_describe(plan, part, sizeof part), length);
    assert_int_equal(strlen(part), sizeof part - 1);
    assert_memory_equal(part, text, sizeof part - 1);
    attn_cascade_info info;
    assert_ok(attn_cascade_plan_get_info(plan, &info));
    assert_true(info.seconds > 0 && info.seconds_alone > 0 && info.saved_least > 0);
    assert_true(info.seconds_captured == info.seconds);
    assert_int_equal(info.workspace_bytes, attn_cascade_plan_workspace(plan));
    refused(attn_cascade_plan_get_info(plan, NULL), "info = NULL");
    refused(attn_cascade_plan_get_info(NULL, &info), "plan = NULL");
    attn_cascade_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_all_keys),   cmocka_unit_test(levels_of_bytes_are_all_keys),
        cmocka_unit_test(fixed_order),           cmocka_unit_test(descriptors_are_refused),
        cmocka_unit_test(arguments_are_refused), cmocka_unit_test(plans_are_described),
        cmocka_unit_test(levels_of_a_pool),      cmocka_unit_test(levels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
