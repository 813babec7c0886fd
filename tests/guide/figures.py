"""The figures of README and HOPPER.md are what their generators draw, README's of the committed results: figures.py ROOT
draws them anew, compares them byte by byte, and computes the ranges of README's first table: TFLOP/s and ratios."""
import csv
import os
import subprocess
import sys
import tempfile

root = sys.argv[1]
results = ["bench/results/h200.csv", "bench/results/epyc-2core.csv", "bench/results/xeon-amx.csv"]
different = []
for command in (["bench/plot_speed.py", *results], ["bench/plot_hopper.py"]):
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run([sys.executable, "-B", *command, "--out", temp], cwd=root, check=True)
        for name in sorted(os.listdir(temp)):
            with open(os.path.join(temp, name)) as drawn, open(os.path.join(root, "docs", name)) as kept:
                if drawn.read() != kept.read():
                    print("docs/%s is not what is drawn now; draw it anew: python3" % name, *command, "--out docs")
                    different.append("docs/" + name)

# A row of the table: what it begins with; digits of TFLOP/s and of ratios; forward and backward, each (file, columns,
# kernels, least length).
H200, XEON = "h200", "xeon-amx"
TABLE = (
    ("| NVIDIA H200, bf16 |", (0, 2), *((H200, {"suite": s, "peer": "cudnn"}, "", 0) for s in ("prefill", "bwd"))),
    ("| | FlashAttention-3 |", (0, 2), *((H200, {"suite": s, "peer": "fa3"}, "", 0) for s in ("prefill", "bwd"))),
    ("| | FlashAttention-4 ", (0, 2), *((H200, {"suite": s, "peer": "fa4"}, "", 0) for s in ("prefill", "bwd"))),
    ("| 16-core Xeon, bf16 in AMX", (1, 1),
     *((XEON, {"suite": s, "dtype": "bf16"}, "amx", 0) for s in ("prefill", "bwd"))),
    ("| the same, f32", (1, 1), *((XEON, {"suite": s, "dtype": "f32"}, "avx512", 0) for s in ("prefill", "bwd"))),
    ("| 2-core Xeon, one thread", (2, 2), ("xeon-2core", {"suite": "prefill", "threads": "1"}, "avx2", 1024),
     ("epyc-2core", {"suite": "bwd", "threads": "1"}, "avx2", 1024)),
)


def select(machine, columns, kernels, least):
    with open(os.path.join(root, "bench", "results", machine + ".csv")) as file:
        return [row for row in csv.DictReader(file) if all(row[c] == v for c, v in columns.items())
                and row["kernel"].startswith(kernels) and int(row["len_kv"]) >= least]


def span(rows, column, digits):
    values = [float(row[column]) for row in rows]
    return "%.*f to %.*f" % (digits, min(values), digits, max(values))


with open(os.path.join(root, "README.md")) as file:
    lines = file.read().split("\n")
for start, digits, *sides in TABLE:
    ends = [span(select(*side), column, some) for side in sides for column, some in zip(("tflops", "ratio"), digits)]
    rows = [line for line in lines if line.startswith(start)]
    if len(rows) != 1 or not rows[0].endswith("| %s |" % " | ".join(ends)):
        print('README.md: the row "%s" should end in | %s |' % (start, " | ".join(ends)))
        different.append(start)
sys.exit(bool(different))
