"""Plans that are kept, and runs.

Every call compares shapes, strides, types and options with those of plans made before, by one look into a dictionary.
"""
from __future__ import annotations

import ctypes
import numbers
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np

from . import _c, _options, _tensor
from ._bytes import as_scale
from ._problem import (SCALES, Prepared, Problem, Static, address_of, as_table, same_device, see_bias, shape_of,
                       strides_of, table_dtype)
from ._tensor import Layout, address, device_of, empty, layout, see, signature, writable

LIMIT = 1024  # plans kept
_plans: Dict[tuple, Any] = {}
calls: Dict[tuple, Any] = {}  # what calls of torch's operators need, as _torch_again keeps it
_local = threading.local()
_KEEP = 64 << 20  # bytes of workspace that a thread keeps between calls


def clear_plans() -> None:
    """Forgets all cached plans."""
    _plans.clear()
    calls.clear()


def layouts(tensors: Dict[str, Any]) -> Dict[str, Layout]:
    return {name: layout(tensor, name) for name, tensor in tensors.items()}


def alignment_of(addresses: Iterable[int]) -> int:
    """Bytes that all addresses are multiples of, 16 at most."""
    bits = 16
    for place in addresses:
        bits |= place
    return bits & -bits


_READ = {"q", "k", "v", "grad_o"}


def read_at(places: Dict[str, int], dtype: str, bias_dtype: Optional[str]) -> List[int]:
    """Of the addresses of inputs, by name, those from which kernels of a GPU read 16 bytes at a time. dtype: of q."""
    with_bias = bias_dtype == dtype or (dtype in _c.BYTE_DTYPES and bias_dtype in ("float16", "bfloat16"))
    return [place for name, place in places.items() if name in _READ or (name == "bias" and with_bias)]


def prepared(direction, tensors, static, arrays, varlen, blocks, outputs, context, alignment=0) -> Prepared:
    """The plan of these tensors: one made before, or a new one. alignment: as attn_desc has it."""
    keys = 0 if alignment else planned_keys(direction, tensors, static, arrays, varlen, blocks)
    if keys:
        key = (direction, static, keys, context, signature(tensors["q"]),
               *[_but_length(tensors[name], 1, context) for name in ("k", "v")],
               *[(name, _but_length(t, _KEYS_AXIS[name], None) if name in _KEYS_AXIS else signature(t))
                 for name, t in arrays.items()],
               *[(name, signature(t)) for name, t in outputs.items()])
        found = kept(key, context, lambda: _growing(Problem(
            direction, layouts(tensors), Static(*static), layouts(arrays), varlen, blocks, layouts(outputs)), keys))
        if found.grows:
            return found
    key = (direction, static, varlen, blocks, context, alignment,
           *[signature(t) for t in tensors.values()],
           *[(name, signature(t)) for name, t in arrays.items()],
           *[(name, signature(t)) for name, t in outputs.items()])

    def make() -> Prepared:
        problem = Problem(direction, layouts(tensors), Static(*static), layouts(arrays), varlen, blocks,
                          layouts(outputs))
        problem.desc.alignment = alignment
        return problem.prepare()

    return kept(key, context, make)


FEW_ROWS = 16  # of q, as in a step of decoding
_KEYS_AXIS = {"intervals": 2, "bits": 3}  # tables that are laid out by len_kv
_LAID_OUT = {"bias", *SCALES}  # those whose strides the descriptor holds


