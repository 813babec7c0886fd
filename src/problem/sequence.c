/* Contract: sequence.h. */
#include "problem/sequence.h"

attn_sequence attn_sequence_of(const attn_desc *desc, const attn_args *args, int64_t batch)
{
    attn_sequence s = { .len_q = desc->len_q, .len_kv = desc->len_kv };
    if (desc->flags & ATTN_VARLEN) s.start_q = args->cu_lens_q[batch], s.len_q = args->cu_lens_q[batch + 1] - s.start_q;
    if (desc->flags & ATTN_VARLEN && !(desc->flags & ATTN_PAGED))
        s.start_kv = args->cu_lens_kv[batch], s.len_kv = args->cu_lens_kv[batch + 1] - s.start_kv;
    if (desc->flags & ATTN_LENS_Q) s.len_q = args->lens_q[batch];
    if (desc->flags & ATTN_LENS_KV) s.len_kv = args->lens_kv[batch];
    if (desc->flags & ATTN_FIRST_KV) s.first_kv = args->first_kv[batch];
    s.position_q = s.len_kv - s.len_q;
    if (desc->flags & ATTN_POSITIONS) {
        s.position_q = args->position_q[batch];
        if (args->position_kv) s.position_kv = args->position_kv[batch];
    }
    return s;
}

int64_t attn_row_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row,
                    const int64_t stride[4])
{
    int64_t plane = desc->flags & ATTN_VARLEN ? 0 : batch, start = attn_sequence_of(desc, args, batch).start_q;
    return plane * stride[0] + (start + row) * stride[1] + head * stride[2];
}

int64_t attn_key_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t key,
                    const int64_t stride[4])
{
    int64_t plane = desc->flags & ATTN_VARLEN ? 0 : batch, row = attn_sequence_of(desc, args, batch).start_kv + key;
    if (desc->flags & ATTN_PAGED) {
        int64_t line = desc->table_width ? batch * desc->table_width : args->page_starts[batch];
        plane = args->page_table[line + key / desc->page_size], row = key % desc->page_size;
    }
    return plane * stride[0] + row * stride[1] + head / (desc->heads_q / desc->heads_kv) * stride[2];
}

int64_t attn_lse_at(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head, int64_t row)
{
    if (desc->flags & ATTN_VARLEN) return head * desc->total_q + attn_sequence_of(desc, args, batch).start_q + row;
    return (batch * desc->heads_q + head) * desc->len_q + row;
}
