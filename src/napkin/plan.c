/* The steps of one kernel; see derive.h. Demand drives it: what a target needs is loaded, reduced or accrued just
 * before it is needed, once a pass where it spans the stream, and otherwise once. */
#include <stdio.h>
#include <string.h>

#include "napkin/derive.h"

typedef struct planner {
    attn_derivation *derivation;
    attn_diagram *d;
    attn_nap_kernel *k;
    const bool *cut;
    uint32_t stream, inner;      /* bits; 0: none */
    bool needed[ATTN_NAP_NODES]; /* nodes whose values some step takes */
    int ready[ATTN_NAP_NODES];   /* passes that must be over before its value is final */
    bool mapped[ATTN_NAP_NODES]; /* maps that get a tile */
    int uses[ATTN_NAP_NODES];    /* steps that take it, of terms that are dear */
    int made[ATTN_NAP_TILES];    /* the last pass + 1 that has filled it */
    int shift[ATTN_NAP_TILES], shifts;
    bool full;
} planner;

int attn_nap_tile_of(const attn_nap_kernel *k, int node)
{
    for (int i = 0; i < k->tiles; i++)
        if (k->tile[i].node == node && k->tile[i].sort != ATTN_NAP_SHIFT) return i;
    return -1;
}

static bool is_target(const attn_nap_kernel *k, int node)
{
    for (int i = 0; i < k->targets; i++)
        if (k->target[i] == node) return true;
    return false;
}

static bool accrues(const planner *p, int node)
{
    const attn_nap_node *n = &p->d->node[node];
    return attn_nap_is_reduction(n->op) && (n->over & p->stream) && !p->k->loads[node];
}

/* What a term's value is made of, one level down: nothing, for what has a tile of its own. */
static int parts_of(const planner *p, int node, int16_t *part)
{
    const attn_nap_node *n = &p->d->node[node];
    int count = 0;
    if (p->k->loads[node]) return 0;
    for (int i = 0; i < ATTN_NAP_PARAMS && n->arg[i] >= 0; i++)
        part[count++] = n->arg[i];
    return count;
}

/* ---- what it takes ------------------------------------------------------------------------------ */

static bool find_needed(planner *p)
{
    attn_nap_kernel *k = p->k;
    for (int i = 0; i < k->targets; i++)
        p->needed[k->target[i]] = true;
    for (int i = p->d->nodes - 1; i >= 0; i--) {
        const attn_nap_node *n = &p->d->node[i];
        int16_t part[ATTN_NAP_PARAMS];
        if (!p->needed[i]) continue;
        if (attn_nap_is_reduction(n->op)) {
            bool beyond = (n->over & k->groups) != 0;
            if (beyond && is_target(k, i)) return false;
            k->loads[i] = beyond || (p->cut[i] && !is_target(k, i));
        }
        for (int j = 0, count = parts_of(p, i, part); j < count; j++)
            p->needed[part[j]] = true;
    }
    return true;
}

/* A reduction along the inner axis alone, of arrays. */
static bool runs_within(const planner *p, int node)
{
    const attn_nap_node *n = &p->d->node[node];
    bool reached[ATTN_NAP_NODES];
    if (!attn_nap_is_reduction(n->op) || n->op == ATTN_NAP_USER || !p->inner || n->over != p->inner) return false;
    attn_nap_reach(p->d, n->arg[0], reached);
    for (int i = 0; i <= n->arg[0]; i++)
        if (reached[i] && attn_nap_is_reduction(p->d->node[i].op)) return false;
    return true;
}

/* Whether there is such a reduction, and the inner axis stays within them. */
static bool check_inner(const planner *p)
{
    bool outside[ATTN_NAP_NODES] = { false }, any = false;
    for (int i = 0; i < p->k->targets; i++)
        outside[p->k->target[i]] = true;
    for (int i = p->d->nodes - 1; i >= 0; i--) {
        int16_t part[ATTN_NAP_PARAMS];
        if (!outside[i]) continue;
        if (p->d->node[i].axes & p->inner) return false;
        if (runs_within(p, i) && !p->k->loads[i]) {
            any = true;
            continue;
        }
        for (int j = 0, count = parts_of(p, i, part); j < count; j++)
            outside[part[j]] = true;
    }
    return any;
}

