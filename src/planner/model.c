/* Contract: model.h. */
#include "planner/model.h"

#include <math.h>
#include <string.h>

static double tiles(int64_t size, int64_t tile)
{
    return tile < size ? (double)((size + tile - 1) / tile) : 1;
}

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static double or_one(double x)
{
    return x > 0 ? x : 1;
}

/* Of a level; level 0 holds axes whole. */
static int64_t tile_of(const attn_model *m, const attn_partition *p, int level, int axis)
{
    return level > 0 ? p->tile[level][axis] : m->axis[axis].size;
}

static double bytes_of(const attn_model_array *a, int level)
{
    while (level > 0 && a->bytes[level] <= 0)
        level--;
    return a->bytes[level];
}

static double size_of(const attn_model *m, const attn_model_array *a)
{
    double size = or_one(a->density);
    for (int i = 0; i < m->axes; i++)
        if (a->axes >> i & 1) size *= (double)m->axis[i].size;
    return size;
}

static double ways(unsigned direction)
{
    return (direction & ATTN_MODEL_READ ? 1 : 0) + (direction & ATTN_MODEL_WRITTEN ? 1 : 0);
}

void attn_partition_whole(const attn_model *m, int levels, attn_partition *p)
{
    *p = (attn_partition){ .levels = levels };
    for (int level = 0; level < levels; level++)
        for (int i = 0; i < m->axes; i++)
            p->tile[level][i] = m->axis[i].size > 0 ? m->axis[i].size : 1;
}

/* Whether the groups of `level` that a tile outside is cut into all lie there at once: what they hold stays while
 * chunks pass. */
static bool stays(const attn_model *m, const attn_partition *p, int level)
{
    double groups = 1;
    for (int i = 0; i < m->axes; i++)
        if (!(p->streamed[level] >> i & 1)) groups *= tiles(tile_of(m, p, level - 1, i), tile_of(m, p, level, i));
    return groups <= or_one(p->side_by_side[level]);
}

/* Times that an array which does not span the axis passes into the level. */
static double passes(const attn_model *m, const attn_partition *p, int level, int axis)
{
    int64_t size = m->axis[axis].size;
    for (; level > 0; level--) {
        if (!(p->streamed[level] >> axis & 1)) return tiles(size, p->tile[level][axis]);
        if (!stays(m, p, level)) return tiles(size, tile_of(m, p, level - 1, axis));
    }
    return 1;
}

double attn_model_crossing(const attn_model *m, const attn_partition *p, int level, int array)
{
    const attn_model_array *a = &m->array[array];
    if (level <= a->home) return 0;
    double bytes = size_of(m, a) * bytes_of(a, level - 1) * ways(a->direction);
    for (int i = 0; i < m->axes; i++)
        if (!(a->axes >> i & 1)) bytes *= passes(m, p, level, i);
    return bytes;
}

double attn_model_transfer(const attn_model *m, const attn_partition *p, int level)
{
    double bytes = 0;
    for (int i = 0; i < m->arrays; i++)
        bytes += attn_model_crossing(m, p, level, i);
    return bytes;
}

static double tile_bytes(const attn_model *m, const attn_partition *p, int level, const attn_model_array *a)
{
    double bytes = bytes_of(a, level) * or_one(a->copies);
    for (int i = 0; i < m->axes; i++)
        if (a->axes >> i & 1) bytes *= (double)p->tile[level][i];
    return bytes;
}

double attn_model_live(const attn_model *m, const attn_partition *p, int level)
{
    double tile[ATTN_MODEL_ARRAYS], most = 0;
    for (int i = 0; i < m->arrays; i++)
        tile[i] = m->array[i].home <= level ? tile_bytes(m, p, level, &m->array[i]) : 0;
    for (int c = 0; c < m->columns; c++) {
        double bytes = 0;
        for (int i = 0; i < m->arrays; i++)
            if (m->column[c] >> i & 1) bytes += tile[i];
        if (bytes > most) most = bytes;
    }
    return most * or_one(p->side_by_side[level]);
}

double attn_model_operations(const attn_model *m, int unit)
{
    double all = 0;
    for (int w = 0; w < m->works; w++) {
        const attn_model_work *work = &m->work[w];
        double amount = work->amount * or_one(work->density);
        for (int i = 0; i < m->axes; i++)
            if (work->axes >> i & 1) amount *= (double)round_up(m->axis[i].size, m->axis[i].multiple);
        if (work->unit == unit) all += amount;
    }
    return all;
}

