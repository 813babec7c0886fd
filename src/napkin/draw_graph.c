/* Draws a graph that is placed; see draw.h. */
#include <string.h>

#include "napkin/draw.h"

enum { STUB = 12 }; /* of a wire that is named */

/* The gaps between a band's layers share what is left of the width. */
static void find_columns(attn_nap_graph *g, int width)
{
    for (int b = 0; b < g->bands; b++) {
        int gaps = -1, left = width, x = ATTN_NAP_MARGIN, gap = 0;
        for (int l = 0; l < g->layers; l++) {
            if (g->layer[l].band != b) continue;
            left -= g->layer[l].names + g->layer[l].width;
            gaps++;
        }
        for (int l = 0; l < g->layers; l++) {
            if (g->layer[l].band != b) continue;
            if (gap++) x += left * gap / gaps - left * (gap - 1) / gaps;
            g->layer[l].x = x += g->layer[l].names;
            x += g->layer[l].width;
        }
    }
    for (int i = 0; i < g->boxes; i++) {
        g->box[i].x = g->layer[g->box[i].layer].x;
        g->box[i].width = g->layer[g->box[i].layer].width;
    }
}

static int middle(const attn_nap_graph *g, int slot)
{
    return g->slot[slot].y + g->slot[slot].height / 2;
}

/* From the right edge of a layer to the next one's names, and through those. */
static void draw_bend(attn_text_buffer *w, const attn_nap_graph *g, int layer, int y0, int y1)
{
    const attn_nap_layer *from = &g->layer[layer], *to = &g->layer[layer + 1];
    int x0 = from->x + from->width, x1 = to->x - to->names, bend = (x1 - x0) / 2;
    attn_say(w, "M%d %dC%d %d %d %d %d %d", x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1);
    if (to->names) attn_say(w, "H%d", to->x);
}

static void draw_line(attn_text_buffer *w, const attn_nap_graph *g, int box, int shift)
{
    const attn_nap_box *from = &g->box[box];
    bool named = false;
    for (int i = 1; i < ATTN_NAP_SPAN && g->passing[box][i] >= 0; i++) {
        int slot = g->passing[box][i], layer = from->layer + i;
        draw_bend(w, g, layer - 1, middle(g, g->passing[box][i - 1]) + shift, middle(g, slot) + shift);
        attn_say(w, "H%d", g->layer[layer].x + g->layer[layer].width);
    }
    for (int i = 0; i < g->wires; i++) {
        const attn_nap_wire *wire = &g->wire[i];
        const attn_nap_box *to = &g->box[wire->to];
        int y = to->y + wire->port + shift, before = to->layer - 1;
        if (wire->from != box) continue;
        if (wire->named)
            attn_say(w, "M%d %dh%d", to->x - STUB, y, STUB);
        else
            draw_bend(w, g, before, middle(g, g->passing[box][before - from->layer]) + shift, y);
        named |= wire->named;
    }
    if (named) attn_say(w, "M%d %dh%d", from->x + from->width, middle(g, g->passing[box][0]) + shift, STUB);
}

/* All wires of a box are a path. */
static void draw_wires(attn_text_buffer *w, const attn_nap_graph *g, int box)
{
    int height = attn_nap_wire_height(g->box[box].axes);
    bool some = false;
    for (int i = 0; i < g->wires; i++)
        some |= g->wire[i].from == box;
    if (!some) return;
    attn_say(w, "<path class=\"w %s%s\" d=\"", g->box[box].outside ? "out" : "in", g->box[box].axes ? "" : " one");
    for (int line = 0; line <= height; line += ATTN_NAP_LINE)
        draw_line(w, g, box, line - height / 2);
    attn_say(w, "\"/>\n");
}

static void draw_box(attn_text_buffer *w, const attn_nap_box *b)
{
    int lines = 1, y = b->y + 17;
    for (const char *c = b->text; *c; c++)
        lines += *c == '\n';
    if (*b->text) lines++;
    y += (b->height - lines * ATTN_NAP_LINE_HEIGHT - 10) / 2;
    attn_say(w, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>\n",
             b->outside ? "out" : "in", b->x, b->y, b->width, b->height, b->outside ? 0 : 6);
    attn_nap_svg_text(w, b->x + 8, y, "b", b->title);
    if (*b->axes_text)
        attn_nap_svg_text(w, b->x + 18 + attn_nap_text_width(b->title, 13) * 13 / 10, y, "g", b->axes_text);
    attn_nap_svg_lines(w, b->x + 8, y + ATTN_NAP_LINE_HEIGHT, NULL, b->text);
}

void attn_nap_draw_graph(attn_text_buffer *w, attn_nap_graph *g, int y, int width)
{
    find_columns(g, width);
    for (int i = 0; i < g->slots; i++)
        g->slot[i].y += y;
    for (int i = 0; i < g->boxes; i++)
        g->box[i].y += y;
    for (int i = 0; i < g->boxes; i++)
        draw_wires(w, g, i);
    for (int i = 0; i < g->boxes; i++)
        draw_box(w, &g->box[i]);
    for (int i = 0; i < g->wires; i++) {
        const attn_nap_box *to = &g->box[g->wire[i].to];
        if (g->wire[i].named)
            attn_nap_svg_text(w, to->x - STUB - 4, to->y + g->wire[i].port + 4, "e", g->box[g->wire[i].from].title);
    }
}
