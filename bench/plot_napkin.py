#!/usr/bin/env python3
"""Plots of docs/NAPKIN.md out of bench/results: plot_napkin.py RESULTS.csv ... [--out docs]. Needs Python alone.

napkin-time.svg     predicted over measured time of every row that has both
napkin-tiles.svg    the planner's choice against the best of all (suite tiles)
napkin-theorem.svg  bytes over the memory's size, and over the share of blocks kept (suite theorem)
napkin-bytes.svg    predicted over counted bytes at each level (suite bytes)
It prints the figures that the text quotes."""
import argparse
import csv
import os
import statistics

from plot_svg import Axis, Figure, Panel, strips

NAMES = {"fwd": "forward", "bwd": "backward", "decode": "decode", "fwdbwd": "both in turn"}
SERIES = {"fwd": 0, "bwd": 1, "decode": 2, "fwdbwd": 3}
GRID = ("prefill", "bwd", "fwdbwd", "decode", "tiles", "bytes", "order", "threads")


def number(row, column):
    return float(row.get(column) or 0)


def within(values, share):
    return 100 * sum(abs(v - 1) <= share for v in values) / len(values)


def devices(rows):
    return sorted({row["device"] for row in rows})


def plain(*values):
    return [(v, "%g" % v) for v in values]


def plot_strips(path, rows, across, bands, note, entries=()):
    """rows: of `strips`."""
    left = 16 + max(8 * len(label) for label, _, _ in rows)
    figure = Figure(760, 96 + 30 * len(rows) + (20 if entries else 0))
    figure.text(16, 22, note, "g")
    if entries:
        figure.legend(16, 42, entries)
    strips(figure, left, 36 + (20 if entries else 0), 736 - left, across, rows, bands=bands)
    figure.save(path)


def plot_time(rows, out):
    rows = [r for r in rows if number(r, "predicted_ms") and r["suite"] not in ("theorem", "memory")]
    strip = []
    for name in devices(rows):
        mine = [r for r in rows if r["device"] == name]
        for kind in [k for k in NAMES if any(r["pass"] == k for r in mine)]:
            some = [r for r in mine if r["pass"] == kind]
            ratios = [number(r, "predicted_ms") / number(r, "ms") for r in some if int(r["len_kv"]) >= 2048]
            if ratios:
                print(f"time {name} {kind}, N >= 2048: {len(ratios)} points, median {statistics.median(ratios):.2f}, "
                      f"within 20 %: {within(ratios, .2):.0f} %, within 25 %: {within(ratios, .25):.0f} %")
            for rest in (False, True):
                values = [(number(r, "predicted_ms") / number(r, "ms"), int(r["len_kv"]) >= 2048)
                          for r in some if (r["suite"] not in GRID) == rest]
                label = f"{name} {NAMES[kind]}" + (", other shapes" if rest else "")
                if values:
                    strip.append((label, SERIES[kind], values))
    if not strip:
        return
    ticks = plain(0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8)
    entries = [(0, None, True, "at least 2048 keys"), (0, None, "open", "fewer")]
    plot_strips(os.path.join(out, "napkin-time.svg"), strip, Axis(0.25, 8, ticks, "predicted / measured time", True),
                [(0.8, 1.25)], "A mark for each measured problem; grey: within a factor of 1.25", entries)


def plot_tiles(rows, out):
    rows = [r for r in rows if r["suite"] == "tiles"]
    strip = []
    for name in devices(rows):
        mine = [r for r in rows if r["device"] == name]
        ratios = sorted(number(r, "ratio") for r in mine)
        print(f"tiles {name}: {len(ratios)} points, within 5 % of the best: "
              f"{100 * sum(r >= .95 for r in ratios) / len(ratios):.0f} %, worst {ratios[0]:.2f}")
        for kind, dtype in sorted({(r["pass"], r["dtype"]) for r in mine}, key=lambda key: (SERIES[key[0]], key[1])):
            values = [(number(r, "ratio"), True) for r in mine if (r["pass"], r["dtype"]) == (kind, dtype)]
            strip.append((f"{name} {NAMES[kind]} {dtype}", SERIES[kind], values))
    if not strip:
        return
    low = min(value for _, _, values in strip for value, _ in values)
    low = int(20 * low) / 20
    ticks = [(low + i / 20, "%.2f" % (low + i / 20)) for i in range(int(round((1 - low) * 20)) + 1)]
    plot_strips(os.path.join(out, "napkin-tiles.svg"), strip,
                Axis(low, 1.005, ticks, "time of the best of all / of the planner's choice"),
                [(0.95, 1.005)], "A mark for each problem; grey: at most 5 % slower than the best")


