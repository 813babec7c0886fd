/* Reading .nap files; see diagram.h for what comes of it and docs/NAPKIN.md for the grammar. The first thing wrong is
 * what the message says; after it the lexer gives the end, so that everything returns by itself. */
#include "napkin/parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { SIZE_MOST = 1 << 30 };

/* ---- tokens --------------------------------------------------------------------------------- */

void attn_nap_stop(attn_nap_parser *p, const attn_nap_token *where, const char *what)
{
    if (!p->failed) attn_fail(ATTN_INVALID, "%.200s:%d:%d: %s", p->where, where->line, where->column, what);
    p->failed = true;
    p->token.kind = ATTN_NAP_END;
    p->token.length = 0;
}

void attn_nap_next(attn_nap_parser *p)
{
    if (!p->failed) attn_nap_lex(&p->lexer, &p->token);
}

void attn_nap_expected(attn_nap_parser *p, const char *what)
{
    char text[160];
    int length = p->token.length < 40 ? p->token.length : 40;
    if (p->token.kind == ATTN_NAP_END)
        snprintf(text, sizeof text, "expected %s, not the end", what);
    else
        snprintf(text, sizeof text, "expected %s, not '%.*s'", what, length, p->token.at);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~') *c = '?';
    attn_nap_stop(p, &p->token, text);
}

bool attn_nap_is(const attn_nap_parser *p, const char *text)
{
    return p->token.kind != ATTN_NAP_END && strlen(text) == (size_t)p->token.length &&
           !memcmp(p->token.at, text, (size_t)p->token.length);
}

bool attn_nap_take(attn_nap_parser *p, const char *text)
{
    if (!attn_nap_is(p, text)) return false;
    attn_nap_next(p);
    return true;
}

void attn_nap_want(attn_nap_parser *p, const char *text)
{
    char quoted[16];
    snprintf(quoted, sizeof quoted, "'%s'", text);
    if (!attn_nap_take(p, text)) attn_nap_expected(p, quoted);
}

/* ---- names ---------------------------------------------------------------------------------- */

static const char *const words[] = { "axis",   "input", "output",  "map",       "accumulator", "start", "step",
                                     "result", "means", "softmax", "logsumexp", "mean",        "sum",   "max",
                                     "min",    "size",  "inf",     "exp",       "log",         "sqrt",  "tanh",
                                     "erf",    "abs",   "larger",  "where",     "smaller",     "at",    "by" };

bool attn_nap_is_reserved(const attn_nap_parser *p)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (attn_nap_is(p, words[i])) return true;
    return false;
}

static bool named(const attn_nap_parser *p, const char *name)
{
    return p->token.kind == ATTN_NAP_WORD && attn_nap_is(p, name);
}

int attn_nap_find(const attn_nap_parser *p, attn_nap_sort sort)
{
    const attn_diagram *d = p->diagram;
    for (int i = 0; i < d->axes && sort == ATTN_NAP_AN_AXIS; i++)
        if (named(p, d->axis[i].name)) return i;
    for (int i = 0; i < d->arrays && sort == ATTN_NAP_AN_ARRAY; i++)
        if (named(p, d->array[i].name)) return i;
    for (int i = 0; i < d->definitions && sort == ATTN_NAP_A_DEFINITION; i++)
        if (named(p, d->definition[i].array.name)) return i;
    for (int i = 0; i < d->maps && sort == ATTN_NAP_A_MAP; i++)
        if (named(p, d->map[i].name)) return i;
    for (int i = 0; i < d->accumulators && sort == ATTN_NAP_AN_ACCUMULATOR; i++)
        if (named(p, d->accumulator[i].name)) return i;
    return -1;
}

static void take_name(attn_nap_parser *p, char *name, const char *what)
{
    if (p->token.kind != ATTN_NAP_WORD || attn_nap_is_reserved(p)) {
        attn_nap_expected(p, what);
        return;
    }
    if (p->token.length >= ATTN_NAP_NAME) attn_nap_stop(p, &p->token, "a name has at most 23 characters");
    for (int sort = 0; sort < ATTN_NAP_SORTS; sort++)
        if (attn_nap_find(p, (attn_nap_sort)sort) >= 0) attn_nap_stop(p, &p->token, "this name is taken");
    memcpy(name, p->token.at, (size_t)p->token.length);
    name[p->token.length] = 0;
    attn_nap_next(p);
}

