#include <math.h>
#include <stdio.h>

#include "gpu.h"

/* Scores that rise by 240 from a Q tile's first KV tile on, which is that of the last keys: with an unchecked max each
 * Q tile overflows, and is retried. */
static void overflows(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_VARLEN };
    for (int i = 0; i < 3; i++) {
        attn_desc desc = { .flags = flags[i], .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 3 * k->q_tile + 1 };
        desc.len_kv = desc.len_q + 3 * k->kv_tile, desc.scale = 8 / sqrtf((float)k->dim);
        if (flags[i] == ATTN_VARLEN) desc.total_q = 2 * desc.len_q, desc.total_kv = 2 * desc.len_kv;
        check_kernel(k, desc, (check_options){ .data = CHECK_DESCENDING, .seed = 4 }, false);
    }
}

/* Equal Q tiles, five per head, or one of packed heads: the KV tiles of those that full waves leave over are split, as
 * the strategy says. */
static void last_waves(const attn_cuda_kernel *k)
{
    int sms = attn_cuda_machine_get()->device[0].multiprocessors;
    int64_t heads = (sms + 3) / 4;
    for (int i = 0; i < 4; i++) {
        attn_desc desc = { .batch = 2, .heads_q = heads, .heads_kv = i < 2 ? 1 : heads, .len_q = 4 * k->q_tile + 1 };
        attn_desc packed = { .batch = sms + sms / 4, .heads_q = 2, .heads_kv = 1, .len_q = 3 };
        char strategy[96];
        int over = i % 2 ? sms / 4 : (int)(10 * heads % sms);
        snprintf(strategy, sizeof strategy, "split-kv=3,split-tail=%d,%s", over > 0 ? over : 1,
                 i % 2 ? "pack-gqa" : "no-pack-gqa");
        desc.strategy = packed.strategy = strategy;
        desc.flags = packed.flags = i < 2 ? 0 : ATTN_OUT_F32 | ATTN_SINK;
        desc.len_kv = packed.len_kv = 16 * k->kv_tile - 3;
        check_kernel(k, i % 2 ? packed : desc, options_of(i + 1), true);
    }
}

void forward_tiles(const attn_cuda_kernel *k)
{
    overflows(k);
    if (!k->paged) last_waves(k); /* lengths of pages differ: so do Q tiles */
}
