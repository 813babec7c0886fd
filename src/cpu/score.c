/* Contract: score.h. */
#include "cpu/score.h"

#include <math.h>

#include "problem/args.h"
#include "problem/desc.h"
#include "problem/scales.h"
#include "num/half.h"
#include "num/philox.h"

static const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453;

/* Returns the product of those scales of q and k that all rows and keys share. */
static double init_scales(attn_score *score, const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head)
{
    double shared = 1;
    if (desc->flags & ATTN_SCALES_Q) {
        const float *q_scale = args->q_scale + attn_q_scale_at(desc, batch, head, 0);
        if (desc->q_scale_rows)
            score->q_scale = q_scale, score->q_scale_rows = desc->q_scale_rows,
            score->q_scale_block = desc->q_scale_stride[1];
        else
            shared *= *q_scale;
    }
    if (desc->flags & ATTN_SCALES_KV && args->k_scale && !desc->k_scale_rows)
        shared *= args->k_scale[attn_k_scale_at(desc, args, batch, head, 0)];
    if (desc->flags & ATTN_SCALES_KV && args->v_scale && !desc->v_scale_rows)
        score->v_scale = args->v_scale + attn_v_scale_at(desc, args, batch, head, 0, 0),
        score->v_scale_dim = desc->v_scale_stride[3];
    if (attn_out_dtype(desc) == ATTN_E4M3 && args->o_scale) score->o_scale = *args->o_scale;
    return shared;
}

void attn_score_init(attn_score *score, const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head,
                     int64_t shift)
{
    *score = (attn_score){ .flags = desc->flags, .softcap = desc->softcap, .shift = shift, .o_scale = 1 };
    score->scale =
        (float)(desc->scale * (desc->flags & ATTN_RICH ? 1 : log2e) * init_scales(score, desc, args, batch, head));
    if (desc->flags & ATTN_ALIBI)
        score->slope = args->alibi[(desc->alibi_batch == 1 ? 0 : batch) * desc->heads_q + head];
    if (desc->flags & ATTN_BIAS) {
        int64_t stride[4];
        for (int i = 0; i < 4; i++)
            stride[i] = desc->bias_extent[i] == 1 ? 0 : desc->bias_stride[i];
        score->bias_dtype = desc->bias_dtype;
        score->bias =
            (const char *)args->bias + (batch * stride[0] + head * stride[1]) * attn_dtype_size(desc->bias_dtype);
        score->bias_row = stride[2], score->bias_key = stride[3];
    }
    if (desc->flags & ATTN_SINK) score->sink = args->sink[head];
    if (desc->flags & ATTN_DROPOUT) {
        score->seed = attn_seed_of(args), score->seed_offset = attn_seed_offset_of(args);
        attn_dropout_base base = attn_dropout_base_of(desc, args, batch, head);
        score->batch_head = base.head, score->dropout_row = base.row, score->dropout_key = base.key;
        score->threshold = attn_dropout_threshold(desc->dropout_p);
    }
}

float attn_score_finish(const attn_score *score, float max, float sum, float *lse)
{
    double top = max, total = sum, scale = 1;
    if (score->flags & ATTN_SINK && score->sink > -INFINITY) {
        double sink = score->sink * log2e;
        top = max > sink ? max : sink;
        scale = exp2(max - top);
        total = sum * scale + exp2(sink - top);
    }
    if (lse) *lse = total != 0 ? (float)((top + log2(total)) * ln2) : -INFINITY;
    return total != 0 ? (float)(attn_dropout_kept(score) * scale / total) : 0;
}
