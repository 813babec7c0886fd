#include "check/gpu/reference_host.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "num/half.h"
#include "num/philox.h"

/* The few words of CUDA that reference.cu uses. */
typedef struct place {
    unsigned x;
} place;

const int check_gpu_host_threads = 1;

static const place threadIdx = { 0 }, blockDim = { 1 };
static place blockIdx;

#define KERNEL static void
#define DEVICE static
#define SHARED static
#define FMA(a, b, c) ((a) * (b) + (c))
#define __grid_constant__
#define __syncthreads() ((void)0)
#include "check/gpu/reference.cu"

void check_gpu_host_launch(const char *symbol, int64_t ctas, const check_gpu_params *params)
{
    static const struct {
        const char *symbol;
        void (*kernel)(check_gpu_params);
    } kernels[] = {
#define ENTRY(symbol) { #symbol, symbol },
        CHECK_GPU_KERNELS(ENTRY)
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].symbol, symbol) == 0)
            for (blockIdx.x = 0; blockIdx.x < ctas; blockIdx.x++)
                kernels[i].kernel(*params);
}
