/* The kernels of check/gpu/reference.cu with all of their threads, on the machine of machine.h: in place of
 * check/gpu/reference_host.c, which has one a CTA. */
#define ATTN_DTYPE BF16
#include "device.h"

extern "C" {
#include "check/gpu/reference_host.h"
#include "num/philox.h"
}

#define KERNEL extern "C" void
#define SHARED static
#define FMA(a, b, c) ((a) * (b) + (c))
#include "check/gpu/reference.cu"

extern "C" const int check_gpu_host_threads = 32;

struct entry {
    const char *symbol;
    void (*run)(const void *params);
};

extern "C" void check_gpu_host_launch(const char *symbol, int64_t ctas, const check_gpu_params *params)
{
    static const entry entries[] = {
#define ENTRY(symbol) { #symbol, [](const void *p) { symbol(*(const check_gpu_params *)p); } },
        CHECK_GPU_KERNELS(ENTRY)
    };
    for (const entry &e : entries) {
        if (strcmp(e.symbol, symbol) != 0) continue;
        gpu_grid grid = { { (unsigned)ctas, 1, 1 }, { (unsigned)check_gpu_host_threads, 1, 1 }, 1, 0, e.symbol, e.run,
                          params };
        gpu_run(&grid);
    }
}
