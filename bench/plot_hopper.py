#!/usr/bin/env python3
"""The figures of docs/HOPPER.md: plot_hopper.py [--out docs]. Needs Python alone.

hopper-forward.svg    one CTA: who loads, who computes, what passes between them
hopper-schedules.svg  the two forward schedules in time
hopper-masks.svg      KV tiles: full, partial, skipped
hopper-backward.svg   a work item of the backward, and an iteration in time
hopper-dq.svg         how dQ is added up"""
import argparse
import os

from plot_svg import STYLE, Figure, number, point

# Fill and border of a box: products of Q and K, exponentials, products with V or dO, dK, dQ, memory, and what waits.
TINTS = {"qk": ("#cfe3f2", "#0072b2"), "exp": ("#fbe3b8", "#b37400"), "pv": ("#c6e8db", "#007a58"),
         "dk": ("#f3d9e7", "#a3557f"), "dq": ("#f6d3be", "#b34e00"), "plain": ("#fff", "#555"), "idle": ("#f4f4f4", "#bbb")}


class Drawing(Figure):
    style = STYLE + ".zebra{fill:#f3f5f7}.a{fill:none;stroke:#333;stroke-width:1.3}.b{font-weight:bold}" + "".join(
        ".%s{fill:%s;stroke:%s}" % (name, fill, border) for name, (fill, border) in TINTS.items())

    def region(self, x, y, width, height):
        self.path("zebra", ["M%sh%sv%sh%sz" % (point(x, y), number(width), number(height), number(-width))])

    def box(self, x, y, width, height, kind, *lines):
        """Lines of text in the middle of a box."""
        self.parts.append('<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>'
                          % (kind, number(x), number(y), number(width), number(height)))
        for i, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 15 * (i - (len(lines) - 1) / 2), line, "m")

    def cells(self, kind, cells, width, height):
        self.path(kind, ["M%sh%sv%sh%sz" % (point(x, y), number(width), number(height), number(-width))
                         for x, y in cells])

    def arrow(self, *points, both=False):
        """Along straight lines, with a head at the end."""
        heads = [(points[-2], points[-1])] + ([(points[1], points[0])] if both else [])
        pieces = ["M" + "L".join(point(*p) for p in points)]
        for (x0, y0), (x, y) in heads:
            length = max(abs(x - x0), abs(y - y0), 1)
            dx, dy = (x - x0) / length * 6, (y - y0) / length * 6
            pieces.append("M" + "L".join(point(*p) for p in ((x - dx + dy / 2, y - dy - dx / 2), (x, y),
                                                             (x - dx - dy / 2, y - dy + dx / 2))))
        self.path("a", pieces)

    def key(self, x, y, entries):
        for kind, text in entries:
            self.cells(kind, [(x, y - 10)], 14, 12)
            self.text(x + 20, y, text)
            x += 20 + 7.5 * len(text) + 22


def forward(path):
    f = Drawing(860, 408)
    for y, height, name in ((10, 74, "global memory"), (120, 116, "shared memory"), (286, 112, "warps")):
        f.region(10, y, 840, height)
        f.text(20, y + 19, name, "b")
    f.box(130, 32, 120, 36, "plain", "tile counter")
    f.box(320, 32, 90, 36, "plain", "Q")
    f.box(440, 32, 210, 36, "plain", "K, V")
    f.box(700, 32, 130, 36, "plain", "O, LSE")
    f.box(160, 150, 130, 52, "idle", "work tile info", "4 slots")
    f.box(320, 150, 90, 52, "qk", "Q tile", "1 or 2 slots")
    for i in range(4):
        f.box(440 + 54 * i, 150, 48, 26, "qk", "K")
        f.box(440 + 54 * i, 176, 48, 26, "pv", "V")
    f.text(440, 142, "ring of 2 to 8 stages", "g")
    f.box(700, 150, 130, 52, "idle", "O tile", "on its way")
    f.box(130, 316, 120, 46, "plain", "scheduler", "warp")
    f.box(290, 316, 120, 46, "plain", "producer", "warp")
    for i, name in enumerate(("consumer", "consumer", "up to 4")):
        f.box(504 + 112 * i, 316, 102, 46, "exp", name, "warpgroup %d" % i if i < 2 else "warpgroups")
    f.text(669, 382, "64 rows each; S, P and O in registers", "m g")
    f.text(270, 382, "producer warpgroup, 24 to 40 registers", "m g")
    f.arrow((144, 68), (144, 316))
    f.arrow((220, 316), (220, 202))
    f.arrow((280, 202), (300, 316))
    f.arrow((365, 68), (365, 150))
    f.arrow((620, 68), (620, 150))
    f.text(374, 104, "TMA")
    f.text(629, 104, "TMA")
    f.arrow((390, 316), (450, 202))
    f.text(428, 268, "issues TMA")
    f.arrow((640, 202), (640, 316))
    f.text(649, 268, "full barriers")
    f.arrow((504, 339), (410, 339))
    f.text(457, 333, "empty", "m")
    f.text(457, 355, "barriers", "m")
    f.arrow((765, 316), (765, 202))
    f.arrow((765, 150), (765, 68))
    f.text(774, 104, "TMA")
    f.save(path)


