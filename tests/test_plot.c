/* The demo's plots (demo/plot.h): what is predicted looks it, a legend lies on no grid line, and a note is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../demo/plot.h"

static const char path[] = "test_plot.svg";
static char svg[1 << 16];

static void draw(plot_axes axes, const char *note)
{
    plot_line lines[2] = { { .name = "measured", .color = "#00f", .marked = true },
                           { .name = "standard", .color = "#f00", .marked = true, .predicted = true } };
    plot_panel panel = { "title", "x", "y", axes, 2, lines };
    for (int i = 1; i <= 4; i++) {
        plot_add(&lines[0], 1 << i, i);
        plot_add(&lines[1], 1 << i, 4 * i);
    }
    assert_true(plot_write(path, &panel, 1, note));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    svg[fread(svg, 1, sizeof svg - 1, file)] = '\0';
    fclose(file);
    unlink(path);
}

static int count(const char *part)
{
    int found = 0;
    for (const char *at = svg; (at = strstr(at, part)); at += strlen(part))
        found++;
    return found;
}

static void predictions_look_it(void **state)
{
    (void)state;
    draw(PLOT_LOG_BOTH, NULL);
    assert_int_equal(count(">measured<"), 1);
    assert_int_equal(count(">standard, predicted<"), 1);
    assert_int_equal(count("stroke-dasharray=\"5 4\" stroke=\"#f00\""), 2); /* the line, and its sample in the legend */
    assert_int_equal(count("stroke-dasharray"), 2);
    assert_int_equal(count("<circle r=\"3\" fill=\"#fff\" stroke=\"#f00\""), 5);
    assert_int_equal(count("<circle r=\"3\" fill=\"#00f\" stroke=\"#00f\""), 5);
}

static double number_after(const char *from, const char *name)
{
    double value = -1.0;
    const char *at = strstr(from, name);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(name), "%lf", &value), 1);
    return value;
}

static const char *text_of(const char *words)
{
    const char *at = strstr(svg, words);
    assert_non_null(at);
    while (strncmp(at, "<text", 5) != 0)
        at--;
    return at;
}

static void legend_lies_on_no_grid_line(void **state)
{
    (void)state;
    for (int axes = PLOT_LINEAR; axes <= PLOT_LOG_BOTH; axes++) {
        double lowest = 0.0, first, second, height;
        draw((plot_axes)axes, NULL);
        for (const char *grid = svg; (grid = strstr(grid, "<path d=\"M64 ")); grid++)
            lowest = fmax(lowest, number_after(grid, "M64 "));
        first = number_after(text_of(">measured<"), " y=\"");
        second = number_after(text_of(">standard, predicted<"), " y=\"");
        height = number_after(svg, " height=\"");
        assert_true(lowest > 100.0 && first - 12.0 > lowest && second - 12.0 > first && second + 4.0 < height);
    }
}

static void note_is_below_the_panels(void **state)
{
    (void)state;
    draw(PLOT_LOG_X, "Measured on a <machine> & another");
    double y = number_after(text_of("Measured on a &#60;machine> &#38; another</text>"), " y=\"");
    assert_true(y - 12.0 > number_after(text_of(">standard, predicted<"), " y=\""));
    assert_true(y + 4.0 < number_after(svg, " height=\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_look_it),
        cmocka_unit_test(legend_lies_on_no_grid_line),
        cmocka_unit_test(note_is_below_the_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
