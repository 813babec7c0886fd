/* Contract: score.h. */
#include "cpu/score.h"

#include <math.h>

#include "problem/args.h"
#include "problem/desc.h"
#include "num/half.h"
#include "num/philox.h"

static const double log2e = 1.4426950408889634, ln2 = 0.6931471805599453;

void attn_score_init(attn_score *score, const attn_desc *desc, const attn_args *args, int64_t batch, int64_t head,
                     int64_t shift)
{
    *score = (attn_score){ .flags = desc->flags, .scale = desc->scale, .softcap = desc->softcap, .shift = shift };
    if (!(desc->flags & ATTN_RICH)) score->scale = (float)((double)desc->scale * log2e);
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
