"""Masks, bits of the last keys, positions and limits of attention_with_kvcache, against the definition."""
import numpy as np
import pytest

import libattn
from conftest import close, reference
from libattn.masks import causal, documents, prefix, window
from test_kv import Problem, normal, turned

RANDOM = np.random.default_rng(17)


def tree(count):
    """(parent, seen): a random tree of `count` drafts, parents before children; a draft sees itself and its ancestors.
    """
    parent = np.array([-1] + [int(RANDOM.integers(-1, i)) for i in range(1, count)])
    seen = np.eye(count, dtype=bool)
    for i, above in enumerate(parent):
        if above >= 0:
            seen[i] |= seen[above]
    return parent, seen


def wanted(p, seen_of, **scores):
    """(o, lse) where seen_of(b, rows, keys) is what a sequence's rows see, (heads or 1, rows, keys); rows of all
    sequences one after another."""
    o, lse = [], []
    for b in range(len(p.lens)):
        (q, k, v), (old_k, old_v) = p.sequence(b)
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        found = reference(q[None], keys[None], values[None], seen_of(b, len(q), len(keys)), **scores)
        o.append(found[0][0]), lse.append(found[1][0])
    return np.concatenate(o), np.concatenate(lse, -1)


def call(p, **options):
    """(o, lse) of the same rows, over copies of the cache."""
    o, lse = libattn.attention_with_kvcache(
        p.q, p.k_cache.copy(), p.v_cache.copy(), p.k, p.v, cache_seqlens=p.lens, page_table=p.table, return_lse=True,
        **p.packed, **options)
    return o.reshape(-1, *o.shape[-2:]), lse if p.packed else np.concatenate(list(lse), -1)


def is_wanted(found, right):
    close(found[0], right[0])
    close(found[1], right[1])


SHAPES = [(5, 6, 4, 2, 16), (1, 40, 4, 4, 8), (7, 5, 6, 1, 24), (16, 3, 8, 2, 64), (64, 1, 2, 2, 16), (3, 12, 4, 1, 40)]


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("size, width, heads_q, heads_kv, dim", SHAPES)
@pytest.mark.parametrize("per", ["one", "sequence", "head", "both"])
def test_a_tree_of_drafts(per, size, width, heads_q, heads_kv, dim, packed):
    new = int(RANDOM.integers(1, 12))
    p = Problem(batch=3, page_size=size, width=width, heads_q=heads_q, heads_kv=heads_kv, dim=dim, dim_v=dim, new=new,
                packed=packed)
    rows, keys = int(p.new.max()), new + int(RANDOM.integers(0, 9))
    keys = min(keys, size * width)
    shape = (3 if per in ("sequence", "both") else 1, heads_q if per in ("head", "both") else 1, rows, keys)
    mask = RANDOM.random(shape) < 0.6

    def seen(b, rows, count):
        whole = np.ones((heads_q, rows, count), bool)
        of = mask[b % len(mask)][:, :rows]
        beyond = max(0, keys - count)  # bits of keys before the first say nothing
        whole[:, :, max(0, count - keys):] = of[:, :, beyond:]
        return whole

    right = wanted(p, seen)
    bits = np.packbits(mask, -1, bitorder="little")
    is_wanted(call(p, mask=mask, bits_keys=keys), right)
    is_wanted(call(p, mask=np.where(mask, 0, -np.inf), bits_keys=keys), right)
    is_wanted(call(p, bits=bits, bits_keys=keys, visible_share=0.6, max_len_kv=size * width + 5), right)
    is_wanted(call(p, bits=bits, bits_keys=keys, max_len_kv=max(int((p.lens + p.new).max()), keys)), right)
    both = wanted(p, lambda b, rows, count: seen(b, rows, count) & (
        np.arange(count) <= np.arange(rows)[:, None] + count - rows))
    is_wanted(call(p, mask=mask & causal, bits_keys=keys), both)
    is_wanted(call(p, bits=bits, bits_keys=keys, causal=True), both)


