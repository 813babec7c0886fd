/* What terms come to; see diagram.h. The meaning that derived algorithms are compared with. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "napkin/diagram.h"

static bool is_known(const attn_nap_values *v, int node)
{
    return v->table[node] != NULL;
}

/* Nodes that a value of `node` takes, in order; those known are leaves. Returns their number. */
static int sequence(const attn_nap_values *v, int node, int16_t *list)
{
    const attn_diagram *d = v->diagram;
    bool needed[ATTN_NAP_NODES] = { false };
    int count = 0;
    needed[node] = true;
    for (int i = node; i >= 0; i--) {
        if (!needed[i]) continue;
        count++;
        if (is_known(v, i) || attn_nap_is_reduction(d->node[i].op)) continue;
        for (int j = 0; j < ATTN_NAP_PARAMS; j++)
            if (d->node[i].arg[j] >= 0) needed[d->node[i].arg[j]] = true;
    }
    for (int i = node, at = count; i >= 0; i--)
        if (needed[i]) list[--at] = (int16_t)i;
    return count;
}

static int64_t place(const attn_nap_values *v, uint32_t axes, const int64_t *at)
{
    int64_t offset = 0;
    for (int a = 0; axes >> a; a++)
        if (axes >> a & 1) offset = offset * v->size[a] + at[a];
    return offset;
}

static int64_t place_of_element(const attn_nap_values *v, const attn_nap_node *n, const int64_t *at)
{
    int64_t offset = 0;
    for (int i = 0; i < ATTN_NAP_RANK && n->index[i] >= 0; i++)
        offset = offset * v->size[n->index[i]] + at[n->index[i]];
    return offset;
}

static double apply(attn_nap_op op, double a, double b, double c)
{
    switch (op) {
    case ATTN_NAP_ADD:
        return a + b;
    case ATTN_NAP_SUB:
        return a - b;
    case ATTN_NAP_MUL:
        return a * b;
    case ATTN_NAP_DIV:
        return a / b;
    case ATTN_NAP_NEG:
        return -a;
    case ATTN_NAP_LT:
        return a < b;
    case ATTN_NAP_LE:
        return a <= b;
    case ATTN_NAP_EQ:
        return a == b;
    case ATTN_NAP_EXP:
        return exp(a);
    case ATTN_NAP_LOG:
        return log(a);
    case ATTN_NAP_SQRT:
        return sqrt(a);
    case ATTN_NAP_TANH:
        return tanh(a);
    case ATTN_NAP_ERF:
        return erf(a);
    case ATTN_NAP_ABS:
        return fabs(a);
    case ATTN_NAP_LARGER:
        return a > b || isnan(a) ? a : b;
    case ATTN_NAP_SMALLER:
        return a < b || isnan(a) ? a : b;
    case ATTN_NAP_WHERE:
        return a != 0 ? b : c;
    default:
        return NAN;
    }
}

static double leaf(const attn_nap_values *v, int i, const int64_t *at)
{
    const attn_nap_node *n = &v->diagram->node[i];
    if (is_known(v, i)) return v->table[i][place(v, n->axes, at)];
    if (n->op == ATTN_NAP_NUMBER) return n->value;
    if (n->op == ATTN_NAP_SIZE) return (double)(v->whole[n->which] ? v->whole[n->which] : v->size[n->which]);
    if (n->op == ATTN_NAP_INDEX) return (double)(v->base[n->which] + at[n->which]);
    if (n->op == ATTN_NAP_ELEMENT) return v->input[n->which][place_of_element(v, n, at)];
    return NAN;
}

static double rounded(const attn_nap_values *v, double x)
{
    return v->f32 ? (float)x : x;
}

static double run(const attn_nap_values *v, const int16_t *list, int count, const int64_t *at, double *value)
{
    for (int i = 0; i < count; i++) {
        const attn_nap_node *n = &v->diagram->node[list[i]];
        if (n->op >= ATTN_NAP_NUMBER || is_known(v, list[i]))
            value[list[i]] = leaf(v, list[i], at);
        else
            value[list[i]] = apply(n->op, value[n->arg[0]], n->arg[1] >= 0 ? value[n->arg[1]] : 0,
                                   n->arg[2] >= 0 ? value[n->arg[2]] : 0);
        value[list[i]] = rounded(v, value[list[i]]);
    }
    return value[list[count - 1]];
}

double attn_nap_value(const attn_nap_values *v, int node, const int64_t *at)
{
    int16_t list[ATTN_NAP_NODES];
    double value[ATTN_NAP_NODES];
    return run(v, list, sequence(v, node, list), at, value);
}

/* The next index along `axes`; false after the last. */
static bool advance(const attn_nap_values *v, uint32_t axes, int64_t *at)
{
    for (int a = ATTN_NAP_STREAM; a >= 0; a--) {
        if (!(axes >> a & 1)) continue;
        if (++at[a] < v->size[a]) return true;
        at[a] = 0;
    }
    return false;
}

static double joined(attn_nap_op op, double sum, double x)
{
    if (op == ATTN_NAP_SUM) return sum + x;
    return apply(op == ATTN_NAP_MAX ? ATTN_NAP_LARGER : ATTN_NAP_SMALLER, sum, x, 0);
}

static attn_status fill(attn_nap_values *v, int node)
{
    const attn_nap_node *n = &v->diagram->node[node];
    bool reduction = attn_nap_is_reduction(n->op) && n->op != ATTN_NAP_USER;
    int body = reduction ? n->arg[0] : n->op == ATTN_NAP_USER ? n->arg[ATTN_NAP_PARAMS] : node;
    int16_t list[ATTN_NAP_NODES];
    double value[ATTN_NAP_NODES];
    int count = sequence(v, body, list);
    int64_t at[ATTN_NAP_AXES + 1] = { 0 }, length = 1, i = 0;
    for (int a = 0; a <= ATTN_NAP_STREAM; a++)
        if (n->axes >> a & 1) length *= v->size[a];
    double *table = malloc((size_t)(length > 0 ? length : 1) * sizeof *table);
    if (!table) return attn_fail(ATTN_NO_MEMORY, "no memory for the values of a diagram");
    do {
        double x = n->op == ATTN_NAP_MAX ? -INFINITY : n->op == ATTN_NAP_MIN ? INFINITY : 0;
        if (!reduction)
            x = run(v, list, count, at, value);
        else
            do
                x = rounded(v, joined(n->op, x, run(v, list, count, at, value)));
            while (advance(v, n->over, at));
        table[i++] = x;
    } while (advance(v, n->axes, at));
    v->table[node] = table;
    return ATTN_OK;
}

attn_status attn_nap_tabulate(attn_nap_values *v, int node)
{
    const attn_diagram *d = v->diagram;
    bool needed[ATTN_NAP_NODES] = { false };
    needed[node] = true;
    for (int i = node; i >= 0; i--)
        for (int j = 0; j <= ATTN_NAP_PARAMS && needed[i] && !is_known(v, i); j++)
            if (d->node[i].arg[j] >= 0) needed[d->node[i].arg[j]] = true;
    attn_status status = ATTN_OK;
    for (int i = 0; i <= node && !status; i++)
        if (needed[i] && !is_known(v, i) && (i == node || attn_nap_is_reduction(d->node[i].op))) status = fill(v, i);
    return status;
}

void attn_nap_forget(attn_nap_values *v)
{
    for (int i = 0; i < ATTN_NAP_NODES; i++) {
        free(v->table[i]);
        v->table[i] = NULL;
    }
}
