"""Masks by name, for the argument `mask` of attention: combined with &, they leave the pairs that all of them leave.

    from libattn.masks import causal, chunk, documents, prefix, window

    attention(q, k, v, mask=causal & window(1024) & documents(ids))
    attention(q, k, v, mask=causal & window(1024) | prefix(lens))

Row i stands at t = i + len_kv - len_q among the keys, as everywhere in libattn. Nothing here makes a matrix: causal,
window, chunk and prefix are options of the plan, documents two numbers for each key.
"""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, NoReturn, Optional, Tuple

import numpy as np

from . import _c, _options, _tensor

__all__ = ["Mask", "Prefix", "causal", "chunk", "documents", "prefix", "window"]


class Prefix(NamedTuple):
    """Keys that are visible beside those of a causal mask or a window: `causal | prefix(lens)`."""

    lens: Any

    def __or__(self, other: Any) -> "Mask":
        return other | self

    def __bool__(self) -> bool:
        return _no_truth()


def _no_truth() -> NoReturn:
    raise _c.InvalidError("a mask is neither true nor false: `and`, `or` and `not` would keep one of two masks. & "
                          "leaves the pairs that both leave, as in causal & window(10), and | joins a prefix")


class Mask(NamedTuple):
    """Masks by name, intersected by &. Made by causal, window, chunk and documents."""

    causal: bool = False
    left: Optional[int] = None
    right: Optional[int] = None
    chunk: Optional[int] = None
    prefix: Any = None
    documents: Tuple[Any, ...] = ()
    array: Any = None

    __array_ufunc__ = None  # an array to the left of & leaves it to __rand__

    def __and__(self, other: Any) -> "Mask":
        if not isinstance(other, Mask):
            if isinstance(other, Prefix) or not hasattr(other, "shape"):
                raise _c.InvalidError(f"a mask & {type(other).__name__}: it takes another mask of libattn.masks, or an "
                                      "array of bool (a prefix is joined by |, to causal or a window)")
            other = Mask(array=other)
        if (self.prefix is not None and other.by_position()) or (other.prefix is not None and self.by_position()):
            raise _c.InvalidError("a prefix adds to causal and window: join those first, as in (causal & window(8)) | "
                                  "prefix(lens)")
        if (self.prefix is not None or other.prefix is not None) and (self.documents or other.documents):
            raise _c.InvalidError("a prefix and documents do not go together: intervals can say both")
        for name in ("chunk", "prefix", "array"):
            if getattr(self, name) is not None and getattr(other, name) is not None:
                raise _c.InvalidError(f"both sides of & have {'an' if name == 'array' else 'a'} {name}; one may")
        return Mask(self.causal or other.causal, _least(self.left, other.left), _least(self.right, other.right),
                    other.chunk if self.chunk is None else self.chunk,
                    other.prefix if self.prefix is None else self.prefix, self.documents + other.documents,
                    other.array if self.array is None else self.array)

    __rand__ = __and__

    def __bool__(self) -> bool:
        return _no_truth()

    def __or__(self, other: Any) -> "Mask":
        if not isinstance(other, Prefix):
            raise _c.InvalidError(f"a mask | {type(other).__name__}: only a prefix can be joined by |")
        more = self.documents or not self.chunk is self.prefix is self.array is None
        if more or not self.by_position():
            raise _c.InvalidError("a prefix is joined to causal, to a window or to causal & window, and to nothing else")
        return self._replace(prefix=other.lens)

    def by_position(self) -> bool:
        """Whether it is (also) causal or a window."""
        return self.causal or self.left is not None or self.right is not None


def _least(a: Optional[int], b: Optional[int]) -> Optional[int]:
    return b if a is None else a if b is None else min(a, b)


#: Key j is visible iff j <= t.
causal = Mask(causal=True)


def window(left: Optional[int], right: Optional[int] = None) -> Mask:
    """t - left <= j <= t + right; None is unbounded. Its own key and `left` keys before it: causal & window(left)."""
    if any(side is not None and _options.integer("window", side) < 0 for side in (left, right)):
        raise _c.InvalidError(f"window is ({left}, {right}); it takes numbers >= 0, or None for unbounded")
    return Mask(left=left, right=right)


def chunk(size: int) -> Mask:
    """A row sees the keys of its own chunk of `size`: floor(t / size) == floor(j / size)."""
    return Mask(chunk=_options.integer("chunk", size))


def prefix(lens: Any) -> Prefix:
    """(batch) int32: keys j < lens are visible too: `causal | prefix(lens)`."""
    return Prefix(lens)


def documents(ids: Any) -> Mask:
    """A row sees the keys of its own document.

    ids: (batch, len_kv) or (len_kv), integers: neighbouring keys of the same number are a document; a number that
    stands in two places raises. Rows are the last len_q keys."""
    return Mask(documents=(ids,))


# ---- from names to what a plan takes -------------------------------------------------------------

SPREAD = "documents has a number in two places: a document's keys are neighbours"
ADDED = ("mask holds numbers other than 0 and -inf; it takes bool, or 0 where a pair is visible and -inf where it is not "
         "(numbers that are added to scores are a bias)")


def is_causal_bias(bias: Any) -> bool:
    """Whether it is one of torch.nn.attention.bias, which are tensors without values."""
    return type(bias).__name__ == "CausalBias" and type(bias).__module__ == "torch.nn.attention.bias"


def of_causal_bias(name: str, bias: Any, rows: int, keys: int) -> bool:
    """Whether it is aligned at the bottom right (causal_lower_right), as this library's causal masks are."""
    if (bias.seq_len_q, bias.seq_len_kv) != (rows, keys):
        raise _c.InvalidError(f"{name} is a causal bias of {(bias.seq_len_q, bias.seq_len_kv)} rows and keys; q and k "
                              f"have {(rows, keys)}")
    return bias.variant.name == "LOWER_RIGHT" or rows == keys


