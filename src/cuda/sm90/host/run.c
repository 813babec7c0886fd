/* Runs on Hopper: what both directions do before a variant. Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include "problem/desc.h"

void attn_sm90_take(const attn_cuda_params *common, attn_sm90_params *p)
{
    p->shape = common->shape, p->mask = common->mask, p->score = common->score;
    p->tensors = common->tensors, p->seeds = common->seeds;
}

attn_status attn_sm90_widen_bits(const attn_cuda_call *c, attn_sm90_params *p)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_sm90_widen_params w = { .shape = p->shape,
                                 .bits = p->mask.bits,
                                 .out = attn_cuda_at(c, plan->bits_at),
                                 .bits_batch = p->mask.bits_batch,
                                 .bits_keys = (int)d->bits_keys };
    if (!plan->widen_bits) return ATTN_OK;
    p->mask.bits = w.out;
    if (d->flags & (ATTN_VARLEN | ATTN_LENS_KV)) p->mask.bits_batch = (int)d->batch;
    return attn_cuda_launch(c, "attn_sm90_widen_bits", plan->widen_bits, attn_ceil_div(d->len_q, 8), d->bits_heads,
                            p->mask.bits_batch, 256, &w);
}

static attn_status find_bit_tiles(const attn_cuda_call *c, const attn_sm90_plan *plan, attn_sm90_params *p)
{
    const attn_desc *d = &c->plan->desc;
    p->mask.bit_tiles = attn_cuda_at(c, plan->bit_tiles_at);
    return attn_cuda_launch(c, "attn_sm90_bit_tiles", plan->find_bit_tiles,
                            ATTN_CUDA_BIT_TILES(d->len_q, d->len_kv, c->cuda->chosen.kernel->kv_tile), d->bits_heads,
                            p->mask.bits_batch, 256, p);
}

/* Summaries of intervals are of the KV tiles of the variant that reads them. */
static void take_summaries(const attn_cuda_call *c, const attn_sm90_plan *plan, attn_sm90_params *p)
{
    p->mask.summaries = attn_cuda_at(c, plan->summaries_at);
    if (c->plan->desc.direction == ATTN_FORWARD) p->mask.interval_tiles = attn_cuda_at(c, plan->interval_tiles_at);
}

static attn_status summarise(const attn_cuda_call *c, const attn_sm90_plan *plan, attn_sm90_params *p)
{
    const attn_desc *d = &c->plan->desc;
    take_summaries(c, plan, p);
    return attn_cuda_launch(c, "attn_sm90_interval_summary", plan->summarise,
                            ATTN_CUDA_SUMMARIES(d->len_kv, p->mask.summary_keys), d->interval_heads, d->batch, 128, p);
}

static attn_status find_spans(const attn_cuda_call *c, const attn_sm90_plan *plan, attn_sm90_params *p,
                              unsigned *counter)
{
    const attn_desc *d = &c->plan->desc;
    bool of_keys = d->direction == ATTN_BACKWARD;
    int64_t blocks = attn_sm90_span_blocks(d), summaries = 0;
    p->spans =
        (attn_sm90_spans){ .of = attn_cuda_at(c, plan->spans_at),
                           .counter = counter,
                           .batch = (int)attn_sm90_span_batch(d),
                           .heads = (int)attn_sm90_span_heads(d),
                           .pitch = (int)(of_keys ? ATTN_SM90_KEY_SPANS(d->len_kv) : ATTN_SM90_SPAN_PITCH(d->len_q)),
                           .blocks = (int)blocks };
    if (plan->instead.kernel) p->spans.unfit = attn_cuda_at(c, plan->flags_at);
    if (plan->instead.kernel && !of_keys) {
        summaries = ATTN_CUDA_SUMMARIES(d->len_kv, p->mask.summary_keys);
        take_summaries(c, plan, p);
    }
    return attn_cuda_launch(c, of_keys ? "attn_sm90_find_key_spans" : "attn_sm90_find_spans", plan->find_spans,
                            summaries + blocks, p->spans.heads, p->spans.batch, ATTN_SM90_SPAN_ROWS, p);
}

attn_status attn_sm90_bind_maps(const attn_cuda_call *c, attn_sm90_params *p)
{
    attn_sm90_map *const maps[] = { &p->q_map, &p->k_map, &p->v_map };
    attn_status status = ATTN_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = attn_sm90_bind_map(c, i, maps[i]);
    return status;
}

attn_status attn_sm90_prepare(const attn_cuda_call *c, attn_sm90_params *p, unsigned *counter)
{
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_status status = attn_sm90_bind_maps(c, p);
    if (!status) status = attn_sm90_repack(c);
    if (!status && plan->transpose) status = attn_sm90_transpose(c, &p->shape);
    if (!status && counter && !plan->find_spans) status = attn_cuda_clear(c, counter, sizeof *counter);
    if (!status) status = attn_sm90_widen_bits(c, p);
    if (!status && plan->find_bit_tiles) status = find_bit_tiles(c, plan, p);
    if (!status && plan->summarise) status = summarise(c, plan, p);
    return status || !plan->find_spans ? status : find_spans(c, plan, p, counter);
}
