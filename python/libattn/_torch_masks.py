"""Masks as torch tensors: bits of bool masks, intervals of documents, blocks of FlexAttention's BlockMask. No step of
these waits for a GPU, but for the first look at a BlockMask."""
from __future__ import annotations

import types
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from . import _c, _torch_nested, masks
from ._problem import Blocks
from ._torch_dtensor import gathered, replicated
from ._torch_ops import has_values


def pack_mask(mask: Tensor) -> Tensor:
    """Bits (uint8) of a mask of (1 or batch, 1 or heads_q, len_q, len_kv) or fewer dimensions: bool, True: visible; or
    floats, 0: visible, -inf: not."""
    _torch_nested.refuse(mask=mask)
    if mask.is_floating_point():
        visible = mask == 0
        _require((visible | (mask == -torch.inf)).all(), masks.ADDED)
        mask = visible
    if mask.dtype != torch.bool:
        raise _c.InvalidError(f"mask is {mask.dtype}; it takes torch.bool, or floats that are 0 or -inf")
    if not 2 <= mask.dim() <= 4:
        raise _c.InvalidError(f"mask has shape {tuple(mask.shape)}; it takes 2 to 4 dimensions")
    mask = gathered(four(mask), 3)  # 8 keys of a byte may lie in two processes
    bytes_of_row = (mask.shape[-1] + 7) // 8  # no remainder, which dynamic shapes of torch.export cannot follow
    mask = torch.nn.functional.pad(mask, (0, 8 * bytes_of_row - mask.shape[-1])).unflatten(-1, (bytes_of_row, 8))
    weights = replicated(torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=mask.device), mask)
    return (mask.to(torch.uint8) * weights).sum(-1, dtype=torch.uint8)


def four(tensor: Tensor) -> Tensor:
    """With dimensions of 1 in front, so that they are four. (An index of None needs the device of a fake tensor.)"""
    return tensor.expand((1,) * (4 - tensor.dim()) + tuple(tensor.shape))


def bits_of(name: str, mask: Tensor, full: Tuple[int, int, int, int]) -> Tensor:
    """Bits of a mask that broadcasts to (batch, heads_q, len_q, len_kv)."""
    masks.check_shape(name, tuple(mask.shape), full)
    if mask.shape[-1] != full[3]:
        mask = mask.expand(*mask.shape[:-1], full[3])
    bits = pack_mask(mask)
    return bits if bits.shape[2] == full[2] else bits.expand(-1, -1, full[2], -1).contiguous()


def _require(condition: Tensor, message: str) -> None:
    """Raises unless it holds: at once where the CPU can look, else when the GPU or the compiled code comes to it."""
    if torch.compiler.is_compiling() and is_batchedtensor(condition):
        raise _c.UnsupportedError("mask is of numbers, or of documents, that vmap maps in compiled code, where their "
                                  "values cannot be checked; it takes a bool mask")
    while not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(condition):
        condition = get_unwrapped(condition)
    condition = condition.all()  # of all elements of vmap
    if torch.compiler.is_compiling() or condition.device.type != "cpu" or not has_values(condition):
        torch._assert_async(condition, message)
    elif not condition:
        raise _c.InvalidError(message)


def intervals_of(mask: masks.Mask, rows: int, keys: int, batch: int, is_causal: bool, device: torch.device) -> Tensor:
    """The documents as FlashMask's intervals, (batch, 1, len_kv, 1 or 2)."""
    first = last = None
    for ids in mask.documents:
        ids = torch.as_tensor(ids, device=device)
        masks.check_ids(tuple(ids.shape), str(ids.dtype), batch, keys)
        starts, ends = runs(ids.expand(batch, keys))
        first = starts if first is None else torch.maximum(first, starts)
        last = ends if last is None else torch.minimum(last, ends)
    later = keys - rows
    vectors = [last - later] if is_causal else [last - later, first - later]
    return torch.stack(vectors, -1).clamp(0, rows).int().unsqueeze(1)


