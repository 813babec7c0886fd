"""KV caches: append_kvcache and attention_with_kvcache."""
from __future__ import annotations

import numbers
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple

import numpy as np

from . import _c, _options, _problem, _run, _tensor, masks
from ._api import Window, _longest, _no_grad, _pack
from ._problem import Handle, address_of, as_table, same_device, shape_is, shape_of, strides_of
from ._run import layouts
from ._tensor import Layout, View, empty, is_torch, layout, packed, see, signature, writable

_CACHE = """
        k_cache        the keys' cache: pages in any order, (pages, page_size, heads_kv, dim), with page_table; without,
                       one stretch for each sequence, (batch, capacity, heads_kv, dim). Any strides, but the last
                       dimension's must be 1
        v_cache        the values': the same but for dim_v
        cache_seqlens  tokens of each sequence that are in the cache before the call: (batch) int32, or one number for
                       all. It is not changed: after a call with new tokens the sequences have cache_seqlens + new
        page_table     (batch, width) int32: key j of a sequence is slot j % page_size of page page_table[j //
                       page_size]. Entries that are not used may be anything. A batch that is a choice of a larger
                       cache's stretches is page_table=choice[:, None]
"""
_ROTARY = """
        rotary_cos     (positions, rotary_dim / 2) float32, and rotary_sin: of a new k and of q at position p in its
                       sequence, pair i, (a, b), becomes (a c - b s, b c + a s), where c = cos[p, i] and s = sin[p, i];
                       elements beyond rotary_dim stay (RoFormer, arXiv 2104.09864)
        rotary_interleaved
                       True: pairs are elements 2 i and 2 i + 1; False: i and i + rotary_dim / 2. It has no default
        rotary_positions
                       (batch, new) or packed (total) int64: the position of each new token, 0 to positions - 1, as in
                       a tree of drafts, whose siblings stand at one position; None: its index in its sequence
"""
_SCALES = """
        k_scale        of a cache of float8_e4m3fn or int8, on the CPU, and v_scale: float32, what the cache's elements
                       are multiplied by: a number, (heads_kv), (batch, heads_kv), 1 in place of either, or one for
                       each slot and head, (pages or batch, slots, heads_kv); None: 1. Of new tokens x / scale is
                       stored, to nearest even; what exceeds the type becomes its greatest number. They are turned
                       first, in float, and rounded once. New tokens of the cache's own type are stored as they are
        token_scales   True: the scale of each new token and head is found, its greatest absolute value / 448 (int8:
                       / 127), and written into k_scale and v_scale, which are of slots. NaN or infinity in a row makes
                       its scale NaN
"""
_RUN = """
        fault          on a GPU: one int32 or uint32 that the caller clears; it becomes 1 where a length or a page id
                       is out of range, which there only the kernels see: see attn_run and attn_kv_run in attn.h
        stream         as attention takes it
"""
_RAISES = """
    Raises as attention does. A call that raises has written nothing, nor into the cache: what can be wrong with the
    attention is known before the append runs (on a GPU but for what `fault` tells). The same call once more gives the
    same.
"""


class Rotary(NamedTuple):
    cos: Any
    sin: Any
    interleaved: bool
    positions: Any


def _rotary(cos: Any, sin: Any, interleaved: Optional[bool], positions: Any, k: Any) -> Optional[Rotary]:
    _options.check("rotary_interleaved", interleaved)
    if cos is None and sin is None:
        for name, value in (("rotary_interleaved", interleaved), ("rotary_positions", positions)):
            if value is not None:
                raise _c.InvalidError(f"{name} is given without rotary_cos and rotary_sin")
        return None
    if cos is None or sin is None:
        raise _c.InvalidError("rotary_cos and rotary_sin belong together; one is missing")
    if interleaved is None:
        raise _c.InvalidError("rotary_interleaved is None; with rotary_cos it takes True (pairs are elements 2 i and "
                              "2 i + 1) or False (i and i + rotary_dim / 2)")
    if k is None:
        raise _c.InvalidError("rotary_cos is given without k and v: the cache holds keys that are turned already")
    return Rotary(cos, sin, bool(interleaved), positions)


def _together(k: Any, v: Any) -> None:
    if (k is None) != (v is None):
        raise _c.InvalidError(f"{'k' if k is None else 'v'} is None: k and v belong together")


