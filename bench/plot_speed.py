#!/usr/bin/env python3
"""The figures of README.md out of bench/results: plot_speed.py GPU.csv CPU.csv TORCH.csv [--out docs]. Needs Python alone.

speed.svg   how many times as fast as its peers: on the GPU of GPU.csv beside cuDNN and FlashAttention-3 and 4, on the CPU
            of TORCH.csv beside PyTorch
memory.svg  peak memory of forward and backward beside standard attention's (suite memory of GPU.csv and CPU.csv)
Both say which machine was measured; speed.svg names the files of its numbers, memory.svg their commits."""
import argparse
import csv
import os

from plot_svg import Axis, Figure, Panel

PEERS = (("cudnn", "cuDNN", 0), ("fa3", "FlashAttention-3", 1), ("fa4", "FlashAttention-4", 4))  # peer, name, colour
MACHINES = {"h200": "NVIDIA H200", "epyc-2core": "2-core EPYC", "xeon-amx": "16-core Xeon"}
MASKS = (("full", "", ""), ("causal", "dash", "open"))
SPEED = "libattn's speed, peer = 1"
CPU_PANELS = (("prefill", "bf16", "amx", "forward, bf16 in AMX"), ("bwd", "bf16", "amx", "backward, bf16 in AMX"),
              ("prefill", "f32", "avx512", "forward, f32 in AVX-512"),
              ("bwd", "f32", "avx512", "backward, f32 in AVX-512"))
LEFT, ACROSS, DOWN, WIDE, HIGH = 72, 378, 244, 350, 190  # of a panel: its first left edge, two steps, its size


def commits(rows):
    return ", ".join(sorted({row["commit"][:7] for row in rows}))


def size(n):
    return "%dK" % (n // 1024) if n >= 1024 else str(n)


def select(rows, **wanted):
    return [r for r in rows if all(r[column] == str(value) for column, value in wanted.items())]


def ratio_panel(figure, x, y, rows, up, title, label, groups):
    """The ratios of rows over their lengths: a series a group, which is (series, columns), a line a mask."""
    lengths = sorted({int(r["len_kv"]) for r in rows})
    panel = Panel(figure, x, y, WIDE, HIGH, Axis(lengths[0] / 1.25, lengths[-1] * 1.25, [(n, size(n)) for n in lengths],
                                                 label, True), up, title)
    panel.level(1)
    for series, columns in groups:
        for mask, line, mark in MASKS:
            some = sorted((int(r["len_kv"]), float(r["ratio"])) for r in select(rows, mask=mask, **columns))
            panel.line(series, some, line)
            panel.marks(series, some, mark)


def ratio_legend(figure, y, names):
    figure.legend(LEFT, y, [(i, "", True, name) for i, name in names])
    figure.legend(LEFT + ACROSS + 120, y, [(names[0][0], "dash", "open", "any of them, causal")])


def axis_without_labels(axis):
    return Axis(axis.low, axis.high, [(v, "") for v, _ in axis.ticks], "", axis.log)


def ratio_grid(figure, top, panels, up, groups):
    """Panels (rows, title), two in each line; the outer ones have the labels of the axes. Returns the lower edge."""
    for i, (rows, title) in enumerate(panels):
        ratio_panel(figure, LEFT + ACROSS * (i % 2), top + DOWN * (i // 2), rows,
                    axis_without_labels(up) if i % 2 else up, title, "rows and keys, N" if i + 2 >= len(panels) else "", groups)
    return top + DOWN * ((len(panels) + 1) // 2)


def plot_gpu(figure, rows, top):
    rows = [r for r in rows if r["suite"] in ("prefill", "bwd") and r["peer"] in [peer for peer, _, _ in PEERS]]
    ratios = [float(r["ratio"]) for r in rows]
    low, high = min(ratios + [1]) - 0.05, max(ratios) + 0.05
    up = Axis(low, high, [(v / 10, "%.1f" % (v / 10)) for v in range(6, 40, 2) if low <= v / 10 <= high], SPEED)
    figure.text(16, top, f"{MACHINES[rows[0]['device']]}, {rows[0]['dtype']}, "
                "batch x N = 16K, 2048 / head dim heads", "t")
    ratio_legend(figure, top + 28, [(series, name) for _, name, series in PEERS])
    panels = [(select(rows, suite=suite, head_dim=dim), f"{name}, head dim {dim}") for dim in (64, 128, 256)
              for suite, name in (("prefill", "forward"), ("bwd", "backward"))]
    return ratio_grid(figure, top + 70, panels, up, [(series, {"peer": peer}) for peer, _, series in PEERS])


def plot_cpu(figure, rows, top):
    panels = [([r for r in select(rows, suite=suite, dtype=dtype, peer="torch") if r["kernel"].startswith(kernel)], name)
              for suite, dtype, kernel, name in CPU_PANELS]
    every = [r for some, _ in panels for r in some]
    high = max(float(r["ratio"]) for r in every) * 1.15
    up = Axis(min(float(r["ratio"]) for r in every + [{"ratio": 1}]) / 1.15, high,
              [(2.0**e, "%d" % 2**e) for e in range(6) if 2**e <= high], SPEED, True)
    figure.text(16, top, f"{MACHINES[every[0]['device']]}, {every[0]['threads']} threads, batch 1, "
                f"{every[0]['heads_q']} heads, beside PyTorch", "t")
    ratio_legend(figure, top + 28, [(2, "head dim 64"), (3, "head dim 128")])
    return ratio_grid(figure, top + 70, panels, up, [(2, {"head_dim": 64}), (3, {"head_dim": 128})])


def plot_speed(gpu, cpu, names, path):
    figure = Figure(820, 1446, 14)
    bottom = plot_gpu(figure, gpu, 24)
    bottom = plot_cpu(figure, cpu, bottom + 16)
    figure.text(16, bottom + 20, "Above 1 libattn is faster. The numbers, each with its commit: bench/results, "
                + " and ".join(map(os.path.basename, names)), "g")
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
                      Axis(lengths[0] / 1.4, lengths[-1] * 1.2, [(n, size(n)) for n in lengths], "rows and keys, N",
                           True),
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
    parser.add_argument("torch")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    gpu, cpu = read(options.gpu), read(options.cpu)
    plot_speed(gpu, read(options.torch), (options.gpu, options.torch), os.path.join(options.out, "speed.svg"))
    plot_memory([gpu, cpu], os.path.join(options.out, "memory.svg"))


main()
