#!/usr/bin/env python3
"""The figures of README.md out of bench/results: plot_speed.py GPU.csv CPU.csv [--out docs]. Needs Python alone.

speed.svg   times the speed of cuDNN and FlashAttention-3, forward and backward, of the grid in GPU.csv
memory.svg  peak memory of forward and backward beside standard attention's (suite memory of both)
Both say which machine and which commits were measured."""
import argparse
import csv
import os

from plot_svg import Axis, Figure, Panel

PEERS = (("cudnn", "cuDNN"), ("fa3", "FlashAttention-3"))
MACHINES = {"h200": "NVIDIA H200", "epyc-2core": "2-core EPYC"}


def commits(rows):
    return ", ".join(sorted({row["commit"][:7] for row in rows}))


def plot_speed(rows, path):
    rows = [r for r in rows if r["suite"] in ("prefill", "bwd") and r["peer"] in ("cudnn", "fa3")]
    ratios = [float(r["ratio"]) for r in rows]
    low, high = min(ratios + [1]) - 0.05, max(ratios) + 0.05
    ticks = [(v / 10, "%.1f" % (v / 10)) for v in range(6, 40, 2) if low <= v / 10 <= high]
    lengths = sorted({int(r["len_kv"]) for r in rows})
    across = [(n, "%dK" % (n // 1024) if n >= 1024 else str(n)) for n in lengths]
    figure = Figure(820, 566)
    figure.legend(62, 24, [(i, kind, mark, f"{name}, {mask}") for i, (_, name) in enumerate(PEERS)
                           for kind, mark, mask in (("", True, "full"), ("dash", "open", "causal"))])
    for j, (suite, name) in enumerate((("prefill", "forward"), ("bwd", "backward"))):
        for i, dim in enumerate((64, 128, 256)):
            panel = Panel(figure, 62 + 252 * i, 66 + 236 * j, 220, 166,
                          Axis(lengths[0] / 1.25, lengths[-1] * 1.25, across, "keys, N" if j else "", True),
                          Axis(low, high, ticks if i == 0 else [(v, "") for v, _ in ticks],
                               "" if i else "times as fast"), f"{name}, head dim {dim}")
            panel.level(1)
            for series, (peer, _) in enumerate(PEERS):
                for mask, line, mark in (("full", "", ""), ("causal", "dash", "open")):
                    some = sorted((int(r["len_kv"]), float(r["ratio"])) for r in rows
                                  if (r["suite"], r["peer"], r["mask"], r["head_dim"]) == (suite, peer, mask, str(dim)))
                    panel.line(series, some, line)
                    panel.marks(series, some, mark)
    names = ", ".join(MACHINES.get(d, d) for d in sorted({r["device"] for r in rows}))
    figure.text(16, 530, f"{names}, {rows[0]['dtype']}, batch x N = 16K, 2048 / head dim heads; "
                "above 1: libattn is faster", "g")
    figure.text(16, 550, f"measured beside cuDNN at {commits(r for r in rows if r['peer'] == 'cudnn')}; "
                f"beside FlashAttention-3 at {commits(r for r in rows if r['peer'] == 'fa3')}", "g")
    figure.save(path)


def size_of(mib):
    return "%.3g GiB" % (mib / 1024) if mib >= 1024 else "%.3g MiB" % mib


def plot_memory(groups, path):
    figure = Figure(820, 330)
    figure.legend(62, 24, [(0, "", True, "libattn"), (1, "", True, "standard attention: the scores are stored")])
    for i, rows in enumerate(groups):
        some = {int(r["len_kv"]): r for r in rows  # the latest of each length
                if (r["suite"], r["peer"], r["mask"]) == ("memory", "standard", "causal") and r["peer_peak_bytes"]}
        lengths, last = sorted(some), some[max(some)]
        sides = [[(n, float(some[n][column]) / 2**20) for n in lengths] for column in ("peak_bytes", "peer_peak_bytes")]
        values = [v for side in sides for _, v in side]
        low, high = min(values) / 2, max(values) * 3
        ticks = [(16.0**e, size_of(16**e)) for e in range(-2, 7) if low <= 16**e <= high]
        panel = Panel(figure, 96 + 400 * i, 66, 230, 180,
                      Axis(lengths[0] / 1.4, lengths[-1] * 1.2, [(n, "%dK" % (n // 1024) if n >= 1024 else str(n))
                                                                 for n in lengths], "rows and keys, N", True),
                      Axis(low, high, ticks, "peak memory", True), MACHINES.get(last["device"], last["device"]))
        for series, side in enumerate(sides):
            panel.line(series, side)
            panel.marks(series, side)
            n, mib = side[-1]
            figure.text(panel.x + panel.width + 6, panel.row(mib) + 4, size_of(mib))
        heads = int(last["heads_q"])
        figure.text(16 + 400 * i, 306, f"forward and backward, causal, {last['dtype']}, "
                    f"{heads} head{'s' * (heads > 1)}, head dim {last['head_dim']};", "g")
        figure.text(16 + 400 * i, 322, f"measured at {commits(some.values())}", "g")
    figure.save(path)


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu")
    parser.add_argument("cpu")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    gpu, cpu = read(options.gpu), read(options.cpu)
    plot_speed(gpu, os.path.join(options.out, "speed.svg"))
    plot_memory([gpu, cpu], os.path.join(options.out, "memory.svg"))


main()
