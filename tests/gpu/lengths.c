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

void bits_and_lists(const attn_cuda_kernel *k)
{
    static const int64_t rows[] = { 192, 256, 200, 64 }, blocks[] = { 64, 128, 40, 256 };
    int number = 0, scale = test_scale();
    bool backward = attn_cuda_direction(k) == ATTN_BACKWARD, gathers = attn_cuda_gathers(k);
    if ((!(k->features & ATTN_BITS) && !gathers) || k->paged) return;
    for (int r = 0; r < 4; r++)
        for (int b = -1; b < 4; b++)
            for (int bits = b < 0; bits < 2; bits++, number++) {
                if (number % (scale < 4 ? 1 : scale / 4)) continue;
                uint32_t flags = (b < 0 ? 0 : ATTN_BLOCKS) | (bits ? ATTN_BITS : 0);
                if (flags & ~k->features || (gathers && blocks[b] % 64)) continue;
                int64_t len_kv = 5 * k->kv_tile + (number % 3 ? 0 : 37);
                /* more tiles than are looked at at once: by bits alone, and by bits and blocks */
                bool is_long = gathers ? number == 10 : number == 2 || number == 9;
                attn_desc desc = { .flags = flags,
                                   .batch = 1,
                                   .heads_q = 2,
                                   .heads_kv = 2,
                                   .len_q = is_long && backward ? 33 * k->q_tile : rows[r],
                                   .len_kv = is_long && !backward ? 33 * k->kv_tile : len_kv };
                if (number % 4 == 1) desc.flags |= ATTN_CAUSAL;
                if (b >= 0) desc.block_rows = desc.block_keys = blocks[b], desc.block_batch = desc.block_heads = 1;
                if (bits) desc.bits_batch = 1, desc.bits_heads = 1 + number % 2;
                if (bits && number % 2)
                    desc.batch = 2, desc.bits_keys = 2 * k->kv_tile + 13, desc.flags |= ATTN_LENS_KV;
                check_kernel(k, desc, options_of(number), false);
            }
}

void odd_addresses(const attn_cuda_kernel *k)
{
    static const int shifts[] = { 2, 4, 14, 10 };
    if (!k->tma || k->paged || k->needs) return;
    for (int i = 0; i < 4; i += test_scale() < 4 ? 1 : 3) {
        attn_desc desc = { .batch = 2,
                           .heads_q = 6,
                           .heads_kv = 3,
                           .len_q = 70 + i,
                           .len_kv = 90,
                           .dim_qk = k->dim - 5 * i,
                           .dim_v = k->dim_v - i,
                           .alignment = 2 };
        check_options options = options_of(i);
        options.shift = shifts[i];
        check_kernel(k, desc, options, false);
    }
}
