/* bf16 numbers below 2^-126: kernels that multiply pairs of bf16 take them for 0, as their instructions do; all others
 * keep them. One row sees one key, so o is v, a score is a product, and the value's gradient is that of o. */
#include "support.h"

enum { DIM = 32, LEAST_BF16 = 0x0040 /* 2^-127 */, NORMAL_BF16 = 0x0080 /* 2^-126 */, GREAT_BF16 = 0x7f00 /* 2^127 */ };

/* The kernel's o, lse and, of the backward, gradient of v, where q, k and v (or grad_o) begin with these. */
static float run_one(const attn_cpu_kernel *kernel, uint16_t q0, uint16_t k0, uint16_t v0, float *lse)
{
    uint16_t q[DIM] = { q0 }, k[DIM] = { k0 }, v[DIM] = { v0 }, grad_o[DIM] = { v0 }, o[DIM] = { 0 };
    uint16_t grad_q[DIM], grad_k[DIM], grad_v[DIM];
    float wide[DIM];
    bool backward = kernel->form == ATTN_GRADIENT;
    attn_desc desc = { .dtype = ATTN_BF16,
                       .direction = backward ? ATTN_BACKWARD : ATTN_FORWARD,
                       .batch = 1,
                       .flags = backward ? 0 : ATTN_OUT_F32,
                       .heads_q = 1,
                       .len_q = 1,
                       .len_kv = 1,
                       .dim_qk = DIM,
                       .scale = 1,
                       .threads = 1,
                       .kernel = kernel->name };
    attn_args args = { .q = q, .k = k, .v = v, .o = backward ? (void *)o : wide, .lse = lse };
    if (backward) args.grad_o = grad_o, args.grad_q = grad_q, args.grad_k = grad_k, args.grad_v = grad_v;
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, &args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
    uint32_t bits = (uint32_t)grad_v[0] << 16;
    if (backward) memcpy(wide, &bits, sizeof bits);
    return wide[0];
}

static void small_values_are_kept_or_taken_for_0(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        const attn_cpu_kernel *kernel = &kernels[i];
        if (!runs(kernel) && !runs_backward(kernel)) continue;
        bool flushes = attn_multiplies_pairs(kernel);
        float lse = 0, least = run_one(kernel, 0, 0, LEAST_BF16, &lse),
              normal = run_one(kernel, 0, 0, NORMAL_BF16, &lse);
        if (least != (flushes ? 0 : 0x1p-127f)) fail_msg("%s: 2^-127 becomes %a", kernel->name, (double)least);
        if (normal != 0x1p-126f) fail_msg("%s: 2^-126 becomes %a", kernel->name, (double)normal);
        if (kernel->form == ATTN_GRADIENT) continue; /* there LSE is an input */
        run_one(kernel, GREAT_BF16, LEAST_BF16, 0, &lse);
        if (lse != (flushes ? 0 : 1)) fail_msg("%s: the score of 2^127 and 2^-127 is %a", kernel->name, (double)lse);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(small_values_are_kept_or_taken_for_0) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
