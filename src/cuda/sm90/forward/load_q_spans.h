/* SPANS variants: Q is loaded by boxes of a warpgroup's rows, each with the spans of these; with PackGQA in one box. */
#ifndef ATTN_CUDA_SM90_FORWARD_LOAD_Q_SPANS_H
#define ATTN_CUDA_SM90_FORWARD_LOAD_Q_SPANS_H

#include "sm90/common/pipeline.h"
#include "sm90/common/work_item.h"
#include "sm90/forward/config.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/spans.h"

/* A box, to the rows of a stage from `first` on. */
DEVICE void load_q_box(const attn_sm90_params *p, const shared *s, int stage, const work_item *w, int first,
                       int span_bytes, u32 full)
{
    using tile = config::q_tile;
#pragma unroll
    for (int i = 0; i < tile::panels; i++)
        tma_load(s->q + stage * tile::bytes + i * tile::panel_bytes + first * tile::width, &p->q_map, full,
                 tile::panel_columns * i, w->head, w->start_q + w->row0 + first, w->batch);
    bulk_load(shared_address(spans_in_stage(s, stage)) + first / 64 * config::own_span_bytes,
              spans_of(p, w) + w->row0 / 2 * 2 + first, span_bytes, full);
}

/* Loads the rows of one warpgroup after another, as there is room for them, the last one's first: under a causal mask
 * it is done first with its last ones. left: warpgroups whose rows are not loaded yet. must: waits until all are. What
 * PackGQA has comes with the first warpgroup's, the last to be loaded. */
DEVICE void load_q_with_spans(const attn_sm90_params *p, const shared *s, pipeline_state q, const work_item *w,
                              int *left, bool must)
{
    using tile = config::q_tile;
#pragma unroll 1
    for (; *left; --*left) {
        int part = *left - 1, stage = config::own_q ? part : q.index;
        u32 full = BARRIER(s, q.full[stage]), empty = BARRIER(s, q.empty[stage]);
        bool packed = p->schedule.pack > 1, own = config::own_q && !packed, last = part == config::consumers - 1;
        /* If one lane sees that it is empty, it stays so. A stage for all is waited for once: it may be so again. */
        if (!must && !__any_sync(~0u, barrier_test(empty, q.phase))) return;
        if (config::own_q || last) wait_empty(empty, q.phase);
        if (threadIdx.x % 32 != 0 || (packed && part)) continue;
        int rows = own ? 64 : p->schedule.rows * p->schedule.pack,
            span_bytes = own ? config::own_span_bytes : config::span_bytes;
        bool begins = own || packed || last;
        if (w->tiles <= 0) {
            if (begins) barrier_arrive(full);
        } else {
            if (begins) barrier_expect(full, tile::panels * tile::width * rows + span_bytes);
            load_q_box(p, s, q.index, w, 64 * part, packed ? config::span_bytes : config::own_span_bytes, full);
        }
    }
}

#endif
