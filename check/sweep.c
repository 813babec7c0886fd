#include "check/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/compare.h"
#include "check/widen.h"
#include "device/device.h"
#include "cpu/kernel.h"
#include "cuda/inner.h"
#include "cuda/load.h"

/* Multiply-adds of the cases that run_fitted takes. */
static const double fitted_most = 5e7;

/* Of a kernel's cases each so manyth is run once more, by a strategy that is drawn; others if it says a rare word. */
enum { DRAWN_OF = 3, DRAWS_MOST = 6 };

static const attn_cpu_kernel *kernel_named(const char *name)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

const attn_cuda_kernel *check_cuda_kernel_named(const char *name)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

static void add_report(check_sweep *sweep, check_report report)
{
    if (sweep->count == CHECK_REPORTS) abort(); /* a kernel without one would never be checked */
    sweep->reports[sweep->count++] = report;
}

static check_sweep create_for_cuda(const check_grid *grid, const char *kernel)
{
    check_sweep sweep = { .grid = grid };
    int count;
    bool skipped = device_open() != ATTN_OK;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (kernel == NULL || strcmp(kernel, kernels[i].name) == 0)
            add_report(&sweep, (check_report){ .device = ATTN_CUDA,
                                               .kernel = kernels[i].name,
                                               .skipped = skipped || !attn_cuda_can_load(&kernels[i]) });
    if (kernel == NULL || strcmp(kernel, "planner") == 0)
        add_report(&sweep, (check_report){ .device = ATTN_CUDA, .skipped = skipped });
    return sweep;
}

check_sweep check_sweep_create(const check_grid *grid, attn_device device, const char *kernel, attn_isa isa)
{
    check_sweep sweep = { .grid = grid };
    int count;
    if (device == ATTN_CUDA) return create_for_cuda(grid, kernel);
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (kernel != NULL && strcmp(kernel, kernels[i].name) != 0) continue;
        if (isa != ATTN_ISA_AUTO && isa != kernels[i].isa) continue;
        add_report(&sweep, (check_report){ .kernel = kernels[i].name,
                                           .isa = kernels[i].isa,
                                           .skipped = kernels[i].ops == NULL || !attn_isa_available(kernels[i].isa) });
    }
    if ((kernel == NULL && isa == ATTN_ISA_AUTO) || (kernel != NULL && strcmp(kernel, "planner") == 0))
        add_report(&sweep, (check_report){ .isa = isa, .skipped = !attn_isa_available(isa) });
    return sweep;
}

void check_sweep_only(check_sweep *sweep, attn_direction direction)
{
    int kept = 0;
    for (int i = 0; i < sweep->count; i++) {
        const check_report *r = &sweep->reports[i];
        bool backward = r->kernel && (r->device == ATTN_CUDA
                                          ? attn_cuda_direction(check_cuda_kernel_named(r->kernel)) == ATTN_BACKWARD
                                          : kernel_named(r->kernel)->form == ATTN_GRADIENT);
        if (!r->kernel || backward == (direction == ATTN_BACKWARD)) sweep->reports[kept++] = *r;
    }
    sweep->count = kept;
    sweep->left_out[!direction] = true;
}

/* Query rows of a sequence that share keys. */
static int64_t packed_rows(const attn_desc *desc)
{
    return desc->len_q * (desc->heads_kv ? desc->heads_q / desc->heads_kv : 1);
}

