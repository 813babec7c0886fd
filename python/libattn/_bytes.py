"""q, k and v of one byte: scales, what quantize returned, and the lse of keys whose mean was removed."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import _c, _options, _tensor
from ._problem import SCALES, as_table, same_device
from ._tensor import layout, see


class Quantized(NamedTuple):
    """What quantize returns: x is data * scale, in the rows that a scale is of. attention takes it as q, k or v."""

    #: Of x's shape, float8_e4m3fn or int8.
    data: Any
    #: float32, (sequences, blocks, heads, dim) with an extent of 1 along each axis that has one scale for all.
    scale: Any
    #: float32, (sequences, heads, dim): what subtract_mean took away, else None.
    mean: Any = None
    #: float32, as an LSE: (batch, heads, rows) or packed (heads, rows): each row's product with k_mean, else None.
    dot: Any = None
    #: Rows of a sequence that share a scale: 1, 64 or 128, counted from its first one; 0: all. None: as the shape says.
    rows: Optional[int] = None
    #: (elements, seed) of hadamard; None: it was not rotated.
    rotation: Optional[Tuple[int, int]] = None
    #: Of x: data of another shape, as after a slice, does not belong to scale. None: unknown.
    shape: Optional[Tuple[int, ...]] = None


# ---- scales --------------------------------------------------------------------------------------


def as_scale(value: Any, name: str, like: Any, device: Optional[int], stream: Optional[int] = None) -> Any:
    """A scale for q, which is seen as `like`: a float32 tensor where it lies, with any strides; a number as a new one;
    on the CPU also lists and arrays of other numbers, converted."""
    if _options.NUMBER.takes(value):
        return _tensor.full(like, (1,), "float32", name, _float32(name, value))[1]
    if _tensor.is_tensor(value):
        seen = see(value, name, stream)
        if layout(seen, name).dtype == "float32":
            return seen
    return as_table(value, name, "float32", device, stream)


def _float32(name: str, value: Any) -> float:
    number = _options.number(name, value)
    rounded = ctypes.c_float(number).value
    if math.isinf(rounded) and not math.isinf(number):
        raise _c.InvalidError(f"{name} is {value!r}; it takes a number that float32 holds")
    return rounded


def scale_at(value: Any, name: str, device: Optional[int]) -> _tensor.Layout:
    """The layout of as_scale's result, without the memory that a number needs."""
    if _options.NUMBER.takes(value):
        _float32(name, value)
        return _tensor.Layout("float32", (1,), (1,), device, False)
    return layout(as_scale(value, name, None, device), name)


# ---- what quantize returned ----------------------------------------------------------------------


class Given(NamedTuple):
    """q, k and v as tensors, scales by their fields in attn_args, and what the lse lacks: each row's product with the
    mean of the keys; None: nothing."""

    q: Any
    k: Any
    v: Any
    scales: Dict[str, Any]
    dot: Any


def given(q: Any, k: Any, v: Any, scales: Tuple[Any, ...], longest: Optional[Tuple[int, int]], return_lse: bool,
          softcap: Any, sink: Any) -> Given:
    """Of q, k and v each a tensor, or what quantize returned. scales: of q, k, v and o, None where none is given.
    longest: rows and keys of the longest packed sequences."""
    found = dict(zip(SCALES, scales))
    tensors = {"q": q, "k": k, "v": v}
    made = {name: x for name, x in tensors.items() if isinstance(x, Quantized)}
    if made:
        _check_rotation(made)
        _check_means(made, return_lse, softcap, sink)
        for name, x in made.items():
            if found[name + "_scale"] is not None:
                raise _c.InvalidError(f"{name}_scale is given beside {name} as quantize returned it, which has its own")
            tensors[name] = x.data
            found[name + "_scale"] = _scale_of(name, x, None if longest is None else longest[name != "q"])
    dot = made["q"].dot if return_lse and "q" in made else None
    if dot is not None:
        _check_dot(dot, tensors["q"])
    return Given(**tensors, scales={name: scale for name, scale in found.items() if scale is not None}, dot=dot)


def query(q: Any, q_scale: Any, o_scale: Any, longest: Optional[int]) -> Tuple[Any, Dict[str, Any]]:
    """Of attention to a cache: q as a tensor, and the scales that are given, by their fields in attn_args. longest:
    rows of the longest packed sequence."""
    if isinstance(q, Quantized) and q.dot is not None:
        raise _c.InvalidError("q was quantised with k_mean, but keys of the cache have their mean, as far as is known "
                              "here: quantise q without k_mean. If they lack it, pass q.data and q_scale=q.scale; "
                              "libattn.correct_lse makes the lse that of keys with their mean")
    rows = None if longest is None else (longest, 0)
    found = given(q, None, None, (q_scale, None, None, o_scale), rows, False, None, None)
    return found.q, found.scales


