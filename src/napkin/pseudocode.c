/* Kernels as loops; see derive.h. */
#include "napkin/derive.h"

typedef struct writer {
    attn_text_buffer *w;
    const attn_derivation *v;
    const attn_nap_kernel *k;
    attn_nap_names names;
    int depth;
} writer;

static void begin_line(const writer *p)
{
    attn_say(p->w, "%*s", 3 + 4 * p->depth, "");
}

static void say_tile(const writer *p, int tile)
{
    const attn_diagram *d = p->v->diagram;
    uint32_t axes = d->node[p->k->tile[tile].node].axes;
    attn_say(p->w, "%s", p->k->tile[tile].name);
    if (!axes) return;
    attn_say(p->w, "[");
    attn_nap_say_axes(p->w, d, axes);
    attn_say(p->w, "]");
}

static const char *start_of(const attn_diagram *d, int node)
{
    attn_nap_op op = d->node[node].op;
    return op == ATTN_NAP_SUM ? "0" : op == ATTN_NAP_MAX ? "-inf" : op == ATTN_NAP_MIN ? "inf" : "its start";
}

static void say_accrual(const writer *p, const attn_nap_step *s)
{
    const attn_nap_node *n = &p->v->diagram->node[s->node];
    bool sum = n->op == ATTN_NAP_SUM;
    if (sum && s->by < 0) {
        attn_say(p->w, " += ");
    } else if (sum) {
        attn_say(p->w, " = %s * %s + ", p->k->tile[s->tile].name, p->k->tile[s->by].name);
    } else if (n->op == ATTN_NAP_USER) {
        attn_say(p->w, " takes ");
    } else
        attn_say(p->w, " = %s(%s, ", n->op == ATTN_NAP_MAX ? "larger" : "smaller", p->k->tile[s->tile].name);
    attn_nap_say_term(p->w, p->v->diagram, &p->names, s->node, true);
    if (!sum && n->op != ATTN_NAP_USER) attn_say(p->w, ")");
}

static void say_step(const writer *p, const attn_nap_step *s)
{
    const attn_diagram *d = p->v->diagram;
    begin_line(p);
    if (s->act == ATTN_NAP_LOAD || s->act == ATTN_NAP_STORE)
        attn_say(p->w, s->act == ATTN_NAP_LOAD ? "load " : "store ");
    if (s->act == ATTN_NAP_STORE) {
        int output = attn_nap_output_of(p->v, s->node);
        if (s->tile < 0) attn_say(p->w, "%s = ", d->definition[output].array.name);
        attn_nap_say_term(p->w, d, &p->names, s->node, s->tile < 0);
    } else
        say_tile(p, s->tile);
    if (s->act == ATTN_NAP_START) attn_say(p->w, " = %s", start_of(d, s->node));
    if (s->act == ATTN_NAP_ACCRUE) say_accrual(p, s);
    if (s->act == ATTN_NAP_MAP || s->act == ATTN_NAP_REDUCE || s->act == ATTN_NAP_KEEP) {
        attn_say(p->w, " = ");
        attn_nap_say_term(p->w, d, &p->names, s->node, true);
    }
    if (s->act == ATTN_NAP_RESCALE) {
        attn_say(p->w, " = exp(");
        attn_nap_say_term(p->w, d, &p->names, s->node, true);
        attn_say(p->w, " - %s)", p->k->tile[s->tile].name);
    }
    attn_say(p->w, "\n");
}

static void open_loop(writer *p, int axis, const char *what)
{
    begin_line(p);
    attn_say(p->w, "%s %lld of %s\n", what, (long long)p->k->partition.tile[p->v->levels - 1][axis],
             p->v->diagram->axis[axis].name);
    p->depth++;
}

static void say_guards(const writer *p)
{
    for (int i = 0; i < p->k->guards; i++) {
        begin_line(p);
        attn_say(p->w, "skip unless somewhere ");
        attn_nap_say_term(p->w, p->v->diagram, &p->names, p->k->guard[i], true);
        attn_say(p->w, "\n");
    }
}

static void say_kernel(writer *p)
{
    const attn_nap_kernel *k = p->k;
    int groups;
    attn_nap_tile_names(p->v, k, &p->names);
    for (int a = 0; a < p->v->diagram->axes; a++)
        if (k->groups >> a & 1) open_loop(p, a, "each group of");
    groups = p->depth;
    for (int s = 0; s < k->steps; s++) {
        bool again = s > 0 && (k->step[s].pass != k->step[s - 1].pass || !k->step[s].inside);
        if (again) p->depth = groups;
        if (k->step[s].inside && p->depth == groups) {
            open_loop(p, k->stream, "each chunk of");
            say_guards(p);
        }
        if (k->step[s].within && (s == 0 || !k->step[s - 1].within)) open_loop(p, k->inner, "each chunk of");
        say_step(p, &k->step[s]);
        if (k->step[s].within && (s + 1 == k->steps || !k->step[s + 1].within)) p->depth--;
    }
    p->depth = 0;
}

void attn_nap_pseudocode(attn_text_buffer *w, const attn_derivation *v)
{
    writer p = { .w = w, .v = v };
    for (int i = 0; i < v->kernels; i++) {
        attn_say(w, "%s   kernel %d\n", i ? "\n" : "", i + 1);
        p.k = &v->kernel[i];
        p.depth = 1;
        say_kernel(&p);
    }
}
