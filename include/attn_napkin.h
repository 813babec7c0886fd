/* The napkin of libattn: from what is to be computed, a diagram, to an algorithm for a hierarchy of memories.
 *
 * A diagram is a text of a few lines: axes and their sizes, arrays, and definitions by index. The library derives, and
 * does not look up, which reductions stream and why, kernels that fuse the definitions, their tiles, the bytes that
 * they move, the time that they take on a machine, their loops, and C. docs/NAPKIN.md has the language and goes through
 * a derivation.
 *
 *     attn_napkin *napkin;
 *     if (attn_napkin_create(&napkin, text, strlen(text), "h200")) die(attn_error());
 *     size_t length = attn_napkin_describe(napkin, ATTN_NAPKIN_C, "my_attention", NULL, 0);
 *     char *code = malloc(length + 1);
 *     attn_napkin_describe(napkin, ATTN_NAPKIN_C, "my_attention", code, length + 1);
 *     attn_napkin_destroy(napkin); */
#ifndef ATTN_NAPKIN_H
#define ATTN_NAPKIN_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_napkin attn_napkin;

/* Derives an algorithm from the `size` bytes of a diagram for a machine: a built-in one's name, or a machine file's;
 * NULL: this processor. Milliseconds. ATTN_INVALID: the message begins with "diagram:LINE:COLUMN: " where the text is
 * wrong, or names the accumulator that fails its test. ATTN_UNSUPPORTED: no tiles of it fit the machine. */
ATTN_API attn_status attn_napkin_create(attn_napkin **napkin, const char *text, size_t size, const char *machine);

/* NULL is allowed. */
ATTN_API void attn_napkin_destroy(attn_napkin *napkin);

typedef enum attn_napkin_part {
    ATTN_NAPKIN_STEPS = 1,      /* the derivation, step by step, with costs */
    ATTN_NAPKIN_PSEUDOCODE = 2, /* the kernels as loops */
    ATTN_NAPKIN_C = 3,  /* a self-contained C11 function of that name, for any sizes; its comment says what it takes */
    ATTN_NAPKIN_SVG = 4 /* a drawing, under that title */
} attn_napkin_part;

/* A text. Writes at most `size` bytes, NUL included, and returns the length of the whole text; 0 for any other part.
 * name: NULL is "napkin". With size = 0, text may be NULL. If napkin is NULL, or text is NULL and size is not 0, it
 * returns 0 with a message. */
ATTN_API size_t attn_napkin_describe(const attn_napkin *napkin, attn_napkin_part part, const char *name, char *text,
                                     size_t size);

/* The time that is predicted. NULL: 0, with a message. */
ATTN_API double attn_napkin_seconds(const attn_napkin *napkin);

#ifdef __cplusplus
}
#endif

#endif
