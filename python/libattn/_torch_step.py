"""A step of decoding: attention of a few rows of q that nobody differentiates, traces or watches.

There the call takes longer than the attention. So it goes past PyTorch's dispatcher, to a plan that a growing cache
keeps (_run.planned_keys): one look into a dictionary, one tensor made, one call of C.
"""
from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional

import torch
from torch import Tensor

from . import _c, _run, _tensor
from ._torch_ops import differentiable, threads_of

#: Tables that a step takes.
TABLES = ("lens_kv", "intervals", "bits", "sink")

_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_profiled = torch._C._autograd._profiler_enabled
_transformed, _traced = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
_Layout = ctypes.c_int64 * 9  # attn_kv_layout
_RUNS = "step"


def _unwatched() -> bool:
    """Whether nothing would see the operator if the dispatcher called it: no mode, transform, trace or profiler."""
    return not (torch.compiler.is_compiling() or _modes[0]() or _modes[1]() or _profiled() or _transformed()
                or _traced() is not None)


def step(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool, window: Any, scale: Any, softcap: Any,
         deterministic: Any, threads: int, tables: Dict[str, Tensor]) -> Optional[Tensor]:
    """o, (batch, row, head, dim), as the operator gives it; None where the call needs the operator.

    heads: the dimension of heads in q, k and v, 1 or 2; the other one is rows.
    tables: of TABLES, of the types that the operator takes; read as it reads them.
    """
    rows = 3 - heads
    if type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor or not _unwatched():
        return None
    shape, of_k, of_v = q.shape, k.shape, v.shape
    if len(shape) != 4 or len(of_k) != 4 or len(of_v) != 4 or shape[rows] > _run.FEW_ROWS or differentiable(
            (q, k, v, *tables.values())):
        return None
    keys = of_k[rows]
    if not 0 < keys == of_v[rows] or q.layout != torch.strided or k.layout != torch.strided or (
            v.layout != torch.strided):
        return None
    device, stream, context = q.device, None, None
    if device.type != "cpu":
        if device.type != "cuda" or torch.cuda.current_device() != device.index:
            return None
        from . import _gpu

        context = _gpu._context()
        if not context:
            return None
        stream = _tensor.current_stream(q)
    if torch.is_autocast_enabled(device.type):
        return None
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    static = (causal, window, None, scale, softcap, 0.0, False, deterministic, threads_of(threads, q), "auto", None,
              None)
    at_k, at_v = k.stride(), v.stride()
    key = (_RUNS, static, heads, context, q.dtype, k.dtype, v.dtype, device, k.device, v.device, shape, q.stride(),
           _run.most_keys(keys), of_k[0], of_k[heads], of_k[3], of_v[0], of_v[heads], of_v[3], at_k[3], at_v[3],
           at_k[heads] < at_k[rows], at_v[heads] < at_v[rows], q.is_neg(), k.is_neg(), v.is_neg(),
           context is None or not any(n % 8 for n in at_k[:3] + at_v[:3]))
    arrays = tables
    if tables:
        arrays = {name: _run.as_table(table, name, _run.table_dtype(name, ""), None if context is None else device.index)
                  for name, table in tables.items()}
        if any(type(table) is not Tensor for table in arrays.values()):  # converted
            return None
        for name, axis in _run._KEYS_AXIS.items():
            if name in arrays and (arrays[name].dim() != 4 or arrays[name].shape[axis] != (
                    keys if name == "intervals" else (keys + 7) // 8)):
                return None
        key += tuple((name, *(n for axis, n in enumerate(table.shape) if axis != _run._KEYS_AXIS.get(name)))
                     for name, table in arrays.items())
    plan = _run._plans.get(key)
    if plan is None:
        tensors = {name: x if heads == 2 else x.transpose(1, 2) for name, x in (("q", q), ("k", k), ("v", v))}
        plan = _run.prepared(_c.FORWARD, tensors, static, arrays, None, None, {}, context)
        if not plan.grows:
            return None
        _run.kept(key, context, lambda: plan)
    args = _c.Args()
    args.q, args.k, args.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    layout = _Layout(keys, at_k[0], at_k[rows], at_k[heads], 1, at_v[0], at_v[rows], at_v[heads], 1)
    args.kv_layout = ctypes.addressof(layout)
    for name, table in arrays.items():
        setattr(args, name, table.data_ptr())
    made = torch.zeros if "lens_kv" in arrays else torch.empty
    o = made(plan.shapes["o"], dtype=q.dtype, device=device)
    args.o = o.data_ptr()
    if not (args.q and args.k and args.v and args.o):
        return None
    owner, place = _run.workspace(q, None if context is None else device.index, plan.workspace)
    _c.check(_c.run(plan.handle, args, _c.ARGS_SIZE, place, stream))
    del owner
    return o
