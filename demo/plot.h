/* The demo's plot, an SVG of two panels: bits a byte against context, and seconds against length. Axes are
 * logarithmic, but for bits. */
#ifndef ATTN_DEMO_PLOT_H
#define ATTN_DEMO_PLOT_H

#include <stdbool.h>

enum { PLOT_MOST = 16 };

typedef struct plot_line {
    const char *name, *color;
    int count;
    double x[PLOT_MOST], y[PLOT_MOST];
} plot_line;

typedef struct plot_panel {
    const char *title, *x_title, *y_title;
    bool log_y; /* to base 10; x is always to base 2 */
    int lines;
    const plot_line *line;
} plot_panel;

/* Writes the panels beside one another. False if the file could not be written. */
bool plot_write(const char *path, const plot_panel *panels, int count);

#endif
