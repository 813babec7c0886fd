"""On a Hopper GPU: torch, CuPy and raw GPU arrays, streams, CUDA graphs, autograd. Skipped elsewhere."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402


def tensors(batch=2, rows=130, keys=200, heads_q=4, heads_kv=2, dim=64, dtype=torch.bfloat16, grad=False):
    torch.manual_seed(3)
    shapes = (batch, rows, heads_q, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim)
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_(grad) for shape in shapes]


def wanted(q, k, v, causal=False):
    """By libattn on the CPU in float32, which is tested against the definition."""
    return la.attention(q.float().cpu(), k.float().cpu(), v.float().cpu(), causal=causal)


def close(found, wanted, tolerance=2e-2):
    found, wanted = (x.detach().float().cpu() for x in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_torch_direct():
    q, k, v = tensors()
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    assert o.is_cuda and o.dtype == torch.bfloat16 and lse.dtype == torch.float32
    close(o, wanted(q, k, v, True))
    assert "sm_90a" == libattn.plan(q, k, v, causal=True).info["isa"]


def test_other_addresses():
    """Tensors that lie an element off are copied first: the fast kernel gives the bits that it gives for a copy."""
    aligned = tensors(rows=300, keys=300)
    bias = torch.randn(1, 4, 300, 304, device="cuda").bfloat16()[..., :300]
    shifted = [torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x) for x in aligned]
    assert all(x.data_ptr() % 16 == 2 for x in shifted)
    assert torch.equal(libattn.attention(*shifted, causal=True), libattn.attention(*aligned, causal=True))
    moved = torch.empty(4 * 300 * 304 + 1, dtype=bias.dtype, device="cuda")[1:].view(1, 4, 300, 304)[..., :300].copy_(bias)
    close(libattn.attention(*aligned, bias=moved), libattn.attention(*aligned, bias=bias))
    results = []
    for q, k, v in (aligned, shifted):
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        la.attention(*inputs, causal=True).float().square().sum().backward()
        results.append([x.grad for x in inputs])
    for found, right in zip(*results):
        close(found, right)


def test_another_stream_and_inputs_freed_early():
    q, k, v = tensors()
    right = wanted(q, k, v)
    stream = torch.cuda.Stream()
    for given in (stream, stream.cuda_stream):
        stream.wait_stream(torch.cuda.current_stream())
        copies = [x.clone() for x in (q, k, v)]
        stream.wait_stream(torch.cuda.current_stream())
        o = libattn.attention(*copies, stream=given)
        del copies
        torch.randn(3, 2, 200, 4, 64, device="cuda")
        stream.synchronize()
        close(o, right)
    with torch.cuda.stream(stream):
        o = libattn.attention(q, k, v)
    stream.synchronize()
    close(o, right)


def test_gradients_and_compile():
    inputs = tensors(grad=True)
    on_cpu = [x.detach().float().cpu().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(la.attention(*on_cpu, causal=True).square().sum(), on_cpu)
    compiled = torch.compile(lambda q, k, v: la.attention(q, k, v, causal=True), fullgraph=True, backend="aot_eager")
    for function in (lambda q, k, v: la.attention(q, k, v, causal=True), compiled):
        found = torch.autograd.grad(function(*inputs).float().square().sum(), inputs)
        for ours, theirs in zip(found, expected):
            close(ours, theirs, 5e-2)


def test_varlen_and_tables_stay_on_the_gpu():
    q, k, v = (x[0] for x in tensors(1))
    cu = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 50, 130], [0, 90, 200])]
    o = la.attention_varlen(q, k, v, *cu, 80, 110, causal=True)
    right = torch.cat([wanted(q[None, a:b], k[None, c:d], v[None, c:d], True)[0]
                       for a, b, c, d in ((0, 50, 0, 90), (50, 130, 90, 200))])
    close(o, right)
    with pytest.raises(libattn.InvalidError, match="max_len_q"):
        libattn.attention_varlen(q, k, v, *cu)
    with pytest.raises(libattn.InvalidError, match="on the CPU, q on GPU 0"):
        libattn.attention(*tensors(), lens_kv=torch.tensor([1, 2], dtype=torch.int32))
    with pytest.raises(libattn.InvalidError, match="k is on the CPU, q on GPU 0"):
        libattn.attention(q[None], k[None].cpu(), v[None].cpu())
    mask = torch.rand(2, 1, 130, 200, device="cuda") < 0.5
    q, k, v = tensors()
    on_cpu = [x.float().cpu() for x in (q, k, v)]
    close(la.attention(q, k, v, mask=mask), la.attention(*on_cpu, mask=mask.cpu()))


def test_sdpa():
    for rows, keys in ((128, 128), (100, 140), (140, 100)):
        q, k, v = (x.transpose(1, 2) for x in tensors(2, rows, keys, 4, 4))
        close(la.scaled_dot_product_attention(q, k, v, is_causal=True),
              F.scaled_dot_product_attention(q, k, v, is_causal=True))
    with pytest.raises(libattn.UnsupportedError, match="float32 on a GPU"):
        la.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert la.scaled_dot_product_attention(q.float(), k.float(), v.float(), fallback="sdpa").dtype == torch.float32


def test_autocast_and_deterministic():
    q, k, v = tensors(dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.float16):
        o = la.attention(q, k, v)
    assert o.dtype == torch.float16
    close(o, wanted(q, k, v))


def test_cuda_graph_draws_new_dropout():
    q, k, v = tensors()
    for _ in range(2):
        la.attention(q, k, v, dropout_p=0.5)  # plans and kernels are made before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = la.attention(q, k, v, dropout_p=0.5)
    graph.replay()
    first = o.clone()
    graph.replay()
    assert not torch.equal(first, o) and torch.isfinite(o).all()


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = tensors(dtype=torch.float16)
    arrays = [cupy.from_dlpack(x) for x in (q, k, v)]
    torch.cuda.synchronize()
    o = libattn.attention(*arrays)
    assert isinstance(o, cupy.ndarray) and o.dtype == np.float16
    cupy.cuda.get_current_stream().synchronize()
    close(torch.from_dlpack(o), wanted(q, k, v))


class Raw:
    """A GPU array that shows nothing but __cuda_array_interface__."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = {"shape": tuple(tensor.shape), "typestr": "<f2", "version": 3, "strides": None,
                                         "data": (tensor.data_ptr(), False)}


