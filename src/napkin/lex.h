/* Tokens of a .nap file. Numbers read the same in every locale. A comment runs from # to the line's end; line ends are
 * space. */
#ifndef ATTN_NAPKIN_LEX_H
#define ATTN_NAPKIN_LEX_H

#include "napkin/diagram.h"

typedef enum attn_nap_kind { ATTN_NAP_END, ATTN_NAP_WORD, ATTN_NAP_LITERAL, ATTN_NAP_SIGN, ATTN_NAP_BAD } attn_nap_kind;

typedef struct attn_nap_token {
    attn_nap_kind kind;
    int length;
    const char *at;
    int line, column; /* from 1; columns are bytes */
    double value;     /* of a LITERAL */
} attn_nap_token;

typedef struct attn_nap_lexer {
    const char *at, *end;
    int line;
    const char *line_start;
} attn_nap_lexer;

/* A BAD token is a byte or a number that means nothing. */
void attn_nap_lex(attn_nap_lexer *lexer, attn_nap_token *token);

#endif
