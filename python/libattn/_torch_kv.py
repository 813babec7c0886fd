"""KV caches as operators of PyTorch, torch.ops.libattn.append_kvcache and torch.ops.libattn.with_kvcache, which write
into the cache that they are given, and torch.ops.libattn.cascade. They have no autograd."""
from __future__ import annotations

import functools
import numbers
import warnings
from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _c, _cascade, _kv, _options, _tensor, _torch_kv_again, _torch_nested
from ._api import Window
from ._bytes import Quantized
from ._torch_masks import bits_of
from ._torch_ops import FORWARD_MODE, floats_of, threads_of

_CACHE = "Tensor(a!) k_cache, Tensor(b!) v_cache, "
_WHERE = "Tensor cache_seqlens, Tensor? page_table, Tensor? cu_lens, "
_ROTARY = "Tensor? rotary_cos, Tensor? rotary_sin, bool? rotary_interleaved, Tensor? rotary_positions, "

_SCALES = "Tensor(d!)? k_scale, Tensor(e!)? v_scale, bool token_scales"

_library = torch.library.Library("libattn", "FRAGMENT")
_library.define(f"append_kvcache({_CACHE}Tensor k, Tensor v, {_WHERE}Tensor? q, {_ROTARY}int threads, "
                f"Tensor(c!)? fault, {_SCALES}) -> Tensor")
_library.define(f"with_kvcache({_CACHE}Tensor? k, Tensor? v, {_WHERE}Tensor q, {_ROTARY}int threads, "
                f"Tensor(c!)? fault, {_SCALES}, SymInt? max_len_q, Tensor? first_kv, Tensor? position_q, "
                "Tensor? position_kv, Tensor? prefix, Tensor? bits, Tensor? alibi, Tensor? sink, SymInt? max_len_kv, "
                "SymInt? bits_keys, "
                "float? visible_share, bool causal, SymInt[]? window, SymInt? chunk, float? scale, float? softcap, "
                "bool out_f32, bool deterministic) -> (Tensor, Tensor)")
_library.define("cascade(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? sink, Tensor(a!)? fault, "
                "Tensor[] cu_lens_q, Tensor[] lens_kv, Tensor[] page_tables, SymInt max_len_q, SymInt[]? max_len_kv, "
                "bool causal, float? scale, float? softcap, bool out_f32, bool deterministic, int threads) -> "
                "(Tensor, Tensor)")


def _append(k_cache, v_cache, k, v, seqlens, page_table, cu_lens, q, cos, sin, interleaved, positions, threads, fault,
            k_scale, v_scale, token_scales):
    turned = _kv.append_kvcache(
        k, v, k_cache, v_cache, cache_seqlens=seqlens, page_table=page_table, cu_lens=cu_lens, q=q, rotary_cos=cos,
        rotary_sin=sin, rotary_interleaved=interleaved, rotary_positions=positions, threads=threads_of(threads, k),
        fault=fault, k_scale=k_scale, v_scale=v_scale, token_scales=token_scales)
    return k.new_empty(0) if turned is None else turned


def _with_kvcache(k_cache, v_cache, k, v, seqlens, page_table, cu_lens, q, cos, sin, interleaved, positions, threads,
                  fault, k_scale, v_scale, token_scales, max_len_q, first_kv, position_q, position_kv, prefix, bits,
                  alibi, sink, max_len_kv, bits_keys, visible_share, causal, window, chunk, scale, softcap, out_f32,
                  deterministic):
    ran = None
    _refuse_narrow(q)
    if cu_lens is None and fault is None and k_scale is None and v_scale is None:
        static = _static(interleaved, threads, max_len_kv, bits_keys, visible_share, causal, window, chunk, scale,
                         softcap, out_f32, deterministic)
        given = _given(q, k_cache, v_cache, k, v, first_kv, position_q, position_kv, prefix, bits, alibi, sink, seqlens,
                       page_table, cos, sin, positions)
        ran = functools.partial(_torch_kv_again.keep, given, static)
    return _kv.with_kvcache(
        ran, q, k_cache, v_cache, k, v, seqlens, page_table, cu_lens, max_len_q, max_len_kv, cos, sin, interleaved,
        positions, first_kv, position_q, position_kv, causal, None if window is None else tuple(window), chunk, prefix,
        None, bits, bits_keys, scale, softcap, alibi, sink, visible_share, None, True, out_f32, deterministic,
        threads_of(threads, q), "auto", None, None, fault, None, k_scale, v_scale, token_scales)