static void note_break(planner *p, int node, const char *why)
{
    attn_derivation *v = p->derivation;
    for (int i = 0; i < v->breaks; i++)
        if (v->broken[i].node == node && v->broken[i].axis == p->k->stream) return;
    if (v->breaks == ATTN_NAP_BREAKS) return;
    attn_nap_break *b = &v->broken[v->breaks++];
    *b = (attn_nap_break){ .node = node, .axis = p->k->stream };
    memcpy(b->why, why, sizeof b->why);
}

/* The pass in which each reduction over the stream accrues: along with those it is made of if it can, else after. */
static bool find_passes(planner *p)
{
    attn_nap_kernel *k = p->k;
    char why[ATTN_NAP_WHY];
    for (int i = 0; i < p->d->nodes; i++) {
        int16_t part[ATTN_NAP_PARAMS];
        if (!p->needed[i]) continue;
        p->ready[i] = 0;
        for (int j = 0, count = parts_of(p, i, part); j < count; j++)
            if (p->ready[part[j]] > p->ready[i]) p->ready[i] = p->ready[part[j]];
        if (!accrues(p, i)) continue;
        bool running[ATTN_NAP_NODES] = { false };
        attn_nap_accrual accrual;
        if (k->accruals == ATTN_NAP_TILES) return false;
        for (int j = 0; j < k->accruals; j++)
            running[k->accrual[j].node] = k->accrual[j].pass == p->ready[i] - 1;
        bool together = p->ready[i] > 0 && attn_nap_accrues(p->d, i, running, &accrual, why);
        if (p->ready[i] > 0 && !together) note_break(p, i, why);
        if (!together) accrual = (attn_nap_accrual){ .node = i, .shift = -1 };
        accrual.pass = p->ready[i] - together;
        k->accrual[k->accruals++] = accrual;
        p->ready[i] = accrual.pass + 1;
        if (k->passes < p->ready[i]) k->passes = p->ready[i];
    }
    for (int i = 0; i < k->targets && p->stream; i++)
        if ((p->d->node[k->target[i]].axes & p->stream) && k->passes <= p->ready[k->target[i]])
            k->passes = p->ready[k->target[i]] + 1;
    return true;
}

/* ---- which maps get a tile ------------------------------------------------------------------------ */

static bool is_dear(attn_nap_op op)
{
    return op == ATTN_NAP_EXP || op == ATTN_NAP_LOG || op == ATTN_NAP_SQRT || op == ATTN_NAP_TANH || op == ATTN_NAP_ERF;
}

static bool has_tile(const planner *p, int node)
{
    attn_nap_op op = p->d->node[node].op;
    return p->mapped[node] || op == ATTN_NAP_ELEMENT || attn_nap_is_reduction(op);
}

/* Below a step's term over `loops`: maps that span less get a tile, and so do dear ones that several steps take. */
static void mark_maps(planner *p, int term, uint32_t loops)
{
    bool inside[ATTN_NAP_NODES] = { false };
    inside[term] = true;
    for (int i = term; i >= 0; i--) {
        const attn_nap_node *n = &p->d->node[i];
        int16_t part[ATTN_NAP_PARAMS];
        if (!inside[i] || n->op >= ATTN_NAP_NUMBER || (has_tile(p, i) && i != term)) continue;
        if (i != term && n->axes && n->axes != loops) p->mapped[i] = true;
        if (i != term && is_dear(n->op) && n->axes && ++p->uses[i] > 1) p->mapped[i] = true;
        for (int j = 0, count = parts_of(p, i, part); j < count && !(p->mapped[i] && i != term); j++)
            inside[part[j]] = true;
    }
}

