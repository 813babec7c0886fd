/* Contract: scales.h. */
#include "problem/scales.h"

#include "problem/keys.h"

int64_t attn_q_scale_at(const attn_desc *d, int64_t batch, int64_t head, int64_t row)
{
    int64_t block = d->q_scale_rows ? row / d->q_scale_rows : 0;
    return batch * d->q_scale_stride[0] + block * d->q_scale_stride[1] +
           head / (d->heads_q / d->q_scale_heads) * d->q_scale_stride[2];
}

/* rows: of a block; 0: all keys of a sequence are one. */
static int64_t key_scale_at(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key,
                            int64_t rows, const int64_t stride[4])
{
    int64_t plane = batch, row = key, room;
    if (rows && d->flags & ATTN_PAGED)
        plane = attn_pages_of(d, args, batch, &room)[key / d->page_size], row = key % d->page_size;
    return plane * stride[0] + (rows ? row / rows * stride[1] : 0) + head / (d->heads_q / d->heads_kv) * stride[2];
}

int64_t attn_k_scale_at(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key)
{
    return key_scale_at(d, args, batch, head, key, d->k_scale_rows, d->k_scale_stride);
}

int64_t attn_v_scale_at(const attn_desc *d, const attn_args *args, int64_t batch, int64_t head, int64_t key,
                        int64_t dim)
{
    return key_scale_at(d, args, batch, head, key, d->v_scale_rows, d->v_scale_stride) + dim * d->v_scale_stride[3];
}
