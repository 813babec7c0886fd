"""Whatever is wrong raises an exception that names it; nothing crashes, and nothing is written."""
import gc

import numpy as np
import pytest

import libattn


def refuses(match, *tensors, kind=libattn.InvalidError, **options):
    with pytest.raises(kind, match=match):
        libattn.attention(*tensors, **options)


@pytest.mark.parametrize("name", ["kernel", "strategy"])
def test_text_with_a_nul_is_refused(make, name):
    q, k, v = make()
    taken = getattr(libattn.plan(q, k, v), "info")[name]
    libattn.attention(q, k, v, **{name: taken})
    for text in (taken + "\0", taken + "\0nonsense", "\0"):
        with pytest.raises(libattn.InvalidError, match=f"{name} is .*without NUL"):
            libattn.attention(q, k, v, **{name: text})
    with pytest.raises(libattn.InvalidError, match="path is .*without NUL"):
        libattn.machine_use("cpu\0")


def test_shapes_and_types(make):
    q, k, v = make()
    refuses("q has shape", q[0], k, v)
    refuses("k has shape", q, k[0], v)
    refuses("k is float32, where it takes float64, as q is", q.astype(np.float64), k, v)
    refuses("q is int64", q.astype(np.int64), k, v)
    refuses("ATTN_OUT_F32", *(x.astype(np.float64) for x in (q, k, v)), out_f32=True)
    refuses("k is float16, where it takes float32", q, k.astype(np.float16), v)
    refuses("all but their last", q, k, v[:, :-1])
    refuses("q has dim 24 and k 23", q, k[..., :-1], v)
    refuses("4 heads, k and v 3", q, np.zeros((2, 13, 3, 24), "f"), np.zeros((2, 13, 3, 24), "f"))
    refuses("batch of 2", q, k[:1], v[:1])
    refuses("at least 1", q, k[:, :, :0], v[:, :, :0])
    refuses("at least 1", q, k, v[..., :0])
    refuses("last dimension must be contiguous", q, k.repeat(2, -1)[..., ::2], v)
    refuses("byte order", q.astype(">f4"), k, v, kind=TypeError)
    refuses("list is no tensor", [[1.0]], k, v, kind=TypeError)
    refuses("masked array", np.ma.masked_array(q), k, v, kind=TypeError)
    odd = np.zeros(q.size * 5, np.uint8).view([("x", "f4"), ("y", "u1")])["x"].reshape(q.shape)
    refuses("no multiples", odd, k, v, kind=ValueError)
    refuses("dim_qk", *[np.zeros((1, 2, 1, 600), "f")] * 3)
    nothing = np.random.default_rng(0).standard_normal((0, 5, 4, 24)).astype("f")  # NumPy gives it strides of 0
    assert libattn.attention(nothing, nothing[:, :, :2], nothing[:, :, :2]).shape == (0, 5, 4, 24)


def test_options(make):
    q, k, v = make()
    refuses("scale is 0", q, k, v, scale=0)
    refuses("scale", q, k, v, scale=float("nan"))
    refuses("softcap", q, k, v, softcap=-1.0)
    refuses("dropout_p", q, k, v, dropout_p=1.5)
    refuses("window is 5", q, k, v, window=5)
    refuses("window_left", q, k, v, window=(-2, 0))
    refuses("chunk", q, k, v, chunk=0)
    refuses("isa is 'sse'", q, k, v, isa="sse")
    refuses("no-such-kernel", q, k, v, kernel="no-such-kernel", kind=libattn.Error)
    refuses("strategy", q, k, v, strategy="no-such-word")
    refuses("threads", q, k, v, threads=-1)
    refuses("threads is 1180591620717411303424", q, k, v, threads=1 << 70)
    refuses("chunk is 1.5", q, k, v, chunk=1.5)
    refuses("softcap is 'ten'", q, k, v, softcap="ten")
    refuses("window is .1, 2, 3.", q, k, v, window=[1, 2, 3])
    refuses("seed is -1", q, k, v, dropout_p=0.5, seed=-1)
    refuses("seed_offset is", q, k, v, dropout_p=0.5, seed_offset=1 << 32)
    refuses("seed is float32", q, k, v, dropout_p=0.5, seed=np.zeros(1, "f"))
    with pytest.raises(TypeError):
        libattn.attention(q, k, v, casual=True)


