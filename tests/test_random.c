/* Random problems: what is drawn, and again the same; shrinking; the reference's code for the GPU against src/ref. */
#include "support.h"

#include <string.h>

#include "problem/desc.h"
#include "check/gpu/agree.h"
#include "check/gpu/launch.h"
#include "check/random_problem.h"
#include "check/sweep.h"
#include "cuda/kernel.h"
#include "scale.h"

static const check_random_limits small = { .pairs = 1 << 10, .seed = 9 },
                                 large = { .device = ATTN_CUDA, .pairs = 1 << 26, .seed = 9 };

/* ---- what is drawn --------------------------------------------------------------------------- */

/* Each is a problem that the descriptor's check takes, within the limits, and the same the second time. */
static void problems_are_legal(void **state)
{
    (void)state;
    for (int n = 0; n < 6000; n++) {
        const check_random_limits *limits = n % 2 ? &large : &small;
        attn_desc d, again, resolved;
        check_options o, o_again;
        check_random_problem(limits, (uint64_t)n, &d, &o);
        check_random_problem(limits, (uint64_t)n, &again, &o_again);
        assert_memory_equal(&d, &again, sizeof d);
        assert_memory_equal(&o, &o_again, sizeof o);
        assert_true(d.batch * d.heads_q * d.len_q * d.len_kv <= limits->pairs);
        check_problem_lay_out(&d, &o);
        assert_ok(attn_desc_resolve(&resolved, &d, sizeof d));
    }
}

/* Whatever is left out of a problem or made smaller: it stays one. */
static void smaller_problems_are_legal(void **state)
{
    (void)state;
    int changed = 0;
    for (uint64_t n = 0; n < 500; n++)
        for (int step = 0; step < check_shrink_steps(); step++) {
            attn_desc d, resolved;
            check_options o;
            check_random_problem(&large, n, &d, &o);
            if (!check_shrink_step(step, &d, &o)) continue;
            check_problem_lay_out(&d, &o);
            d.isa = ATTN_ISA_AUTO;
            attn_status status = attn_desc_resolve(&resolved, &d, sizeof d);
            if (status) fail_msg("problem %d, step %d: %s", (int)n, step, attn_error());
            changed++;
        }
    assert_true(changed > 2000);
}

