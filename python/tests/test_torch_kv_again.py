"""Calls of attention to a cache that are like one before: they go past the dispatcher, write and give the same; what is
not like it, or fails, still goes by the operator and its words."""
import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import _torch_kv  # noqa: E402

from test_torch_kv import CASES, case, copied, direct  # noqa: E402


@pytest.fixture
def no_operator(monkeypatch):
    """Called, it lets no call go by the operator from then on."""
    def refuse(*arguments):
        raise AssertionError("the operator was called")
    return lambda: monkeypatch.setattr(_torch_kv, "_with_op", refuse)


def others(given):
    """Arguments of the same kinds, other values, in other places."""
    torch.manual_seed(8)
    return {name: torch.randn(x.shape).to(x.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for name, x in copied(given).items()}


@pytest.mark.parametrize("name", [name for name in CASES if "packed" not in CASES[name]])
@pytest.mark.parametrize("return_lse", [False, True])
def test_the_second_call_is_short_and_equal(name, return_lse, no_operator):
    given = case(name)
    la.attention_with_kvcache(**copied(given))
    no_operator()
    for again in (given, others(given)):
        wanted = direct(again)
        versions = [again[cache]._version for cache in ("k_cache", "v_cache")]
        found = la.attention_with_kvcache(**again, return_lse=return_lse)
        assert torch.equal(found[0] if return_lse else found, wanted[0])
        assert not return_lse or torch.equal(found[1], wanted[1])
        assert torch.equal(again["k_cache"], wanted[2]) and torch.equal(again["v_cache"], wanted[3])
        written = given["k"] is not None
        assert [again[cache]._version for cache in ("k_cache", "v_cache")] == [n + written for n in versions]


def contiguous(rows=2):
    torch.manual_seed(4)
    k_cache, v_cache = torch.randn(2, 2, 20, 2, 16)
    return {"q": torch.randn(2, rows, 4, 16), "k_cache": k_cache, "v_cache": v_cache, "k": torch.randn(2, rows, 2, 16),
            "v": torch.randn(2, rows, 2, 16), "cache_seqlens": torch.tensor([5, 11], dtype=torch.int32), "causal": True}


def test_a_cache_without_pages_and_one_length_for_all(no_operator):
    given = contiguous()
    la.attention_with_kvcache(**copied(given))
    no_operator()
    for step in range(3):
        wanted = direct(given)
        assert torch.equal(la.attention_with_kvcache(**given), wanted[0])
        assert torch.equal(given["k_cache"], wanted[2])
        given["cache_seqlens"] += 2
    given["cache_seqlens"] = 7
    wanted = direct(given)
    assert torch.equal(la.attention_with_kvcache(**given), wanted[0])


def test_other_threads_options_and_shapes_are_other_calls():
    given = contiguous()
    plain = la.attention_with_kvcache(**copied(given))
    for change in ({"causal": False}, {"window": (3, 0)}, {"scale": 0.1}, {"softcap": 2.0}, {"out_f32": True},
                   {"threads": 2}, {"q": given["q"][:, :, :2]}, {"cache_seqlens": given["cache_seqlens"].long()},
                   {"k_cache": given["k_cache"].transpose(1, 2).contiguous().transpose(1, 2)},
                   {"sink": torch.randn(4)}, {"first_kv": torch.tensor([1, 2], dtype=torch.int32)}):
        changed = {**given, **change}
        assert torch.equal(la.attention_with_kvcache(**copied(changed)), direct(changed)[0]), change
    assert torch.equal(la.attention_with_kvcache(**copied(given)), plain)


@pytest.mark.parametrize("what, words", [
    ("negative", r"cache_seqlens\[1\] is -1"), ("room", "more than the 20 slots"), ("overlap", "q overlaps k_cache"),
    ("grad", "k requires grad"), ("gone", "must be equal|it takes")])
def test_mistakes_after_a_call_that_is_kept(what, words):
    given = contiguous()
    la.attention_with_kvcache(**copied(given))
    if what == "negative":
        given["cache_seqlens"][1] = -1
    elif what == "room":
        given["cache_seqlens"][1] = 19
    elif what == "overlap":
        memory = torch.randn(2 * 20 * 2 * 16 + 300)
        given["k_cache"] = memory[:1280].view(2, 20, 2, 16).copy_(given["k_cache"])
        given["q"] = memory[1100:1100 + 256].view(2, 2, 4, 16)
    elif what == "grad":
        given["k"].requires_grad_()
    else:
        given["v"] = given["v"][:, :1]
    before = copied(given)
    with pytest.raises(libattn.InvalidError, match=words):
        la.attention_with_kvcache(**given)
    assert torch.equal(given["k_cache"], before["k_cache"]) and torch.equal(given["v_cache"], before["v_cache"])


def test_a_cache_that_requires_grad_is_not_written_under_no_grad():
    given = contiguous()
    with torch.no_grad():
        la.attention_with_kvcache(**copied(given))
        for name in ("k_cache", "v_cache"):
            leaf = copied(given)
            leaf[name].requires_grad_()
            with pytest.raises(libattn.InvalidError, match=f"{name} requires grad"):
                la.attention_with_kvcache(**leaf)
            assert torch.equal(leaf[name], given[name])


def test_options_that_go_with_packed_rows_alone():
    given = contiguous()
    la.attention_with_kvcache(**copied(given))
    with pytest.raises(libattn.InvalidError, match="max_len_q is given without cu_lens_q"):
        la.attention_with_kvcache(**given, max_len_q=2)


def test_what_is_no_tensor_is_told_by_the_operator():
    given = contiguous()
    la.attention_with_kvcache(**copied(given))
    with pytest.raises(RuntimeError, match="argument 'q'"):
        la.attention_with_kvcache(**dict(given, q=given["q"].numpy()))


def test_inference_mode(no_operator):
    with torch.inference_mode():
        given = contiguous()
        la.attention_with_kvcache(**copied(given))
        no_operator()
        assert torch.equal(la.attention_with_kvcache(**copied(given)), direct(given)[0])


def test_what_is_kept_is_found_by_looking_at_every_tensor(monkeypatch):
    """A tensor that the short way does not name would be ignored: each argument of the operator that is a tensor is
    one of its own, or keeps the call from it."""
    arguments = {argument.name: str(argument.type) for argument in _torch_kv._with_op._schema.arguments}
    tensors = {name for name, kind in arguments.items() if "Tensor" in kind}
    from libattn import _torch_kv_again

    assert tensors == {*_torch_kv_again.TENSORS, "cu_lens", "fault", "k_scale", "v_scale"}
    monkeypatch.setattr(_torch_kv_again, "again", lambda *_: pytest.fail("the short way was asked"))
    given = contiguous()
    with pytest.raises(libattn.InvalidError, match="scales"):
        la.attention_with_kvcache(**given, k_scale=1.0)
