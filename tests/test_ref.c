/* The rows of the reference against cases worked by hand. */
#include "problem/sequence.h"
#include "ref_cases.h"

#include <math.h>

#include "num/half.h"
#include "num/philox.h"
#include "ref/ref.h"

enum { MOST = 64 };

static void expect_near(int line, double got, double expected, double within)
{
    if (!(fabs(got - expected) <= within) && !(got == expected))
        fail_msg("line %d: %.17g, not %.17g", line, got, expected);
}
#define NEAR(got, expected) expect_near(__LINE__, got, expected, 1e-13)

/* ---- the row ------------------------------------------------------------------------------- */

/* Scores log 1 and log 3 in each row, by turns. */
static void two_by_two(void **state)
{
    (void)state;
    attn_desc d = resolved((attn_desc){
        .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = 2, .len_kv = 2, .dim_qk = 2, .dim_v = 3, .scale = 0.5f });
    float l = logf(3), q[] = { 0, 2, 2, 0 }, k[] = { l, 0, 0, l }, v[] = { 1, 0, -4, 0, 1, 8 };
    attn_args args = { .q = q, .k = k, .v = v };
    double e = exp((double)l), o[3], lse, scratch[2];
    attn_ref_row(&d, &args, 0, 0, 0, o, &lse, scratch);
    NEAR(lse, log(1 + e));
    NEAR(o[0], 1 / (1 + e));
    NEAR(o[1], e / (1 + e));
    NEAR(o[2], (-4 + 8 * e) / (1 + e));
    attn_ref_row(&d, &args, 0, 0, 1, o, &lse, scratch);
    NEAR(o[0], e / (1 + e));
    NEAR(o[1], 1 / (1 + e));
}

static void scores_change_in_order(void **state)
{
    (void)state;
    uint32_t flags = ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS;
    attn_desc d = { .dtype = ATTN_F32, .flags = flags, .batch = 2, .heads_q = 2, .len_q = 2, .len_kv = 3, .dim_qk = 1 };
    d.scale = 2, d.softcap = 1.5f, d.alibi_batch = 2, d.bias_dtype = ATTN_F32;
    d.bias_extent[0] = 1, d.bias_extent[1] = 2, d.bias_extent[2] = 1, d.bias_extent[3] = 3;
    d = resolved(d);
    float q[8], k[12], v[12], alibi[] = { 0.5f, 0.25f, 2, -1 }, bias[] = { 0, 0.5f, -0.75f, 3, -3, 0.125f };
    for (int i = 0; i < 8; i++)
        q[i] = (float)(i - 3) / 4;
    for (int i = 0; i < 12; i++)
        k[i] = (float)(i * 5 % 7 - 3) / 2, v[i] = (float)(i % 3 == 1); /* rows x heads */
    attn_args args = { .q = q, .k = k, .v = v, .alibi = alibi, .bias = bias };
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) {
                double o, lse, scratch[3], e[3], value = 0, sum = 0;
                for (int j = 0; j < 3; j++) {
                    double s = 2.0 * (double)q[(b * 2 + i) * 2 + h] * (double)k[(b * 3 + j) * 2 + h];
                    s = 1.5 * tanh(s / 1.5) - (double)alibi[b * 2 + h] * abs(i + 1 - j) + (double)bias[h * 3 + j];
                    sum += e[j] = exp(s);
                    value += e[j] * (double)v[(b * 3 + j) * 2 + h];
                }
                attn_ref_row(&d, &args, b, h, i, &o, &lse, scratch);
                NEAR(lse, log(sum));
                NEAR(o, value / sum);
            }
}

