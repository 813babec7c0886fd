/* The gradients of a problem, compared with the reference (compare.h has the rule). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "problem/sequence.h"
#include "problem/desc.h"
#include "check/compare.h"
#include "check/gpu/launch.h"
#include "check/rounding.h"
#include "ref/ref.h"

/* Unfused gradients are measured on further draws of a problem as long as so many rows have not had an error and
 * check_gpu_work_most() is not spent. */
static const double rows_least = 64;

/* Gradients of no more elements are sums of many rows, or luck. */
enum { FEW = 64 };

static const char *const names[] = {
#define GRADIENT_NAME(enumerator, argument) #argument,
    CHECK_GRADIENT_LIST(GRADIENT_NAME)
};

/* ---- the elements that must be written, line by line ------------------------------------------ */

typedef struct lines {
    const check_problem *problem;
    check_gradient gradient;
    check_elements elements;
    int64_t batch, head, row; /* of the line */
    int64_t at, count;        /* its first element, and how many */
} lines;

static lines lines_begin(const check_problem *problem, check_gradient gradient)
{
    lines l = { .problem = problem, .gradient = gradient, .row = -1 };
    l.elements = check_gradient_elements(problem, gradient);
    l.count = l.elements.extent[3];
    return l;
}

static bool lines_next(lines *l)
{
    const attn_desc *desc = &l->problem->resolved;
    const attn_args *args = &l->problem->args;
    bool by_row = l->gradient == CHECK_GRAD_Q;
    if (l->gradient > CHECK_GRAD_V) return ++l->row == 0;
    l->row++;
    for (; l->batch < desc->batch; l->batch++, l->head = l->row = 0) {
        attn_sequence seq = attn_sequence_of(desc, args, l->batch);
        if (l->row >= (by_row ? seq.len_q : seq.len_kv)) l->head++, l->row = 0;
        if (l->head >= l->elements.extent[2] || (by_row ? seq.len_q : seq.len_kv) == 0) continue;
        int64_t group = desc->heads_q / desc->heads_kv;
        l->at = by_row ? attn_row_at(desc, args, l->batch, l->head, l->row, l->elements.stride)
                       : attn_key_at(desc, args, l->batch, l->head * group, l->row, l->elements.stride);
        return true;
    }
    return false;
}

void check_fill_added(const check_problem *problem)
{
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        void *base = check_gradient_base(problem, (check_gradient)g);
        for (lines l = lines_begin(problem, (check_gradient)g); base && lines_next(&l);)
            for (int64_t d = 0; d < l.count; d++)
                attn_store_scalar(l.elements.dtype, base, l.at + d,
                                  (float)check_gradient_before(problem, (check_gradient)g, l.at + d));
    }
}

/* ---- the reference --------------------------------------------------------------------------- */

/* What is known of one gradient while it is summed up. */
typedef struct sum {
    double *ref;
    float *naive;
    int64_t count, before; /* elements; of them, before element (0, 0, 0, 0) */
    double ref_was[FEW], noise[FEW];
    float naive_was[FEW];
} sum;

static sum sum_create(const check_problem *problem, check_gradient gradient)
{
    sum s = { 0 };
    check_elements e = check_gradient_elements(problem, gradient);
    int64_t lo, hi;
    if (!check_gradient_base(problem, gradient)) return s;
    attn_reach(e.extent, e.stride, &lo, &hi);
    s.count = hi - lo, s.before = -lo;
    s.ref = check_allocate((size_t)s.count * sizeof *s.ref);
    s.naive = check_allocate((size_t)s.count * sizeof *s.naive);
    for (int64_t i = 0; i < s.count; i++) {
        s.ref[i] = check_gradient_before(problem, gradient, i - s.before);
        s.naive[i] = (float)s.ref[i];
    }
    return s;
}

/* Before and after a row's share: what it got wrong. */
static void sum_watch(sum *s, bool after)
{
    if (s->count > FEW) return;
    for (int64_t i = 0; i < s->count; i++) {
        double error = ((double)s->naive[i] - (double)s->naive_was[i]) - (s->ref[i] - s->ref_was[i]);
        if (after) s->noise[i] += error * error;
        s->ref_was[i] = s->ref[i], s->naive_was[i] = s->naive[i];
    }
}

