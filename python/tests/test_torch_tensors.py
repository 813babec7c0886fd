"""Tensors that mean something other than their bytes, and masks whose tensors change."""
import copy

import numpy as np
import pytest

import libattn
from conftest import close, reference

torch = pytest.importorskip("torch")

import libattn.torch as la  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402


@pytest.mark.parametrize("rows, keys", [(9, 9), (9, 13), (13, 9)])
@pytest.mark.parametrize("make_bias, shift", [(causal_upper_left, 0), (causal_lower_right, 1)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_causal_biases(make, rows, keys, make_bias, shift):
    arrays = make(rows=rows, keys=keys)
    q, k, v = map(torch.from_numpy, arrays)
    bias = make_bias(rows, keys)
    seen = np.tri(rows, keys, (keys - rows) * shift, dtype=bool)
    wanted = reference(*arrays, seen)[0]
    o = la.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), bias, enable_gqa=True)
    close(o.transpose(1, 2), wanted)
    for attention in (la.attention, libattn.attention):
        if rows < keys and not shift:
            with pytest.raises(libattn.InvalidError, match="the first 9 keys"):
                attention(q, k, v, bias=bias)
        else:
            close(attention(q, k, v, bias=bias), wanted)
        with pytest.raises(libattn.InvalidError, match="neither causal"):
            attention(q, k, v, bias=bias, causal=True)
        with pytest.raises(libattn.InvalidError, match="causal bias of .8, 8."):
            attention(q, k, v, bias=make_bias(8, 8))
    with pytest.raises(libattn.InvalidError, match="exclude each other"):
        la.scaled_dot_product_attention(q, k, v, bias, is_causal=True)


class Scaled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Named(torch.Tensor):
    pass


def test_only_plain_tensors(make):
    arrays = make()
    q, k, v = map(torch.from_numpy, arrays)
    wanted = reference(*arrays)[0]
    for attention in (la.attention, libattn.attention):
        for name in ("q", "k", "v", "sink", "bias"):
            given = {"q": q, "k": k, "v": v, "sink": torch.zeros(4), "bias": torch.zeros(9, 13)}
            given[name] = given[name].as_subclass(Scaled)
            with pytest.raises(TypeError, match=f"{name} is a test_torch_tensors.Scaled.*as_subclass"):
                attention(**given)
        with torch.no_grad():
            close(attention(torch.nn.Parameter(q), k.as_subclass(Named), torch.nn.Buffer(v)).as_subclass(torch.Tensor),
                  wanted)


OUTSIDE = torch.arange(64) // 20


def test_block_masks_follow_what_they_capture():
    ids, shift = torch.arange(64) // 20, 0

    def by_cell(b, h, i, j):
        return (ids[i] == ids[j]) & (i >= j - shift)

    def by_global(b, h, i, j):
        return OUTSIDE[i] == OUTSIDE[j]

    other = torch.arange(64) // 20

    def by_default(b, h, i, j, ids=other):
        return ids[i] == ids[j]

    for mod, tensor in ((by_cell, ids), (by_global, OUTSIDE), (by_default, other)):
        mask = create_block_mask(mod, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32)
        first = la.from_block_mask(mask, 64, 64)
        assert la.from_block_mask(mask, 64, 64) is first  # nothing has changed
        copied = copy.copy(mask)
        tensor[10:30] += 7
        bits = la.from_block_mask(mask, 64, 64)[1]
        assert not torch.equal(bits, first[1])
        assert torch.equal(la.from_block_mask(copied, 64, 64)[1], bits)
    mask = create_block_mask(by_cell, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32)
    before = la.from_block_mask(mask, 64, 64)[1]
    shift = -3
    assert not torch.equal(la.from_block_mask(mask, 64, 64)[1], before)


def test_block_masks_whose_parts_are_replaced():
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32)
    first = la.from_block_mask(mask, 64, 64)
    mask.mask_mod = lambda b, h, i, j: i > j
    second = la.from_block_mask(mask, 64, 64)
    assert not torch.equal(first[1], second[1])
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
    assert not la.from_block_mask(mask, 64, 64)[0].partial_count.any()
    mask.full_kv_num_blocks.zero_()
    assert not la.from_block_mask(mask, 64, 64)[0].full_count.any()


def test_what_cannot_be_known_is_not_kept():
    class Holder:
        far = 0

        def __call__(self, b, h, i, j):
            return i >= j + self.far

    held = Holder()
    mask = create_block_mask(held, 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32)
    first = la.from_block_mask(mask, 64, 64)[1]
    held.far = 3
    assert not torch.equal(la.from_block_mask(mask, 64, 64)[1], first)


def test_compiled_code_notices_what_changed(make):
    ids = torch.arange(64) // 20
    mask = create_block_mask(lambda b, h, i, j: ids[i] == ids[j], 1, 1, 64, 64, device="cpu", BLOCK_SIZE=32)
    q, k, v = map(torch.from_numpy, make(rows=64, keys=64))
    la.from_block_mask(mask, 64, 64)
    compiled = torch.compile(lambda q, k, v: la.attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    seen = ids[:, None] == ids
    close(compiled(q, k, v), reference(q, k, v, seen.numpy())[0])
    close(compiled(q, k, v), reference(q, k, v, seen.numpy())[0])
    ids[10:30] += 7
    with pytest.raises(libattn.InvalidError, match="from_block_mask"):
        compiled(q, k, v)
    la.from_block_mask(mask, 64, 64)
    close(compiled(q, k, v), reference(q, k, v, (ids[:, None] == ids).numpy())[0])