double attn_model_least(const attn_model *m)
{
    double bytes = 0;
    for (int i = 0; i < m->arrays; i++)
        if (m->array[i].home == 0)
            bytes += size_of(m, &m->array[i]) * m->array[i].bytes[0] * ways(m->array[i].direction);
    return bytes;
}

/* ---- the closed form ----------------------------------------------------------------------- */

/* Axes of level 1 that are cut in groups: what there is to choose. */
static uint32_t grouped(const attn_model *m, const attn_partition *p)
{
    uint32_t cut = 0;
    for (int i = 0; i < m->axes; i++)
        if (!(p->streamed[1] >> i & 1) && p->tile[1][i] < m->axis[i].size) cut |= 1u << i;
    return cut;
}

static bool is_single(uint32_t bits)
{
    return bits && !(bits & (bits - 1));
}

/* H = sum of cost[i] / g_i, and what passes once. False: some array passes once per pair of groups and more. */
static bool transfer_terms(const attn_model *m, uint32_t cut, double cost[ATTN_MODEL_AXES], double *once)
{
    for (int i = 0; i < m->arrays; i++) {
        const attn_model_array *a = &m->array[i];
        double bytes = a->home == 0 ? size_of(m, a) * a->bytes[0] * ways(a->direction) : 0;
        uint32_t lacks = cut & ~a->axes;
        if (bytes > 0 && lacks && !is_single(lacks)) return false;
        for (int axis = 0; axis < m->axes; axis++)
            if (lacks >> axis & 1) cost[axis] += bytes * (double)m->axis[axis].size;
        if (!lacks) *once += bytes;
    }
    return true;
}

/* What a column keeps, without what spans a streamed axis: each array by the groups that it spans. */
static double kept(const attn_model *m, const attn_partition *p, uint32_t column, uint32_t cut, uint32_t spanned)
{
    double bytes = 0;
    for (int i = 0; i < m->arrays; i++) {
        const attn_model_array *a = &m->array[i];
        if (!(column >> i & 1) || (a->axes & cut) != spanned || a->axes & p->streamed[1]) continue;
        double tile = bytes_of(a, 1) * or_one(a->copies);
        for (int axis = 0; axis < m->axes; axis++)
            if (a->axes >> axis & 1 & ~(cut >> axis)) tile *= (double)p->tile[1][axis];
        bytes += tile;
    }
    return bytes;
}

static double most_kept(const attn_model *m, const attn_partition *p, uint32_t cut, uint32_t spanned)
{
    double most = 0;
    for (int c = 0; c < m->columns; c++)
        most = fmax(most, kept(m, p, m->column[c], cut, spanned));
    return most;
}

attn_model_closed attn_model_close(const attn_model *m, const attn_partition *p)
{
    attn_model_closed closed = { .beta = 0 };
    double cost[ATTN_MODEL_AXES] = { 0 }, product = 1, root = 0;
    uint32_t cut = grouped(m, p), free_axes = 0;
    if (!transfer_terms(m, cut, cost, &closed.least)) return closed;
    int count = 0;
    for (int i = 0; i < m->axes; i++)
        if (cost[i] > 0) free_axes |= 1u << i, product *= cost[i], count++;
    double together = count > 1 ? most_kept(m, p, free_axes, free_axes) : 0;
    closed.exact = true;
    if (count == 0) return closed;
    if (together > 0) { /* M = together * product of g: each term is the same at the optimum */
        closed.beta = 1.0 / count;
        closed.alpha = count * pow(product * together, closed.beta);
        return closed;
    }
    for (int i = 0; i < m->axes; i++) { /* M = sum of kept[i] g_i */
        if (!(free_axes >> i & 1)) continue;
        double linear = most_kept(m, p, free_axes, 1u << i);
        if (linear <= 0) closed.exact = false;
        root += sqrt(cost[i] * linear);
    }
    closed.beta = 1;
    closed.alpha = root * root;
    return closed;
}

/* ---- the optimum --------------------------------------------------------------------------- */

typedef struct search {
    const attn_model *model;
    attn_partition *partition, best;
    int level, count, axis[ATTN_MODEL_AXES]; /* groups to choose */
    double capacity, least;
} search;

/* The next smaller number of tiles' size: the tiles that share the axis evenly. */
static int64_t even_tile(const attn_model_axis *axis, int64_t outer, int64_t count)
{
    return round_up((outer + count - 1) / count, axis->multiple);
}

