#include "check/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/sequence.h"
#include "problem/desc.h"
#include "check/gpu/launch.h"
#include "check/rounding.h"
#include "check/widen.h"
#include "ref/ref.h"

/* Multiply-adds that the CPU's reference may spend on a problem, but for so many rows. */
static const double work_most = 8e6, rows_least = 64;

/* ---- which rows ------------------------------------------------------------------------------ */

static bool beside_edge(int64_t row, int64_t len)
{
    static const int tiles[] = { 12, 16, 96, 128, 192 };
    if (row == 0 || row == len - 1) return true;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        if (row <= 2 * tiles[i] && (row % tiles[i] == 0 || (row + 1) % tiles[i] == 0)) return true;
    return false;
}

/* `share`: of the rows that could be compared. */
static int choose_rows(const check_problem *problem, double share, check_row *rows)
{
    const attn_desc *desc = &problem->resolved;
    uint64_t state = problem->options.seed;
    int count = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        attn_sequence seq = attn_sequence_of(desc, &problem->args, b);
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < seq.len_q; i++) {
                double likely = i == 0 || i == seq.len_q - 1 ? 1 : beside_edge(i, seq.len_q) ? 10 * share : share;
                if ((double)check_below(&state, 1 << 20) >= likely * (1 << 20)) continue;
                if (rows != NULL) rows[count] = (check_row){ b, h, i, 0, 0 };
                count++;
            }
    }
    return count;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* What rounding an output, and once the scores that it comes from, may do: those that count are about as large as the
 * LSE. In an output finer than the inputs, what holding probabilities in two parts of bf16 does. */
static double slack_of(const attn_desc *desc, double x, double lse)
{
    double score = isfinite(lse) ? 0x1p-24 * fabs(lse) * fabs(x) : 0;
    double parts = attn_out_dtype(desc) != desc->dtype ? 0x1p-17 * fabs(x) : 0;
    return check_slack(attn_out_dtype(desc), x) + score + parts;
}

/* What rounding does to unfused attention and to the output: the greatest over some draws of a problem. */
typedef struct yardstick {
    check_deviation naive, slack; /* squares: mean */
    int rows;                     /* with an error at all: the others say nothing */
    double work;
} yardstick;

/* The error of a row of unfused attention. */
static void measure_row(const check_problem *problem, const check_row *row, const double *o, const float *naive_o,
                        check_deviation *naive, check_deviation *slack)
{
    const attn_desc *desc = &problem->resolved;
    for (int64_t d = 0; d < desc->dim_v; d++) {
        check_deviate(naive, fabs((double)naive_o[d] - o[d]));
        check_deviate(slack, slack_of(desc, o[d], row->lse));
    }
}

/* All rows as the GPU has them. */
typedef struct all_rows {
    double *o, *lse;
    float *naive;
} all_rows;

static all_rows all_rows_create(const check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    size_t rows = (size_t)(desc->batch * desc->heads_q * desc->len_q), dim = (size_t)desc->dim_v;
    all_rows all = { check_allocate(rows * dim * sizeof *all.o), check_allocate(rows * sizeof *all.lse),
                     check_allocate(rows * dim * sizeof *all.naive) };
    check_gpu_forward(problem, all.o, all.naive, all.lse);
    return all;
}

static void all_rows_destroy(all_rows *all)
{
    free(all->o);
    free(all->lse);
    free(all->naive);
}

/* The row where P is rounded once to E4M3, relative to the keys' maximum and at most 2^8, and all else is exact. score:
 * the keys', as attn_ref_row leaves them. */
