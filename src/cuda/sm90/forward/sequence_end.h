/* Keys of a KV tile after its sequence's last one, where sequences have lengths of their own (ATTN_VARLEN, lens_kv),
 * and before its first_kv. Masks hide their scores; their values are zeroed here. */
#ifndef ATTN_CUDA_SM90_FORWARD_SEQUENCE_END_H
#define ATTN_CUDA_SM90_FORWARD_SEQUENCE_END_H

#include "common/mask.h"
#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "sm90/forward/config.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/shared.h"

/* How many keys of the tile in hand the sequence has. */
DEVICE int valid_keys(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    return p->shape.flags & (FLAG_VARLEN | FLAG_LENS_KV) ? info_of(s, c)->w.len_kv - c->key0 : config::keys;
}

/* How many of its first keys come before the sequence's first_kv. */
DEVICE int hidden_keys(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    if (!(config::walks || config::spans) || !p->mask.first_kv) return 0;
    int first = config::spans ? range_in_hand(s, c)->first : info_of(s, c)->row_ranges::get()->first;
    return clamp(first - c->key0, 0, config::keys);
}

/* Zeroes V of keys [from, to) of a tile. They may be another sequence's, and 0 times NaN is NaN. */
DEVICE void clear_v(const consumer *c, u32 v, int from, int to)
{
    using tile = config::v_tile;
    u32 pieces = (to - from) * 8;
    for (u32 i = threadIdx.x % 128; i < tile::panels * pieces; i += 128)
        store_zeros(v + i / pieces * tile::panel_bytes + from * 128 + i % pieces * 16);
    fence_async();
    named_sync(WARPGROUP_BARRIER + c->warpgroup, 128);
}

/* PINGPONG: waits for V of the tile in hand, and clears what is another sequence's. */
DEVICE void wait_and_clear_v(const attn_sm90_params *p, const shared *s, const consumer *c)
{
    wait_full(s, V, c->kv);
    int valid = valid_keys(p, s, c), hidden = hidden_keys(p, s, c);
    if (hidden) clear_v(c, v_address(s, c->kv.index), 0, hidden);
    if (valid < config::keys) clear_v(c, v_address(s, c->kv.index), valid, config::keys);
}

/* INTERLEAVED: the address of V of a stage, of which the first `valid` keys, but for `hidden`, are the sequence's. */
DEVICE u32 valid_v(const shared *s, const consumer *c, int stage, int hidden, int valid)
{
    u32 v = v_address(s, stage);
    if (hidden) clear_v(c, v, 0, hidden);
    if (valid < config::keys) clear_v(c, v, valid, config::keys);
    return v;
}

#endif