def append_kvcache(
    k: Any, v: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, page_table: Any = None, cu_lens: Any = None,
    q: Any = None, rotary_cos: Any = None, rotary_sin: Any = None, rotary_interleaved: Optional[bool] = None,
    rotary_positions: Any = None, threads: int = 0, fault: Any = None, stream: Any = None, k_scale: Any = None,
    v_scale: Any = None, token_scales: bool = False,
) -> Any:
    """Writes keys and values of new tokens into a cache, after those that are there.

        k              (batch, new, heads_kv, dim), and v, (batch, new, heads_kv, dim_v), of the cache's dtype, or
                       float32, float16 or bfloat16 where that has one byte; rows of several sequences at even distances
        cu_lens        (batch + 1) int32: k, v and q are packed, (total, heads, dim): where each sequence's rows start,
                       then where the last one's end
        q              (batch, new, heads_q, dim): turned like k where rotary_cos is given. q itself stays
        threads        0: one for each processor the caller may use (CPU)
"""
    _no_grad(k=k, v=v, k_cache=k_cache, v_cache=v_cache, q=q, k_scale=k_scale, v_scale=v_scale)
    _options.check("threads", threads)
    scales = Scales(k_scale, v_scale, _options.flag("token_scales", token_scales))
    if k is None or v is None:
        raise _c.InvalidError(f"{'k' if k is None else 'v'} is None: append_kvcache takes both")
    rotary = _rotary(rotary_cos, rotary_sin, rotary_interleaved, rotary_positions, k)
    if q is not None and rotary is None:
        raise _c.InvalidError("q is given without rotary_cos: nothing would be done with it")
    handle = None if stream is None else _tensor.stream_handle(stream)
    used = [k, v, k_cache, v_cache, cache_seqlens, page_table, cu_lens, q, rotary_cos, rotary_sin, rotary_positions,
            fault, k_scale, v_scale]
    seen = see(k, "k", handle)

    def body(device, context, handle):
        call = _Call(device, context, handle, k, v, k_cache, v_cache, cache_seqlens, page_table, cu_lens, "cu_lens",
                       q, rotary, threads, fault, scales)
        prepared = _run.kept(("append", *call.key()), context, lambda: _append_plan(call))
        turned = call.fill(prepared)
        try:
            call.run(prepared)
        except _c.InvalidError as error:
            call.refuse(error)
        return turned

    return _run.placed(seen, k, handle, used, body)


def attention_with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, *, cache_seqlens: Any, page_table: Any = None,
    cu_lens_q: Any = None, max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None, rotary_cos: Any = None,
    rotary_sin: Any = None, rotary_interleaved: Optional[bool] = None, rotary_positions: Any = None,
    first_kv: Any = None, position_q: Any = None, position_kv: Any = None, causal: bool = False, window: Window = None,
    chunk: Optional[int] = None, prefix: Any = None, mask: Any = None, bits: Any = None,
    bits_keys: Optional[int] = None, scale: Optional[float] = None, softcap: Optional[float] = None, alibi: Any = None,
    sink: Any = None, visible_share: Optional[float] = None, out: Any = None, return_lse: bool = False,
    out_f32: bool = False, deterministic: bool = False, threads: int = 0, isa: str = "auto",
    kernel: Optional[str] = None, strategy: Optional[str] = None, fault: Any = None, stream: Any = None,
    k_scale: Any = None, v_scale: Any = None, token_scales: bool = False,
) -> Any:
    """Appends keys and values of new tokens to a cache (append_kvcache), then computes attention to all of it.

        q              (batch, len_q, heads_q, dim), of the cache's dtype, or float32, float16 or bfloat16 where that
                       has one byte; the last row of a sequence stands at its last key
"""
    return with_kvcache(
        None, q, k_cache, v_cache, k, v, cache_seqlens, page_table, cu_lens_q, max_len_q, max_len_kv, rotary_cos,
        rotary_sin, rotary_interleaved, rotary_positions, first_kv, position_q, position_kv, causal, window, chunk,
        prefix, mask, bits, bits_keys, scale, softcap, alibi, sink, visible_share, out, return_lse, out_f32,
        deterministic, threads, isa, kernel, strategy, fault, stream, k_scale, v_scale, token_scales)


def with_kvcache(
    ran, q, k_cache, v_cache, k, v, cache_seqlens, page_table, cu_lens_q, max_len_q, max_len_kv, rotary_cos,
    rotary_sin, rotary_interleaved, rotary_positions, first_kv, position_q, position_kv, causal, window, chunk,
    prefix, mask, bits, bits_keys, scale, softcap, alibi, sink, visible_share, out, return_lse, out_f32,
    deterministic, threads, isa, kernel, strategy, fault, stream, k_scale, v_scale, token_scales,
) -> Any:
    """attention_with_kvcache. ran: is told of the call and its plans when it has run; None: nobody is."""
    _no_grad(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, alibi=alibi, sink=sink, k_scale=k_scale, v_scale=v_scale)
    _together(k, v)
    scales = Scales(k_scale, v_scale, _options.flag("token_scales", token_scales))
    if scales.found and k is None:
        raise _c.InvalidError("token_scales is given without k and v: the scales of a cache that is read are there")
    rotary = _rotary(rotary_cos, rotary_sin, rotary_interleaved, rotary_positions, k)
    if cu_lens_q is not None and max_len_q is None:
        max_len_q = _longest(cu_lens_q, "cu_lens_q")
    if cu_lens_q is None and max_len_q is not None:
        raise _c.InvalidError("max_len_q is given without cu_lens_q")
    return_lse = _options.flag("return_lse", return_lse)
    max_len_q = _options.check("max_len_q", max_len_q)
    causal, window, chunk, prefix, mask = _masks(mask, bits, causal, window, chunk, prefix)
    static = (causal, _options.window(window), chunk, scale, softcap, 0.0, out_f32, deterministic, threads, isa, kernel,
              strategy)
    _options.check_all(_problem.Static._fields, static)
    more = More(_options.check("max_len_kv", max_len_kv), _options.check("bits_keys", bits_keys),
                _options.check("visible_share", visible_share))
    tables = {name: value for name, value in (
        ("first_kv", first_kv), ("position_q", position_q), ("position_kv", position_kv), ("prefix", prefix),
        ("bits", bits), ("alibi", alibi), ("sink", sink)) if value is not None}
    handle = None if stream is None else _tensor.stream_handle(stream)
    used = [q, k_cache, v_cache, k, v, cache_seqlens, page_table, cu_lens_q, rotary_cos, rotary_sin, rotary_positions,
            out, fault, k_scale, v_scale, *tables.values()]
    seen = see(q, "q", handle)

    def body(device, context, handle):
        call = _Call(device, context, handle, k, v, k_cache, v_cache, cache_seqlens, page_table, cu_lens_q,
                       "cu_lens_q", q, rotary, threads, fault, scales)
        given = tables if mask is None else dict(tables, bits=_pack(mask, call.mask_shape(more, max_len_q)))
        return _attend(call, static, more, given, max_len_q, out, return_lse, ran)

    return _run.placed(seen, q, handle, used, body)


