/* Terms; see diagram.h. Arguments stand before those who use them, so one pass over the numbers replaces recursion,
 * however much a term shares. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "napkin/diagram.h"

const char *const attn_nap_op_name[] = {
#define X(op, name, arguments, operations, exponentials) name,
    ATTN_NAP_OPS(X)
#undef X
        "number",
    "size",
    "index",
    "param",
    "element",
    "sum",
    "max",
    "min",
    "user"
};

int attn_nap_arguments(attn_nap_op op)
{
    static const int arguments[] = {
#define X(op, name, arguments, operations, exponentials) arguments,
        ATTN_NAP_OPS(X)
#undef X
    };
    return op < ATTN_NAP_NUMBER ? arguments[op] : 0;
}

bool attn_nap_is_reduction(attn_nap_op op)
{
    return op >= ATTN_NAP_SUM;
}

static uint32_t hash_of(const attn_nap_node *n)
{
    uint64_t bits, h = (uint64_t)n->op * 31 + (uint64_t)(n->which + 1);
    memcpy(&bits, &n->value, sizeof bits);
    h = (h ^ bits) * 0x9e3779b97f4a7c15u ^ n->over;
    for (int i = 0; i <= ATTN_NAP_PARAMS; i++)
        h = (h ^ (uint64_t)(n->arg[i] + 1)) * 0x100000001b3u;
    for (int i = 0; i < ATTN_NAP_RANK; i++)
        h = (h ^ (uint64_t)(n->index[i] + 1)) * 0x100000001b3u;
    return (uint32_t)(h >> 32) % 512;
}

static bool same(const attn_nap_node *a, const attn_nap_node *b)
{
    return a->op == b->op && a->which == b->which && a->over == b->over && !memcmp(a->arg, b->arg, sizeof a->arg) &&
           !memcmp(a->index, b->index, sizeof a->index) && !memcmp(&a->value, &b->value, sizeof a->value);
}

/* chain and bucket hold numbers + 1, so that a zeroed diagram is an empty one. */
static int add(attn_diagram *d, attn_nap_node node)
{
    for (int i = 0; i <= ATTN_NAP_PARAMS; i++)
        if (node.arg[i] == ATTN_NAP_FULL) return ATTN_NAP_FULL;
    int16_t *bucket = &d->bucket[hash_of(&node)];
    for (int i = *bucket; i; i = d->chain[i - 1])
        if (same(&d->node[i - 1], &node)) return i - 1;
    if (d->nodes == ATTN_NAP_NODES) return ATTN_NAP_FULL;
    node.length = 1;
    for (int i = 0; i <= ATTN_NAP_PARAMS; i++) {
        if (node.arg[i] < 0) continue;
        node.axes |= d->node[node.arg[i]].axes;
        node.length += d->node[node.arg[i]].length;
    }
    node.axes &= ~node.over;
    if (node.length > ATTN_NAP_LENGTH) return ATTN_NAP_FULL;
    d->node[d->nodes] = node;
    d->chain[d->nodes] = *bucket;
    *bucket = (int16_t)++d->nodes;
    return d->nodes - 1;
}

static attn_nap_node blank(attn_nap_op op)
{
    attn_nap_node node = { .op = op, .which = -1 };
    memset(node.arg, -1, sizeof node.arg);
    memset(node.index, -1, sizeof node.index);
    return node;
}

int attn_nap_number(attn_diagram *d, double value)
{
    attn_nap_node node = blank(ATTN_NAP_NUMBER);
    node.value = value;
    return add(d, node);
}

int attn_nap_leaf(attn_diagram *d, attn_nap_op op, int which)
{
    attn_nap_node node = blank(op);
    node.which = (int16_t)which;
    if (op == ATTN_NAP_INDEX) node.axes = 1u << which;
    if (op == ATTN_NAP_PARAM && which < ATTN_NAP_STATE) node.axes = 1u << ATTN_NAP_STREAM;
    return add(d, node);
}

int attn_nap_element(attn_diagram *d, int array, const int8_t *index)
{
    attn_nap_node node = blank(ATTN_NAP_ELEMENT);
    node.which = (int16_t)array;
    for (int i = 0; i < d->array[array].rank; i++) {
        node.index[i] = index[i];
        node.axes |= 1u << index[i];
    }
    return add(d, node);
}

