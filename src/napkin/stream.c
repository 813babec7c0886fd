/* See stream.h. */
#include "napkin/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "napkin/text.h"

/* ---- the registry ------------------------------------------------------------------------------ */

/* One of `running` that the term is made of, or -1. */
static int depends(const attn_diagram *d, int node, const bool *running)
{
    bool reached[ATTN_NAP_NODES];
    attn_nap_reach(d, node, reached);
    for (int i = 0; i <= node; i++)
        if (reached[i] && running[i]) return i;
    return -1;
}

static bool breaks(attn_diagram *d, int part, int on, uint32_t over, const char *where, char *why)
{
    attn_nap_names names;
    attn_text_buffer words = { why, ATTN_NAP_WHY, 0 };
    attn_nap_definition_names(d, &names);
    for (int i = 0; i < part; i++) /* what it is called, rather than what that is made of */
        if (names.of[i] && !(d->node[i].axes & over) && attn_nap_contains(d, part, i) && attn_nap_contains(d, i, on))
            on = i;
    attn_nap_say_term(&words, d, &names, part, true);
    attn_say(&words, " depends on ");
    attn_nap_say_term(&words, d, &names, on, false);
    attn_say(&words, ", which changes until the stream ends, and %s", where);
    return false;
}

/* The exponent's summands that depend on what is running, added to *shift with the sign of the factor. */
static bool take_shift(attn_diagram *d, int exponent, bool inverted, uint32_t over, const bool *running, int *shift,
                       char *why)
{
    attn_nap_parts parts;
    if (!attn_nap_summands(d, exponent, &parts))
        return breaks(d, exponent, depends(d, exponent, running), over, "has too many summands", why);
    for (int i = 0; i < parts.count; i++) {
        int part = parts.part[i].node, on = depends(d, part, running);
        bool minus = parts.part[i].minus != inverted;
        if (on < 0) continue;
        if (d->node[part].axes & over) return breaks(d, part, on, over, "on the element as well, in one summand", why);
        if (*shift >= 0)
            *shift = attn_nap_apply(d, minus ? ATTN_NAP_SUB : ATTN_NAP_ADD, *shift, part, -1);
        else
            *shift = minus ? attn_nap_apply(d, ATTN_NAP_NEG, part, -1, -1) : part;
        if (*shift < 0) return breaks(d, part, on, over, "the diagram is full", why);
    }
    return true;
}

bool attn_nap_accrues(attn_diagram *d, int node, const bool *running, attn_nap_accrual *accrual, char why[ATTN_NAP_WHY])
{
    attn_nap_node n = d->node[node];
    int on = depends(d, n.arg[0], running);
    *accrual = (attn_nap_accrual){ .node = node, .shift = -1 };
    for (int i = 1; i < ATTN_NAP_PARAMS && on < 0 && n.arg[i] >= 0; i++)
        on = depends(d, n.arg[i], running);
    if (on < 0) return true;
    if (n.op == ATTN_NAP_USER) return breaks(d, n.arg[0], on, n.over, "an accumulator takes elements alone", why);
    if (n.op != ATTN_NAP_SUM) return breaks(d, n.arg[0], on, n.over, "no lemma moves it out of a maximum", why);
    attn_nap_parts parts;
    if (!attn_nap_factors(d, n.arg[0], &parts)) return breaks(d, n.arg[0], on, n.over, "has too many factors", why);
    for (int i = 0; i < parts.count; i++) {
        const attn_nap_node *part = &d->node[parts.part[i].node];
        if ((on = depends(d, parts.part[i].node, running)) < 0) continue;
        if (part->op != ATTN_NAP_EXP)
            return breaks(d, parts.part[i].node, on, n.over,
                          "is neither a factor that leaves the sum nor a shift of an exponent", why);
        if (!take_shift(d, part->arg[0], parts.part[i].minus, n.over, running, &accrual->shift, why)) return false;
    }
    return true;
}

double attn_nap_rescale(double before, double now)
{
    return before == now ? 1 : exp(now - before);
}

/* ---- the test ------------------------------------------------------------------------------------ */

enum { LENGTH = 12, TRIALS = 12 };

static const double DEVIATION_MOST = 1e-8;

static attn_status no_memory(void)
{
    return attn_fail(ATTN_NO_MEMORY, "no memory to test a stream");
}

static double draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Small, large and positive elements by turns: what overflows and what roots take. */
static double draw_element(uint64_t *state, int trial)
{
    double x = 2 * draw(state) - 1;
    return trial % 3 == 0 ? x : trial % 3 == 1 ? 40 * x : fabs(x) + 0.1;
}

static double deviation(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 0;
    double d = fabs(a - b) / fmax(1, fmax(fabs(a), fabs(b)));
    return isfinite(d) ? d : INFINITY;
}

