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
