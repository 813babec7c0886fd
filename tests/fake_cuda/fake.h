/* A CUDA driver for machines without a GPU, so that the host's side of the CUDA backend can be tested: two devices
 * whose memory is the host's, contexts, modules, streams that are worked off at once, and kernels that check what they
 * are launched with and then let the CPU backend compute the same (emulate.c).
 *
 * Built as libcuda.so.1. The environment says what it is: FAKE_CUDA_DEVICES (2), FAKE_CUDA_CAPABILITY (90),
 * FAKE_CUDA_MULTIPROCESSORS (132), and with FAKE_CUDA_COMPUTES=0 that kernels check what they are launched with and
 * compute nothing: enough where no answer is looked at. Anything that a real driver or kernel would take amiss ends the
 * process with a message. tests/emulated_gpu has the same driver and lets the kernels themselves compute. */
#ifndef TESTS_FAKE_CUDA_FAKE_H
#define TESTS_FAKE_CUDA_FAKE_H

#include "cuda/driver.h"

/* What a test asks of it, through dlsym. */
typedef void fake_cuda_fail_next(const char *function, CUresult result); /* the next call of it fails so */
typedef int fake_cuda_calls(const char *function);                       /* calls of it until now */
typedef void fake_cuda_events_pend(bool pend);                           /* whether no event is there */
typedef CUresult fake_cuda_context_create(CUcontext *context, CUdevice device);
typedef CUresult fake_cuda_context_destroy(CUcontext context);

/* A tensor map as this driver encodes it. */
typedef struct fake_map {
    uint64_t address;
    uint64_t stride[3]; /* bytes */
    uint32_t extent[4];
    uint16_t box[4], type, swizzle, promotion, magic;
} fake_map;

enum { FAKE_MAP_MAGIC = 0x7a17 };

/* Blocks of a cluster that a launch asks for. */
unsigned fake_cluster(const CUlaunchConfig *config);

/* A setting of the environment, or what it normally is. */
int fake_env(const char *name, int normal);

/* Ends the process. */
_Noreturn void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Bytes of what the kernel `symbol` is launched with. */
size_t fake_params_size(const char *symbol, const void *params);

/* Does what the kernel `symbol` would do. */
void fake_launch(const char *symbol, const CUlaunchConfig *config, const void *params);

#endif
