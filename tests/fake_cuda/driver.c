/* Contract: fake.h. Every function counts its calls and can be told to fail. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct CUctx_st {
    CUdevice device;
    unsigned long long id;
};

struct CUmod_st {
    CUcontext context;
    CUfunction functions; /* those looked up, the last one first */
    char only[64];        /* the one symbol it holds; "": any */
};

struct CUfunc_st {
    CUfunction next;
    CUcontext context;
    char symbol[64];
    int shared;
    bool loaded;
};

_Noreturn void fake_die(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("fake CUDA: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    abort();
}

/* ---- counting and failing ------------------------------------------------------------------ */

enum { FUNCTIONS_MOST = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const char *name;
    int calls;
    CUresult fail;
} functions[FUNCTIONS_MOST];

static int place_of(const char *name)
{
    for (int i = 0; i < FUNCTIONS_MOST; i++) {
        if (!functions[i].name) functions[i].name = strdup(name);
        if (strcmp(functions[i].name, name) == 0) return i;
    }
    fake_die("too many functions");
}

CUresult fake_called(const char *name)
{
    pthread_mutex_lock(&lock);
    int i = place_of(name);
    CUresult result = functions[i].fail;
    functions[i].calls++;
    functions[i].fail = 0;
    pthread_mutex_unlock(&lock);
    return result;
}

API fake_cuda_fail_next fake_cuda_fail;
API fake_cuda_calls fake_cuda_count;
API fake_cuda_events_pend fake_cuda_pend;
API fake_cuda_context_create fake_cuda_create;
API fake_cuda_context_destroy fake_cuda_destroy;

void fake_cuda_fail(const char *function, CUresult result)
{
    pthread_mutex_lock(&lock);
    functions[place_of(function)].fail = result;
    pthread_mutex_unlock(&lock);
}

int fake_cuda_count(const char *function)
{
    pthread_mutex_lock(&lock);
    int calls = functions[place_of(function)].calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

int fake_env(const char *name, int normal)
{
    const char *text = getenv(name);
    return text ? atoi(text) : normal;
}

/* ---- the driver ---------------------------------------------------------------------------- */

static _Thread_local CUcontext current;
static struct CUctx_st primary[2] = { { 0, 1 }, { 1, 2 } };
static atomic_ullong ids = 3;

CUresult cuInit(unsigned flags)
{
    CALLED;
    (void)flags;
    return fake_env("FAKE_CUDA_DEVICES", 2) ? 0 : NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    CALLED;
    *version = 13000;
    return 0;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = result == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
            : result == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND"
                                  : "CUDA_ERROR_FAKE";
    return 0;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    *text = result == NO_DEVICE ? "no CUDA-capable device is detected" : "made to fail";
    return 0;
}

CUresult cuDeviceGetCount(int *count)
{
    CALLED;
    *count = fake_env("FAKE_CUDA_DEVICES", 2);
    return 0;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CALLED;
    *device = ordinal;
    return 0;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    int capability = fake_env("FAKE_CUDA_CAPABILITY", 90);
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
             : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? fake_env("FAKE_CUDA_MULTIPROCESSORS", 132)
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448
             : attribute == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE                     ? 50 << 20
             : attribute == CU_DEVICE_ATTRIBUTE_CLOCK_RATE                        ? 1980000
                                                                                  : 0;
    return 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)1 << 32;
    return 0;
}

/* ---- contexts ------------------------------------------------------------------------------ */

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CALLED;
    *context = current;
    return 0;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CALLED;
    current = context;
    return 0;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CALLED;
    if (!current) return INVALID_CONTEXT;
    *device = current->device;
    return 0;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CALLED;
    if (!context) context = current;
    if (!context) return INVALID_CONTEXT;
    *id = context->id;
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CALLED;
    *context = &primary[device];
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CALLED;
    (void)device;
    return 0;
}

CUresult fake_cuda_create(CUcontext *context, CUdevice device)
{
    *context = calloc(1, sizeof **context);
    **context = (struct CUctx_st){ device, atomic_fetch_add(&ids, 1) };
    return 0;
}

CUresult fake_cuda_destroy(CUcontext context)
{
    free(context);
    return 0;
}

CUresult cuCtxSynchronize(void)
{
    CALLED;
    return 0;
}

