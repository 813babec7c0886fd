/* Elements of a byte as kernels of 16 bits have them: times their scales, rounded to the type of the queries. */
#include "check/widen.h"

#include <string.h>

#include "cuda/params.h"
#include "cuda/sm90/params.h"
#include "num/half.h"
#include "problem/desc.h"
#include "problem/sequence.h"

unsigned check_kernel_widens(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    if (!kernel || attn_cuda_direction(kernel) != ATTN_FORWARD) return 0;
    return (kernel->dtype != desc->dtype ? CHECK_WIDENS_Q : 0) |
           (kernel->tma && attn_kv_dtype(desc) != kernel->dtype ? CHECK_WIDENS_KV : 0);
}

void check_problem_of_kernel(check_problem *problem, const attn_cuda_kernel *kernel)
{
    problem->options.widens = check_kernel_widens(kernel, &problem->resolved);
    problem->options.rounds_p = kernel && attn_cuda_is_variant(kernel) && kernel->dtype == ATTN_E4M3;
    problem->options.rounds_sums = problem->options.rounds_p && ATTN_SM90_GROUPED(1, kernel->dim_v);
}

bool check_problem_of_fallback(check_problem *problem)
{
    if (!(problem->options.widens & CHECK_WIDENS_KV) || !check_problem_shift(problem)) return false;
    problem->options.widens &= ~(unsigned)CHECK_WIDENS_KV;
    return true;
}

static void pack(const int64_t extent[4], int64_t stride[4])
{
    stride[3] = 1;
    for (int i = 2; i >= 0; i--)
        stride[i] = stride[i + 1] * extent[i + 1];
}

/* Extents of K or V without pages; packed ones only where no table says where keys lie. */
static void lay_out(const attn_desc *d, int64_t dim, int64_t extent[4], int64_t stride[4])
{
    bool packed = d->flags & ATTN_VARLEN;
    extent[0] = packed ? 1 : d->batch, extent[1] = packed ? d->total_kv : d->len_kv;
    extent[2] = d->heads_kv, extent[3] = dim;
    pack(extent, stride);
}

static const void *widen(const check_problem *from, check_problem *to, char tensor, const int64_t extent[4],
                         const int64_t stride[4])
{
    const attn_desc *d = &from->resolved, *w = &to->resolved;
    int64_t group = d->heads_q / d->heads_kv;
    void *base = check_problem_allocate_tensor(to, w->dtype, extent, stride);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t keys = attn_sequence_of(d, &from->args, b).len_kv;
        for (int64_t i = 0; i < d->heads_kv * keys; i++) {
            int64_t key = i / d->heads_kv, head = i % d->heads_kv * group;
            if (!check_key_is_there(from, b, key)) continue;
            int64_t at = attn_key_at(d, &from->args, b, head, key, tensor == 'k' ? d->k_stride : d->v_stride),
                    out = attn_key_at(w, &to->args, b, head, key, stride);
            for (int64_t c = 0; c < extent[3]; c++) {
                const void *bytes = tensor == 'k' ? from->args.k : from->args.v;
                float x = attn_load_scalar(attn_kv_dtype(d), bytes, at + c);
                attn_store_scalar(w->dtype, base, out + c, x * check_scale_at(from, tensor, b, head, key, c));
            }
        }
    }
    return base;
}

static void widen_queries(const check_problem *from, check_problem *to)
{
    const attn_desc *d = &from->resolved;
    attn_desc *w = &to->resolved;
    attn_shape shape = attn_shape_of(d);
    w->out_dtype = attn_out_dtype(d), w->kv_dtype = attn_kv_dtype(d), w->dtype = ATTN_BF16;
    w->flags &= ~(uint32_t)ATTN_SCALES_Q, w->q_scale_rows = w->q_scale_heads = 0;
    memset(w->q_scale_stride, 0, sizeof w->q_scale_stride);
    pack(shape.q, w->q_stride);
    void *base = check_problem_allocate_tensor(to, w->dtype, shape.q, w->q_stride);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t rows = attn_sequence_of(d, &from->args, b).len_q;
        for (int64_t i = 0; i < d->heads_q * rows; i++) {
            int64_t row = i / d->heads_q, head = i % d->heads_q,
                    at = attn_row_at(d, &from->args, b, head, row, d->q_stride),
                    out = attn_row_at(w, &to->args, b, head, row, w->q_stride);
            float scale = check_scale_at(from, 'q', b, head, row, 0);
            for (int64_t c = 0; c < d->dim_qk; c++)
                attn_store_scalar(w->dtype, base, out + c, attn_load_scalar(d->dtype, from->args.q, at + c) * scale);
        }
    }
    to->args.q = base, to->args.q_scale = NULL;
}

static void widen_keys(const check_problem *problem, check_problem *to)
{
    attn_desc *d = &to->resolved;
    int64_t k_extent[4], k_stride[4], v_extent[4], v_stride[4];
    bool paged = d->flags & ATTN_PAGED;
    d->kv_dtype = d->dtype, d->flags &= ~(uint32_t)(ATTN_SCALES_KV | ATTN_PAGED);
    d->pages = d->page_size = d->table_width = d->table_total = 0;
    to->args.k_scale = to->args.v_scale = NULL, to->args.page_table = to->args.page_starts = NULL;
    if (paged && d->flags & ATTN_VARLEN) { /* rows are packed: now keys are, too */
        int32_t *starts = check_problem_allocate(to, (d->batch + 1) * (int64_t)sizeof *starts);
        for (int64_t b = 0; b <= d->batch; b++)
            starts[b] = (int32_t)(b * d->len_kv);
        to->args.cu_lens_kv = starts, d->total_kv = d->batch * d->len_kv;
    }
    lay_out(d, d->dim_qk, k_extent, k_stride), lay_out(d, d->dim_v, v_extent, v_stride);
    to->args.k = widen(problem, to, 'k', k_extent, k_stride), to->args.v = widen(problem, to, 'v', v_extent, v_stride);
    memcpy(d->k_stride, k_stride, sizeof k_stride), memcpy(d->v_stride, v_stride, sizeof v_stride);
}

check_problem check_widened(const check_problem *problem)
{
    check_problem w = *problem;
    w.input_count = 0;
    if (problem->options.widens & CHECK_WIDENS_Q) widen_queries(problem, &w);
    if (problem->options.widens & CHECK_WIDENS_KV) widen_keys(problem, &w);
    return w;
}

void check_widened_destroy(check_problem *widened)
{
    for (int i = 0; i < widened->input_count; i++)
        check_buffer_destroy(&widened->inputs[i]);
}
