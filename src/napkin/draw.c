/* A derivation drawn in its three stages; see derive.h, draw.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "napkin/draw.h"

typedef char labels[ATTN_NAP_AXES][ATTN_NAP_LABEL];

/* Colours that the colour-blind tell apart; what lies in memory has corners, too, and what does not is round. */
static const char style[] =
    ".t{font-size:15px}.b{font-size:13px;font-weight:bold}.g{fill:#555}.e{text-anchor:end;fill:#333}"
    "rect.out{fill:#fdf0e8;stroke:#d55e00;stroke-width:1.5}rect.in{fill:#eaf3fa;stroke:#0072b2;stroke-width:1.5}"
    ".w{fill:none;stroke-width:1}.w.out{stroke:#d55e00}.w.in{stroke:#0072b2}.one{stroke-dasharray:3 2}"
    ".bar.out{fill:#e69f00}.bar.in{fill:#4d9ccf}.held{fill:#999}"
    ".zebra{fill:#f4f4f4}.loop{fill:none;stroke:#999}.limit{fill:none;stroke:#333;stroke-dasharray:4 3}";

enum { TITLE = 30, BETWEEN = 14, TEXT = 200, MEANING = 700 };

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
    attn_text_buffer words = { box->text, sizeof box->text, 0 };
    attn_nap_draw_term(&words, d, names, node, true);
}

/* Writes what axes a box spans, and makes it as large as its texts. */
static void fit_boxes(attn_nap_graph *g, const attn_diagram *d, labels cut)
{
    for (int i = 0; i < g->boxes; i++) {
        attn_nap_box *box = &g->box[i];
        attn_text_buffer words = { box->axes_text, sizeof box->axes_text, 0 };
        for (int a = 0; a < d->axes; a++)
            if (box->axes >> a & 1) attn_say(&words, "%s%s", words.length ? " " : "", cut[a]);
        int lines = attn_nap_wrap(box->text, 11, TEXT), wide = attn_nap_lines_width(box->text, 11);
        int head = attn_nap_text_width(box->title, 13) * 13 / 10 + 10 + attn_nap_text_width(box->axes_text, 11);
        box->width = 16 + (head > wide ? head : wide);
        box->height = 10 + ATTN_NAP_LINE_HEIGHT * (1 + (*box->text ? lines : 0));
    }
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
        if (d->node[i].op == ATTN_NAP_ELEMENT) attn_nap_connect(g, box_of[d->node[i].which], box);
        for (int j = 0; j <= ATTN_NAP_PARAMS; j++)
            if (d->node[i].arg[j] >= 0) inside[d->node[i].arg[j]] = true;
    }
}

static void make_diagram(const attn_derivation *v, attn_nap_graph *g)
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
    fit_boxes(g, d, cut);
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

static void make_kernel(const attn_derivation *v, const attn_nap_kernel *k, attn_nap_graph *g)
{
    const attn_diagram *d = v->diagram;
    attn_nap_names names;
    labels cut;
    attn_nap_tile_names(v, k, &names);
    label_axes(v, k, cut);
    g->boxes = g->wires = 0;
    for (int t = 0; t < k->tiles; t++) {
        bool outside = k->tile[t].sort <= ATTN_NAP_STORED;
        int box = add_box(g, k->tile[t].name, d->node[k->tile[t].node].axes, outside);
        if (!outside) say_term(&g->box[box], d, &names, k->tile[t].node);
    }
    for (int s = 0; s < k->steps; s++) {
        int made = k->step[s].tile;
        if (k->step[s].act == ATTN_NAP_STORE || made < 0) continue;
        for (int t = 0; t < k->tiles; t++)
            if (t != made && (k->step[s].by == t || attn_nap_reads(k, d, &k->step[s], k->tile[t].node)))
                attn_nap_connect(g, t, made);
    }
    for (int s = 0; s < k->steps; s++) {
        if (k->step[s].act != ATTN_NAP_STORE) continue;
        int box = add_box(g, names.of[k->step[s].node], d->node[k->step[s].node].axes, true);
        if (k->step[s].tile < 0) say_term(&g->box[box], d, &names, k->step[s].node);
        for (int t = 0; t < k->tiles; t++)
            if (attn_nap_reads(k, d, &k->step[s], k->tile[t].node) && k->tile[t].sort != ATTN_NAP_SHIFT)
                attn_nap_connect(g, t, box);
    }
    fit_boxes(g, d, cut);
}

/* ---- all ---------------------------------------------------------------------------------------- */

/* A page is drawn twice: to see how wide it must be and how high it is, and then. */
typedef struct page {
    attn_text_buffer *words;
    int width, least, y;
} page;

static void draw_title(page *p, const char *text)
{
    attn_nap_svg_text(p->words, ATTN_NAP_MARGIN, p->y + 20, "t", text);
    int wide = attn_nap_text_width(text, 15);
    if (wide > p->least) p->least = wide;
    p->y += TITLE;
}