static bool fits(const search *s)
{
    return attn_model_live(s->model, s->partition, s->level) <= s->capacity;
}

/* The last axis takes the greatest tile that fits, by bisection over numbers of tiles; H never rises with it. */
static void take_greatest(search *s, int axis)
{
    const attn_model_axis *a = &s->model->axis[axis];
    int64_t outer = tile_of(s->model, s->partition, s->level - 1, axis), *tile = &s->partition->tile[s->level][axis];
    int64_t low = 1, high = (outer + a->multiple - 1) / a->multiple; /* tiles: low may not fit, high is the most */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        *tile = even_tile(a, outer, middle);
        if (fits(s))
            high = middle;
        else
            low = middle + 1;
    }
    *tile = even_tile(a, outer, high);
}

/* Each axis but the last is tried at every number of tiles; at so many that this would take long only at growing ones,
 * the sooner the more axes there are: H is flat where it is least. */
static int64_t step_of(const search *s, int64_t count)
{
    static const int64_t exact[] = { 64, 64, 64, 4, 1 };
    return s->count > 4 ? 15 * count : count / exact[s->count];
}

static void choose_groups(search *s, int depth)
{
    if (depth < s->count - 1) {
        int axis = s->axis[depth];
        const attn_model_axis *a = &s->model->axis[axis];
        int64_t outer = tile_of(s->model, s->partition, s->level - 1, axis), before = 0;
        for (int64_t count = 1; count <= (outer + a->multiple - 1) / a->multiple; count++) {
            int64_t tile = even_tile(a, outer, count);
            if (tile == before) { /* on to the first count with a smaller tile */
                count =
                    tile > a->multiple ? (outer + tile - a->multiple - 1) / (tile - a->multiple) - 1 : INT64_MAX - 1;
                continue;
            }
            s->partition->tile[s->level][axis] = before = tile;
            choose_groups(s, depth + 1);
            count += step_of(s, count);
        }
        return;
    }
    if (s->count > 0) take_greatest(s, s->axis[depth]);
    double bytes = attn_model_transfer(s->model, s->partition, s->level);
    if (fits(s) && bytes < s->least) s->least = bytes, s->best = *s->partition;
}

bool attn_model_optimum(const attn_model *m, attn_partition *p, int level, double capacity)
{
    search s = { .model = m, .partition = p, .level = level, .capacity = capacity, .least = INFINITY };
    uint32_t chosen = 0;
    for (int i = 0; i < m->axes; i++) {
        if (p->tile[level][i] > 0) continue;
        chosen |= 1u << i;
        p->tile[level][i] = m->axis[i].multiple;
        if (!(p->streamed[level] >> i & 1)) s.axis[s.count++] = i;
    }
    attn_partition smallest = *p;
    choose_groups(&s, 0);
    *p = isinf(s.least) ? smallest : s.best;
    if (isinf(s.least)) return false;
    for (int i = 0; i < m->axes; i++)
        if (chosen & p->streamed[level] & 1u << i) take_greatest(&s, i);
    return true;
}

/* ---- time ---------------------------------------------------------------------------------- */

double attn_model_overlap(const double *seconds, int count, double exposed)
{
    double most = 0, sum = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, seconds[i]), sum += seconds[i];
    return most + exposed * (sum - most);
}

attn_model_time attn_model_predict(const attn_model *m, const attn_partition *p, const attn_model_rates *rates)
{
    attn_model_time t = { .bound_level = -1, .bound_unit = -1 };
    double all[ATTN_MODEL_LEVELS + ATTN_MODEL_UNITS], most = 0;
    int count = 0;
    for (int level = 1; level < p->levels; level++) {
        if (rates->bandwidth[level] <= 0) continue;
        all[count++] = t.level[level] = attn_model_transfer(m, p, level) / rates->bandwidth[level];
        if (t.level[level] > most) most = t.level[level], t.bound_level = level;
    }
    for (int unit = 0; unit < ATTN_MODEL_UNITS; unit++) {
        if (rates->unit[unit] <= 0) continue;
        all[count++] = t.unit[unit] = attn_model_operations(m, unit) / rates->unit[unit];
        if (t.unit[unit] > most) most = t.unit[unit], t.bound_unit = unit, t.bound_level = -1;
    }
    t.seconds = attn_model_overlap(all, count, rates->exposed);
    return t;
}
