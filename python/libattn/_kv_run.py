"""Runs of append and attention to a cache, from addresses: whose tensors they are of, and how they were found, does not
matter here."""
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import numpy as np

from . import _c, _run
from ._kv_plans import Prepared
from ._tensor import Layout

# Arguments that attn_args has by the same name; its q may be q_out, and its k and v are the caches.
_SAME = {"o", "lse", "lens_kv", "page_table", "cu_lens_q", "first_kv", "position_q", "position_kv", "prefix", "bits",
         "alibi", "sink", "q_scale", "k_scale", "v_scale", "o_scale", "fault"}


def append(prepared: Prepared, at: Dict[str, int], stream: Optional[int]) -> int:
    """Appends k and v to the cache; the status of C.

    at: addresses by the names of append_kvcache's arguments, but for lens_kv, lengths after the append; and q_out,
    where q turned goes. cu_lens and page_table are there in any case.
    """
    args = _c.KvArgs()  # set field by field: ctypes takes longer for keywords
    args.k, args.v, args.k_pages, args.v_pages = at["k"], at["v"], at["k_cache"], at["v_cache"]
    args.cu_lens, args.lens_kv, args.page_table = at["cu_lens"], at["lens_kv"], at["page_table"]
    args.fault = at.get("fault")
    if "rotary_cos" in at:
        args.cos, args.sin, args.positions = at["rotary_cos"], at["rotary_sin"], at.get("rotary_positions")
    if "q_out" in at:
        args.q, args.q_out = at["q"], at["q_out"]
    if prepared.scaled:
        args.k_scale, args.v_scale = at.get("k_scale"), at.get("v_scale")
    return _c.kv_run(prepared.append._handle, args, _c.KV_ARGS_SIZE, stream)


def attend(prepared: Prepared, at: Dict[str, int], like: Any, device: Optional[int], stream: Optional[int]) -> int:
    """Appends k and v where there are some, then computes attention of q, or of q_out; the first status of C that is
    not 0. What is wrong with the attention is known before the append runs.

    at: as append takes it, with attention_with_kvcache's other arguments, o and lse. like, device: as _run.workspace
    takes them.
    """
    args = _c.Args()
    args.q, args.k, args.v = at["q_out" if "q_out" in at else "q"], at["k_cache"], at["v_cache"]
    for name, place in at.items():
        if name in _SAME:
            setattr(args, name, place)
    plan = prepared.attention
    owner, place = _run.workspace(like, device, plan.workspace_bytes)
    status = 0
    if prepared.append is not None:
        status = _c.check_args(plan._handle, args, _c.ARGS_SIZE) or append(prepared, at, stream)
    status = status or _c.run(plan._handle, args, _c.ARGS_SIZE, place, stream)
    del owner
    return status


# ---- what a run writes, and what it reads --------------------------------------------------------


def extent(tensor: Layout) -> Tuple[int, int]:
    """Bytes [first, end), from its address on, that a tensor's elements lie in."""
    if 0 in tensor.shape:
        return 0, 0
    size = {"bfloat16": 2, **dict.fromkeys(_c.BYTE_DTYPES, 1)}.get(tensor.dtype) or np.dtype(tensor.dtype).itemsize
    steps = [(n - 1) * step * size for n, step in zip(tensor.shape, tensor.strides)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size


def overlap(read: Dict[str, Tuple[int, int]], written: Dict[str, Tuple[int, int]]) -> Optional[Tuple[str, str]]:
    """Of bytes [first, end) by name: the first that is read where another is written, and that other; None: they are
    apart."""
    for name, (first, end) in read.items():
        for other, (start, stop) in written.items():
            if first < stop and start < end and first < end and start < stop:  # nothing overlaps what is empty
                return name, other
    return None
