#include "check/gpu/agree.h"

#include <math.h>
#include <stdio.h>

#include "problem/desc.h"
#include "base/error.h"
#include "check/compare.h"

enum { MESSAGE = 200 };

/* rows_work: multiply-adds of which the CPU's reference takes all rows, safely. */
static const double value_most = 1e-11, code_most = 1e-9, gpu_most = 1, rows_work = 4e6;

/* |a - b| as a share of `size`; infinite if just one of them is. */
static double apart(double a, double b, double size)
{
    if (a == b) return 0;
    double difference = fabs(a - b) / size;
    return isnan(difference) ? INFINITY : difference;
}

static bool same_allowed(const check_deviation *a, const check_deviation *b, double most, const char *what,
                         char *message)
{
    double max = apart(a->max, b->max, fmin(a->max, b->max)),
           squares = apart(a->squares, b->squares, fmin(a->squares, b->squares));
    if (max <= most && squares <= most) return true;
    snprintf(message, MESSAGE, "%s: allowed are max %.9g and rms %.9g, the GPU's code says %.9g and %.9g", what, a->max,
             a->squares, b->max, b->squares);
    return false;
}

static bool same_rows(const check_problem *problem, const check_reference *a, const check_reference *b, char *message)
{
    int64_t dim = problem->resolved.dim_v;
    double size = 1e-30, worst = 0;
    for (int64_t i = 0; i < a->count * dim; i++)
        size = fmax(size, fabs(a->o[i]));
    int at = 0, missing = 0;
    for (int r = 0; r < a->count; r++, at++) { /* b has all rows, in the same order */
        const check_row *row = &a->rows[r];
        while (at < b->count &&
               (b->rows[at].batch != row->batch || b->rows[at].head != row->head || b->rows[at].row != row->row))
            at++;
        if (at >= b->count) {
            missing++;
            continue;
        }
        worst = fmax(worst, apart(row->lse, b->rows[at].lse, fmax(1, fabs(row->lse))));
        for (int64_t d = 0; d < dim; d++)
            worst = fmax(worst, apart(a->o[r * dim + d], b->o[at * dim + d], size));
    }
    if (worst <= value_most && missing == 0) return true;
    snprintf(message, MESSAGE, "o or LSE differ by %.3g; %d rows are missing", worst, missing);
    return false;
}

static bool same_gradient(const check_problem *problem, const check_reference *a, const check_reference *b,
                          check_gradient gradient, char *message)
{
    check_elements e = check_gradient_elements(problem, gradient);
    int64_t lo, hi;
    double size = 1e-30, worst = 0;
    const double *x = a->gradients[gradient].values, *y = b->gradients[gradient].values;
    attn_reach(e.extent, e.stride, &lo, &hi);
    for (int64_t i = 0; i < hi - lo; i++)
        size = fmax(size, fabs(x[i]));
    for (int64_t i = 0; i < hi - lo; i++)
        worst = fmax(worst, apart(x[i], y[i], size));
    if (worst <= value_most) return true;
    snprintf(message, MESSAGE, "gradient %d differs by %.3g", (int)gradient, worst);
    return false;
}

static bool same(const check_problem *problem, const check_reference *a, const check_reference *b, double most,
                 char *message)
{
    const attn_desc *d = &problem->resolved;
    if (d->direction == ATTN_FORWARD) {
        double work = (double)(d->batch * d->heads_q * d->len_q) * (double)(d->len_kv * (d->dim_qk + d->dim_v));
        bool all_rows = work < rows_work; /* by the CPU, too */
        return same_rows(problem, a, b, message) &&
               (!all_rows || same_allowed(&a->allowed, &b->allowed, most, "o", message));
    }
    static const char *const names[] = {
#define GRADIENT_NAME(enumerator, argument) #argument,
        CHECK_GRADIENT_LIST(GRADIENT_NAME)
    };
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        if (check_gradient_base(problem, (check_gradient)g) &&
            (!same_gradient(problem, a, b, (check_gradient)g, message) ||
             !same_allowed(&a->gradients[g].allowed, &b->gradients[g].allowed, most, names[g], message)))
            return false;
    return true;
}

bool check_gpu_agrees(const attn_desc *desc, const check_options *options, check_by by, char *message)
{
    check_problem problem;
    attn_desc plain = *desc;
    check_leave_out_parts(&plain);
    if (check_problem_create(&problem, &plain, options)) {
        snprintf(message, MESSAGE, "refused: %s", attn_error());
        return false;
    }
    check_reference cpu = check_reference_create(&problem);
    problem.options.by = by;
    check_reference gpu = check_reference_create(&problem);
    bool agree = same(&problem, &cpu, &gpu, by == CHECK_BY_GPU_CODE ? code_most : gpu_most, message);
    check_reference_destroy(&cpu);
    check_reference_destroy(&gpu);
    check_problem_destroy(&problem);
    return agree;
}
