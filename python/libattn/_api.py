"""The functions of the package: attention, attention_varlen, their backward, and plan."""
from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _bytes, _c, _options, _problem, _run, _tensor, masks
from ._bytes import Quantized
from ._problem import Blocks, Plan

_WANT = (("o",), ("o", "lse"))
Window = Optional[Tuple[Optional[int], Optional[int]]]

_OPTIONS = """
    Masks. Row i is at t = i + len_kv - len_q among the keys: the last row sees the last key. Masks intersect, but
    for prefix. A row that sees no key has o = 0 and lse = -inf.

        causal         key j is visible iff j <= t
        window         (left, right): t - left <= j <= t + right; None or -1 is unbounded
        chunk          keys of the row's own chunk of that many: floor(t / chunk) == floor(j / chunk)
        prefix         (batch) int32: keys j < prefix are visible too, beside those of causal and window
        lens_q         (batch) int32: used rows of each sequence; lens_kv: used keys. What lies beyond is never read
        mask           by name, as causal & window(1024) & documents(ids): libattn.masks. Or bool, (1 or batch, 1 or
                       heads_q, len_q, len_kv), or fewer dimensions: True is visible; or floats, 0: visible, -inf: not.
                       Arrays are packed into bits on each call; CPU only
        bits           uint8, (1 or batch, 1 or heads_q, len_q, ceil(len_kv / 8)): bit j % 8 of byte j / 8: key j is
                       visible
        intervals      int32, (batch, 1 or heads_kv, len_kv, vectors): FlashMask (arXiv 2410.01359)
        blocks         Blocks: lists of visible key blocks for each row block

    Scores, in this order: scale q.k, softcap, alibi, bias.

        scale          > 0; None: 1 / sqrt(dim)
        softcap        > 0: s = softcap tanh(s / softcap)
        alibi          float32, (heads_q) or (1 or batch, heads_q): slopes; s -= slope |t - j| (arXiv 2108.12409)
        bias           float32, float16 or bfloat16, whatever broadcasts to (batch, heads_q, len_q, len_kv): s += bias
        sink           float32, (heads_q): one more logit in the denominator, in units of the scaled score
        dropout_p      0 <= p < 1, applied as round(256 p) / 256; seed (64 bits) and seed_offset (32 bits): numbers, or
                       arrays of one 64-bit integer that the run reads

    Tensors of one byte, forward only. q, k and v are float8_e4m3fn, of torch or ml_dtypes; or k and v are that or int8,
    beside a q of float32, float16 or bfloat16. An element's value is what is stored, times its scale. q, k and v may
    also be what quantize returned, without scales beside them: these are taken from there. Where the mean of k was
    subtracted and q was quantised with k_mean, lse is that of k with its mean.

        q_scale        float32: a number, (heads), (batch, heads), (batch, rows, heads), or as quantize returns it
                       (batch, blocks, heads, dim); 1 in place of all but rows: one for all. heads: heads_q or heads_kv;
                       blocks: of 64, 128 or single rows, counted from the first row of each sequence; dim: 1.
                       None: 1. On a GPU a tensor of it lies there, with any strides; a number does everywhere
        k_scale        likewise; heads: heads_kv. v_scale: likewise; blocks: of single rows; dim: dim_v, one for each
                       channel, where there is one block
        out_dtype      of o: "float32", "float16", "bfloat16" or "float8_e4m3fn"; None: q's, but bfloat16 where that
                       has one byte. A GPU stores other types than q's and float32 where q is float8_e4m3fn
        o_scale        one number, for an out_dtype of "float8_e4m3fn": o / o_scale is stored, what exceeds 448 as 448;
                       None: 1

    Execution.

        out_f32        the result is float32 whatever q is, as out_dtype="float32" has it
        deterministic  the same bits from run to run and for any number of threads
        threads        0: one for each processor the caller may use (CPU)
        isa            "auto", "portable", "avx2", "avx512", "avx512bf16", "amx", "neon" (CPU)
        kernel         None: the planner's choice, else a name that `attn kernels` lists
        strategy       None, or what of the plan is decided already, as attn_desc.strategy takes it
        stream         GPU: a torch or CuPy stream, or a cudaStream_t as an integer (0: the default stream). None:
                       torch's or CuPy's current one; needed for GPU tensors of other libraries

    Tensors are NumPy arrays, torch tensors, or anything with __dlpack__ or __cuda_array_interface__, on the CPU or a
    GPU, all on one device; nothing is copied. Any strides, but the last dimension's must be 1. Tables (lens_q, sink and
    the like) may be lists on the CPU.

    Raises InvalidError (a ValueError) for what is out of range or contradicts another, UnsupportedError for what this
    library or machine does not run, NoMemoryError, DeviceError; TypeError for what is no tensor. The message is the C
    library's where it found the mistake. A call that raises has written nothing.
"""