append_kvcache.__doc__ = (append_kvcache.__doc__ or "") + _CACHE + _ROTARY + _SCALES + _RUN + """
    Returns q turned, a new array, where q is given, else None.
""" + _RAISES
attention_with_kvcache.__doc__ = (attention_with_kvcache.__doc__ or "") + _CACHE + """
        k              (batch, new, heads_kv, dim), and v, (batch, new, heads_kv, dim_v): new tokens; None: the cache is
                       read as it is. With rotary_cos new is len_q: both are turned at their positions
        cu_lens_q      (batch + 1) int32: q, k and v are packed, (total, heads, dim): where each sequence's rows start,
                       then where the last one's end
        max_len_q      rows of the longest sequence, or more; None: found in cu_lens_q (CPU only)
        max_len_kv     keys of the longest sequence, or more; None: all that page_table, or the cache, has room for. The
                       plan goes by it: it is a limit, not a length
""" + _ROTARY + """
        first_kv       (batch) int32: keys before it are not visible (left padding); positions count from key 0 all the
                       same
        position_q     (batch) int64, -2^59 to 2^59: where row 0 stands, for causal, window, chunk and alibi; None: at
                       len_kv - len_q. position_kv, with position_q: where key 0 stands; None: at 0. For a cache that
                       was cut
        mask           bool, (1 or batch, 1 or heads_q, len_q, keys) or fewer dimensions: True is visible; or floats, 0:
                       visible, -inf: not; keys is bits_keys, or max_len_kv without. Packed into bits on each call, CPU
                       only. Or masks by name, without documents: libattn.masks
        bits           uint8, (1 or batch, 1 or heads_q, len_q, ceil(keys / 8)): bit j % 8 of byte j / 8: key j is
                       visible. Rows count from 0 in each sequence; of packed rows len_q is max_len_q
        bits_keys      mask and bits are of the last bits_keys keys of each sequence, its new ones included, and key j
                       is key len_kv - bits_keys + j: the mask of a tree of drafts. Keys before these are visible as far
                       as bits go. At least 1; None: mask and bits are of all keys
        prefix         (batch) int32: as attention takes it
        causal, window, chunk, scale, softcap, alibi, sink
                       as attention takes them; len_kv is cache_seqlens + new
        visible_share  0 < share <= 1: of the pairs that the other masks leave, the share that bits leave; without bits,
                       of the pairs of max_len_kv, the share that lengths leave. The plan's choice and predictions
                       depend on it, results only by rounding; None: not known, taken as 1
        out            the array that o is written into; None: a new one
        out_f32, deterministic, threads, isa, kernel, strategy
                       as attention takes them
""" + _SCALES + _RUN + """
    Returns o, (batch, len_q, heads_q, dim_v) or packed, with return_lse (o, lse), lse as attention's.
""" + _RAISES


# ---- a call ----------------------------------------------------------------------------------------


def _library(like: Any, device: Optional[int]) -> Any:
    """What makes small tables where `like` lies: NumPy, torch or CuPy. All know int32, arange, full and zeros."""
    if device is None:
        return np
    if is_torch(like):
        import torch

        return torch
    cupy = _tensor.cupy_of(like.source)
    if cupy is None:
        raise TypeError(f"q is {type(like.source).__name__}; on a GPU lengths are computed by torch or CuPy, so q must "
                        "be theirs")
    return cupy


_PAGES = "(pages or batch, slots, heads, dim)"


class More(NamedTuple):
    """Options of attention to a cache that attention to tensors does not have."""

    max_len_kv: Optional[int]
    bits_keys: Optional[int]
    visible_share: Optional[float]


def _masks(mask: Any, bits: Any, causal: Any, window: Any, chunk: Any, prefix: Any) -> Tuple[Any, ...]:
    """causal, window, chunk and prefix with what a mask by name says, and the mask that is an array."""
    masks.check_kind(mask)
    found = {"causal": causal, "window": window, "chunk": chunk, "prefix": prefix}
    if isinstance(mask, masks.Mask):
        if mask.documents:
            raise _c.InvalidError("mask has documents, which a cache does not take: bits can say the same")
        found, mask = masks.options(mask, found), mask.array
    if mask is not None and bits is not None:
        raise _c.InvalidError("mask and bits are both given: they mean the same")
    return (*found.values(), mask)


