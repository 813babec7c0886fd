"""libattn: exact, IO-aware attention for NumPy, PyTorch and every DLPack tensor.

    import libattn
    o = libattn.attention(q, k, v, causal=True)     # (batch, row, head, dim)

attention, attention_varlen and attention_backward compute, attention_with_kvcache over a cache that grows; merge_states
merges results of keys in parts; quantize makes bytes and scales of q, k and v; plan says how, before anything runs.
libattn.Error is the base of what they raise.
"""
from ._bytes import Quantized, correct_lse
from ._api import (Gradients, attention, attention_backward, attention_varlen, machine_use, plan, version)
from ._c import DeviceError, Error, InvalidError, NoMemoryError, PoolFullError, RankFailedError, UnsupportedError
from ._cascade import Cascade, attention_cascade, plan_cascade
from ._kv import append_kvcache, attention_with_kvcache
from ._merging import merge_states
from ._pool import Level, PageCopies, Pool, Sequence
from ._quant import quantize
from ._problem import Blocks, Plan
from ._run import clear_plans

__version__ = version()
__all__ = ["attention", "attention_varlen", "attention_backward", "attention_with_kvcache",
           "append_kvcache", "merge_states", "attention_cascade", "plan_cascade", "Cascade", "Level",
           "plan", "Plan", "Blocks", "Gradients", "machine_use",
           "clear_plans", "version", "Error", "InvalidError", "UnsupportedError", "NoMemoryError", "DeviceError",
           "quantize", "correct_lse", "Quantized", "Pool", "Sequence", "PageCopies", "PoolFullError", "RankFailedError"]