def ping_pong(f, x, y):
    f.text(16, y, "Ping-pong: one S buffer; d128 128\u00d7128, d192, d256", "b")
    for lane, group in enumerate((0, 0, 1, 1)):
        f.text(x - 10, y + 32 + 26 * lane + 10 * group, "warpgroup %d, %s" % (group, ("products", "softmax")[lane % 2]),
               "e")
    for turn in range(5):
        left, group = x + 130 * turn, turn % 2
        top, t = y + 16 + 62 * group, turn // 2
        f.box(left, top, 65, 22, "qk", "QK %d" % (t + 1))
        f.box(left + 65, top, 65, 22, "pv", "PV %d" % t)
        if turn < 4:
            f.box(left + 65, top + 26, 180 if turn < 3 else 65 + 130 - 65, 22, "exp", "mask, 2^x, pack %d" % (t + 1))
    for turn in range(1, 5):
        f.path("one", ["M%sv6" % point(x + 130 * turn, y + 8)] + ["M%sv18" % point(x + 130, y + 134)] * (turn == 1))
    f.text(x + 138, y + 150, "the turn passes when a warpgroup has issued both products", "g")


def interleaved_double(f, x, y):
    f.text(16, y, "Interleaved, double-buffered S: d64 128\u00d7128, d96, d128 192\u00d764", "b")
    for lane, name in enumerate(("softmax", "products", "S of tile t", "S of tile t+1")):
        f.text(x - 10, y + 32 + 26 * lane, name, "e")
    for i in range(4):
        left = x + 100 * i
        f.box(left, y + 16, 98, 22, "exp", "2^x, pack %d" % i)
        if i < 3:
            f.box(left + 100, y + 42, 44, 22, "qk", "QK")
        f.box(left + (144 if i < 3 else 100), y + 42, 44, 22, "pv", "PV %d" % i)
    f.box(x, y + 68, 398, 22, "idle", "spent, 32 keys at a time")
    f.box(x + 100, y + 94, 244, 22, "qk", "QK accumulates")
    f.box(x + 344, y + 94, 306, 22, "idle", "scores of the next iteration")
    for i in range(2):
        f.box(x + 450 + 100 * i, y + 16, 98, 22, "exp", "2^x, pack %d" % i)
    f.box(x + 550, y + 42, 44, 22, "qk", "QK")
    f.box(x + 594, y + 42, 44, 22, "pv", "PV 0")
    f.path("one", ["M%sv6" % point(x + 447, y + 8), "M%sv18" % point(x + 447, y + 66)])
    f.text(x + 455, y + 82, "wait PV, release", "g")


def interleaved_single(f, x, y):
    f.text(16, y, "Interleaved, single-buffered S: d64 256\u00d764, four warpgroups; two are drawn", "b")
    for group in range(2):
        top = y + 16 + 62 * group
        f.text(x - 10, top + 16, "warpgroup %d, softmax" % group, "e")
        f.text(x - 10, top + 42, "warpgroup %d, products" % group, "e")
        for left in (x + 82 * group, x + 330 + 82 * group):
            for start, lane, width, kind, text in ((0, 0, 98, "exp", "2^x, pack 0"), (100, 0, 98, "exp", "2^x, pack 1"),
                                                   (100, 26, 50, "pv", "PV 0"), (200, 26, 50, "pv", "PV 1"),
                                                   (250, 26, 70, "qk", "next QK")):
                if left + start + width <= x + 650:
                    f.box(left + start, top + lane, width, 22, kind, text)


