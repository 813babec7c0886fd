"""The mask of a batch, as Transformers asks its mask functions for it, without a matrix where the pattern is known.

It is a Mask, a tensor that attention_forward() alone reads. Its dtype tells what it holds (it has four dimensions, as
Transformers wants masks to have):

    bool    (batch, 1, 0, 0): each row sees each key
    bool    (batch, 1, 0, 1): causal, the last row sees the last key
    int64   (batch, 1, 1, 1): used keys of each sequence, which all rows see
    int64   (batch, 1, 1, 2): used keys of each sequence, twice; causal, the last row sees the last of them
    int32   (batch, 1, len_kv, 1): causal, and each key is hidden from this row on
    int32   (batch, 1, len_kv, 2): each key is seen from the second number's row on and hidden from the first one's on
    uint8   (batch, 1, len_q, ceil(len_kv / 8)): a bit for each pair, where the pattern is not known

Numbers of keys and rows come from tensors on the mask's device: nothing here waits for a GPU.
"""
from __future__ import annotations

import sys
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.masking_utils import causal_mask_function, sdpa_mask

from . import _c
from ._torch_masks import pack_mask, runs

Offset = Union[int, Tensor]


class Mask(Tensor):
    """A mask in a form of libattn's. A model that computes attention itself would add these numbers to its scores: any
    use of them but by attention_forward() raises, with the name of the class that tried. What moves or copies the whole
    mask is allowed, and so are its attributes."""

    _WHOLE = frozenset((
        "__get__", "__getitem__", "__hash__", "__repr__", "_is_view", "clone", "contiguous", "cpu", "cuda",
        "data_ptr", "detach", "dim", "element_size", "is_conj", "is_contiguous", "is_floating_point", "is_inference",
        "is_neg", "ndimension", "numel", "requires_grad_", "size", "storage_offset", "stride", "to", "untyped_storage"))

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ not in cls._WHOLE:
            raise _c.UnsupportedError(refusal(_caller(), f"calls {func.__name__} on the attention mask"))
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Mask) and (result.shape, result.dtype) != (args[0].shape, args[0].dtype):
            raise _c.UnsupportedError(refusal(_caller(), f"takes a part of the attention mask by {func.__name__}"))
        return result

    @classmethod
    def of(cls, numbers: Tensor) -> "Mask":
        """The mask of these numbers. It keeps them: each layer asks for them."""
        mask = numbers.as_subclass(cls)
        if not torch.compiler.is_compiling():
            mask._numbers = numbers
        return mask

    def plain(self) -> Tensor:
        """The numbers, for attention_forward()."""
        if not torch.compiler.is_compiling() and "_numbers" in self.__dict__:
            return self._numbers
        with torch._C.DisableTorchFunctionSubclass():  # a view: torch.compile cannot trace as_subclass() back to Tensor
            return self.view(self.shape)


def refusal(name: str, why: str) -> str:
    """The sentence with which a class is refused."""
    return (f'{name} does not support attn_implementation="libattn": it {why} instead of leaving attention to '
            'Transformers\' AttentionInterface; attn_implementation="eager" works')


def _caller() -> str:
    """The class of the module that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module):
            return type(module).__name__
        frame = frame.f_back  # type: ignore[assignment]
    return "This code"


class Pattern(NamedTuple):
    """The pairs of a mask function: key j - left to j + right, and of the row's own document."""

    causal: bool = False
    left: Optional[int] = None
    right: Optional[int] = None
    documents: Tuple[Tensor, ...] = ()

    def __and__(self, other: "Pattern") -> "Pattern":
        left, right = ([side for side in sides if side is not None]
                       for sides in ((self.left, other.left), (self.right, other.right)))
        return Pattern(self.causal or other.causal, min(left, default=None), min(right, default=None),
                       self.documents + other.documents)


def _code(make: Optional[Callable], *arguments: Any) -> Any:
    """The code of the closures that a function of Transformers makes; an object that is no code if it is not there."""
    return object() if make is None else make(*arguments).__code__


_AND = _code(masking_utils.and_masks, causal_mask_function)
_LEFT = _code(masking_utils.sliding_window_overlay, 1)
_BOTH_SIDES = _code(masking_utils.sliding_window_bidirectional_overlay, 1)
_DOCUMENTS = _code(masking_utils.packed_sequence_mask_function, torch.zeros(1, 1))
_REMAPPED = _code(getattr(masking_utils, "remap_positions_for_packed_sequence", None), causal_mask_function,
                  torch.zeros(1, 1))