def most_keys(width: int, size: int, limit: Optional[int]) -> int:
    """Keys of `width` pages, or fewer, where there is a limit."""
    room = min(width * size, (1 << 31) - 65)  # lengths are int32
    return room if limit is None else min(_options.integer("max_len_kv", limit), room)


class Scales(NamedTuple):
    """Of a cache of one byte."""

    k: Any
    v: Any
    found: bool  # by the append, which writes them


class Prepared(NamedTuple):
    """Plans of a call, and what its outputs look like."""

    append: Any  # a Handle, or None
    attention: Any  # a Plan, or None
    dtype: str  # of q
    out: str  # of o
    shapes: Dict[str, Tuple[int, ...]]
    scaled: bool  # whether the append takes scales


class _Call:
    """A call's tensors and tables, and the arguments of its append; without k it appends nothing."""

    def __init__(self, device, context, handle, k, v, k_cache, v_cache, seqlens, page_table, cu_lens, cu_name, q,
                 rotary, threads, fault, scales):
        self.device, self.context, self.handle, self.threads = device, context, handle, threads
        self.interleaved = None if rotary is None else rotary.interleaved
        take = see if k is None else writable
        self.tensors = {"k_cache": take(k_cache, "k_cache", handle), "v_cache": take(v_cache, "v_cache", handle)}
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor is not None:
                self.tensors[name] = see(tensor, name, handle)
        self.like = self.tensors["q" if q is not None else "k"]
        self.found = scales.found
        self.scales = {name: self._scale(name, value) for name, value in (("k_scale", scales.k), ("v_scale", scales.v))
                       if value is not None or scales.found}
        self.tables: Dict[str, Any] = {}
        if rotary is not None:
            self.tables["rotary_cos"], self.tables["rotary_sin"] = (
                as_table(value, name, "float32", device, handle)
                for name, value in (("rotary_cos", rotary.cos), ("rotary_sin", rotary.sin)))
            if rotary.positions is not None:
                self.tables["rotary_positions"] = as_table(rotary.positions, "rotary_positions", "int64", device,
                                                           handle)
        if cu_lens is not None:
            self.tables["cu_lens"] = as_table(cu_lens, cu_name, "int32", device, handle)
        if page_table is not None:
            self.tables["page_table"] = as_table(page_table, "page_table", "int32", device, handle)
        self.paged = page_table is not None
        self._rows(cu_name)
        self._lengths(seqlens)
        self.fault = None if fault is None else _fault(fault, device, handle)

    def _scale(self, name: str, value: Any) -> Any:
        if self.found and value is None:
            raise _c.InvalidError(f"{name} is None: with token_scales it is an array of slots, which is written")
        if self.found:
            return writable(value, name, self.handle)
        if _tensor.is_tensor(value) and len(shape_of(see(value, name, self.handle))) == 3:
            return see(value, name, self.handle)  # where it lies: there is one for each slot
        return as_table(value, name, "float32", self.device, self.handle)

    def scale_strides(self, name: str) -> Tuple[int, Tuple[int, ...]]:
        """Slots of a block, 0 or 1, and strides of (sequence or page, block, head, dim)."""
        at, cache = layout(self.scales[name], name), layout(self.tensors["k_cache"], "k_cache")
        if layout(self.tensors[name[0] + "_cache"], name[0] + "_cache").dtype not in _c.BYTE_DTYPES:
            raise _c.InvalidError(f"{name} is given for a cache of {cache.dtype}; caches of float8_e4m3fn and int8 "
                                  "have scales")
        _problem.typed(name, at, "float32")
        same_device(name, at.device, cache.device, "k_cache")
        if len(at.shape) == 3 or self.found:
            shape_is(name, at.shape, cache.shape[:-1])
            return 1, (*at.strides, 0)
        shape = (1,) * (2 - len(at.shape)) + tuple(at.shape)
        heads = cache.shape[-2]
        if len(shape) > 2 or shape[0] not in (1, self.batch) or shape[1] not in (1, heads):
            raise _c.InvalidError(f"{name} has shape {at.shape}; it takes a number, ({heads},), ({self.batch}, "
                                  f"{heads}) or {cache.shape[:-1]}")
        of_sequence, of_head = (0,) * (2 - len(at.shape)) + tuple(at.strides)
        return 0, (of_sequence if shape[0] > 1 else 0, 0, of_head if shape[1] > 1 else 0, 0)

    def _rows(self, cu_name):
        """batch, and new rows of each sequence, where they are not packed."""
        packed_by = self.tables.get("cu_lens")
        wanted = "(batch, rows, heads, dim)" if packed_by is None else "(total rows, heads, dim)"
        for name in ("q", "k", "v"):
            if name in self.tensors and len(shape_of(self.tensors[name])) != wanted.count(",") + 1:
                raise _c.InvalidError(f"{name} has shape {shape_of(self.tensors[name])}; it takes {wanted}")
        if packed_by is None:
            self.batch = shape_of(self.like)[0]
            self.new = shape_of(self.tensors["k"])[1] if "k" in self.tensors else 0
            return
        shape = shape_of(packed_by)
        if len(shape) != 1 or shape[0] < 1:
            raise _c.InvalidError(f"{cu_name} has shape {shape}; it takes (batch + 1)")
        self.batch = shape[0] - 1

    def layouts(self) -> Dict[str, Layout]:
        """Of the tensors, checked as far as attention and append take the same."""
        at = layouts(self.tensors)
        of_bytes = at["k_cache"].dtype in _c.BYTE_DTYPES
        decides = "k" if of_bytes else "k_cache"
        if "k" in at and at[decides].dtype == "float64":
            raise _c.InvalidError(f"{decides} is float64; k and v are appended in float32, float16 and bfloat16")
        for name, tensor in at.items():
            other = "k_cache"
            if of_bytes and name in ("q", "k", "v") and (name == "v" or tensor.dtype not in _c.BYTE_DTYPES):
                other = "k" if name == "v" else "q" if "q" in at else name
            _problem.check_tensor(name, tensor, at[other], _PAGES if "cache" in name else None, other, name != "q")
        if at["k_cache"].shape[:-1] != at["v_cache"].shape[:-1]:
            raise _c.InvalidError(f"k_cache has shape {at['k_cache'].shape} and v_cache {at['v_cache'].shape}: all but "
                                  "their last dimensions must be equal")
        shape = shape_of(self.tables["page_table"])
        if len(shape) != 2 or shape[0] != self.batch:
            raise _c.InvalidError(f"page_table has shape {shape}; it takes ({self.batch}, width)")
        return at

    def _lengths(self, seqlens):
        """lens_kv, the append's cu_lens, and the table of a cache without pages."""
        library, device = _library(self.like, self.device), self.device
        place = {"device": self.like.device} if device is not None and is_torch(self.like) else {}
        if isinstance(seqlens, numbers.Integral):
            number = _options.integer("cache_seqlens", seqlens, 31)
            lens = library.full((self.batch,), number, dtype=library.int32, **place)
        else:
            seen = as_table(seqlens, "cache_seqlens", "int32", device, self.handle)
            shape_is("cache_seqlens", shape_of(seen), (self.batch,))
            lens = self._array(seen)
        self.before = lens
        if "k" in self.tensors:
            if "cu_lens" in self.tables:
                starts = self._array(self.tables["cu_lens"])
                lens = lens + (starts[1:] - starts[:-1])
            else:
                lens = lens + self.new
                self.tables["cu_lens"] = see(self._steps(library, self.batch + 1, self.new, place), "cu_lens")
        self.tables["lens_kv"] = see(lens, "lens_kv")
        if "page_table" not in self.tables:
            shape = shape_of(self.tensors["k_cache"])
            if not shape or shape[0] != self.batch:
                raise _c.InvalidError(f"k_cache has shape {shape}, where the batch is {self.batch}: without page_table "
                                      "it takes (batch, capacity, heads, dim)")
            table = self._steps(library, self.batch, 1, place).reshape(-1, 1)
            self.tables["page_table"] = see(table, "page_table")

    def mask_shape(self, more: More, max_len_q: Optional[int]) -> Tuple[int, int, int, int]:
        """What a mask is broadcast to: batch, heads, rows, and the keys that it is of."""
        shape = layout(self.tensors["q"], "q").shape
        rows = max_len_q if max_len_q is not None else shape[1] if len(shape) > 1 else 0
        return self.batch, shape[-2] if len(shape) > 1 else 0, rows, more.bits_keys or self.keys(more)

    def keys(self, more: More) -> int:
        """Keys of a sequence, at most."""
        cache, table = shape_of(self.tensors["k_cache"]), shape_of(self.tables["page_table"])
        if len(cache) < 2 or len(table) != 2:
            self.layouts()  # raises
        return most_keys(table[1], cache[1], more.max_len_kv)

    def refuse(self, error: _c.InvalidError, more: Optional[More] = None) -> NoReturn:
        """Raises it, with cache_seqlens in it: the library itself knows only the lengths after the append."""
        if str(error).startswith("positions["):
            raise _c.InvalidError(f"rotary_{error}") from None
        if self.device is not None or not str(error).startswith("lens_kv["):
            raise _of_caches(error) from None
        after = _tensor.host(self.tables["lens_kv"]).tolist()
        slots, width = shape_of(self.tensors["k_cache"])[1], shape_of(self.tables["page_table"])[1]
        rooms = [(slots * width, f"slots of {'page_table' if self.paged else 'k_cache'}")]
        if more is not None and more.max_len_kv is not None:
            rooms.append((more.max_len_kv, "keys of max_len_kv"))
        if self.interleaved is not None and "rotary_positions" not in self.tables:
            rooms.append((shape_of(self.tables["rotary_cos"])[0], "positions of rotary_cos"))
        for i, before in enumerate(np.asarray(self.before).tolist()):
            if before < 0:
                raise _c.InvalidError(f"cache_seqlens[{i}] is {before}; it takes 0 or more") from None
            for room, name in rooms:
                if after[i] > room:
                    new = f" with {after[i] - before} new" if "k" in self.tensors else ""
                    raise _c.InvalidError(f"cache_seqlens[{i}] is {before}:{new} more than the {room} {name}") from None
        raise error

    def _array(self, seen: Any) -> Any:
        """A table as an array that knows + and slices."""
        if self.device is None:
            return _tensor.host(seen)
        return seen.source if type(seen) is View else seen

    @staticmethod
    def _steps(library, count, step, place):
        if not step:
            return library.zeros((count,), dtype=library.int32, **place)
        return library.arange(0, count * step, step, dtype=library.int32, **place)

    def key(self) -> tuple:
        return (self.interleaved, self.threads, self.context,
                self.found, *[(name, signature(scale)) for name, scale in self.scales.items()],
                *[(name, signature(tensor)) for name, tensor in self.tensors.items()],
                *[(name, signature(table)) for name, table in self.tables.items()])

    def fill(self, prepared: Prepared) -> Any:
        """Sets the append's arguments; returns the new array for q turned, or None."""
        tensors, tables = self.tensors, self.tables
        self.args = _c.KvArgs(
            k=address_of(tensors["k"], "k"), v=address_of(tensors["v"], "v"),
            k_pages=address_of(tensors["k_cache"], "k_cache"), v_pages=address_of(tensors["v_cache"], "v_cache"),
            cu_lens=address_of(tables["cu_lens"]), lens_kv=address_of(tables["lens_kv"]),
            page_table=address_of(tables["page_table"]), fault=self.fault)
        if prepared.scaled:
            for name, scale in self.scales.items():
                setattr(self.args, name, address_of(scale, name))
        if self.interleaved is None:
            return None
        self.args.cos, self.args.sin = address_of(tables["rotary_cos"]), address_of(tables["rotary_sin"])
        if "rotary_positions" in tables:
            self.args.positions = address_of(tables["rotary_positions"], "rotary_positions")
        if "q" not in tensors:
            return None
        turned, seen = empty(tensors["q"], shape_of(tensors["q"]), prepared.dtype, "q turned", False)
        self.args.q, self.args.q_out = address_of(tensors["q"], "q"), address_of(seen)
        return turned

    def run(self, prepared: Prepared) -> None:
        _c.check(_c.kv_run(prepared.append._handle, self.args, _c.KV_ARGS_SIZE, self.handle))


