"""The package's way to a GPU, on the emulated one of the C tests, with the library of the same build: attention, KV
caches, merging, quantising, mistakes."""
import os
import pathlib
import subprocess
import sys

import pytest

from libattn import _c

TESTS = pathlib.Path(_c.library_path).parent / "tests"
FOLDERS = [TESTS / "emulated_gpu", TESTS / "fake_cuda"]


def test_caches_on_the_emulated_gpu(tmp_path):
    if not all((folder / name).exists() for folder, name in zip(FOLDERS, ("libcuda.so.1", "libnvrtc.so.13"))):
        pytest.skip(f"{TESTS} has no emulated GPU")
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, FOLDERS)), ATTN_NVRTC="",
                       ATTN_CACHE_DIR=str(tmp_path), FAKE_CUDA_MULTIPROCESSORS="4")
    script = pathlib.Path(__file__).with_name("on_emulated_gpu.py")
    ended = subprocess.run([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout
