/* The CUDA driver, found when running: libcuda.so.1 by dlopen, so that one binary serves machines with and without a
 * GPU. The declarations are our own, in the driver's words and layout; no CUDA header is needed to build.
 *
 * The driver is looked for once per process. Whatever was found then, or why nothing was, is the answer from then on.
 */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

typedef int CUresult; /* 0: success */
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13, /* kHz */
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14 };
enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1
};
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum { CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
};
enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum { CU_TENSOR_MAP_SWIZZLE_NONE = 0, CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

typedef struct CUtensorMap {
    _Alignas(128) uint64_t opaque[16];
} CUtensorMap;

typedef struct CUlaunchAttribute {
    int id;
    union {
        char pad[64];
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
        uint64_t aligned;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

enum { CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CUDA_ERROR_NOT_READY = 600 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1, CU_STREAM_WAIT_VALUE_GEQ = 0 };

typedef struct CUipcMemHandle {
    char reserved[64];
} CUipcMemHandle;

typedef struct CUDA_MEMCPY2D {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* X(member, symbol, arguments): what the library itself needs, then what the command and the tests use besides. */
#define ATTN_CUDA_FUNCTIONS(X)                                                                                   \
    X(cuInit, cuInit, (unsigned flags))                                                                          \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                                    \
    X(cuGetErrorName, cuGetErrorName, (CUresult, const char **name))                                             \
    X(cuGetErrorString, cuGetErrorString, (CUresult, const char **text))                                         \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                                          \
    X(cuDeviceGet, cuDeviceGet, (CUdevice *, int ordinal))                                                       \
    X(cuDeviceGetName, cuDeviceGetName, (char *name, int size, CUdevice))                                        \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice))                         \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice))                                         \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext *))                                                           \
    X(cuCtxGetDevice, cuCtxGetDevice, (CUdevice *))                                                              \
    X(cuCtxGetId, cuCtxGetId, (CUcontext, unsigned long long *id))                                               \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx,                                                                    \
      (CUmodule *, const void *image, unsigned options, int *option, void **value))                              \
    X(cuModuleUnload, cuModuleUnload, (CUmodule))                                                                \
    X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *name))                      \
    X(cuFuncSetAttribute, cuFuncSetAttribute, (CUfunction, int attribute, int value))                            \
    X(cuFuncLoad, cuFuncLoad, (CUfunction))                                                                      \
    X(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char value, size_t count, CUstream))              \
    X(cuMemsetD32Async, cuMemsetD32Async, (CUdeviceptr, unsigned value, size_t count, CUstream))                 \
    X(cuLaunchKernelEx, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **parameters, void **extra)) \
    X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3,                                                         \
      (CUstream, int *status, uint64_t *, CUgraph *, const CUgraphNode **, const void **, size_t *count))        \
    X(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2,                                   \
      (CUstream, CUgraphNode *, const void *edges, size_t count, unsigned flags))                                \
    X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                            \
      (CUtensorMap *, int type, uint32_t rank, void *address, const uint64_t *extent, const uint64_t *stride,    \
       const uint32_t *box, const uint32_t *step, int interleave, int swizzle, int promotion, int fill))         \
    X(cuTensorMapReplaceAddress, cuTensorMapReplaceAddress, (CUtensorMap *, void *address))                      \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                               \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                       \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                             \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t bytes))                                                  \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                                    \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *from, size_t bytes))                              \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *to, CUdeviceptr, size_t bytes))                                      \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr, size_t bytes, CUstream))            \
    X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream))                                    \
    X(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned flags))                                              \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream *, unsigned flags, int priority))        \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned flags))                                 \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream))                                                      \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))                                                           \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int mode))                                       \
    X(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *))                                             \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long flags))       \
    X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))                                                     \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))                                                     \
    X(cuGraphDestroy, cuGraphDestroy, (CUgraph))                                                                 \
    X(cuEventCreate, cuEventCreate, (CUevent *, unsigned flags))                                                 \
    X(cuEventRecord, cuEventRecord, (CUevent, CUstream))                                                         \
    X(cuEventQuery, cuEventQuery, (CUevent))                                                                     \
    X(cuEventSynchronize, cuEventSynchronize, (CUevent))                                                         \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *milliseconds, CUevent begin, CUevent end))                 \
    X(cuEventDestroy, cuEventDestroy_v2, (CUevent))                                                              \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                     \
    X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned flags))                \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr))                                                   \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t value, unsigned flags))    \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t value, unsigned flags))      \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode))                         \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))

typedef struct attn_cuda_driver {
#define ATTN_CUDA_MEMBER(member, symbol, arguments) CUresult(*member) arguments;
    ATTN_CUDA_FUNCTIONS(ATTN_CUDA_MEMBER)
#undef ATTN_CUDA_MEMBER
} attn_cuda_driver;

enum { ATTN_CUDA_DEVICES_MOST = 64 };

typedef struct attn_cuda_device {
    char name[96];
    int major, minor; /* compute capability */
    int multiprocessors, shared_bytes, l2_bytes;
    int clock_khz; /* 0: unknown */
    uint64_t memory_bytes;
} attn_cuda_device;

typedef struct attn_cuda_machine {
    attn_cuda_driver driver;
    int version; /* 1000 major + 10 minor of the CUDA that the driver speaks */
    int devices;
    attn_cuda_device device[ATTN_CUDA_DEVICES_MOST];
} attn_cuda_machine;

/* The driver, initialised, and its devices, one at least. NULL where there are none: why not is in attn_error(), for
 * ATTN_UNSUPPORTED. */
const attn_cuda_machine *attn_cuda_machine_get(void);

/* Fails with what the driver says of `result`: "DOING: CUDA_ERROR_NAME: text". */
attn_status attn_cuda_fail(CUresult result, const char *doing);

#endif
