/* A derivation drawn in its three stages; see derive.h, draw.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "napkin/draw.h"

typedef char labels[ATTN_NAP_AXES][ATTN_NAP_LABEL];

static int add_box(attn_nap_graph *g, const char *title, uint32_t axes, bool outside)
{
    attn_nap_box *box = &g->box[g->boxes];
    memset(box, 0, sizeof *box);
    snprintf(box->title, sizeof box->title, "%s", title);
    box->axes = axes;
    box->outside = outside;
    return g->boxes++;
}

static void say_term(attn_nap_box *box, const attn_diagram *d, const attn_nap_names *names, int node)
{
    attn_words words = { box->text, sizeof box->text, 0 };
    attn_nap_say_term(&words, d, names, node, true);
    if (words.length > 27) snprintf(box->text + 24, 4, "...");
}

/* ---- the diagram -------------------------------------------------------------------------------- */

static void connect_parts(attn_nap_graph *g, const attn_diagram *d, int definition, int box, const int *box_of)
{
    bool inside[ATTN_NAP_NODES] = { false };
    int node = d->definition[definition].node;
    inside[node] = true;
    for (int i = node; i >= 0; i--) {
        bool named = false;
        if (!inside[i]) continue;
        for (int j = 0; j < definition && !named; j++)
            if ((named = d->definition[j].node == i && i != node)) attn_nap_connect(g, d->arrays + j, box);
        if (named) continue;
        if (d->node[i].op == ATTN_NAP_ELEMENT) {
            bool known = false;
            for (int j = 0; j < g->wires; j++)
                known |= g->wire[j].from == box_of[d->node[i].which] && g->wire[j].to == box;
            if (!known) attn_nap_connect(g, box_of[d->node[i].which], box);
        }
        for (int j = 0; j <= ATTN_NAP_PARAMS; j++)
            if (d->node[i].arg[j] >= 0) inside[d->node[i].arg[j]] = true;
    }
}

static double draw_diagram(attn_words *w, const attn_derivation *v, attn_nap_graph *g, double y, double *width)
{
    const attn_diagram *d = v->diagram;
    labels cut;
    int box_of[ATTN_NAP_ARRAYS];
    g->boxes = g->wires = 0;
    for (int a = 0; a < d->axes; a++)
        snprintf(cut[a], sizeof cut[a], "%s", d->axis[a].name);
    for (int i = 0; i < d->arrays; i++) {
        uint32_t axes = 0;
        for (int j = 0; j < d->array[i].rank; j++)
            axes |= 1u << d->array[i].index[j];
        box_of[i] = add_box(g, d->array[i].name, axes, true);
        snprintf(g->box[box_of[i]].text, ATTN_NAP_LABEL, "%s", attn_nap_type_name(d->array[i].type));
    }
    for (int i = 0; i < d->definitions; i++) {
        int box = add_box(g, d->definition[i].array.name, d->node[d->definition[i].node].axes, true);
        say_term(&g->box[box], d, &v->names, d->definition[i].node);
        connect_parts(g, d, i, box, box_of);
    }
    *width = attn_nap_graph_width(g);
    return attn_nap_draw_graph(w, g, cut, y, NULL);
}

/* ---- a kernel ----------------------------------------------------------------------------------- */

static void label_axes(const attn_derivation *v, const attn_nap_kernel *k, labels cut)
{
    for (int a = 0; a < v->diagram->axes; a++) {
        long long tile = (long long)k->partition.tile[v->levels - 1][a];
        const char *name = v->diagram->axis[a].name;
        if (k->groups >> a & 1)
            snprintf(cut[a], ATTN_NAP_LABEL, "%s/%lld", name, tile);
        else if (k->stream == a || k->inner == a)
            snprintf(cut[a], ATTN_NAP_LABEL, "%s:%lld", name, tile);
        else
            snprintf(cut[a], ATTN_NAP_LABEL, "%s", name);
    }
}

