"""A call like one before, past PyTorch's dispatcher.

To look at all arguments takes longer than a short attention. So what an operator found is kept by all that it depends
on: options, and types, shapes and strides of tensors. A call that has the same takes one look into a dictionary, memory
for its results, and one call of C. All others, and those that fail, are the operator's, which says what is wrong.
"""
from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _c, _problem, _run, _tensor

_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_profiled = torch._C._autograd._profiler_enabled
_transformed, _traced = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state
_is_compiling, _threads = torch.compiler.is_compiling, torch.get_num_threads

_WIDE = {"q", "k", "v", "grad_o", "bias"}  # kernels of a GPU read them 16 bytes at a time


class _Call(NamedTuple):
    """What a call needs besides its tensors."""

    plan: _problem.Prepared
    outputs: List[Tuple[str, Tuple[int, ...], Tuple[int, ...], torch.dtype, Optional[float]]]


class _Found(NamedTuple):
    """A call's key, its tensors by address, and the stream."""

    key: Tuple[Any, ...]
    args: _c.Args
    stream: Optional[int]


def unwatched() -> bool:
    """Whether nothing would see the operator if the dispatcher called it: no mode, transform, trace or profiler."""
    return not (_is_compiling() or _modes[0]() or _modes[1]() or _profiled() or _transformed() or _traced() is not None)


def stream_of(index: int) -> Optional[int]:
    """The current stream of the GPU that is the current one; None: another is."""
    return torch._C._cuda_getCurrentRawStream(index) if index == torch._C._cuda_getDevice() else None


def _find(direction: int, names: Tuple[str, ...], tensors: Sequence[Optional[Tensor]], static: Tuple[Any, ...],
          wanted: Tuple[str, ...]) -> Optional[_Found]:
    """None where the dispatcher would do more than call the kernel, or the kernel would not take an address."""
    q, stream, wide, args = tensors[0], None, 0, _c.Args()
    index = q.get_device()
    if q.is_cuda:
        stream = stream_of(index)
        if stream is None:
            return None
    elif not q.is_cpu:
        return None
    key: List[Any] = [direction, static, wanted, index, _threads()]
    try:
        for name, x in zip(names, tensors):
            if x is None:
                continue
            if not (type(x) is Tensor or type(x) is Parameter) or x.get_device() != index or x.is_neg():
                return None
            at = x.data_ptr()
            if not at:
                return None
            key += name, x.dtype, x.shape, x.stride()
            if name in _WIDE:
                wide |= at
            if name == "seed":
                args.seed_at, args.seed_offset_at = at, at + x.element_size() * x.stride(0)
            else:
                setattr(args, name, at)
    except RuntimeError:  # of a layout that has no strides or no memory
        return None
    return None if stream is not None and wide % 16 else _Found(tuple(key), args, stream)


def again(direction: int, names: Tuple[str, ...], tensors: Sequence[Optional[Tensor]], static: Tuple[Any, ...],
          wanted: Tuple[str, ...]) -> Optional[List[Tensor]]:
    """The wanted results, if a call like this one is kept and succeeds.

    names: of the tensors, q's first, by their fields in attn_args, and "seed". static: options that are no tensors.
    """
    found = _find(direction, names, tensors, static, wanted)
    call = None if found is None else _run.kept_already(found.key, _run.calls)
    if call is None:
        return None
    return launch(call, tensors[0], found.args, found.stream)


def launch(call: _Call, q: Tensor, args: _c.Args, stream: Optional[int]) -> Optional[List[Tensor]]:
    """The results of the tensors in `args`; None if it fails. stream: None on the CPU."""
    results = []
    for name, shape, strides, dtype, fill in call.outputs:
        made = q.new_empty_strided(shape, strides, dtype=dtype)
        if fill is not None:
            made.fill_(fill)
        setattr(args, name, made.data_ptr())
        results.append(made)
    owner, place = _run.workspace(q, None if stream is None else q.get_device(), call.plan.workspace)
    status = _c.run(call.plan.handle, args, _c.ARGS_SIZE, place, stream)
    del owner
    return None if status else results


def call_of(plan: _problem.Prepared, wanted: Tuple[str, ...], partly: bool) -> _Call:
    """What a call needs for the wanted outputs. partly: as in _tensor.fill_of."""
    return _Call(plan, [
        (name, plan.shapes[name], _tensor.packed(plan.shapes[name]), getattr(torch, plan.dtype_of(name)),
         _tensor.fill_of(name, partly)) for name in wanted])


def keep(direction: int, names: Tuple[str, ...], tensors: Sequence[Optional[Tensor]], static: Tuple[Any, ...],
         wanted: Tuple[str, ...], plan: _problem.Prepared, partly: bool) -> None:
    """Keeps the plan that served a call."""
    found = _find(direction, names, tensors, static, wanted)
    if found is not None:
        _run.keep(found.key, call_of(plan, wanted, partly), _run.calls)
