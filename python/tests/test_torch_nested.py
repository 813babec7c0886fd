"""Jagged nested tensors: as each sequence by itself, and as torch's own attention."""
import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import masks  # noqa: E402
from torch.nested import nested_tensor_from_jagged  # noqa: E402

OFFSETS, OTHERS = torch.tensor([0, 3, 3, 12, 20]), torch.tensor([0, 5, 6, 15, 16])


def jagged(offsets, heads, dim, dtype=torch.float32, **given):
    """(batch, j, heads, dim), and the rows that it is of."""
    rows = torch.randn(offsets[-1], heads, dim, dtype=dtype, requires_grad=True)
    return nested_tensor_from_jagged(rows, offsets, **given), rows


def problem(offsets=OFFSETS, others=None, heads=4, heads_kv=2, **given):
    torch.manual_seed(2)
    others = offsets if others is None else others
    return zip(*(jagged(o, h, d, **given) for o, h, d in ((offsets, heads, 8), (others, heads_kv, 8),
                                                          (others, heads_kv, 16))))


def one_by_one(rows, offsets, others, function):
    """function of each sequence, (1, row, head, dim), after one another."""
    parts = [[x[a:b][None] for a, b in zip(bounds, bounds[1:])] for x, bounds in zip(rows, (offsets, others, others))]
    return [function(*part, i) for i, part in enumerate(zip(*parts))]


@pytest.mark.parametrize("others", [None, OTHERS], ids=["same", "others"])
@pytest.mark.parametrize("options", [
    {}, {"causal": True, "scale": 0.3}, {"window": (2, 1)}, {"chunk": 4, "softcap": 2.0},
    {"causal": True, "prefix": torch.tensor([1, 0, 4, 1]).int()}, {"mask": masks.causal & masks.window(2)},
    {"alibi": torch.rand(4, 4), "sink": torch.randn(4)}], ids=lambda x: "-".join(x) or "plain")
def test_attention(options, others):
    (q, k, v), rows = problem(others=others)
    o, lse = la.attention(q, k, v, return_lse=True, **options)
    assert o.layout == torch.jagged and o.shape == (*q.shape[:3], 16)
    assert lse.shape == (q.shape[0], 4, q.shape[1]) and la.attention(q, k, v, **options).shape == o.shape

    def alone(q, k, v, i):
        of_one = {name: x[i:i + 1] if name in ("prefix", "alibi") else x for name, x in options.items()}
        return la.attention(q, k, v, return_lse=True, **of_one)

    wanted = one_by_one(rows, OFFSETS, OFFSETS if others is None else others, alone)
    wanted_o = torch.cat([x[0][0] for x in wanted])
    torch.testing.assert_close(o.values(), wanted_o)
    torch.testing.assert_close(lse.values(), torch.cat([x[1][0] for x in wanted], -1))
    weights = torch.randn(20, 4, 16)
    grads, wanted = (torch.autograd.grad((x * weights).sum(), rows) for x in (o.values(), wanted_o))
    for grad, of_each in zip(grads, wanted):
        torch.testing.assert_close(grad, of_each)


@pytest.mark.parametrize("by_transpose", [True, False])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}], ids=str)
def test_sdpa_as_torch(options, by_transpose):
    (q, k, v), rows = problem(heads_kv=4)
    if by_transpose:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    else:
        q, k, v = (nested_tensor_from_jagged(x.transpose(0, 1).contiguous(), OFFSETS, jagged_dim=2) for x in rows)
    o = la.scaled_dot_product_attention(q, k, v, **options)
    wanted = torch.cat([torch.nn.functional.scaled_dot_product_attention(
        *(x[:, a:b][None] for x in (q.values(), k.values(), v.values())), **options)[0]
        for a, b in zip(OFFSETS, OFFSETS[1:])], 1)
    assert o.layout == torch.jagged and o.shape == (*q.shape[:3], 16)
    torch.testing.assert_close(o.values(), wanted)
    weights = torch.randn(4, 20, 16)
    grads, of_each = (torch.autograd.grad((x * weights).sum(), rows) for x in (o.values(), wanted))
    for grad, alone in zip(grads, of_each):
        torch.testing.assert_close(grad, alone)


def test_sdpa_as_torchs_on_nested_tensors():
    sizes = torch.tensor([0, 3, 7, 12])  # torch's takes no empty sequence
    torch.manual_seed(1)
    q, k, v = (jagged(sizes, 4, 8)[0].transpose(1, 2) for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    o = la.scaled_dot_product_attention(q, k, v)
    assert o.shape == wanted.shape
    torch.testing.assert_close(o.transpose(1, 2).values(), wanted.transpose(1, 2).values())
    (o + q).sum().backward()  # of one structure: nested tensors add


def test_other_calls():
    (q, k, v), _ = problem(others=OTHERS)
    o = la.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True)
    torch.testing.assert_close(o.transpose(1, 2).values(), la.attention(q, k, v).values())
    seed = torch.tensor([1, 2])
    one, two = (la.attention(q, k, v, dropout_p=0.5, seed=seed).values() for _ in range(2))
    assert torch.equal(one, two)
    with torch.autocast("cpu"):
        assert la.attention(q, k, v).dtype == torch.bfloat16
    (q, k, v), _ = problem(dtype=torch.float64, heads_kv=4)
    q, k, v = (x.detach().transpose(1, 2) for x in (q, k, v))
    with pytest.raises(libattn.UnsupportedError, match="float64"):
        la.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("where", ["meta", "compiled"])
