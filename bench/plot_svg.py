"""Figures in SVG, small and without a plotting library: panels with axes, series of marks and lines, legends.

A series is a colour and a mark that go together, so that either tells it from the others; colours are Okabe and Ito's,
which the colour-blind tell apart. The background is white whatever is around it."""

import math

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLE = (
    ".t{font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}.g{fill:#555}.zebra{fill:#eee}"
    ".axis{fill:none;stroke:#555}.grid{fill:none;stroke:#ddd}.one{fill:none;stroke:#555;stroke-dasharray:4 3}"
    + "".join(".l%d{fill:none;stroke:%s;stroke-width:1.5}.m%d{fill:%s;stroke:%s}" % (i, c, i, c, c)
              for i, c in enumerate(COLOURS))
    + ".dash{stroke-dasharray:5 3}.open{fill:#fff}"
)
SIZE = 12


def number(x):
    return ("%.1f" % x).rstrip("0").rstrip(".") or "0"


def point(x, y):
    return number(x) + " " + number(y)


def mark(series, x, y, r=3.2):
    """A circle, a square, a triangle, a diamond, a triangle upside down or a bar, as a piece of a path."""
    shape = series % 6
    if shape == 0:
        return "M%sa%s %s 0 1 0 %s 0a%s %s 0 1 0 %s 0z" % (point(x - r, y), r, r, 2 * r, r, r, -2 * r)
    corners = (
        ((-r, -r), (r, -r), (r, r), (-r, r)),
        ((0, -r - 1), (r + 1, r), (-r - 1, r)),
        ((0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)),
        ((0, r + 1), (r + 1, -r), (-r - 1, -r)),
        ((-1.5, -r - 1), (1.5, -r - 1), (1.5, r + 1), (-1.5, r + 1)),
    )[shape - 1]
    return "M" + "L".join(point(x + dx, y + dy) for dx, dy in corners) + "z"


class Axis:
    """From values to places: ticks are (value, label); a logarithmic axis or a plain one."""

    def __init__(self, low, high, ticks, label="", log=False):
        self.low, self.high, self.ticks, self.label, self.log = low, high, ticks, label, log

    def share(self, value):
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Figure:
    style = STYLE

    def __init__(self, width, height, size=SIZE):
        self.width, self.height, self.size, self.parts = width, height, size, []

    def text_width(self, text):
        return 0.62 * self.size * len(text)

    def scaled(self, length):
        """A length beside text of SIZE, beside text of this figure's size."""
        return length * self.size / SIZE

    def text(self, x, y, text, kind="", turned=False):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        kind = ' class="%s"' % kind if kind else ""
        turn = ' transform="rotate(-90 %s %s)"' % (number(x), number(y)) if turned else ""
        self.parts.append('<text x="%s" y="%s"%s%s>%s</text>' % (number(x), number(y), kind, turn, text))

    def path(self, kind, pieces):
        pieces = list(pieces)
        if pieces:
            self.parts.append('<path class="%s" d="%s"/>' % (kind, "".join(pieces)))

    def legend(self, x, y, entries):
        """Entries are (series, line class or None, whether a mark is there: True, "open" or False, text)."""
        for series, line, marked, text in entries:
            if line is not None:
                self.path("l%d %s" % (series, line), ["M%sh26" % point(x, y - 4)])
            if marked:
                self.path("m%d%s" % (series, " open" if marked == "open" else ""), [mark(series, x + 13, y - 4)])
            self.text(x + 32, y, text)
            x += 32 + self.text_width(text) + 18

    def save(self, path):
        with open(path, "w") as file:
            file.write(
                '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
                'font-family="sans-serif" font-size="%d">\n<style>%s</style>\n'
                '<rect width="100%%" height="100%%" fill="#fff"/>\n%s\n</svg>\n'
                % (self.width, self.height, self.width, self.height, self.size, self.style, "\n".join(self.parts))
            )


class Panel:
    """A frame at (x, y) with two axes; y None: rows instead, see `strips`."""

    def __init__(self, figure, x, y, width, height, across, up, title=""):
        self.figure, self.x, self.y, self.width, self.height = figure, x, y, width, height
        self.across, self.up = across, up
        figure.path("grid", ["M%sh%s" % (point(x, self.row(v)), number(width)) for v, _ in up.ticks])
        figure.path("axis", ["M%sV%sh%s" % (point(x, y), number(y + height), number(width))]
                    + ["M%sv4" % point(self.column(v), y + height) for v, _ in across.ticks])
        for value, label in across.ticks:
            figure.text(self.column(value), y + height + figure.scaled(17), label, "m")
        for value, label in up.ticks:
            if label:
                figure.text(x - 7, self.row(value) + 4, label, "e")
        if title:
            figure.text(x, y - 8, title, "t")
        if across.label:
            figure.text(x + width / 2, y + height + figure.scaled(35), across.label, "m g")
        if up.label:
            wide = max(figure.text_width(label) for _, label in up.ticks)
            figure.text(x - 16 - wide, y + height / 2 + figure.text_width(up.label) / 2, up.label, "g", True)

    def column(self, value):
        return self.x + self.width * self.across.share(value)

    def row(self, value):
        return self.y + self.height * (1 - self.up.share(value))

    def band(self, low, high):
        """Shades what lies between two values across."""
        left, right = self.column(low), self.column(high)
        self.figure.path("zebra", ["M%sH%sV%sH%sz" % (point(left, self.y), number(right), number(self.y + self.height),
                                                      number(left))])

    def level(self, value):
        self.figure.path("one", ["M%sh%s" % (point(self.x, self.row(value)), number(self.width))])

    def line(self, series, points, kind=""):
        places = [point(self.column(x), self.row(y)) for x, y in points]
        if places:
            self.figure.path(("l%d %s" % (series, kind)).strip(), ["M" + "L".join(places)])

    def marks(self, series, points, kind=""):
        self.figure.path(("m%d %s" % (series, kind)).strip(),
                         [mark(series, self.column(x), self.row(y)) for x, y in points])


def strips(figure, x, y, width, across, rows, pitch=30, bands=()):
    """A row for each (label, series, values): a mark for each value, spread over the row so that none hides another.
    A value is (number, whether its mark is filled). Returns the lower edge."""
    panel = Panel(figure, x, y, width, pitch * len(rows), across, Axis(0, len(rows), []))
    for low, high in bands:
        panel.band(low, high)
    for i, (label, series, values) in enumerate(rows):
        middle = len(rows) - i - 0.5
        figure.text(x - 10, panel.row(middle) + 4, label, "e")
        ordered = sorted(values)
        places = [(v, middle + 0.32 * ((j % 5) - 2) / 2, filled) for j, (v, filled) in enumerate(ordered)]
        panel.marks(series, [(v, at) for v, at, filled in places if filled])
        panel.marks(series, [(v, at) for v, at, filled in places if not filled], "open")
    return y + pitch * len(rows)
