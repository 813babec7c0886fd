/* Terms of .nap files:
 *
 *     term    = sum [("<" | "<=" | "==") sum]
 *     sum     = product {("+" | "-") product}
 *     product = factor {("*" | "/") factor}
 *     factor  = "-" factor | number | "inf" | "(" term ")" | AXIS | PARAM | "size" "(" AXIS ")"
 *             | MAP "(" term {"," term} ")" | REDUCTION "[" AXIS {"," AXIS} "]" product
 *             | ACCUMULATOR "[" AXIS "]" "(" term {"," term} ")" | ARRAY ["[" AXIS {"," AXIS} "]"]
 *
 * A reduction takes all of the product after it. An axis is its own index. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "napkin/parse.h"

enum { DEPTH_MOST = 100 };

static int parse_product(attn_nap_parser *p);

/* Notices that the diagram is full. */
static int made(attn_nap_parser *p, int node)
{
    if (node == ATTN_NAP_FULL)
        attn_nap_stop(p, &p->token, "the diagram is too large: it has more than 2048 terms, or one of more than 20000");
    return p->failed ? ATTN_NAP_FULL : node;
}

static int apply(attn_nap_parser *p, attn_nap_op op, int a, int b)
{
    return made(p, attn_nap_apply(p->diagram, op, a, b, -1));
}

/* "(" term {"," term} ")" */
static bool parse_arguments(attn_nap_parser *p, int count, int *args)
{
    char text[40];
    snprintf(text, sizeof text, "%d argument%s", count, count > 1 ? "s" : "");
    attn_nap_want(p, "(");
    for (int i = 0; i < count && !p->failed; i++) {
        if (i && !attn_nap_take(p, ",")) attn_nap_expected(p, text);
        args[i] = attn_nap_parse_term(p);
    }
    if (!attn_nap_take(p, ")")) attn_nap_expected(p, "')'");
    return !p->failed;
}

static uint32_t parse_axes(attn_nap_parser *p)
{
    uint32_t axes = 0;
    attn_nap_want(p, "[");
    do {
        attn_nap_token where = p->token;
        int axis = attn_nap_take_axis(p);
        if (p->failed) return 0;
        if (axes >> axis & 1) attn_nap_stop(p, &where, "this axis is here twice");
        axes |= 1u << axis;
    } while (attn_nap_take(p, ","));
    attn_nap_want(p, "]");
    return axes;
}

static int mean_of(attn_diagram *d, uint32_t over, int body)
{
    int mean = attn_nap_reduce(d, ATTN_NAP_SUM, over, body);
    for (int a = 0; a <= ATTN_NAP_STREAM; a++)
        if (over >> a & 1) mean = attn_nap_apply(d, ATTN_NAP_DIV, mean, attn_nap_leaf(d, ATTN_NAP_SIZE, a), -1);
    return mean;
}

/* What follows the name of a reduction. The normalised contractions are short for what they are made of. */
static int parse_reduction(attn_nap_parser *p, const char *name, attn_nap_token where)
{
    attn_diagram *d = p->diagram;
    uint32_t over = parse_axes(p);
    int body = parse_product(p);
    if (p->failed) return ATTN_NAP_FULL;
    if (over & ~d->node[body].axes) {
        attn_nap_stop(p, &where, "what is reduced does not span all axes that it is reduced over");
        return ATTN_NAP_FULL;
    }
    if (!strcmp(name, "sum")) return made(p, attn_nap_reduce(d, ATTN_NAP_SUM, over, body));
    if (!strcmp(name, "max")) return made(p, attn_nap_reduce(d, ATTN_NAP_MAX, over, body));
    if (!strcmp(name, "min")) return made(p, attn_nap_reduce(d, ATTN_NAP_MIN, over, body));
    if (!strcmp(name, "mean")) return made(p, mean_of(d, over, body));
    int most = attn_nap_reduce(d, ATTN_NAP_MAX, over, body);
    int e = attn_nap_apply(d, ATTN_NAP_EXP, attn_nap_apply(d, ATTN_NAP_SUB, body, most, -1), -1, -1);
    int sum = attn_nap_reduce(d, ATTN_NAP_SUM, over, e);
    if (!strcmp(name, "softmax")) return apply(p, ATTN_NAP_DIV, e, sum);
    return apply(p, ATTN_NAP_ADD, most, attn_nap_apply(d, ATTN_NAP_LOG, sum, -1, -1));
}