def test_drafts_of_a_real_tree_with_rotary_positions_of_their_depth():
    """What a tree gives each of its paths is what the path alone, one token after another, gives."""
    parent, seen = tree(9)
    depth = seen.sum(1) - 1
    p = Problem(batch=2, new=9, page_size=4, width=8, rotary_dim=16)
    positions = p.lens[:, None] + depth
    o, lse = libattn.attention_with_kvcache(
        p.q, p.k_cache.copy(), p.v_cache.copy(), p.k, p.v, cache_seqlens=p.lens, page_table=p.table, mask=seen,
        bits_keys=9, rotary_positions=positions.astype(np.int64), return_lse=True, **p.rotary(False))
    for leaf in range(9):
        path = np.flatnonzero(seen[leaf])
        alone, alone_lse = libattn.attention_with_kvcache(
            p.q[:, path].copy(), p.k_cache.copy(), p.v_cache.copy(), p.k[:, path].copy(), p.v[:, path].copy(),
            cache_seqlens=p.lens, page_table=p.table, causal=True, return_lse=True, **p.rotary(False))
        close(o[:, leaf], alone[:, -1])
        close(lse[:, :, leaf], alone_lse[:, :, -1])
    k_cache, v_cache = p.k_cache.copy(), p.v_cache.copy()
    q = libattn.append_kvcache(p.k, p.v, k_cache, v_cache, cache_seqlens=p.lens, page_table=p.table, q=p.q,
                               rotary_positions=positions, **p.rotary(False))
    for b in range(2):
        assert np.array_equal(q[b], turned(p.q[b], positions[b], p.cos, p.sin, False))
        places = np.arange(p.lens[b], p.lens[b] + 9)
        stored = k_cache[p.table[b, places // 4], places % 4]
        assert np.array_equal(stored, turned(p.k[b], positions[b], p.cos, p.sin, False))


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("size, width, heads_q, heads_kv, dim", SHAPES)
def test_bits_of_all_keys_and_masks_by_name(size, width, heads_q, heads_kv, dim, packed):
    p = Problem(batch=3, page_size=size, width=width, heads_q=heads_q, heads_kv=heads_kv, dim=dim, dim_v=dim, new=5,
                packed=packed)
    rows, first, lens = int(p.new.max()), np.array([2, 0, 1], np.int32), np.array([3, 0, 2], np.int32)
    mask = RANDOM.random((3, 1, rows, size * width)) < 0.7

    def seen(b, rows, count):
        return mask[b, :, :rows, :count] & (np.arange(count) >= first[b])

    is_wanted(call(p, mask=mask, first_kv=first), wanted(p, seen))
    most = int((p.lens + p.new).max())
    is_wanted(call(p, mask=mask[..., :most], first_kv=first, max_len_kv=most), wanted(p, seen))

    def named(b, rows, count):
        t, j = np.arange(rows)[:, None] + count - rows, np.arange(count)
        return mask[b, :, :rows, :count] & (((j <= t) & (j >= t - 3)) | (j < lens[b]))

    is_wanted(call(p, mask=(causal & window(3) | prefix(lens)) & mask), wanted(p, named))
    is_wanted(call(p, mask=mask, causal=True, window=(3, None), prefix=lens), wanted(p, named))


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
def test_positions(packed):
    """A cache of which the middle was cut: rows and keys stand further on than they lie."""
    p = Problem(batch=3, new=4, page_size=5, width=7, packed=packed)
    row, key = np.array([40, 7, 1 << 40]), np.array([30, -9, (1 << 40) - 12])
    slopes = np.array([0.5, 0.25, 1.0, 0.1], np.float32)

    for at_key, given in ((key, {"position_q": row, "position_kv": key}), (0 * key, {"position_q": [11, 3, 20]})):
        at_row = np.asarray(given["position_q"])

        def seen(b, rows, count):
            t, j = at_row[b] + np.arange(rows)[:, None], at_key[b] + np.arange(count)
            return (j <= t) & (j >= t - 9)

        is_wanted(call(p, causal=True, window=(9, None), **given), wanted(p, seen))

    def bias(b, rows, count):
        return -slopes[:, None, None] * np.abs(row[b] - key[b] + np.arange(rows)[:, None] - np.arange(count))

    found = call(p, alibi=slopes, position_q=row, position_kv=key)
    parts = []
    for b in range(3):
        (q, k, v), (old_k, old_v) = p.sequence(b)
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        parts.append(reference(q[None], keys[None], values[None], bias=bias(b, len(q), len(keys)))[0][0])
    close(found[0], np.concatenate(parts))


def test_limits_change_the_plan_and_no_result():
    p = Problem(batch=2, page_size=16, width=100, new=1)
    p.lens[:] = 20, 3
    p.table[:] = np.arange(200).reshape(2, 100)
    libattn.clear_plans()
    right = call(p)
    for options in ({"max_len_kv": 21}, {"max_len_kv": 1 << 40}, {"visible_share": 0.01}):
        is_wanted(call(p, **options), right)
    assert len(libattn._run._plans) == 4


def test_what_is_refused_leaves_the_cache_as_it_was():
    p = Problem(rotary_dim=8)
    p.lens[:] = 8, 12, 5
    p.table[:] = RANDOM.permutation(22)[:18].reshape(3, 6)
    right = dict(q=p.q, k_cache=p.k_cache, v_cache=p.v_cache, k=p.k, v=p.v, cache_seqlens=p.lens, page_table=p.table)
    before, ones = p.k_cache.copy(), np.ones((3, 3), bool)
    for match, wrong in (
            ("mask and bits are both", {"mask": ones, "bits": np.ones((1, 1, 3, 1), "u1"), "bits_keys": 3}),
            (r"here \(3, \d+, 3, 30\)", {"mask": ones}), (r"here \(3, \d+, 3, 20\)", {"mask": ones, "max_len_kv": 20}),
            (r"here \(3, \d+, 3, 4\)", {"mask": ones, "bits_keys": 4}),
            ("mask is int64", {"mask": ones * 1, "bits_keys": 3}),
            (r"mask has shape \(2, 3\)", {"mask": ones[:2], "bits_keys": 3}),
            ("bits has shape", {"bits": np.ones((1, 1, 3, 2), "u1"), "bits_keys": 3}),
            ("bits has shape", {"bits": np.ones((1, 1, 3, 1), "u1")}),
            ("bits_keys is 3, without mask or bits", {"bits_keys": 3}),
            ("bits_keys is 0", {"bits": np.ones((1, 1, 3, 0), "u1"), "bits_keys": 0}),
            ("bits_keys is 2.5", {"bits": np.ones((1, 1, 3, 1), "u1"), "bits_keys": 2.5}),
            ("bits_keys = 31 exceeds len_kv = 30", {"mask": np.ones((3, 31), bool), "bits_keys": 31}),
            ("prefix alone", {"mask": prefix([1, 2, 3])}), ("mask has documents", {"mask": causal & documents([1, 2])}),
            ("window is given, and mask has one", {"mask": window(3), "window": (1, 1)}),
            ("prefix.0. = 31", {"causal": True, "prefix": [31, 0, 0]}),
            ("position_kv is given without position_q", {"position_kv": [0, 0, 0]}),
            ("position_q has shape", {"position_q": [1, 2]}), ("position_kv has shape", {"position_q": [1, 2, 3],
                                                                                         "position_kv": 4}),
            ("position_q.2.", {"position_q": [1, 2, 1 << 60]}), ("position_q is float64", {"position_q": [1.5, 2, 3]}),
            ("first_kv.1. = 31", {"first_kv": [0, 31, 0]}),
            (r"cache_seqlens\[1\] is 12: with 3 new more than the 14 keys of max_len_kv", {"max_len_kv": 14}),
            ("max_len_kv is 'many'", {"max_len_kv": "many"}), ("len_kv = -1", {"max_len_kv": -1}),
            ("visible_share is 0", {"visible_share": 0}), ("visible_share", {"visible_share": 1.5}),
            ("visible_share is 'half'", {"visible_share": "half"}),
            ("rotary_positions is given without", {"rotary_positions": np.zeros((3, 3), "i8")}),
            ("rotary_positions has shape", dict(p.rotary(True), rotary_positions=np.zeros((3, 2), "i8"))),
            (r"rotary_positions\[8\] = 30", dict(p.rotary(True), rotary_positions=[[0] * 3] * 2 + [[0, 1, 30]])),
            ("rotary_positions is float", dict(p.rotary(True), rotary_positions=np.zeros((3, 3))))):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            libattn.attention_with_kvcache(**dict(right, **wrong))
            pytest.fail(f"{match} went through")
        assert np.array_equal(p.k_cache, before), match
