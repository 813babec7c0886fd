#include "check/sweep.h"

#include <stdio.h>
#include <string.h>

#include "check/compare.h"
#include "check/device.h"
#include "cpu/kernel.h"
#include "cuda/kernel.h"

static const attn_cpu_kernel *kernel_named(const char *name)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

static const attn_cuda_kernel *cuda_kernel_named(const char *name)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

static check_sweep create_for_cuda(const check_grid *grid, const char *kernel)
{
    check_sweep sweep = { .grid = grid };
    int count;
    bool skipped = check_device_open() != ATTN_OK;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count && sweep.count < CHECK_REPORTS - 1; i++)
        if (kernel == NULL || strcmp(kernel, kernels[i].name) == 0)
            sweep.reports[sweep.count++] =
                (check_report){ .device = ATTN_CUDA, .kernel = kernels[i].name, .skipped = skipped };
    if (kernel == NULL || strcmp(kernel, "planner") == 0)
        sweep.reports[sweep.count++] = (check_report){ .device = ATTN_CUDA, .skipped = skipped };
    return sweep;
}

check_sweep check_sweep_create(const check_grid *grid, attn_device device, const char *kernel, attn_isa isa)
{
    check_sweep sweep = { .grid = grid };
    int count;
    if (device == ATTN_CUDA) return create_for_cuda(grid, kernel);
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count && sweep.count < CHECK_REPORTS - 1; i++) {
        if (kernel != NULL && strcmp(kernel, kernels[i].name) != 0) continue;
        if (isa != ATTN_ISA_AUTO && isa != kernels[i].isa) continue;
        sweep.reports[sweep.count++] =
            (check_report){ .kernel = kernels[i].name,
                            .isa = kernels[i].isa,
                            .skipped = kernels[i].ops == NULL || !attn_isa_available(kernels[i].isa) };
    }
    if ((kernel == NULL && isa == ATTN_ISA_AUTO) || (kernel != NULL && strcmp(kernel, "planner") == 0))
        sweep.reports[sweep.count++] = (check_report){ .isa = isa, .skipped = !attn_isa_available(isa) };
    return sweep;
}

static bool takes(const check_report *report, attn_form form, const attn_desc *desc)
{
    if (report->skipped || (report->device == ATTN_CUDA && form == ATTN_GRADIENT)) return false;
    if (report->kernel == NULL) return true;
    if (report->device == ATTN_CUDA) {
        const attn_cuda_kernel *cuda = cuda_kernel_named(report->kernel);
        bool some = desc->len_q > 0 && (desc->len_kv > 0 || desc->flags & ATTN_VARLEN); /* rows and keys */
        return (some || cuda->form == ATTN_CUDA_SIMPLE) && cuda->dtype == desc->dtype &&
               (desc->flags & ~cuda->features) == 0 && desc->dim_qk <= cuda->dim && desc->dim_v <= cuda->dim_v;
    }
    const attn_cpu_kernel *kernel = kernel_named(report->kernel);
    return kernel->form == form && kernel->dtypes >> desc->dtype & 1 && (desc->flags & ~kernel->features) == 0 &&
           desc->dim_qk <= kernel->dim_max && desc->dim_v <= kernel->dim_max;
}

/* A kernel of the CPU that takes no f32. */
static bool is_narrow(const check_report *report)
{
    return report->device == ATTN_CPU && report->kernel && !(kernel_named(report->kernel)->dtypes >> ATTN_F32 & 1);
}

static void record(check_report *report, int number, const check_error *error, const check_problem *problem)
{
    report->cases++;
    if (error->out > report->out) report->out = error->out, report->out_case = number;
    if (error->lse > report->lse) report->lse = error->lse, report->lse_case = number;
    if (error->message[0] == '\0' || report->failures++ > 0) return;
    report->failed_case = number;
    int used = snprintf(report->message, sizeof report->message, "%s\n  ", error->message);
    check_problem_print(&problem->desc, &problem->options, report->message + used,
                        sizeof report->message - (size_t)used);
}

static void run_kernel(check_report *report, int number, const check_problem *problem, const check_reference *reference)
{
    attn_desc desc = problem->desc;
    desc.kernel = report->kernel;
    desc.isa = report->isa;
    desc.device = report->device;
    char kernel[CHECK_NAME] = "";
    check_error error = { 0 };
    if (check_problem_run(problem, &desc, kernel) != ATTN_OK)
        snprintf(error.message, sizeof error.message, "refused: %s", attn_error());
    else if (report->kernel != NULL && strcmp(report->kernel, kernel) != 0)
        snprintf(error.message, sizeof error.message, "planned with %s", kernel);
    else
        error = check_compare(problem, reference);
    record(report, number, &error, problem);
}

/* narrow: each third case of f32 once more in bf16, for the kernels that take no f32 and would else see few cases. */
static void run_form(check_sweep *sweep, int number, attn_form form, bool narrow)
{
    attn_desc desc;
    check_options options;
    check_problem problem;
    check_grid_case(sweep->grid, number, form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD,
                    form == ATTN_DECODE ? ATTN_DECODE_ROWS : INT64_MAX, &desc, &options);
    if (narrow && (desc.dtype != ATTN_F32 || number % 3 != 2)) return;
    if (narrow) desc.dtype = ATTN_BF16;
    bool takers[CHECK_REPORTS], wanted = false;
    for (int i = 0; i < sweep->count; i++) {
        takers[i] = takes(&sweep->reports[i], form, &desc) && (!narrow || is_narrow(&sweep->reports[i]));
        wanted |= takers[i];
    }
    if (!wanted) return;
    if (check_problem_create(&problem, &desc, &options) != ATTN_OK) {
        check_error error = { 0 };
        snprintf(error.message, sizeof error.message, "refused: %s", attn_error());
        problem.desc = desc, problem.options = options;
        for (int i = 0; i < sweep->count; i++)
            if (takers[i]) record(&sweep->reports[i], number, &error, &problem);
        return;
    }
    check_reference reference = check_reference_create(&problem);
    for (int i = 0; i < sweep->count; i++)
        if (takers[i]) run_kernel(&sweep->reports[i], number, &problem, &reference);
    check_reference_destroy(&reference);
    check_problem_destroy(&problem);
}

void check_sweep_case(check_sweep *sweep, int number)
{
    for (int form = 0; form < ATTN_FORMS; form++)
        for (int narrow = 0; narrow < 2; narrow++)
            run_form(sweep, number, (attn_form)form, narrow);
}

double check_case_work(const check_grid *grid, int number)
{
    attn_desc desc;
    check_options options;
    check_grid_case(grid, number, ATTN_FORWARD, INT64_MAX, &desc, &options);
    int64_t dims = desc.dim_qk + (desc.dim_v ? desc.dim_v : desc.dim_qk);
    return (double)(desc.batch * desc.heads_q * desc.len_q) * (double)(desc.len_kv * dims);
}