def _scale_of(name: str, x: Quantized, longest: Optional[int]) -> Any:
    """Its scale, of as many blocks as the call's sequences have: quantize may have been told of longer packed ones."""
    if x.rows not in (None, 0, 1, 64, 128):
        raise _c.InvalidError(f"{name}.rows is {x.rows!r}; it takes 0, 1, 64, 128 or None")
    if name == "v" and x.rows not in (None, 0, 1):
        raise _c.InvalidError(f"v was quantised with scales for blocks of {x.rows} rows; it takes the granularity "
                              "tensor, head, channel or token")
    shape = tuple(layout(see(x.data, name), name).shape)
    if x.shape is not None and shape != tuple(x.shape):
        raise _c.InvalidError(f"{name}.data has shape {shape}, where {tuple(x.shape)} was quantised: quantise what is "
                              f"given here, or cut {name}.scale like it and pass both apart, as {name} and "
                              f"{name}_scale")
    if x.scale is None:
        raise _c.InvalidError(f"{name}.scale is None; it takes what {name}_scale takes")
    if not x.rows:
        return x.scale
    of_scale = tuple(layout(see(x.scale, name + ".scale"), name + ".scale").shape)
    if len(of_scale) != 4:
        raise _c.InvalidError(f"{name}.scale has shape {of_scale}; where {name}.rows is {x.rows} it takes (sequences, "
                              "blocks, heads, dim)")
    if longest is None or len(shape) != 3:
        return x.scale
    rows, blocks = min(longest, shape[0]), of_scale[1]
    needed = -(-rows // x.rows)
    if blocks < needed:
        raise _c.InvalidError(f"{name} was quantised with scales for {blocks} blocks of {x.rows} rows, where sequences "
                              f"have up to {rows} rows")
    return x.scale if blocks == needed else x.scale[:, :needed]


def _check_rotation(made: Dict[str, Quantized]) -> None:
    """Raises where o would be that of other products, or rotated itself."""
    for name, x in made.items():
        if not (x.rotation is None or (isinstance(x.rotation, tuple) and len(x.rotation) == 2)):
            raise _c.InvalidError(f"{name}.rotation is {x.rotation!r}; it takes (elements, seed) or None")
    of_q, of_k = (made[name].rotation if name in made else None for name in ("q", "k"))
    if of_q != of_k:
        name, other = ("q", "k") if of_q is not None else ("k", "q")
        how = made[name].rotation
        raise _c.InvalidError(
            f"{name} was rotated (hadamard={how[0]}, seed={how[1]}), and {other} was not so by quantize: products of q "
            f"and k need the same rotation of both. If {other} has it by other means, pass {name}.data and "
            f"{name}_scale={name}.scale")
    if "v" in made and made["v"].rotation is not None:
        raise _c.InvalidError("v was rotated (hadamard), and o would be, too: quantise v without, or pass v.data and "
                              "v_scale=v.scale")


def _check_means(made: Dict[str, Quantized], return_lse: bool, softcap: Any, sink: Any) -> None:
    """Raises where a mean that is missing would make results wrong, or a product with it would be ignored."""
    for name in ("q", "v"):
        if name in made and made[name].mean is not None:
            raise _c.InvalidError(f"{name} was quantised with subtract_mean, which is of k alone")
    for name in ("k", "v"):
        if name in made and made[name].dot is not None:
            raise _c.InvalidError(f"{name} was quantised with k_mean, which is of q alone")
    has_mean = "k" in made and made["k"].mean is not None
    has_dot = "q" in made and made["q"].dot is not None
    if has_dot and not has_mean:
        raise _c.InvalidError("q was quantised with k_mean, but k has its mean, as far as is known here: pass what "
                              "quantize(k, subtract_mean=True) returned, or quantise q without k_mean")
    if has_mean:
        _refuse_shift(softcap, sink)
    if has_mean and return_lse and not has_dot:
        raise _c.InvalidError("return_lse is True, and k was quantised with subtract_mean: the lse is right only with "
                              "the products of q and k.mean. Pass q as quantize(q, k_mean=k.mean) returns it, or "
                              "quantise k with subtract_mean=False")


def _check_dot(dot: Any, q: Any) -> None:
    of_dot, of_q = layout(see(dot, "q.dot"), "q.dot"), layout(see(q, "q"), "q")
    shape = of_q.shape
    wanted = (shape[1], shape[0]) if len(shape) == 3 else (shape[0], shape[2], shape[1]) if len(shape) == 4 else None
    if wanted is not None and of_dot.shape != wanted:  # other shapes of q are refused with the others
        raise _c.InvalidError(f"q.dot has shape {of_dot.shape}; it takes {wanted}, as the lse of q has it")
    same_device("q.dot", of_dot.device, of_q.device)


# ---- the lse of keys without their mean ----------------------------------------------------------


def _refuse_shift(softcap: Any, sink: Any) -> None:
    if softcap is not None or sink is not None:
        name = "softcap" if softcap is not None else "sink"
        raise _c.UnsupportedError(f"{name}: with keys whose mean was removed it gives another o, which nothing "
                                  "corrects: quantise k with subtract_mean=False")


def correct_lse(lse: Any, dot: Any, *, dim: Optional[int] = None, scale: Optional[float] = None,
                softcap: Optional[float] = None, sink: Any = None) -> Any:
    """The lse over all of k, where attention had k without its mean: lse + scale * dot.

        lse    float32, as attention(return_lse=True) gives it
        dot    of quantize(q, k_mean=...), of the same shape
        scale  of the scores, as attention had it; None: 1 / sqrt(dim)
        softcap, sink  as attention had them: with either, o is not what it would have been with k, and nothing
               corrects it. They are refused

    A row without keys keeps its lse of -inf.
    """
    _options.check_all(("dim", "scale", "softcap"), (dim, scale, softcap))
    _refuse_shift(softcap, sink)
    if scale is None:
        if dim is None:
            raise _c.InvalidError("scale and dim are both None: it takes one of them")
        scale = _options.integer("dim", dim, 31, 1) ** -0.5
    if tuple(lse.shape) != tuple(dot.shape):
        raise _c.InvalidError(f"lse has shape {tuple(lse.shape)} and dot {tuple(dot.shape)}: they must be equal")
    return lse + dot * _options.number("scale", scale)
