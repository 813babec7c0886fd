"""Hugging Face Transformers: attention and masks under the name "libattn".

    import libattn.transformers                       # registers both
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="libattn")

Both halves belong together. Without the mask function Transformers gives attention no mask at all, and padded batches
would be silently wrong: then it raises here.
"""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from . import _c
from .torch import attention, attention_varlen, pack_mask

__all__ = ["NAME", "attention_forward", "attention_mask", "register"]

NAME = "libattn"

# Keywords that models pass along and that do not change what attention computes.
_IGNORED = frozenset((
    "position_ids", "cache_position", "past_key_values", "use_cache", "output_hidden_states", "output_router_logits",
    "return_dict", "logits_to_keep", "num_items_in_batch", "token_type_ids", "inputs_embeds", "labels", "cache_kwargs"))


def attention_mask(*arguments: Any, **keywords: Any) -> Optional[Tensor]:
    """The mask of a batch: None where it is causal or full and nothing is padded, else bool, (batch, 1, len_q, len_kv),
    True: visible. Arguments: those of Transformers' mask functions."""
    return sdpa_mask(*arguments, **keywords)


def _bits(mask: Tensor) -> Tensor:
    """The packed mask; the layers of a model share one, so it is kept with the mask until that is written to."""
    if torch.compiler.is_compiling():
        return pack_mask(mask)
    kept = getattr(mask, "_libattn_bits", None)
    if kept is None or kept[0] != mask._version:
        kept = (mask._version, pack_mask(mask))
        mask._libattn_bits = kept  # type: ignore[attr-defined]
    return kept[1]


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
    dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None, softcap: Optional[float] = None, s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None, output_attentions: Optional[bool] = None,
    cu_seq_lens_q: Optional[Tensor] = None, cu_seq_lens_k: Optional[Tensor] = None, max_length_q: Optional[int] = None,
    max_length_k: Optional[int] = None, **keywords: Any,
) -> Tuple[Tensor, None]:
    """A layer's attention.

        query           (batch, heads_q, len_q, dim); key, value: (batch, heads_kv, len_kv, dim)
        attention_mask  what attention_mask() made, or numbers that are added to scores
        sliding_window  W keys, the row's own among them: window (W - 1, 0) of libattn
        s_aux           (heads_q): sinks
        cu_seq_lens_q   packed sequences of a batch of one, with cu_seq_lens_k, max_length_q and max_length_k

    Returns (batch, len_q, heads_q, dim_v), and None for the probabilities, which are never stored. Raises InvalidError
    for a keyword that is not known: it might change the result.
    """
    unknown = [name for name, given in keywords.items() if given is not None and name not in _IGNORED]
    if unknown:
        raise _c.InvalidError(f"attention is given {', '.join(sorted(unknown))}, which libattn.transformers does not "
                              "know")
    if output_attentions:
        raise _c.UnsupportedError("output_attentions is True: libattn stores no probabilities; "
                                  'attn_implementation="eager" does')
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict = {"scale": scaling, "softcap": softcap, "sink": s_aux, "dropout_p": dropout}
    window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    if cu_seq_lens_q is not None:
        if cu_seq_lens_k is None or max_length_q is None or max_length_k is None:
            raise _c.InvalidError("cu_seq_lens_q needs cu_seq_lens_k, max_length_q and max_length_k beside it")
        if q.shape[0] != 1 or position_bias is not None:
            raise _c.InvalidError("cu_seq_lens_q packs sequences into a batch of 1, without position_bias; the batch "
                                  f"is {q.shape[0]}")
        o = attention_varlen(q[0], k[0], v[0], cu_seq_lens_q.int(), cu_seq_lens_k.int(), max_length_q, max_length_k,
                             causal=causal, window=window, **options)
        return o[None], None
    rows, keys = q.shape[1], k.shape[1]
    if attention_mask is None:
        if NAME not in AttentionMaskInterface._global_mapping:
            raise _c.InvalidError('there is no mask, for no mask function is registered as "libattn": call '
                                  "libattn.transformers.register()")
        if causal and rows > 1:
            if rows < keys:  # an empty StaticCache: the keys after the last row's are not yet written
                k, v, keys = k[:, :rows], v[:, :rows], rows
            options["causal"] = True
            options["window"] = window
    elif attention_mask.dtype == torch.bool:
        if attention_mask.dim() != 4 or attention_mask.shape[-1] < keys:
            raise _c.InvalidError(f"attention_mask has shape {tuple(attention_mask.shape)}; it takes (batch, heads or "
                                  f"1, {rows}, {keys})")
        options["bits"] = _bits(attention_mask if attention_mask.shape[-1] == keys else attention_mask[..., :keys])
    elif attention_mask.is_floating_point():
        bias = attention_mask[..., :keys]
        position_bias = bias if position_bias is None else position_bias[..., :keys] + bias
    else:
        raise _c.InvalidError(f"attention_mask is {attention_mask.dtype}; it takes bool or floating point")
    if position_bias is not None:
        options["bias"] = position_bias[..., :keys]
    return attention(q, k, v, **options), None


def register() -> None:
    """Registers attention and masks as "libattn"; importing this module does it."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)


register()
