/* The epilogue of a work item: LSE, and O divided by the row sum. 16-bit O goes by way of shared memory where there is
 * room for it. */
#ifndef ATTN_CUDA_SM90_FORWARD_EPILOGUE_H
#define ATTN_CUDA_SM90_FORWARD_EPILOGUE_H

#include "common/dropout.h"
#include "common/sequence.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/output_panels.h"
#include "sm90/forward/output_rows.h"
#include "sm90/forward/output_special.h"
#include "sm90/forward/retry.h"
#include "sm90/forward/rows.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/softmax.h"

/* ---- row sums --------------------------------------------------------------------------------- */

/* LSE of a row, and what its O is multiplied by; both count the sink. */
struct row_result {
    float lse, factor;
};

struct row_results {
    row_result row[2]; /* of a thread's two rows */
    bool fine;         /* no unchecked max overflowed */
};

/* The thread's rows' results, of what their softmax is by now. */
DEVICE row_results finish_softmax(const attn_sm90_params *p, const work_item *w, const softmax *m)
{
    int index = first_row_index(reread_thread());
    row_results results = { {}, true };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(m->row_sum[r]), max = m->row_max[r],
              scale = config::score_mod || config::dropout ? dropout_factor(&p->shape, &p->score) : 1;
        results.fine = results.fine && !has_overflowed(max, sum);
        if (unlikely(p->shape.sink && !is_split(w))) {
            float sink = p->shape.sink[w->head + row_in_item(p, w, index + 8 * r).head] * LOG2_E,
                  top = fmaxf(max, sink);
            bool some = top > -INFINITE;
            float kept = some ? exp2_approx(max - top) : 1;
            sum = some ? sum * kept + exp2_approx(sink - top) : sum;
            scale *= kept, max = top;
        }
        results.row[r] = { sum == 0 ? -INFINITE : (max + log2_approx(sum)) * 0.693147181f,
                           sum == 0 ? 0 : scale * reciprocal_approx(sum) };
    }
    return results;
}

/* ---- the epilogue ----------------------------------------------------------------------------- */

/* Stores O and LSE of a warpgroup's rows; panels: the warp's. */
DEVICE void store_results(const attn_sm90_params *p, const work_tile_info *info, float *o, const row_results *results,
                          u32 panels)
{
    const work_item *w = &info->w;
    int index = first_row_index(reread_thread());
#pragma unroll
    for (int i = 0; i < config::dim_v / 2; i++)
        o[i] *= results->row[i / 2 % 2].factor;
    if (unlikely(is_split(w) || p->shape.flags & FLAG_OUT_F32)) {
        store_o_single(p, w, o, index);
    } else {
        int warp_index = index - index % ATTN_SM90_OUTPUT_ROWS;
        if constexpr (config::o_panels > 0)
            store_o_by_panels(p, info, o, panels, warp_index);
        else
            store_o_by_rows(p, info, o, warp_index);
    }
    float *lse = is_split(w) ? p->shape.partial_lse : p->shape.lse;
    int r = opaque(threadIdx.x % 4);
    if (lse && r < 2) {
        packed_row at = row_in_item(p, w, index + 8 * r);
        if (at.row >= 0) lse[lse_row(p, info, at)] = r ? results->row[1].lse : results->row[0].lse;
    }
}

#endif