static void find_maps(planner *p)
{
    for (int round = 0; round < 2; round++) { /* the second sees what others made of shared terms */
        memset(p->uses, 0, sizeof p->uses);
        for (int i = p->d->nodes - 1; i >= 0; i--) {
            const attn_nap_node *n = &p->d->node[i];
            if (!p->needed[i]) continue;
            if (is_target(p->k, i) || p->mapped[i]) mark_maps(p, i, n->axes);
            for (int j = 0; attn_nap_is_reduction(n->op) && !p->k->loads[i] && j < ATTN_NAP_PARAMS && n->arg[j] >= 0;
                 j++)
                if (p->d->node[n->arg[j]].op < ATTN_NAP_NUMBER) {
                    if (is_dear(p->d->node[n->arg[j]].op) && ++p->uses[n->arg[j]] > 1) p->mapped[n->arg[j]] = true;
                    if (!p->mapped[n->arg[j]]) mark_maps(p, n->arg[j], p->d->node[n->arg[j]].axes);
                }
        }
    }
    for (int i = 0; i < p->d->nodes; i++) /* what spans the inner axis is taken as it comes */
        if (p->d->node[i].axes & p->inner) p->mapped[i] = false;
    for (int i = 0; i < p->k->accruals; i++) { /* shifts change while the chunk is worked on */
        bool reached[ATTN_NAP_NODES];
        if (p->k->accrual[i].shift < 0) continue;
        attn_nap_reach(p->d, p->k->accrual[i].shift, reached);
        for (int j = 0; j <= p->k->accrual[i].shift; j++)
            if (reached[j]) p->mapped[j] = false;
    }
}

/* ---- steps ---------------------------------------------------------------------------------------- */

static int add_tile(planner *p, attn_nap_tile_sort sort, int node)
{
    attn_nap_kernel *k = p->k;
    const attn_nap_node *n = &p->d->node[node];
    if (k->tiles == ATTN_NAP_TILES) {
        p->full = true;
        return 0;
    }
    attn_nap_tile tile = { .sort = sort, .node = node, .states = 1 };
    if (sort == ATTN_NAP_ACCRUED && n->op == ATTN_NAP_USER) tile.states = p->d->accumulator[n->which].states;
    k->tile[k->tiles] = tile;
    return k->tiles++;
}

static void add_step(planner *p, attn_nap_act act, int tile, int node, int pass, bool inside)
{
    attn_nap_kernel *k = p->k;
    if (k->steps == ATTN_NAP_STEPS)
        p->full = true;
    else
        k->step[k->steps++] = (attn_nap_step){ act, tile, -1, node, pass, inside, false };
}

static void demand(planner *p, int node, int pass, bool inside);

static void demand_parts(planner *p, int node, int pass, bool inside)
{
    int16_t part[ATTN_NAP_PARAMS];
    for (int i = 0, count = parts_of(p, node, part); i < count; i++)
        demand(p, part[i], pass, inside);
}

/* A reduction in chunks of the inner axis, which load what spans it, each time. */
static void reduce_within(planner *p, int node, int tile, int pass, bool inside)
{
    const attn_nap_node *n = &p->d->node[node];
    bool reached[ATTN_NAP_NODES];
    attn_nap_reach(p->d, n->arg[0], reached);
    for (int i = 0; i <= n->arg[0]; i++)
        if (reached[i] && p->d->node[i].op == ATTN_NAP_ELEMENT && !(p->d->node[i].axes & p->inner))
            demand(p, i, pass, inside);
    add_step(p, ATTN_NAP_START, tile, node, pass, inside);
    int first = p->k->steps;
    for (int i = 0; i <= n->arg[0]; i++) {
        if (!reached[i] || p->d->node[i].op != ATTN_NAP_ELEMENT || !(p->d->node[i].axes & p->inner)) continue;
        int array = attn_nap_tile_of(p->k, i);
        if (array < 0) array = add_tile(p, ATTN_NAP_INPUT, i);
        add_step(p, ATTN_NAP_LOAD, array, i, pass, inside);
    }
    add_step(p, ATTN_NAP_ACCRUE, tile, node, pass, inside);
    for (int s = first; s < p->k->steps; s++)
        p->k->step[s].within = true;
}

