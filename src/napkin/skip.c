/* Chunks that a mask leaves nothing of; see derive.h.
 *
 * A condition guards a pass if everything that accrues in it is left as it was by elements for which the condition is
 * false: 0 to a sum, minus infinity to a maximum. This is found by putting false in its place: what where() then
 * chooses, and what becomes of infinities and zeros, for other values that are finite. A chunk for which a guard holds
 * nowhere is skipped. Whether it does is asked of the bounds of its sides, which indices, numbers and sizes have;
 * guards of others are none. */
#include <math.h>
#include <string.h>

#include "napkin/derive.h"

/* ---- what is left without the condition --------------------------------------------------------- */

/* The value of a map where it is the same whatever its unknown (NaN) arguments are, as long as these are finite. */
static double fold(attn_nap_op op, double a, double b, double c)
{
    bool finite = isfinite(a) && isfinite(b);
    switch (op) {
    case ATTN_NAP_ADD:
        return isinf(a) ? a : isinf(b) ? b : a + b;
    case ATTN_NAP_SUB:
        return isinf(a) ? a : isinf(b) ? -b : a - b;
    case ATTN_NAP_MUL:
        if (finite || (isinf(a) && b > 0) || (isinf(b) && a > 0)) return a * b;
        return a == 0 || b == 0 ? 0 : NAN;
    case ATTN_NAP_DIV:
        return a == 0 ? 0 : finite || (isinf(a) && b > 0) ? a / b : NAN;
    case ATTN_NAP_NEG:
        return -a;
    case ATTN_NAP_EXP:
        return exp(a);
    case ATTN_NAP_SQRT:
        return sqrt(a);
    case ATTN_NAP_WHERE:
        return isnan(a) ? (b == c ? b : NAN) : a != 0 ? b : c;
    default:
        return NAN;
    }
}

static double without(const attn_diagram *d, int node, int condition)
{
    double value[ATTN_NAP_NODES];
    for (int i = 0; i <= node; i++) {
        const attn_nap_node *n = &d->node[i];
        if (i == condition)
            value[i] = 0;
        else if (n->op == ATTN_NAP_NUMBER)
            value[i] = n->value;
        else if (n->op == ATTN_NAP_SIZE)
            value[i] = (double)d->axis[n->which < d->axes ? n->which : 0].size;
        else if (n->op < ATTN_NAP_NUMBER)
            value[i] = fold(n->op, value[n->arg[0]], n->arg[1] >= 0 ? value[n->arg[1]] : 0,
                            n->arg[2] >= 0 ? value[n->arg[2]] : 0);
        else
            value[i] = NAN;
    }
    return value[node];
}

static bool leaves_alone(const attn_diagram *d, int reduction, int condition)
{
    const attn_nap_node *n = &d->node[reduction];
    double value = without(d, n->arg[0], condition);
    if (n->op == ATTN_NAP_SUM) return value == 0;
    if (n->op == ATTN_NAP_MAX) return value == -INFINITY;
    return n->op == ATTN_NAP_MIN && value == INFINITY;
}

/* ---- bounds ------------------------------------------------------------------------------------- */

static bool has_bounds(const attn_diagram *d, int node)
{
    const attn_nap_node *n = &d->node[node];
    switch (n->op) {
    case ATTN_NAP_NUMBER:
        return isfinite(n->value);
    case ATTN_NAP_SIZE:
    case ATTN_NAP_INDEX:
        return true;
    case ATTN_NAP_ADD:
    case ATTN_NAP_SUB:
        return has_bounds(d, n->arg[0]) && has_bounds(d, n->arg[1]);
    case ATTN_NAP_NEG:
        return has_bounds(d, n->arg[0]);
    default:
        return false;
    }
}

static bool is_condition(const attn_diagram *d, int node)
{
    const attn_nap_node *n = &d->node[node];
    if (n->op == ATTN_NAP_MUL) return is_condition(d, n->arg[0]) && is_condition(d, n->arg[1]);
    return n->op >= ATTN_NAP_LT && n->op <= ATTN_NAP_EQ && has_bounds(d, n->arg[0]) && has_bounds(d, n->arg[1]);
}

