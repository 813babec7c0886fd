"""What runs on a GPU need beside tensors: the CUDA context, and where NVRTC lies."""
from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import sys
from typing import Any, Iterable, Iterator

from . import _c
from ._tensor import View, cupy_of, is_torch

_driver: Any = None


def _context(device: int) -> int:
    """The calling thread's CUDA context, 0 for none: plans belong to one. A thread that has none gets that of the device
    (below 0: of none): torch's own threads have none for GPU 0, which CUDA's runtime takes for the current one anyway.
    """
    global _driver
    if _driver is None:
        try:
            _driver = ctypes.CDLL("libcuda.so.1")
        except OSError as problem:
            raise _c.UnsupportedError(f"the CUDA driver cannot be loaded: {problem}") from None
    context = ctypes.c_void_p()
    _driver.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value and device >= 0 and not _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        _driver.cuCtxSetCurrent(context)
        _driver.cuDevicePrimaryCtxRelease_v2(device)  # who has the tensor keeps it
    return context.value or 0


@contextlib.contextmanager
def current(tensor: Any) -> Iterator[int]:
    """Makes the tensor's GPU the current one while it lasts, and gives the context."""
    if type(tensor) is View:
        cupy = cupy_of(tensor.source)
        with contextlib.nullcontext() if cupy is None else tensor.source.device:
            yield _context(tensor.layout.device)
    else:
        torch = sys.modules["torch"]
        with torch.cuda.device(tensor.device):
            yield _context(tensor.get_device())


def _torch_stream(torch: Any, handle: int, device: Any) -> Any:
    """torch's name for a stream; its ExternalStream(0) would be a stream of its own pool, not the default one."""
    return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)


@contextlib.contextmanager
def on_stream(handle: int) -> Iterator[None]:
    """Makes a stream the current one of torch and CuPy while it lasts: what they allocate and compute is in its order.
    """
    torch: Any = sys.modules.get("torch")
    cupy: Any = sys.modules.get("cupy")
    with contextlib.ExitStack() as stack:
        if torch is not None and torch.cuda.is_available():
            stack.enter_context(torch.cuda.stream(_torch_stream(torch, handle, None)))
        if cupy is not None:
            stack.enter_context(cupy.cuda.ExternalStream(handle))
        yield


def record(tensors: Iterable[Any], handle: int) -> None:
    """Tells torch's allocator that a stream other than its current one uses the tensors: freed early, their memory is
    not given to others before the stream is done with them."""
    torch: Any = sys.modules.get("torch")
    for tensor in tensors:
        if is_torch(tensor) and tensor.is_cuda:
            tensor.record_stream(_torch_stream(torch, handle, tensor.device))


def find_nvrtc() -> None:
    """Points ATTN_NVRTC, unless it is set, to the libnvrtc that pip installed: the library compiles its kernels with it
    if it was built without nvcc."""
    if "ATTN_NVRTC" in os.environ:
        return
    for folder in sys.path:
        for pattern in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
            place = os.path.join(folder, pattern)
            if glob.glob(os.path.join(glob.escape(place), "libnvrtc.so.1[23]")):
                os.environ["ATTN_NVRTC"] = place
                return
