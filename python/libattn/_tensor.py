"""Where tensors of other libraries lie in memory, without copying them.

Three kinds are told apart: NumPy arrays, torch tensors, and all others, which show themselves by DLPack
(`__dlpack__`) or by `__cuda_array_interface__` and are seen through a View. torch and CuPy are never imported here: a
tensor of theirs proves that they are loaded.
"""
from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple, NoReturn, Optional, Tuple

import numpy as np

from . import _c


class Layout(NamedTuple):
    """What a plan needs to know of a tensor. Strides are in elements; device: None for the CPU, else a GPU's index."""

    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    device: Optional[int]
    readonly: bool


# ---- DLPack and __cuda_array_interface__ -----------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLVersioned(ctypes.Structure):  # DLManagedTensorVersioned; an unversioned one starts with its DLTensor
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.restype, _capsule_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)

_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_CPU_TYPES, _CUDA_TYPES = (1, 3), (2, 13)  # kDLCPU, kDLCUDAHost; kDLCUDA, kDLCUDAManaged


class View:
    """A foreign tensor: where it lies, and what keeps it alive while it is looked at."""

    __slots__ = ("address", "layout", "owner", "source")

    def __init__(self, source: Any, name: str, stream: Optional[int]):
        self.source = source
        interface = getattr(source, "__cuda_array_interface__", None)
        if interface is not None:
            self._from_cuda(source, interface)
        elif hasattr(source, "__dlpack__"):
            self._from_dlpack(source, name, stream)
        else:
            raise TypeError(f"{name}: {type(source).__name__} is no tensor: it takes a NumPy array, a torch tensor, or "
                            "what has __dlpack__ or __cuda_array_interface__")

    def _from_cuda(self, source, interface):
        dtype = np.dtype(interface["typestr"])
        own = getattr(source, "dtype", None)
        if dtype.kind == "V" and isinstance(own, np.dtype):  # typestr has no name for types of ml_dtypes
            dtype = own
        shape = tuple(interface["shape"])
        steps = interface.get("strides")
        strides = packed(shape) if steps is None else _elements(steps, dtype.itemsize)
        device = getattr(source, "device", None)
        index = getattr(device, "id", device if isinstance(device, int) else -1)  # -1: the context's own
        self.address, readonly = interface["data"]
        self.owner = source
        self.layout = Layout(_native(dtype), shape, strides, index, bool(readonly))

    def _from_dlpack(self, source, name, stream):
        try:
            on_gpu, capsule = _exported(source, stream)
        except Exception as problem:
            raise BufferError(f"{name}: {type(source).__name__} does not export itself by DLPack: "
                              f"{type(problem).__name__}: {problem}") from problem
        # The capsule stays ours and is never renamed: its destructor frees what it holds once this view is gone.
        self.owner = capsule
        readonly = False
        if _capsule_valid(capsule, b"dltensor_versioned"):
            managed = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
            tensor, readonly = managed.tensor, bool(managed.flags & 1)
            if managed.major != 1:
                raise BufferError(f"{name}: DLPack {managed.major}.{managed.minor} is not known; 1.x is")
        elif _capsule_valid(capsule, b"dltensor"):
            tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        else:
            raise BufferError(f"{name}: {type(source).__name__}.__dlpack__ gave no DLPack capsule")
        if tensor.device_type not in _CPU_TYPES + _CUDA_TYPES:
            raise ValueError(f"{name}: DLPack device type {tensor.device_type}; it takes the CPU or a CUDA GPU")
        kind = _CODES.get(tensor.code, "code")
        dtype = "bool" if kind == "bool" else f"{kind}{tensor.bits}"
        if tensor.lanes != 1:
            dtype = f"{dtype}x{tensor.lanes}"
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else packed(shape)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.layout = Layout(dtype, shape, strides, tensor.device_id if on_gpu else None, readonly)


def _exported(source: Any, stream: Optional[int]) -> Tuple[bool, Any]:
    """Whether it is on a GPU, and its capsule."""
    device, _ = source.__dlpack_device__()
    on_gpu = device in _CUDA_TYPES
    keywords = {"stream": stream if stream else 1} if on_gpu else {}  # 1: DLPack's name for the default stream
    try:
        return on_gpu, source.__dlpack__(max_version=(1, 0), **keywords)
    except TypeError:  # from before versions
        return on_gpu, source.__dlpack__(**keywords)


