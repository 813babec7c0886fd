"""merge_states, append_kvcache and attention_with_kvcache over NumPy arrays: against the definition, and bit by bit
against the calls that they put together."""
import threading

import numpy as np
import pytest

import libattn
from conftest import close, reference, visible_pairs

RANDOM = np.random.default_rng(11)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


# ---- merging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-5), (np.float16, 3e-3)])
@pytest.mark.parametrize("cuts", [(5,), (0, 7), (3, 4, 9, 12)], ids=str)
def test_merged_parts_are_the_whole(make, cuts, dtype, tolerance):
    q, k, v = make(dtype=dtype)
    edges = (0, *cuts, 13)
    parts = [libattn.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in zip(edges, edges[1:])]
    o, lse = libattn.merge_states([part[0] for part in parts], [part[1] for part in parts])
    assert o.dtype == dtype and lse.dtype == np.float32
    wanted = reference(q, k, v)
    close(o, wanted[0], tolerance)
    close(lse, wanted[1], max(tolerance / 10, 2e-5))


def test_merge_is_its_definition_with_natural_logarithms():
    o = [normal(2, 3, 4, 8) for _ in range(3)]
    lse = [normal(2, 4, 3) * 5 for _ in range(3)]
    lse[1][0, 2] = -np.inf
    lse[0][1] = lse[1][1] = lse[2][1] = -np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.maximum(np.max(lse, 0), -1e30)
        weights = np.exp(np.array(lse, np.float64) - top)
        total = weights.sum(0)
        shares = np.where(total > 0, weights / total, 0).transpose(0, 1, 3, 2)[..., None]
        merged = libattn.merge_states(o, lse)
        close(merged[0], (shares * o).sum(0))
        close(merged[1], np.where(total > 0, top + np.log(total), -np.inf))
    assert np.all(merged[0][1] == 0) and np.all(np.isneginf(merged[1][1]))


def test_merge_takes_packed_rows_strides_and_outputs():
    o, lse = [normal(5, 4, 8, dtype=np.float16) for _ in range(2)], [normal(4, 5) for _ in range(2)]
    wanted = libattn.merge_states([x[None] for x in o], [x[None] for x in lse])
    found = libattn.merge_states(o, lse)
    assert np.array_equal(found[0], wanted[0][0]) and np.array_equal(found[1], wanted[1][0])
    wide = [np.zeros((5, 6, 8), np.float16) for _ in o]
    for whole, part in zip(wide, o):
        whole[:, 1:5] = part
    assert np.array_equal(libattn.merge_states([x[:, 1:5] for x in wide], lse)[0], wanted[0][0])
    exact = libattn.merge_states(o, lse, out_f32=True)[0]
    assert exact.dtype == np.float32 and np.array_equal(exact.astype(np.float16), wanted[0][0])
    out, out_lse = np.zeros_like(o[0]), np.zeros_like(lse[0])
    found = libattn.merge_states(o, lse, out=out, out_lse=out_lse)
    assert found[0] is out and found[1] is out_lse and np.array_equal(out, wanted[0][0])
    libattn.merge_states(o, lse, out=o[0], out_lse=lse[0])  # in place
    assert np.array_equal(o[0], wanted[0][0]) and np.array_equal(lse[0], wanted[1][0])
    alone = libattn.merge_states(o[:1], lse[:1])
    assert np.array_equal(alone[0], o[0]) and np.array_equal(alone[1], lse[0])


