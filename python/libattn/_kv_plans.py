"""Plans of attention to a cache, and of the append before it. A plan depends on what a call looks like, its Layouts and
options, and never on what its tensors hold: calls that look alike share plans."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _c, _options, _problem
from ._problem import Handle, same_device, shape_is, strides_of
from ._tensor import Layout, packed

_PAGES = "(pages or batch, slots, heads, dim)"


class More(NamedTuple):
    """Options of attention to a cache that attention to tensors does not have."""

    max_len_kv: Optional[int]
    bits_keys: Optional[int]
    visible_share: Optional[float]


class Prepared(NamedTuple):
    """Plans of a call, and what its outputs look like."""

    append: Any  # a Handle, or None
    attention: Any  # a Plan, or None
    dtype: str  # of q
    out: str  # of o
    shapes: Dict[str, Tuple[int, ...]]
    scaled: bool  # whether the append takes scales


class Layouts(NamedTuple):
    """What a call looks like: layouts by the names of its arguments, and the options that its append goes by."""

    tensors: Dict[str, Layout]  # k_cache and v_cache; q, k and v if they are given
    tables: Dict[str, Layout]  # page_table; those of rotary embedding if they are given
    scales: Dict[str, Layout]  # of a cache of one byte
    batch: int
    interleaved: Optional[bool]  # of rotary embedding; None: there is none
    found: bool  # scales are found by the append, which writes them
    threads: int

    def check(self) -> None:
        """As far as attention and append take the same."""
        at = self.tensors
        of_bytes = at["k_cache"].dtype in _c.BYTE_DTYPES
        decides = "k" if of_bytes else "k_cache"
        narrow = "q" in at and at["q"].dtype == "float8_e4m3fn"
        if narrow and self.interleaved is not None:
            raise _c.InvalidError("q is float8_e4m3fn, and rotary embedding turns a q of float32, float16 or bfloat16: "
                                  "turn it before it is quantised, and k by append_kvcache without q")
        if "k" in at and at[decides].dtype == "float64":
            raise _c.InvalidError(f"{decides} is float64; k and v are appended in float32, float16 and bfloat16")
        for name, tensor in at.items():
            other = "q" if narrow and name == "k_cache" else "k_cache"
            if of_bytes and name in ("q", "k", "v") and (name == "v" or tensor.dtype not in _c.BYTE_DTYPES):
                other = "k" if name == "v" else "q" if "q" in at and not narrow else name
            _problem.check_tensor(name, tensor, at[other], _PAGES if "cache" in name else None, other,
                                  ("float8_e4m3fn",) if name == "q" else tuple(_c.BYTE_DTYPES))
        _problem.check_rows(at["k_cache"], at["v_cache"], "k_cache", "v_cache")
        shape = self.tables["page_table"].shape
        if len(shape) != 2 or shape[0] != self.batch:
            raise _c.InvalidError(f"page_table has shape {shape}; it takes ({self.batch}, width)")

    def keys(self, more: More) -> int:
        """Keys of a sequence, at most."""
        cache, table = self.tensors["k_cache"].shape, self.tables["page_table"].shape
        if len(cache) < 2 or len(table) != 2:
            self.check()  # raises
        return most_keys(table[1], cache[1], more.max_len_kv)

    def scale_strides(self) -> Dict[str, Tuple[int, Tuple[int, ...]]]:
        """Of each scale: slots of a block, 0 or 1, and strides of (sequence or page, block, head, dim)."""
        return {name: self._scale_strides(name, at) for name, at in self.scales.items()}

    def _scale_strides(self, name: str, at: Layout) -> Tuple[int, Tuple[int, ...]]:
        cache = self.tensors["k_cache"]
        if self.tensors[name[0] + "_cache"].dtype not in _c.BYTE_DTYPES:
            raise _c.InvalidError(f"{name} is given for a cache of {cache.dtype}; caches of float8_e4m3fn and int8 "
                                  "have scales")
        _problem.typed(name, at, "float32")
        same_device(name, at.device, cache.device, "k_cache")
        if len(at.shape) == 3 or self.found:
            shape_is(name, at.shape, cache.shape[:-1])
            return 1, (*at.strides, 0)
        heads = cache.shape[-2]
        shape, strides = _problem.scale_layout(at)
        if len(at.shape) > 2 or shape[0] not in (1, self.batch) or shape[2] not in (1, heads):
            raise _c.InvalidError(f"{name} has shape {at.shape}; it takes a number, ({heads},), ({self.batch}, "
                                  f"{heads}) or {cache.shape[:-1]}")
        return 0, strides


def most_keys(width: int, size: int, limit: Optional[int]) -> int:
    """Keys of `width` pages, or fewer, where there is a limit."""
    room = min(width * size, (1 << 31) - 65)  # lengths are int32
    return room if limit is None else min(_options.integer("max_len_kv", limit), room)


def of_caches(error: _c.InvalidError) -> _c.InvalidError:
    """The library's message in the caller's names: its pages are the caches."""
    return _c.InvalidError(str(error).replace("k_pages", "k_cache").replace("v_pages", "v_cache"))


# ---- attention -----------------------------------------------------------------------------------


class PagedProblem(_problem.Problem):
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
        desc.flags |= _c.SCALES_KV * bool(self.scales)
        _problem.set_scales(desc, self.scales)
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


def plan_attention(call: Layouts, static: _problem.Static, more: More, arrays: Dict[str, Layout],
                   max_len_q: Optional[int], outputs: Dict[str, Layout]) -> Prepared:
    """The attention, and the append before it if there is k. arrays: of options, by their fields in attn_args."""
    call.check()
    q = call.tensors["q"]
    if call.interleaved is not None:
        q = q._replace(strides=packed(q.shape))
    problem = PagedProblem(
        _c.FORWARD, {"q": q, "k": call.tensors["k_cache"], "v": call.tensors["v_cache"]}, static, arrays, max_len_q,
        None, outputs, keys=call.keys(more), more=more, scales=call.scale_strides())
    attention = problem.prepare()
    append = plan_append(call) if "k" in call.tensors else None
    return Prepared(append and append.append, attention.plan, q.dtype, attention.dtype, attention.shapes,
                    append is not None and append.scaled)


# ---- append --------------------------------------------------------------------------------------


def plan_append(call: Layouts) -> Prepared:
    """The append, with the rotary embedding of k and q."""
    call.check()
    at = call.tensors
    k, v = at["k"], at["v"]
    _problem.check_rows(k, v, "k", "v")
    if len(k.shape) == 4 and k.shape[0] != call.batch:
        raise _c.InvalidError(f"k has shape {k.shape}; its batch must be {call.batch}, as q's")
    for name, new in (("k", k), ("v", v)):
        wanted = at[name + "_cache"].shape[-2:]
        if new.shape[-2:] != wanted:
            raise _c.InvalidError(f"{name} has heads and dim {new.shape[-2:]}, {name}_cache {wanted}: they must be "
                                  "equal")
    pages, size, heads, dim = at["k_cache"].shape
    desc = _c.KvDesc(
        op=_c.KV_APPEND, dtype=_c.ANY_DTYPES[k.dtype],
        device=_c.CPU if k.device is None else _c.CUDA, pages=pages, page_size=size, heads_kv=heads, dim_qk=dim,
        dim_v=v.shape[-1], tokens=int(np.prod(k.shape[:-2])), batch=call.batch,
        table_width=call.tables["page_table"].shape[1], threads=_options.integer("threads", call.threads, 31))
    for name, cache in (("k_pages", "k_cache"), ("v_pages", "v_cache")):
        getattr(desc, name + "_stride")[:] = strides_of(at[cache], cache)
    for name, tensor in (("k", k), ("v", v)):
        getattr(desc, name + "_stride")[:] = _token_strides(tensor, name)
    if call.interleaved is not None:
        _turn(call, desc)
    scaled = _quantise(call, desc)
    try:
        append = Handle(desc, _c.kv_plan_create, _c.kv_plan_destroy)
    except _c.InvalidError as error:
        raise of_caches(error) from None
    return Prepared(append, None, k.dtype, "", {}, scaled)


def _quantise(call: Layouts, desc: _c.KvDesc) -> bool:
    """Pages of one byte, and whether the append takes scales."""
    cache, rows = call.tensors["k_cache"].dtype, call.tensors["k"].dtype
    strides = call.scale_strides()
    if cache not in _c.BYTE_DTYPES:
        return False
    desc.pages_dtype = _c.BYTE_DTYPES[cache]
    if call.found and rows == cache:
        raise _c.InvalidError(f"k is {rows}, as k_cache is: its bytes are stored as they are, and with token_scales it "
                              "takes float32, float16 or bfloat16")
    if rows == cache or not strides:
        return False
    desc.flags |= _c.KV_SCALES | _c.KV_TOKEN_SCALES * call.found
    _problem.set_scales(desc, strides)
    return True


def _turn(call: Layouts, desc: _c.KvDesc) -> None:
    """Rotary embedding of k, and of q if it is there."""
    at, tables = call.tensors, call.tables
    cos, sin = tables["rotary_cos"].shape, tables["rotary_sin"].shape
    if len(cos) != 2 or cos != sin:
        raise _c.InvalidError(f"rotary_cos has shape {cos} and rotary_sin {sin}; both take (positions, rotary_dim / 2)")
    desc.flags |= _c.KV_ROTARY | _c.KV_INTERLEAVED * call.interleaved
    desc.positions, desc.rotary_dim = cos[0], 2 * cos[1]
    if not cos[1]:
        raise _c.InvalidError(f"rotary_cos has shape {cos}; rotary_dim is at least 2")
    if "rotary_positions" in tables:
        desc.flags |= _c.KV_POSITIONS
        shape_is("rotary_positions", tables["rotary_positions"].shape, at["k"].shape[:-2])
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