def test_tables(make):
    q, k, v = make()
    refuses(r"lens_kv\[1\]", q, k, v, lens_kv=[1, 14])
    refuses("lens_kv", q, k, v, lens_kv=[1, -1])
    refuses("lens_kv has shape", q, k, v, lens_kv=[1, 2, 3])
    refuses("beyond int32", q, k, v, lens_kv=[1, 1 << 40])
    refuses("lens_kv is float64", q, k, v, lens_kv=[1.0, 2.0], kind=TypeError)
    refuses("sink has shape", q, k, v, sink=[1.0])
    refuses(r"alibi has shape \(3,\); it takes \(4,\) or \(1, 4\)$", q[:1], k[:1], v[:1], alibi=[1.0] * 3)
    for causal, vectors in ((False, 1), (False, 3), (True, 4)):
        refuses(rf"intervals has shape \(2, 1, 13, {vectors}\); its last dimension is", q, k, v, causal=causal,
                intervals=np.zeros((2, 1, 13, vectors), np.int32))
    refuses("alibi", q, k, v, alibi=np.array([1, 2, np.inf, 3], "f"))
    refuses("bias has shape", q, k, v, bias=np.zeros((3, 13), "f"))
    refuses("bias is float64", q, k, v, bias=np.zeros((9, 13)))
    refuses("mask is int32", q, k, v, mask=np.zeros((9, 13), np.int32))
    refuses("mask has shape .9, 12.", q, k, v, mask=np.zeros((9, 12), bool))
    refuses("mask.* has shape", q, k, v, mask=np.zeros((8, 13), bool))
    refuses("mean the same", q, k, v, mask=np.zeros((9, 13), bool), bits=np.zeros((1, 1, 9, 2), np.uint8))
    refuses("intervals", q, k, v, intervals=np.full((2, 1, 13, 2), 10, np.int32))
    refuses("block", q, k, v, blocks=libattn.Blocks(9, 13, [[[1]]], [[[[4]]]]))
    refuses("belong together", q, k, v, blocks=libattn.Blocks(9, 13, [[[1]]]))
    refuses("neither full nor partial", q, k, v, blocks=libattn.Blocks(9, 13))
    refuses("at least 1", q, k, v, blocks=libattn.Blocks(0, 13, [[[1]]], [[[[0]]]]))
    refuses("libattn.Blocks", q, k, v, blocks=(1, 2), kind=TypeError)
    q, k, v = q[0], k[0], v[0]
    for cu, match in (([0, 4], "cu_lens_kv has shape"), ([0, 4, 20], r"cu_lens_q\[2\] = 20 exceeds the 9 rows"),
                      ([1, 4, 9], "cu_lens"), ([0, 5, 4], "cu_lens")):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention_varlen(q, k, v, cu, [0, 6, 13])
    with pytest.raises(libattn.InvalidError, match="cu_lens"):
        libattn.attention_varlen(q, k, v, [0, 4, 9], [0, 6, 13], max_len_q=3)