def test_merge_refuses():
    o, lse = [normal(2, 3, 4, 8) for _ in range(2)], [normal(2, 4, 3) for _ in range(2)]
    fixed = np.zeros_like(o[0])
    fixed.flags.writeable = False
    wide = normal(2, 3, 4, 16)
    for match, arguments, options in (
            ("o has 2 parts and lse 1", (o, lse[:1]), {}), ("o has 0 parts", ([], []), {}),
            ("parts = 65", (o[:1] * 65, lse[:1] * 65), {}),
            (r"o\[1\] has shape", ([o[0], o[1][:1]], lse), {}), (r"lse\[1\] has shape", (o, [lse[0], lse[1][:1]]), {}),
            (r"o\[0\] has shape", ([o[0][0, 0]] * 2, lse), {}),
            (r"o\[1\] is float16", ([o[0], o[1].astype(np.float16)], lse), {}),
            (r"lse\[0\] is float64", (o, [x.astype(np.float64) for x in lse]), {}),
            (r"o\[0\] is int64", ([x.astype(np.int64) for x in o], lse), {}),
            ("dtype = 4", ([x.astype(np.float64) for x in o], lse), {}),
            (r"lse\[1\] has strides", (o, [lse[0], np.asfortranarray(lse[1])]), {}),
            (r"o\[1\] has strides .* all parts", ([o[0], wide[..., :8]], lse), {}),
            ("must be contiguous", ([wide[..., ::2]] * 2, lse), {}),
            ("out is read-only", (o, lse), {"out": fixed}), ("out is float64", (o, lse), {"out": o[0].astype("d")}),
            ("out has shape", (o, lse), {"out": o[0][:1]}), ("out_lse has shape", (o, lse), {"out_lse": lse[0][:1]}),
            ("o overlaps part_o", (o, lse), {"out": np.flip(o[0], 0)}), ("threads", (o, lse), {"threads": -1})):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.merge_states(*arguments, **options)
    for arguments in ((o[0], lse[0]), (o, lse[0])):
        with pytest.raises(TypeError, match="list of the parts"):
            libattn.merge_states(*arguments)


# ---- caches ----------------------------------------------------------------------------------------


def turned(x, positions, cos, sin, interleaved):
    """Rotary embedding of (row, head, dim) at positions, in f32 with every product and sum rounded once."""
    x, half = x.copy(), cos.shape[1]
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    c, s = cos[positions][:, None], sin[positions][:, None]
    first, second = x[..., a].astype(np.float32), x[..., b].astype(np.float32)
    x[..., a], x[..., b] = first * c - second * s, second * c + first * s
    return x