static void bias_repeats_and_strides(void **state)
{
    (void)state;
    attn_desc d = single(3, 2, ATTN_BIAS);
    d.bias_dtype = ATTN_BF16;
    d.bias_extent[0] = d.bias_extent[1] = 1, d.bias_extent[2] = 3, d.bias_extent[3] = 2;
    d.bias_stride[0] = 99, d.bias_stride[2] = -2, d.bias_stride[3] = 5;
    d = resolved(d);
    uint16_t bias[10];
    for (int i = 0; i < 10; i++)
        bias[i] = attn_float_to_bf16((float)(i * i) / 64);
    float zero[3] = { 0 }, v[] = { 0, 1 };
    attn_args args = { .q = zero, .k = zero, .v = v, .bias = bias + 4 };
    for (int i = 0; i < 3; i++) {
        double o, lse, scratch[2], a = (4 - 2 * i) * (4 - 2 * i) / 64.0, b = (9 - 2 * i) * (9 - 2 * i) / 64.0;
        attn_ref_row(&d, &args, 0, 0, i, &o, &lse, scratch);
        NEAR(lse, log(exp(a) + exp(b)));
        NEAR(o, exp(b) / (exp(a) + exp(b)));
    }
}

/* Query head i reads KV head i / 3; one-key rows return its value. */
static void groups_share_kv_heads(void **state)
{
    (void)state;
    attn_desc d = resolved((attn_desc){
        .dtype = ATTN_F32, .batch = 2, .heads_q = 6, .heads_kv = 2, .len_q = 1, .len_kv = 1, .dim_qk = 1 });
    float q[12] = { 0 }, k[4] = { 0 }, v[4] = { 10, 11, 20, 21 };
    attn_args args = { .q = q, .k = k, .v = v };
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 6; h++) {
            double o, lse, scratch[1];
            attn_ref_row(&d, &args, b, h, 0, &o, &lse, scratch);
            NEAR(o, 10 * (b + 1) + h / 3);
            NEAR(lse, 0);
        }
}

static void sinks_weigh_in_the_denominator(void **state)
{
    (void)state;
    attn_desc d = single(1, 2, ATTN_SINK);
    d.heads_q = 3, d = resolved(d);
    float q[3] = { 0 }, k[6] = { 0 }, v[6] = { 1, 1, 1, 1, 1, 1 }, sink[] = { 0, -INFINITY, 1000 };
    attn_args args = { .q = q, .k = k, .v = v, .sink = sink };
    double o, lse, scratch[2];
    attn_ref_row(&d, &args, 0, 0, 0, &o, &lse, scratch);
    NEAR(o, 2.0 / 3);
    NEAR(lse, log(3));
    attn_ref_row(&d, &args, 0, 1, 0, &o, &lse, scratch);
    NEAR(o, 1);
    NEAR(lse, log(2));
    attn_ref_row(&d, &args, 0, 2, 0, &o, &lse, scratch);
    NEAR(o, 0);
    NEAR(lse, 1000);
}

/* Runs both rows of one-wide problems and expects the same of them. */
static void expect_row(int line, const attn_desc *d, const attn_args *args, int64_t row, double o, double lse)
{
    double got, got_lse, scratch[MOST];
    float naive, naive_lse, naive_scratch[MOST];
    attn_ref_row(d, args, 0, 0, row, &got, &got_lse, scratch);
    attn_naive_row(d, args, 0, 0, row, &naive, &naive_lse, naive_scratch);
    if (isnan(o)) {
        if (!isnan(got) || !isnan(naive)) fail_msg("line %d: %g and %g, not NaN", line, got, (double)naive);
        return;
    }
    expect_near(line, got, o, 1e-13), expect_near(line, got_lse, lse, 1e-13);
    expect_near(line, (double)naive, o, 1e-6), expect_near(line, (double)naive_lse, lse, 1e-6);
}
#define ROW(d, args, row, o, lse) expect_row(__LINE__, d, args, row, o, lse)

static void rows_without_keys_are_zero(void **state)
{
    (void)state;
    float zero[4] = { 0 }, v[] = { 1, 2, 3, 4 }, sink = 2.5f, bias[] = { -INFINITY, -INFINITY };
    attn_args args = { .q = zero, .k = zero, .v = v, .sink = &sink, .bias = bias };
    attn_desc d = resolved(single(2, 0, 0));
    ROW(&d, &args, 1, 0, -INFINITY);
    d = resolved(single(3, 1, ATTN_CAUSAL)); /* t = -2, -1, 0 */
    ROW(&d, &args, 0, 0, -INFINITY);
    ROW(&d, &args, 1, 0, -INFINITY);
    ROW(&d, &args, 2, 1, 0);
    d = resolved(single(3, 1, ATTN_CAUSAL | ATTN_SINK));
    ROW(&d, &args, 0, 0, 2.5);
    d = single(1, 2, ATTN_BIAS);
    d.bias_dtype = ATTN_F32, d.bias_extent[0] = d.bias_extent[1] = d.bias_extent[2] = 1, d.bias_extent[3] = 2;
    d = resolved(d);
    ROW(&d, &args, 0, 0, -INFINITY); /* every score -inf */
    d.flags |= ATTN_SINK;
    ROW(&d, &args, 0, 0, 2.5);
    bias[0] = 0;
    ROW(&d, &args, 0, 1 / (1 + exp(2.5)), log(1 + exp(2.5)));
}

