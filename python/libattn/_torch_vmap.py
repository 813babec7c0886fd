"""torch.func.vmap over the operators: all elements become one problem, whose batch or heads the mapped axis joins.
Where no such problem exists, the elements are computed one after another."""
from __future__ import annotations

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from . import _c
from ._torch_ops import backward_op, forward_op, library, rows_of


class Axes(NamedTuple):
    """The number of an argument's dimensions, and which of them count batch and heads."""

    rank: int
    batch: Optional[int]
    heads: Optional[int]
    repeats: Tuple[str, ...] = ()  # where an extent of 1 serves all


_BOTH = ("batch", "heads")
_COUNTS, _LISTS = ("block_full_count", "block_partial_count"), ("block_full", "block_partial")
_OPTIONS = {
    "bias": Axes(4, 0, 1, _BOTH), "alibi": Axes(2, 0, 1, ("batch",)), "sink": Axes(1, None, 0),
    **dict.fromkeys(("cu_lens_q", "cu_lens_kv", "seed"), Axes(1, None, None)),
    **dict.fromkeys(("lens_q", "lens_kv", "prefix"), Axes(1, 0, None)), "intervals": Axes(4, 0, 1, ("heads",)),
    **dict.fromkeys(_COUNTS, Axes(3, 0, 1, _BOTH)), **dict.fromkeys((*_LISTS, "bits"), Axes(4, 0, 1, _BOTH))}
_ROWS, _LSES = ("q", "k", "v", "o", "grad_o"), ("lse", "grad_lse")
_DENSE = {**_OPTIONS, **dict.fromkeys(_ROWS, Axes(4, 0, 2)), **dict.fromkeys(_LSES, Axes(3, 0, 1))}
_PACKED = {**_OPTIONS, **dict.fromkeys(_ROWS, Axes(3, None, 1)), **dict.fromkeys(_LSES, Axes(2, None, 0))}
_OF_SCORES = ("bias", "alibi", "sink")  # one for all elements has a gradient for each


class _Call:
    """A call of an operator under vmap: its tensors by name, and in which of their dimensions the elements lie."""

    def __init__(self, operator: Callable[..., Any], names: Tuple[str, ...], size: int, in_dims: Sequence[Any],
                 arguments: Tuple[Any, ...]):
        self.operator, self.size, self.given = operator, size, dict(zip(names, arguments))
        self.dims = {name: dim for name, dim in zip(names, in_dims) if isinstance(dim, int)}
        self.wanted = [name for name in _OF_SCORES if self.given.get(f"want_{name}")]
        self.axes = _DENSE if self.given.get("max_lens") is None else _PACKED
        self.shapes = {name: self._one(name, 0).shape for name in self.axes if self.given.get(name) is not None}

    def _one(self, name: str, index: int) -> Any:
        value, dim = self.given[name], self.dims.get(name)
        if dim is None:
            return value
        return value.select(dim, index) if self.size else value.new_zeros(value.shape[:dim] + value.shape[dim + 1:])

    def alone(self, index: int) -> Any:
        """The results of one element."""
        return self.operator(*(_laid_out(name, self._one(name, index)) if name in self.dims else value
                               for name, value in self.given.items()))

    def one_by_one(self) -> List[Tensor]:
        """The results, computed one after another; of no elements, their shapes come from one of zeros."""
        return [torch.stack(results)[:self.size] for results in zip(*map(self.alone, range(max(self.size, 1))))]

    def joined(self) -> Set[str]:
        """The arguments that the problem of all elements cannot take as they are."""
        names = {"q", "k", "v", *self.dims, *self.wanted}
        lists = _COUNTS + _LISTS
        return names.union(name for name in lists if name in self.shapes) if names.intersection(lists) else names

    def axis(self) -> Optional[str]:
        """What of the problem the mapped axis joins: "batch", "heads"; None: neither."""
        if not self.size or "seed" in self.shapes:  # which pairs are dropped depends on numbers of batch and head
            return None
        for name, shape in self.shapes.items():
            least = 1 if name in ("bias", "alibi") else self.axes[name].rank
            if not least <= len(shape) <= self.axes[name].rank:
                return None  # the element's own call refuses it
        names = self.joined()
        return next((kind for kind in _BOTH if all(getattr(self.axes[name], kind) is not None for name in names)), None)

    def together(self, kind: str) -> List[Tensor]:
        """The results of all elements, computed as one problem."""
        names = self.joined()
        try:
            results = self.operator(*(
                self._join(name, kind, name in names) if name in self.shapes else value
                for name, value in self.given.items()))
        except _c.InvalidError:
            self.alone(0)  # makes the same mistake, and says so in the shapes that the caller sees
            raise
        return results

    def _join(self, name: str, kind: str, is_needed: bool) -> Tensor:
        value, axes = self.given[name], self.axes[name]
        at = getattr(axes, kind)
        if at is None:
            return value
        shape = [1] * (axes.rank - len(self.shapes[name])) + list(self.shapes[name])
        if kind in axes.repeats and shape[at] == 1:
            if not is_needed:
                return value
            of = "k" if name == "intervals" and kind == "heads" else "q"
            shape[at] = self.shapes[of][getattr(self.axes[of], kind)]
        value = value.movedim(self.dims[name], 0) if name in self.dims else value[None]
        value = value[(slice(None),) + (None,) * (axes.rank + 1 - value.dim())]
        return _laid_out(name, value.expand(self.size, *shape).movedim(0, at).flatten(at, at + 1))

    def apart(self, result: Tensor, name: str, kind: str) -> Tensor:
        """A result of all elements, which has the shape of the argument `name`, as (elements, ...)."""
        if name in _OF_SCORES and name not in self.wanted:
            return result.expand(self.size, 0)
        at = getattr(self.axes[name], kind)
        result = result.unflatten(at, (self.size, result.shape[at] // self.size)).movedim(at, 0)
        if name in _OF_SCORES:  # may have repeated
            shape = self.shapes[name]
            lead = (1,) * (self.axes[name].rank - len(shape))
            result = result.sum_to_size(self.size, *lead, *shape).reshape(self.size, *shape)
        return result


def _laid_out(name: str, tensor: Tensor) -> Tensor:
    """As the operators take it."""
    return rows_of(tensor) if name in _ROWS else tensor if name == "bias" else tensor.contiguous()


def _mapped(operator, names, likes, info, in_dims, *arguments):
    call = _Call(operator, names, info.batch_size, in_dims, arguments)
    kind = call.axis()
    results = call.one_by_one() if kind is None else [
        call.apart(result, name, kind) for result, name in zip(call.together(kind), likes)]
    return tuple(results), (0,) * len(results)


def _register(name: str, operator: Any, likes: Tuple[str, ...]) -> None:
    """likes: for each result an argument that it has the shape of."""
    names = tuple(argument.name for argument in operator._schema.arguments)
    torch.library.register_vmap(f"libattn::{name}", functools.partial(_mapped, operator, names, likes), lib=library)


_register("forward", forward_op, ("o", "lse"))
_register("backward", backward_op, ("q", "k", "v", *_OF_SCORES))
