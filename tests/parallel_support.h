/* A problem over ranks: what a rank holds of it, its run, and the results put back where the whole has them. For ranks
 * that are threads and for ranks that are processes of MPI. */
#ifndef TESTS_PARALLEL_SUPPORT_H
#define TESTS_PARALLEL_SUPPORT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_parallel.h"
#include "check/compare.h"
#include "problem/desc.h"
#include "problem/sequence.h"

/* What a case varies; lengths that no number of chunks divides. */
typedef struct parallel_case {
    const char *name;
    uint32_t flags;
    attn_dtype dtype; /* 0: f32 */
    int64_t batch, len_q, len_kv, heads_kv;
    int64_t left, right, chunk;
    check_interval interval;
} parallel_case;

enum { PARALLEL_HEADS = 4, PARALLEL_DIM = 24, PARALLEL_DIM_V = 20 };

static const parallel_case parallel_cases[] = {
    { .name = "no mask" },
    { .name = "causal", .flags = ATTN_CAUSAL },
    { .name = "causal, bf16, GQA", .flags = ATTN_CAUSAL, .dtype = ATTN_BF16, .heads_kv = 2 },
    { .name = "causal, f16, MQA", .flags = ATTN_CAUSAL, .dtype = ATTN_F16, .heads_kv = 1, .batch = 2 },
    { .name = "f32 out of bf16", .flags = ATTN_CAUSAL | ATTN_OUT_F32, .dtype = ATTN_BF16 },
    { .name = "few rows", .flags = ATTN_CAUSAL, .len_q = 40, .len_kv = 40 },
    { .name = "more keys than rows", .flags = ATTN_CAUSAL, .len_q = 100, .len_kv = 330 },
    { .name = "more rows than keys", .flags = ATTN_CAUSAL, .len_q = 300, .len_kv = 130, .batch = 2 },
    { .name = "window", .flags = ATTN_WINDOW | ATTN_CAUSAL, .left = 37 },
    { .name = "window to both sides", .flags = ATTN_WINDOW, .left = 20, .right = 45, .heads_kv = 2 },
    { .name = "chunk", .flags = ATTN_CHUNK | ATTN_CAUSAL, .chunk = 50 },
    { .name = "alibi", .flags = ATTN_ALIBI, .heads_kv = 2 },
    { .name = "softcap and sink", .flags = ATTN_SOFTCAP | ATTN_SINK | ATTN_CAUSAL },
    { .name = "sink in bf16", .flags = ATTN_SINK | ATTN_WINDOW, .left = 3, .right = 0, .dtype = ATTN_BF16 },
    { .name = "dropout", .flags = ATTN_DROPOUT | ATTN_CAUSAL, .batch = 2, .heads_kv = 2 },
    { .name = "lengths", .flags = ATTN_LENS_Q | ATTN_LENS_KV | ATTN_CAUSAL, .batch = 3 },
    { .name = "dropout and lengths", .flags = ATTN_DROPOUT | ATTN_LENS_Q | ATTN_LENS_KV, .batch = 3 },
    { .name = "prefix and first key", .flags = ATTN_PREFIX | ATTN_FIRST_KV | ATTN_CAUSAL, .batch = 2 },
    { .name = "positions", .flags = ATTN_POSITIONS | ATTN_WINDOW | ATTN_ALIBI, .left = 60, .right = 5, .batch = 2 },
    { .name = "packed", .flags = ATTN_VARLEN | ATTN_CAUSAL, .batch = 5, .heads_kv = 2 },
    { .name = "packed, not causal, bf16", .flags = ATTN_VARLEN, .batch = 4, .dtype = ATTN_BF16 },
    { .name = "packed, alibi, sink", .flags = ATTN_VARLEN | ATTN_ALIBI | ATTN_SINK | ATTN_CAUSAL, .batch = 5 },
    { .name = "intervals", .flags = ATTN_INTERVALS | ATTN_CAUSAL, .interval = CHECK_CAUSAL_DOCUMENT, .batch = 2 },
    { .name = "intervals, not causal", .flags = ATTN_INTERVALS, .interval = CHECK_RANDOM_4, .heads_kv = 2 },
    { .name = "packed intervals", .flags = ATTN_INTERVALS | ATTN_VARLEN, .interval = CHECK_DOCUMENT, .batch = 3 },
    { .name = "nothing", .batch = 1, .len_q = -1, .len_kv = -1 },
};

enum { PARALLEL_CASES = (int)(sizeof parallel_cases / sizeof *parallel_cases) };