def _refuse_narrow(q: Any) -> None:
    """Raises if q has scales, for which the operator has no arguments."""
    if isinstance(q, Quantized) or getattr(q, "dtype", None) == torch.float8_e4m3fn:
        kind = "what quantize returned" if isinstance(q, Quantized) else q.dtype
        raise _c.InvalidError(f"q is {kind}; libattn.torch.attention_with_kvcache takes float32, float16 and bfloat16 "
                              "over a cache of one byte: libattn.attention_with_kvcache takes such a q, with q_scale")


def _static(*options: Any) -> Tuple[Any, ...]:
    return tuple(tuple(option) if type(option) is list else option for option in options)


def _given(*tensors: Optional[Tensor]) -> Dict[str, Tensor]:
    """The tensors that are not None, by their names."""
    return {name: tensor for name, tensor in zip(_torch_kv_again.TENSORS, tensors) if tensor is not None}


def _cascaded(q, k_cache, v_cache, sink, fault, cu_lens_q, lens_kv, page_tables, max_len_q, max_len_kv, causal, scale,
              softcap, out_f32, deterministic, threads):
    return _cascade.attention_cascade(
        q, k_cache, v_cache, list(zip(cu_lens_q, lens_kv, page_tables)), max_len_q=max_len_q,
        max_len_kv=None if max_len_kv is None else tuple(max_len_kv), causal=causal, scale=scale, softcap=softcap,
        sink=sink, return_lse=True, out_f32=out_f32, deterministic=deterministic,
        threads=threads_of(threads, q), fault=fault)


for _key in ("CPU", "CUDA"):
    _library.impl("append_kvcache", _append, _key)
    _library.impl("with_kvcache", _with_kvcache, _key)
    _library.impl("cascade", _cascaded, _key)


@torch.library.register_fake("libattn::append_kvcache", lib=_library)
def _append_fake(k_cache, v_cache, k, v, seqlens, page_table, cu_lens, q, *rest):
    return k.new_empty(0) if q is None else q.new_empty(q.shape)


@torch.library.register_fake("libattn::with_kvcache", lib=_library)
def _with_kvcache_fake(k_cache, v_cache, k, v, seqlens, page_table, cu_lens, q, *rest):
    _refuse_narrow(q)
    out_f32 = rest[-2]
    lse = (q.shape[0], q.shape[2], q.shape[1]) if cu_lens is None else (q.shape[1], q.shape[0])
    return (q.new_empty((*q.shape[:-1], v_cache.shape[-1]), dtype=torch.float32 if out_f32 else q.dtype),
            q.new_empty(lse, dtype=floats_of(q)))


@torch.library.register_fake("libattn::cascade", lib=_library)
def _cascade_fake(q, k_cache, v_cache, *rest):
    out_f32 = rest[-3]
    return (q.new_empty((*q.shape[:-1], v_cache.shape[-1]), dtype=torch.float32 if out_f32 else q.dtype),
            q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32))


_append_op, _with_op = torch.ops.libattn.append_kvcache.default, torch.ops.libattn.with_kvcache.default
_cascade_op = torch.ops.libattn.cascade.default


def _refuse_gradients(arguments: Tuple[Any, ...], names: Tuple[str, ...]) -> None:
    for place, tensor in enumerate(arguments):
        if isinstance(tensor, Tensor) and _tensor.has_tangent(tensor):
            raise _c.UnsupportedError(f"{names[place]} has a tangent: {FORWARD_MODE}")
    for place, tensor in enumerate(arguments if torch.is_grad_enabled() else ()):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise _c.InvalidError(f"{names[place]} requires grad, and attention to a cache has no autograd: call it "
                                  "under torch.no_grad()")


