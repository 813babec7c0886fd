/* V for TRANSPOSED variants of the forward, whose products read E4M3 along the keys: a copy, transposed. */
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/params.h"
#include "common/sequence.h"
#include "sm90/params.h"

enum { KEYS = ATTN_SM90_TRANSPOSE_KEYS, THREADS = 256, GROUPS = KEYS / 16, MOST_PIECES = 16 };

/* 16 columns of a key, from `column` on. Columns from dim_v on are zeros. So are all columns behind the last key. */
DEVICE uint4 load_piece(const attn_sm90_transpose_params *p, const unsigned char *key, int column, bool is_key)
{
    u32 word[4] = { 0, 0, 0, 0 };
    int left = is_key ? p->shape.dim_v - column : 0;
    bool wide = p->wide && left >= 16;
    EXPECT(!wide || (u64)(key + column) % 16 == 0);
    if (wide) return *(const uint4 *)(key + column);
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < left) word[i / 4] |= (u32)key[column + i] << i % 4 * 8;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* A block's keys in shared memory: of each 16 keys the pieces lie elsewhere, so that threads that read the same columns of
 * different groups find them in different banks. */
DEVICE int place_of(int key, int piece)
{
    return key * MOST_PIECES + (piece ^ key / 16);
}

/* Four columns of 16 keys, a word of them from key to key: four rows of 16 keys, in the order in which they are stored. */
DEVICE void transpose_group(const u32 *keys, uint4 *rows)
{
    u32 out[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 a = keys[2 * i], b = keys[2 * i + 1], c = keys[2 * i + 8], d = keys[2 * i + 9];
        u32 low[2] = { permute_bytes(a, b, 0x5140), permute_bytes(c, d, 0x5140) };
        u32 high[2] = { permute_bytes(a, b, 0x7362), permute_bytes(c, d, 0x7362) };
        out[0][i] = permute_bytes(low[0], low[1], 0x5410), out[1][i] = permute_bytes(low[0], low[1], 0x7632);
        out[2][i] = permute_bytes(high[0], high[1], 0x5410), out[3][i] = permute_bytes(high[0], high[1], 0x7632);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        rows[j] = make_uint4(out[j][0], out[j][1], out[j][2], out[j][3]);
}

/* Where a sequence lies. */
struct transposed_sequence {
    int start, len, column, end; /* its first row and keys; its first column, and how many are written from there */
};

DEVICE transposed_sequence transposed_sequence_of(const attn_sm90_transpose_params *p, int number)
{
    int2 found = sequence_of(keys_of(&p->shape), number);
    transposed_sequence s = { found.x, found.y, 0, (found.y + p->tile - 1) / p->tile * p->tile };
    if (p->shape.flags & FLAG_VARLEN)
        s.column = ATTN_SM90_TRANSPOSED_START(s.start, number, p->tile);
    else
        s.end = min(s.end, p->pitch);
    return s;
}

/* KEYS keys from key0 on, in shared memory between. in, out: key 0 of the sequence, in column 0, and its place. */
DEVICE void transpose_keys(const attn_sm90_transpose_params *p, const transposed_sequence *s, const unsigned char *in,
                           unsigned char *out, int key0, uint4 *pieces)
{
    const int dim = p->shape.dim_v, shift = dim > 128 ? 4 : dim > 64 ? 3 : 2;
    __syncthreads();
    uint4 loaded[KEYS * MOST_PIECES / THREADS];
#pragma unroll
    for (int i = 0; i < KEYS * MOST_PIECES / THREADS; i++) {
        int at = i * THREADS + threadIdx.x, key = key0 + (at >> shift), column = (at & ((1 << shift) - 1)) * 16;
        if (at < KEYS << shift) loaded[i] = load_piece(p, in + key * p->stride[1], column, key < s->len);
    }
#pragma unroll
    for (int i = 0; i < KEYS * MOST_PIECES / THREADS; i++) {
        int at = i * THREADS + threadIdx.x;
        if (at < KEYS << shift) pieces[place_of(at >> shift, at & ((1 << shift) - 1))] = loaded[i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < (dim + 3) / 4 * GROUPS; at += THREADS) {
        int group = at % GROUPS, word = at / GROUPS;
        u32 keys[16];
        uint4 rows[4];
#pragma unroll
        for (int i = 0; i < 16; i++)
            keys[i] = ((const u32 *)&pieces[place_of(group * 16 + i, word / 4)])[word % 4];
        transpose_group(keys, rows);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (word * 4 + j < dim && key0 + group * 16 < s->end)
                *(uint4 *)(out + (long long)(word * 4 + j) * p->pitch + key0 + group * 16) = rows[j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    attn_sm90_transpose(const __grid_constant__ attn_sm90_transpose_params params)
{
    __shared__ uint4 pieces[KEYS * MOST_PIECES];
    const attn_sm90_transpose_params *p = &params;
    const int varlen = p->shape.flags & FLAG_VARLEN, heads = gridDim.y;
    transposed_sequence s = transposed_sequence_of(p, blockIdx.z);
    const unsigned char *in = p->in + s.start * p->stride[1] + blockIdx.y * p->stride[2];
    if (!varlen) in += blockIdx.z * p->stride[0];
    long long plane = (long long)(varlen ? 0 : blockIdx.z) * heads + blockIdx.y;
    unsigned char *out = p->out + plane * p->shape.dim_v * p->pitch + s.column;
#pragma unroll 1
    for (int key0 = blockIdx.x * KEYS; key0 < s.end; key0 += gridDim.x * KEYS) /* a sequence may have more than len_kv */
        transpose_keys(p, &s, in, out, key0, pieces);
}
