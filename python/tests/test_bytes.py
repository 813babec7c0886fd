"""attention to q, k and v of one byte, with scales of every form, given and as quantize returns them: against the
definition, in double precision, of what the bytes and scales stand for."""
import numpy as np
import pytest

import libattn
from conftest import close, reference, visible_pairs
from libattn import _run

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
RANDOM = np.random.default_rng(11)
WIDE = {"f32": np.dtype("f"), "f16": np.dtype(np.float16), "bf16": BF16}
TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
ROWS, KEYS, HEADS_Q, HEADS_KV, DIM, DIM_V = 150, 200, 4, 2, 32, 48


def normal(*shape):
    return RANDOM.standard_normal(shape).astype("f")


def positive(*shape):
    """Scales that differ by up to 4 times: a wrong one shows."""
    return (0.5 * 4 ** RANDOM.random(shape)).astype("f")


def stored(shape, dtype):
    if dtype == np.int8:
        return RANDOM.integers(-128, 128, shape).astype(np.int8)
    return normal(*shape).astype(dtype)


def problem(of_q, of_kv, batch=2, rows=ROWS, keys=KEYS):
    shapes = (batch, rows, HEADS_Q, DIM), (batch, keys, HEADS_KV, DIM), (batch, keys, HEADS_KV, DIM_V)
    return [stored(shape, dtype) for shape, dtype in zip(shapes, (of_q, of_kv, of_kv))]


