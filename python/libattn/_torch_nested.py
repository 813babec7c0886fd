"""Jagged nested tensors as packed rows, and back."""
from __future__ import annotations

from typing import Any, Dict, Tuple

import torch
from torch import Tensor

from . import _c, _tensor
from ._torch_ops import has_values


def is_any(*tensors: Any) -> bool:
    for tensor in tensors:  # any() of a generator takes a microsecond, which each call would pay
        if isinstance(tensor, Tensor) and tensor.is_nested:
            return True
    return False


def refuse(**tensors: Any) -> None:
    """Raises if one is nested: in functions that take no nested tensors."""
    for name, tensor in tensors.items():
        if is_any(tensor):
            _tensor.refuse_nested(name)


def check_options(options: Dict[str, Any]) -> None:
    """Raises if one is given. options: those that say something of rows or keys beyond their own sequence's."""
    for name, value in options.items():
        if value is not None:
            raise _c.InvalidError(f"{name} is given, and does not go with nested tensors: attention_varlen takes "
                                  "packed rows with masks and biases")


def packed(q: Any, k: Any, v: Any, names: Tuple[str, str, str], jagged: int) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """(rows of q, k and v, (cu_lens_q, cu_lens_kv, max_len_q, max_len_kv)) of nested tensors. names: what the caller
    calls them; jagged: the dimension that is."""
    shape = "(batch, j, heads, dim)" if jagged == 1 else "(batch, heads, j, dim)"
    for name, tensor in zip(names, (q, k, v)):
        if not is_any(tensor):
            raise _c.InvalidError(f"{name} is no nested tensor, as another of {', '.join(names)} is: all are, or none")
        if tensor.layout != torch.jagged:
            raise _c.InvalidError(f"{name} is a nested tensor of layout {tensor.layout}; it takes torch.jagged")
        if tensor.dim() != 4 or tensor._ragged_idx != jagged:
            raise _c.InvalidError(f"{name} is a nested tensor of {tensor.dim()} dimensions, jagged in number "
                                  f"{tensor._ragged_idx}; it takes {shape}, jagged in number {jagged}")
        if tensor.lengths() is not None:
            raise _c.InvalidError(f"{name} is a nested tensor with gaps between sequences (lengths); its "
                                  ".contiguous() has none")
    if q.shape[0] != k.shape[0] or k.shape[0] != v.shape[0]:
        raise _c.InvalidError(f"{', '.join(names)} have {q.shape[0]}, {k.shape[0]} and {v.shape[0]} sequences; they "
                              "take the same number")
    if k.shape[jagged] != v.shape[jagged]:
        raise _c.InvalidError(f"{names[1]} and {names[2]} have offsets of their own; they take the same "
                              "tensor of offsets")
    rows = tuple(x.values() if jagged == 1 else x.values().transpose(0, 1) for x in (q, k, v))
    return rows, (q.offsets().int(), k.offsets().int(), _most(q, rows[0]), _most(k, rows[1]))


def _most(tensor: Any, rows: Tensor) -> int:
    """The longest sequence's rows, or more where that is not known."""
    if tensor._maybe_max_seqlen is None and not has_values(tensor.offsets()):
        return rows.shape[0]
    return tensor._get_max_seqlen()


def like(rows: Tensor, tensor: Any, jagged: int) -> Tensor:
    """A nested tensor of the sequences that another has. rows: with its jagged dimension at jagged - 1."""
    return torch.nested.nested_tensor_from_jagged(rows, tensor.offsets(), jagged_dim=jagged,
                                                  min_seqlen=tensor._maybe_min_seqlen,
                                                  max_seqlen=tensor._maybe_max_seqlen)
