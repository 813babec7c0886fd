/* A plan to the cost model; see derive.h. What stays inside and what accrues is f32; arrays are of their types.
 *
 * An axis that everything crossing spans gains nothing from greater tiles, and is cut as small as its multiple allows.
 * Groups along an axis that a step does not span compute that step again, each of them. An instruction counts two
 * operations, as a multiply-add does. */
#include <math.h>
#include <string.h>

#include "napkin/derive.h"

static const struct {
    int operations, exponentials;
} costs[] = {
#define X(op, name, arguments, operations, exponentials) { operations, exponentials },
    ATTN_NAP_OPS(X)
#undef X
};

/* ---- arrays ------------------------------------------------------------------------------------- */

static attn_model_array *add_array(attn_model *m, uint32_t axes, double bytes, unsigned direction, int home)
{
    attn_model_array *a = &m->array[m->arrays++];
    *a = (attn_model_array){ .axes = axes, .direction = direction, .home = home };
    a->bytes[0] = bytes;
    return a;
}

static double bytes_of(const attn_derivation *v, int node)
{
    const attn_nap_node *n = &v->diagram->node[node];
    int output = attn_nap_output_of(v, node);
    if (output >= 0) return attn_nap_type_bytes(v->diagram->definition[output].array.type);
    return n->op == ATTN_NAP_ELEMENT ? attn_nap_type_bytes(v->diagram->array[n->which].type) : 4;
}

/* The model's array i is the kernel's tile i; what is stored comes after them. */
static bool add_arrays(const attn_derivation *v, attn_nap_kernel *k)
{
    attn_model *m = &k->model;
    if (k->tiles + k->targets > ATTN_MODEL_ARRAYS) return false;
    for (int t = 0; t < k->tiles; t++) {
        const attn_nap_tile *tile = &k->tile[t];
        bool outside = tile->sort == ATTN_NAP_INPUT || tile->sort == ATTN_NAP_STORED;
        int loads = 0;
        for (int s = 0; s < k->steps; s++)
            loads += k->step[s].act == ATTN_NAP_LOAD && k->step[s].tile == t;
        attn_model_array *a =
            add_array(m, v->diagram->node[tile->node].axes, outside ? bytes_of(v, tile->node) : 4,
                      outside ? ATTN_MODEL_READ : 0, outside ? attn_nap_home(v, tile->node) : v->levels - 1);
        a->name = tile->name;
        a->bytes[0] *= tile->states;
        a->density = loads;
    }
    for (int i = 0; i < k->targets; i++)
        add_array(m, v->diagram->node[k->target[i]].axes, bytes_of(v, k->target[i]), ATTN_MODEL_WRITTEN,
                  attn_nap_home(v, k->target[i]));
    for (int s = 0; s < k->steps; s++) {
        uint32_t live = 0;
        bool held = false;
        for (int t = 0; t < k->tiles; t++)
            if (k->tile[t].first <= s && s <= k->tile[t].last) live |= 1u << t;
        for (int c = 0; c < m->columns && !held; c++) {
            if (!(m->column[c] & ~live)) m->column[c] = live;
            held = !(live & ~m->column[c]);
        }
        if (!held && m->columns == ATTN_MODEL_COLUMNS) return false;
        if (!held) m->column[m->columns++] = live;
    }
    return true;
}

/* ---- work --------------------------------------------------------------------------------------- */

static void add_work(attn_model *m, uint32_t axes, int unit, double amount)
{
    int w = 0;
    if (amount == 0) return;
    while (w < m->works && (m->work[w].axes != axes || m->work[w].unit != unit))
        w++;
    if (w == ATTN_MODEL_WORKS) w--;
    if (w == m->works) m->work[m->works++] = (attn_model_work){ .axes = axes, .unit = unit };
    m->work[w].amount += amount;
}

/* The greatest type that a step's operands come from: what a tensor core would be fed. */
static double operand_bytes(const attn_derivation *v, int node)
{
    bool reached[ATTN_NAP_NODES];
    double most = 0;
    attn_nap_reach(v->diagram, node, reached);
    for (int i = 0; i <= node; i++)
        if (reached[i] && v->diagram->node[i].op == ATTN_NAP_ELEMENT) most = fmax(most, bytes_of(v, i));
    return most;
}

