/* A processor of the test's choice in place of this one: what the planner hears of it (src/base/detect.h) comes from
 * here, since test programs that plan are linked with --wrap. Kernels still run only where the machine runs them. */
#ifndef ATTN_TESTS_PROCESSOR_H
#define ATTN_TESTS_PROCESSOR_H

#include "attn.h"

/* One for each built-in machine of a CPU, whose name it has; NULL: no more. */
const char *test_processor_name(int index);

/* The best instruction set of that processor. */
attn_isa test_processor_best(int index);

/* Plans are made for that processor from now on; NULL: for this machine's. ATTN_ISA is as isa says; NULL: not set. */
void test_processor(const char *name, const char *isa);

/* The same, as ATTN_TEST_PROCESSOR and ATTN_TEST_ISA say; without them a Zen 4, so that no test depends on the machine
 * that runs it. The setup of a group of tests. */
int test_processor_asked(void **state);

/* A test that runs kernels: on this machine, whatever was asked. */
#define runs_here(test) cmocka_unit_test_setup_teardown(test, test_processor_here, test_processor_asked)
int test_processor_here(void **state);

#endif
