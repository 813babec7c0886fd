/* Attention over ranks that are threads: forward and backward against the reference and against one device, by every
 * layout and schedule; the same bits twice; what is refused, by every rank; ranks that fail. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "support.h"

#include <pthread.h>
#include <time.h>

#include "parallel_support.h"

enum { RANKS_MOST = 8 };

/* ---- all ranks of a problem ------------------------------------------------------------------ */

typedef struct rank_of {
    const check_problem *problem;
    const attn_parallel_desc *how;
    const attn_engine *engine;
    char message[200];
} rank_of;

static void *run_rank(void *argument)
{
    rank_of *r = argument;
    parallel_part part = parallel_run(r->problem, r->how, r->engine, r->message);
    if (!r->message[0]) parallel_put_back(&part, r->problem);
    parallel_part_destroy(&part, r->problem);
    return NULL;
}

static void run_ranks(const check_problem *problem, const attn_parallel_desc *how, int ranks, const char *name)
{
    attn_thread_group *group;
    rank_of of[RANKS_MOST];
    pthread_t thread[RANKS_MOST];
    assert_ok(attn_thread_group_create(&group, ranks, 60));
    for (int r = 0; r < ranks; r++) {
        of[r] = (rank_of){ problem, how, attn_thread_group_engine(group, r), "" };
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &of[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < ranks; r++)
        if (of[r].message[0]) fail_msg("%s, rank %d of %d: %s", name, r, ranks, of[r].message);
    attn_thread_group_destroy(group);
}

/* ---- results --------------------------------------------------------------------------------- */

static void run_case(const parallel_case *c, attn_direction direction)
{
    check_problem problem;
    char what[200], message[200];
    attn_desc desc = parallel_desc_of(c, direction);
    check_options options = { .interval = c->interval, .seed = 7 + (uint64_t)(c - parallel_cases) };
    assert_ok(check_problem_create(&problem, &desc, &options));
    check_reference reference = check_reference_create(&problem);
    assert_ok(check_problem_run(&problem, &desc, NULL));
    parallel_errors one = parallel_errors_of(&problem, &reference);
    static const int numbers[] = { 2, 3, 5, 8 };
    for (int n = 0; n < 16; n++) {
        int ranks = numbers[n / 4];
        attn_parallel_desc how = { .layout = (attn_layout)(n % 2), .schedule = (attn_schedule)(1 + n / 2 % 2) };
        snprintf(what, sizeof what, "%s, %s, %d ranks, %s, %s", c->name, direction ? "backward" : "forward", ranks,
                 how.layout ? "zigzag" : "contiguous", how.schedule == ATTN_RING ? "ring" : "all-gather");
        parallel_refresh(&problem);
        run_ranks(&problem, &how, ranks, what);
        parallel_judge(&problem, &reference, &one, message);
        if (message[0]) fail_msg("%s: %s", what, message);
    }
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void forwards_are_one_devices(void **state)
{
    (void)state;
    for (int i = 0; i < PARALLEL_CASES; i += test_scale())
        run_case(&parallel_cases[i], ATTN_FORWARD);
}

static void backwards_are_one_devices(void **state)
{
    (void)state;
    for (int i = 0; i < PARALLEL_CASES; i += test_scale())
        run_case(&parallel_cases[i], ATTN_BACKWARD);
}

/* The same bits the second time, with other numbers of threads; by whichever schedule. */
static void bits_repeat(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        check_problem problem;
        attn_desc desc = parallel_desc_of(&parallel_cases[2], (attn_direction)(n % 2));
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 3 }));
        attn_parallel_desc how = { .layout = ATTN_ZIGZAG, .schedule = (attn_schedule)(1 + n / 2) };
        const check_buffer *out = n % 2 ? problem.gradients : &problem.o;
        unsigned char *first[3] = { NULL };
        int outs = n % 2 ? 3 : 1;
        for (int turn = 0; turn < 3; turn++) {
            problem.desc.threads = 1 + turn;
            parallel_refresh(&problem);
            run_ranks(&problem, &how, 4, "same bits");
            for (int i = 0; i < outs; i++) {
                if (!turn) memcpy(first[i] = check_allocate(out[i].size), out[i].data, out[i].size);
                assert_memory_equal(first[i], out[i].data, out[i].size);
            }
        }
        for (int i = 0; i < outs; i++)
            free(first[i]);
        check_problem_destroy(&problem);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

