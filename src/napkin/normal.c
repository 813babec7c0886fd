/* The normal form; see diagram.h. */
#include "napkin/diagram.h"

static bool collect(const attn_diagram *d, attn_nap_parts *parts, attn_nap_op plus, attn_nap_op minus)
{
    for (int i = 0; i < parts->count;) {
        struct attn_nap_part part = parts->part[i];
        const attn_nap_node *n = &d->node[part.node];
        if (n->op != plus && n->op != minus) {
            i++;
            continue;
        }
        if (parts->count == (int)(sizeof parts->part / sizeof *parts->part)) return false;
        for (int j = parts->count++; j > i + 1; j--)
            parts->part[j] = parts->part[j - 1];
        parts->part[i] = (struct attn_nap_part){ n->arg[0], part.minus };
        parts->part[i + 1] = (struct attn_nap_part){ n->arg[1], part.minus != (n->op == minus) };
    }
    return true;
}

bool attn_nap_factors(const attn_diagram *d, int node, attn_nap_parts *parts)
{
    *parts = (attn_nap_parts){ 1, { { node, false } } };
    return collect(d, parts, ATTN_NAP_MUL, ATTN_NAP_DIV);
}

bool attn_nap_summands(const attn_diagram *d, int node, attn_nap_parts *parts)
{
    *parts = (attn_nap_parts){ 1, { { node, false } } };
    if (!collect(d, parts, ATTN_NAP_ADD, ATTN_NAP_SUB)) return false;
    for (int i = 0; i < parts->count; i++)
        if (d->node[parts->part[i].node].op == ATTN_NAP_NEG) {
            parts->part[i].node = d->node[parts->part[i].node].arg[0];
            parts->part[i].minus = !parts->part[i].minus;
        }
    return true;
}

/* Those of the parts that span some of `axes`, or those that span none, put together again; -1 if there are none. */
static int put_together(attn_diagram *d, const attn_nap_parts *parts, uint32_t axes, bool spanning, bool product)
{
    attn_nap_op plus = product ? ATTN_NAP_MUL : ATTN_NAP_ADD, minus = product ? ATTN_NAP_DIV : ATTN_NAP_SUB;
    int whole = -1;
    for (int pass = 0; pass < 2; pass++) /* what is not inverted first */
        for (int i = 0; i < parts->count; i++) {
            const struct attn_nap_part *part = &parts->part[i];
            if (part->minus != (pass == 1) || ((d->node[part->node].axes & axes) != 0) != spanning) continue;
            if (whole >= 0)
                whole = attn_nap_apply(d, part->minus ? minus : plus, whole, part->node, -1);
            else if (!part->minus)
                whole = part->node;
            else if (product)
                whole = attn_nap_apply(d, minus, attn_nap_number(d, 1), part->node, -1);
            else
                whole = attn_nap_apply(d, ATTN_NAP_NEG, part->node, -1, -1);
            if (whole == ATTN_NAP_FULL) return whole;
        }
    return whole;
}

/* The factors that stay in a sum, as few operands as can be: each takes in those that span no axis that it does not.
 * The sum of a product of two is a contraction, whatever its operands are made of. */
static int operands(attn_diagram *d, attn_nap_parts *parts, uint32_t over)
{
    int whole = -1;
    for (;;) {
        int widest = -1;
        attn_nap_parts taken = { 0 };
        for (int i = 0; i < parts->count; i++) {
            int node = parts->part[i].node;
            if (node < 0 || !(d->node[node].axes & over)) continue;
            if (widest < 0 || attn_nap_count(d, d->node[node].axes) > attn_nap_count(d, d->node[widest].axes))
                widest = node;
        }
        if (widest < 0) return whole;
        uint32_t axes = d->node[widest].axes;
        for (int i = 0; i < parts->count; i++) {
            struct attn_nap_part *part = &parts->part[i];
            if (part->node < 0 || !(d->node[part->node].axes & over) || d->node[part->node].axes & ~axes) continue;
            taken.part[taken.count++] = *part;
            part->node = -1;
        }
        int operand = put_together(d, &taken, over, true, true);
        whole = whole < 0 ? operand : attn_nap_apply(d, ATTN_NAP_MUL, whole, operand, -1);
        if (whole == ATTN_NAP_FULL) return whole;
    }
}

static int reduced(attn_diagram *d, const attn_nap_node *n)
{
    bool product = n->op == ATTN_NAP_SUM;
    attn_nap_parts parts;
    if (!(product ? attn_nap_factors : attn_nap_summands)(d, n->arg[0], &parts))
        return attn_nap_reduce(d, n->op, n->over, n->arg[0]);
    int outside = put_together(d, &parts, n->over, false, product);
    int inside = product ? operands(d, &parts, n->over) : put_together(d, &parts, n->over, true, product);
    if (inside < 0) return ATTN_NAP_FULL;
    int reduction = attn_nap_reduce(d, n->op, n->over, inside);
    if (outside == -1) return reduction;
    const attn_nap_node *o = outside >= 0 ? &d->node[outside] : NULL;
    if (product && o && o->op == ATTN_NAP_DIV && d->node[o->arg[0]].op == ATTN_NAP_NUMBER &&
        d->node[o->arg[0]].value == 1)
        return attn_nap_apply(d, ATTN_NAP_DIV, reduction, o->arg[1], -1);
    return attn_nap_apply(d, product ? ATTN_NAP_MUL : ATTN_NAP_ADD, reduction, outside, -1);
}

int attn_nap_normal(attn_diagram *d, int node)
{
    bool reached[ATTN_NAP_NODES];
    int to[ATTN_NAP_NODES];
    attn_nap_reach(d, node, reached);
    for (int i = 0; i <= node; i++) {
        if (!reached[i]) continue;
        attn_nap_node n = d->node[i];
        for (int j = 0; j <= ATTN_NAP_PARAMS; j++)
            if (n.arg[j] >= 0) {
                if (to[n.arg[j]] == ATTN_NAP_FULL) return ATTN_NAP_FULL;
                n.arg[j] = (int16_t)to[n.arg[j]];
            }
        if (n.op == ATTN_NAP_USER) {
            int args[ATTN_NAP_PARAMS] = { n.arg[0], n.arg[1], n.arg[2], n.arg[3] };
            to[i] = attn_nap_user(d, n.which, n.over, args, n.arg[ATTN_NAP_PARAMS]);
        } else if (attn_nap_is_reduction(n.op))
            to[i] = reduced(d, &n);
        else
            to[i] = n.arg[0] >= 0 ? attn_nap_apply(d, n.op, n.arg[0], n.arg[1], n.arg[2]) : i;
        if (to[i] == ATTN_NAP_FULL) return ATTN_NAP_FULL;
    }
    return to[node];
}