def by_causal_bias(bias: Any, rows: int, keys: int, causal: Any, window: Any, prefix: Any,
                   is_varlen: bool) -> Tuple[bool, Optional[Tuple[int, int]]]:
    """(causal, window) that mean what a bias of torch.nn.attention.bias does."""
    if causal or window is not None or prefix is not None or is_varlen:
        raise _c.InvalidError("bias is a causal bias, which goes with neither causal, window, prefix nor cu_lens")
    if of_causal_bias("bias", bias, rows, keys):
        return True, None
    if rows < keys:
        raise _c.InvalidError(f"bias is causal_upper_left of {rows} rows and {keys} keys, of which no row sees the "
                              f"last {keys - rows}: pass causal=True and the first {rows} keys")
    return False, (-1, rows - keys)


def check_kind(mask: Any) -> None:
    """Raises for what looks like a mask by name and is none."""
    if isinstance(mask, Prefix):
        raise _c.InvalidError("mask is a prefix alone: it is joined to another, as in causal | prefix(lens)")
    if isinstance(mask, str) or callable(mask):
        what = repr(mask) if isinstance(mask, str) else f"a {type(mask).__name__}"
        raise TypeError(f"mask is {what}; it takes an array, or masks by name, such as libattn.masks.causal")


def check_shape(name: str, shape: Tuple[int, ...], full: Tuple[int, int, int, int]) -> None:
    """Raises unless a mask of 2 to 4 dimensions broadcasts to (batch, heads_q, len_q, len_kv)."""
    if 2 <= len(shape) <= 4 and all(n in (1, most) for n, most in zip(shape[::-1], full[::-1])):
        return
    batch, _, rows, keys = full
    hint = ""
    if shape == (batch, keys):
        hint = (f". Two dimensions are (len_q, len_kv): write {name}[:, None, None, :] for the keys of each sequence; "
                "attention's lens_kv says the same of padding after the keys, and is faster")
    elif shape == (batch, rows, keys):
        hint = f". Three dimensions are (heads_q, len_q, len_kv): write {name}[:, None] for each sequence's pairs"
    raise _c.InvalidError(f"{name} has shape {shape}; it takes 2 to 4 dimensions that broadcast to (batch, heads_q, "
                          f"len_q, len_kv), here {full}{hint}")


def options(mask: Mask, given: Dict[str, Any]) -> Dict[str, Any]:
    """causal, window, chunk and prefix of a mask, together with those given beside it."""
    found = dict(given)
    found["causal"] = _options.flag("causal", given["causal"]) or mask.causal
    sides = None if mask.left is None and mask.right is None else (mask.left, mask.right)
    for name, value in (("window", sides), ("chunk", mask.chunk), ("prefix", mask.prefix)):
        if value is not None and given[name] is not None:
            raise _c.InvalidError(f"{name} is given, and mask has one too")
        found[name] = given[name] if value is None else value
    if mask.prefix is not None and (given["causal"] or given["window"] is not None):
        raise _c.InvalidError("mask has a prefix: causal and window belong into it")
    return found


def intervals_of(mask: Mask, rows: int, keys: int, batch: int, is_causal: bool) -> Optional[np.ndarray]:
    """The documents as FlashMask's intervals, (batch, 1, len_kv, 1 or 2); None without documents."""
    if not mask.documents:
        return None
    first, last = np.zeros((batch, keys), np.int64), np.full((batch, keys), keys)
    for ids in mask.documents:
        seen = _tensor.see(ids, "documents") if _tensor.is_tensor(ids) else np.asarray(ids)
        if _tensor.layout(seen, "documents").device is not None:
            raise _c.InvalidError("documents are on a GPU: pass intervals, made there; libattn.torch.attention makes "
                                  "them")
        array = _tensor.host(seen)
        check_ids(array.shape, str(array.dtype), batch, keys)
        starts, ends = _runs(np.broadcast_to(array, (batch, keys)))
        first, last = np.maximum(first, starts), np.minimum(last, ends)
    later = keys - rows
    vectors = [last - later] if is_causal else [last - later, first - later]
    return np.clip(np.stack(vectors, -1), 0, rows).astype(np.int32)[:, None]


def check_ids(shape: Tuple[int, ...], dtype: str, batch: int, keys: int) -> None:
    """Raises unless it is the shape and type of a documents mask."""
    if tuple(shape) not in ((keys,), (1, keys), (batch, keys)):
        raise _c.InvalidError(f"documents has shape {tuple(shape)}; it takes ({keys},) or ({batch}, {keys})")
    if "int" not in dtype:
        raise _c.InvalidError(f"documents is {dtype}; it takes integers")


def _runs(ids: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Where the run of equal numbers that a place is in begins and ends, both (batch, keys)."""
    batch, keys = ids.shape
    place = np.arange(keys)
    new = np.ones((batch, keys), bool)
    new[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.maximum.accumulate(np.where(new, place, 0), 1)
    is_last = np.ones((batch, keys), bool)
    is_last[:, :-1] = new[:, 1:]
    ends = np.minimum.accumulate(np.where(is_last, place + 1, keys)[:, ::-1], 1)[:, ::-1]
    in_order = np.sort(ids, 1)
    if np.any((in_order[:, 1:] != in_order[:, :-1]).sum(1) + (keys > 0) != new.sum(1)):
        raise _c.InvalidError(SPREAD)
    return starts, ends

