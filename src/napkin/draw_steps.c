/* A kernel's steps, a row each, under the loops that they are in; beside them a column a tile, filled while the tile is
 * live, and the bytes that are held, against what the level holds. */
#include <stdio.h>
#include <string.h>

#include "napkin/draw.h"

enum {
    ROWS = ATTN_NAP_STEPS * 3 + ATTN_NAP_AXES, /* steps, loops above them */
    INDENT = 14,
    WRAP = 330, /* a step's text is broken there */
    COLUMN = 24,
    HELD = 110, /* the least width of the bytes' column */
    SPACE = 16
};

typedef struct row {
    char text[ATTN_NAP_LABEL];
    int step; /* -1: a loop's head */
    int depth, lines, y;
} row;

typedef struct listing {
    int rows;
    row row[ROWS];
} listing;

static void add_row(listing *l, int step, int depth, const char *text)
{
    row *r = &l->row[l->rows++];
    snprintf(r->text, sizeof r->text, "%s", text);
    r->step = step;
    r->depth = depth;
    r->lines = attn_nap_wrap(r->text, 11, WRAP);
}

static void add_loop(listing *l, const attn_derivation *v, const attn_nap_kernel *k, const char *what, int axis,
                     int depth)
{
    char text[ATTN_NAP_LABEL];
    snprintf(text, sizeof text, "each %s of %lld of %s", what, (long long)k->partition.tile[v->levels - 1][axis],
             v->diagram->axis[axis].name);
    add_row(l, -1, depth, text);
}

static void step_text(const attn_derivation *v, const attn_nap_kernel *k, const attn_nap_names *names, int s,
                      char text[ATTN_NAP_LABEL])
{
    static const char *const verbs[] = { "load", "", "", "start", "keep", "rescale by", "accrue", "store" };
    const attn_nap_step *step = &k->step[s];
    attn_text_buffer words = { text, ATTN_NAP_LABEL, 0 };
    attn_say(&words, "%s%s", verbs[step->act], *verbs[step->act] ? " " : "");
    if (step->tile >= 0)
        attn_say(&words, "%s", k->tile[step->tile].name);
    else
        attn_nap_draw_term(&words, v->diagram, names, step->node, false);
    if (step->act != ATTN_NAP_MAP && step->act != ATTN_NAP_REDUCE && (step->act != ATTN_NAP_STORE || step->tile >= 0))
        return;
    attn_say(&words, " = ");
    attn_nap_draw_term(&words, v->diagram, names, step->node, true);
}

static void list(listing *l, const attn_derivation *v, const attn_nap_kernel *k)
{
    char text[ATTN_NAP_LABEL];
    attn_nap_names names;
    int outer = 0;
    attn_nap_tile_names(v, k, &names);
    l->rows = 0;
    for (int a = 0; a < v->diagram->axes; a++)
        if (k->groups >> a & 1) add_loop(l, v, k, "group", a, outer++);
    for (int s = 0; s < k->steps; s++) {
        const attn_nap_step *now = &k->step[s], *before = s ? &k->step[s - 1] : NULL;
        bool goes_on = before && before->inside && before->pass == now->pass;
        if (now->inside && !goes_on) add_loop(l, v, k, "chunk", k->stream, outer);
        if (now->within && !(goes_on && before->within)) add_loop(l, v, k, "chunk", k->inner, outer + now->inside);
        step_text(v, k, &names, s, text);
        add_row(l, s, outer + now->inside + now->within, text);
    }
}

/* Bytes of the tiles that are live in a step. */
static double held(const attn_derivation *v, const attn_nap_kernel *k, int step)
{
    attn_model one = k->model;
    one.columns = 1;
    one.column[0] = 0;
    for (int t = 0; t < k->tiles; t++)
        if (k->tile[t].first <= step && step <= k->tile[t].last) one.column[0] |= 1u << t;
    return attn_model_live(&one, &k->partition, v->levels - 1);
}

/* Rows below the head, and the lower edge. */
static int find_rows(listing *l, int y)
{
    for (int i = 0; i < l->rows; i++) {
        l->row[i].y = y;
        y += l->row[i].lines * ATTN_NAP_LINE_HEIGHT + 3;
    }
    return y;
}

static int row_bottom(const row *r)
{
    return r->y + r->lines * ATTN_NAP_LINE_HEIGHT + 3;
}

