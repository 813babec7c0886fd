/* CUDA streams: pointers are of device memory, the run is put into a stream and returns at once. */
#include "cuda_driver.h"

enum { ROWS = 300, HEADS = 4, DIM = 64, COUNT = ROWS * HEADS * DIM };

int main(void)
{
    CUdevice device = cuda_begin();
    float *q = random_floats(COUNT, 1), *k = random_floats(COUNT, 2), *v = random_floats(COUNT, 3);
    float *o = take(COUNT * sizeof *o);
    uint16_t *q16 = to_bf16(q, COUNT), *k16 = to_bf16(k, COUNT), *v16 = to_bf16(v, COUNT);

    attn_desc desc = { .device = ATTN_CUDA,
                       .dtype = ATTN_BF16,
                       .flags = ATTN_CAUSAL | ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_plan *plan = cuda_plan(&desc); /* attn_plan_create, for the context that is current */
    void *workspace = on_device(NULL, attn_plan_workspace(plan));
    attn_args args = { .q = on_device(q16, COUNT * sizeof *q16),
                       .k = on_device(k16, COUNT * sizeof *k16),
                       .v = on_device(v16, COUNT * sizeof *v16),
                       .o = on_device(NULL, COUNT * sizeof *o) };

    CUstream stream;
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(attn_run(plan, &args, workspace, stream)); /* returns before the GPU is done */
    CUDA(cuStreamSynchronize(stream));
    CUDA(cuMemcpyDtoH(o, (CUdeviceptr)(uintptr_t)args.o, COUNT * sizeof *o));

    double difference = 0, simple[DIM];
    for (int i = 0; i < ROWS; i += 23)
        for (int h = 0; h < HEADS; h++) {
            int64_t row = (i * HEADS + h) * DIM, head = h * DIM;
            simple_row(q + row, k + head, v + head, 0, i + 1, HEADS * DIM, DIM, NULL, -INFINITY, simple);
            difference = fmax(difference, row_difference(o + row, simple, DIM));
        }
    const void *const memory[] = { workspace, args.q, args.k, args.v, args.o };
    for (int i = 0; i < 5; i++)
        CUDA(cuMemFree((CUdeviceptr)(uintptr_t)memory[i]));
    CUDA(cuStreamDestroy(stream));
    attn_plan_destroy(plan);
    CUDA(cuDevicePrimaryCtxRelease(device));
    free(q), free(k), free(v), free(o), free(q16), free(k16), free(v16);
    return report("a run in a CUDA stream", difference, 2e-2);
}