def _without_autograd(op: Any, names: Tuple[str, ...]) -> Any:
    def kernel(*arguments):
        _refuse_gradients(arguments, names)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*arguments)

    return kernel


def _refuse_meta(**tensors: Any) -> None:
    """A tensor on meta beside others: the dispatcher would leave the kernel out, and nothing would be computed."""
    tensors = {name: x for name, x in tensors.items() if isinstance(x, Tensor)}
    meta = [name for name, x in tensors.items() if x.is_meta]
    if meta and len(meta) < len(tensors):
        other = next(name for name in tensors if name not in meta)
        _tensor.refuse_device(meta[0], tensors[meta[0]].device, other, tensors[other].device)


def _refuse_vmap(name: str) -> Any:
    def rule(info, in_dims, *arguments):
        raise _c.UnsupportedError(f"libattn's {name} has no torch.func.vmap: its tensors are those of a whole batch")

    return rule


def _counting_versions(op: Any, names: Tuple[str, ...]) -> Any:
    """Autograd knows by a tensor's version that it was written: the cache if there are new tokens, its scales if they
    are found, and fault."""

    def kernel(keyset, *arguments):
        given = dict(zip(names, arguments))
        caches = (given["k_cache"], given["v_cache"]) if given.get("k") is not None else ()
        scales = (given["k_scale"], given["v_scale"]) if given.get("token_scales") else ()
        for written in (*caches, *scales, given["fault"]):
            if written is not None:
                torch.autograd.graph.increment_version(written)
        return op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *arguments)

    return kernel


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that torch has a kernel of its own for this key
    for _name, _op in (("append_kvcache", _append_op), ("with_kvcache", _with_op), ("cascade", _cascade_op)):
        _names = tuple(argument.name for argument in _op._schema.arguments)
        _library.impl(_name, _without_autograd(_op, _names), "Autograd")
        _library.impl(_name, _counting_versions(_op, _names), "ADInplaceOrView", with_keyset=True)
        torch.library.register_vmap(f"libattn::{_name}", _refuse_vmap(_name), lib=_library)


# ---- functions -----------------------------------------------------------------------------------


_LENGTHS = _options.Kind((numbers.Integral,), "an integer, or a tensor of integers")


def _lengths(seqlens: Union[int, Tensor], like: Tensor, cu_lens: Optional[Tensor]) -> Tensor:
    if isinstance(seqlens, Tensor):
        return seqlens
    batch = like.shape[0] if cu_lens is None else cu_lens.shape[0] - 1
    if not torch.compiler.is_compiling():  # whose graphs have symbols for integers
        _options.check("cache_seqlens", seqlens, _LENGTHS)
        seqlens = _options.integer("cache_seqlens", seqlens, 31)
    return torch.full((batch,), seqlens, dtype=torch.int32, device=like.device)


def _scale(scale: Any, like: Tensor) -> Optional[Tensor]:
    if scale is None or isinstance(scale, Tensor):
        return scale
    if not isinstance(scale, numbers.Real):
        raise TypeError(f"a scale is {type(scale).__name__}; it takes a number or a tensor")
    return torch.full((1,), scale, dtype=torch.float32, device=like.device)