static double draw_kernel(attn_words *w, const attn_derivation *v, const attn_nap_kernel *k, attn_nap_graph *g,
                          double y, double *width)
{
    const attn_diagram *d = v->diagram;
    attn_nap_names names;
    labels cut;
    int last = 0;
    attn_nap_tile_names(v, k, &names);
    label_axes(v, k, cut);
    g->boxes = g->wires = 0;
    for (int t = 0; t < k->tiles; t++) {
        bool outside = k->tile[t].sort <= ATTN_NAP_STORED;
        int box = add_box(g, k->tile[t].name, d->node[k->tile[t].node].axes, outside);
        if (!outside) g->box[box].layer = 1;
        if (!outside) say_term(&g->box[box], d, &names, k->tile[t].node);
    }
    for (int s = 0; s < k->steps; s++) {
        int made = k->step[s].tile;
        if (k->step[s].act == ATTN_NAP_STORE || made < 0) continue;
        for (int t = 0; t < k->tiles; t++) {
            bool known = t == made || (k->step[s].by != t && !attn_nap_reads(k, d, &k->step[s], k->tile[t].node));
            for (int i = 0; i < g->wires; i++)
                known |=
                    (g->wire[i].from == t && g->wire[i].to == made) || (g->wire[i].from == made && g->wire[i].to == t);
            if (!known) attn_nap_connect(g, t, made);
        }
    }
    for (int i = 0; i < g->boxes; i++)
        last = g->box[i].layer > last ? g->box[i].layer : last;
    for (int s = 0; s < k->steps; s++) {
        if (k->step[s].act != ATTN_NAP_STORE) continue;
        int box = add_box(g, names.of[k->step[s].node], d->node[k->step[s].node].axes, true);
        g->box[box].layer = last + 1;
        if (k->step[s].tile < 0) say_term(&g->box[box], d, &names, k->step[s].node);
        for (int t = 0; t < k->tiles; t++)
            if (attn_nap_reads(k, d, &k->step[s], k->tile[t].node) && k->tile[t].sort != ATTN_NAP_SHIFT)
                attn_nap_connect(g, t, box);
    }
    *width = attn_nap_graph_width(g);
    return attn_nap_draw_graph(w, g, cut, y, v->machine->level[v->level[v->levels - 1]].name);
}

/* ---- all ---------------------------------------------------------------------------------------- */

static double draw_title(attn_words *w, double y, const char *text)
{
    attn_nap_svg_text(w, 30, y + 26, "font-size=\"16\"", text);
    return y + 44;
}

static double draw_all(attn_words *w, const attn_derivation *v, const char *title, attn_nap_graph *g, double *width)
{
    char text[2 * ATTN_NAP_LABEL];
    double one, y;
    snprintf(text, sizeof text, "%.60s: the diagram, everything in %s", title, v->machine->level[v->level[0]].name);
    y = draw_diagram(w, v, g, draw_title(w, 0, text), width);
    for (int i = 0; i < v->kernels; i++) {
        const attn_nap_kernel *k = &v->kernel[i];
        snprintf(text, sizeof text, "Kernel %d, levelled and partitioned for %s (x/n: groups of n, x:n: chunks of n)",
                 i + 1, v->machine->name);
        y = draw_kernel(w, v, k, g, draw_title(w, y, text), &one);
        *width = one > *width ? one : *width;
        snprintf(text, sizeof text, "Kernel %d, column by column: what is live when", i + 1);
        y = attn_nap_draw_columns(w, v, k, draw_title(w, y, text));
        one = attn_nap_columns_width(k);
        *width = one > *width ? one : *width;
    }
    return y;
}

void attn_nap_draw(attn_words *w, const attn_derivation *v, const char *title)
{
    attn_nap_graph *g = malloc(sizeof *g);
    attn_words nothing = { 0 };
    double width = 0;
    if (!g) return;
    double height = draw_all(&nothing, v, title, g, &width);
    attn_say(w,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
             "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
             (int)width, (int)height);
    draw_all(w, v, title, g, &width);
    attn_say(w, "</svg>\n");
    free(g);
}