static void floor_row(const check_problem *problem, const check_row *row, const double *score, float *o)
{
    const attn_desc *d = &problem->resolved;
    int64_t keys = attn_sequence_of(d, &problem->args, row->batch).len_kv;
    double max = -INFINITY, sums[ATTN_DIM_MOST] = { 0 }, v[ATTN_DIM_MOST];
    for (int64_t key = 0; key < keys; key++)
        max = fmax(max, score[key]);
    for (int64_t key = 0; key < keys && max > -INFINITY; key++) {
        double stored = check_rounded(ATTN_E4M3, 256 * exp(score[key] - max)) / 256;
        if (stored == 0) continue;
        attn_ref_values(d, &problem->args, row->batch, row->head, key, v);
        for (int64_t i = 0; i < d->dim_v; i++)
            sums[i] += stored * v[i];
    }
    bool bytes = attn_out_dtype(d) == ATTN_E4M3;
    double o_scale = bytes && problem->args.o_scale ? (double)*problem->args.o_scale : 1;
    for (int64_t i = 0; i < d->dim_v; i++) { /* the LSE has the sink */
        double x = max > -INFINITY ? sums[i] * exp(max - row->lse) / o_scale : 0;
        o[i] = (float)(bytes ? fmin(fmax(x, -448), 448) : x);
    }
}

/* A row of the reference, and unfused attention's. all: NULL, or where both stand; scratch: len_kv doubles. */
static void compute_row(const check_problem *problem, const all_rows *all, check_row *row, double *o, float *naive,
                        void *scratch)
{
    const attn_desc *desc = &problem->resolved;
    if (all) {
        int64_t at = (row->batch * desc->heads_q + row->head) * desc->len_q + row->row;
        memcpy(o, all->o + at * desc->dim_v, (size_t)desc->dim_v * sizeof *o);
        memcpy(naive, all->naive + at * desc->dim_v, (size_t)desc->dim_v * sizeof *naive);
        row->lse = all->lse[at];
        return;
    }
    float naive_lse;
    attn_ref_row(desc, &problem->args, row->batch, row->head, row->row, o, &row->lse, scratch);
    if (problem->options.rounds_p) {
        row->lse_rounding = check_e4m3_lse_rounding(problem, row->batch, row->head, row->row, row->lse, scratch);
        floor_row(problem, row, scratch, naive);
    } else
        attn_naive_row(desc, &problem->args, row->batch, row->head, row->row, naive, &naive_lse, scratch);
}

static double row_work(const attn_desc *desc)
{
    return (double)desc->len_kv * (double)(desc->dim_qk + desc->dim_v);
}

/* Computes some rows of a problem and brings the yardstick up to date. */
static check_reference compute_rows_of(const check_problem *problem, yardstick *y)
{
    const attn_desc *desc = &problem->resolved;
    double all = (double)(desc->batch * desc->heads_q * desc->len_q);
    double share = fmax(work_most / (row_work(desc) * all + 1), 1.5 * rows_least / (all + 1));
    bool on_gpu = check_gpu_takes(problem);
    if (on_gpu) share = 1;
    check_reference reference = { .count = choose_rows(problem, share, NULL) };
    reference.rows = check_allocate((size_t)reference.count * sizeof *reference.rows);
    reference.o = check_allocate((size_t)(reference.count * desc->dim_v) * sizeof(double));
    choose_rows(problem, share, reference.rows);
    check_deviation naive = { 0 }, slack = { 0 };
    double *scratch = check_allocate((size_t)desc->len_kv * sizeof *scratch);
    float naive_o[ATTN_DIM_MOST];
    all_rows rows = { 0 };
    if (on_gpu) rows = all_rows_create(problem);
    for (int r = 0; r < reference.count; r++) {
        check_row *row = &reference.rows[r];
        double *o = reference.o + r * desc->dim_v, before = naive.squares;
        compute_row(problem, on_gpu ? &rows : NULL, row, o, naive_o, scratch);
        measure_row(problem, row, o, naive_o, &naive, &slack);
        y->rows += naive.squares > before;
    }
    all_rows_destroy(&rows);
    free(scratch);
    double count = fmax(1, (double)(reference.count * desc->dim_v));
    check_raise(&y->naive, &naive, count);
    check_raise(&y->slack, &slack, count);
    y->work += row_work(desc) * reference.count + 1e4 + check_gpu_draw_work(problem);
    return reference;
}

