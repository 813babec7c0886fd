"""README's figures are those of the committed results: figures.py ROOT draws them anew and compares, byte by byte."""
import os
import subprocess
import sys
import tempfile

root = sys.argv[1]
results = ["bench/results/h200.csv", "bench/results/epyc-2core.csv", "bench/results/xeon-amx.csv"]
command = [sys.executable, "-B", "bench/plot_speed.py", *results, "--out"]
different = []
with tempfile.TemporaryDirectory() as temp:
    subprocess.run([*command, temp], cwd=root, check=True)
    for name in sorted(os.listdir(temp)):
        with open(os.path.join(temp, name)) as drawn, open(os.path.join(root, "docs", name)) as kept:
            if drawn.read() != kept.read():
                different.append("docs/" + name)
if different:
    print(" and ".join(different), "show other results than bench/results; draw them anew:")
    print("python3", " ".join(command[2:]), "docs")
sys.exit(bool(different))