int attn_nap_take_axis(attn_nap_parser *p)
{
    int axis = attn_nap_find(p, ATTN_NAP_AN_AXIS);
    if (p->stream && named(p, p->stream)) axis = ATTN_NAP_STREAM;
    if (axis < 0)
        attn_nap_expected(p, "an axis");
    else
        attn_nap_next(p);
    return axis;
}

static bool has_room(attn_nap_parser *p, int count, int most, const char *message)
{
    if (count == most) attn_nap_stop(p, &p->token, message);
    return !p->failed;
}

/* ---- statements ----------------------------------------------------------------------------- */

static int64_t take_size(attn_nap_parser *p, const char *what)
{
    double value = p->token.value;
    if (p->token.kind != ATTN_NAP_LITERAL || value < 1 || value > SIZE_MOST || value != floor(value))
        attn_nap_expected(p, what);
    attn_nap_next(p);
    return p->failed ? 1 : (int64_t)value;
}

static void parse_axis(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    do {
        if (!has_room(p, d->axes, ATTN_NAP_AXES, "a diagram has at most 12 axes")) return;
        attn_nap_axis axis = { .root = d->axes, .multiple = 1 };
        char name[ATTN_NAP_NAME] = "";
        take_name(p, name, "the name of an axis");
        memcpy(axis.name, name, sizeof name);
        attn_nap_want(p, "=");
        if (p->token.kind == ATTN_NAP_WORD) {
            int other = attn_nap_take_axis(p);
            if (p->failed) return;
            axis = d->axis[other];
            memcpy(axis.name, name, sizeof name);
        } else
            axis.size = take_size(p, "a size, a whole number from 1 to 2^30 or another axis");
        if (attn_nap_take(p, "by")) axis.multiple = take_size(p, "what tiles are multiples of, from 1 to 2^30");
        if (!p->failed) d->axis[d->axes++] = axis;
    } while (attn_nap_take(p, ","));
}

static void parse_indices(attn_nap_parser *p, attn_nap_array *array)
{
    memset(array->index, -1, sizeof array->index);
    array->rank = 0;
    if (!attn_nap_take(p, "[")) return;
    do {
        attn_nap_token where = p->token;
        int axis = attn_nap_take_axis(p);
        if (p->failed || !has_room(p, array->rank, ATTN_NAP_RANK, "an array has at most 6 axes")) return;
        for (int i = 0; i < array->rank; i++)
            if (array->index[i] == axis) attn_nap_stop(p, &where, "this axis is here twice");
        array->index[array->rank++] = (int8_t)axis;
    } while (attn_nap_take(p, ","));
    attn_nap_want(p, "]");
}

static attn_nap_type parse_type(attn_nap_parser *p)
{
    if (!attn_nap_take(p, ":")) return ATTN_NAP_F32;
    for (int type = 0; type <= ATTN_NAP_F8; type++)
        if (attn_nap_take(p, attn_nap_type_name((attn_nap_type)type))) return (attn_nap_type)type;
    attn_nap_expected(p, "a type, f64, f32, f16, bf16 or f8");
    return ATTN_NAP_F32;
}

/* [":" type] ["at" level], of arrays that are not f32 or do not lie in memory */
static attn_nap_array parse_place(attn_nap_parser *p)
{
    attn_nap_array array = { .type = parse_type(p) };
    if (!attn_nap_take(p, "at")) return array;
    if (p->token.kind != ATTN_NAP_WORD || p->token.length >= ATTN_NAP_NAME) attn_nap_expected(p, "a machine's level");
    memcpy(array.level, p->token.at, (size_t)p->token.length);
    attn_nap_next(p);
    return array;
}

static void set_place(attn_nap_array *array, const attn_nap_array *place)
{
    array->type = place->type;
    memcpy(array->level, place->level, sizeof array->level);
}

static void parse_input(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    int first = d->arrays;
    do {
        if (!has_room(p, d->arrays, ATTN_NAP_ARRAYS, "a diagram has at most 32 inputs")) return;
        attn_nap_array *array = &d->array[d->arrays];
        take_name(p, array->name, "the name of an array");
        if (!attn_nap_is(p, "[")) attn_nap_expected(p, "'['");
        parse_indices(p, array);
        d->arrays++;
    } while (attn_nap_take(p, ","));
    attn_nap_array place = parse_place(p);
    for (int i = first; i < d->arrays; i++)
        set_place(&d->array[i], &place);
}

