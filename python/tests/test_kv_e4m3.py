"""attention_with_kvcache with q of float8_e4m3fn over a cache of it: against the definition, in double precision, of
what the bytes and scales stand for."""
import numpy as np
import pytest

import libattn
from conftest import close, reference, visible_pairs
from libattn import _run
from test_bytes import positive, real
from test_kv import Problem, normal
from test_kv_bytes import bits, places, slot_scales, stored

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
BATCH, HEADS_Q, HEADS_KV, DIM, DIM_V, MANY = 3, 4, 2, 32, 48, 150
TOKENS = {"none": None, "bytes": E4M3, "f32": np.dtype("f"), "f16": np.dtype(np.float16), "bf16": BF16}
FORMS = {"none": lambda rows: None, "number": lambda rows: 0.37, "heads": lambda rows: positive(HEADS_KV),
         "query heads": lambda rows: positive(HEADS_Q), "batch": lambda rows: positive(BATCH, HEADS_KV),
         "batch of query heads": lambda rows: positive(BATCH, HEADS_Q),
         "one of batch": lambda rows: positive(1, HEADS_Q),
         "rows": lambda rows: positive(BATCH, rows, HEADS_KV), "rows of query heads": lambda rows: positive(
             BATCH, rows, HEADS_Q), "tensor": lambda rows: positive(1, 1, 1, 1),
         "64": lambda rows: positive(BATCH, -(-rows // 64), HEADS_Q, 1),
         "128 of all heads": lambda rows: positive(BATCH, -(-rows // 128), 1, 1)}


class Bytes:
    """A problem with q and cache of e4m3, where keys have scales of each sequence and head, and values of each head."""

    def __init__(self, rows=3, packed=False, paged=True, tokens="bf16", group=2):
        size, width = (16, 14) if paged else (210, 1)
        p = Problem(batch=BATCH, page_size=size, width=width, heads_q=group * HEADS_KV, heads_kv=HEADS_KV, dim=DIM,
                    dim_v=DIM_V, new=rows, packed=packed, slack=4 * paged)
        if not paged:
            p.table = np.arange(BATCH, dtype=np.int32)[:, None]
        self.p, self.paged, self.longest = p, paged, int(p.new.max())
        self.q = p.q.astype(E4M3)
        self.caches = [x.astype(E4M3) for x in (p.k_cache, p.v_cache)]
        self.scales = {"k_scale": positive(BATCH, HEADS_KV), "v_scale": positive(HEADS_KV)}
        self.tokens = [] if tokens == "none" else [x.astype(TOKENS[tokens]) for x in (p.k, p.v)]
        self.old = p.lens if self.tokens else p.lens + p.new.astype(np.int32)

    def options(self, **more):
        return {"cache_seqlens": self.old, **({"page_table": self.p.table} if self.paged else {}), **self.p.packed,
                **self.scales, **more}

    def run(self, change=lambda x: x, **more):
        given = {name: change(x) for name, x in self.options(**more).items()}
        return libattn.attention_with_kvcache(*map(change, [self.q, *self.caches, *self.tokens]), **given)

    def check_tokens(self, before):
        """The cache has the new tokens, in bytes, and is what it was elsewhere."""
        for cache, old, new, name in zip(self.caches, before, self.tokens, ("k_scale", "v_scale")):
            place, _, owner = places(self.p)
            scale = np.broadcast_to(self.scales[name], (BATCH, HEADS_KV))[owner][..., None]
            new = new.reshape(-1, *new.shape[-2:])
            old[place] = new if new.dtype == E4M3 else stored(new, scale, E4M3)
            assert np.array_equal(bits(cache), bits(old))

    def wanted(self, q_scale=None, causal=False, dim_scale=None):
        """(o, lse) of all rows, lse of (heads, row)."""
        p, found = self.p, []
        flat = self.q.reshape(-1, *self.q.shape[-2:])
        for b in range(BATCH):
            rows, length = slice(p.starts[b], p.starts[b + 1]), p.lens[b] + p.new[b]
            slots = p.table[b, np.arange(length) // p.size], np.arange(length) % p.size
            keys, values = (np.broadcast_to(self.scales[name], (BATCH, HEADS_KV))[b, :, None] * x[slots].astype("d")
                            for name, x in zip(("k_scale", "v_scale"), self.caches))
            whole = np.ones((self.longest, flat.shape[1], DIM))  # scales are of rows up to the longest sequence's
            whole[:p.new[b]] = flat[rows].astype("d")
            scale = np.asarray(q_scale) if np.ndim(q_scale) > 1 and len(q_scale) > 1 else None
            own = q_scale if scale is None else scale[b:b + 1]
            queries = real(whole[None], spread(own, flat.shape[1]))[0, :p.new[b]]
            seen = visible_pairs(p.new[b], length, causal=causal)
            found.append(reference(queries[None], keys[None], values[None], seen, scale=dim_scale))
        return np.concatenate([o[0] for o, _ in found]), np.concatenate([lse[0] for _, lse in found], -1)

    def check(self, found, wanted, tolerance=1.6e-2):
        o, lse = (np.asarray(x).astype("d") for x in found)
        size = np.abs(wanted[0]).max()
        close(o.reshape(-1, *o.shape[-2:]) / size, wanted[0] / size, tolerance)
        lse = lse if lse.ndim == 2 else lse.transpose(1, 0, 2).reshape(lse.shape[1], -1)
        close(lse, wanted[1], tolerance)


def spread(scale, heads):
    """A scale of KV heads as one of query heads."""
    axis = {1: 0, 2: 1, 3: 2, 4: 2}.get(np.ndim(scale))
    if axis is None or np.shape(scale)[axis] == 1:
        return scale
    return np.repeat(scale, heads // scale.shape[axis], axis)


@pytest.mark.parametrize("rows", [1, MANY])
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("paged", [False, True], ids=["stretches", "pages"])
@pytest.mark.parametrize("form", FORMS)
def test_scales_of_q_of_each_form(form, paged, packed, rows):
    for tokens in ("none", "bytes", "bf16") if rows == 1 else ("bf16",):
        x = Bytes(rows, packed, paged, tokens)
        q_scale, before = FORMS[form](x.longest), [cache.copy() for cache in x.caches]
        found = x.run(q_scale=q_scale, causal=True, return_lse=True, out_f32=True)
        assert found[0].dtype == found[1].dtype == np.float32
        if x.tokens:
            x.check_tokens(before)
        else:
            assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(x.caches, before))
        x.check(found, x.wanted(q_scale, causal=True))


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("group", [1, 2, 8])
def test_new_tokens_and_groups_of_heads(group, tokens):
    """Two calls of the same give the same: the second writes what is there."""
    x = Bytes(20, tokens=tokens, group=group)
    q_scale, before = positive(BATCH, group * HEADS_KV), [cache.copy() for cache in x.caches]
    first = x.run(q_scale=q_scale, return_lse=True, scale=0.1)
    assert first[0].dtype == BF16
    x.check_tokens(before)
    x.check(first, x.wanted(q_scale, dim_scale=float(np.float32(0.1))))
    assert all(np.array_equal(a, b) for a, b in zip(first, x.run(q_scale=q_scale, return_lse=True, scale=0.1)))


@pytest.mark.parametrize("new", [1, 6])
def test_decoding_with_scales_that_are_found(new):
    """A cache is filled token by token. Its slots have scales, and so has q."""
    p = Problem(new=new, batch=2, dim=DIM, dim_v=DIM, page_size=8, width=4)
    caches, scales = [np.zeros(x.shape, E4M3) for x in (p.k_cache, p.v_cache)], slot_scales(p)
    table = np.arange(8, dtype=np.int32)[::-1].reshape(2, 4).copy()
    for step in range(4):
        q, k, v = (normal(2, new, heads, DIM) for heads in (4, 2, 2))
        q8 = libattn.quantize(q, granularity="token")
        options = dict(page_table=table, causal=True, out_f32=True)
        lens = np.full(2, step * new, np.int32)
        o = libattn.attention_with_kvcache(q8, *caches, k.astype(BF16), v.astype(BF16), cache_seqlens=lens,
                                           k_scale=scales[0], v_scale=scales[1], token_scales=True, **options)
        floats = [cache.astype("f") * scale[..., None] for cache, scale in zip(caches, scales)]
        wanted = libattn.attention_with_kvcache(q8.data.astype("f") * q8.scale, *floats,
                                                cache_seqlens=lens + np.int32(new), **options)
        close(o, wanted, 1.6e-2)
        close(o, libattn.attention_with_kvcache(q, *floats, cache_seqlens=lens + np.int32(new), **options), 0.1)


@pytest.mark.parametrize("how", [{}, {"block_rows": 128}, {"granularity": "token", "scale_heads": HEADS_KV},
                                 {"granularity": "head"}, {"granularity": "tensor"}], ids=str)
def test_q_as_quantize_returns_it(how):
    for packed in (False, True):
        x = Bytes(MANY, packed)
        starts = {"cu_lens": x.p.starts} if packed else {}
        for longest in ({}, {"max_len": 200}) if packed else ({},):
            q8 = libattn.quantize(x.p.q, **how, **starts, **longest)
            x.q = q8.data
            wanted = x.run(q_scale=q8.scale if not longest or q8.scale.shape[1] == 1 else q8.scale[
                :, :-(-x.longest // q8.rows)], return_lse=True)
            x.check(wanted, x.wanted(np.asarray(q8.scale)[:, :-(-x.longest // max(q8.rows, 1))]))
            x.q = q8
            assert all(np.array_equal(a, b) for a, b in zip(x.run(return_lse=True), wanted))


@pytest.mark.parametrize("rows", [1, MANY])
def test_types_of_o(rows):
    x = Bytes(rows, tokens="f32")
    floats = x.run(out_dtype="float32")
    kinds = ("float32", np.dtype("f")), ("float16", np.dtype(np.float16)), ("bfloat16", BF16), (None, BF16)
    for name, dtype in kinds:
        o = x.run(out_dtype=name)
        assert o.dtype == dtype
        close(o, floats, 1e-2)
        given = np.zeros(o.shape, dtype)
        assert x.run(out_dtype=name, out=given) is given and np.array_equal(given, o)
        with pytest.raises(libattn.InvalidError, match=f"out is {E4M3}, where it takes {dtype}"):
            x.run(out_dtype=name, out=given.astype(E4M3))
    for scale in (None, 0.03, [0.5], np.full((1, 1), 2.0)):
        o = x.run(out_dtype="float8_e4m3fn", o_scale=scale)
        assert o.dtype == E4M3
        wanted = np.clip(floats / np.float32(1 if scale is None else np.ravel(scale)[0]), -448, 448).astype(E4M3)
        assert (bits(o) == bits(wanted)).mean() > 0.99
    x.q = x.p.q  # a wider q has types of o, too
    floats = x.run()
    assert floats.dtype == np.float32 and np.array_equal(x.run(out_dtype="float16"), floats.astype(np.float16))
    assert np.array_equal(bits(x.run(out_dtype="float8_e4m3fn", o_scale=0.01)),
                          bits((floats / np.float32(0.01)).astype(E4M3)))


def test_a_plan_holds_for_scales_of_its_layout_alone():
    x = Bytes(MANY)
    libattn.clear_plans()
    shape = BATCH, HEADS_KV
    forms = [positive(BATCH, MANY, HEADS_Q), positive(BATCH, HEADS_Q, MANY).transpose(0, 2, 1), positive(*shape),
             np.broadcast_to(positive(1, 1), shape), positive(*shape)[::-1, ::-1], positive(HEADS_KV), 2.0,
             positive(BATCH, 3, HEADS_Q, 1), positive(BATCH, 2, HEADS_Q, 1), positive(*shape)]
    for q_scale in forms:
        x.check(x.run(q_scale=q_scale, return_lse=True), x.wanted(q_scale))
    assert len(_run._plans) == len(forms) - 1  # the last looks like one before
    of_bytes = {"out_dtype": "float8_e4m3fn"}
    for more in ({"out_dtype": "float16"}, of_bytes, {**of_bytes, "o_scale": 2.0}, {**of_bytes, "o_scale": 3.0}):
        x.run(**more)
    assert len(_run._plans) == len(forms) + 2


def test_no_rows():
    x = Bytes(9, packed=True)
    x.q, x.tokens = x.q[:0], []
    x.p.packed = {"cu_lens_q": np.zeros(BATCH + 1, np.int32)}
    for q_scale in (0.5, positive(BATCH, HEADS_Q)):
        assert x.run(q_scale=q_scale).shape == (0, HEADS_Q, DIM_V)
    x.q = x.p.q[:5].astype(E4M3)  # rows that are in no sequence
    x.run(q_scale=positive(BATCH, HEADS_Q))
    with pytest.raises(libattn.InvalidError, match=r"q_scale has shape \(3, 5, 4\)"):
        x.run(q_scale=positive(BATCH, 5, HEADS_Q))


# ---- torch ---------------------------------------------------------------------------------------


def as_torch(x):
    import torch

    if not isinstance(x, np.ndarray):
        return x
    if x.dtype == E4M3:
        return torch.from_numpy(bits(x)).view(torch.float8_e4m3fn)
    return torch.from_numpy(x.astype("f")).bfloat16() if x.dtype == BF16 else torch.from_numpy(np.ascontiguousarray(x))


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
def test_torch(packed):
    torch = pytest.importorskip("torch")
    for form in FORMS:
        x = Bytes(4, packed)
        q_scale = FORMS[form](x.longest)
        wanted = x.run(q_scale=q_scale, return_lse=True)
        o, lse = x.run(as_torch, q_scale=q_scale, return_lse=True)
        assert o.dtype == torch.bfloat16 and np.array_equal(o.float().numpy(), wanted[0].astype("f"))
        assert np.array_equal(lse.numpy(), wanted[1])
    o = x.run(as_torch, out_dtype="float8_e4m3fn", o_scale=torch.tensor(0.5), q_scale=torch.ones(1, 1).expand(BATCH, 2))
    wanted = x.run(out_dtype="float8_e4m3fn", o_scale=0.5)
    assert o.dtype == torch.float8_e4m3fn and np.array_equal(o.view(torch.uint8).numpy(), bits(wanted))
    of = torch.ones(2, requires_grad=True)
    for name in ("q_scale", "o_scale"):
        with pytest.raises(libattn.InvalidError, match=f"{name} requires grad, and attention to tensors of one byte"):
            x.run(as_torch, out_dtype="float8_e4m3fn", **{name: of})


def test_operators_of_torch_refuse_it():
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    x = Bytes(1, tokens="none")
    q, k_cache, v_cache = map(as_torch, [x.q, *x.caches])
    options = {name: as_torch(value) for name, value in x.options().items()}
    said = "libattn.torch.attention_with_kvcache takes .*: libattn.attention_with_kvcache takes such a q, with q_scale"
    for given, kind in ((q, "torch.float8_e4m3fn"), (libattn.quantize(q.float()), "what quantize returned")):
        with pytest.raises(libattn.InvalidError, match=f"q is {kind}; {said}"):
            la.attention_with_kvcache(given, k_cache, v_cache, **options)
    rest = dict(cu_lens=None, rotary_cos=None, rotary_sin=None, rotary_interleaved=None, rotary_positions=None,
                threads=0, fault=None, token_scales=False, max_len_q=None, first_kv=None, position_q=None,
                position_kv=None, prefix=None, bits=None, alibi=None, sink=None, max_len_kv=None, bits_keys=None,
                visible_share=None, causal=False, window=None, chunk=None, scale=None, softcap=None, out_f32=False,
                deterministic=False, k=None, v=None)
    for place in ("cpu", "meta"):
        with pytest.raises(libattn.InvalidError, match=f"q is torch.float8_e4m3fn; {said}"):
            torch.ops.libattn.with_kvcache(**rest, **{name: value.to(place) for name, value in dict(
                options, q=q, k_cache=k_cache, v_cache=v_cache).items()})
    with pytest.raises(Exception, match="q is torch.float8_e4m3fn|Observed exception"):
        torch.compile(la.attention_with_kvcache, fullgraph=True, backend="eager")(q, k_cache, v_cache, **options)


# ---- what is refused -----------------------------------------------------------------------------


def mistakes():
    x = Bytes()
    p, q8 = x.p, libattn.quantize(x.p.q)
    k_cache, v_cache = x.caches
    floats = {"k_cache": p.k_cache, "v_cache": p.v_cache, "k_scale": None, "v_scale": None}
    cos = normal(300, 4)
    rotary = {"rotary_cos": cos, "rotary_sin": cos, "rotary_interleaved": False}
    overlapping = np.zeros(x.q.shape[:-1] + (DIM_V,), "f")
    return x, [
        ("q is int8; it takes float32, .* or float8_e4m3fn$", {"q": x.q.view("b")}),
        ("q is int8; it takes", {"q": x.q.view("b"), "k_cache": k_cache.view("b"), "v_cache": v_cache.view("b")}),
        ("q is float8_e5m2; it takes", {"q": p.q.astype(ml_dtypes.float8_e5m2)}),
        ("k_cache is int8, where it takes float8_e4m3fn, as q is", {"k_cache": k_cache.view("b")}),
        ("v_cache is int8, where it takes float8_e4m3fn, as k_cache is", {"v_cache": v_cache.view("b")}),
        ("k_cache is float32, where it takes float8_e4m3fn, as q is", floats),
        ("k is int8, where it takes float8_e4m3fn, as k_cache is", {"k": p.k.astype("b"), "v": p.v.astype("b")}),
        ("k is float64; k and v are appended in", {"k": p.k.astype("d"), "v": p.v.astype("d")}),
        ("v is float32, where it takes bfloat16, as k is", {"v": p.v}),
        ("v is float8_e4m3fn, where it takes bfloat16, as k is", {"v": p.v.astype(E4M3)}),
        ("k: Quantized is no tensor", {"k": libattn.quantize(p.k)}),
        ("q is float8_e4m3fn, and rotary embedding turns a q of float32, .*: turn it before it is quantised", rotary),
        ("q is float8_e4m3fn, and rotary embedding", {**rotary, "k": p.k.astype(E4M3), "v": p.v.astype(E4M3)}),
        ("q_scale is given for q of float32; it goes with float8_e4m3fn$", {"q": p.q, "k": p.k, "v": p.v,
                                                                            "q_scale": 1.0}),
        ("q_scale is given for q of float32", {**floats, "q": p.q, "k": p.k, "v": p.v, "q_scale": [1.0]}),
        ("q_scale is given beside q as quantize returned it", {"q": q8, "q_scale": 1.0}),
        (r"q was rotated \(hadamard=32, seed=0\), .* pass q.data and q_scale=q.scale",
         {"q": libattn.quantize(p.q, hadamard=True)}),
        ("q was quantised with k_mean, .* pass q.data and q_scale=q.scale; libattn.correct_lse",
         {"q": libattn.quantize(p.q, k_mean=np.ones((BATCH, HEADS_KV, DIM), "f"))}),
        ("q was quantised with subtract_mean, which is of k", {"q": libattn.quantize(p.q, subtract_mean=True)}),
        ("q is int8; it takes", {"q": libattn.quantize(p.q, "int8")}),
        (r"q_scale has shape \(3,\); it takes a number, \(4 or 2,\), \(3, 4 or 2\), \(3, 3, 4 or 2\) or \(sequences, ",
         {"q_scale": positive(3)}),
        (r"q_scale has shape \(2, 4\)", {"q_scale": positive(2, 4)}),
        (r"q_scale has shape \(3, 2, 4\)", {"q_scale": positive(3, 2, 4)}),
        (r"q_scale has shape \(3, 1, 4, 32\)", {"q_scale": positive(3, 1, 4, 32)}),
        ("q_scale is 1e.39; it takes a number that float32 holds", {"q_scale": 1e39}),
        ("q_scale is bool; it takes float32", {"q_scale": True}),
        ("q_scale is <U3; it takes float32", {"q_scale": "0.5"}),
        ("out_dtype is 'int8'; it takes float32, float16, bfloat16, float8_e4m3fn, or None", {"out_dtype": "int8"}),
        ("out_dtype is 'float16', and out_f32 is True", {"out_dtype": "float16", "out_f32": True}),
        ("out_dtype is 5; it takes", {"out_dtype": 5}),
        ("o_scale is given, where o is bfloat16: it goes with an out_dtype of float8_e4m3fn", {"o_scale": 1.0}),
        (r"o_scale has shape \(2,\); it takes one", {"o_scale": [1, 2], "out_dtype": "float8_e4m3fn"}),
        ("o overlaps q_scale", {"q_scale": overlapping[..., 0], "out": overlapping, "out_f32": True}),
        ("q_scale overlaps k_scale, which the call writes", overlapping_scales(x)),
        ("kernel = nonsense is no kernel of this library", {"kernel": "nonsense"}),
    ]


def overlapping_scales(x):
    k_scale, v_scale = slot_scales(x.p)
    return {"k_scale": k_scale, "v_scale": v_scale, "token_scales": True, "q_scale": k_scale[:BATCH, 0]}


MISTAKES = mistakes()


@pytest.mark.parametrize("match, wrong", MISTAKES[1], ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_mistakes(match, wrong):
    x = MISTAKES[0]
    caches = [cache.copy() for cache in x.caches]
    right = x.options(q=x.q, k_cache=x.caches[0], v_cache=x.caches[1], k=x.tokens[0], v=x.tokens[1])
    libattn.attention_with_kvcache(**{**right, "k_cache": caches[0].copy(), "v_cache": caches[1].copy()})
    with pytest.raises((libattn.InvalidError, TypeError), match=match):
        libattn.attention_with_kvcache(**{**right, **wrong})
    assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(x.caches, caches))


def test_append_turns_no_q_of_bytes():
    x = Bytes()
    cos = normal(300, 4)
    with pytest.raises(libattn.InvalidError, match="q is float8_e4m3fn, and rotary embedding turns a q of float32"):
        libattn.append_kvcache(*x.tokens, *x.caches, cache_seqlens=x.p.lens, page_table=x.p.table, q=x.q,
                               rotary_cos=cos, rotary_sin=cos, rotary_interleaved=True)
