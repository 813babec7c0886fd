/* Rotary embedding of the rows of one token. Products and their sum are rounded each, never fused, so that every
 * instruction set and device gives the same bits. */

/* What lies behind rotary_dim. */
ALWAYS_INLINE void copy_rest(const attn_rotary_task *t, const void *in, void *out)
{
    int64_t size = attn_dtype_size(t->dtype), at = t->rotary_dim * size;
    if (in == out || t->rotary_dim == t->dim) return;
    if (t->dtype == t->out_dtype) {
        memcpy((char *)out + at, (const char *)in + at, (size_t)(t->dim * size - at));
        return;
    }
    for (int64_t i = t->rotary_dim; i < t->dim; i++)
        ((float *)out)[i] = attn_load_scalar(t->dtype, in, i);
}

/* Elements i and j of a row are a pair. */
static void rotate_pair(const attn_rotary_task *t, const void *in, void *out, int64_t pair, int64_t i, int64_t j)
{
    float a = attn_load_scalar(t->dtype, in, i), b = attn_load_scalar(t->dtype, in, j);
    float ac = a * t->cos[pair], bs = b * t->sin[pair], bc = b * t->cos[pair], as = a * t->sin[pair];
    attn_store_scalar(t->out_dtype, out, i, ac - bs);
    attn_store_scalar(t->out_dtype, out, j, bc + as);
}

/* Pairs (*a, *b) of VL lanes, from pair i on. */
ALWAYS_INLINE void rotate_lanes(const attn_rotary_task *t, int64_t i, vf *a, vf *b)
{
    vf c = v_load(t->cos + i), s = v_load(t->sin + i);
    vf ac = v_mul(*a, c), bs = v_mul(*b, s), bc = v_mul(*b, c), as = v_mul(*a, s);
    *a = v_sub(ac, bs), *b = v_add(bc, as);
}

ALWAYS_INLINE void rotate_halves(const attn_rotary_task *t, attn_dtype dtype, attn_dtype to, const void *in, void *out)
{
    int64_t half = t->rotary_dim / 2, i = 0;
    for (; i + VL <= half; i += VL) {
        vf a = load_as(dtype, in, i), b = load_as(dtype, in, i + half);
        rotate_lanes(t, i, &a, &b);
        store_as(to, out, i, a);
        store_as(to, out, i + half, b);
    }
    for (; i < half; i++)
        rotate_pair(t, in, out, i, i, i + half);
}

/* The compiler makes shuffles of the two inner loops. It must not see the arithmetic: some fuse sums that alternate
 * with differences, whatever they were told. */
ALWAYS_INLINE void rotate_neighbours(const attn_rotary_task *t, attn_dtype dtype, attn_dtype to, const void *in,
                                     void *out)
{
    int64_t half = t->rotary_dim / 2, i = 0;
    for (; i + VL <= half; i += VL) {
        float x[2 * VL], even[VL], odd[VL];
        v_store(x, load_as(dtype, in, 2 * i));
        v_store(x + VL, load_as(dtype, in, 2 * i + VL));
        for (int j = 0; j < VL; j++)
            even[j] = x[2 * j], odd[j] = x[2 * j + 1];
        vf a = v_load(even), b = v_load(odd);
        rotate_lanes(t, i, &a, &b);
        v_store(even, a), v_store(odd, b);
        for (int j = 0; j < VL; j++)
            x[2 * j] = even[j], x[2 * j + 1] = odd[j];
        store_as(to, out, 2 * i, v_load(x));
        store_as(to, out, 2 * i + VL, v_load(x + VL));
    }
    for (; i < half; i++)
        rotate_pair(t, in, out, i, 2 * i, 2 * i + 1);
}

/* ---- bf16 in pairs ----
 * Two bf16 fill 32 bits, and a float is a bf16 with more bits behind it: so words are taken apart and put together in
 * their lanes, where conversions would move lanes about. Plain C, which compilers turn into vectors. */

enum { ROTARY_WORDS = 256 }; /* of half a row */

