/* Errors: a call that fails writes nothing, returns a status, and says which field is wrong and what it takes. */
#include "guide.h"

static int wrong;

static void expect_invalid(attn_status status)
{
    printf("%s: %s\n", attn_status_name(status), attn_error());
    wrong |= status != ATTN_INVALID;
}

int main(void)
{
    const attn_desc good = { .dtype = ATTN_F32, .batch = 1, .heads_q = 6, .len_q = 4, .len_kv = 4, .dim_qk = 8 };
    attn_plan *plan;

    attn_desc desc = good;
    desc.heads_kv = 4; /* 6 query heads cannot share 4 KV heads evenly */
    expect_invalid(attn_plan_create(&plan, &desc));

    desc = good;
    desc.dim_qk = 1000;
    expect_invalid(attn_plan_create(&plan, &desc));

    desc = good;
    desc.softcap = 30; /* ATTN_SOFTCAP is missing in flags */
    expect_invalid(attn_plan_create(&plan, &desc));

    must(attn_plan_create(&plan, &good));
    float x[4 * 6 * 8] = { 0 }, o[4 * 6 * 8];
    const int32_t used[1] = { 3 };
    void *workspace = take(attn_plan_workspace(plan));
    attn_args args = { .q = x, .k = x, .v = x, .o = o, .lens_kv = used }; /* ATTN_LENS_KV is missing */
    expect_invalid(attn_run(plan, &args, workspace, NULL));
    args = (attn_args){ .q = x, .k = x, .v = x, .o = x }; /* the output may not overlap an input */
    expect_invalid(attn_run(plan, &args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);

    desc = good;
    desc.isa = ATTN_ISA_AMX;
    if (attn_plan_create(&plan, &desc) == ATTN_UNSUPPORTED) {
        printf("%s\n", attn_error()); /* not on this machine: do without */
        desc.isa = ATTN_ISA_AUTO;
        must(attn_plan_create(&plan, &desc));
    }
    attn_plan_destroy(plan);
    return wrong;
}
