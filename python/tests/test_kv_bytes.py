"""Caches of one byte: append_kvcache against a cast by hand, and attention to what it wrote against attention to the
dequantised cache."""
import numpy as np
import pytest

import libattn
from conftest import close
from test_kv import Problem, normal, turned

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
TYPES = {"e4m3": (E4M3, 448), "i8": (np.dtype(np.int8), 127)}


def stored(x, scale, dtype):
    """x / scale in the cache's type: rounded to nearest even, saturating."""
    quotient = x.astype(np.float32) / np.float32(scale)
    end = TYPES["e4m3" if dtype == E4M3 else "i8"][1]
    inside = np.clip(quotient, -end - (dtype != E4M3), end)
    return inside.astype(dtype) if dtype == E4M3 else np.rint(inside).astype(dtype)


def real(x, scale=1.0):
    return x.astype(np.float32) * np.float32(scale)


def bits(x):
    return x.view(np.uint8)


def byte_caches(p, dtype):
    """Its caches in that type, and the appended tokens' places: (page, slot) of each row."""
    caches = [stored(x, 0.02, dtype) for x in (p.k_cache, p.v_cache)]
    return caches


def places(p):
    tokens = np.concatenate([np.arange(p.lens[b], p.lens[b] + p.new[b]) for b in range(len(p.lens))])
    owner = np.repeat(np.arange(len(p.lens)), p.new)
    return (p.table[owner, tokens // p.size], tokens % p.size), tokens, owner


def slot_scales(p):
    """Scales of slots, K's and V's in one array, heads before slots: any strides will do."""
    pages, size, heads, _ = p.k_cache.shape
    both = np.full((pages, 2, heads, size), 7.0, np.float32)
    return [both[:, i].transpose(0, 2, 1) for i in range(2)]


@pytest.mark.parametrize("rows", [np.float32, np.float16, BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
def test_found_scales(kind, rows, packed):
    dtype, end = TYPES[kind]
    p = Problem(packed=packed, dim=19, dim_v=10, new=4)
    k, v = p.k.astype(rows), p.v.astype(rows)
    k.reshape(-1, 2, 19)[0] = 0  # a row of zeros
    k_cache, v_cache = byte_caches(p, dtype)
    before = k_cache.copy(), v_cache.copy()
    k_scale, v_scale = slot_scales(p)
    libattn.append_kvcache(k, v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table, k_scale=k_scale,
                           v_scale=v_scale, token_scales=True, **({"cu_lens": p.starts} if packed else {}))
    place, _, _ = places(p)
    for x, cache, old, scale in ((k, k_cache, before[0], k_scale), (v, v_cache, before[1], v_scale)):
        x = x.reshape(-1, *x.shape[-2:]).astype(np.float32)
        wanted = np.maximum(np.abs(x).max(-1) / np.float32(end), np.float32(2.0 ** -126))
        assert np.array_equal(scale[place], wanted)
        assert np.array_equal(bits(cache[place]), bits(stored(x, wanted[..., None], dtype)))
        assert np.all(np.abs(real(cache[place], wanted[..., None]) - x) <= np.abs(x).max(-1, keepdims=True) / 15)
        cache[place], scale[place] = old[place], 7
        assert np.array_equal(bits(cache), bits(old)) and np.all(scale == 7)  # nothing else was written


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", ["none", "number", "heads", "batch", "slots"])
def test_given_scales(kind, shape):
    dtype, _ = TYPES[kind]
    p = Problem(new=3)
    k_cache, v_cache = byte_caches(p, dtype)
    pages, size, heads, _ = k_cache.shape
    place, _, owner = places(p)
    given = {"none": None, "number": 0.3, "heads": [0.3, 0.01], "batch": np.array([[0.1, 0.2], [2, 3], [0.5, 0.05]]),
             "slots": RANDOM.random((pages, size, heads), np.float32) + np.float32(0.01)}[shape]
    libattn.append_kvcache(p.k, p.v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table, k_scale=given)
    scale = {"none": lambda: np.ones(1), "number": lambda: np.array(given), "heads": lambda: np.array(given)[:, None],
             "batch": lambda: given[owner][..., None], "slots": lambda: given[place][..., None]}[shape]()
    assert np.array_equal(bits(k_cache[place]), bits(stored(p.k.reshape(-1, 2, 16), scale, dtype)))
    assert np.array_equal(bits(v_cache[place]), bits(stored(p.v.reshape(-1, 2, 16), 1, dtype)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_in_float_then_rounded_once(interleaved):
    p = Problem(rotary_dim=12, new=3)
    k, q = p.k.astype(BF16), p.q.astype(BF16)
    k_cache, v_cache = byte_caches(p, E4M3)
    q_turned = libattn.append_kvcache(k, p.v.astype(BF16), k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table,
                                      k_scale=0.05, q=q, **p.rotary(interleaved))
    place, tokens, _ = places(p)
    flat = turned(k.astype(np.float32).reshape(-1, 2, 16), tokens, p.cos, p.sin, interleaved)
    assert np.array_equal(bits(k_cache[place]), bits(stored(flat, 0.05, E4M3)))
    flat_q = turned(q.astype(np.float32).reshape(-1, 4, 16), tokens, p.cos, p.sin, interleaved)
    assert np.array_equal(q_turned.reshape(-1, 4, 16), flat_q.astype(BF16))


def test_bytes_are_stored_as_they_are():
    p = Problem(new=3)
    k, v = (RANDOM.integers(-128, 128, x.shape).astype(np.int8) for x in (p.k, p.v))
    k_cache, v_cache = byte_caches(p, np.dtype(np.int8))
    libattn.append_kvcache(k, v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table)
    place, _, _ = places(p)
    assert np.array_equal(k_cache[place], k.reshape(-1, 2, 16)) and np.array_equal(v_cache[place], v.reshape(-1, 2, 16))


def dequantised(p, caches, scales):
    return [real(cache, scale[..., None]) for cache, scale in zip(caches, scales)]


@pytest.mark.parametrize("rows", [np.float32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("new", [1, 6])
def test_decode_over_what_append_wrote(kind, rows, new):
    """From an empty cache, by token: each step's attention is that to the dequantised cache."""
    dtype, _ = TYPES[kind]
    p = Problem(new=new, batch=2, dim=32, dim_v=32, page_size=8, width=4)
    caches = [np.zeros(x.shape, dtype) for x in (p.k_cache, p.v_cache)]
    scales = slot_scales(p)
    p.table = RANDOM.permutation(len(caches[0]))[:8].reshape(2, 4).astype(np.int32)
    for step in range(4):
        q, k, v = (normal(2, new, heads, 32).astype(rows) for heads in (4, 2, 2))
        lens = np.full(2, step * new, np.int32)
        o = libattn.attention_with_kvcache(q, *caches, k, v, cache_seqlens=lens, page_table=p.table, causal=True,
                                           k_scale=scales[0], v_scale=scales[1], token_scales=True, out_f32=True)
        floats = dequantised(p, caches, scales)
        wanted = libattn.attention_with_kvcache(q.astype(np.float32), *floats, cache_seqlens=lens + np.int32(new),
                                                page_table=p.table, causal=True)
        close(o, wanted, 2e-5 if rows == np.float32 else 6e-3)
        again = libattn.attention_with_kvcache(q, *caches, cache_seqlens=lens + np.int32(new), page_table=p.table,
                                               causal=True, k_scale=scales[0], v_scale=scales[1], out_f32=True)
        assert np.array_equal(again, o)


def test_mistakes():
    p = Problem(new=2, rotary_dim=8)
    caches = byte_caches(p, E4M3)
    k_scale, v_scale = slot_scales(p)
    fixed = v_scale.copy()
    fixed.flags.writeable = False
    right = dict(k=p.k, v=p.v, k_cache=caches[0], v_cache=caches[1], cache_seqlens=p.lens, page_table=p.table)
    found = dict(k_scale=k_scale, v_scale=v_scale, token_scales=True)
    raw = dict(k=stored(p.k, 1, E4M3), v=stored(p.v, 1, E4M3))
    before = caches[0].copy(), k_scale.copy()
    for match, wrong in (
            ("v_scale is None: with token_scales", {**found, "v_scale": None}),
            ("v_scale is read-only", {**found, "v_scale": fixed}),
            (r"k_scale has shape \(2,\)", {**found, "k_scale": np.ones(2, "f")}),
            ("k_scale is float64, where it takes float32", {**found, "k_scale": k_scale.astype("d")}),
            (r"k_scale has shape \(3,\); it takes a number, \(2,\), \(3, 2\) or \(22, 5, 2\)", {"k_scale": [1, 2, 3]}),
            (r"k_scale has shape \(2, 2\)", {"k_scale": np.ones((2, 2))}),
            ("k is float8_e4m3fn, as k_cache is: .* token_scales", {**found, **raw}),
            ("v is float16, where it takes float32, as k is", {"v": p.v.astype(np.float16)}),
            ("v_cache is int8, where it takes float8_e4m3fn, as k_", {"v_cache": stored(p.v_cache, 1, np.int8)}),
            ("k is int8, where it takes float8_e4m3fn, as k_cache is", {"k": p.k.astype("b"), "v": p.v.astype("b")}),
            ("k is float64; k and v are appended in", {"k": p.k.astype("d"), "v": p.v.astype("d")}),
            ("k_scale is given for a cache of float32", {"k_cache": p.k_cache, "v_cache": p.v_cache, "k_scale": 1.0}),
            ("ATTN_KV_ROTARY needs a dtype", {**raw, **p.rotary(False)}),
            ("k_scale overlaps v_scale", {**found, "v_scale": k_scale}),
            ("token_scales is 2", {**found, "token_scales": 2})):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            libattn.append_kvcache(**{**right, **wrong})
        assert np.array_equal(bits(caches[0]), bits(before[0])) and np.array_equal(k_scale, before[1])
    with pytest.raises(libattn.InvalidError, match="token_scales is given without k and v"):
        libattn.attention_with_kvcache(p.q, *caches, cache_seqlens=p.lens, page_table=p.table, **found)
    with pytest.raises(libattn.InvalidError, match="overlaps out"):
        libattn.attention_with_kvcache(p.q, *caches, cache_seqlens=p.lens, page_table=p.table, k_scale=k_scale,
                                       out=np.lib.stride_tricks.as_strided(k_scale.base, p.q.shape[:-1] + (16,),
                                                                           (16 * 4 * 4 * 2, 16 * 4 * 4, 64, 4)))


def test_torch_casts_alike():
    """Its cast of the quotient gives the same bits. What exceeds 448 becomes that in newer versions of torch, as here; in
    older ones NaN."""
    torch = pytest.importorskip("torch")
    x = torch.cat([torch.linspace(-500, 500, 29998), torch.randn(30000) * 0.02, torch.tensor([-0.0, float("inf")])])
    x = x.reshape(1, 60, 10, 100)
    scale = 0.75
    k_cache, v_cache = (torch.zeros(1, 64, 10, 100, dtype=torch.float8_e4m3fn) for _ in range(2))
    for rows in (torch.float32, torch.bfloat16, torch.float16):
        given = x.to(rows)
        libattn.append_kvcache(given, given, k_cache, v_cache, cache_seqlens=0, k_scale=scale)
        quotient = given.float() / scale
        for cache, wanted in ((k_cache, quotient), (v_cache, given.float())):
            cast, ours, inside = wanted.to(torch.float8_e4m3fn), cache[:, :60], wanted.abs() <= 464
            assert torch.equal(ours.view(torch.uint8)[inside], cast.view(torch.uint8)[inside])
            assert torch.equal(ours.float()[~inside], 448 * wanted[~inside].sign())
            beyond = cast.float()[~inside]
            assert beyond.isnan().all() or torch.equal(beyond, ours.float()[~inside])


def test_operators_of_torch():
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, heads, 16).bfloat16() for heads in (4, 2, 2))
    seqlens = torch.tensor([5, 0], dtype=torch.int32)

    def caches(dtype):
        made = [torch.randn(2, 12, 2, 16).to(dtype) for _ in range(2)], [torch.rand(2, 12, 2) for _ in range(2)]
        return [[x.clone() for x in part] for part in made for _ in range(2)]

    for dtype in (torch.float8_e4m3fn, torch.int8):
        ours, theirs, our_scales, their_scales = caches(dtype)
        options = dict(cache_seqlens=seqlens, token_scales=True)
        wanted = libattn.attention_with_kvcache(q, *theirs, k, v, k_scale=their_scales[0], v_scale=their_scales[1],
                                                **options)
        versions = [x._version for x in ours + our_scales]
        o = la.attention_with_kvcache(q, *ours, k, v, k_scale=our_scales[0], v_scale=our_scales[1], **options)
        assert torch.equal(o, wanted) and all(x._version > old for x, old in zip(ours + our_scales, versions))
        for mine, other in zip(ours + our_scales, theirs + their_scales):
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
        whole = torch.compile(la.attention_with_kvcache, fullgraph=True, backend="aot_eager")
        assert torch.equal(whole(q, *ours, k, v, k_scale=our_scales[0], v_scale=our_scales[1], **options), wanted)
        la.append_kvcache(k, v, *ours, cache_seqlens=seqlens, k_scale=0.5, v_scale=torch.tensor([0.5, 0.25]))
        libattn.append_kvcache(k, v, *theirs, cache_seqlens=seqlens, k_scale=0.5, v_scale=[0.5, 0.25])
        assert torch.equal(ours[0].view(torch.uint8), theirs[0].view(torch.uint8))
        read = dict(cache_seqlens=seqlens + 3, k_scale=0.5, v_scale=2.0)
        o = la.attention_with_kvcache(q, *ours, **read)
        assert torch.equal(o, libattn.attention_with_kvcache(q, *ours, **read))
    with pytest.raises(TypeError, match="a scale is str"):
        la.append_kvcache(k, v, *ours, cache_seqlens=seqlens, k_scale="1")


RANDOM = np.random.default_rng(3)
