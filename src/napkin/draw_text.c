/* Text in a drawing; see draw.h. A viewer picks the font, so widths are those of a wide one. */
#include <string.h>

#include "napkin/draw.h"

/* Of ' ' to '~', in 1/100 of the font's size. */
static const unsigned char widths[] = { 32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36,  32, 34, 64, 64, 64,
                                        64, 64, 64, 64, 64, 64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63,
                                        58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63,  61, 73, 68, 99, 69,
                                        61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35,  63, 63, 28, 28, 58,
                                        28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59,  52, 64, 34, 64, 84 };

static int width_of(const char *text, size_t length, int size)
{
    int width = 0;
    for (size_t i = 0; i < length; i++)
        width += text[i] >= ' ' && text[i] <= '~' ? widths[text[i] - ' '] : 100;
    return (width * size + 99) / 100;
}

int attn_nap_text_width(const char *text, int size)
{
    return width_of(text, strlen(text), size);
}

static void write_text(attn_text_buffer *w, int x, int y, const char *class, const char *text, size_t length)
{
    attn_say(w, "<text x=\"%d\" y=\"%d\"", x, y);
    if (class) attn_say(w, " class=\"%s\"", class);
    attn_say(w, ">");
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '<')
            attn_say(w, "&lt;");
        else if (text[i] == '>')
            attn_say(w, "&gt;");
        else if (text[i] == '&')
            attn_say(w, "&amp;");
        else
            attn_say(w, "%c", text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    }
    attn_say(w, "</text>\n");
}

void attn_nap_svg_text(attn_text_buffer *w, int x, int y, const char *class, const char *text)
{
    write_text(w, x, y, class, text, strlen(text));
}

/* Where a line that begins at `start` ends: at the last space up to `width`, or, if both halves fit then, at the space
 * outside most brackets, before an operator rather than after it. NULL: it is not to be broken. */
static char *find_break(char *start, int size, int width)
{
    char *last = NULL, *best = NULL;
    int depth = 0, least = 0;
    if (attn_nap_text_width(start, size) <= width) return NULL;
    for (char *c = start; *c; c++) {
        depth += (*c == '(' || *c == '[') - (*c == ')' || *c == ']');
        if (*c != ' ') continue;
        bool fits = width_of(start, (size_t)(c - start), size) <= width;
        if (fits || !last) last = c;
        if (!fits || attn_nap_text_width(c + 1, size) > width) continue;
        int rank = 2 * depth + !strchr("+-*/", c[1]);
        if (best && rank > least) continue;
        best = c;
        least = rank;
    }
    return best ? best : last;
}

int attn_nap_wrap(char *text, int size, int width)
{
    int lines = 1;
    for (char *end; (end = find_break(text, size, width)) != NULL; text = end + 1, lines++)
        *end = '\n';
    return lines;
}

int attn_nap_lines_width(const char *text, int size)
{
    int widest = 0;
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        int width = width_of(text, strcspn(text, "\n"), size);
        if (width > widest) widest = width;
    }
    return widest;
}

void attn_nap_svg_lines(attn_text_buffer *w, int x, int y, const char *class, const char *text)
{
    for (; *text; y += ATTN_NAP_LINE_HEIGHT) {
        size_t length = strcspn(text, "\n");
        write_text(w, x, y, class, text, length);
        text += length + (text[length] == '\n');
    }
}

void attn_nap_draw_term(attn_text_buffer *w, const attn_diagram *d, const attn_nap_names *names, int node, bool open)
{
    attn_nap_say_term(w, d, names, node, open);
    char *cut = strstr(w->text, "...");
    if (!cut) return;
    cut[3] = 0;
    w->length = (size_t)(cut + 3 - w->text);
}
