"""PyTorch: attention as operators with autograd, for torch.compile, autocast and checkpointing.

    from libattn.torch import attention, attention_varlen, scaled_dot_product_attention

attention and attention_varlen take tensors as libattn's do, (batch, row, head, dim); scaled_dot_product_attention takes
those of torch.nn.functional's, (batch, head, row, dim), and means the same by every argument. The operators are
torch.ops.libattn.forward and torch.ops.libattn.backward; those of KV caches, which have no autograd,
torch.ops.libattn.append_kvcache, torch.ops.libattn.with_kvcache and torch.ops.libattn.cascade.
"""
from __future__ import annotations

import warnings
from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _c, _run, _torch_masks, masks
from ._api import Window
from ._run import Blocks
from ._torch_kv import append_kvcache, attention_cascade, attention_with_kvcache
from ._torch_masks import from_block_mask, pack_mask

__all__ = ["attention", "attention_varlen", "attention_with_kvcache", "append_kvcache", "attention_cascade",
           "scaled_dot_product_attention", "pack_mask", "from_block_mask"]

# Tables have no gradients and are seldom there: one list, empty or of all of them.
_TABLES = ("cu_lens_q", "cu_lens_kv", "lens_q", "lens_kv", "prefix", "intervals", "block_full_count", "block_full",
           "block_partial_count", "block_partial", "bits")
_REST = ("Tensor? bias, Tensor? alibi, Tensor? sink, Tensor? seed, Tensor?[] tables, SymInt[]? max_lens, "
         "SymInt[]? blocks, bool causal, SymInt[]? window, SymInt? chunk, float? scale, float? softcap, "
         "float dropout_p, bool out_f32, bool deterministic, int threads")

_library = torch.library.Library("libattn", "DEF")
_library.define(f"forward(Tensor q, Tensor k, Tensor v, {_REST}) -> (Tensor, Tensor)")
_library.define(f"backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
                f"{_REST}, bool[3] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")


def _call(direction, given, want, bias, alibi, sink, seed, tables, max_lens, blocks, causal, window, chunk, scale,
          softcap, dropout_p, out_f32, deterministic, threads):
    arrays = {name: table for name, table in zip(_TABLES, tables) if table is not None}
    for name, tensor in (("bias", bias), ("alibi", alibi), ("sink", sink)):
        if tensor is not None:
            arrays[name] = tensor
    static = (causal, None if window is None else tuple(window), chunk, scale, softcap, dropout_p, out_f32,
              deterministic, threads, "auto", None, None)
    return _run.run(direction, given, static, arrays, None if max_lens is None else tuple(max_lens),
                    None if blocks is None else tuple(blocks), {}, want, 0 if seed is None else seed[0],
                    0 if seed is None else seed[1])


def _forward(q, k, v, *rest):
    results = _call(_c.FORWARD, {"q": q, "k": k, "v": v}, ("o", "lse"), *rest)
    return results["o"], results["lse"]


def _backward(grad_o, grad_lse, q, k, v, o, lse, *rest):
    given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "grad_o": _rows(grad_o)}
    if grad_lse is not None:
        given["grad_lse"] = grad_lse.contiguous()
    *rest, wanted = rest
    want = ("grad_q", "grad_k", "grad_v") + tuple(
        "grad_" + name for name, is_wanted in zip(("bias", "alibi", "sink"), wanted) if is_wanted)
    results = _call(_c.BACKWARD, given, want, *rest)
    return tuple(results["grad_" + name] if "grad_" + name in results else q.new_empty(0, dtype=lse.dtype)
                 for name in ("q", "k", "v", "bias", "alibi", "sink"))