static void draw_rows(attn_text_buffer *w, const listing *l, int width)
{
    attn_say(w, "<path class=\"zebra\" d=\"");
    for (int i = 0; i < l->rows; i += 2) {
        int y = l->row[i].y, height = row_bottom(&l->row[i]) - y;
        attn_say(w, "M%d %dh%dv%dh%dz", ATTN_NAP_MARGIN, y, width, height, -width);
    }
    attn_say(w, "\"/>\n<path class=\"loop\" d=\"");
    for (int i = 0; i < l->rows; i++) {
        int last = i;
        if (l->row[i].step >= 0) continue;
        while (last + 1 < l->rows && l->row[last + 1].depth > l->row[i].depth)
            last++;
        attn_say(w, "M%d %dV%d", ATTN_NAP_MARGIN + 8 + INDENT * l->row[i].depth, row_bottom(&l->row[i]),
                 row_bottom(&l->row[last]) - 3);
    }
    attn_say(w, "\"/>\n");
    for (int i = 0; i < l->rows; i++)
        attn_nap_svg_lines(w, ATTN_NAP_MARGIN + 4 + INDENT * l->row[i].depth, l->row[i].y + 13,
                           l->row[i].step < 0 ? "g" : NULL, l->row[i].text);
}

/* A tile's bar from the first row in which it is live to the last one. */
static void draw_bars(attn_text_buffer *w, const listing *l, const attn_nap_kernel *k, int x, double column,
                      bool outside)
{
    attn_say(w, "<path class=\"bar %s\" d=\"", outside ? "out" : "in");
    for (int t = 0; t < k->tiles; t++) {
        const row *first = NULL, *last = NULL;
        int left = x + (int)(column * t) + 4, wide = (int)column - 10;
        if ((k->tile[t].sort <= ATTN_NAP_STORED) != outside) continue;
        for (int i = 0; i < l->rows; i++) {
            if (l->row[i].step < k->tile[t].first || l->row[i].step > k->tile[t].last) continue;
            if (!first) first = &l->row[i];
            last = &l->row[i];
        }
        if (first) attn_say(w, "M%d %dh%dV%dh%dz", left, first->y + 2, wide, row_bottom(last) - 2, -wide);
    }
    attn_say(w, "\"/>\n");
}

static void draw_held(attn_text_buffer *w, const attn_derivation *v, const listing *l, const attn_nap_kernel *k, int x,
                      int width)
{
    double capacity = v->machine->level[v->level[v->levels - 1]].bytes;
    attn_say(w, "<path class=\"held\" d=\"");
    for (int i = 0; i < l->rows; i++) {
        const row *r = &l->row[i];
        if (r->step < 0) continue;
        int wide = (int)(width * held(v, k, r->step) / capacity + 0.5);
        attn_say(w, "M%d %dh%dV%dh%dz", x, r->y + 3, wide, row_bottom(r) - 3, -wide);
    }
    attn_say(w, "\"/>\n<path class=\"limit\" d=\"M%d %dV%d\"/>\n", x + width, l->row[0].y,
             row_bottom(&l->row[l->rows - 1]));
}

attn_nap_extent attn_nap_draw_steps(attn_text_buffer *w, const attn_derivation *v, const attn_nap_kernel *k, int y,
                                    int width)
{
    listing l;
    const attn_machine_level *level = &v->machine->level[v->level[v->levels - 1]];
    char text[ATTN_NAP_LABEL];
    attn_text_buffer words = { text, sizeof text, 0 };
    int most = 0, head = 0;
    list(&l, v, k);
    for (int i = 0; i < l.rows; i++) {
        int wide = attn_nap_lines_width(l.row[i].text, 11) + INDENT * l.row[i].depth;
        if (wide > most) most = wide;
    }
    for (int t = 0; t < k->tiles; t++) {
        int one = attn_nap_text_width(k->tile[t].name, 11);
        if (one > head) head = one;
    }
    attn_say(&words, "bytes live; dashed: %s, ", level->name);
    attn_say_bytes(&words, level->bytes);
    int held_least = attn_nap_text_width(text, 11) > HELD ? attn_nap_text_width(text, 11) : HELD;
    int least = most + 2 * SPACE + COLUMN * k->tiles + held_least;
    int bottom = find_rows(&l, y + head + 14), left = width > least ? width - least : 0;
    double column = COLUMN + (k->tiles ? left / 2.0 / k->tiles : 0);
    if (column > 1.6 * COLUMN) column = 1.6 * COLUMN;
    int x = ATTN_NAP_MARGIN + most + SPACE, bytes = x + (int)(column * k->tiles) + SPACE;
    draw_rows(w, &l, width);
    for (int t = 0; t < k->tiles; t++) {
        int at = x + (int)(column * t + column / 2) + 4;
        attn_say(w, "<g transform=\"rotate(-90 %d %d)\">", at, y + head + 8);
        attn_nap_svg_text(w, at, y + head + 8, NULL, k->tile[t].name);
        attn_say(w, "</g>\n");
    }
    attn_nap_svg_text(w, bytes, y + head + 8, "g", text);
    draw_bars(w, &l, k, x, column, true);
    draw_bars(w, &l, k, x, column, false);
    draw_held(w, v, &l, k, bytes, ATTN_NAP_MARGIN + width - bytes);
    return (attn_nap_extent){ least, bottom - y };
}
