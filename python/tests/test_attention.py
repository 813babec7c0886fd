"""attention, attention_varlen and attention_backward over NumPy arrays, against the definition in double precision."""
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import libattn
from conftest import close, reference, visible_pairs


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"window": (3, 1)}, {"window": (None, 0)}, {"window": (2, -1)}, {"chunk": 4},
    {"causal": True, "window": (5, 0)},
], ids=str)
def test_masks(make, options):
    q, k, v = make()
    o, lse = libattn.attention(q, k, v, return_lse=True, **options)
    wanted_o, wanted_lse = reference(q, k, v, visible_pairs(9, 13, **options))
    close(o, wanted_o)
    close(lse, wanted_lse)


def test_scores(make):
    q, k, v = make(dim_v=10)
    alibi = np.array([0.5, 0.25, 0.1, 0.3], np.float32)
    bias = np.random.default_rng(1).standard_normal((4, 9, 13)).astype(np.float32)
    sink = [0.3, -1, 2, 0.5]  # a list is enough
    o, lse = libattn.attention(q, k, v, scale=0.3, softcap=5.0, alibi=alibi, bias=bias, sink=sink, return_lse=True)
    wanted = reference(q, k, v, scale=0.3, softcap=5.0, alibi=alibi, bias=bias, sink=sink)
    close(o, wanted[0])
    close(lse, wanted[1])


def test_alibi_by_batch_and_bias_that_repeats(make):
    q, k, v = make()
    alibi = np.random.default_rng(2).random((2, 4)).astype(np.float32)
    bias = np.broadcast_to(np.random.default_rng(3).standard_normal((2, 1, 1, 13)).astype(np.float16), (2, 4, 9, 13))
    close(libattn.attention(q, k, v, alibi=alibi, bias=bias), reference(q, k, v, alibi=alibi, bias=bias)[0])


@pytest.mark.parametrize("shape", [(2, 4, 9, 13), (1, 4, 9, 13), (13,)], ids=str)
def test_one_bias_for_all(make, shape):
    q, k, v = make()
    bias = np.broadcast_to(np.float32(3), shape)  # strides of 0 alone, which the C descriptor takes for packed
    assert not any(bias.strides)
    o, lse = libattn.attention(q, k, v, bias=bias, return_lse=True)
    wanted_o, wanted_lse = reference(q, k, v, bias=bias)
    close(o, wanted_o)
    close(lse, wanted_lse)
    found = libattn.attention_backward(np.ones_like(o), q, k, v, o, lse, bias=bias, grad_bias=True)
    wanted = libattn.attention_backward(np.ones_like(o), q, k, v, o, lse, bias=bias.copy(), grad_bias=True)
    for one, other in zip(found[:4], wanted[:4]):
        np.testing.assert_array_equal(one, other)
    assert libattn.plan(q, k, v, bias=bias).explain() == libattn.plan(q, k, v, bias=bias.copy()).explain()


@pytest.mark.parametrize("packed", [False, True])
def test_rows_outside_sequences_weigh_nothing_in_a_merge(make, packed):
    q, k, v = make(batch=1)
    whole = libattn.attention(q, k, v, return_lse=True)
    if packed:
        part = libattn.attention_varlen(q[0], k[0], v[0], [0, 5], [0, 13], return_lse=True)
        part = [x[None] for x in part]
    else:
        part = libattn.attention(q, k, v, lens_q=[5], return_lse=True)
    assert np.all(part[0][:, 5:] == 0) and np.all(np.isneginf(part[1][:, :, 5:]))
    o, lse = libattn.merge_states([whole[0], part[0]], [whole[1], part[1]])
    close(o, whole[0])
    close(lse[:, :, 5:], whole[1][:, :, 5:])


def test_lengths_prefix_and_masks(make):
    q, k, v = make()
    lens = [5, 13]
    seen = np.zeros((2, 1, 9, 13), bool)
    for b, keys in enumerate(lens):
        seen[b, 0, :, :keys] = True
    close(libattn.attention(q, k, v, lens_kv=lens), reference(q, k, v, seen)[0])
    seen = visible_pairs(9, 13, causal=True)[None, None] | (np.arange(13) < np.array([10, 2])[:, None, None, None])
    close(libattn.attention(q, k, v, causal=True, prefix=np.array([10, 2])), reference(q, k, v, seen)[0])
    mask = np.random.default_rng(4).random((2, 4, 9, 13)) < 0.4
    mask[1, 2, 3] = False
    o, lse = libattn.attention(q, k, v, mask=mask, return_lse=True)
    wanted = reference(q, k, v, mask)
    close(o, wanted[0])
    close(lse, wanted[1])
    assert np.all(o[1, 3, 2] == 0) and np.isneginf(lse[1, 2, 3])
    close(libattn.attention(q, k, v, bits=np.packbits(mask, -1, bitorder="little")), wanted[0])
    close(libattn.attention(q, k, v, mask=mask[0, 0]), reference(q, k, v, mask[:1, :1])[0])


