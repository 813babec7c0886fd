/* Launches by a kernel's name, for the driver of tests/fake_cuda: the kernels that were built (kernels.def, which the
 * build writes) on the machine of machine.h. One at a time. */
#include <cstring>
#include <mutex>

#include "fake_driver.h"
#include "machine.h"

extern "C" {
#include "cuda/common/merge_params.h"
#include "cuda/common/pages_params.h"
#include "cuda/common/params.h"
#include "cuda/common/quant_params.h"
#include "cuda/common/widen_params.h"
#include "cuda/sm90/params.h"

#include "cuda/common/decode/params.h"
#include "cuda/sm90/backward_params.h"

#define KERNEL(symbol, params) void symbol(params);
#include "kernels.def"
#undef KERNEL
}

struct kernel {
    const char *symbol;
    void (*entry)(const void *params);
    size_t params_size;
};

#define KERNEL(symbol, params) { #symbol, [](const void *p) { symbol(*(const params *)p); }, sizeof(params) },
static const kernel kernels[] = {
#include "kernels.def"
};
#undef KERNEL

static const kernel &find(const char *symbol)
{
    for (const kernel &k : kernels)
        if (strcmp(k.symbol, symbol) == 0) return k;
    fake_die("%s has not been built", symbol);
}

extern "C" size_t fake_params_size(const char *symbol, const void *)
{
    return find(symbol).params_size;
}

extern "C" void fake_launch(const char *symbol, const CUlaunchConfig *config, const void *params)
{
    static std::mutex lock;
    std::lock_guard<std::mutex> held(lock);
    gpu_grid grid = { { config->gridDimX, config->gridDimY, config->gridDimZ },
                      { config->blockDimX, config->blockDimY, config->blockDimZ },
                      fake_cluster(config),
                      config->sharedMemBytes,
                      symbol,
                      find(symbol).entry,
                      params };
    gpu_run(&grid);
}
