"""PyTorch: attention as operators with autograd, for torch.compile, autocast and checkpointing.

    from libattn.torch import attention, attention_varlen, scaled_dot_product_attention

attention and attention_varlen take tensors as libattn's do, (batch, row, head, dim); scaled_dot_product_attention takes
those of torch.nn.functional's, (batch, head, row, dim), and means the same by every argument. The operators are
torch.ops.libattn.forward, torch.ops.libattn.backward and torch.ops.libattn.merge; those of KV caches, which have no
autograd, torch.ops.libattn.append_kvcache, torch.ops.libattn.with_kvcache and torch.ops.libattn.cascade.
"""
from __future__ import annotations

import warnings
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _torch_flops  # noqa: F401 - FlopCounterMode's formulas
from . import (_c, _options, _parallel, _tensor, _torch_dtensor, _torch_masks, _torch_nested, _torch_parallel,
               masks)
from . import _torch_vmap  # noqa: F401 - its rules
from ._api import Window
from ._bytes import Quantized
from ._problem import Blocks
from ._torch_dtensor import forward_of
from ._torch_kv import append_kvcache, attention_cascade, attention_with_kvcache
from ._torch_masks import from_block_mask, pack_mask
from ._torch_merge import merge_states
from ._torch_ops import ARRAYS, floats_of, has_values, no_bytes, refuse_bytes, rows_of, threads_of
from ._torch_parallel import context_parallel_positions, context_parallel_shard, context_parallel_unshard
from ._torch_step import step

__all__ = ["attention", "attention_varlen", "attention_with_kvcache", "append_kvcache", "attention_cascade",
           "merge_states", "scaled_dot_product_attention", "pack_mask", "from_block_mask",
           "context_parallel_attention", "context_parallel_shard", "context_parallel_unshard",
           "context_parallel_positions"]

# ---- functions -----------------------------------------------------------------------------------


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """q, k and v in autocast's type, where it is on; nothing else is cast, nor, as by torch, float64."""
    kind = "cpu" if q.is_cpu else q.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        q, k, v = (x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))
    return q, k, v


def _seed(dropout_p: float, seed: Optional[Tensor], device: torch.device) -> Optional[Tensor]:
    """Dropout's seed and offset: on the device, so that a captured graph draws new ones at each replay."""
    if not dropout_p:
        return None
    if seed is None:
        return torch.randint(-(1 << 63), (1 << 63) - 1, (2,), dtype=torch.int64, device=device)
    if not isinstance(seed, Tensor):
        raise TypeError(f"seed is {type(seed).__name__}; it takes a tensor of two int64")
    if seed.shape != (2,) or seed.dtype != torch.int64:
        raise _c.InvalidError(f"seed is {seed.dtype} of shape {tuple(seed.shape)}; it takes torch.int64 of shape (2)")
    return seed


def _float(tensor: Optional[Tensor], name: str, q: Tensor) -> Optional[Tensor]:
    return None if tensor is None else _beside(tensor, name, q).to(floats_of(q))


def _beside(tensor: Any, name: str, q: Any, other: str = "q") -> Tensor:
    """The tensor, if it is torch's and where q is. other: what the caller calls q."""
    if type(tensor) is not Tensor or type(q) is not Tensor:
        if not isinstance(tensor, Tensor):
            hint = ": libattn.attention takes what quantize returned" if isinstance(tensor, Quantized) else ""
            raise TypeError(f"{name} is {type(tensor).__name__}; it takes a torch tensor{hint}")
        _torch_dtensor.check_beside(tensor, name, q, other)
        if not torch.compiler.is_compiling() and type(tensor) is not Tensor and not hasattr(
                type(tensor), "__tensor_flatten__") and not isinstance(tensor, torch._subclasses.FakeTensor):
            _tensor.plain(type(tensor), name)
    if tensor.is_nested:
        _tensor.refuse_nested(name)
    if tensor.layout != torch.strided:
        _tensor.refuse_layout(tensor, name)
    if tensor.device != q.device or tensor.device.type not in ("cpu", "cuda", "meta"):
        _tensor.refuse_device(name, tensor.device, other, q.device)
    return tensor