static void parse_output(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    bool now[ATTN_NAP_DEFINITIONS] = { false };
    do {
        int i = attn_nap_find(p, ATTN_NAP_A_DEFINITION);
        if (i < 0)
            attn_nap_expected(p, "something defined");
        else if (d->definition[i].output)
            attn_nap_stop(p, &p->token, "this is an output already");
        if (p->failed) return;
        d->definition[i].output = now[i] = true;
        attn_nap_next(p);
    } while (attn_nap_take(p, ","));
    attn_nap_array place = parse_place(p);
    for (int i = 0; i < d->definitions; i++)
        if (now[i]) set_place(&d->definition[i].array, &place);
}

static void name_axis(const attn_diagram *d, uint32_t axes, const char *format, char *text, size_t size)
{
    int a = 0;
    while (!(axes >> a & 1))
        a++;
    snprintf(text, size, format, d->axis[a].name);
}

static void parse_definition(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    attn_nap_definition definition = { .array.type = ATTN_NAP_F32 };
    attn_nap_token where = p->token;
    char text[120] = "";
    if (!has_room(p, d->definitions, ATTN_NAP_DEFINITIONS, "a diagram has at most 64 definitions")) return;
    take_name(p, definition.array.name, "axis, input, map, accumulator, output or the name of a definition");
    parse_indices(p, &definition.array);
    attn_nap_want(p, "=");
    definition.node = attn_nap_parse_term(p);
    if (p->failed) return;
    uint32_t listed = 0, spanned = d->node[definition.node].axes;
    for (int i = 0; i < definition.array.rank; i++)
        listed |= 1u << definition.array.index[i];
    if (spanned & ~listed)
        name_axis(d, spanned & ~listed, "the term spans %s, which is not listed on the left", text, sizeof text);
    else if (listed & ~spanned)
        name_axis(d, listed & ~spanned, "%s is listed on the left, but the term does not span it", text, sizeof text);
    if (*text) attn_nap_stop(p, &where, text);
    d->definition[d->definitions++] = definition;
}

/* name {"," name}, as the names of PARAM nodes from `first` on */
static int parse_params(attn_nap_parser *p, int first)
{
    int count = 0;
    attn_nap_want(p, "(");
    do {
        if (!has_room(p, count, ATTN_NAP_PARAMS, "there are at most 4 parameters")) return 0;
        take_name(p, p->param[first + count++], "the name of a parameter");
    } while (attn_nap_take(p, ","));
    attn_nap_want(p, ")");
    return count;
}

static void parse_map(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    attn_nap_map map = { .name = "" };
    if (!has_room(p, d->maps, ATTN_NAP_MAPS, "a diagram has at most 16 maps")) return;
    take_name(p, map.name, "the name of a map");
    map.params = parse_params(p, ATTN_NAP_MAP_PARAM);
    attn_nap_want(p, "=");
    attn_nap_token where = p->token;
    map.body = attn_nap_parse_term(p);
    memset(p->param, 0, sizeof p->param);
    if (p->failed) return;
    if (d->node[map.body].axes || attn_nap_reduced(d, map.body))
        attn_nap_stop(p, &where, "a map is made of its parameters, numbers and sizes alone");
    d->map[d->maps++] = map;
}

static int parse_states(attn_nap_parser *p, attn_nap_accumulator *a, int *term, bool start)
{
    int i = 0;
    do {
        if (start) {
            if (!has_room(p, i, ATTN_NAP_STATES, "there are at most 4 states")) return 0;
            take_name(p, a->state[i], "the name of a state");
        } else {
            if (i == a->states || !attn_nap_is(p, a->state[i])) attn_nap_expected(p, "the states in their order");
            attn_nap_next(p);
        }
        attn_nap_want(p, "=");
        term[i++] = attn_nap_parse_term(p);
    } while (attn_nap_take(p, ","));
    if (!start && i != a->states) attn_nap_expected(p, "',' and the next state");
    return i;
}