class Gradients(NamedTuple):
    """What attention_backward returns: of q, k and v, and where asked for of bias, ALiBi slopes and sinks."""

    q: Any
    k: Any
    v: Any
    bias: Any = None
    alibi: Any = None
    sink: Any = None


def _no_grad(**tensors: Any) -> None:
    """A result of these functions has no history: a tensor that wants a gradient would silently get none."""
    for name, tensor in tensors.items():
        if tensor is None or type(tensor) is np.ndarray or not _tensor.is_torch(tensor):
            continue
        if _tensor.has_tangent(tensor):
            raise _c.InvalidError(f"{name} has a tangent, and this function has no forward-mode derivative: pass what "
                                  "torch.autograd.forward_ad.unpack_dual gives as the primal")
        if tensor.requires_grad:
            import torch

            if not torch.is_grad_enabled():
                return
            if any(_dtype_of(given) in _c.BYTE_DTYPES for given in tensors.values()):
                raise _c.InvalidError(f"{name} requires grad, and attention to tensors of one byte has no backward: "
                                      "call it under torch.no_grad()")
            raise _c.InvalidError(f"{name} requires grad, and this function has no autograd: attention and "
                                  "merge_states of libattn.torch have; or call it under torch.no_grad()")


def _dtype_of(tensor: Any) -> str:
    return str(getattr(tensor, "dtype", "")).rsplit(".", 1)[-1]


def _tables(q, k, starts, longest, lens_q, lens_kv, prefix, mask, bits, intervals, blocks, alibi, bias,
            sink) -> Dict[str, Any]:
    tables: Dict[str, Any] = {}
    for name, value in (("lens_q", lens_q), ("lens_kv", lens_kv), ("prefix", prefix), ("intervals", intervals),
                        ("bits", bits), ("alibi", alibi), ("bias", bias), ("sink", sink)):
        if value is not None:
            tables[name] = value
    if mask is not None:
        if bits is not None:
            raise _c.InvalidError("mask and bits are both given: they mean the same")
        tables["bits"] = _pack(mask, _full(q, k, starts, longest))
    if blocks is not None:
        if not isinstance(blocks, Blocks):
            raise TypeError(f"blocks is {type(blocks).__name__}; it takes libattn.Blocks")
        for name in ("full_count", "full", "partial_count", "partial"):
            value = getattr(blocks, name)
            if value is not None:
                tables["block_" + name] = value
    return tables


def _pack(mask: Any, full: Tuple[int, ...]) -> np.ndarray:
    """A mask of bool, or of 0 and -inf, as bits, of four dimensions."""
    seen = _tensor.see(mask, "mask")
    is_at = _tensor.layout(seen, "mask")
    if is_at.dtype not in ("bool", "float16", "float32", "float64"):
        raise _c.InvalidError(f"mask is {is_at.dtype}; it takes bool, or floats that are 0 or -inf")
    if is_at.device is not None:
        raise _c.InvalidError("mask is on a GPU: pass bits, packed there")
    array: Any = _tensor.host(seen)
    if is_at.dtype != "bool":
        visible = array == 0
        if not np.all(visible | (array == -np.inf)):
            raise _c.InvalidError(masks.ADDED)
        array = visible
    masks.check_shape("mask", array.shape, full)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    bits = np.packbits(np.broadcast_to(array, (*array.shape[:3], full[3])), axis=-1, bitorder="little")
    return np.broadcast_to(bits, (*bits.shape[:2], full[2], bits.shape[3]))


