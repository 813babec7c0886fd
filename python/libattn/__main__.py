"""python -m libattn: check this installation, measure it, explain a plan, draw measurements.

    python -m libattn check                     the kernels of this machine against the definition, in double precision
    python -m libattn bench [--csv FILE]        against NumPy, and torch's SDPA where torch is installed
    python -m libattn explain --len 4096 ...    how a problem will be computed, and how fast
    python -m libattn plot FILE.csv -o FIGURE   a figure of `attn bench --csv`'s or of bench's rows (needs matplotlib)
"""
from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import libattn
from libattn import _c


def _shape(options: argparse.Namespace) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    keys = options.len if options.len_kv is None else options.len_kv
    heads_q, heads_kv = options.heads
    return (options.batch, options.len, heads_q, options.dim), (options.batch, keys, heads_kv, options.dim)


def _heads(text: str) -> Tuple[int, int]:
    """32/8: 32 query heads over 8 KV heads; 32: as many of both."""
    heads_q, _, heads_kv = text.partition("/")
    return int(heads_q), int(heads_kv or heads_q)


def _random(shape: Sequence[int], seed: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def _definition(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, kind: Any) -> np.ndarray:
    """softmax(q k^T / sqrt(dim)) v with the whole score matrix in memory, in arithmetic of `kind`."""
    q, k, v = (x.astype(kind).transpose(0, 2, 1, 3) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat(group, 1) if group > 1 else x for x in (k, v))
    s = q @ k.transpose(0, 1, 3, 2)
    s *= kind(q.shape[-1] ** -0.5)
    if causal:
        rows, keys = s.shape[-2:]
        s[..., ~np.tri(rows, keys, keys - rows, dtype=bool)] = -np.inf
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return (s @ v).transpose(0, 2, 1, 3)


def check(options: argparse.Namespace) -> int:
    """Each instruction set of this machine, each NumPy type, full and causal."""
    print(f"libattn {libattn.version()}, {_c.library_path}")
    failed = count = 0
    for isa, code in list(_c.ISAS.items())[1:]:
        if not _c.isa_available(code):
            continue
        for dtype, bound in ((np.float32, 2e-5), (np.float16, 3e-3)):
            worst, kernels = 0.0, set()
            for causal in (False, True):
                for rows, keys, dim in ((1, 300, 64), (77, 130, 40), (128, 128, 128)):
                    q, k, v = (_random(shape, seed, dtype) for seed, shape in enumerate(
                        ((2, rows, 4, dim), (2, keys, 2, dim), (2, keys, 2, dim))))
                    found = libattn.attention(q, k, v, causal=causal, isa=isa).astype(np.float64)
                    kernels.add(libattn.plan(q, k, v, causal=causal, isa=isa).info["kernel"])
                    worst = max(worst, float(np.abs(found - _definition(q, k, v, causal, np.float64)).max()))
                    count += 1
            failed += not worst <= bound
            print(f"  {isa:<11} {np.dtype(dtype).name:<8} largest error {worst:.1e} of {bound:.0e} allowed: "
                  f"{'right' if worst <= bound else 'WRONG'}  ({', '.join(sorted(kernels))})")
    print(f"{count} problems, {failed} wrong" if failed else f"{count} problems, all right")
    return 1 if failed else 0


def _milliseconds(run: Callable[[], Any], seconds: float) -> float:
    """The median of as many runs as fit into the time, at least three."""
    run()
    times: List[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times))


