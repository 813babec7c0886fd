/* A second architecture is an addition: a folder, here cuda/none, and a line of the build. It plans and runs through
 * the interface on a device of its own, and is refused by name on another's; so is Hopper on its device. */
#define _POSIX_C_SOURCE 200809L
#include "cuda_support.h"
#include "none.h"

/* kernels.c as a build with both architectures has it: tests/CMakeLists.txt puts these functions in place of its own.
 */
#define attn_cuda_kernels __wrap_attn_cuda_kernels
#define attn_cuda_archs __wrap_attn_cuda_archs
#define attn_cuda_obstacle other_obstacle
#define attn_cuda_bytes_obstacle other_bytes_obstacle
#define attn_cuda_bias_is_even other_bias_is_even
const attn_cuda_kernel *attn_cuda_kernels(int *count);
const attn_cuda_arch *const *attn_cuda_archs(int *count);
const char *attn_cuda_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc);
bool attn_cuda_bias_is_even(const attn_desc *desc);
const char *attn_cuda_bytes_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc);
#include "cuda/kernels.c"

static tensors data;

/* FAKE_CUDA_CAPABILITY=10: the device is the architecture's. */
static void it_plans_and_runs(void **state)
{
    (void)state;
    attn_plan *plan;
    attn_plan_info info = { .kernel = NULL };
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_get_info(plan, &info);
    assert_string_equal(info.kernel, "none_bf16_d64");
    assert_string_equal(info.isa, "sm_none");
    attn_args args = args_of(&data);
    assert_ok(attn_run(plan, &args, NULL, NULL));
    assert_int_equal(none_runs, 1);
    attn_plan_destroy(plan);
    desc.kernel = "sm90_fallback_bf16";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_fallback_bf16: it is for another architecture");
    desc = small(), desc.flags = ATTN_CAUSAL;
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "it does not take ATTN_CAUSAL");
    end_context(context);
}

static void hopper_refuses_it_by_name(void **state)
{
    (void)state;
    attn_plan *plan;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_destroy(plan);
    desc.kernel = "none_bf16_d64";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "kernel = none_bf16_d64: it is for another architecture");
    end_context(context);
}

static void others_are_told_what_there_is(void **state)
{
    (void)state;
    attn_plan *plan;
    CUcontext context = fresh_context(0);
    attn_desc desc = small();
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "compute capability 8.0: the CUDA kernels take 9.0, 1.0");
    end_context(context);
}

int main(int count, char **words)
{
    const struct CMUnitTest own[] = { cmocka_unit_test(it_plans_and_runs) };
    const struct CMUnitTest hoppers[] = { cmocka_unit_test(hopper_refuses_it_by_name) };
    const struct CMUnitTest others[] = { cmocka_unit_test(others_are_told_what_there_is) };
    const char *device = count > 1 ? words[1] : "";
    cuda_begin();
    if (strcmp(device, "none") == 0) return cuda_end(cmocka_run_group_tests(own, NULL, NULL));
    if (strcmp(device, "other") == 0) return cuda_end(cmocka_run_group_tests(others, NULL, NULL));
    return cuda_end(cmocka_run_group_tests(hoppers, NULL, NULL));
}
