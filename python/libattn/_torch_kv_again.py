"""Attention to a cache past PyTorch's dispatcher, for a call that looks like one before: a decoding loop makes such
calls for each layer. As _torch_again does it for attention to tensors."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _c, _kv, _problem, _run
from ._torch_again import stream_of, unwatched

# Types of the tables, which are read where they lie. Those in _TABLES have the names of attn_args' fields.
_TABLES = {"first_kv": torch.int32, "position_q": torch.int64, "position_kv": torch.int64, "prefix": torch.int32,
           "bits": torch.uint8, "alibi": torch.float32, "sink": torch.float32}
_TYPES = {**_TABLES, "cache_seqlens": torch.int32, "page_table": torch.int32, "rotary_cos": torch.float32,
          "rotary_sin": torch.float32, "rotary_positions": torch.int64}
_CACHES = ("k_cache", "v_cache")
_LATE = ("q", "page_table", *_TABLES)  # attention reads them, after the append has written

#: The tensors among the operator's arguments. Callers list them in this order.
TENSORS = ("q", "k_cache", "v_cache", "k", "v", *_TYPES)


class _Kept(NamedTuple):
    """What a call needs besides its tensors."""

    prepared: _kv.Prepared
    dtype: torch.dtype  # of o
    lse_dtype: torch.dtype
    new: int  # tokens of a sequence
    tables: Dict[str, Tuple[Any, int]]  # cu_lens and page_table where the caller gives none: (owner, address)
    reach: Dict[str, Tuple[int, int]]  # bytes from a tensor's address on that its elements lie in


def _key(given: Dict[str, Tensor], static: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
    """None where the dispatcher would do more than call the kernel."""
    if type(given.get("q")) is not Tensor:
        return None
    index, recorded, key = given["q"].get_device(), torch.is_grad_enabled(), ["with_kvcache", static]  # type: Any
    try:
        for name, x in given.items():
            kind = _TYPES.get(name)
            if not (type(x) is Tensor or type(x) is Parameter) or x.get_device() != index or x.is_neg() or (
                    kind and (x.dtype is not kind or not x.is_contiguous())):
                return None
            if x.requires_grad and (recorded or (name in _CACHES and "k" in given)):
                return None
            key += name, x.dtype, x.shape, x.stride()
    except RuntimeError:  # of a layout that has no strides
        return None
    return (*key, index, torch.get_num_threads())


def _captures(q: Tensor) -> bool:
    return q.is_cuda and torch.cuda.is_current_stream_capturing()


def _are_apart(given: Dict[str, Tensor], at: Dict[str, int], reach: Dict[str, Tuple[int, int]]) -> bool:
    """Whether nothing that attention reads lies in the cache, which the append writes."""
    spans = {name: (at[name] + reach[name][0], at[name] + reach[name][1]) for name in given if name in reach}
    return not any(spans[name][0] < end and begin < spans[name][1] for name in _LATE if name in spans
                   for begin, end in (spans[cache] for cache in _CACHES))


def again(given: Dict[str, Tensor], static: Tuple[Any, ...], return_lse: bool) -> Optional[List[Tensor]]:
    """[o], or [o, lse], if a call like this one is kept and succeeds.

    given: tensors by their names in TENSORS, and in that order. static: options that are no tensors.
    """
    if not unwatched():
        return None
    key = _key(given, static)
    kept = None if key is None else _run.kept_already(key, _run.calls)
    if kept is None:
        return None
    q, k_cache, v_cache, stream = given["q"], given["k_cache"], given["v_cache"], None
    if q.is_cuda:
        stream = stream_of(q.get_device())
        if stream is None or (kept.tables and _captures(q)):  # a graph would outlive the tables
            return None
    try:
        at = {name: x.data_ptr() for name, x in given.items()}
    except RuntimeError:  # of a tensor that has no memory
        return None
    if not all(at.values()):
        return None
    lens, turned = given["cache_seqlens"], None
    args = _c.Args(q=at["q"], k=at["k_cache"], v=at["v_cache"],
                   page_table=at["page_table"] if "page_table" in at else kept.tables["page_table"][1])
    for name in _TABLES:
        if name in at:
            setattr(args, name, at[name])
    if "k" in at:
        if not _are_apart(given, at, kept.reach):
            return None
        for cache in (k_cache, v_cache):
            if not cache.is_inference():
                torch.autograd.graph.increment_version(cache)
            elif not torch.is_inference_mode_enabled():
                return None
        lens = lens + kept.new
        append = _c.KvArgs(k=at["k"], v=at["v"], k_pages=args.k, v_pages=args.v, cu_lens=kept.tables["cu_lens"][1],
                           lens_kv=lens.data_ptr(), page_table=args.page_table)
        if "rotary_cos" in at:
            turned = q.new_empty(q.shape)
            append.cos, append.sin, append.q = at["rotary_cos"], at["rotary_sin"], at["q"]
            append.q_out = args.q = turned.data_ptr()
            append.positions = at.get("rotary_positions")
    args.lens_kv = lens.data_ptr()
    results = [q.new_empty(kept.prepared.shapes["o"], dtype=kept.dtype)]
    args.o = results[0].data_ptr()
    if return_lse:
        results.append(q.new_empty(kept.prepared.shapes["lse"], dtype=kept.lse_dtype))
        args.lse = results[1].data_ptr()
    plan = kept.prepared.attention
    owner, place = _run.workspace(q, None if stream is None else q.get_device(), plan.workspace_bytes)
    if "k" in at and (_c.check_args(plan._handle, args, _c.ARGS_SIZE) or _c.kv_run(
            kept.prepared.append._handle, append, _c.KV_ARGS_SIZE, stream)):
        return None
    status = _c.run(plan._handle, args, _c.ARGS_SIZE, place, stream)
    del owner, turned, lens
    return None if status else results


def keep(given: Dict[str, Tensor], static: Tuple[Any, ...], call: Any, prepared: _kv.Prepared) -> None:
    """Keeps the plans that served a call, and the tables that are the same for all calls like it."""
    q, key = given["q"], _key(given, static)
    if key is None or _captures(q):
        return
    tables = {}
    for name in ("cu_lens", "page_table"):
        if name in call.tables and name not in given:
            tables[name] = (call.tables[name], _problem.address_of(call.tables[name], name))
    if tables and q.is_cuda:
        torch.cuda.current_stream().synchronize()  # other streams will read them
    reach = {}
    for name in (*_CACHES, *_LATE):
        if name in given:
            first, end = _kv.reach(given[name], name)
            reach[name] = (first - given[name].data_ptr(), end - given[name].data_ptr()) if end else (0, 0)
    dtypes = (getattr(torch, name) for name in (prepared.out, _problem.table_dtype("sink", prepared.dtype)))
    _run.keep(key, _Kept(prepared, *dtypes, call.new, tables, reach), _run.calls)
