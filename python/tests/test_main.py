"""python -m libattn, and the example."""
import csv
import pathlib
import subprocess
import sys

import pytest

from libattn.__main__ import main

ROOT = pathlib.Path(__file__).parents[2]


def test_check(capsys):
    assert main(["check"]) == 0
    text = capsys.readouterr().out
    assert "portable" in text and "all right" in text and "WRONG" not in text


def test_explain(capsys):
    assert main(["explain", "--len", "100", "--heads", "8/2", "--causal", "--window", "5", "0", "--backward"]) == 0
    text = capsys.readouterr().out
    assert "backward" in text and "heads 8/2" in text and "window" in text
    assert main(["explain", "--dim", "600"]) == 1
    assert "dim" in capsys.readouterr().err


def test_bench_and_plot(tmp_path, capsys):
    rows, figure = tmp_path / "rows.csv", tmp_path / "figure.svg"
    assert main(["bench", "--lens", "64", "96", "--heads", "2/1", "--seconds", "0.01", "--csv", str(rows)]) == 0
    with open(rows, newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["peer"] == "numpy"]
    assert [(row["len_q"], row["mask"]) for row in found] == [
        ("64", "full"), ("64", "causal"), ("96", "full"), ("96", "causal")]
    assert all(float(row["ms"]) > 0 and float(row["ratio"]) > 0 for row in found)
    pytest.importorskip("matplotlib")
    assert main(["plot", str(rows), "-o", str(figure)]) == 0
    assert figure.stat().st_size > 1000
    assert main(["plot", str(ROOT / "README.md"), "-o", str(figure)]) == 1
    assert "no rows" in capsys.readouterr().err


def test_bench_asks_for_its_file_first(tmp_path, capsys):
    assert main(["bench", "--lens", "64", "--seconds", "0.01", "--csv", str(tmp_path / "none" / "rows.csv")]) == 1
    said = capsys.readouterr()
    assert "rows.csv" in said.err and said.out == ""


def test_first_steps(tmp_path):
    run = subprocess.run([sys.executable, str(ROOT / "examples/python/first_steps.py"), str(tmp_path / "figure.png")],
                         capture_output=True, text=True, check=True)
    assert "largest difference" in run.stdout and "window of 128" in run.stdout


def measurement(name, *arguments):
    run = subprocess.run([sys.executable, str(ROOT / "bench/python" / name), *arguments], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_overhead():
    assert "import libattn: 0." in measurement("overhead.py", "--seconds", "0.01")


@pytest.mark.long
def test_train_gpt():
    pytest.importorskip("torch")
    first, *_ = measurement("train_gpt.py", "--rounds", "1").splitlines()
    ours, sdpa = first.removeprefix("step 1: losses ").split(", ")
    assert abs(float(ours) - float(sdpa)) < 1e-4
