/* The few functions of the CUDA driver that the guide's CUDA programs call, found when they run. They have the driver's
 * names, so that the programs read as they would with <cuda.h> and -lcuda; without it they compile on any machine and
 * say there what is missing. */
#ifndef GUIDE_CUDA_DRIVER_H
#define GUIDE_CUDA_DRIVER_H

#include "guide.h"

#include <dlfcn.h>

typedef int CUresult, CUdevice; /* CUresult 0: success */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CU_STREAM_NON_BLOCKING = 1, CU_STREAM_CAPTURE_MODE_GLOBAL = 0 };

/* X(name, symbol in libcuda.so.1, arguments) */
#define GUIDE_CUDA(X)                                                                              \
    X(cuInit, "cuInit", (unsigned flags))                                                          \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int ordinal))                                       \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))               \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                       \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                             \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t bytes))                                  \
    X(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                    \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *from, size_t bytes))              \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr, size_t bytes))                      \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))    \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))          \
    X(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned flags))                              \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                      \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream))                                           \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int mode))                       \
    X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph *))                             \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *, CUgraph, uint64_t flags)) \
    X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                     \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                     \
    X(cuGraphDestroy, "cuGraphDestroy", (CUgraph))
#define GUIDE_CUDA_POINTER(name, symbol, arguments) static CUresult(*name) arguments;
GUIDE_CUDA(GUIDE_CUDA_POINTER)
#undef GUIDE_CUDA_POINTER

static inline void cuda_must(CUresult result, const char *call)
{
    if (result) fprintf(stderr, "%s: CUDA error %d\n", call, result), exit(1);
}
#define CUDA(call) cuda_must(call, #call)

/* The first GPU's context, current. Where there is no driver or GPU it says so and ends the program, with success:
 * nothing was wrong. A function that this driver does not have stays NULL. */
static inline CUdevice cuda_begin(void)
{
    CUdevice device = 0;
    CUcontext context;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) printf("SKIPPED: no CUDA driver: %s\n", dlerror()), exit(0);
    void *symbol;
#define GUIDE_CUDA_FIND(name, text, arguments) symbol = dlsym(library, text), memcpy(&name, &symbol, sizeof symbol);
    GUIDE_CUDA(GUIDE_CUDA_FIND)
#undef GUIDE_CUDA_FIND
    if (cuInit(0) || cuDeviceGet(&device, 0)) printf("SKIPPED: a CUDA driver, but no GPU\n"), exit(0);
    CUDA(cuDevicePrimaryCtxRetain(&context, device));
    CUDA(cuCtxSetCurrent(context));
    return device;
}

/* A plan for this GPU; where the library has no kernel for it, it says so and ends the program with success. */
static inline attn_plan *cuda_plan(const attn_desc *desc)
{
    attn_plan *plan;
    attn_status status = attn_plan_create(&plan, desc);
    if (status == ATTN_UNSUPPORTED) printf("SKIPPED: %s\n", attn_error()), exit(0);
    must(status);
    return plan;
}

/* Device memory, filled with what lies at `from` unless that is NULL, as the pointer that attn_args takes. */
static inline void *on_device(const void *from, size_t bytes)
{
    CUdeviceptr at;
    CUDA(cuMemAlloc(&at, bytes + 1)); /* 0 bytes are an error there */
    if (from) CUDA(cuMemcpyHtoD(at, from, bytes));
    return (void *)(uintptr_t)at;
}

/* bf16 is the upper half of an f32. What does not fit is rounded to nearest, and `x` to what was kept. */
static inline uint16_t *to_bf16(float *x, int64_t count)
{
    uint16_t *half = take((size_t)count * sizeof *half);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        half[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        bits = (uint32_t)half[i] << 16;
        memcpy(&x[i], &bits, sizeof bits);
    }
    return half;
}

#endif