def _full(q: Any, k: Any, starts: Any, longest: Optional[Tuple[int, int]]) -> Tuple[int, int, int, int]:
    """(batch, heads_q, len_q, len_kv); starts: cu_lens_q, and longest: rows and keys, of packed sequences."""
    of_q, of_k = (tuple(x) if isinstance(x, (tuple, list)) else _tensor.layout(_tensor.see(x, name), name).shape
                  for name, x in (("q", q), ("k", k)))
    dims = 3 if longest else 4
    for name, shape in (("q", of_q), ("k", of_k)):
        if len(shape) != dims:
            raise _c.InvalidError(f"{name} has shape {shape}; it takes {dims} dimensions")
    if longest is None:
        return of_q[0], of_q[2], of_q[1], of_k[1]
    of_starts = _tensor.layout(_tensor.see(starts, "cu_lens_q"), "cu_lens_q").shape if _tensor.is_tensor(
        starts) else np.shape(starts)
    return of_starts[0] - 1, of_q[1], *longest


def _named(q: Any, k: Any, starts: Any, longest: Optional[Tuple[int, int]], causal: Any, window: Any, chunk: Any,
           prefix: Any, mask: Any, intervals: Any, bias: Any) -> Tuple[Any, ...]:
    """causal, window, chunk, prefix, mask, intervals and bias, where a mask and a bias by name have become the other
    options that they mean. starts, longest: as in _full."""
    if bias is not None and masks.is_causal_bias(bias):
        _, _, rows, keys = _full(q, k, starts, longest)
        causal, window = masks.by_causal_bias(bias, rows, keys, causal, window, prefix, longest is not None)
        bias = None
    if isinstance(mask, masks.Mask):
        found = masks.options(mask, {"causal": causal, "window": window, "chunk": chunk, "prefix": prefix})
        causal, window, chunk, prefix = found.values()
        if mask.documents:
            if longest is not None or intervals is not None:
                raise _c.InvalidError("mask has documents: they go with neither cu_lens nor intervals")
            of_q, of_k = (x if isinstance(x, (tuple, list)) else _tensor.layout(_tensor.see(x, "q"), "q").shape
                          for x in (q, k))
            if len(of_q) == len(of_k) == 4:  # else the shapes are refused with the others
                intervals = masks.intervals_of(mask, of_q[1], of_k[1], of_k[0], causal)
        mask = mask.array
    elif mask is not None:
        masks.check_kind(mask)
    return causal, window, chunk, prefix, mask, intervals, bias


def _size(blocks: Optional[Blocks]) -> Optional[Tuple[int, int]]:
    return None if blocks is None else (_options.integer("blocks.rows", blocks.rows),
                                        _options.integer("blocks.keys", blocks.keys))


def _given(q, k, v, q_scale, k_scale, v_scale, o_scale, longest, return_lse, softcap, bias, alibi,
           sink) -> Tuple[Any, Any, Any, Dict[str, Any], Any]:
    """What _bytes.Given lists; nothing of it wants a gradient."""
    scales: Dict[str, Any] = {}
    dot = None
    if not q_scale is k_scale is v_scale is o_scale is None or Quantized in (type(q), type(k), type(v)):
        q, k, v, scales, dot = _bytes.given(q, k, v, (q_scale, k_scale, v_scale, o_scale), longest, return_lse, softcap,
                                            sink)
    if scales or type(q) is not np.ndarray:
        _no_grad(q=q, k=k, v=v, bias=bias, alibi=alibi, sink=sink, **scales)
    return q, k, v, scales, dot


