#!/usr/bin/env python3
"""Prints how many lines of code a reader of one forward variant meets, and fails if they are more than the bars allow.

    tests/emulated_gpu/reader_lines.py CXX VARIANT=MOST ...

A variant meets a file if code of it comes from there: the kernel is compiled for the emulated GPU, and the assembler is
asked of which files. Files without functions count if they are included. Lines that are blank or comments do not count;
wrappers of instructions and parameters are aside."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CUDA = os.path.join(ROOT, "src/cuda")
ASIDE = ("ptx.h", "wgmma.h", "gpu.h", "params.h", "pages_params.h")


def definitions(name):
    """The macros that the build defines for a variant's bf16 kernel."""
    with open(os.path.join(CUDA, "sm90/forward/variants.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    for row in rows[1:]:
        if row[0] == name:
            columns = {**dict(zip(rows[0], row)), "dtype": "BF16"}
            return [f"-DATTN_{key.upper()}={value}" for key, value in columns.items()]
    sys.exit(f"variants.txt has no {name}")


def compiled(cxx, name, *options):
    text = '#include "device.h"\n#include "sm90/forward/forward.cu"\n'
    folders = [f"-I{os.path.join(ROOT, folder)}" for folder in ("tests/emulated_gpu", "src", "src/cuda", "include")]
    words = [cxx, "-x", "c++", "-std=c++17", "-w", "-Wno-psabi", "-fpermissive", *folders, *definitions(name), *options, "-", "-o", "-"]
    return subprocess.run(words, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def code(path):
    """The lines of a file that are neither blank nor a comment."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    return [line for line in text.splitlines() if line.strip()]


def met(cxx, name):
    """The files below src/cuda that the variant meets, each with its lines of code."""
    included = set(re.findall(r'^# \d+ "(' + re.escape(CUDA) + r'/[^"]+)"', compiled(cxx, name, "-E"), re.M))
    assembly = compiled(cxx, name, "-S", "-O0", "-g1")
    files = re.findall(r'^\s*\.file\s+(\d+) (?:"([^"]*)" )?"([^"]+)"', assembly, re.M)
    numbers = {number: os.path.join(folder, name) for number, folder, name in files}
    used = {numbers.get(number) for number in re.findall(r"^\s*\.loc\s+(\d+) ", assembly, re.M)}
    found = {}
    for path in included:
        lines = code(path)
        functions = any(re.match(r" *(template <.*> )?(DEVICE|INLINE)\b", line) for line in lines)
        if os.path.basename(path) not in ASIDE and (path in used or not functions):
            found[os.path.relpath(path, CUDA)] = len(lines)
    return found


def main():
    failed = False
    for word in sys.argv[2:]:
        name, _, most = word.partition("=")
        files = met(sys.argv[1], name)
        total = sum(files.values())
        print(f"{name}: {total} lines (at most {most}) in {len(files)} files: "
              + ", ".join(f"{path} {lines}" for path, lines in sorted(files.items())))
        failed = failed or total > int(most) or not files
    sys.exit(failed)


main()
