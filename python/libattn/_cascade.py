"""Attention to keys that sequences share, in levels (attn_cascade_* of include/attn_kv.h)."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _c, _kv, _kv_plans, _options, _problem, _run, _tensor
from ._api import _longest, _no_grad
from ._problem import Handle, address_of, as_table, shape_is
from ._run import layouts
from ._tensor import empty, layout, see, signature, writable

_ARGUMENTS = """
        q             (total, heads_q, dim), rows of all sequences one after another, float32, float16 or bfloat16
        k_cache       (pages, page_size, heads_kv, dim), and v_cache, (pages, page_size, heads_kv, dim_v), of q's dtype:
                      the pages of all levels, in any order. Any strides, but the last dimension's must be 1
        levels        2 to 9 levels, as Pool.levels gives them: the shared ones, then each sequence's own. Each is (
                      cu_lens_q, lens_kv, page_table), all int32; what stands behind these three is not looked at:
                          cu_lens_q   (groups + 1): where each group's rows start in q, from 0, then where the last
                                      one's end. A group is sequences that follow one another; of the last level each
                                      sequence by itself
                          lens_kv     (groups): keys of each group
                          page_table  (groups, width): key j of a group is slot j % page_size of page page_table[j //
                                      page_size]
                      A sequence's keys are those of its group at the first level, then at the next, at last its own
        max_len_q     rows of the longest sequence, or more; None: found in the last level's cu_lens_q (CPU only)
        max_len_kv    a list: for each level the most keys of a group; None: all that page_table has room for. The plan
                      goes by it
        causal        a sequence's rows are its last own keys, and see no later one. They see all shared keys
        scale, softcap, sink, out_f32, deterministic, threads, isa
                      as attention takes them
        kernel, strategy
                      as attention takes them, of the last level
"""


class Cascade(Handle):
    """How a cascade will be computed: a plan for each level, and a merge. It never changes, and threads may share it.
    Made by libattn.plan_cascade()."""

    def __init__(self, desc: _c.Desc, levels: List[_c.CascadeLevel]):
        array, size = (_c.CascadeLevel * len(levels))(*levels), ctypes.sizeof(_c.CascadeLevel)
        super().__init__(desc, lambda *first: _c.cascade_plan_create(*first, array, size, len(levels)),
                         _c.cascade_plan_destroy)
        #: Bytes of workspace that a run needs.
        self.workspace_bytes: int = _c.cascade_plan_workspace(self._handle)

    def explain(self) -> str:
        """The plan in words: each level's plan, the merge, the time predicted, and what levels must save to pay."""
        return _problem.described(_c.cascade_plan_describe, self._handle)

    @property
    def info(self) -> Dict[str, Any]:
        """The plan in numbers, by the names of attn_cascade_info.

            seconds           predicted of levels in turn and merge; seconds_captured: in a captured graph
            seconds_alone     predicted if every sequence reads all of its keys; 0: not known
            saved_least       keys that the levels must save, all together (Level.saved), for levels to pay: with fewer
                              call attention_with_kvcache over all keys. -1: not known, 2^63 - 1: they never pay
            workspace_bytes   bytes of workspace
        """
        return _problem.info_of(_c.CascadeInfo, _c.cascade_plan_get_info, self._handle)

    def __repr__(self) -> str:
        info = self.info
        return f"<libattn.Cascade, {info['seconds']:.3g} s predicted, pays from {info['saved_least']} keys saved on>"


class _Call(NamedTuple):
    """A call's tensors and tables as they are seen."""

    tensors: Dict[str, Any]
    tables: List[Dict[str, Any]]  # of each level
    sink: Dict[str, Any]
    outputs: Dict[str, Any]


class Prepared(NamedTuple):
    plan: Cascade
    dtype: str  # of o
    shapes: Dict[str, Tuple[int, ...]]


_TABLES = ("cu_lens_q", "lens_kv", "page_table")


def _see(q, k_cache, v_cache, levels, sink, out, device, handle) -> _Call:
    tensors = {name: see(tensor, name, handle) for name, tensor in (("q", q), ("k", k_cache), ("v", v_cache))}
    tables = [{name: as_table(value, f"levels[{i}].{name}", "int32", device, handle)
               for name, value in zip(_TABLES, level)} for i, level in enumerate(levels)]
    of = layout(tensors["q"], "q").dtype
    sinks = {} if sink is None else {"sink": as_table(sink, "sink", _problem.table_dtype("sink", of), device, handle)}
    return _Call(tensors, tables, sinks, {} if out is None else {"o": writable(out, "out", handle)})