def _pack(mask: Any, bits_keys: Optional[int], q: Tensor, k_cache: Tensor, page_table: Optional[Tensor],
          cu_lens: Optional[Tensor], max_len_q: Optional[int], max_len_kv: Optional[int]) -> Tensor:
    """A mask of the last bits_keys keys, or of all, as bits."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask is {type(mask).__name__}; it takes a tensor, or masks by name")
    if bits_keys is None:
        room = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
        bits_keys = room if max_len_kv is None else min(max_len_kv, room)
    batch, rows = (q.shape[0], q.shape[1]) if cu_lens is None else (cu_lens.shape[0] - 1, max_len_q)
    return bits_of("mask", mask, (batch, q.shape[-2], rows, bits_keys))


def append_kvcache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Union[int, Tensor],
    page_table: Optional[Tensor] = None, cu_lens: Optional[Tensor] = None, q: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None,
    rotary_interleaved: Optional[bool] = None, rotary_positions: Optional[Tensor] = None, threads: int = 0,
    fault: Optional[Tensor] = None, k_scale: Union[None, float, Tensor] = None,
    v_scale: Union[None, float, Tensor] = None, token_scales: bool = False,
) -> Optional[Tensor]:
    """libattn.append_kvcache as an operator, for torch.compile and CUDA graphs. It has no autograd: a tensor that
    requires grad raises InvalidError, unless under torch.no_grad()."""
    _torch_nested.refuse(k=k, v=v, q=q)
    if not torch.compiler.is_compiling():
        _options.check_all(("threads", "token_scales"), (threads, token_scales))
        _options.check("rotary_interleaved", rotary_interleaved)
    _refuse_meta(k=k, v=v, k_cache=k_cache, v_cache=v_cache, cache_seqlens=cache_seqlens, page_table=page_table,
                 cu_lens=cu_lens, q=q, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_positions=rotary_positions,
                 fault=fault, k_scale=k_scale, v_scale=v_scale)
    turned = _append_op(k_cache, v_cache, k, v, _lengths(cache_seqlens, k, cu_lens), page_table, cu_lens, q, rotary_cos,
                        rotary_sin, rotary_interleaved, rotary_positions, threads, fault, _scale(k_scale, k),
                        _scale(v_scale, k), token_scales)
    return None if q is None else turned


_OPTIONS = ("return_lse", "causal", "window", "chunk", "scale", "softcap", "out_f32", "deterministic", "threads",
            "max_len_q", "max_len_kv", "bits_keys", "visible_share")
_CASCADE_OPTIONS = ("return_lse", "causal", "scale", "softcap", "out_f32", "deterministic", "threads", "max_len_q")


def attention_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None, *,
    cache_seqlens: Union[int, Tensor], page_table: Optional[Tensor] = None, cu_lens_q: Optional[Tensor] = None,
    max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None, rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None, rotary_interleaved: Optional[bool] = None,
    rotary_positions: Optional[Tensor] = None, first_kv: Optional[Tensor] = None, position_q: Optional[Tensor] = None,
    position_kv: Optional[Tensor] = None, causal: bool = False, window: Window = None, chunk: Optional[int] = None,
    prefix: Optional[Tensor] = None, mask: Any = None, bits: Optional[Tensor] = None, bits_keys: Optional[int] = None,
    scale: Optional[float] = None, softcap: Optional[float] = None, alibi: Optional[Tensor] = None,
    sink: Optional[Tensor] = None, visible_share: Optional[float] = None, return_lse: bool = False,
    out_f32: bool = False, deterministic: Optional[bool] = None, threads: int = 0, fault: Optional[Tensor] = None,
    k_scale: Union[None, float, Tensor] = None, v_scale: Union[None, float, Tensor] = None, token_scales: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """libattn.attention_with_kvcache as an operator, for torch.compile and CUDA graphs.

        cu_lens_q      with it max_len_q is needed, on the CPU too
        mask           a tensor, on the CPU or a GPU, packed as pack_mask does; or masks by name, without documents
        alibi, sink    any floating type
        deterministic  None: as torch.use_deterministic_algorithms says

    It has no autograd: a tensor that requires grad raises InvalidError, unless under torch.no_grad(). Autocast casts
    nothing: q, k and v are of the cache's type, or floats where that has one byte. The rest is as
    libattn.attention_with_kvcache has it.
    """
    _torch_nested.refuse(q=q, k=k, v=v)
    _refuse_narrow(q)
    if cu_lens_q is not None and max_len_q is None:
        raise _c.InvalidError("max_len_q is None: with cu_lens_q the operator takes a number")
    causal, window, chunk, prefix, mask = _kv.mask_options(mask, bits, causal, window, chunk, prefix)
    if mask is not None:
        bits = _pack(mask, bits_keys, q, k_cache, page_table, cu_lens_q, max_len_q, max_len_kv)
    window = _options.window(window)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if not torch.compiler.is_compiling():
        _options.check("rotary_interleaved", rotary_interleaved)
        _options.check("token_scales", token_scales)
        _options.check_all(_OPTIONS, (return_lse, causal, window, chunk, scale, softcap, out_f32, deterministic,
                                      threads, max_len_q, max_len_kv, bits_keys, visible_share))
    alibi, sink = (tensor if tensor is None else tensor.to(floats_of(q)) for tensor in (alibi, sink))
    seqlens = _lengths(cache_seqlens, q, cu_lens_q)
    if cu_lens_q is max_len_q is fault is k_scale is v_scale is None and not token_scales:
        results = _torch_kv_again.again(
            _given(q, k_cache, v_cache, k, v, first_kv, position_q, position_kv, prefix, bits, alibi, sink, seqlens,
                   page_table, rotary_cos, rotary_sin, rotary_positions),
            _static(rotary_interleaved, threads, max_len_kv, bits_keys, visible_share, causal, window, chunk, scale,
                    softcap, out_f32, deterministic), return_lse)
        if results is not None:
            return (results[0], results[1]) if return_lse else results[0]
    _refuse_meta(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, cache_seqlens=seqlens, page_table=page_table,
                 cu_lens_q=cu_lens_q, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_positions=rotary_positions,
                 first_kv=first_kv, position_q=position_q, position_kv=position_kv, prefix=prefix, bits=bits,
                 alibi=alibi, sink=sink, fault=fault, k_scale=k_scale, v_scale=v_scale)
    o, lse = _with_op(k_cache, v_cache, k, v, seqlens, page_table, cu_lens_q, q,
                      rotary_cos, rotary_sin, rotary_interleaved, rotary_positions, threads, fault, _scale(k_scale, q),
                      _scale(v_scale, q), token_scales, max_len_q, first_kv, position_q, position_kv, prefix, bits,
                      alibi, sink, max_len_kv, bits_keys, visible_share, causal, window, chunk, scale, softcap, out_f32,
                      deterministic)
    return (o, lse) if return_lse else o


def attention_cascade(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, levels: Sequence[Any], *, max_len_q: int,
    max_len_kv: Optional[Sequence[int]] = None, causal: bool = False, scale: Optional[float] = None,
    softcap: Optional[float] = None, sink: Optional[Tensor] = None, return_lse: bool = False, out_f32: bool = False,
    deterministic: Optional[bool] = None, threads: int = 0, fault: Optional[Tensor] = None,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """libattn.attention_cascade as an operator, for torch.compile and CUDA graphs.

        levels         of tensors on q's device, int32: each (cu_lens_q, lens_kv, page_table)
        max_len_q      rows of the longest sequence, or more
        sink           any floating type
        deterministic  None: as torch.use_deterministic_algorithms says

    It has no autograd: a tensor that requires grad raises InvalidError, unless under torch.no_grad(). The rest is as
    libattn.attention_cascade has it.

        >>> levels = [tuple(torch.from_numpy(x).cuda() for x in level[:3]) for level in pool.levels(seqs, rows)]
    """
    _torch_nested.refuse(q=q)
    for i, level in enumerate(levels):
        for name, table in zip(("cu_lens_q", "lens_kv", "page_table"), level):
            if not isinstance(table, Tensor):
                raise TypeError(f"levels[{i}].{name} is {type(table).__name__}; it takes a torch tensor")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if not torch.compiler.is_compiling():
        _options.check_all(_CASCADE_OPTIONS, (return_lse, causal, scale, softcap, out_f32, deterministic, threads,
                                              max_len_q))
    cu_lens_q, lens_kv, page_tables = ([level[i] for level in levels] for i in range(3))
    _refuse_meta(q=q, k_cache=k_cache, v_cache=v_cache, sink=sink, fault=fault, **{
        f"levels[{i}].{name}": table for i, level in enumerate(levels)
        for name, table in zip(("cu_lens_q", "lens_kv", "page_table"), level)})
    o, lse = _cascade_op(q, k_cache, v_cache, None if sink is None else sink.float(), fault, cu_lens_q, lens_kv,
                         page_tables, max_len_q, max_len_kv, causal, scale, softcap, out_f32, deterministic, threads)
    return (o, lse) if return_lse else o