/* Nothing that a descriptor can say is left out. */
static void everything_is_drawn(void **state)
{
    (void)state;
    enum { FEW_ROWS, FEW_KEYS, EMPTY, NAMED, PLANNED, STRIDED, SHIFTED, UNEQUAL, MANY_HEADS, TILE_EDGE, SHAPES };
    int shapes[SHAPES] = { 0 }, layouts[CHECK_LAYOUT_COUNT] = { 0 }, data[CHECK_DATA_COUNT] = { 0 };
    int kinds[2][ATTN_I8 + 1] = { { 0 } }, bytes[ATTN_I8 + 1] = { 0 }, outputs[2][ATTN_I8 + 1] = { { 0 } };
    uint32_t flags[2] = { 0 }, cpu_flags[2] = { 0 };
    for (uint64_t n = 0; n < 5000; n++) {
        attn_desc d;
        check_options o;
        check_random_problem(&small, n, &d, &o);
        cpu_flags[d.direction] |= d.flags;
        bytes[d.kv_dtype]++, bytes[0] += d.dtype == ATTN_E4M3, outputs[0][d.out_dtype]++;
        check_random_problem(&large, n, &d, &o);
        outputs[1][d.out_dtype] += d.dtype == ATTN_E4M3;
        flags[d.direction] |= d.flags;
        kinds[d.direction][d.dtype]++, layouts[o.layout]++, data[o.data]++;
        shapes[FEW_ROWS] += d.len_q <= 33 && d.len_kv >= 1024;
        shapes[FEW_KEYS] += d.len_kv <= 64 && d.len_q >= 1024;
        shapes[EMPTY] += d.len_q == 0 || d.len_kv == 0;
        shapes[d.kernel ? NAMED : PLANNED]++;
        shapes[STRIDED] += o.strides != 0, shapes[SHIFTED] += o.shift != 0;
        shapes[UNEQUAL] += d.heads_kv && d.heads_q / d.heads_kv >= 32;
        shapes[MANY_HEADS] += d.batch * d.heads_q > 4 * 132;
        shapes[TILE_EDGE] += d.len_q % 64 == 1 || d.len_kv % 64 == 63;
    }
    const uint32_t parts = ATTN_DROPOUT_BASES | ATTN_DELTA | ATTN_ADD; /* which a GPU does not take */
    for (int direction = 0; direction < 2; direction++) {
        assert_int_equal(flags[direction], direction ? (2 * ATTN_POSITIONS - 1) & ~ATTN_PAGED : 2 * ATTN_SCALES_Q - 1);
        assert_int_equal(cpu_flags[direction], direction ? ((2 * ATTN_POSITIONS - 1) & ~ATTN_PAGED) | parts
                                                         : (2 * ATTN_SCALES_Q - 1) | ATTN_DROPOUT_BASES);
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            assert_true(kinds[direction][dtype] > 300);
    }
    assert_true(bytes[0] > 100 && bytes[ATTN_E4M3] > 100 && bytes[ATTN_I8] > 100);
    for (int gpu = 0; gpu < 2; gpu++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            assert_true(outputs[gpu][dtype] > 20 && outputs[gpu][ATTN_E4M3] > 20);
    int kernels; /* 0 in a library without CUDA: none can be named */
    attn_cuda_kernels(&kernels);
    for (int i = 0; i < SHAPES; i++)
        assert_true(shapes[i] > 20 || (i == NAMED && kernels == 0));
    for (int i = 0; i < CHECK_LAYOUT_COUNT; i++)
        assert_true(layouts[i] > 20);
    for (int i = 0; i < CHECK_DATA_COUNT; i++)
        assert_true(data[i] > 20);
}

/* ---- shrinking a planted mistake ------------------------------------------------------------- */

static bool is_planted(const attn_desc *d)
{
    return d->flags & ATTN_CAUSAL && d->len_q >= 5 && d->dim_qk >= 3 && d->heads_q >= 2;
}

/* The first element of a result is wrong in such problems. */
static void plant(const check_problem *problem)
{
    const check_buffer *out = problem->desc.direction == ATTN_BACKWARD ? &problem->gradients[0] : &problem->o;
    if (is_planted(&problem->desc) && out->size) out->data[0] ^= 0x55, out->data[1] ^= 0x55;
}

static bool is_wrong(void *context, const attn_desc *desc, const check_options *options)
{
    const check_random_limits *limits = context;
    return check_random_run(limits, desc, options).outcome == CHECK_WRONG;
}

static void mistakes_shrink(void **state)
{
    (void)state;
    check_random_limits limits = small;
    limits.spoil = plant;
    int found = 0, wanted = test_scale() > 1 ? 1 : 3;
    for (uint64_t n = 0; n < 400 && found < wanted; n++) {
        attn_desc d, replayed;
        check_options o, replayed_o;
        int steps[CHECK_SHRINK_MOST];
        check_random_problem(&limits, n, &d, &o);
        replayed = d, replayed_o = o;
        bool wrong = is_wrong(&limits, &d, &o);
        assert_true(wrong <= is_planted(&d));
        if (!wrong) continue;
        int count = check_shrink(&d, &o, 60, is_wrong, &limits, steps);
        assert_int_equal(d.flags, ATTN_CAUSAL);
        assert_int_equal(d.batch, 1);
        assert_int_equal(d.len_q, 5);
        assert_int_equal(d.len_kv, 1);
        assert_int_equal(d.heads_q, 2);
        assert_int_equal(d.dim_qk, 3);
        assert_true(o.strides == 0 && o.layout == CHECK_PACKED && o.data == CHECK_PLAIN && d.threads == 1);
        for (int i = 0; i < count; i++)
            assert_true(check_shrink_step(steps[i], &replayed, &replayed_o));
        assert_memory_equal(&d, &replayed, sizeof d);
        assert_memory_equal(&o, &replayed_o, sizeof o);
        assert_true(is_wrong(&limits, &replayed, &replayed_o));
        found++;
    }
    assert_int_equal(found, wanted);
}

/* ---- the reference for the GPU --------------------------------------------------------------- */

/* Its code, run here, on the covering array's small cases. */
static void references_agree(void **state)
{
    (void)state;
    check_grid *grid = check_grid_create(CHECK_SEED);
    int cases = 0, each = 5 * test_scale();
    for (int n = 1; n < grid->count; n += each)
        for (int d = ATTN_FORWARD; d <= ATTN_BACKWARD && check_case_work(grid, n) < 2e7; d++, cases++) {
            attn_desc desc;
            check_options options;
            char message[200] = "", text[600];
            check_grid_case(grid, n, (attn_direction)d, INT64_MAX, &desc, &options);
            if (check_gpu_agrees(&desc, &options, CHECK_BY_GPU_CODE, message)) continue;
            check_problem_print(&desc, &options, text, sizeof text);
            fail_msg("case %d: %s\n  %s", n, message, text);
        }
    assert_true(cases > 0);
    free(grid);
}

/* More pairs than are in memory at a time: sums go on from one launch to the next. */
static void references_agree_in_parts(void **state)
{
    (void)state;
    for (int direction = ATTN_FORWARD; direction <= ATTN_BACKWARD; direction++) {
        char message[200] = "";
        attn_desc d = { .dtype = ATTN_BF16,
                        .direction = (attn_direction)direction,
                        .flags = ATTN_CAUSAL | ATTN_ALIBI | ATTN_BIAS | ATTN_SINK,
                        .batch = 2,
                        .heads_q = 4,
                        .heads_kv = 2,
                        .len_q = 37,
                        .len_kv = 600,
                        .dim_qk = 5,
                        .dim_v = 3,
                        .alibi_batch = 1,
                        .bias_dtype = ATTN_F32,
                        .bias_extent = { 1, 4, 1, 600 } };
        check_options o = { .seed = 5 };
        check_gpu_at_once(1 << 13);
        bool agree = check_gpu_agrees(&d, &o, CHECK_BY_GPU_CODE, message);
        check_gpu_at_once(0);
        if (!agree) fail_msg("%s", message);
    }
}

/* test_random [PATTERN]: of these tests alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_are_legal),  cmocka_unit_test(smaller_problems_are_legal),
        cmocka_unit_test(everything_is_drawn), cmocka_unit_test(mistakes_shrink),
        cmocka_unit_test(references_agree),    cmocka_unit_test(references_agree_in_parts),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
