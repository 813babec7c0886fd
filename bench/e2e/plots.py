"""Figures of a CSV of bench.e2e: of models, of length's time and memory, and of blocks that are kept."""
from __future__ import annotations

import os
import sys
from typing import Any, Dict, List

from . import measure

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from plot_svg import Axis, Figure, Panel  # noqa: E402


def _powers(low: float, high: float) -> List[Any]:
    ticks, value = [], 10.0 ** -4
    while value <= high * 1.0001:
        if value >= low * 0.9999:
            ticks.append((value, f"{value:g}"))
        value *= 10
    return ticks


def _around(values: List[float]) -> Any:
    low, high = 10.0 ** -4, 10.0 ** -4
    while low * 10 <= min(values):
        low *= 10
    while high < max(values):
        high *= 10
    return low, high


def length(rows: List[Dict[str, str]], path: str) -> None:
    """Time and memory of forward and backward against rows, on logarithmic axes."""
    rows = [row for row in rows if row["part"] == "length" and row["case"].endswith(" rows") and row["ms"]]
    shown = ["standard", "sdpa flash", measure.OURS, "libattn causal", "libattn blocks 25 %", "libattn blocks 12.5 %"]
    shown = [name for name in shown if any(row["subject"] == name for row in rows)]
    if not rows:
        raise measure.Failure("no rows of the part length to draw")
    figure = Figure(980, 400)
    figure.text(16, 22, f"Forward and backward, {rows[0]['device']}, {rows[0]['dtype']}", "t")
    figure.legend(16, 44, [(i, "", True, name) for i, name in enumerate(shown)])
    places = sorted({int(row["length"]) for row in rows})
    for column, title, x in (("ms", "milliseconds", 70), ("peak_mib", "MiB at the peak", 560)):
        values = {name: [(int(row["length"]), float(row[column])) for row in rows
                         if row["subject"] == name and row[column] and float(row[column]) > 0] for name in shown}
        if not any(values.values()):  # so short that nothing was to be seen
            continue
        low, high = _around([y for line in values.values() for _, y in line])
        ticks = [(n, f"{n // 1024}K" if n >= 1024 else str(n)) for n in places]
        panel = Panel(figure, x, 90, 320, 250, Axis(places[0], places[-1], ticks, "rows", True),
                      Axis(low, high, _powers(low, high), title, True), "")
        for i, name in enumerate(shown):
            panel.line(i, values[name])
            panel.marks(i, values[name])
    figure.save(path)


def shares(rows: List[Dict[str, str]], path: str) -> None:
    """Time of block-sparse attention over that of dense, against the share of the blocks that is kept."""
    lines: Dict[int, List[Any]] = {}
    for row in rows:
        if row["part"] == "length" and row["subject"].startswith("libattn blocks") and row["ratio"]:
            lines.setdefault(int(row["length"]), []).append((float(row["subject"].split()[2]), float(row["ratio"])))
    lines = {length: sorted(line) for length, line in lines.items() if len(line) > 2}
    if not lines:
        raise measure.Failure("no rows of blocks of several shares to draw")
    figure = Figure(480, 400)
    figure.text(16, 22, f"Blocks of 128 x 128, time. {rows[0]['device']}", "t")
    figure.legend(16, 44, [(i, "", True, f"{length:,} rows") for i, length in enumerate(lines)])
    high = max(1.2, *(y for line in lines.values() for _, y in line))
    panel = Panel(figure, 70, 90, 380, 250, Axis(0, 100, [(i, f"{i} %") for i in range(0, 101, 25)], "kept"),
                  Axis(0, high, [(i / 4, f"{i / 4:g}") for i in range(int(4 * high) + 1)], "time over dense"), "")
    for i, line in enumerate(lines.values()):
        panel.line(i, line)
        panel.marks(i, line)
    panel.line(len(lines), [(0, 0), (100, 1)], "dash")
    figure.save(path)


def ratios(rows: List[Dict[str, str]], path: str) -> None:
    """Each peer's time over libattn's with its interval of 95 %."""
    rows = [row for row in rows if row["part"] in ("train", "generate") and row["ratio"]]
    if not rows:
        raise measure.Failure("no rows of the parts train and generate to draw")
    figure = Figure(860, 90 + 24 * len(rows))
    figure.text(16, 22, f"A peer's time over libattn's: above 1 libattn is faster. {rows[0]['device']}", "t")
    high = max(2.0, *(float(row["ratio_high"]) for row in rows)) * 1.05
    at = Axis(0, high, [(i / 2, f"{i / 2:g}") for i in range(int(2 * high) + 1)], "ratio")
    panel = Panel(figure, 330, 40, 500, 24 * len(rows), at, Axis(0, len(rows), [], ""), "")
    for i, row in enumerate(rows):
        y, series = len(rows) - i - 0.5, 0 if row["subject"] == "sdpa" else 1
        figure.text(16, panel.row(y) + 4, f"{row['case']}: {row['subject']}")
        panel.line(series, [(float(row["ratio_low"]), y), (float(row["ratio_high"]), y)])
        panel.marks(series, [(float(row["ratio"]), y)])
    panel.line(2, [(1, 0), (1, len(rows))], "dash")
    figure.save(path)


def main(path: str, out: str) -> None:
    if not os.path.exists(path):
        raise measure.Failure(f"--csv {path}: No such file")
    if not os.path.isdir(out):
        raise measure.Failure(f"--out {out}: there is no such folder")
    rows = measure.read_csv(path)
    drawn, stem = 0, os.path.splitext(os.path.basename(path))[0]
    for draw in (length, ratios, shares):
        try:
            draw(rows, os.path.join(out, f"{stem}-{draw.__name__}.svg"))
            drawn += 1
        except measure.Failure as problem:
            print(problem, file=sys.stderr)
    if not drawn:
        raise measure.Failure(f"--csv {path}: it has nothing to draw")
