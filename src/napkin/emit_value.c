/* Places and terms as C; see emit.h. */
#include <math.h>

#include "napkin/emit.h"

void attn_nap_emit_indent(const attn_nap_emitter *e)
{
    attn_say(e->w, "%*s", 4 * e->depth, "");
}

bool attn_nap_is_cut(const attn_nap_emitter *e, int axis)
{
    return e->k && ((e->k->groups >> axis & 1) || e->k->stream == axis || e->k->inner == axis);
}

const char *attn_nap_axis_name(const attn_nap_emitter *e, int axis)
{
    return e->d->axis[axis].name;
}

/* ---- places ------------------------------------------------------------------------------------- */

void attn_nap_emit_extent(const attn_nap_emitter *e, int axis)
{
    attn_say(e->w, "%s_%s", attn_nap_is_cut(e, axis) ? "T" : "n", attn_nap_axis_name(e, axis));
}

void attn_nap_emit_place(const attn_nap_emitter *e, uint32_t axes)
{
    int left = 0;
    bool first = true;
    if (!axes) attn_say(e->w, "0");
    for (int a = 0; a < e->d->axes; a++)
        left += (int)(axes >> a & 1);
    for (int i = 2; i < left; i++)
        attn_say(e->w, "(");
    for (int a = 0; a < e->d->axes; a++) {
        if (!(axes >> a & 1)) continue;
        if (!first) {
            attn_say(e->w, " * ");
            attn_nap_emit_extent(e, a);
            attn_say(e->w, " + ");
        }
        attn_say(e->w, "i_%s%s", attn_nap_axis_name(e, a), !first && --left > 1 ? ")" : "");
        first = false;
    }
}

static void say_index(const attn_nap_emitter *e, int axis)
{
    attn_say(e->w, attn_nap_is_cut(e, axis) ? "(o_%s + i_%s)" : "i_%s", attn_nap_axis_name(e, axis),
             attn_nap_axis_name(e, axis));
}

static void say_place(const attn_nap_emitter *e, const int8_t *index, int rank)
{
    if (!rank) attn_say(e->w, "0");
    for (int i = 2; i < rank; i++)
        attn_say(e->w, "(");
    for (int i = 0; i < rank; i++) {
        if (i) attn_say(e->w, " * n_%s + ", attn_nap_axis_name(e, index[i]));
        say_index(e, index[i]);
        if (i && i + 1 < rank) attn_say(e->w, ")");
    }
}

/* An array in memory: an input, an output, or what one kernel stores for another. */
void attn_nap_emit_memory(const attn_nap_emitter *e, int node, bool store)
{
    const attn_nap_node *n = &e->d->node[node];
    int output = attn_nap_output_of(e->v, node), rank = 0;
    int8_t index[ATTN_NAP_AXES];
    if (n->op == ATTN_NAP_ELEMENT && !store) {
        attn_say(e->w, "in_%s[", e->d->array[n->which].name);
        say_place(e, n->index, e->d->array[n->which].rank);
    } else if (output >= 0) {
        attn_say(e->w, "out_%s[", e->d->definition[output].array.name);
        say_place(e, e->d->definition[output].array.index, e->d->definition[output].array.rank);
    } else {
        for (int a = 0; a < e->d->axes; a++)
            if (n->axes >> a & 1) index[rank++] = (int8_t)a;
        attn_say(e->w, "stored_%d[", node);
        say_place(e, index, rank);
    }
    attn_say(e->w, "]");
}

void attn_nap_emit_tile(const attn_nap_emitter *e, int tile)
{
    const attn_nap_tile *t = &e->k->tile[tile];
    const attn_nap_node *n = &e->d->node[t->node];
    bool states = t->sort == ATTN_NAP_ACCRUED && n->op == ATTN_NAP_USER;
    if (states) attn_say(e->w, "acc_%s_result(&", e->d->accumulator[n->which].name);
    attn_say(e->w, "t_%s[%s", t->name, states ? "(" : "");
    attn_nap_emit_place(e, n->axes);
    if (states) attn_say(e->w, ") * %d", t->states);
    attn_say(e->w, states ? "])" : "]");
}

/* ---- terms -------------------------------------------------------------------------------------- */

static void say_number(const attn_nap_emitter *e, double x)
{
    if (isinf(x))
        attn_say(e->w, x < 0 ? "-INFINITY" : "INFINITY");
    else {
        attn_nap_say_exactly(e->w, x);
        attn_say(e->w, x == floor(x) && fabs(x) < 1e9 ? ".0f" : "f");
    }
}

