/* A diagram: what is computed, without how. The terms of the calculus of "FlashAttention on a Napkin", written with
 * indices:
 *
 *     axis h = 16, q = 4096, k = 4096, d = 64, v = d     an axis and its size; v has d's
 *     input Q[h, q, d], K[h, k, d], V[h, k, v] : f16     arrays
 *     S[h, q, k] = sum[d] Q[h, q, d] * K[h, k, d] / sqrt(size(d))
 *     P[h, q, k] = softmax[k] S[h, q, k]
 *     O[h, q, v] = sum[k] P[h, q, k] * V[h, k, v]
 *     output O : f16
 *
 * A term is a number, an element of an array, a map of terms, or a reduction of one over axes; equal terms are one
 * node, so that a node is a value and comparing numbers compares terms. The axes that a node spans say the rest: a
 * function is weaved over every axis that it spans and does not reduce; a contraction is a sum of a product; softmax is
 * the normalised contraction exp(x - max x) / sum exp(x - max x) and nothing more.
 *
 * Composition is by value: a definition's name is shorthand for its term. Nodes are only added, arguments before those
 * who use them. docs/NAPKIN.md has the grammar. */
#ifndef ATTN_NAPKIN_DIAGRAM_H
#define ATTN_NAPKIN_DIAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

enum {
    ATTN_NAP_AXES = 12,              /* at most; a set of axes is a bit each */
    ATTN_NAP_STREAM = ATTN_NAP_AXES, /* the axis that an accumulator runs along: what its params span */
    ATTN_NAP_RANK = 6,
    ATTN_NAP_ARRAYS = 32,
    ATTN_NAP_DEFINITIONS = 64,
    ATTN_NAP_MAPS = 16, /* and accumulators */
    ATTN_NAP_PARAMS = 4,
    ATTN_NAP_STATES = 4,
    ATTN_NAP_NODES = 2048,
    ATTN_NAP_LENGTH = 20000, /* nodes of a term written out, shared ones each time */
    ATTN_NAP_NAME = 24,
    ATTN_NAP_STATE = ATTN_NAP_PARAMS,                      /* PARAM: the first state of an accumulator */
    ATTN_NAP_MAP_PARAM = ATTN_NAP_STATE + ATTN_NAP_STATES, /* PARAM: the first of a map */
    ATTN_NAP_ALL_PARAMS = ATTN_NAP_MAP_PARAM + ATTN_NAP_PARAMS
};

/* op: name in diagrams and C, arguments, and what one application costs in operations and exponentials. Names that are
 * no words are written between or before their arguments. */
/* clang-format off */
#define ATTN_NAP_OPS(X)         \
    X(ADD, "+", 2, 1, 0)        \
    X(SUB, "-", 2, 1, 0)        \
    X(MUL, "*", 2, 1, 0)        \
    X(DIV, "/", 2, 4, 0)        \
    X(NEG, "-", 1, 1, 0)        \
    X(LT, "<", 2, 1, 0)         \
    X(LE, "<=", 2, 1, 0)        \
    X(EQ, "==", 2, 1, 0)        \
    X(EXP, "exp", 1, 0, 1)      \
    X(LOG, "log", 1, 0, 1)      \
    X(SQRT, "sqrt", 1, 4, 0)    \
    X(TANH, "tanh", 1, 2, 1)    \
    X(ERF, "erf", 1, 8, 1)      \
    X(ABS, "abs", 1, 1, 0)      \
    X(LARGER, "larger", 2, 1, 0)   \
    X(SMALLER, "smaller", 2, 1, 0) \
    X(WHERE, "where", 3, 1, 0)
/* clang-format on */

typedef enum attn_nap_op {
#define X(op, name, arguments, operations, exponentials) ATTN_NAP_##op,
    ATTN_NAP_OPS(X)
#undef X
        ATTN_NAP_NUMBER,
    ATTN_NAP_SIZE,    /* of axis */
    ATTN_NAP_INDEX,   /* along axis, from 0 */
    ATTN_NAP_PARAM,   /* of a map or an accumulator: never in a definition */
    ATTN_NAP_ELEMENT, /* of array */
    ATTN_NAP_SUM,     /* from here on: reductions of arg[0] over `over` */
    ATTN_NAP_MAX,
    ATTN_NAP_MIN,
    ATTN_NAP_USER /* by the accumulator `which` of arg[0] ... ; arg[ATTN_NAP_PARAMS] is what it means */
} attn_nap_op;

typedef struct attn_nap_node {
    attn_nap_op op;
    int16_t which;                    /* axis, param, array or accumulator */
    int16_t arg[ATTN_NAP_PARAMS + 1]; /* nodes; -1: none */
    int8_t index[ATTN_NAP_RANK];      /* ELEMENT: axes; -1: none */
    uint32_t axes, over;              /* spanned; reduced */
    int length;
    double value;
} attn_nap_node;

typedef enum attn_nap_type { ATTN_NAP_F64, ATTN_NAP_F32, ATTN_NAP_F16, ATTN_NAP_BF16, ATTN_NAP_F8 } attn_nap_type;

typedef struct attn_nap_axis {
    char name[ATTN_NAP_NAME];
    int64_t size, multiple; /* tiles are multiples of it */
    int root;               /* the axis that it took its size from, or itself */
} attn_nap_axis;

typedef struct attn_nap_array {
    char name[ATTN_NAP_NAME];
    int rank;
    int8_t index[ATTN_NAP_RANK];
    attn_nap_type type;
    char level[ATTN_NAP_NAME]; /* where it lies; "": in memory */
} attn_nap_array;

