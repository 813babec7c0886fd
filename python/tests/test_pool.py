"""libattn.Pool: sequences, forks, prefixes, moves; what is refused."""
import threading

import numpy as np
import pytest

import libattn
from libattn import PageCopies, Pool


def pool(prefix=False, pages=16):
    return Pool(pages=pages, page_size=4, sequences=4, width=8, prefix=prefix)


def test_sequences_and_tables():
    p = pool()
    a, b = p.create(), p.create()
    p.append(a, count=6)
    p.append(b, count=4)
    table, lens = p.tables([a, None, b], width=3)
    assert table.dtype == lens.dtype == np.int32 and lens.tolist() == [6, 0, 4]
    assert (table >= 0).tolist() == [[True, True, False], [False] * 3, [True, False, False]]
    assert len(set(table[table >= 0])) == 3 and p.tables([a])[0].shape == (1, 8)
    assert p.stats["used"] == 3 and p.stats["free"] == 13 and p.stats["tokens"] == 10 and p.stats["waste"] == 2
    p.truncate(a, 3)
    assert p.length(a) == 3 and p.stats["used"] == 2
    p.append(a, count=6)
    p.drop(a, 5)
    assert p.length(a) == 9 and p.tables([a])[0][0, :3].tolist()[0] == -1
    p.free(a)
    with pytest.raises(libattn.InvalidError):
        p.length(a)


def test_fork_copies_a_shared_page():
    p, copies = pool(), PageCopies(4)
    a = p.create()
    p.append(a, count=6)
    b = p.fork(a)
    with pytest.raises(libattn.InvalidError, match="copies"):
        p.append(b, count=1)
    assert p.length(b) == 6
    p.append(b, count=1, copies=copies)
    before, after = p.tables([a, b])[0][:, 1]
    assert copies.pairs.tolist() == [[before, after]] and before != after
    copies.clear()
    assert len(copies.pairs) == 0


def test_prefixes():
    p = pool(prefix=True)
    a = p.create()
    prompt = np.arange(10)
    p.append(a, prompt)
    p.publish(a)
    b, other = p.create(), p.create(salt=(1 << 64) - 1)
    assert p.match(b, prompt[:9]) == 8 and p.match(other, prompt[:9]) == 0
    assert np.array_equal(p.tables([a])[0][0, :2], p.tables([b])[0][0, :2])
    p.forget()
    c = p.create()
    assert p.match(c, prompt) == 0


def test_move():
    here, there, copies = pool(), pool(), PageCopies(8)
    a = here.create()
    here.append(a, count=7)
    pages = here.tables([a])[0][0, :2]
    moved = here.move(a, there, copies)
    assert there.length(moved) == 7 and here.stats["used"] == 0
    assert np.array_equal(copies.pairs, np.stack([pages, there.tables([moved])[0][0, :2]], 1))


def test_sequences_of_a_pool_decode():
    """Prompts, then tokens one by one, with a fork: what attention to all keys at once gives."""
    random = np.random.default_rng(3)
    p, copies = pool(), PageCopies(4)
    caches = [np.zeros((16, 4, 2, 8), np.float32) for _ in range(2)]
    first, second = p.create(), p.create()
    seqs, told = [first, second], {first: [], second: []}  # told: (k, v) of each token

    def step(counts):
        rows = sum(counts)
        q, k, v = (random.standard_normal((rows, heads, 8)).astype("f") for heads in (4, 2, 2))
        starts = np.cumsum([0, *counts])
        for seq, count, start in zip(seqs, counts, starts):
            p.append(seq, count=count, copies=copies)
            told[seq] += list(zip(k[start:start + count], v[start:start + count]))
        for origin, to in copies.pairs:
            for cache in caches:
                cache[to] = cache[origin]
        copies.clear()
        table, lens = p.tables(seqs)
        o = libattn.attention_with_kvcache(q, *caches, k, v, cache_seqlens=lens - counts, page_table=table,
                                           cu_lens_q=starts, causal=True)
        for seq, a, b in zip(seqs, starts, starts[1:]):
            keys, values = (np.stack(x)[None] for x in zip(*told[seq]))
            np.testing.assert_allclose(o[a:b], libattn.attention(q[None, a:b], keys, values, causal=True)[0], atol=2e-5)

    step([6, 3])
    step([1, 1])
    forked = p.fork(first)
    seqs.append(forked)
    told[forked] = list(told[first])
    for _ in range(3):
        step([1, 2, 1])


