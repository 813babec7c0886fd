"""Merging attention to keys in parts as an operator of PyTorch with autograd, torch.ops.libattn.merge."""
from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import Tensor

from . import _c, _merging, _options, _tensor
from ._torch_ops import FORWARD_MODE, applying, differentiable, inside, library, threads_of

library.define("merge(Tensor[] o, Tensor[] lse, bool out_f32=False, int threads=0) -> (Tensor, Tensor)")
_merge_op = torch.ops.libattn.merge.default


def _merge(o, lse, out_f32=False, threads=0):
    return _merging.merge_states(o, lse, out_f32=out_f32, threads=threads_of(threads, o[0]))


for _key in ("CPU", "CUDA"):
    library.impl("merge", _merge, _key)


@torch.library.register_fake("libattn::merge", lib=library)
def _merge_fake(o, lse, out_f32=False, threads=0):
    return o[0].new_empty(o[0].shape, dtype=torch.float32 if out_f32 else o[0].dtype), lse[0].new_empty(lse[0].shape)


class _Merge(torch.autograd.Function):
    """A part's share is w_i = exp(lse_i - lse): grad_o_i = w_i grad_o, and grad_lse_i = w_i (grad_o . (o_i - o) +
    grad_lse). All are operations of PyTorch, which have gradients themselves."""

    @staticmethod
    def forward(ctx, out_f32, threads, *tensors):
        parts = len(tensors) // 2
        o, lse = inside(_merge_op, (tensors[:parts], tensors[parts:], out_f32, threads))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(o, lse, *tensors)
        return o, lse

    @staticmethod
    def backward(ctx, grad_o, grad_lse):
        o, lse, *tensors = ctx.saved_tensors
        parts = len(tensors) // 2
        grads_o, grads_lse = [None] * parts, [None] * parts
        for i, (part, part_lse) in enumerate(zip(tensors[:parts], tensors[parts:])):
            is_empty = part_lse == -torch.inf  # what its o holds has no meaning
            share = (part_lse - lse).masked_fill(is_empty, -torch.inf).exp()
            of_lse = grad_lse
            if grad_o is not None:
                grads_o[i] = (_by_row(share) * grad_o).to(part.dtype)
                apart = (part.float() - o).masked_fill(_by_row(is_empty), 0)
                along = (grad_o * apart).sum(-1).transpose(-1, -2)
                of_lse = along if grad_lse is None else along + grad_lse
            if of_lse is not None:
                grads_lse[i] = share * of_lse
        return (None, None, *grads_o, *grads_lse)

    @staticmethod
    def jvp(ctx, *tangents):
        raise _c.UnsupportedError(FORWARD_MODE)


def _by_row(of_heads: Tensor) -> Tensor:
    """(..., heads, rows) as (..., rows, heads, 1)."""
    return of_heads.transpose(-1, -2)[..., None]


_apply = applying(_Merge)


def _recorded(o, lse, out_f32=False, threads=0):
    if differentiable((*o, *lse)):
        return _apply(out_f32, threads, *o, *lse)
    with torch._C._AutoDispatchBelowAutograd():
        return _merge_op(o, lse, out_f32, threads)


library.impl("merge", _recorded, "Autograd")


def _mapped(info, in_dims, o, lse, out_f32=False, threads=0):
    """vmap: packed elements become a batch, batches one batch."""
    size, dims = info.batch_size, (*in_dims[0], *in_dims[1])
    ranks = {x.dim() - (dim is not None) + (i >= len(o)) for i, (x, dim) in enumerate(zip((*o, *lse), dims))}

    def joined(tensors, dims, rank):
        all_of = [x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims)]
        return [(x if x.dim() == rank else x.flatten(0, 1)).contiguous() for x in all_of], all_of[0].shape

    try:
        if ranks not in ({3}, {4}):
            raise _c.InvalidError("o and lse have numbers of dimensions that merge_states does not take")
        (all_o, shape_o), (all_lse, shape_lse) = joined(o, in_dims[0], 4), joined(lse, in_dims[1], 3)
        merged, merged_lse = _merge_op(all_o, all_lse, out_f32, threads)
    except _c.InvalidError:
        first = [x if dim is None else x.select(dim, 0) for x, dim in zip((*o, *lse), dims)]
        _merge_op(first[:len(o)], first[len(o):], out_f32, threads)  # says the same of the shapes that the caller sees
        raise
    return (merged.reshape(shape_o), merged_lse.reshape(shape_lse)), (0, 0)


torch.library.register_vmap("libattn::merge", _mapped, lib=library)


def merge_states(o: Sequence[Tensor], lse: Sequence[Tensor], *, out_f32: bool = False,
                 threads: int = 0) -> Tuple[Tensor, Tensor]:
    """libattn.merge_states with autograd: both results have gradients with respect to all parts' o and lse.

        >>> o, lse = merge_states([o_prefix, o_own], [lse_prefix, lse_own])
    """
    _merging.check_parts(o, lse)
    if not torch.compiler.is_compiling():
        _options.check_all(("out_f32", "threads"), (out_f32, threads))
    for name, parts in (("o", o), ("lse", lse)):
        for i, part in enumerate(parts):
            if not isinstance(part, Tensor):
                raise TypeError(f"{name}[{i}] is {type(part).__name__}; it takes a torch tensor")
            if part.is_nested:
                _tensor.refuse_nested(f"{name}[{i}]")
    return _merge_op(o, lse, out_f32, threads)