/* What follows "accumulator". Params are elements of a stream, along an axis that has its name here alone. */
static void parse_accumulator(attn_nap_parser *p)
{
    attn_diagram *d = p->diagram;
    attn_nap_accumulator a = { .name = "" };
    char stream[ATTN_NAP_NAME], param[ATTN_NAP_PARAMS][ATTN_NAP_NAME];
    if (!has_room(p, d->accumulators, ATTN_NAP_MAPS, "a diagram has at most 16 accumulators")) return;
    take_name(p, a.name, "the name of an accumulator");
    attn_nap_want(p, "[");
    take_name(p, stream, "a name for the axis it runs along");
    attn_nap_want(p, "]");
    a.params = parse_params(p, 0);
    memcpy(param, p->param, sizeof param);
    memset(p->param, 0, sizeof p->param);

    attn_nap_want(p, "start");
    attn_nap_token where = p->token;
    a.states = parse_states(p, &a, a.start, true);
    for (int i = 0; i < a.states && !p->failed; i++)
        if (d->node[a.start[i]].axes) attn_nap_stop(p, &where, "a state starts with numbers alone");
    memcpy(p->param, param, sizeof param);
    memcpy(p->param[ATTN_NAP_STATE], a.state, sizeof a.state);
    attn_nap_want(p, "step");
    where = p->token;
    parse_states(p, &a, a.step, false);
    attn_nap_want(p, "result");
    memset(p->param, 0, sizeof param);
    a.result = attn_nap_parse_term(p);
    memset(p->param, 0, sizeof p->param);
    for (int i = 0; i < a.states && !p->failed; i++)
        if (d->node[a.step[i]].axes & ~(1u << ATTN_NAP_STREAM))
            attn_nap_stop(p, &where, "a step is made of parameters and states alone");

    attn_nap_want(p, "means");
    where = p->token;
    memcpy(p->param, param, sizeof param);
    p->stream = stream;
    a.meaning = attn_nap_parse_term(p);
    p->stream = NULL;
    memset(p->param, 0, sizeof p->param);
    if (p->failed) return;
    if (d->node[a.meaning].axes || !(attn_nap_reduced(d, a.meaning) >> ATTN_NAP_STREAM & 1))
        attn_nap_stop(p, &where, "the meaning is a reduction of the parameters over the accumulator's axis");
    d->accumulator[d->accumulators++] = a;
}

/* Every input and axis serves an output, and there is one. */
static void check_whole(attn_nap_parser *p)
{
    const attn_diagram *d = p->diagram;
    bool used[ATTN_NAP_ARRAYS] = { false }, reached[ATTN_NAP_NODES];
    uint32_t axes = 0;
    int outputs = 0;
    char text[80];
    for (int i = 0; i < d->definitions; i++) {
        if (!d->definition[i].output) continue;
        outputs++;
        attn_nap_reach(d, d->definition[i].node, reached);
        axes |= d->node[d->definition[i].node].axes | attn_nap_reduced(d, d->definition[i].node);
        for (int n = 0; n <= d->definition[i].node; n++)
            if (reached[n] && d->node[n].op == ATTN_NAP_ELEMENT) used[d->node[n].which] = true;
    }
    if (!outputs) attn_nap_expected(p, "an output");
    for (int i = 0; i < d->arrays && !p->failed; i++) {
        snprintf(text, sizeof text, "no output depends on %s", d->array[i].name);
        if (!used[i]) attn_nap_stop(p, &p->token, text);
    }
    for (int a = 0; a < d->axes && !p->failed; a++) {
        snprintf(text, sizeof text, "no output depends on axis %s", d->axis[a].name);
        if (!(axes >> a & 1)) attn_nap_stop(p, &p->token, text);
    }
}

attn_status attn_diagram_parse(const char *where, const char *text, size_t size, attn_diagram **diagram)
{
    attn_nap_parser p = { .where = where,
                          .lexer = { text, text + size, 1, text },
                          .diagram = calloc(1, sizeof *p.diagram) };
    *diagram = NULL;
    if (!p.diagram) return attn_fail(ATTN_NO_MEMORY, "no memory for a diagram");
    for (attn_nap_next(&p); p.token.kind != ATTN_NAP_END;) {
        if (attn_nap_take(&p, "axis"))
            parse_axis(&p);
        else if (attn_nap_take(&p, "input"))
            parse_input(&p);
        else if (attn_nap_take(&p, "map"))
            parse_map(&p);
        else if (attn_nap_take(&p, "accumulator"))
            parse_accumulator(&p);
        else if (attn_nap_take(&p, "output"))
            parse_output(&p);
        else
            parse_definition(&p);
    }
    if (!p.failed) check_whole(&p);
    if (!p.failed)
        *diagram = p.diagram;
    else
        free(p.diagram);
    return p.failed ? ATTN_INVALID : ATTN_OK;
}
