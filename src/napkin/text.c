/* See text.h. */
#include "napkin/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { LENGTH_MOST = 160 };

void attn_nap_definition_names(attn_diagram *d, attn_nap_names *names)
{
    memset(names, 0, sizeof *names);
    for (int i = d->definitions - 1; i >= 0; i--) {
        int normal = attn_nap_normal(d, d->definition[i].node);
        names->of[d->definition[i].node] = d->definition[i].array.name;
        if (normal >= 0) names->of[normal] = d->definition[i].array.name;
    }
}

void attn_nap_say_axes(attn_text_buffer *w, const attn_diagram *d, uint32_t axes)
{
    bool first = true;
    for (int a = 0; a < d->axes; a++) {
        if (!(axes >> a & 1)) continue;
        attn_say(w, "%s%s", first ? "" : ", ", d->axis[a].name);
        first = false;
    }
}

void attn_nap_say_exactly(attn_text_buffer *w, double x)
{
    char text[40];
    if (isinf(x)) {
        attn_say(w, "%s", x < 0 ? "-inf" : "inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
        if (strtod(text, NULL) == x) break;
    }
    if (x == floor(x) && fabs(x) < 1e9) {
        attn_say(w, "%lld", (long long)x);
        return;
    }
    for (char *c = text, *to = text;; c++) { /* the locale's decimal point, of any number of bytes */
        bool mark = *c && !strchr("0123456789+-e", *c);
        if (mark && to > text && to[-1] == '.') continue;
        *to++ = mark ? '.' : *c;
        if (!*c) break;
    }
    attn_say(w, "%s", text);
}

typedef struct writer {
    attn_text_buffer *words;
    const attn_diagram *d;
    const attn_nap_names *names;
    size_t end;
    bool cut;
} writer;

/* How tightly an operation binds: comparisons 0, sums 1, products 2, signs 3. */
static int binding(attn_nap_op op)
{
    if (op == ATTN_NAP_ADD || op == ATTN_NAP_SUB) return 1;
    if (op == ATTN_NAP_MUL || op == ATTN_NAP_DIV) return 2;
    if (op == ATTN_NAP_NEG) return 3;
    return op >= ATTN_NAP_LT && op <= ATTN_NAP_EQ ? 0 : 4;
}

static void write_term(writer *w, int node, int outer, bool open);

static void write_arguments(writer *w, const attn_nap_node *n)
{
    for (int i = 0; i < ATTN_NAP_PARAMS && n->arg[i] >= 0; i++) {
        attn_say(w->words, "%s", i ? ", " : "(");
        write_term(w, n->arg[i], 0, false);
    }
    attn_say(w->words, ")");
}

static void write_reduction(writer *w, const attn_nap_node *n)
{
    const char *name = n->op == ATTN_NAP_USER ? w->d->accumulator[n->which].name : attn_nap_op_name[n->op];
    attn_say(w->words, "%s[", name);
    attn_nap_say_axes(w->words, w->d, n->over);
    attn_say(w->words, "]");
    if (n->op == ATTN_NAP_USER)
        write_arguments(w, n);
    else {
        attn_say(w->words, " ");
        write_term(w, n->arg[0], 2, false);
    }
}

static void write_leaf(writer *w, const attn_nap_node *n)
{
    const attn_diagram *d = w->d;
    if (n->op == ATTN_NAP_NUMBER)
        attn_nap_say_exactly(w->words, n->value);
    else if (n->op == ATTN_NAP_SIZE)
        attn_say(w->words, "size(%s)", d->axis[n->which].name);
    else if (n->op == ATTN_NAP_INDEX)
        attn_say(w->words, "%s", d->axis[n->which].name);
    else if (n->op == ATTN_NAP_ELEMENT)
        attn_say(w->words, "%s", d->array[n->which].name);
    else
        attn_say(w->words, "?");
}

static void write_term(writer *w, int node, int outer, bool open)
{
    const attn_nap_node *n = &w->d->node[node];
    const char *name = w->names->of[node];
    if (w->cut || w->words->length > w->end) {
        if (!w->cut) attn_say(w->words, "...");
        w->cut = true;
        return;
    }
    if (name && *name && !open) {
        attn_say(w->words, "%s", name);
        return;
    }
    int own = attn_nap_is_reduction(n->op) ? (n->op == ATTN_NAP_USER ? 4 : 2) : binding(n->op);
    bool brackets = own < outer;
    if (brackets) attn_say(w->words, "(");
    if (attn_nap_is_reduction(n->op))
        write_reduction(w, n);
    else if (n->op >= ATTN_NAP_NUMBER)
        write_leaf(w, n);
    else if (n->op == ATTN_NAP_NEG) {
        attn_say(w->words, "-");
        write_term(w, n->arg[0], own, false);
    } else if (own < 4) {
        bool reduction = attn_nap_is_reduction(w->d->node[n->arg[0]].op); /* which would take what follows along */
        write_term(w, n->arg[0], reduction && own == 2 ? 3 : own, false);
        attn_say(w->words, " %s ", attn_nap_op_name[n->op]);
        write_term(w, n->arg[1], own + 1, false);
    } else {
        attn_say(w->words, "%s", attn_nap_op_name[n->op]);
        write_arguments(w, n);
    }
    if (brackets) attn_say(w->words, ")");
}

void attn_nap_say_term(attn_text_buffer *words, const attn_diagram *d, const attn_nap_names *names, int node, bool open)
{
    writer w = { words, d, names, words->length + LENGTH_MOST, false };
    write_term(&w, node, 0, open);
}
