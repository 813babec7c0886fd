#!/usr/bin/env python3
"""folders.py itself: in a copy of the sources every include that it must object to is planted, one at a time.

    tests/abi/test_folders.py ROOT NAME ...       as folders.py takes them"""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ("include", "src", "device", "check", "bench", "cli", "demo", "docs")
PLANTED = [  # where, what is included there, what folders.py must say
    ("src/cuda/common/gpu.h", "sm90/forward/pingpong.h", "files include each other: "),
    ("src/cuda/sm90/forward/config.h", "sm90/forward/shared.h", "files include each other: "),
    ("src/cuda/sm90/backward/config.h", "products.h", "files include each other: "),  # beside it, without a folder
    ("src/cuda/driver.h", "cuda/load.h", "files include each other: "),
    ("src/kv/pool.c", "api/plan.h", "api is not below kv"),
    ("src/problem/desc.c", "../mask/mask.h", "mask is not below problem"),
    ("src/ref/ref.c", "mask/mask.h", "mask is not below ref"),  # the reference shares no code with masks
    ("src/planner/machine.c", "device/clock.h", "device is not below planner"),
    ("include/attn_kv.h", "base/error.h", "is the interface"),
    ("src/cuda/plan.c", "cuda/common/gpu.h", "is device code and no *params.h"),
    ("src/cuda/common/gpu.h", "num/philox.h", "is device code and includes src/num/philox.h"),
    ("src/cuda/common/gpu.h", "sm90/common/none.h", "is nowhere"),
    ("src/cuda/common/reduce.h", "sm90/common/columns.h", "of another architecture"),
    ("src/cuda/decode.c", "cuda/sm90/host/sm90.h", "of another architecture"),
]


def folders(root, generated):
    return subprocess.run([sys.executable, "-B", os.path.join(HERE, "folders.py"), root, "--generated", *generated],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    root, *generated = sys.argv[1:]
    with tempfile.TemporaryDirectory() as copy:
        for folder in FOLDERS:
            shutil.copytree(os.path.join(root, folder), os.path.join(copy, folder),
                            ignore=shutil.ignore_patterns("results", "*.svg"))
        whole = folders(copy, generated)
        if whole.returncode:
            sys.exit("without anything planted: " + whole.stdout)
        for where, name, said in PLANTED:
            path = os.path.join(copy, where)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'{text}\n#  include "{name}"\n')
            found = folders(copy, generated)
            if not found.returncode or said not in found.stdout:
                sys.exit(f"{where} includes {name}, and folders.py says: {found.stdout}")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    print(f"{len(PLANTED)} planted includes, each found")


main()