def schedules(path):
    f = Drawing(860, 548)
    ping_pong(f, 190, 24)
    interleaved_double(f, 190, 214)
    interleaved_single(f, 190, 368)
    f.arrow((190, 512), (840, 512))
    f.text(840, 530, "time", "e g")
    f.key(190, 534, (("qk", "S = Q K\u1d40"), ("pv", "O += P V"), ("exp", "softmax")))
    f.save(path)


# ---- masks: what a warpgroup makes of a KV tile -----------------------------------------------------------------


def causal(i, j):
    return j <= i


def window(i, j):
    return i - 230 <= j <= i


def documents(i, j):
    starts = (0, 150, 540)
    return j <= i and sum(s <= i for s in starts) == sum(s <= j for s in starts)


def mask_panel(f, x, y, title, seen, rows, keys, edge, alone=True):
    """768 rows and keys in warpgroups of 64 rows, Q tiles of `rows` and KV tiles of `keys`. alone: each warpgroup has a
    share of its own; else all take what the Q tile sees."""
    f.text(x, y - 24, title, "b")
    size, n, step = 240, 768, 8
    scale, kinds = size / n, {"full": [], "partial": [], "passed": [], "skipped": []}
    for top in range(0, n, 64 if alone else rows):
        end, first = top + (64 if alone else rows), top // rows * rows
        for left in range(0, n, keys):
            def pairs(low, high, until=left + keys):
                return [seen(i, j) for i in range(low, high, step) for j in range(left, until, step)]
            mine, tile, further = pairs(top, end), any(pairs(first, first + rows)), any(pairs(top, end, n))
            kind = "skipped" if not tile else "full" if all(mine) else "partial" if further else "passed"
            kinds[kind].append((x + left * scale, y + top * scale))
    for kind, css in (("skipped", "plain"), ("passed", "idle"), ("full", "pv"), ("partial", "exp")):
        f.cells(css, kinds[kind], keys * scale, (64 if alone else rows) * scale)
    f.path("a", ["M%sh%s" % (point(x, y + top * scale), size) for top in range(0, n + 1, rows)])
    f.path("l1", ["M" + "L".join(point(x + j * scale, y + i * scale) for j, i in line) for line in edge])


def masks(path):
    f = Drawing(860, 356)
    mask_panel(f, 20, 62, "causal, 192\u00d764", causal, 192, 64, [[(0, 0), (768, 768)]])
    mask_panel(f, 310, 62, "window of 231, 192\u00d764", window, 192, 64, [[(0, 0), (768, 768)], [(0, 230), (538, 768)]])
    mask_panel(f, 600, 62, "documents, 128\u00d796", documents, 128, 96,
               [[(a, a), (b, b), (a, b), (a, a)] for a, b in ((0, 150), (150, 540), (540, 768))], False)
    for x in (20, 310, 600):
        f.arrow((x + 240, 52), (x + 160, 52))
        f.text(x + 150, 56, "KV tiles, last first", "e g")
    f.key(20, 338, (("pv", "full: unmasked iteration"), ("exp", "partial: compared"),
                    ("idle", "skipped by the warpgroup"), ("plain", "not loaded")))
    f.save(path)


def work_item(f, x, y):
    f.text(x, y - 10, "A work item: one KV tile, all Q tiles that see it", "b")
    size, tiles = 28, 7
    left = x + 66
    f.cells("plain", [(left + size * j, y + 40 + size * i) for i in range(tiles) for j in range(tiles) if j <= i], size,
            size)
    f.cells("qk", [(left + size * 2, y + 40 + size * i) for i in range(2, tiles)], size, size)
    f.box(left + size * 2, y + 6, size, 26, "pv", "KV")
    f.text(left + size * 3 + 8, y + 24, "K and V stay")
    f.arrow((left + size * 2 + 14, y + 102), (left + size * 2 + 14, y + 40 + size * tiles + 18))
    f.text(left + size * 2 + 14, y + 40 + size * tiles + 34, "dK, dV: stored once", "m")
    f.text(x + 2, y + 140, "Q, dO")
    f.arrow((x + 8, y + 150), (x + 8, y + 40 + size * tiles))
    f.arrow((left + size * 3, y + 40 + size * 4.5), (left + size * tiles + 6, y + 40 + size * 4.5))
    f.text(left + size * tiles + 12, y + 44 + size * 4.5, "dQ += dS K")


