/* Contract: layout.h. */
#include "cpu/layout.h"

#include "cpu/threads.h"

typedef struct summaries {
    const attn_plan *plan;
    const attn_args *args;
    attn_interval_node *nodes;
} summaries;

static void summarize_item(void *arg, int64_t i, int worker)
{
    const summaries *s = arg;
    const attn_desc *d = &s->plan->desc;
    (void)worker;
    attn_interval_summarize(d, s->args, i / d->interval_heads, i % d->interval_heads,
                            s->nodes + i * attn_interval_node_count(d));
}

void attn_summarize_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes)
{
    const attn_desc *d = &plan->desc;
    if (!(d->flags & ATTN_INTERVALS)) return;
    summaries s = { plan, args, nodes };
    attn_threads_each(d, plan->choice.threads, d->batch * d->interval_heads, summarize_item, &s);
}

void attn_view_all(const attn_plan *plan, const attn_args *args, attn_interval_node *nodes, attn_mask_view *views,
                   attn_score *scores)
{
    const attn_desc *d = &plan->desc;
    attn_summarize_all(plan, args, nodes);
    for (int64_t i = 0; i < d->batch * d->heads_q; i++) {
        int64_t batch = i / d->heads_q, head = i % d->heads_q;
        attn_mask_view_init(&views[i], d, args, nodes, batch, head);
        attn_score_init(&scores[i], d, args, batch, head, views[i].ranges.shift);
    }
}