class Problem:
    """A random cache in pages, its sequences, and new tokens."""

    def __init__(self, batch=3, page_size=5, width=6, heads_q=4, heads_kv=2, dim=16, dim_v=16, new=3, dtype=np.float32,
                 packed=False, rotary_dim=0, slack=4):
        self.new = RANDOM.integers(0, new + 1, batch) if packed else np.full(batch, new)
        self.new[0] = max(self.new[0], 1)  # there is a token, whatever other tests have drawn
        self.lens = RANDOM.integers(0, width * page_size - new + 1, batch).astype(np.int32)
        self.size, pages = page_size, batch * width + slack
        self.k_cache = normal(pages, page_size, heads_kv, dim, dtype=dtype)
        self.v_cache = normal(pages, page_size, heads_kv, dim_v, dtype=dtype)
        self.table = RANDOM.permutation(pages)[:batch * width].reshape(batch, width).astype(np.int32)
        used = -(-(self.lens + self.new) // page_size)
        self.table[np.arange(width) >= used[:, None]] = 1 << 30  # nobody looks at these
        lead = (int(self.new.sum()),) if packed else (batch, new)
        self.q, self.k = normal(*lead, heads_q, dim, dtype=dtype), normal(*lead, heads_kv, dim, dtype=dtype)
        self.v = normal(*lead, heads_kv, dim_v, dtype=dtype)
        self.starts = np.concatenate([[0], np.cumsum(self.new)]).astype(np.int32)
        self.packed = {"cu_lens_q": self.starts} if packed else {}
        self.cos, self.sin = normal(width * page_size, rotary_dim // 2), normal(width * page_size, rotary_dim // 2)

    def rotary(self, interleaved):
        return {"rotary_cos": self.cos, "rotary_sin": self.sin, "rotary_interleaved": interleaved}

    def sequence(self, b):
        """(q, k, v) rows of a sequence, and the keys and values that the cache holds of it."""
        rows = slice(self.starts[b], self.starts[b + 1])
        old, pages = self.lens[b], self.table[b]
        stored = [np.stack([cache[pages[i // self.size], i % self.size] for i in range(old)]) if old else
                  cache[0, :0] for cache in (self.k_cache, self.v_cache)]
        flat = [x.reshape(-1, *x.shape[-2:]) for x in (self.q, self.k, self.v)]
        return [x[rows] for x in flat], stored

    def wanted(self, interleaved=None, causal=False, window=None, first=None, **scores):
        """(o, lse) by the definition, rows of all sequences one after another; lse of (heads, row)."""
        o, lse = [], []
        for b in range(len(self.lens)):
            (q, k, v), (old_k, old_v) = self.sequence(b)
            if interleaved is not None:
                positions = np.arange(self.lens[b], self.lens[b] + len(q))
                q, k = (turned(x, positions, self.cos, self.sin, interleaved) for x in (q, k))
            keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
            seen = visible_pairs(len(q), len(keys), causal, window)
            if first is not None:
                seen &= np.arange(len(keys)) >= first[b]
            found = reference(q[None], keys[None], values[None], seen, **scores)
            o.append(found[0][0]), lse.append(found[1][0])
        return np.concatenate(o), np.concatenate(lse, -1)


OPTIONS = [{}, {"causal": True}, {"window": (4, 0)}, {"causal": True, "softcap": 3.0, "scale": 0.3}]


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("kind", ["none", "halves", "interleaved"])
@pytest.mark.parametrize("shape", [
    {}, {"page_size": 1, "width": 20, "new": 4}, {"heads_q": 6, "heads_kv": 1, "dim": 24, "dim_v": 10, "page_size": 7},
    {"new": 1, "batch": 4, "page_size": 16, "width": 2}, {"heads_q": 2, "new": 9, "page_size": 3, "width": 9},
], ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_against_the_definition(shape, kind, packed):
    for rotary_dim in (8, 16):
        p = Problem(packed=packed, rotary_dim=rotary_dim, **shape)
        interleaved = {"none": None, "halves": False, "interleaved": True}[kind]
        rotary = {} if interleaved is None else p.rotary(interleaved)
        options = OPTIONS[RANDOM.integers(len(OPTIONS))]
        wanted = p.wanted(interleaved, **options)
        o, lse = libattn.attention_with_kvcache(
            p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens, page_table=p.table, return_lse=True, **rotary,
            **options, **p.packed)
        assert o.shape == (*p.q.shape[:-1], p.v.shape[-1])
        close(o.reshape(wanted[0].shape), wanted[0])
        close(lse if packed else np.concatenate(list(lse), -1), wanted[1])


@pytest.mark.parametrize("options", [{"sink": normal(4)}, {"alibi": [0.5, 0.2, 0.1, 0.3]}, {"first": [2, 0, 1]}],
                         ids=lambda options: next(iter(options)))
def test_scores_and_first_keys(options):
    p = Problem(new=2)
    given = {"first_kv" if name == "first" else name: value for name, value in options.items()}
    wanted = p.wanted(causal=True, **options)[0]
    o = libattn.attention_with_kvcache(p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens, page_table=p.table,
                                       causal=True, **given)
    close(o.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [None, False, True])
def test_bits_are_those_of_the_separate_calls(interleaved, dtype, packed):
    p = Problem(dtype=dtype, packed=packed, rotary_dim=12, new=5)
    k_cache, v_cache = p.k_cache.copy(), p.v_cache.copy()
    rotary = {} if interleaved is None else p.rotary(interleaved)
    cu = {"cu_lens": p.starts} if packed else {}
    extra = dict(rotary, q=p.q) if rotary else {}
    q = libattn.append_kvcache(p.k, p.v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table, **cu, **extra)
    assert (q is None) == (not rotary)
    lens = (p.lens + p.new).astype(np.int32)
    for b in range(3):  # what the cache holds now, and that nothing else changed
        _, k, v = p.sequence(b)[0]
        positions = np.arange(p.lens[b], lens[b])
        k = turned(k, positions, p.cos, p.sin, interleaved) if rotary else k
        place = p.table[b, positions // p.size], positions % p.size
        assert np.array_equal(k_cache[place], k) and np.array_equal(v_cache[place], v)
        if rotary:
            rows = slice(p.starts[b], p.starts[b + 1])
            assert np.array_equal(q.reshape(-1, 4, 16)[rows], turned(p.sequence(b)[0][0], positions, p.cos, p.sin,
                                                                     interleaved))
        k_cache[place] = p.k_cache[place]
        v_cache[place] = p.v_cache[place]
    assert np.array_equal(k_cache, p.k_cache) and np.array_equal(v_cache, p.v_cache)
    libattn.append_kvcache(p.k, p.v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table, **cu, **extra)
    options = dict(p.packed, page_table=p.table, causal=True, return_lse=True)
    apart = libattn.attention_with_kvcache(p.q if q is None else q, k_cache, v_cache, cache_seqlens=lens, **options)
    before = p.q.copy(), p.lens.copy()
    for _ in range(2):  # once more gives the same
        whole = libattn.attention_with_kvcache(p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens, **rotary,
                                               **options)
        for ours, theirs in zip((*whole, p.k_cache, p.v_cache, p.q, p.lens), (*apart, k_cache, v_cache, *before)):
            assert np.array_equal(ours, theirs)


def test_a_cache_without_pages():
    k_cache, v_cache = normal(3, 20, 2, 16), normal(3, 20, 2, 16)
    q, k, v = normal(3, 2, 4, 16), normal(3, 2, 2, 16), normal(3, 2, 2, 16)
    for lens in (np.array([0, 18, 7], np.int32), 5):
        keys, values = k_cache.copy(), v_cache.copy()
        for b, start in enumerate(np.broadcast_to(lens, 3)):
            keys[b, start:start + 2], values[b, start:start + 2] = k[b], v[b]
        wanted = libattn.attention(q, keys, values, lens_kv=np.broadcast_to(np.int32(lens) + 2, 3), causal=True)
        o = libattn.attention_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lens, causal=True)
        close(o, wanted)
        assert np.array_equal(k_cache, keys) and np.array_equal(v_cache, values)
        read = libattn.attention_with_kvcache(q, k_cache, v_cache, cache_seqlens=lens + np.int32(2), causal=True)
        assert np.array_equal(read, o)
    # stretches 2 and 0 of the cache, its heads before its slots
    turned_cache = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (k_cache, v_cache)]
    choice = np.array([2, 0])
    o = libattn.attention_with_kvcache(q[:2], *turned_cache, k[:2], v[:2], cache_seqlens=[3, 4],
                                       page_table=choice[:, None])
    k_cache[2, 3:5], k_cache[0, 4:6], v_cache[2, 3:5], v_cache[0, 4:6] = k[0], k[1], v[0], v[1]
    assert np.array_equal(turned_cache[0], k_cache) and np.array_equal(turned_cache[1], v_cache)
    close(o, libattn.attention(q[:2], k_cache[choice], v_cache[choice], lens_kv=[5, 6]))


def test_other_numbers_of_rows_strides_and_empty_calls():
    p = Problem(new=2)
    rows = normal(3, 5, 4, 16)  # more rows than new tokens
    o = libattn.attention_with_kvcache(rows, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens, page_table=p.table)
    for b in range(3):
        (_, k, v), (old_k, old_v) = p.sequence(b)
        keys, values = np.concatenate([old_k, k])[None], np.concatenate([old_v, v])[None]
        close(o[b:b + 1], reference(rows[b:b + 1], keys, values)[0])
    joined = np.concatenate([p.q, p.k, p.v], 2)  # one array, as a projection gives it
    out, cache = np.full((3, 2, 4, 16), 7, np.float32), np.stack([p.k_cache, p.v_cache], 1)
    found = libattn.attention_with_kvcache(joined[:, :, :4], cache[:, 0], cache[:, 1], joined[:, :, 4:6],
                                           joined[:, :, 6:], cache_seqlens=p.lens, page_table=p.table, out=out)
    assert found is out
    assert np.array_equal(out, libattn.attention_with_kvcache(p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens,
                                                              page_table=p.table))
    assert np.array_equal(cache[:, 0], p.k_cache)
    none = libattn.attention_with_kvcache(p.q[:, :0], p.k_cache, p.v_cache, p.k[:, :0], p.v[:, :0],
                                          cache_seqlens=p.lens, page_table=p.table)
    assert none.shape == (3, 0, 4, 16)
    nobody = libattn.attention_with_kvcache(p.q[:0], p.k_cache, p.v_cache, p.k[:0], p.v[:0], cache_seqlens=p.lens[:0],
                                            page_table=p.table[:0])
    assert nobody.shape == (0, 2, 4, 16)


def test_max_len_q_is_any_bound():
    p = Problem(new=2)
    q, k, v = (x.reshape(6, *x.shape[2:]) for x in (p.q, p.k, p.v))
    cache = {"cache_seqlens": p.lens, "page_table": p.table, "cu_lens_q": [0, 2, 4, 6], "causal": True}
    wanted = libattn.attention_with_kvcache(q, p.k_cache, p.v_cache, k, v, **cache)
    for bound in (2, 6, 7, 5000, (1 << 31) - 65):
        close(libattn.attention_with_kvcache(q, p.k_cache, p.v_cache, k, v, max_len_q=bound, **cache), wanted)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_every_overlap_of_an_input_with_what_is_written_is_refused(turned, packed):
    """Each input in turn lies in the bytes of each array that the call writes: refused, and nothing is written."""
    p = Problem(new=3)
    total = (9,) if packed else (3, 3)
    room = {name: np.zeros(4096, np.float32) for name in ("k_cache", "v_cache", "out")}
    given = {"k_cache": p.k_cache, "v_cache": p.v_cache, "out": np.zeros((*total, 4, 16), np.float32)}
    given.update({name: x.reshape(*total, *x.shape[2:]) for name, x in (("q", p.q), ("k", p.k), ("v", p.v))})
    given.update(page_table=p.table, first_kv=np.zeros(3, np.int32), sink=np.zeros(4, np.float32),
                 alibi=np.zeros(4, np.float32))
    if packed:
        given["cu_lens_q"] = np.array([0, 3, 6, 9], np.int32)
    if turned:
        given.update(rotary_cos=np.ones((30, 4), np.float32), rotary_sin=np.zeros((30, 4), np.float32))
    for name in room:
        place = room[name][:given[name].size].reshape(given[name].shape)
        place[...] = given[name]
        given[name] = place
    options = {"cache_seqlens": p.lens, **({"rotary_interleaved": False} if turned else {})}
    libattn.attention_with_kvcache(**given, **options)
    for written in room:
        for name in given.keys() - room.keys():
            before = {each: room[each].copy() for each in room}
            whole = room[written].view(given[name].dtype)
            inside = whole[:given[name].size].reshape(given[name].shape)
            kept = inside.copy()
            inside[...] = given[name]
            holds = {each: room[each].copy() for each in room}
            with pytest.raises(libattn.InvalidError, match="overlaps"):
                libattn.attention_with_kvcache(**{**given, name: inside}, **options)
            assert all(np.array_equal(room[each], holds[each]) for each in room), (name, written)
            inside[...] = kept
            assert all(np.array_equal(room[each], before[each]) for each in room)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    p = Problem(dtype=ml_dtypes.bfloat16, rotary_dim=16)
    wanted = p.wanted(True, causal=True)[0]
    o = libattn.attention_with_kvcache(p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens, page_table=p.table,
                                       causal=True, **p.rotary(True))
    assert o.dtype == ml_dtypes.bfloat16
    close(o.reshape(wanted.shape), wanted, 3e-2)
    lse = normal(3, 4, 3)
    merged, _ = libattn.merge_states([o, o], [lse, lse])
    assert merged.dtype == ml_dtypes.bfloat16 and np.array_equal(merged, o)


def test_plans_are_cached():
    p = Problem(new=1)
    libattn.clear_plans()
    for _ in range(3):
        o, lse = libattn.attention_with_kvcache(p.q, p.k_cache, p.v_cache, p.k, p.v, cache_seqlens=p.lens,
                                                page_table=p.table, return_lse=True)
        libattn.append_kvcache(p.k, p.v, p.k_cache, p.v_cache, cache_seqlens=p.lens, page_table=p.table)
        libattn.merge_states([o, o], [lse, lse])
    assert len(libattn._run._plans) == 3


# ---- mistakes --------------------------------------------------------------------------------------


def mistakes(p):
    """(message, what of the call is other than right), each of which must leave the cache as it was."""
    wide = normal(*p.k.shape[:-1], 32)
    yield "q has shape", {"q": p.q[0]}
    yield "k has shape", {"k": p.k[0]}
    yield "k has shape .* and v", {"k": p.k[:, :1]}
    yield "k has shape", {"k": p.k[:2], "v": p.v[:2]}
    yield "k_cache has shape", {"k_cache": p.k_cache[0]}
    yield "k_cache has shape .* and v_cache", {"v_cache": p.v_cache[1:]}
    yield "v is float16", {"v": p.v.astype(np.float16)}
    yield "q is float16", {"q": p.q.astype(np.float16)}
    yield "v_cache is float32, where it takes float16, as k_cache is", {"k_cache": p.k_cache.astype(np.float16)}
    yield "q is int64", {"q": p.q.astype(np.int64)}
    yield "dim 15 and k", {"q": p.q[..., :15]}
    yield "k has heads and dim", {"k": p.k[:, :, :1], "v": p.v[:, :, :1]}
    yield "v has heads and dim", {"v": p.v[..., :4]}
    yield "3 heads", {"q": p.q[:, :, :3]}
    yield "last dimension must be contiguous", {"k": wide[..., ::2]}
    yield "last dimension must be contiguous", {"q": normal(*p.q.shape[:-1], 32)[..., ::2]}
    yield "k_cache: the last dimension", {"k_cache": p.k_cache.repeat(2, -1)[..., ::2]}
    yield "one distance", {"k": normal(3, 2, 3, 16).transpose(0, 2, 1, 3)}
    yield "v is None", {"v": None}
    yield "k is None", {"k": None}
    yield "page_table has shape", {"page_table": p.table[:2]}
    yield "page_table has shape", {"page_table": p.table[0]}
    yield "page_table is float64", {"page_table": p.table.astype(np.float64)}
    yield "without page_table", {"page_table": None}
    yield "cache_seqlens has shape", {"cache_seqlens": p.lens[:2]}
    yield "cache_seqlens is float", {"cache_seqlens": p.lens.astype(np.float32)}
    yield "cache_seqlens is 'five'|is no tensor|<U4", {"cache_seqlens": "five"}
    for lens, match in ((28, "28: with 3 new more than the 30 slots of page_table"), (-1, "-1; it takes 0 or more")):
        yield rf"cache_seqlens\[1\] is {match}", {"cache_seqlens": np.array([0, lens, 0], np.int32)}
    yield "beyond int32", {"cache_seqlens": [0, 1 << 40, 0]}
    yield r"to 2\^31 - 1", {"cache_seqlens": 1 << 40}
    for entry, name in ((0, "an old page"), (2, "a new page")):
        table = p.table.copy()
        table[1, entry] = len(p.k_cache)
        yield "page", {"page_table": table}
    yield "rotary_interleaved is None", {"rotary_interleaved": None}
    yield "rotary_sin belong together", {"rotary_sin": None}
    yield "is given without rotary_cos", {"rotary_cos": None, "rotary_sin": None}
    yield "both take", {"rotary_sin": p.sin[:, 1:]}
    yield "rotary_dim", {"rotary_cos": normal(30, 9), "rotary_sin": normal(30, 9)}
    yield "rotary_dim", {"rotary_cos": normal(30, 0), "rotary_sin": normal(30, 0)}
    yield "more than the 12 positions of rotary_cos", {"rotary_cos": p.cos[:12], "rotary_sin": p.sin[:12]}
    yield "the same rows", {"q": normal(3, 4, 4, 16)}
    yield "sink has shape", {"sink": [1.0]}
    yield "sink.0. = nan|sink.0. = NaN|sink", {"sink": np.array([np.nan, 0, 0, 0], "f")}
    yield "alibi.1. = inf", {"alibi": np.array([0, np.inf, 0, 0], "f")}
    yield "first_kv.0. = 31", {"first_kv": [31, 0, 0]}
    yield "first_kv has shape", {"first_kv": [1]}
    yield "window_left", {"window": (-2, 0)}
    yield "softcap", {"softcap": -1.0}
    yield "scale is 0", {"scale": 0}
    yield "threads", {"threads": -1}
    yield "isa is 'sse'", {"isa": "sse"}
    yield "window is", {"window": [1, 2, 3]}
    yield "max_len_q is given without", {"max_len_q": 3}
    yield "fault", {"fault": np.zeros(1, np.uint32)}
    yield "fault is float32", {"fault": np.zeros(1, np.float32)}
    yield "out has shape", {"out": np.zeros((3, 3, 4, 15), "f")}
    yield "overlap", {"out": p.k_cache.reshape(-1)[:p.q.size].reshape(p.q.shape)}


def test_a_mistake_leaves_the_cache_as_it_was():
    p = Problem(rotary_dim=8)
    p.lens[:] = 8, 12, 5
    p.table[:] = RANDOM.permutation(22)[:18].reshape(3, 6)
    right = dict(q=p.q, k_cache=p.k_cache, v_cache=p.v_cache, k=p.k, v=p.v, cache_seqlens=p.lens, page_table=p.table,
                 **p.rotary(True))
    before = p.k_cache.copy(), p.v_cache.copy()
    for match, wrong in mistakes(p):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            libattn.attention_with_kvcache(**dict(right, **wrong))
            pytest.fail(f"{match}: {list(wrong)} went through")
        assert np.array_equal(p.k_cache, before[0]) and np.array_equal(p.v_cache, before[1]), match
    libattn.attention_with_kvcache(**right)
    assert not np.array_equal(p.k_cache, before[0])


def test_sizes_of_nothing():
    p = Problem()
    right = dict(q=p.q, k=p.k, v=p.v, cache_seqlens=p.lens, page_table=p.table)
    for match, k_cache, table in (
            ("page_size", p.k_cache[:, :0], p.table), ("at least 1", p.k_cache[:, :, :0], p.table),
            ("page|lens_kv", p.k_cache[:0], p.table), ("page|lens_kv", p.k_cache, p.table[:, :0])):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention_with_kvcache(k_cache=k_cache, v_cache=k_cache.copy(), **dict(right, page_table=table))


class Foreign:
    """A tensor of a library that nothing is known of but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)


def test_dlpack_freed_arrays_and_forgotten_plans():
    p = Problem(rotary_dim=8)
    given = dict(q=p.q, k=p.k, v=p.v, cache_seqlens=p.lens, page_table=p.table, **p.rotary(False))
    caches = [p.k_cache.copy(), p.v_cache.copy()]
    wanted = libattn.attention_with_kvcache(k_cache=p.k_cache, v_cache=p.v_cache, **given)
    foreign = {name: Foreign(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    o = libattn.attention_with_kvcache(k_cache=Foreign(caches[0]), v_cache=Foreign(caches[1]), **foreign)
    assert np.array_equal(o, wanted) and np.array_equal(caches[0], p.k_cache)  # written where they lie
    lse = normal(3, 4, 3)
    merged = libattn.merge_states([Foreign(o), o], [Foreign(lse), lse])
    assert np.array_equal(merged[0], libattn.merge_states([o, o], [lse, lse])[0])
    fixed = caches[0].copy()
    fixed.flags.writeable = False
    with pytest.raises((libattn.InvalidError, BufferError), match="read-?only"):
        libattn.attention_with_kvcache(k_cache=Foreign(fixed), v_cache=caches[1], **given)
    stop = []

    def forget():
        while not stop:
            libattn.clear_plans()

    worker = threading.Thread(target=forget)
    worker.start()
    try:
        for _ in range(200):
            fresh = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in given.items()}
            assert np.array_equal(libattn.attention_with_kvcache(k_cache=caches[0], v_cache=caches[1], **fresh), wanted)
    finally:
        stop.append(True)
        worker.join()


def test_packed_mistakes():
    p = Problem(packed=True, new=3)
    before = p.k_cache.copy()
    right = dict(q=p.q, k_cache=p.k_cache, v_cache=p.v_cache, k=p.k, v=p.v, cache_seqlens=p.lens, page_table=p.table,
                 **p.packed)
    broken = p.starts.copy()
    broken[-1] += 1
    for match, wrong in (("q has shape", {"q": p.q[None]}), ("cu_lens", {"cu_lens_q": broken}),
                         ("cu_lens_q has shape", {"cu_lens_q": p.starts[:, None]}),
                         ("cu_lens_q has shape", {"cu_lens_q": p.starts[:, None], "max_len_q": 3}),
                         ("max_len_q|len_q", {"max_len_q": 0}), ("max_len_q is 2.5", {"max_len_q": 2.5})):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention_with_kvcache(**dict(right, **wrong))
        assert np.array_equal(p.k_cache, before)


def test_append_mistakes():
    p = Problem(rotary_dim=8)
    right = dict(k=p.k, v=p.v, k_cache=p.k_cache, v_cache=p.v_cache, cache_seqlens=p.lens, page_table=p.table)
    before = p.k_cache.copy()
    fixed = p.k_cache.copy()
    fixed.flags.writeable = False
    inside = p.k_cache.reshape(-1)[:p.k.size].reshape(p.k.shape)
    repeated = np.lib.stride_tricks.as_strided(p.k_cache, strides=(0, *p.k_cache.strides[1:]))
    for match, wrong in (("v is None", {"v": None}), ("q is given without", {"q": p.q}),
                         ("k_cache is read-only", {"k_cache": fixed}), ("v_cache is read-only", {"v_cache": fixed}),
                         ("k_cache overlaps k", {"k": inside}), ("k_cache overlaps v_cache", {"v_cache": p.k_cache}),
                         (r"k_cache_stride\[0\] = 0 makes elements of k_cache overlap", {"k_cache": repeated}),
                         (r"cache_seqlens\[0\] is 40: with", {"cache_seqlens": 40})):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.append_kvcache(**dict(right, **wrong))
        assert np.array_equal(p.k_cache, before)
    with pytest.raises(libattn.InvalidError, match="k_cache is read-only"):
        libattn.attention_with_kvcache(p.q, fixed, p.v_cache, p.k, p.v, cache_seqlens=p.lens, page_table=p.table)
    libattn.attention_with_kvcache(p.q, fixed, p.v_cache, cache_seqlens=p.lens, page_table=p.table)  # it is only read


def test_float64_is_float64_throughout():
    q, k, v = normal(1, 1, 300, 8, dtype=np.float64), *normal(2, 1, 4, 300, 8, dtype=np.float64)
    slopes = np.linspace(0.5, 1, 300)
    o, lse = libattn.attention_with_kvcache(q, k, v, cache_seqlens=4, alibi=slopes, return_lse=True)
    wanted, wanted_lse = libattn.attention(q, k, v, alibi=slopes, return_lse=True)
    assert lse.dtype == np.float64 and np.array_equal(lse, wanted_lse) and np.array_equal(o, wanted)
    with pytest.raises(libattn.InvalidError, match="k_cache is float64"):
        libattn.append_kvcache(k, v, k.copy(), v.copy(), cache_seqlens=0)
