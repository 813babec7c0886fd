"""What all parts share: turns, intervals, memory, rows."""
from __future__ import annotations

import contextlib
import csv
import ctypes
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = ("commit", "device", "torch", "part", "case", "subject", "backend", "dtype", "batch", "length", "ms",
           "tokens_per_s", "peak_mib", "attention_ms", "ratio", "ratio_low", "ratio_high", "rounds", "figure", "value",
           "note")
OURS = "libattn"
TURN = 0.02  # seconds
SLOW = ("eager", "standard")  # whose ratios are so great that the least number of rounds shows them
LEAST = 6  # rounds: with fewer there is no interval of 95 %


# What PyTorch says. ("memory" alone is in an illegal access, too, and "kernel" in every error of CUDA.)
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|ALLOC_FAILED")
NO_KERNEL = re.compile(r"No available kernel|No viable backend")


class Failure(Exception):
    """What a caller is told in one line."""


class Run:
    """The options of a call, and its rows. A row that lacks a column has it empty."""

    def __init__(self, part: str, device: str, quick: bool, rounds: int, dtype: Optional[str], quiet: bool,
                 busy: bool = False, path: Optional[str] = None, only: Optional[str] = None,
                 seconds: Optional[float] = None, commit_name: Optional[str] = None, steps: Optional[int] = None,
                 rate: Optional[float] = None):
        self.part, self.device, self.quick, self.quiet = part, device_of(device), quick, quiet
        self.rounds, self.rows = rounds, []  # type: int, List[Dict[str, Any]]
        self.dtype = getattr(torch, dtype or ("float32" if self.device.type == "cpu" else "bfloat16"))
        self.path, self.began = path, time.perf_counter()
        if path:  # before anything is measured
            read_csv(path)
            if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
                raise Failure(f"--csv {path}: there is no such folder")
        try:
            self.only = re.compile(only or "")
        except re.error as problem:
            raise Failure(f"--only {only}: {problem}") from None
        self.seconds, self.steps, self.rate, self.commit = seconds, steps, rate, commit_name or commit()
        self.clock = time.process_time if busy else time.perf_counter
        if busy and self.on_gpu:
            raise Failure("--busy measures a processor's time: it takes --device cpu")
        if busy:
            torch.set_num_threads(1)
        if quick:  # what a busy machine gives for sure
            torch.set_num_threads(1)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).rsplit(".", 1)[-1]

    def say(self, text: str) -> None:
        if not self.quiet:
            print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def over(self) -> bool:
        return self.seconds is not None and time.perf_counter() - self.began > self.seconds

    def wants(self, case: str) -> bool:
        """Whether to begin it: it is named, and there is time."""
        if not self.only.search(case):
            return False
        if self.over():
            self.say(f"{case}: not begun, the time is over")
        return not self.over()

    def row(self, case: str, subject: str, **of: Any) -> Dict[str, Any]:
        unknown = set(of) - set(COLUMNS)
        assert not unknown, unknown
        made = {"commit": self.commit, "device": device_name(self.device) + (
                    ", processor time" if self.clock is time.process_time else ""), "torch": torch.__version__,
                "part": self.part, "case": case, "subject": subject, "dtype": self.dtype_name, **of}
        self.rows.append(made)
        if self.path:  # row by row: a run that is ended keeps its rows
            write_csv(self.path, self.rows)
        ratio = f", {of['ratio']:.3f} times libattn's ({of['ratio_low']:.3f} to {of['ratio_high']:.3f})" if of.get(
            "ratio") else ""
        time_of = f"{of['ms']:.2f} ms" if "ms" in of else f"{of.get('figure', '')} {of.get('value', '')}"
        self.say(f"{case}, {subject}: {time_of}{ratio} {of.get('note', '')}")
        return made

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def commit() -> str:
    """Of the checkout, with a + where files differ from it; empty where there is none."""
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", os.path.dirname(__file__), *words], capture_output=True, text=True).stdout

    if not hasattr(commit, "known"):
        name = git("rev-parse", "--short=12", "HEAD").strip()
        commit.known = name + ("+" if name and git("status", "--porcelain", "-uno").strip() else "")
    return commit.known


def device_of(name: str) -> torch.device:
    """The processor, or a GPU that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise Failure(f"--device {name}: it takes cpu, or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Failure(f"--device {name}: this PyTorch finds no CUDA GPU of this number; cpu measures the processor")
    return device


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        model = "CPU"
    return f"{model}, {torch.get_num_threads()} threads"


# ---- time --------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> Tuple[float, float, float]:
    """The median, and its interval of 95 % from the order of the values alone; below 6 values their least and greatest.
    (The count of values below the true median is binomial with p = 1/2.)"""
    ordered, n = sorted(values), len(values)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below, left = 0.0, 0
    while n >= 6 and below + math.comb(n, left) / 2 ** n <= 0.025:
        below += math.comb(n, left) / 2 ** n
        left += 1
    left = max(left - 1, 0)
    return middle, ordered[left], ordered[n - 1 - left]


def turns(run: Run, subjects: Dict[str, Callable[[], Any]], rounds: Optional[int] = None) -> Dict[str, List[float]]:
    """Milliseconds of each subject, round by round, in an order that moves on by one each round. A turn takes 20 ms at
    least (--quick: one call). Before calls shorter than that comes one that is not timed: threads and caches are then
    the subject's own."""
    names, times = list(subjects), {name: [] for name in subjects}  # type: Any, Dict[str, List[float]]

    def turn_of(name: str) -> float:
        calls, spent = 0, 0.0
        run.wait()
        begin = run.clock()
        while not calls or (spent < TURN and not run.quick):
            subjects[name]()
            run.wait()
            calls, spent = calls + 1, run.clock() - begin
        return 1e3 * spent / calls

    for turn in range(rounds or run.rounds):
        if turn >= LEAST and run.over():
            break
        if turn == LEAST:
            names = [name for name in names if name not in SLOW]
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            if times[name] and times[name][-1] < 1e3 * TURN and not run.quick:
                subjects[name]()
            times[name].append(turn_of(name))
    return times