def _rows(tensor: Tensor) -> Tensor:
    """As it is if the kernels take it: with a stride of 1 in dim."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


for _key in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _key)
    _library.impl("backward", _backward, _key)


@torch.library.register_fake("libattn::forward", lib=_library)
def _forward_fake(q, k, v, bias, alibi, sink, seed, tables, max_lens, blocks, causal, window, chunk, scale, softcap,
                  dropout_p, out_f32, deterministic, threads):
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float32 if out_f32 else q.dtype)
    lse = (q.shape[0], q.shape[2], q.shape[1]) if max_lens is None else (q.shape[1], q.shape[0])
    return o, q.new_empty(lse, dtype=_floats(q))


@torch.library.register_fake("libattn::backward", lib=_library)
def _backward_fake(grad_o, grad_lse, q, k, v, o, lse, bias, alibi, sink, *rest):
    made = [q.new_empty(tensor.shape, dtype=o.dtype) for tensor in (q, k, v)]
    for tensor, is_wanted in zip((bias, alibi, sink), rest[-1]):
        made.append(q.new_empty(tensor.shape if is_wanted else (0,), dtype=lse.dtype))
    return tuple(made)


_forward_op, _backward_op = torch.ops.libattn.forward.default, torch.ops.libattn.backward.default
_below_autograd = torch._C._AutoDispatchBelowAutograd


class _Attention(torch.autograd.Function):
    """The forward operator's gradient is the backward operator. register_autograd's own Function takes several times as
    long for every call."""

    @staticmethod
    def forward(ctx, q, k, v, bias, alibi, sink, seed, tables, *static):
        with _below_autograd():
            o, lse = _forward_op(q, k, v, bias, alibi, sink, seed, tables, *static)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse, bias, alibi, sink, seed, *tables)
        ctx.static = static
        return o, lse

    @staticmethod
    def backward(ctx, grad_o, grad_lse):
        if grad_o is None and grad_lse is None:
            return (None,) * (8 + len(ctx.static))
        q, k, v, o, lse, bias, alibi, sink, seed, *tables = ctx.saved_tensors
        if grad_o is None:
            grad_o = torch.zeros_like(o)
        wanted = list(ctx.needs_input_grad[3:6])
        grads = _run_backward(grad_o, grad_lse, q, k, v, o, lse, bias, alibi, sink, seed, tables, *ctx.static, wanted)
        return (*(grad.to(q.dtype) for grad in grads[:3]),
                *(grad.to(tensor.dtype) if is_wanted else None
                  for grad, tensor, is_wanted in zip(grads[3:], (bias, alibi, sink), wanted)),
                None, None, *(None for _ in ctx.static))


def _wants_gradient(*tensors: Optional[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _autograd(*arguments):
    if _wants_gradient(*arguments[:6]):
        return _Attention.apply(*arguments)
    with _below_autograd():
        return _forward_op(*arguments)


def _no_second_gradient(*arguments):
    """Gradients of gradients: refused rather than silently 0."""
    if _wants_gradient(*arguments[:7]):
        raise _c.UnsupportedError("libattn's backward has no gradient of its own: create_graph=True is not supported")
    with _below_autograd():
        return _backward_op(*arguments)


_library.impl("forward", _autograd, "Autograd")
_library.impl("backward", _no_second_gradient, "Autograd")


def _refuse_tangents(tensors):
    """Forward-mode differentiation: refused rather than silently 0."""
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise _c.UnsupportedError("libattn has no forward-mode gradients (torch.func.jvp, forward_ad)")


def _directly(operator, arguments, may_record):
    """The operator; in eager mode without the turn through autograd where there is nothing to record."""
    if forward_ad._current_level >= 0:
        _refuse_tangents(arguments[:may_record])
    if torch.compiler.is_compiling() or _wants_gradient(*arguments[:may_record]):
        return operator(*arguments)
    with _below_autograd():
        return operator(*arguments)


def _run_forward(*arguments):
    return _directly(_forward_op, arguments, 6)


def _run_backward(*arguments):
    return _directly(_backward_op, arguments, 7)


# ---- functions -----------------------------------------------------------------------------------


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """q, k and v in autocast's type, where it is on; nothing else is cast, nor, as by torch, float64."""
    kind = q.device.type
    if torch.is_autocast_enabled(kind):
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


