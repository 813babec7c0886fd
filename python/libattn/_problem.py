"""From tensors and options to a plan: what cannot be refused once a plan exists is checked here, when it is made."""
from __future__ import annotations

import ctypes
import numbers
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _c, _options, _tensor
from ._tensor import Layout, View, address, layout, packed, see


class Blocks(NamedTuple):
    """Block-sparse lists (ATTN_BLOCKS), all int32: rows and keys are a block's size; R = ceil(len_q / rows), C =
    ceil(len_kv / keys). For each row block its visible key blocks, rising, are in the first count slots.

    full_count, partial_count: (1 or batch, 1 or heads_q, R); full, partial: (the same, R, C). A full block is seen by
    all of its rows, a partial one as `bits` or `mask` says. Either pair may be None.
    """

    rows: int
    keys: int
    full_count: Any = None
    full: Any = None
    partial_count: Any = None
    partial: Any = None


class Static(NamedTuple):
    """Options that are no arrays. Each call hands over all of them, in this order."""

    causal: bool = False
    window: Optional[Tuple[int, int]] = None
    chunk: Optional[int] = None
    scale: Optional[float] = None
    softcap: Optional[float] = None
    dropout_p: float = 0.0
    out_f32: bool = False
    deterministic: bool = False
    threads: int = 0
    isa: str = "auto"
    kernel: Optional[str] = None
    strategy: Optional[str] = None
    out_dtype: Optional[str] = None


class Handle(_c.Shared):
    """A plan of the C library, destroyed with it."""

    _instead = "it lies in this process's memory; plan again where it is needed"

    def __init__(self, desc: ctypes.Structure, create: Any, destroy: Any):
        self._destroy, handle = destroy, ctypes.c_void_p()
        _c.check(create(ctypes.byref(handle), ctypes.byref(desc), ctypes.sizeof(desc)))
        self._handle = handle.value

    def __del__(self):
        if getattr(self, "_handle", None):
            self._destroy(self._handle)
            self._handle = None


def described(describe: Any, handle: int) -> str:
    """What a describing function of C says of a plan."""
    size = describe(handle, None, 0) + 1
    text = ctypes.create_string_buffer(size)
    describe(handle, text, size)
    return text.value.decode()


def info_of(struct: Any, get: Any, handle: int) -> Dict[str, Any]:
    """A plan's info, by the names of its struct."""
    info = struct()
    _c.check(get(handle, ctypes.byref(info), ctypes.sizeof(info)))
    values = ((field[0], getattr(info, field[0])) for field in info._fields_)
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values}


class Plan(Handle):
    """How one problem will be computed: kernel, tiles, splits, threads, predicted bytes and time. It never changes, and
    threads may share it. Made by libattn.plan()."""

    def __init__(self, desc: _c.Desc):
        super().__init__(desc, _c.plan_create, _c.plan_destroy)
        #: Bytes of workspace that a run needs.
        self.workspace_bytes: int = _c.plan_workspace(self._handle)

    def explain(self) -> str:
        """The plan in words: kernel and why, tiles, splits, threads, memory, predicted bytes and time."""
        return described(_c.plan_describe, self._handle)

    @property
    def info(self) -> Dict[str, Any]:
        """The plan in numbers, by the names of attn_plan_info: kernel, isa, why, threads, splits, q_tile, kv_tile,
        workspace_bytes, pairs, flops, memory_bytes, cache_bytes, seconds, strategy and others."""
        return info_of(_c.PlanInfo, _c.plan_get_info, self._handle)

    def __repr__(self) -> str:
        info = self.info
        return f"<libattn.Plan {info['kernel']}, {info['threads']} threads, {info['seconds']:.3g} s predicted>"


_OF_DTYPE = {"o", "grad_q", "grad_k", "grad_v"}


class Prepared(NamedTuple):
    """A plan, and what its outputs look like."""

    plan: Plan
    handle: int
    workspace: int
    dtype: str  # of o and the gradients of q, k and v
    floats: str  # of lse and the other gradients
    shapes: Dict[str, Tuple[int, ...]]
    grows: bool = False  # it is for more keys: a run says how many it has, and where they lie

    def dtype_of(self, output: str) -> str:
        return self.dtype if output in _OF_DTYPE else self.floats


