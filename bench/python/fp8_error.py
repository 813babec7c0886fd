"""What inputs of one byte cost in accuracy: the table and the figure of docs/FP8.md.

    pip install . ml_dtypes
    attn_gpt --seconds 100 --out gpt.safetensors
    python bench/python/fp8_error.py --gpt gpt.safetensors --text demo/alice.txt [--out docs/fp8-error.svg]
    python bench/python/fp8_error.py --gpu

Inputs are rounded to bf16 first. libattn.quantize makes bytes and scales of them, everything else is NumPy in float64:
attention of the values that bytes and scales stand for, beside attention of the bf16 inputs. Prints the table in
Markdown. --gpu: what kernels of a GPU compute, instead of the floor: libattn's, and FlashAttention-3's where the
package fa3-fwd is installed (with one scale per head, which is all that it takes).
"""
import argparse
import json
import pathlib
import sys

import ml_dtypes
import numpy as np

import libattn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from plot_svg import Axis, Figure, Panel  # noqa: E402

BLOCK = 64
TENSOR = dict(granularity="tensor")
# name, in the figure, how q and k are quantised, how v is
WAYS = (("one scale per tensor", "per tensor", TENSOR, TENSOR),
        ("scales per block (v: channel)", "per block", dict(granularity="block"), dict(granularity="channel")),
        ("+ rotation of q and k", "+ rotation", dict(granularity="block", hadamard=True), dict(granularity="channel")),
        ("+ mean of k removed", "+ mean removed", dict(granularity="block", hadamard=True, subtract_mean=True),
         dict(granularity="channel")))


def bf16(x):
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


# ---- inputs: lists of (q, k, v, causal), q, k, v of (1, rows, heads, dim) ----


def normal(random, *shape):
    return random.standard_normal(shape)


def outliers(random, *shape):
    """N(0, 1) + N(0, 100) * Bernoulli(0.001), where 100 is a variance: FlashAttention-3's paper, 4.3."""
    return random.standard_normal(shape) + 10 * random.standard_normal(shape) * (random.random(shape) < 0.001)


def drawn(draw, options):
    for seed in range(options.seeds):
        random = np.random.default_rng(seed)
        q = draw(random, 1, options.rows, 1, options.dim)
        k, v = (draw(random, 1, options.keys, 1, options.dim) for _ in "kv")
        yield bf16(q), bf16(k), bf16(v), False


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    dtypes = {"F32": np.float32, "I32": np.int32}
    return {name: np.frombuffer(data[8 + size:][slice(*t["data_offsets"])], dtypes[t["dtype"]]).reshape(t["shape"])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def trained(path, text):
    """q, k and v of every layer of examples/gpt's model (gpt.h has the equations) over sequences of the text."""
    weights = read_safetensors(path)
    layers, dim, heads, context = (int(n) for n in weights["config"][:4])
    bytes_ = np.frombuffer(pathlib.Path(text).read_bytes()[:4 * context], np.uint8)
    half = dim // heads // 2
    angles = np.arange(context)[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    cosines, sines = np.cos(angles), np.sin(angles)

    def norm(x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def turned(x):
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * cosines - b * sines, a * sines + b * cosines), -1)

    for sequence in bytes_.reshape(-1, context):
        x = weights["embed"][sequence].astype(np.float64)
        for layer in range(layers):
            of = {name: weights[f"layer.{layer}.{name}"].astype(np.float64)
                  for name in ("norm1", "query", "key", "value", "proj", "norm2", "up", "down")}
            n = norm(x) * of["norm1"]
            q, k, v = ((n @ of[name].T).reshape(context, heads, -1) for name in ("query", "key", "value"))
            q, k, v = (bf16(part)[None] for part in (turned(q), turned(k), v))
            yield q, k, v, True
            x = x + attention(q, k, v, True)[0].reshape(context, dim) @ of["proj"].T
            x = x + np.maximum(norm(x) * of["norm2"] @ of["up"].T, 0) ** 2 @ of["down"].T


# ---- attention and its error ----


def attention(q, k, v, causal):
    """o, and o with P rounded once to e4m3 (P <= 256) and divided by the sum of the unrounded P: float64."""
    return np.stack([attention_of(q, k, v, causal, rounded) for rounded in (False, True)])


def attention_of(q, k, v, causal, rounded):
    q, k, v = (x[0].astype(np.float64).transpose(1, 0, 2) for x in (q, k, v))
    s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(s.shape[1], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1, keepdims=True)
    if rounded:
        p = (256 * p).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) / 256
    return (p @ v / total).transpose(1, 0, 2)


def values(x, how):
    """What the bytes and scales of x stand for; with subtract_mean, without the mean."""
    found = libattn.quantize(x, **how)
    scale = np.asarray(found.scale, np.float64)
    if how["granularity"] == "block":
        scale = np.repeat(scale, BLOCK, 1)[:, :x.shape[1]]
    return found.data.astype(np.float64) * scale


class Error:
    """Root mean square errors of o over a list of problems, by what is quantised, and of o itself."""

    def __init__(self):
        self.squares, self.count = {}, {}

    def add(self, name, array):
        self.squares[name] = self.squares.get(name, 0) + float((array * array).sum())
        self.count[name] = self.count.get(name, 0) + array.size

    def rms(self, name):
        return np.sqrt(self.squares[name] / self.count[name])


def study(problems):
    error = Error()
    for q, k, v, causal in problems:
        exact, floor = attention(q, k, v, causal)
        error.add("o", exact)
        error.add("floor", floor - exact)
        for way, _, of_qk, of_v in WAYS:
            of_q = {name: option for name, option in of_qk.items() if name != "subtract_mean"}
            q8, k8, v8 = values(q, of_q), values(k, of_qk), values(v, of_v)
            error.add((way, "qk"), attention_of(q8, k8, v, causal, False) - exact)
            error.add((way, "v"), attention_of(q, k, v8, causal, False) - exact)
            for name, found in zip(("qkv", "all"), attention(q8, k8, v8, causal)):
                error.add((way, name), found - exact)
    return error


