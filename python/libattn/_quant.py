"""q, k and v of attention in one byte: quantize (include/attn_quant.h)."""
from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from . import _c, _options, _run, _tensor
from ._api import _longest, _no_grad
from ._bytes import Quantized
from ._problem import Handle, address_of, as_table, shape_is, strides_of
from ._tensor import empty, layout, see, signature

GRANULARITIES = ("tensor", "head", "channel", "block", "token")


def quantize(
    x: Any, dtype: str = "float8_e4m3fn", *, granularity: str = "block", block_rows: int = 64,
    scale_heads: Optional[int] = None, hadamard: Any = False, seed: int = 0, subtract_mean: bool = False,
    k_mean: Any = None, cu_lens: Any = None, max_len: Optional[int] = None, threads: int = 0, stream: Any = None,
) -> Quantized:
    """q, k or v in one byte, and the scales by which attention multiplies it again.

        scale = max |x| / 448 (int8: / 127) of what shares it    data = x / scale, rounded to nearest even

        x              (batch, rows, heads, dim) or packed (rows, heads, dim) with cu_lens: float32, float16 or
                       bfloat16, on the CPU or a GPU; k_mean and cu_lens lie there, too
        dtype          "float8_e4m3fn" or "int8"; NumPy's float8_e4m3fn is ml_dtypes'
        granularity    what shares a scale, and so the shape of the scales:
                       "tensor"   all of x                       (1, 1, 1, 1)
                       "head"     each (sequence, head)          (sequences, 1, heads, 1)
                       "channel"  each (sequence, head, channel) (sequences, 1, heads, dim): of v
                       "block"    block_rows rows of a head      (sequences, ceil(rows / block_rows), heads, 1): of q, k
                       "token"    each row of a head             (sequences, rows, heads, 1)
                       rows: with cu_lens max_len, or the total if that is less
        block_rows     64 or 128, counted from the first row of each sequence
        scale_heads    None: heads. Else a divisor of it: neighbouring heads share scales, as the query heads of a KV
                       head may; it then stands for heads in the shape of the scales
        hadamard       True: rows are multiplied by random signs, then by a Hadamard matrix, divided by its root: an
                       orthogonal matrix, which spreads outliers over the row. Do it to q and k alike. The matrix is of
                       the greatest power of two that divides dim; a number: of so many elements (16 to 512)
        seed           of the signs: the same for q and k
        subtract_mean  of k: the mean over each sequence's rows is removed, and returned. Attention's o does not change
                       by it, its lse does: libattn.attention(q8, k8, v8) corrects it; by hand, correct_lse does
        k_mean         of q: the mean that quantize(k, subtract_mean=True) returned; gives dot, which the lse then needs
        cu_lens        (sequences + 1) int32: starts of packed sequences, then the end; max_len: rows of the longest one
                       (None: found in cu_lens; CPU only)
        threads        0: one for each processor the caller may use (CPU)
        stream         as attention takes it

    What shares a scale with a NaN or infinity becomes NaN (int8: 0, with a scale of NaN); zeros have a scale of 1. A
    GPU gives the bits that a CPU gives.
    Returns Quantized. docs/FP8.md shows what each option is worth. Raises as attention does.

        >>> k8 = libattn.quantize(k, hadamard=True, subtract_mean=True)
        >>> q8 = libattn.quantize(q, hadamard=True, k_mean=k8.mean)
        >>> v8 = libattn.quantize(v, granularity="channel")
        >>> o = libattn.attention(q8, k8, v8)
    """
    _options.check_all(("granularity", "block_rows", "scale_heads", "hadamard", "subtract_mean", "max_len", "threads"),
                       (granularity, block_rows, scale_heads, hadamard, subtract_mean, max_len, threads))
    if not isinstance(dtype, str) or dtype not in _c.BYTE_DTYPES:
        raise _c.InvalidError(f"dtype is {dtype!r}; it takes {' or '.join(_c.BYTE_DTYPES)}")
    if granularity not in GRANULARITIES:
        raise _c.InvalidError(f"granularity is {granularity!r}; it takes {', '.join(GRANULARITIES)}")
    if subtract_mean and k_mean is not None:
        raise _c.InvalidError("subtract_mean and k_mean are both given: the first is of k, the second of q")
    if max_len is not None and cu_lens is None:
        raise _c.InvalidError(f"max_len is {max_len}; without cu_lens it takes None")
    _no_grad(x=x, k_mean=k_mean)
    handle = None if stream is None else _tensor.stream_handle(stream)
    if cu_lens is not None and max_len is None:
        max_len = _longest(cu_lens, "cu_lens")
    seen = see(x, "x", handle)
    options = (dtype, granularity, block_rows, scale_heads, hadamard, seed, subtract_mean, max_len, threads)
    return _run.placed(seen, x, handle, [x, k_mean, cu_lens], lambda device, context, current: _quantize(
        device, context, current, seen, k_mean, cu_lens, options))


