#include "check/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/desc.h"
#include "ref/ref.h"

/* Multiply-adds that the reference may spend on a problem, but for so many rows. */
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
                if (rows != NULL) rows[count] = (check_row){ b, h, i, 0 };
                count++;
            }
    }
    return count;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* What rounding an output, and the scores behind it once, may do: those that count are about as large as the LSE. */
static double slack_of(attn_dtype dtype, double x, double lse)
{
    double score = isfinite(lse) ? 0x1p-24 * fabs(lse) * fabs(x) : 0;
    return check_slack(dtype, x) + score;
}

/* What rounding does to unfused attention and to the output: the greatest over some draws of a problem. */
typedef struct yardstick {
    check_deviation naive, slack; /* squares: mean */
    int rows;                     /* with an error at all: the others say nothing */
    double work;
} yardstick;

/* One row by unfused attention, and its error. */
static void measure_row(const check_problem *problem, const check_row *row, const double *o, check_deviation *naive,
                        check_deviation *slack)
{
    const attn_desc *desc = &problem->resolved;
    float *scratch = check_allocate((size_t)(desc->len_kv + desc->dim_v) * sizeof *scratch), lse;
    float *out = scratch + desc->len_kv;
    attn_naive_row(desc, &problem->args, row->batch, row->head, row->row, out, &lse, scratch);
    for (int64_t d = 0; d < desc->dim_v; d++) {
        check_deviate(naive, fabs((double)out[d] - o[d]));
        check_deviate(slack, slack_of(attn_out_dtype(desc), o[d], row->lse));
    }
    free(scratch);
}

static double row_work(const attn_desc *desc)
{
    return (double)desc->len_kv * (double)(desc->dim_qk + desc->dim_v);
}

/* Computes some rows of a problem and brings the yardstick up to date. */
static check_reference compute_rows(const check_problem *problem, yardstick *y)
{
    const attn_desc *desc = &problem->resolved;
    double all = (double)(desc->batch * desc->heads_q * desc->len_q);
    double share = fmax(work_most / (row_work(desc) * all + 1), 1.5 * rows_least / (all + 1));
    check_reference reference = { .count = choose_rows(problem, share, NULL) };
    reference.rows = check_allocate((size_t)reference.count * sizeof *reference.rows);
    reference.o = check_allocate((size_t)(reference.count * desc->dim_v) * sizeof(double));
    choose_rows(problem, share, reference.rows);
    check_deviation naive = { 0 }, slack = { 0 };
    double *scratch = check_allocate((size_t)desc->len_kv * sizeof *scratch);
    for (int r = 0; r < reference.count; r++) {
        check_row *row = &reference.rows[r];
        double *o = reference.o + r * desc->dim_v, before = naive.squares;
        attn_ref_row(desc, &problem->args, row->batch, row->head, row->row, o, &row->lse, scratch);
        measure_row(problem, row, o, &naive, &slack);
        y->rows += naive.squares > before;
    }
    free(scratch);
    double count = fmax(1, (double)(reference.count * desc->dim_v));
    check_raise(&y->naive, &naive, count);
    check_raise(&y->slack, &slack, count);
    y->work += row_work(desc) * reference.count + 1e4;
    return reference;
}

check_reference check_reference_create(const check_problem *problem)
{
    if (problem->resolved.direction == ATTN_BACKWARD) return check_gradients_create(problem);
    yardstick y = { 0 };
    check_reference reference = compute_rows(problem, &y);
    check_options options = problem->options;
    while (reference.count > 0 && y.rows < rows_least && y.work < work_most) {
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

static double lse_error(double lse, double reference)
{
    if (isinf(reference) || isinf(lse)) return lse == reference ? 0 : INFINITY;
    double size = fabs(reference) > 1 ? fabs(reference) : 1;
    return fabs(lse - reference) / (2e-5 * size);
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
            check_deviate(&error, fabs(x - o[d]));
            if (error.max > before) worst = row;
            if (problem->options.data == CHECK_ONE_HOT && o[d] == 0 && x != 0) shown = row;
        }
        if (problem->args.lse == NULL) continue;
        double e = lse_error(
            (double)problem->args.lse[attn_lse_at(desc, &problem->args, row->batch, row->head, row->row)], row->lse);
        if (e > result.lse) result.lse = e;
    }
    double n = reference->count ? (double)(reference->count * desc->dim_v) : 1;
    result.out = fmax(check_share(error.max, allowed->max), check_share(sqrt(error.squares / n), allowed->squares));
    if (result.message[0] == '\0' && (shown != NULL || !(result.out <= 1) || !(result.lse <= 1))) {
        const char *what = shown ? "a hidden key has weight" : !(result.out <= 1) ? "output error" : "LSE error";
        const check_row *row = shown ? shown : worst ? worst : reference->rows;
        snprintf(result.message, sizeof result.message,
                 "%s: max %.3g of %.3g allowed, LSE %.3g of its bound; worst at batch %lld, head %lld, row %lld", what,
                 error.max, allowed->max, result.lse, (long long)row->batch, (long long)row->head, (long long)row->row);
    }
    return result;
}