/* No iteration of the loop reads what another one writes: in place, too. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* x with the bits of the nearest bf16 at the top; those below it are anything. */
ALWAYS_INLINE uint32_t top_bf16(float x)
{
    uint32_t bits = attn_float_to_bits(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

ALWAYS_INLINE uint32_t word_of(float low, float high)
{
    return top_bf16(low) >> 16 | (top_bf16(high) & 0xffff0000u);
}

ALWAYS_INLINE float low_of(uint32_t word)
{
    return attn_bits_to_float(word << 16);
}

ALWAYS_INLINE float high_of(uint32_t word)
{
    return attn_bits_to_float(word & 0xffff0000u);
}

/* Words [0, words) of both halves; cos and sin of their low elements, and of their high ones. */
static void rotate_word_halves(const uint16_t *in, uint16_t *out, int64_t words, const float cosines[2][ROTARY_WORDS],
                               const float sines[2][ROTARY_WORDS])
{
    INDEPENDENT
    for (int64_t i = 0; i < words; i++) {
        uint32_t a, b;
        memcpy(&a, in + 2 * i, sizeof a), memcpy(&b, in + 2 * (words + i), sizeof b);
        float ac0 = low_of(a) * cosines[0][i], bs0 = low_of(b) * sines[0][i];
        float bc0 = low_of(b) * cosines[0][i], as0 = low_of(a) * sines[0][i];
        float ac1 = high_of(a) * cosines[1][i], bs1 = high_of(b) * sines[1][i];
        float bc1 = high_of(b) * cosines[1][i], as1 = high_of(a) * sines[1][i];
        a = word_of(ac0 - bs0, ac1 - bs1), b = word_of(bc0 + as0, bc1 + as1);
        memcpy(out + 2 * i, &a, sizeof a), memcpy(out + 2 * (words + i), &b, sizeof b);
    }
}

/* A word is a pair. */
static void rotate_word_neighbours(const uint16_t *in, uint16_t *out, int64_t words, const float *cosines,
                                   const float *sines)
{
    INDEPENDENT
    for (int64_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, in + 2 * i, sizeof word);
        float ac = low_of(word) * cosines[i], bs = high_of(word) * sines[i];
        float bc = high_of(word) * cosines[i], as = low_of(word) * sines[i];
        word = word_of(ac - bs, bc + as);
        memcpy(out + 2 * i, &word, sizeof word);
    }
}

/* Where a word holds elements of both halves: not this way. */
ALWAYS_INLINE bool has_words(const attn_rotary_task *t)
{
    return t->dtype == ATTN_BF16 && t->out_dtype == ATTN_BF16 && (t->interleaved || t->rotary_dim % 4 == 0);
}

static void rotate_words(const attn_rotary_task *t)
{
    int64_t words = t->rotary_dim / (t->interleaved ? 2 : 4);
    float cosines[2][ROTARY_WORDS], sines[2][ROTARY_WORDS];
    for (int64_t i = 0; i < words && !t->interleaved; i++)
        for (int64_t high = 0; high < 2; high++)
            cosines[high][i] = t->cos[2 * i + high], sines[high][i] = t->sin[2 * i + high];
    for (int64_t head = 0; head < t->heads; head++) {
        const uint16_t *in = (const uint16_t *)t->in + head * t->in_stride;
        uint16_t *out = (uint16_t *)t->out + head * t->out_stride;
        if (t->interleaved)
            rotate_word_neighbours(in, out, words, t->cos, t->sin);
        else
            rotate_word_halves(in, out, words, (const float(*)[ROTARY_WORDS])cosines,
                               (const float(*)[ROTARY_WORDS])sines);
        copy_rest(t, in, out);
    }
}

/* ---- any dtype ---- */

ALWAYS_INLINE void rotate_as(const attn_rotary_task *t, attn_dtype dtype, attn_dtype to)
{
    int64_t size = attn_dtype_size(to);
    for (int64_t head = 0; head < t->heads; head++) {
        const char *in = row_at(dtype, t->in, head * t->in_stride);
        char *out = (char *)t->out + head * t->out_stride * size;
        if (t->interleaved)
            rotate_neighbours(t, dtype, to, in, out);
        else
            rotate_halves(t, dtype, to, in, out);
        copy_rest(t, in, out);
    }
}

static void rotate(const attn_rotary_task *t)
{
    if (has_words(t)) {
        rotate_words(t);
        return;
    }
    bool floats = t->out_dtype == ATTN_F32;
    switch (t->dtype) {
    case ATTN_F32:
        rotate_as(t, ATTN_F32, ATTN_F32);
        break;
    case ATTN_F16:
        floats ? rotate_as(t, ATTN_F16, ATTN_F32) : rotate_as(t, ATTN_F16, ATTN_F16);
        break;
    case ATTN_BF16:
        floats ? rotate_as(t, ATTN_BF16, ATTN_F32) : rotate_as(t, ATTN_BF16, ATTN_BF16);
        break;
    case ATTN_F64: /* no operation on pages takes it */
    case ATTN_E4M3:
    case ATTN_I8:
        break;
    }
}