def compare(run: Run, case: str, subjects: Dict[str, Callable[[], Any]], tokens: float = 0,
            rounds: Optional[int] = None, more: Optional[Dict[str, Dict[str, Any]]] = None,
            against: Optional[Dict[str, str]] = None, shown: Optional[Sequence[str]] = None, **of: Any) -> None:
    """Times the subjects in turns and adds rows: of all, or of those that `shown` names. A row has the subject's median,
    and the interval of its time over libattn's (or over that of the subject that `against` names)."""
    times = turns(run, subjects, rounds)
    for name in subjects if shown is None else shown:
        taken = times[name]
        ms = interval(taken)[0]
        row = {"ms": ms, "rounds": len(taken), **of, **(more or {}).get(name, {})}
        if tokens:
            row["tokens_per_s"] = 1e3 * tokens / ms
        ours = (against or {}).get(name, OURS)
        if ours in times and name != ours:
            row["ratio"], row["ratio_low"], row["ratio_high"] = interval(
                [peer / mine for peer, mine in zip(taken, times[ours])])
        run.row(case, name, **row)


# ---- memory ------------------------------------------------------------------------------------


def _resident(field: str) -> float:
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def peak_mib(run: Run, call: Callable[[], Any]) -> float:
    """MiB that a call takes at its peak beyond what was there. On a CPU of the process's resident memory, which Linux
    counts by pages that were touched."""
    if run.on_gpu:
        run.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(run.device)
        before = torch.cuda.memory_allocated(run.device)
        call()
        run.wait()
        return (torch.cuda.max_memory_allocated(run.device) - before) / 2 ** 20
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")  # the peak begins anew
        before = _resident("VmRSS")
    except (OSError, AttributeError):
        return float("nan")
    call()
    return max(_resident("VmHWM") - before, 0.0)


def fits(run: Run, call: Callable[[], Any]) -> bool:
    """Calls it; False if memory did not suffice."""
    try:
        call()
        run.wait()
    except (torch.cuda.OutOfMemoryError, MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and not isinstance(problem, torch.cuda.OutOfMemoryError) and (
                not NO_MEMORY.search(str(problem))):
            raise
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()
        return False
    return True


# ---- SDPA's backends ---------------------------------------------------------------------------

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


@contextlib.contextmanager
def backend(name: Optional[str]) -> Iterator[None]:
    """SDPA's backend by name, and no other; None: PyTorch's choice."""
    if name is None:
        yield
        return
    with sdpa_kernel([BACKENDS[name]]):
        yield


def best_backend(run: Run, call: Callable[[], Any], but: Sequence[str] = ()) -> str:
    """The fastest backend that takes the call. Those in `but` count only where no other does."""
    best = []
    for name in BACKENDS:
        if name in but:
            continue
        try:
            with backend(name):
                if not fits(run, call):
                    continue
                best.append((min(turns(run, {name: call}, 2)[name]), name))
        except RuntimeError as problem:
            if not NO_KERNEL.search(str(problem)):
                raise
    if not best and but:
        return best_backend(run, call)
    if not best:
        raise Failure("no backend of scaled_dot_product_attention takes this problem on this device")
    return min(best)[1]


# ---- rows --------------------------------------------------------------------------------------


def read_csv(path: str) -> List[Dict[str, str]]:
    """The rows of a file; none of one that is empty, or that is not there."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames and tuple(reader.fieldnames) != COLUMNS:
            raise Failure(f"--csv {path}: its columns are not those of bench.e2e; name another file")
        return list(reader)


def write_csv(path: str, rows: Sequence[Dict[str, Any]]) -> None:
    """Replaces the rows that were measured again. Others stay. Whenever it is ended, the file is the old or the new
    one."""
    def name(row: Dict[str, Any]) -> Tuple[str, ...]:
        return tuple(str(row.get(key) or "") for key in ("part", "case", "subject", "length"))

    again = {name(row) for row in rows}
    kept = [row for row in read_csv(path) if name(row) not in again]
    path = os.path.realpath(path)
    with open(f"{path}.new", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in [*kept, *rows]:
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    os.replace(f"{path}.new", path)


def print_json(rows: Sequence[Dict[str, Any]]) -> None:
    known = [{key: None if value != value else value for key, value in row.items()} for row in rows]  # JSON has no NaN
    json.dump(known, sys.stdout, indent=1, default=str, allow_nan=False)
    print()
