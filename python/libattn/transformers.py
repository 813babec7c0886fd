"""Hugging Face Transformers: attention and masks under the name "libattn".

    import libattn.transformers                       # registers both
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="libattn")

Both halves belong together. Without the mask function Transformers gives attention no mask at all, and padded batches
would be silently wrong: then it raises here.

A model whose code computes attention itself is refused by its class's name: when it is made, where Transformers can
tell, else where its code uses the mask.
"""
from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from . import _c
from ._run import FEW_ROWS
from ._torch_step import TABLES, step
from ._transformers_masks import Mask, attention_mask, refusal
from .torch import attention, attention_varlen, pack_mask

__all__ = ["NAME", "attention_forward", "attention_mask", "register"]

NAME = "libattn"

# Keywords that models pass along and that do not change what attention computes.
_IGNORED = frozenset((
    "position_ids", "cache_position", "past_key_values", "use_cache", "output_hidden_states", "output_router_logits",
    "return_dict", "logits_to_keep", "num_items_in_batch", "token_type_ids", "inputs_embeds", "labels", "cache_kwargs"))


def _bits(mask: Tensor) -> Tensor:
    """A bool mask packed; the layers of a model share one, so it is kept with the mask until that is written to."""
    if torch.compiler.is_compiling() or mask.is_inference():
        return pack_mask(mask)
    kept = getattr(mask, "_libattn_bits", None)
    if kept is None or kept[0] != mask._version:
        kept = (mask._version, pack_mask(mask))
        mask._libattn_bits = kept  # type: ignore[attr-defined]
    return kept[1]