static bool takes(const check_report *report, attn_form form, const attn_desc *desc)
{
    if (report->skipped) return false;
    if (report->kernel == NULL) return true;
    if (report->device == ATTN_CUDA) {
        attn_desc inner;
        const attn_cuda_kernel *cuda = check_cuda_kernel_named(report->kernel);
        desc = attn_cuda_problem_of(cuda, desc, &inner);
        bool packed = desc->flags & ATTN_VARLEN && !(desc->flags & ATTN_PAGED);
        bool some = desc->len_q > 0 && (desc->len_kv > 0 || packed); /* rows and keys */
        int64_t dim_v = desc->dim_v ? desc->dim_v : desc->dim_qk;
        if (cuda->paged && !(desc->flags & ATTN_PAGED)) return false;
        if (attn_cuda_bytes_obstacle(cuda, desc)) return false;
        if (cuda->form == ATTN_CUDA_DECODE && packed_rows(desc) > cuda->q_tile) return false;
        return attn_cuda_direction(cuda) == desc->direction && (some || !attn_cuda_is_variant(cuda)) &&
               cuda->dtype == desc->dtype && cuda->kv_dtypes >> attn_kv_dtype(desc) & 1 &&
               (desc->flags & ~cuda->features) == 0 && !(cuda->needs & ~desc->flags) &&
               (!(cuda->needs & ATTN_BIAS) || attn_cuda_bias_is_even(desc)) && attn_cuda_takes_ranges(cuda, desc) &&
               attn_cuda_takes_lists(cuda, desc) && desc->dim_qk <= cuda->dim && dim_v <= cuda->dim_v;
    }
    const attn_cpu_kernel *kernel = kernel_named(report->kernel);
    return kernel->form == form && kernel->dtypes >> desc->dtype & 1 && (desc->flags & ~kernel->features) == 0 &&
           (!desc->kv_dtype || desc->kv_dtype == desc->dtype || kernel->kv_dtypes >> desc->kv_dtype & 1) &&
           desc->dim_qk <= kernel->dim_max && desc->dim_v <= kernel->dim_max;
}

/* A kernel of the CPU that takes no f32. */
static bool is_narrow(const check_report *report)
{
    return report->device == ATTN_CPU && report->kernel && !(kernel_named(report->kernel)->dtypes >> ATTN_F32 & 1);
}

/* A kernel of a GPU that does not take every size and layout: for paged keys, or for few rows. */
static bool is_choosy(const check_report *report)
{
    if (report->device != ATTN_CUDA || !report->kernel) return false;
    const attn_cuda_kernel *k = check_cuda_kernel_named(report->kernel);
    return k->paged || k->form == ATTN_CUDA_DECODE;
}

/* A kernel of a GPU that takes only words that say to do without: all its runs are alike. */
static bool is_fallback(const check_report *report)
{
    return report->device == ATTN_CUDA && report->kernel &&
           !attn_cuda_is_variant(check_cuda_kernel_named(report->kernel));
}

static void record(check_report *report, int number, const check_error *error, const check_problem *problem,
                   const char *strategy)
{
    report->cases++;
    if (error->out > report->out) report->out = error->out, report->out_case = number;
    if (error->lse > report->lse) report->lse = error->lse, report->lse_case = number;
    if (error->message[0] == '\0' || report->failures++ > 0) return;
    report->failed_case = number;
    int used = snprintf(report->message, sizeof report->message, "%s\n  %s%s%s", error->message,
                        strategy ? "--strategy " : "", strategy ? strategy : "", strategy ? "\n  " : "");
    check_problem_print(&problem->desc, &problem->options, report->message + used,
                        sizeof report->message - (size_t)used);
}

/* A problem's references, by what kernels make of its elements (widens, rounds_p, rounds_sums): each is computed when a
 * kernel first asks for it. */
enum { REFERENCES = 6 };

typedef struct references {
    check_reference of[REFERENCES];
    bool there[REFERENCES];
} references;

static const check_reference *reference_for(references *r, const check_problem *as)
{
    unsigned which = as->options.rounds_p ? (unsigned)(REFERENCES - 2 + as->options.rounds_sums) : as->options.widens;
    if (!r->there[which]) r->of[which] = check_reference_create(as), r->there[which] = true;
    return &r->of[which];
}