def test_arrays_of_unknown_libraries_need_a_stream():
    q, k, v = tensors(dtype=torch.float16)
    raw = [Raw(x) for x in (q, k, v)]
    with pytest.raises(ValueError, match="stream"):
        libattn.attention(*raw)
    with pytest.raises(TypeError, match="out"):
        libattn.attention(*raw, stream=0)
    out = torch.empty_like(q)
    libattn.attention(*raw, out=Raw(out), stream=torch.cuda.current_stream())
    close(out, wanted(q, k, v))


@pytest.mark.parametrize("options", [{}, {"granularity": "token"}, {"granularity": "tensor"}, {"granularity": "channel"},
                                     {"block_rows": 128, "dtype": "int8"}])
def test_quantize_is_the_cpus_to_the_bit(options):
    q, k, _ = (x.detach() for x in tensors(dim=128))
    k8 = libattn.quantize(k, hadamard=True, subtract_mean=True, **options)
    of_k = libattn.quantize(k.cpu(), hadamard=True, subtract_mean=True, **options)
    q8 = libattn.quantize(q, hadamard=True, k_mean=k8.mean, **options)
    of_q = libattn.quantize(q.cpu(), hadamard=True, k_mean=of_k.mean, **options)
    for found, right in ((k8, of_k), (q8, of_q)):
        assert torch.equal(found.data.view(torch.uint8).cpu(), right.data.view(torch.uint8))
        for a, b in zip((found.scale, found.mean, found.dot), (right.scale, right.mean, right.dot)):
            assert a is b is None or torch.equal(a.cpu(), b)
        assert (found.rows, found.rotation) == (right.rows, right.rotation)
    lse = torch.randn(2, 4, 130, device="cuda")
    close(libattn.correct_lse(lse, q8.dot, dim=128), libattn.correct_lse(lse.cpu(), of_q.dot, dim=128), 1e-6)


def test_quantize_in_a_graph():
    """It is captured as it is, and replays over what its tensors then hold."""
    k = tensors(dim=128)[1].detach()
    libattn.quantize(k, hadamard=True, granularity="tensor")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        k8 = libattn.quantize(k, hadamard=True, granularity="tensor")
    for _ in range(2):
        k.normal_()
        graph.replay()
        right = libattn.quantize(k.cpu(), hadamard=True, granularity="tensor")
        assert torch.equal(k8.data.view(torch.uint8).cpu(), right.data.view(torch.uint8))
        assert torch.equal(k8.scale.cpu(), right.scale)