def _floats(q: Tensor) -> torch.dtype:
    """The type of lse, alibi and sink."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _float(tensor: Optional[Tensor], name: str, q: Tensor) -> Optional[Tensor]:
    return None if tensor is None else _beside(tensor, name, q).to(_floats(q))


def _beside(tensor: Any, name: str, q: Any, other: str = "q") -> Tensor:
    """The tensor, if it is torch's and where q is. other: what the caller calls q."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}; it takes a torch tensor")
    if tensor.device != q.device or tensor.is_meta:
        raise _c.InvalidError(f"{name} is on {tensor.device} and {other} on {q.device}; they take one CPU or CUDA GPU")
    return tensor


def _by_mask(mask, given, intervals, blocks, bits, lens, k, is_varlen):
    """What `mask` means beside the options given: (causal, window, chunk and prefix), intervals, blocks, bits."""
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
        if bits is not None:
            raise _c.InvalidError("mask and bits are both given: they mean the same")
        if not isinstance(mask, Tensor):
            raise TypeError(f"mask is {type(mask).__name__}; it takes a tensor, a BlockMask, or masks by name")
        if mask.shape[-1] != lens[1]:
            raise _c.InvalidError(f"mask has shape {tuple(mask.shape)}; its last dimension must be the {lens[1]} keys")
        bits = pack_mask(mask)
    return given, intervals, blocks, bits


