"""Calls of torch's operators that are like one before: they go past the dispatcher, and mean what the first one meant;
what is not like it, or fails, still goes by the operator and its words."""
import threading

import pytest

torch = pytest.importorskip("torch")

import libattn.torch as la  # noqa: E402
from libattn import _run  # noqa: E402
from libattn._problem import Blocks  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def cases():
    torch.manual_seed(3)
    yield "causal", {"causal": True}
    yield "window", {"window": (9, 2), "scale": 0.3, "softcap": 5.0}
    yield "lens", {"lens_q": ints(20, 3), "lens_kv": ints(7, 40)}
    yield "prefix", {"prefix": ints(3, 9), "causal": True, "chunk": None}
    yield "mask", {"mask": torch.rand(2, 1, 30, 40) > 0.3}
    yield "scores", {"bias": torch.randn(2, 4, 30, 40).requires_grad_(), "alibi": torch.rand(4).requires_grad_(),
                     "sink": torch.nn.Parameter(torch.randn(4))}
    yield "dropout", {"dropout_p": 0.3, "seed": torch.tensor([5, 0, 6])[::2]}
    yield "f32", {"out_f32": True, "causal": True}
    counts, lists = ints(1, 1).view(1, 1, 2), ints(0, 0, 2, 0, 0, 0).view(1, 1, 2, 3)
    yield "blocks", {"blocks": Blocks(16, 16, counts, lists)}


CASES = dict(cases())


def inputs(batch=2, rows=30, keys=40, dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.randn(batch, n, h, 16).to(dtype).requires_grad_() for n, h in ((rows, 4), (keys, 2), (keys, 2))]


def results(given, options, function=la.attention):
    """o, lse and all gradients."""
    leaves = [*given, *(x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad)]
    o, lse = function(*given, **options, return_lse=True)
    torch.manual_seed(2)
    weights = torch.randn(o.shape).to(o.dtype)
    return [o, lse, *torch.autograd.grad((o * weights).sum() + lse.nan_to_num(0, 0, 0).sin().sum(), leaves)]


@pytest.fixture
def no_operator(monkeypatch):
    """Called, it lets no call go by an operator from then on."""
    def refuse(*arguments):
        raise AssertionError("the operator was called")
    return lambda: monkeypatch.setattr(_run, "run_typed", refuse)


@pytest.mark.parametrize("case", CASES)
def test_the_second_call_is_short_and_equal(case, no_operator):
    _run.clear_plans()
    options = CASES[case]
    given = inputs(dtype=torch.bfloat16 if case == "f32" else torch.float32)
    first = results(given, options)
    no_operator()
    given = [x.detach().clone().requires_grad_() for x in given]  # elsewhere
    for found, wanted in zip(results(given, options), first):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    with torch.no_grad():
        assert torch.equal(la.attention(*given, **options), first[0])


def test_rows_outside_of_sequences(no_operator, monkeypatch):
    """What no sequence has is zeros, and -inf in lse, the second time, too."""
    _run.clear_plans()
    make = torch.Tensor.new_empty_strided
    monkeypatch.setattr(torch.Tensor, "new_empty_strided",
                        lambda x, *shape, **of: torch.full_like(make(x, *shape, **of), 7))
    given = [torch.randn(50, h, 16).requires_grad_() for h in (4, 2, 2)]
    cu_lens = ints(0, 20, 40)
    call = lambda *x, **options: la.attention_varlen(*x, cu_lens, cu_lens, 20, 20, **options)  # noqa: E731
    first = results(given, {"causal": True}, call)
    no_operator()
    second = results(given, {"causal": True}, call)
    assert all(map(torch.equal, first, second))
    assert not second[0][40:].any() and (second[1][:, 40:] == -torch.inf).all() and not second[2][40:].any()


def test_mistakes_are_named_the_second_time():
    q, k, v = inputs()
    la.attention(q, k, v, lens_kv=ints(40, 1))
    for match, given in (("lens_kv\\[0\\] = 41 exceeds len_kv = 40", {"lens_kv": ints(41, 1)}),
                         ("beyond int32", {"lens_kv": torch.tensor([1 << 40, 1])}),
                         ("dropout_p = 1.5", {"dropout_p": 1.5, "lens_kv": ints(40, 1)})):
        for _ in range(2):
            with pytest.raises(ValueError, match=match):
                la.attention(q, k, v, **given)
    with pytest.raises(ValueError, match="k is torch.float16|k is float16"):
        la.attention(q, k.half(), v, lens_kv=ints(40, 1))


def test_what_is_converted_is_converted_each_time():
    q, k, v = inputs()
    wanted = la.attention(q, k, v, lens_kv=ints(7, 30))
    for _ in range(3):
        assert torch.equal(la.attention(q, k, v, lens_kv=torch.tensor([7, 30])), wanted)


def test_views_that_negate_are_read_right():
    q, k, v = inputs()
    wanted = la.attention(q, k, v)
    negated = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert negated.is_neg()
    packed = torch.complex(torch.zeros_like(q), -q).imag
    for x in (packed, negated, packed, negated):  # the strides of both are the same
        torch.testing.assert_close(la.attention(x if x.is_neg() else -x, k, v), wanted)


def test_who_watches_sees_the_operators():
    class Watch(TorchDispatchMode):
        seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    given = inputs()
    results(given, {})
    with Watch():
        results(given, {})
    assert {"libattn.forward.default", "libattn.backward.default"} <= set(Watch.seen)


def test_second_derivatives_are_refused_the_second_time():
    given = inputs()
    results(given, {})
    for _ in range(2):
        first, = torch.autograd.grad(la.attention(*given).square().sum(), given[:1], create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivatives"):
            first.sum().backward()


def test_number_of_threads_and_options_are_told_apart():
    given = inputs()
    plain, causal = la.attention(*given), la.attention(*given, causal=True)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for _ in range(2):
                torch.testing.assert_close(la.attention(*given), plain)
                torch.testing.assert_close(la.attention(*given, causal=True), causal)
    finally:
        torch.set_num_threads(before)
    assert {key[4] for key in _run.calls} >= {1, 2}


def test_calls_are_forgotten_with_plans_and_bounded(monkeypatch):
    _run.clear_plans()
    monkeypatch.setattr(_run, "LIMIT", 3)
    for rows in range(20, 26):
        la.attention(*inputs(rows=rows))
    assert len(_run.calls) == 3
    _run.clear_plans()
    assert not _run.calls


def test_threads_share_calls():
    given = [inputs(rows=20 + i % 5) for i in range(40)]
    wrong = []

    def run(order):
        for i in order:
            if not all(map(torch.equal, of(given[i]), wanted[i])):
                wrong.append(i)

    def of(tensors):  # torch's generator, which results() sets, is one for all threads
        return torch.autograd.grad(la.attention(*tensors, causal=True).square().sum(), tensors)

    wanted = list(map(of, given))
    _run.clear_plans()
    threads = [threading.Thread(target=run, args=(order,)) for order in (range(40), range(39, -1, -1))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