def pattern_of(function: Callable) -> Optional[Pattern]:
    """What a mask function of Transformers says; None: not known here."""
    if function is causal_mask_function:
        return Pattern(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    code = getattr(function, "__code__", None)
    if code is None or not function.__closure__:
        return None
    held = dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__)))
    if code is _AND:
        whole = Pattern()
        for part in map(pattern_of, held["mask_functions"]):
            if part is None:
                return None
            whole &= part
        return whole
    if code is _LEFT:
        return Pattern(left=held["sliding_window"] - 1)
    if code is _BOTH_SIDES:
        return Pattern(left=held["sliding_window"], right=held["sliding_window"])
    if code is _DOCUMENTS:
        return Pattern(documents=(held["packed_sequence_mask"],))
    if code is _REMAPPED:  # positions within documents: differences, which is all that counts here, stay the same
        return pattern_of(held["mask_function"])
    return None


def attention_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: Offset = 0, kv_offset: int = 0,
    mask_function: Callable = causal_mask_function, attention_mask: Optional[Tensor] = None,
    allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
    device: Union[torch.device, str] = "cpu", **keywords: Any,
) -> Mask:
    """The mask of a batch (the top of this file says what the result is). Arguments: those of Transformers' mask
    functions; row i stands at q_offset + i, key j at kv_offset + j, and attention_mask, (batch, keys), is True at used
    keys."""
    if torch.compiler.is_compiling():  # which traces neither what pattern_of() looks into nor the values of padding
        pattern = Pattern(causal=True) if mask_function is causal_mask_function and attention_mask is None else None
    else:
        pattern = pattern_of(mask_function)
    if pattern is None:
        return Mask.of(pack_mask(sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, device=device, **keywords)))
    used = _used(attention_mask, kv_length, kv_offset)
    ends_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if used is None and not pattern.documents and all(
            side is None or side >= kv_length - 1 for side in (pattern.left, pattern.right)) and (
            ends_together or pattern == Pattern()):
        return Mask.of(torch.empty(batch_size, 1, 0, int(pattern.causal), dtype=torch.bool, device=device))
    if pattern == Pattern(causal=True) and used is None and kv_offset == 0:
        return Mask.of(_filled(batch_size, q_length, q_offset, device))
    if pattern == Pattern() and used is not None and used.device.type == "cpu" and _only_ends(used):
        return Mask.of(used.sum(1)[:, None, None, None])
    return Mask.of(_intervals(pattern, used, batch_size, q_length, kv_length, q_offset, kv_offset, device,
                              pattern.causal and ends_together))


def _filled(batch: int, rows: int, q_offset: Offset, device: Any) -> Tensor:
    """Used keys: those up to the last row's. The rest of a static cache, which is not filled yet, is never read."""
    return torch.zeros(batch, 1, 1, 1 if rows == 1 else 2, dtype=torch.int64, device=device) + (q_offset + rows)


def _used(attention_mask: Optional[Tensor], kv_length: int, kv_offset: int) -> Optional[Tensor]:
    """(batch, len_kv) bool, of these keys; None where all are used, as far as that can be seen without waiting."""
    padded = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padded is None:
        return None
    padded = padded[:, kv_offset:kv_offset + kv_length].bool()
    return None if padded.device.type == "cpu" and bool(padded.all()) else padded


def _only_ends(used: Tensor) -> bool:
    """Whether each sequence's padding lies after its last used key."""
    return bool((used[:, 1:] <= used[:, :-1]).all())


def _intervals(pattern: Pattern, used: Optional[Tensor], batch: int, rows: int, keys: int, q_offset: Offset,
               kv_offset: int, device: Any, is_causal: bool) -> Tensor:
    """Each key's rows, from the first that sees it to the first that does not see it any more."""
    key = torch.arange(keys, device=device)[None] + kv_offset - q_offset  # the row that stands where the key does
    last = torch.full_like(key, rows) if pattern.left is None else key + pattern.left + 1
    first = key if pattern.causal else torch.zeros_like(key) if pattern.right is None else key - pattern.right
    for documents in pattern.documents:
        starts, ends = runs(documents)
        first, last = torch.maximum(first, starts), torch.minimum(last, ends)
    if used is not None:
        last = torch.where(used, last, 0)
    vectors = [last] if is_causal else [last, first]
    return torch.stack([vector.expand(batch, keys) for vector in vectors], -1).clamp(0, rows).int()[:, None]