static attn_parallel_info predicted(const attn_desc *desc, const attn_parallel_desc *how, char *text, size_t size)
{
    attn_parallel_plan *plan;
    attn_parallel_info info;
    char whole[2000];
    assert_ok(attn_parallel_plan_create(&plan, desc, how, NULL));
    assert_ok(attn_parallel_plan_get_info(plan, &info));
    size_t length = attn_parallel_plan_describe(plan, whole, sizeof whole);
    assert_int_equal(length, strlen(whole));
    assert_int_equal(attn_parallel_plan_describe(plan, NULL, 0), length);
    if (text) snprintf(text, size, "%s%s", whole, info.why);
    attn_parallel_plan_destroy(plan);
    return info;
}

/* Every row and every key is one rank's. */
static void chunks_are_all_rows(void **state)
{
    (void)state;
    for (int n = 0; n < 60; n++) {
        int ranks = 1 + n % 9, len = 1 + n * 37 % 500;
        attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = len, .len_kv = 2 * len, .dim_qk = 8 };
        char row[500] = { 0 }, key[1000] = { 0 };
        for (int r = 0; r < ranks; r++) {
            attn_parallel_info info =
                predicted(&desc, &(attn_parallel_desc){ ranks, r, (attn_layout)(n % 2), ATTN_RING, 0, 0, 0 }, NULL, 0);
            int64_t rows = 0, keys = 0;
            for (int c = 0; c < info.chunks; c++) {
                assert_true(info.row_begin[c] == info.row_end[c] || info.row_begin[c] % 16 == 0);
                for (int64_t i = info.row_begin[c]; i < info.row_end[c]; i++, rows++)
                    assert_int_equal(row[i]++, 0);
                for (int64_t i = info.key_begin[c]; i < info.key_end[c]; i++, keys++)
                    assert_int_equal(key[i]++, 0);
            }
            assert_true(rows == info.rows && keys == info.keys);
        }
        for (int i = 0; i < len; i++)
            assert_true(row[i] && key[i] && key[len + i]);
    }
}

static const attn_desc long_causal = { .dtype = ATTN_BF16,
                                       .flags = ATTN_CAUSAL,
                                       .batch = 1,
                                       .heads_q = 32,
                                       .heads_kv = 8,
                                       .len_q = 1 << 20,
                                       .len_kv = 1 << 20,
                                       .dim_qk = 128,
                                       .threads = 2 };

/* Twice the ranks: the ring's memory halves, and the all-gather's stays. Zigzag ranks have the same work. */
static void memory_is_of_the_ranks_own(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        attn_desc desc = long_causal;
        desc.direction = (attn_direction)backward;
        attn_parallel_info info[2][2], last;
        for (int n = 0; n < 4; n++)
            info[n / 2][n % 2] = predicted(
                &desc, &(attn_parallel_desc){ 8 << n % 2, 0, ATTN_ZIGZAG, (attn_schedule)(1 + n / 2), 0, 0, 0 }, NULL,
                0);
        double all = (double)info[0][1].workspace_bytes / (double)info[0][0].workspace_bytes;
        double ring = (double)info[1][1].workspace_bytes / (double)info[1][0].workspace_bytes;
        if (!(ring > 0.49 && ring < 0.51 && all > 0.7))
            fail_msg("from 8 to 16 ranks: ring %g, all-gather %g", ring, all);
        last = predicted(&desc, &(attn_parallel_desc){ 8, 7, ATTN_ZIGZAG, ATTN_RING, 0, 0, 0 }, NULL, 0);
        assert_true(fabs(last.pairs / info[1][0].pairs - 1) < 0.01);
        assert_true(fabs(last.pairs * 8 / (32 * 0.5 * 0x1p40) - 1) < 0.01);
    }
}