static check_reference compute_rows(const check_problem *problem, yardstick *y)
{
    if (!problem->options.widens) return compute_rows_of(problem, y);
    check_problem widened = check_widened(problem);
    check_reference reference = compute_rows_of(&widened, y);
    check_widened_destroy(&widened);
    return reference;
}

check_reference check_reference_create_over(const check_problem *problem, int draws)
{
    if (problem->resolved.direction == ATTN_BACKWARD) return check_gradients_create(problem, draws);
    yardstick y = { 0 };
    check_reference reference = compute_rows(problem, &y);
    check_options options = problem->options;
    double most = check_gpu_work_most(problem);
    for (int n = 0; reference.count > 0 && (n < draws || (y.rows < rows_least && y.work < most)); n++) {
        check_problem sibling;
        options.seed += (uint64_t)1 << 32;
        if (check_problem_create(&sibling, &problem->desc, &options) != ATTN_OK) break;
        check_reference other = compute_rows(&sibling, &y);
        check_reference_destroy(&other);
        check_problem_destroy(&sibling);
    }
    reference.allowed = check_allowed(&y.naive, &y.slack);
    return reference;
}

check_reference check_reference_create(const check_problem *problem)
{
    return check_reference_create_over(problem, 0);
}

void check_reference_destroy(check_reference *reference)
{
    free(reference->rows);
    free(reference->o);
    for (int i = 0; i < CHECK_GRADIENTS; i++)
        free(reference->gradients[i].values);
    *reference = (check_reference){ 0 };
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Every row of a sequence must be written, whole and free of NaN, and nothing beside. */
static void compare_extent(const check_problem *problem, check_error *error)
{
    const attn_desc *desc = &problem->resolved;
    attn_dtype dtype = attn_out_dtype(desc);
    int64_t rows = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        int64_t len = attn_sequence_of(desc, &problem->args, b).len_q;
        rows += len * desc->heads_q;
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < len; i++) {
                int64_t at = attn_row_at(desc, &problem->args, b, h, i, desc->o_stride), bad = 0;
                for (int64_t d = 0; d < desc->dim_v; d++)
                    bad += isnan(attn_load_scalar(dtype, problem->args.o, at + d));
                if (problem->args.lse != NULL)
                    bad += isnan(problem->args.lse[attn_lse_at(desc, &problem->args, b, h, i)]);
                if (bad == 0) continue;
                snprintf(error->message, sizeof error->message, "NaN at batch %lld, head %lld, row %lld", (long long)b,
                         (long long)h, (long long)i);
                return;
            }
    }
    int64_t written = check_count_written(dtype, &problem->o), lse = check_count_written(ATTN_F32, &problem->lse);
    if (written != rows * desc->dim_v || (problem->args.lse != NULL && lse != rows))
        snprintf(error->message, sizeof error->message,
                 "written beside its rows: %lld elements of %lld, LSE %lld of %lld", (long long)written,
                 (long long)(rows * desc->dim_v), (long long)lse, (long long)rows);
}

static double lse_error(double lse, double reference, double rounding)
{
    if (isinf(reference) || isinf(lse)) return lse == reference ? 0 : INFINITY;
    double size = fabs(reference) > 1 ? fabs(reference) : 1;
    return fabs(lse - reference) / (2e-5 * size + rounding);
}

/* The worst of all rows. */
static double compare_lse(const check_problem *problem, const check_reference *reference, double rounding)
{
    double worst = 0;
    for (int r = 0; r < reference->count && problem->args.lse; r++) {
        const check_row *row = &reference->rows[r];
        int64_t at = attn_lse_at(&problem->resolved, &problem->args, row->batch, row->head, row->row);
        worst = fmax(worst, lse_error((double)problem->args.lse[at], row->lse, rounding + row->lse_rounding));
    }
    return worst;
}

/* What rounding probabilities to the inputs' type may do besides: that of a key with nearly all the weight of its row
 * is rounded by unfused attention to 1, which is exact, and by a kernel, which divides by their sum later, is not.
 * Where each key has a scale of v, the kernel rounds the product of both, which may be just above a power of two: by
 * twice as much. */
