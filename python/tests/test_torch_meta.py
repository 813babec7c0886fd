"""Every function of libattn.torch with tensors that have no values: on the meta device, and FakeTensors. Results have
the shapes, strides, types and devices of the real call's, and so have gradients."""
import inspect

import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
import test_torch_cascade  # noqa: E402
import test_torch_kv  # noqa: E402
from libattn import masks  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).requires_grad_()


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def padded(*of):
    return dict(q=leaf(2, 9, 4, 8), k=leaf(2, 13, 2, 8), v=leaf(2, 13, 2, 16), **dict(of))


def block_mask(device="cpu"):
    ids = (torch.arange(32) // 10).to(device)
    return create_block_mask(lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j), 2, None, 32, 32, device=device,
                             BLOCK_SIZE=16)


PACKED = dict(q=leaf(12, 4, 8), k=leaf(15, 2, 8), v=leaf(15, 2, 8), cu_lens_q=ints(0, 5, 12),
              cu_lens_kv=ints(0, 4, 15), max_len_q=7, max_len_kv=11)
SDPA = dict(query=leaf(2, 4, 9, 8, dtype=torch.bfloat16), key=leaf(2, 4, 13, 8, dtype=torch.bfloat16),
            value=leaf(2, 4, 13, 16, dtype=torch.bfloat16))
PARTS = dict(o=[leaf(2, 5, 4, 8), leaf(2, 5, 4, 8)], lse=[leaf(2, 4, 5), leaf(2, 4, 5)])
PACKED_PARTS = dict(o=[leaf(5, 4, 8, dtype=torch.bfloat16) for _ in range(3)], lse=[leaf(4, 5) for _ in range(3)])

CASES = {
    "attention": [
        padded(), padded(("return_lse", True), ("causal", True), ("lens_q", ints(9, 4)), ("lens_kv", ints(13, 1))),
        padded(("bias", leaf(4, 9, 13)), ("alibi", leaf(4)), ("sink", leaf(4, dtype=torch.float64))),
        padded(("dropout_p", 0.25), ("out_f32", True), ("return_lse", True)),
        padded(("dropout_p", 0.25), ("seed", torch.tensor([1, 2]))),
        padded(("mask", torch.rand(2, 1, 9, 13) > 0.3)), padded(("mask", torch.zeros(9, 13))),
        padded(("mask", masks.causal & masks.window(5))), padded(("bias", causal_lower_right(9, 13))),
        padded(("mask", masks.causal & masks.documents(ints(*[0] * 5, *[1] * 8)))),
        padded(("mask", masks.causal | masks.prefix(ints(3, 1)))),
        dict(q=leaf(2, 9, 4, 8, dtype=torch.bfloat16), k=leaf(2, 13, 4, 8, dtype=torch.bfloat16),
             v=leaf(2, 13, 4, 8, dtype=torch.bfloat16), return_lse=True, out_f32=True),
        dict(q=leaf(1, 3, 1, 4, dtype=torch.float64), k=leaf(1, 3, 1, 4, dtype=torch.float64),
             v=leaf(1, 3, 1, 4, dtype=torch.float64), return_lse=True),
        dict(q=leaf(2, 0, 4, 8), k=leaf(2, 13, 4, 8), v=leaf(2, 13, 4, 8)),
    ],
    "attention_varlen": [
        PACKED, dict(PACKED, causal=True, return_lse=True, sink=leaf(4)),
        dict(PACKED, bits=torch.full((2, 1, 7, 2), 255, dtype=torch.uint8), alibi=leaf(2, 4))],
    "attention_with_kvcache": [dict(test_torch_kv.case(name), return_lse=True) for name in test_torch_kv.CASES]
    + [dict(test_torch_kv.case("plain"), cache_seqlens=3)],
    "append_kvcache": [{name: x for name, x in test_torch_kv.case("plain").items() if name != "q" or with_q}
                       for with_q in (False, True)],
    "attention_cascade": [dict(test_torch_cascade.case(name)[0], return_lse=True) for name in test_torch_cascade.CASES],
    "scaled_dot_product_attention": [
        SDPA, dict(SDPA, is_causal=True, dropout_p=0.5), dict(SDPA, attn_mask=torch.rand(9, 13) > 0.3),
        dict(SDPA, attn_mask=leaf(4, 9, 13)), dict(SDPA, attn_mask=causal_lower_right(9, 13)),
        {name: x.detach()[0, 0].requires_grad_() for name, x in SDPA.items()},
        dict(query=leaf(3, 1, 2, 9, 8, dtype=torch.bfloat16), key=leaf(1, 5, 1, 13, 8, dtype=torch.bfloat16),
             value=leaf(1, 5, 1, 13, 16, dtype=torch.bfloat16)),
        dict(query=leaf(2, 0, 9, 8), key=leaf(2, 0, 9, 8), value=leaf(2, 0, 9, 8))],
    "pack_mask": [dict(mask=torch.rand(9, 13) > 0.5), dict(mask=torch.zeros(2, 9, 16))],
    "merge_states": [PARTS, PACKED_PARTS, dict(PACKED_PARTS, out_f32=True)],
}
ALL = [(name, i) for name in CASES for i in range(len(CASES[name]))]


