/* Derived kernels as C; see derive.h, emit.h.
 *
 * A maximum that shifts exponents starts at the least float, not at minus infinity, whose difference from itself is
 * not 0: rows whose first chunks are all masked come out right. */
#include "napkin/emit.h"

/* ---- steps -------------------------------------------------------------------------------------- */

static void open_loops(attn_nap_emitter *e, uint32_t axes)
{
    for (int a = 0; a < e->d->axes; a++) {
        if (!(axes >> a & 1)) continue;
        const char *name = attn_nap_axis_name(e, a);
        attn_nap_emit_indent(e);
        attn_say(e->w, "for (long i_%s = 0; i_%s < %s_%s; i_%s++)\n", name, name, attn_nap_is_cut(e, a) ? "l" : "n",
                 name, name);
        e->depth++;
    }
}

static void close_loops(attn_nap_emitter *e, uint32_t axes)
{
    for (; axes; axes &= axes - 1)
        e->depth--;
}

static void close_block(attn_nap_emitter *e)
{
    e->depth--;
    attn_nap_emit_indent(e);
    attn_say(e->w, "}\n");
}

static void say_join(const attn_nap_emitter *e, const attn_nap_node *n, const char *sum)
{
    const char *function = n->op == ATTN_NAP_MAX ? "larger" : "smaller";
    if (n->op == ATTN_NAP_SUM)
        attn_say(e->w, "%s += ", sum);
    else
        attn_say(e->w, "%s = %s(%s, ", sum, function, sum);
    attn_nap_emit_value(e, n->arg[0], false);
    attn_say(e->w, n->op == ATTN_NAP_SUM ? ";\n" : ");\n");
}

static void say_step_of_accumulator(const attn_nap_emitter *e, const attn_nap_node *n, const char *states)
{
    attn_say(e->w, "acc_%s_step(%s", e->d->accumulator[n->which].name, states);
    for (int i = 0; i < ATTN_NAP_PARAMS && n->arg[i] >= 0; i++) {
        attn_say(e->w, ", ");
        attn_nap_emit_value(e, n->arg[i], false);
    }
    attn_say(e->w, ");\n");
}

static bool shifts(const attn_nap_kernel *k, const attn_diagram *d, int node)
{
    for (int i = 0; i < k->accruals; i++)
        if (k->accrual[i].shift >= 0 && attn_nap_contains(d, k->accrual[i].shift, node)) return true;
    return false;
}

static const char *start_of(const attn_nap_emitter *e, int node)
{
    attn_nap_op op = e->d->node[node].op;
    if (op == ATTN_NAP_SUM) return "0.0f";
    if (shifts(e->k, e->d, node)) return op == ATTN_NAP_MAX ? "-FLT_MAX" : "FLT_MAX";
    return op == ATTN_NAP_MAX ? "-INFINITY" : "INFINITY";
}

static void say_start(attn_nap_emitter *e, int tile, int node)
{
    const attn_nap_node *n = &e->d->node[node];
    open_loops(e, n->axes);
    attn_nap_emit_indent(e);
    if (n->op == ATTN_NAP_USER) {
        attn_say(e->w, "acc_%s_start(&t_%s[(", e->d->accumulator[n->which].name, e->k->tile[tile].name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, ") * %d]);\n", e->k->tile[tile].states);
    } else {
        attn_say(e->w, "t_%s[", e->k->tile[tile].name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, "] = %s;\n", start_of(e, node));
    }
    close_loops(e, n->axes);
}

static void say_assignment(attn_nap_emitter *e, const attn_nap_step *s)
{
    const attn_nap_node *n = &e->d->node[s->node];
    open_loops(e, n->axes);
    attn_nap_emit_indent(e);
    if (s->act == ATTN_NAP_STORE) {
        attn_nap_emit_memory(e, s->node, true);
        attn_say(e->w, " = ");
    } else {
        attn_say(e->w, "t_%s[", e->k->tile[s->tile].name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, "] = ");
    }
    if (s->act == ATTN_NAP_LOAD)
        attn_nap_emit_memory(e, s->node, false);
    else if (s->act == ATTN_NAP_RESCALE) {
        attn_say(e->w, "rescale(");
        attn_nap_emit_tile(e, s->tile);
        attn_say(e->w, ", ");
        attn_nap_emit_value(e, s->node, true);
        attn_say(e->w, ")");
    } else
        attn_nap_emit_value(e, s->node, s->act != ATTN_NAP_STORE);
    attn_say(e->w, ";\n");
    close_loops(e, n->axes);
}

static void say_reduction(attn_nap_emitter *e, const attn_nap_step *s)
{
    const attn_nap_node *n = &e->d->node[s->node];
    const char *name = e->k->tile[s->tile].name;
    bool accrues = s->act == ATTN_NAP_ACCRUE, user = n->op == ATTN_NAP_USER;
    open_loops(e, n->axes);
    attn_nap_emit_indent(e);
    attn_say(e->w, "{\n");
    e->depth++;
    attn_nap_emit_indent(e);
    if (user && accrues) {
        attn_say(e->w, "float *s = &t_%s[(", name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, ") * %d];\n", e->k->tile[s->tile].states);
    } else if (user) {
        attn_say(e->w, "float s[%d];\n", e->d->accumulator[n->which].states);
        attn_nap_emit_indent(e);
        attn_say(e->w, "acc_%s_start(s);\n", e->d->accumulator[n->which].name);
    } else if (accrues) {
        attn_say(e->w, "float s = t_%s[", name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, "]");
        if (s->by >= 0) {
            attn_say(e->w, " * ");
            attn_nap_emit_tile(e, s->by);
        }
        attn_say(e->w, ";\n");
    } else
        attn_say(e->w, "float s = %s;\n", start_of(e, s->node));
    open_loops(e, n->over);
    attn_nap_emit_indent(e);
    if (user)
        say_step_of_accumulator(e, n, "s");
    else
        say_join(e, n, "s");
    close_loops(e, n->over);
    if (!user || !accrues) {
        attn_nap_emit_indent(e);
        attn_say(e->w, "t_%s[", name);
        attn_nap_emit_place(e, n->axes);
        attn_say(e->w, user ? "] = acc_%s_result(s);\n" : "] = s;\n", user ? e->d->accumulator[n->which].name : "");
    }
    close_block(e);
    close_loops(e, n->axes);
}

static void say_step(attn_nap_emitter *e, const attn_nap_step *s)
{
    if (s->act == ATTN_NAP_START)
        say_start(e, s->tile, s->node);
    else if (s->act == ATTN_NAP_REDUCE || s->act == ATTN_NAP_ACCRUE)
        say_reduction(e, s);
    else
        say_assignment(e, s);
}

/* ---- kernels ------------------------------------------------------------------------------------ */

static void open_tiles(attn_nap_emitter *e, int axis)
{
    const char *x = attn_nap_axis_name(e, axis);
    attn_nap_emit_indent(e);
    attn_say(e->w, "for (long o_%s = 0; o_%s < n_%s; o_%s += T_%s) {\n", x, x, x, x, x);
    e->depth++;
    attn_nap_emit_indent(e);
    attn_say(e->w, "const long l_%s = n_%s - o_%s < T_%s ? n_%s - o_%s : T_%s;\n", x, x, x, x, x, x, x);
}

static void say_guards(attn_nap_emitter *e)
{
    for (int i = 0; i < e->k->guards; i++) {
        attn_nap_emit_indent(e);
        attn_say(e->w, "if (!(");
        attn_nap_emit_may_hold(e, e->k->guard[i]);
        attn_say(e->w, ")) continue;\n");
    }
}

static void say_tiles_size(const attn_nap_emitter *e, const attn_nap_tile *t)
{
    attn_say(e->w, "(size_t)%d", t->states);
    for (int a = 0; a < e->d->axes; a++)
        if (e->d->node[t->node].axes >> a & 1) {
            attn_say(e->w, " * ");
            attn_nap_emit_extent(e, a);
        }
}

static void say_workspace(attn_nap_emitter *e)
{
    const attn_nap_kernel *k = e->k;
    attn_nap_emit_indent(e);
    attn_say(e->w, "float *work = malloc(sizeof(float) * (1");
    for (int t = 0; t < k->tiles; t++) {
        attn_say(e->w, " + ");
        say_tiles_size(e, &k->tile[t]);
    }
    attn_say(e->w, "));\n");
    for (int t = 0; t < k->tiles; t++) {
        attn_nap_emit_indent(e);
        if (!t)
            attn_say(e->w, "float *t_%s = work;\n", k->tile[t].name);
        else {
            attn_say(e->w, "float *t_%s = t_%s + ", k->tile[t].name, k->tile[t - 1].name);
            say_tiles_size(e, &k->tile[t - 1]);
            attn_say(e->w, ";\n");
        }
    }
    attn_nap_emit_indent(e);
    attn_say(e->w, "if (!work) {\n");
    attn_nap_emit_indent(e);
    attn_say(e->w, "    free(memory);\n");
    attn_nap_emit_indent(e);
    attn_say(e->w, "    return -1;\n");
    attn_nap_emit_indent(e);
    attn_say(e->w, "}\n");
}

static void say_tile_sizes(attn_nap_emitter *e)
{
    const attn_nap_kernel *k = e->k;
    bool first = true;
    for (int a = 0; a < e->d->axes; a++) {
        if (!attn_nap_is_cut(e, a)) continue;
        if (first) attn_nap_emit_indent(e);
        attn_say(e->w, "%sT_%s = %lld", first ? "enum { " : ", ", attn_nap_axis_name(e, a),
                 (long long)k->partition.tile[e->v->levels - 1][a]);
        first = false;
    }
    if (!first) attn_say(e->w, " };\n");
}

static void say_kernel(attn_nap_emitter *e, int number)
{
    const attn_nap_kernel *k = e->k;
    attn_nap_emit_indent(e);
    attn_say(e->w, "{ /* kernel %d */\n", number + 1);
    e->depth++;
    say_tile_sizes(e);
    say_workspace(e);
    for (int a = 0; a < e->d->axes; a++)
        if (k->groups >> a & 1) open_tiles(e, a);
    bool open = false, within = false;
    for (int s = 0; s < k->steps; s++) {
        bool next = s > 0 && k->step[s].pass != k->step[s - 1].pass;
        if (within && !k->step[s].within) close_block(e);
        if (open && (!k->step[s].inside || next)) {
            close_block(e);
            open = false;
        }
        if (k->step[s].inside && !open) {
            open_tiles(e, k->stream);
            say_guards(e);
            open = true;
        }
        if (k->step[s].within && !within) open_tiles(e, k->inner);
        within = k->step[s].within;
        say_step(e, &k->step[s]);
    }
    if (open) close_block(e);
    for (int a = 0; a < e->d->axes; a++)
        if (k->groups >> a & 1) close_block(e);
    attn_nap_emit_indent(e);
    attn_say(e->w, "free(work);\n");
    close_block(e);
}

/* ---- the function ------------------------------------------------------------------------------- */

static void say_accumulator(attn_nap_emitter *e, const attn_nap_accumulator *a)
{
    attn_say(e->w, "static inline void acc_%s_start(float *s)\n{\n", a->name);
    for (int i = 0; i < a->states; i++) {
        attn_say(e->w, "    s[%d] = ", i);
        attn_nap_emit_value(e, a->start[i], false);
        attn_say(e->w, ";\n");
    }
    attn_say(e->w, "}\n\nstatic inline void acc_%s_step(float *s", a->name);
    for (int i = 0; i < a->params; i++)
        attn_say(e->w, ", float x_%d", i);
    attn_say(e->w, ")\n{\n    const float next[] = { ");
    for (int i = 0; i < a->states; i++) {
        attn_say(e->w, "%s", i ? ", " : "");
        attn_nap_emit_value(e, a->step[i], false);
    }
    attn_say(e->w, " };\n");
    for (int i = 0; i < a->states; i++)
        attn_say(e->w, "    s[%d] = next[%d];\n", i, i);
    attn_say(e->w, "}\n\nstatic inline float acc_%s_result(const float *s)\n{\n    return ", a->name);
    attn_nap_emit_value(e, a->result, false);
    attn_say(e->w, ";\n}\n\n");
}

static void say_shape(const attn_nap_emitter *e, const attn_nap_array *array)
{
    attn_say(e->w, "%s[", array->name);
    for (int i = 0; i < array->rank; i++)
        attn_say(e->w, "%s%s", i ? ", " : "", attn_nap_axis_name(e, array->index[i]));
    attn_say(e->w, "]");
}

static void say_head(attn_nap_emitter *e, const char *name)
{
    const attn_diagram *d = e->d;
    attn_say(e->w, "/* %s: derived by attn napkin, tiles for %s. Arrays are packed, in the order of their axes:\n *",
             name, e->v->machine->name);
    for (int i = 0; i < d->arrays; i++) {
        attn_say(e->w, " ");
        say_shape(e, &d->array[i]);
    }
    attn_say(e->w, " ->");
    for (int i = 0; i < e->v->outputs; i++) {
        attn_say(e->w, " ");
        say_shape(e, &d->definition[e->v->defined[i]].array);
    }
    attn_say(e->w, ". Returns 0, or -1 where memory ends. */\n"
                   "#include <float.h>\n#include <math.h>\n#include <stdlib.h>\n\n"
                   "static inline float larger(float a, float b)\n{\n    return a > b || isnan(a) ? a : b;\n}\n\n"
                   "static inline float smaller(float a, float b)\n{\n    return a < b || isnan(a) ? a : b;\n}\n\n"
                   "/* exp(now - before), though both be infinite. */\n"
                   "static inline float rescale(float before, float now)\n{\n"
                   "    return before == now ? 1.0f : expf(now - before);\n}\n\n");
    for (int i = 0; i < d->accumulators; i++)
        say_accumulator(e, &d->accumulator[i]);
    attn_say(e->w, "int %s(", name);
    for (int a = 0; a < d->axes; a++)
        if (d->axis[a].root == a) attn_say(e->w, "%slong n_%s", a ? ", " : "", attn_nap_axis_name(e, a));
    for (int i = 0; i < d->arrays; i++)
        attn_say(e->w, ", const float *in_%s", d->array[i].name);
    for (int i = 0; i < e->v->outputs; i++)
        attn_say(e->w, ", float *out_%s", d->definition[e->v->defined[i]].array.name);
    attn_say(e->w, ")\n{\n");
}

/* Between kernels: one block of memory. */
static void say_memory_between(attn_nap_emitter *e)
{
    const attn_diagram *d = e->d;
    bool stored[ATTN_NAP_NODES] = { false };
    int before = -1;
    for (int i = 0; i < e->v->kernels; i++)
        for (int n = 0; n < d->nodes; n++)
            stored[n] |= e->v->kernel[i].loads[n] && attn_nap_output_of(e->v, n) < 0;
    for (int a = 0; a < d->axes; a++)
        if (d->axis[a].root != a)
            attn_say(e->w, "    const long n_%s = n_%s;\n", attn_nap_axis_name(e, a),
                     attn_nap_axis_name(e, d->axis[a].root));
    attn_say(e->w, "    float *memory = malloc(sizeof(float) * (1");
    for (int n = 0; n < d->nodes; n++) {
        if (!stored[n]) continue;
        attn_say(e->w, " + ");
        say_tiles_size(e, &(attn_nap_tile){ .node = n, .states = 1 });
    }
    attn_say(e->w, "));\n    if (!memory) return -1;\n");
    for (int n = 0; n < d->nodes; n++) {
        if (!stored[n]) continue;
        attn_say(e->w, "    float *stored_%d = ", n);
        if (before >= 0) {
            attn_say(e->w, "stored_%d + ", before);
            say_tiles_size(e, &(attn_nap_tile){ .node = before, .states = 1 });
        } else
            attn_say(e->w, "memory");
        attn_say(e->w, ";\n");
        before = n;
    }
}

void attn_nap_emit(attn_text_buffer *w, const attn_derivation *v, const char *name)
{
    attn_nap_emitter e = { .w = w, .v = v, .d = v->diagram };
    say_head(&e, name);
    e.depth = 1;
    say_memory_between(&e);
    for (int i = 0; i < v->kernels; i++) {
        e.k = &v->kernel[i];
        say_kernel(&e, i);
    }
    attn_say(w, "    free(memory);\n    return 0;\n}\n");
}
