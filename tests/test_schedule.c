/* What the planner for Hopper decides: groups of heads, split Q tiles, work items that are shared out, dQ's
 * postprocess; and strategies that it is told. No GPU is asked. */
#include "cost_support.h"

/* Tiles of all groups of heads but the last to fill up; none is much smaller than the others. */
static void assert_groups(int64_t heads, int64_t group, int64_t tiles, double least)
{
    int64_t rest = heads % group;
    assert_true((double)(group * tiles) >= least || group == heads);
    assert_true(rest == 0 || group - rest < attn_ceil_div(heads, group));
}

/* Of so many bytes each, in half of L2. */
static int64_t heads_in_l2(int64_t bytes, int64_t heads)
{
    int64_t fit = h200.l2_bytes / 2 / bytes;
    return heads < fit ? heads : fit;
}

/* Where Q tiles differ in length, those of a group of heads are several per SM: under a causal mask alone,
 * which lets the longest come first, one and a half, else eight. Where work items wait for a dQ semaphore, one and
 * a half. */
static void heads_come_in_even_groups(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128"),
                           *single = kernel_named("sm90_backward_bf16_d128_128"),
                           *pair = kernel_named("sm90_backward_bf16_d256_64_2cta");
    const double sms = h200.multiprocessors;
    for (int64_t heads = 1; heads < 40; heads++) {
        attn_desc window = problem(heads, 32768, 32768, 128, ATTN_CAUSAL | ATTN_WINDOW);
        attn_sm90_schedule window_s = forward(&window, k, 1e9, NULL).schedule;
        assert_groups(heads, window_s.head_group, window_s.q_tiles, 8 * sms);
        attn_desc causal = problem(heads, 16384, 16384, 128, ATTN_CAUSAL);
        attn_sm90_schedule causal_s = forward(&causal, k, 1e9, NULL).schedule;
        assert_groups(heads, causal_s.head_group, causal_s.q_tiles, 1.5 * sms);
        causal.direction = ATTN_BACKWARD, causal.dim_qk = causal.dim_v = 256, causal.len_q = causal.len_kv = 8192;
        attn_sm90_backward_schedule b = backward(&causal, pair, 1e9).schedule;
        assert_groups(heads, b.head_group, b.kv_tiles, 1.5 * sms / 2);
        attn_desc full = problem(heads, 16384, 16384, 128, 0);
        assert_int_equal(forward(&full, k, 1e9, NULL).schedule.head_group, 1);
        full.direction = ATTN_BACKWARD, full.len_q = full.len_kv = 2048;
        assert_int_equal(backward(&full, single, 1e9).schedule.head_group, 1);
        full.flags = ATTN_DETERMINISTIC;
        b = backward(&full, single, 1e9).schedule;
        assert_groups(heads, b.head_group, b.kv_tiles, 1.5 * sms);
        assert_true(b.head_group >= heads_in_l2(2048 * 128 * (2 + 2 + 4), heads));
        full.flags = 0, full.dim_qk = full.dim_v = 256;
        assert_int_equal(backward(&full, pair, 1e9).schedule.head_group, heads_in_l2(2048 * 256 * (2 + 2 + 4), heads));
    }
}

static attn_sm90_backward_schedule schedule_of(int64_t heads, int64_t length, uint32_t flags)
{
    attn_desc d = problem(heads, length, length, 128, flags);
    d.direction = ATTN_BACKWARD;
    d.grad_q_stride[0] = d.grad_q_stride[1] = d.grad_q_stride[2] = 128;
    return backward(&d, kernel_named("sm90_backward_bf16_d128_128"), 1e9).schedule;
}

/* Heads whose work items wait for a dQ semaphore come in groups of the sizes that were the fastest
 * (docs/notebook/backward.md). */
static void a_semaphore_takes_small_groups(void **state)
{
    (void)state;
    assert_int_equal(schedule_of(16, 16384, ATTN_DETERMINISTIC).head_group, 2);
    assert_int_equal(schedule_of(32, 8192, ATTN_DETERMINISTIC).head_group, 4);
}

