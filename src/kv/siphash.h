/* SipHash-1-3 (Aumasson and Bernstein, INDOCRYPT 2012) over 64-bit words: a hash that nobody without the key can make
 * collide. The words are taken as they are in memory, so values differ between byte orders; they never leave a pool. */
#ifndef ATTN_KV_SIPHASH_H
#define ATTN_KV_SIPHASH_H

#include <stdint.h>
#include <string.h>

typedef struct attn_siphash {
    uint64_t v[4];
} attn_siphash;

static inline uint64_t attn_rotl(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void attn_siphash_round(uint64_t v[4])
{
    v[0] += v[1], v[2] += v[3];
    v[1] = attn_rotl(v[1], 13) ^ v[0], v[3] = attn_rotl(v[3], 16) ^ v[2];
    v[0] = attn_rotl(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = attn_rotl(v[1], 17) ^ v[2], v[3] = attn_rotl(v[3], 21) ^ v[0];
    v[2] = attn_rotl(v[2], 32);
}

static inline attn_siphash attn_siphash_begin(const uint64_t key[2])
{
    return (attn_siphash){ { key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                             key[1] ^ 0x7465646279746573u } };
}

static inline void attn_siphash_add(attn_siphash *h, uint64_t word)
{
    h->v[3] ^= word;
    attn_siphash_round(h->v);
    h->v[0] ^= word;
}

/* last: one more word. All that is hashed under a key has the same length, so it need not be told. */
static inline uint64_t attn_siphash_end(attn_siphash *h, uint64_t last)
{
    attn_siphash_add(h, last);
    h->v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        attn_siphash_round(h->v);
    return h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
}

#endif
