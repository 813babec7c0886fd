"""A step of decoding: attention of a few rows of q that nobody differentiates, traces or watches.

There the call takes longer than the attention. So it goes past PyTorch's dispatcher, to a plan that a growing cache
keeps (_run.planned_keys): one look into a dictionary, one tensor made, one call of C.
"""
from __future__ import annotations

from array import array
from typing import Any, Dict, Optional

import torch
from torch import Tensor

from . import _c, _run
from ._torch_again import call_of, launch, stream_of, unwatched
from ._torch_ops import differentiable, threads_of

#: Tables that a step takes, and their types.
TABLES = {"lens_kv": torch.int32, "intervals": torch.int32, "bits": torch.uint8, "sink": torch.float32}


def step(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool, window: Any, scale: Any, softcap: Any,
         deterministic: Any, threads: int, tables: Dict[str, Tensor]) -> Optional[Tensor]:
    """o, (batch, row, head, dim), as the operator gives it; None where the call needs the operator.

    heads: the dimension of heads in q, k and v, 1 or 2; the other one is rows.
    tables: by their names in TABLES.
    """
    rows = 3 - heads
    if type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor or not unwatched():
        return None
    shape, of_k, of_v = q.shape, k.shape, v.shape
    if not len(shape) == len(of_k) == len(of_v) == 4 or shape[rows] > _run.FEW_ROWS or differentiable(
            (q, k, v, *tables.values())):
        return None
    keys = of_k[rows]
    if not 0 < keys == of_v[rows] or not q.dtype is k.dtype is v.dtype or q.is_neg() or k.is_neg() or v.is_neg():
        return None  # of views that negate what they show the dispatcher makes copies
    try:
        at_q, at_k, at_v = q.stride(), k.stride(), v.stride()
    except RuntimeError:  # of a layout that has none
        return None
    if not at_q[3] == at_k[3] == at_v[3] == 1:
        return None
    index, stream = q.get_device(), None
    if not index == k.get_device() == v.get_device():
        return None
    if q.is_cpu:
        if not (k.is_cpu and v.is_cpu) or torch.is_autocast_enabled("cpu"):
            return None
    elif q.is_cuda:
        stream = stream_of(index)
        if stream is None or torch.is_autocast_enabled("cuda"):
            return None
    else:
        return None
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    static = (causal, window, None, scale, softcap, 0.0, False, deterministic, threads_of(threads, q), "auto", None,
              None)
    key = ("step", static, heads, index, q.dtype, shape, at_q, _run.most_keys(keys), of_k[0], of_k[heads], of_k[3],
           of_v[0], of_v[heads], of_v[3], at_k[heads] < at_k[rows], at_v[heads] < at_v[rows],
           stream is None or not any(n % 8 for n in at_k[:3] + at_v[:3]))
    for name, table in tables.items():
        if type(table) is not Tensor or table.dtype is not TABLES[name] or not table.is_contiguous() or table.is_neg() or (
                table.get_device() != index):
            return None
        extent = table.shape
        if name in _run._KEYS_AXIS:  # laid out by len_kv
            if len(extent) != 4 or extent[_run._KEYS_AXIS[name]] != (keys if name == "intervals" else (keys + 7) // 8):
                return None
            extent = extent[:2] + extent[5 - _run._KEYS_AXIS[name]:][:1]
        key += name, extent
    call = _run.kept_already(key, _run.calls)
    if call is None:
        tensors = {name: x if heads == 2 else x.transpose(1, 2) for name, x in (("q", q), ("k", k), ("v", v))}
        plan = _run.prepared(_c.FORWARD, tensors, static, tables, None, None, {}, _context(stream, index))
        if not plan.grows:
            return None
        call = call_of(plan, ("o",), "lens_kv" in tables)
        _run.keep(key, call, _run.calls)
    args = _c.Args()
    args.q, args.k, args.v = at = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if not all(at) or (stream is not None and (at[0] | at[1] | at[2]) % 16):
        return None
    layout = array("q", (keys, at_k[0], at_k[rows], at_k[heads], 1, at_v[0], at_v[rows], at_v[heads], 1))
    args.kv_layout = layout.buffer_info()[0]  # attn_kv_layout
    for name, table in tables.items():
        setattr(args, name, table.data_ptr())
    results = launch(call, q, args, stream)
    return None if results is None else results[0]


def _context(stream: Optional[int], index: int) -> Optional[int]:
    if stream is None:
        return None
    from . import _gpu

    return _gpu._context(index)