static void nan_and_infinity_show(void **state)
{
    (void)state;
    float q[] = { 1, 1 }, k[] = { 0, NAN, 0 }, v[] = { 1, 1, 1 };
    attn_args args = { .q = q, .k = k, .v = v };
    attn_desc d = resolved(single(2, 3, ATTN_CAUSAL)); /* row 0 sees keys 0 and 1 */
    ROW(&d, &args, 0, NAN, NAN);
    k[1] = INFINITY;
    ROW(&d, &args, 0, NAN, NAN);
    k[1] = -INFINITY;
    ROW(&d, &args, 0, 1, 0);
    k[1] = 0, k[2] = NAN, v[2] = NAN; /* hidden from row 0 */
    ROW(&d, &args, 0, 1, log(2));
    ROW(&d, &args, 1, NAN, NAN);
    k[2] = 0;
    ROW(&d, &args, 1, NAN, NAN);
    k[0] = NAN, k[1] = -INFINITY, v[2] = 1; /* a NaN before a -inf */
    ROW(&d, &args, 0, NAN, NAN);
    k[0] = -2000, k[1] = 0, v[0] = INFINITY; /* seen at probability 0 */
    ROW(&d, &args, 0, NAN, NAN);
}

/* Large scores do not overflow: only differences count. */
static void large_scores_stay_finite(void **state)
{
    (void)state;
    float q = 1, k[] = { 5000, 5001, -5000 }, v[] = { 0, 1, 100 };
    attn_args args = { .q = &q, .k = k, .v = v };
    attn_desc d = resolved(single(1, 3, 0));
    double o, lse, scratch[3];
    attn_ref_row(&d, &args, 0, 0, 0, &o, &lse, scratch);
    NEAR(o, 1 / (1 + exp(-1)));
    expect_near(__LINE__, lse, 5001 + log(1 + exp(-1)), 1e-11);
}

/* ---- dropout ------------------------------------------------------------------------------- */

/* One-hot values give the probabilities back: each is 0 or scaled up, as its byte says, and as many as p says are 0. */
static void dropout_scales_the_others_up(void **state)
{
    (void)state;
    enum { ROWS = 200, KEYS = 40 };
    attn_desc d = single(ROWS, KEYS, ATTN_DROPOUT);
    d.batch = 2, d.heads_q = 3, d.dim_v = KEYS, d.dropout_p = 0.3f, d.heads_kv = 1; /* 77 / 256 */
    d.k_stride[3] = d.v_stride[3] = 1, d.v_stride[1] = KEYS; /* one key vector for all, one V for both */
    d = resolved(d);
    float *q = calloc(2 * 3 * ROWS, sizeof *q), k = 0, v[KEYS * KEYS] = { 0 };
    for (int i = 0; i < KEYS; i++)
        v[i * KEYS + i] = 1;
    attn_args args = { .q = q, .k = &k, .v = v, .seed = UINT64_C(0x123456789), .seed_offset = 4 };
    double o[KEYS], lse, scratch[KEYS], dropped = 0;
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 3; h++)
            for (int i = 0; i < ROWS; i++) {
                attn_ref_row(&d, &args, b, h, i, o, &lse, scratch);
                NEAR(lse, log(KEYS)); /* before dropout */
                for (int j = 0; j < KEYS; j++) {
                    bool drop = attn_dropout_byte(args.seed, 4, (uint32_t)(b * 3 + h), i, j) < 77;
                    NEAR(o[j], drop ? 0 : 256.0 / 179 / KEYS);
                    dropped += drop;
                }
            }
    double pairs = 2.0 * 3 * ROWS * KEYS, p = 77.0 / 256, deviation = sqrt(p * (1 - p) / pairs);
    expect_near(__LINE__, dropped / pairs, p, 4 * deviation);
    free(q);
}