def _fault(fault: Any, device: Optional[int], handle: Optional[int]) -> int:
    seen = writable(fault, "fault", handle)
    is_at = layout(seen, "fault")
    same_device("fault", is_at.device, device)
    if is_at.dtype not in ("int32", "uint32") or int(np.prod(is_at.shape)) != 1:
        raise _c.InvalidError(f"fault is {is_at.dtype} of shape {is_at.shape}; it takes one int32 or uint32")
    return address_of(seen)


def reach(tensor: Any, name: str) -> Tuple[int, int]:
    """Bytes [first, end) that the tensor's elements lie in."""
    at = layout(tensor, name)
    if 0 in at.shape:
        return 0, 0
    size = {"bfloat16": 2, **dict.fromkeys(_c.BYTE_DTYPES, 1)}.get(at.dtype) or np.dtype(at.dtype).itemsize
    steps = [(n - 1) * step * size for n, step in zip(at.shape, at.strides)]
    start = address_of(tensor, name)
    return start + sum(step for step in steps if step < 0), start + sum(step for step in steps if step > 0) + size


def _check_apart(call: _Call, arrays: Dict[str, Any], outputs: Dict[str, Any]) -> None:
    """Refuses what neither of a call's two runs sees: an input of one in what the other writes."""
    tensors, tables = call.tensors, call.tables
    written = {name: tensors[name] for name in ("k_cache", "v_cache")} if "k" in tensors else {}
    written.update(call.scales if call.found else {})
    late = {"q": tensors["q"], **arrays, **{"out": tensor for tensor in outputs.values()}}
    early = {name: tensor for name, tensor in {**tensors, **tables}.items() if name not in ("k_cache", "v_cache")}
    pairs = [(late, written)] if written else []
    pairs += [({**early, **call.scales}, {"out": tensor}) for tensor in outputs.values()]
    for inputs, outs in pairs:
        for name, tensor in inputs.items():
            first, end = reach(tensor, name)
            for other, output in outs.items():
                start, stop = reach(output, other)
                if first < stop and start < end:
                    raise _c.InvalidError(f"{name} overlaps {other}, which the call writes")