static check_error compare(references *known, const check_problem *problem, const char *kernel)
{
    check_problem as = *problem;
    check_problem_of_kernel(&as, check_cuda_kernel_named(kernel));
    check_error error = check_compare(&as, reference_for(known, &as));
    if (error.message[0] && check_problem_of_fallback(&as)) error = check_compare(&as, reference_for(known, &as));
    return check_compare_again(&as, error);
}

static void run_planned(check_report *report, int number, const check_problem *problem, references *known,
                        const attn_desc *desc)
{
    char kernel[CHECK_NAME] = "";
    check_error error = { 0 };
    bool returns = check_strategy_returns(desc, error.message, sizeof error.message);
    if (returns && check_problem_run(problem, desc, kernel) != ATTN_OK)
        snprintf(error.message, sizeof error.message, "refused: %s", attn_error());
    else if (returns && report->kernel != NULL && strcmp(report->kernel, kernel) != 0)
        snprintf(error.message, sizeof error.message, "planned with %s", kernel);
    else if (returns)
        error = compare(known, problem, kernel);
    record(report, number, &error, problem, desc->strategy);
}

/* As the planner would have it, and in a share of the cases by a strategy besides; or by the one that is asked for. */
static void run_kernel(check_report *report, int number, const check_problem *problem, references *known,
                       const char *strategy, bool drawn)
{
    attn_desc desc = problem->desc;
    char text[ATTN_STRATEGY_TEXT];
    attn_plan *plan;
    desc.kernel = report->kernel;
    desc.isa = report->isa;
    desc.device = report->device;
    if (desc.device == ATTN_CUDA) desc.threads = 0, desc.parallel_for = NULL;
    desc.strategy = strategy;
    bool chooses = strategy || is_choosy(report); /* not every strategy, size and layout */
    attn_status status = chooses ? attn_plan_create(&plan, &desc) : ATTN_OK;
    if (status == ATTN_INVALID || status == ATTN_UNSUPPORTED) return;
    if (chooses && !status) attn_plan_destroy(plan);
    run_planned(report, number, problem, known, &desc);
    if (strategy) return;
    for (int n = 0; n < (is_fallback(report) ? 1 : DRAWS_MOST); n++) {
        desc.strategy = NULL;
        check_strategy_draw(&report->strategies, &desc, problem->options.seed + (uint64_t)n, drawn && n == 0, text);
        desc.strategy = text;
        if (text[0]) run_planned(report, number, problem, known, &desc);
    }
}

/* Runs all kernels that take the problem, or only the one of report `only`, if that is not negative. */
static void run_problem(check_sweep *sweep, int number, const attn_desc *desc, const check_options *options,
                        attn_form form, int only, bool narrow)
{
    check_problem problem;
    bool users[CHECK_REPORTS], wanted = false;
    for (int i = 0; i < sweep->count; i++) {
        users[i] = takes(&sweep->reports[i], form, desc) && (!narrow || is_narrow(&sweep->reports[i])) &&
                   (only < 0 || only == i);
        wanted |= users[i];
    }
    if (!wanted) return;
    if (check_problem_create(&problem, desc, options) != ATTN_OK) {
        check_error error = { 0 };
        snprintf(error.message, sizeof error.message, "refused: %s", attn_error());
        problem.desc = *desc, problem.options = *options;
        for (int i = 0; i < sweep->count; i++)
            if (users[i]) record(&sweep->reports[i], number, &error, &problem, NULL);
        return;
    }
    references known = { .there = { false } };
    for (int i = 0; i < sweep->count; i++)
        if (users[i])
            run_kernel(&sweep->reports[i], number, &problem, &known, sweep->strategy,
                       only >= 0 || sweep->reports[i].planned++ % DRAWN_OF == 0);
    for (int i = 0; i < REFERENCES; i++)
        if (known.there[i]) check_reference_destroy(&known.of[i]);
    check_problem_destroy(&problem);
}

