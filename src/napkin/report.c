/* A derivation step by step; see derive.h. */
#include <math.h>

#include "napkin/derive.h"

static void say_shape(attn_text_buffer *w, const attn_diagram *d, const attn_nap_array *array)
{
    attn_say(w, "%s", array->name);
    for (int i = 0; i < array->rank; i++)
        attn_say(w, "%s%s", i ? ", " : "[", d->axis[array->index[i]].name);
    if (array->rank) attn_say(w, "]");
}

static void say_diagram(attn_text_buffer *w, const attn_derivation *v)
{
    const attn_diagram *d = v->diagram;
    attn_say(w, "1  The diagram\n\n");
    for (int i = 0; i < d->definitions; i++) {
        int node = d->definition[i].node;
        attn_say(w, "     ");
        say_shape(w, d, &d->definition[i].array);
        attn_say(w, " = ");
        attn_nap_say_term(w, d, &v->names, node, true);
        attn_say(w, "\n");
    }
    attn_say(w, "\n   Each definition a kernel of its own: ");
    attn_say_bytes(w, v->unfused_bytes);
    attn_say(w, " through %s.\n\n", v->machine->level[v->level[0]].name);
}

static void say_normal_form(attn_text_buffer *w, const attn_derivation *v)
{
    bool any = false;
    for (int i = 0; i < v->diagram->definitions; i++) {
        int written = v->diagram->definition[i].node, normal = -1;
        for (int o = 0; o < v->outputs; o++)
            if (v->defined[o] == i) normal = v->output[o];
        if (normal < 0 || normal == written) continue;
        if (!any) attn_say(w, "2  Normal form: what does not span a sum's axes leaves the sum\n\n");
        any = true;
        attn_say(w, "     %s = ", v->diagram->definition[i].array.name);
        attn_nap_say_term(w, v->diagram, &v->names, normal, true);
        attn_say(w, "\n");
    }
    attn_say(w, any ? "\n" : "2  Normal form: as it stands\n\n");
}

/* ---- streams ------------------------------------------------------------------------------------ */

static void say_accrual(attn_text_buffer *w, const attn_derivation *v, const attn_nap_names *names,
                        const attn_nap_accrual *a)
{
    const attn_diagram *d = v->diagram;
    const attn_nap_node *n = &d->node[a->node];
    attn_say(w, "     %s = ", names->of[a->node]);
    attn_nap_say_term(w, d, names, a->node, true);
    if (n->op == ATTN_NAP_USER)
        attn_say(w, "\n       accumulator %s, found true to its meaning", d->accumulator[n->which].name);
    else if (a->shift >= 0) {
        attn_say(w, "\n       accrues by the rescaling lemma: times exp(now - before) of ");
        attn_nap_say_term(w, d, names, a->shift, true);
    } else
        attn_say(w, "\n       accrues");
    if (a->pass) attn_say(w, ", in pass %d", a->pass + 1);
    attn_say(w, "\n");
}

static void say_streams(attn_text_buffer *w, const attn_derivation *v)
{
    const attn_diagram *d = v->diagram;
    attn_nap_names names;
    attn_say(w, "3  Streams\n\n");
    for (int i = 0; i < v->kernels; i++) {
        const attn_nap_kernel *k = &v->kernel[i];
        attn_nap_tile_names(v, k, &names);
        if (k->stream < 0) {
            attn_say(w, "   Kernel %d: none\n", i + 1);
            continue;
        }
        attn_say(w, "   Kernel %d, along %s:\n", i + 1, d->axis[k->stream].name);
        for (int a = 0; a < k->accruals; a++)
            say_accrual(w, v, &names, &k->accrual[a]);
        attn_say(w, "     B(f(x), y) = f(x + y) on random data, to within ");
        attn_say_number(w, k->deviation);
        attn_say(w, "\n");
    }
    for (int i = 0; i < v->breaks; i++) {
        const attn_nap_break *b = &v->broken[i];
        attn_say(w, "   Breaks along %s: ", d->axis[b->axis].name);
        attn_nap_say_term(w, d, &v->names, b->node, true);
        attn_say(w, "\n     %s: it takes a pass of its own\n", b->why);
    }
    attn_say(w, "\n");
}

/* ---- kernels ------------------------------------------------------------------------------------ */

static void say_tiles(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    const attn_diagram *d = v->diagram;
    uint32_t used = 0, whole;
    for (int t = 0; t < k->tiles; t++)
        used |= d->node[k->tile[t].node].axes | d->node[k->tile[t].node].over;
    whole = used & ~k->groups & (k->stream >= 0 ? ~(1u << k->stream) : ~0u) & (k->inner >= 0 ? ~(1u << k->inner) : ~0u);
    attn_say(w, "     partition  ");
    for (int a = 0; a < d->axes; a++)
        if (k->groups >> a & 1)
            attn_say(w, "groups of %lld %s; ", (long long)k->partition.tile[v->levels - 1][a], d->axis[a].name);
    if (k->stream >= 0)
        attn_say(w, "chunks of %lld %s%s; ", (long long)k->partition.tile[v->levels - 1][k->stream],
                 d->axis[k->stream].name, k->passes > 1 ? ", more passes than one" : "");
    if (k->inner >= 0)
        attn_say(w, "chunks of %lld %s within; ", (long long)k->partition.tile[v->levels - 1][k->inner],
                 d->axis[k->inner].name);
    attn_nap_say_axes(w, d, whole);
    attn_say(w, "%swhole\n", whole ? " " : "nothing ");
}

static void say_sorts(attn_text_buffer *w, const attn_nap_kernel *k, attn_nap_tile_sort first, attn_nap_tile_sort last)
{
    int said = 0;
    for (int t = 0; t < k->tiles; t++)
        if (k->tile[t].sort >= first && k->tile[t].sort <= last)
            attn_say(w, "%s%s", said++ ? ", " : "", k->tile[t].name);
    if (!said) attn_say(w, "nothing");
}

static void say_target(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k, int target)
{
    attn_nap_names names;
    attn_nap_tile_names(v, k, &names);
    attn_nap_say_term(w, v->diagram, &names, k->target[target], false);
}

static void say_targets(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    for (int i = 0; i < k->targets; i++) {
        attn_say(w, "%s", i ? ", " : "");
        say_target(w, v, k, i);
    }
}

static void say_mask(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    if (!k->guards) return;
    attn_say(w, "     mask       ");
    attn_say_number(w, 100 * k->density[v->levels - 1]);
    attn_say(w, " %% of the chunks hold something for which ");
    for (int i = 0; i < k->guards; i++) {
        attn_say(w, "%s", i ? " and " : "");
        attn_nap_say_term(w, v->diagram, &v->names, k->guard[i], true);
    }
    attn_say(w, "; the rest is skipped\n");
}

static void say_colours(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    const char *outside = v->machine->level[v->level[0]].name,
               *inside = v->machine->level[v->level[v->levels - 1]].name;
    attn_say(w, "     recolour   from %s to %s ", outside, inside);
    say_sorts(w, k, ATTN_NAP_INPUT, ATTN_NAP_STORED);
    attn_say(w, "; back ");
    say_targets(w, v, k);
    attn_say(w, "; stay in %s ", inside);
    say_sorts(w, k, ATTN_NAP_INNER, ATTN_NAP_SHIFT);
    attn_say(w, "\n");
}

static void say_closed_form(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    attn_partition p;
    attn_model m = attn_nap_model_at(k, v->levels - 1);
    attn_partition_whole(&m, 2, &p);
    for (int a = 0; a < k->model.axes; a++)
        p.tile[1][a] = k->partition.tile[v->levels - 1][a];
    p.streamed[1] = k->partition.streamed[1];
    attn_model_closed closed = attn_model_close(&m, &p);
    if (!closed.exact || closed.beta <= 0) return;
    attn_say(w, "     optimum    H*(M) = ");
    attn_say_bytes(w, closed.least);
    attn_say(w, " + ");
    attn_say_number(w, closed.alpha);
    attn_say(w, " M^-");
    attn_say_number(w, closed.beta);
    attn_say(w, "\n");
}