/* Persistent CTAs convert dQ, that of the last heads after all work items: of as many as can be while the last wave of
 * equal work items leaves CTAs over. Not where their rows are in pieces, or work items add in a fixed order. */
static void ctas_convert_dq(void **state)
{
    (void)state;
    attn_sm90_backward_schedule full = schedule_of(128, 2048, 0), causal = schedule_of(128, 2048, ATTN_CAUSAL),
                                waves = schedule_of(132, 2048, 0), longer = schedule_of(32, 8192, 0);
    assert_int_equal(full.postprocess_items, 4);
    assert_int_equal(full.total, 128 * (16 + 4));
    assert_int_equal(full.takes, full.total);
    assert_true(full.late_heads > 40 && full.late_heads < 128);
    assert_int_equal(waves.late_heads, 11); /* 165 work items */
    assert_int_equal(longer.late_heads, 32);
    assert_true(causal.head_group > 1);
    assert_int_equal(causal.late_heads, causal.head_group);
    assert_int_equal(schedule_of(128, 2048, ATTN_DETERMINISTIC).postprocess_items, 0);
    assert_int_equal(schedule_of(128, 2048, ATTN_OUT_F32).postprocess_items, 0);
    assert_int_equal(schedule_of(4, 2048, 0).postprocess_items, 0); /* no more work items than CTAs */
}

/* What the kernels make of a divisor (schedule.h), beside the division. */
static void assert_divides(attn_cuda_divisor by, int64_t d)
{
    const uint32_t close[] = { 0, 1, (uint32_t)d - 1, (uint32_t)d, (uint32_t)d + 1, INT32_MAX - 1, INT32_MAX };
    for (uint32_t i = 0; i < 1000 + COUNT(close); i++) {
        uint32_t a = i < 1000 ? (i * 2654435761u >> 1) / (uint32_t)d * (uint32_t)d + i % 3 - 1 : close[i - 1000];
        if (a > INT32_MAX) continue;
        uint32_t high = (uint32_t)((uint64_t)a * by.factor >> 32);
        if ((high + a) >> by.shift != a / (uint32_t)d)
            fail_msg("%u / %lld is not %u", a, (long long)d, (high + a) >> by.shift);
    }
}

static void schedules_divide(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_192x64");
    for (int64_t heads = 1; heads < 100; heads++) {
        attn_desc desc = problem(heads, 1000, 1000, 128, ATTN_CAUSAL);
        desc.batch = 3 * heads, desc.heads_q = 3 * heads;
        const attn_sm90_forward_choice c = forward(&desc, k, 1e9, NULL);
        const attn_sm90_schedule *s = &c.schedule;
        int64_t rest = s->heads * desc.batch % s->head_group;
        assert_divides(s->by_splits, s->splits);
        assert_divides(s->by_group, (int64_t)s->head_group * s->q_tiles);
        assert_divides(s->by_head_group, s->head_group);
        if (rest) assert_divides(s->by_rest, rest);
        assert_divides(s->by_heads, s->heads);
        assert_divides(s->by_ratio, desc.heads_q / desc.heads_kv);
    }
}

/* Waves of whole tiles, then the tiles over, in as many parts as fill their wave best, if that saves what merging
 * takes.
 */