def test_intervals_and_blocks(make):
    q, k, v = make()
    starts = np.random.default_rng(5).integers(0, 10, (2, 1, 13, 1), np.int32)
    seen = visible_pairs(9, 13, causal=True) & (np.arange(9)[:, None] < starts[:, :, None, :, 0])
    close(libattn.attention(q, k, v, causal=True, intervals=starts), reference(q, k, v, seen)[0])
    blocks = libattn.Blocks(4, 5, full_count=np.array([[[2, 1, 3]]]),
                            full=np.array([[[[0, 2, 0], [1, 0, 0], [0, 1, 2]]]]))
    by_block = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]], bool)
    seen = by_block.repeat(4, 0).repeat(5, 1)[:9, :13]
    close(libattn.attention(q, k, v, blocks=blocks), reference(q, k, v, seen)[0])


@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 2e-3)])
def test_half(make, dtype, tolerance):
    q, k, v = make(dtype=dtype)
    o = libattn.attention(q, k, v, causal=True)
    assert o.dtype == dtype
    wanted = reference(q, k, v, visible_pairs(9, 13, causal=True))[0]
    close(o, wanted, tolerance)
    exact = libattn.attention(q, k, v, causal=True, out_f32=True)
    assert exact.dtype == np.float32
    close(exact, wanted, tolerance)


def test_double_is_the_reference(make):
    q, k, v = make(dtype=np.float64)
    random = np.random.default_rng(9)
    scores = {"alibi": [0.5, 0.25, 0.1, 0.3], "sink": random.standard_normal(4), "bias": random.standard_normal((9, 13)),
              "scale": 0.25}
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True, **scores)
    assert o.dtype == lse.dtype == np.float64
    wanted = reference(q, k, v, visible_pairs(9, 13, causal=True), **scores)
    close(o, wanted[0], 1e-13)
    close(lse, wanted[1], 1e-13)
    grad = libattn.attention_backward(o, q, k, v, o, lse, causal=True, grad_sink=True, **scores)
    assert grad.q.dtype == grad.sink.dtype == np.float64
    assert libattn.plan(q, k, v).info["kernel"] == "reference"


def test_bfloat16_of_ml_dtypes(make):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = make(dtype=ml_dtypes.bfloat16)
    o = libattn.attention(q, k, v)
    assert o.dtype == ml_dtypes.bfloat16
    close(o, reference(q, k, v)[0], 2e-2)


def test_strides_are_taken_as_they_are(make):
    q, k, v = make()
    wanted = reference(q, k, v)[0]
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    close(libattn.attention(*turned), wanted)
    flipped = k[:, ::-1], v[:, ::-1]  # keys in reverse
    close(libattn.attention(q, *(np.ascontiguousarray(x)[:, ::-1] for x in flipped)), wanted)
    repeated = [np.broadcast_to(x[:1], x.shape) for x in (k, v)]
    close(libattn.attention(q, *repeated), reference(q, *repeated)[0])
    wide = np.zeros((2, 9, 4, 40), np.float32)
    out = wide[..., 3:27]
    assert libattn.attention(q, k, v, out=out) is out
    close(out, wanted)
    assert np.all(wide[..., :3] == 0) and np.all(wide[..., 27:] == 0)