static void say_costs(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k)
{
    for (int level = 1; level < v->levels; level++) {
        const attn_machine_level *l = &v->machine->level[v->level[level]];
        attn_model m = attn_nap_model_at(k, level);
        attn_say(w, "     %-9s  M ", l->name);
        attn_say_bytes(w, attn_model_live(&k->model, &k->partition, level));
        attn_say(w, " of ");
        attn_say_bytes(w, l->bytes);
        attn_say(w, ", H ");
        attn_say_bytes(w, attn_model_transfer(&m, &k->partition, level));
        for (int a = 0; a < k->model.arrays; a++) {
            double bytes = attn_model_crossing(&m, &k->partition, level, a);
            if (bytes <= 0) continue;
            attn_say(w, ", ");
            if (a < k->tiles)
                attn_say(w, "%s", k->tile[a].name);
            else
                say_target(w, v, k, a - k->tiles);
            attn_say(w, " ");
            attn_say_bytes(w, bytes);
        }
        attn_say(w, "\n");
    }
    say_closed_form(w, v, k);
    for (int unit = 0; unit < ATTN_UNITS; unit++) {
        double operations = attn_model_operations(&k->model, unit);
        if (operations <= 0) continue;
        attn_say(w, "     %-9s  ", attn_unit_name(unit));
        attn_say_number(w, operations);
        attn_say(w, " operations, ");
        attn_say_seconds(w, k->time.unit[unit]);
        attn_say(w, "\n");
    }
    attn_say(w, "     time       ");
    attn_say_seconds(w, k->time.seconds);
    attn_say(w, ", bound by %s\n",
             k->time.bound_level >= 0  ? v->machine->level[v->level[k->time.bound_level]].name
             : k->time.bound_unit >= 0 ? attn_unit_name(k->time.bound_unit)
                                       : "nothing known");
}

/* The wide sums that lie in memory between kernels. */
static void say_stored(attn_text_buffer *w, const attn_derivation *v)
{
    int said = 0;
    for (int i = 0; i < v->kernels; i++)
        for (int t = 0; t < v->kernel[i].targets; t++) {
            if (!v->wide[v->kernel[i].target[t]]) continue;
            attn_say(w, "%s", said++ ? ", " : "");
            say_target(w, v, &v->kernel[i], t);
        }
}

static void say_rate(attn_text_buffer *w, double rate)
{
    attn_say_number(w, rate * 1e-9);
    attn_say(w, " GB/s");
}

/* Whether wide sums are stored is decided by time: what the other way takes, and where it would be the faster one. */
static void say_recomputation(attn_text_buffer *w, const attn_derivation *v)
{
    const char *memory = v->machine->level[v->level[0]].name;
    if (v->storing.seconds == 0 || v->again.seconds == 0) return;
    bool stores = attn_nap_way_of(v).stored > 0;
    double pays = attn_nap_again_pays(v);
    if (stores) {
        attn_say(w, "   Stored for later kernels: ");
        say_stored(w, v);
        attn_say(w, ", ");
        attn_say_bytes(w, v->storing.stored);
        attn_say(w, " of %s; ", memory);
        attn_say_seconds(w, v->seconds);
        attn_say(w, ". Computed again where they are needed: ");
        attn_say_seconds(w, v->again.seconds);
        attn_say(w, ".\n   Computing again pays where %s has no room for them", memory);
    } else {
        attn_say(w, "   No sum that is greater than every array leaves its kernel; what two need is computed again: ");
        attn_say_seconds(w, v->seconds);
        attn_say(w, ".\n   Stored instead, ");
        attn_say_bytes(w, v->storing.stored);
        attn_say(w, " of %s: ", memory);
        attn_say_seconds(w, v->storing.seconds);
    }
    if (pays > 0 && pays < INFINITY) {
        if (stores)
            attn_say(w, ", or moves less than about ");
        else
            attn_say(w, ". Storing pays where %s moves more than about ", memory);
        say_rate(w, pays);
        attn_say(w, " (here ");
        say_rate(w, attn_nap_memory_rate(v));
        attn_say(w, ")");
    }
    attn_say(w, ".\n\n");
}

void attn_nap_report(attn_text_buffer *w, const attn_derivation *v)
{
    say_diagram(w, v);
    say_normal_form(w, v);
    say_streams(w, v);
    attn_say(w, "4  Fused, partitioned, recoloured, for %s (%d partitions tried)\n\n", v->machine->name, v->tried);
    for (int i = 0; i < v->kernels; i++) {
        attn_say(w, "   Kernel %d stores ", i + 1);
        say_targets(w, v, &v->kernel[i]);
        attn_say(w, "\n");
        say_tiles(w, v, &v->kernel[i]);
        say_mask(w, v, &v->kernel[i]);
        say_colours(w, v, &v->kernel[i]);
        say_costs(w, v, &v->kernel[i]);
        attn_say(w, "\n");
    }
    say_recomputation(w, v);
    attn_say(w, "5  Pseudocode\n\n");
    attn_nap_pseudocode(w, v);
    attn_say(w, "\n   ");
    attn_say_seconds(w, v->seconds);
    attn_say(w, "\n");
}
