"""libattn.torch on the CPU: operators, autograd, compile, autocast, checkpointing, and the SDPA-shaped function."""
import gc
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402

OP = torch.ops.libattn.forward.default


def tensors(batch=2, rows=9, keys=13, heads_q=4, heads_kv=2, dim=16, grad=False, dtype=torch.float32):
    torch.manual_seed(3)
    shapes = (batch, rows, heads_q, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim)
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def eager(q, k, v, seen=None, bias=None, alibi=None, sink=None):
    """The definition in double precision, which autograd follows; returns (o, lse)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    t = torch.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2]
    if alibi is not None:
        s = s - alibi.double()[:, None, None] * (t - torch.arange(s.shape[3])).abs()
    if bias is not None:
        s = s + bias.double()
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    whole = s if sink is None else torch.cat([s, sink.double()[:, None, None].expand(*s.shape[:3], 1)], -1)
    lse = whole.logsumexp(-1)
    return ((s - lse[..., None]).exp() @ v).transpose(1, 2), lse


def causal(rows, keys):
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


def close(found, wanted, tolerance=2e-5):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def test_direct_call_on_tensors():
    q, k, v = tensors(dtype=torch.bfloat16)
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    wanted = eager(q, k, v, causal(9, 13))
    close(o, wanted[0], 2e-2)
    close(lse, wanted[1], 1e-3)
    f32 = tensors()
    assert np.array_equal(libattn.attention(*(x.numpy() for x in f32)), libattn.attention(*f32).numpy())
    out = torch.empty_like(f32[0])
    assert libattn.attention(*f32, out=out) is out
    with pytest.raises(libattn.InvalidError, match="o requires grad"):
        libattn.attention(*f32, out=torch.empty_like(f32[0]).requires_grad_())


def test_direct_call_refuses_what_needs_autograd():
    q, k, v = tensors(grad=True)
    with pytest.raises(libattn.InvalidError, match="q requires grad"):
        libattn.attention(q, k, v)
    with torch.no_grad():
        libattn.attention(q, k, v)


def test_gradients_of_everything():
    q, k, v = tensors(grad=True)
    bias = torch.randn(1, 4, 1, 13, requires_grad=True)
    alibi = torch.rand(4, requires_grad=True)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    inputs = q, k, v, bias, alibi, sink
    options = {"bias": bias, "alibi": alibi, "sink": sink}
    o, lse = la.attention(q, k, v, causal=True, return_lse=True, **options)
    wanted_o, wanted_lse = eager(q, k, v, causal(9, 13), **options)
    close(o, wanted_o)
    close(lse, wanted_lse)
    weight, weight_lse = torch.randn_like(o), torch.randn_like(lse)
    found = torch.autograd.grad((o * weight).sum() + (lse * weight_lse).sum(), inputs)
    wanted = torch.autograd.grad((wanted_o * weight).sum() + (wanted_lse * weight_lse).sum(), inputs)
    for ours, theirs in zip(found, wanted):
        assert ours.dtype == theirs.dtype
        close(ours, theirs, 1e-4)
    only = torch.autograd.grad(la.attention(q, k, v, causal=True, return_lse=True, **options)[1].sum(), (k, sink))
    close(only[1], torch.autograd.grad(eager(q, k, v, causal(9, 13), **options)[1].sum(), sink)[0], 1e-4)


def test_gradients_that_are_expanded_or_transposed():
    q, k, v = tensors(grad=True)
    found = torch.autograd.grad(la.attention(q, k, v).sum(), (q, k, v))
    for ours, theirs in zip(found, torch.autograd.grad(eager(q, k, v)[0].sum(), (q, k, v))):
        close(ours, theirs, 1e-4)
    found = torch.autograd.grad((la.attention(q, k, v).transpose(-1, -2).contiguous() ** 2).sum(), (q, k, v))
    for ours, theirs in zip(found, torch.autograd.grad((eager(q, k, v)[0] ** 2).sum(), (q, k, v))):
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("options", [
    {"causal": True}, {"window": (2, 1), "softcap": 2.0}, {"lens_q": torch.tensor([3, 2], dtype=torch.int32)},
    {"mask": torch.rand(2, 1, 3, 5) < 0.6}, {"dropout_p": 0.3, "seed": torch.tensor([1, 2])},
], ids=lambda options: "-".join(options))
def test_gradcheck(options):
    inputs = [x.double().requires_grad_() for x in (
        *(x.detach() for x in tensors(2, 3, 5, 2, 1, 3)), torch.randn(2, 1, 5), torch.rand(2), torch.randn(2))]

    def function(q, k, v, bias, alibi, sink):
        o, lse = la.attention(q, k, v, bias=bias, alibi=alibi, sink=sink, return_lse=True, **options)
        return o, lse.masked_fill(lse == -torch.inf, 0)  # rows beyond lens_q

    assert torch.autograd.gradcheck(function, inputs)


def test_gradcheck_varlen():
    q, k, v = (x[0].detach().double().requires_grad_() for x in tensors(1, 5, 6, 2, 1, 3))
    cu_q, cu_kv = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 3, 6], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda *x: la.attention_varlen(*x, cu_q, cu_kv, 3, 3, causal=True), (q, k, v))


def test_second_gradients_are_refused():
    q, k, v = tensors(grad=True)
    first = torch.autograd.grad(la.attention(q, k, v).sum(), q, create_graph=True)[0]
    close(first, torch.autograd.grad(eager(q, k, v)[0].sum(), q)[0], 1e-4)
    with pytest.raises(libattn.UnsupportedError, match="create_graph"):
        first.sum().backward()


def test_padded_rows_are_zero():
    q, k, v = tensors(grad=True)
    lens_q, lens_kv = torch.tensor([4, 9], dtype=torch.int32), torch.tensor([13, 5], dtype=torch.int32)
    o = la.attention(q, k, v, lens_q=lens_q, lens_kv=lens_kv)
    assert torch.all(o[0, 4:] == 0)
    close(o[1:], eager(q[1:], k[1:, :5], v[1:, :5])[0])
    o.sum().backward()
    assert torch.all(q.grad[0, 4:] == 0) and torch.all(k.grad[1, 5:] == 0) and torch.all(v.grad[1, 5:] == 0)
    assert v.grad[1, :5].abs().sum() > 0


def test_varlen():
    q, k, v = (x[0] for x in tensors(1, grad=True))
    cu_q, cu_kv = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
    o, lse = la.attention_varlen(q, k, v, cu_q, cu_kv, 5, 7, causal=True, return_lse=True)
    parts = [eager(q[None, a:b], k[None, c:d], v[None, c:d], causal(b - a, d - c))
             for a, b, c, d in ((0, 4, 0, 6), (4, 9, 6, 13))]
    wanted = torch.cat([part[0][0] for part in parts])
    close(o, wanted)
    close(lse, torch.cat([part[1][0] for part in parts], -1))
    for ours, theirs in zip(torch.autograd.grad(o.sum(), (q, k, v)), torch.autograd.grad(wanted.sum(), (q, k, v))):
        close(ours, theirs, 1e-4)


CASES = {
    "plain": {},
    "causal": {"causal": True, "deterministic": True},
    "window": {"window": (3, None), "scale": 0.3},
    "scores": {"alibi": torch.rand(4), "sink": torch.randn(4), "bias": torch.randn(4, 9, 13, requires_grad=True)},
    "mask": {"mask": torch.rand(2, 1, 9, 13) < 0.5},
    "lens": {"lens_kv": torch.tensor([3, 13], dtype=torch.int32), "softcap": 3.0},
    "dropout": {"dropout_p": 0.3, "seed": torch.tensor([-5, 2])},
}


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name, monkeypatch):
    calls = []
    monkeypatch.setattr(la, "forward_of", lambda _: lambda *arguments: calls.append(arguments) or OP(*arguments))
    la.attention(*tensors(grad=True), **CASES[name])
    torch.library.opcheck(OP, calls[0])


def test_opcheck_varlen(monkeypatch):
    calls = []
    monkeypatch.setattr(la, "forward_of", lambda _: lambda *arguments: calls.append(arguments) or OP(*arguments))
    q, k, v = (x[0].detach().requires_grad_() for x in tensors(1))
    cu_q, cu_kv = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
    la.attention_varlen(q, k, v, cu_q, cu_kv, 5, 7)
    torch.library.opcheck(OP, calls[0])


@pytest.mark.parametrize("name", CASES)
def test_compile_without_graph_breaks(name):
    options = CASES[name]
    compiled = torch.compile(lambda q, k, v: la.attention(q, k, v, **options) * 2, fullgraph=True, backend="aot_eager")
    inputs = tensors(grad=True)
    o = compiled(*inputs)
    wanted = la.attention(*inputs, **options) * 2
    assert torch.equal(o, wanted)
    for ours, theirs in zip(torch.autograd.grad(o.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs)):
        close(ours, theirs)


def test_compiled_sdpa_with_changing_lengths():
    compiled = torch.compile(lambda q, k, v: la.scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True,
                             backend="aot_eager", dynamic=True)
    for rows, keys in ((5, 5), (8, 8), (11, 11)):
        q, k, v = (x.transpose(1, 2) for x in tensors(1, rows, keys, 2, 2))
        close(compiled(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_autocast_casts_q_k_v_only():
    q, k, v = tensors()
    bias = torch.randn(9, 13)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = la.attention(q, k, v, bias=bias)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, la.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias=bias))


def test_checkpointing_draws_the_same_dropout():
    q, k, v = tensors(grad=True)
    torch.manual_seed(11)
    wanted = torch.autograd.grad(la.attention(q, k, v, dropout_p=0.5).sum(), q)[0]
    torch.manual_seed(11)
    o = torch.utils.checkpoint.checkpoint(lambda *x: la.attention(*x, dropout_p=0.5), q, k, v, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(o.sum(), q)[0], wanted)
    assert not torch.equal(torch.autograd.grad(la.attention(q, k, v, dropout_p=0.5).sum(), q)[0], wanted)


def test_deterministic_mode_is_honoured(monkeypatch):
    seen = []
    run = libattn._run.run_typed
    monkeypatch.setattr(libattn._run, "run_typed", lambda *arguments: seen.append(arguments[2][7]) or run(*arguments))
    q, k, v = tensors()
    libattn._run.clear_plans()
    for watched in (True, False):  # by the operator, and past the dispatcher
        q.requires_grad_(watched)
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                la.attention(q, k, v)
            finally:
                torch.use_deterministic_algorithms(False)
    assert seen == [False, True]
    assert [key[1][7] for key in libattn._run.calls if key[0] == "step"] == [False, True]


@pytest.mark.parametrize("rows, keys", [(9, 9), (5, 9), (9, 5)])
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float", "broadcast", "gqa"])
def test_sdpa(kind, rows, keys):
    heads_kv = 2 if kind == "gqa" else 4
    inputs = [x.detach().transpose(1, 2).requires_grad_() for x in tensors(2, rows, keys, 4, heads_kv)]
    options = {"plain": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": torch.rand(2, 1, rows, keys) < 0.7},
               "float": {"attn_mask": torch.randn(4, rows, keys).requires_grad_()},
               "broadcast": {"attn_mask": torch.arange(keys)[None, :] < keys - 1},
               "gqa": {"enable_gqa": True, "is_causal": True, "scale": 0.5}}[kind]
    if kind == "bool":
        options["attn_mask"][..., 0] = True
    wanted = F.scaled_dot_product_attention(*inputs, **options)
    found = la.scaled_dot_product_attention(*inputs, **options)
    assert found.shape == wanted.shape
    close(found, wanted)
    if kind == "float":
        inputs.append(options["attn_mask"])
    weight = torch.randn_like(wanted)
    for ours, theirs in zip(torch.autograd.grad((found * weight).sum(), inputs),
                            torch.autograd.grad((wanted * weight).sum(), inputs)):
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.bool}, {"attn_mask": torch.float32}],
                         ids=str)
def test_empty_shapes_as_torch_takes_them(options):
    """Batches, heads, rows, keys or dims of values that are 0: results and gradients of torch's shapes, all 0. (Some
    versions of torch end the process where heads are 0: nothing is computed beside it.)"""
    for batch, heads, rows, keys, dim_v in ((0, 2, 3, 4, 8), (2, 0, 3, 4, 8), (2, 2, 0, 4, 8), (2, 2, 3, 0, 8),
                                            (2, 2, 3, 4, 0), (0, 0, 0, 0, 8), (0, 2, 0, 0, 8), (2, 1, 0, 0, 6)):
        given = dict(options)
        if "attn_mask" in given:
            given["attn_mask"] = torch.ones(rows, keys, dtype=given["attn_mask"])
        inputs = [torch.ones(batch, heads, *shape, requires_grad=True) for shape in ((rows, 8), (keys, 8),
                                                                                     (keys, dim_v))]
        o = la.scaled_dot_product_attention(*inputs, **given)
        o.sum().backward()
        assert o.shape == (batch, heads, rows, dim_v) and not o.any()
        assert all(x.grad.shape == x.shape and not x.grad.any() for x in inputs)
        if heads and dim_v and "attn_mask" not in given:
            inputs = [x.transpose(1, 2).detach().requires_grad_() for x in inputs]
            o, lse = la.attention(*inputs, causal="is_causal" in given, return_lse=True)
            (o.sum() + lse.exp().sum()).backward()
            assert not any(x.any() for x in (o, *(x.grad for x in inputs)))


def test_sdpa_of_other_dimensions():
    for lead in ((), (3,), (2, 3), (2, 3, 4)):
        q, k, v = torch.randn(*lead, 6, 8), torch.randn(*lead, 7, 8), torch.randn(*lead, 7, 8)
        mask = torch.rand(*lead, 6, 7) < 0.8
        mask[..., 0] = True
        close(la.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
        close(la.scaled_dot_product_attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask))
    flat = torch.randn(2, 4, 8, 6).mT  # a stride of more than 1 in dim
    close(la.scaled_dot_product_attention(flat, flat, flat), F.scaled_dot_product_attention(flat, flat, flat))


@pytest.mark.parametrize("change, words", [
    (lambda q, k, v: (q, k[..., :7], v), r"query has shape \(2, 4, 9, 16\), key \(2, 4, 13, 7\) .*last dimensions"),
    (lambda q, k, v: (q, k[:, :, :5], v), r"key \(2, 4, 5, 16\) and value \(2, 4, 13, 16\): heads and rows"),
    (lambda q, k, v: (q, k, v[:, :2]), r"value \(2, 2, 13, 16\): heads and rows of key and value"),
    (lambda q, k, v: (q, k[:, :3], v[:, :3]), r"key \(2, 3, 13, 16\) .*heads of query must be a multiple"),
    (lambda q, k, v: (q, k[:1].expand(3, -1, -1, -1), v), r"key \(3, 4, 13, 16\) .*must broadcast"),
    (lambda q, k, v: (q, k[:, :0], v), r"key has shape \(2, 0, 13, 16\): heads and dim"),
    (lambda q, k, v: (q, k, v.half()), "value is torch.float16, where it takes torch.float32, as query is"),
])
def test_sdpa_refuses_in_the_callers_names(change, words):
    q, k, v = change(*(x.transpose(1, 2) for x in tensors(heads_kv=4)))
    with pytest.raises(libattn.InvalidError, match=words):
        la.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_sdpa_falls_back_on_request_with_one_warning():
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    with pytest.raises(libattn.UnsupportedError, match="float64"):
        la.scaled_dot_product_attention(q, q, q)
    la._warned = False
    with pytest.warns(UserWarning, match="float64"):
        found = la.scaled_dot_product_attention(q, q, q, fallback="sdpa")
    assert torch.equal(found, F.scaled_dot_product_attention(q, q, q))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la.scaled_dot_product_attention(q, q, q, fallback="sdpa")


def test_mistakes_raise():
    q, k, v = (x.transpose(1, 2) for x in tensors())
    for match, options, inputs in (
            ("enable_gqa", {}, (q, k, v)), ("same number", {}, (q, k[0], v)),
            ("fallback", {"fallback": "math"}, (q, k, v)),
            ("exclude each other", {"is_causal": True, "attn_mask": torch.ones(9, 13) > 0}, (q, k, v))):
        with pytest.raises(libattn.InvalidError, match=match):
            la.scaled_dot_product_attention(*inputs, **options)
    q, k, v = tensors()
    with pytest.raises(libattn.InvalidError, match="mask is torch.int64"):
        la.attention(q, k, v, mask=torch.zeros(9, 13, dtype=torch.int64))
    with pytest.raises(libattn.InvalidError, match="here .2, 4, 9, 13"):
        la.attention(q, k, v, mask=torch.ones(9, 12) > 0)
    with pytest.raises(libattn.InvalidError, match="lens_kv"):
        la.attention(q, k, v, lens_kv=torch.tensor([1, 99], dtype=torch.int32))
    with pytest.raises(libattn.InvalidError, match="seed is"):
        la.attention(q, k, v, dropout_p=0.5, seed=torch.zeros(3))
    with pytest.raises(libattn.InvalidError, match=r"k: .*torch's \.contiguous\(\)"):
        la.attention(q, k.mT.contiguous().mT, v)
    with pytest.raises((TypeError, NotImplementedError)):
        la.attention(q.to_sparse(), k, v)
    with pytest.raises(ValueError, match="meta"):
        libattn.attention(*(x.to("meta") for x in (q, k, v)))


def test_inputs_may_be_freed_before_the_backward():
    q, k, v = tensors(grad=True)
    o = la.attention(q * 1, k * 1, v * 1)
    gc.collect()
    o.sum().backward()
    for ours, theirs in zip((q, k, v), torch.autograd.grad(eager(q, k, v)[0].sum(), (q, k, v))):
        close(ours.grad, theirs, 1e-4)


# ---- what would be silently wrong ------------------------------------------------------------------


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def test_freed_memory_is_refused():
    q, k, v = tensors(heads_kv=4)
    for call in (libattn.attention, la.attention):
        with pytest.raises(libattn.InvalidError, match="k has no memory"):
            call(q, freed(k.clone()), v)
    with pytest.raises(libattn.InvalidError, match="out has no memory"):
        libattn.attention(q, k, v, out=freed(q.clone()))
    with pytest.raises(libattn.InvalidError, match="v_cache has no memory"):
        la.append_kvcache(k, v, k.clone(), freed(v.clone()), cache_seqlens=0)


def test_negating_views_are_refused_also_with_a_plan_at_hand():
    q, k, v = tensors(heads_kv=4)
    libattn.attention(q, k, v)
    with pytest.raises(TypeError, match="resolve_neg"):
        libattn.attention(q, k, torch._neg_view(v))


def test_forward_mode_is_refused():
    q, k, v = tensors(heads_kv=4)
    with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
        torch.func.jvp(lambda x: la.attention(x, k, v), (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
            la.attention(q, torch.autograd.forward_ad.make_dual(k, k), v)
        assert la.attention(q, k, v).shape == q.shape


def test_autocast_leaves_float64():
    q, k, v = tensors(dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert la.attention(q, k, v).dtype == torch.float64
        assert la.scaled_dot_product_attention(*(x.float().transpose(1, 2) for x in (q, k, v)),
                                               enable_gqa=True).dtype == torch.bfloat16


def test_tensors_elsewhere_or_of_no_torch():
    q, k, v = tensors(heads_kv=4)
    away = torch.empty_like(k, device="meta")
    for call, error, says in (
            (lambda: la.attention(q, away, v), libattn.InvalidError, "k is on meta and q on cpu"),
            (lambda: la.attention(q, k, v, bias=away), libattn.InvalidError, "bias is on meta"),
            (lambda: la.scaled_dot_product_attention(q, away, v), libattn.InvalidError, "key is on meta and query"),
            (lambda: la.attention(q.numpy(), k, v), TypeError, "q is ndarray"),
            (lambda: la.scaled_dot_product_attention(q, k, v.numpy()), TypeError, "value is ndarray"),
            (lambda: la.attention(q, k, v, lens_kv=[3, 4]), TypeError, "lens_kv is list"),
            (lambda: la.attention(q, k, v, lens_kv=away), libattn.InvalidError, "lens_kv is on meta and q on cpu"),
            (lambda: la.attention(q, k, v, alibi=[1.0] * 4), TypeError, "alibi is list"),
            (lambda: la.attention(q, k.to_sparse(), v), TypeError, "k: a tensor of layout torch.sparse_coo; it takes"),
            (lambda: la.scaled_dot_product_attention(q, k, v.to_mkldnn()), TypeError, "value: a tensor of layout"),
            (lambda: libattn.attention(q, k.to_sparse(), v), TypeError, "k: a tensor of layout torch.sparse_coo"),
            (lambda: libattn.attention(away, away, away), libattn.InvalidError, "q is on meta; it takes"),
            (lambda: la.attention_varlen(q[0], k[0], v[0], torch.zeros(1, 2).int(), torch.zeros(2).int(), 9, 9),
             libattn.InvalidError, r"cu_lens_q has shape \(1, 2\); it takes \(batch \+ 1\)"),
            (lambda: la.attention_varlen(q[0], k[0], v[0], torch.zeros(2).int(), torch.zeros(2).int(), -3, 9),
             libattn.InvalidError, "max_len_q is -3; it takes an integer from 0"),
            (lambda: la.scaled_dot_product_attention(q, q, q, torch.ones(9, 9).to(torch.float8_e5m2)),
             libattn.InvalidError, "attn_mask is torch.float8_e5m2; it takes"),
            (lambda: la.attention(q, k, v, dropout_p=0.5, seed=3), TypeError, "seed is int"),
            (lambda: la.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.int32)),
             libattn.InvalidError, "attn_mask is torch.int32")):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize("shapes, mask", [
    (((2, 3, 4, 9, 16),) * 3, (3, 4, 9, 9)), (((2, 3, 4, 9, 16),) * 3, (2, 1, 1, 9, 9)),
    (((2, 4, 9, 16), (2, 1, 7, 16), (2, 1, 7, 16)), None), (((2, 4, 9, 16), (1, 4, 7, 16), (1, 4, 7, 16)), None),
    (((1, 4, 9, 16), (3, 4, 7, 16), (3, 4, 7, 16)), (3, 1, 9, 7))], ids=str)
def test_sdpa_broadcasts(shapes, mask):
    torch.manual_seed(4)
    q, k, v = (torch.randn(shape) for shape in shapes)
    mask = None if mask is None else torch.randn(mask)
    for given in (mask, None if mask is None else mask > -1):
        ours, theirs = (f(q, k, v, given) for f in (la.scaled_dot_product_attention, F.scaled_dot_product_attention))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