static inline attn_desc parallel_desc_of(const parallel_case *c, attn_direction direction)
{
    static const int vectors[] = {
#define VECTORS(enumerator, name, causal, count) count,
        CHECK_INTERVAL_LIST(VECTORS)
#undef VECTORS
    };
    attn_desc d = { .dtype = c->dtype ? c->dtype : ATTN_F32,
                    .direction = direction,
                    .flags = c->flags | ATTN_DETERMINISTIC,
                    .batch = c->batch ? c->batch : 1,
                    .heads_q = PARALLEL_HEADS,
                    .heads_kv = c->heads_kv ? c->heads_kv : PARALLEL_HEADS,
                    .len_q = c->len_q ? c->len_q : 210,
                    .len_kv = c->len_kv ? c->len_kv : 210,
                    .dim_qk = PARALLEL_DIM,
                    .dim_v = PARALLEL_DIM_V,
                    .threads = 1 };
    if (d.len_q < 0) d.len_q = d.len_kv = 0;
    if (d.flags & ATTN_WINDOW) d.window_left = c->left, d.window_right = c->right;
    if (d.flags & ATTN_CHUNK) d.chunk = c->chunk;
    if (d.flags & ATTN_SOFTCAP) d.softcap = 5;
    if (d.flags & ATTN_DROPOUT) d.dropout_p = 0.25f;
    if (d.flags & ATTN_ALIBI) d.alibi_batch = d.batch;
    if (d.flags & ATTN_VARLEN) d.total_q = 370, d.total_kv = 230, d.len_q = d.len_kv = 120; /* rows of none, too */
    if (d.flags & ATTN_INTERVALS) d.interval_vectors = vectors[c->interval], d.interval_heads = d.heads_kv;
    return d;
}

/* ---- a rank's part --------------------------------------------------------------------------- */

/* A tensor of the whole and a rank's rows of it, packed. */
typedef struct parallel_tensor {
    char *whole;
    const int64_t *stride;
    int64_t extent[4];
    bool keys, written;
    attn_dtype dtype;
    char *local;
} parallel_tensor;

enum { PARALLEL_TENSORS = 11 };

typedef struct parallel_part {
    attn_parallel_info info;
    parallel_tensor tensor[PARALLEL_TENSORS];
    int tensors;
    attn_args args;
} parallel_part;

/* Copies a rank's rows of the whole into its own tensor, or back. */
static inline void parallel_copy(const parallel_part *p, const parallel_tensor *t, bool back)
{
    int64_t size = attn_dtype_size(t->dtype), row = t->extent[2] * t->extent[3] * size, n = 0;
    const int64_t *begin = t->keys ? p->info.key_begin : p->info.row_begin;
    const int64_t *end = t->keys ? p->info.key_end : p->info.row_end;
    for (int64_t b = 0; b < t->extent[0]; b++)
        for (int c = 0; c < p->info.chunks; c++)
            for (int64_t i = begin[c]; i < end[c]; i++, n++)
                for (int64_t h = 0; h < t->extent[2]; h++) {
                    char *whole = t->whole + (b * t->stride[0] + i * t->stride[1] + h * t->stride[2]) * size;
                    char *local = t->local + n * row + h * t->extent[3] * size;
                    memcpy(back ? whole : local, back ? local : whole, (size_t)(t->extent[3] * size));
                }
}

/* Adds a tensor; returns the rank's. */
static inline void *parallel_add(parallel_part *p, const void *whole, const int64_t *stride, const int64_t extent[4],
                                 bool keys, bool written, attn_dtype dtype)
{
    parallel_tensor *t = &p->tensor[p->tensors++];
    *t = (parallel_tensor){ (char *)(uintptr_t)whole, stride, { 0 }, keys, written, dtype, NULL };
    memcpy(t->extent, extent, sizeof t->extent);
    int64_t rows = keys ? p->info.keys : p->info.rows;
    t->local = check_allocate((size_t)(extent[0] * rows * extent[2] * extent[3] * attn_dtype_size(dtype)) + 64);
    parallel_copy(p, t, false);
    return t->local;
}

/* LSE and its gradient are (plane, head, row): copied line by line. */
static inline float *parallel_lines(const parallel_part *p, const check_problem *problem, const float *whole)
{
    attn_shape shape = attn_shape_of(&problem->resolved);
    float *local = check_allocate((size_t)(shape.q[0] * shape.q[2] * p->info.rows) * 4 + 64), *to = local;
    for (int64_t line = 0; line < shape.q[0] * shape.q[2]; line++)
        for (int c = 0; c < p->info.chunks; c++)
            for (int64_t i = p->info.row_begin[c]; i < p->info.row_end[c]; i++)
                *to++ = whole[line * shape.q[1] + i];
    return local;
}

