/* The search for an algorithm; see derive.h.
 *
 * Contractions inside the diagram may be stored or computed again: each choice of which (at most four, the widest) is
 * tried, and first that no kernel loads a sum wider than every array. For each choice every output, and every reduction
 * to be stored, gets the kernel that the model finds fastest among all streams and groups; kernels with the same stream
 * and groups become one where that is no slower; and what a kernel's groups keep it from reducing is stored by a kernel
 * that comes by it anyway, or by one of its own. */
#include "napkin/derive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { CUTS_MOST = 4, DOUBTS_MOST = 4, TRIES_MOST = 2500 };

typedef struct search {
    attn_derivation *best, *now;
    const bool *cut;
    double price[ATTN_NAP_NODES]; /* seconds that storing a reduction takes; 0: not known yet */
    attn_status status;
    bool found;
    bool all_again;              /* no kernel may load one of them */
    attn_nap_way storing, again; /* the fastest of each */
} search;

/* ---- one kernel --------------------------------------------------------------------------------- */

static bool make(search *s, attn_nap_kernel *k)
{
    s->now->tried++;
    return attn_nap_plan(s->now, s->cut, k) && attn_nap_weigh(s->now, k);
}

/* Axes that the target may be cut along, though some reduction does not span them: at most DOUBTS_MOST are tried. */
static uint32_t doubtful(const search *s, int target)
{
    const attn_diagram *d = s->now->diagram;
    bool reached[ATTN_NAP_NODES];
    uint32_t axes = 0, some = 0;
    attn_nap_reach(d, target, reached);
    for (int i = 0; i <= target; i++)
        if (reached[i] && attn_nap_is_reduction(d->node[i].op)) axes |= d->node[target].axes & ~d->node[i].axes;
    for (int count = 0; axes && count < DOUBTS_MOST; count++, axes &= axes - 1)
        some |= axes & (~axes + 1);
    return some;
}

static double price_of(search *s, int node);

static bool loads_wide(const search *s, const attn_nap_kernel *k)
{
    for (int node = 0; node < s->now->diagram->nodes; node++)
        if (k->loads[node] && s->now->wide[node]) return true;
    return false;
}

/* A kernel's seconds, and those of what else must be stored for it. */
static double price_with(search *s, const attn_nap_kernel *k)
{
    double price = k->time.seconds;
    for (int node = 0; node < s->now->diagram->nodes; node++)
        if (k->loads[node] && !s->cut[node]) price += price_of(s, node);
    return price;
}

/* The fastest kernel that computes the target alone. */
static bool find_kernel(search *s, int target, attn_nap_kernel *best)
{
    const attn_diagram *d = s->now->diagram;
    uint32_t streams = attn_nap_reduced(d, target), spanned = d->node[target].axes;
    attn_nap_kernel *k = malloc(sizeof *k);
    double least = INFINITY;
    if (!k) {
        s->status = attn_fail(ATTN_NO_MEMORY, "no memory to derive kernels");
        return false;
    }
    for (int choice = -1; choice < d->axes * d->axes; choice++) { /* of a stream and, another axis, an inner one */
        int stream = choice < 0 ? -1 : choice / d->axes, inner = choice < 0 ? -1 : choice % d->axes;
        if (inner == stream) inner = -1;
        if (stream >= 0 && !(streams >> stream & 1)) continue;
        if (inner >= 0 && !((streams & ~spanned) >> inner & 1)) continue;
        uint32_t free_axes = stream >= 0 ? spanned & ~(1u << stream) : spanned;
        uint32_t open = doubtful(s, target) & free_axes, whole = open;
        for (bool last = false; !last; whole = (whole - 1) & open) { /* all subsets of the doubtful axes stay whole */
            last = whole == 0;
            memset(k, 0, sizeof *k);
            k->stream = stream;
            k->inner = inner;
            k->groups = free_axes & ~whole;
            k->targets = 1;
            k->target[0] = target;
            if (s->now->tried >= TRIES_MOST || !make(s, k) || (s->all_again && loads_wide(s, k))) continue;
            double price = price_with(s, k);
            bool equal = fabs(price - least) <= 1e-6 * price;
            if (equal ? k->bytes >= best->bytes : price >= least) continue;
            *best = *k;
            least = price;
        }
    }
    free(k);
    return least < INFINITY;
}

static double price_of(search *s, int node)
{
    if (s->price[node] > 0) return s->price[node];
    attn_nap_kernel *k = malloc(sizeof *k);
    s->price[node] = INFINITY; /* for those that would need it themselves */
    if (k && find_kernel(s, node, k)) s->price[node] = price_with(s, k);
    free(k);
    return s->price[node];
}