def test_mistakes():
    p = pool(pages=2)
    a = p.create()
    with pytest.raises(libattn.PoolFullError):
        p.append(a, count=9)
    assert p.length(a) == 0
    for match, mistake in (
            ("pages", lambda: Pool(0, 4, 4, 8)), ("page_size is 1.5", lambda: Pool(4, 1.5, 4, 8)),
            ("salt is -1", lambda: p.create(-1)), ("either tokens or count", lambda: p.append(a)),
            ("prefix=False: append takes count", lambda: p.append(a, [1, 2])),
            ("prefix=True: append takes tokens", lambda: pool(True).append(a, count=1)),
            ("takes prefix=True", lambda: p.publish(a)), ("takes prefix=True", lambda: p.match(a, [1])),
            ("beyond int32", lambda: pool(True).match(a, [1 << 40])),
            ("one dimension", lambda: p.append(a, [[1]])),
            (r"tokens has shape \(\); .* count=", lambda: p.append(a, 3)), ("length", lambda: p.truncate(a, 5)),
            ("width", lambda: p.tables([a], width=-1)), ("same", lambda: p.move(a, p, PageCopies(1))),
            ("room", lambda: PageCopies("many"))):
        with pytest.raises(libattn.InvalidError, match=match):
            mistake()
    for mistake in (lambda: p.length(3), lambda: p.append(a, count=1, copies=[]), lambda: p.move(a, 5, PageCopies(1)),
                    lambda: pool(True).append(a, [1.5])):
        with pytest.raises(TypeError):
            mistake()
    for _ in range(3):
        p.create()
    with pytest.raises(libattn.PoolFullError):
        p.create()


def test_threads_take_turns():
    p = Pool(pages=256, page_size=4, sequences=16, width=32)

    def work():
        for _ in range(200):
            seq = p.create()
            p.append(seq, count=30)
            p.free(seq)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert p.stats["used"] == 0 and p.stats["sequences"] == 0


def test_sequences_of_another_pool_are_refused():
    """Handles of two pools look alike: each call tells them apart by the pool's number, and changes nothing."""
    p, other = pool(prefix=True), pool(prefix=True)
    mine, theirs = p.create(), other.create()
    assert mine != theirs and mine[:2] == theirs[:2]
    copies = PageCopies(4)
    calls = [lambda: p.append(theirs, [1, 2]), lambda: p.match(theirs, [1, 2]), lambda: p.fork(theirs),
             lambda: p.publish(theirs), lambda: p.truncate(theirs, 0), lambda: p.drop(theirs, 0),
             lambda: p.move(theirs, other, copies), lambda: p.free(theirs), lambda: p.length(theirs),
             lambda: p.tables([mine, theirs])]
    before = p.stats, other.stats
    for call in calls:
        with pytest.raises(libattn.InvalidError, match=r"seq is Sequence\(.*\), of another pool"):
            call()
    assert (p.stats, other.stats) == before
    moved = p.move(mine, other, copies)
    other.append(moved, [1])
    with pytest.raises(libattn.InvalidError, match="of another pool"):
        p.append(moved, [1])


@pytest.mark.parametrize("salt", [-1, 1 << 64])
def test_salts_out_of_range(salt):
    with pytest.raises(libattn.InvalidError) as error:
        pool(prefix=True).create(salt=salt)
    assert str(error.value) == f"salt is {salt}; it takes an integer from 0 to 2^64 - 1"