/* A sum of a product whose operands span different axes. */
static bool is_contraction(const attn_diagram *d, int node)
{
    const attn_nap_node *n = &d->node[node], *body = n->arg[0] >= 0 ? &d->node[n->arg[0]] : n;
    if (n->op != ATTN_NAP_SUM || body->op != ATTN_NAP_MUL) return false;
    uint32_t a = d->node[body->arg[0]].axes, b = d->node[body->arg[1]].axes;
    return (a & ~b) && (b & ~a);
}

static void add_map(const attn_derivation *v, attn_nap_kernel *k, int node, uint32_t loops)
{
    const attn_diagram *d = v->diagram;
    bool inside[ATTN_NAP_NODES] = { false };
    double operations = 0, exponentials = 0;
    inside[node] = true;
    for (int i = node; i >= 0; i--) {
        const attn_nap_node *n = &d->node[i];
        if (!inside[i] || n->op >= ATTN_NAP_NUMBER || (i != node && attn_nap_tile_of(k, i) >= 0)) continue;
        if (n->axes) operations += 2 * costs[n->op].operations;
        if (n->axes) exponentials += costs[n->op].exponentials;
        for (int j = 0; j < ATTN_NAP_PARAMS && n->arg[j] >= 0; j++)
            inside[n->arg[j]] = true;
    }
    add_work(&k->model, loops, ATTN_UNIT_FMA, operations);
    add_work(&k->model, loops, ATTN_UNIT_EXP, exponentials);
}

static void add_reduction(const attn_derivation *v, attn_nap_kernel *k, int node)
{
    const attn_diagram *d = v->diagram;
    const attn_nap_node *n = &d->node[node];
    uint32_t loops = n->axes | n->over;
    if (is_contraction(d, node)) {
        double bytes = operand_bytes(v, node);
        int unit = bytes == 1 ? ATTN_UNIT_TENSOR8 : bytes == 2 ? ATTN_UNIT_TENSOR16 : ATTN_UNIT_FMA;
        if (v->machine->unit[unit] <= 0) unit = ATTN_UNIT_FMA;
        add_work(&k->model, loops, unit, 2);
        return;
    }
    add_work(&k->model, loops, ATTN_UNIT_FMA, n->op == ATTN_NAP_USER ? 8 * d->accumulator[n->which].states : 2);
    for (int i = 0; i < ATTN_NAP_PARAMS && n->arg[i] >= 0; i++)
        if (attn_nap_tile_of(k, n->arg[i]) < 0) add_map(v, k, n->arg[i], loops);
}

static void add_works(const attn_derivation *v, attn_nap_kernel *k)
{
    for (int s = 0; s < k->steps; s++) {
        const attn_nap_step *step = &k->step[s];
        uint32_t axes = v->diagram->node[step->node].axes;
        if (step->act == ATTN_NAP_REDUCE || step->act == ATTN_NAP_ACCRUE) add_reduction(v, k, step->node);
        if (step->act == ATTN_NAP_MAP || (step->act == ATTN_NAP_STORE && step->tile < 0))
            add_map(v, k, step->node, axes);
        if (step->act == ATTN_NAP_ACCRUE && step->by >= 0) /* rescaled once a chunk, an exponential for each shift */
            add_work(&k->model, axes, ATTN_UNIT_FMA, 2);
    }
}

/* ---- tiles -------------------------------------------------------------------------------------- */

/* Groups along an axis that all that crosses spans: nothing is loaded again for want of greater tiles. */
static uint32_t weaved(const attn_nap_kernel *k)
{
    uint32_t axes = k->groups;
    for (int i = 0; i < k->model.arrays; i++)
        if (k->model.array[i].direction) axes &= k->model.array[i].axes;
    return axes;
}

static bool choose_tiles(const attn_derivation *v, attn_nap_kernel *k)
{
    attn_partition *p = &k->partition;
    uint32_t weave = weaved(k), stream = k->stream >= 0 ? 1u << k->stream : 0,
             inner = k->inner >= 0 ? 1u << k->inner : 0;
    attn_partition_whole(&k->model, v->levels, p);
    for (int level = 1; level < v->levels; level++) {
        p->streamed[level] = inner ? inner : stream; /* chunks of the stream load again what the inner axis spans */
        for (int a = 0; a < k->model.axes; a++) {
            int64_t size = k->model.axis[a].size, multiple = k->model.axis[a].multiple;
            if ((k->groups | stream | inner) >> a & 1) p->tile[level][a] = 0;
            if (weave >> a & 1) p->tile[level][a] = multiple < size ? multiple : size;
        }
        if (!attn_model_optimum(&k->model, p, level, v->machine->level[v->level[level]].bytes)) return false;
    }
    return true;
}

/* What is in chunks that are skipped is neither loaded nor computed. */
static void skip_chunks(const attn_derivation *v, attn_nap_kernel *k)
{
    uint32_t stream = k->stream >= 0 ? 1u << k->stream : 0;
    for (int level = 1; level < v->levels; level++)
        k->density[level] = attn_nap_density(v->diagram, k, k->partition.tile[level]);
    for (int w = 0; w < k->model.works; w++)
        if (k->model.work[w].axes & stream) k->model.work[w].density = k->density[v->levels - 1];
}

attn_model attn_nap_model_at(const attn_nap_kernel *k, int level)
{
    attn_model m = k->model;
    uint32_t inner = k->inner >= 0 ? 1u << k->inner : 0;
    for (int t = 0; t < k->tiles && k->stream >= 0; t++)
        if (m.array[t].direction && m.array[t].axes & (1u << k->stream | inner))
            m.array[t].density *= k->density[level];
    if (!inner) return m;
    double chunks = ceil((double)m.axis[k->stream].size / (double)k->partition.tile[level][k->stream]);
    for (int i = 0; i < m.arrays; i++) { /* what spans neither stays while the stream goes by */
        attn_model_array *a = &m.array[i];
        if (a->direction && !(a->axes & (1u << k->stream | inner)))
            a->density = (a->density > 0 ? a->density : 1) / chunks;
    }
    return m;
}

static void compute_again(const attn_derivation *v, attn_nap_kernel *k)
{
    for (int w = 0; w < k->model.works; w++)
        for (int a = 0; a < k->model.axes; a++) {
            int64_t tile = k->partition.tile[v->levels - 1][a], size = k->model.axis[a].size;
            if (k->groups & ~k->model.work[w].axes & 1u << a)
                k->model.work[w].amount *= (double)((size + tile - 1) / tile);
        }
}

bool attn_nap_weigh(const attn_derivation *v, attn_nap_kernel *k)
{
    const attn_diagram *d = v->diagram;
    attn_model_rates rates = { .exposed = 0 }, by_level = { .exposed = 0 };
    memset(&k->model, 0, sizeof k->model);
    k->model.axes = d->axes;
    for (int a = 0; a < d->axes; a++)
        k->model.axis[a] = (attn_model_axis){ d->axis[a].name, d->axis[a].size, d->axis[a].multiple };
    if (!add_arrays(v, k)) return false;
    add_works(v, k);
    if (!choose_tiles(v, k)) return false;
    compute_again(v, k);
    skip_chunks(v, k);
    attn_machine_rates(v->machine, &rates);
    by_level = rates;
    for (int level = 1; level < v->levels; level++) { /* the model counts every chunk at every level */
        attn_model m = attn_nap_model_at(k, level);
        k->bytes = attn_model_transfer(&m, &k->partition, level);
        by_level.bandwidth[level] = rates.bandwidth[v->level[level]];
        if (k->bytes > 0) by_level.bandwidth[level] *= attn_model_transfer(&k->model, &k->partition, level) / k->bytes;
    }
    k->time = attn_model_predict(&k->model, &k->partition, &by_level);
    return true;
}

double attn_nap_unfused(attn_diagram *d)
{
    double bytes = 0;
    for (int i = 0; i < d->definitions; i++) {
        const attn_nap_array *array = &d->definition[i].array;
        bool reached[ATTN_NAP_NODES], hidden[ATTN_NAP_NODES] = { false };
        int node = d->definition[i].node;
        attn_nap_reach(d, node, reached);
        for (int j = i - 1; j >= 0; j--) { /* definitions that it is made of, and not what those are made of */
            int other = d->definition[j].node;
            if (other > node || !reached[other] || hidden[other] || d->node[other].op == ATTN_NAP_ELEMENT) continue;
            bytes += attn_nap_count(d, d->node[other].axes) * attn_nap_type_bytes(d->definition[j].array.type);
            bool below[ATTN_NAP_NODES];
            attn_nap_reach(d, other, below);
            for (int n = 0; n <= other; n++)
                hidden[n] |= below[n];
        }
        for (int n = 0; n <= node; n++)
            if (reached[n] && !hidden[n] && d->node[n].op == ATTN_NAP_ELEMENT)
                bytes += attn_nap_count(d, d->node[n].axes) * attn_nap_type_bytes(d->array[d->node[n].which].type);
        if (array->rank) bytes += attn_nap_count(d, d->node[node].axes) * attn_nap_type_bytes(array->type);
    }
    return bytes;
}
