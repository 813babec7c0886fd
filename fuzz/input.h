/* An input as a list of numbers, and what a refusal must be. Bytes that run out are 0. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"

typedef struct input {
    const uint8_t *at, *end;
} input;

static inline int64_t take(input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

static inline int64_t below(input *in, int64_t n)
{
    return take(in) % n;
}

/* Mostly a small number that makes sense, now and then one at the edge of its type. */
static inline int64_t wild(input *in, int64_t sensible)
{
    static const int64_t edges[] = { -1, 0, 1, -2, INT64_MAX, INT64_MIN, INT32_MAX, (int64_t)1 << 40 };
    int64_t choice = take(in);
    return choice < 248 ? sensible : edges[choice - 248];
}

/* The product; the largest number where that is too large, which wild numbers make it. */
static inline int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* Whether the word stands in the text, for itself. */
static inline bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (begins && !isalnum((unsigned char)at[length]) && at[length] != '_') return true;
    }
    return false;
}

/* The message of a refusal names a field. */
static inline void check_refusal(attn_status status, const char *const fields[], size_t count)
{
    if (status == ATTN_OK) return;
    for (size_t i = 0; i < count; i++)
        if (has_word(attn_error(), fields[i])) return;
    fprintf(stderr, "no field is named: %s\n", attn_error());
    abort();
}

#endif