/* Keys as most kernels of a GPU take them: in no pages, from the first on, at the positions that lengths give. */
static void leave_out_caches(attn_desc *d)
{
    if (d->flags & ATTN_PAGED && d->flags & ATTN_VARLEN) d->total_kv = d->batch * d->len_kv + 1;
    d->flags &= ~(uint32_t)ATTN_CUDA_CACHES;
    d->pages = d->page_size = d->table_width = d->table_total = 0;
}

/* How often a case is run: as it is; NARROW: each third case of f32 once more in bf16, for the kernels that take no f32
 * and would else see few cases; BYTES: each third forward once more in elements of a byte. */
typedef enum variant { AS_IT_IS, NARROW, BYTES, VARIANTS } variant;

/* On a GPU for the kernels that take caches first with them, then for all without. */
static void run_form(check_sweep *sweep, int number, attn_form form, variant as)
{
    bool narrow = as == NARROW, on_cuda = sweep->count > 0 && sweep->reports[0].device == ATTN_CUDA;
    attn_desc desc;
    check_options options;
    check_grid_case(sweep->grid, number, form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD,
                    form == ATTN_DECODE ? ATTN_DECODE_ROWS : INT64_MAX, &desc, &options);
    if (narrow && (desc.dtype != ATTN_F32 || number % 3 != 2)) return;
    if (narrow) desc.dtype = ATTN_BF16;
    if (as == BYTES && (form == ATTN_GRADIENT || number % 3 != 1)) return;
    if (as == BYTES) check_grid_bytes(number / 3, &desc);
    if (on_cuda && desc.dtype != ATTN_E4M3 && desc.out_dtype != ATTN_F32) desc.out_dtype = (attn_dtype)0;
    if (on_cuda) check_leave_out_parts(&desc);
    if (on_cuda && desc.flags & ATTN_CUDA_CACHES) {
        if (form != ATTN_GRADIENT) run_problem(sweep, number, &desc, &options, form, -1, narrow);
        leave_out_caches(&desc);
    }
    run_problem(sweep, number, &desc, &options, form, -1, narrow);
}

/* ---- a GPU's kernels that have few features ---------------------------------------------------- */

static void leave_out_bias(attn_desc *d)
{
    d->flags &= ~(uint32_t)ATTN_BIAS;
    d->bias_dtype = (attn_dtype)0;
    for (int i = 0; i < 4; i++)
        d->bias_extent[i] = d->bias_stride[i] = 0;
}

/* What the kernel's dtype, features and dims leave of a problem. */
static void fit(const attn_cuda_kernel *kernel, attn_desc *d)
{
    uint32_t gone = d->flags & ~kernel->features;
    d->dtype = kernel->dtype, d->kv_dtype = attn_cuda_kv_dtype(kernel);
    d->flags &= kernel->features;
    check_problem_fit_ranges(kernel, d);
    if (!attn_cuda_takes_lists(kernel, d)) check_problem_even_blocks(d);
    if (d->dim_qk > kernel->dim) d->dim_qk = 1 + d->dim_qk % kernel->dim;
    if (d->dim_v > kernel->dim_v) d->dim_v = 1 + d->dim_v % kernel->dim_v;
    if (d->dim_v == 0 && d->dim_qk > kernel->dim_v) d->dim_v = kernel->dim_v;
    if (gone & ATTN_VARLEN) d->total_q = d->total_kv = 0;
    if (gone & ATTN_WINDOW) d->window_left = d->window_right = 0;
    if (gone & ATTN_CHUNK) d->chunk = 0;
    if (gone & ATTN_INTERVALS) d->interval_vectors = d->interval_heads = 0;
    if (gone & ATTN_BLOCKS) d->block_rows = d->block_keys = d->block_batch = d->block_heads = 0;
    if (gone & ATTN_BITS) d->bits_batch = d->bits_heads = d->bits_keys = 0;
    if (gone & ATTN_SOFTCAP) d->softcap = 0;
    if (gone & ATTN_ALIBI) d->alibi_batch = 0;
    if (gone & ATTN_DROPOUT) d->dropout_p = 0;
    if (gone & ATTN_BIAS) leave_out_bias(d);
    check_problem_add(d, kernel->needs & ~d->flags);
    bool four = d->flags & ATTN_INTERVALS && d->interval_vectors == 4; /* which ATTN_CAUSAL does not take */
    if (four && d->flags & ATTN_CAUSAL)
        d->flags &= ~(uint32_t)ATTN_INTERVALS, d->interval_vectors = d->interval_heads = 0;
}

