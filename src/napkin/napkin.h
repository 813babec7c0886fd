/* What attn_napkin.h keeps to itself. */
#ifndef ATTN_NAPKIN_NAPKIN_H
#define ATTN_NAPKIN_NAPKIN_H

#include "attn_napkin.h"
#include "napkin/derive.h"

struct attn_napkin {
    attn_diagram *diagram;
    attn_machine machine;
    attn_derivation derivation;
};

/* attn_napkin_create, whose messages begin with `where`. */
attn_status attn_napkin_derive(attn_napkin **napkin, const char *where, const char *text, size_t size,
                               const char *machine);

#endif