/* Sees to it that the value of a term can be taken in the pass: inside its chunks, or before it. */
static void demand(planner *p, int node, int pass, bool inside)
{
    const attn_nap_node *n = &p->d->node[node];
    bool streams = (n->axes & p->stream) != 0, stored = p->k->loads[node], load = n->op == ATTN_NAP_ELEMENT || stored;
    bool reduces = attn_nap_is_reduction(n->op) && !stored;
    if (accrues(p, node)) return;
    if (!load && !reduces && !p->mapped[node]) {
        demand_parts(p, node, pass, inside);
        return;
    }
    int tile = attn_nap_tile_of(p->k, node);
    if (tile < 0) tile = add_tile(p, stored ? ATTN_NAP_STORED : load ? ATTN_NAP_INPUT : ATTN_NAP_INNER, node);
    if (streams ? p->made[tile] > pass : p->made[tile] > 0) return;
    inside = inside && streams;
    p->made[tile] = pass + 1;
    if (reduces && runs_within(p, node)) {
        reduce_within(p, node, tile, pass, inside);
        return;
    }
    if (!load) demand_parts(p, node, pass, inside);
    add_step(p, load ? ATTN_NAP_LOAD : reduces ? ATTN_NAP_REDUCE : ATTN_NAP_MAP, tile, node, pass, inside);
}

static int shift_tile(planner *p, int node)
{
    for (int i = 0; i < p->shifts; i++)
        if (p->k->tile[p->shift[i]].node == node) return p->shift[i];
    return -1;
}

static void accrue(planner *p, const attn_nap_accrual *a, int pass, bool *rescaled)
{
    int tile = attn_nap_tile_of(p->k, a->node), by = a->shift >= 0 ? shift_tile(p, a->shift) : -1;
    demand_parts(p, a->node, pass, true);
    if (by >= 0 && !rescaled[by]) add_step(p, ATTN_NAP_RESCALE, by, a->shift, pass, true);
    if (by >= 0) rescaled[by] = true;
    add_step(p, ATTN_NAP_ACCRUE, tile, a->node, pass, true);
    if (!p->full) p->k->step[p->k->steps - 1].by = by;
}

static void run_pass(planner *p, int pass)
{
    attn_nap_kernel *k = p->k;
    bool rescaled[ATTN_NAP_TILES] = { false };
    for (int i = 0; i < k->accruals; i++) {
        if (k->accrual[i].pass != pass) continue;
        int tile = add_tile(p, ATTN_NAP_ACCRUED, k->accrual[i].node);
        add_step(p, ATTN_NAP_START, tile, k->accrual[i].node, pass, false);
    }
    for (int i = 0; i < k->accruals && !p->full; i++) {
        const attn_nap_accrual *a = &k->accrual[i];
        if (a->pass != pass || a->shift < 0 || shift_tile(p, a->shift) >= 0) continue;
        p->shift[p->shifts++] = add_tile(p, ATTN_NAP_SHIFT, a->shift);
        add_step(p, ATTN_NAP_KEEP, p->shift[p->shifts - 1], a->shift, pass, true);
    }
    for (int i = 0; i < k->accruals && !p->full; i++)
        if (k->accrual[i].pass == pass) accrue(p, &k->accrual[i], pass, rescaled);
    for (int i = 0; i < k->targets; i++) {
        int node = k->target[i];
        if (!(p->d->node[node].axes & p->stream) || p->ready[node] != pass) continue;
        demand(p, node, pass, true);
        add_step(p, ATTN_NAP_STORE, attn_nap_tile_of(k, node), node, pass, true);
    }
}

