"""Attention as operators of PyTorch, torch.ops.libattn.forward and torch.ops.libattn.backward: their schemas, kernels,
shapes and autograd. The functions of libattn.torch call run_forward."""
from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from . import _c, _run
from ._torch_again import again, keep, unwatched

# Each array is an argument of its own, None where it is not there: torch.jit.trace knows no lists of optional tensors.
_OPTIONS = (
    "Tensor? bias=None, Tensor? alibi=None, Tensor? sink=None, Tensor? cu_lens_q=None, Tensor? cu_lens_kv=None, "
    "Tensor? lens_q=None, Tensor? lens_kv=None, Tensor? prefix=None, Tensor? intervals=None, "
    "Tensor? block_full_count=None, Tensor? block_full=None, Tensor? block_partial_count=None, "
    "Tensor? block_partial=None, Tensor? bits=None, Tensor? seed=None, SymInt[]? max_lens=None, SymInt[]? blocks=None, "
    "bool causal=False, SymInt[]? window=None, SymInt? chunk=None, float? scale=None, float? softcap=None, "
    "float dropout_p=0.0, bool out_f32=False, bool deterministic=False, int threads=0")


def has_values(tensor: Tensor) -> bool:
    """Whether it can be read, as tensors on the meta device cannot, nor those that torch traces with."""
    return not (tensor.is_meta or isinstance(tensor, (FakeTensor, FunctionalTensor)))


_OF_BYTES = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and dtype.itemsize == 1}


def no_bytes(*tensors: Tuple[str, Tensor]) -> Optional[str]:
    """Why operators with autograd do not take tensors of these names; None if they do. Autocast would make floats of
    bytes, without their scales."""
    for name, tensor in tensors:
        if tensor.dtype in _OF_BYTES:
            return (f"{name} is {tensor.dtype}; libattn.torch takes float32, float16, bfloat16 and float64. Tensors of "
                    "one byte have no gradient: libattn.attention and attention_varlen take them, with their scales")
    return None


def refuse_bytes(*tensors: Tuple[str, Tensor]) -> None:
    reason = no_bytes(*tensors)
    if reason is not None:
        raise _c.InvalidError(reason)


def threads_of(threads: int, q: Tensor) -> int:
    """As many as torch uses, when it runs, unless the caller says a number; a GPU has none."""
    return threads or (torch.get_num_threads() if q.is_cpu else 0)


