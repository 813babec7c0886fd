/* Terms as text. */
#ifndef ATTN_NAPKIN_TEXT_H
#define ATTN_NAPKIN_TEXT_H

#include "base/text_buffer.h"
#include "napkin/diagram.h"

/* How a term is written: names of nodes, which end it; NULL or "": written out. */
typedef struct attn_nap_names {
    const char *of[ATTN_NAP_NODES];
} attn_nap_names;

/* The definitions' names, for the terms as written and in the normal form. */
void attn_nap_definition_names(attn_diagram *d, attn_nap_names *names);

/* The term; cut off with "..." where it is long. `open`: the term itself is written out even if it has a name. */
void attn_nap_say_term(attn_text_buffer *words, const attn_diagram *d, const attn_nap_names *names, int node,
                       bool open);

/* "q, k" */
void attn_nap_say_axes(attn_text_buffer *words, const attn_diagram *d, uint32_t axes);

/* A number that reads back as the same one, in any locale. */
void attn_nap_say_exactly(attn_text_buffer *words, double x);

#endif