/* ---- modules and launches ------------------------------------------------------------------ */

/* What NVRTC asks the driver for, unasked, to keep code in a cache of its own: there is none. */
API CUresult cuGetExportTable(const void **table, const void *id);

CUresult cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

/* The image is what nvrtc.c of this folder makes, a cubin, or a fatbin. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, int *option, void **value)
{
    CALLED;
    (void)options, (void)option, (void)value;
    if (!current) return INVALID_CONTEXT;
    *module = calloc(1, sizeof **module);
    (*module)->context = current;
    if (strncmp(image, "fake cubin", 10) == 0) {
        const char *name = strstr(image, "-DATTN_NAME=");
        const char *stem = strstr(image, "-DATTN_CLUSTER=")  ? "attn_sm90_backward_"
                           : strstr(image, "-DATTN_Q_TILE=") ? "attn_sm90_"
                                                             : "attn_sm90_decode_";
        strcpy((*module)->only, name ? stem : "");
        if (name) sscanf(name, "-DATTN_NAME=%40s", (*module)->only + strlen((*module)->only));
    } else if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, "\x50\xed\x55\xba", 4) != 0) {
        return INVALID_VALUE;
    }
    return 0;
}

CUresult cuModuleUnload(CUmodule module)
{
    free(module);
    return 0;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CALLED;
    if (module->only[0] && strcmp(module->only, name) != 0) return NOT_FOUND;
    for (CUfunction f = module->functions; f; f = f->next)
        if (strcmp(f->symbol, name) == 0) return *function = f, 0; /* each time the same, with its attributes */
    *function = calloc(1, sizeof **function);
    (*function)->context = module->context;
    (*function)->next = module->functions;
    module->functions = *function;
    snprintf((*function)->symbol, sizeof(*function)->symbol, "%s", name);
    return 0;
}

CUresult cuFuncLoad(CUfunction function)
{
    CALLED;
    function->loaded = true;
    return 0;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    CALLED;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value > 232448) return INVALID_VALUE;
        function->shared = value;
    }
    return 0;
}

unsigned fake_cluster(const CUlaunchConfig *config)
{
    unsigned blocks = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) continue; /* here none begins early */
        if (a->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) fake_die("launch attribute %d", a->id);
        if (a->value.clusterDim.y != 1 || a->value.clusterDim.z != 1) fake_die("a cluster of other than one dimension");
        blocks = a->value.clusterDim.x;
    }
    return blocks;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    CALLED;
    if (extra) fake_die("%s: extra parameters", function->symbol);
    if (function->context != current) fake_die("%s: launched in another context", function->symbol);
    if (config->hStream && config->hStream->context != current)
        fake_die("%s: another context's stream", function->symbol);
    if (!function->loaded) fake_die("%s: launched before it was loaded", function->symbol);
    if ((int)config->sharedMemBytes > (function->shared ? function->shared : 49152)) /* as real ones do, also below */
        fake_die("%s: %u bytes of shared memory", function->symbol, config->sharedMemBytes);
    if (!config->gridDimX || !config->gridDimY || !config->gridDimZ || config->gridDimY > 65535 ||
        config->gridDimZ > 65535)
        fake_die("%s: grid %u x %u x %u", function->symbol, config->gridDimX, config->gridDimY, config->gridDimZ);
    if (fake_cluster(config) < 1 || fake_cluster(config) > 8 || config->gridDimX % fake_cluster(config))
        fake_die("%s: %u blocks in clusters of %u", function->symbol, config->gridDimX, fake_cluster(config));
    if (capturing(config->hStream))
        fake_capture_launch(function->symbol, config, parameters[0]);
    else
        fake_launch(function->symbol, config, parameters[0]);
    return 0;
}

