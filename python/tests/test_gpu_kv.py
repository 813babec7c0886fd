"""KV caches, merging, DLPack, streams, graphs and torch's own backward thread on a Hopper GPU. Skipped elsewhere."""
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import _run, _torch_kv  # noqa: E402
from test_torch_cascade import problem as cascade_problem  # noqa: E402
from test_torch_kv import copied, problem  # noqa: E402

APPEND = ("k", "v", "k_cache", "v_cache", "cache_seqlens", "page_table", "rotary_cos", "rotary_sin",
          "rotary_interleaved")


def on_gpu(**options):
    """A problem whose results have the same bits at each run."""
    return dict(problem(device="cuda", **options), deterministic=True)


def moved(given, device):
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def close(found, wanted, tolerance=2e-2):
    found, wanted = (x.detach().float().cpu() for x in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_with_kvcache_is_the_cpus_and_the_separate_calls(interleaved, packed, dtype):
    given = dict(problem(packed=packed, dtype=dtype), rotary_interleaved=interleaved)
    there, apart = moved(given, "cuda"), moved(given, "cuda")
    options = {"causal": True, "return_lse": True, "deterministic": True}
    wanted = libattn.attention_with_kvcache(**given, **options)
    for _ in range(2):  # once more gives the same
        found = libattn.attention_with_kvcache(**there, **options)
        assert found[0].is_cuda and found[0].dtype == dtype and found[1].dtype == torch.float32
        close(found[0], wanted[0])
        close(found[1], wanted[1])
        for name in ("k_cache", "v_cache"):  # rotary embedding has the same bits on every device
            assert torch.equal(there[name].cpu(), given[name])
    append = {name: apart[name] for name in APPEND}
    q = libattn.append_kvcache(q=apart["q"], **append, **({"cu_lens": apart["cu_lens_q"]} if packed else {}))
    rest = {name: apart[name] for name in ("k_cache", "v_cache", "page_table", "cu_lens_q", "max_len_q")
            if name in apart}
    again = libattn.attention_with_kvcache(q, cache_seqlens=apart["cache_seqlens"] + 2, **rest, **options)
    assert torch.equal(again[0], found[0]) and torch.equal(again[1], found[1])
    assert torch.equal(apart["k_cache"], there["k_cache"])
    operator = moved(problem(packed=packed, dtype=dtype), "cuda")
    operator["rotary_interleaved"] = interleaved
    o, lse = la.attention_with_kvcache(**operator, **options)
    assert torch.equal(o, found[0]) and torch.equal(lse, found[1])


@pytest.mark.parametrize("dim, page_size", [(64, 16), (128, 64), (128, 5)])
def test_decoding_over_pages(dim, page_size):
    torch.manual_seed(2)
    lens = torch.tensor([700, 33, 0], dtype=torch.int32)
    width = -(-701 // page_size)
    table = torch.randperm(3 * width).reshape(3, width).int()
    q, k, v = (torch.randn(3, 1, heads, dim).half() for heads in (8, 2, 2))
    caches = [torch.randn(3 * width, page_size, 2, dim).half() for _ in range(2)]
    there = [x.cuda() for x in (q, *caches, k, v)]
    o = la.attention_with_kvcache(*there, cache_seqlens=lens.cuda(), page_table=table.cuda(), causal=True)
    close(o, la.attention_with_kvcache(q, *caches, k, v, cache_seqlens=lens, page_table=table, causal=True))
    assert torch.equal(there[1].cpu(), caches[0]) and torch.equal(there[2].cpu(), caches[1])


def test_one_stretch_for_each_sequence():
    torch.manual_seed(2)
    cache, q, k, v = (torch.randn(shape).half() for shape in (
        (2, 2, 40, 2, 64), (2, 3, 4, 64), (2, 3, 2, 64), (2, 3, 2, 64)))
    there = cache.cuda()
    o = la.attention_with_kvcache(q.cuda(), *there, k.cuda(), v.cuda(), cache_seqlens=9, causal=True)
    close(o, la.attention_with_kvcache(q, *cache, k, v, cache_seqlens=9, causal=True))
    assert torch.equal(there.cpu(), cache)


@pytest.mark.parametrize("paged", [True, False], ids=["pages", "stretches"])
def test_a_call_like_one_before_goes_past_the_operator(paged, monkeypatch):
    """On the same stream, and on another one."""
    given = dict(problem(dtype=torch.float16), causal=True)
    if not paged:
        del given["page_table"]
        given.update((name, torch.randn(2, 24, 2, 16).half()) for name in ("k_cache", "v_cache"))
    wanted = copied(given)
    o = la.attention_with_kvcache(**wanted)
    for step in range(3):
        there = moved(given, "cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream() if step == 2 else torch.cuda.current_stream()):
            close(la.attention_with_kvcache(**there), o)
        torch.cuda.synchronize()
        for name in ("k_cache", "v_cache"):
            assert torch.equal(there[name].cpu(), wanted[name])
        monkeypatch.setattr(_torch_kv, "_with_op", lambda *_: pytest.fail("the operator was called"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("drafts, page_size", [(4, 16), (13, 16), (40, 64), (13, 5)])
def test_a_tree_of_drafts(drafts, page_size, dtype):
    torch.manual_seed(2)
    tree = torch.eye(drafts, dtype=torch.bool)
    for i in range(1, drafts):
        tree[i] |= tree[torch.randint(i, ()).item()]
    lens = torch.tensor([700, 33, 0], dtype=torch.int32)
    width = -(-(700 + drafts) // page_size)
    table = torch.randperm(3 * width).reshape(3, width).int()
    q, k, v = (torch.randn(3, drafts, heads, 64).to(dtype) for heads in (8, 2, 2))
    caches = [torch.randn(3 * width, page_size, 2, 64).to(dtype) for _ in range(2)]
    given = {"q": q, "k_cache": caches[0], "v_cache": caches[1], "k": k, "v": v, "cache_seqlens": lens,
             "page_table": table, "mask": tree, "rotary_cos": torch.randn(800, 32), "rotary_sin": torch.randn(800, 32),
             "rotary_positions": lens.long()[:, None] + tree.sum(1) - 1}
    there = moved(given, "cuda")
    options = {"bits_keys": drafts, "rotary_interleaved": False, "max_len_kv": 750}
    o = la.attention_with_kvcache(**there, **options)
    close(o, la.attention_with_kvcache(**given, **options))
    assert torch.equal(there["k_cache"].cpu(), given["k_cache"])
    compiled = torch.compile(lambda there: la.attention_with_kvcache(**there, **options, deterministic=True),
                             fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(there), la.attention_with_kvcache(**there, **options, deterministic=True))


def test_positions_prefix_and_first_keys():
    for more in ({"position_q": torch.tensor([20, 9]), "position_kv": torch.tensor([3, 4]), "causal": True,
                  "window": (9, None)},
                 {"prefix": torch.tensor([4, 0]).int(), "causal": True, "window": (2, None), "visible_share": 0.5},
                 {"first_kv": torch.tensor([2, 1]).int(), "bits": torch.full((2, 4, 2, 3), 0x5b, dtype=torch.uint8)}):
        given = dict(problem(dtype=torch.float16), **more)
        there = moved(given, "cuda")
        close(la.attention_with_kvcache(**there), la.attention_with_kvcache(**given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cascades(dtype):
    given, alone = cascade_problem(dtype, "cuda")
    right = cascade_problem(dtype)[0]
    for options in ({}, {"causal": True}, {"sink": torch.randn(4), "max_len_kv": [24, 24, 12]}):
        there = moved(options, "cuda")
        o, lse = la.attention_cascade(**given, **there, return_lse=True)
        wanted = la.attention_cascade(**right, **options, return_lse=True)
        close(o, wanted[0])
        close(lse, wanted[1], 1e-2)
        there.pop("max_len_kv", None)
        close(o, la.attention_with_kvcache(**alone, **there))
    compiled = torch.compile(lambda given: la.attention_cascade(**given, deterministic=True), fullgraph=True,
                             backend="aot_eager")
    wanted = la.attention_cascade(**given, deterministic=True)
    assert torch.equal(compiled(given), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = la.attention_cascade(**given, deterministic=True)
    for _ in range(2):
        given["q"].copy_(torch.randn_like(given["q"]))
        given["levels"][2][1].sub_(1)
        graph.replay()
        assert torch.equal(o, la.attention_cascade(**given, deterministic=True))
    fault = torch.zeros(1, dtype=torch.int32, device="cuda")
    given["levels"][0][1].add_(99)
    la.attention_cascade(**given, fault=fault)
    assert fault.item() == 1
    with pytest.raises(libattn.InvalidError, match=r"levels\[0\]\.cu_lens_q is on the CPU"):
        la.attention_cascade(**dict(given, levels=right["levels"][:1] + given["levels"][1:]))


def test_merge_states():
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, n, 4, 64, device="cuda").bfloat16() for n in (30, 90, 90))
    parts = [libattn.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 17), (17, 60), (60, 90))]
    o, lse = libattn.merge_states([part[0] for part in parts], [part[1] for part in parts])
    whole = libattn.attention(q, k, v, return_lse=True)
    close(o, whole[0])
    close(lse, whole[1], 1e-3)
    exact = libattn.merge_states(*zip(*parts), out_f32=True)[0]
    assert exact.dtype == torch.float32
    with pytest.raises(libattn.InvalidError, match=r"lse\[1\] is on the CPU"):
        libattn.merge_states([o, o], [lse, lse.cpu()])


def test_faults_are_told():
    given = on_gpu(dtype=torch.float16)
    right = la.attention_with_kvcache(**copied(given))
    for name, at, wrong in (("page_table", (0, 1), 99), ("cache_seqlens", 0, 30)):
        broken, fault = copied(given), torch.zeros(1, dtype=torch.int32, device="cuda")
        broken[name][at] = wrong
        o = la.attention_with_kvcache(**broken, fault=fault)
        assert fault.item() == 1, name
        assert torch.equal(o[1], right[1])  # the other sequence is computed
    fault = torch.zeros(1, dtype=torch.int32, device="cuda")
    la.attention_with_kvcache(**given, fault=fault)
    assert fault.item() == 0


def test_another_stream_and_what_is_freed_early():
    given = on_gpu(dtype=torch.float16)
    wanted = copied(given)
    right = la.attention_with_kvcache(**wanted)
    stream = torch.cuda.Stream()
    for of_caller in (stream, stream.cuda_stream, torch.cuda.current_stream(), 0):
        mine = copied(given)
        caches = mine["k_cache"], mine["v_cache"]
        stream.wait_stream(torch.cuda.current_stream())
        o = libattn.attention_with_kvcache(**mine, stream=of_caller)
        del mine
        for _ in range(4):
            torch.randn(9, 8, 2, 16, device="cuda")
        torch.cuda.synchronize()
        assert torch.equal(o, right)
        assert torch.equal(caches[0], wanted["k_cache"]) and torch.equal(caches[1], wanted["v_cache"])
    mine = copied(given)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        o = la.attention_with_kvcache(**mine)
    stream.synchronize()
    assert torch.equal(o, right)


def test_a_graph_goes_on_decoding():
    """Captured once, replayed with other tokens, lengths and pages."""
    given = on_gpu(new=1, dtype=torch.float16)
    eager = copied(given)
    la.attention_with_kvcache(**copied(given))  # plans and kernels are made before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = la.attention_with_kvcache(**given)
    for step in range(5):
        if step == 2:  # the second sequence goes on in other pages
            for mine in (given, eager):
                mine["page_table"][1] = torch.tensor([3, 5, 6], dtype=torch.int32, device="cuda")
        fresh = {name: torch.randn_like(given[name]) for name in ("q", "k", "v")}
        for name, x in fresh.items():
            given[name].copy_(x)
        graph.replay()
        wanted = la.attention_with_kvcache(**dict(eager, **fresh))
        assert torch.equal(o, wanted) and torch.equal(given["k_cache"], eager["k_cache"])
        given["cache_seqlens"] += 1
        eager["cache_seqlens"] += 1


def test_operators_and_compiled_code(monkeypatch):
    arguments, op = [], _torch_kv._with_op
    given = on_gpu(dtype=torch.float16)
    compiled = torch.compile(lambda given: la.attention_with_kvcache(**given, causal=True) * 2, fullgraph=True,
                             backend="aot_eager")
    theirs = copied(given)
    wanted = la.attention_with_kvcache(**theirs, causal=True) * 2
    assert torch.equal(compiled(given), wanted) and torch.equal(given["k_cache"], theirs["k_cache"])
    monkeypatch.setattr(_torch_kv, "_with_op", lambda *call: arguments.append(call) or op(*call))
    monkeypatch.setattr(_run, "calls", {})  # no call like this one, which would go past the operator
    la.attention_with_kvcache(**given)
    torch.library.opcheck(op, arguments[0])


class Foreign:
    """A tensor of a library that nothing is known of but DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)


def test_dlpack():
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, n, 4, 64, device="cuda").bfloat16() for n in (30, 90, 90))
    wanted = libattn.attention(q, k, v, causal=True, deterministic=True)
    with pytest.raises(ValueError, match="stream: is needed"):
        libattn.attention(*(Foreign(x) for x in (q, k, v)))
    stream = torch.cuda.current_stream()
    with pytest.raises(TypeError, match="neither torch's nor CuPy's"):
        libattn.attention(*(Foreign(x) for x in (q, k, v)), stream=stream)
    for wrapped in (lambda x: x, Foreign):
        out = torch.zeros_like(q)
        libattn.attention(*(Foreign(x) for x in (q, k, v)), causal=True, deterministic=True, out=wrapped(out),
                          stream=stream)
        assert torch.equal(out, wanted)
    o = libattn.attention(q, Foreign(k), Foreign(v), causal=True, deterministic=True)  # q is torch's
    assert torch.equal(o, wanted)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    given = on_gpu(dtype=torch.float16)
    arrays = {name: cupy.from_dlpack(x) if isinstance(x, torch.Tensor) else x for name, x in copied(given).items()}
    right = libattn.attention_with_kvcache(**given)
    torch.cuda.synchronize()
    o = libattn.attention_with_kvcache(**arrays)
    cupy.cuda.get_current_stream().synchronize()
    assert isinstance(o, cupy.ndarray) and torch.equal(torch.from_dlpack(o), right)
    assert torch.equal(torch.from_dlpack(arrays["k_cache"]), given["k_cache"])


def test_backward_on_torchs_own_thread():
    torch.manual_seed(2)
    data = [torch.randn(2, n, 4, 64, device="cuda").bfloat16() for n in (70, 90, 90)]
    right = [x.detach().float().cpu().requires_grad_() for x in data]
    la.attention(*right, causal=True).square().sum().backward()
    threads = []

    def step(stream=None):
        inputs = [x.clone().requires_grad_() for x in data]
        o = la.attention(*inputs, causal=True)
        o.register_hook(lambda grad: threads.append(threading.get_ident()))
        o.float().square().sum().backward()
        return inputs

    found = [step()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found.append(step())
    stream.synchronize()
    worker = threading.Thread(target=lambda: found.append(step()))
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    assert len(found) == 3 and threading.get_ident() not in threads
    for inputs in found:
        for ours, theirs in zip(inputs, right):
            close(ours.grad, theirs.grad, 5e-2)


def test_block_mask():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, n, 4, 64, device="cuda").bfloat16() for n in (200, 256, 256))

    def make(device):
        ids = torch.arange(512, device=device) // 130
        return flex.create_block_mask(lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j - 10 * b), 2, None, 200, 256,
                                      device=device, BLOCK_SIZE=(64, 64))

    right = la.attention(*(x.float().cpu() for x in (q, k, v)), mask=make("cpu"))
    mask = make("cuda")
    compiled = torch.compile(lambda q, k, v, mask: la.attention(q, k, v, mask=mask, deterministic=True), fullgraph=True,
                             backend="aot_eager")
    in_graph = compiled(q, k, v, mask)
    o = la.attention(q, k, v, mask=mask, deterministic=True)
    close(o, right)
    assert torch.equal(in_graph, o) and torch.equal(compiled(q, k, v, mask), o)


def test_mistakes():
    given = on_gpu(dtype=torch.float16)
    before = given["k_cache"].clone()
    for match, wrong in (
            ("cache_seqlens is on the CPU", {"cache_seqlens": given["cache_seqlens"].cpu()}),
            ("page_table is on the CPU", {"page_table": given["page_table"].cpu()}),
            ("k is on the CPU, k_cache on GPU 0", {"k": given["k"].cpu()}),
            ("takes packed int32", {"page_table": given["page_table"].long()}),
            ("takes packed float32", {"rotary_cos": given["rotary_cos"].half()}),
            ("fault is torch.int64|fault is int64", {"fault": torch.zeros(1, dtype=torch.int64, device="cuda")}),
            ("last dimension must be contiguous", {"q": torch.randn(2, 2, 16, 4, device="cuda").half().mT}),
            ("q requires grad", {"q": given["q"].clone().requires_grad_()}), ("threads is set", {"threads": 2}),
            ("v is float32|where it takes", {"v": given["v"].float()})):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention_with_kvcache(**dict(given, **wrong))
        assert torch.equal(given["k_cache"], before)
    with pytest.raises(libattn.InvalidError, match="out is on the CPU, q on GPU 0"):
        libattn.attention(*(torch.randn(1, 8, 2, 64, device="cuda").half() for _ in range(3)),
                          out=torch.empty(1, 8, 2, 64).half())
    with pytest.raises(libattn.InvalidError, match="max_len_q is needed"):
        libattn.attention_with_kvcache(**dict(given, cu_lens_q=torch.tensor([0, 2, 4], device="cuda").int()))
    with pytest.raises(libattn.InvalidError, match="on GPU 0, q on the CPU|on GPU 0, k_cache on the CPU"):
        libattn.attention_with_kvcache(**dict(moved(given, "cpu"), page_table=given["page_table"]))
    assert np.isfinite(libattn.attention_with_kvcache(**given).float().cpu().numpy()).all()