@pytest.mark.parametrize("scale", [None, 0.1, 1 / 3])
def test_float64_has_a_scale_of_float64(scale):
    q, k, v = (np.random.default_rng(n).standard_normal((1, 5, 2, 7)) for n in range(3))
    s = np.einsum("bihd,bjhd->bhij", q, k) * (7 ** -0.5 if scale is None else scale)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    o, lse = libattn.attention(q, k, v, scale=scale, return_lse=True)
    assert np.abs(o - np.einsum("bhij,bjhd->bihd", p, v)).max() < 1e-14
    found = libattn.attention_backward(np.ones_like(o), q, k, v, o, lse, scale=scale).k
    dp = np.einsum("bihd,bjhd->bhij", np.ones_like(o), v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * (7 ** -0.5 if scale is None else scale)
    assert np.abs(found - np.einsum("bhij,bihd->bjhd", ds, q)).max() < 1e-14


def test_no_rows_no_keys_no_batch(make):
    q, k, v = make()
    assert libattn.attention(q[:, :0], k, v).shape == (2, 0, 4, 24)
    assert np.all(libattn.attention(q, k[:, :0], v[:, :0]) == 0)
    assert libattn.attention(q[:0], k[:0], v[:0]).shape == (0, 9, 4, 24)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("batch, rows, keys", [(0, 0, 0), (0, 3, 4), (0, 0, 4), (2, 0, 0), (2, 0, 4), (2, 3, 0)])
def test_empty_problems_forward_backward_and_merged(batch, rows, keys, dtype):
    for heads, tables in ((1, {}), (2, {"sink": np.zeros(4)}), (2, {"alibi": np.ones(4)}),
                          (2, {"bias": np.ones((1, 1, rows, keys), dtype)}), (2, {"lens_kv": [keys] * batch}),
                          (2, {"mask": np.ones((batch, 1, rows, keys), bool)}), (2, {"causal": True})):
        q, k, v = (np.ones((batch, n, h, dim), dtype) for n, h, dim in ((rows, 2 * heads, 8), (keys, heads, 8),
                                                                        (keys, heads, 6)))
        o, lse = libattn.attention(q, k, v, return_lse=True, **tables)
        assert o.shape == (batch, rows, 2 * heads, 6) and not o.any()
        assert lse.shape == (batch, 2 * heads, rows) and ("sink" in tables or np.all(np.isneginf(lse)))
        wants = {"grad_" + name: True for name in ("sink", "alibi", "bias") if name in tables}
        found = libattn.attention_backward(np.ones_like(o), q, k, v, o, lse, grad_lse=np.ones_like(lse), **wants,
                                           **tables)
        assert [x.shape for x in found[:3]] == [q.shape, k.shape, v.shape]
        assert all("sink" in tables or not x.any() for x in found if x is not None)
        if dtype == "float64":
            continue
        merged = libattn.merge_states([o, o], [lse, lse])
        assert merged[0].shape == o.shape and not merged[0].any() and merged[1].shape == lse.shape


def test_varlen(make):
    lens_q, lens_kv = [3, 0, 6], [5, 4, 4]
    q, k, v = (x[0] for x in make(1, 9, 13))
    cu_q, cu_kv = np.cumsum([0] + lens_q), np.cumsum([0] + lens_kv).astype(np.int32)
    o, lse = libattn.attention_varlen(q, k, v, cu_q, cu_kv, causal=True, return_lse=True)
    assert lse.shape == (4, 9)
    for b, (rows, keys) in enumerate(zip(lens_q, lens_kv)):
        at, to = slice(cu_q[b], cu_q[b + 1]), slice(cu_kv[b], cu_kv[b + 1])
        wanted = reference(q[None, at], k[None, to], v[None, to], visible_pairs(rows, keys, causal=True))
        close(o[at], wanted[0][0])
        close(lse[:, at], wanted[1][0])
    grad = libattn.attention_backward(np.ones_like(o), q, k, v, o, lse, cu_lens_q=cu_q, cu_lens_kv=cu_kv, causal=True)
    assert grad.q.shape == q.shape and grad.k.shape == k.shape
    # Each row's probabilities sum to 1, two heads share a KV head, and two rows of the six over four keys see none.
    close(grad.v.sum(0), np.full((2, 24), 7 * 2.0))


@pytest.mark.parametrize("bound", [6, 9, 14, 1000, (1 << 31) - 65])
def test_lengths_of_varlen_are_any_bound(make, bound):
    q, k, v = (x[0] for x in make(1, 9, 13))
    starts = [0, 3, 3, 9], [0, 5, 9, 13]
    for options in ({"causal": True}, {"prefix": [2, 0, 4], "causal": True}, {"bias": np.ones((4, 1, 1), np.float32)}):
        tight = dict(options, max_len_q=6, max_len_kv=5)
        loose = dict(options, max_len_q=bound, max_len_kv=bound)
        wanted = libattn.attention_varlen(q, k, v, *starts, return_lse=True, **tight)
        found = libattn.attention_varlen(q, k, v, *starts, return_lse=True, **loose)
        close(found[0], wanted[0])
        close(found[1], wanted[1])
        cu = dict(zip(("cu_lens_q", "cu_lens_kv"), starts))
        for ours, theirs in zip(libattn.attention_backward(found[0], q, k, v, *found, **cu, **loose)[:3],
                                libattn.attention_backward(found[0], q, k, v, *found, **cu, **tight)[:3]):
            close(ours, theirs, 1e-4)
    if bound > 1000:
        return
    seen = np.random.default_rng(3).random((bound, bound)) < 0.7  # a table is laid out by the bound, used in part
    short = seen[:6, :6]
    close(libattn.attention_varlen(q, k, v, *starts, mask=seen, max_len_q=bound, max_len_kv=bound),
          libattn.attention_varlen(q, k, v, *starts, mask=short, max_len_q=6, max_len_kv=6))


def test_backward_is_the_slope_of_the_forward(make):
    q, k, v = make(1, 5, 7, 2, 1, 8)
    random = np.random.default_rng(8)
    options = {"alibi": np.array([0.3, 0.1], np.float32), "sink": np.array([0.2, -0.4], np.float32),
               "bias": random.standard_normal((1, 2, 1, 7)).astype(np.float32)}
    o, lse = libattn.attention(q, k, v, causal=True, return_lse=True, **options)
    grad_o, grad_lse = random.standard_normal(o.shape), random.standard_normal(lse.shape)
    found = libattn.attention_backward(grad_o.astype("f"), q, k, v, o, lse, grad_lse=grad_lse.astype("f"), causal=True,
                                       grad_bias=True, grad_alibi=True, grad_sink=True, **options)
    inputs = dict(options, q=q, k=k, v=v)
    seen = visible_pairs(5, 7, causal=True)
    for name, array in inputs.items():
        slope = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            values = []
            for step in (1e-4, -1e-4):
                moved = {key: np.array(value, np.float64) for key, value in inputs.items()}
                moved[name][place] += step
                moved_o, moved_lse = reference(seen=seen, **moved)
                values.append((moved_o * grad_o).sum() + (moved_lse * grad_lse).sum())
            slope[place] = (values[0] - values[1]) / 2e-4
        close(getattr(found, name), slope, 2e-4)


def test_dropout_is_of_the_seed(make):
    q, k, v = make(rows=32, keys=64)
    first, again, other, at = (
        libattn.attention(q, k, v, dropout_p=0.25, seed=seed, seed_offset=offset)
        for seed, offset in ((5, 2), (5, 2), (6, 2), (np.array([5]), np.array([2], np.uint64))))
    assert np.array_equal(first, again) and not np.array_equal(first, other) and np.array_equal(first, at)


def test_many_threads_at_once(make):
    q, k, v = make(2, 40, 50)
    wanted, mistakes = libattn.attention(q, k, v, causal=True), []

    def work(number):
        for _ in range(50):
            libattn.clear_plans()
            if not np.array_equal(libattn.attention(q, k, v, causal=True, threads=1 + number % 2), wanted):
                mistakes.append(number)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not mistakes


def test_plan_explains_itself(make):
    plan = libattn.plan((1, 512, 8, 64), (1, 512, 2, 64), dtype="bfloat16", causal=True)
    text = plan.explain()
    assert "forward, bf16" in text and "causal" in text
    info = plan.info
    assert info["kernel"] in text and info["workspace_bytes"] == plan.workspace_bytes and info["seconds"] > 0
    assert info["kernel"] in repr(plan)
    assert "backward" in libattn.plan(*make(), backward=True).explain()
    only = libattn.plan(*make(), isa="portable", threads=1).info
    assert only["isa"] == "portable" and only["threads"] == 1
    assert "varlen" in libattn.plan((9, 4, 8), (9, 4, 8), cu_lens_q=[0, 4, 9], cu_lens_kv=[0, 4, 9]).explain()


def test_plans_are_cached_and_the_cache_is_bounded(make):
    from libattn import _run

    libattn.clear_plans()
    q, k, v = make()
    for _ in range(3):
        libattn.attention(q, k, v)
    assert len(_run._plans) == 1
    libattn.attention(q, k, v, causal=True)
    assert len(_run._plans) == 2
    limit, _run.LIMIT = _run.LIMIT, 3
    try:
        for chunk in range(1, 8):
            libattn.attention(q, k, v, chunk=chunk)
        assert len(_run._plans) == 3
    finally:
        _run.LIMIT = limit


def test_version_and_machine():
    assert libattn.version() == libattn.__version__ == "0.2.0"
    with pytest.raises(libattn.InvalidError, match="no-such-machine"):
        libattn.machine_use("no-such-machine")
    libattn.machine_use("zen4")
    libattn.machine_use(None)


def test_import_brings_no_torch():
    code = ("import sys, libattn, numpy; q = numpy.zeros((1, 2, 1, 8), 'f'); libattn.attention(q, q, q); "
            "print('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=dict(os.environ)).stdout.strip() == "False"


def test_a_library_that_is_none_is_named(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path in (str(text), str(tmp_path / "nowhere.so"), "libm.so.6"):
        run = subprocess.run([sys.executable, "-c", "import libattn"], capture_output=True, text=True,
                             env={**os.environ, "LIBATTN_LIBRARY": path})
        assert run.returncode == 1 and f"ImportError: {path} is no libattn.so" in run.stderr, run.stderr


def test_errors_of_packed_sequences_name_the_caller_s_arguments(make):
    q = make()[0][0]
    lens = np.array([0, 4, 9], np.int32)
    for message, keys, longest in (("5 rows, which exceeds max_len_q = 4", lens, 4),
                                   ("exceeds the 9 rows of k", np.array([0, 4, 10], np.int32), 9)):
        with pytest.raises(libattn.InvalidError, match=message):
            libattn.attention_varlen(q, q, q, lens, keys, max_len_q=longest, max_len_kv=9)