static void say_call(const attn_nap_emitter *e, const attn_nap_node *n)
{
    static const char *const function[] = {
        [ATTN_NAP_EXP] = "expf", [ATTN_NAP_LOG] = "logf",  [ATTN_NAP_SQRT] = "sqrtf",    [ATTN_NAP_TANH] = "tanhf",
        [ATTN_NAP_ERF] = "erff", [ATTN_NAP_ABS] = "fabsf", [ATTN_NAP_LARGER] = "larger", [ATTN_NAP_SMALLER] = "smaller",
    };
    attn_say(e->w, "%s(", function[n->op]);
    for (int i = 0; i < ATTN_NAP_PARAMS && n->arg[i] >= 0; i++) {
        attn_say(e->w, "%s", i ? ", " : "");
        attn_nap_emit_value(e, n->arg[i], false);
    }
    attn_say(e->w, ")");
}

static void say_operation(const attn_nap_emitter *e, const attn_nap_node *n)
{
    if (n->op >= ATTN_NAP_EXP && n->op != ATTN_NAP_WHERE) {
        say_call(e, n);
        return;
    }
    attn_say(e->w, n->op == ATTN_NAP_NEG ? "(-" : "(");
    attn_nap_emit_value(e, n->arg[0], false);
    if (n->arg[1] >= 0) {
        attn_say(e->w, " %s ", n->op == ATTN_NAP_WHERE ? "!= 0 ?" : attn_nap_op_name[n->op]);
        attn_nap_emit_value(e, n->arg[1], false);
    }
    if (n->arg[2] >= 0) {
        attn_say(e->w, " : ");
        attn_nap_emit_value(e, n->arg[2], false);
    }
    attn_say(e->w, ")");
}

/* Open: the term itself is written out, though it has a tile. */
void attn_nap_emit_value(const attn_nap_emitter *e, int node, bool open)
{
    const attn_nap_node *n = &e->d->node[node];
    int tile = e->k ? attn_nap_tile_of(e->k, node) : -1;
    if (tile >= 0 && !open)
        attn_nap_emit_tile(e, tile);
    else if (n->op == ATTN_NAP_NUMBER)
        say_number(e, n->value);
    else if (n->op == ATTN_NAP_SIZE)
        attn_say(e->w, "(float)n_%s", attn_nap_axis_name(e, n->which));
    else if (n->op == ATTN_NAP_INDEX) {
        attn_say(e->w, "(double)");
        say_index(e, n->which);
    } else if (n->op == ATTN_NAP_PARAM)
        attn_say(e->w, n->which < ATTN_NAP_STATE ? "x_%d" : "s[%d]",
                 n->which < ATTN_NAP_STATE ? n->which : n->which - ATTN_NAP_STATE);
    else
        say_operation(e, n);
}

/* ---- bounds ------------------------------------------------------------------------------------- */

static void say_bound(const attn_nap_emitter *e, int node, bool upper)
{
    const attn_nap_node *n = &e->d->node[node];
    if (n->op == ATTN_NAP_INDEX) {
        const char *x = attn_nap_axis_name(e, n->which);
        if (!attn_nap_is_cut(e, n->which))
            attn_say(e->w, upper ? "(double)(n_%s - 1)" : "0.0", x);
        else
            attn_say(e->w, upper ? "(double)(o_%s + l_%s - 1)" : "(double)o_%s", x, x);
    } else if (n->op == ATTN_NAP_ADD || n->op == ATTN_NAP_SUB || n->op == ATTN_NAP_NEG) {
        attn_say(e->w, "(");
        if (n->op != ATTN_NAP_NEG) say_bound(e, n->arg[0], upper);
        attn_say(e->w, n->op == ATTN_NAP_ADD ? " + " : " - ");
        say_bound(e, n->arg[n->op != ATTN_NAP_NEG], upper == (n->op == ATTN_NAP_ADD));
        attn_say(e->w, ")");
    } else
        attn_nap_emit_value(e, node, true);
}

static void say_order(const attn_nap_emitter *e, int low, const char *order, int high)
{
    say_bound(e, low, false);
    attn_say(e->w, " %s ", order);
    say_bound(e, high, true);
}

void attn_nap_emit_may_hold(const attn_nap_emitter *e, int condition)
{
    const attn_nap_node *n = &e->d->node[condition];
    if (n->op == ATTN_NAP_MUL) {
        attn_nap_emit_may_hold(e, n->arg[0]);
        attn_say(e->w, " && ");
        attn_nap_emit_may_hold(e, n->arg[1]);
        return;
    }
    say_order(e, n->arg[0], n->op == ATTN_NAP_LT ? "<" : "<=", n->arg[1]);
    if (n->op != ATTN_NAP_EQ) return;
    attn_say(e->w, " && ");
    say_order(e, n->arg[1], "<=", n->arg[0]);
}
