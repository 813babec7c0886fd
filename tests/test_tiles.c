/* The bodies of the AMX kernels, with tiles emulated and portable vectors, on the grid: what they compute is checked on
 * machines that lack AMX. */
#include "support.h"

#include "api/plan.h"
#include "check/sweep.h"
#include "cpu/cpu.h"
#include "cpu/vec_portable.h"
#include "tile_emulated.h"

static inline void v_store_pairs(uint16_t *p, vf a, vf b)
{
    v_store_bf16(p, a);
    v_store_bf16(p + VL, b);
}

static inline void v_store_zip(uint16_t *p, const uint16_t *even, const uint16_t *odd)
{
    for (int i = 0; i < VL; i++)
        p[2 * i] = even[i], p[2 * i + 1] = odd[i];
}

static inline bool v_any_less(vf a, vf b)
{
    bool any = false;
    for (int i = 0; i < VL; i++)
        any = any || a[i] < b[i];
    return any;
}

static inline vf v_exp2(vf x)
{
    vf y;
    for (int i = 0; i < VL; i++)
        y[i] = exp2f(x[i]);
    return y;
}

enum { BLOCK_ROWS = 32 };

#include "cpu/body/pairs_kernels.h"
#include "cpu/body/product_tiles.h"
#include "cpu/body/pairs_prefill.h"
#include "cpu/body/pairs_backward.h"
#include "cpu/cost.h"

static const attn_cpu_ops emulated_ops = { .pack = pack_pairs,
                                           .attend = attend_pairs,
                                           .delta = backward_delta,
                                           .backward = backward_pairs_tile,
                                           .sum = backward_sum };

/* The table's kernel of this form in AMX, its operations replaced. */
static attn_cpu_kernel emulated(attn_form form)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        if (kernels[i].isa == ATTN_ISA_AMX && kernels[i].form == form) {
            attn_cpu_kernel kernel = kernels[i];
            kernel.ops = &emulated_ops;
            return kernel;
        }
    fail_msg("no kernel in AMX of form %d", (int)form);
    return (attn_cpu_kernel){ 0 };
}

static void run_emulated(const attn_cpu_kernel *kernel, const check_problem *problem)
{
    attn_plan plan = { .desc = problem->resolved, .own = kernel };
    attn_host host;
    attn_prefill_layout prefill;
    attn_backward_layout backward;
    bool gradient = kernel->form == ATTN_GRADIENT;
    attn_host_detect(&host);
    attn_cost(&plan.desc, &host, kernel, NULL, &plan.choice);
    assert_true(gradient ? attn_backward_lay_out(&plan, &backward) : attn_prefill_lay_out(&plan, &prefill));
    check_buffer workspace = check_buffer_create((gradient ? backward.total : prefill.total) + 64, false);
    if (gradient)
        attn_backward_run(&plan, &problem->args, workspace.data);
    else
        attn_prefill_run(&plan, &problem->args, workspace.data);
    check_buffer_destroy(&workspace);
}

/* Fails unless what the kernel computes of case n is as near to the reference as it must be. */
static void check_emulated(const attn_cpu_kernel *kernel, const attn_desc *desc, const check_options *options, int n)
{
    check_problem problem;
    assert_ok(check_problem_create(&problem, desc, options));
    check_reference reference = check_reference_create(&problem);
    run_emulated(kernel, &problem);
    check_error error = check_compare(&problem, &reference);
    if (error.message[0]) fail_msg("case %d: %s", n, error.message);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

static void agrees_with_reference(attn_form form, double work_most)
{
    attn_cpu_kernel kernel = emulated(form);
    check_grid *grid = check_grid_create(CHECK_SEED);
    int cases = 0;
    for (int n = 0; n < grid->count; n++) {
        attn_desc desc;
        check_options options;
        check_grid_case(grid, n, form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD, INT64_MAX, &desc, &options);
        if (desc.dtype != ATTN_BF16 || desc.flags & ~kernel.features || check_case_work(grid, n) > work_most) continue;
        if (desc.batch == 0 || desc.len_q == 0) continue; /* nothing to run */
        if (cases++ % test_scale() != 0) continue;
        check_emulated(&kernel, &desc, &options, n);
    }
    free(grid);
    assert_true(cases > 0);
}

/* Multiply-adds of a case are limited: emulation takes 20 ns each. */
static void prefill_agrees(void **state)
{
    (void)state;
    agrees_with_reference(ATTN_PREFILL, 1e8);
}

static void backward_agrees(void **state)
{
    (void)state;
    agrees_with_reference(ATTN_GRADIENT, 4e7);
}

/* Scores that rise and fall by so much over a few items that outputs are rescaled, more than one strip of rows. */
static void maximum_moves(void **state)
{
    (void)state;
    attn_cpu_kernel kernel = emulated(ATTN_PREFILL);
    attn_desc desc = { .dtype = ATTN_BF16,
                       .batch = 1,
                       .heads_q = 2,
                       .heads_kv = 1,
                       .len_q = BLOCK_ROWS + 8,
                       .len_kv = 4 * ATTN_ITEM_KEYS,
                       .dim_qk = 24,
                       .dim_v = 40 };
    for (int data = 0; data < CHECK_DATA_COUNT; data++)
        check_emulated(&kernel, &desc, &(check_options){ .data = (check_data)data, .seed = 5 }, data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_agrees),
        cmocka_unit_test(backward_agrees),
        cmocka_unit_test(maximum_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
