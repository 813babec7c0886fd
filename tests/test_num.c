/* Scalars: the 16-bit types over all of their codes, and Philox against Random123's known answers. */
#include "support.h"

#include <math.h>

#include "num/half.h"
#include "problem/desc.h"
#include "num/philox.h"

typedef struct half_type {
    const char *name;
    int mantissa, exponent_bias;
    float (*decode)(uint16_t);
    uint16_t (*encode)(float);
} half_type;

static const half_type types[] = {
    { "f16", 10, 15, attn_f16_to_float, attn_float_to_f16 },
    { "bf16", 7, 127, attn_bf16_to_float, attn_float_to_bf16 },
};

static uint16_t infinity_of(const half_type *type)
{
    return (uint16_t)(0x7fffu & ~((1u << type->mantissa) - 1));
}

/* The value of a finite code, by its definition. */
static double value_of(const half_type *type, uint16_t code)
{
    int exponent = (code & 0x7fff) >> type->mantissa, fraction = code & ((1 << type->mantissa) - 1);
    if (exponent > 0) fraction += 1 << type->mantissa;
    double magnitude = ldexp(fraction, (exponent > 0 ? exponent : 1) - type->exponent_bias - type->mantissa);
    return code & 0x8000 ? -magnitude : magnitude;
}

/* What is no dtype is taken for none. */
static void dtypes_are_a_table(void **state)
{
    (void)state;
    static const struct {
        attn_dtype dtype;
        const char *name;
        int size;
    } known[] = { { ATTN_F32, "f32", 4 }, { ATTN_F16, "f16", 2 },   { ATTN_BF16, "bf16", 2 },
                  { ATTN_F64, "f64", 8 }, { ATTN_E4M3, "e4m3", 1 }, { ATTN_I8, "i8", 1 } };
    const double number = 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_string_equal(attn_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(attn_dtype_size(known[i].dtype), known[i].size);
    }
    for (int i = -1; i < 9; i++) {
        attn_dtype dtype = (attn_dtype)i;
        if ((i >= 1 && i <= 5) || i == 7) continue;
        assert_null(attn_dtype_of(dtype));
        assert_string_equal(attn_dtype_name(dtype), "unknown");
        assert_int_equal(attn_dtype_size(dtype), 0);
        assert_true(isnan(attn_load_scalar(dtype, &number, 0)));
    }
}

static void every_code_round_trips(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(types); i++)
        for (unsigned n = 0; n < 0x10000; n++) {
            const half_type *type = &types[i];
            uint16_t code = (uint16_t)n, magnitude = code & 0x7fff;
            float x = type->decode(code);
            if (magnitude > infinity_of(type)) {
                if (!isnan(x)) fail_msg("%s 0x%04x is %g, not NaN", type->name, n, (double)x);
                if (!isnan(type->decode(type->encode(x)))) fail_msg("%s 0x%04x: NaN lost", type->name, n);
                continue;
            }
            double expected = magnitude < infinity_of(type) ? value_of(type, code)
                              : code & 0x8000               ? -INFINITY
                                                            : INFINITY;
            if ((double)x != expected || !signbit(x) != !(code & 0x8000))
                fail_msg("%s 0x%04x is %g, not %g", type->name, n, (double)x, expected);
            if (type->encode(x) != code) fail_msg("%s 0x%04x comes back as 0x%04x", type->name, n, type->encode(x));
        }
}

static void expect_code(const half_type *type, float x, uint16_t code)
{
    if (type->encode(x) != code)
        fail_msg("%s of %a is 0x%04x, not 0x%04x", type->name, (double)x, type->encode(x), code);
    if (type->encode(-x) != (code | 0x8000))
        fail_msg("%s of %a is 0x%04x, not 0x%04x", type->name, (double)-x, type->encode(-x), code | 0x8000);
}

/* Rounding changes at the middle between neighbours only: there to even, to either side of it to the nearer one. The
 * middle after the greatest finite value is where infinity begins. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(types); i++)
        for (uint16_t code = 0; code < infinity_of(&types[i]); code++) {
            const half_type *type = &types[i];
            double low = value_of(type, code),
                   high = value_of(type, (uint16_t)(code + 1)); /* past the end: 2^128 etc. */
            float middle = (float)((low + high) / 2);
            assert_true((double)middle == (low + high) / 2);
            expect_code(type, middle, (uint16_t)(code + (code & 1)));
            expect_code(type, nextafterf(middle, 0), code);
            expect_code(type, nextafterf(middle, INFINITY), (uint16_t)(code + 1));
            if (code) expect_code(type, nextafterf((float)low, 0), code);
            expect_code(type, nextafterf((float)low, INFINITY), code);
        }
}

static void every_nan_stays_one(void **state)
{
    (void)state;
    for (int bit = 0; bit < 23; bit++)
        for (uint32_t sign = 0; sign < 2; sign++)
            for (int i = 0; i < COUNT(types); i++) {
                float x = attn_bits_to_float(sign << 31 | 0x7f800000u | 1u << bit);
                if (!isnan(types[i].decode(types[i].encode(x)))) fail_msg("%s: NaN bit %d lost", types[i].name, bit);
            }
}