@pytest.mark.parametrize("rows", [2, 300])
def test_bytes(rows):
    """What quantize returns, bytes with scales of other forms, on another stream and in a graph: as on the CPU."""
    q, k, v = tensors(rows=rows, keys=300, dtype=torch.bfloat16)
    k8 = libattn.quantize(k + 1, hadamard=True, subtract_mean=True)
    q8 = libattn.quantize(q, hadamard=True, k_mean=k8.mean)
    v8 = libattn.quantize(v, granularity="channel")

    def on_cpu(x):
        if isinstance(x, libattn.Quantized):
            return libattn.Quantized(*map(on_cpu, x))
        return x.cpu() if isinstance(x, torch.Tensor) else x

    def check(*given, **options):
        o, lse = libattn.attention(*given, causal=True, return_lse=True, **options)
        torch.cuda.synchronize()
        options = {name: on_cpu(x) for name, x in options.items() if name != "stream"}
        right, right_lse = libattn.attention(*map(on_cpu, given), causal=True, return_lse=True, **options)
        assert o.is_cuda and o.dtype == right.dtype and lse.dtype == torch.float32
        size = right.float().abs().max()
        close(o.float() / size.cuda(), right.float() / size, 5e-2)
        close(lse, right_lse)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    check(q8, k8, v8)
    check(q8, k8, v8, stream=stream)
    shared = torch.full((), 0.02, device="cuda").expand(2, 2)  # strides of 0, as others make q_descale
    data = q8.data, k8.data, v8.data
    check(*data, q_scale=shared, k_scale=k8.scale, v_scale=0.5, out_dtype="float16", stream=stream)
    check(*data, q_scale=0.02, k_scale=0.02, out_dtype="float8_e4m3fn", o_scale=4.0)
    k8, v8 = (libattn.quantize(x, "int8", granularity="token") for x in (k, v))
    check(q, k8, v8)
    check(q, k8.data, v8.data, k_scale=k8.scale[..., 0], v_scale=0.01)
    wanted = libattn.attention(q, k8.data, v8.data, k_scale=0.02, v_scale=0.01)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = libattn.attention(q, k8.data, v8.data, k_scale=0.02, v_scale=0.01)
    graph.replay()
    close(o, wanted)
    with pytest.raises(libattn.InvalidError, match="k_scale is on the CPU, q on GPU"):
        libattn.attention(q, k8.data, v8.data, k_scale=torch.ones(2))
    with pytest.raises(libattn.UnsupportedError, match="out_dtype = .* is computed on the CPU alone"):
        libattn.attention(q, k8.data, v8.data, out_dtype="float16")


@pytest.mark.parametrize("rows", [1, 200])
def test_q_of_bytes_over_a_cache(rows):
    """With new tokens in floats and in bytes, scales of every place, on another stream: as on the CPU."""
    q, k, v = tensors(rows=rows, keys=rows, dtype=torch.bfloat16)
    k_cache, v_cache = (torch.randn(12, 64, 2, 64, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    table = torch.randperm(12, device="cuda").int().reshape(2, 6)
    seqlens = torch.tensor([130, 7], device="cuda", dtype=torch.int32)
    q8, stream = libattn.quantize(q, scale_heads=2), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    shared = torch.full((), 0.02, device="cuda").expand(2, 2)
    for given, tokens, options in (
            (q8, (k, v), {}), (q8, (), {"stream": stream}),
            (q8.data, (k, v), {"q_scale": shared, "k_scale": 0.5, "out_dtype": "float16"}),
            (q8.data, [x.to(torch.float8_e4m3fn) for x in (k, v)], {"q_scale": 0.02, "v_scale": shared * 10}),
            (q8.data, (), {"q_scale": q8.scale, "out_dtype": "float8_e4m3fn", "o_scale": 0.05})):
        results = []
        for place in ("cpu", "cuda"):
            def move(x):
                return x.to(place) if isinstance(x, torch.Tensor) else x

            moved = libattn.Quantized(*map(move, given)) if isinstance(given, libattn.Quantized) else move(given)
            caches = [x.to(place, copy=True) for x in (k_cache, v_cache)]
            there = {name: move(x) for name, x in options.items() if place == "cuda" or name != "stream"}
            o, lse = libattn.attention_with_kvcache(
                moved, *caches, *map(move, tokens), cache_seqlens=move(seqlens), page_table=move(table), causal=True,
                return_lse=True, **there)
            torch.cuda.synchronize()
            results.append((o, lse, *caches))
        (right, right_lse, *written), (o, lse, *caches) = results
        assert o.is_cuda and o.dtype == right.dtype
        size = right.float().abs().max()
        close(o.float() / size.cuda(), right.float() / size, 0.13 if "o_scale" in options else 5e-2)
        close(lse, right_lse)
        assert all(torch.equal(a.cpu().view(torch.uint8), b.view(torch.uint8)) for a, b in zip(caches, written))