def packed(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Strides in elements of a tensor without gaps, last dimension fastest."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _elements(steps, size):
    if any(step % size for step in steps):
        raise ValueError(f"strides of {tuple(steps)} bytes are no multiples of the element's {size} bytes")
    return tuple(step // size for step in steps)


def _native(dtype: np.dtype) -> str:
    if not dtype.isnative:
        raise TypeError(f"dtype {dtype!r} has the other byte order; .astype of the native one converts it")
    return dtype.name


# ---- kinds ---------------------------------------------------------------------------------------

_is_torch: dict = {np.ndarray: False}  # by type, once looked at
_has_plain_bytes: dict = {}


def is_torch(tensor: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported for it."""
    kind = type(tensor)
    known = _is_torch.get(kind)
    if known is None:
        torch = sys.modules.get("torch")
        known = torch is not None and hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor)
        _is_torch[kind] = known
    return known


def plain(kind: type, name: str) -> None:
    """Raises unless a class of torch tensors is Tensor, or one that leaves operations their meaning, as Parameter does:
    else its bytes need not be its values."""
    if kind not in _has_plain_bytes:
        torch = sys.modules["torch"]
        function, dispatch = (getattr(getattr(kind, hook), "__func__", getattr(kind, hook))
                              for hook in ("__torch_function__", "__torch_dispatch__"))
        _has_plain_bytes[kind] = (
            function in (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
            and dispatch in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl))
    if not _has_plain_bytes[kind]:
        raise TypeError(f"{name} is a {kind.__module__}.{kind.__qualname__}, whose bytes need not be its values: it "
                        "takes a plain tensor, as .as_subclass(torch.Tensor) gives one of the bytes")


def refuse_nested(name: str) -> NoReturn:
    raise _c.InvalidError(f"{name} is a nested tensor, which it may not be; q, k and v of attention and of "
                          "scaled_dot_product_attention in libattn.torch may")


def refuse_device(name: str, device: Any, other: str, of_other: Any) -> NoReturn:
    """Raises for two torch tensors that do not lie on one device which computes."""
    raise _c.InvalidError(f"{name} is on {device} and {other} on {of_other}; they take one CPU or CUDA GPU")


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor, and no list."""
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def see(tensor: Any, name: str, stream: Optional[int] = None) -> Any:
    """The tensor itself if it is NumPy's or torch's, else a View of it."""
    if type(tensor) is np.ndarray or type(tensor) is View:
        return tensor
    if is_torch(tensor):
        if tensor.is_nested:
            refuse_nested(name)
        if not _has_plain_bytes.get(type(tensor)):
            plain(type(tensor), name)
        return tensor
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise TypeError(f"{name}: a masked array; its mask would be ignored")
        return tensor.view(np.ndarray)
    return View(tensor, name, stream)


def writable(tensor: Any, name: str, stream: Optional[int]) -> Any:
    """What an output given by the caller is seen as; it must not be read-only, nor take part in autograd."""
    seen = see(tensor, name, stream)
    if type(seen) is np.ndarray:
        readonly = not seen.flags.writeable
    elif type(seen) is View:
        readonly = seen.layout.readonly
    else:
        readonly = seen.requires_grad
        if readonly:
            raise _c.InvalidError(f"{name} requires grad: what is written into it would escape autograd")
    if readonly:
        raise _c.InvalidError(f"{name} is read-only")
    return seen


def has_tangent(tensor: Any) -> bool:
    """Of a torch tensor: whether it is one of torch's forward-mode derivatives."""
    forward_ad = sys.modules["torch"].autograd.forward_ad
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def host(seen: Any) -> np.ndarray:
    """What is seen on the CPU, as NumPy's."""
    return seen if type(seen) is np.ndarray else np.from_dlpack(seen.source if type(seen) is View else seen)


def signature(seen: Any) -> tuple:
    """What two tensors must have in common to be served by one plan."""
    if type(seen) is np.ndarray:
        return seen.dtype, seen.shape, seen.strides
    if type(seen) is View:
        return seen.layout
    return seen.dtype, seen.shape, seen.stride(), seen.device, seen.is_neg()


def _fast_address() -> Any:
    """Reads where a NumPy array's elements lie out of its C struct, whose first field after the object's head it is by
    NumPy's C API: a sixth of the time of .ctypes.data. None where that does not hold."""
    if sys.implementation.name != "cpython":
        return None
    at, head = ctypes.c_void_p.from_address, object.__basicsize__
    tries = (np.empty(3, np.float32), np.empty((2, 5), np.uint8), np.empty((4, 4))[1:, 2:])
    return (lambda array: at(id(array) + head).value) if all(
        at(id(array) + head).value == array.ctypes.data for array in tries) else None


numpy_address: Any = _fast_address() or (lambda array: array.ctypes.data)


def address(seen: Any) -> int:
    if type(seen) is np.ndarray:
        return numpy_address(seen) or 0
    return seen.address if type(seen) is View else seen.data_ptr()


def refuse_layout(tensor: Any, name: str) -> NoReturn:
    """Raises for a torch tensor of another layout than torch.strided."""
    raise TypeError(f"{name}: a tensor of layout {tensor.layout}; it takes strided ones, as .to_dense() gives them")


def layout(seen: Any, name: str) -> Layout:
    """The tensor's layout; raises TypeError or ValueError for what no plan can describe."""
    if type(seen) is View:
        return seen.layout
    if type(seen) is np.ndarray:
        try:
            return Layout(_native(seen.dtype), seen.shape, _elements(seen.strides, seen.itemsize), None,
                          not seen.flags.writeable)
        except (TypeError, ValueError) as problem:
            raise type(problem)(f"{name}: {problem}") from None
    torch = sys.modules["torch"]
    if seen.is_neg() or seen.is_conj():
        raise TypeError(f"{name}: a view that negates or conjugates what it shows; .resolve_neg() or .resolve_conj() "
                        "gives a tensor of these values")
    if seen.layout != torch.strided:
        refuse_layout(seen, name)
    if seen.device.type not in ("cpu", "cuda"):
        raise _c.InvalidError(f"{name} is on {seen.device}; it takes the CPU or a CUDA GPU")
    index = None if seen.device.type == "cpu" else seen.device.index
    return Layout(str(seen.dtype).rsplit(".", 1)[-1], tuple(seen.shape), tuple(seen.stride()), index, False)


def device_of(seen: Any) -> Optional[int]:
    """The GPU's index, -1 if only that it is one is known; None: the CPU; -2: neither."""
    if type(seen) is np.ndarray:
        return None
    if type(seen) is View:
        return seen.layout.device
    return None if seen.is_cpu else seen.get_device() if seen.is_cuda else -2


# ---- memory --------------------------------------------------------------------------------------


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of that name; bfloat16 and float8_e4m3fn are ml_dtypes', where that is installed."""
    if name not in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy has no {name} for the result: install ml_dtypes, or pass out=") from None
    return np.dtype(getattr(ml_dtypes, name))


def cupy_of(tensor: Any) -> Any:
    """CuPy, if the tensor is an array of it, else None."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(tensor, getattr(cupy, "ndarray", ())) else None


#: What rows outside every sequence, which the kernels do not write, hold: o is 0 and lse -inf, as of rows that see no
#: key, so that merge_states gives such a part no weight.
_OUTSIDE = {"lse": float("-inf")}


def fill_of(name: str, partly: bool) -> Optional[float]:
    """What a new output is filled with; None: with nothing. partly: only rows of sequences will be written."""
    return _OUTSIDE.get(name, 0.0) if partly else None


def _made(library: Any, shape: Tuple[int, ...], fill: Optional[float], **of: Any) -> Any:
    if fill is None:
        return library.empty(shape, **of)
    return library.full(shape, fill, **of) if fill else library.zeros(shape, **of)


def empty(like: Any, shape: Tuple[int, ...], dtype: str, name: str, partly: bool) -> Any:
    """A new tensor of the library that `like` came from, on its device: (it, what see() says). partly: as in fill_of.
    """
    return full(like, shape, dtype, name, fill_of(name, partly))


def full(like: Any, shape: Tuple[int, ...], dtype: str, name: str, fill: Optional[float]) -> Any:
    """Likewise, filled; None: with nothing."""
    if type(like) is np.ndarray:
        made = _made(np, shape, fill, dtype=like.dtype if dtype == like.dtype.name else numpy_dtype(dtype))
        return made, made
    if type(like) is not View:
        torch = sys.modules["torch"]
        made = _made(torch, shape, fill, dtype=getattr(torch, dtype), device=like.device)
        return made, made
    if like.layout.device is None:
        made = _made(np, shape, fill, dtype=numpy_dtype(dtype))
        return made, made
    cupy = cupy_of(like.source)
    if cupy is None:
        raise TypeError(f"{name}: no library is known to make it on the GPU: {type(like.source).__name__} is neither "
                        "torch's nor CuPy's; pass an array")
    made = _made(cupy, shape, fill, dtype=numpy_dtype(dtype))
    return made, View(made, name, None)


def gpu_workspace(like: Any, size: int) -> Tuple[Any, int]:
    """(owner, address) of `size` bytes of GPU memory, from the caching allocator of torch or else of CuPy."""
    torch: Any = sys.modules.get("torch")
    cupy: Any = sys.modules.get("cupy")
    if type(like) is not View:
        owner = like.new_empty_strided((size,), (1,), dtype=torch.uint8)
        return owner, owner.data_ptr()
    if cupy is not None:
        memory = cupy.cuda.alloc(size)
        return memory, memory.ptr
    if torch is not None and torch.cuda.is_available():
        owner = torch.empty(size, dtype=torch.uint8, device="cuda")
        return owner, owner.data_ptr()
    raise _c.UnsupportedError(f"this run needs {size} bytes of GPU memory as workspace: import torch or cupy, whose "
                              "allocator gives them")


# ---- streams -------------------------------------------------------------------------------------


def stream_handle(stream: Any) -> int:
    """The CUstream of an integer, of a torch or CuPy stream, or of what has __cuda_stream__."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(f"stream: {type(stream).__name__} is no stream: it takes torch's, CuPy's, or a cudaStream_t as an "
                    "integer")


def current_stream(tensor: Any) -> int:
    """The stream that torch or CuPy puts its own work into now; of the library that the tensor came from."""
    if is_torch(tensor):
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(tensor.get_device())
    cupy = cupy_of(tensor)
    if cupy is not None:
        return cupy.cuda.get_current_stream().ptr
    raise ValueError(f"stream: is needed for GPU tensors of {type(tensor).__name__}: nothing tells on which stream "
                     "they are made. Pass stream=")
