"""What test_emulated.py runs in a process of its own, with the driver of tests/emulated_gpu in place of CUDA's: the
package's way to a GPU, whose memory is the host's there. CuPy is played by a few lines around NumPy."""
import contextlib
import ctypes
import sys
import threading
import types

import numpy as np

driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
for status in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               driver.cuCtxSetCurrent(context)):
    assert status == 0


class Device(contextlib.nullcontext):
    id = 0


class Array:
    """An array on the GPU, as CuPy's: what is in `a` the host must not look at before the stream is done."""

    device = Device()

    def __init__(self, a):
        self.a = np.asarray(a)
        self.__cuda_array_interface__ = {"shape": self.a.shape, "typestr": self.a.dtype.str, "version": 3,
                                         "strides": self.a.strides, "data": (self.a.ctypes.data, False)}

    shape = property(lambda self: self.a.shape)
    dtype = property(lambda self: self.a.dtype)

    def __add__(self, other):
        return Array(self.a + getattr(other, "a", other))

    def __sub__(self, other):
        return Array(self.a - other.a)

    def __mul__(self, number):
        return Array(self.a * number)

    def __getitem__(self, key):
        return Array(self.a[key])

    def reshape(self, *shape):
        return Array(self.a.reshape(*shape))


class Stream(contextlib.nullcontext):
    used = []

    def __init__(self, ptr=0):
        super().__init__()
        self.ptr = ptr

    def __enter__(self):
        Stream.used.append(self.ptr)


class Memory:
    def __init__(self, size):
        self.a = np.empty(size, np.uint8)
        self.ptr = self.a.ctypes.data


cupy = types.ModuleType("cupy")
cupy.ndarray, cupy.int32 = Array, np.int32
for name in ("full", "arange", "empty", "zeros"):
    setattr(cupy, name, lambda *args, _make=getattr(np, name), **options: Array(_make(*args, **options)))
cupy.cuda = types.SimpleNamespace(get_current_stream=Stream, ExternalStream=Stream, alloc=Memory)
sys.modules["cupy"] = cupy

import libattn  # noqa: E402
from libattn import _problem, _run  # noqa: E402

random = np.random.default_rng(5)
LSE_OF_BYTES = 4e-2  # E4M3 kernels add P as they rounded it: docs/FP8.md


def normal(*shape, dtype=np.float16):
    return random.standard_normal(shape).astype(dtype)


def up(values):
    return {name: Array(x.copy()) if isinstance(x, np.ndarray) else x for name, x in values.items()}


def close(found, wanted, tolerance):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def done():
    assert driver.cuCtxSynchronize() == 0