static void schedules_have_reasons(void **state)
{
    (void)state;
    char text[2400];
    attn_parallel_desc how = { .ranks = 8, .layout = ATTN_ZIGZAG, .memory = (uint64_t)7 << 30 };
    assert_int_equal(predicted(&long_causal, &how, text, sizeof text).schedule, ATTN_RING);
    assert_non_null(strstr(text, "ring: gathering all keys would take"));
    how.memory = 0, how.link = 1e6; /* nothing hides a link as slow: the ring sends a quarter less */
    assert_int_equal(predicted(&long_causal, &how, text, sizeof text).schedule, ATTN_RING);
    attn_desc small = long_causal;
    small.len_q = small.len_kv = 512, how.link = 1e15;
    assert_int_equal(predicted(&small, &how, text, sizeof text).schedule, ATTN_ALL_GATHER);
    assert_non_null(strstr(text, "all-gather: predicted: ring"));
    assert_non_null(strstr(text, "rank       0 of 8, zigzag: rows 0 to 32, keys 0 to 32; rows 480 to 512"));
}

/* ---- what ranks refuse ----------------------------------------------------------------------- */

typedef struct visitor {
    attn_engine engine;
    attn_desc desc;
    attn_parallel_desc how;
    bool absent, no_q, no_room; /* it makes no call; it passes no q, or a workspace that is its q */
    int runs;
    attn_status status;
    double ended;
    char message[300];
} visitor;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *visit(void *argument)
{
    enum { ROWS = 64, ELEMENTS = ROWS * 2 * 16 };
    visitor *v = argument;
    attn_parallel_plan *plan;
    if (v->absent) return NULL;
    v->status = attn_parallel_plan_create(&plan, &v->desc, &v->how, &v->engine);
    if (!v->status) {
        attn_parallel_info info;
        attn_parallel_plan_get_info(plan, &info);
        float *tensor = check_allocate(4 * ELEMENTS * sizeof *tensor);
        memset(tensor, 0, 4 * ELEMENTS * sizeof *tensor);
        void *workspace = check_allocate(info.workspace_bytes);
        attn_args args = {
            .q = tensor, .k = tensor + ELEMENTS, .v = tensor + 2 * ELEMENTS, .o = tensor + 3 * ELEMENTS
        };
        if (v->no_q) args.q = NULL;
        if (v->no_room) args.q = workspace;
        for (int i = 0; i < v->runs && !v->status; i++)
            v->status = attn_parallel_run(plan, &args, workspace, NULL);
        attn_parallel_plan_destroy(plan);
        free(workspace), free(tensor);
    }
    snprintf(v->message, sizeof v->message, "%s", v->status ? attn_error() : "");
    v->ended = now();
    return NULL;
}

enum { VISITORS = 4 };

static void begin(attn_thread_group **group, visitor v[VISITORS], double timeout)
{
    assert_ok(attn_thread_group_create(group, VISITORS, timeout));
    for (int r = 0; r < VISITORS; r++)
        v[r] = (visitor){ .engine = *attn_thread_group_engine(*group, r),
                          .desc = { .dtype = ATTN_F32,
                                    .batch = 1,
                                    .heads_q = 2,
                                    .len_q = 256,
                                    .len_kv = 256,
                                    .dim_qk = 16,
                                    .threads = 1 },
                          .how = { .schedule = ATTN_RING },
                          .runs = 1 };
}

static void visit_all(visitor v[VISITORS])
{
    pthread_t thread[VISITORS];
    for (int r = 0; r < VISITORS; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, visit, &v[r]), 0);
    for (int r = 0; r < VISITORS; r++)
        pthread_join(thread[r], NULL);
}