static void draw_graph(page *p, attn_nap_graph *g)
{
    attn_nap_place(g);
    attn_nap_draw_graph(p->words, g, p->y, p->width);
    if (g->width > p->least) p->least = g->width;
    p->y += g->height + BETWEEN;
}

/* What the colours and the lines mean. */
static void draw_legend(page *p, const attn_derivation *v)
{
    const char *outer = v->machine->level[v->level[0]].name, *inner = v->machine->level[v->level[v->levels - 1]].name;
    char text[2 * ATTN_NAP_LABEL];
    int x = ATTN_NAP_MARGIN, y = p->y + 8;
    for (int inside = 0; inside < 2; inside++) {
        snprintf(text, sizeof text, "in %s", inside ? inner : outer);
        attn_say(p->words, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"18\" height=\"12\" rx=\"%d\"/>\n",
                 inside ? "in" : "out", x, y - 10, inside ? 4 : 0);
        attn_nap_svg_text(p->words, x + 24, y, NULL, text);
        x += 24 + attn_nap_text_width(text, 11) + 20;
    }
    snprintf(text, sizeof text, "a line for each axis; x/n: groups of n along x; x:n: chunks of n along x");
    attn_nap_svg_text(p->words, x, y, "g", text);
    x += attn_nap_text_width(text, 11) - ATTN_NAP_MARGIN;
    if (x > p->least) p->least = x;
    p->y += 24;
}

/* Whether the text has the word. */
static bool has_word(const char *text, const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    for (; *text; text += strcspn(text, letters)) {
        size_t length = strspn(text, letters);
        if (length == strlen(word) && !strncmp(text, word, length)) return true;
        text += length;
    }
    return false;
}

/* The definitions that boxes speak of and that no box is: "where S = ...". */
static void draw_meanings(page *p, const attn_derivation *v, const attn_nap_kernel *k, const attn_nap_graph *g)
{
    const attn_diagram *d = v->diagram;
    attn_nap_names names;
    attn_nap_tile_names(v, k, &names);
    for (int i = 0; i < d->definitions; i++) {
        const char *name = d->definition[i].array.name;
        char text[ATTN_NAP_LABEL];
        attn_text_buffer words = { text, sizeof text, 0 };
        bool needed = false;
        for (int b = 0; b < g->boxes; b++)
            needed |= has_word(g->box[b].text, name);
        for (int b = 0; b < g->boxes; b++)
            needed &= strcmp(g->box[b].title, name) != 0;
        if (!needed) continue;
        int meaning = d->definition[i].node; /* in the normal form, if it has one of its own */
        for (int node = 0; node < d->nodes; node++)
            if (names.of[node] && !strcmp(names.of[node], name) && node != d->definition[i].node) meaning = node;
        attn_say(&words, "where %s = ", name);
        attn_nap_draw_term(&words, d, &names, meaning, true);
        int lines = attn_nap_wrap(text, 11, MEANING), wide = attn_nap_lines_width(text, 11);
        attn_nap_svg_lines(p->words, ATTN_NAP_MARGIN, p->y + 4, "g", text);
        if (wide > p->least) p->least = wide;
        p->y += ATTN_NAP_LINE_HEIGHT * lines + 3;
    }
}

static void draw_all(page *p, const attn_derivation *v, const char *title, attn_nap_graph *g)
{
    char text[2 * ATTN_NAP_LABEL];
    p->y = 8;
    snprintf(text, sizeof text, "%.60s, as defined", title);
    draw_title(p, text);
    draw_legend(p, v);
    make_diagram(v, g);
    draw_graph(p, g);
    for (int i = 0; i < v->kernels; i++) {
        const attn_nap_kernel *k = &v->kernel[i];
        snprintf(text, sizeof text, "Kernel %d on %s: its tiles", i + 1, v->machine->name);
        draw_title(p, text);
        make_kernel(v, k, g);
        draw_graph(p, g);
        draw_meanings(p, v, k, g);
        snprintf(text, sizeof text, "Kernel %d, step by step: which tiles are live, and what they hold", i + 1);
        draw_title(p, text);
        attn_nap_extent extent = attn_nap_draw_steps(p->words, v, k, p->y, p->width);
        if (extent.width > p->least) p->least = extent.width;
        p->y += extent.height + BETWEEN;
    }
}

void attn_nap_draw(attn_text_buffer *w, const attn_derivation *v, const char *title)
{
    attn_nap_graph *g = malloc(sizeof *g);
    attn_text_buffer nothing = { 0 };
    page p = { &nothing, 0, 0, 0 };
    if (!g) return;
    draw_all(&p, v, title, g);
    p.width = p.least;
    p.words = w;
    int width = p.width + 2 * ATTN_NAP_MARGIN;
    attn_say(w,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
             "font-family=\"sans-serif\" font-size=\"11\">\n<style>%s</style>\n"
             "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
             width, p.y, width, p.y, style);
    draw_all(&p, v, title, g);
    attn_say(w, "</svg>\n");
    free(g);
}