def table(studies):
    print("| inputs | | q, k | v | q, k, v | and P | q, k, v: of per tensor |\n|---|---|---|---|---|---|---|")
    for name, error in studies:
        print(f"| {name}, rms of O {error.rms('o'):.3f} | exact q, k, v | | | | {error.rms('floor'):.5f} | |")
        for way, *_ in WAYS:
            of = [error.rms((way, part)) for part in ("qk", "v", "qkv", "all")]
            share = of[2] / error.rms((WAYS[0][0], "qkv"))
            print(f"| | {way} | " + " | ".join(f"{x:.5f}" for x in of) + f" | 1/{1 / share:.2f} |")


# ---- kernels of a GPU ----


def peer():
    """FlashAttention-3's forward of what quantize(granularity="tensor") returned; None: it is not installed."""
    try:
        import fa3_fwd_interface
    except ImportError:
        return None

    def run(q8, k8, v8):
        scales = {name + "_descale": x.scale.reshape(1, 1) for name, x in (("q", q8), ("k", k8), ("v", v8))}
        found = fa3_fwd_interface.flash_attn_func(q8.data, k8.data, v8.data, **scales)
        return found[0] if isinstance(found, tuple) else found

    return run


def kernels():
    """(name, how q and k are quantised, how v is, kernel)"""
    def ours(*quantized):
        return libattn.attention(*quantized, out_f32=True)

    rotated = dict(granularity="tensor", hadamard=True)
    yield "libattn, one scale per tensor", TENSOR, TENSOR, ours
    yield "libattn, + rotation", rotated, TENSOR, ours
    yield "libattn, blocks and channels, rotation", WAYS[2][2], WAYS[2][3], ours
    theirs = peer()
    if theirs:
        yield "FlashAttention-3, one scale per tensor", TENSOR, TENSOR, theirs
        yield "FlashAttention-3, + rotation", rotated, TENSOR, theirs


def study_kernels(draw, options):
    """By kernel: errors of o from that of the bf16 inputs, and from that of what bytes and scales stand for; the floor
    of the latter."""
    import torch

    error = Error()
    for q, k, v, causal in drawn(draw, options):
        exact = attention_of(q, k, v, causal, False)
        error.add("o", exact)
        on_gpu = [torch.from_numpy(x).bfloat16().cuda() for x in (q, k, v)]
        for name, of_qk, of_v, kernel in kernels():
            found = kernel(*(libattn.quantize(x, **how) for x, how in zip(on_gpu, (of_qk, of_qk, of_v))))
            o = found[0].double().cpu().numpy()
            of_bytes, floor = attention(values(q, of_qk), values(k, of_qk), values(v, of_v), causal)
            error.add((name, "inputs"), o - exact)
            error.add((name, "bytes"), o - of_bytes)
            error.add((name, "floor"), floor - of_bytes)
    return error


def kernel_table(studies):
    print("| inputs | kernel | from bf16 inputs | of per tensor | from the bytes' values | floor |")
    print("|---|---|---|---|---|---|")
    for inputs, error in studies:
        first = None
        for name, *_ in kernels():
            all_of_it, own, floor = (error.rms((name, part)) for part in ("inputs", "bytes", "floor"))
            first = first or all_of_it
            print(f"| {inputs}, rms of O {error.rms('o'):.3f} | {name} | {all_of_it:.5f} | 1/{first / all_of_it:.2f} | "
                  f"{own:.5f} | {floor:.5f} |")


# ---- the figure ----


def draw(studies, path):
    figure = Figure(760, 330)
    ticks = [(v, f"{100 * v:g} %") for v in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)]
    names = [(-1, "P alone")] + [(i, short) for i, (_, short, *_) in enumerate(WAYS)]
    panel = Panel(figure, 90, 60, 640, 200, Axis(-1.5, len(WAYS) - 0.5, names), Axis(0.002, 0.2, ticks, "", True),
                  "RMSE of O, relative to O")
    for series, (_, error) in enumerate(studies):
        for part, kind in (("qkv", ""), ("all", "open")):
            points = [(i + 0.06 * (series - 1), error.rms((way, part)) / error.rms("o"))
                      for i, (way, *_) in enumerate(WAYS)]
            if not kind:
                panel.line(series, points)
            panel.marks(series, points, kind)
        panel.marks(series, [(-1 + 0.06 * (series - 1), error.rms("floor") / error.rms("o"))], "open")
    figure.legend(90, 20, [(i, "", True, name) for i, (name, _) in enumerate(studies)])
    figure.text(90, 312, "filled: q, k, v in one byte, P exact; open: P rounded to e4m3 too", "g")
    figure.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt", help="a checkpoint of attn_gpt")
    parser.add_argument("--text", help="what the model reads")
    parser.add_argument("--gpu", action="store_true", help="kernels of a GPU")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", help="the figure")
    options = parser.parse_args()
    if options.gpu:
        return kernel_table([(name, study_kernels(draw, options)) for name, draw in (("normal", normal),
                                                                                     ("outliers", outliers))])
    if not (options.gpt and options.text):
        parser.error("--gpt and --text are required without --gpu")
    studies = [("normal", study(drawn(normal, options))), ("outliers", study(drawn(outliers, options))),
               ("trained", study(trained(options.gpt, options.text)))]
    table(studies)
    if options.out:
        draw(studies, options.out)


if __name__ == "__main__":
    main()