/* Scales that a kernel of elements of a byte takes, or none. */
static void fit_scales(const attn_cuda_kernel *kernel, int number, attn_desc *d)
{
    enum { SCALINGS = 8 };
    for (int i = 0; i < SCALINGS; i++) {
        attn_desc scaled = *d;
        check_grid_scales(number + i, &scaled);
        if (attn_cuda_bytes_obstacle(kernel, &scaled)) continue;
        *d = scaled;
        return;
    }
}

/* Pages that a kernel of paged keys reads, of heads that lie at multiples of 16 bytes. */
static void fit_pages(int number, attn_desc *d, check_options *o)
{
    static const int64_t sizes[] = { 16, 64, 8, 128, 24, 256 };
    int64_t size = sizes[number / 4 % 6], each = (d->len_kv + size - 1) / size;
    d->flags |= ATTN_PAGED | ATTN_LENS_KV;
    d->total_kv = 0;
    int64_t even = 16 / attn_dtype_size(attn_kv_dtype(d));
    d->dim_qk = attn_round_up(d->dim_qk, even), d->dim_v = attn_round_up(d->dim_v, even);
    d->page_size = size, d->pages = d->batch * each + 3, d->table_width = d->table_total = 0;
    if (number / 8 % 2)
        d->table_width = each + 1;
    else
        d->table_total = d->batch * each + 2;
    o->layout = CHECK_PACKED;
}

/* Few rows of whole 16 bytes, over more keys than a warp's ring holds, as a decode kernel takes them. */
static void fit_decode(const attn_cuda_kernel *k, int number, attn_desc *d, check_options *o)
{
    static const int64_t keys[] = { 129, 300, 65, 37, 200 };
    int64_t group = d->heads_kv ? d->heads_q / d->heads_kv : 1, each = 16 / attn_dtype_size(attn_kv_dtype(d));
    if (group > k->q_tile) d->heads_q = d->heads_kv = group = 1;
    d->dim_qk = attn_round_up(d->dim_qk, each), d->dim_v = attn_round_up(d->dim_v, each);
    o->layout = CHECK_PACKED;
    if (d->len_q * group > k->q_tile) leave_out_bias(d); /* whose extents are the lengths */
    if (d->len_q * group > k->q_tile) d->len_q = 1 + number % (k->q_tile / group);
    if (!(d->flags & ATTN_BIAS)) d->len_kv = keys[number % 5];
    if (d->bits_keys > d->len_kv) d->bits_keys = d->len_kv;
    if (d->flags & ATTN_VARLEN) d->total_q = d->batch * d->len_q, d->total_kv = d->batch * d->len_kv + 1;
}

/* Queries of a byte, for kernels of bf16; results of all types. */
static void widen_queries(int number, attn_desc *d)
{
    static const attn_dtype outs[] = { 0, ATTN_E4M3, ATTN_F16 };
    d->dtype = ATTN_E4M3;
    if (!(d->flags & ATTN_OUT_F32)) d->out_dtype = outs[number % 3];
}

/* Work items of one length, as some strategies take them, but for masks of tables. */
static void make_alike(attn_desc *d)
{
    d->flags &= ~(uint32_t)(ATTN_WINDOW | ATTN_DETERMINISTIC | ATTN_CUDA_LENGTHS);
    if (!(d->flags & ATTN_INTERVALS)) d->flags &= ~(uint32_t)ATTN_CAUSAL;
    d->window_left = d->window_right = d->total_q = d->total_kv = 0;
}