def kept(row):
    return float(row["mask"].split("kept:")[1])


def plot_theorem(rows, out):
    rows = [r for r in rows if r["suite"] == "theorem"]
    if not rows:
        return
    groups = {}
    for row in rows:
        groups.setdefault((int(row["len_kv"]), int(row["head_dim"])), {}).setdefault(row["dtype"], []).append(row)
    low = min(min(number(r, "level1_predicted"), number(r, "level1_counted")) for r in rows) / 2**20 / 1.5
    high = max(number(r, "level1_counted") for r in rows) / 2**20 * 1.5
    sizes = [(2.0**i, label) for i, label in enumerate(("128K", "", "512K", "1M", "2M", "4M"), 7)]
    shares = [(2.0**-i, "1/%d" % 2**i) for i in range(4, 0, -1)]
    decades = [(10.0**i, "%d" % 10**i) for i in range(0, 6) if low <= 10**i <= high]
    figure = Figure(900, 566)
    figure.legend(76, 24, [(i, "", True, dtype) for i, dtype in enumerate(("bf16", "f32"))])
    figure.text(274, 24, "marks: counted; lines: the closed form; N rows and keys of head dim d, a memory of M bytes", "g")
    for column, ((length, dim), types) in enumerate(sorted(groups.items())):
        x, first = 76 + 208 * column, column == 0
        whole = Panel(figure, x, 66, 180, 180, Axis(112, 4700, sizes, "memory M, bytes", True),
                      Axis(low, high, decades if first else [(v, "") for v, _ in decades],
                           "bytes moved, MiB" if first else "", True), f"N {length}, d {dim}")
        sparse = Panel(figure, x, 336, 180, 180, Axis(0.056, 0.56, shares, "share of blocks kept", True),
                       Axis(low, high, decades if first else [(v, "") for v, _ in decades],
                            "bytes moved, MiB" if first else "", True), f"N {length}, d {dim}, M = 256K")
        for series, dtype in enumerate(("bf16", "f32")):
            for panel, mine, value in (
                (whole, [r for r in types[dtype] if "kept" not in r["mask"]], lambda r: int(r["mask"][7:]) / 1024),
                (sparse, [r for r in types[dtype] if "kept" in r["mask"]], kept),
            ):
                mine = sorted(mine, key=value)
                panel.line(series, [(value(r), number(r, "level1_predicted") / 2**20) for r in mine])
                panel.marks(series, [(value(r), number(r, "level1_counted") / 2**20) for r in mine])
    for level, name in ((1, "closed form"), (2, "tiles")):
        off = [number(r, f"level{level}_predicted") / number(r, f"level{level}_counted") for r in rows]
        print(f"theorem, {name}: {len(off)} points, predicted / counted {min(off):.3f} to {max(off):.3f}, "
              f"median {statistics.median(off):.3f}")
    figure.save(os.path.join(out, "napkin-theorem.svg"))


def plot_bytes(rows, out):
    rows = [r for r in rows if r["suite"] == "bytes" and number(r, "level1_counted")]
    strip = []
    for name in devices(rows):
        mine = [r for r in rows if r["device"] == name]
        gpu = "h200" in name
        labels = ("memory", "L2 to shared", "shared to registers") if gpu else ("memory", "L3 to L2", "L2 to L1")
        for level, label in enumerate(labels, 1):
            some = [r for r in mine if number(r, f"level{level}_counted")]
            if not some:
                continue
            ratios = [number(r, f"level{level}_predicted") / number(r, f"level{level}_counted") for r in some]
            strip.append((f"{name}, {label}", level - 1, [(ratio, True) for ratio in ratios]))
            print(f"bytes {name}, {label}: {len(ratios)} points, median {statistics.median(ratios):.2f}, "
                  f"within 10 %: {within(ratios, .1):.0f} %, {min(ratios):.2f} to {max(ratios):.2f}")
    if not strip:
        return
    plot_strips(os.path.join(out, "napkin-bytes.svg"), strip,
                Axis(0.75, 1.25, plain(0.8, 0.9, 1, 1.1, 1.2), "predicted / counted bytes"),
                [(0.9, 1.1)], "A mark for each problem; grey: within 10 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    rows = []
    for path in options.results:
        with open(path) as file:
            rows += csv.DictReader(file)
    for plot in (plot_time, plot_tiles, plot_theorem, plot_bytes):
        plot(rows, options.out)


main()