/* What follows the name of an array or definition, which is used along other axes of the same sizes. */
static void parse_use(attn_nap_parser *p, const attn_nap_array *array, int8_t *index)
{
    const attn_diagram *d = p->diagram;
    char text[160];
    for (int i = 0; i < array->rank; i++) {
        if (!attn_nap_take(p, i ? "," : "[")) {
            snprintf(text, sizeof text, "'%s' and an axis, for %s has %d", i ? "," : "[", array->name, array->rank);
            attn_nap_expected(p, text);
        }
        attn_nap_token where = p->token;
        int axis = attn_nap_take_axis(p);
        if (p->failed) return;
        if (axis == ATTN_NAP_STREAM || d->axis[axis].root != d->axis[array->index[i]].root) {
            snprintf(text, sizeof text, "%s has %s here, and only axes declared to be as long can take its place",
                     array->name, d->axis[array->index[i]].name);
            attn_nap_stop(p, &where, text);
        }
        for (int j = 0; j < i; j++)
            if (index[j] == axis) attn_nap_stop(p, &where, "this axis is here twice");
        index[i] = (int8_t)axis;
    }
    if (array->rank) attn_nap_want(p, "]");
}

static int parse_defined(attn_nap_parser *p, const attn_nap_definition *definition)
{
    attn_diagram *d = p->diagram;
    attn_nap_token where = p->token;
    int8_t index[ATTN_NAP_RANK], to[ATTN_NAP_STREAM + 1];
    uint32_t left = attn_nap_reduced(d, definition->node) & ~d->node[definition->node].axes, taken = 0;
    attn_nap_next(p);
    parse_use(p, &definition->array, index);
    if (p->failed) return ATTN_NAP_FULL;
    for (int a = 0; a <= ATTN_NAP_STREAM; a++)
        to[a] = (int8_t)a;
    for (int i = 0; i < definition->array.rank; i++) {
        to[definition->array.index[i]] = index[i];
        taken |= 1u << index[i];
    }
    if (left & taken) {
        attn_nap_stop(p, &where, "an axis here is one that its definition sums over: use another of the same size");
        return ATTN_NAP_FULL;
    }
    return made(p, attn_nap_replace(d, definition->node, NULL, to));
}

static int parse_map_use(attn_nap_parser *p, const attn_nap_map *map)
{
    int args[ATTN_NAP_PARAMS], param[ATTN_NAP_ALL_PARAMS];
    attn_nap_next(p);
    if (!parse_arguments(p, map->params, args)) return ATTN_NAP_FULL;
    for (int i = 0; i < ATTN_NAP_ALL_PARAMS; i++)
        param[i] = i >= ATTN_NAP_MAP_PARAM && i < ATTN_NAP_MAP_PARAM + map->params ? args[i - ATTN_NAP_MAP_PARAM] : -1;
    return made(p, attn_nap_replace(p->diagram, map->body, param, NULL));
}

static int parse_accumulator_use(attn_nap_parser *p, int which)
{
    attn_diagram *d = p->diagram;
    const attn_nap_accumulator *a = &d->accumulator[which];
    int param[ATTN_NAP_ALL_PARAMS], axis = 0;
    int8_t to[ATTN_NAP_STREAM + 1];
    attn_nap_token where = p->token;
    memset(param, -1, sizeof param);
    attn_nap_next(p);
    uint32_t over = parse_axes(p);
    if (!parse_arguments(p, a->params, param)) return ATTN_NAP_FULL;
    if (over & (over - 1)) attn_nap_stop(p, &where, "an accumulator runs along one axis");
    for (int i = 0; i < a->params && !p->failed; i++)
        if (over & ~d->node[param[i]].axes) attn_nap_stop(p, &where, "every argument must span the accumulator's axis");
    if (p->failed) return ATTN_NAP_FULL;
    while (!(over >> axis & 1))
        axis++;
    for (int i = 0; i <= ATTN_NAP_STREAM; i++)
        to[i] = (int8_t)(i == ATTN_NAP_STREAM ? axis : i);
    int meaning = made(p, attn_nap_replace(d, attn_nap_replace(d, a->meaning, NULL, to), param, NULL));
    return p->failed ? ATTN_NAP_FULL : made(p, attn_nap_user(d, which, over, param, meaning));
}

static int parse_size(attn_nap_parser *p)
{
    attn_nap_want(p, "(");
    int axis = attn_nap_take_axis(p);
    attn_nap_want(p, ")");
    return p->failed ? ATTN_NAP_FULL : made(p, attn_nap_leaf(p->diagram, ATTN_NAP_SIZE, axis));
}