static double bound(const attn_diagram *d, int node, bool upper, const double *low, const double *high)
{
    const attn_nap_node *n = &d->node[node];
    if (n->op == ATTN_NAP_NUMBER) return n->value;
    if (n->op == ATTN_NAP_SIZE) return (double)d->axis[n->which].size;
    if (n->op == ATTN_NAP_INDEX) return upper ? high[n->which] : low[n->which];
    if (n->op == ATTN_NAP_NEG) return -bound(d, n->arg[0], !upper, low, high);
    double a = bound(d, n->arg[0], upper, low, high),
           b = bound(d, n->arg[1], upper != (n->op == ATTN_NAP_SUB), low, high);
    return n->op == ATTN_NAP_ADD ? a + b : a - b;
}

static bool may_hold(const attn_diagram *d, int node, const double *low, const double *high)
{
    const attn_nap_node *n = &d->node[node];
    if (n->op == ATTN_NAP_MUL) return may_hold(d, n->arg[0], low, high) && may_hold(d, n->arg[1], low, high);
    double a = bound(d, n->arg[0], false, low, high), b = bound(d, n->arg[1], true, low, high);
    if (n->op == ATTN_NAP_LT) return a < b;
    if (n->op == ATTN_NAP_LE) return a <= b;
    return a <= b && bound(d, n->arg[0], true, low, high) >= bound(d, n->arg[1], false, low, high);
}

/* ---- guards and what they leave ----------------------------------------------------------------- */

void attn_nap_find_guards(const attn_diagram *d, attn_nap_kernel *k)
{
    k->guards = 0;
    for (int s = 0; s < k->steps; s++)
        if (k->step[s].inside && k->step[s].act == ATTN_NAP_STORE) return;
    for (int node = 0; node < d->nodes && k->guards < ATTN_NAP_GUARDS && k->accruals > 0; node++) {
        int condition = d->node[node].arg[0];
        if (d->node[node].op != ATTN_NAP_WHERE || !(d->node[condition].axes >> k->stream & 1)) continue;
        bool good = is_condition(d, condition);
        for (int i = 0; i < k->accruals && good; i++)
            good = leaves_alone(d, k->accrual[i].node, condition);
        for (int i = 0; i < k->guards; i++)
            good &= k->guard[i] != condition;
        if (good) k->guard[k->guards++] = condition;
    }
}

/* The share of tiles in which no guard fails everywhere. Where they are very many, of tiles twice as large, and so on.
 */
double attn_nap_density(const attn_diagram *d, const attn_nap_kernel *k, const int64_t *tile)
{
    int64_t step[ATTN_NAP_AXES];
    double low[ATTN_NAP_AXES] = { 0 }, high[ATTN_NAP_AXES] = { 0 }, all = 0, left = 0;
    uint32_t axes = 0;
    if (!k->guards) return 1;
    for (int i = 0; i < k->guards; i++)
        axes |= d->node[k->guard[i]].axes;
    for (int64_t coarser = 1; all == 0 || all > 1e5; coarser *= 2) {
        all = 1;
        for (int a = 0; a < d->axes; a++) {
            step[a] = tile[a] * coarser;
            if (axes >> a & 1) all *= ceil((double)d->axis[a].size / (double)step[a]);
        }
    }
    for (double i = 0; i < all; i++) {
        double rest = i;
        bool holds = true;
        for (int a = 0; a < d->axes; a++) {
            if (!(axes >> a & 1)) continue;
            double count = ceil((double)d->axis[a].size / (double)step[a]), at = fmod(rest, count);
            low[a] = at * (double)step[a];
            high[a] = fmin(low[a] + (double)step[a], (double)d->axis[a].size) - 1;
            rest = floor(rest / count);
        }
        for (int g = 0; g < k->guards && holds; g++)
            holds = may_hold(d, k->guard[g], low, high);
        left += holds;
    }
    return left / all;
}
