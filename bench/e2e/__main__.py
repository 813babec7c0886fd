"""Whole models with libattn's attention, beside eager attention and PyTorch's SDPA.

    python -m bench.e2e train      training steps and losses of GPT-2, BERT, Llama
    python -m bench.e2e generate   tokens of a Llama-style model: growing cache, static cache, pages; accuracy
    python -m bench.e2e lra        ListOps and pictures like Pathfinder's (Long-Range Arena)
    python -m bench.e2e length     forward and backward, time and memory, against the number of rows
    python -m bench.e2e all        these four, one after the other
    python -m bench.e2e plot --csv FILE --out docs   figures of what was kept

Run from the repository's root, with libattn installed or PYTHONPATH=python. What is compared runs in one process, in
turns; a peer's ratio is its time over libattn's. Needs PyTorch, and Transformers for the first two.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any, List, Optional

PARTS = ("train", "generate", "lra", "length")
MEASURING = {"device", "dtype", "quick", "busy", "rounds", "only", "seconds", "commit", "csv", "json", "quiet"}
TAKES = {**dict.fromkeys(PARTS, MEASURING), **dict.fromkeys(("lra", "all"), MEASURING | {"steps", "rate"}),
         "plot": {"csv", "out"}}


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.e2e", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "all", "plot"))
    parser.add_argument("--device", help="cpu, or cuda (the default where there is one)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                        help="default: bfloat16, float32 on a CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 3 rounds: whether it runs, in seconds")
    parser.add_argument("--busy", action="store_true",
                        help="on a CPU that others use too: one thread, and the process's processor time")
    parser.add_argument("--rounds", type=int, help="turns of each subject (20)")
    parser.add_argument("--only", metavar="REGEX", help="the cases whose names have it, as 'gpt2-small 1024'")
    parser.add_argument("--seconds", type=float,
                        help="of a part: then no case begins, and one that runs ends after 6 rounds, a training soon")
    parser.add_argument("--steps", type=int, help="lra: of a training (1500; on a CPU 10)")
    parser.add_argument("--rate", type=float, help="lra: of a training (3e-4; on a CPU 1e-3)")
    parser.add_argument("--commit", metavar="NAME", help="for rows, where the files came without their repository")
    parser.add_argument("--csv", metavar="FILE", help="keep the rows in this file, in place of old ones of these cases")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--out", metavar="FOLDER", help="plot: where the figures go (here)")
    options = parser.parse_args(words)
    # Subjects take turns in one memory: blocks of fixed sizes that one leaves would be freed and made at each turn.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    try:
        import torch

        from . import measure, plots
    except ImportError as problem:
        print(f"bench.e2e: {problem}: it needs PyTorch, and libattn (pip install ., or PYTHONPATH=python)",
              file=sys.stderr)
        return 2
    try:
        if options.rounds is not None and options.rounds < 1:
            raise measure.Failure(f"--rounds {options.rounds}: it takes 1 or more")
        if options.steps is not None and options.steps < 1:
            raise measure.Failure(f"--steps {options.steps}: it takes 1 or more")
        if options.rate is not None and not options.rate > 0:
            raise measure.Failure(f"--rate {options.rate:g}: it takes more than 0")
        if options.seconds is not None and not options.seconds > 0:
            raise measure.Failure(f"--seconds {options.seconds:g}: it takes more than 0")
        given = {name for name, value in vars(options).items() if value not in (None, False)} - {"part"}
        for name in sorted(given - TAKES[options.part]):
            raise measure.Failure(f"--{name}: {options.part} does not take it")
        if options.part == "plot":
            if not options.csv:
                raise measure.Failure("plot needs --csv FILE")
            plots.main(options.csv, options.out or ".")
            return 0
        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        rows: List[Any] = []
        for part in PARTS if options.part == "all" else (options.part,):
            run = measure.Run(part, device, options.quick, options.rounds or (3 if options.quick else 20),
                              options.dtype, options.quiet, options.busy, options.csv, options.only, options.seconds,
                              options.commit, options.steps, options.rate)
            importlib.import_module(f".{part}", __package__).main(run)
            rows += run.rows
        if not rows:
            raise measure.Failure(f"--seconds {options.seconds:g}: no case was begun in this time" if run.over()
                                  else f"--only {options.only}: no case of this name")
        if options.json:
            measure.print_json(rows)
    except (measure.Failure, OSError, ImportError) as problem:
        print(f"bench.e2e: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