def _attend(call: _Call, static, more, tables, max_len_q, out, return_lse, ran):
    of = layout(call.tensors["q"], "q").dtype
    arrays = {name: as_table(value, name, _problem.table_dtype(name, of), call.device, call.handle)
              for name, value in tables.items()}
    outputs = {} if out is None else {"o": writable(out, "out", call.handle)}
    key = ("with_kvcache", static, more, max_len_q, *call.key(),
           *[(name, signature(array)) for name, array in arrays.items()], *map(signature, outputs.values()))
    arrays["lens_kv"], arrays["page_table"] = call.tables["lens_kv"], call.tables["page_table"]
    if max_len_q is not None:
        arrays["cu_lens_q"] = call.tables["cu_lens"]
    prepared = _run.kept(key, call.context, lambda: _plans(call, static, more, arrays, max_len_q, outputs))
    _check_apart(call, arrays, outputs)
    turned = call.fill(prepared) if prepared.append else None
    args = _c.Args(q=call.args.q_out if turned is not None else address_of(call.tensors["q"], "q"),
                   k=address_of(call.tensors["k_cache"], "k_cache"), v=address_of(call.tensors["v_cache"], "v_cache"),
                   fault=call.fault)
    for name, array in {**arrays, **call.scales}.items():
        setattr(args, name, address_of(array, name))
    results: List[Any] = []
    for name, dtype in (("o", prepared.out), ("lse", _problem.table_dtype("sink", of)))[:1 + return_lse]:
        if name in outputs:
            made, seen = out, outputs[name]
        else:
            made, seen = empty(call.like, prepared.shapes[name], dtype, name, max_len_q is not None)
        results.append(made)
        setattr(args, name, address_of(seen, "out"))
    plan = prepared.attention
    owner, place = _run.workspace(call.like, call.device, plan.workspace_bytes)
    try:
        if prepared.append:
            _c.check(_c.check_args(plan._handle, args, _c.ARGS_SIZE), max_len_q is not None)
            call.run(prepared)
        _c.check(_c.run(plan._handle, args, _c.ARGS_SIZE, place, call.handle), max_len_q is not None)
    except _c.InvalidError as error:
        call.refuse(error, more)
    del owner
    if ran is not None:
        ran(call, prepared)
    return tuple(results) if return_lse else results[0]