def _prepared(call: _Call, static, max_len_q, max_len_kv, context) -> Prepared:
    most = None if max_len_kv is None else tuple(max_len_kv)
    key = ("cascade", static, max_len_q, most, context, *map(signature, call.tensors.values()),
           *[signature(table) for level in call.tables for table in level.values()],
           *map(signature, call.sink.values()), "out", *map(signature, call.outputs.values()))
    return _run.kept(key, context, lambda: _make(call, _problem.Static(*static), max_len_q, most))


def _make(call: _Call, static, max_len_q, most) -> Prepared:
    tensors, tables = layouts(call.tensors), [layouts(level) for level in call.tables]
    for name in ("k", "v"):
        _problem.check_tensor(name + "_cache", tensors[name], tensors["q"], "(pages, slots, heads, dim)")
    _problem.check_rows(tensors["k"], tensors["v"], "k_cache", "v_cache")
    _problem.check_tensor("q", tensors["q"], tensors["q"], "(total, heads, dim)")
    if most is not None and len(most) != len(tables):
        raise _c.InvalidError(f"max_len_kv has {len(most)} numbers; it takes one for each of the {len(tables)} levels")
    sizes = []
    for i, level in enumerate(tables):
        table = level["page_table"].shape
        if len(table) != 2:
            raise _c.InvalidError(f"levels[{i}].page_table has shape {table}; it takes (groups, width)")
        shape_is(f"levels[{i}].cu_lens_q", level["cu_lens_q"].shape, (table[0] + 1,))
        shape_is(f"levels[{i}].lens_kv", level["lens_kv"].shape, (table[0],))
        limit = None if most is None else most[i]
        sizes.append((table[0], table[1], _kv_plans.most_keys(table[1], tensors["k"].shape[1], limit)))
    problem = _kv_plans.PagedProblem(
        _c.FORWARD, tensors, static, {**tables[-1], **layouts(call.sink)}, max_len_q, None, layouts(call.outputs),
        keys=sizes[-1][2], more=_kv_plans.More(None, None, None))
    shared = [_c.CascadeLevel(groups=groups, len_q=tensors["q"].shape[0], len_kv=keys, table_width=width)
              for groups, width, keys in sizes[:-1]]
    return Prepared(Cascade(problem.desc, shared), problem.dtype, {"o": problem.o_shape, "lse": problem.lse_shape})


def _checked(q, k_cache, v_cache, levels, sink, max_len_q) -> int:
    """max_len_q, where the arguments are of the right kinds."""
    _no_grad(q=q, k_cache=k_cache, v_cache=v_cache, sink=sink)
    if not isinstance(levels, (list, tuple)) or any(not isinstance(level, (list, tuple)) for level in levels):
        raise TypeError("levels is no list of levels, each (cu_lens_q, lens_kv, page_table)")
    if not 2 <= len(levels) <= 9:
        raise _c.InvalidError(f"levels has {len(levels)}; it takes 2 to 9: the shared ones, then each sequence's own")
    for i, level in enumerate(levels):
        if len(level) < 3:
            raise _c.InvalidError(f"levels[{i}] has {len(level)} arrays; it takes (cu_lens_q, lens_kv, page_table)")
    _options.check("max_len_q", max_len_q)
    if max_len_q is None:
        return _longest(levels[-1][0], "cu_lens_q")
    return _options.integer("max_len_q", max_len_q)


