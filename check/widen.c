/* Keys and values of a byte as kernels of 16 bits have them: times their scales, rounded to the queries' type. */
#include "check/widen.h"

#include <string.h>

#include "num/half.h"
#include "problem/desc.h"
#include "problem/sequence.h"

bool check_kernel_widens(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    return kernel && kernel->form == ATTN_CUDA_FORWARD && kernel->tma && attn_kv_dtype(desc) != desc->dtype;
}

/* Extents of K or V without pages; packed ones only where no table says where keys lie. */
static void lay_out(const attn_desc *d, int64_t dim, int64_t extent[4], int64_t stride[4])
{
    bool packed = d->flags & ATTN_VARLEN;
    extent[0] = packed ? 1 : d->batch, extent[1] = packed ? d->total_kv : d->len_kv;
    extent[2] = d->heads_kv, extent[3] = dim, stride[3] = 1;
    for (int i = 2; i >= 0; i--)
        stride[i] = stride[i + 1] * extent[i + 1];
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

check_problem check_widened(const check_problem *problem)
{
    check_problem w = *problem;
    attn_desc *d = &w.resolved;
    int64_t k_extent[4], k_stride[4], v_extent[4], v_stride[4];
    bool paged = d->flags & ATTN_PAGED;
    w.input_count = 0;
    d->kv_dtype = d->dtype, d->flags &= ~(uint32_t)(ATTN_SCALES_KV | ATTN_PAGED);
    d->pages = d->page_size = d->table_width = d->table_total = 0;
    w.args.k_scale = w.args.v_scale = NULL, w.args.page_table = w.args.page_starts = NULL;
    if (paged && d->flags & ATTN_VARLEN) { /* rows are packed: now keys are, too */
        int32_t *starts = check_problem_allocate(&w, (d->batch + 1) * (int64_t)sizeof *starts);
        for (int64_t b = 0; b <= d->batch; b++)
            starts[b] = (int32_t)(b * d->len_kv);
        w.args.cu_lens_kv = starts, d->total_kv = d->batch * d->len_kv;
    }
    lay_out(d, d->dim_qk, k_extent, k_stride), lay_out(d, d->dim_v, v_extent, v_stride);
    w.args.k = widen(problem, &w, 'k', k_extent, k_stride), w.args.v = widen(problem, &w, 'v', v_extent, v_stride);
    memcpy(d->k_stride, k_stride, sizeof k_stride), memcpy(d->v_stride, v_stride, sizeof v_stride);
    return w;
}

void check_widened_destroy(check_problem *widened)
{
    for (int i = 0; i < widened->input_count; i++)
        check_buffer_destroy(&widened->inputs[i]);
}