# ---- plans -----------------------------------------------------------------------------------------


class _Problem(_problem.Problem):
    """Attention of q to the pages of a cache."""

    labels = {"k": "k_cache", "v": "v_cache"}

    def __init__(self, *arguments: Any, keys: int, more: More,
                 scales: Optional[Dict[str, Tuple[int, Tuple[int, ...]]]] = None):
        self.keys, self.more, self.scales = keys, more, scales or {}
        super().__init__(*arguments)

    def _shapes(self):
        desc, q, k, table = self.desc, self.tensors["q"], self.tensors["k"], self.arrays["page_table"]
        self._heads("k_cache", "the cache")
        desc.flags |= _c.PAGED
        desc.batch, desc.table_width = table.shape
        desc.pages, desc.page_size = k.shape[:2]
        desc.len_kv = self.keys
        desc.kv_dtype = _c.BYTE_DTYPES.get(k.dtype, 0)
        for name, (rows, strides) in self.scales.items():
            desc.flags |= _c.SCALES_KV
            setattr(desc, name + "_rows", rows)
            getattr(desc, name + "_stride")[:] = strides
        if self.varlen is None:
            desc.len_q = q.shape[1]
        else:
            desc.flags |= _c.VARLEN
            desc.len_q, desc.total_q = _options.integer("max_len_q", self.varlen), q.shape[0]

    def _options(self):
        super()._options()
        desc, more = self.desc, self.more
        if more.bits_keys is not None:
            desc.bits_keys = _options.integer("bits_keys", more.bits_keys)
            if "bits" not in self.arrays:
                raise _c.InvalidError(f"bits_keys is {desc.bits_keys}, without mask or bits")
            if desc.bits_keys < 1:
                raise _c.InvalidError(f"bits_keys is {desc.bits_keys}; it takes 1 or more, or None for all keys")
        if more.visible_share is not None:
            desc.visible_share = _options.number("visible_share", more.visible_share)
            if not desc.visible_share > 0:
                raise _c.InvalidError(f"visible_share is {more.visible_share}; it takes numbers above 0 and up to 1")

    def _arrays(self):
        super()._arrays()
        if "position_kv" in self.arrays and "position_q" not in self.arrays:
            raise _c.InvalidError("position_kv is given without position_q")
        for name in ("position_q", "position_kv"):
            if name in self.arrays:
                self.desc.flags |= _c.POSITIONS
                shape_is(name, self.arrays[name].shape, (self.desc.batch,))


def _plans(call: _Call, static, more, arrays, max_len_q, outputs) -> Prepared:
    at = call.layouts()
    q = at["q"] if call.interleaved is None else at["q"]._replace(strides=packed(at["q"].shape))
    problem = _Problem(_c.FORWARD, {"q": q, "k": at["k_cache"], "v": at["v_cache"]}, _problem.Static(*static),
                       layouts(arrays), max_len_q, None, layouts(outputs), keys=call.keys(more), more=more,
                       scales={name: call.scale_strides(name) for name in call.scales})
    attention = problem.prepare()
    append = _append_plan(call) if "k" in at else None
    return Prepared(append and append.append, attention.plan, q.dtype, attention.dtype, attention.shapes,
                    append is not None and append.scaled)