typedef struct attn_nap_definition {
    attn_nap_array array;
    int node; /* as written */
    bool output;
} attn_nap_definition;

/* map NAME(params) = body */
typedef struct attn_nap_map {
    char name[ATTN_NAP_NAME];
    int params, body;
} attn_nap_map;

/* accumulator NAME[axis](params): a state, what starts it, what an element makes of it, what it comes to; and the
 * reduction that this is meant to be, which is tested. */
typedef struct attn_nap_accumulator {
    char name[ATTN_NAP_NAME];
    int params, states;
    char state[ATTN_NAP_STATES][ATTN_NAP_NAME];
    int start[ATTN_NAP_STATES], step[ATTN_NAP_STATES]; /* all steps see the old states */
    int result, meaning;
} attn_nap_accumulator;

typedef struct attn_diagram {
    int axes, arrays, definitions, maps, accumulators, nodes;
    attn_nap_axis axis[ATTN_NAP_AXES];
    attn_nap_array array[ATTN_NAP_ARRAYS];
    attn_nap_definition definition[ATTN_NAP_DEFINITIONS];
    attn_nap_map map[ATTN_NAP_MAPS];
    attn_nap_accumulator accumulator[ATTN_NAP_MAPS];
    attn_nap_node node[ATTN_NAP_NODES];
    int16_t chain[ATTN_NAP_NODES], bucket[512]; /* equal nodes are one: hash chains */
} attn_diagram;

/* ---- terms (term.c); full is what adding a node gives when there is no room or it is too long, and what comes of it
 * stays so ---- */

enum { ATTN_NAP_FULL = -2 };

extern const char *const attn_nap_op_name[];
int attn_nap_arguments(attn_nap_op op); /* of a map */
bool attn_nap_is_reduction(attn_nap_op op);

int attn_nap_number(attn_diagram *d, double value);
int attn_nap_leaf(attn_diagram *d, attn_nap_op op, int which); /* SIZE, INDEX, PARAM */
int attn_nap_element(attn_diagram *d, int array, const int8_t *index);
int attn_nap_apply(attn_diagram *d, attn_nap_op op, int a, int b, int c);
int attn_nap_reduce(attn_diagram *d, attn_nap_op op, uint32_t over, int body);
int attn_nap_user(attn_diagram *d, int accumulator, uint32_t over, const int *args, int meaning);

/* The term with params and axes replaced: param[i] for PARAM i, axis[a] for axis a, ATTN_NAP_STREAM's too; either may
 * be NULL. */
int attn_nap_replace(attn_diagram *d, int node, const int *param, const int8_t *axis);

/* Marks `node` and all that it is made of, of the numbers up to its own. */
void attn_nap_reach(const attn_diagram *d, int node, bool *reached);

/* Whether `node` has `part` in it. */
bool attn_nap_contains(const attn_diagram *d, int node, int part);

/* Axes that reductions in the term reduce. */
uint32_t attn_nap_reduced(const attn_diagram *d, int node);

double attn_nap_count(const attn_diagram *d, uint32_t axes); /* the product of the sizes */
double attn_nap_type_bytes(attn_nap_type type);
const char *attn_nap_type_name(attn_nap_type type);

/* ---- rewriting (normal.c) ---- */

/* The factors of a term, or the summands: signed, or inverted, where `minus`. */
typedef struct attn_nap_parts {
    int count;
    struct attn_nap_part {
        int node;
        bool minus;
    } part[64];
} attn_nap_parts;

/* False where a term has more than 64. */
bool attn_nap_factors(const attn_diagram *d, int node, attn_nap_parts *parts);
bool attn_nap_summands(const attn_diagram *d, int node, attn_nap_parts *parts);

/* The same value in normal form: out of a sum go all factors, out of a maximum or minimum all summands, that do not
 * span what is reduced. This is the rule of the normalised contraction: sum[k] (a(x) / b) y = (sum[k] a(x) y) / b. */
int attn_nap_normal(attn_diagram *d, int node);

/* ---- values (value.c): the definition, element by element, in double precision ---- */

typedef struct attn_nap_values {
    const attn_diagram *diagram;
    int64_t size[ATTN_NAP_AXES + 1], base[ATTN_NAP_AXES + 1]; /* indices start at base */
    int64_t whole[ATTN_NAP_AXES + 1];                         /* what size() of an axis says; 0: its size */
    const double *input[ATTN_NAP_ARRAYS];                     /* packed, in the order of the array's axes */
    double *table[ATTN_NAP_NODES];                            /* of nodes known: by their axes in order; to be freed */
    bool f32; /* every step is rounded to f32: what definitions come to that are computed one after the other */
} attn_nap_values;

/* Fills the table of `node` and of reductions on the way to it. */
attn_status attn_nap_tabulate(attn_nap_values *values, int node);

/* A term at one index; the reductions in it have tables. */
double attn_nap_value(const attn_nap_values *values, int node, const int64_t *at);

void attn_nap_forget(attn_nap_values *values);

/* ---- reading (lex.c, parse.c) ---- */

/* The text of a .nap file, checked: names, indices, sizes. ATTN_INVALID: what was expected or is wrong, after
 * "WHERE:LINE:COLUMN: ". The caller frees the diagram with free(). */
attn_status attn_diagram_parse(const char *where, const char *text, size_t size, attn_diagram **diagram);

#endif
