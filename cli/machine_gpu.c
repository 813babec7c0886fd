/* The first GPU: what its driver says, and the bandwidth of copies. */
#include "cuda/driver.h"
#include "machine.h"

attn_status attn_measure_gpu(attn_machine *m)
{
    const attn_cuda_machine *cuda = attn_cuda_machine_get();
    if (!cuda) return ATTN_UNSUPPORTED;
    m->cores = cuda->device[0].multiprocessors;
    return ATTN_OK;
}
