/* Contract: quant_case.h. */
#include "check/quant_case.h"

#include <math.h>
#include <string.h>

#include "check/random.h"
#include "num/half.h"

#define COUNT(list) (int64_t)(sizeof(list) / sizeof *(list))

static void draw_strides(uint64_t *state, const int64_t n[4], int64_t stride[4])
{
    int64_t gap = check_chance(state, 40) ? 0 : check_below(state, 9);
    bool heads_first = check_chance(state, 40);
    stride[3] = 1, stride[heads_first ? 1 : 2] = n[3] + gap;
    stride[heads_first ? 2 : 1] = (n[3] + gap) * (heads_first ? n[1] : n[2]);
    stride[0] = (n[3] + gap) * n[1] * n[2];
}

/* Of blocks of rows, or of channels; some axes have one for all. */
static void draw_scales(uint64_t *state, attn_quant_desc *d)
{
    static const int64_t blocks[] = { 0, 0, 1, 64, 128 };
    d->scale_rows = blocks[check_below(state, COUNT(blocks))];
    if (check_chance(state, 30)) d->scale_heads = 1 + check_below(state, d->heads);
    if (d->scale_heads && d->heads % d->scale_heads) d->scale_heads = 1;
    int64_t heads = d->scale_heads ? d->scale_heads : d->heads, step = 1;
    int64_t count[4] = { d->batch, d->scale_rows ? (d->rows + d->scale_rows - 1) / d->scale_rows : 1, heads, d->dim };
    for (int i = 3; i >= 0; i--) {
        bool can = i == 1 ? d->scale_rows > 0 : i == 3 ? d->scale_rows == 0 && check_chance(state, 40) : true;
        if (!can || check_chance(state, 25)) continue;
        d->scale_stride[i] = step, step *= count[i] > 0 ? count[i] : 1;
    }
}

static void draw_desc(uint64_t *state, attn_quant_desc *d, int32_t cu[CHECK_QUANT_STARTS])
{
    static const int64_t dims[] = { 1, 7, 16, 32, 33, 48, 64, 80, 96, 100, 128, 192, 256, 384, 511, 512 };
    *d = (attn_quant_desc){ .dtype = (attn_dtype)(1 + check_below(state, 3)) };
    d->out_dtype = check_chance(state, 70) ? ATTN_E4M3 : ATTN_I8;
    d->dim = dims[check_below(state, COUNT(dims))];
    d->heads = 1 + check_below(state, 4), d->batch = 1 + check_below(state, 3);
    int64_t room = CHECK_QUANT_MOST / 2 / (d->batch * d->heads * (d->dim + 8)),
            most = check_chance(state, 15) ? 600 : 200;
    d->rows = check_below(state, room < most ? room : most);
    if (check_chance(state, 60) && d->dim % 16 == 0) {
        d->rotate = d->dim & -d->dim;
        if (check_chance(state, 30)) d->rotate = 16;
        d->seed = check_bits(state);
    }
    cu[0] = 0;
    if (check_chance(state, 40)) {
        d->flags |= ATTN_QUANT_VARLEN;
        for (int64_t b = 0; b < d->batch; b++)
            cu[b + 1] = cu[b] + (int32_t)(check_chance(state, 20) ? 0 : check_below(state, d->rows + 1));
        d->total = cu[d->batch] + check_below(state, 3);
        if (d->rows > d->total) d->rows = d->total; /* what the plan takes it for */
    }
    const int64_t n[4] = { d->flags & ATTN_QUANT_VARLEN ? 1 : d->batch,
                           d->flags & ATTN_QUANT_VARLEN ? d->total : d->rows, d->heads, d->dim };
    draw_strides(state, n, d->x_stride), draw_strides(state, n, d->out_stride);
    draw_scales(state, d);
    int kind = (int)check_below(state, 4);
    if (kind == 1) d->flags |= ATTN_QUANT_MEAN;
    if (kind == 2) d->flags |= ATTN_QUANT_DOT;
    if (kind == 2 && check_chance(state, 50)) d->mean_heads = 1;
}

/* With outliers; now and then zeros, or something that is no number. */
static void draw_numbers(uint64_t *state, const attn_quant_desc *d, check_quant_arrays *a)
{
    const float odd[] = { NAN, INFINITY, -INFINITY };
    int64_t count = CHECK_QUANT_MOST / (d->dtype == ATTN_F32 ? 1 : 2);
    float offset = 3 * check_normal(state), factor = check_chance(state, 4) ? 0 : 1;
    for (int64_t i = 0; i < count; i++)
        attn_store_scalar(d->dtype, a->x, i,
                          factor * (check_normal(state) + offset + (check_chance(state, 1) ? 50.0f : 0)));
    for (int i = check_chance(state, 6) ? 3 : 0; i > 0; i--)
        attn_store_scalar(d->dtype, a->x, check_below(state, count), odd[check_below(state, COUNT(odd))]);
    for (int64_t i = 0; i < CHECK_QUANT_MOST; i++)
        a->mean[i] = check_normal(state);
}

void check_quant_draw(uint64_t *state, attn_quant_desc *desc, check_quant_arrays *arrays)
{
    memset(arrays, CHECK_QUANT_CANARY, sizeof *arrays);
    draw_desc(state, desc, arrays->cu_lens);
    draw_numbers(state, desc, arrays);
}

attn_quant_args check_quant_args(const attn_quant_desc *desc, check_quant_arrays *arrays)
{
    bool means = desc->flags & (ATTN_QUANT_MEAN | ATTN_QUANT_DOT);
    return (attn_quant_args){ .x = arrays->x,
                              .out = arrays->out,
                              .scale = arrays->scale,
                              .cu_lens = desc->flags & ATTN_QUANT_VARLEN ? arrays->cu_lens : NULL,
                              .mean = means ? arrays->mean : NULL,
                              .dot = desc->flags & ATTN_QUANT_DOT ? arrays->dot : NULL };
}

int64_t check_quant_rows(const attn_quant_desc *desc, const check_quant_arrays *arrays, int64_t sequence)
{
    const int32_t *cu = arrays->cu_lens;
    return desc->flags & ATTN_QUANT_VARLEN ? cu[sequence + 1] - cu[sequence] : desc->rows;
}
