"""Masks as torch tensors: bits of bool masks, intervals of documents, blocks of FlexAttention's BlockMask. No step of
these waits for a GPU, but for the first look at a BlockMask."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _c, masks
from ._run import Blocks


def pack_mask(mask: Tensor) -> Tensor:
    """Bits (uint8) of a mask of (1 or batch, 1 or heads_q, len_q, len_kv) or fewer dimensions: bool, True: visible; or
    floats, 0: visible, -inf: not."""
    if mask.is_floating_point():
        visible = mask == 0
        _require((visible | (mask == -torch.inf)).all(), masks.ADDED)
        mask = visible
    if mask.dtype != torch.bool:
        raise _c.InvalidError(f"mask is {mask.dtype}; it takes torch.bool, or floats that are 0 or -inf")
    if not 2 <= mask.dim() <= 4:
        raise _c.InvalidError(f"mask has shape {tuple(mask.shape)}; it takes 2 to 4 dimensions")
    mask = mask[(None,) * (4 - mask.dim())]
    bytes_of_row = (mask.shape[-1] + 7) // 8  # no remainder, which dynamic shapes of torch.export cannot follow
    mask = torch.nn.functional.pad(mask, (0, 8 * bytes_of_row - mask.shape[-1])).unflatten(-1, (bytes_of_row, 8))
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=mask.device)
    return (mask.to(torch.uint8) * weights).sum(-1, dtype=torch.uint8)


def _require(condition: Tensor, message: str) -> None:
    """Raises unless it holds: at once where the CPU can look, else when the GPU comes to it."""
    if torch.compiler.is_compiling() or condition.is_cuda:
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
    return torch.stack(vectors, -1).clamp(0, rows).int()[:, None]


def runs(ids: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the run of equal numbers that a place is in begins and ends, both (batch, keys)."""
    new = ids[:, 1:] != ids[:, :-1]
    in_order = ids.sort(1).values
    _require(((in_order[:, 1:] != in_order[:, :-1]).sum(1) == new.sum(1)).all(), masks.SPREAD)
    number = torch.nn.functional.pad(new.cumsum(1), (1, 0))[:, :ids.shape[1]].contiguous()
    return torch.searchsorted(number, number), torch.searchsorted(number, number, right=True)


def is_block_mask(mask: Any) -> bool:
    """Whether it is FlexAttention's BlockMask, whose module is not imported for it."""
    return type(mask).__name__ == "BlockMask" and type(mask).__module__ == "torch.nn.attention.flex_attention"


def from_block_mask(block_mask: Any, len_q: int, len_kv: int) -> Tuple[Blocks, Optional[Tensor]]:
    """(blocks, bits) of FlexAttention's BlockMask over len_q rows and len_kv keys. Its mask_mod is asked about pairs of
    partial blocks alone; the result is kept with the BlockMask.

    torch.compile takes what is kept. Where nothing is, its graph asks about all pairs, at each run: the number of
    partial blocks would be a number that it cannot know. So call this outside, once, for a mask that stays."""
    kept = getattr(block_mask, "_libattn", None)
    if kept is not None and kept[0] == (len_q, len_kv):
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
    if torch.compiler.is_compiling():
        return Blocks(rows, keys, *lists), _all_bits(block_mask.mask_mod, lists[2], len_q, len_kv)
    made = Blocks(rows, keys, *lists), _partial_bits(block_mask.mask_mod, lists[2], lists[3], (rows, keys),
                                                     (len_q, len_kv))
    block_mask._libattn = ((len_q, len_kv), made)
    return made


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
