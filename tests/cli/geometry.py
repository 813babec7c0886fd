"""Where things are in a drawing in SVG: text by a generous guess of its width, boxes, and lines as points."""

import re
import xml.etree.ElementTree

SIZES = {"t": 15, "b": 13}
NARROW, WIDE = "iljtfrI.,:;'|()[]!/- ", "mwMW@%+=<>"


def text_width(text, size, bold):
    ems = sum(0.36 if c in NARROW else 0.84 if c in WIDE else 0.62 for c in text)
    return ems * size * (1.1 if bold else 1)


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def holds(box, point):
    return box[0] < point[0] < box[2] and box[1] < point[1] < box[3]


def around(points):
    xs, ys = zip(*points)
    return min(xs), min(ys), max(xs), max(ys)


def curve(a, b, c, d, steps=24):
    for i in range(1, steps + 1):
        t = i / steps
        yield tuple(
            (1 - t) ** 3 * a[k] + 3 * t * (1 - t) ** 2 * b[k] + 3 * t * t * (1 - t) * c[k] + t**3 * d[k] for k in (0, 1)
        )


def strokes(path):
    """The strokes of a path: lists of points, each a few pixels at most from the last where the stroke is one line."""
    tokens = re.findall(r"[A-Za-z]|-?\d+(?:\.\d+)?", path)
    at, command, place, stroke = 0, "", (0, 0), []

    def number():
        nonlocal at
        at += 1
        return float(tokens[at - 1])

    def line_to(x, y):
        steps = int(max(abs(x - place[0]), abs(y - place[1])) / 3) + 1
        for i in range(1, steps + 1):
            stroke.append((place[0] + (x - place[0]) * i / steps, place[1] + (y - place[1]) * i / steps))
        return x, y

    while at < len(tokens):
        if tokens[at].isalpha():
            command, at = tokens[at], at + 1
        base = place if command.islower() else (0, 0)
        kind = command.upper()
        if kind == "M":
            if stroke:
                yield stroke
            place = number() + base[0], number() + base[1]
            stroke = [place]
        elif kind == "L":
            place = line_to(number() + base[0], number() + base[1])
        elif kind == "H":
            place = line_to(number() + base[0], place[1])
        elif kind == "V":
            place = line_to(place[0], number() + base[1])
        elif kind == "C":
            points = [(number() + base[0], number() + base[1]) for _ in range(3)]
            stroke += curve(place, *points)
            place = points[2]
        elif kind == "A":  # half a circle from left to right or back: its upper and lower edge
            radius, (_, _, _, _, x, y) = number(), [number() for _ in range(6)]
            end = x + base[0], y + base[1]
            stroke += [((place[0] + end[0]) / 2, end[1] + sign * radius) for sign in (-1, 1)] + [end]
            place = end
        elif kind == "Z":
            place = line_to(*stroke[0])
        else:
            raise ValueError("path command " + command)
    if stroke:
        yield stroke


class Drawing:
    def __init__(self, path):
        root = xml.etree.ElementTree.parse(path).getroot()
        self.width, self.height = float(root.get("width")), float(root.get("height"))
        self.texts, self.boxes, self.tables, self.strokes = [], [], [], []
        self.walk(root, "", float(root.get("font-size", 13)))

    def walk(self, element, transform, size):
        tag, kind = element.tag.split("}")[-1], element.get("class", "")
        transform = element.get("transform", transform)
        size = float(element.get("font-size", SIZES.get(kind, size)))
        if tag == "text":
            self.texts.append((element.text or "", self.text_box(element, transform, size)))
        elif tag == "rect" and element.get("width") != "100%":
            x, y, width, height = (float(element.get(k)) for k in ("x", "y", "width", "height"))
            self.boxes.append((x, y, x + width, y + height))
        elif tag == "path" and kind == "zebra":
            self.tables.append(around(point for stroke in strokes(element.get("d")) for point in stroke))
        elif tag == "path":
            self.strokes += strokes(element.get("d"))
        for child in element:
            self.walk(child, transform, size)

    @staticmethod
    def text_box(element, transform, size):
        x, y = float(element.get("x")), float(element.get("y"))
        kind = element.get("class", "")
        width = text_width(element.text or "", size, kind == "b" or element.get("font-weight") == "bold")
        left = x - width if "e" in kind.split() else x - width / 2 if "m" in kind.split() else x
        turned = re.match(r"rotate\(-90 (\S+) (\S+)\)", transform)
        if turned:
            return x - 0.75 * size, y - width, x + 0.2 * size, y
        return left, y - 0.75 * size, left + width, y + 0.2 * size

    def faults(self):
        """What overlaps or lies outside."""
        page = (0, 0, self.width, self.height)
        for i, (text, box) in enumerate(self.texts):
            if not (holds(page, box[:2]) and holds(page, box[2:])):
                yield "%r is not on the page" % text
            for other, other_box in self.texts[:i]:
                if overlap(box, other_box):
                    yield "%r is over %r" % (text, other)
            for outer in self.boxes:
                if overlap(box, outer) and not (holds(outer, box[:2]) and holds(outer, box[2:])):
                    yield "%r does not fit its box" % text
            if any(holds(box, point) for stroke in self.strokes for point in stroke):
                yield "a line goes through %r" % text
        for i, box in enumerate(self.boxes):
            if any(overlap(box, other) for other in self.boxes[:i]):
                yield "boxes overlap at %s" % (box,)
            inside = (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1)
            if any(holds(inside, point) for stroke in self.strokes for point in stroke):
                yield "a line goes through the box at %s" % (box,)
        if any(not holds(page, point) for stroke in self.strokes for point in stroke):
            yield "a line leaves the page"

    def empty(self, cell=10):
        """The share of the page that no bounding box touches."""
        columns, rows = int(self.width / cell), int(self.height / cell)
        full = [[False] * columns for _ in range(rows)]
        full_of = self.boxes + self.tables + [box for _, box in self.texts] + [around(s) for s in self.strokes]
        for box in full_of:
            for row in range(max(0, int(box[1] / cell)), min(rows, int(box[3] / cell) + 1)):
                for column in range(max(0, int(box[0] / cell)), min(columns, int(box[2] / cell) + 1)):
                    full[row][column] = True
        return 1 - sum(map(sum, full)) / (columns * rows)
