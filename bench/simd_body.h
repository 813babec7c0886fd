/* The vector loops of attn bench for one instruction set. No include guard: simd.c includes it once for each,
 * with SUFFIX, TARGET (attributes), BYTES (of a vector), FMA(a, b, c), MAX(a, b) and STEP(a, x) defined, the widest
 * multiply-add there is, of x by x to a. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, SUFFIX)
#define LANES (BYTES / 4)
#define FLOATS NAME(floats)
#define INTS NAME(ints)

typedef float FLOATS __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef int32_t INTS __attribute__((vector_size(BYTES), aligned(4), may_alias));

/* CHAINS of dependent steps, on x = 0.5. */
TARGET static float NAME(peak)(void)
{
    FLOATS zero = { 0 }, x = zero + 0.5f;
    FLOATS a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x, a10 = x, a11 = x;
    for (int i = 0; i < PEAK_STEPS; i++) {
        a0 = STEP(a0, x), a1 = STEP(a1, x), a2 = STEP(a2, x), a3 = STEP(a3, x);
        a4 = STEP(a4, x), a5 = STEP(a5, x), a6 = STEP(a6, x), a7 = STEP(a7, x);
        a8 = STEP(a8, x), a9 = STEP(a9, x), a10 = STEP(a10, x), a11 = STEP(a11, x);
        /* The chains start alike: without this the compiler may see that they stay so. */
        __asm__ volatile(""
                         : "+" VECTOR(a0), "+" VECTOR(a1), "+" VECTOR(a2), "+" VECTOR(a3), "+" VECTOR(a4),
                           "+" VECTOR(a5), "+" VECTOR(a6), "+" VECTOR(a7), "+" VECTOR(a8), "+" VECTOR(a9),
                           "+" VECTOR(a10), "+" VECTOR(a11));
    }
    FLOATS sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)) + ((a8 + a9) + (a10 + a11));
    return sum[0];
}

/* `streams` positions of the buffer at once, 4 vectors of each in turn. Bytes that do not divide are left unread. */
TARGET static uint64_t NAME(read)(const void *base, int64_t bytes, int streams)
{
    int64_t part = bytes / streams / (4 * BYTES) * 4;
    INTS a = { 0 }, b = a, c = a, d = a;
    for (int64_t i = 0; i < part; i += 4) {
        for (int s = 0; s < streams; s++) {
            const INTS *from = (const INTS *)base + s * part + i;
            a ^= from[0], b ^= from[1], c ^= from[2], d ^= from[3];
        }
    }
    a ^= b ^ c ^ d;
    return (uint64_t)(uint32_t)a[0];
}

/* 2^x: rounding by a magic number, then a polynomial of degree 5 (1e-7). x below -126 counts as -126. */
TARGET static inline FLOATS NAME(exp2)(FLOATS x)
{
    FLOATS zero = { 0 }, magic = zero + 0x1.8p23f;
    FLOATS c5 = zero + 1.32764719e-3f, c4 = zero + 9.67554133e-3f, c3 = zero + 5.55071327e-2f;
    FLOATS c2 = zero + 2.40221197e-1f, c1 = zero + 6.93146967e-1f, c0 = zero + 1.0f;
    x = MAX(x, zero - 126.0f);
    FLOATS shifted = x + magic, f = x - (shifted - magic);
    FLOATS p = FMA(FMA(FMA(FMA(FMA(c5, f, c4), f, c3), f, c2), f, c1), f, c0);
    return (FLOATS)((INTS)p + ((INTS)shifted << 23));
}

/* To an array on the stack. Its address is hidden: gcc would count on an alignment that ASan's stacks do not have. */
TARGET static inline void NAME(spread)(float *lanes, FLOATS x)
{
    __asm__("" : "+r"(lanes));
    *(FLOATS *)lanes = x;
}

TARGET static inline float NAME(sum)(FLOATS x)
{
    float total = 0.0f, lanes[LANES];
    NAME(spread)(lanes, x);
    for (int lane = 0; lane < LANES; lane++)
        total += lanes[lane];
    return total;
}

/* exp(scale (s - max)) = 2^(scale log2e (s - max)). The last vector is filled up with -FLT_MAX: the row must have room
 * for it. */
TARGET static float NAME(softmax)(float *row, int64_t n, float scale)
{
    int64_t vectors = (n + LANES - 1) / LANES;
    for (int64_t i = n; i < vectors * LANES; i++)
        row[i] = -FLT_MAX;
    FLOATS zero = { 0 }, *s = (FLOATS *)row;
    FLOATS m0 = zero - FLT_MAX, m1 = m0, m2 = m0, m3 = m0;
    int64_t i = 0;
    for (; i + 4 <= vectors; i += 4)
        m0 = MAX(m0, s[i]), m1 = MAX(m1, s[i + 1]), m2 = MAX(m2, s[i + 2]), m3 = MAX(m3, s[i + 3]);
    for (; i < vectors; i++)
        m0 = MAX(m0, s[i]);
    float maxima[LANES], greatest = -FLT_MAX;
    NAME(spread)(maxima, MAX(MAX(m0, m1), MAX(m2, m3)));
    for (int lane = 0; lane < LANES; lane++)
        greatest = maxima[lane] > greatest ? maxima[lane] : greatest;

    FLOATS factor = zero + scale * 1.44269504f, offset = zero - greatest * scale * 1.44269504f, sum = zero;
    for (i = 0; i < vectors; i++)
        sum += s[i] = NAME(exp2)(FMA(s[i], factor, offset));
    return NAME(sum)(sum);
}

/* p = exp(scale s - lse) in place of s, then ds = scale p (dp - delta) in place of dp. Whole vectors: both rows must
 * have room for them. */
TARGET static void NAME(gradient)(float *p_row, float *dp_row, int64_t n, float scale, float lse, float delta)
{
    FLOATS zero = { 0 }, *p = (FLOATS *)p_row, *dp = (FLOATS *)dp_row;
    FLOATS factor = zero + scale * 1.44269504f, offset = zero - lse * 1.44269504f;
    FLOATS scales = zero + scale, deltas = zero + scale * delta;
    for (int64_t i = 0; i < (n + LANES - 1) / LANES; i++) {
        p[i] = NAME(exp2)(FMA(p[i], factor, offset));
        dp[i] = p[i] * (scales * dp[i] - deltas);
    }
}

/* n: any. */
TARGET static float NAME(dot)(const float *a, const float *b, int64_t n)
{
    FLOATS sum = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = FMA(*(const FLOATS *)(a + i), *(const FLOATS *)(b + i), sum);
    float total = NAME(sum)(sum);
    for (; i < n; i++)
        total += a[i] * b[i];
    return total;
}

#undef JOIN_
#undef JOIN
#undef NAME
#undef LANES
#undef FLOATS
#undef INTS
#undef SUFFIX
#undef TARGET
#undef BYTES
#undef FMA
#undef MAX
#undef STEP
