"""Pool.levels, attention_cascade and its plan, against the definition over each sequence's own list of all keys."""
import numpy as np
import pytest

import libattn
from conftest import close, reference
from test_kv import normal

RANDOM = np.random.default_rng(23)


class Batch:
    """Sequences of a pool that fork from each other, a cache of random keys, and rows."""

    def __init__(self, page_size=4, heads_q=4, heads_kv=2, dim=16, dim_v=16, dtype=np.float32, new=3, seqs=5):
        width = -(-80 // page_size)
        self.pool = libattn.Pool(pages=8 * width, page_size=page_size, sequences=16, width=width)
        root = self.pool.create()
        self.grow(root, int(RANDOM.integers(0, 30)))
        middle = [self.fork(root) for _ in range(2)]
        for seq in middle:
            self.grow(seq, int(RANDOM.integers(0, 20)))
        self.seqs = [self.fork(middle[i * 2 // seqs]) for i in range(seqs)]
        self.new = RANDOM.integers(0, new + 1, seqs)
        for seq, rows in zip(self.seqs, self.new):
            self.grow(seq, int(RANDOM.integers(0, 8)) + int(rows))
        if seqs > 2:
            self.seqs[2] = None  # pads the batch
            self.new[2] = 0
        self.rows = np.concatenate([[0], np.cumsum(self.new)]).astype(np.int32)
        shape = 8 * width, page_size, heads_kv
        self.k, self.v = normal(*shape, dim, dtype=dtype), normal(*shape, dim_v, dtype=dtype)
        self.q = normal(int(self.rows[-1]), heads_q, dim, dtype=dtype)
        self.size = page_size

    def grow(self, seq, count):
        self.pool.append(seq, count=count, copies=libattn.PageCopies(4))

    def fork(self, seq):
        return self.pool.fork(seq)

    def wanted(self, causal=False, **scores):
        """(o, lse): each sequence's rows over all of its keys."""
        table, lens = self.pool.tables(self.seqs)
        o, lse = [], []
        for b, count in enumerate(lens):
            at = np.arange(count)
            k, v = (x[table[b, at // self.size], at % self.size] for x in (self.k, self.v))
            rows = self.new[b]
            seen = at <= np.arange(rows)[:, None] + count - rows if causal else None
            found = reference(self.q[None, self.rows[b]:self.rows[b + 1]], k[None], v[None], seen, **scores)
            o.append(found[0][0]), lse.append(found[1][0])
        return np.concatenate(o), np.concatenate(lse, -1)


OPTIONS = [{}, {"causal": True}, {"causal": True, "softcap": 3.0, "scale": 0.3}, {"sink": normal(8)}]


@pytest.mark.parametrize("shared", [1, 2, 8])
@pytest.mark.parametrize("shape", [
    {}, {"page_size": 1}, {"page_size": 7, "heads_q": 6, "heads_kv": 1, "dim": 24, "dim_v": 10},
    {"page_size": 16, "heads_q": 8, "heads_kv": 8, "dim": 64, "dim_v": 64}, {"page_size": 3, "new": 1}, {"seqs": 1},
    {"seqs": 12, "new": 6, "page_size": 2}], ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_against_the_definition(shape, shared):
    for options in OPTIONS:
        batch = Batch(**shape)
        if "sink" in options:
            options = {"sink": options["sink"][:shape.get("heads_q", 4)]}
        wanted = batch.wanted(**options)
        for least in (1, 2 * batch.size, 1000):
            levels = batch.pool.levels(batch.seqs, batch.rows, shared=shared, least=least)
            assert len(levels) == shared + 1 and levels[-1].saved == 0
            assert levels[-1].cu_lens_q.tolist() == batch.rows.tolist()
            o, lse = libattn.attention_cascade(batch.q, batch.k, batch.v, levels, return_lse=True, **options)
            assert o.dtype == np.float32 and o.shape == (len(batch.q), batch.q.shape[1], batch.v.shape[-1])
            close(o, wanted[0])
            close(lse, wanted[1])


def test_levels_are_those_of_the_header():
    """Three sequences of 10, 10 and 6 tokens in pages of 4: include/attn_kv.h, attn_pool_levels."""
    pool = libattn.Pool(pages=16, page_size=4, sequences=4, width=4)
    a = pool.create()
    pool.append(a, count=4)
    c = pool.fork(a)
    pool.append(a, count=4)
    b = pool.fork(a)
    for seq in (a, b, c):
        pool.append(seq, count=2)
    tables, _ = pool.tables([a, b, c])
    first, second, own = pool.levels([a, b, c], [0, 1, 2, 3], shared=2, least=4)
    assert (first.groups, first.saved) == (1, 8) and (second.groups, second.saved) == (2, 4)
    assert (own.groups, own.saved) == (3, 0)
    for level, rows, lens in ((first, [0, 3, 3, 3], [4, 0, 0]), (second, [0, 2, 3, 3], [4, 0, 0]),
                              (own, [0, 1, 2, 3], [2, 2, 2])):
        assert level.cu_lens_q.tolist() == rows and level.lens_kv.tolist() == lens
        assert level.page_table.shape == (3, 4) and level.page_table.dtype == np.int32
    assert first.page_table[0].tolist() == [tables[0, 0], -1, -1, -1]
    assert second.page_table[0].tolist() == [tables[0, 1], -1, -1, -1]
    assert own.page_table[:, 0].tolist() == [tables[0, 2], tables[1, 2], tables[2, 1]]
    assert pool.levels([], [0])[0].saved == 0
    assert pool.levels([a], [0, 1], width=3)[0].page_table.shape == (1, 3)


def test_levels_refuse():
    batch = Batch()
    for match, options in (("shared is 0", {"shared": 0}), ("shared is 9", {"shared": 9}), ("least", {"least": 0}),
                           ("least is 1.5", {"least": 1.5}), ("width is -1", {"width": -1}), ("width", {"width": 1}),
                           ("cu_lens_q has shape", {"cu_lens_q": batch.rows[1:]}),
                           ("cu_lens_q", {"cu_lens_q": batch.rows[::-1].copy()}),
                           ("cu_lens_q is float", {"cu_lens_q": batch.rows * 0.5}),
                           ("rows", {"cu_lens_q": np.arange(6) * 1000})):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            batch.pool.levels(**dict({"seqs": batch.seqs, "cu_lens_q": batch.rows}, **options))
    with pytest.raises(TypeError, match="Sequence"):
        batch.pool.levels([1], [0, 1])


def test_outputs_types_and_limits():
    batch = Batch(dtype=np.float16)
    levels = batch.pool.levels(batch.seqs, batch.rows, shared=2)
    wanted = batch.wanted()[0]
    o = libattn.attention_cascade(batch.q, batch.k, batch.v, levels)
    assert o.dtype == np.float16
    close(o, wanted, 3e-3)
    exact = libattn.attention_cascade(batch.q, batch.k, batch.v, levels, out_f32=True)
    assert exact.dtype == np.float32 and np.array_equal(exact.astype(np.float16), o)
    out = np.zeros_like(o)
    assert libattn.attention_cascade(batch.q, batch.k, batch.v, levels, out=out) is out and np.array_equal(out, o)
    most = [int(level.lens_kv.max(initial=0)) for level in levels]
    three = [level[:3] for level in levels]  # what stands behind these is not looked at
    close(libattn.attention_cascade(batch.q, batch.k, batch.v, three, max_len_q=int(batch.new.max()), max_len_kv=most),
          wanted, 3e-3)
    short = [(level.cu_lens_q[:level.groups + 1], level.lens_kv[:level.groups], level.page_table[:level.groups])
             for level in levels[:2]] + [levels[2]]
    close(libattn.attention_cascade(batch.q, batch.k, batch.v, short), wanted, 3e-3)
    more = np.concatenate([batch.q, batch.q[:2]])  # rows of no sequence
    o, lse = libattn.attention_cascade(more, batch.k, batch.v, levels, return_lse=True)
    assert not o[-2:].any() and np.isneginf(lse[:, -2:]).all()
    close(o[:-2], wanted, 3e-3)


def test_the_plan_says_when_levels_pay():
    batch = Batch()
    levels = batch.pool.levels(batch.seqs, batch.rows)
    libattn.clear_plans()
    plan = libattn.plan_cascade(batch.q, batch.k, batch.v, levels, causal=True)
    libattn.attention_cascade(batch.q, batch.k, batch.v, levels, causal=True)
    assert libattn.plan_cascade(batch.q, batch.k, batch.v, levels, causal=True) is plan
    assert len(libattn._run._plans) == 1
    info = plan.info
    assert set(info) == {"seconds", "seconds_alone", "workspace_bytes", "saved_least", "seconds_captured"}
    assert info["seconds"] > 0 and info["workspace_bytes"] == plan.workspace_bytes > 0 and info["saved_least"] != 0
    text = plan.explain()
    assert "level 0: keys that groups of sequences share" in text and "merge of 2 parts" in text
    assert "Cascade" in repr(plan) and str(info["saved_least"]) in repr(plan)


def test_what_is_refused_leaves_the_output_as_it_was():
    batch = Batch(seqs=4, new=2)
    batch.rows = np.array([0, 1, 2, 2, 3], np.int32)
    batch.q = normal(3, 4, 16)
    first, own = levels = batch.pool.levels(batch.seqs, batch.rows)
    out = np.full((3, 4, 16), 7, np.float32)
    right = dict(q=batch.q, k_cache=batch.k, v_cache=batch.v, levels=levels, out=out)
    libattn.attention_cascade(**dict(right, out=None))
    far = first._replace(lens_kv=np.array([batch.pool.width * 4 + 1, 0, 0, 0], np.int32))
    bad = own._replace(page_table=np.full_like(own.page_table, 1 << 20), lens_kv=np.full(4, 3, np.int32))
    for match, wrong in (
            ("levels has 1", {"levels": levels[:1]}), ("levels has 10", {"levels": [first] * 10}),
            ("no list", {"levels": 3}), ("no list", {"levels": [1, 2]}),
            (r"levels\[1\] has 2", {"levels": [first, own[:2]]}),
            (r"levels\[0\].page_table has shape", {"levels": [(first[0], first[1], first[2][0]), own]}),
            (r"levels\[0\].cu_lens_q has shape", {"levels": [(first[0][1:], *first[1:]), own]}),
            (r"levels\[1\].lens_kv has shape", {"levels": [first, own._replace(lens_kv=own.lens_kv[1:])]}),
            (r"levels\[0\].lens_kv is float", {"levels": [first._replace(lens_kv=first.lens_kv * 1.0), own]}),
            (r"levels\[0\]: lens_kv\[0\]", {"levels": [far, own]}), ("page", {"levels": [first, bad]}),
            (r"levels\[0\]: cu_lens_q", {"levels": [first._replace(cu_lens_q=first.cu_lens_q[::-1].copy()), own]}),
            ("max_len_kv has 1", {"max_len_kv": [3]}), ("max_len_kv is 'a'", {"max_len_kv": ["a", 3]}),
            ("max_len_q is 1.5", {"max_len_q": 1.5}), ("q has shape", {"q": batch.q[None]}),
            ("k_cache has shape", {"k_cache": batch.k[0]}), ("k_cache has shape", {"v_cache": batch.v[1:]}),
            ("v_cache is float16", {"v_cache": batch.v.astype(np.float16)}), ("dim 15", {"q": batch.q[..., :15]}),
            ("sink has shape", {"sink": [1.0]}), ("scale is 0", {"scale": 0}), ("softcap", {"softcap": -1.0}),
            ("out has shape", {"out": out[:1]}), ("threads", {"threads": -1}), ("fault", {"fault": np.zeros(1, "u4")}),
            ("ATTN_F64", {"q": batch.q.astype("d"), "k_cache": batch.k.astype("d"), "v_cache": batch.v.astype("d"),
                          "out": None})):
        with pytest.raises((libattn.InvalidError, TypeError), match=match):
            libattn.attention_cascade(**dict(right, **wrong))
            pytest.fail(f"{match} went through")
        assert np.all(out == 7), match