/* ---- layout --------------------------------------------------------------------------------- */

/* Packed sequences are the sequences by themselves, whatever follows their used keys. */
static void packed_sequences_are_separate_ones(void **state)
{
    (void)state;
    enum { D = 2, BATCH = 3 };
    static const int32_t cu_q[] = { 0, 3, 3, 8 }, cu_kv[] = { 0, 2, 6, 13 }, used[] = { 2, 4, 5 };
    float q[8 * D], k[13 * D], v[13 * D];
    for (int i = 0; i < 8 * D; i++)
        q[i] = sinf((float)i);
    for (int i = 0; i < 13 * D; i++)
        k[i] = cosf((float)(2 * i)), v[i] = i < 11 * D ? (float)i : NAN;
    attn_desc d = {
        .dtype = ATTN_F32, .flags = ATTN_CAUSAL | ATTN_VARLEN | ATTN_LENS_KV, .batch = BATCH, .heads_q = 1
    };
    d.len_q = 5, d.len_kv = 7, d.dim_qk = D, d.total_q = 8, d.total_kv = 13, d = resolved(d);
    attn_args args = { .q = q, .k = k, .v = v, .cu_lens_q = cu_q, .cu_lens_kv = cu_kv, .lens_kv = used };
    for (int b = 0; b < BATCH; b++) {
        attn_sequence s = attn_sequence_of(&d, &args, b);
        assert_int_equal(s.start_q, cu_q[b]), assert_int_equal(s.len_q, cu_q[b + 1] - cu_q[b]);
        assert_int_equal(s.start_kv, cu_kv[b]), assert_int_equal(s.len_kv, used[b]);
        attn_desc one = single(s.len_q, s.len_kv, ATTN_CAUSAL);
        one.dim_qk = D, one.scale = 0, one = resolved(one);
        attn_args alone = { .q = q + cu_q[b] * D, .k = k + cu_kv[b] * D, .v = v + cu_kv[b] * D };
        for (int i = 0; i < s.len_q; i++) {
            double o[2][D], lse[2], scratch[MOST];
            attn_ref_row(&d, &args, b, 0, i, o[0], &lse[0], scratch);
            attn_ref_row(&one, &alone, 0, 0, i, o[1], &lse[1], scratch);
            for (int c = 0; c < D; c++)
                NEAR(o[0][c], o[1][c]);
            NEAR(lse[0], lse[1]);
        }
    }
}

/* (batch, head, row, dim) with rows backwards, and one key head for all: the same as packed copies. */
static void strides_are_taken_as_they_are(void **state)
{
    (void)state;
    enum { B = 2, N = 3, H = 2, D = 2 };
    float q[B * N * H * D], k[B * N * D], packed_q[B * N * H * D], packed_k[B * N * H * D];
    attn_desc d = { .dtype = ATTN_F32, .batch = B, .heads_q = H, .heads_kv = H, .len_q = N, .len_kv = N, .dim_qk = D };
    attn_desc packed = resolved(d);
    for (int i = 0; i < COUNT(q); i++)
        q[i] = sinf((float)(3 * i));
    for (int i = 0; i < COUNT(k); i++)
        k[i] = sinf((float)i);
    for (int i = 0; i < COUNT(q); i++) {
        int c = i % D, h = i / D % H, n = i / D / H % N, b = i / D / H / N;
        packed_q[i] = q[((b * H + h) * N + N - 1 - n) * D + c];
        packed_k[i] = k[(b * N + n) * D + c];
    }
    d.q_stride[0] = H * N * D, d.q_stride[1] = -D, d.q_stride[2] = N * D, d.q_stride[3] = 1;
    d.k_stride[0] = N * D, d.k_stride[1] = D, d.k_stride[3] = 1;
    memcpy(d.v_stride, d.k_stride, sizeof d.v_stride);
    d = resolved(d);
    attn_args args = { .q = q + (N - 1) * D, .k = k, .v = k }, copies = { .q = packed_q, .k = packed_k, .v = packed_k };
    for (int n = 0; n < B * H * N; n++) {
        double o[2][D], lse[2], scratch[N];
        attn_ref_row(&d, &args, n / (H * N), n / N % H, n % N, o[0], &lse[0], scratch);
        attn_ref_row(&packed, &copies, n / (H * N), n / N % H, n % N, o[1], &lse[1], scratch);
        for (int c = 0; c < D; c++)
            NEAR(o[0][c], o[1][c]);
        NEAR(lse[0], lse[1]);
    }
}