SCALES = ("q_scale", "k_scale", "v_scale", "o_scale")  # fields of attn_args
OUT_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn")

_EMPTY = (ctypes.c_char * 64)()  # where tensors without elements are said to lie
_NOWHERE = ctypes.addressof(_EMPTY)


def shape_of(seen: Any) -> Tuple[int, ...]:
    return seen.layout.shape if type(seen) is View else tuple(seen.shape)


def is_packed(tensor: Layout) -> bool:
    """Whether there are no gaps; a tensor without elements has none, whatever its strides."""
    return 0 in tensor.shape or all(
        n < 2 or step == wanted for n, step, wanted in zip(tensor.shape, tensor.strides, packed(tensor.shape)))


def table_dtype(name: str, dtype: str) -> str:
    """The type of a table, where q is of `dtype`."""
    if name in ("alibi", "sink"):
        return "float64" if dtype == "float64" else "float32"
    if name in ("rotary_cos", "rotary_sin"):
        return "float32"
    if name in ("position_q", "position_kv", "rotary_positions"):
        return "int64"
    return "uint8" if name == "bits" else "int32"


# ---- arrays of options ---------------------------------------------------------------------------


def _where(device: Optional[int]) -> str:
    if device is None:
        return "the CPU"
    return f"GPU {device}" if device >= 0 else "a GPU" if device == -1 else "neither the CPU nor a CUDA GPU"


def same_device(name: str, device: Optional[int], wanted: Optional[int], other: str = "q") -> None:
    """Raises unless a tensor is where `other` is, on device `wanted`."""
    if device != wanted and (device is None or wanted is None or min(device, wanted) >= 0):
        raise _c.InvalidError(f"{name} is on {_where(device)}, {other} on {_where(wanted)}")


def as_table(value: Any, name: str, dtype: str, device: Optional[int], stream: Optional[int] = None) -> Any:
    """A packed array of `dtype` on q's device. On the CPU lists and other types of the same kind are converted, where
    no value changes; on a GPU the array must be right as it is, for converting would need to wait for it."""
    if device is None and not _tensor.is_tensor(value):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError) as problem:  # lists of different lengths, or of tensors
            raise TypeError(f"{name} is {type(value).__name__}, which is no array: {problem}") from problem
    seen = see(value, name, stream)
    if device is None and type(seen) is np.ndarray:
        if seen.dtype == dtype and seen.flags.c_contiguous:
            return seen
        return _converted(seen, name, dtype)
    is_at = layout(seen, name)
    same_device(name, is_at.device, device)
    if is_at.dtype == dtype and is_packed(is_at):
        return seen
    is_numpys = hasattr(np, is_at.dtype)  # as bfloat16 and float8_e4m3fn are not
    if device is None and is_numpys and not (type(seen) is not View and seen.requires_grad):
        return _converted(_tensor.host(seen), name, dtype)
    if device is None and dtype in ("float32", "float64") and type(seen) is not View:
        return seen.detach().to(getattr(sys.modules["torch"], dtype)).contiguous()
    raise _c.InvalidError(f"{name} is {is_at.dtype} with strides {is_at.strides}; it takes packed {dtype}")


def _converted(array: np.ndarray, name: str, dtype: str) -> np.ndarray:
    wanted = np.dtype(dtype)
    if wanted.kind in "iu":
        if array.dtype.kind not in "iu" and (array.size or array.dtype.kind != "f"):  # NumPy's [] is of floats
            raise TypeError(f"{name} is {array.dtype}; it takes {dtype}")
        limits = np.iinfo(wanted)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise _c.InvalidError(f"{name} has values from {array.min()} to {array.max()}, beyond {dtype}")
    elif array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} is {array.dtype}; it takes {dtype}")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, wanted)
    if wanted.kind == "f" and np.isinf(found).sum() > np.isinf(array).sum():
        raise _c.InvalidError(f"{name} has values beyond {dtype}")
    return found


def shape_is(name: str, shape: Tuple[int, ...], *allowed: Tuple[int, ...]) -> None:
    if tuple(shape) not in allowed:
        words = dict.fromkeys(str(shape) for shape in allowed)
        raise _c.InvalidError(f"{name} has shape {tuple(shape)}; it takes {' or '.join(words)}")


