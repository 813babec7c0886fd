/* Contract: driver.h. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { OUT_OF_MEMORY = 2 };

static attn_cuda_machine machine;
static bool found;
static char why_not[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The address of a function goes into the table as bytes: ISO C has no conversion. */
static bool bind(void *library)
{
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define FUNCTION(member, symbol, arguments) { #symbol, offsetof(attn_cuda_driver, member) },
        ATTN_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (!address) {
            snprintf(why_not, sizeof why_not, "libcuda.so.1 has no %s: the driver is older than CUDA 12.4",
                     functions[i].symbol);
            return false;
        }
        memcpy((char *)&machine.driver + functions[i].offset, &address, sizeof address);
    }
    return true;
}

static int attribute(CUdevice device, int which)
{
    int value = 0;
    return machine.driver.cuDeviceGetAttribute(&value, which, device) ? 0 : value;
}

static bool ask_device(int ordinal)
{
    const attn_cuda_driver *driver = &machine.driver;
    attn_cuda_device *d = &machine.device[ordinal];
    CUdevice device;
    size_t bytes = 0;
    if (driver->cuDeviceGet(&device, ordinal)) return false;
    driver->cuDeviceGetName(d->name, sizeof d->name - 1, device);
    driver->cuDeviceTotalMem(&bytes, device);
    d->memory_bytes = bytes;
    d->major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    d->minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    d->multiprocessors = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    d->shared_bytes = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    d->l2_bytes = attribute(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    d->clock_khz = attribute(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    return d->multiprocessors > 0;
}

static void said(CUresult result, const char *doing, char *text, size_t size)
{
    const char *name = NULL, *words = NULL;
    machine.driver.cuGetErrorName(result, &name);
    machine.driver.cuGetErrorString(result, &words);
    snprintf(text, size, "%s: %s: %s", doing, name ? name : "unknown CUDA error", words ? words : "no text");
}

static void look(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* stays, for the driver keeps threads */
    if (!library) {
        const char *text = dlerror();
        snprintf(why_not, sizeof why_not, "no CUDA driver: %s", text ? text : "libcuda.so.1 cannot be loaded");
        return;
    }
    if (!bind(library)) return;
    CUresult result = machine.driver.cuInit(0);
    if (!result) result = machine.driver.cuDriverGetVersion(&machine.version);
    if (!result) result = machine.driver.cuDeviceGetCount(&machine.devices);
    if (result) {
        said(result, "no CUDA device: cuInit", why_not, sizeof why_not);
        return;
    }
    if (machine.devices > ATTN_CUDA_DEVICES_MOST) machine.devices = ATTN_CUDA_DEVICES_MOST;
    found = machine.devices > 0;
    for (int i = 0; i < machine.devices && found; i++)
        found = ask_device(i);
    if (!found) snprintf(why_not, sizeof why_not, "no CUDA device: the driver has none that answers");
}

const attn_cuda_machine *attn_cuda_machine_get(void)
{
    pthread_once(&once, look);
    if (found) return &machine;
    attn_fail(ATTN_UNSUPPORTED, "%s", why_not);
    return NULL;
}

attn_status attn_cuda_fail(CUresult result, const char *doing)
{
    char text[400];
    said(result, doing, text, sizeof text);
    return attn_fail(result == OUT_OF_MEMORY ? ATTN_NO_MEMORY : ATTN_DEVICE_FAILED, "%s", text);
}