static inline void parallel_lines_back(const parallel_part *p, const check_problem *problem, const float *local,
                                       float *whole)
{
    attn_shape shape = attn_shape_of(&problem->resolved);
    for (int64_t line = 0; line < shape.q[0] * shape.q[2]; line++)
        for (int c = 0; c < p->info.chunks; c++)
            for (int64_t i = p->info.row_begin[c]; i < p->info.row_end[c]; i++)
                whole[line * shape.q[1] + i] = *local++;
}

/* What a rank holds of a problem, as its plan says; outputs as the whole has them now. */
static inline parallel_part parallel_part_of(const check_problem *problem, const attn_parallel_info *info)
{
    const attn_desc *d = &problem->resolved;
    attn_shape s = attn_shape_of(d);
    parallel_part p = { .info = *info, .args = problem->args };
    attn_args *a = &p.args;
    bool backward = d->direction == ATTN_BACKWARD;
    a->q = parallel_add(&p, a->q, d->q_stride, s.q, false, false, d->dtype);
    a->k = parallel_add(&p, a->k, d->k_stride, s.k, true, false, d->dtype);
    a->v = parallel_add(&p, a->v, d->v_stride, s.v, true, false, d->dtype);
    a->o = parallel_add(&p, a->o, d->o_stride, s.o, false, !backward, attn_out_dtype(d));
    a->lse = parallel_lines(&p, problem, a->lse);
    if (!backward) return p;
    a->grad_o = parallel_add(&p, a->grad_o, d->grad_o_stride, s.o, false, false, attn_out_dtype(d));
    if (a->grad_lse) a->grad_lse = parallel_lines(&p, problem, a->grad_lse);
    a->grad_q = parallel_add(&p, a->grad_q, d->grad_q_stride, s.q, false, true, attn_grad_dtype(d));
    a->grad_k = parallel_add(&p, a->grad_k, d->grad_k_stride, s.k, true, true, attn_grad_dtype(d));
    a->grad_v = parallel_add(&p, a->grad_v, d->grad_v_stride, s.v, true, true, attn_grad_dtype(d));
    if (a->grad_alibi) a->grad_alibi = check_allocate((size_t)(d->alibi_batch * d->heads_q) * 4);
    if (a->grad_sink) a->grad_sink = check_allocate((size_t)d->heads_q * 4);
    return p;
}

/* Puts a rank's results into the whole's. */
static inline void parallel_put_back(const parallel_part *p, const check_problem *problem)
{
    const attn_args *a = &problem->args;
    const attn_desc *d = &problem->resolved;
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].written) parallel_copy(p, &p->tensor[i], true);
    if (d->direction == ATTN_FORWARD) parallel_lines_back(p, problem, p->args.lse, a->lse);
    if (p->info.rank == 0 && a->grad_alibi)
        memcpy(a->grad_alibi, p->args.grad_alibi, (size_t)(d->alibi_batch * d->heads_q) * 4);
    if (p->info.rank == 0 && a->grad_sink) memcpy(a->grad_sink, p->args.grad_sink, (size_t)d->heads_q * 4);
}

static inline void parallel_part_destroy(parallel_part *p, const check_problem *problem)
{
    for (int i = 0; i < p->tensors; i++)
        free(p->tensor[i].local);
    free(p->args.lse);
    if (problem->resolved.direction == ATTN_FORWARD) return;
    free((void *)(uintptr_t)p->args.grad_lse), free(p->args.grad_alibi), free(p->args.grad_sink);
}

/* The whole's descriptor for a rank whose tensors are packed. */
static inline attn_desc parallel_packed(const attn_desc *whole)
{
    attn_desc d = *whole;
    int64_t *const strides[] = { d.q_stride,      d.k_stride,      d.v_stride,      d.o_stride,
                                 d.grad_o_stride, d.grad_q_stride, d.grad_k_stride, d.grad_v_stride };
    for (int i = 0; i < 8; i++)
        memset(strides[i], 0, sizeof d.q_stride);
    return d;
}

/* Outputs as nobody has written them. */
static inline void parallel_refresh(const check_problem *problem)
{
    bool forward = problem->resolved.direction == ATTN_FORWARD;
    if (forward) check_buffer_refresh(&problem->o), check_buffer_refresh(&problem->lse);
    for (int g = 0; g < CHECK_GRADIENTS; g++)
        check_buffer_refresh(&problem->gradients[g]);
}