def runs(ids: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the run of equal numbers that a place is in begins and ends, both (batch, keys)."""
    new = ids.diff(dim=1) != 0
    in_order = ids.sort(1).values.diff(dim=1) != 0
    _require((in_order.sum(1) == new.sum(1)).all(), masks.SPREAD)
    number = torch.nn.functional.pad(new.cumsum(1), (1, 0)).narrow(1, 0, ids.shape[1]).contiguous()
    return torch.searchsorted(number, number), torch.searchsorted(number, number, right=True)


def is_block_mask(mask: Any) -> bool:
    """Whether it is FlexAttention's BlockMask, whose module is not imported for it."""
    return type(mask).__name__ == "BlockMask" and type(mask).__module__ == "torch.nn.attention.flex_attention"


def from_block_mask(block_mask: Any, len_q: int, len_kv: int) -> Tuple[Blocks, Optional[Tensor]]:
    """(blocks, bits) of FlexAttention's BlockMask over len_q rows and len_kv keys. Its mask_mod is asked about pairs of
    partial blocks alone; the result is kept with the BlockMask until a tensor that this or its mask_mod refers to is
    written by torch or replaced. It is not kept where mask_mod refers to what cannot be looked through: an object, say.

    torch.compile takes what is kept. Where nothing is, its graph asks about all pairs, at each run: the number of
    partial blocks would be a number that it cannot know. So call this outside, once, for a mask that stays."""
    kept = getattr(block_mask, "_libattn", None)
    known = None
    if torch.compiler.is_compiling():
        if kept is not None and kept[0] == (len_q, len_kv) and kept[3] is block_mask.mask_mod:
            blocks, bits = kept[1]
            counts = torch.ops.libattn.unchanged(blocks.partial_count, *kept[4])
            return blocks._replace(partial_count=counts), bits
    else:
        known = _state(block_mask)
        if kept is not None and kept[0] == (len_q, len_kv) and _same(kept[2], known):
            return kept[1]
    rows, keys = block_mask.BLOCK_SIZE
    if keys % 8:
        raise _c.InvalidError(f"mask is a BlockMask with blocks of {keys} keys; it takes multiples of 8")
    if tuple(block_mask.seq_lengths) != (len_q, len_kv):
        raise _c.InvalidError(f"mask is a BlockMask of {tuple(block_mask.seq_lengths)} rows and keys, q and k have "
                              f"{(len_q, len_kv)}")
    lists = [block_mask.full_kv_num_blocks, block_mask.full_kv_indices, block_mask.kv_num_blocks, block_mask.kv_indices]
    count = -(-len_q // rows), -(-len_kv // keys)
    for place in (0, 2):
        if lists[place] is not None:
            lists[place] = lists[place][..., :count[0]].int().contiguous()
            lists[place + 1] = _rising(lists[place + 1][..., :count[0], :count[1]], lists[place])
    looked_at = [*lists, *(thing for thing, _ in known or ())]
    if torch.compiler.is_compiling() or not has_values(lists[2]) or any(map(_is_mapped, looked_at)):
        return Blocks(rows, keys, *lists), _all_bits(block_mask.mask_mod, lists[2], len_q, len_kv)
    made = Blocks(rows, keys, *lists), _partial_bits(block_mask.mask_mod, lists[2], lists[3], (rows, keys),
                                                     (len_q, len_kv))
    if known is None:
        block_mask._libattn = None
    else:
        written = [(thing, version) for thing, version in known if isinstance(thing, Tensor)]
        block_mask._libattn = ((len_q, len_kv), made, known, block_mask.mask_mod, tuple(map(list, zip(*written))))
    return made


# In compiled code, which sees tensors and no objects, a look at each run.
_library = torch.library.Library("libattn", "FRAGMENT")
_library.define("unchanged(Tensor counts, Tensor[] of, int[] versions) -> Tensor")


def _unchanged(counts: Tensor, of: List[Tensor], versions: List[int]) -> Tensor:
    """The counts, a copy; raises if one of the tensors was written since it had that version."""
    if [tensor._version for tensor in of] != versions:
        raise _c.InvalidError("mask is a BlockMask whose tensors, or those of its mask_mod, were written after "
                              "from_block_mask was called: call it again, outside of compiled code")
    return counts.clone()


_library.impl("unchanged", _unchanged, "CompositeExplicitAutograd")


@torch.library.register_fake("libattn::unchanged", lib=_library)
def _unchanged_fake(counts, of, versions):
    return counts.new_empty(counts.shape)


_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType, type,
          types.BuiltinFunctionType)
_LOOKS = 1000  # at objects, before a mask counts as not known


def _state(block_mask: Any) -> Optional[list]:
    """What its tables depend on: a list of (object, version), each tensor with the number of writes into it. None
    where that cannot be known: then nothing is kept."""
    found: list = []
    seen: set = set()

    def look(thing: Any) -> bool:
        if isinstance(thing, Tensor):
            if thing.is_inference():  # it counts no writes
                return False
            found.append((thing, thing._version))
        elif isinstance(thing, _ATOMS):
            found.append((thing, 0))
        elif isinstance(thing, (tuple, list)):
            found.append((None, len(thing)))
            return all(map(look, thing))
        elif isinstance(thing, types.FunctionType):
            found.append((thing.__code__, 0))
            if id(thing) in seen:
                return True
            seen.add(id(thing))
            return len(seen) + len(found) < _LOOKS and all(map(look, _refers_to(thing)))
        else:
            return False
        return True

    parts = (block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks,
             block_mask.full_kv_indices, tuple(block_mask.BLOCK_SIZE), block_mask.mask_mod)
    return found if all(map(look, parts)) else None


def _refers_to(function: types.FunctionType) -> list:
    """What a function reads besides its arguments. torch's own functions are taken not to change."""
    things = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            things.append(cell.cell_contents)
        except ValueError:  # empty: not assigned yet
            things.append(object())
    if (function.__module__ or "").partition(".")[0] == "torch":
        return things
    names, codes = set(), [function.__code__]
    for code in codes:
        names.update(code.co_names)
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    ordered = sorted(names)
    owners = [function.__globals__[name] for name in ordered if name in function.__globals__]
    things.extend(owners)
    for owner in owners:  # module.name, and class.name
        if isinstance(owner, (types.ModuleType, type)) and (
                getattr(owner, "__module__", None) or owner.__name__).partition(".")[0] != "torch":
            things.extend(getattr(owner, name) for name in ordered if hasattr(owner, name))
    return things


def _same(kept: Optional[list], known: Optional[list]) -> bool:
    """Whether nothing has changed: the same tensors and objects, or equal numbers and texts, in the same states."""
    return kept is not None and known is not None and len(kept) == len(known) and all(
        version == now and (thing is other or (type(thing) is type(other) and not isinstance(thing, Tensor)
                                               and thing == other))
        for (thing, version), (other, now) in zip(kept, known))


def _is_mapped(thing: Any) -> bool:
    """Whether it is a tensor over which torch.func.vmap is, below other transforms or not."""
    while isinstance(thing, Tensor) and is_functorch_wrapped_tensor(thing):
        if is_batchedtensor(thing):
            return True
        thing = get_unwrapped(thing)
    return False


def _rising(indices: Tensor, counts: Tensor) -> Tensor:
    """The first `count` numbers of each list in rising order."""
    place = torch.arange(indices.shape[-1], device=indices.device)
    beyond = place >= counts[..., None]
    return torch.where(beyond, indices.shape[-1], indices).sort(-1).values.int().contiguous()


def _all_bits(mask_mod: Any, counts: Tensor, len_q: int, len_kv: int) -> Tensor:
    """Bits in which all pairs are as mask_mod says; the kernels look at those of partial blocks."""
    from torch.nn.attention.flex_attention import create_mask

    return pack_mask(create_mask(mask_mod, counts.shape[0], counts.shape[1], len_q, len_kv, device=counts.device))


def _partial_bits(mask_mod: Any, counts: Tensor, lists: Tensor, size: Tuple[int, int], lens: Tuple[int, int]) -> Tensor:
    """Bits in which the pairs of partial blocks are as mask_mod says; the others are 0, and never asked for."""
    from torch.nn.attention.flex_attention import create_mask

    (rows, keys), (len_q, len_kv) = size, lens
    listed = torch.arange(lists.shape[-1], device=lists.device) < counts[..., None]
    batch, head, row, place = listed.nonzero(as_tuple=True)
    column = lists[batch, head, row, place].long()

    def of_block(block, _, i, j):
        i = (row[block] * rows + i).clamp(max=len_q - 1)
        return mask_mod(batch[block], head[block], i, (column[block] * keys + j).clamp(max=len_kv - 1))

    shape = (*counts.shape[:2], counts.shape[2], rows, lists.shape[-1], keys // 8)
    bits = torch.zeros(shape, dtype=torch.uint8, device=lists.device)
    if len(batch):
        seen = create_mask(of_block, len(batch), 1, rows, keys, device=str(lists.device))
        bits[batch, head, row, :, column] = pack_mask(seen)[:, 0]
    return bits.flatten(4, 5).flatten(2, 3)[:, :, :len_q, :(len_kv + 7) // 8].contiguous()