def address_of(seen: Any, name: str = "a tensor") -> int:
    """Where a tensor lies; one without elements somewhere."""
    try:
        place = address(seen)
    except RuntimeError as problem:  # torch's wrappers, as of torch.func, and its fake tensors
        layout(seen, name)  # raises for those of other layouts
        raise _c.UnsupportedError(f"{name} has no memory to read, as under transforms of torch.func: the functions of "
                                  "libattn.torch have operators for these") from problem
    if place:
        return place
    if 0 not in (seen.layout.shape if type(seen) is View else seen.shape):
        raise _c.InvalidError(f"{name} has no memory: what it held was freed")
    return _NOWHERE


def see_bias(value: Any, name: str, stream: Optional[int] = None) -> Any:
    """A bias as it is seen. One element that repeats along four dimensions has no strides but 0, which the descriptor
    takes for packed: it is copied."""
    seen = see(value, name, stream)
    is_at = layout(seen, name)
    if len(is_at.shape) < 4 or any(is_at.strides) or any(n < 2 for n in is_at.shape):
        return seen
    if type(seen) is View:
        raise _c.InvalidError(f"{name} has shape {is_at.shape} and strides of 0; it takes one element with extents of 1")
    return np.ascontiguousarray(seen) if type(seen) is np.ndarray else seen.contiguous()


# ---- making a plan -------------------------------------------------------------------------------


def strides_of(tensor: Layout, name: str) -> Tuple[int, ...]:
    """Strides as the descriptor takes them: (batch, row, head, dim) in elements, dim's 1. Packed rows have no batch: 0.
    """
    strides = tensor.strides
    if tensor.shape[-1] > 1 and strides[-1] != 1 and 0 not in tensor.shape:
        raise _c.InvalidError(f"{name}: the last dimension must be contiguous; its stride is {strides[-1]} elements "
                              f"(shape {tensor.shape}). numpy.ascontiguousarray, or torch's .contiguous(), makes a "
                              "copy that is")
    return (0,) * (4 - len(strides)) + strides[:-1] + (1,)


def typed(name: str, tensor: Layout, dtype: str) -> None:
    if tensor.dtype != dtype:
        raise _c.InvalidError(f"{name} is {tensor.dtype}, where it takes {dtype}")


_integer, _number = _options.integer, _options.number


def check_tensor(name: str, tensor: Layout, like: Layout, wanted: Optional[str], other: str = "q",
                 of_bytes: Tuple[str, ...] = ()) -> None:
    """Raises unless the tensor has the dimensions that `wanted` lists, the type and device of `like`, which is the
    argument `other`, and heads and dim. of_bytes: the types of one byte that are allowed."""
    if wanted is not None and len(tensor.shape) != wanted.count(",") + 1:
        raise _c.InvalidError(f"{name} has shape {tensor.shape}; it takes {wanted}")
    if tensor.dtype not in _c.DTYPES and tensor.dtype not in of_bytes:
        raise _c.InvalidError(f"{name} is {tensor.dtype}; it takes float32, float16 or bfloat16, on the CPU float64"
                              + (" too, or " + " or ".join(of_bytes) if of_bytes else ""))
    if tensor.dtype != like.dtype:
        raise _c.InvalidError(f"{name} is {tensor.dtype}, where it takes {like.dtype}, as {other} is")
    same_device(name, tensor.device, like.device, other)
    if min(tensor.shape[-2:]) < 1:
        raise _c.InvalidError(f"{name} has shape {tensor.shape}: heads and dim must be at least 1")


def check_rows(k: Layout, v: Layout, name_k: str, name_v: str) -> None:
    """Raises unless keys and values are of the same rows and heads."""
    if k.shape[:-1] != v.shape[:-1]:
        raise _c.InvalidError(f"{name_k} has shape {k.shape} and {name_v} {v.shape}: all but their last dimensions must "
                              "be equal")


# ---- scales --------------------------------------------------------------------------------------