static void expect_message(const visitor *v, attn_status status, const char *text)
{
    if (v->status != status || !strstr(v->message, text))
        fail_msg("rank %d: %s \"%s\", not %s \"%s\"", v->engine.rank, attn_status_name(v->status), v->message,
                 attn_status_name(status), text);
}

/* Rank 2 has something that is refused: all ranks' calls end, and the group goes on. */
static void all_ranks_refuse(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        attn_thread_group *group;
        visitor v[VISITORS];
        begin(&group, v, 60);
        if (n == 0) v[2].desc.dim_qk = 0;
        if (n == 1) v[2].no_q = true;
        if (n == 2) v[2].desc.len_q = 255;
        if (n == 3) v[2].no_room = true;
        visit_all(v);
        for (int r = 0; r < VISITORS; r++) {
            if (n == 2) expect_message(&v[r], ATTN_RANK_FAILED, "ranks 0 and 2 of 4 have different problems");
            if (n != 2 && r != 2) expect_message(&v[r], ATTN_RANK_FAILED, "rank 2 of 4 failed: ATTN_INVALID");
        }
        if (n == 0) expect_message(&v[2], ATTN_INVALID, "dim_qk = 0 is not in 1 to 512");
        if (n == 1) expect_message(&v[2], ATTN_INVALID, "q is NULL");
        if (n == 3) expect_message(&v[2], ATTN_INVALID, "workspace = 0x");
        for (int r = 0; r < VISITORS; r++)
            v[r].desc.dim_qk = 16, v[r].desc.len_q = 256, v[r].no_q = v[r].no_room = false;
        visit_all(v);
        for (int r = 0; r < VISITORS; r++)
            expect_message(&v[r], ATTN_OK, "");
        attn_thread_group_destroy(group);
    }
}

#define REFUSED(status, text, ...)                                                                                 \
    do {                                                                                                           \
        attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 2, .len_q = 64, .len_kv = 64, .dim_qk = 16 }; \
        attn_parallel_desc how = { .ranks = 2 };                                                                   \
        attn_parallel_plan *plan = NULL;                                                                           \
        __VA_ARGS__;                                                                                               \
        attn_status got = attn_parallel_plan_create(&plan, &desc, &how, NULL);                                     \
        if (got != ATTN_##status || plan || !strstr(attn_error(), text))                                           \
            fail_msg("line %d: %s \"%s\", not \"%s\"", __LINE__, attn_status_name(got), attn_error(), text);       \
    } while (0)

static void descriptors_are_refused(void **state)
{
    (void)state;
    REFUSED(INVALID, "ranks = 0 is not in 1 to 1024", how.ranks = 0);
    REFUSED(INVALID, "ranks = 1025 is not in 1 to 1024", how.ranks = 1025);
    REFUSED(INVALID, "rank = 2 is not in 0 to 1", how.rank = 2);
    REFUSED(INVALID, "layout = 2 is not", how.layout = (attn_layout)2);
    REFUSED(INVALID, "schedule = 3 is not", how.schedule = (attn_schedule)3);
    REFUSED(INVALID, "link = -1 is below 0", how.link = -1);
    REFUSED(INVALID, "memory = 100: this rank's workspace takes", how.memory = 100);
    REFUSED(INVALID, "heads_q = 0", desc.heads_q = 0);
    REFUSED(INVALID, "q_stride[3] = 2 is not 1", desc.q_stride[3] = 2);
    REFUSED(UNSUPPORTED, "dtype = 4", desc.dtype = ATTN_F64);
    REFUSED(UNSUPPORTED, "kv_dtype = e4m3: over ranks it is dtype", desc.kv_dtype = ATTN_E4M3);
    REFUSED(UNSUPPORTED, "out_dtype = e4m3: over ranks", desc.out_dtype = ATTN_E4M3);
    REFUSED(UNSUPPORTED, "ATTN_BITS", desc.flags = ATTN_BITS, desc.bits_batch = desc.bits_heads = 1);
    REFUSED(UNSUPPORTED, "ATTN_DROPOUT does not take ATTN_VARLEN", desc.flags = ATTN_DROPOUT | ATTN_VARLEN,
            desc.dropout_p = 0.5f, desc.total_q = desc.total_kv = 64);
    attn_desc desc = long_causal;
    attn_parallel_plan *plan;
    assert_ok(attn_parallel_plan_create(&plan, &desc, &(attn_parallel_desc){ .ranks = 2 }, NULL));
    assert_int_equal(attn_parallel_run(plan, &(attn_args){ 0 }, &desc, NULL), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "it has no engine"));
    attn_parallel_plan_destroy(plan);
    attn_thread_group *group;
    assert_int_equal(attn_thread_group_create(&group, 0, 1), ATTN_INVALID);
    assert_int_equal(attn_thread_group_create(&group, 2, 0), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "timeout = 0 is not above 0"));
    assert_ok(attn_thread_group_create(&group, 2, 1));
    assert_null(attn_thread_group_engine(group, 2));
    attn_engine none = *attn_thread_group_engine(group, 0);
    none.wait = NULL;
    assert_int_equal(attn_parallel_plan_create(&plan, &desc, &(attn_parallel_desc){ 0 }, &none), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "wait = NULL"));
    attn_thread_group_destroy(group);
}

