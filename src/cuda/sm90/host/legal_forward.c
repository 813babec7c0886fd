/* What the forward can do, and why not. Contract: cost_forward.h. */
#include "cuda/sm90/host/cost_forward.h"

#include "problem/desc.h"

/* Query heads of a KV head have scales of their own. */
static bool scales_differ(const attn_desc *d)
{
    return d->flags & ATTN_SCALES_Q && d->q_scale_heads != d->heads_kv && d->q_scale_stride[2];
}

/* Rows of a sequence have scales of their own, by blocks: rows that are packed, of several heads, have one. */
static bool blocks_differ(const attn_desc *d)
{
    return d->flags & ATTN_SCALES_Q && d->q_scale_rows && d->q_scale_stride[1] && d->len_q > d->q_scale_rows;
}

/* A tile of the bias has the rows and heads of a Q tile, or one row for all: heads or rows that share it are no tile of
 * it. */
static bool packs_bias(const attn_desc *d)
{
    return attn_sm90_bias_has_one_row(d, d->heads_q) ||
           (d->bias_extent[1] == d->heads_q && (d->bias_extent[2] > 1 || d->len_q == 1));
}

/* The variant is told what each warpgroup's rows, of one head, see of block lists. */
static bool tells_lists(const attn_desc *d, const attn_cuda_kernel *k)
{
    return d->flags & ATTN_BLOCKS && !(k->features & ATTN_BITS);
}

int64_t attn_sm90_rows_of(const attn_desc *d, const attn_cuda_kernel *k, int64_t pack)
{
    if (pack > 1 && (d->flags & ATTN_DROPOUT || scales_differ(d) || blocks_differ(d))) return 0;
    if (pack > 1 && attn_sm90_maps_bias(k) && !packs_bias(d)) return 0;
    if (pack > 1 && tells_lists(d, k)) return 0;
    if (pack > k->q_tile || (k->q_tile % pack && d->len_q * pack > k->q_tile)) return 0;
    return k->q_tile / pack;
}

int64_t attn_sm90_tiles_of_head(const attn_sm90_forward_problem *p, int64_t pack)
{
    return attn_ceil_div(p->desc->len_q, attn_sm90_rows_of(p->desc, p->kernel, pack));
}

int64_t attn_sm90_tiles_of(const attn_sm90_forward_problem *p, int64_t pack)
{
    return attn_sm90_tiles_of_head(p, pack) * (p->desc->heads_q / pack) * p->desc->batch;
}

/* Q tiles are alike and in the order of the rows, and the variant stores those that are not split: some of them alone
 * may be. */
static bool may_split_tail(const attn_sm90_forward_problem *p)
{
    const attn_desc *d = p->desc;
    return !attn_sm90_shares_bias(p->kernel, d) && !(d->flags & (ATTN_CUDA_MASKS | ATTN_CUDA_LENGTHS)) &&
           !attn_sm90_is_staged(d);
}

int64_t attn_sm90_tiles_over(const attn_sm90_forward_problem *p, int64_t pack)
{
    int64_t tiles = attn_sm90_tiles_of(p, pack), over = tiles % p->device->multiprocessors;
    if (!may_split_tail(p)) return 0;
    return tiles < p->device->multiprocessors ? 0
           : pack > 1                         ? attn_round_up(over, attn_sm90_tiles_of_head(p, pack))
                                              : over;
}

bool attn_sm90_splits_tail(const attn_sm90_forward_problem *p, int64_t pack, int64_t split_tiles)
{
    return may_split_tail(p) && split_tiles < attn_sm90_tiles_of(p, pack) &&
           (pack == 1 || split_tiles % attn_sm90_tiles_of_head(p, pack) == 0);
}

const char *attn_sm90_not_legal_forward(const attn_sm90_forward_problem *p)
{
    const attn_overrides *s = p->overrides;
    const attn_desc *d = p->desc;
    int64_t group = d->heads_q / d->heads_kv, steps = attn_ceil_div(d->len_kv, p->kernel->kv_tile);
    const char *why_not = attn_cuda_not_legal(p->device, p->kernel, s);
    bool lies = attn_sm90_widens_kv(d, p->kernel) ||
                (attn_sm90_tma_takes(d, ATTN_SM90_K) && attn_sm90_tma_takes(d, ATTN_SM90_V));
    if (!why_not && p->kernel->paged && !lies) return "TMA does not take pages of these strides or this alignment";
    if (p->kernel->transposed && !attn_sm90_may_transpose(d, p->kernel))
        return "transposed v would have more than 2^31 keys, or 2^40 bytes of a sequence";
    if (!s || why_not || !attn_cuda_is_variant(p->kernel)) return why_not;
    if (!attn_overrides_allow(s, ATTN_STRATEGY_SPLIT_KEYS, 0))
        return "split-keys: only decode kernels have it, in multiples of their KV tile";
    if (!attn_overrides_allow(s, ATTN_STRATEGY_TEAMS, 1)) return "teams: only decode kernels have them";
    if (s->set[ATTN_STRATEGY_SPLIT_KV] &&
        s->value[ATTN_STRATEGY_SPLIT_KV] > max_of(1, min_of((double)steps, ATTN_SM90_SPLITS_MOST)))
        return "split-kv: it is above 64, or above the KV tiles";
    if (s->set[ATTN_STRATEGY_PACK_GQA] && s->value[ATTN_STRATEGY_PACK_GQA]) {
        if (group == 1) return "pack-gqa: each KV head has one query head";
        if (d->flags & ATTN_DROPOUT) return "pack-gqa: dropout's blocks of rows are of one head";
        if (scales_differ(d)) return "pack-gqa: the query heads of a KV head have scales of their own";
        if (blocks_differ(d)) return "pack-gqa: blocks of query rows have scales of their own";
        if (attn_sm90_maps_bias(p->kernel) && !packs_bias(d))
            return "pack-gqa: query heads, or rows, share the bias of this kernel's tiles";
        if (tells_lists(d, p->kernel)) return "pack-gqa: this kernel takes block lists of one head";
        if (!attn_sm90_rows_of(d, p->kernel, group))
            return "pack-gqa: the query heads of a KV head do not fit a Q tile";
    }
    if (p->kernel->spans && !attn_overrides_allow(s, ATTN_STRATEGY_SPLIT_KV, 1))
        return "split-kv: kernels of spans split no keys";
    bool alone = s->set[ATTN_STRATEGY_SPLIT_TAIL] && s->value[ATTN_STRATEGY_SPLIT_TAIL] > 0;
    if (alone && !may_split_tail(p))
        return "split-tail: Q tiles differ, or sequences share a bias, or all are combined since o is not stored by 16 "
               "bytes";
    return NULL;
}