library = torch.library.Library("libattn", "DEF")
library.define(f"forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
library.define("backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
               f"bool want_bias, bool want_alibi, bool want_sink, {_OPTIONS}) -> "
               "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
forward_op, backward_op = torch.ops.libattn.forward.default, torch.ops.libattn.backward.default

OPTIONS = tuple(argument.name for argument in forward_op._schema.arguments[3:])
_DEFAULTS = tuple(argument.default_value for argument in forward_op._schema.arguments[3:])
_TENSORS = OPTIONS.index("seed") + 1  # options that are tensors come first
ARRAYS = OPTIONS[:_TENSORS - 1]


def filled(arguments: Tuple[Any, ...], before: int) -> Tuple[Any, ...]:
    """With the defaults of options at the end, which the dispatcher leaves away, and tuples for its lists, which are no
    part of a key. before: arguments before options."""
    given = tuple(tuple(argument) if type(argument) is list else argument for argument in arguments)
    return given + _DEFAULTS[len(arguments) - before:]


# ---- kernels -------------------------------------------------------------------------------------


_GIVEN = {_c.FORWARD: ("q", "k", "v"), _c.BACKWARD: ("q", "k", "v", "o", "lse", "grad_o", "grad_lse")}
_NAMES = {direction: (*given, *OPTIONS[:_TENSORS]) for direction, given in _GIVEN.items()}
_GRADIENTS = ("grad_q", "grad_k", "grad_v", "grad_bias", "grad_alibi", "grad_sink")


def _call(direction, given, options, want):
    """The wanted results, in their order."""
    options = filled(options, 0)
    static = options[_TENSORS:]
    call = direction, _NAMES[direction], (*given, *options[:_TENSORS]), static, want
    results = again(*call)
    if results is not None:
        return results
    refuse_bytes(*zip(_GIVEN[direction][:3], given))
    tensors = {name: tensor for name, tensor in zip(_GIVEN[direction], given) if tensor is not None}
    arrays = {name: array for name, array in zip(ARRAYS, options) if array is not None}
    seed, (max_lens, blocks, *rest, threads) = options[_TENSORS - 1], static
    results = _run.run_typed(
        direction, tensors, (*rest, threads_of(threads, given[0]), "auto", None, None), arrays, max_lens, blocks, {},
        want, *((0, 0) if seed is None else (seed[0], seed[1])), None, functools.partial(keep, *call))
    return [results[name] for name in want]


def _forward(q, k, v, *options):
    return tuple(_call(_c.FORWARD, (q, k, v), options, ("o", "lse")))


def _backward(grad_o, grad_lse, q, k, v, o, lse, want_bias, want_alibi, want_sink, *options):
    wanted = want_bias, want_alibi, want_sink
    given = q, k, v, o, lse, *_as_read(grad_o, grad_lse)
    grads = iter(_call(_c.BACKWARD, given, options, _gradients_of(*wanted)))
    return (*(next(grads) for _ in range(3)), *(next(grads) if is_wanted else lse.new_empty(0) for is_wanted in wanted))


def _gradients_of(*wanted):
    """Names of the gradients, with those of bias, alibi and sink that are wanted."""
    return _GRADIENTS[:3] + tuple(name for name, is_wanted in zip(_GRADIENTS[3:], wanted) if is_wanted)


def _as_read(grad_o, grad_lse):
    """Both as the kernels read them."""
    return rows_of(grad_o), None if grad_lse is None else grad_lse.contiguous()


def rows_of(tensor: Tensor) -> Tensor:
    """As it is if the kernels take it: with a stride of 1 in dim."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


for _key in ("CPU", "CUDA"):
    library.impl("forward", _forward, _key)
    library.impl("backward", _backward, _key)


def floats_of(q: Tensor) -> torch.dtype:
    """The type of lse, alibi and sink."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@torch.library.register_fake("libattn::forward", lib=library)
def _forward_fake(q, k, v, *options):
    option = dict(zip(OPTIONS, filled(options, 0)))
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float32 if option["out_f32"] else q.dtype)
    lse = (q.shape[0], q.shape[2], q.shape[1]) if option["max_lens"] is None else (q.shape[1], q.shape[0])
    return o, q.new_empty(lse, dtype=floats_of(q))


@torch.library.register_fake("libattn::backward", lib=library)
def _backward_fake(grad_o, grad_lse, q, k, v, o, lse, want_bias, want_alibi, want_sink, *options):
    made = [q.new_empty(tensor.shape, dtype=o.dtype) for tensor in (q, k, v)]
    for tensor, is_wanted in zip(filled(options, 0), (want_bias, want_alibi, want_sink)):
        made.append(q.new_empty(tensor.shape if is_wanted else (0,), dtype=lse.dtype))
    return tuple(made)


# ---- autograd ------------------------------------------------------------------------------------

_below_autograd = torch._C._AutoDispatchBelowAutograd
_under_transforms = torch._C._are_functorch_transforms_active  # torch.func's


FORWARD_MODE = "libattn has no forward-mode gradients (torch.func.jvp, jacfwd, hessian, forward_ad)"
SECOND = "libattn's backward has no gradient of its own: second derivatives (create_graph=True) are not supported"


class _Attention(torch.autograd.Function):
    """The forward operator's gradient is the backward operator. register_autograd's own Function takes several times as
    long for every call, and knows no transforms of torch.func. Arguments in two tuples take less time than each by
    itself.

    tables: those options that are tensors and have no gradient. static: those that are none."""

    @staticmethod
    def forward(ctx, q, k, v, bias, alibi, sink, tables, static):
        o, lse = _attend(q, k, v, (bias, alibi, sink, *tables), static)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(o, lse, q, k, v, bias, alibi, sink, *tables)
        ctx.static = static
        return o, lse

    @staticmethod
    def backward(ctx, grad_o, grad_lse):
        if grad_o is None and grad_lse is None:
            return (None,) * 8
        o, lse, q, k, v, *tensors = ctx.saved_tensors
        if grad_o is None:
            grad_o = torch.zeros_like(o)
        wanted = ctx.needs_input_grad[3:6]
        grads = _grads(grad_o, grad_lse, q, k, v, o, lse, wanted, tensors, ctx.static)
        if o.dtype is not q.dtype:  # out_f32
            grads = [*(grad.to(q.dtype) for grad in grads[:3]), *grads[3:]]
        others = iter(grads[3:])
        return (*grads[:3], *(next(others).to(tensor.dtype) if is_wanted else None
                              for tensor, is_wanted in zip(tensors, wanted)), None, None)

    @staticmethod
    def jvp(ctx, *tangents):
        raise _c.UnsupportedError(FORWARD_MODE)


class _Backward(torch.autograd.Function):
    """Has no gradient of its own: who asks for one is refused, rather than given 0."""

    @staticmethod
    def forward(ctx, *arguments):
        return inside(backward_op, arguments)

    @staticmethod
    def backward(ctx, *grads):
        raise _c.UnsupportedError(SECOND)

    jvp = _Attention.jvp


def _attend(q, k, v, tensors, static):
    """(o, lse), below autograd."""
    if unwatched():
        results = again(_c.FORWARD, _NAMES[_c.FORWARD], (q, k, v, *tensors), static, ("o", "lse"))
        if results is not None:
            return results
    return inside(forward_op, (q, k, v, *tensors, *static))


def _grads(grad_o, grad_lse, q, k, v, o, lse, wanted, tensors, static):
    """Gradients of q, k and v, and those wanted of bias, alibi and sink."""
    if unwatched() and not torch.is_grad_enabled():
        results = again(_c.BACKWARD, _NAMES[_c.BACKWARD], (q, k, v, o, lse, *_as_read(grad_o, grad_lse), *tensors),
                        static, _gradients_of(*wanted))
        if results is not None:
            return results
    grads = _run_backward(grad_o, grad_lse, q, k, v, o, lse, *wanted, *tensors, *static)
    return [*grads[:3], *(grad for grad, is_wanted in zip(grads[3:], wanted) if is_wanted)]


def inside(operator: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
    """The operator below autograd. torch.func's next transform may record it, too, which Functions switch off."""
    if _under_transforms():
        with torch.enable_grad(), _below_autograd():
            return operator(*arguments)
    with _below_autograd():
        return operator(*arguments)


def _wants_gradient(tensors: Tuple[Optional[Tensor], ...]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def differentiable(tensors: Tuple[Optional[Tensor], ...]) -> bool:
    """Whether a gradient may be asked for, or a tangent be at hand."""
    return forward_ad._current_level >= 0 or _wants_gradient(tensors)


def applying(function: Any) -> Callable[..., Any]:
    """The Function, applied where the dispatcher is. Function.apply itself would start anew with all of torch.func's
    transforms, at one of which the dispatcher is."""
    apply = super(torch.autograd.Function, function).apply

    def applied(*arguments):
        if not _under_transforms():
            return apply(*arguments)
        with enable_single_level_autograd_function():
            return apply(*arguments)

    return applied


_apply_forward, _apply_backward = applying(_Attention), applying(_Backward)


def _recorded(arguments):
    """The forward operator of all of its arguments, recorded."""
    return _apply_forward(*arguments[:6], arguments[6:3 + _TENSORS], arguments[3 + _TENSORS:])


def _autograd_of(apply: Any, operator: Callable[..., Any], may_record: int, before: int) -> Callable[..., Any]:
    """The operator's kernel for autograd: records if one of the first `may_record` arguments asks for it."""
    def kernel(*arguments):
        if differentiable(arguments[:may_record]):
            return apply(filled(arguments, before))
        with _below_autograd():
            return operator(*arguments)

    return kernel


library.impl("forward", _autograd_of(_recorded, forward_op, 6, 3), "Autograd")
library.impl("backward", _autograd_of(lambda arguments: _apply_backward(*arguments), backward_op, 7, 10), "Autograd")


def _is_dispatched():
    """Whether the dispatcher has more to do than to record: all but eager mode."""
    return torch.compiler.is_compiling() or _under_transforms() or torch._C._get_tracing_state() is not None


def run_forward(*arguments):
    """The forward operator, of all of its arguments in order. In eager mode the dispatcher's turn through autograd,
    which passes all arguments again, is left out."""
    if _is_dispatched():
        return forward_op(*arguments)
    if differentiable(arguments[:6]):
        return _recorded(arguments)
    return _attend(*arguments[:3], arguments[3:3 + _TENSORS], arguments[3 + _TENSORS:])


def _run_backward(*arguments):
    if _is_dispatched():
        return backward_op(*arguments)
    return _apply_backward(*arguments) if differentiable(arguments[:7]) else inside(backward_op, arguments)