def _operator(q, k, v, cu_lens_q, cu_lens_kv, max_lens, causal, window, chunk, prefix, lens_q, lens_kv, mask, bits,
              intervals, blocks, scale, softcap, alibi, bias, sink, dropout_p, seed, return_lse, out_f32, deterministic,
              threads):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _beside(tensor, name, q)
    q, k, v = _autocast(q, k, v)
    if mask is not None:
        lens = (q.shape[1], k.shape[1]) if max_lens is None else tuple(max_lens)
        given = {"causal": causal, "window": window, "chunk": chunk, "prefix": prefix}
        given, intervals, blocks, bits = _by_mask(mask, given, intervals, blocks, bits, lens, k, max_lens is not None)
        causal, window, chunk, prefix = given["causal"], given["window"], given["chunk"], given["prefix"]
    if window is not None:
        window = [-1 if side is None else side for side in window]
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    tables = []
    if not cu_lens_q is lens_q is lens_kv is prefix is intervals is blocks is bits is None:
        lists = (None,) * 4 if blocks is None else (
            blocks.full_count, blocks.full, blocks.partial_count, blocks.partial)
        tables = [cu_lens_q, cu_lens_kv, lens_q, lens_kv, prefix, intervals, *lists, bits]
        for name, table in zip(_TABLES, tables):
            if table is not None:
                _beside(table, name, q)
    o, lse = _run_forward(
        q, k, v, None if bias is None else _beside(bias, "bias", q), _float(alibi, "alibi", q), _float(sink, "sink", q),
        _seed(dropout_p, seed, q.device), tables, max_lens,
        None if blocks is None else [blocks.rows, blocks.keys], causal, window, chunk, scale, softcap, dropout_p,
        out_f32, deterministic, threads)
    return (o, lse) if return_lse else o


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
        q.dtype        float64 too, on the CPU, for torch.autograd.gradcheck
        mask           by name (libattn.masks), FlexAttention's BlockMask, or a tensor, on the CPU or a GPU, of bool or
                       of 0 and -inf; see pack_mask
        seed           (2) int64 on q's device: dropout's seed and offset; None: drawn from torch's generator
        deterministic  None: as torch.use_deterministic_algorithms says

    Under autocast q, k and v are cast to its type, and nothing else. Returns o, (batch, len_q, heads_q, dim_v), with
    return_lse (o, lse), both differentiable. The other options, and errors: libattn.attention.
    """
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
    return _operator(q, k, v, cu_lens_q, cu_lens_kv, [max_len_q, max_len_kv], causal, window, chunk, prefix, lens_q,
                     lens_kv, mask, bits, intervals, blocks, scale, softcap, alibi, bias, sink, dropout_p, seed,
                     return_lse, out_f32, deterministic, threads)


def _no_fast_kernel(q: Tensor, v: Tensor) -> Optional[str]:
    """Why no fast kernel computes such a problem; None if one does."""
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"query is {q.dtype}; libattn takes float32, float16 and bfloat16"
    if q.device.type not in ("cpu", "cuda"):
        return f"query is on {q.device}; libattn takes the CPU and CUDA GPUs"
    most = max(q.shape[-1], v.shape[-1])
    if most > (512 if q.device.type == "cpu" else 256):
        return f"the head dim is {most}; libattn's fast kernels take {512 if q.device.type == 'cpu' else 256} at most"
    if q.device.type == "cuda":
        capability = torch.cuda.get_device_capability(q.device)
        if capability != (9, 0):
            return f"the GPU has compute capability {capability[0]}.{capability[1]}; libattn has kernels for 9.0"
        if q.dtype == torch.float32:
            return "libattn has no fast kernel for float32 on a GPU"
    return None


_warned = False


def _warn(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"libattn leaves this to torch's scaled_dot_product_attention: {reason}", stacklevel=3)


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

    A row that sees no key is 0. Returns (..., heads_q, len_q, dim_v).
    """
    if fallback not in (None, "sdpa"):
        raise _c.InvalidError(f'fallback is {fallback!r}; it takes None or "sdpa"')
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if name != "attn_mask" or tensor is not None:
            _beside(tensor, name, query, "query")
    if query.dim() < 2 or key.dim() != query.dim() or value.dim() != query.dim():
        raise _c.InvalidError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions; all "
                              "must have the same number, 2 or more")
    if is_causal and attn_mask is not None:
        raise _c.InvalidError("attn_mask and is_causal exclude each other")
    q, k, v = _autocast(query, key, value)
    reason = _no_fast_kernel(q, v)
    if reason is not None:
        if fallback is None:
            raise _c.UnsupportedError(reason)
        _warn(reason)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (x if x.shape[:-3] == lead else x.expand(*lead, *x.shape[-3:]) for x in (q, k, v))
    q, k, v = (x[(None,) * (4 - x.dim())] if x.dim() < 4 else x.flatten(0, -4) for x in (q, k, v))
    if not enable_gqa and q.shape[1] != k.shape[1] != 1:
        raise _c.InvalidError(f"query has {q.shape[1]} heads and key {k.shape[1]}: enable_gqa=True shares them")
    rows, keys = q.shape[2], k.shape[2]
    window, bits, bias = None, None, None
    if is_causal and rows < keys:
        k, v, keys = k[:, :, :rows], v[:, :, :rows], rows  # the keys after the last row's are seen by none
    elif is_causal and rows > keys:
        is_causal, window = False, [-1, rows - keys]
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise _c.InvalidError(f"attn_mask is {attn_mask.dtype}; it takes torch.bool, or a floating type")
        if attn_mask.dim() > max(query.dim(), 2):
            raise _c.InvalidError(f"attn_mask has {attn_mask.dim()} dimensions, query {query.dim()}: it takes no more")
        if len(lead) > 1 and attn_mask.dim() > 3:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).flatten(0, -4)
        if attn_mask.dtype == torch.bool:
            if attn_mask.shape[-1] == 1 or attn_mask.shape[-2] == 1:
                attn_mask = attn_mask.expand(*attn_mask.shape[:-2], rows, keys)
            bits = pack_mask(attn_mask)
        else:
            bias = attn_mask.to(q.dtype) if attn_mask.dtype == torch.float64 else attn_mask
    o = _run_forward(
        _rows(q.transpose(1, 2)), _rows(k.transpose(1, 2)), _rows(v.transpose(1, 2)), bias, None, None,
        _seed(dropout_p, None, q.device), [] if bits is None else [None] * 10 + [bits], None, None, is_causal, window,
        None, scale, None, dropout_p, False, torch.are_deterministic_algorithms_enabled(), 0)[0]
    return o.transpose(1, 2).reshape(*lead, *query.shape[-3:-1], value.shape[-1])
