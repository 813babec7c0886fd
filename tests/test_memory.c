/* Allocations, counted and failed by a malloc of our own before the C library's (glibc; not under sanitizers). */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include "check/kv_case.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *memory);

static atomic_long allocations, live; /* since the start */
static atomic_long fail_at = -1;      /* the allocation, by number, that fails */

static bool refused(void)
{
    long number = atomic_fetch_add(&allocations, 1);
    if (number != atomic_load(&fail_at)) return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory)
{
    if (memory != NULL) atomic_fetch_add(&live, 1);
    return memory;
}

void *malloc(size_t size)
{
    return refused() ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return refused() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    if (refused()) return NULL;
    void *moved = __libc_realloc(memory, size);
    if (memory == NULL) counted(moved);
    return moved;
}

void *aligned_alloc(size_t align, size_t size)
{
    return refused() ? NULL : counted(__libc_memalign(align, size));
}

int posix_memalign(void **memory, size_t align, size_t size)
{
    if (refused()) return ENOMEM;
    *memory = counted(__libc_memalign(align, size));
    return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    if (memory != NULL) atomic_fetch_sub(&live, 1);
    __libc_free(memory);
}

/* ---------------------------------------------------------------------------------------------- */

enum { PLANS = 12 };

static attn_desc desc_of(int n)
{
    attn_desc desc = { .direction = n & 8 ? ATTN_BACKWARD : ATTN_FORWARD,
                       .dtype = n & 1 ? ATTN_BF16 : ATTN_F32,
                       .flags = ATTN_CAUSAL | ATTN_INTERVALS | ATTN_DROPOUT,
                       .batch = 2,
                       .heads_q = 4,
                       .heads_kv = 2,
                       .len_kv = n & 2 ? 20000 : 700,
                       .dim_qk = 64,
                       .interval_vectors = 1,
                       .interval_heads = 2,
                       .dropout_p = 0.1f,
                       .threads = n & 4 ? 3 : 1 };
    desc.len_q = n & 2 ? 2 : 700;
    if (n & 8) desc.len_q = 150, desc.len_kv = 300;
    return desc;
}

static void running_allocates_nothing(void **state)
{
    (void)state;
    for (int n = 0; n < PLANS; n++) {
        attn_desc desc = desc_of(n);
        check_problem problem;
        attn_plan *plan;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 1 }));
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = check_allocate(attn_plan_workspace(plan));
        long before = atomic_load(&allocations);
        for (int i = 0; i < 3; i++)
            assert_ok(attn_run(plan, &problem.args, workspace, NULL)); /* the first one too */
        assert_int_equal(atomic_load(&allocations) - before, 0);
        free(workspace);
        attn_plan_destroy(plan);
        check_problem_destroy(&problem);
    }
}

/* Operations on pages, and the pool that says which: neither allocates but to plan. */
static void pages_allocate_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        check_kv_case c;
        attn_kv_plan *plan = NULL;
        assert_true(check_kv_draw(&c, &random));
        atomic_store(&fail_at, atomic_load(&allocations));
        attn_status status = attn_kv_plan_create(&plan, &c.desc);
        atomic_store(&fail_at, -1);
        assert_int_equal(status, ATTN_NO_MEMORY);
        assert_null(plan);
        assert_ok(attn_kv_plan_create(&plan, &c.desc));
        long before = atomic_load(&allocations);
        assert_ok(attn_kv_run(plan, &c.args, NULL));
        assert_int_equal(atomic_load(&allocations) - before, 0);
        attn_kv_plan_destroy(plan);
        check_kv_destroy(&c);
    }
}

/* Each allocation of planning fails once: a status, a message, nothing written, nothing leaked. */
static void planning_survives_every_failure(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) { /* with threads to start, with threads there; the backward */
        attn_desc desc = desc_of(round < 2 ? 4 : 12);
        bool started = round > 0;
        long first = atomic_load(&allocations), failures = 0;
        if (!started) desc.threads = 6;
        for (long n = 0;; n++) {
            attn_plan *plan = (attn_plan *)&desc;
            long before = atomic_load(&live);
            first = atomic_load(&allocations);
            atomic_store(&fail_at, first + n);
            attn_status status = attn_plan_create(&plan, &desc);
            atomic_store(&fail_at, -1);
            if (status == ATTN_OK) {
                attn_plan_destroy(plan);
                if (atomic_load(&allocations) <= first + n) break;
                continue; /* a failure that the C library got over */
            }
            failures++;
            assert_int_equal(status, ATTN_NO_MEMORY);
            assert_true(attn_error()[0] != '\0');
            assert_ptr_equal(plan, &desc);
            if (started) assert_int_equal(atomic_load(&live), before);
        }
        assert_true(failures > 0);
    }
}

static void plans_are_freed(void **state)
{
    (void)state;
    attn_desc desc = desc_of(4);
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &desc));
    attn_plan_destroy(plan);
    long before = atomic_load(&live);
    for (int i = 0; i < 100; i++) {
        assert_ok(attn_plan_create(&plan, &desc));
        attn_plan_destroy(plan);
    }
    assert_int_equal(atomic_load(&live), before);
    attn_plan_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_survives_every_failure),
        cmocka_unit_test(running_allocates_nothing),
        cmocka_unit_test(pages_allocate_nothing),
        cmocka_unit_test(plans_are_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