def _corrected(lse: Any, dot: Any, q: Any, scale: Optional[float], stream: Any) -> Any:
    """correct_lse on the stream of the run that gave lse."""
    handle = None if stream is None else _tensor.stream_handle(stream)
    seen = _tensor.see(q, "q", handle)
    dim = _tensor.layout(seen, "q").shape[-1]
    return _run.placed(seen, q, handle, [lse, dot], lambda *_: _bytes.correct_lse(lse, dot, dim=dim, scale=scale))


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, window: Window = None, chunk: Optional[int] = None,
    prefix: Any = None, lens_q: Any = None, lens_kv: Any = None, mask: Any = None, bits: Any = None,
    intervals: Any = None, blocks: Optional[Blocks] = None, scale: Optional[float] = None,
    softcap: Optional[float] = None, alibi: Any = None, bias: Any = None, sink: Any = None, dropout_p: float = 0.0,
    seed: Any = 0, seed_offset: Any = 0, out: Any = None, return_lse: bool = False, out_f32: bool = False,
    deterministic: bool = False, threads: int = 0, isa: str = "auto", kernel: Optional[str] = None,
    strategy: Optional[str] = None, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
    out_dtype: Optional[str] = None, o_scale: Any = None, stream: Any = None,
) -> Any:
    """Exact attention, o = softmax(scale q k^T + bias | mask) v, in O(len) memory.

        q    (batch, len_q, heads_q, dim), float32, float16 or bfloat16; on the CPU float64 too, by the reference (slow;
             to check gradients with): then lse, alibi and sink are float64. Of one byte: below
        k    (batch, len_kv, heads_kv, dim); heads_q is a multiple of heads_kv: query head i reads KV head
             i / (heads_q / heads_kv)
        v    (batch, len_kv, heads_kv, dim_v)
        out  the array that the result is written into, but for rows beyond lens_q; None: a new one

    Returns o, (batch, len_q, heads_q, dim_v), of q's library and dtype (or out_dtype), 0 in rows beyond lens_q; with
    return_lse (o, lse), where lse, (batch, heads_q, len_q) float32, is the natural logarithm of each row's sum of
    exponentials, -inf in rows beyond lens_q.

        >>> import numpy, libattn
        >>> q = k = v = numpy.random.randn(1, 1024, 8, 64).astype("float32")
        >>> libattn.attention(q, k, v, causal=True).shape
        (1, 1024, 8, 64)

    Source: FlashAttention (arXiv 2205.14135); every option is one of attn.h.
    """
    q, k, v, scales, dot = _given(q, k, v, q_scale, k_scale, v_scale, o_scale, None, return_lse, softcap, bias, alibi,
                                  sink)
    if not mask is bias is None:
        causal, window, chunk, prefix, mask, intervals, bias = _named(
            q, k, None, None, causal, window, chunk, prefix, mask, intervals, bias)
    static = (causal, _options.window(window), chunk, scale, softcap, dropout_p, out_f32, deterministic, threads, isa,
              kernel, strategy, out_dtype)
    tables: Dict[str, Any] = {}
    if not lens_q is lens_kv is prefix is mask is bits is intervals is blocks is alibi is bias is sink is None:
        tables = _tables(q, k, None, None, lens_q, lens_kv, prefix, mask, bits, intervals, blocks, alibi, bias, sink)
    if scales:
        tables.update(scales)
    results = _run.run(_c.FORWARD, {"q": q, "k": k, "v": v}, static, tables, None, _size(blocks),
                       {} if out is None else {"o": out}, _WANT[_options.flag("return_lse", return_lse)], seed,
                       seed_offset, stream)
    if dot is not None:
        results["lse"] = _corrected(results["lse"], dot, q, scale, stream)
    return (results["o"], results["lse"]) if return_lse else results["o"]


