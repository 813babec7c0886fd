/* Contract: launch.h. */
#include "cuda/launch.h"

#include "problem/desc.h"

static attn_status launch(const attn_cuda_call *c, const char *what, CUfunction function, const CUlaunchConfig *config,
                          void *params)
{
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0) return ATTN_OK;
    CUresult result = c->cuda->driver->cuLaunchKernelEx(config, function, (void *[]){ params }, NULL);
    return result ? attn_cuda_fail(result, what) : ATTN_OK;
}

/* Of a launch that waits itself for what it needs of the one before. */
static const CUlaunchAttribute overlap = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                           .value.programmaticStreamSerializationAllowed = 1 };

static attn_status launch_blocks(const attn_cuda_call *c, const char *what, CUfunction function, const int64_t grid[3],
                                 unsigned threads, bool early, void *params)
{
    CUlaunchAttribute attribute = overlap;
    CUlaunchConfig config = { .gridDimX = (unsigned)grid[0],
                              .gridDimY = (unsigned)grid[1],
                              .gridDimZ = (unsigned)grid[2],
                              .blockDimX = threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = c->stream,
                              .attrs = &attribute,
                              .numAttrs = early };
    return launch(c, what, function, &config, params);
}

attn_status attn_cuda_launch(const attn_cuda_call *c, const char *what, CUfunction function, int64_t x, int64_t y,
                             int64_t z, unsigned threads, void *params)
{
    return launch_blocks(c, what, function, (int64_t[]){ x, y, z }, threads, false, params);
}

int64_t attn_cuda_converting_blocks(int64_t rows, int64_t block_rows, int64_t batch, int64_t multiprocessors)
{
    enum { OF_MULTIPROCESSOR = 32 }; /* beyond that a block takes several runs of rows */
    int64_t most = attn_ceil_div(OF_MULTIPROCESSOR * multiprocessors, batch ? batch : 1);
    int64_t blocks = attn_ceil_div(rows, block_rows);
    return blocks < most ? blocks : most;
}

attn_status attn_cuda_launch_beside(const attn_cuda_call *c, const char *what, CUfunction function, int64_t x,
                                    int64_t y, int64_t z, unsigned threads, void *params)
{
    return launch_blocks(c, what, function, (int64_t[]){ x, y, z }, threads, true, params);
}

static attn_status launch_variant(const attn_cuda_call *c, const attn_cuda_kernel *k, CUfunction function, int grid,
                                  bool early, void *params)
{
    CUlaunchAttribute cluster = { .id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                  .value.clusterDim = { (unsigned)k->cluster, 1, 1 } };
    CUlaunchAttribute attribute = early ? overlap : cluster;
    CUlaunchConfig config = { .gridDimX = (unsigned)grid,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = k->threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = k->shared,
                              .hStream = c->stream,
                              .attrs = &attribute,
                              .numAttrs = early || k->cluster > 1 };
    return launch(c, k->name, function, &config, params);
}

attn_status attn_cuda_launch_variant(const attn_cuda_call *c, CUfunction function, int grid, void *params)
{
    return launch_variant(c, c->cuda->chosen.kernel, function, grid, false, params);
}

attn_status attn_cuda_launch_early(const attn_cuda_call *c, const attn_cuda_kernel *k, CUfunction function, int grid,
                                   void *params)
{
    return launch_variant(c, k, function, grid, true, params);
}

attn_status attn_cuda_clear(const attn_cuda_call *c, void *at, size_t size)
{
    if (size == 0) return ATTN_OK;
    CUresult result = c->cuda->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, 0, size, c->stream);
    return result ? attn_cuda_fail(result, "cuMemsetD8Async") : ATTN_OK;
}
