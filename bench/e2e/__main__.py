"""Whole models with libattn's attention, beside eager attention and PyTorch's SDPA.

    python -m bench.e2e train      training steps and losses of GPT-2, BERT, Llama
    python -m bench.e2e generate   tokens of a Llama-style model: growing cache, static cache, pages; accuracy
    python -m bench.e2e lra        ListOps and pictures like Pathfinder's (Long-Range Arena)
    python -m bench.e2e length     forward and backward, time and memory, against the number of rows
    python -m bench.e2e plot --csv FILE --out docs   figures of what was kept

Run from the repository's root, with libattn installed or PYTHONPATH=python. What is compared runs in one process, in
turns; a peer's ratio is its time over libattn's. Needs PyTorch, and Transformers for the first two.
"""
from __future__ import annotations

import argparse
import importlib
import sys
from typing import List, Optional

PARTS = ("train", "generate", "lra", "length")


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.e2e", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "plot"))
    parser.add_argument("--device", help="cpu, or cuda (the default where there is one)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: bfloat16, float32 on a CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 3 rounds: whether it runs, in seconds")
    parser.add_argument("--busy", action="store_true",
                        help="on a CPU that others use too: one thread, and the process's processor time")
    parser.add_argument("--rounds", type=int, help="turns of each subject (20)")
    parser.add_argument("--csv", metavar="FILE", help="keep the rows in this file, in place of the part's old ones")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--out", default=".", help="plot: the folder of the figures")
    options = parser.parse_args(words)
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
        if options.part == "plot":
            if not options.csv:
                raise measure.Failure("plot needs --csv FILE")
            plots.main(options.csv, options.out)
            return 0
        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        run = measure.Run(options.part, device, options.quick, options.rounds or (3 if options.quick else 20),
                          options.dtype, options.quiet, options.busy, options.csv)
        importlib.import_module(f".{options.part}", __package__).main(run)
        if options.json:
            measure.print_json(run.rows)
    except (measure.Failure, OSError, ImportError) as problem:
        print(f"bench.e2e: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