/* ---- ranks that fail ------------------------------------------------------------------------- */

/* A rank that never comes ends the others' calls after the time-out, and all later ones at once. */
static void an_absent_rank_ends_the_others(void **state)
{
    (void)state;
    attn_thread_group *group;
    visitor v[VISITORS];
    begin(&group, v, 0.2);
    v[1].absent = true;
    visit_all(v);
    for (int r = 0; r < VISITORS; r++)
        if (r != 1) expect_message(&v[r], ATTN_RANK_FAILED, "all_gather failed");
    attn_thread_group_destroy(group);
}

/* An engine over another one, which counts, and whose exchange fails when it is told to. */
typedef struct counted {
    attn_engine inner;
    size_t sent;
    int fails_at, hangs_at, calls; /* 0: never */
} counted;

enum { HANGS = 2 }; /* seconds */

static int counted_exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                            size_t receive_bytes, void *stream)
{
    counted *c = context;
    c->sent += send_bytes;
    assert_true((to < 0) == !send_bytes && (from < 0) == !receive_bytes);
    if (++c->calls == c->fails_at) return 77;
    if (c->calls == c->hangs_at) nanosleep(&(struct timespec){ HANGS, 0 }, NULL);
    return c->inner.exchange(c->inner.context, to, send, send_bytes, from, receive, receive_bytes, stream);
}

static int counted_wait(void *context, void *stream)
{
    counted *c = context;
    return c->inner.wait(c->inner.context, stream);
}

static int counted_all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    counted *c = context;
    return c->inner.all_gather(c->inner.context, send, receive, bytes, stream);
}

static int counted_reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    counted *c = context;
    return c->inner.reduce_scatter(c->inner.context, send, receive, count, stream);
}

static void counted_abort(void *context)
{
    counted *c = context;
    c->inner.abort(c->inner.context);
}

static void count_all(visitor v[VISITORS], counted c[VISITORS])
{
    for (int r = 0; r < VISITORS; r++) {
        c[r] = (counted){ .inner = v[r].engine };
        v[r].engine = (attn_engine){ .context = &c[r],
                                     .rank = r,
                                     .ranks = VISITORS,
                                     .exchange = counted_exchange,
                                     .wait = counted_wait,
                                     .all_gather = counted_all_gather,
                                     .reduce_scatter = counted_reduce_scatter,
                                     .abort = counted_abort };
    }
}

/* All visit; the exchange of rank 3 fails, or hangs, in the middle of its run. */
static void visit_with_one_lost(visitor v[VISITORS], double time_out, int fails_at, int hangs_at)
{
    attn_thread_group *group;
    counted c[VISITORS];
    begin(&group, v, time_out);
    count_all(v, c);
    c[3].fails_at = fails_at, c[3].hangs_at = hangs_at;
    visit_all(v);
    attn_thread_group_destroy(group);
}

