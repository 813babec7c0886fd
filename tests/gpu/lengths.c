#include "../scale.h"
#include "gpu.h"

static void check_length(const attn_cuda_kernel *k, uint32_t flags, int64_t len_q, int64_t len_kv, int number)
{
    bool ordered = attn_cuda_direction(k) == ATTN_BACKWARD && number / 4 % 2;
    attn_desc desc = { .flags = (flags & k->features) | (ordered ? ATTN_DETERMINISTIC : 0),
                       .batch = 2,
                       .heads_q = 2,
                       .heads_kv = number % 2 ? 1 : 2,
                       .len_q = len_q,
                       .len_kv = len_kv };
    if (desc.flags & ATTN_VARLEN) desc.total_q = 2 * len_q, desc.total_kv = 2 * len_kv + 1;
    check_kernel(k, desc, options_of(number), false);
}

void lengths(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_LENS_Q | ATTN_LENS_KV | ATTN_CAUSAL, ATTN_VARLEN };
    int64_t tiles[] = { 0, 1, 2, k->stages - 1, k->stages, k->stages + 1 };
    bool backward = attn_cuda_direction(k) == ATTN_BACKWARD;
    int64_t ring = backward ? k->q_tile : k->kv_tile, beside_ring = backward ? k->kv_tile : k->q_tile;
    int64_t others[] = { 1, beside_ring - 1, beside_ring, beside_ring + 1, 2 * beside_ring + 1 };
    int number = 0, scale = test_scale();
    for (int t = 0; t < 6; t++)
        for (int64_t beside = -1; beside <= 1; beside++)
            for (int r = 0; r < 5; r++) {
                int64_t length = tiles[t] * ring + beside;
                if (length < 1) continue;
                if (number % scale == 0)
                    check_length(k, flags[number % 4], backward ? length : others[r], backward ? others[r] : length,
                                 number);
                number++;
            }
}
