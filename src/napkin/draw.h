/* What the parts of a drawing share: boxes, wires and text in SVG, and colours. A wire is a line for each axis that it
 * spans, in the colour of the level that it lies in. */
#ifndef ATTN_NAPKIN_DRAW_H
#define ATTN_NAPKIN_DRAW_H

#include "napkin/derive.h"

enum { ATTN_NAP_BOXES = 128, ATTN_NAP_LABEL = 120 };

typedef struct attn_nap_box {
    char title[ATTN_NAP_LABEL], text[ATTN_NAP_LABEL];
    int layer;
    uint32_t axes; /* of the wire that leaves it */
    bool outside;  /* lies in memory */
    double x, y;
} attn_nap_box;

typedef struct attn_nap_graph {
    int boxes, wires;
    attn_nap_box box[ATTN_NAP_BOXES];
    struct attn_nap_wire {
        int from, to;
    } wire[4 * ATTN_NAP_BOXES];
} attn_nap_graph;

extern const char *const attn_nap_outside_colour, *const attn_nap_inside_colour;

void attn_nap_svg_text(attn_words *words, double x, double y, const char *style, const char *text);

/* Adds a box behind all that have wires to it, once those are there. */
void attn_nap_connect(attn_nap_graph *graph, int from, int to);

/* Draws the graph with its upper edge at y and returns its lower edge. `frame`: a title for what is not outside, which
 * then has a frame around it; NULL: none. cut: what to write for each axis. */
double attn_nap_draw_graph(attn_words *words, attn_nap_graph *graph, char cut[][ATTN_NAP_LABEL], double y,
                           const char *frame);

/* A kernel's columns: its steps, and what is live in each (draw_columns.c). */
double attn_nap_draw_columns(attn_words *words, const attn_derivation *derivation, const attn_nap_kernel *kernel,
                             double y);

/* How wide either is. */
double attn_nap_graph_width(const attn_nap_graph *graph);
double attn_nap_columns_width(const attn_nap_kernel *kernel);

#endif