/* Steps before a pass come before those inside it, whichever was asked for first. */
static void sort_steps(attn_nap_kernel *k)
{
    attn_nap_step sorted[ATTN_NAP_STEPS];
    int count = 0;
    for (int pass = 0; pass <= k->passes; pass++)
        for (int inside = 0; inside < 2; inside++)
            for (int i = 0; i < k->steps; i++)
                if (k->step[i].pass == pass && k->step[i].inside == inside) sorted[count++] = k->step[i];
    memcpy(k->step, sorted, (size_t)count * sizeof *sorted);
    k->steps = count;
}

bool attn_nap_reads(const attn_nap_kernel *k, const attn_diagram *d, const attn_nap_step *step, int node)
{
    bool seen[ATTN_NAP_NODES] = { false };
    const attn_nap_node *n = &d->node[step->node];
    if (step->act == ATTN_NAP_LOAD || step->act == ATTN_NAP_START) return false;
    if (step->act == ATTN_NAP_STORE && step->tile >= 0) return step->node == node;
    for (int j = 0; j < ATTN_NAP_PARAMS && n->arg[j] >= 0; j++)
        seen[n->arg[j]] = true;
    for (int i = step->node - 1; i >= 0; i--) {
        if (!seen[i]) continue;
        if (i == node) return true;
        if (attn_nap_tile_of(k, i) >= 0) continue;
        for (int j = 0; j < ATTN_NAP_PARAMS && d->node[i].arg[j] >= 0; j++)
            seen[d->node[i].arg[j]] = true;
    }
    return false;
}

/* A tile is live from the step that makes it to the last that takes it; through all chunks if it is made outside them.
 */
static void find_lives(attn_nap_kernel *k, const attn_diagram *d)
{
    for (int t = 0; t < k->tiles; t++) {
        attn_nap_tile *tile = &k->tile[t];
        tile->first = -1;
        for (int s = 0; s < k->steps; s++) {
            const attn_nap_step *step = &k->step[s];
            bool makes = step->tile == t && step->act != ATTN_NAP_STORE;
            if (!makes && step->by != t && !attn_nap_reads(k, d, step, tile->node)) continue;
            if (tile->first < 0) tile->first = s;
            tile->last = s;
        }
        if (tile->first < 0) tile->first = tile->last = 0;
        while (!k->step[tile->first].inside && k->step[tile->last].inside && tile->last + 1 < k->steps &&
               k->step[tile->last + 1].inside && k->step[tile->last + 1].pass == k->step[tile->last].pass)
            tile->last++;
    }
}

bool attn_nap_plan(attn_derivation *derivation, const bool *cut, attn_nap_kernel *k)
{
    planner p = { .derivation = derivation, .d = derivation->diagram, .k = k, .cut = cut };
    p.stream = k->stream >= 0 ? 1u << k->stream : 0;
    p.inner = k->inner >= 0 ? 1u << k->inner : 0;
    k->passes = k->tiles = k->steps = k->accruals = 0;
    memset(k->loads, 0, sizeof k->loads);
    if (!find_needed(&p) || (p.inner && !check_inner(&p)) || !find_passes(&p)) return false;
    if (p.stream && !k->passes) return false;
    find_maps(&p);
    for (int pass = 0; pass < k->passes; pass++)
        run_pass(&p, pass);
    for (int i = 0; i < k->targets; i++) {
        int node = k->target[i];
        if (p.d->node[node].axes & p.stream) continue;
        demand(&p, node, k->passes, false);
        add_step(&p, ATTN_NAP_STORE, attn_nap_tile_of(k, node), node, k->passes, false);
    }
    sort_steps(k);
    find_lives(k, p.d);
    if (p.stream) attn_nap_find_guards(p.d, k);
    return !p.full;
}