def _options_of(mask: Tensor, rows: int, keys: int) -> dict:
    """What a mask, made by attention_mask() or by the caller, is to attention."""
    if isinstance(mask, Mask):
        mask = mask.plain()
        shape = tuple(mask.shape)
        if mask.dtype == torch.bool:
            return {"causal": shape[-1] == 1 and rows > 1}
        if mask.dtype == torch.int64:
            return {"lens_kv": mask[:, 0, 0, 0].int(), "causal": shape[-1] == 2}
        if mask.dtype == torch.int32 and shape[2] == keys:
            return {"intervals": mask, "causal": shape[-1] == 1}
        if mask.dtype == torch.uint8 and shape[2:] == (rows, (keys + 7) // 8):
            return {"bits": mask}
        raise _c.InvalidError(f"attention_mask was made for {shape[2]} rows or keys and attention has {rows} rows and "
                              f"{keys} keys")
    shape = tuple(mask.shape)
    if not (mask.dtype == torch.bool or mask.is_floating_point()) or len(shape) != 4 or shape[-1] < keys:
        raise _c.InvalidError(f"attention_mask is {mask.dtype} of shape {shape}; it takes what the mask function "
                              f"\"{NAME}\" makes, or bool or floating point of shape (batch, heads or 1, "
                              f"{rows}, {keys})")
    mask = mask if shape[-1] == keys else mask[..., :keys]
    return {"bits": _bits(mask)} if mask.dtype == torch.bool else {"bias": mask}


def _masked(mask: Optional[Tensor], causal: bool, window: Any, rows: int, keys: int) -> dict:
    """What a layer's mask, or that there is none, is to attention."""
    if mask is not None:
        return _options_of(mask, rows, keys)
    if NAME not in AttentionMaskInterface._global_mapping:
        raise _c.InvalidError('there is no mask, for no mask function is registered as "libattn": call '
                              "libattn.transformers.register()")
    return {"causal": True, "window": window} if causal and rows > 1 else {}


def _packed(q, k, v, cu_lens_q, cu_lens_kv, max_len_q, max_len_kv, **options) -> Tensor:
    """Sequences packed into a batch of one."""
    if cu_lens_kv is None or max_len_q is None or max_len_kv is None:
        raise _c.InvalidError("cu_seq_lens_q needs cu_seq_lens_k, max_length_q and max_length_k beside it")
    if q.shape[0] != 1:
        raise _c.InvalidError(f"cu_seq_lens_q packs sequences into a batch of 1; the batch is {q.shape[0]}")
    q, k, v = (x.squeeze(0) for x in (q, k, v))  # x[0]'s gradient would be a copy among zeros
    o = attention_varlen(q, k, v, cu_lens_q.int(), cu_lens_kv.int(), int(max_len_q), int(max_len_kv),
                         **options)
    return o[None]


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
    dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None, softcap: Optional[float] = None, s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None, output_attentions: Optional[bool] = None,
    cu_seq_lens_q: Optional[Tensor] = None, cu_seq_lens_k: Optional[Tensor] = None, max_length_q: Optional[int] = None,
    max_length_k: Optional[int] = None, deterministic: Optional[bool] = None, **keywords: Any,
) -> Tuple[Tensor, None]:
    """A layer's attention.

        query           (batch, heads_q, len_q, dim); key, value: (batch, heads_kv, len_kv, dim)
        attention_mask  what attention_mask() made; or the caller's own, bool or numbers that are added to scores
        sliding_window  W keys, the row's own among them: window (W - 1, 0) of libattn
        s_aux           (heads_q): sinks
        cu_seq_lens_q   packed sequences of a batch of one, with cu_seq_lens_k, max_length_q and max_length_k; they take
                        the place of the mask that Transformers finds by position_ids

    Returns (batch, len_q, heads_q, dim_v), and None for the probabilities, which are never stored. Raises InvalidError
    for a keyword that is not known: it might change the result.
    """
    unknown = [name for name, given in keywords.items() if given is not None and name not in _IGNORED]
    if unknown:
        raise _c.InvalidError(f"{type(module).__name__} gives attention {', '.join(sorted(unknown))}, which "
                              "libattn.transformers does not know")
    if output_attentions:
        raise _c.UnsupportedError("output_attentions is True: libattn stores no probabilities; "
                                  'attn_implementation="eager" does')
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    rows, keys = query.shape[2], key.shape[2]
    masked = _masked(attention_mask, causal, window, rows, keys) if cu_seq_lens_q is None else {}
    if rows <= FEW_ROWS and cu_seq_lens_q is s_aux is position_bias is None and not dropout and "bias" not in masked:
        tables = {name: masked[name] for name in TABLES if name in masked}
        o = step(query, key, value, 1, masked.get("causal", False), masked.get("window"), scaling, softcap,
                 deterministic, 0, tables)
        if o is not None:
            return o, None
    # Some layers (Inkling's) hand over features that are not contiguous; eager attention and SDPA take them, too.
    q, k, v = ((x if x.stride(-1) == 1 else x.contiguous()).transpose(1, 2) for x in (query, key, value))
    options: dict = {"scale": scaling, "softcap": softcap, "sink": s_aux, "dropout_p": dropout,
                     "deterministic": deterministic}
    if cu_seq_lens_q is not None:
        if position_bias is not None:
            raise _c.InvalidError("cu_seq_lens_q and position_bias do not go together")
        return _packed(q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, causal=causal, window=window,
                       **options), None
    options.update(masked)
    if position_bias is not None:
        bias = position_bias[..., :keys]
        options["bias"] = bias + options["bias"] if "bias" in options else bias
    return attention(q, k, v, **options), None


@functools.cache
def _own_attention(kind: type) -> Optional[str]:
    """Why models of this class have attention of their own, as their file tells; None: they have none."""
    if not kind._can_set_attn_implementation():  # type: ignore[attr-defined]
        return "computes attention itself"
    file = sys.modules[kind.__module__]
    for table in re.findall(r"\b(\w+)\[config\._attn_implementation\]", inspect.getsource(file)):
        if NAME not in getattr(file, table, (NAME,)):
            return f"takes attention from {table}"
    return None


def _refuse_others() -> None:
    """PreTrainedModel chooses an implementation, and refuses SDPA where a class has none. From now on it refuses
    libattn there, too, where the class's file does not leave attention to the interface. There is no hook for it."""
    choose = PreTrainedModel.get_correct_attn_implementation
    if hasattr(choose, "__wrapped__"):
        return

    @functools.wraps(choose)
    def choose_or_refuse(self: PreTrainedModel, requested: Optional[str], *arguments: Any, **keywords: Any) -> str:
        if requested == NAME and (why := _own_attention(type(self))):
            raise _c.UnsupportedError(refusal(type(self).__name__, why))
        return choose(self, requested, *arguments, **keywords)

    PreTrainedModel.get_correct_attn_implementation = choose_or_refuse  # type: ignore[method-assign]


def register() -> None:
    """Registers attention and masks as "libattn"; importing this module does it."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    _refuse_others()


register()