/* The diagram over `length` elements along the axis and one along every other; elements are leaves. Of a stream that
 * goes on the size is known beforehand; an accumulator knows of none. */
static bool begin(attn_nap_values *v, const attn_diagram *d, int axis, int length, uint64_t seed, int trial)
{
    memset(v, 0, sizeof *v);
    v->diagram = d;
    for (int a = 0; a <= ATTN_NAP_STREAM; a++) {
        v->size[a] = a == axis ? length : 1;
        v->base[a] = a == axis ? 0 : LENGTH / 2;
    }
    if (axis != ATTN_NAP_STREAM) v->whole[axis] = LENGTH;
    for (int i = 0; i < d->nodes; i++) {
        if (d->node[i].op != ATTN_NAP_ELEMENT && d->node[i].op != ATTN_NAP_PARAM) continue;
        uint64_t state = seed + (uint64_t)i * 0x100000001b3u;
        v->table[i] = malloc(LENGTH * sizeof **v->table);
        for (int t = 0; t < LENGTH && v->table[i]; t++)
            v->table[i][t] = draw_element(&state, trial);
        if (!v->table[i]) return false;
    }
    return true;
}

/* What the accruals come to over the first `length` elements, by their definition; earlier passes' over all of them. */
static attn_status come_to(const attn_diagram *d, int axis, const attn_nap_accrual *accrual, int count, int length,
                           uint64_t seed, int trial, double *value)
{
    attn_nap_values part, whole;
    const int64_t at[ATTN_NAP_AXES + 1] = { 0 };
    bool room = begin(&whole, d, axis, LENGTH, seed, trial);
    room = begin(&part, d, axis, length, seed, trial) && room;
    attn_status status = room ? ATTN_OK : no_memory();
    for (int pass = 0, done = 0; done < count && !status; pass++) {
        for (int i = 0; i < count && !status; i++) {
            if (accrual[i].pass != pass) continue;
            status = attn_nap_tabulate(&part, accrual[i].node);
            if (!status) value[i] = attn_nap_value(&part, accrual[i].node, at);
            done++;
        }
        for (int i = 0; i < count && !status; i++) { /* later passes find them finished */
            if (accrual[i].pass != pass) continue;
            status = attn_nap_tabulate(&whole, accrual[i].node);
            if (!status) part.table[accrual[i].node][0] = attn_nap_value(&whole, accrual[i].node, at);
        }
    }
    attn_nap_forget(&part);
    attn_nap_forget(&whole);
    return status;
}

static double join(attn_nap_op op, double a, double b)
{
    if (op == ATTN_NAP_SUM) return a + b;
    if (op == ATTN_NAP_MAX) return a > b || isnan(a) ? a : b;
    return a < b || isnan(a) ? a : b;
}

/* B: `value` goes from what it is over `from` elements to what it is over all. Those of one pass go together, in v's
 * tables. USER's are proven by themselves. */
static attn_status accrue(attn_nap_values *v, int axis, const attn_nap_accrual *accrual, int count, int pass, int from,
                          double *value)
{
    const attn_diagram *d = v->diagram;
    double before[ATTN_NAP_NODES];
    int64_t at[ATTN_NAP_AXES + 1] = { 0 };
    attn_status status = ATTN_OK;
    for (int i = 0; i < count; i++)
        if (accrual[i].pass == pass) *v->table[accrual[i].node] = value[i];
    for (int i = 0; i < count; i++)
        if (accrual[i].pass == pass && accrual[i].shift >= 0) before[i] = attn_nap_value(v, accrual[i].shift, at);
    for (int i = 0; i < count && !status; i++) {
        const attn_nap_node *n = &d->node[accrual[i].node];
        bool reached[ATTN_NAP_NODES];
        if (accrual[i].pass != pass || n->op == ATTN_NAP_USER) continue;
        attn_nap_reach(d, n->arg[0], reached);
        for (int j = 0; j <= n->arg[0] && !status; j++)
            if (reached[j] && attn_nap_is_reduction(d->node[j].op)) status = attn_nap_tabulate(v, j);
        if (accrual[i].shift >= 0) value[i] *= attn_nap_rescale(before[i], attn_nap_value(v, accrual[i].shift, at));
        for (at[axis] = from; at[axis] < LENGTH && !status; at[axis]++)
            value[i] = join(n->op, value[i], attn_nap_value(v, n->arg[0], at));
        at[axis] = 0;
        *v->table[accrual[i].node] = value[i];
    }
    return status;
}

/* Undefined: f(x) is, before any y; nothing can come of it. */
static bool undefined(const double *value, int count)
{
    for (int i = 0; i < count; i++)
        if (isnan(value[i])) return true;
    return false;
}