def problem(new=2, packed=False, page_size=8, rotary_dim=8, dtype=np.float16):
    lead = (2 * new,) if packed else (2, new)
    given = {"q": normal(*lead, 4, 16, dtype=dtype), "k": normal(*lead, 2, 16, dtype=dtype),
             "v": normal(*lead, 2, 16, dtype=dtype), "k_cache": normal(9, page_size, 2, 16, dtype=dtype),
             "v_cache": normal(9, page_size, 2, 16, dtype=dtype), "cache_seqlens": np.array([13, 3], np.int32),
             "page_table": np.array([[7, 1, 4, 6], [2, 8, 0, 3]], np.int32)}
    if packed:
        given.update(cu_lens_q=np.array([0, new, 2 * new], np.int32), max_len_q=new)
    if rotary_dim:
        given.update(rotary_cos=normal(40, rotary_dim // 2, dtype=np.float32), rotary_interleaved=rotary_dim == 8,
                     rotary_sin=normal(40, rotary_dim // 2, dtype=np.float32))
    return given


def attention():
    host = [normal(2, rows, heads, 64) for rows, heads in ((5, 4), (70, 2), (70, 2))]
    for stream in ({}, {"stream": 0}):
        gpu = [Array(x) for x in host]
        o, lse = libattn.attention(*gpu, causal=True, return_lse=True, **stream)
        grad = libattn.attention_backward(o, *gpu, o, lse, causal=True, **stream)
        done()
        wanted, wanted_lse = libattn.attention(*host, causal=True, return_lse=True)
        close(o.a, wanted, 2e-3)
        right = libattn.attention_backward(o.a, *host, o.a, lse.a, causal=True)
        for found, expected in zip((lse.a, grad.q.a, grad.k.a, grad.v.a), (wanted_lse, right.q, right.k, right.v)):
            close(found, expected, 1e-2)


def plans():
    """The plan of tensors says where they lie, as that of attention does; of shapes what `alignment` says."""
    def lying(shift):
        raw = np.zeros(70 * 2 * 64 * 2 + 32, np.uint8)
        first = -raw.ctypes.data % 16 + shift
        return Array(raw[first:first + 70 * 2 * 64 * 2].view(np.float16).reshape(1, 70, 2, 64))

    shapes = [(1, 70, 2, 64)] * 3
    for shift in (0, 2, 4, 8):
        plan = libattn.plan(lying(0), lying(0), lying(shift))
        named = libattn.plan(*shapes, dtype="float16", device="cuda", alignment=shift or None)
        assert (f"addresses of {shift} bytes" in plan.explain()) == bool(shift), plan.explain()
        assert (plan.explain(), plan.workspace_bytes) == (named.explain(), named.workspace_bytes)
        made = []
        prepare = _problem.Problem.prepare
        _problem.Problem.prepare = lambda self: made.append(prepare(self)) or made[-1]
        libattn.attention(lying(0), lying(0), lying(shift))
        _problem.Problem.prepare = prepare
        assert [by.workspace for by in made] == [plan.workspace_bytes]
    done()
    for wrong in (0, 3, 32, -2):
        refuses(f"alignment is {wrong}; it takes 1, 2, 4, 8 or 16",
                lambda: libattn.plan(*shapes, device="cuda", alignment=wrong))


def in_a_thread():
    """A thread that has no CUDA context gets that of the tensor's GPU, as torch's threads need it."""
    failed = []

    def run():
        try:
            own = ctypes.c_void_p()
            driver.cuCtxGetCurrent(ctypes.byref(own))
            assert not own.value
            attention()
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed, failed


def growing():
    """A cache as torch.cat makes it, head by head: the decode kernel's plan serves lengths up to the next rounded one,
    at other strides. A bias has strides along keys: each length has a plan of its own."""
    for more, plans in (({}, 2), ({"lens_kv": [60, 9]}, 2), ({"softcap": 2.0, "bias": True}, 4)):
        libattn.clear_plans()
        for keys in (66, 67, 80, 81):
            q, k, v = normal(2, 1, 4, 64), normal(2, 2, keys, 64), normal(2, 2, keys, 64)
            host = {"q": q, "k": k.transpose(0, 2, 1, 3), "v": v.transpose(0, 2, 1, 3)}
            options = dict(more)
            if "lens_kv" in more:
                options["lens_kv"] = np.array(more["lens_kv"], np.int32)
            if "bias" in more:
                options["bias"] = normal(1, 4, 1, keys)
            gpu = {name: Array(x) for name, x in host.items()}
            o = libattn.attention(**gpu, **up(options))
            done()
            close(o.a, libattn.attention(**host, **options), 2e-3)
        made = sum(value.plan.info["isa"].startswith("sm_") for value in _run._plans.values())
        assert made == plans, (more, made)


def caches():
    for options in ({}, {"packed": True}, {"page_size": 5, "rotary_dim": 16}, {"new": 1, "rotary_dim": 0},
                    {"dtype": np.float32, "rotary_dim": 6}):
        for more in ({}, {"causal": True, "window": (9, None), "deterministic": True}, {"stream": 0}):
            host = problem(**options)
            gpu = up(host)
            stream = {"stream": more["stream"]} if "stream" in more else {}
            o, lse = libattn.attention_with_kvcache(**gpu, return_lse=True, **more)
            done()
            wanted = libattn.attention_with_kvcache(**host, return_lse=True, **more)
            assert isinstance(o, Array) and o.dtype == host["q"].dtype and lse.dtype == np.float32
            close(o.a, wanted[0], 2e-3)
            close(lse.a, wanted[1], 2e-3)
            for name in ("k_cache", "v_cache"):  # rotary is the same to the bit on every device
                assert np.array_equal(gpu[name].a, host[name])
            again = libattn.attention_with_kvcache(**gpu, return_lse=True, **more)
            append = {name: gpu[name] for name in gpu if name not in ("q", "cu_lens_q", "max_len_q")}
            if options.get("packed"):
                append["cu_lens"] = gpu["cu_lens_q"]
            q = libattn.append_kvcache(**append, q=gpu["q"] if "rotary_cos" in gpu else None, **stream)
            done()
            assert np.array_equal(again[0].a, o.a) and np.array_equal(gpu["k_cache"].a, host["k_cache"])
            rest = {name: gpu[name] for name in ("k_cache", "v_cache", "page_table", "cu_lens_q", "max_len_q")
                    if name in gpu}
            apart = libattn.attention_with_kvcache(gpu["q"] if q is None else q, return_lse=True, **rest, **more,
                                                   cache_seqlens=gpu["cache_seqlens"] + (options.get("new", 2)))
            done()
            assert np.array_equal(apart[0].a, o.a) and np.array_equal(apart[1].a, lse.a)
    assert 0 in Stream.used


def one_stretch_for_each():
    host = {"q": normal(2, 1, 4, 16), "k_cache": normal(2, 24, 2, 16), "v_cache": normal(2, 24, 2, 16),
            "k": normal(2, 1, 2, 16), "v": normal(2, 1, 2, 16), "cache_seqlens": 7}
    gpu = up(host)
    o = libattn.attention_with_kvcache(**gpu)
    done()
    close(o.a, libattn.attention_with_kvcache(**host), 2e-3)
    assert np.array_equal(gpu["k_cache"].a, host["k_cache"])


def masks():
    """A tree of drafts, positions and limits: what the host's kernels give."""
    tree = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
    bits = np.packbits(tree, -1, bitorder="little")[None, None]
    depth = np.array([0, 1, 1, 2])
    for options in ({}, {"packed": True}, {"page_size": 5}):
        host = problem(new=4, **options)
        positions = host["cache_seqlens"][:, None] + depth
        first = {"bits": bits, "bits_keys": 4, "first_kv": np.array([2, 0], np.int32), "max_len_kv": 20,
                 "rotary_positions": positions.ravel() if options.get("packed") else positions}
        for more in (first, {"bits": np.full((2, 1, 4, -(-4 * host["k_cache"].shape[1] // 8)), 0x5b, np.uint8)},
                     {"position_q": np.array([20, 9]), "position_kv": np.array([3, 4]), "causal": True,
                      "window": (9, None)}, {"prefix": np.array([4, 0], np.int32), "causal": True,
                                             "window": (2, None), "visible_share": 0.5}):
            given = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in dict(host, **more).items()}
            gpu = up(given)
            o, lse = libattn.attention_with_kvcache(**gpu, return_lse=True)
            done()
            wanted = libattn.attention_with_kvcache(**given, return_lse=True)
            close(o.a, wanted[0], 2e-3)
            close(lse.a, wanted[1], 2e-3)
            assert np.array_equal(gpu["k_cache"].a, given["k_cache"])
    gpu = up(dict(host, mask=tree, bits_keys=4))
    refuses("mask is on a GPU: pass bits", lambda: libattn.attention_with_kvcache(**gpu))


def cascades():
    pool = libattn.Pool(pages=32, page_size=8, sequences=8, width=6)
    root = pool.create()
    pool.append(root, count=24)
    seqs = [pool.fork(root) for _ in range(4)]
    for seq, count in zip(seqs, (2, 9, 3, 12)):
        pool.append(seq, count=count)
    host = {"q": normal(6, 4, 16), "k_cache": normal(32, 8, 2, 16), "v_cache": normal(32, 8, 2, 16)}
    levels = pool.levels(seqs, [0, 2, 4, 4, 6], shared=2)
    gpu, there = up(host), [tuple(map(Array, level[:3])) for level in levels]
    for more in ({"causal": True}, {"max_len_kv": [24, 24, 12], "softcap": 3.0}):
        wanted = libattn.attention_cascade(**host, levels=levels, return_lse=True, **more)
        for stream in ({}, {"stream": 0}):
            fault = Array(np.zeros(1, np.uint32))
            o, lse = libattn.attention_cascade(**gpu, levels=there, max_len_q=2, return_lse=True, fault=fault, **more,
                                               **stream)
            done()
            assert isinstance(o, Array) and o.dtype == np.float16 and fault.a.tolist() == [0]
            close(o.a, wanted[0], 2e-3)
            close(lse.a, wanted[1], 2e-3)
    plan = libattn.plan_cascade(**gpu, levels=there, max_len_q=2, causal=True)
    assert plan.info["seconds"] > 0 and "merge of 3 parts" in plan.explain()
    far = [(there[0][0], Array(levels[0].lens_kv + 99), there[0][2]), *there[1:]]
    libattn.attention_cascade(**gpu, levels=far, max_len_q=2, fault=fault)
    done()
    assert fault.a.tolist() == [1]
    refuses("max_len_q is needed", lambda: libattn.attention_cascade(**gpu, levels=there))
    refuses("levels[0].lens_kv is on the CPU", lambda: libattn.attention_cascade(
        **gpu, levels=[(there[0][0], levels[0].lens_kv, there[0][2]), *there[1:]], max_len_q=2))


def faults():
    host = problem(rotary_dim=0)
    for name, wrong in (("page_table", np.array([[7, 99, 4, 6], [2, 8, 0, 3]], np.int32)),
                        ("cache_seqlens", np.array([31, 3], np.int32))):
        gpu = up(dict(host, fault=np.zeros(1, np.uint32), **{name: wrong}))
        o = libattn.attention_with_kvcache(**gpu)
        done()
        assert gpu["fault"].a.tolist() == [1], name
        close(o.a[1], libattn.attention_with_kvcache(**{key: x.copy() for key, x in host.items()})[1], 2e-3)
        full = [1, 4, 7]  # of sequence 0; page 6 has room for the first of the tokens that are too many
        assert np.array_equal(gpu["k_cache"].a[full], host["k_cache"][full])
    gpu = up(dict(host, fault=np.zeros(1, np.uint32)))
    libattn.attention_with_kvcache(**gpu)
    done()
    assert gpu["fault"].a.tolist() == [0]


def merging():
    for dtype in (np.float16, np.float32):
        o = [normal(2, 3, 4, 8, dtype=dtype) for _ in range(3)]
        lse = [normal(2, 4, 3, dtype=np.float32) for _ in range(3)]
        wanted = libattn.merge_states(o, lse)
        found = libattn.merge_states([Array(x) for x in o], [Array(x) for x in lse])
        done()
        close(found[0].a, wanted[0], 2e-3)
        close(found[1].a, wanted[1], 1e-5)


def quantising():
    """The bits that the host has."""
    q, k = normal(2, 70, 4, 32), normal(2, 90, 2, 32)
    for stream in ({}, {"stream": 0}):
        mean = None
        for x, options in ((k, {"hadamard": True, "subtract_mean": True}), (q, {"hadamard": True, "k_mean": 0}),
                           (k, {"granularity": "channel"}), (k, {"granularity": "tensor"}),
                           (q, {"granularity": "token", "scale_heads": 2})):
            on_host = dict(options, k_mean=mean) if "k_mean" in options else options
            wanted = libattn.quantize(x, "int8", **on_host)
            mean = wanted.mean if wanted.mean is not None else mean
            found = libattn.quantize(Array(x), "int8", **up(on_host), **stream)
            done()
            for a, b in zip(found[:4], wanted[:4]):
                assert (a is None) == (b is None) and (a is None or np.array_equal(a.a, b)), options
        lse = normal(2, 4, 70, dtype=np.float32)
        dot = libattn.quantize(Array(q), "int8", k_mean=Array(mean), **stream).dot
        done()
        corrected = libattn.correct_lse(Array(lse), dot, dim=32)
        close(corrected.a, lse + np.einsum("bihd,bhd->bhi", q, np.repeat(mean, 2, 1)) * 32 ** -0.5, 1e-4)
    cu = np.array([0, 60, 60, 88], np.int32)
    packed = libattn.quantize(k[0], "int8", cu_lens=cu, max_len=60)
    found = libattn.quantize(Array(k[0]), "int8", cu_lens=Array(cu), max_len=60)
    done()
    assert np.array_equal(found.data.a, packed.data) and np.array_equal(found.scale.a, packed.scale)
    refuses("max_len is needed where cu_lens is on a GPU", lambda: libattn.quantize(
        Array(k[0]), "int8", cu_lens=Array(cu)))
    refuses("cu_lens is on the CPU", lambda: libattn.quantize(Array(k[0]), "int8", cu_lens=cu, max_len=60))
    refuses("k_mean is on the CPU", lambda: libattn.quantize(Array(q), "int8", k_mean=mean))
    refuses("threads is set: ATTN_CUDA takes none", lambda: libattn.quantize(Array(q), "int8", threads=1))


def of_bytes():
    """What the host gives, of few rows and of many, with scales of each form; numbers lie on the GPU, too."""
    def positive(*shape):
        return (0.5 * 4 ** random.random(shape)).astype(np.float32)

    def tensors(rows, of_q, of_kv):
        shapes = (2, rows, 4, 64), (2, 200, 2, 64), (2, 200, 2, 64)
        return {name: (normal(*shape) * (40 if dtype == np.int8 else 1)).astype(dtype)
                for name, shape, dtype in zip("qkv", shapes, (of_q, of_kv, of_kv))}

    def both(host, **options):
        found = libattn.attention(**up(host), **up(options), return_lse=True)
        done()
        options.pop("stream", None)
        wanted = libattn.attention(**host, **options, return_lse=True)
        assert found[0].dtype == wanted[0].dtype
        size = np.abs(wanted[0].astype("f")).max()
        close(found[0].a.astype("f") / size, wanted[0].astype("f") / size, 5e-2)
        close(found[1].a, wanted[1], LSE_OF_BYTES)

    kinds = [(np.float16, np.int8, 2e-3)]
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        kinds.append((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 0.1))
    for of_q, of_kv, scale in kinds:
        for rows in (2, 130):
            host = tensors(rows, of_q, of_kv)
            q = {} if of_q == np.float16 else {"q_scale": positive(2, -(-rows // 64), 4, 1) if rows > 64 else 0.7}
            both(host, scale=scale, **q)
            both(host, scale=scale, k_scale=0.7, v_scale=0.01, causal=True, stream=0, **q)
            both(host, scale=scale, k_scale=positive(2, 4, 2, 1), v_scale=positive(2, 1, 2, 64) / 64, **q)
            both(host, scale=scale, k_scale=np.broadcast_to(positive(1), (2, 2)), v_scale=positive(2, 200, 2) / 64, **q)
            if q:
                both(host, scale=scale, out_dtype="float16")
    libattn.clear_plans()
    for width in (80, 72, 65):  # bytes from row to row: no plan serves two of them
        host = tensors(2, np.float16, np.int8)
        raw = [np.zeros(2 * 200 * 2 * width + 16, np.int8) for _ in range(2)]
        for name, buffer in zip("kv", raw):
            wide = buffer[-buffer.ctypes.data % 16:][:2 * 200 * 2 * width].reshape(2, 200, 2, width)[..., :64]
            wide[:] = host[name]
            host[name] = wide
        found = libattn.attention(Array(host["q"]), Array(host["k"]), Array(host["v"]), scale=2e-3)
        done()
        close(found.a / 127, libattn.attention(**host, scale=2e-3) / 127, 2e-2)
    made = [plan.grows for plan in _run._plans.values() if plan.plan.info["isa"].startswith("sm_")]
    assert made == [True] + 4 * [False]  # a decode kernel reads whole words of the first alone
    host = problem(rotary_dim=0)
    for name in ("k_cache", "v_cache"):
        host[name] = (host[name] * 30).astype(np.int8)
    gpu = up(host)
    o = libattn.attention_with_kvcache(**gpu, k_scale=0.05, v_scale=0.02)
    done()
    close(o.a, libattn.attention_with_kvcache(**host, k_scale=0.05, v_scale=0.02), 2e-3)
    assert np.array_equal(gpu["k_cache"].a, host["k_cache"])
    if len(kinds) > 1:
        over_cache_of_e4m3(positive, kinds[1][0])
        host = tensors(130, *kinds[1][:2])
        given = up(host)
        bias = np.zeros(130 * 200 + 8, np.float16)
        bias = bias[-bias.ctypes.data % 16 // 2 + 1:][:130 * 200].reshape(1, 1, 130, 200)
        assert "addresses of 2 bytes" in libattn.plan(**given, bias=Array(bias)).explain()
        o = libattn.attention(**given, out_dtype="float8_e4m3fn", o_scale=0.01)
        done()
        wanted = libattn.attention(**host, out_dtype="float8_e4m3fn", o_scale=0.01)
        assert o.dtype == wanted.dtype == ml_dtypes.float8_e4m3fn
        close(o.a.astype("f") / 100, wanted.astype("f") / 100, 7e-2)  # a step of e4m3 is an eighth
        refuses("k_scale is on the CPU, q on GPU 0", lambda: libattn.attention(**given, k_scale=positive(2, 2)))
        refuses("list is no tensor", lambda: libattn.attention(**given, k_scale=[1.0]), TypeError)
        raw = dict(given, q=Raw(given["q"]))
        raw["q"].dtype = given["q"].dtype
        refuses("k_scale: no library is known to make it on the GPU", lambda: libattn.attention(
            **raw, k_scale=1.0, stream=0), TypeError)
        of_q = libattn.quantize(Array(normal(2, 130, 4, 64)), k_mean=Array(np.ones((2, 2, 64), np.float32)))
        of_k = libattn.quantize(Array(normal(2, 200, 2, 64)), subtract_mean=True)
        refuses("q.dot is on the CPU, q on GPU 0", lambda: libattn.attention(
            of_q._replace(dot=of_q.dot.a), of_k, of_k.data, return_lse=True))
        for stream in ({}, {"stream": 0}):
            k8 = libattn.quantize(Array(normal(2, 200, 2, 64) + 1), hadamard=True, subtract_mean=True)
            q8 = libattn.quantize(Array(normal(2, 130, 4, 64)), hadamard=True, k_mean=k8.mean)
            v8 = libattn.quantize(Array(normal(2, 200, 2, 64)), granularity="channel")
            o, lse = libattn.attention(q8, k8, v8, causal=True, return_lse=True, **stream)
            done()
            host = [libattn.Quantized(*(getattr(x, "a", x) for x in given)) for given in (q8, k8, v8)]
            wanted = libattn.attention(*host, causal=True, return_lse=True)
            close(o.a, wanted[0], 3e-2)
            close(lse.a, wanted[1], LSE_OF_BYTES)
    named = libattn.plan((2, 130, 4, 64), (2, 200, 2, 64), dtype="float8_e4m3fn", device="cuda", k_scale=0.5)
    assert "k_scale per tensor" in named.explain()


def over_cache_of_e4m3(positive, e4m3):
    """q of bytes, of few rows and of many, with new tokens in floats, in bytes and without."""
    for new, packed in ((2, False), (2, True), (12, False)):
        host = problem(new=new, packed=packed, rotary_dim=0)
        for name in ("q", "k_cache", "v_cache"):
            host[name] = host[name].astype(e4m3)
        host.update(k_scale=0.5, v_scale=positive(2, 2), return_lse=True, causal=True)
        for tokens, q_scale in ((np.float16, 0.7), (e4m3, positive(2, 4)), (None, positive(2, new, 2)),
                                (None, np.broadcast_to(positive(1), (2, 2)))):
            host.update({name: tokens and host[name].astype(tokens) for name in "kv"}, q_scale=q_scale)
            gpu = up(host)
            gpu["q_scale"] = Array(q_scale) if isinstance(q_scale, np.ndarray) else q_scale  # of its strides
            found = libattn.attention_with_kvcache(**gpu)
            done()
            wanted = libattn.attention_with_kvcache(**host)
            assert found[0].dtype == wanted[0].dtype == "bfloat16"
            size = np.abs(wanted[0].astype("f")).max()
            close(found[0].a.astype("f") / size, wanted[0].astype("f") / size, 5e-2)
            close(found[1].a, wanted[1], LSE_OF_BYTES)
            for name in ("k_cache", "v_cache"):
                assert np.array_equal(gpu[name].a.view("B"), host[name].view("B"))
        o = libattn.attention_with_kvcache(**dict(gpu, out_dtype="float8_e4m3fn", o_scale=0.01, return_lse=False))
        done()
        wanted = libattn.attention_with_kvcache(**dict(host, out_dtype="float8_e4m3fn", o_scale=0.01, return_lse=False))
        close(o.a.astype("f") / 100, wanted.astype("f") / 100, 0.13)
    refuses("q_scale is on the CPU, q on GPU 0",
            lambda: libattn.attention_with_kvcache(**dict(gpu, q_scale=positive(2, 4))))


def refuses(match, call, kind=libattn.InvalidError):
    try:
        call()
    except kind as problem:
        assert match in str(problem), f"{problem!r} does not say {match!r}"
        return
    raise AssertionError(f"{match}: nothing was raised")


class Raw:
    """An array of a library that is neither torch nor CuPy."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def mistakes():
    host = problem()
    gpu = up(host)
    before = gpu["k_cache"].a.copy()
    for match, wrong in (
            ("k is on the CPU, k_cache on GPU 0", {"k": host["k"]}), ("cache_seqlens is on the CPU",
                                                                        {"cache_seqlens": host["cache_seqlens"]}),
            ("page_table is on the CPU", {"page_table": host["page_table"]}),
            ("rotary_cos is on the CPU", {"rotary_cos": host["rotary_cos"]}),
            ("takes packed int32", {"page_table": Array(host["page_table"].astype(np.int64))}),
            ("takes packed float32", {"rotary_cos": Array(host["rotary_cos"].astype(np.float16))}),
            ("fault is int64", {"fault": Array(np.zeros(1, np.int64))}), ("threads is set", {"threads": 2}),
            ("fault is on the CPU", {"fault": np.zeros(1, np.uint32)}),
            ("max_len_q is needed", {"cu_lens_q": Array(np.array([0, 2, 4], np.int32))}),
            ("v has heads and dim", {"v": Array(host["v"][..., :8].copy())}), ("scale", {"scale": -1})):
        refuses(match, lambda: libattn.attention_with_kvcache(**dict(gpu, **wrong)))
        assert np.array_equal(gpu["k_cache"].a, before), match
    refuses("out_lse is on the CPU, o[0] on GPU 0", lambda: libattn.merge_states(
        [gpu["q"]] * 2, [Array(normal(2, 4, 2, dtype=np.float32))] * 2, out_lse=normal(2, 4, 2, dtype=np.float32)))
    raw = dict(gpu, q=Raw(gpu["q"]))
    refuses("stream: is needed", lambda: libattn.attention_with_kvcache(**raw), ValueError)
    refuses("q is Raw", lambda: libattn.attention_with_kvcache(**raw, stream=0), TypeError)


for test in (attention, plans, in_a_thread, growing, caches, one_stretch_for_each, masks, cascades, faults, merging,
             quantising, of_bytes, mistakes):
    test()
    print(test.__name__, "passed", flush=True)