/* ---- tensor maps --------------------------------------------------------------------------- */

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *address, const uint64_t *extent,
                                const uint64_t *stride, const uint32_t *box, const uint32_t *step, int interleave,
                                int swizzle, int promotion, int fill)
{
    CALLED;
    fake_map m = { .address = (uint64_t)(uintptr_t)address,
                   .type = (uint16_t)type,
                   .swizzle = (uint16_t)swizzle,
                   .promotion = (uint16_t)promotion,
                   .magic = FAKE_MAP_MAGIC };
    if (rank != 4 || interleave || fill || m.address % 16 || (uintptr_t)map % 64) return INVALID_VALUE;
    for (int i = 0; i < 4; i++) {
        if (!extent[i] || extent[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || step[i] != 1)
            return INVALID_VALUE;
        m.extent[i] = (uint32_t)extent[i], m.box[i] = (uint16_t)box[i];
    }
    for (int i = 0; i < 3; i++) {
        if (!stride[i] || stride[i] % 16 || stride[i] >= (uint64_t)1 << 40) return INVALID_VALUE;
        m.stride[i] = stride[i];
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return 0;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    CALLED;
    uint64_t to = (uint64_t)(uintptr_t)address;
    if (to % 16 || (uintptr_t)map % 64) return INVALID_VALUE;
    memcpy(map, &to, sizeof to);
    return 0;
}

/* ---- memory, streams, events --------------------------------------------------------------- */

/* Lent to one at a time: each measurement asks for it, and sanitizers take long to free so much. */
static char flush[FLUSH] __attribute__((aligned(512)));
static atomic_bool flush_is_lent;

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes)
{
    CALLED;
    if (bytes == FLUSH && !atomic_exchange(&flush_is_lent, true)) {
        *at = (CUdeviceptr)(uintptr_t)flush;
        return 0;
    }
    *at = (CUdeviceptr)(uintptr_t)aligned_alloc(512, (bytes + 511) / 512 * 512);
    return *at ? 0 : OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    CALLED;
    if (at == (CUdeviceptr)(uintptr_t)flush)
        flush_is_lent = false;
    else
        free((void *)(uintptr_t)at);
    return 0;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    CALLED;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    CALLED;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return 0;
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream)
{
    CALLED;
    if (c->srcMemoryType != CU_MEMORYTYPE_DEVICE || c->dstMemoryType != CU_MEMORYTYPE_DEVICE || c->srcXInBytes ||
        c->srcY || c->dstXInBytes || c->dstY || c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes)
        return INVALID_VALUE;
    if (capturing(stream))
        fake_capture_copy(c, stream);
    else
        fake_copy(c);
    return 0;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    CALLED;
    if (capturing(stream)) fake_die("a copy in a graph");
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CALLED;
    if (capturing(stream)) fake_die("a copy in a graph");
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return 0;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CALLED;
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current;
    return 0;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CALLED;
    (void)priority;
    return cuStreamCreate(stream, flags);
}

/* Processes of the fake devices are threads. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
    CALLED;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &at, sizeof at);
    return 0;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
    CALLED;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return INVALID_VALUE;
    memcpy(at, &handle, sizeof *at);
    return 0;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    CALLED;
    (void)at;
    return 0;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
    CALLED;
    if (capturing(stream) || flags) return INVALID_VALUE;
    atomic_store((_Atomic uint32_t *)(uintptr_t)at, value);
    return 0;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
    CALLED;
    if (capturing(stream) || flags != CU_STREAM_WAIT_VALUE_GEQ) return INVALID_VALUE;
    time_t begin = time(NULL);
    while ((int32_t)(atomic_load((_Atomic uint32_t *)(uintptr_t)at) - value) < 0) {
        if (time(NULL) - begin > 60) fake_die("a stream waits for %u, and nobody writes it", value);
        sched_yield();
    }
    return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    CALLED;
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return 0;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CALLED;
    (void)flags;
    if (!event) return INVALID_VALUE;
    return event->captured ? fake_capture_wait(stream, event) : 0;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CALLED;
    (void)stream;
    return 0;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    free(stream);
    return 0;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CALLED;
    (void)flags;
    *event = calloc(1, sizeof **event);
    return 0;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALLED;
    event->captured = capturing(stream) ? stream->captured : NULL;
    if (event->captured) event->waits = stream->waits;
    return 0;
}

static atomic_bool pending;

void fake_cuda_pend(bool pend)
{
    pending = pend;
}

CUresult cuEventQuery(CUevent event)
{
    CALLED;
    (void)event;
    return pending ? CUDA_ERROR_NOT_READY : 0;
}

CUresult cuEventSynchronize(CUevent event)
{
    CALLED;
    (void)event;
    return 0;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    CALLED;
    (void)begin, (void)end;
    *milliseconds = 1;
    return 0;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    free(event);
    return 0;
}
