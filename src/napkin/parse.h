/* What parse.c (statements) and parse_term.c (terms) share. */
#ifndef ATTN_NAPKIN_PARSE_H
#define ATTN_NAPKIN_PARSE_H

#include "napkin/lex.h"

typedef struct attn_nap_parser {
    const char *where;
    attn_nap_lexer lexer;
    attn_nap_token token; /* the next one; END once something failed */
    attn_diagram *diagram;
    char param[ATTN_NAP_ALL_PARAMS][ATTN_NAP_NAME]; /* those in sight; "": none */
    const char *stream;                             /* ATTN_NAP_STREAM's name; NULL: out of sight */
    int depth;
    bool failed;
} attn_nap_parser;

/* Fails with "WHERE:LINE:COLUMN: what", unless something failed before. */
void attn_nap_stop(attn_nap_parser *p, const attn_nap_token *where, const char *what);
void attn_nap_expected(attn_nap_parser *p, const char *what);

void attn_nap_next(attn_nap_parser *p);
bool attn_nap_is(const attn_nap_parser *p, const char *text);
bool attn_nap_take(attn_nap_parser *p, const char *text); /* if it is the next token */
void attn_nap_want(attn_nap_parser *p, const char *text); /* or fail */

typedef enum attn_nap_sort {
    ATTN_NAP_AN_AXIS,
    ATTN_NAP_AN_ARRAY,
    ATTN_NAP_A_DEFINITION,
    ATTN_NAP_A_MAP,
    ATTN_NAP_AN_ACCUMULATOR,
    ATTN_NAP_SORTS
} attn_nap_sort;

/* What the token names, or -1. */
int attn_nap_find(const attn_nap_parser *p, attn_nap_sort sort);
bool attn_nap_is_reserved(const attn_nap_parser *p);
int attn_nap_take_axis(attn_nap_parser *p);

/* A term's node; ATTN_NAP_FULL once something failed. */
int attn_nap_parse_term(attn_nap_parser *p);

#endif