def attention_varlen(
    q: Any, k: Any, v: Any, cu_lens_q: Any, cu_lens_kv: Any, *, max_len_q: Optional[int] = None,
    max_len_kv: Optional[int] = None, causal: bool = False, window: Window = None, chunk: Optional[int] = None,
    prefix: Any = None, lens_q: Any = None, lens_kv: Any = None, mask: Any = None, bits: Any = None,
    intervals: Any = None, blocks: Optional[Blocks] = None, scale: Optional[float] = None,
    softcap: Optional[float] = None, alibi: Any = None, bias: Any = None, sink: Any = None, dropout_p: float = 0.0,
    seed: Any = 0, seed_offset: Any = 0, out: Any = None, return_lse: bool = False, out_f32: bool = False,
    deterministic: bool = False, threads: int = 0, isa: str = "auto", kernel: Optional[str] = None,
    strategy: Optional[str] = None, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
    out_dtype: Optional[str] = None, o_scale: Any = None, stream: Any = None,
) -> Any:
    """Exact attention over sequences of different lengths, packed one after another without padding.

        q            (total_q, heads_q, dim); k: (total_kv, heads_kv, dim); v: (total_kv, heads_kv, dim_v)
        cu_lens_q    (batch + 1) int32: where each sequence starts in q, then where the last one ends; cu_lens_kv: in
                     k and v
        max_len_q    the longest sequence's rows, or more; max_len_kv: its keys. None: found in cu_lens (CPU only)

    Returns o, (total_q, heads_q, dim_v), and with return_lse lse, (heads_q, total_q). In the options len_q and len_kv
    are max_len_q and max_len_kv.
    """
    tables, longest = _varlen(cu_lens_q, cu_lens_kv, max_len_q, max_len_kv)
    q, k, v, scales, dot = _given(q, k, v, q_scale, k_scale, v_scale, o_scale, longest, return_lse, softcap, bias,
                                  alibi, sink)
    causal, window, chunk, prefix, mask, intervals, bias = _named(
        q, k, tables.get("cu_lens_q"), longest, causal, window, chunk, prefix, mask, intervals, bias)
    static = (causal, _options.window(window), chunk, scale, softcap, dropout_p, out_f32, deterministic, threads, isa,
              kernel, strategy, out_dtype)
    tables.update(_tables(q, k, tables.get("cu_lens_q"), longest, lens_q, lens_kv, prefix, mask, bits, intervals,
                          blocks, alibi, bias, sink), **scales)
    results = _run.run(_c.FORWARD, {"q": q, "k": k, "v": v}, static, tables, longest, _size(blocks),
                       {} if out is None else {"o": out}, _WANT[_options.flag("return_lse", return_lse)], seed,
                       seed_offset, stream)
    if dot is not None:
        results["lse"] = _corrected(results["lse"], dot, q, scale, stream)
    return (results["o"], results["lse"]) if return_lse else results["o"]


def _longest(table: Any, name: str) -> int:
    """The longest sequence of cu_lens on the CPU."""
    seen = _tensor.see(table, name) if _tensor.is_tensor(table) else np.asarray(table)
    if _tensor.device_of(seen) is not None:
        raise _c.InvalidError(f"max_{name[3:].replace('lens', 'len')} is needed where {name} is on a GPU: finding it "
                              "would wait for the GPU")
    starts = _tensor.host(_problem.as_table(table, name, "int32", None))
    if starts.ndim != 1 or starts.size < 1:
        raise _c.InvalidError(f"{name} has shape {starts.shape}; it takes (batch + 1)")
    return int(np.diff(starts.astype(np.int64)).max(initial=0))


def _varlen(cu_lens_q, cu_lens_kv, max_len_q, max_len_kv) -> Tuple[Dict[str, Any], Optional[Tuple[int, int]]]:
    """cu_lens as tables, and the longest sequence's rows and keys; {} and None without."""
    if (cu_lens_q is None) != (cu_lens_kv is None):
        raise _c.InvalidError("cu_lens_q and cu_lens_kv belong together; one is missing")
    if cu_lens_q is None:
        for name, given in (("max_len_q", max_len_q), ("max_len_kv", max_len_kv)):
            if given is not None:
                raise _c.InvalidError(f"{name} is given without cu_lens_q and cu_lens_kv")
        return {}, None
    longest = (_longest(cu_lens_q, "cu_lens_q") if max_len_q is None else _options.integer("max_len_q", max_len_q),
               _longest(cu_lens_kv, "cu_lens_kv") if max_len_kv is None else _options.integer("max_len_kv", max_len_kv))
    return {"cu_lens_q": cu_lens_q, "cu_lens_kv": cu_lens_kv}, longest


