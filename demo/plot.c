/* SVG by printf. Lengths are pixels; a panel's plot area is WIDTH x HEIGHT at (LEFT, TOP) of its own. */
#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LEFT = 64,
    TOP = 44,
    WIDTH = 380,
    HEIGHT = 240,
    PANEL_WIDTH = LEFT + WIDTH + 36,
    LEGEND = TOP + HEIGHT + 64, /* the middle of its first line */
    PITCH = 18
};

#define DASHES " stroke-dasharray=\"5 4\""

typedef struct axis {
    double least, most; /* after the logarithm */
    double step;
} axis;

static double place(const axis *a, double value)
{
    return (value - a->least) / (a->most - a->least);
}

static double x_of(const plot_panel *panel, double x)
{
    return panel->axes == PLOT_LINEAR ? x : log2(x);
}

static double y_of(const plot_panel *panel, double y)
{
    return panel->axes == PLOT_LOG_BOTH ? log10(y) : y;
}

void plot_add(plot_line *line, double x, double y)
{
    if (line->count == PLOT_MOST) return;
    line->x[line->count] = x;
    line->y[line->count++] = y;
}

/* 1, 2 or 5 times a power of ten, so that 4 to 10 steps span the axis. */
static double round_step(double span)
{
    double power = pow(10.0, floor(log10(span / 4.0))), times = span / 4.0 / power;
    return power * (times < 2.0 ? 1.0 : times < 5.0 ? 2.0 : 5.0);
}

static void fit(const plot_panel *panel, axis *x, axis *y)
{
    *x = *y = (axis){ INFINITY, -INFINITY, 1.0 };
    for (int l = 0; l < panel->lines; l++)
        for (int i = 0; i < panel->line[l].count; i++) {
            double at = x_of(panel, panel->line[l].x[i]), value = y_of(panel, panel->line[l].y[i]);
            x->least = fmin(x->least, at), x->most = fmax(x->most, at);
            y->least = fmin(y->least, value), y->most = fmax(y->most, value);
        }
    if (panel->axes != PLOT_LOG_BOTH) y->step = y->most - y->least > 2.0 ? 0.5 : 0.25;
    if (panel->axes == PLOT_LINEAR) {
        x->least = 0.0;
        x->step = round_step(fmax(x->most, 1.0));
    }
    y->least = floor(y->least / y->step) * y->step;
    y->most = fmax(ceil(y->most / y->step) * y->step, y->least + y->step);
    x->most = fmax(x->most, x->least + 1.0);
}

static void label_x(const plot_panel *panel, double at, char text[32])
{
    double value = panel->axes == PLOT_LINEAR ? at : exp2(at);
    if (panel->axes != PLOT_LINEAR && value >= 1024.0)
        snprintf(text, 32, "%.0fK", value / 1024.0);
    else
        snprintf(text, 32, "%.0f", value);
}

static void draw_axes(FILE *file, const plot_panel *panel, const axis *x, const axis *y)
{
    char text[32];
    fprintf(file, "<text x=\"%d\" y=\"22\" font-size=\"14\" font-weight=\"bold\">%s</text>\n", LEFT, panel->title);
    for (double at = y->least; at <= y->most + 1e-9; at += y->step) {
        double height = TOP + HEIGHT * (1.0 - place(y, at));
        fprintf(file, "<path d=\"M%d %.1fh%d\" stroke=\"#ddd\"/>\n", LEFT, height, WIDTH);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, height + 4,
                panel->axes == PLOT_LOG_BOTH ? pow(10.0, at) : at);
    }
    for (double at = x->least; at <= x->most + 1e-9; at += x->step) {
        label_x(panel, at, text);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", LEFT + WIDTH * place(x, at),
                TOP + HEIGHT + 18, text);
    }
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", LEFT + WIDTH / 2, TOP + HEIGHT + 40,
            panel->x_title);
    fprintf(file, "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            TOP + HEIGHT / 2, panel->y_title);
}

static const char *mark_fill(const plot_line *line)
{
    return line->predicted ? "#fff" : line->color;
}

/* A sample and a name for each line, below the axes: no curve and no line of the grid runs through them. */
static void draw_legend(FILE *file, const plot_panel *panel)
{
    enum { SAMPLE = 26 };
    if (panel->lines == 1) return;
    for (int l = 0; l < panel->lines; l++) {
        const plot_line *line = &panel->line[l];
        int middle = LEGEND + PITCH * l;
        fprintf(file, "<path fill=\"none\" stroke-width=\"2\"%s stroke=\"%s\" d=\"M%d %dh%d\"/>\n",
                line->predicted ? DASHES : "", line->color, LEFT, middle, SAMPLE);
        if (line->marked)
            fprintf(file, "<circle r=\"3\" fill=\"%s\" stroke=\"%s\" cx=\"%d\" cy=\"%d\"/>\n", mark_fill(line),
                    line->color, LEFT + SAMPLE / 2, middle);
        fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s%s</text>\n", LEFT + SAMPLE + 8, middle + 4, line->color,
                line->name, line->predicted ? ", predicted" : "");
    }
}

static void draw_line(FILE *file, const plot_panel *panel, int l, const axis *x, const axis *y)
{
    const plot_line *line = &panel->line[l];
    fprintf(file, "<path fill=\"none\" stroke-width=\"2\"%s stroke=\"%s\" d=\"", line->predicted ? DASHES : "",
            line->color);
    for (int i = 0; i < line->count; i++)
        fprintf(file, "%c%.1f %.1f", i ? 'L' : 'M', LEFT + WIDTH * place(x, x_of(panel, line->x[i])),
                TOP + HEIGHT * (1.0 - place(y, y_of(panel, line->y[i]))));
    fprintf(file, "\"/>\n");
    for (int i = 0; line->marked && i < line->count; i++)
        fprintf(file, "<circle r=\"3\" fill=\"%s\" stroke=\"%s\" cx=\"%.1f\" cy=\"%.1f\"/>\n", mark_fill(line),
                line->color, LEFT + WIDTH * place(x, x_of(panel, line->x[i])),
                TOP + HEIGHT * (1.0 - place(y, y_of(panel, line->y[i]))));
}

static void draw_note(FILE *file, const char *note, int y)
{
    fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"#555\">", LEFT, y);
    for (const char *c = note; *c; c++)
        if (*c == '&' || *c == '<')
            fprintf(file, "&#%d;", *c);
        else
            fputc(*c, file);
    fprintf(file, "</text>\n");
}

bool plot_write(const char *path, const plot_panel *panels, int count, const char *note)
{
    FILE *file = fopen(path, "w");
    if (!file) return false;
    int lines = 1; /* of the longest legend */
    for (int p = 0; p < count; p++)
        if (panels[p].lines > lines) lines = panels[p].lines;
    int bottom = LEGEND + PITCH * (lines > 1 ? lines : 0);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"12\" fill=\"#222\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            PANEL_WIDTH * count, bottom + (note ? PITCH : 0));
    for (int p = 0; p < count; p++) {
        axis x, y;
        fit(&panels[p], &x, &y);
        fprintf(file, "<g transform=\"translate(%d 0)\">\n", PANEL_WIDTH * p);
        draw_axes(file, &panels[p], &x, &y);
        draw_legend(file, &panels[p]);
        for (int l = 0; l < panels[p].lines; l++)
            draw_line(file, &panels[p], l, &x, &y);
        fprintf(file, "</g>\n");
    }
    if (note) draw_note(file, note, bottom + 6);
    fprintf(file, "</svg>\n");
    bool failed = ferror(file);
    return !fclose(file) && !failed;
}
