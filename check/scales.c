/* Scales of elements of a byte: along which axes they differ, and what they are. */
#include <math.h>

#include "check/problem.h"
#include "problem/desc.h"
#include "problem/scales.h"
#include "problem/sequence.h"

static void lay_out(int64_t stride[4], const int64_t extent[4], unsigned axes)
{
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        stride[i] = axes >> i & 1 ? step : 0;
        if (axes >> i & 1 && extent[i] > 0) step *= extent[i];
    }
}

static unsigned axes_of(const int64_t stride[4], int64_t rows, bool channels)
{
    unsigned axes = 0, may = 1u << 0 | 1u << 2 | (rows ? 1u << 1 : 0) | (channels && !rows ? 1u << 3 : 0);
    for (unsigned i = 0; i < 4; i++)
        if (stride[i]) axes |= 1u << i;
    return axes & may;
}

attn_shape check_scale_shape(const attn_desc *desc)
{
    attn_desc d = *desc;
    if (!d.heads_kv) d.heads_kv = d.heads_q;
    if (!d.dim_v) d.dim_v = d.dim_qk;
    if (!d.q_scale_heads) d.q_scale_heads = d.heads_q;
    return attn_scale_shape_of(&d);
}

void check_settle_scales(attn_desc *d)
{
    attn_shape shape = check_scale_shape(d);
    lay_out(d->q_scale_stride, shape.q, axes_of(d->q_scale_stride, d->q_scale_rows, false));
    lay_out(d->k_scale_stride, shape.k, axes_of(d->k_scale_stride, d->k_scale_rows, false));
    lay_out(d->v_scale_stride, shape.v, axes_of(d->v_scale_stride, d->v_scale_rows, true));
}

void check_set_scales(attn_desc *d, unsigned axes)
{
    for (int i = 0; i < 4; i++) {
        d->q_scale_stride[i] = d->flags & ATTN_SCALES_Q ? axes >> i & 1 : 0;
        d->k_scale_stride[i] = d->flags & ATTN_SCALES_KV ? axes >> (i + 4) & 1 : 0;
        d->v_scale_stride[i] = d->flags & ATTN_SCALES_KV ? axes >> (i + 8) & 1 : 0;
    }
    check_settle_scales(d);
}

/* From 0.01 to 2, now and then below 0. */
static float draw(uint64_t *state)
{
    float size = exp2f((float)check_below(state, 760) * 0.01f - 6.6f);
    return check_chance(state, 10) ? -size : size;
}

/* Of what is in use; the others stay NaN. */
void check_fill_scales(check_problem *problem, uint64_t *state)
{
    const attn_desc *d = &problem->resolved;
    attn_args *a = &problem->args;
    attn_shape shape = attn_scale_shape_of(d);
    float *q = NULL, *k = NULL, *v = NULL, *o = NULL;
    if (d->flags & ATTN_SCALES_Q) q = check_problem_allocate_tensor(problem, ATTN_F32, shape.q, d->q_scale_stride);
    if (d->flags & ATTN_SCALES_KV && check_chance(state, 85))
        k = check_problem_allocate_tensor(problem, ATTN_F32, shape.k, d->k_scale_stride);
    if (d->flags & ATTN_SCALES_KV && check_chance(state, 85))
        v = check_problem_allocate_tensor(problem, ATTN_F32, shape.v, d->v_scale_stride);
    if (attn_out_dtype(d) == ATTN_E4M3 && check_chance(state, 70)) o = check_problem_allocate(problem, 4);
    a->q_scale = q, a->k_scale = k, a->v_scale = v, a->o_scale = o;
    for (int64_t b = 0; b < d->batch; b++) {
        attn_sequence seq = attn_sequence_of(d, a, b);
        for (int64_t h = 0; q && h < d->heads_q; h++)
            for (int64_t i = 0; i < seq.len_q; i++)
                q[attn_q_scale_at(d, b, h, i)] = draw(state);
        for (int64_t h = 0; (k || v) && h < d->heads_q; h += d->heads_q / d->heads_kv)
            for (int64_t j = 0; j < seq.len_kv; j++) {
                if (!check_key_is_there(problem, b, j)) continue;
                if (k) k[attn_k_scale_at(d, a, b, h, j)] = draw(state);
                for (int64_t c = 0; v && c < (d->v_scale_stride[3] ? d->dim_v : 1); c++)
                    v[attn_v_scale_at(d, a, b, h, j, c)] = draw(state);
            }
    }
    if (o) *o = draw(state);
}

float check_scale_at(const check_problem *problem, char tensor, int64_t batch, int64_t head, int64_t row, int64_t dim)
{
    const attn_desc *d = &problem->resolved;
    const attn_args *a = &problem->args;
    if (tensor == 'q') return a->q_scale ? a->q_scale[attn_q_scale_at(d, batch, head, row)] : 1;
    if (tensor == 'k') return a->k_scale ? a->k_scale[attn_k_scale_at(d, a, batch, head, row)] : 1;
    return a->v_scale ? a->v_scale[attn_v_scale_at(d, a, batch, head, row, dim)] : 1;
}