def most_keys(keys: int) -> int:
    """Keys of the plan that serves a cache of `keys` keys while it grows: up to an eighth more, or 15."""
    step = 1 << max(keys.bit_length() - 4, 4)
    return -(-keys // step) * step


def planned_keys(direction, tensors, static, arrays, varlen, blocks) -> int:
    """Keys of a plan that serves this call and others with fewer or more keys; 0: its plan is for these tensors alone.
    The descriptor holds a bias's strides along keys, and scales' layouts. A kernel or strategy by name is for the
    problem that its caller sees. What does not fit together is refused when these tensors are planned."""
    q, k, v = (shape_of(tensors[name]) for name in ("q", "k", "v"))
    if direction == _c.BACKWARD or varlen or blocks or static[10] or static[11] or not (
            _LAID_OUT.isdisjoint(arrays) and len(q) == len(k) == len(v) == 4 and q[1] <= FEW_ROWS
            and 0 < k[1] == v[1] < 1 << 30):
        return 0
    for name, wanted in (("intervals", k[1]), ("bits", (k[1] + 7) // 8)):
        if name in arrays and shape_of(arrays[name])[_KEYS_AXIS[name]:_KEYS_AXIS[name] + 1] != (wanted,):
            return 0
    return most_keys(k[1])


def _but_length(seen: Any, axis: int, context: Optional[int]) -> tuple:
    """The signature without what differs from length to length. context: not None: GPU kernels read 16 bytes at a time
    where strides allow it."""
    dtype, shape, strides, *rest = signature(seen)
    even = () if context is None else tuple(all(step % n == 0 for step in strides[:3]) for n in (8, 16))
    return (dtype, *shape[:axis], *shape[axis + 1:], abs(strides[2]) < abs(strides[1]), strides[3], even, *rest)


def _growing(problem: "Problem", keys: int) -> Prepared:
    """The plan for `keys` keys. Where it holds where k and v lie, as those of some GPU kernels do, it serves nobody."""
    problem.desc.len_kv = keys
    made = problem.prepare()
    at = kv_layout(problem.tensors["k"], problem.tensors["v"])
    args = _c.Args(kv_layout=ctypes.addressof(at))
    holds = problem.desc.device == _c.CUDA and _c.check_args(made.handle, args, _c.ARGS_SIZE) == _c.UNSUPPORTED
    return made._replace(grows=not holds)


def kv_layout(k: Layout, v: Layout) -> _c.KvLayout:
    """Where k and v lie, (batch, row, head, dim)."""
    return _c.KvLayout(k.shape[1], strides_of(k, "k"), strides_of(v, "v"))


def kept(key: tuple, context: Optional[int], make: Callable[[], Any]) -> Any:
    """What make() gave for this key before, or gives now: plans. context: None on the CPU."""
    found = kept_already(key)
    if found is None:
        if context is not None:
            from . import _gpu
            _gpu.find_nvrtc()
        found = make()
        keep(key, found)
    return found


def kept_already(key: tuple, among: Dict[tuple, Any] = _plans) -> Any:
    """What is kept for this key; None: nothing."""
    return among.get(key)


def keep(key: tuple, plan: Any, among: Dict[tuple, Any] = _plans) -> None:
    """Keeps it for this key, as one of the last LIMIT."""
    while len(among) >= LIMIT:
        try:
            among.pop(next(iter(among)), None)
        except (StopIteration, RuntimeError):  # another thread was there first
            break
    among[key] = plan


def workspace(like: Any, device: Optional[int], size: int) -> Tuple[Any, Optional[int]]:
    """(owner, address) of a workspace; on the CPU one that the thread keeps, if it is not large."""
    if not size:
        return None, None
    if device is not None:
        return _tensor.gpu_workspace(like, size)
    kept = getattr(_local, "workspace", None)
    if kept is None or kept[0] < size:
        owner = np.empty(size, np.uint8)
        kept = (size, owner, owner.ctypes.data)
        if size <= _KEEP:
            _local.workspace = kept
    return kept[1], kept[2]


def output(name: str, given: Any, seen: Any, like: Any, shape: Tuple[int, ...], dtype: str,
           partly: bool) -> Tuple[Any, int]:
    """An output and its address: the caller's, `given`, if there is what it is seen as; else a new one. partly: as in
    _tensor.fill_of."""
    if seen is None:
        given, seen = empty(like, shape, dtype, name, partly)
    return given, address_of(seen, name)


def run(direction: int, given: Dict[str, Any], static: tuple, tables: Dict[str, Any], varlen: Optional[Tuple[int, int]],
        blocks: Optional[Tuple[int, int]], out: Dict[str, Any], want: Tuple[str, ...], seed: Any = 0,
        seed_offset: Any = 0, stream: Any = None) -> Dict[str, Any]:
    """Computes, and returns the wanted outputs by name: those in `out` as they are, the others newly made.

    given: q, k, v and (backward) o, lse, grad_o, grad_lse. tables: arrays by their field in attn_args. want: o, lse, or
    gradients.
    """
    _options.check_all(Static._fields, static)
    if type(seed) is not int or type(seed_offset) is not int:
        _seeds(seed, seed_offset)
    return run_typed(direction, given, static, tables, varlen, blocks, out, want, seed, seed_offset, stream)


def run_typed(direction, given, static, tables, varlen, blocks, out, want, seed, seed_offset, stream, ran=None):
    """Likewise, of options that are known to be of the right types, as those of torch's operators are. ran: is told of
    a plan that serves all calls whose tensors and options look like these, and whether it writes outputs partly."""
    handle = None if stream is None else _tensor.stream_handle(stream)
    tensors = {name: see(tensor, name, handle) for name, tensor in given.items()}
    rest = static, tables, varlen, blocks, out, want, seed, seed_offset, ran
    if device_of(tensors["q"]) is None:
        return _run(direction, tensors, None, None, None, *rest)
    return placed(tensors["q"], given["q"], handle, [*given.values(), *tables.values(), *out.values()],
                  lambda device, context, current: _run(direction, tensors, device, context, current, *rest))


def placed(seen: Any, tensor: Any, handle: Optional[int], used: List[Any], body: Callable[..., Any]) -> Any:
    """body(device, context, stream) where a tensor lies: (None, None, None) on the CPU; on a GPU, made current. handle:
    the caller's stream, for which torch's allocator then holds what is `used`; None: the current one of the tensor's
    library."""
    device = device_of(seen)
    if device is None:
        return body(None, None, None)
    if device == -2:
        layout(seen, "q")  # raises: it is neither on the CPU nor on a CUDA GPU
    from . import _gpu

    if handle is None:
        current = _tensor.current_stream(tensor)
        with _gpu.current(seen) as context:
            return body(device, context, current)
    with _gpu.current(seen) as context:
        with _gpu.on_stream(handle):
            results = body(device, context, handle)
        _gpu.record(used, handle)
        return results


def _run(direction, tensors, device, context, handle, static, tables, varlen, blocks, out, want, seed, seed_offset,
         ran):
    arrays = {}
    for name, value in tables.items():
        if name == "bias":
            arrays[name] = see_bias(value, name, handle)
            same_device(name, device_of(arrays[name]), device)
        elif name in SCALES:
            arrays[name] = as_scale(value, name, tensors["q"], device, handle)
        else:
            of = layout(tensors["q"], "q").dtype if name in ("alibi", "sink") else ""
            arrays[name] = as_table(value, name, table_dtype(name, of), device, handle)
    outputs = {name: writable(tensor, name, handle) for name, tensor in out.items()} if out else out
    args, places = _c.Args(), {name: address_of(tensor, name) for name, tensor in tensors.items()}
    places.update({name: address_of(tensor, name) for name, tensor in arrays.items()})
    for name, place in places.items():
        setattr(args, name, place)
    alignment = 0
    if device is not None:  # tensors that lie otherwise than its kernels read them are copied first
        read = read_at(places, layout(tensors["q"], "q").dtype,
                       layout(arrays["bias"], "bias").dtype if "bias" in arrays else None)
        alignment = alignment_of(read + [address(outputs[name]) for name in ("o",) if name in outputs])
    plan = prepared(direction, tensors, static, arrays, varlen, blocks, outputs, context, alignment % 16)
    if plan.grows:
        at = kv_layout(layout(tensors["k"], "k"), layout(tensors["v"], "v"))
        args.kv_layout = ctypes.addressof(at)
    results, like = {}, tensors["q"]
    partly = varlen is not None or "lens_q" in arrays or "lens_kv" in arrays  # rows outside sequences are not written
    for name in want:
        results[name], place = output("out" if name == "o" else name, out.get(name), outputs.get(name), like,
                                      plan.shapes[name], plan.dtype_of(name), partly)
        setattr(args, name, place)
    held = _seed(args, seed, seed_offset, device, handle) if static[5] else None
    owner, place = workspace(like, device, plan.workspace)
    _c.check(_c.run(plan.handle, args, _c.ARGS_SIZE, place, handle), varlen is not None)
    del owner, held
    if ran is not None and not plan.grows and all(arrays[name] is table for name, table in tables.items()):
        ran(plan, partly)
    return results


def _seeds(seed: Any, seed_offset: Any) -> None:
    """Raises unless both are numbers or arrays, with dropout or without."""
    for name, value in (("seed", seed), ("seed_offset", seed_offset)):
        if isinstance(value, bool) or not (isinstance(value, numbers.Integral) or _tensor.is_tensor(value)):
            raise _c.InvalidError(f"{name} is {value!r}; it takes an integer, or an array of one 64-bit integer")


def _seed(args, seed, seed_offset, device, handle):
    """Sets dropout's seed: numbers, or arrays of one 64-bit integer that the run reads."""
    held = []
    for name, value, bits in (("seed", seed, 64), ("seed_offset", seed_offset, 32)):
        if isinstance(value, numbers.Integral):
            if not 0 <= value < 1 << bits:
                raise _c.InvalidError(f"{name} is {value}; it takes 0 to 2^{bits} - 1")
            setattr(args, name, int(value))
            continue
        seen = see(value, name, handle)
        is_at = layout(seen, name)
        same_device(name, is_at.device, device)
        if is_at.dtype not in ("int64", "uint64") or int(np.prod(is_at.shape)) != 1:
            raise _c.InvalidError(f"{name} is {is_at.dtype} of shape {is_at.shape}; it takes one 64-bit integer")
        setattr(args, name + "_at", address(seen))
        held.append(seen)
    return held