/* ---- unfused attention --------------------------------------------------------------------- */

/* 16-bit scores and probabilities: 1 + step is no value of the type, so that the scores are equal; nor is 1/3. */
static void unfused_attention_rounds(void **state)
{
    (void)state;
    static const struct {
        attn_dtype dtype;
        uint16_t (*encode)(float);
        float (*decode)(uint16_t);
        float step;
    } types[] = { { ATTN_F16, attn_float_to_f16, attn_f16_to_float, 0x1p-12f },
                  { ATTN_BF16, attn_float_to_bf16, attn_bf16_to_float, 0x1p-9f } };
    for (int n = 0; n < COUNT(types); n++) {
        uint16_t one = types[n].encode(1), step = types[n].encode(types[n].step), small = types[n].encode(0x1p-12f);
        uint16_t q[] = { one, one }, k[] = { one, 0, one, 0, one, step }, v[] = { 0, 0, one };
        attn_args args = { .q = q, .k = k, .v = v };
        attn_desc d = single(1, 3, 0);
        d.dtype = types[n].dtype, d.dim_qk = 2, d.dim_v = 1, d = resolved(d);
        float third = types[n].decode(types[n].encode(1.0f / 3)), o, lse, scratch[3];
        attn_naive_row(&d, &args, 0, 0, 0, &o, &lse, scratch);
        assert_true(o == third && o != 1.0f / 3); /* the last score is 1, as the others */
        expect_near(__LINE__, (double)lse, 1 + log(3), 1e-6);

        v[0] = small, v[1] = 0; /* o: a third of 1 + 2^-12 */
        attn_naive_row(&d, &args, 0, 0, 0, &o, &lse, scratch);
        assert_true(o == third);
        d.flags |= ATTN_OUT_F32;
        attn_naive_row(&d, &args, 0, 0, 0, &o, &lse, scratch);
        assert_true(o == third + third * 0x1p-12f);
    }
}

static void unfused_f32_is_near(void **state)
{
    (void)state;
    enum { N = 48, D = 24 };
    float q[N * D], k[N * D], v[N * D], naive[D], naive_lse, naive_scratch[N];
    for (int i = 0; i < N * D; i++)
        q[i] = sinf((float)i), k[i] = cosf((float)(i * i % 911)), v[i] = sinf((float)(7 * i));
    attn_desc d = resolved((attn_desc){
        .dtype = ATTN_F32, .flags = ATTN_CAUSAL, .batch = 1, .heads_q = 1, .len_q = N, .len_kv = N, .dim_qk = D });
    attn_args args = { .q = q, .k = k, .v = v };
    for (int i = 0; i < N; i++) {
        double o[D], lse, scratch[N];
        attn_ref_row(&d, &args, 0, 0, i, o, &lse, scratch);
        attn_naive_row(&d, &args, 0, 0, i, naive, &naive_lse, naive_scratch);
        for (int c = 0; c < D; c++)
            expect_near(__LINE__, (double)naive[c], o[c], 2e-6);
        expect_near(__LINE__, (double)naive_lse, lse, 2e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_by_two),
        cmocka_unit_test(scores_change_in_order),
        cmocka_unit_test(bias_repeats_and_strides),
        cmocka_unit_test(groups_share_kv_heads),
        cmocka_unit_test(sinks_weigh_in_the_denominator),
        cmocka_unit_test(rows_without_keys_are_zero),
        cmocka_unit_test(nan_and_infinity_show),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(dropout_scales_the_others_up),
        cmocka_unit_test(packed_sequences_are_separate_ones),
        cmocka_unit_test(strides_are_taken_as_they_are),
        cmocka_unit_test(unfused_attention_rounds),
        cmocka_unit_test(unfused_f32_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