static void last_waves_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t batch, heads, len, dim;
        int tiles, splits; /* over; their parts */
        double waves, whole;
    } cases[] = {
        { "sm90_bf16_d128_192x64", 2, 16, 8192, 128, 56, 2, 10.5, 11 },
        { "sm90_bf16_d128_192x64", 1, 16, 16384, 128, 56, 2, 10.5, 11 },
        { "sm90_bf16_d128_192x64", 1, 32, 4096, 128, 44, 3, 5 + 1.0 / 3, 6 },
        { "sm90_bf16_d96_192x64", 1, 32, 4096, 96, 0, 1, 6, 6 }, /* it would save less than it takes */
        { "sm90_bf16_d128_128x128", 3, 11, 512, 128, 0, 1, 1, 1 },
        { "sm90_bf16_d128_128x128", 1, 133, 128, 128, 0, 1, 2, 2 }, /* a step a tile */
        { "sm90_bf16_d128_128x128", 1, 263, 128, 128, 0, 1, 2, 2 }, /* a wave that is full but for a tile */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const attn_cuda_kernel *k = kernel_named(cases[i].kernel);
        attn_desc desc = problem(cases[i].heads, cases[i].len, cases[i].len, cases[i].dim, 0);
        desc.batch = cases[i].batch;
        attn_sm90_forward_choice c = chosen(&desc, k, NULL);
        const attn_sm90_schedule *s = &c.schedule;
        int64_t tiles = (int64_t)s->q_tiles * s->heads * desc.batch, steps = attn_ceil_div(cases[i].len, k->kv_tile);
        assert_int_equal(s->split_tiles, cases[i].tiles);
        assert_int_equal(s->splits, cases[i].splits);
        assert_int_equal(s->total, tiles + s->split_tiles * (s->splits - 1));
        int64_t heads = s->split_tiles / s->q_tiles,
                more = s->split_tiles % s->q_tiles; /* tiles of a head that is cut */
        int64_t rest = more ? cases[i].len - (s->q_tiles - more) * k->q_tile : 0;
        assert_int_equal(s->split_rows, heads * cases[i].len + rest);
        assert_true(fabs(c.base.choice.count[ATTN_PER_STEP] / (double)steps / cases[i].waves - 1) < 0.01);
        if (cases[i].tiles)
            assert_true(c.base.choice.seconds / cost(&desc, k, &whole).seconds < 1.1 * cases[i].waves / cases[i].whole);
    }
}

/* What was measured to gain, or not to (docs/notebook/strategies.md), in the kernel that was measured. */
static void what_does_not_gain_is_not_taken(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        uint32_t flags;
        int64_t heads_kv, batch, len_q, len_kv;
        bool packs, splits_tail;
    } cases[] = {
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 1024, 1024, false, false },
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 2048, 2048, false, false },
        { "sm90_bf16_d128_192x64", ATTN_CAUSAL, 8, 1, 4096, 4096, false, false },
        { "sm90_bf16_d128_128x128", 0, 8, 1, 1, 32768, true, false },
        { "sm90_bf16_d128_192x64", 0, 16, 1, 4096, 4096, false, false },
        { "sm90_bf16_d128_192x64", 0, 16, 1, 16384, 16384, false, true },
        { "sm90_bf16_d128_192x64", 0, 16, 2, 8192, 8192, false, true },
        { "sm90_bf16_d128_192x64", 0, 8, 1, 4096, 4096, false, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_desc desc =
            problem(cases[i].heads_kv == 8 ? 32 : 16, cases[i].len_q, cases[i].len_kv, 128, cases[i].flags);
        desc.heads_kv = cases[i].heads_kv, desc.batch = cases[i].batch;
        attn_sm90_forward_choice c = chosen(&desc, kernel_named(cases[i].kernel), NULL);
        bool tail = c.base.choice.splits > 1 && c.base.choice.split_tiles * c.base.choice.splits < c.schedule.total;
        if ((c.schedule.pack > 1) != cases[i].packs || tail != cases[i].splits_tail)
            fail_msg("case %d: %d heads packed, %d Q tiles split", (int)i, c.schedule.pack,
                     (int)c.base.choice.split_tiles);
    }
}

/* Q tiles that are alike are taken at a fixed stride; where the first of a head is shorter, or a mask or lengths make
 * them differ, as CTAs get free. */