/* ---- several ------------------------------------------------------------------------------------ */

static bool has_target(const attn_nap_kernel *k, int node)
{
    for (int i = 0; i < k->targets; i++)
        if (k->target[i] == node) return true;
    return false;
}

static int stores(const attn_derivation *v, int node)
{
    for (int i = 0; i < v->kernels; i++)
        if (has_target(&v->kernel[i], node)) return i;
    return -1;
}

/* Adds targets to a kernel, if it can have them and is no slower than `limit` then. */
static bool extend(search *s, attn_nap_kernel *k, const int *target, int count, double limit)
{
    if (k->targets + count > ATTN_NAP_TARGETS) return false;
    attn_nap_kernel *more = malloc(sizeof *more);
    if (!more) return false;
    *more = *k;
    for (int i = 0; i < count; i++)
        more->target[more->targets++] = target[i];
    bool good = make(s, more) && more->time.seconds <= limit * (1 + 1e-9);
    if (good) *k = *more;
    free(more);
    return good;
}

static bool add_kernel(search *s, int target)
{
    attn_derivation *v = s->now;
    if (v->kernels == ATTN_NAP_KERNELS || !find_kernel(s, target, &v->kernel[v->kernels])) return false;
    const attn_nap_kernel *added = &v->kernel[v->kernels];
    for (int i = 0; i < v->kernels; i++) {
        attn_nap_kernel *k = &v->kernel[i];
        if (k->stream == added->stream && k->groups == added->groups &&
            extend(s, k, added->target, 1, k->time.seconds + added->time.seconds))
            return true;
    }
    v->kernels++;
    return true;
}

/* Whether each group of the kernel comes by all of the reduction for its tiles, and no two by the same. */
static bool comes_by(const search *s, const attn_nap_kernel *k, int node)
{
    const attn_diagram *d = s->now->diagram;
    int tile = attn_nap_tile_of(k, node);
    return tile >= 0 && !k->loads[node] && !(k->groups & ~d->node[node].axes);
}

/* The first reduction that some kernel loads and none stores, and that kernel; -1: there is none. */
static int find_missing(const attn_derivation *v, int *kernel)
{
    for (*kernel = 0; *kernel < v->kernels; ++*kernel)
        for (int node = 0; node < v->diagram->nodes; node++)
            if (v->kernel[*kernel].loads[node] && stores(v, node) < 0) return node;
    return -1;
}

/* Finds a kernel to store each reduction that some kernel loads. */
static bool provide(search *s)
{
    attn_derivation *v = s->now;
    int kernel, node;
    while ((node = find_missing(v, &kernel)) >= 0) {
        bool done = false;
        for (int j = 0; j < v->kernels && !done; j++)
            done = j != kernel && comes_by(s, &v->kernel[j], node) && extend(s, &v->kernel[j], &node, 1, INFINITY);
        if (!done && !add_kernel(s, node)) return false;
    }
    return true;
}

static bool is_wanted(const attn_derivation *v, int node)
{
    bool wanted = attn_nap_output_of(v, node) >= 0;
    for (int i = 0; i < v->kernels; i++)
        wanted |= v->kernel[i].loads[node];
    return wanted;
}

/* Drops what a kernel stored for one that has become part of it: it is still computed, and no longer stored. */
static bool prune(search *s)
{
    attn_derivation *v = s->now;
    const bool *cut = s->cut;
    bool good = true;
    for (int i = 0; i < v->kernels && good; i++) {
        attn_nap_kernel *k = &v->kernel[i];
        bool less[ATTN_NAP_NODES];
        int kept = 0;
        memcpy(less, cut, sizeof less);
        for (int t = 0; t < k->targets; t++) {
            less[k->target[t]] = false;
            if (is_wanted(v, k->target[t])) k->target[kept++] = k->target[t];
        }
        if (kept == k->targets) continue;
        k->targets = kept;
        s->cut = less;
        good = kept > 0 && make(s, k);
    }
    s->cut = cut;
    return good;
}

