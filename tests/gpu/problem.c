#include <stdio.h>
#include <unistd.h>

#include "check/grid.h"
#include "check/widen.h"
#include "gpu.h"

check_options options_of(int number)
{
    static const check_data data[] = { CHECK_ONE_HOT, CHECK_SPIKED, CHECK_PLAIN };
    return (check_options){ .data = data[number % 3], .seed = (uint64_t)(4 * number) };
}

/* Boxes of 8 keys and more: several pages a KV tile, one, and less than one; and pages without. */
static const int64_t page_sizes[] = { 64, 12, 16, 1, 256, 100, 24, 5, 128, 3, 8, 300 };

void set_pages(attn_desc *d, int64_t size)
{
    int64_t each = (d->len_kv + size - 1) / size;
    d->flags |= ATTN_PAGED | ATTN_LENS_KV;
    d->total_kv = 0;
    d->page_size = size, d->pages = d->batch * each + 3, d->table_width = each + 1;
}

attn_desc fit_kernel(const attn_cuda_kernel *k, attn_desc desc, const check_options *options)
{
    static const attn_dtype outs[] = { ATTN_E4M3, ATTN_F16, ATTN_BF16 };
    desc.dtype = k->dtype, desc.direction = attn_cuda_direction(k), desc.flags &= k->features;
    if (!desc.kv_dtype) desc.kv_dtype = attn_cuda_kv_dtype(k);
    if (!desc.kv_dtype && k->kv_dtypes >> ATTN_I8 & 1 && k->tma &&
        options->seed / 4 % 4 == 3) /* widened, now of this type, now of that */
        desc.kv_dtype = options->seed / 16 % 2 ? ATTN_E4M3 : ATTN_I8;
    bool queries = k->dtype == ATTN_BF16 && desc.kv_dtype == ATTN_E4M3 && options->seed / 32 % 2; /* these, too */
    check_problem_add(&desc, k->needs & ~desc.flags);
    if (!desc.dim_qk) desc.dim_qk = k->dim;
    if (!desc.dim_v) desc.dim_v = k->dim_v;
    if (k->paged && !desc.page_size) set_pages(&desc, page_sizes[options->seed / 4 % 12]);
    if (queries) desc.dtype = ATTN_E4M3;
    if (queries && !(desc.flags & ATTN_OUT_F32)) desc.out_dtype = outs[options->seed / 64 % 3];
    if (desc.kv_dtype) check_grid_scales((int)(options->seed / (queries ? 64 : 4)), &desc);
    return desc;
}

void check_kernel(const attn_cuda_kernel *k, attn_desc desc, check_options options, bool parts)
{
    check_problem problem;
    char name[CHECK_NAME];
    attn_plan *plan;
    attn_plan_info info = { .splits = 0 };
    options.by = reference_by;
    desc = fit_kernel(k, desc, &options);
    long long len_q = desc.len_q, len_kv = desc.len_kv;
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    if (parts && attn_plan_create(&plan, &desc) == ATTN_OK) {
        attn_plan_get_info(plan, &info);
        attn_plan_destroy(plan);
    }
    result(!parts || info.splits > 1, "%s, %lld x %lld: keys are not split", k->name, len_q, len_kv);
    snprintf(watched, sizeof watched, "%s, %lld x %lld, flags 0x%x", k->name, len_q, len_kv, desc.flags);
    alarm(WATCHDOG_SECONDS);
    attn_status status = check_problem_run(&problem, &desc, name);
    alarm(0); /* the reference takes its time */
    result(!status, "%s, %lld x %lld, flags 0x%x: %s", k->name, len_q, len_kv, desc.flags, attn_error());
    if (!status) {
        check_problem_of_kernel(&problem, k);
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare_again(&problem, check_compare(&problem, &reference));
        result(!error.message[0], "%s, %lld x %lld, flags 0x%x: %s", k->name, len_q, len_kv, desc.flags, error.message);
        check_reference_destroy(&reference);
    }
    check_problem_destroy(&problem);
}