def _append_plan(call: _Call) -> Prepared:
    at = call.layouts()
    k, v = at["k"], at["v"]
    if k.shape[:-1] != v.shape[:-1]:
        raise _c.InvalidError(f"k has shape {k.shape} and v {v.shape}: all but their last dimensions must be equal")
    if len(k.shape) == 4 and k.shape[0] != call.batch:
        raise _c.InvalidError(f"k has shape {k.shape}; its batch must be {call.batch}, as q's")
    for name, new in (("k", k), ("v", v)):
        wanted = at[name + "_cache"].shape[-2:]
        if new.shape[-2:] != wanted:
            raise _c.InvalidError(f"{name} has heads and dim {new.shape[-2:]}, {name}_cache {wanted}: they must be "
                                  "equal")
    pages, size, heads, dim = at["k_cache"].shape
    desc = _c.KvDesc(
        op=_c.KV_APPEND, dtype={**_c.DTYPES, **_c.BYTE_DTYPES}[k.dtype],
        device=_c.CPU if k.device is None else _c.CUDA, pages=pages, page_size=size, heads_kv=heads, dim_qk=dim,
        dim_v=v.shape[-1], tokens=int(np.prod(k.shape[:-2])),
        batch=call.batch, table_width=shape_of(call.tables["page_table"])[1],
        threads=_options.integer("threads", call.threads, 31))
    for name, cache in (("k_pages", "k_cache"), ("v_pages", "v_cache")):
        getattr(desc, name + "_stride")[:] = strides_of(at[cache], cache)
    for name, tensor in (("k", k), ("v", v)):
        getattr(desc, name + "_stride")[:] = _token_strides(tensor, name)
    if call.interleaved is not None:
        _turn(call, at, desc)
    scaled = _quantise(call, at, desc)
    try:
        append = Handle(desc, _c.kv_plan_create, _c.kv_plan_destroy)
    except _c.InvalidError as error:
        raise _of_caches(error) from None
    return Prepared(append, None, k.dtype, "", {}, scaled)


def _of_caches(error: _c.InvalidError) -> _c.InvalidError:
    """The library's message in the caller's names: its pages are the caches."""
    return _c.InvalidError(str(error).replace("k_pages", "k_cache").replace("v_pages", "v_cache"))


def _quantise(call: _Call, at: Dict[str, Layout], desc: _c.KvDesc) -> bool:
    """Pages of one byte, and whether the append takes scales."""
    cache, rows = at["k_cache"].dtype, at["k"].dtype
    strides = {name: call.scale_strides(name) for name in call.scales}
    if cache not in _c.BYTE_DTYPES:
        return False
    desc.pages_dtype = _c.BYTE_DTYPES[cache]
    if call.found and rows == cache:
        raise _c.InvalidError(f"k is {rows}, as k_cache is: its bytes are stored as they are, and with token_scales it "
                              "takes float32, float16 or bfloat16")
    if rows == cache or not strides:
        return False
    desc.flags |= _c.KV_SCALES | _c.KV_TOKEN_SCALES * call.found
    for name, (block, steps) in strides.items():
        setattr(desc, name + "_rows", block)
        getattr(desc, name + "_stride")[:] = steps
    return True


def _turn(call: _Call, at: Dict[str, Layout], desc: _c.KvDesc) -> None:
    """Rotary embedding of k, and of q if it is there."""
    cos, sin = (shape_of(call.tables[name]) for name in ("rotary_cos", "rotary_sin"))
    if len(cos) != 2 or cos != sin:
        raise _c.InvalidError(f"rotary_cos has shape {cos} and rotary_sin {sin}; both take (positions, rotary_dim / 2)")
    desc.flags |= _c.KV_ROTARY | _c.KV_INTERLEAVED * call.interleaved
    desc.positions, desc.rotary_dim = cos[0], 2 * cos[1]
    if not cos[1]:
        raise _c.InvalidError(f"rotary_cos has shape {cos}; rotary_dim is at least 2")
    if "rotary_positions" in call.tables:
        desc.flags |= _c.KV_POSITIONS
        shape_is("rotary_positions", shape_of(call.tables["rotary_positions"]), at["k"].shape[:-2])
    if "q" not in at:
        return
    q, k = at["q"], at["k"]
    if q.shape[:-2] != k.shape[:-2]:
        raise _c.InvalidError(f"q has shape {q.shape} and k {k.shape}: with rotary_cos they have the same rows")
    desc.flags |= _c.KV_ROTARY_Q
    desc.heads_q = q.shape[-2]
    if q.shape[-1] != k.shape[-1]:
        raise _c.InvalidError(f"q has dim {q.shape[-1]} and k {k.shape[-1]}: they must be equal")
    desc.q_stride[:] = _token_strides(q, "q")
    desc.q_out_stride[:] = _token_strides(q._replace(strides=packed(q.shape)), "q")


def _token_strides(tensor: Layout, name: str) -> Tuple[int, ...]:
    """Strides of (1, token, head, dim): the rows of a batch, one sequence's after another's."""
    batch_step, row, head, dim = strides_of(tensor, name)
    if len(tensor.shape) == 4:
        batch, rows = tensor.shape[:2]
        if batch > 1 and rows > 1 and batch_step != rows * row:
            raise _c.InvalidError(f"{name} has strides {tensor.strides} and shape {tensor.shape}: rows of several "
                                  "sequences take one distance, as those of a contiguous tensor have it")
        row = batch_step if rows == 1 else row
    return 0, row, head, dim