/* Returns whether the row has a weight at all. */
static bool add_row(const check_problem *problem, sum sums[CHECK_GRADIENTS], int64_t b, int64_t h, int64_t i,
                    double *room)
{
    const attn_desc *desc = &problem->resolved;
    const attn_args *args = &problem->args;
    double lse, *o = room;
    float stored[512];
    int64_t at = attn_row_at(desc, args, b, h, i, desc->o_stride);
    for (int64_t d = 0; d < desc->dim_v; d++)
        stored[d] = attn_load_scalar(attn_out_dtype(desc), args->o, at + d);
    attn_ref_row(desc, args, b, h, i, o, &lse, room + desc->dim_v);

    attn_ref_gradients ref;
    attn_naive_gradients naive;
    double **const refs[] = { &ref.q, &ref.k, &ref.v, &ref.bias, &ref.alibi, &ref.sink };
    float **const naives[] = { &naive.q, &naive.k, &naive.v, &naive.bias, &naive.alibi, &naive.sink };
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        *refs[g] = sums[g].ref ? sums[g].ref + sums[g].before : NULL;
        *naives[g] = sums[g].ref ? sums[g].naive + sums[g].before : NULL;
        sum_watch(&sums[g], false);
    }
    attn_ref_gradient_row(desc, args, b, h, i, o, lse, &ref);
    const float *naive_o = desc->flags & ATTN_DELTA ? NULL : stored;
    attn_naive_gradient_row(desc, args, b, h, i, naive_o, args->lse[attn_lse_at(desc, args, b, h, i)], &naive);
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        sum_watch(&sums[g], true);
    return lse > -INFINITY;
}

/* What rounding does to unfused attention's gradients and to the outputs: the greatest over some draws of a problem. */
typedef struct yardstick {
    check_deviation naive[CHECK_GRADIENTS], slack[CHECK_GRADIENTS];
    int rows; /* with an error at all */
    double work;
} yardstick;

/* What summing scores and their gradients in f32 does to a gradient, relative to it: scores that count are about as
 * large as the LSE. */
static double score_rounding(const check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    const float *lse = (const float *)(const void *)problem->lse.data;
    double most = 0;
    for (size_t i = 0; i < problem->lse.size / sizeof *lse; i++)
        if (isfinite(lse[i])) most = fmax(most, fabs((double)lse[i]));
    return 0x1p-25 * (most * sqrt((double)desc->dim_qk) + sqrt((double)desc->dim_v));
}

static void measure(const check_problem *problem, const sum *s, check_gradient gradient, yardstick *y)
{
    double score = score_rounding(problem);
    check_deviation naive = { 0 }, slack = { 0 }, noise = { 0 };
    int64_t count = 0;
    for (lines l = lines_begin(problem, gradient); s->ref && lines_next(&l);) {
        double before = naive.squares;
        bool counts = false;
        for (int64_t d = 0, at = s->before + l.at; d < l.count; d++, at++) {
            if (check_overflows(l.elements.dtype, s->ref[at])) continue;
            check_deviate(&naive, fabs(check_rounded(l.elements.dtype, (double)s->naive[at]) - s->ref[at]));
            check_deviate(&slack, check_slack(l.elements.dtype, s->ref[at]) + score * fabs(s->ref[at]));
            if (s->count <= FEW) check_deviate(&noise, sqrt(s->noise[at]));
            counts = counts || s->ref[at] != 0;
        }
        if (counts || naive.squares > before) count += l.count;
        y->rows += gradient == CHECK_GRAD_Q && naive.squares > before;
    }
    check_raise(&y->naive[gradient], &naive, fmax(1, (double)count));
    check_raise(&y->naive[gradient], &noise, fmax(1, (double)count));
    check_raise(&y->slack[gradient], &slack, fmax(1, (double)count));
}

/* Row by row; returns how many have a weight. */
static int64_t sum_rows(const check_problem *problem, sum sums[CHECK_GRADIENTS])
{
    const attn_desc *desc = &problem->resolved;
    double *room = check_allocate((size_t)(desc->dim_v + desc->len_kv) * sizeof *room);
    int64_t seen = 0;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t h = 0; h < desc->heads_q; h++)
            for (int64_t i = 0; i < attn_sequence_of(desc, &problem->args, b).len_q; i++)
                seen += add_row(problem, sums, b, h, i, room);
    free(room);
    return seen;
}

