"""Steps of decoding over a cache that grows: one plan serves many lengths, and the result is the definition's for every
mask; nothing beyond the keys is read; who watches operators still sees them."""
import threading

import pytest

torch = pytest.importorskip("torch")

import libattn.torch as la  # noqa: E402
from libattn import _run  # noqa: E402
from libattn._run import most_keys  # noqa: E402

LENGTHS = [1, 5, 63, 64, 65, 127, 128, 129, 200]


def cache(batch, heads, keys, dim, seed=0):
    """What torch.cat gives a DynamicCache, (batch, head, row, dim), seen as (batch, row, head, dim); NaN behind it."""
    made = torch.full((batch * heads * keys * dim + 64 * heads * dim,), float("nan"))
    whole = made[:batch * heads * keys * dim].view(batch, heads, keys, dim)
    whole.copy_(torch.randn(batch, heads, keys, dim, generator=torch.Generator().manual_seed(seed)))
    return whole.transpose(1, 2)


def wanted(q, k, v, visible, sink=None):
    """By the definition, in float64; visible: bool that broadcasts to (batch, head, row, key)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~visible, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.double()[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    p = scores.softmax(-1).nan_to_num(0)[..., :k.shape[2]]
    return (p @ v).transpose(1, 2).float()


def masks(batch, rows, keys):
    """(options, what they show) of every kind that a step takes."""
    row, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None]
    yield {}, torch.ones(1, 1, rows, keys, dtype=torch.bool)
    yield {"causal": True}, (key <= row)[None, None]
    yield {"causal": True, "window": (50, 0)}, ((key <= row) & (key >= row - 50))[None, None]
    lens = torch.tensor([max(keys - 3 * b, 1) for b in range(batch)], dtype=torch.int32)
    yield {"lens_kv": lens}, (key < lens[:, None, None])[:, None]
    start = torch.tensor([min(2 * b, keys - 1) for b in range(batch)])
    left = (key >= start[:, None, None])[:, None]  # padding on the left, as intervals and as bits
    hidden = torch.where(key[0] >= start[:, None], rows, 0).int()[:, None, :, None]
    yield {"causal": True, "intervals": hidden.contiguous()}, left & (key <= row)
    yield {"mask": left.expand(batch, 1, rows, keys)}, left
    sink = torch.linspace(-1, 1, 4)
    yield {"sink": sink}, torch.ones(1, 1, rows, keys, dtype=torch.bool)


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("rows", (1, 3))
def test_one_plan_serves_many_lengths(batch, rows):
    torch.manual_seed(1)
    for kind in range(7):
        _run.clear_plans()
        made = 0
        for keys in (n for n in LENGTHS if n >= rows):
            q = torch.randn(batch, rows, 4, 16)
            k, v = cache(batch, 2, keys, 16, keys), cache(batch, 2, keys, 16, keys + 1000)
            options, visible = list(masks(batch, rows, keys))[kind]
            with torch.no_grad():
                o = la.attention(q, k, v, **options)
            torch.testing.assert_close(o, wanted(q, k, v, visible, options.get("sink")), rtol=1e-5, atol=1e-5)
            made = max(made, len(_run._plans))
        buckets = {most_keys(n) for n in LENGTHS if n >= rows}
        assert made <= 2 * len(buckets), (kind, made)  # a step and what it found in _run


def test_the_operator_too():
    """Where the dispatcher is needed, as under torch.compile, the plans are the same ones."""
    _run.clear_plans()
    for keys in range(66, 81):
        q, k, v = torch.randn(2, 1, 4, 16), cache(2, 2, keys, 16, 3), cache(2, 2, keys, 16, 4)
        o, _ = torch.ops.libattn.forward(q, k, v)
        torch.testing.assert_close(o, wanted(q, k, v, torch.ones(1, 1, 1, keys, dtype=torch.bool)), rtol=1e-5, atol=1e-5)
    assert len(_run._plans) == 1


@pytest.mark.filterwarnings("ignore")
def test_compiled_with_a_growing_cache():
    call = torch.compile(lambda q, k, v: la.attention(q, k, v, causal=True) * 2, backend="eager", dynamic=True)
    _run.clear_plans()
    with torch.no_grad():
        for keys in (66, 67, 80, 81):
            q, k, v = torch.randn(2, 1, 4, 16), cache(2, 2, keys, 16, 3), cache(2, 2, keys, 16, 4)
            o = wanted(q, k, v, torch.ones(1, 1, 1, keys, dtype=torch.bool))
            torch.testing.assert_close(call(q, k, v), 2 * o, rtol=1e-5, atol=1e-5)
    assert len(_run._plans) == 2


def test_what_a_plan_holds_is_planned_anew():
    """A bias has strides along keys; a kernel by name is for the caller's problem; q of more rows is no step."""
    _run.clear_plans()
    for keys in (70, 71):
        q, k, v = torch.randn(1, 1, 4, 16), cache(1, 2, keys, 16), cache(1, 2, keys, 16, 1)
        bias = torch.randn(1, 4, 1, keys)
        with torch.no_grad():
            o = la.attention(q, k, v, bias=bias)
            la.attention(torch.randn(1, 17, 4, 16), k, v)
        torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias, enable_gqa=True).transpose(1, 2),
            rtol=1e-5, atol=1e-5)
    assert len(_run._plans) == 4