def _quantize(device, context, handle, seen, k_mean, cu_lens, options) -> Quantized:
    starts = None if cu_lens is None else as_table(cu_lens, "cu_lens", "int32", device, handle)
    means = None if k_mean is None else as_table(k_mean, "k_mean", "float32", device, handle)
    shapes = [None if t is None else tuple(layout(t, n).shape) for t, n in ((starts, "cu_lens"), (means, "k_mean"))]
    key = ("quantize", *options, context, signature(seen), *shapes)
    plan, desc, scale_shape = _run.kept(key, context, lambda: _plan(layout(seen, "x"), shapes, *options))
    of_x, dtype, subtract_mean = layout(seen, "x").shape, options[0], options[6]
    data, data_seen = empty(seen, of_x, dtype, "data", starts is not None)
    scale, scale_seen = empty(seen, scale_shape, "float32", "scale", False)
    mean = dot = mean_seen = dot_seen = None
    if subtract_mean:
        mean, mean_seen = empty(seen, (desc.batch, desc.heads, desc.dim), "float32", "mean", False)
    if means is not None:
        lines = (desc.heads, of_x[0]) if len(of_x) == 3 else (desc.batch, desc.heads, desc.rows)
        dot, dot_seen = empty(seen, lines, "float32", "dot", starts is not None)
    given = [None if t is None else address_of(t, n) for t, n in (
        (seen, "x"), (data_seen, "data"), (scale_seen, "scale"), (starts, "cu_lens"),
        (mean_seen if means is None else means, "mean"), (dot_seen, "dot"))]
    args = _c.QuantArgs(*given)
    _c.check(_c.quant_run(plan._handle, args, ctypes.sizeof(args), handle))
    return Quantized(data, scale, mean, dot, desc.scale_rows, (desc.rotate, desc.seed) if desc.rotate else None,
                     tuple(of_x))


def _plan(x, shapes, dtype, granularity, block_rows, scale_heads, hadamard, seed, subtract_mean, max_len, threads):
    """(plan, desc, shape of the scales)."""
    of_starts, of_means = shapes
    wanted = "(batch, rows, heads, dim)" if of_starts is None else "(rows, heads, dim), as cu_lens is given"
    if len(x.shape) != (4 if of_starts is None else 3):
        raise _c.InvalidError(f"x has shape {x.shape}; it takes {wanted}")
    if x.dtype not in _c.DTYPES or x.dtype == "float64":
        raise _c.InvalidError(f"x is {x.dtype}; it takes float32, float16 or bfloat16")
    heads, dim = x.shape[-2:]
    desc = _c.QuantDesc(dtype=_c.DTYPES[x.dtype], out_dtype=_c.BYTE_DTYPES[dtype],
                        device=_c.CPU if x.device is None else _c.CUDA, heads=heads, dim=dim,
                        threads=_options.integer("threads", threads, 31))
    if of_starts is None:
        desc.batch, desc.rows = x.shape[:2]
    else:
        if len(of_starts) != 1 or of_starts[0] < 1:
            raise _c.InvalidError(f"cu_lens has shape {of_starts}; it takes (sequences + 1)")
        desc.flags |= _c.QUANT_VARLEN
        desc.batch, desc.total = of_starts[0] - 1, x.shape[0]
        desc.rows = min(_options.integer("max_len", max_len, 31, 0), x.shape[0])
    desc.x_stride[:] = strides_of(x, "x")
    if isinstance(hadamard, (bool, np.bool_)):
        desc.rotate = _greatest_block(dim) if hadamard else 0
    else:
        desc.rotate = _options.integer("hadamard", hadamard, 31, 0)
    if desc.rotate:
        desc.seed = _options.integer("seed", seed, 64, 0)
    if scale_heads is not None:
        desc.scale_heads = _options.integer("scale_heads", scale_heads, 31, 1)
        heads = desc.scale_heads
    if granularity in ("block", "token"):
        desc.scale_rows = _options.integer("block_rows", block_rows, 31, 1) if granularity == "block" else 1
        if desc.scale_rows not in ((64, 128) if granularity == "block" else (1,)):
            raise _c.InvalidError(f"block_rows is {block_rows}; it takes 64 or 128")
    blocks = -(-desc.rows // desc.scale_rows) if desc.scale_rows else 1
    shape = (desc.batch, blocks, heads, dim if granularity == "channel" else 1)
    shape = (1, 1, 1, 1) if granularity == "tensor" else shape
    if granularity != "tensor":
        steps = _tensor.packed(shape)
        desc.scale_stride[:] = (steps[0], steps[1] if desc.scale_rows else 0, steps[2],
                                1 if granularity == "channel" else 0)
    if subtract_mean:
        desc.flags |= _c.QUANT_MEAN
    if of_means is not None:
        desc.flags |= _c.QUANT_DOT
        if len(of_means) != 3:
            raise _c.InvalidError(f"k_mean has shape {of_means}; it takes (sequences, KV heads, dim)")
        desc.mean_heads = of_means[1]
        shape_is("k_mean", of_means, (desc.batch, of_means[1], dim))
    return Handle(desc, _c.quant_plan_create, _c.quant_plan_destroy), desc, shape


def _greatest_block(dim: int) -> int:
    block = dim & -dim
    if block < 16:
        raise _c.InvalidError(f"hadamard: dim is {dim}; it takes multiples of 16")
    return block
