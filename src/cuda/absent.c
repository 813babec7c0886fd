/* Stands for the CUDA backend in a build without it. */
#include "api/merge.h"
#include "api/quant.h"
#include "base/error.h"
#include "kv/op.h"
#include "cuda/arch.h"
#include "cuda/branches.h"
#include "cuda/inner.h"
#include "cuda/load.h"

const attn_cuda_image attn_cuda_images[] = { { NULL, NULL, NULL } };
const int attn_cuda_image_count = 0;

const attn_cuda_machine *attn_cuda_machine_get(void)
{
    attn_fail(ATTN_UNSUPPORTED, "this library was built without CUDA (ATTN_CUDA=OFF)");
    return NULL;
}

const attn_machine *attn_machine_of_gpu(void)
{
    attn_cuda_machine_get();
    return NULL;
}

attn_status attn_cuda_fail(CUresult result, const char *doing)
{
    return attn_fail(ATTN_DEVICE_FAILED, "%s: CUDA error %d", doing, result);
}

int attn_cuda_nvrtc_version(void)
{
    return 0;
}

const attn_cuda_kernel *attn_cuda_kernels(int *count)
{
    *count = 0;
    return NULL;
}

bool attn_cuda_bias_is_even(const attn_desc *desc)
{
    (void)desc;
    return false; /* no kernel asks */
}

const attn_cuda_image *attn_cuda_image_of(const char *unit)
{
    (void)unit;
    return NULL;
}

bool attn_cuda_can_load(const attn_cuda_kernel *kernel)
{
    (void)kernel;
    return false;
}

const attn_cuda_arch *const *attn_cuda_archs(int *count)
{
    *count = 0;
    return NULL;
}

const char *attn_cuda_bytes_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    (void)kernel, (void)desc;
    return NULL;
}

const char *attn_cuda_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    (void)kernel, (void)desc;
    return "this library was built without CUDA (ATTN_CUDA=OFF)";
}

bool attn_cuda_has_inner(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    (void)kernel, (void)desc;
    return false;
}

const attn_desc *attn_cuda_problem_of(const attn_cuda_kernel *kernel, const attn_desc *desc, attn_desc *inner)
{
    (void)kernel, (void)inner;
    return desc;
}

const attn_cuda_pass *attn_cuda_pass_for(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    (void)kernel, (void)desc;
    return NULL; /* of no kernel */
}

static attn_status refuse(void)
{
    attn_cuda_machine_get();
    return ATTN_UNSUPPORTED;
}

attn_status attn_cuda_context_get(attn_cuda_context *context)
{
    *context = (attn_cuda_context){ NULL, NULL, NULL, 0 };
    return refuse();
}

attn_status attn_cuda_load(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *symbol,
                           unsigned shared, CUfunction *function)
{
    (void)context, (void)kernel, (void)symbol, (void)shared;
    *function = NULL;
    return refuse();
}

static attn_status create(attn_plan *plan)
{
    (void)plan;
    return refuse();
}

const attn_backend attn_cuda_backend = { .create = create };

bool attn_branches_begin(attn_branches *branches, void *stream)
{
    (void)branches, (void)stream;
    return false;
}

attn_status attn_branches_next(attn_branches *branches, bool last)
{
    (void)branches, (void)last;
    return refuse();
}

static attn_status create_kv(attn_kv_plan *plan)
{
    (void)plan;
    return refuse();
}

const attn_kv_backend attn_kv_cuda_backend = { .create = create_kv };

static attn_status create_merge(attn_merge_plan *plan)
{
    (void)plan;
    return refuse();
}

const attn_merge_backend attn_merge_cuda_backend = { .create = create_merge };

static attn_status create_quant(attn_quant_plan *plan)
{
    (void)plan;
    return refuse();
}

const attn_quant_backend attn_quant_cuda_backend = { .create = create_quant };