static void tiles_that_differ_are_taken_as_ctas_get_free(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t len, dim;
        uint32_t flags;
        bool dynamic;
    } cases[] = {
        { "sm90_bf16_d128_192x64", 512, 128, 0, true },
        { "sm90_bf16_d128_192x64", 576, 128, 0, false },
        { "sm90_bf16_d128_192x64", 128, 128, 0, false },
        { "sm90_bf16_d256_128x64", 512, 256, 0, false },
        { "sm90_bf16_d256_128x64", 512, 256, ATTN_CAUSAL, true },
        { "sm90_bf16_d256_128x64", 512, 256, ATTN_LENS_Q, true },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_desc desc = problem(512, cases[i].len, cases[i].len, cases[i].dim, cases[i].flags);
        assert_int_equal(chosen(&desc, kernel_named(cases[i].kernel), NULL).base.dynamic, cases[i].dynamic);
    }
}

/* Where tiles may differ, or o is stored by merging alone, all are split or none; packed heads as wholes. */
static void some_tiles_are_not_split_alone(void **state)
{
    (void)state;
    const attn_cuda_kernel *k = kernel_named("sm90_bf16_d128_128x128");
    static const uint32_t flags[] = { ATTN_CAUSAL, ATTN_LENS_Q, ATTN_LENS_KV, ATTN_WINDOW };
    for (int i = 0; i < COUNT(flags); i++) {
        attn_desc desc = problem(27, 1280, 8192, 128, flags[i]);
        assert_int_equal(chosen(&desc, k, NULL).schedule.split_tiles, 0);
    }
    attn_desc odd = problem(27, 1280, 8192, 124, 0);
    assert_int_equal(chosen(&odd, k, NULL).schedule.split_tiles, 270);
    attn_desc packed = problem(8, 150, 65536, 128, 0);
    packed.heads_kv = 2, packed.batch = 14;
    attn_sm90_schedule s = chosen(&packed, k, &(attn_tiles){ .pack = 4 }).schedule;
    assert_int_equal(s.q_tiles, 5);
    assert_int_equal(s.split_tiles, 10);
    assert_int_equal(s.split_rows, 8 * 150);
}

/* How a kernel would run the backward of as many heads, with flags. */
static attn_sm90_backward_choice backward_of(const char *kernel, int64_t heads_q, int64_t heads_kv, int64_t len,
                                             uint32_t flags)
{
    const attn_cuda_kernel *k = kernel_named(kernel);
    attn_desc desc = problem(heads_q, len, len, k->dim, flags);
    desc.heads_kv = heads_kv, desc.direction = ATTN_BACKWARD;
    double pairs = attn_mask_pairs(&desc) * (double)heads_q;
    return backward(&desc, k, pairs);
}

/* stream-K: work items that full waves leave over are shared out by Q tiles, if that saves what merging takes. The time
 * is that of the waves before and a share. */