static attn_status try_split(const attn_diagram *d, int axis, const attn_nap_accrual *accrual, int count, int from,
                             int trial, double *worst, int *tried)
{
    double value[ATTN_NAP_NODES], wanted[ATTN_NAP_NODES];
    attn_nap_values v;
    uint64_t seed = (uint64_t)trial * 7919 + (uint64_t)from;
    attn_status status = come_to(d, axis, accrual, count, from, seed, trial, value);
    if (!status && undefined(value, count)) return ATTN_OK;
    if (!status) status = come_to(d, axis, accrual, count, LENGTH, seed, trial, wanted);
    if (!begin(&v, d, axis, LENGTH, seed, trial)) status = no_memory();
    for (int i = 0; i < count && !status; i++) {
        v.table[accrual[i].node] = malloc(sizeof **v.table);
        if (!v.table[accrual[i].node]) status = no_memory();
    }
    for (int pass = 0, done = 0; done < count && !status; pass++) {
        for (int i = 0; i < count; i++)
            done += accrual[i].pass == pass;
        status = accrue(&v, axis, accrual, count, pass, from, value);
    }
    for (int i = 0; i < count && !status; i++)
        if (d->node[accrual[i].node].op != ATTN_NAP_USER) *worst = fmax(*worst, deviation(value[i], wanted[i]));
    attn_nap_forget(&v);
    ++*tried;
    return status;
}

attn_status attn_nap_prove(const attn_diagram *d, int axis, const attn_nap_accrual *accrual, int count, double *worst)
{
    attn_status status = ATTN_OK;
    int tried = 0;
    *worst = 0;
    for (int trial = 0; trial < TRIALS && !status; trial++)
        status = try_split(d, axis, accrual, count, 1 + trial * 5 % (LENGTH - 1), trial, worst, &tried);
    if (!tried) *worst = INFINITY;
    return status;
}

/* The meaning over the first `length` elements. */
static attn_status meaning_of(const attn_diagram *d, int node, int length, uint64_t trial, double *value)
{
    attn_nap_values v;
    const int64_t at[ATTN_NAP_AXES + 1] = { 0 };
    attn_status status = ATTN_OK;
    if (!begin(&v, d, ATTN_NAP_STREAM, length, trial, (int)trial)) status = no_memory();
    if (!status) status = attn_nap_tabulate(&v, node);
    if (!status) *value = attn_nap_value(&v, node, at);
    attn_nap_forget(&v);
    return status;
}

static void set_params(attn_nap_values *v, const attn_nap_values *elements, int t, const double *state)
{
    for (int i = 0; i < v->diagram->nodes; i++) {
        const attn_nap_node *n = &v->diagram->node[i];
        if (n->op == ATTN_NAP_PARAM && n->which < ATTN_NAP_STATE) *v->table[i] = elements->table[i][t];
        if (n->op == ATTN_NAP_PARAM && n->which >= ATTN_NAP_STATE && n->which < ATTN_NAP_MAP_PARAM)
            *v->table[i] = state[n->which - ATTN_NAP_STATE];
    }
}

attn_status attn_nap_prove_accumulator(const attn_diagram *d, int accumulator, double *worst)
{
    const attn_nap_accumulator *a = &d->accumulator[accumulator];
    const int64_t at[ATTN_NAP_AXES + 1] = { 0 };
    attn_status status = ATTN_OK;
    *worst = 0;
    for (int trial = 0; trial < TRIALS && !status; trial++) {
        double state[ATTN_NAP_STATES], next[ATTN_NAP_STATES] = { 0 }, wanted = 0;
        attn_nap_values elements, one;
        bool room = begin(&elements, d, ATTN_NAP_STREAM, LENGTH, (uint64_t)trial, trial);
        room = begin(&one, d, ATTN_NAP_STREAM, 1, (uint64_t)trial, trial) && room;
        if (!room) status = no_memory();
        for (int i = 0; i < a->states && room; i++)
            state[i] = attn_nap_value(&one, a->start[i], at);
        for (int t = 0; t < LENGTH && !status; t++) {
            set_params(&one, &elements, t, state);
            for (int i = 0; i < a->states; i++)
                next[i] = attn_nap_value(&one, a->step[i], at);
            memcpy(state, next, sizeof state);
            set_params(&one, &elements, t, state);
            status = meaning_of(d, a->meaning, t + 1, (uint64_t)trial, &wanted);
            *worst = fmax(*worst, deviation(attn_nap_value(&one, a->result, at), wanted));
        }
        attn_nap_forget(&elements);
        attn_nap_forget(&one);
    }
    if (!status && !(*worst <= DEVIATION_MOST))
        return attn_fail(ATTN_INVALID, "accumulator %s is not the reduction that it means: on random data they differ",
                         a->name);
    return status;
}