static check_deviation allowed_besides(const check_problem *problem, const check_reference *reference)
{
    const attn_desc *desc = &problem->resolved;
    attn_dtype scores = desc->dtype == ATTN_E4M3 ? ATTN_BF16 : desc->dtype;
    double unit = ldexp(1, (desc->v_scale_rows ? -1 : -2) - attn_dtype_of(scores)->mantissa);
    int64_t n = reference->count * desc->dim_v;
    check_deviation size = { 0 };
    for (int64_t i = 0; i < n; i++)
        check_deviate(&size, fabs(reference->o[i]));
    return (check_deviation){ reference->allowed.max + unit * size.max,
                              reference->allowed.squares + unit * sqrt(size.squares / fmax(1, (double)n)) };
}

check_error check_compare(const check_problem *problem, const check_reference *reference)
{
    if (problem->resolved.direction == ATTN_BACKWARD) return check_gradients_compare(problem, reference);
    const attn_desc *desc = &problem->resolved;
    attn_dtype dtype = attn_out_dtype(desc);
    check_error result = { 0 };
    check_deviation error = { 0 };
    const check_deviation *allowed = &reference->allowed;
    const check_row *worst = NULL, *shown = NULL;
    compare_extent(problem, &result);
    for (int r = 0; r < reference->count; r++) {
        const check_row *row = &reference->rows[r];
        const double *o = reference->o + r * desc->dim_v;
        int64_t at = attn_row_at(desc, &problem->args, row->batch, row->head, row->row, desc->o_stride);
        for (int64_t d = 0; d < desc->dim_v; d++) {
            double x = (double)attn_load_scalar(dtype, problem->args.o, at + d), before = error.max;
            if (isinf(x) && x == check_rounded(dtype, o[d])) continue;
            check_deviate(&error, fabs(x - o[d]));
            if (error.max > before) worst = row;
            if (problem->options.data == CHECK_ONE_HOT && o[d] == 0 && x != 0) shown = row;
        }
    }
    double n = reference->count ? (double)(reference->count * desc->dim_v) : 1;
    result.out = check_worst(&error, n, allowed, 0), result.lse = compare_lse(problem, reference, 0);
    if (!(result.out <= 1) || !(result.lse <= 1)) {
        check_rounding rounding = check_rounding_of(problem);
        check_deviation besides = allowed_besides(problem, reference);
        result.out = check_worst(&error, n, &besides, rounding.out);
        result.lse = compare_lse(problem, reference, rounding.lse);
    }
    if (result.message[0] == '\0' && (shown != NULL || !(result.out <= 1) || !(result.lse <= 1))) {
        const char *what = shown ? "a hidden key has weight" : !(result.out <= 1) ? "output error" : "LSE error";
        const check_row *row = shown ? shown : worst ? worst : reference->rows;
        result.only_large = !shown;
        snprintf(
            result.message, sizeof result.message,
            "%s: max %.3g of %.3g allowed, rms %.3g of %.3g, LSE %.3g of its bound; worst at batch %lld, head %lld, "
            "row %lld",
            what, error.max, allowed->max, sqrt(error.squares / n), allowed->squares, result.lse, (long long)row->batch,
            (long long)row->head, (long long)row->row);
    }
    return result;
}

/* Of thousands of problems unfused attention has some lucky, the more so the fewer elements there are: so many draws
 * tell. What is left of them may be half as far again as the rule allows: the greatest error of so many problems is
 * that of a row that further draws hardly meet. */
static const double rare_most = 1.5;

enum { DRAWS = 20 };

check_error check_compare_again(const check_problem *problem, check_error error)
{
    if (error.out <= 1 || !error.only_large) return error;
    check_reference reference = check_reference_create_over(problem, DRAWS);
    error = check_compare(problem, &reference);
    check_reference_destroy(&reference);
    if (error.out > 1 && error.out <= rare_most && error.lse <= 1 && error.only_large) error.message[0] = '\0';
    return error;
}