/* From where the GPU has an element of a gradient, to where the gradient has it. */
static void scatter(const check_problem *problem, check_gradient gradient, const check_gpu_sum *from, sum *to)
{
    const attn_desc *desc = &problem->resolved;
    for (lines l = lines_begin(problem, gradient); lines_next(&l);) {
        int64_t at = gradient > CHECK_GRAD_V    ? 0
                     : gradient == CHECK_GRAD_Q ? (l.batch * desc->heads_q + l.head) * desc->len_q + l.row
                                                : (l.batch * desc->heads_kv + l.head) * desc->len_kv + l.row;
        for (int64_t d = 0, there = to->before + l.at; d < l.count; d++, there++) {
            to->ref[there] = from->ref[at * l.count + d], to->naive[there] = from->naive[at * l.count + d];
            double error = (double)to->naive[there] - to->ref[there]; /* an element of grad_q is of one row alone */
            if (to->count <= FEW) to->noise[there] = from->noise ? from->noise[at * l.count + d] : error * error;
        }
    }
}

static int64_t rows_with_weight(const check_problem *problem)
{
    int64_t seen = 0;
    for (lines l = lines_begin(problem, CHECK_GRAD_Q); lines_next(&l);)
        seen += problem->args.lse[attn_lse_at(&problem->resolved, &problem->args, l.batch, l.head, l.row)] > -INFINITY;
    return seen;
}

/* All at once, on the GPU; returns as sum_rows. */
static int64_t sum_on_gpu(const check_problem *problem, sum sums[CHECK_GRADIENTS])
{
    const attn_desc *desc = &problem->resolved;
    int64_t rows = desc->batch * desc->heads_q * desc->len_q, keys = desc->batch * desc->heads_kv * desc->len_kv;
    const int64_t counts[] = { rows * desc->dim_qk, keys * desc->dim_qk, keys * desc->dim_v };
    check_gpu_sum all[CHECK_GRADIENTS] = { 0 };
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        if (!sums[g].ref) continue;
        size_t count = (size_t)(all[g].count = g <= CHECK_GRAD_V ? counts[g] : sums[g].count);
        all[g].ref = check_allocate(count * sizeof *all[g].ref);
        all[g].naive = check_allocate(count * sizeof *all[g].naive);
        if (sums[g].count <= FEW && g != CHECK_GRAD_Q) all[g].noise = check_allocate(count * sizeof *all[g].noise);
    }
    check_gpu_gradients(problem, all);
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        if (sums[g].ref) scatter(problem, (check_gradient)g, &all[g], &sums[g]);
        free(all[g].ref);
        free(all[g].naive);
        free(all[g].noise);
    }
    return rows_with_weight(problem);
}

/* Computes all gradients of a problem and brings the yardstick up to date. */
static check_reference compute(const check_problem *problem, yardstick *y)
{
    const attn_desc *desc = &problem->resolved;
    check_reference reference = { 0 };
    sum *sums = check_allocate(CHECK_GRADIENTS * sizeof *sums);
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        sums[g] = sum_create(problem, (check_gradient)g);
    int64_t seen = check_gpu_takes(problem) ? sum_on_gpu(problem, sums) : sum_rows(problem, sums);
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        measure(problem, &sums[g], (check_gradient)g, y);
        reference.gradients[g].values = sums[g].ref;
        if (sums[g].ref) reference.gradients[g].base = sums[g].ref + sums[g].before;
        free(sums[g].naive);
    }
    free(sums);
    y->work +=
        (double)seen * (double)(desc->len_kv * (desc->dim_qk + desc->dim_v)) + 1e5 + check_gpu_draw_work(problem);
    return reference;
}

