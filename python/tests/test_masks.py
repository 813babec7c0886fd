"""Masks by name, by 0 and -inf, and FlexAttention's BlockMask: the pairs they leave, and what they refuse."""
import numpy as np
import pytest

import libattn
from conftest import close, reference, visible_pairs
from libattn.masks import causal, chunk, documents, prefix, window

IDS = np.array([[3, 3, 3, 1, 1, 1, 1, 9, 9, 2, 2, 2, 2], [5] * 6 + [6] * 7])


def same_document(rows, keys=13, ids=IDS):
    return (ids[:, None, keys - rows:, None] == ids[:, None, None, :])


def cases(rows):
    lens = np.array([4, 0])
    below = np.arange(13) < lens[:, None, None, None]
    both = visible_pairs(rows, 13, causal=True, window=(3, None))
    return {
        "causal": (causal, visible_pairs(rows, 13, causal=True)),
        "window": (window(2, 3), visible_pairs(rows, 13, window=(2, 3))),
        "windows": (window(2) & window(5, 1), visible_pairs(rows, 13, window=(2, 1))),
        "chunk": (chunk(4) & causal, visible_pairs(rows, 13, causal=True, chunk=4)),
        "documents": (documents(IDS), same_document(rows)),
        "one for all": (documents(IDS[0]), same_document(rows, ids=IDS[:1])),
        "everything": (causal & window(1024) & documents(IDS), same_document(rows) & visible_pairs(rows, 13, causal=True)),
        "window of documents": (window(1, 1) & documents(IDS), same_document(rows) & visible_pairs(rows, 13, window=(1, 1))),
        "two documents": (documents(IDS) & documents(np.arange(13) // 2),
                          same_document(rows) & same_document(rows, ids=np.arange(13)[None] // 2)),
        "prefix": ((causal & window(3)) | prefix(lens), both | below),
        "array": (causal & (IDS > 2)[:, None, None, :].repeat(rows, 2),
                  visible_pairs(rows, 13, causal=True) & (IDS > 2)[:, None, None, :]),
        "array before": ((IDS > 2)[:, None, None, :].repeat(rows, 2) & causal,
                         visible_pairs(rows, 13, causal=True) & (IDS > 2)[:, None, None, :]),
    }


@pytest.mark.parametrize("rows", [9, 13])
@pytest.mark.parametrize("name", cases(9))
def test_names(make, name, rows):
    mask, seen = cases(rows)[name]
    q, k, v = make(rows=rows)
    o, lse = libattn.attention(q, k, v, mask=mask, return_lse=True)
    wanted = reference(q, k, v, seen)
    close(o, wanted[0])
    close(lse, wanted[1])
    grads = libattn.attention_backward(o, q, k, v, o, lse, mask=mask)
    bits = np.packbits(np.broadcast_to(seen, (2, 1, rows, 13)), -1, bitorder="little")
    for ours, theirs in zip(grads[:3], libattn.attention_backward(o, q, k, v, o, lse, bits=bits)):
        close(ours, theirs)
    assert "forward" in libattn.plan(q, k, v, mask=mask).explain()


def test_zero_and_minus_infinity(make):
    q, k, v = make()
    seen = np.random.default_rng(1).random((2, 1, 9, 13)) < 0.6
    for dtype in (np.float32, np.float16, np.float64):
        added = np.where(seen, dtype(0), dtype(-np.inf))
        close(libattn.attention(q, k, v, mask=added), reference(q, k, v, seen)[0])
    with pytest.raises(libattn.InvalidError, match="other than 0 and -inf"):
        libattn.attention(q, k, v, mask=np.where(seen, 0, -1e9))


def test_mistakes(make):
    q, k, v = make()
    for match, mistake in (
            ("joined to causal", lambda: chunk(3) | prefix([1, 2])), ("joined by |", lambda: causal & prefix([1, 2])),
            ("only a prefix", lambda: causal | window(3)), ("window is", lambda: window(-1)),
            ("do not go together", lambda: (causal | prefix([1, 2])) & documents(IDS)), ("have a chunk", lambda: chunk(3) & chunk(4)), ("float", lambda: causal & 3.0),
            ("join those first", lambda: (causal | prefix([1, 2])) & window(3))):
        with pytest.raises(libattn.InvalidError, match=match):
            mistake()
    for match, options in (
            ("prefix alone", {"mask": prefix([1, 2])}), ("window is given", {"mask": window(3), "window": (1, 1)}),
            ("causal and window belong", {"mask": causal | prefix([1, 2]), "causal": True}),
            ("two places", {"mask": documents([1] * 5 + [2] * 3 + [1] * 5)}),
            ("documents has shape", {"mask": documents(IDS[:, :9])}),
            ("documents is float64", {"mask": documents(IDS * 1.0)}),
            ("intervals", {"mask": documents(IDS), "intervals": np.zeros((2, 1, 13, 2), np.int32)})):
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention(q, k, v, **options)
    with pytest.raises(libattn.InvalidError, match="cu_lens"):
        libattn.attention_varlen(q[0], k[0], v[0], [0, 9], [0, 13], mask=documents(IDS[0]))
    for match, mask in (("mask is 'causal'; it takes an array, or masks by name", "causal"),
                        ("mask is a function; it takes", window)):
        with pytest.raises(TypeError, match=match):
            libattn.attention(q, k, v, mask=mask)
        with pytest.raises(TypeError, match=match):
            libattn.attention_with_kvcache(q, k, v, cache_seqlens=13, mask=mask)


def padding(batch=2, keys=13):
    return np.arange(keys) < np.array([5, 11])[:, None]


@pytest.mark.parametrize("shape", [(2, 1, 1, 13), (2, 4, 1, 13), (1, 1, 1, 13), (4, 1, 13), (1, 13), (2, 1, 9, 1),
                                   (9, 1), (1, 4, 9, 13)])
def test_masks_that_broadcast(make, shape):
    q, k, v = make()
    seen = np.random.default_rng(2).random(shape) < 0.7
    if shape[0] == 2 and shape[-1] == 13:
        seen &= padding()[:, None, None]
    wanted = reference(q, k, v, seen)[0]
    added = np.where(seen, np.float32(0), np.float32(-np.inf))
    for mask in (seen, added, causal & seen):
        known = wanted
        if not isinstance(mask, np.ndarray):
            known = reference(q, k, v, seen & visible_pairs(9, 13, causal=True))[0]
        close(libattn.attention(q, k, v, mask=mask), known)
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    t = [torch.from_numpy(x) for x in (q, k, v)]
    for mask in map(torch.from_numpy, (seen, added)):
        close(la.attention(*t, mask=mask), wanted)
        o = la.scaled_dot_product_attention(*(x.transpose(1, 2) for x in t), mask, enable_gqa=True)
        close(o.transpose(1, 2), wanted)


def test_padding_of_packed_sequences(make):
    q, k, v = make()
    starts = np.array([0, 9, 18], np.int32), np.array([0, 13, 26], np.int32)
    wanted = reference(q, k, v, padding()[:, None, None])[0]
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    o = libattn.attention_varlen(*flat, *starts, mask=padding()[:, None, None])
    close(o.reshape(q.shape), wanted)
    close(o.reshape(q.shape), libattn.attention(q, k, v, lens_kv=[5, 11]))


def test_masks_of_other_shapes_say_theirs(make):
    q, k, v = make()
    hint = r"mask has shape \(2, 13\).*here \(2, 4, 9, 13\).*mask\[:, None, None, :\].*lens_kv"
    others = ((2, 13), hint), ((9, 12), r"mask has shape \(9, 12\)"), ((13,), r"mask has shape \(13,\)"), (
        (2, 9, 13), r"mask\[:, None\]"), ((3, 1, 1, 13), r"mask has shape \(3, 1, 1, 13\)")
    for shape, match in others:
        with pytest.raises(libattn.InvalidError, match=match):
            libattn.attention(q, k, v, mask=np.ones(shape, bool))
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    t = [torch.from_numpy(x) for x in (q, k, v)]
    for shape, match in others:
        with pytest.raises(libattn.InvalidError, match=match):
            la.attention(*t, mask=torch.ones(shape, dtype=torch.bool))
        for dtype in (torch.bool, torch.float32):
            with pytest.raises(libattn.InvalidError, match="attn_" + match):
                la.scaled_dot_product_attention(*(x.transpose(1, 2) for x in t), torch.ones(shape, dtype=dtype),
                                                enable_gqa=True)


def test_operators_use_as_many_threads_as_torch(make):
    torch = pytest.importorskip("torch")
    import libattn.torch as la
    from libattn import _run

    q, k, v = (torch.from_numpy(x) for x in make())
    before = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            for call in (lambda: la.attention(q, k, v), lambda: la.scaled_dot_product_attention(q, q, q),
                         lambda: la.attention_with_kvcache(q, k, v, cache_seqlens=13)):
                _run.clear_plans()
                call()
                static = [part for key in _run._plans for part in key if isinstance(part, tuple) and len(part) >= 12]
                assert static and {one[8] for one in static} == {number}
            _run.clear_plans()
            la.attention(q, k, v, threads=2)
            assert _run._plans and {key[1][8] for key in _run._plans} == {2}
    finally:
        torch.set_num_threads(before)


# ---- torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases(9))
def test_names_in_torch(make, name):
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    mask, seen = cases(9)[name]

    def as_torch(x):
        return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x

    mask = mask._replace(documents=tuple(as_torch(x) for x in mask.documents), array=as_torch(mask.array),
                         prefix=None if mask.prefix is None else as_torch(mask.prefix.astype(np.int32)))
    q, k, v = (torch.from_numpy(x) for x in make())
    wanted = reference(q, k, v, seen)[0]
    close(la.attention(q, k, v, mask=mask), wanted)
    torch.compiler.reset()
    compiled = torch.compile(lambda q, k, v: la.attention(q, k, v, mask=mask), fullgraph=True, backend="aot_eager")
    close(compiled(q, k, v), wanted)


def test_documents_made_inside_a_compiled_function(make):
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    q, k, v = (torch.from_numpy(x) for x in make())
    compiled = torch.compile(lambda q, k, v, ids: la.attention(q, k, v, mask=causal & window(4) & documents(ids)),
                             fullgraph=True, backend="aot_eager")
    seen = same_document(9) & visible_pairs(9, 13, causal=True, window=(4, None))
    close(compiled(q, k, v, torch.from_numpy(IDS)), reference(q, k, v, seen)[0])


def test_floats_in_torch(make):
    torch = pytest.importorskip("torch")
    import libattn.torch as la

    q, k, v = (torch.from_numpy(x) for x in make())
    seen = torch.rand(2, 4, 9, 13) < 0.6
    for dtype in (torch.float32, torch.bfloat16):
        added = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)
        close(la.attention(q, k, v, mask=added), reference(q, k, v, seen.numpy())[0])
    for match, mask in (("other than 0", added - 1), ("int64", seen.long()), ("here .2, 4, 9, 13", seen[..., :12])):
        with pytest.raises(libattn.InvalidError, match=match):
            la.attention(q, k, v, mask=mask)
    with pytest.raises(libattn.InvalidError, match="two places"):
        la.attention(q, k, v, mask=documents(torch.tensor([1] * 5 + [2] * 3 + [1] * 5)))
    for match, mask in (("mask is 'causal'; it takes .* masks by name", "causal"), ("mask is a function", lambda: 0)):
        with pytest.raises(TypeError, match=match):
            la.attention(q, k, v, mask=mask)
    with pytest.raises(libattn.InvalidError, match="prefix alone: it is joined"):
        la.attention(q, k, v, mask=prefix(torch.tensor([4, 0])))


@pytest.mark.parametrize("rows, keys", [(200, 300), (256, 160)])
@pytest.mark.parametrize("heads", [None, 4])
def test_block_mask(heads, rows, keys):
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    import libattn.torch as la

    ids = torch.arange(512) // 130

    def by_document(b, h, i, j):
        return (ids[i] == ids[j]) & (i + 40 * h * (heads is not None) >= j - 10 * b)

    mask = flex.create_block_mask(by_document, 2, heads, rows, keys, device="cpu", BLOCK_SIZE=(64, 32))
    random = np.random.default_rng(3)
    q, k, v = (torch.from_numpy(random.standard_normal((2, n, 4, 16)).astype("f")) for n in (rows, keys, keys))
    b, h, i, j = np.ogrid[:2, :4, :rows, :keys]
    seen = (i // 130 == j // 130) & (i + 40 * h * (heads is not None) >= j - 10 * b)
    close(la.attention(q, k, v, mask=mask), reference(q, k, v, seen)[0])
    blocks, bits = made = la.from_block_mask(mask, rows, keys)
    la.attention(q, k, v, mask=mask)
    assert la.from_block_mask(mask, rows, keys) is made  # it is kept
    dense = np.unpackbits(bits.numpy(), axis=-1, bitorder="little")[..., :keys].astype(bool)
    assert dense.sum() < seen[:, :dense.shape[1]].sum() and not (dense & ~seen[:, :dense.shape[1]]).any()
    for match, q in (("200|256", q[:, 1:]), ("neither blocks nor bits", q)):
        with pytest.raises(libattn.InvalidError, match=match):
            la.attention(q, k, v, mask=mask, **({"bits": bits} if q.shape[1] == rows else {}))


@pytest.mark.long
@pytest.mark.parametrize("way", ["closure", "argument", "converted", "inside"])
def test_block_mask_in_compiled_code(way):
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    import libattn.torch as la

    ids = torch.arange(512) // 130

    def make(shift=10):
        return flex.create_block_mask(lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j - shift * b), 2, None, 200, 256,
                                      device="cpu", BLOCK_SIZE=(64, 32))

    inputs = [torch.randn(2, rows, 4, 16, requires_grad=True) for rows in (200, 256, 256)]
    mask, other = make(), make(30)
    if way == "converted":
        la.from_block_mask(mask, 200, 256), la.from_block_mask(other, 200, 256)
    given = (mask,) if way in ("argument", "converted") else ()
    compiled = torch.compile(lambda q, k, v, *mine: la.attention(
        q, k, v, mask=mine[0] if mine else make() if way == "inside" else mask), fullgraph=True, backend="aot_eager")
    for wanted_mask, given in ((make(), given), *([(make(30), (other,))] if given else [])):
        o, wanted = compiled(*inputs, *given), la.attention(*inputs, mask=wanted_mask)
        assert torch.equal(o, wanted)
        for ours, theirs in zip(torch.autograd.grad(o.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs)):
            torch.testing.assert_close(ours, theirs)
    if way != "converted":
        assert not hasattr(mask, "_libattn")  # a graph keeps nothing