def test_without_values(where):
    (q, k, v), _ = problem(min_seqlen=0, max_seqlen=9) if where == "compiled" else problem()
    if where == "meta":
        q, k, v = (nested_tensor_from_jagged(x.values().to("meta"), o) for o, x in zip(
            [OFFSETS.to("meta")] + [OTHERS.to("meta")] * 2, (q, k, v)))
        o = la.attention(q, k, v, causal=True)
        assert o.device.type == "meta" and o.shape == (*q.shape[:3], 16)
        return
    compiled = torch.compile(lambda q, k, v: la.attention(q, k, v, causal=True) * 2, fullgraph=True,
                             backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v).values(), la.attention(q, k, v, causal=True).values() * 2)


def test_refusals():
    (q, k, v), _ = problem()
    dense = torch.zeros(4, 9, 4, 8)
    tables = {"lens_q": torch.zeros(4).int(), "lens_kv": torch.zeros(4).int(), "bias": torch.zeros(9, 9),
              "mask": torch.ones(9, 9, dtype=torch.bool), "bits": torch.zeros(1), "intervals": torch.zeros(1),
              "blocks": libattn.Blocks(8, 8)}
    for name, table in tables.items():
        with pytest.raises(libattn.InvalidError, match=f"^{name} is given, and does not go with nested"):
            la.attention(q, k, v, **{name: table})
    with pytest.raises(libattn.InvalidError, match="^mask is given"):
        la.attention(q, k, v, mask=masks.causal & masks.documents([0, 1]))
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    with pytest.raises(libattn.InvalidError, match="^attn_mask is given"):
        la.scaled_dot_product_attention(*heads, torch.zeros(9, 9))
    with pytest.raises(libattn.InvalidError, match="4 heads and key 2: enable_gqa"):
        la.scaled_dot_product_attention(*heads)
    own = nested_tensor_from_jagged(k.values(), OFFSETS.clone()), nested_tensor_from_jagged(v.values(), OTHERS + 0)
    with pytest.raises(libattn.InvalidError, match="k and v have offsets of their own"):
        la.attention(q, k, own[1])
    with pytest.raises(libattn.InvalidError, match="is_causal is True, and query and key have offsets"):
        la.scaled_dot_product_attention(heads[0], own[0].transpose(1, 2), nested_tensor_from_jagged(
            v.values(), own[0].offsets()).transpose(1, 2), is_causal=True, enable_gqa=True)
    with pytest.raises(libattn.InvalidError, match="^k is no nested tensor"):
        la.attention(q, dense, dense)
    with pytest.raises(libattn.InvalidError, match="^q is no nested tensor"):
        la.attention(dense, k, v)
    with pytest.raises(libattn.InvalidError, match="^q is a nested tensor of 4 dimensions, jagged in number 2"):
        la.attention(*heads)
    with pytest.raises(libattn.InvalidError, match="^query is a nested tensor of 4 dimensions, jagged in number 1"):
        la.scaled_dot_product_attention(q, k, v)
    with pytest.raises(libattn.InvalidError, match="^q, k, v have 4, 3 and 3 sequences"):
        short = torch.tensor([0, 5, 9, 20])
        la.attention(q, *(nested_tensor_from_jagged(x.values(), short) for x in (k, v)))
    holes = torch.nested.narrow(torch.zeros(3, 9, 4, 8), 1, torch.tensor([1, 2, 0]), torch.tensor([2, 3, 4]),
                                layout=torch.jagged)
    with pytest.raises(libattn.InvalidError, match="^q is a nested tensor with gaps"):
        la.attention(holes, holes, holes)
    la.attention(*[holes.contiguous()] * 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_refused_everywhere_else():
    strided = torch.nested.nested_tensor([torch.zeros(3, 4, 8), torch.zeros(5, 4, 8)], layout=torch.strided)
    for function in (la.attention, la.scaled_dot_product_attention):
        with pytest.raises(libattn.InvalidError, match="is a nested tensor of layout torch.strided"):
            function(strided, strided, strided)
    (q, k, v), _ = problem(heads_kv=4)
    q, k, v = (x.detach() for x in (q, k, v))
    dense, cache, lens = torch.zeros(4, 9, 4, 8), torch.zeros(4, 9, 4, 8), torch.zeros(5).int()
    calls = {
        "q": [lambda: la.attention_varlen(q, k, v, lens, lens, 1, 1),
              lambda: la.attention_with_kvcache(q, cache, cache, cache_seqlens=3),
              lambda: la.attention_cascade(q, cache, cache, [(lens, lens[1:], lens[1:, None])] * 2, max_len_q=1),
              lambda: libattn.attention(q, k, v), lambda: libattn.attention(strided, strided, strided)],
        "k": [lambda: la.append_kvcache(k, v, cache, cache, cache_seqlens=0)],
        "mask": [lambda: la.pack_mask(q)],
        "sink": [lambda: la.attention(dense, dense, dense, sink=q)],
        "bias": [lambda: la.attention(dense, dense, dense, bias=q)],
    }
    calls["o.0."] = [lambda: la.merge_states([q, q], [dense, dense])]
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(libattn.InvalidError, match=f"^{name} is a nested tensor"):
                function()
