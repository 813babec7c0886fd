"""What torch.utils.flop_counter.FlopCounterMode counts for libattn's operators.

As a plan's info["flops"]: 2 pairs (dim + dim_v), and 2.5 times as many in the backward, over the pairs of query head,
row and key that are visible by causal, window, chunk, prefix, lengths and positions. Those that intervals, blocks or
bits hide are counted, too. torch's own formula for scaled_dot_product_attention counts all pairs, whatever the mask.
Where lengths have no values, as in fake tensors, each sequence counts with the most that it may have.
"""
from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import _torch_kv  # noqa: F401 - its operators
from ._torch_ops import has_values

Sequences = List[Tuple[int, ...]]  # each rows, keys, prefix, first key, position of row 0 among the keys and of key 0


def _named(op: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """An operator's arguments by name, with its defaults."""
    arguments = op.default._schema.arguments
    named = {argument.name: argument.default_value for argument in arguments}
    named.update(zip(named, args), **kwargs)
    return named


def _values(tensor: Optional[Tensor]) -> Optional[List[int]]:
    """What a table of lengths holds; None where there is none, or no values."""
    return tensor.tolist() if tensor is not None and has_values(tensor) else None


def _lens(cu_lens: Optional[Tensor], most: int) -> List[int]:
    """Lengths of packed sequences; each the most, where cu_lens has no values."""
    starts = _values(cu_lens)
    return [most] * (cu_lens.shape[0] - 1) if starts is None else [b - a for a, b in zip(starts, starts[1:])]


def _visible(rows: int, keys: int, prefix: int, first: int, start: int, origin: int, causal: bool, window: Any,
             chunk: Optional[int]) -> int:
    """Visible pairs of a row and a key in one sequence."""
    t = np.arange(rows) + start
    low, high = np.full(rows, first), np.full(rows, keys)  # what all masks but causal and window leave
    if chunk is not None:
        low = np.maximum(low, (t + origin) // chunk * chunk - origin)
        high = np.minimum(high, ((t + origin) // chunk + 1) * chunk - origin)
    after, before = np.zeros(rows, int), np.full(rows, keys)  # what causal and window leave
    left, right = window or (-1, -1)
    if causal:
        before = np.minimum(before, t + 1)
    if right >= 0:
        before = np.minimum(before, t + right + 1)
    if left >= 0:
        after = np.maximum(after, t - left)

    def pairs(start: Any, end: Any) -> int:
        return int(np.maximum(np.minimum(end, high) - np.maximum(start, low), 0).sum())

    return pairs(after, before) + pairs(0, prefix) - pairs(after, np.minimum(before, prefix))


def _flops(sequences: Sequences, heads: int, dims: int, given: Dict[str, Any]) -> int:
    """given: causal, window and chunk, where they are not off."""
    options = bool(given.get("causal")), given.get("window"), given.get("chunk")
    pairs = sum(_visible(*sequence, *options) * times for sequence, times in Counter(sequences).items())
    return 2 * pairs * heads * dims


def _sequences(rows: List[int], keys: List[int], given: Dict[str, Any]) -> Sequences:
    """With what tables say of each sequence. given: arguments by name."""
    batch = len(rows)
    prefix, first, at_row, at_key = (_values(given.get(name)) or [None] * batch
                                     for name in ("prefix", "first_kv", "position_q", "position_kv"))
    return [(int(n), int(m), p or 0, f or 0, int(m - n) if row is None else row - (key or 0), key or 0)
            for n, m, p, f, row, key in zip(rows, keys, prefix, first, at_row, at_key)]


def _attention(given: Dict[str, Any]) -> int:
    q, k, v = given["q"], given["k"], given["v"]
    if given["max_lens"] is None:
        rows, keys = ([x.shape[1]] * q.shape[0] for x in (q, k))
    else:
        rows, keys = (_lens(given[name], min(most, x.shape[0])) for name, most, x in zip(
            ("cu_lens_q", "cu_lens_kv"), given["max_lens"], (q, k)))
    rows, keys = _values(given["lens_q"]) or rows, _values(given["lens_kv"]) or keys
    return _flops(_sequences(rows, keys, given), q.shape[-2], q.shape[-1] + v.shape[-1], given)


@register_flop_formula(torch.ops.libattn.forward, get_raw=True)
def _forward(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return _attention(_named(torch.ops.libattn.forward, args, kwargs))


@register_flop_formula(torch.ops.libattn.backward, get_raw=True)
def _backward(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    return _attention(_named(torch.ops.libattn.backward, args, kwargs)) * 5 // 2


@register_flop_formula(torch.ops.libattn.with_kvcache, get_raw=True)
def _with_kvcache(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    given = _named(torch.ops.libattn.with_kvcache, args, kwargs)
    q, k, k_cache, cu_lens = given["q"], given["k"], given["k_cache"], given["cu_lens"]
    if cu_lens is None:
        rows = [q.shape[1]] * q.shape[0]
    else:
        rows = _lens(cu_lens, min(given["max_len_q"], q.shape[0]))
    new = [0] * len(rows) if k is None else rows if cu_lens is not None else [k.shape[1]] * len(rows)
    before = _values(given["cache_seqlens"])
    if before is None:
        keys = [_room(k_cache, given["page_table"], given["max_len_kv"])] * len(rows)
    else:
        keys = [a + b for a, b in zip(before, new)]
    flops = _flops(_sequences(rows, keys, given), q.shape[-2], q.shape[-1] + given["v_cache"].shape[-1], given)
    return int(flops * (given["visible_share"] or 1))


def _room(k_cache: Tensor, page_table: Optional[Tensor], most: Optional[int]) -> int:
    """The most keys that a sequence may have."""
    room = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    return room if most is None else min(most, room)


@register_flop_formula(torch.ops.libattn.cascade, get_raw=True)
def _cascade(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
    given = _named(torch.ops.libattn.cascade, args, kwargs)
    q, k_cache, last = given["q"], given["k_cache"], len(given["lens_kv"]) - 1
    flops = 0
    for i, (cu_lens, lens, table) in enumerate(zip(given["cu_lens_q"], given["lens_kv"], given["page_tables"])):
        most = _room(k_cache, table, None if given["max_len_kv"] is None else given["max_len_kv"][i])
        rows = _lens(cu_lens, min(given["max_len_q"], q.shape[0]) if i == last else q.shape[0])
        keys = _values(lens) or [most] * len(rows)
        of_level = _sequences(rows, keys, {})
        flops += _flops(of_level, q.shape[-2], q.shape[-1] + given["v_cache"].shape[-1],
                        {"causal": given["causal"] and i == last})
    return flops
