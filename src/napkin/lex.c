/* See lex.h. */
#include "napkin/lex.h"

#include <string.h>

#include "num/decimal.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static void skip_space(attn_nap_lexer *l)
{
    for (; l->at < l->end; l->at++) {
        if (*l->at == '#')
            while (l->at + 1 < l->end && l->at[1] != '\n')
                l->at++;
        else if (*l->at == '\n') {
            l->line++;
            l->line_start = l->at + 1;
        } else if (*l->at != ' ' && *l->at != '\t' && *l->at != '\r')
            return;
    }
}

static bool read_number(attn_nap_lexer *l, double *value)
{
    const char *start = l->at;
    while (l->at < l->end && (is_digit(*l->at) || *l->at == '.'))
        l->at++;
    if (l->at < l->end && (*l->at == 'e' || *l->at == 'E')) {
        l->at++;
        if (l->at < l->end && (*l->at == '+' || *l->at == '-')) l->at++;
        while (l->at < l->end && is_digit(*l->at))
            l->at++;
    }
    return attn_read_decimal(start, (size_t)(l->at - start), value);
}

void attn_nap_lex(attn_nap_lexer *l, attn_nap_token *token)
{
    skip_space(l);
    *token = (attn_nap_token){ ATTN_NAP_END, 0, l->at, l->line, (int)(l->at - l->line_start) + 1, 0 };
    if (l->at == l->end) return;
    if (is_letter(*l->at)) {
        token->kind = ATTN_NAP_WORD;
        while (l->at < l->end && (is_letter(*l->at) || is_digit(*l->at)))
            l->at++;
    } else if (is_digit(*l->at)) {
        token->kind = read_number(l, &token->value) ? ATTN_NAP_LITERAL : ATTN_NAP_BAD;
        if (l->at < l->end && is_letter(*l->at)) token->kind = ATTN_NAP_BAD;
    } else {
        token->kind = *l->at && strchr("[](),:=<+-*/", *l->at) ? ATTN_NAP_SIGN : ATTN_NAP_BAD;
        if (l->end - l->at > 1 && strchr("=<", *l->at) && l->at[1] == '=') l->at++;
        l->at++;
    }
    token->length = (int)(l->at - token->at);
}
