/* What the parts of a drawing share: text of a known width, boxes and wires in SVG, and the classes of both. A wire is
 * a line for each axis that it spans, of the class of the level that it lies in. All coordinates are whole pixels, so
 * that they read the same in any locale. */
#ifndef ATTN_NAPKIN_DRAW_H
#define ATTN_NAPKIN_DRAW_H

#include "napkin/derive.h"

enum {
    ATTN_NAP_BOXES = 128,
    ATTN_NAP_WIRES = 4 * ATTN_NAP_BOXES,
    ATTN_NAP_LABEL = 320,
    ATTN_NAP_MARGIN = 20,
    ATTN_NAP_LINE = 4,     /* between the lines of a wire */
    ATTN_NAP_WIDEST = 1360 /* a page */
};

/* ---- text (draw_text.c) ---- */

/* How wide a text is at most in a common sans-serif font; bold: 1.3 times that. */
int attn_nap_text_width(const char *text, int size);

/* Writes the text, of a class of attn_nap_style's, or NULL. */
void attn_nap_svg_text(attn_text_buffer *words, int x, int y, const char *class, const char *text);

/* attn_nap_say_term's words; where those cut a long term they end, without the brackets that are open. */
void attn_nap_draw_term(attn_text_buffer *words, const attn_diagram *diagram, const attn_nap_names *names, int node,
                        bool open);

/* Breaks the text at spaces, by '\n', into lines of that width where words allow; returns how many lines. */
int attn_nap_wrap(char *text, int size, int width);

/* The width of the widest of the lines. */
int attn_nap_lines_width(const char *text, int size);

/* Writes the lines, LINE_HEIGHT apart, the first at y. */
void attn_nap_svg_lines(attn_text_buffer *words, int x, int y, const char *class, const char *text);

enum { ATTN_NAP_LINE_HEIGHT = 15 };

/* ---- boxes and wires (draw_layout.c, draw_graph.c) ---- */

typedef struct attn_nap_box {
    char title[ATTN_NAP_LABEL], axes_text[ATTN_NAP_LABEL], text[ATTN_NAP_LABEL];
    uint32_t axes; /* of the wire that leaves it */
    bool outside;  /* lies in memory */
    int layer, band, x, y, width, height;
} attn_nap_box;

typedef struct attn_nap_wire {
    int from, to;
    bool named; /* not drawn: the name stands where it ends */
    int port;   /* how far below the upper edge of its box it ends */
} attn_nap_wire;

/* What is in a layer: a box, or a wire of box `from` on its way through. */
typedef struct attn_nap_slot {
    int layer, box, from; /* box -1: a wire */
    int order, y, height; /* order: from the top of the layer */
    double wish;          /* for an order, and then for y */
} attn_nap_slot;

typedef struct attn_nap_layer {
    int band, x, width, names; /* names: of wires that end here, to the left of x */
} attn_nap_layer;

enum {
    ATTN_NAP_SPAN = 3, /* layers that a wire goes on at most */
    ATTN_NAP_SLOTS = ATTN_NAP_BOXES * ATTN_NAP_SPAN
};

typedef struct attn_nap_graph {
    int boxes, wires, slots, links, layers, bands;
    attn_nap_box box[ATTN_NAP_BOXES];
    attn_nap_wire wire[ATTN_NAP_WIRES];
    attn_nap_slot slot[ATTN_NAP_SLOTS];
    attn_nap_layer layer[ATTN_NAP_BOXES];
    int passing[ATTN_NAP_BOXES][ATTN_NAP_SPAN]; /* slots of a box's wire: its own, and those after it */
    struct attn_nap_link {
        int from, to; /* slots of neighbouring layers */
    } link[ATTN_NAP_WIRES + ATTN_NAP_SLOTS];
    int band_top[ATTN_NAP_BOXES], band_height[ATTN_NAP_BOXES];
    int width, height; /* width: the least */
} attn_nap_graph;

/* Adds a wire; one that is there or would close a circle is not added. */
void attn_nap_connect(attn_nap_graph *graph, int from, int to);

/* Places everything: boxes in layers from left to right, each after all that it takes, the layers in bands below each
 * other where they are wider than a page, and wires between. Nothing overlaps: a wire passes a layer in a slot of its
 * own and bends between layers, where no text is. Wires that go on for long, from band to band or across more than a
 * few others are named where they end. */
void attn_nap_place(attn_nap_graph *graph);

/* Draws the graph with its upper edge at y, the gaps between layers such that bands are `width` wide. */
void attn_nap_draw_graph(attn_text_buffer *words, attn_nap_graph *graph, int y, int width);

/* How high the lines of a wire are together. */
int attn_nap_wire_height(uint32_t axes);

/* ---- steps (draw_steps.c) ---- */

typedef struct attn_nap_extent {
    int width, height;
} attn_nap_extent;

/* A kernel's steps in rows: its loops, what is live in each step and how many bytes that is, drawn at y, `width` wide.
 * Returns the extent: the least width. */
attn_nap_extent attn_nap_draw_steps(attn_text_buffer *words, const attn_derivation *derivation,
                                    const attn_nap_kernel *kernel, int y, int width);

#endif
