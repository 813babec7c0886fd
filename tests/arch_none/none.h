/* How often kernels of the architecture that does nothing were run. */
#ifndef TESTS_ARCH_NONE_NONE_H
#define TESTS_ARCH_NONE_NONE_H

extern int none_runs;

#endif