/* All codes of E4M3, by its definition, and what lies between them; bytes round and saturate. */
static void bytes_load_and_store(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, fraction = code & 7, last = (code & 127) == 127;
        float value = ldexpf((float)(exponent ? 8 + fraction : fraction), (exponent ? exponent : 1) - 10);
        if (code & 128) value = -value;
        float got = attn_e4m3_to_float((uint8_t)code);
        if (last ? !isnan(got) : got != value || signbit(got) != signbit(value)) fail_msg("code %d: %g", code, got);
        assert_int_equal(attn_float_to_e4m3(got), last ? 127 : code);
        if ((code & 127) >= 126) continue;
        float next = attn_e4m3_to_float((uint8_t)(code + 1)), middle = (value + next) / 2;
        assert_int_equal(attn_float_to_e4m3(middle), code + (code & 1));
        assert_int_equal(attn_float_to_e4m3(nextafterf(middle, 0)), code);
        assert_int_equal(attn_float_to_e4m3(nextafterf(middle, next * 2)), code + 1);
    }
    assert_int_equal(attn_float_to_e4m3(1e9f), 126);
    assert_int_equal(attn_float_to_e4m3(-INFINITY), 254);
    static const struct {
        float x;
        int8_t stored;
    } integers[] = { { 0.5f, 0 },       { 1.5f, 2 },      { -2.5f, -2 },       { 126.6f, 127 }, { 1e30f, 127 },
                     { -128.4f, -128 }, { -1e30f, -128 }, { -INFINITY, -128 }, { NAN, 0 } };
    for (int i = 0; i < COUNT(integers); i++) {
        int8_t byte = 55;
        attn_store_scalar(ATTN_I8, &byte, 0, integers[i].x);
        assert_int_equal(byte, integers[i].stored);
        assert_true(attn_load_scalar(ATTN_I8, &byte, 0) == integers[i].stored);
    }
}

static void scalars_load_and_store(void **state)
{
    (void)state;
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    static const float stored[] = { 0x1.234568p0f, 0x1.234p0f, 0x1.24p0f };
    for (int i = 0; i < COUNT(dtypes); i++) {
        union {
            float singles[4];
            uint16_t halves[4];
        } data = { { 0 } };
        attn_store_scalar(dtypes[i], &data, 2, 0x1.234568p0f);
        assert_true(attn_load_scalar(dtypes[i], &data, 2) == stored[i]);
        assert_true(attn_load_scalar(dtypes[i], &data, 1) == 0 && attn_load_scalar(dtypes[i], &data, 3) == 0);
    }
    assert_int_equal(attn_dtype_size(ATTN_F32), 4);
    assert_int_equal(attn_dtype_size(ATTN_F16), 2);
    assert_int_equal(attn_dtype_size(ATTN_BF16), 2);
}

static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t out[4];
    } known[] = {
        { { 0, 0, 0, 0 }, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, ~UINT64_C(0), { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          UINT64_C(0x299f31d0a4093822),
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (int i = 0; i < COUNT(known); i++) {
        uint32_t out[4];
        attn_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* The bytes of score (row, key), laid out call by call, for a sequence of 3 x 2 tiles. */
static void dropout_bytes_lie_as_fragments(void **state)
{
    (void)state;
    enum { ROWS = 48, KEYS = 32 };
    static const int place[4] = { 0, 1, 8, 9 };
    const uint64_t seed = UINT64_C(0x0123456789abcdef);
    int seen = 0;
    for (uint32_t block_row = 0; block_row < ROWS / 4; block_row++)
        for (uint32_t block_key = 0; block_key < KEYS / 4; block_key++) {
            uint32_t counter[4] = { block_row, block_key, 77, 5 }, out[4];
            attn_philox(counter, seed, out);
            for (int r = 0; r < 4; r++)
                for (int k = 0; k < 4; k++, seen++) {
                    int row = (int)(block_row / 4 * 16 + block_row % 4 * 2) + place[r];
                    int key = (int)(block_key / 4 * 16 + block_key % 4 * 2) + place[k];
                    assert_int_equal(attn_dropout_byte(seed, 5, 77, row, key), out[r] >> 8 * k & 255);
                }
        }
    assert_int_equal(seen, ROWS * KEYS);
}

static void dropout_threshold_rounds(void **state)
{
    (void)state;
    assert_int_equal(attn_dropout_threshold(0), 0);
    assert_int_equal(attn_dropout_threshold(0.5f), 128);
    assert_int_equal(attn_dropout_threshold(0.1f), 26);
    assert_int_equal(attn_dropout_threshold(1.4f / 256), 1);
    assert_int_equal(attn_dropout_threshold(0.4f / 256), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_are_a_table),
        cmocka_unit_test(every_code_round_trips),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(every_nan_stays_one),
        cmocka_unit_test(bytes_load_and_store),
        cmocka_unit_test(scalars_load_and_store),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(dropout_bytes_lie_as_fragments),
        cmocka_unit_test(dropout_threshold_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
