/* What ranks tell each other before data moves. Contract: parallel.h. */
#include "base/error.h"
#include "parallel/parallel.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "problem/sequence.h"

/* FNV-1a of 64 bits. */
static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ from[i]) * 0x100000001b3u;
    return hash;
}

#define MIX(hash, value) mix(hash, &(value), sizeof(value))

uint64_t attn_parallel_word(const attn_parallel_plan *plan)
{
    const attn_desc *d = &plan->whole;
    const int64_t numbers[] = { d->dtype,          d->direction,       d->flags,        d->batch,
                                d->heads_q,        d->heads_kv,        d->len_q,        d->len_kv,
                                d->total_q,        d->total_kv,        d->dim_qk,       d->dim_v,
                                d->window_left,    d->window_right,    d->chunk,        d->interval_vectors,
                                d->interval_heads, d->alibi_batch,     d->grad_dtype,   plan->how.ranks,
                                plan->how.layout,  plan->how.schedule, plan->how.pieces };
    uint64_t hash = MIX(0xcbf29ce484222325u, numbers);
    hash = MIX(hash, d->scale), hash = MIX(hash, d->softcap);
    return MIX(hash, d->dropout_p);
}

uint64_t attn_parallel_run_word(const attn_parallel_plan *plan, const attn_args *args)
{
    const attn_desc *d = &plan->whole;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t b = 0; b < d->batch; b++) {
        attn_sequence seq = attn_sequence_of(d, args, b);
        hash = MIX(hash, seq);
        if (args->prefix) hash = MIX(hash, args->prefix[b]);
    }
    if (d->flags & ATTN_DROPOUT) {
        uint64_t seed = attn_seed_of(args), offset = attn_seed_offset_of(args);
        hash = MIX(hash, seed), hash = MIX(hash, offset);
    }
    return hash;
}

typedef struct word {
    uint64_t same;
    int32_t status, first;
} word;

attn_status attn_parallel_agree(const attn_parallel_plan *plan, attn_status status, uint64_t same, int32_t *first,
                                void *stream)
{
    const attn_engine *e = &plan->engine;
    word mine = { same, (int32_t)status, *first }, all[ATTN_RANKS_MOST];
    int failed = e->tell ? e->tell(e->context, &mine, all, sizeof mine)
                         : e->all_gather(e->context, &mine, all, sizeof mine, stream);
    if (status) return status; /* with the message that it has */
    if (failed) return attn_fail(ATTN_RANK_FAILED, "the engine's all_gather failed with %d", failed);
    for (int32_t r = 0; r < e->ranks; r++)
        if (all[r].status)
            return attn_fail(ATTN_RANK_FAILED, "rank %d of %d failed: %s", (int)r, (int)e->ranks,
                             attn_status_name((attn_status)all[r].status));
    for (int32_t r = 0; r < e->ranks; r++)
        if (all[r].same != all[0].same)
            return attn_fail(ATTN_RANK_FAILED, "ranks 0 and %d of %d have different problems", (int)r, (int)e->ranks);
    *first = all[0].first;
    return ATTN_OK;
}
