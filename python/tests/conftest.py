"""What the tests share: attention as its definition says, in double precision; and which of the long ones run."""
import os

import numpy as np
import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes seconds; where ATTN_TEST_SHARE asks for a share, each second one runs")


def pytest_collection_modifyitems(items):
    """Half of ATTN_TEST_TURN says which: its lowest bit chooses the version of Transformers (script/test-python)."""
    if os.environ.get("ATTN_TEST_SHARE", "1") == "1":
        return
    turn = int(os.environ.get("ATTN_TEST_TURN", "0")) // 2
    long = [item for item in items if item.get_closest_marker("long")]
    for number, item in enumerate(long):
        if (number + turn) % 2:
            item.add_marker(pytest.mark.skip(reason="another share's"))


def visible_pairs(rows, keys, causal=False, window=None, chunk=None):
    """(rows, keys) bool: what the masks by position show."""
    t = np.arange(rows)[:, None] + keys - rows
    j = np.arange(keys)[None, :]
    seen = np.ones((rows, keys), bool)
    if causal:
        seen &= j <= t
    if window is not None:
        left, right = window
        seen &= (j >= t - left) if left not in (None, -1) else True
        seen &= (j <= t + right) if right not in (None, -1) else True
    if chunk is not None:
        seen &= t // chunk == j // chunk
    return seen


def reference(q, k, v, seen=None, scale=None, softcap=None, alibi=None, bias=None, sink=None):
    """(o, lse) of (batch, row, head, dim) arrays. seen: bool, broadcast to (batch, head, row, key)."""
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.transpose(0, 1, 3, 2))
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if alibi is not None:
        t = np.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2]
        s = s - np.asarray(alibi, np.float64)[..., :, None, None] * np.abs(t - np.arange(s.shape[3]))
    if bias is not None:
        s = s + np.asarray(bias, np.float64)
    if seen is not None:
        s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, np.asarray(sink, np.float64)[:, None, None])
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.asarray(sink, np.float64)[:, None, None] - top)
    with np.errstate(divide="ignore", invalid="ignore"):
        o = np.where(total > 0, p @ v / np.where(total > 0, total, 1), 0)
        lse = np.where(total > 0, top + np.log(np.where(total > 0, total, 1)), -np.inf)
    return o.transpose(0, 2, 1, 3), lse[..., 0]


@pytest.fixture
def make():
    """make(batch, rows, keys, heads_q, heads_kv, dim, dim_v): random q, k, v."""
    random = np.random.default_rng(7)

    def tensors(batch=2, rows=9, keys=13, heads_q=4, heads_kv=2, dim=24, dim_v=None, dtype=np.float32):
        shapes = (batch, rows, heads_q, dim), (batch, keys, heads_kv, dim), (batch, keys, heads_kv, dim_v or dim)
        return [random.standard_normal(shape).astype(dtype) for shape in shapes]

    return tensors


def close(found, wanted, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=tolerance, atol=tolerance)