/* A rank's plan of the whole, its run, and its part with the results, to be destroyed. message: room for 200
 * characters,
 * "" if all went well. */
static inline parallel_part parallel_run(const check_problem *problem, const attn_parallel_desc *how,
                                         const attn_engine *engine, char *message)
{
    attn_parallel_plan *plan;
    attn_parallel_info info = { 0 };
    parallel_part part = { 0 };
    message[0] = '\0';
    attn_desc desc = parallel_packed(&problem->desc);
    attn_status status = attn_parallel_plan_create(&plan, &desc, how, engine);
    if (!status) {
        attn_parallel_plan_get_info(plan, &info);
        part = parallel_part_of(problem, &info);
        check_buffer workspace = check_buffer_create(info.workspace_bytes, engine->rank % 2);
        status = attn_parallel_run(plan, &part.args, workspace.data, NULL);
        check_buffer_destroy(&workspace);
        attn_parallel_plan_destroy(plan);
    }
    if (status) snprintf(message, 200, "%s: %s", attn_status_name(status), attn_error());
    return part;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Root mean square errors of o, or of the gradients of q, k and v. */
typedef struct parallel_errors {
    double rms[3];
} parallel_errors;

static inline parallel_errors parallel_errors_of(const check_problem *problem, const check_reference *reference)
{
    const attn_desc *d = &problem->resolved;
    parallel_errors e = { { 0 } };
    for (int i = 0; i < reference->count && d->direction == ATTN_FORWARD; i++) {
        const check_row *row = &reference->rows[i];
        int64_t at = attn_row_at(d, &problem->args, row->batch, row->head, row->row, d->o_stride);
        for (int64_t j = 0; j < d->dim_v; j++) {
            double x = (double)attn_load_scalar(attn_out_dtype(d), problem->args.o, at + j);
            e.rms[0] += pow(x - reference->o[i * d->dim_v + j], 2) / (double)(reference->count * d->dim_v);
        }
    }
    for (int g = 0; g < 3 && d->direction == ATTN_BACKWARD; g++) {
        check_elements all = check_gradient_elements(problem, (check_gradient)g);
        const void *base = check_gradient_base(problem, (check_gradient)g);
        double count = 0;
        for (int64_t i = 0; i < all.extent[0] * all.extent[1] * all.extent[2] * all.extent[3]; i++) {
            int64_t j = i % all.extent[3], h = i / all.extent[3] % all.extent[2];
            int64_t row = i / all.extent[3] / all.extent[2] % all.extent[1];
            int64_t b = i / all.extent[3] / all.extent[2] / all.extent[1];
            int64_t at = b * all.stride[0] + row * all.stride[1] + h * all.stride[2] + j;
            double x = (double)attn_load_scalar(all.dtype, base, at);
            if (isnan(x)) continue; /* a row of no sequence */
            e.rms[g] += pow(x - reference->gradients[g].base[at], 2), count++;
        }
        e.rms[g] /= fmax(count, 1);
    }
    for (int g = 0; g < 3; g++)
        e.rms[g] = sqrt(e.rms[g]);
    return e;
}

/* What is wrong with the results of all ranks; one: the errors of one device. message: room for 200 characters, "" if
 * nothing is. */
static inline void parallel_judge(const check_problem *problem, const check_reference *reference,
                                  const parallel_errors *one, char *message)
{
    check_error error = problem->resolved.direction == ATTN_FORWARD ? check_compare(problem, reference)
                                                                    : check_gradients_compare(problem, reference);
    parallel_errors all = parallel_errors_of(problem, reference);
    snprintf(message, 200, "%s", error.message);
    const attn_desc *d = &problem->resolved;
    bool packed = d->flags & ATTN_VARLEN && d->direction == ATTN_FORWARD && problem->args.lse;
    for (int64_t i = packed ? problem->args.cu_lens_q[d->batch] : d->total_q; i < d->total_q && !message[0]; i++)
        for (int64_t h = 0; h < d->heads_q; h++)
            if (!isnan(problem->args.lse[h * d->total_q + i]))
                snprintf(message, 200, "the LSE of row %lld, which is of no sequence, is written", (long long)i);
    for (int g = 0; g < 3 && !message[0]; g++)
        if (all.rms[g] > 1.2 * one->rms[g])
            snprintf(message, 200, "error %g of output %d is more than 1.2 x one device's %g", all.rms[g], g,
                     one->rms[g]);
}

#endif
