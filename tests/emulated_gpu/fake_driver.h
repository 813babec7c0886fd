/* tests/fake_cuda/fake.h for C++: the driver's words are C11. */
#ifndef TESTS_EMULATED_GPU_FAKE_DRIVER_H
#define TESTS_EMULATED_GPU_FAKE_DRIVER_H

#define _Alignas alignas
#define _Noreturn [[noreturn]]
extern "C" {
#include "../fake_cuda/fake.h"
}
#undef _Alignas
#undef _Noreturn

#endif
