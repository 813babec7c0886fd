"""KV caches: append_kvcache and attention_with_kvcache. A call's tensors and tables are found here; _kv_plans makes its
plans and _kv_run runs them."""
from __future__ import annotations

import numbers
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple

import numpy as np

from . import _bytes, _c, _kv_plans, _kv_run, _options, _problem, _run, _tensor, masks
from ._api import Window, _longest, _no_grad, _pack
from ._bytes import Quantized, as_scale
from ._kv_plans import More, Prepared
from ._problem import address_of, as_table, same_device, shape_is, shape_of
from ._run import layouts
from ._tensor import View, empty, is_torch, layout, see, signature, writable

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
        k_scale        of a cache of float8_e4m3fn or int8, and v_scale: float32, what the cache's elements are
                       multiplied by: a number, (heads_kv), (batch, heads_kv), 1 in place of either, or one for
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
        prepared = _run.kept(("append", *call.key()), context, lambda: _kv_plans.plan_append(call.layouts()))
        at = call.addresses({})
        turned = call.turned(prepared, at)
        try:
            _c.check(_kv_run.append(prepared, at, handle))
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
    k_scale: Any = None, v_scale: Any = None, token_scales: bool = False, q_scale: Any = None,
    out_dtype: Optional[str] = None, o_scale: Any = None,
) -> Any:
    """Appends keys and values of new tokens to a cache (append_kvcache), then computes attention to all of it.

        q              (batch, len_q, heads_q, dim), of the cache's dtype, but not int8; or float32, float16 or bfloat16
                       where that has one byte; or what quantize made of it. The last row of a sequence stands at its
                       last key
"""
    return with_kvcache(
        None, q, k_cache, v_cache, k, v, cache_seqlens, page_table, cu_lens_q, max_len_q, max_len_kv, rotary_cos,
        rotary_sin, rotary_interleaved, rotary_positions, first_kv, position_q, position_kv, causal, window, chunk,
        prefix, mask, bits, bits_keys, scale, softcap, alibi, sink, visible_share, out, return_lse, out_f32,
        deterministic, threads, isa, kernel, strategy, fault, stream, k_scale, v_scale, token_scales, q_scale,
        out_dtype, o_scale)


def with_kvcache(
    ran, q, k_cache, v_cache, k, v, cache_seqlens, page_table, cu_lens_q, max_len_q, max_len_kv, rotary_cos,
    rotary_sin, rotary_interleaved, rotary_positions, first_kv, position_q, position_kv, causal, window, chunk,
    prefix, mask, bits, bits_keys, scale, softcap, alibi, sink, visible_share, out, return_lse, out_f32,
    deterministic, threads, isa, kernel, strategy, fault, stream, k_scale, v_scale, token_scales,
    q_scale=None, out_dtype=None, o_scale=None,
) -> Any:
    """attention_with_kvcache. ran: is told of the call and its plans when it has run; None: nobody is."""
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
    of_query: Dict[str, Any] = {}
    if not q_scale is o_scale is None or type(q) is Quantized:
        q, of_query = _bytes.query(q, q_scale, o_scale, max_len_q)
    _no_grad(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, alibi=alibi, sink=sink, k_scale=k_scale, v_scale=v_scale,
             **of_query)
    causal, window, chunk, prefix, mask = mask_options(mask, bits, causal, window, chunk, prefix)
    static = (causal, _options.window(window), chunk, scale, softcap, 0.0, out_f32, deterministic, threads, isa, kernel,
              strategy, out_dtype)
    _options.check_all(_problem.Static._fields, static)
    more = More(_options.check("max_len_kv", max_len_kv), _options.check("bits_keys", bits_keys),
                _options.check("visible_share", visible_share))
    tables = {name: value for name, value in (
        ("first_kv", first_kv), ("position_q", position_q), ("position_kv", position_kv), ("prefix", prefix),
        ("bits", bits), ("alibi", alibi), ("sink", sink), *of_query.items()) if value is not None}
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
        q_scale        of a q of float8_e4m3fn, out_dtype and o_scale: as attention takes them
        out            the array that o is written into; None: a new one
        out_f32, deterministic, threads, isa, kernel, strategy
                       as attention takes them
""" + _SCALES + _RUN + """
    Returns o, (batch, len_q, heads_q, dim_v) or packed, of q's dtype (bfloat16 where that has one byte) or out_dtype;
    with return_lse (o, lse), lse as attention's.
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


def mask_options(mask: Any, bits: Any, causal: Any, window: Any, chunk: Any, prefix: Any) -> Tuple[Any, ...]:
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


