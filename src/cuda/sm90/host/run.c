/* Runs on Hopper: what both directions do before a variant. Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include "problem/desc.h"

static void bind_tables(const attn_desc *d, const attn_args *a, attn_sm90_params *p)
{
    if (d->flags & ATTN_VARLEN) p->cu_lens_q = a->cu_lens_q, p->cu_lens_kv = a->cu_lens_kv;
    if (d->flags & ATTN_LENS_Q) p->lens_q = a->lens_q;
    if (d->flags & ATTN_LENS_KV) p->lens_kv = a->lens_kv;
    if (d->flags & ATTN_PREFIX) p->mask.prefix = a->prefix;
    if (d->flags & ATTN_INTERVALS) p->mask.intervals = a->intervals;
    if (d->flags & ATTN_BLOCKS) {
        p->mask.block_full_count = a->block_full_count, p->mask.block_full = a->block_full;
        p->mask.block_partial_count = a->block_partial_count, p->mask.block_partial = a->block_partial;
    }
    if (d->flags & ATTN_BITS) p->mask.bits = a->bits;
    if (d->flags & ATTN_SINK) p->sink = a->sink;
    if (d->flags & ATTN_ALIBI) p->score.alibi = a->alibi;
    if (d->flags & ATTN_BIAS) p->score.bias = a->bias;
    if (d->flags & ATTN_DROPOUT) {
        p->score.seed = a->seed, p->score.seed_offset = a->seed_offset;
        p->seed_at = (const unsigned long long *)a->seed_at;
        p->seed_offset_at = (const unsigned long long *)a->seed_offset_at;
    }
}

void attn_sm90_bind(const attn_cuda_call *c, attn_sm90_params *p)
{
    p->o = c->args->o, p->lse = c->args->lse;
    bind_tables(&c->plan->desc, c->args, p);
}

attn_status attn_sm90_prepare(const attn_cuda_call *c, attn_sm90_params *p, unsigned *counter)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_sm90_map *const maps[] = { &p->q_map, &p->k_map, &p->v_map };
    attn_status status = ATTN_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = attn_sm90_bind_map(c, i, maps[i]);
    for (int i = 0; i < 3 && !status; i++)
        status = attn_sm90_repack(c, i);
    if (!status && counter) status = attn_cuda_clear(c, counter, sizeof *counter);
    if (status || !plan->summarise) return status;
    p->mask.summaries = attn_cuda_at(c, plan->summaries_at);
    return attn_cuda_launch(c, "attn_sm90_interval_summary", plan->summarise,
                            ATTN_SM90_SUMMARIES(d->len_kv, c->cuda->chosen.kernel->kv_tile), d->interval_heads,
                            d->batch, 128, p);
}

void attn_sm90_bind_cache(const attn_desc *d, const attn_args *a, attn_sm90_cached_params *p)
{
    attn_sm90_cache *c = &p->cache;
    if (d->flags & ATTN_PAGED) {
        c->table.ids = a->page_table, c->table.starts = a->page_starts, c->table.fault = a->fault;
        p->common.fallback.k = a->k, p->common.fallback.v = a->v;
    }
    if (d->flags & ATTN_FIRST_KV) c->first_kv = a->first_kv;
    if (d->flags & ATTN_POSITIONS)
        c->position_q = (const long long *)a->position_q, c->position_kv = (const long long *)a->position_kv;
}

attn_status attn_sm90_run_fallback(const attn_cuda_call *c, attn_sm90_cached_params *params)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_sm90_params *p = &params->common;
    p->fallback.q = c->args->q, p->fallback.k = c->args->k, p->fallback.v = c->args->v;
    p->schedule.splits = 1;
    return attn_cuda_launch(c, "attn_sm90_fallback", plan->fallback, attn_ceil_div(d->len_q, ATTN_CUDA_FALLBACK_ROWS),
                            d->heads_q, d->batch, 256, params);
}
