"""Every option that is no array, by name: which types it takes.

Types decide nothing but whether an option is taken; ranges are the C library's to check. Numbers of NumPy are taken as
Python's are. Nothing that can change after the call is taken, for options are a part of the key of kept plans.
"""
from __future__ import annotations

import numbers
import operator
import os
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _c


class Kind(NamedTuple):
    """What an option takes: types, and the same in words."""

    types: Tuple[type, ...]
    words: str

    def takes(self, value: Any) -> bool:
        """Python counts bool among the integers, NumPy spans of time."""
        return isinstance(value, self.types) and not isinstance(value, np.timedelta64) and (
            bool in self.types or not isinstance(value, bool))

    def or_none(self) -> "Kind":
        return Kind((*self.types, type(None)), self.words + ", or None")


FLAG = Kind((bool, np.bool_), "True or False")
INTEGER = Kind((numbers.Integral,), "an integer")
NUMBER = Kind((numbers.Real,), "a number")
TEXT = Kind((str,), "a string")

KINDS: Dict[str, Kind] = {
    **dict.fromkeys(("causal", "out_f32", "deterministic", "return_lse", "backward", "grad_bias", "grad_alibi",
                     "grad_sink", "is_causal", "enable_gqa", "subtract_mean"), FLAG),
    "rotary_interleaved": FLAG.or_none(), "token_scales": FLAG,
    "hadamard": Kind((bool, np.bool_, numbers.Integral), "True, False or an integer"),
    **dict.fromkeys(("chunk", "max_len", "max_len_q", "max_len_kv", "bits_keys", "scale_heads", "dim", "alignment"),
                    INTEGER.or_none()),
    **dict.fromkeys(("threads", "block_rows", "rows", "memory", "pieces"), INTEGER),
    "dropout_p": NUMBER,
    **dict.fromkeys(("scale", "softcap", "visible_share"), NUMBER.or_none()),
    "window": Kind((tuple, list, type(None)), "(left, right), two integers or None"),
    **dict.fromkeys(("isa", "granularity", "layout", "schedule", "transport"), TEXT),
    **dict.fromkeys(("kernel", "strategy", "dtype", "kv_dtype", "out_dtype", "fallback"), TEXT.or_none()),
    "path": Kind((str, os.PathLike, type(None)), "a path or a name, or None"),
}


def check(name: str, value: Any, kind: Optional[Kind] = None) -> Any:
    """The value; raises unless it is of a type that the option takes."""
    kind = kind or KINDS[name]
    if not kind.takes(value):
        raise _c.InvalidError(f"{name} is {value!r}; it takes {kind.words}")
    if isinstance(value, str):
        text(name, value)
    return value


_taken = set()  # combinations of types that were taken: a call looks at types alone


def check_all(names: Tuple[str, ...], values: Tuple[Any, ...]) -> None:
    """Likewise for the options of a call, in one look where options of these types were taken before."""
    types = (names, *map(type, values))
    if types not in _taken:
        for name, value in zip(names, values):
            check(name, value)
        _taken.add(types)


def text(name: str, value: str) -> bytes:
    """A string as C reads it: up to its first NUL."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise _c.InvalidError(f"{name} is {value!r}; it takes text without NUL and without halves of surrogates")
    return encoded


def flag(name: str, value: Any) -> bool:
    """A flag, quickly."""
    return value if value is True or value is False else bool(check(name, value, FLAG))


def integer(name: str, value: Any, bits: int = 63, least: Optional[int] = None) -> int:
    """The integer as C holds it, below 2^bits; ctypes would cut off what is too large. least: None: -2^bits."""
    number = value
    if type(value) is not int:
        number = operator.index(check(name, value, INTEGER))
    if not (-(1 << bits) if least is None else least) <= number < 1 << bits:
        raise _c.InvalidError(f"{name} is {number}; it takes an integer from {f'-2^{bits}' if least is None else least} "
                              f"to 2^{bits} - 1")
    return number


def number(name: str, value: Any) -> float:
    check(name, value, NUMBER)
    try:
        return float(value)
    except OverflowError:
        raise _c.InvalidError(f"{name} is {value!r}; it takes {NUMBER.words} that a float holds") from None


def window(value: Any) -> Optional[Tuple[int, int]]:
    """(left, right), -1 for unbounded, of what a caller gives; None for none."""
    if value is None:
        return None
    check("window", value)
    if len(value) != 2:
        raise _c.InvalidError(f"window is {value!r}; it takes {KINDS['window'].words}")
    left, right = (-1 if side is None else integer("window", side) for side in value)
    return left, right
