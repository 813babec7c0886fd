"""KV caches in libattn.torch on the CPU: operators that write into the cache, without autograd."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import _run, _torch_kv  # noqa: E402


@pytest.fixture(autouse=True)
def by_the_operator(monkeypatch):
    """No call finds one like it, which would go another way (test_torch_kv_again.py)."""
    monkeypatch.setattr(_run, "calls", {})


def problem(new=2, packed=False, dtype=torch.float32, device="cpu"):
    """Arguments of attention_with_kvcache: pages of 8 in no order."""
    torch.manual_seed(5)
    lead = (2 * new,) if packed else (2, new)
    shapes = {"q": (*lead, 4, 16), "k_cache": (9, 8, 2, 16), "v_cache": (9, 8, 2, 16), "k": (*lead, 2, 16),
              "v": (*lead, 2, 16)}
    given = {name: torch.randn(shape).to(dtype).to(device) for name, shape in shapes.items()}
    tables = {"cache_seqlens": torch.tensor([13, 3]), "page_table": torch.tensor([[7, 1, 4], [2, 8, 0]])}
    if packed:
        tables["cu_lens_q"] = torch.tensor([0, new, 2 * new])
        given["max_len_q"] = new
    given.update((name, table.int().to(device)) for name, table in tables.items())
    given.update(rotary_cos=torch.randn(24, 6).to(device), rotary_sin=torch.randn(24, 6).to(device),
                 rotary_interleaved=False)
    return given


CASES = {
    "plain": {}, "causal": {"causal": True, "deterministic": True}, "packed": {"packed": True, "window": (4, None)},
    "read": {"k": None, "v": None, "rotary_cos": None, "rotary_sin": None, "rotary_interleaved": None},
    "scores": {"alibi": torch.rand(4), "sink": torch.randn(4).double(), "softcap": 3.0, "out_f32": True},
    "tree": {"mask": torch.tensor([[[True, False]], [[False, True]]])[:, None].expand(2, 1, 2, 2), "bits_keys": 2,
             "rotary_positions": torch.tensor([[13, 13], [3, 3]]), "max_len_kv": 20, "visible_share": 0.5},
    "bits": {"bits": torch.randint(0, 256, (2, 4, 2, 3), dtype=torch.uint8), "prefix": torch.tensor([3, 0]).int(),
             "causal": True, "packed": True},
    "positions": {"position_q": torch.tensor([30, 9]), "position_kv": torch.tensor([20, 4]), "causal": True},
    "bf16": {"dtype": torch.bfloat16, "first_kv": torch.tensor([2, 0], dtype=torch.int32)},
}


def case(name):
    options = dict(CASES[name])
    given = problem(**{key: options.pop(key) for key in ("packed", "dtype") if key in options})
    return dict(given, **options)


def copied(given):
    return {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def direct(given):
    """What libattn.attention_with_kvcache says, and the cache after it."""
    given = copied(given)
    if "sink" in given:
        given["sink"] = given["sink"].float()
    found = libattn.attention_with_kvcache(**given, return_lse=True)
    return (*found, given["k_cache"], given["v_cache"])


def same(found, wanted):
    for ours, theirs in zip(found, wanted):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_direct_calls_take_tensors():
    given = problem()
    as_numpy = {name: x.numpy().copy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    o = libattn.attention_with_kvcache(**as_numpy)
    assert np.array_equal(direct(given)[0].numpy(), o)
    found = [torch.randn(2, 3, 4, 8).bfloat16() for _ in range(3)], [torch.randn(2, 4, 3) for _ in range(3)]
    o, lse = libattn.merge_states(*found)
    assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    weights = torch.stack(found[1]).softmax(0).transpose(-1, -2)[..., None]
    torch.testing.assert_close(o.float(), (weights * torch.stack(found[0]).float()).sum(0), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse, torch.stack(found[1]).logsumexp(0))


@pytest.mark.parametrize("name", CASES)
def test_operator_is_the_direct_call(name):
    given = case(name)
    wanted = direct(given)
    before = given["k_cache"]._version
    same((*la.attention_with_kvcache(**given, return_lse=True), given["k_cache"], given["v_cache"]), wanted)
    assert (given["k_cache"]._version > before) == (given["k"] is not None)
    with torch.inference_mode():
        same((la.attention_with_kvcache(**case(name)),), wanted)


def test_append_is_an_operator():
    given = problem()
    wanted, packed = direct(given), copied(given)
    append = {name: given[name] for name in ("k", "v", "k_cache", "v_cache", "cache_seqlens", "page_table",
                                             "rotary_cos", "rotary_sin", "rotary_interleaved")}
    q = la.append_kvcache(**append, q=given["q"])
    same((given["k_cache"], given["v_cache"]), wanted[2:])
    o = la.attention_with_kvcache(q, given["k_cache"], given["v_cache"], cache_seqlens=given["cache_seqlens"] + 2,
                                  page_table=given["page_table"])
    same((o,), wanted)
    append.update((name, packed[name].flatten(0, 1)) for name in ("k", "v"))
    append.update(k_cache=packed["k_cache"], v_cache=packed["v_cache"], cu_lens=torch.tensor([0, 2, 4]).int())
    assert la.append_kvcache(**append) is None
    same((packed["k_cache"], packed["v_cache"]), wanted[2:])


def test_one_length_for_all():
    cache = torch.randn(2, 2, 30, 2, 16)
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, 16)
    other = cache.clone()
    o = la.attention_with_kvcache(q, *cache, k, v, cache_seqlens=6)
    lens = torch.full((2,), 6, dtype=torch.int32)
    same((o, cache), (la.attention_with_kvcache(q, *other, k, v, cache_seqlens=lens), other))


def test_masks_of_tensors_and_by_name():
    from libattn.masks import causal, documents, prefix

    given, mask = problem(), torch.rand(2, 1, 2, 24) < 0.6
    bits = np.packbits(mask.numpy(), -1, bitorder="little")
    wanted = direct(dict(given, bits=torch.from_numpy(bits), causal=True))
    for options in ({"mask": mask, "causal": True}, {"mask": causal & mask},
                    {"mask": torch.where(mask, 0.0, -torch.inf), "causal": True},
                    {"mask": (causal | prefix(torch.zeros(2).int())) & mask}):
        same((la.attention_with_kvcache(**copied(given), **options),), wanted)
    for match, options in (
            ("4, 2, 24", {"mask": mask[..., :20]}), ("both given", {"mask": mask, "bits": mask}),
            ("4, 2, 9", {"mask": mask, "max_len_kv": 9}), ("list", {"mask": mask.tolist()}),
            ("documents", {"mask": documents([1])}), ("4, 2, 3", {"mask": mask, "bits_keys": 3})):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            la.attention_with_kvcache(**given, **options)


@pytest.mark.parametrize("shape", [(2, 1, 1, 24), (1, 24), (4, 1, 24), (2, 1), (2, 4, 2, 24)], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_masks_that_repeat(packed, shape):
    given, mask = problem(packed=packed), torch.rand(shape) < 0.6
    options = {"mask": mask.expand(2, 4, 2, 24).contiguous()}
    same((la.attention_with_kvcache(**copied(given), mask=mask),), direct(dict(given, **options)))


@pytest.mark.parametrize("option", ["alibi", "sink"])
def test_float64_keeps_its_options(option):
    given = {name: x for name, x in problem(dtype=torch.float64).items() if name not in CASES["read"]}  # it only reads
    given[option] = torch.rand(4, dtype=torch.float64)
    same((la.attention_with_kvcache(**copied(given)),), libattn.attention_with_kvcache(**given, return_lse=True))


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name, monkeypatch):
    calls, given = [], case(name)
    op = _torch_kv._with_op
    monkeypatch.setattr(_torch_kv, "_with_op", lambda *arguments: calls.append(arguments) or op(*arguments))
    la.attention_with_kvcache(**given)
    torch.library.opcheck(op, calls[0])


@pytest.mark.parametrize("with_q", [False, True])
def test_opcheck_of_append(with_q, monkeypatch):
    calls, given = [], problem()
    op = _torch_kv._append_op
    monkeypatch.setattr(_torch_kv, "_append_op", lambda *arguments: calls.append(arguments) or op(*arguments))
    q = given.pop("q")
    la.append_kvcache(**given, q=q if with_q else None)
    torch.library.opcheck(op, calls[0])


@pytest.mark.parametrize("name", CASES)
def test_compile_without_graph_breaks(name):
    torch.compiler.reset()  # of one function only so many graphs are kept
    given = case(name)
    wanted = direct(given)
    compiled = torch.compile(lambda given: la.attention_with_kvcache(**given) * 2, fullgraph=True, backend="aot_eager")
    same((compiled(given), given["k_cache"], given["v_cache"]), (wanted[0] * 2, *wanted[2:]))


def test_compiled_decoding_with_changing_lengths():
    """A loop of steps over views of one cache: a layer appends, attends, and the lengths grow."""
    caches = [torch.zeros(2, 2, 40, 2, 16) for _ in range(2)]
    weight = torch.randn(16, 16)

    def step(x, cache, lens):
        x = x @ weight
        o = la.attention_with_kvcache(x, cache[0], cache[1], x[:, :, :2], x[:, :, 2:], cache_seqlens=lens, causal=True)
        return o, lens + x.shape[1]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    lens = [torch.zeros(2, dtype=torch.int32) for _ in range(2)]
    for rows in (5, 1, 1, 3):
        x = torch.randn(2, rows, 4, 16)
        ours, lens[0] = compiled(x, caches[0], lens[0])
        theirs, lens[1] = step(x, caches[1], lens[1])
        same((ours, lens[0], caches[0]), (theirs, lens[1], caches[1]))


@pytest.mark.parametrize("name", ["q", "k", "v", "k_cache", "sink"])
def test_what_requires_grad_is_refused(name):
    given = problem()
    given["sink"] = torch.randn(4)
    given[name].requires_grad_()
    before = given["k_cache"].detach().clone()
    for function in (libattn.attention_with_kvcache, la.attention_with_kvcache):
        with pytest.raises(libattn.InvalidError, match=f"{name} requires grad"):
            function(**given)
    assert torch.equal(given["k_cache"].detach(), before)
    if name != "k_cache":
        with torch.no_grad():
            assert not la.attention_with_kvcache(**given).requires_grad
    with pytest.raises(libattn.InvalidError, match=r"o\[0\] requires grad"):
        libattn.merge_states([torch.randn(1, 2, 3, 4).requires_grad_()], [torch.randn(1, 3, 2)])


def test_mistakes_raise_with_the_message_of_c():
    given = problem()
    before = given["k_cache"].clone()
    for match, wrong in (
            (r"cache_seqlens\[0\] is 23: with 2 new more than", {"cache_seqlens": torch.tensor([23, 0], dtype=torch.int32)}),
            ("positions of rotary_cos", {"rotary_cos": given["rotary_cos"][:5], "rotary_sin": given["rotary_sin"][:5]}),
            ("page", {"page_table": given["page_table"] + 4}), ("rotary_interleaved", {"rotary_interleaved": None}),
            ("max_len_q", {"cu_lens_q": torch.tensor([0, 2, 4]).int()}), ("fault", {"fault": torch.zeros(1).int()}),
            ("q is torch.float16|where it takes", {"q": given["q"].half()})):
        with pytest.raises(libattn.InvalidError, match=match):
            la.attention_with_kvcache(**dict(given, **wrong))
        assert torch.equal(given["k_cache"], before)
    with pytest.raises(ValueError, match="meta"):
        libattn.attention_with_kvcache(**dict(given, q=given["q"].to("meta")))
    with pytest.raises(TypeError, match="strided"):
        libattn.attention_with_kvcache(**dict(given, k=given["k"].to_sparse()))


@pytest.mark.parametrize("lens", ([13, 3], 1.5, True, None, "13", np.array([13, 3]), 2**40))
def test_lengths_that_are_neither_an_integer_nor_a_tensor(lens):
    given = problem()
    given["cache_seqlens"] = lens
    before = given["k_cache"].clone()
    with pytest.raises(libattn.InvalidError, match="cache_seqlens is .* it takes an integer"):
        la.attention_with_kvcache(**given)
    with pytest.raises(libattn.InvalidError, match="cache_seqlens is .* it takes an integer"):
        la.append_kvcache(**{name: given[name] for name in ("k", "v", "k_cache", "v_cache", "cache_seqlens", "page_table")})
    assert torch.equal(before, given["k_cache"])


@pytest.mark.parametrize("name", ["q", "k", "k_cache", "cache_seqlens", "page_table"])
def test_a_tensor_on_meta_beside_others(name):
    """The dispatcher would choose meta's kernel, which computes nothing."""
    given = case("causal")
    given[name] = given[name].to("meta")
    before = copied(given)
    with pytest.raises(libattn.InvalidError, match=f"{name} is on meta"):
        la.attention_with_kvcache(**given)
    append = {key: given[key] for key in ("k", "v", "k_cache", "v_cache", "cache_seqlens", "page_table")}
    if name != "q":
        with pytest.raises(libattn.InvalidError, match=f"{name} is on meta"):
            la.append_kvcache(**append)
    assert torch.equal(given["v_cache"], before["v_cache"])


def test_forward_mode_is_refused():
    given = case("read")
    attend = lambda q: la.attention_with_kvcache(**dict(given, q=q))  # noqa: E731
    with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
        torch.func.jvp(attend, (given["q"],), (torch.ones_like(given["q"]),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given["q"], torch.ones_like(given["q"]))
        with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
            attend(dual)