def backward_time(f, x, y):
    f.text(x, y - 10, "An iteration in time, D \u2264 128", "b")
    lanes = ("score warpgroup 0", "products", "score warpgroup 1", "products", "dQ warpgroup")
    for lane, name in enumerate(lanes):
        f.text(x + 118, y + 30 + 34 * lane, name, "e")
    left = x + 126
    for group in range(2):
        at, top = left + 44 * group, y + 14 + 68 * group
        for start, width, row, kind, text in ((0, 44, 34, "qk", "S"), (46, 62, 0, "exp", "P"), (110, 44, 34, "qk", "dP"),
                                              (156, 44, 34, "pv", "dV"), (156, 62, 0, "exp", "dS"),
                                              (220, 44, 34, "dk", "dK")):
            f.box(at + start, top + row, width, 24, kind, text)
    f.box(left, y + 150, 126, 24, "dq", "dQ of tile t\u22121")
    f.box(left + 128, y + 150, 70, 24, "idle", "add")
    f.box(left + 264, y + 150, 44, 24, "dq", "dQ t")
    f.arrow((left, y + 192), (left + 308, y + 192))
    f.text(left + 308, y + 210, "time", "e g")


def backward(path):
    f = Drawing(860, 300)
    work_item(f, 20, 26)
    backward_time(f, 408, 26)
    f.key(420, 276, (("qk", "S, dP"), ("exp", "P, dS"), ("pv", "dV"), ("dk", "dK"), ("dq", "dQ")))
    f.save(path)


def gantt(f, x, y, title, starts, width, kinds, labelled=True):
    """Q tiles 0 to 3 of KV tiles 3 to 0, each from its start on."""
    f.text(x, y - 30, title, "b")
    for lane, (start, kind) in enumerate(zip(starts, kinds)):
        top = y + 25 * lane
        f.text(x, top + 15, "KV %d" % (3 - lane))
        cells = [(x + 42 + start + width * tile, top) for tile in range(4)]
        f.cells(kind, cells, width, 21)
        for tile, (left, _) in enumerate(cells if labelled else ()):
            f.text(left + width / 2, top + 15, str(tile), "m")


def accumulator(f, x, y, add, *steps):
    f.arrow((x + 60, y - 34), (x + 60, y))
    f.text(x + 70, y - 14, add)
    f.box(x + 5, y, 110, 26, "dq", "accumulator")
    if steps:
        f.arrow((x + 60, y + 26), (x + 60, y + 56))
        f.box(x + 5, y + 56, 110, 26, "plain", *steps)


def cluster(f, x, y):
    f.text(x, y - 30, "two-CTA cluster", "b")
    for i, name in enumerate(("CTA 0", "CTA 1")):
        left = x + 108 * i
        f.box(left, y, 70, 46, "plain", name, "KV 2i" + "+1" * i)
        f.arrow((left + 35, y + 46), (left + 35, y + 150))
        f.box(left, y + 150, 70, 46, "dq", "dQ,", ("first d/2", "last d/2")[i])
    f.arrow((x + 70, y + 23), (x + 108, y + 23), both=True)
    f.text(x + 89, y + 15, "dS", "m")
    f.text(x + 89, y + 82, "over the", "m")
    f.text(x + 89, y + 98, "keys of", "m")
    f.text(x + 89, y + 114, "both", "m")


def dq(path):
    f = Drawing(860, 286)
    gantt(f, 20, 54, "atomic", (0, 8, 4, 12), 24, ("dq",) * 4)
    accumulator(f, 20, 190, "in any order", "postprocess")
    gantt(f, 232, 54, "ordered by semaphore", (0, 24, 48, 72), 24, ("dq",) * 4)
    accumulator(f, 232, 190, "KV 3 first", "postprocess")
    gantt(f, 470, 54, "head-persistent, one CTA", (0, 36, 72, 108), 9, ("idle", "dq", "dq", "pv"), False)
    accumulator(f, 470, 190, "first store, then add", "dQ, by KV 0")
    cluster(f, 672, 54)
    f.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=".")
    out = parser.parse_args().out
    for draw in (forward, schedules, masks, backward, dq):
        draw(os.path.join(out, "hopper-%s.svg" % draw.__name__))


main()