/* Puts kernels after those whose results they load. False: they wait for each other. */
static bool order(attn_derivation *v)
{
    for (int placed = 0; placed < v->kernels; placed++) {
        int next = -1;
        for (int i = placed; i < v->kernels && next < 0; i++) {
            bool waits = false;
            for (int node = 0; node < v->diagram->nodes && !waits; node++)
                waits = v->kernel[i].loads[node] && stores(v, node) >= placed;
            if (!waits) next = i;
        }
        if (next < 0) return false;
        if (next == placed) continue;
        attn_nap_kernel *k = malloc(sizeof *k);
        if (!k) return false;
        *k = v->kernel[next];
        memmove(&v->kernel[placed + 1], &v->kernel[placed], (size_t)(next - placed) * sizeof *k);
        v->kernel[placed] = *k;
        free(k);
    }
    return true;
}

static void try_cut(search *s, const bool *cut)
{
    attn_derivation *v = s->now;
    s->cut = cut;
    memset(s->price, 0, sizeof s->price);
    v->kernels = 0;
    v->seconds = v->bytes = 0;
    for (int i = 0; i < v->outputs; i++)
        if (stores(v, v->output[i]) < 0 && !add_kernel(s, v->output[i])) return;
    if (!provide(s) || !prune(s) || !order(v)) return;
    for (int i = 0; i < v->kernels; i++) {
        v->seconds += v->kernel[i].time.seconds;
        v->bytes += v->kernel[i].bytes;
    }
    attn_nap_way way = attn_nap_way_of(v), *kind = way.stored > 0 ? &s->storing : &s->again;
    if (kind->seconds == 0 || way.seconds < kind->seconds) *kind = way;
    bool equal = fabs(v->seconds - s->best->seconds) <= 1e-6 * v->seconds;
    if (s->found && (equal ? v->bytes >= s->best->bytes : v->seconds >= s->best->seconds)) return;
    int tried = s->best->tried;
    *s->best = *v;
    s->best->tried = tried;
    s->found = true;
}

/* ---- all ---------------------------------------------------------------------------------------- */

/* Sums inside the diagram that span two axes or more, the widest first. */
static int find_cuts(const attn_derivation *v, int cuts[CUTS_MOST])
{
    const attn_diagram *d = v->diagram;
    int count = 0;
    for (int node = 0; node < d->nodes; node++) {
        bool inside = false;
        if (d->node[node].op != ATTN_NAP_SUM || !(d->node[node].axes & (d->node[node].axes - 1))) continue;
        for (int i = 0; i < v->outputs; i++)
            inside |= node < v->output[i] && attn_nap_contains(d, v->output[i], node);
        for (int i = 0; i < v->outputs; i++)
            inside &= node != v->output[i];
        if (!inside) continue;
        int at = count < CUTS_MOST ? count++ : CUTS_MOST;
        for (; at > 0 && attn_nap_count(d, d->node[cuts[at - 1]].axes) < attn_nap_count(d, d->node[node].axes); at--)
            if (at < CUTS_MOST) cuts[at] = cuts[at - 1];
        if (at < CUTS_MOST) cuts[at] = node;
    }
    return count;
}

/* Those of them that are greater than every array of the diagram: to store these is what fusing is to save. */
static void find_wide(const attn_derivation *v, const int *cuts, int count, bool *wide)
{
    const attn_diagram *d = v->diagram;
    double most = 0;
    for (int node = 0; node < d->nodes; node++)
        if (d->node[node].op == ATTN_NAP_ELEMENT) most = fmax(most, attn_nap_count(d, d->node[node].axes));
    for (int i = 0; i < v->outputs; i++)
        most = fmax(most, attn_nap_count(d, d->node[v->output[i]].axes));
    for (int i = 0; i < count; i++)
        wide[cuts[i]] = attn_nap_count(d, d->node[cuts[i]].axes) > most;
}

/* The machine's level in which an array lies; -1: it has none of that name. */
static int level_of(const attn_machine *m, const char *name)
{
    const attn_machine_level *memory = attn_machine_level_named(m, "hbm");
    if (*name) memory = attn_machine_level_named(m, name);
    return memory ? (int)(memory - m->level) : *name ? -1 : 0;
}

static attn_status find_home(attn_derivation *v, const attn_nap_array *array, int *level)
{
    *level = level_of(v->machine, array->level);
    if (*level < 0)
        return attn_fail(ATTN_INVALID, "%s is at %s, and machine %s has no such level", array->name, array->level,
                         v->machine->name);
    if (*level < v->level[0]) v->level[0] = *level;
    return ATTN_OK;
}

/* From where the outermost array lies to the innermost level but one: registers, or the first cache, kernels see to by
 * themselves. */
