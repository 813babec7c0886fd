/* The pseudocode diagram: a column a step, a row a tile, filled where the tile is live; under each column the bytes
 * that are held, against what the level holds. Loops are brackets over the columns. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "napkin/draw.h"

static const double LEFT = 140, COLUMN = 26, CELL = 20, LETTER = 5.6, LOOP = 20;

double attn_nap_columns_width(const attn_nap_kernel *k)
{
    return LEFT + COLUMN * k->steps + 260;
}

static double column_x(int step)
{
    return LEFT + COLUMN * step;
}

static void draw_loop(attn_words *w, int first, int last, double y, const char *text)
{
    double x0 = column_x(first) + 2, x1 = column_x(last + 1) - 2;
    attn_say(w, "<path d=\"M%d %d v-8 H%d v8\" stroke=\"#555\" fill=\"none\"/>\n", (int)x0, (int)y, (int)x1);
    attn_nap_svg_text(w, x0 + 4, y - 11, "font-size=\"10\" fill=\"#555\"", text);
}

static double draw_loops(attn_words *w, const attn_derivation *v, const attn_nap_kernel *k, double y)
{
    char text[ATTN_NAP_LABEL];
    const int64_t *tile = k->partition.tile[v->levels - 1];
    for (int a = 0; a < v->diagram->axes; a++) {
        if (!(k->groups >> a & 1)) continue;
        snprintf(text, sizeof text, "each group of %lld of %s", (long long)tile[a], v->diagram->axis[a].name);
        draw_loop(w, 0, k->steps - 1, y += LOOP, text);
    }
    if (k->stream < 0) return y;
    y += LOOP;
    snprintf(text, sizeof text, "each chunk of %lld of %s", (long long)tile[k->stream],
             v->diagram->axis[k->stream].name);
    for (int first = 0, last; first < k->steps; first = last + 1) {
        last = first;
        if (!k->step[first].inside) continue;
        while (last + 1 < k->steps && k->step[last + 1].inside && k->step[last + 1].pass == k->step[first].pass)
            last++;
        draw_loop(w, first, last, y, text);
    }
    if (k->inner < 0) return y;
    y += LOOP;
    for (int first = 0, last; first < k->steps; first = last + 1) {
        last = first;
        if (!k->step[first].within) continue;
        while (last + 1 < k->steps && k->step[last + 1].within)
            last++;
        snprintf(text, sizeof text, "%lld of %s", (long long)tile[k->inner], v->diagram->axis[k->inner].name);
        draw_loop(w, first, last, y, text);
    }
    return y;
}

static void step_text(const attn_derivation *v, const attn_nap_kernel *k, const attn_nap_names *names, int s,
                      char text[ATTN_NAP_LABEL])
{
    static const char *const verbs[] = { "load", "", "", "start", "keep", "rescale by", "accrue", "store" };
    const attn_nap_step *step = &k->step[s];
    attn_words words = { text, ATTN_NAP_LABEL, 0 };
    attn_say(&words, "%s%s", verbs[step->act], *verbs[step->act] ? " " : "");
    if (step->tile >= 0)
        attn_say(&words, "%s", k->tile[step->tile].name);
    else
        attn_nap_say_term(&words, v->diagram, names, step->node, false);
    if (step->act != ATTN_NAP_MAP && step->act != ATTN_NAP_REDUCE && (step->act != ATTN_NAP_STORE || step->tile >= 0))
        return;
    attn_say(&words, " = ");
    attn_nap_say_term(&words, v->diagram, names, step->node, true);
    if (words.length > 36) snprintf(text + 33, 4, "...");
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

static double draw_held(attn_words *w, const attn_derivation *v, const attn_nap_kernel *k, double y)
{
    double capacity = v->machine->level[v->level[v->levels - 1]].bytes, height = 60;
    char text[ATTN_NAP_LABEL] = "";
    attn_words words = { text, sizeof text, 0 };
    attn_say(&words, "%s: ", v->machine->level[v->level[v->levels - 1]].name);
    attn_say_bytes(&words, capacity);
    for (int s = 0; s < k->steps; s++) {
        double bar = height * held(v, k, s) / capacity;
        attn_say(w, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" opacity=\"0.6\"/>\n",
                 (int)column_x(s) + 3, (int)(y + height - bar), (int)COLUMN - 6, (int)(bar + 0.5),
                 attn_nap_inside_colour);
    }
    attn_say(w, "<path d=\"M%d %d H%d\" stroke=\"#555\" stroke-dasharray=\"4 3\"/>\n", (int)LEFT, (int)y,
             (int)column_x(k->steps));
    attn_nap_svg_text(w, column_x(k->steps) + 8, y + 4, "font-size=\"10\"", text);
    attn_nap_svg_text(w, 30, y + height, "font-size=\"10\"", "held");
    return y + height;
}

double attn_nap_draw_columns(attn_words *w, const attn_derivation *v, const attn_nap_kernel *k, double y)
{
    char text[ATTN_NAP_LABEL], style[ATTN_NAP_LABEL];
    attn_nap_names names;
    attn_nap_tile_names(v, k, &names);
    double head = draw_loops(w, v, k, y) + 10, longest = 0;
    for (int s = 0; s < k->steps; s++) {
        step_text(v, k, &names, s, text);
        longest = fmax(longest, LETTER * (double)strlen(text));
    }
    head += longest;
    for (int s = 0; s < k->steps; s++) {
        double x = column_x(s) + COLUMN / 2 + 4;
        step_text(v, k, &names, s, text);
        snprintf(style, sizeof style, "font-size=\"11\" transform=\"rotate(-90 %d %d)\"", (int)x, (int)head - 6);
        attn_nap_svg_text(w, x, head - 6, style, text);
    }
    for (int t = 0; t < k->tiles; t++) {
        const attn_nap_tile *tile = &k->tile[t];
        const char *colour = tile->sort <= ATTN_NAP_STORED ? "#aed6f1" : "#5dade2";
        attn_nap_svg_text(w, 30, head + CELL * t + 14, "font-size=\"11\"", tile->name);
        attn_say(w, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=\"%s\"/>\n",
                 (int)column_x(tile->first) + 2, (int)(head + CELL * t) + 2,
                 (int)(COLUMN * (tile->last - tile->first + 1)) - 4, (int)CELL - 4, colour);
    }
    return draw_held(w, v, k, head + CELL * k->tiles + 14) + 24;
}