def test_all_functions_are_here():
    over_ranks = {name for name in la.__all__ if name.startswith("context_parallel")}  # of no rank alone, on the CPU
    assert set(CASES) == set(la.__all__) - {"from_block_mask"} - over_ranks


def mapped(given, change):
    return tree_map(lambda x: change(x) if isinstance(x, torch.Tensor) and type(x).__name__ != "CausalBias" else x,
                    given)


def outcome(function, given):
    """What a call's results and gradients look like, and the devices they are on."""
    given = mapped(given, lambda x: x.detach().requires_grad_(x.requires_grad))
    leaves = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and x.requires_grad]
    results = function(**given)
    floats = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = torch.autograd.grad(floats, leaves, [torch.ones_like(x) for x in floats]) if leaves else ()
    tensors = [x for x in tree_leaves((results, grads)) if isinstance(x, torch.Tensor)]
    return [(x.dtype, tuple(x.shape), x.stride(), x.requires_grad) for x in tensors], {str(x.device) for x in tensors}


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_block_masks(kind):
    def look(device):
        mask, qkv = block_mask(device), [torch.empty(2, 32, 4, 8, device=device) for _ in range(3)]
        blocks, bits = la.from_block_mask(mask, 32, 32)
        tensors = (*blocks[2:], bits, la.attention(*qkv, mask=mask), la.attention(*qkv, blocks=blocks, bits=bits))
        assert {x.device.type for x in tensors} == {device}
        return [(x.dtype, tuple(x.shape), x.stride()) for x in tensors]

    wanted = look("cpu")
    if kind == "meta":
        assert look("meta") == wanted
    else:
        with FakeTensorMode():
            assert look("cpu") == wanted


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("name, i", ALL, ids=lambda x: str(x))
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_as_the_real_call(kind, name, i):
    function, given = getattr(la, name), CASES[name][i]
    wanted, where = outcome(function, mapped(given, torch.clone) if name in ("append_kvcache", "attention_with_kvcache")
                            else given)
    assert where == ({"cpu"} if wanted else set())
    if kind == "meta":
        assert outcome(function, mapped(given, lambda x: x.to("meta"))) == (wanted, {"meta"} if wanted else where)
        return
    mode = FakeTensorMode()
    fake = mapped(given, mode.from_tensor)
    # Without gradients on a GPU: a torch without CUDA has no autograd for fake tensors of one.
    plain = mapped(given, lambda x: mode.from_tensor(x.detach()))
    with mode:
        assert outcome(function, fake) == (wanted, where)
        wanted, where = outcome(function, plain)
        assert outcome(function, mapped(plain, lambda x: torch.empty_like(x, device="cuda:0"))) == (
            wanted, {"cuda:0"} if wanted else where)