def _by_mask(mask, given, intervals, blocks, bits, lens, around, k, is_varlen):
    """What `mask` means beside the options given: (causal, window, chunk and prefix), intervals, blocks, bits. around:
    batch and heads_q."""
    if _torch_masks.is_block_mask(mask):
        if blocks is not None or bits is not None or is_varlen:
            raise _c.InvalidError("mask is a BlockMask, which goes with neither blocks nor bits nor cu_lens")
        return (given, intervals, *from_block_mask(mask, *lens))
    if isinstance(mask, masks.Mask):
        given = masks.options(mask, given)
        if mask.documents:
            if is_varlen or intervals is not None:
                raise _c.InvalidError("mask has documents: they go with neither cu_lens nor intervals")
            intervals = _torch_masks.intervals_of(mask, *lens, k.shape[0], given["causal"], k.device)
        mask = mask.array
    if mask is not None:
        masks.check_kind(mask)
        if bits is not None:
            raise _c.InvalidError("mask and bits are both given: they mean the same")
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask is {type(mask).__name__}; it takes a tensor, a BlockMask, or masks by name")
        bits = _torch_masks.bits_of("mask", mask, (*around, *lens))
    return given, intervals, blocks, bits


_OPTIONS = ("causal", "window", "chunk", "scale", "softcap", "dropout_p", "return_lse", "out_f32", "deterministic",
            "threads", "max_len_q", "max_len_kv")


def _operator(q, k, v, cu_lens_q, cu_lens_kv, max_lens, causal, window, chunk, prefix, lens_q, lens_kv, mask, bits,
              intervals, blocks, scale, softcap, alibi, bias, sink, dropout_p, seed, return_lse, out_f32, deterministic,
              threads):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _beside(tensor, name, q)
    window = _options.window(window)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if not torch.compiler.is_compiling():  # whose graphs check types themselves
        _options.check_all(_OPTIONS, (causal, window, chunk, scale, softcap, dropout_p, return_lse, out_f32,
                                      deterministic, threads, *(max_lens or ())))
    refuse_bytes(("q", q), ("k", k), ("v", v))
    q, k, v = _autocast(q, k, v)
    if bias is not None and masks.is_causal_bias(bias):
        causal, window = masks.by_causal_bias(bias, q.shape[1], k.shape[1], causal, window, prefix,
                                              max_lens is not None)
        bias = None
    if mask is not None:
        lens = (q.shape[1], k.shape[1]) if max_lens is None else tuple(max_lens)
        around = (q.shape[0] if cu_lens_q is None else cu_lens_q.shape[0] - 1, q.shape[-2])
        given = {"causal": causal, "window": window, "chunk": chunk, "prefix": prefix}
        given, intervals, blocks, bits = _by_mask(mask, given, intervals, blocks, bits, lens,
                                                  around, k, max_lens is not None)
        causal, chunk, prefix = given["causal"], given["chunk"], given["prefix"]
        window = _options.window(given["window"])
    if not return_lse and bias is alibi is prefix is lens_q is cu_lens_q is blocks is chunk is None and not (
            dropout_p or out_f32):
        given = (("lens_kv", lens_kv), ("intervals", intervals), ("bits", bits), ("sink", _float(sink, "sink", q)))
        o = step(q, k, v, 2, causal, window, scale, softcap, deterministic, threads, {
            name: _beside(table, name, q) for name, table in given if table is not None})
        if o is not None:
            return o
    lists = (None,) * 4 if blocks is None else (
        blocks.full_count, blocks.full, blocks.partial_count, blocks.partial)
    tables = cu_lens_q, cu_lens_kv, lens_q, lens_kv, prefix, intervals, *lists, bits
    if not (cu_lens_q is cu_lens_kv is lens_q is lens_kv is prefix is intervals is blocks is bits is None):
        for name, table in zip(ARRAYS[3:], tables):
            if table is not None:
                _beside(table, name, q)
    o, lse = forward_of(q)(
        q, k, v, None if bias is None else _beside(bias, "bias", q), _float(alibi, "alibi", q), _float(sink, "sink", q),
        *tables, _seed(dropout_p, seed, q.device), max_lens, None if blocks is None else (blocks.rows, blocks.keys),
        causal, window, chunk, scale, softcap, dropout_p, out_f32, deterministic, threads)
    return (o, lse) if return_lse else o


