#!/usr/bin/env python3
"""Plots of docs/NAPKIN.md out of bench/results: plot_napkin.py RESULTS.csv ... [--out docs]. Needs matplotlib.

napkin-time.svg     predicted over measured time of every row that has both
napkin-tiles.svg    the planner's choice against the best of all (suite tiles)
napkin-theorem.svg  bytes over the memory's size, and over the share of blocks kept (suite theorem)
napkin-bytes.svg    predicted over counted bytes at each level (suite bytes)
It prints the figures that the text quotes."""
import argparse
import csv
import os
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# No dates and no random ids: the same results give the same files.
matplotlib.rcParams.update({"svg.hashsalt": "napkin", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
COLOURS = {"fwd": "#1f77b4", "bwd": "#d62728", "decode": "#2ca02c", "fwdbwd": "#9467bd"}


def number(row, column):
    return float(row.get(column) or 0)


def save(figure, out, name):
    figure.tight_layout()
    figure.savefig(os.path.join(out, name), metadata={"Date": None})
    plt.close(figure)


def within(values, share):
    return 100 * sum(abs(v - 1) <= share for v in values) / len(values)


def machines(rows):
    return sorted({row["device"] for row in rows})


def plot_time(rows, out):
    rows = [r for r in rows if number(r, "predicted_ms") and r["suite"] not in ("theorem", "memory")]
    names = machines(rows)
    if not rows:
        return
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names):
        mine = [r for r in rows if r["device"] == name]
        for kind in sorted({r["pass"] for r in mine}):
            some = [r for r in mine if r["pass"] == kind]
            axis.plot([number(r, "ms") for r in some], [number(r, "predicted_ms") / number(r, "ms") for r in some], ".",
                      color=COLOURS[kind], label=kind)
            ratios = [number(r, "predicted_ms") / number(r, "ms") for r in some if int(r["len_kv"]) >= 2048]
            if ratios:
                print(f"time {name} {kind}, N >= 2048: {len(ratios)} points, median {statistics.median(ratios):.2f}, "
                      f"within 20 %: {within(ratios, .2):.0f} %, within 25 %: {within(ratios, .25):.0f} %")
        axis.axhspan(0.8, 1.2, color="#eeeeee")
        axis.set(xscale="log", ylim=(0, 2), xlabel="measured, ms", title=name)
        axis.legend(frameon=False)
    axes[0][0].set_ylabel("predicted / measured time")
    save(figure, out, "napkin-time.svg")


def plot_tiles(rows, out):
    rows = [r for r in rows if r["suite"] == "tiles"]
    if not rows:
        return
    figure, axis = plt.subplots(figsize=(6, 3))
    for name in machines(rows):
        ratios = sorted(number(r, "ratio") for r in rows if r["device"] == name)
        axis.plot([100 * (i + 1) / len(ratios) for i in range(len(ratios))], ratios, drawstyle="steps-post", label=name)
        print(f"tiles {name}: {len(ratios)} points, within 5 % of the best: "
              f"{100 * sum(r >= .95 for r in ratios) / len(ratios):.0f} %, worst {ratios[0]:.2f}")
    axis.axhline(0.95, color="#bbbbbb", lw=1)
    axis.set(xlabel="% of the problems", ylabel="best of all / planner's choice", ylim=(0.7, 1.01))
    axis.legend(frameon=False)
    save(figure, out, "napkin-tiles.svg")


def plot_theorem(rows, out):
    rows = [r for r in rows if r["suite"] == "theorem"]
    if not rows:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3))
    groups = {}
    for row in rows:
        groups.setdefault((int(row["len_kv"]), int(row["head_dim"]), row["dtype"]), []).append(row)
    for (length, dim, dtype), mine in sorted(groups.items()):
        whole = sorted((r for r in mine if "kept" not in r["mask"]), key=lambda r: int(r["mask"][7:]))
        sizes = [int(r["mask"][7:]) / 1024 for r in whole]
        line = left.plot(sizes, [number(r, "level1_counted") / 2**20 for r in whole], "o", ms=4,
                         label=f"N {length}, d {dim}, {dtype}")[0]
        left.plot(sizes, [number(r, "level1_predicted") / 2**20 for r in whole], "-", color=line.get_color(), lw=1)
        some = sorted((r for r in mine if "kept" in r["mask"]), key=lambda r: float(r["mask"].split("kept:")[1]))
        shares = [float(r["mask"].split("kept:")[1]) for r in some]
        right.plot(shares, [number(r, "level1_counted") / 2**20 for r in some], "o", ms=4, color=line.get_color())
        right.plot(shares, [number(r, "level1_predicted") / 2**20 for r in some], "-", color=line.get_color(), lw=1)
    for level, name in ((1, "closed form"), (2, "tiles")):
        off = [number(r, f"level{level}_predicted") / number(r, f"level{level}_counted") for r in rows]
        print(f"theorem, {name}: {len(off)} points, predicted / counted {min(off):.3f} to {max(off):.3f}, "
              f"median {statistics.median(off):.3f}")
    left.set(xscale="log", yscale="log", xlabel="memory M, KiB", ylabel="bytes moved, MiB", title="whole")
    right.set(xscale="log", yscale="log", xlabel="share of blocks kept, M = 256 KiB", title="block-sparse")
    left.legend(frameon=False, fontsize=6)
    save(figure, out, "napkin-theorem.svg")


def plot_bytes(rows, out):
    rows = [r for r in rows if r["suite"] == "bytes" and number(r, "level1_counted")]
    names = machines(rows)
    if not rows:
        return
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names):
        mine = [r for r in rows if r["device"] == name]
        labels = ("memory", "L2 to shared", "shared to registers") if "h200" in name else ("memory", "L3 to L2", "L2 to L1")
        for level, label in enumerate(labels, 1):
            some = [r for r in mine if number(r, f"level{level}_counted")]
            if not some:
                continue
            ratios = [number(r, f"level{level}_predicted") / number(r, f"level{level}_counted") for r in some]
            axis.plot([number(r, f"level{level}_counted") / 2**20 for r in some], ratios, ".", label=label)
            print(f"bytes {name}, {label}: {len(ratios)} points, median {statistics.median(ratios):.2f}, "
                  f"within 10 %: {within(ratios, .1):.0f} %, {min(ratios):.2f} to {max(ratios):.2f}")
        axis.axhspan(0.9, 1.1, color="#eeeeee")
        axis.set(xscale="log", ylim=(0.5, 1.5), xlabel="counted, MiB", title=name)
        axis.legend(frameon=False)
    axes[0][0].set_ylabel("predicted / counted bytes")
    save(figure, out, "napkin-bytes.svg")


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