/* A rank that gives up in the middle of a run ends the others' calls long before the time-out. */
static void a_rank_that_gives_up_ends_the_others(void **state)
{
    (void)state;
    visitor v[VISITORS];
    double before = now();
    visit_with_one_lost(v, 600, 2, 0);
    assert_true(now() - before < 300);
    for (int r = 0; r < VISITORS; r++)
        /* the others wait for a part, or have not been told yet that all have begun */
        expect_message(&v[r], ATTN_RANK_FAILED, r == 3 ? "the engine's exchange failed with 77" : "the engine's ");
}

/* One that stops in the middle of a run ends the others' calls after the time-out, before it goes on. */
static void a_rank_that_hangs_ends_the_others(void **state)
{
    (void)state;
    visitor v[VISITORS];
    visit_with_one_lost(v, 0.3, 0, 2);
    for (int r = 0; r < VISITORS; r++) {
        expect_message(&v[r], ATTN_RANK_FAILED, "the engine's ");
        if (r != 3) assert_true(v[r].ended < v[3].ended);
    }
}

/* What no row of the receiver sees is not sent: what plans predict is what engines carry. */
static void what_nobody_sees_is_not_sent(void **state)
{
    (void)state;
    static const struct {
        uint32_t flags;
        attn_layout layout;
        int64_t window;
        double blocks; /* that are sent in all, of a rank's keys */
    } cases[] = { { 0, ATTN_CONTIGUOUS, 0, 12 },
                  { ATTN_CAUSAL, ATTN_CONTIGUOUS, 0, 6 },
                  { ATTN_CAUSAL, ATTN_ZIGZAG, 0, 9 },
                  { ATTN_CAUSAL | ATTN_WINDOW, ATTN_CONTIGUOUS, 20, 3 },
                  { ATTN_CAUSAL | ATTN_WINDOW, ATTN_ZIGZAG, 20, 3 },
                  { ATTN_CAUSAL | ATTN_CHUNK, ATTN_CONTIGUOUS, 128, 2 } };
    for (int n = 0; n < COUNT(cases); n++) {
        attn_thread_group *group;
        visitor v[VISITORS];
        counted c[VISITORS];
        size_t sent = 0, planned = 0;
        begin(&group, v, 60);
        count_all(v, c);
        for (int r = 0; r < VISITORS; r++) {
            v[r].desc.flags = cases[n].flags, v[r].how.layout = cases[n].layout;
            if (cases[n].flags & ATTN_WINDOW) v[r].desc.window_left = cases[n].window;
            if (cases[n].flags & ATTN_CHUNK) v[r].desc.chunk = cases[n].window;
            attn_parallel_desc how = v[r].how;
            how.ranks = VISITORS, how.rank = r;
            planned += (size_t)predicted(&v[r].desc, &how, NULL, 0).sent_bytes;
        }
        visit_all(v);
        for (int r = 0; r < VISITORS; r++)
            expect_message(&v[r], ATTN_OK, ""), sent += c[r].sent;
        assert_int_equal(sent, planned);
        assert_int_equal(sent, (size_t)(cases[n].blocks * 2 * 64 * 2 * 16 * 4));
        attn_thread_group_destroy(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forwards_are_one_devices),
        cmocka_unit_test(backwards_are_one_devices),
        cmocka_unit_test(bits_repeat),
        cmocka_unit_test(chunks_are_all_rows),
        cmocka_unit_test(memory_is_of_the_ranks_own),
        cmocka_unit_test(schedules_have_reasons),
        cmocka_unit_test(all_ranks_refuse),
        cmocka_unit_test(descriptors_are_refused),
        cmocka_unit_test(an_absent_rank_ends_the_others),
        cmocka_unit_test(a_rank_that_gives_up_ends_the_others),
        cmocka_unit_test(a_rank_that_hangs_ends_the_others),
        cmocka_unit_test(what_nobody_sees_is_not_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
