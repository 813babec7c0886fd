/* What the tests share: cmocka, and a few words. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/compare.h"
#include "check/grid.h"
#include "cpu/kernel.h"
#include "scale.h"

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))

#define assert_ok(call)                                                                                 \
    do {                                                                                                \
        attn_status status_ = (call);                                                                   \
        if (status_ != ATTN_OK) fail_msg("%s: %s: %s", #call, attn_status_name(status_), attn_error()); \
    } while (0)

/* Whether the kernel is one of the forward that this machine runs. */
static inline bool runs(const attn_cpu_kernel *kernel)
{
    return kernel->form != ATTN_GRADIENT && kernel->ops != NULL && attn_isa_available(kernel->isa);
}

/* Whether it is one of the backward that this machine runs. */
static inline bool runs_backward(const attn_cpu_kernel *kernel)
{
    return kernel->form == ATTN_GRADIENT && kernel->ops != NULL && attn_isa_available(kernel->isa);
}

/* f32 where the kernel takes it. */
static inline attn_dtype dtype_of(const attn_cpu_kernel *kernel)
{
    return kernel->dtypes >> ATTN_F32 & 1 ? ATTN_F32 : ATTN_BF16;
}

/* What a plan says of itself; its strategy and reason go with it. */
static inline attn_plan_info info_of(const attn_desc *desc)
{
    attn_plan *plan;
    attn_plan_info info;
    assert_ok(attn_plan_create(&plan, desc));
    assert_ok(attn_plan_get_info(plan, &info));
    assert_true(info.why[0] != '\0');
    attn_plan_destroy(plan);
    return info;
}

#endif