static attn_status find_levels(attn_derivation *v)
{
    const attn_diagram *d = v->diagram;
    attn_status status = ATTN_OK;
    int level = 0;
    v->levels = 1;
    v->level[0] = level_of(v->machine, "");
    for (int i = 0; i < d->arrays && !status; i++)
        status = find_home(v, &d->array[i], &level);
    for (int i = 0; i < v->outputs && !status; i++)
        status = find_home(v, &d->definition[v->defined[i]].array, &level);
    for (level = v->level[0] + 1; level + 1 < v->machine->levels && !status; level++)
        if (v->machine->level[level].bytes > 0) v->level[v->levels++] = level;
    if (!status && v->levels < 2)
        return attn_fail(ATTN_UNSUPPORTED, "machine %s has no level between memory and its innermost",
                         v->machine->name);
    return status;
}

int attn_nap_home(const attn_derivation *v, int node)
{
    const attn_nap_node *n = &v->diagram->node[node];
    int output = attn_nap_output_of(v, node), home = level_of(v->machine, "");
    if (n->op == ATTN_NAP_ELEMENT) home = level_of(v->machine, v->diagram->array[n->which].level);
    if (output >= 0) home = level_of(v->machine, v->diagram->definition[output].array.level);
    for (int level = v->levels - 1; level > 0; level--)
        if (v->level[level] <= home) return level;
    return 0;
}

static attn_status prepare(attn_derivation *v)
{
    attn_diagram *d = v->diagram;
    double deviation;
    for (int i = 0; i < d->accumulators; i++) {
        attn_status status = attn_nap_prove_accumulator(d, i, &deviation);
        if (status) return status;
    }
    for (int i = 0; i < d->definitions; i++) {
        if (!d->definition[i].output) continue;
        if (v->outputs == ATTN_NAP_TARGETS)
            return attn_fail(ATTN_UNSUPPORTED, "a diagram has at most 8 outputs to derive");
        int normal = attn_nap_normal(d, d->definition[i].node);
        if (normal < 0)
            return attn_fail(ATTN_UNSUPPORTED,
                             "the diagram is too large: it has more than 2048 terms, or one of more than 20000");
        for (int j = 0; j < v->outputs; j++)
            if (v->output[j] == normal)
                return attn_fail(ATTN_UNSUPPORTED, "outputs %s and %s are the same",
                                 d->definition[v->defined[j]].array.name, d->definition[i].array.name);
        v->defined[v->outputs] = i;
        v->output[v->outputs++] = normal;
    }
    attn_nap_definition_names(d, &v->names);
    return find_levels(v);
}

static attn_status prove(attn_derivation *v)
{
    for (int i = 0; i < v->kernels; i++) {
        attn_nap_kernel *k = &v->kernel[i];
        if (k->stream < 0) continue;
        attn_status status = attn_nap_prove(v->diagram, k->stream, k->accrual, k->accruals, &k->deviation);
        if (status) return status;
        if (k->deviation > 1e-8)
            return attn_fail(ATTN_UNSUPPORTED, "the stream over %s fails its test: B(f(x), y) is not f(x + y)",
                             v->diagram->axis[k->stream].name);
    }
    return ATTN_OK;
}

attn_status attn_derive(attn_derivation *v, attn_diagram *d, const attn_machine *machine)
{
    memset(v, 0, sizeof *v);
    v->diagram = d;
    v->machine = machine;
    attn_status status = prepare(v);
    if (status) return status;
    int cuts[CUTS_MOST], count = find_cuts(v, cuts);
    search s = { .best = v, .now = malloc(sizeof *v) };
    if (!s.now) return attn_fail(ATTN_NO_MEMORY, "no memory to derive kernels");
    find_wide(v, cuts, count, v->wide);
    *s.now = *v;
    for (int choice = -1; choice < 1 << count && !s.status; choice++) { /* -1: all that is wide computed again */
        bool cut[ATTN_NAP_NODES] = { false };
        for (int i = 0; choice >= 0 && i < count; i++)
            cut[cuts[i]] = choice >> i & 1;
        s.all_again = choice < 0;
        try_cut(&s, cut);
    }
    v->tried = s.now->tried;
    v->storing = s.storing, v->again = s.again;
    memcpy(v->broken, s.now->broken, sizeof v->broken);
    v->breaks = s.now->breaks;
    free(s.now);
    if (s.status) return s.status;
    if (!s.found)
        return attn_fail(ATTN_UNSUPPORTED, "no tiles of this diagram fit into %s of %s",
                         machine->level[v->level[v->levels - 1]].name, machine->name);
    v->unfused_bytes = attn_nap_unfused(d);
    attn_nap_name_tiles(v);
    return prove(v);
}