def _nested(q, k, v, given, options):
    """(o, lse) of nested tensors. given: options that do not go with them."""
    _torch_nested.check_options(given)
    rows, lens = _torch_nested.packed(q, k, v, ("q", "k", "v"), 1)
    o, lse = attention_varlen(*rows, *lens, **options, return_lse=True)
    return _torch_nested.like(o, q, 1), _torch_nested.like(lse, q, 2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, window: Window = None, chunk: Optional[int] = None,
    prefix: Optional[Tensor] = None, lens_q: Optional[Tensor] = None, lens_kv: Optional[Tensor] = None,
    mask: Any = None, bits: Optional[Tensor] = None, intervals: Optional[Tensor] = None,
    blocks: Optional[Blocks] = None, scale: Optional[float] = None, softcap: Optional[float] = None,
    alibi: Optional[Tensor] = None, bias: Optional[Tensor] = None, sink: Optional[Tensor] = None,
    dropout_p: float = 0.0, seed: Optional[Tensor] = None, return_lse: bool = False, out_f32: bool = False,
    deterministic: Optional[bool] = None, threads: int = 0,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """libattn.attention with autograd: gradients of q, k, v, bias, alibi and sink.

        q, k, v        (batch, len_q, heads_q, dim), (batch, len_kv, heads_kv, dim), (batch, len_kv, heads_kv, dim_v)
        alibi, sink    any floating type
        threads        0: as many as torch.get_num_threads() says when it runs (CPU)
        q.dtype        float64 too, on the CPU, for torch.autograd.gradcheck
        mask           by name (libattn.masks), FlexAttention's BlockMask, or a tensor, on the CPU or a GPU, of bool or
                       of 0 and -inf; see pack_mask
        seed           (2) int64 on q's device: dropout's seed and offset; None: drawn from torch's generator
        deterministic  None: as torch.use_deterministic_algorithms says

    Under autocast q, k and v are cast to its type, and nothing else. Returns o, (batch, len_q, heads_q, dim_v), with
    return_lse (o, lse), both differentiable. The other options, and errors: libattn.attention.

    Nested tensors of layout torch.jagged, (batch, j, heads, dim), are computed as packed rows; o, and lse of (batch,
    heads, j), are nested like q. They go with all options that are not of rows or keys: causal, window, chunk, prefix,
    masks of these, scale, softcap, alibi, sink, dropout_p and those of execution.
    """
    if _torch_nested.is_any(q, k, v):
        named = isinstance(mask, masks.Mask) and mask.array is None and not mask.documents
        o, lse = _nested(
            q, k, v, dict(lens_q=lens_q, lens_kv=lens_kv, mask=None if named else mask, bits=bits, intervals=intervals,
                          blocks=blocks, bias=bias),
            dict(causal=causal, window=window, chunk=chunk, prefix=prefix, mask=mask, scale=scale, softcap=softcap,
                 alibi=alibi, sink=sink, dropout_p=dropout_p, seed=seed, out_f32=out_f32, deterministic=deterministic,
                 threads=threads))
        return (o, lse) if _options.flag("return_lse", return_lse) else o
    return _operator(q, k, v, None, None, None, causal, window, chunk, prefix, lens_q, lens_kv, mask, bits, intervals,
                     blocks, scale, softcap, alibi, bias, sink, dropout_p, seed, return_lse, out_f32, deterministic,
                     threads)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_lens_q: Tensor, cu_lens_kv: Tensor, max_len_q: int, max_len_kv: int, *,
    causal: bool = False, window: Window = None, chunk: Optional[int] = None, prefix: Optional[Tensor] = None,
    lens_q: Optional[Tensor] = None, lens_kv: Optional[Tensor] = None, mask: Any = None,
    bits: Optional[Tensor] = None, intervals: Optional[Tensor] = None, blocks: Optional[Blocks] = None,
    scale: Optional[float] = None, softcap: Optional[float] = None, alibi: Optional[Tensor] = None,
    bias: Optional[Tensor] = None, sink: Optional[Tensor] = None, dropout_p: float = 0.0, seed: Optional[Tensor] = None,
    return_lse: bool = False, out_f32: bool = False, deterministic: Optional[bool] = None, threads: int = 0,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """libattn.attention_varlen with autograd: (total rows, heads, dim), sequences one after another.

    cu_lens_q, cu_lens_kv: (batch + 1) int32 on q's device; max_len_q, max_len_kv: the longest sequence's, or more. The
    rest is as attention's.
    """
    return _operator(q, k, v, cu_lens_q, cu_lens_kv, (max_len_q, max_len_kv), causal, window, chunk, prefix, lens_q,
                     lens_kv, mask, bits, intervals, blocks, scale, softcap, alibi, bias, sink, dropout_p, seed,
                     return_lse, out_f32, deterministic, threads)


@torch._disable_dynamo  # a compiled function calls it as it is
def context_parallel_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Any = None, layout: str = "zigzag", *, causal: bool = False,
    window: Window = None, chunk: Optional[int] = None, prefix: Optional[Tensor] = None,
    lens_q: Optional[Tensor] = None, lens_kv: Optional[Tensor] = None, intervals: Optional[Tensor] = None,
    cu_lens_q: Optional[Tensor] = None, cu_lens_kv: Optional[Tensor] = None, max_len_q: Optional[int] = None,
    max_len_kv: Optional[int] = None, scale: Optional[float] = None, softcap: Optional[float] = None,
    alibi: Optional[Tensor] = None, sink: Optional[Tensor] = None, dropout_p: float = 0.0,
    seed: Optional[Tensor] = None, return_lse: bool = False, out_f32: bool = False,
    deterministic: Optional[bool] = None, threads: int = 0, schedule: str = "auto", memory: int = 0,
    pieces: int = 0, transport: str = "nccl",
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """attention, or with cu_lens attention_varlen, of rows and keys that the processes of a group share out.

        q, k, v     this rank's, (batch, rows, heads, dim) or packed (rows, heads, dim), as context_parallel_shard cuts
                    them, on the CPU or on GPUs, one a rank; 0 rows or keys are allowed
        group       a process group of torch.distributed with a backend for these, as gloo and nccl; None: all processes
        layout      "zigzag": the ranks have the same work under a causal mask; "contiguous": a run of rows each
        schedule    "ring", "all-gather", or "auto": the one that is predicted faster and fits `memory`
        memory      bytes of workspace that a rank may take; 0: any number
        pieces      on GPUs: heads are cut into so many pieces, of which one is computed while others are on their way;
                    the first has fewer heads, and of 3 or more in a backward the last too; more take less memory in a
                    backward; 0: chosen
        transport   on GPUs: "nccl", or "peer": copy engines write into other GPUs' memory, which takes no processor;
                    for processes of one machine whose GPUs reach each other
        cu_lens_q, cu_lens_kv, max_len_q, max_len_kv   documents in packed rows, which cross ranks wherever they may;
                    cu_lens_kv None: cu_lens_q; max_len None: the longest of these
        seed        of dropout; None: rank 0's generator draws it, and the others' draw as often

    All ranks call it, and its backward, in the same order and with the same options. Lengths, prefixes, intervals,
    cu_lens, alibi and sink are those of all rows, the same on every rank. The result is this rank's rows. The sum over
    ranks of the gradients of alibi and sink is that of one process, as of every other parameter.

    On GPUs it takes causal, window (with causal, or to the left alone), softcap, sink, and alibi with causal; the
    schedule is all-gather. Work is put into the current stream. NCCL carries bytes: the library that torch has loaded,
    with a communicator of libattn's own for the group's ranks.

    Where a rank raises, the others raise RankFailedError, or wait as long as the group's timeout. There are no second
    derivatives and no transforms of torch.func. The other options, and errors: libattn.attention.
    """
    o, lse = _torch_parallel.attention(group, lambda: _of_rank(
        q, k, v, {"prefix": prefix, "lens_q": lens_q, "lens_kv": lens_kv, "intervals": intervals,
                  "cu_lens_q": cu_lens_q, "cu_lens_kv": cu_lens_q if cu_lens_kv is None else cu_lens_kv},
        max_len_q, max_len_kv, alibi, sink, seed, causal, _options.window(window), chunk, scale, softcap, dropout_p,
        return_lse, out_f32, deterministic, threads, layout, schedule, memory, pieces, transport))
    return (o, lse) if return_lse else o


def _check_over_ranks(dtype: torch.dtype, is_on_gpu: bool, chunk: Optional[int], dropout_p: float,
                      arrays: Dict[str, Tensor]) -> None:
    """Refuses what libattn_parallel does not compute, by the names of context_parallel_attention."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise _c.UnsupportedError(f"q is {dtype}; over ranks it takes float32, float16 and bfloat16")
    given = [name for name, array in arrays.items() if name != "cu_lens_kv" or array is not arrays.get("cu_lens_q")]
    given += [name for name, value in (("chunk", chunk), ("dropout_p", dropout_p or None)) if value is not None]
    if is_on_gpu and given:
        raise _c.UnsupportedError(f"{', '.join(given)} and a q on a GPU: over ranks GPUs take causal, window, "
                                  "softcap, alibi and sink")
    if dropout_p and "cu_lens_q" in arrays:
        raise _c.UnsupportedError(f"dropout_p = {dropout_p} and cu_lens_q: over ranks packed sequences take no "
                                  "dropout, for they are cut at rows that are no multiple of 16")


def _of_rank(q, k, v, arrays, max_len_q, max_len_kv, alibi, sink, seed, causal, window, chunk, scale, softcap,
             dropout_p, return_lse, out_f32, deterministic, threads, layout, schedule, memory, pieces, transport):
    """What context_parallel_attention was given, checked and as _torch_parallel takes it."""
    arrays = {name: array for name, array in arrays.items() if array is not None}
    is_packed = "cu_lens_q" in arrays
    for name, tensor in (("q", q), ("k", k), ("v", v), *arrays.items()):
        _beside(tensor, name, q)
    if _torch_dtensor.is_dtensor(q):
        raise _c.InvalidError("q is a DTensor; it takes this rank's rows, as .to_local() gives them")
    if q.device.type not in ("cpu", "cuda") or not has_values(q) or torch._C._are_functorch_transforms_active():
        raise _c.UnsupportedError(f"q is a {type(q).__name__} on {q.device}; over ranks it takes a tensor on the CPU or "
                                  "on a GPU, and no transform of torch.func")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4 - is_packed:
            raise _c.InvalidError(f"{name} has shape {tuple(tensor.shape)}; it takes "
                                  + ("(rows, heads, dim)" if is_packed else "(batch, rows, heads, dim)"))
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    _options.check_all(_OPTIONS, (causal, window, chunk, scale, softcap, dropout_p, return_lse, out_f32, deterministic,
                                  threads, max_len_q, max_len_kv))
    max_lens = None
    if not is_packed and (max_len_q, max_len_kv) != (None, None):
        raise _c.InvalidError("max_len_q and max_len_kv go with cu_lens_q, of packed rows")
    if is_packed:
        longest = [int(arrays[name].diff().max()) if arrays[name].numel() > 1 else 0
                   for name in ("cu_lens_q", "cu_lens_kv")]
        max_lens = tuple(found if given is None else given for given, found in zip((max_len_q, max_len_kv), longest))
    refuse_bytes(("q", q), ("k", k), ("v", v))
    q, k, v = _autocast(q, k, v)
    _check_over_ranks(q.dtype, q.is_cuda, chunk, dropout_p, arrays)
    drawn = _seed(dropout_p, seed, q.device)
    options = _torch_parallel.Options(
        (causal, window, chunk, scale, softcap, dropout_p, out_f32, deterministic, threads_of(threads, q), "auto", None,
         None),
        _torch_parallel.one_of("layout", layout, _parallel.LAYOUTS),
        _torch_parallel.one_of("schedule", schedule, _parallel.SCHEDULES), _options.integer("memory", memory, 63, 0),
        _options.integer("pieces", pieces, 31, 0), _torch_parallel.one_of("transport", transport, _parallel.TRANSPORTS),
        max_lens, None if drawn is None else tuple(drawn.tolist()),
        seed is None and drawn is not None)
    return options, arrays, (q, k, v, _float(alibi, "alibi", q), _float(sink, "sink", q))


def _no_fast_kernel(q: Tensor, v: Tensor) -> Optional[str]:
    """Why no fast kernel computes such a problem; None if one does."""
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"query is {q.dtype}; libattn takes float32, float16 and bfloat16"
    if q.device.type not in ("cpu", "cuda", "meta"):
        return f"query is on {q.device}; libattn takes the CPU and CUDA GPUs"
    most = max(q.shape[-1], v.shape[-1])
    if most > (256 if q.is_cuda else 512):
        return f"the head dim is {most}; libattn's fast kernels take {256 if q.is_cuda else 512} at most"
    if q.is_cuda:
        is_real = torch.cuda.is_available() or has_values(q)
        capability = torch.cuda.get_device_capability(q.device) if is_real else (9, 0)
        if capability != (9, 0):
            return f"the GPU has compute capability {capability[0]}.{capability[1]}; libattn has kernels for 9.0"
        if q.dtype == torch.float32:
            return "libattn has no fast kernel for float32 on a GPU"
    return None


_warned = False


def _leave(reason: str, fallback: Optional[str], calls: int, *arguments: Any) -> Tensor:
    """What no fast kernel computes: by torch if the caller wants that. calls: between the caller and here."""
    global _warned
    if fallback is None:
        raise _c.UnsupportedError(reason)
    if not _warned:
        _warned = True
        warnings.warn(f"libattn leaves this to torch's scaled_dot_product_attention: {reason}", stacklevel=calls + 1)
    *arguments, scale, enable_gqa = arguments
    return torch.nn.functional.scaled_dot_product_attention(*arguments, scale=scale, enable_gqa=enable_gqa)


_HEADS = "query has {} heads and key {}: enable_gqa=True shares them"


def _lead(q: Tensor, k: Tensor, v: Tensor) -> Tuple[int, ...]:
    """What the extents before the last three broadcast to. torch.broadcast_shapes takes as long as a short attention.
    """
    lead = q.shape[:-3]
    return lead if lead == k.shape[:-3] == v.shape[:-3] else torch.broadcast_shapes(lead, k.shape[:-3], v.shape[:-3])


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Raises where they do not fit, in the caller's names and order of dimensions, which the operator does not know."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if 0 in (*tensor.shape[-3:-2], tensor.shape[-1]):
            raise _c.InvalidError(f"{name} has shape {tuple(tensor.shape)}: heads and dim must be at least 1")
        if tensor.dtype != query.dtype:
            raise _c.InvalidError(f"{name} is {tensor.dtype}, where it takes {query.dtype}, as query is")
    shapes = f"query has shape {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}"
    if query.shape[-1] != key.shape[-1]:
        raise _c.InvalidError(f"{shapes}: the last dimensions of query and key must be equal")
    if key.shape[-3:-1] != value.shape[-3:-1]:
        raise _c.InvalidError(f"{shapes}: heads and rows of key and value must be equal")
    if enable_gqa and query.dim() > 2 and query.shape[-3] % key.shape[-3]:
        raise _c.InvalidError(f"{shapes}: heads of query must be a multiple of those of key")
    try:
        _lead(query, key, value)
    except RuntimeError:
        raise _c.InvalidError(f"{shapes}: what precedes their last three dimensions must broadcast") from None


def _nested_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, fallback):
    _torch_nested.check_options({"attn_mask": attn_mask})
    (q, k, v), lens = _torch_nested.packed(query, key, value, ("query", "key", "value"), 2)
    if _options.flag("is_causal", is_causal) and query.shape[2] != key.shape[2]:
        raise _c.InvalidError("is_causal is True, and query and key have offsets of their own; it takes the same "
                              "tensor of offsets. The causal of libattn.torch.attention is aligned at the end, and "
                              "takes others, too")
    if not _options.flag("enable_gqa", enable_gqa) and q.shape[1] != k.shape[1] != 1:
        raise _c.InvalidError(_HEADS.format(q.shape[1], k.shape[1]))
    reason = no_bytes(*zip(("query", "key", "value"), (q, k, v))) or _no_fast_kernel(_autocast(q, k, v)[0], v)
    if reason is not None:
        return _leave(reason, fallback, 2, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    o = attention_varlen(*(rows_of(x) for x in (q, k, v)), *lens, causal=is_causal, scale=scale, dropout_p=dropout_p)
    return _torch_nested.like(o.transpose(0, 1), query, 2)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False, *, fallback: Optional[str] = None,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by libattn.

        query      (..., heads_q, len_q, dim); key: (..., heads_kv, len_kv, dim); value: (..., heads_kv, len_kv, dim_v)
        attn_mask  bool, True: visible, or numbers added to the scores; broadcasts to (..., heads_q, len_q, len_kv)
        is_causal  row i sees keys j <= i: aligned at the top left, as SDPA's, where libattn.torch.attention's causal is
                   aligned at the bottom right. They differ where len_q != len_kv
        fallback   "sdpa": what libattn has no fast kernel for is left to torch's function, with one warning. None: it
                   raises UnsupportedError with the reason

    dropout_p is applied as round(256 dropout_p) / 256: below 1/512 nothing is dropped, and from 511/512 on, which would
    drop everything, it raises. A row that sees no key is 0. Returns (..., heads_q, len_q, dim_v). Nested tensors of
    layout torch.jagged, (batch, heads, j, dim), are computed as packed rows, without attn_mask.
    """
    if _options.check("fallback", fallback) not in (None, "sdpa"):
        raise _c.InvalidError(f'fallback is {fallback!r}; it takes None or "sdpa"')
    if _torch_nested.is_any(query, key, value):
        return _nested_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, fallback)
    variant = attn_mask if attn_mask is not None and masks.is_causal_bias(attn_mask) else None
    others = None if variant is not None else attn_mask
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", others)):
        if name != "attn_mask" or tensor is not None:
            _beside(tensor, name, query, "query")
    if query.dim() < 2 or key.dim() != query.dim() or value.dim() != query.dim():
        raise _c.InvalidError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions; all "
                              "must have the same number, 2 or more")
    if not torch.compiler.is_compiling():
        _options.check_all(("dropout_p", "is_causal", "scale", "enable_gqa"), (dropout_p, is_causal, scale, enable_gqa))
    if is_causal and attn_mask is not None:
        raise _c.InvalidError("attn_mask and is_causal exclude each other")
    reason = no_bytes(("query", query), ("key", key), ("value", value))
    if reason is not None:
        return _leave(reason, fallback, 1, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    q, k, v = _autocast(query, key, value)
    if 0 in (*q.shape[-3:-2], v.shape[-1]):
        # Without heads or dims of values the result has no elements; torch 2.11 divides by zero for it.
        return q.new_zeros(*q.shape[:-1], v.shape[-1]) + 0 * (q.sum() + k.sum() + v.sum())
    reason = _no_fast_kernel(q, v)
    if reason is not None:
        return _leave(reason, fallback, 1, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not torch.compiler.is_compiling():  # whose graphs get the operator's words
        _check_shapes(q, k, v, enable_gqa)
    lead = _lead(q, k, v)
    q, k, v = (x if x.shape[:-3] == lead else x.expand(*lead, *x.shape[-3:]) for x in (q, k, v))
    if q.dim() != 4:
        q, k, v = (_torch_masks.four(x) if x.dim() < 4 else x.flatten(0, -4) for x in (q, k, v))
    if not enable_gqa and q.shape[1] != k.shape[1] != 1:
        raise _c.InvalidError(_HEADS.format(q.shape[1], k.shape[1]))
    rows, keys = q.shape[2], k.shape[2]
    window, bits, bias, attn_mask = None, None, None, others
    at_end = variant is not None and masks.of_causal_bias("attn_mask", variant, rows, keys)
    is_causal = is_causal or variant is not None
    if is_causal and not at_end and rows < keys:
        k, v, keys = k.narrow(2, 0, rows), v.narrow(2, 0, rows), rows  # the keys after the last row's are seen by none
    elif is_causal and not at_end and rows > keys:
        is_causal, window = False, (-1, rows - keys)
    if attn_mask is not None:
        if attn_mask.dtype not in (torch.bool, torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise _c.InvalidError(f"attn_mask is {attn_mask.dtype}; it takes torch.bool, float32, float16, bfloat16 or "
                                  "float64")
        if attn_mask.dim() > max(query.dim(), 2):
            raise _c.InvalidError(f"attn_mask has {attn_mask.dim()} dimensions, query {query.dim()}: it takes no more")
        if len(lead) > 1 and attn_mask.dim() > 3:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).flatten(0, -4)
        full = (q.shape[0], q.shape[1], rows, keys)
        if attn_mask.dtype == torch.bool:
            bits = _torch_masks.bits_of("attn_mask", attn_mask, full)
        else:
            masks.check_shape("attn_mask", tuple(attn_mask.shape), full)
            bias = attn_mask.to(q.dtype) if attn_mask.dtype == torch.float64 else attn_mask
    o = forward_of(q)(
        rows_of(q.transpose(1, 2)), rows_of(k.transpose(1, 2)), rows_of(v.transpose(1, 2)), bias, None, None,
        *(None,) * 10, bits, _seed(dropout_p, None, q.device), None, None, is_causal, window, None, scale, None,
        dropout_p, False, torch.are_deterministic_algorithms_enabled(), 0)[0]
    o = o.transpose(1, 2)
    return o if query.dim() == 4 else o.reshape(*lead, *query.shape[-3:-1], value.shape[-1])
