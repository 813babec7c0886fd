/* The names of tiles; see derive.h. */
#include <stdio.h>
#include <string.h>

#include "napkin/derive.h"

/* The tile before kernel i's tile t whose name is taken, or NULL. */
static const attn_nap_tile *find_name(const attn_derivation *v, int kernel, int tile, const char *name)
{
    for (int i = 0; i <= kernel; i++)
        for (int t = 0; t < (i == kernel ? tile : v->kernel[i].tiles); t++)
            if (!strcmp(v->kernel[i].tile[t].name, name)) return &v->kernel[i].tile[t];
    return NULL;
}

static bool is_declared(const attn_diagram *d, const char *name)
{
    for (int i = 0; i < d->axes; i++)
        if (!strcmp(d->axis[i].name, name)) return true;
    for (int i = 0; i < d->arrays; i++)
        if (!strcmp(d->array[i].name, name)) return true;
    for (int i = 0; i < d->definitions; i++)
        if (!strcmp(d->definition[i].array.name, name)) return true;
    return false;
}

static const char *stem_of(const attn_diagram *d, const attn_nap_tile *tile)
{
    const attn_nap_node *n = &d->node[tile->node];
    if (tile->sort == ATTN_NAP_SHIFT) return "shift";
    if (n->op == ATTN_NAP_USER) return d->accumulator[n->which].name;
    if (n->op == ATTN_NAP_ELEMENT) return d->array[n->which].name;
    return attn_nap_is_reduction(n->op) || n->op == ATTN_NAP_EXP ? attn_nap_op_name[n->op] : "map";
}

/* A name of its own, or that of the same term elsewhere. */
static void name_tile(attn_derivation *v, int kernel, int t)
{
    attn_nap_tile *tile = &v->kernel[kernel].tile[t];
    const attn_nap_node *n = &v->diagram->node[tile->node];
    const char *given = n->op == ATTN_NAP_ELEMENT      ? v->diagram->array[n->which].name
                        : tile->sort != ATTN_NAP_SHIFT ? v->names.of[tile->node]
                                                       : NULL;
    const attn_nap_tile *other = NULL;
    char name[sizeof tile->name];
    for (int number = given ? 0 : 1; number < 1000; number++) {
        if (number)
            snprintf(name, sizeof name, "%s_%d", stem_of(v->diagram, tile), number);
        else
            snprintf(name, sizeof name, "%s", given);
        other = find_name(v, kernel, t, name);
        bool same =
            other && other->node == tile->node && (other->sort == ATTN_NAP_SHIFT) == (tile->sort == ATTN_NAP_SHIFT);
        if (same || (!other && (!number || !is_declared(v->diagram, name)))) break;
    }
    memcpy(tile->name, name, sizeof name);
}

void attn_nap_name_tiles(attn_derivation *v)
{
    for (int i = 0; i < v->kernels; i++)
        for (int t = 0; t < v->kernel[i].tiles; t++)
            name_tile(v, i, t);
}

void attn_nap_tile_names(const attn_derivation *v, const attn_nap_kernel *k, attn_nap_names *names)
{
    *names = v->names;
    for (int t = 0; t < k->tiles; t++)
        if (k->tile[t].sort != ATTN_NAP_SHIFT) names->of[k->tile[t].node] = k->tile[t].name;
    for (int i = 0; i < v->outputs; i++)
        names->of[v->output[i]] = v->diagram->definition[v->defined[i]].array.name;
}

int attn_nap_output_of(const attn_derivation *v, int node)
{
    for (int i = 0; i < v->outputs; i++)
        if (v->output[i] == node) return v->defined[i];
    return -1;
}
