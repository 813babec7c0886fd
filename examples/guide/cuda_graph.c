/* CUDA graphs: a decode step is captured once and replayed while the cache grows. The graph holds addresses, not
 * lengths: kernels read lens_kv from device memory at each replay. */
#include "cuda_driver.h"

enum { CAPACITY = 300, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, STEPS = 10 };
enum { QUERIES = HEADS_Q * DIM, KEYS = CAPACITY * HEADS_KV * DIM };

int main(void)
{
    CUdevice device = cuda_begin();
    if (!cuStreamBeginCapture || !cuGraphInstantiate || !cuGraphLaunch)
        return printf("SKIPPED: this CUDA driver has no graphs\n"), 0;
    float *q = random_floats(QUERIES, 1), *k = random_floats(KEYS, 2), *v = random_floats(KEYS, 3);
    float o[QUERIES];
    uint16_t *q16 = to_bf16(q, QUERIES), *k16 = to_bf16(k, KEYS), *v16 = to_bf16(v, KEYS);
    int32_t used = 100;

    attn_desc desc = { .device = ATTN_CUDA,
                       .dtype = ATTN_BF16,
                       .flags = ATTN_LENS_KV | ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = 1,
                       .len_kv = CAPACITY,
                       .dim_qk = DIM };
    attn_plan *plan = cuda_plan(&desc); /* loads the kernels: before the capture, never in it */
    void *workspace = on_device(NULL, attn_plan_workspace(plan));
    attn_args args = { .q = on_device(q16, QUERIES * sizeof *q16),
                       .k = on_device(k16, KEYS * sizeof *k16),
                       .v = on_device(v16, KEYS * sizeof *v16),
                       .o = on_device(NULL, sizeof o),
                       .lens_kv = on_device(&used, sizeof used) };

    CUstream stream;
    CUgraph graph;
    CUgraphExec step;
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must(attn_run(plan, &args, workspace, stream));
    CUDA(cuStreamEndCapture(stream, &graph));
    CUDA(cuGraphInstantiate(&step, graph, 0));

    double difference = 0, simple[DIM];
    for (int i = 0; i < STEPS; i++) {
        used++; /* one key more; a model would write q, k and v here, at the same addresses */
        CUDA(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)args.lens_kv, &used, sizeof used, stream));
        CUDA(cuGraphLaunch(step, stream));
        CUDA(cuStreamSynchronize(stream));
        CUDA(cuMemcpyDtoH(o, (CUdeviceptr)(uintptr_t)args.o, sizeof o));
        for (int h = 0; h < HEADS_Q; h++) {
            int64_t row = h * DIM, head = h / (HEADS_Q / HEADS_KV) * DIM;
            simple_row(q + row, k + head, v + head, 0, used, HEADS_KV * DIM, DIM, NULL, -INFINITY, simple);
            difference = fmax(difference, row_difference(o + row, simple, DIM));
        }
    }
    CUDA(cuGraphExecDestroy(step));
    CUDA(cuGraphDestroy(graph));
    const void *const memory[] = { workspace, args.q, args.k, args.v, args.o, args.lens_kv };
    for (int i = 0; i < 6; i++)
        CUDA(cuMemFree((CUdeviceptr)(uintptr_t)memory[i]));
    CUDA(cuStreamDestroy(stream));
    attn_plan_destroy(plan);
    CUDA(cuDevicePrimaryCtxRelease(device));
    free(q), free(k), free(v), free(q16), free(k16), free(v16);
    return report("a CUDA graph, replayed while the cache grows", difference, 2e-2);
}