def attention_backward(
    grad_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *, grad_lse: Any = None, cu_lens_q: Any = None,
    cu_lens_kv: Any = None, max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None, grad_bias: bool = False,
    grad_alibi: bool = False, grad_sink: bool = False, causal: bool = False, window: Window = None,
    chunk: Optional[int] = None, prefix: Any = None, lens_q: Any = None, lens_kv: Any = None, mask: Any = None,
    bits: Any = None, intervals: Any = None, blocks: Optional[Blocks] = None, scale: Optional[float] = None,
    softcap: Optional[float] = None, alibi: Any = None, bias: Any = None, sink: Any = None, dropout_p: float = 0.0,
    seed: Any = 0, seed_offset: Any = 0, out_f32: bool = False, deterministic: bool = False, threads: int = 0,
    isa: str = "auto", kernel: Optional[str] = None, strategy: Optional[str] = None, stream: Any = None,
) -> Gradients:
    """Gradients of attention, exact, in O(len) further memory: probabilities are recomputed from q, k and lse.

        grad_o      the gradient of o, as o; grad_lse: that of lse, as lse; None: 0
        o, lse      what the forward returned, called with the same options
        grad_bias   True: the gradient of bias too, float32, summed over what repeats; grad_alibi, grad_sink: likewise
        cu_lens_q   and cu_lens_kv: of a packed batch, as attention_varlen takes them

    Returns Gradients(q, k, v, bias, alibi, sink).
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if isinstance(tensor, Quantized):
            raise _c.UnsupportedError(f"{name} is what quantize returned: attention to tensors of one byte has no "
                                      "backward")
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "grad_o": grad_o}
    if grad_lse is not None:
        tensors["grad_lse"] = grad_lse
    _no_grad(**tensors, bias=bias, alibi=alibi, sink=sink)
    tables, longest = _varlen(cu_lens_q, cu_lens_kv, max_len_q, max_len_kv)
    causal, window, chunk, prefix, mask, intervals, bias = _named(
        q, k, tables.get("cu_lens_q"), longest, causal, window, chunk, prefix, mask, intervals, bias)
    static = (causal, _options.window(window), chunk, scale, softcap, dropout_p, out_f32, deterministic, threads, isa,
              kernel, strategy)
    tables.update(_tables(q, k, tables.get("cu_lens_q"), longest, lens_q, lens_kv, prefix, mask, bits, intervals,
                          blocks, alibi, bias, sink))
    want = ["grad_q", "grad_k", "grad_v"]
    for name, wanted in (("bias", grad_bias), ("alibi", grad_alibi), ("sink", grad_sink)):
        wanted = _options.flag("grad_" + name, wanted)
        if wanted and name not in tables:
            raise _c.InvalidError(f"grad_{name} is True, but there is no {name}")
        if wanted:
            want.append("grad_" + name)
    results = _run.run(_c.BACKWARD, tensors, static, tables, longest, _size(blocks), {}, tuple(want), seed, seed_offset,
                       stream)
    return Gradients(**{name[5:]: result for name, result in results.items()})


def plan(
    q: Any, k: Any, v: Any = None, *, dtype: Optional[str] = None, kv_dtype: Optional[str] = None, device: Any = None,
    backward: bool = False,
    cu_lens_q: Any = None, cu_lens_kv: Any = None, max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None,
    causal: bool = False, window: Window = None, chunk: Optional[int] = None, prefix: Any = None, lens_q: Any = None,
    lens_kv: Any = None, mask: Any = None, bits: Any = None, intervals: Any = None, blocks: Optional[Blocks] = None,
    scale: Optional[float] = None, softcap: Optional[float] = None, alibi: Any = None, bias: Any = None,
    sink: Any = None, dropout_p: float = 0.0, out_f32: bool = False, deterministic: bool = False, threads: int = 0,
    isa: str = "auto", kernel: Optional[str] = None, strategy: Optional[str] = None, q_scale: Any = None,
    k_scale: Any = None, v_scale: Any = None, out_dtype: Optional[str] = None, o_scale: Any = None,
    alignment: Optional[int] = None,
) -> Plan:
    """The plan by which attention (or, with backward, attention_backward) of such tensors is computed.

        q, k, v   tensors, what quantize returned, or shapes; v: None is as k
        dtype     of shapes: "float32" (None), "float16", "bfloat16", "float64" or "float8_e4m3fn"; kv_dtype: of those
                  of k and v (None: dtype), also "int8"
        device    of shapes: "cpu" (None) or "cuda"
        alignment of shapes, on a GPU: bytes that their addresses are to be multiples of: 1, 2, 4, 8 or 16 (None)

        >>> print(libattn.plan((1, 4096, 32, 128), (1, 4096, 8, 128), causal=True).explain())
    """
    v = k if v is None else v
    tables, longest = _varlen(cu_lens_q, cu_lens_kv, max_len_q, max_len_kv)
    q, k, v, scales, _ = _bytes.given(q, k, v, (q_scale, k_scale, v_scale, o_scale), longest, False, softcap, sink)
    for name, given in (("dtype", dtype), ("kv_dtype", kv_dtype), ("device", device), ("alignment", alignment)):
        if given is not None and not any(isinstance(tensor, (tuple, list)) for tensor in (q, k, v)):
            raise _c.InvalidError(f"{name} is {given!r}, beside tensors, which have their own: it belongs to shapes")
    dtype = "float32" if dtype is None else _options.check("dtype", dtype)
    kv_dtype = dtype if kv_dtype is None else _options.check("kv_dtype", kv_dtype)
    for name, given in (("dtype", dtype), ("kv_dtype", kv_dtype)):
        if given not in _c.ANY_DTYPES:
            raise _c.InvalidError(f"{name} is {given!r}; it takes {', '.join(_c.ANY_DTYPES)}")
    if _options.check("alignment", alignment) not in (None, 1, 2, 4, 8, 16):
        raise _c.InvalidError(f"alignment is {alignment}; it takes 1, 2, 4, 8 or 16")
    layouts, inputs = {}, {}
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if isinstance(tensor, (tuple, list)):
            shape = tuple(_options.integer(f"{name}'s shape", n) for n in tensor)
            layouts[name] = _tensor.Layout(dtype if name == "q" else kv_dtype, shape, _tensor.packed(shape),
                                           _device_index(device), False)
        else:
            inputs[name] = _tensor.see(tensor, name)
            layouts[name] = _tensor.layout(inputs[name], name)
    on = layouts["q"].device
    causal, window, chunk, prefix, mask, intervals, bias = _named(
        q, k, tables.get("cu_lens_q"), longest, causal, window, chunk, prefix, mask, intervals, bias)
    tables.update(_tables(q, k, tables.get("cu_lens_q"), longest, lens_q, lens_kv, prefix, mask, bits, intervals,
                          blocks, alibi, bias, sink))
    arrays = {}
    for name, value in tables.items():
        kind = _problem.table_dtype(name, layouts["q"].dtype)
        inputs[name] = _problem.see_bias(value, name) if name == "bias" else _problem.as_table(value, name, kind, on)
        arrays[name] = _tensor.layout(inputs[name], name)
    arrays.update((name, _bytes.scale_at(scale, name, on)) for name, scale in scales.items())
    static = _problem.Static(causal, _options.window(window), chunk, scale, softcap, dropout_p, out_f32, deterministic,
                         threads, isa, kernel, strategy, out_dtype)
    _options.check_all(static._fields, static)
    if on is not None:
        from . import _gpu

        _gpu.find_nvrtc()
    direction = _c.BACKWARD if _options.flag("backward", backward) else _c.FORWARD
    problem = _problem.Problem(direction, layouts, static, arrays, longest, _size(blocks), {})
    if on is not None:
        places = {name: _problem.address_of(seen, name) for name, seen in inputs.items()}
        read = _run.read_at(places, layouts["q"].dtype, arrays["bias"].dtype if "bias" in arrays else None)
        problem.desc.alignment = _run.alignment_of([alignment or 16, *read])
    return problem.prepare().plan


def _device_index(device: Any) -> Optional[int]:
    name = "cpu" if device is None else str(device)
    if name == "cpu":
        return None
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise _c.InvalidError(f"device is {name!r}; it takes \"cpu\" or \"cuda\"")
    return int(index) if index else -1


def machine_use(path: Optional[str] = None) -> None:
    """Plans made from now on go by this machine file (as `attn machine --measure` writes it) or built-in machine; None:
    by the library's own choice again."""
    _options.check("path", path)
    _c.check(_c.machine_use(None if path is None else _options.text("path", os.fsdecode(path))))
    _run.clear_plans()


def version() -> str:
    """ "MAJOR.MINOR.PATCH" of the C library."""
    return _c.version().decode()


for _documented in (attention, attention_varlen):
    _documented.__doc__ = (_documented.__doc__ or "") + _OPTIONS