def scale_layout(at: Layout) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Shape and strides of a scale as (sequence, block, head, dim): a number has no dimensions, or one element; (head),
    (sequence, head) and (sequence, row, head) say which they are. Strides along extents of 1 are 0: one for all."""
    has = {0: "", 1: "h", 2: "sh", 3: "sbh"}.get(len(at.shape), "sbhd")
    shape, strides = dict(zip(has, at.shape)), dict(zip(has, at.strides))
    return (tuple(shape.get(axis, 1) for axis in "sbhd"),
            tuple(strides[axis] if shape.get(axis, 1) != 1 else 0 for axis in "sbhd"))


def set_scales(desc: Any, scales: Dict[str, Tuple[int, Tuple[int, ...]]]) -> None:
    """Rows of a block and strides, by the names of the scales."""
    for name, (rows, strides) in scales.items():
        setattr(desc, name + "_rows", rows)
        getattr(desc, name + "_stride")[:] = strides


def _rows_of_blocks(name: str, rows: int) -> Dict[int, int]:
    """Of each number of blocks that a sequence of that many rows may have: rows of a block, 0 for all."""
    sizes = (1,) if name == "v_scale" else (1, 128, 64)
    return {**{-(-rows // size): size for size in sizes}, 1: 0}


class Problem:
    """A problem while its plan is made: layouts of the tensors, options, arrays by name."""

    labels: Dict[str, str] = {}  # what the caller calls a tensor, if not by its field in attn_args

    def __init__(self, direction, tensors: Dict[str, Layout], static: Static, arrays: Dict[str, Layout],
                 varlen: Optional[Tuple[int, int]], blocks: Optional[Tuple[int, int]], outputs: Dict[str, Layout]):
        self.direction, self.tensors, self.static, self.arrays = direction, tensors, static, arrays
        self.varlen, self.blocks, self.outputs = varlen, blocks, outputs
        self.desc = _c.Desc(direction=direction)
        self._shapes()
        self._layouts()
        self._options()
        self._arrays()
        self._scales()

    def _shapes(self):
        desc, tensors = self.desc, self.tensors
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        wanted = "(total rows, heads, dim)" if self.varlen else "(batch, rows, heads, dim)"
        check_tensor("q", q, q, wanted, "q", ("float8_e4m3fn",))
        narrower = k.dtype in _c.BYTE_DTYPES and q.dtype in ("float32", "float16", "bfloat16")
        for name, other in (("k", "k" if narrower else "q"), ("v", "k" if narrower else "q")):
            check_tensor(name, tensors[name], q._replace(dtype=tensors[other].dtype), wanted, other,
                         tuple(_c.BYTE_DTYPES))
        if self.direction == _c.BACKWARD and k.dtype in _c.BYTE_DTYPES:
            raise _c.UnsupportedError(f"k is {k.dtype}: attention to tensors of one byte has no backward")
        check_rows(k, v, "k", "v")
        self._heads("k", "k and v")
        if self.varlen:
            desc.flags |= _c.VARLEN
            starts = self.arrays["cu_lens_q"].shape
            if len(starts) != 1 or not starts[0]:
                raise _c.InvalidError(f"cu_lens_q has shape {starts}; it takes (batch + 1)")
            desc.batch = starts[0] - 1
            desc.len_q, desc.len_kv = (_integer(name, most, 31, 0) for name, most in
                                       zip(("max_len_q", "max_len_kv"), self.varlen))
            desc.total_q, desc.total_kv = q.shape[0], k.shape[0]
            for name in ("cu_lens_q", "cu_lens_kv"):
                shape_is(name, self.arrays[name].shape, starts)
        else:
            if q.shape[0] != k.shape[0]:
                raise _c.InvalidError(f"q has a batch of {q.shape[0]}, k and v of {k.shape[0]}: they must be equal")
            desc.batch, desc.len_q, desc.len_kv = q.shape[0], q.shape[1], k.shape[1]

    def _heads(self, name, both):
        """Heads and dims, types and what outputs look like. name: k's; both: k's and v's."""
        desc = self.desc
        q, k, v = (self.tensors[name] for name in ("q", "k", "v"))
        if k.shape[-1] != q.shape[-1]:
            raise _c.InvalidError(f"q has dim {q.shape[-1]} and {name} {k.shape[-1]}: they must be equal")
        if q.shape[-2] % k.shape[-2]:
            raise _c.InvalidError(f"q has {q.shape[-2]} heads, {both} {k.shape[-2]}: the first must be a multiple of "
                                  "the second")
        desc.dtype = _c.ANY_DTYPES[q.dtype]
        desc.kv_dtype = _c.ANY_DTYPES[k.dtype] if k.dtype != q.dtype else 0
        desc.device = _c.CPU if q.device is None else _c.CUDA
        desc.heads_q, desc.dim_qk = q.shape[-2:]
        desc.heads_kv, desc.dim_v = v.shape[-2:]
        self.o_shape = q.shape[:-1] + v.shape[-1:]
        self.lse_shape = (q.shape[1], q.shape[0]) if len(q.shape) == 3 else (q.shape[0], q.shape[2], q.shape[1])

    def _layouts(self):
        desc, static = self.desc, self.static
        q, k, v = (self.tensors[name] for name in ("q", "k", "v"))
        self.dtype = self._out_dtype()
        self.floats = table_dtype("sink", q.dtype)
        shapes = {"o": self.o_shape, "grad_o": self.o_shape, "grad_q": q.shape, "grad_k": k.shape, "grad_v": v.shape}
        for name in ("q", "k", "v"):
            getattr(desc, name + "_stride")[:] = strides_of(self.tensors[name], self.labels.get(name, name))
        given = [(name, self.tensors[name]) for name in ("o", "grad_o") if name in self.tensors]
        for name, tensor in given + [item for item in self.outputs.items() if item[0] in shapes]:
            label = "out" if name == "o" and name in self.outputs else name
            shape_is(label, tensor.shape, shapes[name])
            typed(label, tensor, self.dtype)
            same_device(label, tensor.device, q.device)
            getattr(desc, name + "_stride")[:] = strides_of(tensor, label)
        lses = [(name, self.tensors[name]) for name in ("lse", "grad_lse") if name in self.tensors]
        for name, tensor in lses + [item for item in self.outputs.items() if item[0] == "lse"]:
            shape_is(name, tensor.shape, self.lse_shape)
            typed(name, tensor, self.floats)
            same_device(name, tensor.device, q.device)
            if not is_packed(tensor):
                raise _c.InvalidError(f"{name} has strides {tensor.strides}; it takes a packed tensor")

    def _out_dtype(self):
        """The type of o, and of gradients."""
        asked, q = self.static.out_dtype, self.tensors["q"]
        if asked is None:
            return "float32" if self.static.out_f32 else "bfloat16" if q.dtype in _c.BYTE_DTYPES else q.dtype
        if asked not in OUT_DTYPES:
            raise _c.InvalidError(f"out_dtype is {asked!r}; it takes {', '.join(OUT_DTYPES)}, or None")
        if self.static.out_f32 and asked != "float32":
            raise _c.InvalidError(f"out_dtype is {asked!r}, and out_f32 is True: they contradict each other")
        self.desc.out_dtype = _c.ANY_DTYPES[asked]
        return asked

    def _options(self):
        desc, static = self.desc, self.static
        desc.flags |= _c.CAUSAL * bool(static.causal) | _c.OUT_F32 * bool(static.out_f32)
        desc.flags |= _c.DETERMINISTIC * bool(static.deterministic)
        if static.window is not None:
            desc.flags |= _c.WINDOW
            desc.window_left, desc.window_right = static.window
        if static.chunk is not None:
            desc.flags |= _c.CHUNK
            desc.chunk = _integer("chunk", static.chunk)
        if static.scale is not None:
            scale = _number("scale", static.scale)
            if desc.dtype == _c.DTYPES["float64"]:
                desc.scale_f64 = scale
            else:
                desc.scale = scale
            if not (desc.scale or desc.scale_f64) > 0:
                raise _c.InvalidError(f"scale is {static.scale}; it takes numbers > 0, or None for 1 / sqrt(dim)")
        if static.softcap is not None:
            desc.flags |= _c.SOFTCAP
            desc.softcap = _number("softcap", static.softcap)
        if static.dropout_p:
            desc.flags |= _c.DROPOUT
            desc.dropout_p = _number("dropout_p", static.dropout_p)
        desc.threads = _integer("threads", static.threads, 31)
        if static.isa not in _c.ISAS:
            raise _c.InvalidError(f"isa is {static.isa!r}; it takes {', '.join(_c.ISAS)}")
        desc.isa = _c.ISAS[static.isa]
        for name in ("kernel", "strategy"):
            given = getattr(static, name)
            setattr(desc, name, None if given is None else _options.text(name, given))

    def _arrays(self):
        desc, arrays = self.desc, self.arrays
        batch, heads = desc.batch, desc.heads_q
        for name, flag in (("lens_q", _c.LENS_Q), ("lens_kv", _c.LENS_KV), ("prefix", _c.PREFIX),
                           ("first_kv", _c.FIRST_KV)):
            if name in arrays:
                desc.flags |= flag
                shape_is(name, arrays[name].shape, (batch,))
        if "sink" in arrays:
            desc.flags |= _c.SINK
            shape_is("sink", arrays["sink"].shape, (heads,))
        if "alibi" in arrays:
            desc.flags |= _c.ALIBI
            shape = arrays["alibi"].shape
            shape_is("alibi", shape, (heads,), (1, heads), (batch, heads))
            desc.alibi_batch = 1 if len(shape) == 1 else shape[0]
        if "bias" in arrays:
            self._bias(arrays["bias"])
        if "intervals" in arrays:
            desc.flags |= _c.INTERVALS
            shape = arrays["intervals"].shape
            vectors, kv = shape[-1] if shape else 0, desc.heads_kv
            shape_is("intervals", shape, (batch, 1, desc.len_kv, vectors), (batch, kv, desc.len_kv, vectors))
            if vectors not in ((1, 2) if desc.flags & _c.CAUSAL else (2, 4)):
                raise _c.InvalidError(f"intervals has shape {shape}; its last dimension is 1 or 2 with causal, 2 or 4 "
                                      "without")
            desc.interval_heads, desc.interval_vectors = shape[1], vectors
        if "bits" in arrays:
            desc.flags |= _c.BITS
            width = ((desc.bits_keys or desc.len_kv) + 7) // 8
            shape_is("bits", arrays["bits"].shape,
                     *[(b, h, desc.len_q, width) for b in (1, batch) for h in (1, heads)])
            desc.bits_batch, desc.bits_heads = arrays["bits"].shape[:2]
        if self.blocks:
            self._blocks()

    def _bias(self, bias):
        desc = self.desc
        full = (desc.batch, desc.heads_q, desc.len_q, desc.len_kv)
        if bias.dtype not in _c.DTYPES or (bias.dtype == "float64" and self.floats != "float64"):
            raise _c.InvalidError(f"bias is {bias.dtype}; it takes float32, float16 or bfloat16")
        if not 1 <= len(bias.shape) <= 4:
            raise _c.InvalidError(f"bias has shape {bias.shape}; it takes what broadcasts to {full}")
        lead = 4 - len(bias.shape)
        extent, stride = (1,) * lead + bias.shape, (0,) * lead + bias.strides
        if any(n not in (1, most) for n, most in zip(extent, full)):
            raise _c.InvalidError(f"bias has shape {bias.shape}; it takes what broadcasts to {full}")
        desc.flags |= _c.BIAS
        desc.bias_dtype = _c.DTYPES[bias.dtype]
        # A stride of 0 repeats: so does an extent of 1, whose gradient is then summed here.
        desc.bias_extent[:] = extent
        desc.bias_stride[:] = [step if n > 1 else 1 for n, step in zip(extent, stride)]

    def _blocks(self):
        desc, arrays = self.desc, self.arrays
        desc.flags |= _c.BLOCKS
        desc.block_rows, desc.block_keys = (_integer("blocks", size) for size in self.blocks)
        if min(self.blocks) < 1:
            raise _c.InvalidError(f"blocks have {self.blocks[0]} rows and {self.blocks[1]} keys; both are at least 1")
        rows, keys = -(-desc.len_q // self.blocks[0]), -(-desc.len_kv // self.blocks[1])
        lead = None
        for kind in ("full", "partial"):
            count, table = arrays.get(f"block_{kind}_count"), arrays.get(f"block_{kind}")
            if (count is None) != (table is None):
                raise _c.InvalidError(f"blocks: {kind}_count and {kind} belong together; one is missing")
            if count is None:
                continue
            lead = lead or count.shape[:2]
            if len(lead) != 2 or lead[0] not in (1, desc.batch) or lead[1] not in (1, desc.heads_q):
                raise _c.InvalidError(f"blocks.{kind}_count has shape {count.shape}; it takes (1 or {desc.batch}, 1 or "
                                      f"{desc.heads_q}, {rows})")
            shape_is(f"blocks.{kind}_count", count.shape, lead + (rows,))
            shape_is(f"blocks.{kind}", table.shape, lead + (rows, keys))
        if lead is None:
            raise _c.InvalidError("blocks has neither full nor partial ones: no key would be visible")
        desc.block_batch, desc.block_heads = lead

    def _scales(self):
        desc, arrays = self.desc, self.arrays
        for name in SCALES:
            if name in arrays:
                typed(name, arrays[name], "float32")
                same_device(name, arrays[name].device, self.tensors["q"].device)
        for name, flag in (("q_scale", _c.SCALES_Q), ("k_scale", _c.SCALES_KV), ("v_scale", _c.SCALES_KV)):
            if name in arrays:
                desc.flags |= flag
                set_scales(desc, {name: self._scale(name, arrays[name])})
        if "o_scale" in arrays:
            if self.dtype not in _c.BYTE_DTYPES:
                raise _c.InvalidError(f"o_scale is given, where o is {self.dtype}: it goes with an out_dtype of "
                                      "float8_e4m3fn")
            if np.prod(arrays["o_scale"].shape) != 1:
                raise _c.InvalidError(f"o_scale has shape {arrays['o_scale'].shape}; it takes one number")

    def _scale(self, name, at):
        """(rows of a block, strides)."""
        desc, of = self.desc, self.tensors[name[0]]
        if of.dtype not in _c.BYTE_DTYPES:
            raise _c.InvalidError(f"{name} is given for {name[0]} of {of.dtype}; it goes with "
                                  + ("float8_e4m3fn" if name == "q_scale" else "float8_e4m3fn and int8"))
        rows = of.shape[1 if self.varlen is None else 0]
        if self.varlen is not None:
            rows = min(rows, desc.len_q if name == "q_scale" else desc.len_kv)
        blocks, heads = _rows_of_blocks(name, rows), dict.fromkeys((of.shape[-2], desc.heads_kv))
        dims = (1, desc.dim_v) if name == "v_scale" else (1,)
        shape, strides = scale_layout(at)
        wrong = len(at.shape) > 4 or any(
            n not in allowed for n, allowed in zip(shape, ((1, desc.batch), blocks, (1, *heads), dims)))
        if wrong or (len(at.shape) == 3 and shape[1] != rows) or (shape[3] > 1 and blocks[shape[1]]):
            few = " or ".join(map(str, heads))
            raise _c.InvalidError(
                f"{name} has shape {at.shape}; it takes a number, ({few},), ({desc.batch}, {few}), ({desc.batch}, "
                f"{rows}, {few}) or (sequences, blocks, heads, dim), which is ({desc.batch}, "
                f"{' or '.join(map(str, blocks))}, {few}, {' or '.join(map(str, dims))}); and 1 in place of any but rows"
                + ", but dim has scales of its own only where there is one block" * (name == "v_scale"))
        if name == "q_scale" and shape[2] > 1:
            desc.q_scale_heads = shape[2]
        return blocks[shape[1]], strides

    def prepare(self, make: Callable[[_c.Desc], Any] = Plan) -> Prepared:
        plan = make(self.desc)
        shapes = {"o": self.o_shape, "lse": self.lse_shape}
        shapes.update((f"grad_{name}", self.tensors[name].shape) for name in ("q", "k", "v"))
        for name in ("bias", "alibi", "sink"):
            if name in self.arrays:
                shapes[f"grad_{name}"] = self.arrays[name].shape
        return Prepared(plan, plan._handle or 0, plan.workspace_bytes, self.dtype, self.floats, shapes)
