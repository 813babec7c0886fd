/* Wide sums: stored by one kernel for another, or computed again; see derive.h. Which is faster depends on the machine:
 * storing takes bytes through memory, computing again takes operations. */
#include <math.h>

#include "napkin/derive.h"

attn_nap_way attn_nap_way_of(const attn_derivation *v)
{
    attn_nap_way way = { .seconds = v->seconds, .kernels = v->kernels };
    for (int i = 0; i < v->kernels; i++) {
        const attn_model_time *t = &v->kernel[i].time;
        way.moving[i] = t->level[1];
        for (int level = 2; level < v->levels; level++)
            way.rest[i] = fmax(way.rest[i], t->level[level]);
        for (int unit = 0; unit < ATTN_UNITS; unit++)
            way.rest[i] = fmax(way.rest[i], t->unit[unit]);
    }
    for (int node = 0; node < v->diagram->nodes; node++) {
        bool loaded = false;
        for (int i = 0; i < v->kernels; i++)
            loaded |= v->kernel[i].loads[node];
        if (loaded && v->wide[node])
            way.stored += 4 * attn_nap_count(v->diagram, v->diagram->node[node].axes); /* f32 */
    }
    return way;
}

/* Seconds where memory is `faster` times as fast. */
static double seconds_at(const attn_nap_way *way, double faster)
{
    double seconds = 0;
    for (int i = 0; i < way->kernels; i++)
        seconds += fmax(way->moving[i] / faster, way->rest[i]);
    return seconds;
}

double attn_nap_memory_rate(const attn_derivation *v)
{
    attn_model_rates rates;
    attn_machine_rates(v->machine, &rates);
    return rates.bandwidth[v->level[1]];
}

double attn_nap_again_pays(const attn_derivation *v)
{
    double slow = 1e-6, fast = 1e6; /* times the machine's memory */
    if (seconds_at(&v->storing, slow) <= seconds_at(&v->again, slow)) return 0;
    if (seconds_at(&v->storing, fast) >= seconds_at(&v->again, fast)) return INFINITY;
    while (fast > slow * 1.001) {
        double middle = sqrt(slow * fast);
        *(seconds_at(&v->storing, middle) > seconds_at(&v->again, middle) ? &slow : &fast) = middle;
    }
    return fast * attn_nap_memory_rate(v);
}
