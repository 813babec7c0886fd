/* Dropout: which pairs are kept, as bits. Philox (num/philox.h, which says which of its bytes belongs to which pair)
 * runs in vectors, a call in each 64-bit lane, its words in the lanes' low halves. Eight calls together have one c, two
 * a and four tiles: with all c, 8 rows x 64 keys. */

enum { CALLS = VL / 2 };

/* The four words of blocks (a, c) of tiles whose counters begin with (row, key). */
ALWAYS_INLINE void philox(vw row, vw key, vw batch_head, vw offset, uint64_t seed, vw out[4])
{
    const vw m0 = w_set1(ATTN_PHILOX_M0), m1 = w_set1(ATTN_PHILOX_M1);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    out[0] = row, out[1] = key, out[2] = batch_head, out[3] = offset;
    for (int round = 0; round < 10; round++) {
        vw p0 = w_mul(out[0], m0), p1 = w_mul(out[2], m1);
        out[0] = w_xor(w_xor(w_right(p1, 32), out[1]), w_set1(k0));
        out[2] = w_xor(w_xor(w_right(p0, 32), out[3]), w_set1(k1));
        out[1] = p1;
        out[3] = p0;
        k0 += ATTN_PHILOX_W0;
        k1 += ATTN_PHILOX_W1;
    }
}

/* Of word r of the four calls c of each lane: the bytes of keys 0 to 7 of their tile, then those of keys 8 to 15. */
ALWAYS_INLINE void bytes_in_order(vw word[4][4], int r, vw *first, vw *second)
{
    const vw low = w_set1(0xFFFF), high = w_set1(0xFFFF0000);
    *first = w_xor(w_xor(w_and(word[0][r], low), w_left(w_and(word[1][r], low), 16)),
                   w_xor(w_left(w_and(word[2][r], low), 32), w_left(word[3][r], 48)));
    *second = w_xor(w_xor(w_and(w_right(word[0][r], 16), low), w_and(word[1][r], high)),
                    w_xor(w_left(w_and(word[2][r], high), 16), w_left(w_and(word[3][r], high), 32)));
}

/* Four bytes to every second of eight, from the lowest on. */
ALWAYS_INLINE uint64_t apart(uint32_t bytes)
{
    uint64_t x = (bytes | (uint64_t)bytes << 16) & UINT64_C(0x0000FFFF0000FFFF);
    return (x | x << 8) & UINT64_C(0x00FF00FF00FF00FF);
}

/* bits[4 i + r], i < 2: the 64 keys from 16 tile_key on, of the r-th row of blocks a + i of a tile row. tile_key is a
 * multiple of 4, a of 2. */
ALWAYS_INLINE void dropout_words(const attn_score *score, uint32_t tile_row, uint32_t tile_key, uint32_t a,
                                 uint64_t bits[8])
{
    static const uint64_t rows[8] = { 0, 0, 0, 0, 1, 1, 1, 1 }, keys[8] = { 0, 4, 8, 12, 0, 4, 8, 12 };
    uint64_t half[4][2] = { { 0 } };
    for (int lane = 0; lane < 8; lane += CALLS) {
        vw word[4][4], row = w_xor(w_load(rows + lane), w_set1(4 * tile_row + a));
        UNROLL for (uint32_t c = 0; c < 4; c++)
            philox(row, w_xor(w_load(keys + lane), w_set1(4 * tile_key + c)), w_set1(score->batch_head),
                   w_set1(score->seed_offset), score->seed, word[c]);
        UNROLL for (int r = 0; r < 4; r++)
        {
            vw first, second;
            bytes_in_order(word, r, &first, &second);
            half[r][0] |= w_at_least(first, (uint8_t)score->threshold) << 8 * lane;
            half[r][1] |= w_at_least(second, (uint8_t)score->threshold) << 8 * lane;
        }
    }
    for (int i = 0; i < 8; i++)
        bits[i] = apart((uint32_t)(half[i % 4][0] >> i / 4 * 32)) | apart((uint32_t)(half[i % 4][1] >> i / 4 * 32))
                                                                        << 8;
}

/* Bit i of the words of row row0 + r (`pitch` words apart) set: the pair with key0 + i is kept. Bits at and after
 * `keys` mean nothing. */
static void dropout_keep(const attn_score *score, int64_t row0, int64_t rows, int64_t key0, int64_t keys, int64_t pitch,
                         uint64_t *words)
{
    row0 += score->dropout_row, key0 += score->dropout_key;
    int64_t count = (keys + 63) / 64, skipped = key0 % 64;
    for (int64_t r = 0; r < rows; r++)
        memset(words + r * pitch, 0, (size_t)count * sizeof *words);
    for (int64_t at = row0 / 16 * 16; at < row0 + rows; at += 16)
        for (int64_t a = 0; a < 4; a += 2) {
            if (at + 2 * a >= row0 + rows || at + 2 * a + 12 <= row0) continue;
            for (int64_t w = 0; w * 64 < skipped + keys; w++) {
                uint64_t bits[8];
                dropout_words(score, (uint32_t)(at / 16), (uint32_t)(key0 / 64 + w) * 4, (uint32_t)a, bits);
                for (int i = 0; i < 8; i++) {
                    int64_t r = at + 2 * (a + i / 4) + i % 2 + i % 4 / 2 * 8 - row0;
                    if (r < 0 || r >= rows) continue;
                    uint64_t *line = words + r * pitch + w;
                    if (w < count) *line |= bits[i] >> skipped;
                    if (skipped && w) line[-1] |= bits[i] << (64 - skipped);
                }
            }
        }
}

/* The same of strips of rows, as far as each group of strips that makes up whole tiles of 16 rows sees keys: span[i] of
 * rows row0 + i strip_rows and so on. Bit i of a row's words, ATTN_KEYS_TILE / 64 of them, is that of key0 + i. */
static void dropout_strips(const attn_score *score, int64_t row0, int64_t rows, int64_t strip_rows,
                           const attn_mask_tile *span, int64_t key0, uint64_t *words)
{
    int64_t pitch = ATTN_KEYS_TILE / 64, group = strip_rows % 16 ? 48 : strip_rows;
    for (int64_t first = 0; first < rows; first += group) {
        int64_t end = first + group < rows ? first + group : rows, lo = INT64_MAX, hi = INT64_MIN;
        for (int64_t i = first / strip_rows; i * strip_rows < end; i++) {
            if (span[i].lo >= span[i].hi) continue;
            lo = span[i].lo < lo ? span[i].lo : lo, hi = span[i].hi > hi ? span[i].hi : hi;
        }
        if (lo >= hi) continue;
        int64_t skipped = (lo - key0) / 64 * 64;
        dropout_keep(score, row0 + first, end - first, key0 + skipped, hi - key0 - skipped, pitch,
                     words + first * pitch + skipped / 64);
    }
}