/* Few rows, many keys, head dims below a warpgroup's share of dQ's columns: of work items more than of anything else.
 */
static void narrow_down(int number, attn_desc *d)
{
    static const int64_t dims[] = { 8, 16, 24, 40 }, rows[] = { 1, 3, 64, 70, 130 }, keys[] = { 300, 640, 129, 1000 };
    d->dim_qk = dims[number % 4], d->dim_v = dims[number / 4 % 4];
    if (d->flags & ATTN_BIAS) return; /* whose extents are the lengths */
    d->len_q = rows[number % 5], d->len_kv = keys[number / 4 % 4];
    if (d->bits_keys > d->len_kv) d->bits_keys = d->len_kv;
}

/* Cases with all that a kernel takes are few where it takes little: a quarter of the small ones once more, fitted to
 * it.
 */
static void run_fitted(check_sweep *sweep, int number, int which)
{
    check_report *report = &sweep->reports[which];
    const attn_cuda_kernel *kernel =
        report->device == ATTN_CUDA && report->kernel ? check_cuda_kernel_named(report->kernel) : NULL;
    attn_desc desc;
    check_options options;
    int count;
    if (!kernel || !attn_cuda_is_variant(kernel) || report->skipped) return;
    if ((number + (int)(kernel - attn_cuda_kernels(&count))) % 4 != 0) return;
    if (check_case_work(sweep->grid, number) > fitted_most) return;
    attn_direction direction = attn_cuda_direction(kernel);
    check_grid_case(sweep->grid, number, direction, INT64_MAX, &desc, &options);
    leave_out_caches(&desc), check_leave_out_parts(&desc);
    fit(kernel, &desc);
    bool widens = kernel->kv_dtypes >> ATTN_I8 & 1 && kernel->tma && number / 4 % 3 == 2;
    if (widens) desc.kv_dtype = number / 12 % 2 ? ATTN_E4M3 : ATTN_I8;
    if (number / 4 % 2) make_alike(&desc);
    if (direction == ATTN_BACKWARD && number / 4 % 2) narrow_down(number / 8, &desc);
    if (kernel->form == ATTN_CUDA_DECODE) fit_decode(kernel, number, &desc, &options);
    if (kernel->paged || (kernel->form == ATTN_CUDA_DECODE && number / 16 % 2)) fit_pages(number, &desc, &options);
    if (kernel->needs & ATTN_BIAS) check_problem_fit_bias(&desc);
    if (kernel->dtype == ATTN_BF16 && desc.kv_dtype == ATTN_E4M3 && number / 24 % 2) widen_queries(number, &desc);
    if (desc.kv_dtype) check_grid_scales(number / (widens ? 12 : 4), &desc);
    if (kernel->dtype == ATTN_E4M3) fit_scales(kernel, number / 4, &desc);
    run_problem(sweep, number, &desc, &options, direction == ATTN_BACKWARD ? ATTN_GRADIENT : ATTN_PREFILL, which,
                false);
}

void check_sweep_case(check_sweep *sweep, int number)
{
    for (int form = 0; form < ATTN_FORMS; form++)
        for (int i = 0; i < VARIANTS && !sweep->left_out[form == ATTN_GRADIENT]; i++)
            run_form(sweep, number, (attn_form)form, (variant)i);
    for (int i = 0; i < sweep->count; i++)
        run_fitted(sweep, number, i);
}

double check_case_work(const check_grid *grid, int number)
{
    attn_desc desc;
    check_options options;
    check_grid_case(grid, number, ATTN_FORWARD, INT64_MAX, &desc, &options);
    int64_t dims = desc.dim_qk + (desc.dim_v ? desc.dim_v : desc.dim_qk);
    return (double)(desc.batch * desc.heads_q * desc.len_q) * (double)(desc.len_kv * dims);
}