def bench(options: argparse.Namespace) -> int:
    """Rows of the same columns as `attn bench --csv` writes, as far as they are known here."""
    columns = ("suite", "device", "kernel", "pass", "dtype", "head_dim", "mask", "batch", "heads_q", "heads_kv",
               "len_q", "len_kv", "threads", "ms", "tflops", "peer", "peer_ms", "ratio")
    rows: List[Dict[str, Any]] = []
    if options.csv:
        open(options.csv, "a", encoding="utf-8").close()  # fails before minutes of measuring, not after them
    print(f"{'N':>6} {'mask':<6} {'ms':>9} {'TFLOP/s':>8}  times of others / ours")
    for length in options.lens:
        options.len, options.len_kv = length, None
        shapes = _shape(options)
        q, k, v = _random(shapes[0], 0), _random(shapes[1], 1), _random(shapes[1], 2)
        for causal in (False, True):
            plan = libattn.plan(q, k, v, causal=causal).info
            out = np.empty(shapes[0], np.float32)
            ours = _milliseconds(lambda: libattn.attention(q, k, v, causal=causal, out=out), options.seconds)
            peers = {}
            if length <= 4096:  # beyond, NumPy's score matrices take gigabytes
                peers["numpy"] = lambda: _definition(q, k, v, causal, np.float32)
            sdpa = _sdpa(q, k, v, causal)
            if sdpa:
                peers["torch"] = sdpa
            words = []
            for name, run in (peers or {"": None}).items():
                taken = _milliseconds(run, options.seconds) if run else None
                rows.append(dict(zip(columns, (
                    "python", "cpu", plan["kernel"], "fwd", "f32", options.dim, "causal" if causal else "full",
                    options.batch, shapes[0][2], shapes[1][2], length, length, plan["threads"], f"{ours:.6g}",
                    f"{plan['flops'] / ours / 1e9:.4g}", name, f"{taken:.6g}" if taken else "",
                    f"{taken / ours:.4g}" if taken else ""))))
                if taken:
                    words.append(f"{name} {taken / ours:.2f}")
            print(f"{length:>6} {'causal' if causal else 'full':<6} {ours:>9.3f} {plan['flops'] / ours / 1e9:>8.3f}  "
                  f"{', '.join(words)}", flush=True)
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> Optional[Callable[[], Any]]:
    """torch's own function over the same memory, if torch is installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tensors = [torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal,
                                                                    enable_gqa=q.shape[2] != k.shape[2])


def explain(options: argparse.Namespace) -> int:
    """The plan in words."""
    q, k = _shape(options)
    window = None if options.window is None else tuple(options.window)
    if options.device == "cuda":
        try:
            import torch
        except ImportError:
            raise _c.UnsupportedError("explain --device cuda needs torch, whose CUDA context it uses") from None
        if not torch.cuda.is_available():
            raise _c.UnsupportedError("explain --device cuda: torch finds no CUDA GPU here")
        torch.cuda.current_stream().synchronize()
    print(libattn.plan(q, k, dtype=options.dtype, device=options.device, backward=options.backward,
                       causal=options.causal, window=window).explain(), end="")
    return 0


def plot(options: argparse.Namespace) -> int:
    """Speed over length, one line for each device, pass, type and mask; others dashed, each in its way."""
    try:
        import matplotlib
    except ImportError:
        raise _c.UnsupportedError("plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: Dict[Tuple[str, ...], List[Tuple[int, float]]] = {}
    for path in options.files:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                _add(lines, row, options.suite)
    if not lines:
        raise _c.InvalidError(f"{', '.join(options.files)}: no rows with len_q, ms and tflops"
                              + (f" of suite {options.suite}" if options.suite else ""))
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    colours: Dict[Tuple[str, ...], Any] = {}
    peers = sorted({who for *_, who in lines} - {"libattn"})
    dashes = {who: ("--", ":", "-.")[place % 3] for place, who in enumerate(peers)}
    for (*what, who), points in sorted(lines.items()):
        points = sorted(points)
        style = {"linestyle": "-"} if who == "libattn" else {"linestyle": dashes[who], "linewidth": 1}
        colour = colours.setdefault(tuple(what), f"C{len(colours) % 10}")
        axes.plot(*zip(*points), marker="o", markersize=3, color=colour, label=" ".join((who, *what)), **style)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows, len_q")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=1 + len(lines) // 16, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(options.output, dpi=120)
    print(options.output)
    return 0


def _add(lines: Dict[Tuple[str, ...], List[Tuple[int, float]]], row: Dict[str, str], suite: Optional[str]) -> None:
    if suite and row.get("suite") != suite:
        return
    try:
        length, speed, taken = int(row["len_q"]), float(row["tflops"]), float(row["ms"])
    except (KeyError, TypeError, ValueError):
        return  # a row of something else than speed
    what = (row.get("device") or "", row.get("pass") or "", row.get("dtype") or "", f"d{row.get('head_dim')}",
            row.get("mask") or "")
    ours = lines.setdefault((*what, "libattn"), [])
    if length not in dict(ours):
        ours.append((length, speed))
    if row.get("peer") and row.get("peer_ms"):
        peer = lines.setdefault((*what, str(row["peer"])), [])
        if length not in dict(peer):
            peer.append((length, speed * taken / float(row["peer_ms"])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m libattn", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help=check.__doc__).set_defaults(run=check)
    for name, run in (("bench", bench), ("explain", explain)):
        command = commands.add_parser(name, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("--batch", type=int, default=1, help="sequences")
        command.add_argument("--heads", type=_heads, default=(8, 8), help="of q, and of k and v where fewer: 32/8")
        command.add_argument("--dim", type=int, default=64, help="of q, k and v")
        if run is bench:
            command.add_argument("--lens", type=int, nargs="+", default=[256, 512, 1024, 2048], metavar="N",
                                 help="rows and keys")
            command.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
            command.add_argument("--csv", help="a file for the rows")
        else:
            command.add_argument("--len", type=int, default=1024, help="query rows")
            command.add_argument("--len-kv", type=int, help="keys; as --len if not given")
            command.add_argument("--dtype", default="float32", choices=list(_c.DTYPES), help="of q, k and v")
            command.add_argument("--device", default="cpu", choices=("cpu", "cuda"),
                                 help="cuda: the GPU of torch's current stream")
            command.add_argument("--causal", action="store_true", help="a row sees keys up to its own position")
            command.add_argument("--window", type=int, nargs=2, metavar=("LEFT", "RIGHT"), help="keys; -1: unbounded")
            command.add_argument("--backward", action="store_true", help="the gradients, not the forward")
    drawing = commands.add_parser("plot", help=plot.__doc__)
    drawing.set_defaults(run=plot)
    drawing.add_argument("files", nargs="+", metavar="FILE.csv")
    drawing.add_argument("-o", "--output", default="attention.png", help="the figure: .png, .svg or .pdf")
    drawing.add_argument("--suite", help="only rows of this suite")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (libattn.Error, OSError) as problem:
        print(f"python -m libattn {options.command}: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
