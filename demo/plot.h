/* Plots for people, as SVG: panels of lines beside one another. */
#ifndef ATTN_DEMO_PLOT_H
#define ATTN_DEMO_PLOT_H

#include <stdbool.h>

enum { PLOT_MOST = 256 };

typedef struct plot_line {
    const char *name, *color;
    bool marked;    /* its points are */
    bool predicted; /* not measured: it is dashed, its points hollow, and its name says so */
    int count;
    double x[PLOT_MOST], y[PLOT_MOST];
} plot_line;

/* Logarithms are to base 2 along x and to base 10 along y. */
typedef enum plot_axes { PLOT_LINEAR, PLOT_LOG_X, PLOT_LOG_BOTH } plot_axes;

typedef struct plot_panel {
    const char *title, *x_title, *y_title;
    plot_axes axes;
    int lines;
    const plot_line *line;
} plot_panel;

/* At most PLOT_MOST points; the line's further ones are left out. */
void plot_add(plot_line *line, double x, double y);

/* Writes the panels beside one another, and below them a note (NULL: none). False if the file could not be written. */
bool plot_write(const char *path, const plot_panel *panels, int count, const char *note);

#endif