class Scales(NamedTuple):
    """Of a cache of one byte."""

    k: Any
    v: Any
    found: bool  # by the append, which writes them


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
        self.fault = None if fault is None else fault_address(fault, device, handle)

    def _scale(self, name: str, value: Any) -> Any:
        if self.found and value is None:
            raise _c.InvalidError(f"{name} is None: with token_scales it is an array of slots, which is written")
        if self.found:
            return writable(value, name, self.handle)
        return as_scale(value, name, self.like, self.device, self.handle)

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

    def layouts(self) -> _kv_plans.Layouts:
        return _kv_plans.Layouts(layouts(self.tensors), layouts(self.tables), layouts(self.scales), self.batch,
                                 self.interleaved, self.found, self.threads)

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
        return self.batch, shape[-2] if len(shape) > 1 else 0, rows, more.bits_keys or self.layouts().keys(more)

    def refuse(self, error: _c.InvalidError, more: Optional[More] = None) -> NoReturn:
        """Raises it, with cache_seqlens in it: the library itself knows only the lengths after the append."""
        if str(error).startswith("positions["):
            raise _c.InvalidError(f"rotary_{error}") from None
        if self.device is not None or not str(error).startswith("lens_kv["):
            raise _kv_plans.of_caches(error) from None
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

    def addresses(self, more: Dict[str, Any]) -> Dict[str, int]:
        """Of all that it has, and of more arrays, as _kv_run takes them."""
        at = {name: address_of(x, name) for part in (self.tensors, self.tables, self.scales, more)
              for name, x in part.items()}
        if self.fault is not None:
            at["fault"] = self.fault
        return at

    def turned(self, prepared: Prepared, at: Dict[str, int]) -> Any:
        """The new array for q turned, whose address is added; None where q stays as it is."""
        if self.interleaved is None or "q" not in self.tensors:
            return None
        q = self.tensors["q"]
        turned, seen = empty(q, shape_of(q), prepared.dtype, "q turned", False)
        at["q_out"] = address_of(seen)
        return turned


def fault_address(fault: Any, device: Optional[int], handle: Optional[int]) -> int:
    seen = writable(fault, "fault", handle)
    is_at = layout(seen, "fault")
    same_device("fault", is_at.device, device)
    if is_at.dtype not in ("int32", "uint32") or int(np.prod(is_at.shape)) != 1:
        raise _c.InvalidError(f"fault is {is_at.dtype} of shape {is_at.shape}; it takes one int32 or uint32")
    return address_of(seen)


def _reach(tensors: Dict[str, Any]) -> Dict[str, Tuple[int, int]]:
    """Bytes [first, end) that the tensors' elements lie in, by name."""
    spans = {}
    for name, tensor in tensors.items():
        place, (first, end) = address_of(tensor, name), _kv_run.extent(layout(tensor, name))
        spans[name] = place + first, place + end
    return spans


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
        found = _kv_run.overlap(_reach(inputs), _reach(outs))
        if found is not None:
            raise _c.InvalidError(f"{found[0]} overlaps {found[1]}, which the call writes")


def _attend(call: _Call, static, more, tables, max_len_q, out, return_lse, ran):
    of = layout(call.tensors["q"], "q").dtype
    given = {name: as_scale(value, name, call.like, call.device, call.handle) if name in _problem.SCALES else
             as_table(value, name, _problem.table_dtype(name, of), call.device, call.handle)
             for name, value in tables.items()}
    outputs = {} if out is None else {"o": writable(out, "out", call.handle)}
    key = ("with_kvcache", static, more, max_len_q, *call.key(),
           *[(name, signature(array)) for name, array in given.items()], *map(signature, outputs.values()))
    arrays = dict(given, lens_kv=call.tables["lens_kv"], page_table=call.tables["page_table"])
    if max_len_q is not None:
        arrays["cu_lens_q"] = call.tables["cu_lens"]
    prepared = _run.kept(key, call.context, lambda: _kv_plans.plan_attention(
        call.layouts(), _problem.Static(*static), more, layouts(arrays), max_len_q, layouts(outputs)))
    _check_apart(call, arrays, outputs)
    at = call.addresses(given)
    if max_len_q is not None:
        at["cu_lens_q"] = at["cu_lens"]
    turned = call.turned(prepared, at)
    results: List[Any] = []
    for name, dtype in (("o", prepared.out), ("lse", _problem.table_dtype("sink", of)))[:1 + return_lse]:
        made, at[name] = _run.output("out" if name == "o" else name, out, outputs.get(name), call.like,
                                     prepared.shapes[name], dtype, max_len_q is not None)
        results.append(made)
    try:
        _c.check(_kv_run.attend(prepared, at, call.like, call.device, call.handle), max_len_q is not None)
    except _c.InvalidError as error:
        call.refuse(error, more)
    del turned
    if ran is not None:
        ran(call, prepared)
    return tuple(results) if return_lse else results[0]