def attention_cascade(
    q: Any, k_cache: Any, v_cache: Any, levels: Sequence[Any], *, max_len_q: Optional[int] = None,
    max_len_kv: Optional[Sequence[int]] = None, causal: bool = False, scale: Optional[float] = None,
    softcap: Optional[float] = None, sink: Any = None, out: Any = None, return_lse: bool = False,
    out_f32: bool = False, deterministic: bool = False, threads: int = 0, isa: str = "auto",
    kernel: Optional[str] = None, strategy: Optional[str] = None, fault: Any = None, stream: Any = None,
) -> Any:
    """Attention of a batch whose sequences have keys in common, such as a system prompt: the keys that a group of
    sequences shares are computed once for all of its rows, each sequence's own keys by themselves, and what the levels
    give is merged.
"""
    return_lse = _options.flag("return_lse", return_lse)
    max_len_q = _checked(q, k_cache, v_cache, levels, sink, max_len_q)
    static = (causal, None, None, scale, softcap, 0.0, out_f32, deterministic, threads, isa, kernel, strategy)
    _options.check_all(_problem.Static._fields, static)
    handle = None if stream is None else _tensor.stream_handle(stream)
    used = [q, k_cache, v_cache, sink, out, fault, *[table for level in levels for table in level[:3]]]

    def body(device, context, handle):
        call = _see(q, k_cache, v_cache, levels, sink, out, device, handle)
        prepared = _prepared(call, static, max_len_q, max_len_kv, context)
        word = None if fault is None else _kv.fault_address(fault, device, handle)
        return _attend(call, prepared, word, out, return_lse, device, handle)

    return _run.placed(see(q, "q", handle), q, handle, used, body)


def _attend(call: _Call, prepared: Prepared, fault, out, return_lse, device, handle):
    args = _c.Args(fault=fault)
    for name, array in {**call.tensors, **call.tables[-1], **call.sink}.items():
        setattr(args, name, address_of(array, name))
    shared = (_c.CascadeKeys * (len(call.tables) - 1))()
    for keys, level in zip(shared, call.tables):
        for name, table in level.items():
            setattr(keys, name, address_of(table, name))
    results: List[Any] = []
    for name, dtype in (("o", prepared.dtype), ("lse", "float32"))[:1 + return_lse]:
        made, place = _run.output("out" if name == "o" else name, out, call.outputs.get(name), call.tensors["q"],
                                  prepared.shapes[name], dtype, False)
        results.append(made)
        setattr(args, name, place)
    owner, place = _run.workspace(call.tensors["q"], device, prepared.plan.workspace_bytes)
    try:
        _c.check(_c.cascade_run(prepared.plan._handle, args, _c.ARGS_SIZE, shared, ctypes.sizeof(_c.CascadeKeys), place,
                                handle))
    except _c.InvalidError as error:
        text = str(error)
        if text.startswith("shared["):  # as the C interface calls them
            raise _c.InvalidError("levels" + text[len("shared"):]) from None
        raise
    del owner
    return tuple(results) if return_lse else results[0]


def plan_cascade(
    q: Any, k_cache: Any, v_cache: Any, levels: Sequence[Any], *, max_len_q: Optional[int] = None,
    max_len_kv: Optional[Sequence[int]] = None, causal: bool = False, scale: Optional[float] = None,
    softcap: Optional[float] = None, sink: Any = None, out_f32: bool = False, deterministic: bool = False,
    threads: int = 0, isa: str = "auto", kernel: Optional[str] = None, strategy: Optional[str] = None,
) -> Cascade:
    """The plan by which attention_cascade of such tensors and levels is computed; what they hold does not matter. Its
    info["saved_least"] says how many keys the levels of a batch must save to pay.
"""
    max_len_q = _checked(q, k_cache, v_cache, levels, sink, max_len_q)
    static = (causal, None, None, scale, softcap, 0.0, out_f32, deterministic, threads, isa, kernel, strategy)
    _options.check_all(_problem.Static._fields, static)
    return _run.placed(see(q, "q"), q, None, [], lambda device, context, handle: _prepared(
        _see(q, k_cache, v_cache, levels, sink, None, device, handle), static, max_len_q, max_len_kv, context).plan)


attention_cascade.__doc__ = (attention_cascade.__doc__ or "") + _ARGUMENTS + """
        out           the array that o is written into; None: a new one
        fault         on a GPU: one int32 or uint32 that the caller clears; it becomes 1 where a length or a page id is
                      out of range, which there only the kernels see
        stream        as attention takes it

    Returns o, (total, heads_q, dim_v), with return_lse (o, lse), lse (heads_q, total) float32. Rows of no sequence
    become 0, and their lse -inf.

    Raises as attention does. A call that raises has written nothing.

    Source: Hydragen (arXiv 2402.05099); FlashInfer (arXiv 2501.01005).

        >>> levels = pool.levels(seqs, rows)
        >>> o = libattn.attention_cascade(q, k_pages, v_pages, levels, causal=True)
"""
plan_cascade.__doc__ = (plan_cascade.__doc__ or "") + _ARGUMENTS