def test_mistakes_are_named_at_every_length():
    """A plan that fits does not let through what it cannot see."""
    q = torch.randn(2, 1, 4, 16)
    for keys in (70, 71):
        k, v = cache(2, 2, keys, 16), cache(2, 2, keys, 16, 1)
        with torch.no_grad():
            la.attention(q, k, v, lens_kv=torch.tensor([keys, 1], dtype=torch.int32))
            for match, given in ((f"lens_kv\\[0\\] = {keys + 1} exceeds len_kv = {keys}",
                                  {"lens_kv": torch.tensor([keys + 1, 1], dtype=torch.int32)}),
                                 ("intervals has shape", {"intervals": torch.zeros(2, 1, 69, 2, dtype=torch.int32)}),
                                 ("bits has shape", {"bits": torch.zeros(1, 1, 1, 8, dtype=torch.uint8)})):
                with pytest.raises(ValueError, match=match):
                    la.attention(q, k, v, **given)
            with pytest.raises(ValueError, match="all but their last dimensions must be equal"):
                la.attention(q, k, cache(2, 2, keys - 1, 16))


def test_threads_share_the_plans():
    torch.manual_seed(2)
    work = []
    for i in range(60):
        keys, batch = 40 + 3 * i, 1 + i % 3
        q, k, v = torch.randn(batch, 1, 4, 16), cache(batch, 2, keys, 16, i), cache(batch, 2, keys, 16, i + 100)
        work.append((q, k, v, wanted(q, k, v, torch.ones(1, 1, 1, keys, dtype=torch.bool))))
    wrong = []

    def run(turn):
        for q, k, v, right in work[::turn]:
            with torch.no_grad():
                o = la.attention(q, k, v)
            if not torch.allclose(o, right, rtol=1e-5, atol=1e-5):
                wrong.append(k.shape)

    _run.clear_plans()
    for _ in range(5):
        threads = [threading.Thread(target=run, args=(turn,)) for turn in (1, -1)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not wrong


def test_who_watches_sees_the_operator():
    from torch.profiler import ProfilerActivity, profile
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = torch.randn(1, 1, 4, 16), cache(1, 2, 70, 16), cache(1, 2, 70, 16, 1)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad():
        la.attention(q, k, v)
        with Watch():
            la.attention(q, k, v)
        with FlopCounterMode(display=False) as counter:
            la.attention(q, k, v)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            la.attention(q, k, v)
    assert any("libattn" in name for name in seen)
    assert counter.get_total_flops() == 2 * 32 * 4 * 70
    assert any(event.key == "libattn::forward" for event in profiled.key_averages())


def test_views_that_negate():
    q, k, v = torch.randn(1, 1, 2, 16), torch.randn(1, 40, 2, 16), torch.randn(1, 40, 2, 16)
    o = la.attention(q, k, v)
    for name in "qkv":
        given = {"q": q, "k": k, "v": v}
        given[name] = torch._neg_view(-given[name])
        assert torch.equal(la.attention(**given), o), name
    sink = torch.randn(2)
    assert torch.equal(la.attention(q, k, v, sink=torch._neg_view(-sink)), la.attention(q, k, v, sink=sink))


def test_gradients_are_recorded():
    q = torch.randn(1, 1, 4, 16, requires_grad=True)
    k, v = cache(1, 2, 70, 16), cache(1, 2, 70, 16, 1)
    la.attention(q, k, v).sum().backward()
    assert q.grad is not None and q.grad.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert la.attention(q, k, v).dtype == torch.bfloat16


def test_rounded_lengths_cost_little():
    """A plan's decisions for the rounded length, taken at the real one, are predicted to take at most a tenth more."""
    import libattn

    for batch, heads, shared, dim in ((1, 8, 8, 64), (1, 32, 8, 128), (8, 16, 2, 64)):
        for keys in (65, 100, 300, 1025, 1500, 4097, 9000, 33000):
            rounded = libattn.plan((batch, 1, heads, dim), (batch, most_keys(keys), shared, dim), threads=2)
            exact = libattn.plan((batch, 1, heads, dim), (batch, keys, shared, dim), threads=2)
            words = [word for word in rounded.info["strategy"].split(",") if not word.startswith("split-kv")]
            taken = libattn.plan((batch, 1, heads, dim), (batch, keys, shared, dim), threads=2,
                                 kernel=rounded.info["kernel"], strategy=",".join(words))
            assert taken.info["seconds"] <= 1.1 * exact.info["seconds"], (batch, heads, keys)