int attn_nap_apply(attn_diagram *d, attn_nap_op op, int a, int b, int c)
{
    attn_nap_node node = blank(op);
    node.arg[0] = (int16_t)a;
    node.arg[1] = (int16_t)b;
    node.arg[2] = (int16_t)c;
    return add(d, node);
}

int attn_nap_reduce(attn_diagram *d, attn_nap_op op, uint32_t over, int body)
{
    attn_nap_node node = blank(op);
    node.over = over;
    node.arg[0] = (int16_t)body;
    return over ? add(d, node) : body;
}

int attn_nap_user(attn_diagram *d, int accumulator, uint32_t over, const int *args, int meaning)
{
    attn_nap_node node = blank(ATTN_NAP_USER);
    node.which = (int16_t)accumulator;
    node.over = over;
    for (int i = 0; i < d->accumulator[accumulator].params; i++)
        node.arg[i] = (int16_t)args[i];
    node.arg[ATTN_NAP_PARAMS] = (int16_t)meaning;
    return add(d, node);
}

void attn_nap_reach(const attn_diagram *d, int node, bool *reached)
{
    memset(reached, 0, (size_t)(node + 1) * sizeof *reached);
    reached[node] = true;
    for (int i = node; i >= 0; i--)
        for (int j = 0; j <= ATTN_NAP_PARAMS && reached[i]; j++)
            if (d->node[i].arg[j] >= 0) reached[d->node[i].arg[j]] = true;
}

static int replaced(attn_diagram *d, int i, const int *to, const int *param, const int8_t *axis)
{
    attn_nap_node node = d->node[i];
    if (node.op == ATTN_NAP_PARAM && param) return param[node.which];
    for (int j = 0; j <= ATTN_NAP_PARAMS; j++)
        if (node.arg[j] >= 0) {
            if (to[node.arg[j]] == ATTN_NAP_FULL) return ATTN_NAP_FULL;
            node.arg[j] = (int16_t)to[node.arg[j]];
        }
    if (node.op != ATTN_NAP_PARAM) node.axes = 0;
    if (axis) {
        uint32_t over = node.over;
        if (node.op == ATTN_NAP_SIZE || node.op == ATTN_NAP_INDEX) node.which = axis[node.which];
        node.over = 0;
        for (int a = 0; over >> a; a++)
            if (over >> a & 1) node.over |= 1u << axis[a];
        for (int j = 0; j < ATTN_NAP_RANK; j++)
            if (node.index[j] >= 0) node.index[j] = axis[node.index[j]];
    }
    if (node.op == ATTN_NAP_INDEX) node.axes = 1u << node.which;
    for (int j = 0; j < ATTN_NAP_RANK; j++)
        if (node.index[j] >= 0) node.axes |= 1u << node.index[j];
    return add(d, node);
}

int attn_nap_replace(attn_diagram *d, int node, const int *param, const int8_t *axis)
{
    if (node < 0) return node;
    bool reached[ATTN_NAP_NODES];
    int to[ATTN_NAP_NODES];
    attn_nap_reach(d, node, reached);
    for (int i = 0; i <= node; i++)
        if (reached[i]) to[i] = replaced(d, i, to, param, axis);
    return to[node];
}

bool attn_nap_contains(const attn_diagram *d, int node, int part)
{
    bool reached[ATTN_NAP_NODES];
    if (part > node) return false;
    attn_nap_reach(d, node, reached);
    return reached[part];
}

uint32_t attn_nap_reduced(const attn_diagram *d, int node)
{
    bool reached[ATTN_NAP_NODES];
    uint32_t axes = 0;
    attn_nap_reach(d, node, reached);
    for (int i = 0; i <= node; i++)
        if (reached[i]) axes |= d->node[i].over;
    return axes;
}

double attn_nap_count(const attn_diagram *d, uint32_t axes)
{
    double count = 1;
    for (int a = 0; a < d->axes; a++)
        if (axes >> a & 1) count *= (double)d->axis[a].size;
    return count;
}

static const struct {
    const char *name;
    double bytes;
} types[] = { { "f64", 8 }, { "f32", 4 }, { "f16", 2 }, { "bf16", 2 }, { "f8", 1 } };

double attn_nap_type_bytes(attn_nap_type type)
{
    return types[type].bytes;
}

const char *attn_nap_type_name(attn_nap_type type)
{
    return types[type].name;
}