def odd_values(tensors):
    """What somebody may pass for anything."""
    numbers = [None, 0, 1, -1, 3, 1 << 31, 1 << 40, 1.5, float("nan"), "x", b"y", [], [1], [[1]], [1, 2, 3], (1, 2),
               (None, None), (1 << 40, 0), {}, object(), True]
    shapes = [(0,), (), (1,), (2,), (3,), (4,), (9, 13), (2, 4, 9, 13), (1, 1, 9, 2), (2, 1, 13, 1), (2, 2, 13, 4),
              (2, 4), (3, 0), (0, 3), (2, 13, 2, 0), (2, 13, 0, 24), (0, 13, 2, 24), (9, 4, 24), (2, 13, 2, 48)]
    arrays = [np.full(shape, value, dtype) for shape in shapes for value, dtype in (
        (0, "f"), (np.nan, "f"), (0, np.float16), (0, bool), (0, np.int32), (-1, np.int32), (99, np.int32),
        (1 << 30, np.int64), (7, np.uint8), (0, complex), (0, object), (0, ">f4"))]
    lists = [libattn.Blocks(4, 5, *(np.full((1, 1, 3, *more), x, np.int32) for x, more in ((count, ()), (at, (3,)))))
             for count, at in ((0, 0), (9, 0), (2, 7), (-1, -1))]
    masks = libattn.masks
    return [*numbers, *arrays, *lists, libattn.Blocks("a", 2, 1, 1), masks.causal, masks.window(2, 1),
            masks.documents(3), masks.documents(np.arange(13) // 4), masks.prefix([1, 2]), masks.chunk(0),
            np.ma.zeros((2, 13, 2, 24), "f"), *tensors, *(x.T for x in tensors), *(x[..., ::2] for x in tensors)]


# A value that each option takes, so that odd values also meet calls that go on to what follows the first check.
FITTING = {"causal": True, "window": (2, 1), "chunk": 3, "scale": 0.5, "softcap": 2.0, "alibi": np.full(4, 0.5, "f"),
           "sink": np.zeros(4, "f"), "out_f32": True, "deterministic": True, "threads": 1, "isa": "portable",
           "prefix": np.array([1, 2], np.int32), "lens_q": np.array([4, 3], np.int32),
           "lens_kv": np.array([5, 6], np.int32), "bias": np.zeros((1, 1, 9, 13), "f"), "dropout_p": 0.25, "seed": 3,
           "seed_offset": 5, "return_lse": True, "max_len_q": 9, "max_len_kv": 13, "grad_sink": True}


def test_whatever_is_passed_raises_or_runs(make):
    """Up to three arguments are anything; a third of the options get what they take. What is raised is of the kinds
    that are promised, and nothing crashes."""
    import random

    choose = random.Random(3)
    scores = ["causal", "window", "chunk", "scale", "softcap", "alibi", "sink", "out_f32", "deterministic", "threads",
              "isa", "kernel", "strategy", "stream"]
    more = ["prefix", "lens_q", "lens_kv", "mask", "bits", "intervals", "blocks", "bias", "dropout_p", "seed",
            "seed_offset"]
    lens = np.array([3, 5], np.int32)
    table, ran = np.array([[0, 1], [2, 3]], np.int32), 0
    for _ in range(1500):
        q, k, v = make()
        cache = np.zeros((2, 4, 8, 2, 24), np.float32)
        o, lse = libattn.attention(q, k, v, return_lse=True)
        new = {"q": q, "k_cache": cache[0], "v_cache": cache[1], "k": k[:, :2], "v": v[:, :2], "cache_seqlens": lens,
               "page_table": table}
        rotary = ["rotary_cos", "rotary_sin", "rotary_interleaved", "fault"]
        function, given, names = choose.choice([
            (libattn.attention, {"q": q, "k": k, "v": v}, scores + more + ["out", "return_lse"]),
            (libattn.attention_varlen, {"q": q[0], "k": k[0], "v": v[0], "cu_lens_q": [0, 4, 9],
                                        "cu_lens_kv": [0, 6, 13]}, scores + more + ["max_len_q", "max_len_kv", "out"]),
            (libattn.attention_backward, {"grad_o": o, "q": q, "k": k, "v": v, "o": o, "lse": lse},
             scores + more + ["grad_lse", "cu_lens_q", "cu_lens_kv", "grad_sink"]),
            (libattn.attention_with_kvcache, new, scores + rotary + ["cu_lens_q", "max_len_q", "first_kv", "out"]),
            (libattn.append_kvcache, {name: new[name] for name in new if name != "q"},
             rotary + ["q", "cu_lens", "threads"]),
            (libattn.merge_states, {"o": [o, o], "lse": [lse, lse]},
             ["out", "out_lse", "out_f32", "threads", "stream"])])
        names = [*given, *names]
        for name in choose.sample(names, choose.randint(1, 3)):
            if name in FITTING and choose.random() < 1 / 3:
                given[name] = FITTING[name]
                continue
            value = choose.choice(odd_values([q, k, v, lse]))
            given[name] = [value, given[name][1]] if name in ("o", "lse") and choose.random() < 0.7 and isinstance(
                given[name], list) else value
        try:
            function(**given)
            ran += 1
        except (libattn.Error, TypeError, ValueError, BufferError):
            if "k_cache" in given and given["k_cache"] is cache[0]:
                assert not cache.any()
    assert ran > 60, ran


def test_outputs(make):
    q, k, v = make()
    out = np.full_like(q, 7)
    out.flags.writeable = False
    refuses("out is read-only|o is read-only", q, k, v, out=out)
    refuses("out has shape", q, k, v, out=np.zeros((2, 9, 4, 23), "f"))
    refuses("out is float16", q, k, v, out=np.zeros(q.shape, np.float16))
    refuses("overlap", q, k, v, out=q)
    refuses("o_stride", q, k, v, out=np.lib.stride_tricks.as_strided(np.zeros(500, "f"), q.shape, (0, 96, 96, 4)))
    out = np.full_like(q, 7)
    refuses("lens_kv", q, k, v, lens_kv=[1, 14], out=out)
    assert np.all(out == 7)


def test_backward(make):
    q, k, v = make()
    o, lse = libattn.attention(q, k, v, return_lse=True)
    with pytest.raises(libattn.InvalidError, match="there is no bias"):
        libattn.attention_backward(o, q, k, v, o, lse, grad_bias=True)
    with pytest.raises(libattn.InvalidError, match="lse has shape"):
        libattn.attention_backward(o, q, k, v, o, lse[:, :1])
    with pytest.raises(libattn.InvalidError, match="lse has strides"):
        libattn.attention_backward(o, q, k, v, o, np.asfortranarray(lse))
    with pytest.raises(libattn.InvalidError, match="grad_o is float16"):
        libattn.attention_backward(o.astype(np.float16), q, k, v, o, lse)
    with pytest.raises(libattn.InvalidError, match="belong together"):
        libattn.attention_backward(o, q, k, v, o, lse, cu_lens_q=[0, 9])


class Foreign:
    """A tensor of a library that nothing is known of but DLPack, and that only the capsule keeps alive."""

    def __init__(self, array, hide_version=False):
        self.array, self.hide_version = array, hide_version

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        if self.hide_version and "max_version" in keywords:
            raise TypeError("max_version")
        return self.array.copy().__dlpack__(**keywords)


class Fixed(Foreign):
    """One whose own array is shown, not a copy."""

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


class Odd(Foreign):
    """One that gives no capsule."""

    def __dlpack__(self, **keywords):
        return 5


class Broken(Foreign):
    """One whose export fails in a way of its own, where `at` says."""

    def __init__(self, array, at, problem):
        super().__init__(array)
        self.at, self.problem = at, problem

    def __dlpack_device__(self):
        if self.at == "no pair":
            return None
        if self.at == "device":
            raise self.problem
        return super().__dlpack_device__()

    def __dlpack__(self, **keywords):
        raise self.problem


@pytest.mark.parametrize("at", ["device", "no pair", "capsule"])
@pytest.mark.parametrize("problem", [TypeError("its own"), ValueError("its own"), KeyError("its own"),
                                     RuntimeError("its own")], ids=lambda problem: type(problem).__name__)
def test_dlpack_that_fails(make, at, problem):
    """One kind of exception, which names the argument and what the tensor said."""
    q, k, v = make()
    said = "k: Broken does not export itself by DLPack: " + ("TypeError" if at == "no pair" else ".*its own")
    refuses(said, q, Broken(k, at, problem), v, kind=BufferError)
    with pytest.raises(BufferError, match="lens_kv: Broken"):
        libattn.attention(q, k, v, lens_kv=Broken(np.array([13, 13], np.int32), at, problem))


@pytest.mark.parametrize("name, value, range_", [
    ("threads", 1 << 31, "from -2^31 to 2^31 - 1"), ("threads", -(1 << 31) - 1, "from -2^31 to 2^31 - 1"),
    ("window", (1 << 63, 0), "from -2^63 to 2^63 - 1")])
def test_integers_too_large(make, name, value, range_):
    """The message has the range itself, not a count of bits that no C type has."""
    number = value[0] if isinstance(value, tuple) else value
    with pytest.raises(libattn.InvalidError) as error:
        libattn.attention(*make(), **{name: value})
    assert str(error.value) == f"{name} is {number}; it takes an integer {range_}"


def test_dlpack(make):
    q, k, v = make()
    wanted = libattn.attention(q, k, v)
    for hide in (False, True):
        found = libattn.attention(*(Foreign(x, hide) for x in (q, k, v)))
        gc.collect()
        assert type(found) is np.ndarray and np.array_equal(found, wanted)
    assert np.array_equal(libattn.attention(q, Foreign(k), Foreign(v), lens_kv=Foreign(np.array([13, 13]))), wanted)
    refuses("no DLPack capsule", q, Odd(k), v, kind=BufferError)
    fixed = np.zeros_like(q)
    fixed.flags.writeable = False
    refuses("readonly|read-only", q, k, v, out=Fixed(fixed), kind=(libattn.InvalidError, BufferError))


def test_freed_early(make):
    q, k, v = make()
    wanted = libattn.attention(q, k, v)
    for _ in range(20):
        assert np.array_equal(libattn.attention(q.copy(), k.copy(), v.copy()), wanted)


def test_device_mismatch(make):
    q, k, v = make()

    class OnGpu:
        def __init__(self, array):
            self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "data": (4096, False),
                                             "version": 3, "strides": None}

    refuses("k is on a GPU, q on the CPU", q, OnGpu(k), OnGpu(v))
    refuses("stream: is needed", OnGpu(q), OnGpu(k), OnGpu(v), kind=ValueError)
    refuses("is no stream", OnGpu(q), OnGpu(k), OnGpu(v), stream="main", kind=TypeError)
    refuses("bias is on a GPU", q, k, v, bias=OnGpu(np.zeros((9, 13), "f")))
    lens = OnGpu(np.array([1, 2], np.int32))
    refuses("lens_kv is on a GPU, q on the CPU", q, k, v, lens_kv=lens)
    refuses("documents are on a GPU", q, k, v, mask=libattn.masks.documents(lens))
    with pytest.raises(libattn.InvalidError, match="max_len_q is needed where cu_lens_q is on a GPU"):
        libattn.attention_varlen(q[0], k[0], v[0], lens, [0, 13])
