"""DTensors: each process computes its own sequences or heads, and no process talks to another.

The functions hand over local tensors here, and say of each gradient whether it is a part of a sum. A sharding rule
registered for the operator (register_sharding) would not do: it is for one dimension of the mesh. KV heads that each of
two dimensions divides evenly may not be divided evenly by both.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from . import _c, _torch_ops

_NAMES = ("q", "k", "v", *_torch_ops.OPTIONS)


def is_dtensor(tensor: Any) -> bool:
    """Whether it is one; its module is not imported for it."""
    return type(tensor).__name__ == "DTensor" and type(tensor).__module__ == "torch.distributed.tensor"


def check_beside(tensor: Tensor, name: str, q: Tensor, other: str) -> None:
    """Raises unless both or neither are DTensors, of one mesh."""
    if is_dtensor(tensor) != is_dtensor(q):
        distributed, plain = (name, other) if is_dtensor(tensor) else (other, name)
        raise _c.InvalidError(f"{distributed} is a DTensor and {plain} is none: distribute_tensor makes it one, "
                              "replicated or sharded")
    if is_dtensor(q) and tensor.device_mesh != q.device_mesh:
        raise _c.InvalidError(f"{name} is on {tensor.device_mesh} and {other} on {q.device_mesh}; they take one")


def replicated(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor that every process has, beside one that may be a DTensor."""
    if not is_dtensor(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(tensor, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)


def gathered(tensor: Tensor, dim: int) -> Tensor:
    """The tensor, of which every process has one dimension whole, if it is a DTensor."""
    if not is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    return tensor.redistribute(tensor.device_mesh, [Replicate() if place == Shard(dim) else place
                                                    for place in tensor.placements])


def forward_of(q: Tensor) -> Callable[..., Tuple[Tensor, Tensor]]:
    """run_forward, or what does the same for DTensors."""
    return _run_local if type(q) is not Tensor and is_dtensor(q) else _torch_ops.run_forward


def _run_local(*arguments: Any) -> Tuple[Tensor, Tensor]:
    """The forward operator, of all of its arguments in order, by their local tensors."""
    q, k, v = arguments[:3]
    from torch.distributed.tensor import DTensor

    named = dict(zip(_NAMES, arguments))
    if named["dropout_p"]:
        raise _c.InvalidError(f"dropout_p is {named['dropout_p']}; with DTensors it takes 0: every process would drop "
                              "the same pairs of its own heads or sequences")
    is_varlen, mesh = named["max_lens"] is not None, q.device_mesh
    shared = _shared(q, k, v, is_varlen)
    local = []
    for name, value in named.items():
        if isinstance(value, Tensor):
            dims = _dims(name, value, is_varlen)
            value = value.redistribute(mesh, _placements(dims, shared, False)).to_local(
                grad_placements=_placements(dims, shared, True))
        local.append(value)
    results = _torch_ops.run_forward(*local)
    heads, rows = q.shape[-2], tuple(q.shape[:-2])
    shapes = (*rows, heads, v.shape[-1]), (heads, *rows) if is_varlen else (rows[0], heads, rows[1])
    dims = ({"heads": 1}, {"heads": 0}) if is_varlen else ({"batch": 0, "heads": 2}, {"batch": 0, "heads": 1})
    o, lse = (DTensor.from_local(x, mesh, _placements(at, shared, False), run_check=False, shape=torch.Size(shape),
                                 stride=_packed(shape)) for x, at, shape in zip(results, dims, shapes))
    return o, lse


def _packed(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _shared(q: Any, k: Any, v: Any, is_varlen: bool) -> List[Optional[str]]:
    """What each dimension of the mesh shares out: "batch", "heads", or None, where all compute the same. Heads are
    shared out if every process gets as many of k and v: query heads would else part from theirs."""
    from torch.distributed.tensor import Shard

    shared: List[Optional[str]] = []
    kv_heads, names = k.shape[-2], {"heads": len(q.shape) - 2}
    if not is_varlen:
        names["batch"] = 0
    for place, size in enumerate(q.device_mesh.shape):
        found = None
        for name, dim in names.items():
            if any(x.placements[place] == Shard(dim) for x in (q, k, v)):
                found = found or name
        if found == "heads":
            if kv_heads % size:
                found = None
            else:
                kv_heads //= size
        shared.append(found)
    return shared


def _dims(name: str, tensor: Tensor, is_varlen: bool) -> Dict[str, int]:
    """Where a tensor has its batch and its heads; a dimension of 1 repeats, and every process takes it whole."""
    if name in ("q", "k", "v"):
        return {"heads": 1} if is_varlen else {"batch": 0, "heads": 2}
    if name in ("cu_lens_q", "cu_lens_kv"):
        return {}
    if name in ("lens_q", "lens_kv", "prefix"):
        return {"batch": 0}
    heads = tensor.dim() - 3 if name == "bias" else tensor.dim() - 1 if name in ("alibi", "sink") else 1
    return {of: dim for of, dim in (("batch", heads - 1), ("heads", heads)) if dim >= 0 and tensor.shape[dim] > 1}


def _placements(dims: Dict[str, int], shared: List[Optional[str]], is_gradient: bool) -> List[Any]:
    """Of a tensor, or of its gradient, of which a tensor that is not shared out gets a part from each process."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [Shard(dims[name]) if name in dims else Partial() if name and is_gradient else Replicate()
            for name in shared]
