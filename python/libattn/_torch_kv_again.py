"""Attention to a cache past PyTorch's dispatcher, for a call that looks like one before: a decoding loop makes such
calls for each layer. As _torch_again does it for attention to tensors."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _kv_run, _problem, _run
from ._kv_plans import Prepared
from ._tensor import layout
from ._torch_again import stream_of, unwatched

# Types of the tables, which are read where they lie.
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

    prepared: Prepared
    dtype: torch.dtype  # of o
    lse_dtype: torch.dtype
    new: int  # tokens of a sequence
    tables: Dict[str, Any]  # cu_lens and page_table where the caller gives none
    places: Dict[str, int]  # their addresses
    written: Dict[str, Tuple[int, int]]  # of the caches, which the append writes: as _kv_run.extent says
    late: Dict[str, Tuple[int, int]]  # likewise, of what attention reads after that


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


def _moved(extents: Dict[str, Tuple[int, int]], at: Dict[str, int]) -> Dict[str, Tuple[int, int]]:
    """The bytes from the tensors' addresses on."""
    return {name: (at[name] + first, at[name] + end) for name, (first, end) in extents.items()}


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
    q, device, stream = given["q"], None, None
    if q.is_cuda:
        device = q.get_device()
        stream = stream_of(device)
        if stream is None or (kept.tables and _captures(q)):  # a graph would outlive the tables
            return None
    try:
        at = {name: x.data_ptr() for name, x in given.items()}
    except RuntimeError:  # of a tensor that has no memory
        return None
    if not all(at.values()):
        return None
    lens, turned = given["cache_seqlens"], None
    if "k" in at:
        if _kv_run.overlap(_moved(kept.late, at), _moved(kept.written, at)) is not None:
            return None
        for cache in (given["k_cache"], given["v_cache"]):
            if not cache.is_inference():
                torch.autograd.graph.increment_version(cache)
            elif not torch.is_inference_mode_enabled():
                return None
        lens = lens + kept.new
        if "rotary_cos" in at:
            turned = q.new_empty(q.shape)
            at["q_out"] = turned.data_ptr()
    at.update(kept.places)
    at["lens_kv"] = lens.data_ptr()
    results = [q.new_empty(kept.prepared.shapes["o"], dtype=kept.dtype)]
    at["o"] = results[0].data_ptr()
    if return_lse:
        results.append(q.new_empty(kept.prepared.shapes["lse"], dtype=kept.lse_dtype))
        at["lse"] = results[1].data_ptr()
    status = _kv_run.attend(kept.prepared, at, q, device, stream)
    del turned, lens
    return None if status else results


def keep(given: Dict[str, Tensor], static: Tuple[Any, ...], call: Any, prepared: Prepared) -> None:
    """Keeps the plans that served a call, and the tables that are the same for all calls like it."""
    q, key = given["q"], _key(given, static)
    if key is None or _captures(q):
        return
    tables = {name: call.tables[name] for name in ("cu_lens", "page_table")
              if name in call.tables and name not in given}
    places = {name: _problem.address_of(table, name) for name, table in tables.items()}
    if tables and q.is_cuda:
        torch.cuda.current_stream().synchronize()  # other streams will read them
    written, late = ({name: _kv_run.extent(layout(given[name], name)) for name in names if name in given}
                     for names in (_CACHES, _LATE))
    dtypes = (getattr(torch, name) for name in (prepared.out, _problem.table_dtype("sink", prepared.dtype)))
    _run.keep(key, _Kept(prepared, *dtypes, call.new, tables, places, written, late), _run.calls)
