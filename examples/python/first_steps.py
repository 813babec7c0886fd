"""First steps with libattn: compute, compare, explain, measure. Ten seconds on a laptop.

    python examples/python/first_steps.py [FIGURE.png]

Needs `pip install .` and NumPy; with matplotlib it draws what it measured.
"""
import sys
import time

import numpy as np

import libattn

random = np.random.default_rng(0)


def tensors(length, heads=4, dim=64):
    """q, k, v of (batch, row, head, dim)."""
    return [random.standard_normal((1, length, heads, dim), np.float32) for _ in range(3)]


def by_definition(q, k, v):
    """Causal attention with the whole score matrix in memory."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.float32(q.shape[-1] ** 0.5)
    scores[..., ~np.tri(q.shape[2], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


def milliseconds(function, *arguments, **options):
    """The fastest of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function(*arguments, **options)
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


print("1. The same result as the definition, without the score matrix")
q, k, v = tensors(512)
difference = np.abs(libattn.attention(q, k, v, causal=True) - by_definition(q, k, v)).max()
print(f"   largest difference {difference:.1e}\n")
assert difference < 1e-5

print("2. A plan says what will run before it runs")
print("   " + libattn.plan(q, k, v, causal=True).explain().strip().replace("\n", "\n   ") + "\n")

print("3. Time grows with the visible pairs: milliseconds by rows")
lengths, rows = (256, 512, 1024, 2048), {"definition": [], "libattn": [], "libattn, window of 128": []}
for length in lengths:
    q, k, v = tensors(length)
    rows["definition"].append(milliseconds(by_definition, q, k, v))
    rows["libattn"].append(milliseconds(libattn.attention, q, k, v, causal=True))
    rows["libattn, window of 128"].append(milliseconds(libattn.attention, q, k, v, window=(127, 0)))
print(f"   {'':24}" + "".join(f"{length:>9}" for length in lengths))
for name, times in rows.items():
    print(f"   {name:24}" + "".join(f"{taken:9.2f}" for taken in times))

try:
    import matplotlib
except ImportError:
    print("\nNo figure: matplotlib is not installed")
    sys.exit()
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
for name, times in rows.items():
    axes.loglog(lengths, times, marker="o", label=name)
axes.set(xlabel="rows", ylabel="milliseconds", title="Causal attention, 4 heads of 64, float32")
axes.set_xticks(lengths, [str(length) for length in lengths])
axes.minorticks_off()
axes.legend()
path = sys.argv[1] if len(sys.argv) > 1 else "first_steps.png"
figure.savefig(path, dpi=120)
print(f"\nThe figure is in {path}")
