#!/usr/bin/env python3
"""Runs suites that others wrote on libattn: onnx's Attention cases, and the parameters of flash-attention's and PyTorch's
tests (cases.py).

    run.py LIBRARY [--device cuda] [--quick] [--only TEXT] [--threads N] [--cc CC]

Needs NumPy; onnx's cases are SKIPPED without the package onnx. --quick: onnx's and each sixteenth of the others, if it is
small. --only: cases
with TEXT in their name. --threads: of the CPU. --cc: the compiler that reads include/attn.h. Exit status 1: a case failed.
"""

import argparse
import os
import sys
import time

try:
    import numpy  # noqa: F401
except ImportError:
    sys.exit(f"NumPy is missing for {sys.executable}: script/conformance installs it")

import cases
import library
import onnx_cases
import table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()

    begin = time.time()
    attn = library.Library(options.library, options.device, options.cc, options.threads)
    lines = onnx_cases.run(attn, options.only)
    lines += table.run(attn, options.quick, options.only, sys.stdout.isatty())
    if not lines:
        sys.exit(f"no case has {options.only!r} in its name")
    width = max(len(name) for name, _, _ in lines)
    print(f"\nlibattn {attn.version()} on {options.device}")
    for name, ran, passed in lines:
        print(f"{name:{width}}  {passed:4} of {ran:4} passed")
    if not options.only:
        print("\nCannot be expressed:")
        for suite, what, why in cases.NOT_EXPRESSED:
            print(f"{suite}: {what}: {why}")
    failed = sum(ran - passed for _, ran, passed in lines)
    print(f"\n{sum(passed for _, _, passed in lines)} passed, {failed} failed, {time.time() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
