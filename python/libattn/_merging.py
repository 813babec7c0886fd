"""merge_states: attention to keys in parts, merged."""
from __future__ import annotations

import ctypes
from typing import Any, Sequence, Tuple

from . import _c, _options, _problem, _run, _tensor
from ._api import _no_grad
from ._problem import Handle, address_of, same_device, shape_is, shape_of, strides_of
from ._tensor import Layout, layout, see, signature, writable


def merge_states(
    o: Sequence[Any], lse: Sequence[Any], *, out: Any = None, out_lse: Any = None, out_f32: bool = False,
    threads: int = 0, stream: Any = None,
) -> Tuple[Any, Any]:
    """Attention to keys in parts, merged: what attention to all keys at once would give.

        m = max lse_i    w_i = exp(lse_i - m)    o = sum w_i o_i / sum w_i    lse = m + ln sum w_i

        o        a list of 1 to 64 parts' results, each (batch, rows, heads, dim) or packed (rows, heads, dim), float32,
                 float16 or bfloat16, all of the same shape, dtype and strides
        lse      a list of as many logarithms of sums of exponentials, natural ones, each (batch, heads, rows) or packed
                 (heads, rows), float32, without gaps: as attention(return_lse=True) gives them
        out      the array that o is written into: a new one if None; one of the parts will do
        out_lse  likewise for lse
        out_f32  the new o is float32 whatever the parts are
        threads  0: one for each processor the caller may use (CPU)
        stream   as attention takes it

    Each key belongs to one part, and so does a sink. A part with an lse of -inf is empty; where all are, o is 0.
    Returns (o, lse), of the parts' library.

    Raises as attention does. Source: arXiv 1805.02867.

        >>> o, lse = libattn.merge_states([o_prefix, o_own], [lse_prefix, lse_own])
    """
    check_parts(o, lse)
    _options.check("threads", threads)
    _no_grad(**{f"o[{i}]": part for i, part in enumerate(o)}, **{f"lse[{i}]": part for i, part in enumerate(lse)})
    handle = None if stream is None else _tensor.stream_handle(stream)
    parts = [see(part, f"o[{i}]", handle) for i, part in enumerate(o)]
    lses = [see(part, f"lse[{i}]", handle) for i, part in enumerate(lse)]
    return _run.placed(parts[0], o[0], handle, [*o, *lse, out, out_lse], lambda device, context, current: _merge(
        device, context, current, parts, lses, out, out_lse, _options.flag("out_f32", out_f32), threads))


def check_parts(o: Any, lse: Any) -> None:
    """Raises unless both are lists, of equally many."""
    for name, parts in (("o", o), ("lse", lse)):
        if not isinstance(parts, (list, tuple)):
            raise TypeError(f"{name} is {type(parts).__name__}; it takes a list of the parts' arrays")
    if len(o) != len(lse) or not o:
        raise _c.InvalidError(f"o has {len(o)} parts and lse {len(lse)}: they take the same number, at least one")


def _merge(device, context, handle, parts, lses, out, out_lse, out_f32, threads):
    outputs = {name: writable(tensor, name, handle) for name, tensor in (("out", out), ("out_lse", out_lse))
               if tensor is not None}
    key = ("merge", out_f32, threads, context, *map(signature, parts), *map(signature, lses),
           *[(name, signature(tensor)) for name, tensor in outputs.items()])
    plan, dtype = _run.kept(key, context, lambda: _merge_plan(parts, lses, outputs, out_f32, threads))
    results = []
    for name, given, like, kind in (("out", out, parts[0], dtype), ("out_lse", out_lse, lses[0], "float32")):
        results.append(_run.output(name, given, outputs.get(name), parts[0], shape_of(like), kind, False))
    addresses = ctypes.c_void_p * len(parts)
    part_o, part_lse = addresses(*map(address_of, parts)), addresses(*map(address_of, lses))
    args = _c.MergeArgs(ctypes.addressof(part_o), ctypes.addressof(part_lse), results[0][1], results[1][1])
    _c.check(_c.merge_run(plan._handle, args, _c.MERGE_ARGS_SIZE, handle))
    return results[0][0], results[1][0]


def _merge_plan(parts, lses, outputs, out_f32, threads) -> Tuple[Handle, str]:
    """(plan, dtype of o)."""
    all_o, all_lse = ([layout(part, f"{name}[{i}]") for i, part in enumerate(listed)]
                      for name, listed in (("o", parts), ("lse", lses)))
    first = all_o[0]
    if len(first.shape) not in (3, 4):
        raise _c.InvalidError(f"o[0] has shape {first.shape}; it takes (batch, rows, heads, dim) or (rows, heads, dim)")
    batch, (rows, heads, dim) = first.shape[:-3], first.shape[-3:]
    if first.dtype not in _c.DTYPES:
        raise _c.InvalidError(f"o[0] is {first.dtype}; it takes float32, float16 or bfloat16")
    for i, part in enumerate(all_o):
        shape_is(f"o[{i}]", part.shape, first.shape)
        _problem.typed(f"o[{i}]", part, first.dtype)
        same_device(f"o[{i}]", part.device, first.device, "o[0]")
        if _steps(part) != _steps(first):
            raise _c.InvalidError(f"o[{i}] has strides {part.strides} and o[0] {first.strides}: all parts take the "
                                  "same")
    checked = [(f"lse[{i}]", part) for i, part in enumerate(all_lse)]
    if "out_lse" in outputs:
        checked.append(("out_lse", layout(outputs["out_lse"], "out_lse")))
    for name, part in checked:
        shape_is(name, part.shape, (*batch, heads, rows))
        _problem.typed(name, part, "float32")
        same_device(name, part.device, first.device, "o[0]")
        if not _problem.is_packed(part):
            raise _c.InvalidError(f"{name} has strides {part.strides}; it takes a packed tensor")
    dtype = "float32" if out_f32 else first.dtype
    desc = _c.MergeDesc(
        dtype=_c.DTYPES[first.dtype], out_dtype=_c.DTYPES[dtype], device=_c.CPU if first.device is None else _c.CUDA,
        parts=len(parts), batch=batch[0] if batch else 1, rows=rows, heads=heads, dim=dim,
        threads=_options.integer("threads", threads, 31))
    desc.part_stride[:] = strides_of(first, "o[0]")
    if "out" in outputs:
        is_at = layout(outputs["out"], "out")
        shape_is("out", is_at.shape, first.shape)
        _problem.typed("out", is_at, dtype)
        same_device("out", is_at.device, first.device, "o[0]")
        desc.o_stride[:] = strides_of(is_at, "out")
    return Handle(desc, _c.merge_plan_create, _c.merge_plan_destroy), dtype


def _steps(tensor: Layout) -> Tuple[int, ...]:
    """Strides, but for those of single elements, or of none, which mean nothing."""
    return () if 0 in tensor.shape else tuple(step if n > 1 else 0 for n, step in zip(tensor.shape, tensor.strides))
