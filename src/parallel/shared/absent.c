/* Stands for the CUDA driver in a shared libattn_parallel that is built without it. */
#include "base/error.h"
#include "cuda/driver.h"

const attn_cuda_machine *attn_cuda_machine_get(void)
{
    attn_fail(ATTN_UNSUPPORTED, "this library was built without CUDA (ATTN_CUDA=OFF)");
    return NULL;
}

attn_status attn_cuda_fail(CUresult result, const char *doing)
{
    return attn_fail(ATTN_DEVICE_FAILED, "%s: CUDA error %d", doing, result);
}
