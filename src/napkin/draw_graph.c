/* Boxes and wires; see draw.h. Boxes stand in layers from left to right, each behind all that it takes. */
#include <stdio.h>
#include <string.h>

#include "napkin/draw.h"

static const double LEFT = 30, LAYER = 250, BOX_WIDTH = 150, BOX_HEIGHT = 44, ROW = 74, LINE = 5;

const char *const attn_nap_outside_colour = "#c0392b", *const attn_nap_inside_colour = "#2471a3";

void attn_nap_svg_text(attn_words *w, double x, double y, const char *style, const char *text)
{
    attn_say(w, "<text x=\"%d\" y=\"%d\" %s>", (int)x, (int)y, style);
    for (const char *c = text; *c; c++) {
        if (*c == '<')
            attn_say(w, "&lt;");
        else if (*c == '&')
            attn_say(w, "&amp;");
        else
            attn_say(w, "%c", *c);
    }
    attn_say(w, "</text>\n");
}

void attn_nap_connect(attn_nap_graph *g, int from, int to)
{
    if (g->wires == (int)(sizeof g->wire / sizeof *g->wire) || from == to) return;
    g->wire[g->wires++] = (struct attn_nap_wire){ from, to };
    if (g->box[to].layer <= g->box[from].layer) g->box[to].layer = g->box[from].layer + 1;
}

static int layers_of(const attn_nap_graph *g)
{
    int most = 0;
    for (int i = 0; i < g->boxes; i++)
        if (g->box[i].layer > most) most = g->box[i].layer;
    return most + 1;
}

double attn_nap_graph_width(const attn_nap_graph *g)
{
    return LEFT * 2 + LAYER * layers_of(g);
}

static double place(attn_nap_graph *g, double y)
{
    double lowest = y;
    for (int layer = 0; layer < layers_of(g); layer++) {
        double at = y + (layer % 2) * ROW / 2; /* so that wires past a layer are seen */
        for (int i = 0; i < g->boxes; i++) {
            if (g->box[i].layer != layer) continue;
            g->box[i].x = LEFT + LAYER * layer;
            g->box[i].y = at;
            at += ROW;
        }
        if (at > lowest) lowest = at;
    }
    return lowest;
}

static void draw_wire(attn_words *w, const attn_nap_box *from, const attn_nap_box *to)
{
    int lines = 0, line = 0;
    double x0 = from->x + BOX_WIDTH, x1 = to->x, bend = (x1 - x0) / 2;
    const char *colour = from->outside || to->outside ? attn_nap_outside_colour : attn_nap_inside_colour;
    for (uint32_t axes = from->axes; axes; axes &= axes - 1)
        lines++;
    for (; line < lines; line++) {
        double shift = LINE * (line - (lines - 1) / 2.0);
        double y0 = from->y + BOX_HEIGHT / 2 + shift, y1 = to->y + BOX_HEIGHT / 2 + shift;
        attn_say(w, "<path d=\"M%d %d C%d %d %d %d %d %d\" stroke=\"%s\" fill=\"none\"/>\n", (int)x0, (int)y0,
                 (int)(x0 + bend), (int)y0, (int)(x1 - bend), (int)y1, (int)x1, (int)y1, colour);
    }
}

static void draw_box(attn_words *w, const attn_nap_box *b, char cut[][ATTN_NAP_LABEL])
{
    char label[ATTN_NAP_LABEL * 2] = "";
    size_t length = 0;
    attn_say(w,
             "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"white\" stroke=\"%s\" "
             "stroke-width=\"1.5\"/>\n",
             (int)b->x, (int)b->y, (int)BOX_WIDTH, (int)BOX_HEIGHT,
             b->outside ? attn_nap_outside_colour : attn_nap_inside_colour);
    attn_nap_svg_text(w, b->x + 8, b->y + 18, "font-weight=\"bold\"", b->title);
    attn_nap_svg_text(w, b->x + 8, b->y + 35, "font-size=\"10\"", b->text);
    for (int a = 0; a < ATTN_NAP_AXES; a++)
        if (b->axes >> a & 1 && length < sizeof label)
            length += (size_t)snprintf(label + length, sizeof label - length, "%s%s", length ? " " : "", cut[a]);
    attn_nap_svg_text(w, b->x + 4, b->y + BOX_HEIGHT + 13, "font-size=\"10\" fill=\"#555\"", label);
}

double attn_nap_draw_graph(attn_words *w, attn_nap_graph *g, char cut[][ATTN_NAP_LABEL], double y, const char *frame)
{
    double lowest = place(g, y + (frame ? 30 : 0)), first = 1e9, last = 0;
    for (int i = 0; i < g->boxes; i++) {
        if (g->box[i].outside) continue;
        if (g->box[i].x < first) first = g->box[i].x;
        if (g->box[i].x + BOX_WIDTH > last) last = g->box[i].x + BOX_WIDTH;
    }
    if (frame && last > 0) {
        attn_say(w,
                 "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#eaf2f8\" stroke=\"%s\" "
                 "stroke-dasharray=\"6 4\"/>\n",
                 (int)first - 24, (int)y, (int)(last - first) + 48, (int)(lowest - y), attn_nap_inside_colour);
        attn_nap_svg_text(w, first - 16, y + 16, "font-style=\"italic\" fill=\"#2471a3\"", frame);
    }
    for (int i = 0; i < g->wires; i++)
        draw_wire(w, &g->box[g->wire[i].from], &g->box[g->wire[i].to]);
    for (int i = 0; i < g->boxes; i++)
        draw_box(w, &g->box[i], cut);
    return lowest + 10;
}
