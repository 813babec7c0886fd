/* What the backward can do, and why not. Contract: cost_backward.h. */
#include "cuda/sm90/host/cost_backward.h"

#include "problem/desc.h"

/* Takes every mask. */
static bool is_general(const attn_cuda_kernel *k)
{
    return k->features & ATTN_CUDA_MASKS & ~(uint32_t)(ATTN_CAUSAL | ATTN_WINDOW);
}

const char *attn_sm90_not_head_persistent(const attn_sm90_backward_problem *p)
{
    const attn_desc *d = p->desc;
    const attn_cuda_kernel *k = p->kernel;
    bool bounded = d->flags & ATTN_CAUSAL || (d->flags & ATTN_WINDOW && d->window_right >= 0);
    int64_t right = d->flags & ATTN_CAUSAL ? 0 : d->window_right, rows = d->len_q < k->q_tile ? d->len_q : k->q_tile;
    if (is_general(k) || !ATTN_SM90_BACKWARD_HEAD_PERSISTENT(k->dim))
        return "head-persistent-dq: only kernels for dims to 64 and causal or window masks have it";
    if (d->flags & ATTN_CUDA_LENGTHS) return "head-persistent-dq: lengths are not the problem's own";
    if (bounded && rows + d->len_kv + right <= d->len_q) return "head-persistent-dq: some Q tile sees no key";
    return NULL;
}

const char *attn_sm90_not_fused(const attn_sm90_backward_problem *p)
{
    const attn_desc *d = p->desc;
    bool wide = attn_grad_dtype(d) != ATTN_F32 && d->dim_qk % 8 == 0;
    for (int i = 0; i < 3; i++)
        wide = wide && d->grad_q_stride[i] % 8 == 0;
    if (!wide) return "dq-postprocess=fused: rows of grad_q are not of whole 16 bytes, or f32";
    if (p->kernel->kv_tile != 128 || (is_general(p->kernel) && !p->kernel->spans))
        return "dq-postprocess=fused: only kernels of 128 keys for causal or window masks, or spans, have it";
    if (attn_sm90_wants_instead(d, p->kernel)) return "dq-postprocess=fused: another kernel is behind this one";
    return d->flags & (ATTN_CUDA_LENGTHS | ATTN_DETERMINISTIC)
               ? "dq-postprocess=fused: lengths are not the problem's own, or dQ has a fixed order"
               : NULL;
}

bool attn_sm90_items_are_alike(const attn_desc *d)
{
    return !(d->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS | ATTN_DETERMINISTIC));
}

int64_t attn_sm90_items_over(const attn_sm90_backward_problem *p)
{
    const attn_desc *d = p->desc;
    int64_t ctas = attn_sm90_clusters(p),
            items = attn_ceil_div(d->len_kv, attn_sm90_item_keys(p->kernel)) * d->heads_kv * d->batch;
    bool alike = attn_sm90_items_are_alike(d) && !is_general(p->kernel) && !p->kernel->finalises_dq &&
                 !attn_sm90_shares_bias(p->kernel, d), /* its merge knows one order of heads */
        counted = ctas * attn_sm90_item_q_tiles(d) <= INT32_MAX;
    return alike && counted && ctas > 0 && items >= ctas ? items % ctas : 0;
}

const char *attn_sm90_not_legal_backward(const attn_sm90_backward_problem *p)
{
    const attn_overrides *s = p->overrides;
    const int64_t *value = s->value;
    int64_t group = p->desc->heads_q / p->desc->heads_kv;
    const char *why_not = NULL;
    if (s->set[ATTN_STRATEGY_DQ_LATE] && !attn_overrides_allow(s, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_FUSED))
        return "dq-late: it takes dq-postprocess=fused";
    if (s->set[ATTN_STRATEGY_SPLIT_GQA] && group % value[ATTN_STRATEGY_SPLIT_GQA])
        return "split-gqa: it does not divide the query heads of a KV head";
    if (s->set[ATTN_STRATEGY_STREAM_K] && value[ATTN_STRATEGY_STREAM_K]) {
        if (!attn_sm90_items_over(p))
            return "stream-k: waves leave no work items over, these differ (mask, lengths), or dQ has a fixed order";
        if (value[ATTN_STRATEGY_STREAM_K] > attn_sm90_item_q_tiles(p->desc))
            return "stream-k: it is above a work item's Q tiles";
    }
    if (s->set[ATTN_STRATEGY_HEAD_PERSISTENT_DQ] && value[ATTN_STRATEGY_HEAD_PERSISTENT_DQ])
        why_not = attn_sm90_not_head_persistent(p);
    if (why_not || !s->set[ATTN_STRATEGY_DQ_POSTPROCESS]) return why_not;
    if (value[ATTN_STRATEGY_DQ_POSTPROCESS] == ATTN_DQ_FUSED) return attn_sm90_not_fused(p);
    bool none = value[ATTN_STRATEGY_DQ_POSTPROCESS] == ATTN_DQ_NONE && !p->kernel->finalises_dq;
    return none ? attn_sm90_not_head_persistent(p) : NULL;
}
