/* The GPU's clock and power, of NVIDIA's management library, found when running. */
#include <dlfcn.h>
#include <string.h>

#include "device/device.h"

typedef struct nvmlDevice_st *nvmlDevice;

enum { NVML_CLOCK_SM = 1 };

static struct {
    int (*init)(void);
    int (*device)(unsigned index, nvmlDevice *);
    int (*clock)(nvmlDevice, int type, unsigned *megahertz);
    int (*power)(nvmlDevice, unsigned *milliwatts);
} nvml;

static bool bind(void *library, const char *symbol, void *member)
{
    void *address = dlsym(library, symbol);
    memcpy(member, &address, sizeof address);
    return address;
}

static bool find(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && bind(library, "nvmlInit_v2", &nvml.init) &&
           bind(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.device) &&
           bind(library, "nvmlDeviceGetClockInfo", &nvml.clock) &&
           bind(library, "nvmlDeviceGetPowerUsage", &nvml.power) && nvml.init() == 0;
}

void device_state(double *megahertz, double *watts)
{
    static int found = -1;
    nvmlDevice device;
    unsigned clock = 0, power = 0;
    if (found < 0) found = find();
    if (found && nvml.device(0, &device) == 0) {
        if (nvml.clock(device, NVML_CLOCK_SM, &clock)) clock = 0;
        if (nvml.power(device, &power)) power = 0;
    }
    *megahertz = clock, *watts = 1e-3 * power;
}