def real(x, scale=None):
    """What x, (batch, rows, heads, dim), stands for: scale by its shape, with each axis repeated to x's extent."""
    x = np.asarray(x).astype(np.float64)
    if scale is None:
        return x
    scale = np.asarray(scale, np.float64)
    scale = {0: lambda: scale[None, None, None, None], 1: lambda: scale[None, None, :, None],
             2: lambda: scale[:, None, :, None], 3: lambda: scale[..., None], 4: lambda: scale}[scale.ndim]()
    for axis, extent in enumerate(x.shape):
        times = 1 if scale.shape[axis] == 1 else -(-extent // scale.shape[axis])
        if axis == 1 and 1 < scale.shape[1] < extent:
            times = 64 if -(-extent // 64) == scale.shape[1] else 128
        scale = np.repeat(scale, times, axis).take(range(min(extent, times * scale.shape[axis])), axis)
    return x * scale


FORMS = {"none": lambda name: None, "number": lambda name: 0.37, "heads": lambda name: positive(HEADS_KV),
         "batch": lambda name: positive(2, HEADS_KV), "one of batch": lambda name: positive(1, HEADS_KV),
         "rows": lambda name: positive(2, ROWS if name == "q" else KEYS, HEADS_Q if name == "q" else HEADS_KV),
         "tensor": lambda name: positive(1, 1, 1, 1), "head": lambda name: positive(2, 1, HEADS_KV, 1),
         "query heads": lambda name: positive(2, 1, HEADS_Q, 1) if name == "q" else None,
         "64": lambda name: None if name == "v" else positive(2, 3 if name == "q" else 4, HEADS_KV, 1),
         "128 of all heads": lambda name: None if name == "v" else positive(2, 2, 1, 1),
         "token": lambda name: positive(1, ROWS if name == "q" else KEYS, HEADS_KV, 1),
         "channel": lambda name: positive(2, 1, HEADS_KV, DIM_V) if name == "v" else None,
         "channel of all": lambda name: positive(1, 1, 1, DIM_V) if name == "v" else None}


def check(q, k, v, scales, tolerance, seen=None, change=lambda x: x, scale=None, **options):
    """o and lse beside the definition. change: of arrays into what is given. scale: None: one of a power of two that
    gives scores of some 0.5."""
    floats = [real(x, scales.get(name + "_scale")) for name, x in (("q", q), ("k", k), ("v", v))]
    scale = scale or 2.0 ** np.round(np.log2(0.5 / (floats[0].std() * floats[1].std() * floats[0].shape[-1] ** 0.5)))
    o, lse = libattn.attention(*map(change, (q, k, v)), scale=scale, return_lse=True, out_f32=True,
                               **{name: change(x) for name, x in scales.items() if x is not None}, **options)
    wanted = reference(*floats, seen=seen, scale=scale)
    size = np.abs(floats[2]).max()
    close(np.asarray(o) / size, wanted[0] / size, tolerance)
    close(lse, wanted[1], tolerance)
    return o


@pytest.mark.parametrize("form", FORMS)
def test_e4m3_with_scales_of_each_form(form):
    q, k, v = problem(E4M3, E4M3)
    scales = {name + "_scale": FORMS[form](name) for name in "qkv"}
    o = check(q, k, v, scales, TOLERANCE["bf16"], visible_pairs(ROWS, KEYS, causal=True), causal=True)
    assert o.dtype == np.float32
    if form != "none":
        for name in scales:  # each of them counts
            if scales[name] is not None:
                fewer = libattn.attention(q, k, v, causal=True, out_f32=True, **{**scales, name: None})
                whole = libattn.attention(q, k, v, causal=True, out_f32=True, **scales)
                assert np.abs(fewer - whole).max() > 0.01, name


@pytest.mark.parametrize("kind", [E4M3, np.dtype(np.int8)], ids=["e4m3", "i8"])
@pytest.mark.parametrize("rows", WIDE)
@pytest.mark.parametrize("form", ["none", "number", "batch", "rows", "64", "channel"])
def test_wider_queries(rows, kind, form):
    q, k, v = problem(WIDE[rows], kind)
    scales = {name + "_scale": FORMS[form](name) for name in "kv"}
    check(q, k, v, scales, TOLERANCE[rows], visible_pairs(ROWS, KEYS, window=(60, 5)), window=(60, 5))
    o = libattn.attention(q, k, v, **scales)
    assert o.dtype == WIDE[rows]


@pytest.mark.parametrize("form", ["number", "batch", "rows", "64", "channel"])
def test_torch(form):
    torch = pytest.importorskip("torch")

    def change(x):
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype == E4M3:
            return torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn)
        return torch.from_numpy(x.astype("f")).bfloat16() if x.dtype == BF16 else torch.from_numpy(x)

    for of_q, of_kv in ((E4M3, E4M3), (BF16, E4M3), (BF16, np.int8)):
        q, k, v = problem(of_q, of_kv)
        scales = {name + "_scale": FORMS[form](name) for name in "qkv" if name != "q" or of_q == E4M3}
        check(q, k, v, scales, TOLERANCE["bf16"], visible_pairs(ROWS, KEYS, causal=True), change, causal=True)
        q, k, v = map(change, (q, k, v))
        assert libattn.attention(q, k, v).dtype == torch.bfloat16


def test_few_rows_while_a_cache_grows():
    """Plans of lengths that are rounded up serve calls without scales alone: each length has its blocks of them."""
    for scaled, plans in ((False, 1), (True, 4)):
        libattn.clear_plans()
        for keys in (129, 130, 140, 141):
            q, k, v = problem(E4M3, E4M3, rows=3, keys=keys)
            scales = {"k_scale": positive(2, 3, 2, 1), "v_scale": positive(2, 2)} if scaled else {}
            check(q, k, v, scales, TOLERANCE["bf16"], scale=0.125)
        assert len(_run._plans) == plans


def test_a_plan_holds_for_scales_of_its_layout_alone():
    """Of one shape of q, k and v: scales of other forms and strides one after the other."""
    q, k, v = problem(E4M3, E4M3)
    libattn.clear_plans()
    heads_first = positive(2, HEADS_KV, KEYS).transpose(0, 2, 1)
    repeated = np.broadcast_to(positive(1, 1), (2, HEADS_KV))
    backwards = positive(2, HEADS_KV)[::-1, ::-1]
    forms = [positive(2, KEYS, HEADS_KV), heads_first, repeated, backwards, positive(2, HEADS_KV), positive(HEADS_KV),
             2.0, positive(2, 4, HEADS_KV, 1), positive(2, 2, HEADS_KV, 1), positive(2, 4, HEADS_KV, 1)]
    for scale in forms:
        check(q, k, v, {"k_scale": scale}, TOLERANCE["bf16"], scale=0.125)
    assert len(_run._plans) == len(forms) - 1  # the last looks like one before


def test_scales_are_converted_on_the_cpu():
    q, k, v = problem(E4M3, E4M3)
    scale = positive(2, HEADS_KV)
    wanted = libattn.attention(q, k, v, k_scale=scale)
    for same in (scale.tolist(), scale.astype("d"), np.asfortranarray(scale), scale.astype("d")[:, None, :, None]):
        assert np.array_equal(libattn.attention(q, k, v, k_scale=same), wanted)
    one = libattn.attention(q, k, v, v_scale=0.25)
    for same in (np.float32(0.25), np.array(0.25), [0.25], np.full((1, 1), 0.25)):
        assert np.array_equal(libattn.attention(q, k, v, v_scale=same), one)


@pytest.mark.parametrize("kind", [E4M3, np.dtype(np.int8)], ids=["e4m3", "i8"])
@pytest.mark.parametrize("form", ["number", "batch", "blocks", "token", "channel"])
def test_packed_sequences(kind, form):
    """Each as alone, with the scales of its own."""
    cu_q, cu_kv = [0, 70, 71, 71, 140], [0, 100, 200, 205, 205]
    of_q = E4M3 if kind == E4M3 else WIDE["f32"]
    q, k, v = (stored((rows, heads, dim), dtype) for rows, heads, dim, dtype in (
        (145, HEADS_Q, DIM, of_q), (210, HEADS_KV, DIM, kind), (210, HEADS_KV, DIM_V, kind)))
    make = {"number": lambda rows, dim: 0.3, "batch": lambda rows, dim: positive(4, HEADS_KV),
            "blocks": lambda rows, dim: positive(4, 2, HEADS_KV, 1) if dim == DIM else positive(4, 1, 1, 1),
            "token": lambda rows, dim: positive(4, rows, HEADS_KV, 1),
            "channel": lambda rows, dim: positive(4, 1, HEADS_KV, dim) if dim == DIM_V else 0.5}[form]
    scales = {"q_scale": make(70, DIM), "k_scale": make(100, DIM), "v_scale": make(100, DIM_V)}
    if kind != E4M3:
        del scales["q_scale"]
    options = {"causal": True, "scale": 0.05 if kind == E4M3 else 1e-3}
    o, lse = libattn.attention_varlen(q, k, v, cu_q, cu_kv, return_lse=True, out_f32=True, **options, **scales)
    for i in range(4):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_kv[i], cu_kv[i + 1])
        lens = cu_q[i + 1] - cu_q[i], cu_kv[i + 1] - cu_kv[i]
        own = {}
        for name, scale in scales.items():
            of = np.asarray(scale)
            own[name] = of if of.ndim == 0 else of[i:i + 1, :-(-max(lens[name != "q_scale"], 1) // 64)] if (
                form == "blocks" and of.shape[1] > 1) else of[i:i + 1, :max(lens[name != "q_scale"], 1)] if (
                form == "token") else of[i:i + 1]
        if not lens[0]:
            continue
        floats = [real(x, own.get(f"{name}_scale")) if x.shape[1] else x.astype("d") for name, x in (
            ("q", q[None, rows]), ("k", k[None, keys]), ("v", v[None, keys]))]
        wanted = reference(*floats, seen=visible_pairs(*lens, causal=True), scale=float(np.float32(options["scale"])))
        size = np.abs(floats[2]).max(initial=1)
        close(o[None, rows] / size, wanted[0] / size, 1.6e-2 if kind == E4M3 else 2e-5)
        close(lse[None, :, rows], wanted[1], 1.6e-2 if kind == E4M3 else 2e-5)


# ---- what quantize returns -----------------------------------------------------------------------


def of_quantized(x, rows):
    """What it stands for, as if k's mean had stayed away."""
    data, scale = np.asarray(x.data).astype("d"), np.asarray(x.scale, "d")
    if 1 < scale.shape[1] < data.shape[1]:
        scale = np.repeat(scale, rows, 1)[:, :data.shape[1]]
    return data * np.repeat(scale, data.shape[2] // scale.shape[2] if scale.shape[2] > 1 else 1, 2)


GRANULARITIES = [("block", 64), ("block", 128), ("token", 1), ("head", 0), ("tensor", 0)]


@pytest.mark.parametrize("granularity, block_rows", GRANULARITIES)
def test_quantized_is_attention_of_what_is_stored(granularity, block_rows):
    q, k, v = normal(2, ROWS, HEADS_Q, DIM), normal(2, KEYS, HEADS_KV, DIM), normal(2, KEYS, HEADS_KV, DIM_V)
    k += 3 * normal(2, 1, HEADS_KV, DIM)
    how = {"granularity": granularity, "hadamard": True, "seed": 5}
    how.update({"block_rows": block_rows} if granularity == "block" else {})
    k8 = libattn.quantize(k, subtract_mean=True, **how)
    shared = HEADS_KV if granularity in ("block", "token") else None
    q8 = libattn.quantize(q, k_mean=k8.mean, scale_heads=shared, **how)
    v8 = libattn.quantize(v, granularity="channel")
    assert (k8.rows, k8.rotation) == (block_rows, (DIM, 5)) and v8.rotation is None
    o, lse = libattn.attention(q8, k8, v8, causal=True, return_lse=True, out_f32=True)
    seen = visible_pairs(ROWS, KEYS, causal=True)
    wanted, partial = reference(of_quantized(q8, block_rows), of_quantized(k8, block_rows), of_quantized(v8, 0), seen)
    close(o, wanted, 1.6e-2)
    dot = np.einsum("bihd,bhd->bhi", q.astype("d"), np.repeat(k8.mean, HEADS_Q // HEADS_KV, 1))
    close(lse, partial + dot * DIM ** -0.5, 1.6e-2)
    exact, exact_lse = reference(q, k, v, seen)
    assert np.abs(o - exact).max() < 0.3 and np.abs(lse - exact_lse).max() < 0.1 < np.abs(partial - exact_lse).max()
    by_hand = libattn.attention(q8.data, k8.data, v8.data, causal=True, out_f32=True, q_scale=q8.scale,
                                k_scale=k8.scale, v_scale=v8.scale)
    assert np.array_equal(by_hand, o)
    assert np.array_equal(libattn.attention(q8, k8, v8, causal=True, out_f32=True), o)


def test_quantized_keys_beside_wider_queries():
    q, k, v = problem(WIDE["f32"], WIDE["f32"])
    for dtype in ("float8_e4m3fn", "int8"):
        k8, v8 = libattn.quantize(k, dtype), libattn.quantize(v, dtype, granularity="token")
        o, lse = libattn.attention(q, k8, v8, return_lse=True)
        wanted = reference(q, of_quantized(k8, 64), of_quantized(v8, 1))
        close(o, wanted[0])
        close(lse, wanted[1])


def test_quantized_packed_sequences():
    """The call may have fewer rows in its longest sequence than quantize was told of: blocks beyond are not read."""
    cu = [0, 90, 90, 160]
    q, k, v = normal(160, HEADS_Q, DIM), normal(160, HEADS_KV, DIM) + 2, normal(160, HEADS_KV, DIM_V)
    for longest in (None, 160):
        k8 = libattn.quantize(k, cu_lens=cu, max_len=longest, subtract_mean=True, hadamard=True)
        q8 = libattn.quantize(q, cu_lens=cu, max_len=longest, k_mean=k8.mean, hadamard=True)
        v8 = libattn.quantize(v, cu_lens=cu, max_len=longest, granularity="token")
        o, lse = libattn.attention_varlen(q8, k8, v8, cu, cu, return_lse=True, causal=True)
        exact = libattn.attention_varlen(q, k, v, cu, cu, return_lse=True, causal=True)
        assert o.shape == exact[0].shape and np.abs(o.astype("f") - exact[0]).max() < 0.3
        assert np.abs(lse - exact[1]).max() < 0.1
        if longest is None:
            first = o, lse
    assert np.array_equal(o, first[0]) and np.array_equal(lse, first[1])
    many = normal(600, HEADS_KV, DIM)
    k8 = libattn.quantize(many, cu_lens=[0, 200, 600])
    with pytest.raises(libattn.InvalidError, match="k was quantised with scales for 7 blocks of 64 rows, .* 500 rows"):
        libattn.attention_varlen(many, k8, many, [0, 200, 600], [0, 200, 600], max_len_q=400, max_len_kv=500)


def test_torch_quantized():
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 130, heads, 64).bfloat16() for heads in (4, 2, 2))
    k8 = libattn.quantize(k + 1, hadamard=True, subtract_mean=True)
    q8 = libattn.quantize(q, hadamard=True, k_mean=k8.mean)
    o, lse = libattn.attention(q8, k8, libattn.quantize(v, granularity="channel"), causal=True, return_lse=True)
    wanted, wanted_lse = libattn.attention(q, k + 1, v, causal=True, return_lse=True)
    assert type(o) is torch.Tensor and o.dtype == torch.bfloat16 and type(lse) is torch.Tensor
    assert (o.float() - wanted.float()).abs().max() < 0.3 and (lse - wanted_lse).abs().max() < 0.1


# ---- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_q", ["e4m3", *WIDE])
def test_types_of_o(of_q):
    q, k, v = problem({"e4m3": E4M3, **WIDE}[of_q], E4M3)
    exact, _ = reference(q, k, v)
    for name, dtype in (("float32", np.dtype("f")), ("float16", np.dtype(np.float16)), ("bfloat16", BF16),
                        (None, BF16 if of_q == "e4m3" else q.dtype)):
        o = libattn.attention(q, k, v, out_dtype=name)
        assert o.dtype == dtype
        close(o, exact, 2e-2)
        given = np.zeros((*q.shape[:-1], DIM_V + 5), dtype)[..., 3:DIM_V + 3]
        assert libattn.attention(q, k, v, out_dtype=name, out=given) is given and np.array_equal(given, o)
        with pytest.raises(libattn.InvalidError, match=f"out is {E4M3}, where it takes {dtype}"):
            libattn.attention(q, k, v, out_dtype=name, out=given.astype(E4M3))
    assert libattn.attention(q, k, v, out_f32=True, out_dtype="float32").dtype == np.float32
    floats = libattn.attention(q, k, v, out_dtype="float32")
    for scale in (None, 0.03, np.array([0.01], "f"), [0.5], np.full((1, 1), 2.0)):
        o = libattn.attention(q, k, v, out_dtype="float8_e4m3fn", o_scale=scale)
        assert o.dtype == E4M3
        wanted = np.clip(floats / np.float32(1 if scale is None else np.ravel(scale)[0]), -448, 448).astype(E4M3)
        assert (o.view(np.uint8) == wanted.view(np.uint8)).mean() > 0.99
        close(o.astype("f"), wanted.astype("f"), 0.13)


def test_o_of_wider_tensors():
    """out_dtype goes with tensors that have no byte, too; rows outside sequences are 0 in bytes."""
    q, k, v = problem(WIDE["f32"], WIDE["f32"])
    wanted = libattn.attention(q, k, v)
    assert np.array_equal(libattn.attention(q, k, v, out_dtype="float16"), wanted.astype(np.float16))
    o = libattn.attention(q, k, v, out_dtype="float8_e4m3fn", o_scale=0.01, lens_q=[ROWS, 3])
    assert np.array_equal(o[0].view(np.uint8), (wanted / np.float32(0.01)).astype(E4M3)[0].view(np.uint8))
    assert not o[1, 3:].view(np.uint8).any() and o[1, :3].view(np.uint8).any()


# ---- plans ---------------------------------------------------------------------------------------


def test_plans():
    q, k, v = problem(E4M3, E4M3)
    scales = {"q_scale": positive(2, 3, 4, 1), "k_scale": 0.5, "v_scale": positive(2, 1, 2, DIM_V)}
    said = libattn.plan(q, k, v, **scales).explain()
    for word in ("e4m3", "q_scale per 64 rows", "k_scale per tensor", "v_scale per sequence and head and channel",
                 "bf16"):
        assert word in said
    named = libattn.plan(q.shape, k.shape, v.shape, dtype="float8_e4m3fn", **scales)
    assert named.explain() == said
    mixed = libattn.plan(q.shape, k.shape, v.shape, dtype="bfloat16", kv_dtype="int8", out_dtype="float32")
    assert "over i8" in mixed.explain() and "q_scale" not in mixed.explain()
    k8 = libattn.quantize(normal(*k.shape), "int8", subtract_mean=True)
    v8 = libattn.quantize(normal(*v.shape), "int8", granularity="token")
    said = libattn.plan(normal(*q.shape), k8, v8).explain()
    assert "k_scale per 64 rows" in said and "v_scale per row" in said
    for wrong, match in (({"kv_dtype": "int4"}, "kv_dtype is 'int4'; it takes float32"),
                         ({"dtype": "int8"}, "q is int8; it takes"),
                         ({"kv_dtype": "float16"}, "k is float16, where it takes float32")):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.plan(q.shape, k.shape, **wrong)
    with pytest.raises(libattn.InvalidError, match="kv_dtype is 'int8', beside tensors"):
        libattn.plan(q, k, v, kv_dtype="int8")


# ---- what is refused -----------------------------------------------------------------------------


def mistakes():
    q, k, v = problem(E4M3, E4M3)
    floats, ints = problem(WIDE["f32"], WIDE["f32"]), problem(WIDE["f32"], np.dtype(np.int8))
    takes = r"it takes a number, \(2,\), \(2, 2\), \(2, 200, 2\) or \(sequences, blocks, heads, dim\), which is \(2, "
    fine = {"q": q, "k": k, "v": v}
    wide = dict(zip("qkv", floats))
    return fine, [
        ("q is int8; it takes .* float8_e4m3fn$", {"q": q.view("b")}),
        ("q is int8; it takes", {"q": q.view("b"), "k": k.view("b"), "v": v.view("b")}),
        ("q is uint8; it takes", {"q": q.view("B")}),
        ("k is int8, where it takes float8_e4m3fn, as q is", {"k": k.view("b"), "v": v.view("b")}),
        ("k is float32, where it takes float8_e4m3fn, as q is", {"k": floats[1]}),
        ("v is float32, where it takes float8_e4m3fn, as q is", {"v": floats[2]}),
        ("v is int8, where it takes float8_e4m3fn, as k is", {"q": floats[0], "v": v.view("b")}),
        ("v is float32, where it takes float8_e4m3fn, as k is", {"q": floats[0], "v": floats[2]}),
        ("v is int8, where it takes float32, as q is", {**wide, "v": ints[2]}),
        ("k is float8_e4m3fn, where it takes float64, as q is", {"q": floats[0].astype("d")}),
        ("k is float8_e5m2; it takes", {**wide, "k": floats[1].astype(ml_dtypes.float8_e5m2)}),
        ("q_scale is given for q of float32; it goes with float8_e4m3fn$", {**wide, "q_scale": 1.0}),
        ("q_scale is given for q of float32", {"q": floats[0], "q_scale": 1.0}),
        ("k_scale is given for k of float32; it goes with float8_e4m3fn and int8", {**wide, "k_scale": [1.0]}),
        ("v_scale is given for v of float32", {**wide, "v_scale": 1}),
        (r"k_scale has shape \(3,\); " + takes + "200 or 2 or 4 or 1, 2, 1", {"k_scale": positive(3)}),
        (r"q_scale has shape \(3,\); it takes a number, \(4 or 2,\)", {"q_scale": positive(3)}),
        (r"k_scale has shape \(4,\)", {"k_scale": positive(4)}),
        (r"k_scale has shape \(3, 2\)", {"k_scale": positive(3, 2)}),
        (r"k_scale has shape \(2, 4, 2\)", {"k_scale": positive(2, 4, 2)}),
        (r"k_scale has shape \(2, 3, 2, 1\)", {"k_scale": positive(2, 3, 2, 1)}),
        (r"k_scale has shape \(2, 1, 2, 32\)", {"k_scale": positive(2, 1, 2, 32)}),
        (r"k_scale has shape \(1, 2, 1, 2, 1\)", {"k_scale": positive(1, 2, 1, 2, 1)}),
        (r"v_scale has shape \(2, 4, 2, 1\); .* 200 or 1, 2, 1 or 48\)", {"v_scale": positive(2, 4, 2, 1)}),
        (r"v_scale has shape \(2, 200, 2, 48\)", {"v_scale": positive(2, 200, 2, 48)}),
        ("k_scale is 1e.39; it takes a number that float32 holds", {"k_scale": 1e39}),
        ("out_dtype is 'int8'; it takes float32, float16, bfloat16, float8_e4m3fn, or None", {"out_dtype": "int8"}),
        ("out_dtype is 'float16', and out_f32 is True", {"out_dtype": "float16", "out_f32": True}),
        ("out_dtype is 5; it takes", {"out_dtype": 5}),
        ("o_scale is given, where o is bfloat16: it goes with an out_dtype of float8_e4m3fn", {"o_scale": 1.0}),
        ("o_scale is given, where o is float32", {"o_scale": 1.0, "out_dtype": "float32"}),
        (r"o_scale has shape \(2,\); it takes one", {"o_scale": [1, 2], "out_dtype": "float8_e4m3fn"}),
        ("k_scale is bool; it takes float32", {"k_scale": True}),
        ("v_scale is <U3; it takes float32", {"v_scale": "0.5"}),
        ("k_scale is list, which is no array", {"k_scale": [[1, 2], [1]]}),
        ("k_scale has values beyond float32", {"k_scale": np.full(2, 1e300)}),
    ]


@pytest.mark.parametrize("match, wrong", mistakes()[1], ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_mistakes(match, wrong):
    right, out = mistakes()[0], np.full((2, ROWS, HEADS_Q, DIM_V), 7, "f")
    with pytest.raises((libattn.InvalidError, TypeError), match=match):
        libattn.attention(**{**right, **wrong})
    if "out_f32" not in wrong and "out_dtype" not in wrong and "o_scale" not in wrong:
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            libattn.attention(**{**right, **wrong}, out=out, out_f32=True)
        assert np.all(out == 7)


def test_mistakes_with_quantized():
    q, k, v = problem(WIDE["f32"], WIDE["f32"])
    k8, v8 = libattn.quantize(k, subtract_mean=True), libattn.quantize(v, granularity="channel")
    q8 = libattn.quantize(q, k_mean=k8.mean)
    plain = libattn.quantize(q), libattn.quantize(k), v8
    turned = [libattn.quantize(x, hadamard=True, granularity="token") for x in (q, k, v)]
    other = libattn.quantize(q, hadamard=True, seed=1)
    libattn.attention(q8, k8, v8, return_lse=True)
    libattn.attention(*plain, return_lse=True, softcap=3.0)
    libattn.attention(*turned[:2], v8)
    for match, given, options in (
            ("q_scale is given beside q as quantize returned it", plain, {"q_scale": 1.0}),
            ("k_scale is given beside k", plain, {"k_scale": k8.scale}),
            ("v_scale is given beside v", plain, {"v_scale": 2}),
            (r"return_lse is True, .* quantize\(q, k_mean=k.mean\)", (plain[0], k8, v8), {"return_lse": True}),
            ("return_lse is True, and k was", (q, k8, v8), {"return_lse": True}),
            (r"q was quantised with k_mean, but k has its mean", (q8, *plain[1:]), {}),
            (r"q was quantised with k_mean, but k has its mean", (q8, k8.data, v8), {"k_scale": k8.scale}),
            ("softcap: with keys whose mean was removed", (q8, k8, v8), {"softcap": 3.0}),
            ("sink: with keys whose mean was removed", (q8, k8, v8), {"sink": np.zeros(HEADS_Q, "f")}),
            ("q was quantised with subtract_mean, which is of k", (k8, k8, v8), {}),
            ("v was quantised with subtract_mean, which is", (*plain[:2], libattn.quantize(v, subtract_mean=True)), {}),
            ("k was quantised with k_mean, which is of q", (plain[0], q8, v8), {}),
            (r"q was rotated \(hadamard=32, seed=0\), and k was not so", (turned[0], *plain[1:]), {}),
            (r"k was rotated \(hadamard=32, seed=0\), and q was not so", (q, turned[1], v8), {}),
            (r"q was rotated \(hadamard=32, seed=1\)", (other, turned[1], v8), {}),
            ("v was rotated", turned, {}),
            ("v was quantised with scales for blocks of 64 rows; it takes", (*plain[:2], libattn.quantize(v)), {}),
            (r"q.dot has shape \(2, 4, 3\); it takes \(2, 4, 150\)", (q8._replace(dot=q8.dot[..., :3]), k8, v8),
             {"return_lse": True}),
            *((rf"k.data has shape \({n}, {m}, 2, 32\), where \(2, 200, 2, 32\) was quantised",
               (q, plain[1]._replace(data=plain[1].data[2 - n:, 200 - m:]), v[2 - n:, 200 - m:]), {})
              for n, m in ((1, 200), (2, 199), (2, 136))),
            ("k.rows is 100; it takes 0, 1, 64, 128", (q, plain[1]._replace(rows=100), v), {}),
            ("k.rows is -1; it takes", (q, plain[1]._replace(rows=-1), v), {}),
            ("k.scale is None", (q, plain[1]._replace(scale=None), v), {}),
            (r"k.scale has shape \(2,\); where k.rows is 64 it takes", (q, plain[1]._replace(scale=positive(2)), v), {}),
            ("k.rotation is 5", (q, plain[1]._replace(rotation=5), v), {})):
        with pytest.raises((libattn.InvalidError, libattn.UnsupportedError), match=match):
            libattn.attention(*given, **options)
    libattn.attention(q, libattn.Quantized(k8.data, 0.5), libattn.Quantized(v8.data, 2))
    libattn.attention(q8.data, turned[1].data, v8, q_scale=q8.scale, k_scale=turned[1].scale)  # as the caller says


def test_there_is_no_backward():
    q, k, v = problem(E4M3, E4M3)
    o, lse = libattn.attention(q, k, v, return_lse=True)
    for call in (lambda: libattn.attention_backward(o, q, k, v, o, lse), lambda: libattn.plan(q, k, v, backward=True)):
        with pytest.raises(libattn.UnsupportedError, match="k is float8_e4m3fn: attention .* has no backward"):
            call()
    with pytest.raises(libattn.UnsupportedError, match="k is what quantize returned: .* no backward"):
        libattn.attention_backward(o, q, libattn.quantize(normal(*k.shape)), v, o, lse)


def test_ranks_do_not_take_bytes():
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    import libattn.torch as la

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        q = torch.randn(1, 9, 2, 16).to(torch.float8_e4m3fn)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(libattn.InvalidError, match="q is torch.float8"):
            la.context_parallel_attention(q, q, q)
    finally:
        dist.destroy_process_group()


def test_autograd_does_not_take_bytes():
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    q, k, v = (torch.randn(1, 9, 2, 16).to(torch.float8_e4m3fn) for _ in range(3))
    wide = q.bfloat16()
    scale = torch.ones(1, requires_grad=True)
    for match, call in (
            ("q requires grad, and attention to tensors of one byte has no backward",
             lambda: libattn.attention(wide.clone().requires_grad_(), k, v)),
            ("k_scale requires grad, and attention to tensors of one byte",
             lambda: libattn.attention(q, k, v, k_scale=scale)),
            ("q is torch.float8_e4m3fn; libattn.torch takes .* libattn.attention", lambda: la.attention(q, k, v)),
            ("k is torch.float8_e4m3fn; libattn.torch takes .*", lambda: la.attention(wide, k, v)),
            ("k is torch.int8; libattn.torch takes", lambda: la.attention(wide, k.view(torch.int8), v)),
            ("q is torch.float8_e4m3fn; libattn.torch takes", lambda: la.attention_varlen(
                q[0], k[0], v[0], torch.tensor([0, 9]).int(), torch.tensor([0, 9]).int(), 9, 9)),
            ("q is torch.float8_e4m3fn; libattn.torch takes", lambda: torch.ops.libattn.forward(q, k, v)),
            ("query is torch.float8_e4m3fn; libattn.torch takes", lambda: la.scaled_dot_product_attention(q, k, v)),
            ("value is torch.float8_e4m3fn", lambda: la.scaled_dot_product_attention(wide, wide, v))):
        with pytest.raises((libattn.InvalidError, libattn.UnsupportedError), match=match):
            call()
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(
                (libattn.InvalidError, libattn.UnsupportedError), match=match):
            call()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(libattn.InvalidError, match="k_scale has a tangent"):
        libattn.attention(q, k, v, k_scale=torch.autograd.forward_ad.make_dual(torch.ones(1), torch.ones(1)))
    with pytest.raises(libattn.InvalidError, match="lens_q is float8_e4m3fn .* it takes packed int32"):
        libattn.attention(q, k, v, lens_q=torch.ones(1).to(torch.float8_e4m3fn))
    with pytest.raises(libattn.InvalidError, match="out is float32, where it takes bfloat16"):
        libattn.attention(q, k, v, out=torch.empty(1, 9, 2, 16))
    x8 = libattn.quantize(wide)
    with pytest.raises(TypeError, match="q is Quantized; .* libattn.attention takes what quantize returned"):
        la.attention(x8, x8, x8)
    with torch.no_grad():
        libattn.attention(wide.clone().requires_grad_(), k, v, k_scale=scale)
    nested = torch.nested.nested_tensor([q[0].view(torch.int8)], layout=torch.jagged).transpose(1, 2)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(libattn.UnsupportedError, match="query is torch.int8"):
        la.scaled_dot_product_attention(nested, nested, nested)
    la._warned = False
    with pytest.warns(UserWarning, match="libattn leaves this to torch.*query is torch.float8_e4m3fn"):
        try:
            la.scaled_dot_product_attention(q, k, v, fallback="sdpa")
        except (RuntimeError, NotImplementedError) as theirs:  # torch's own word on it
            assert not isinstance(theirs, libattn.Error)