check_reference check_gradients_create(const check_problem *problem, int draws)
{
    yardstick y = { 0 };
    check_reference reference = compute(problem, &y);
    check_options options = problem->options;
    double most = check_gpu_work_most(problem);
    for (int n = 0; n < draws || (y.rows < rows_least && y.work < most); n++) {
        check_problem sibling;
        options.seed += (uint64_t)1 << 32;
        if (check_problem_create(&sibling, &problem->desc, &options) != ATTN_OK) break;
        check_reference other = compute(&sibling, &y);
        check_reference_destroy(&other);
        check_problem_destroy(&sibling);
    }
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        reference.gradients[g].allowed = check_allowed(&y.naive[g], &y.slack[g]);
    return reference;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Some row sees the key of a line. */
static bool is_seen(const check_problem *problem, const lines *l)
{
    const attn_desc *desc = &problem->resolved;
    int64_t group = desc->heads_q / desc->heads_kv, rows = attn_sequence_of(desc, &problem->args, l->batch).len_q;
    for (int64_t h = l->head * group; h < (l->head + 1) * group; h++)
        for (int64_t i = 0; i < rows; i++)
            if (attn_ref_visible(desc, &problem->args, l->batch, h, i, l->row)) return true;
    return false;
}

/* Whether a line must be 0 to the bit: a row that sees no key, a key that no row sees. A key whose gradients are 0 is
 * taken for one, unless they are sums that happen to be (is_seen). */
static bool must_be_zero(const check_problem *problem, const check_reference *reference, const lines *l)
{
    const attn_desc *desc = &problem->resolved;
    const attn_args *args = &problem->args;
    if (l->gradient > CHECK_GRAD_V) return false;
    if (l->gradient == CHECK_GRAD_Q) return args->lse[attn_lse_at(desc, args, l->batch, l->head, l->row)] == -INFINITY;
    int64_t head = l->head * (desc->heads_q / desc->heads_kv);
    int64_t at = attn_key_at(desc, args, l->batch, head, l->row, desc->grad_v_stride);
    const double *v = reference->gradients[CHECK_GRAD_V].base;
    bool weightless = true;
    for (int64_t d = at; d < at + desc->dim_v; d++)
        weightless = weightless && v[d] == check_gradient_before(problem, CHECK_GRAD_V, d);
    return weightless && (l->gradient == CHECK_GRAD_V || !(desc->flags & ATTN_DROPOUT));
}

static void compare_gradient(const check_problem *problem, const check_reference *reference, check_gradient gradient,
                             check_error *result)
{
    const check_expected *expected = &reference->gradients[gradient];
    const void *base = check_gradient_base(problem, gradient);
    const char *what = NULL;
    check_deviation error = { 0 };
    int64_t written = 0, count = 0; /* elements; of them, in lines that are not 0 and exactly so */
    lines l = lines_begin(problem, gradient), worst = l;
    while (lines_next(&l)) {
        bool zero = must_be_zero(problem, reference, &l), counts = false;
        double squares = error.squares;
        for (int64_t d = 0; d < l.count; d++) {
            double x = (double)attn_load_scalar(l.elements.dtype, base, l.at + d), before = error.max;
            bool added = x != check_gradient_before(problem, gradient, l.at + d);
            if (isinf(x) && x == check_rounded(l.elements.dtype, expected->base[l.at + d])) continue;
            check_deviate(&error, fabs(x - expected->base[l.at + d]));
            if (zero && added && gradient != CHECK_GRAD_Q) zero = !is_seen(problem, &l);
            if (isnan(x) || (zero && added))
                what = isnan(x) ? "holds NaN" : "is not 0 where nothing is seen", worst = l;
            if (error.max > before && !what) worst = l;
            counts = counts || expected->base[l.at + d] != 0;
        }
        written += l.count;
        if (counts || error.squares > squares) count += l.count;
    }
    double n = fmax(1, (double)count), rms = sqrt(error.squares / n);
    double share = check_worst(&error, n, &expected->allowed, 0);
    if (!(share <= 1))
        share = check_worst(&error, n, &expected->allowed, check_rounding_of(problem).gradients[gradient]);
    if (check_count_written(l.elements.dtype, &problem->gradients[gradient]) != written)
        what = "is not written where it should be";
    if (share > result->out) result->out = share;
    if (!what && share <= 1) return;
    result->only_large = !what && (result->message[0] == '\0' || result->only_large);
    if (result->message[0] != '\0') return;
    snprintf(result->message, sizeof result->message,
             "%s %s: max %.3g of %.3g allowed, rms %.3g of %.3g; worst at batch %lld, head %lld, row %lld",
             names[gradient], what ? what : "error", error.max, expected->allowed.max, rms, expected->allowed.squares,
             (long long)worst.batch, (long long)worst.head, (long long)worst.row);
}

check_error check_gradients_compare(const check_problem *problem, const check_reference *reference)
{
    check_error result = { 0 };
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        if (check_gradient_base(problem, (check_gradient)g))
            compare_gradient(problem, reference, (check_gradient)g, &result);
    return result;
}