static void work_items_left_over_are_shared_out(void **state)
{
    (void)state;
    static const struct {
        const char *kernel;
        int64_t heads_q, heads_kv, len;
        int items, ctas, share; /* share 0: none */
    } cases[] = {
        { "sm90_backward_bf16_d64_128", 3, 3, 12000, 282, 132, 26 }, /* few long heads: docs/notebook/strategies.md */
        { "sm90_backward_bf16_d128_128", 3, 3, 12000, 282, 132, 26 },
        { "sm90_backward_bf16_d256_64_2cta", 3, 3, 12000, 282, 66, 52 },
        { "sm90_backward_bf16_d128_128", 12, 3, 12000, 282, 132, 103 },
        { "sm90_backward_bf16_d256_64_2cta", 3, 3, 6000, 141, 66, 13 },
        { "sm90_backward_bf16_d128_128", 5320, 133, 128, 133, 132, 8 },  /* not one Q tile each */
        { "sm90_backward_bf16_d128_128", 133, 133, 128, 133, 132, 0 },   /* two Q tiles per work item */
        { "sm90_backward_bf16_d128_128", 133, 133, 4096, 4256, 132, 0 }, /* 32.2 waves */
        { "sm90_backward_bf16_d128_128", 133, 133, 1024, 1064, 132, 0 },
        { "sm90_backward_bf16_d128_128", 131, 131, 128, 131, 132, 0 },
        { "sm90_backward_bf16_d128_128", 132, 132, 128, 132, 132, 0 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_sm90_backward_choice c =
            backward_of(cases[i].kernel, cases[i].heads_q, cases[i].heads_kv, cases[i].len, 0);
        const attn_sm90_backward_schedule *s = &c.schedule;
        int over = cases[i].share ? cases[i].items % cases[i].ctas : 0, steps = (int)attn_ceil_div(cases[i].len, 64);
        steps *= (int)(cases[i].heads_q / cases[i].heads_kv);
        assert_int_equal(s->stream_k_items, over);
        assert_int_equal(s->stream_k_q_tiles, cases[i].share);
        assert_int_equal(s->stream_k_shares, over ? attn_ceil_div(over * steps, s->stream_k_q_tiles) : 0);
        int taken = cases[i].items - over + s->postprocess_items * (int)cases[i].heads_kv;
        assert_int_equal(s->total, taken + 2 * s->stream_k_shares);
        assert_int_equal(s->takes, taken + s->stream_k_shares);
        double waves = ceil(1.0 * (cases[i].items - over) / cases[i].ctas);
        if (!over) continue;
        assert_true(c.base.choice.count[ATTN_PER_STEP] == waves * steps + s->stream_k_q_tiles);
        assert_true(c.base.choice.count[ATTN_PER_TILE] == waves + 2);
    }
    static const uint32_t flags[] = { ATTN_CAUSAL, ATTN_WINDOW, ATTN_LENS_KV, ATTN_LENS_Q, ATTN_DETERMINISTIC };
    for (int i = 0; i < COUNT(flags); i++)
        assert_int_equal(backward_of("sm90_backward_bf16_d128_128", 3, 3, 12000, flags[i]).schedule.stream_k_items, 0);
    assert_int_equal(backward_of("sm90_backward_bf16_d128_128_masks", 3, 3, 12000, 0).schedule.stream_k_items, 0);
    assert_int_equal(backward_of("sm90_backward_bf16_d128_128", 3, 3, 1 << 29, 0).schedule.stream_k_items, 0);
}

/* ---- strategies ------------------------------------------------------------------------------ */

/* Plans with a strategy: *all is every decision. Returns NULL, or why it cannot be. */
static const char *decide(const char *kernel, attn_desc desc, const char *strategy, attn_overrides *all)
{
    attn_overrides words;
    attn_tiles tiles = { .overrides = &words };
    desc.strategy = strategy;
    assert_ok(attn_strategy_read(&words, &desc));
    double pairs = attn_mask_pairs(&desc) * (double)desc.batch * (double)desc.heads_q;
    attn_cuda_problem of = { &desc, &h200, pairs, &tiles };
    if (desc.direction == ATTN_BACKWARD) {
        attn_sm90_backward_choice c;
        if (!attn_sm90_cost_backward(&of, kernel_named(kernel), &c)) return c.base.why_not;
        *all = attn_sm90_decided_backward(&desc, &c);
    } else {
        attn_sm90_forward_choice c;
        if (!attn_sm90_cost_forward(&of, kernel_named(kernel), &c)) return c.base.why_not;
        *all = attn_sm90_decided_forward(&desc, &c);
    }
    return NULL;
}

static attn_desc grouped(attn_direction direction, int64_t rows, int64_t keys, int64_t dim, uint32_t flags)
{
    attn_desc desc = { .dtype = ATTN_BF16, .device = ATTN_CUDA, .batch = 2, .heads_q = 8, .heads_kv = 2 }, resolved;
    desc.direction = direction, desc.flags = flags, desc.len_q = rows, desc.len_kv = keys, desc.dim_qk = dim;
    assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
    return resolved;
}

static void strategies_are_followed_or_refused(void **state)
{
    (void)state;
    static const struct {
        attn_direction direction;
        uint32_t flags;
        const char *words, *refused; /* NULL: it is followed */
    } cases[] = {
        { ATTN_FORWARD, 0, "split-kv=3,split-tail=5", NULL },
        { ATTN_FORWARD, 0, "split-tail=5,head-group=2", "exclude" },
        { ATTN_FORWARD, ATTN_CAUSAL, "split-tail=5", "split-tail" },
        { ATTN_FORWARD, ATTN_CAUSAL, "split-kv=2,pack-gqa,scheduler=static,head-group=3,ctas=2", NULL },
        { ATTN_FORWARD, ATTN_OUT_F32, "split-kv=9", "split-kv" },
        { ATTN_FORWARD, 0, "ctas=133", "ctas" },
        { ATTN_BACKWARD, 0, "split-gqa=2", NULL },
        { ATTN_BACKWARD, 0, "split-gqa=3", "split-gqa" },
        { ATTN_BACKWARD, 0, "stream-k=1", "stream-k" },
        { ATTN_BACKWARD, 0, "stream-k=1,ctas=3", NULL },
        { ATTN_BACKWARD, ATTN_CAUSAL, "stream-k=1,ctas=3", "stream-k" },
        { ATTN_BACKWARD, 0, "stream-k=9,ctas=3", "stream-k" },
        { ATTN_BACKWARD, ATTN_CAUSAL, "head-persistent-dq", NULL },
        { ATTN_BACKWARD, ATTN_LENS_Q, "head-persistent-dq", "head-persistent-dq" },
        { ATTN_BACKWARD, 0, "dq-postprocess=fused,dq-late=0", NULL },
        { ATTN_BACKWARD, ATTN_CAUSAL, "dq-late=4,head-group=4", NULL },
        { ATTN_BACKWARD, 0, "dq-late=3,head-group=2", "dq-late" },
        { ATTN_BACKWARD, 0, "dq-late=5", "dq-late" },
        { ATTN_BACKWARD, 0, "dq-postprocess=fused,scheduler=static", "exclude" },
        { ATTN_BACKWARD, ATTN_OUT_F32, "dq-postprocess=fused", "f32" },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "dq-postprocess=fused", "fixed order" },
        { ATTN_BACKWARD, 0, "dq-semaphore", "exclude" },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "dq-semaphore", NULL },
        { ATTN_BACKWARD, ATTN_DETERMINISTIC, "no-dq-semaphore,no-head-persistent-dq", "exclude" },
        { ATTN_BACKWARD, 0, "head-group=5", "head-group" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_overrides asked, all;
        attn_desc desc = grouped(cases[i].direction, 100, 600, 40, cases[i].flags);
        const char *kernel = desc.direction == ATTN_BACKWARD ? "sm90_backward_bf16_d64_128" : "sm90_bf16_d64_128x128";
        const char *why_not = decide(kernel, desc, cases[i].words, &all);
        if (!why_not != !cases[i].refused || (why_not && !strstr(why_not, cases[i].refused)))
            fail_msg("%s: %s", cases[i].words, why_not ? why_not : "taken");
        if (why_not) continue;
        desc.strategy = cases[i].words;
        assert_ok(attn_strategy_read(&asked, &desc));
        for (int w = 0; w < ATTN_STRATEGIES; w++)
            if (asked.set[w] && (!all.set[w] || all.value[w] != asked.value[w]))
                fail_msg("%s: word %d is not followed", cases[i].words, w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_come_in_even_groups),
        cmocka_unit_test(a_semaphore_takes_small_groups),
        cmocka_unit_test(ctas_convert_dq),
        cmocka_unit_test(schedules_divide),
        cmocka_unit_test(last_waves_are_split),
        cmocka_unit_test(what_does_not_gain_is_not_taken),
        cmocka_unit_test(tiles_that_differ_are_taken_as_ctas_get_free),
        cmocka_unit_test(some_tiles_are_not_split_alone),
        cmocka_unit_test(work_items_left_over_are_shared_out),
        cmocka_unit_test(strategies_are_followed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