static int parse_function(attn_nap_parser *p, attn_nap_op op)
{
    int args[3] = { -1, -1, -1 };
    attn_nap_next(p);
    if (!parse_arguments(p, attn_nap_arguments(op), args)) return ATTN_NAP_FULL;
    return made(p, attn_nap_apply(p->diagram, op, args[0], args[1], args[2]));
}

static int parse_word(attn_nap_parser *p)
{
    static const char *const reductions[] = { "sum", "max", "min", "mean", "softmax", "logsumexp" };
    attn_diagram *d = p->diagram;
    attn_nap_token where = p->token;
    int i;
    for (i = 0; i < 6; i++)
        if (attn_nap_take(p, reductions[i])) return parse_reduction(p, reductions[i], where);
    for (i = ATTN_NAP_EXP; i <= ATTN_NAP_WHERE; i++)
        if (attn_nap_is(p, attn_nap_op_name[i])) return parse_function(p, (attn_nap_op)i);
    if (attn_nap_take(p, "size")) return parse_size(p);
    if (attn_nap_take(p, "inf")) return made(p, attn_nap_number(d, INFINITY));
    for (i = 0; i < ATTN_NAP_ALL_PARAMS; i++)
        if (attn_nap_take(p, p->param[i])) return made(p, attn_nap_leaf(d, ATTN_NAP_PARAM, i));
    if ((i = attn_nap_find(p, ATTN_NAP_A_MAP)) >= 0) return parse_map_use(p, &d->map[i]);
    if ((i = attn_nap_find(p, ATTN_NAP_AN_ACCUMULATOR)) >= 0) return parse_accumulator_use(p, i);
    if ((i = attn_nap_find(p, ATTN_NAP_A_DEFINITION)) >= 0) return parse_defined(p, &d->definition[i]);
    if ((i = attn_nap_find(p, ATTN_NAP_AN_ARRAY)) >= 0) {
        int8_t index[ATTN_NAP_RANK];
        attn_nap_next(p);
        parse_use(p, &d->array[i], index);
        return p->failed ? ATTN_NAP_FULL : made(p, attn_nap_element(d, i, index));
    }
    if ((i = attn_nap_find(p, ATTN_NAP_AN_AXIS)) >= 0) {
        attn_nap_next(p);
        return made(p, attn_nap_leaf(d, ATTN_NAP_INDEX, i));
    }
    attn_nap_expected(p, "a number, a function, a reduction, or the name of something defined above");
    return ATTN_NAP_FULL;
}

static int parse_factor(attn_nap_parser *p)
{
    int node = ATTN_NAP_FULL;
    if (++p->depth > DEPTH_MOST) attn_nap_stop(p, &p->token, "terms are nested too deeply");
    if (attn_nap_take(p, "-"))
        node = apply(p, ATTN_NAP_NEG, parse_factor(p), -1);
    else if (attn_nap_take(p, "(")) {
        node = attn_nap_parse_term(p);
        attn_nap_want(p, ")");
    } else if (p->token.kind == ATTN_NAP_LITERAL) {
        node = made(p, attn_nap_number(p->diagram, p->token.value));
        attn_nap_next(p);
    } else if (p->token.kind == ATTN_NAP_WORD)
        node = parse_word(p);
    else
        attn_nap_expected(p, "a term");
    p->depth--;
    return node;
}

static int parse_product(attn_nap_parser *p)
{
    int node = parse_factor(p);
    for (;;) {
        if (attn_nap_take(p, "*"))
            node = apply(p, ATTN_NAP_MUL, node, parse_factor(p));
        else if (attn_nap_take(p, "/"))
            node = apply(p, ATTN_NAP_DIV, node, parse_factor(p));
        else
            return node;
    }
}

static int parse_sum(attn_nap_parser *p)
{
    int node = parse_product(p);
    for (;;) {
        if (attn_nap_take(p, "+"))
            node = apply(p, ATTN_NAP_ADD, node, parse_product(p));
        else if (attn_nap_take(p, "-"))
            node = apply(p, ATTN_NAP_SUB, node, parse_product(p));
        else
            return node;
    }
}

int attn_nap_parse_term(attn_nap_parser *p)
{
    int node = parse_sum(p);
    if (attn_nap_take(p, "<")) return apply(p, ATTN_NAP_LT, node, parse_sum(p));
    if (attn_nap_take(p, "<=")) return apply(p, ATTN_NAP_LE, node, parse_sum(p));
    if (attn_nap_take(p, "==")) return apply(p, ATTN_NAP_EQ, node, parse_sum(p));
    return p->failed ? ATTN_NAP_FULL : node;
}
