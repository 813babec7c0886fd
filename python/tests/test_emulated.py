"""The package's way to a GPU, on the emulated one of the C tests where build/ has it: KV caches, merging, mistakes."""
import os
import pathlib
import subprocess
import sys

import pytest

BUILD = pathlib.Path(__file__).parents[2] / "build" / "tests"
FOLDERS = [BUILD / "emulated_gpu", BUILD / "fake_cuda"]


def test_caches_on_the_emulated_gpu(tmp_path):
    if not all((folder / name).exists() for folder, name in zip(FOLDERS, ("libcuda.so.1", "libnvrtc.so.13"))):
        pytest.skip("build/ has no emulated GPU")
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, FOLDERS)), ATTN_NVRTC="",
                       ATTN_CACHE_DIR=str(tmp_path), FAKE_CUDA_MULTIPROCESSORS="4")
    script = pathlib.Path(__file__).with_name("on_emulated_gpu.py")
    ended = subprocess.run([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout
