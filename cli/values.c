/* Reading the values of options; see options.h. Only characters of plain decimal numbers reach strtod and strtoll, so
 * that no locale's, hexadecimal or named number passes. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "problem/desc.h"

#define UNITS " (k: times 1024, m: times 1024 k, g: times 1024 m)"

/* Digits, with a sign or not, and after them nothing, or one of `units`: k, m, g for 2^10, 2^20, 2^30. */
static bool read_number(const char *text, const char *units, int64_t low, int64_t high, int64_t *value)
{
    size_t sign = text[0] == '-', digits = strspn(text + sign, "0123456789");
    const char *end = text + sign + digits, *unit = *end ? strchr(units, *end) : NULL;
    if (!digits || (*end && (!unit || end[1]))) return false;
    errno = 0;
    long long x = strtoll(text, NULL, 10), scale = unit ? 1LL << 10 * ((unit - units) % 3 + 1) : 1;
    return !errno && !__builtin_mul_overflow(x, scale, value) && *value >= low && *value <= high;
}

static bool read_integer(const char *text, int64_t low, int64_t high, int64_t *value)
{
    return read_number(text, "", low, high, value);
}

static bool read_size(const char *text, int64_t low, int64_t *value)
{
    return read_number(text, "kmgKMG", low, INT64_MAX, value);
}

static bool read_float(const char *text, float *value)
{
    char *end;
    if (!text[0] || text[strspn(text, "+-.0123456789eE")]) return false;
    *value = (float)strtod(text, &end);
    return !*end && isfinite(*value);
}

attn_status attn_parse_switch(const char *text, void *value)
{
    (void)text;
    *(bool *)value = true;
    return ATTN_OK;
}

attn_status attn_parse_text(const char *text, void *value)
{
    *(const char **)value = text;
    return *text ? ATTN_OK : attn_fail(ATTN_INVALID, "is empty");
}

attn_status attn_parse_length(const char *text, void *value)
{
    if (read_size(text, 0, value)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes a whole number, 0 or more, such as 4096 or 4k" UNITS);
}

attn_status attn_parse_count(const char *text, void *value)
{
    if (read_size(text, 1, value)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes a whole number, 1 or more, such as 4096 or 4k" UNITS);
}

attn_status attn_parse_heads(const char *text, void *value)
{
    int64_t *heads = value;
    char first[32];
    size_t length = strcspn(text, "/");
    if (length < sizeof first) {
        memcpy(first, text, length);
        first[length] = 0;
        bool good = read_size(first, 1, &heads[0]);
        heads[1] = heads[0];
        if (good && (!text[length] || read_size(text + length + 1, 1, &heads[1]))) return ATTN_OK;
    }
    return attn_fail(ATTN_INVALID, "takes Q or Q/KV: query heads, and KV heads if fewer, as in 32/8");
}

attn_status attn_parse_window(const char *text, void *value)
{
    int64_t *window = value;
    const char *comma = strchr(text, ',');
    char left[24];
    size_t length = comma ? (size_t)(comma - text) : sizeof left;
    if (length < sizeof left) {
        memcpy(left, text, length);
        left[length] = 0;
        if (read_size(left, -1, &window[0]) && read_size(comma + 1, -1, &window[1])) return ATTN_OK;
    }
    return attn_fail(ATTN_INVALID, "takes L,R: how many keys before and after its own position a row sees; -1: all");
}

attn_status attn_parse_seed(const char *text, void *value)
{
    attn_seed *seed = value;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *digits = text + (hex ? 2 : 0);
    errno = 0;
    seed->value = strtoull(digits, NULL, hex ? 16 : 10);
    seed->given = true;
    if (*digits && !digits[strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789")] && !errno) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes a number of 64 bits, decimal or 0x hexadecimal");
}

attn_status attn_parse_positive(const char *text, void *value)
{
    if (read_float(text, value) && *(float *)value > 0) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes a finite number above 0 (in the range of float32)");
}

attn_status attn_parse_fraction(const char *text, void *value)
{
    float *p = value;
    if (read_float(text, p) && *p >= 0 && *p < 1) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes a number from 0 up to, but less than, 1");
}

attn_status attn_parse_threads(const char *text, void *value)
{
    int64_t threads;
    if (!read_integer(text, 1, 1024, &threads)) return attn_fail(ATTN_INVALID, "takes a whole number from 1 to 1024");
    *(int32_t *)value = (int32_t)threads;
    return ATTN_OK;
}

attn_status attn_parse_isa(const char *text, void *value)
{
    const char *names[8];
    int count = 0;
    for (const char *name; (name = attn_isa_name((attn_isa)count)) != NULL; count++) {
        if (!strcmp(text, name)) {
            *(attn_isa *)value = (attn_isa)count;
            return ATTN_OK;
        }
        names[count] = name;
    }
    const char *nearest = attn_nearest(text, names, count);
    return attn_fail(ATTN_INVALID, "takes auto, portable, avx2, avx512, avx512bf16, amx or neon%s%s%s",
                     nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static bool parse_one_of(const char *text, const attn_dtype *dtypes, int count, void *value)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(text, attn_dtype_name(dtypes[i]))) continue;
        *(attn_dtype *)value = dtypes[i];
        return true;
    }
    return false;
}

attn_status attn_parse_dtype(const char *text, void *value)
{
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    if (parse_one_of(text, dtypes, 3, value)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes f32, f16 or bf16");
}

attn_status attn_parse_any_dtype(const char *text, void *value)
{
    static const attn_dtype dtypes[] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_E4M3 };
    if (parse_one_of(text, dtypes, 4, value)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes f32, f16, bf16 or e4m3");
}

attn_status attn_parse_bytes(const char *text, void *value)
{
    static const attn_dtype dtypes[] = { ATTN_E4M3, ATTN_I8 };
    if (parse_one_of(text, dtypes, 2, value)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "takes e4m3 or i8");
}

attn_status attn_parse_device(const char *text, void *value)
{
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0) return attn_fail(ATTN_INVALID, "takes cpu or cuda");
    *(attn_device *)value = strcmp(text, "cuda") == 0 ? ATTN_CUDA : ATTN_CPU;
    return ATTN_OK;
}
