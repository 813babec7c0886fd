"""Attention and its gradients from the definition, with NumPy: in double precision, and unfused in the inputs' type.

The second is the yardstick of the rules in cases.py: every tensor that unfused attention would store is rounded to the
inputs' type. hold() holds both against tests/cli/attention.py, which goes pair by pair."""

import math
import os
import sys

import numpy as np

from library import rounded

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
import attention as by_pairs
from arrays import Array

ROWS = 512  # rows whose scores are held at once


def dropout_factors(p, seed, batch_head, rows, len_kv):
    """What multiplies each probability of these rows: 0 or the scale of the kept."""
    threshold = int(256 * np.float32(p) + np.float32(0.5))
    first, count = rows.start // 16, (rows.stop + 15) // 16 - rows.start // 16
    across = (len_kv + 15) // 16
    row_blocks = np.arange(first * 4, (first + count) * 4, dtype=np.uint64)[:, None]
    key_blocks = np.arange(across * 4, dtype=np.uint64)[None, :]
    words = by_pairs.philox([row_blocks + 0 * key_blocks, key_blocks + 0 * row_blocks, batch_head, 0], seed)
    # [row tile, a, key tile, c] of the words r; bytes k: row 2a + r % 2 + 8 (r / 2), key 2c + k % 2 + 8 (k / 2).
    kept = np.empty((count, 2, 4, 2, across, 2, 4, 2), bool)
    for r, word in enumerate(words):
        word = np.broadcast_to(np.asarray(word, np.uint64), (count * 4, across * 4)).reshape(count, 4, across, 4)
        for k in range(4):
            byte = (word >> np.uint64(8 * k)) & np.uint64(255)
            kept[:, r // 2, :, r % 2, :, k // 2, :, k % 2] = byte >= threshold
    kept = kept.reshape(count * 16, across * 16)[rows.start - first * 16 :][: rows.stop - rows.start, :len_kv]
    return kept * (256 / (256 - threshold))


def seen(case, t, j):
    """Which keys j (a row) rows at t (a column) see."""
    visible = np.ones(np.broadcast_shapes(t.shape, j.shape), bool)
    if case.causal:
        visible &= j <= t
    if case.window:
        left, right = case.window
        if left >= 0:
            visible &= j >= t - left
        if right >= 0:
            visible &= j <= t + right
    if case.chunk:
        visible &= t // case.chunk == j // case.chunk
    return visible


def attention(case, tensors, dtype=None, backward=True):
    """o, lse and, with `backward`, grad_q, grad_k, grad_v, grad_bias of a case as arrays in f64; with `dtype` of unfused
    attention in that type. Rows outside every sequence are 0.

    tensors: q, k, v, grad_o as (rows, head, dim), alibi (batch, head), bias (row, key)."""
    work = np.float32 if dtype else np.float64
    store = (lambda x: rounded(x, dtype)) if dtype else (lambda x: x)
    q, k, v, grad_o = (tensors[name].astype(work) for name in ("q", "k", "v", "grad_o"))
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    scale = case.scale or 1 / math.sqrt(q.shape[2])
    out = {"o": np.zeros(grad_o.shape), "lse": np.zeros((heads, q.shape[0]))}
    if backward:
        out.update(grad_q=np.zeros(q.shape), grad_k=np.zeros(k.shape), grad_v=np.zeros(v.shape))
        if case.mask:
            out["grad_bias"] = np.zeros(tensors["bias"].shape)
    for n, (start_q, len_q, start_kv, len_kv) in enumerate(case.sequences):
        j = np.arange(len_kv)[None, :]
        offset = 0 if case.causal == "top" else len_kv - len_q
        for h in range(heads):
            keys, values = k[start_kv : start_kv + len_kv, h // group], v[start_kv : start_kv + len_kv, h // group]
            scaled = store(keys * work(scale))
            for begin in range(0, len_q if len_kv else 0, ROWS):
                rows = slice(begin, min(begin + ROWS, len_q))
                at = slice(start_q + rows.start, start_q + rows.stop)
                t = np.arange(rows.start, rows.stop)[:, None] + offset
                s = store(q[at, h] @ scaled.T)
                if case.softcap:
                    bent = store(np.tanh(store(s / work(case.softcap))))
                    s = store(bent * work(case.softcap))
                if case.alibi:
                    s = store(s - work(tensors["alibi"][n, h]) * np.abs(t - j).astype(work))
                if case.mask:
                    s = store(s + tensors["bias"][rows, :len_kv].astype(work))
                s = np.where(seen(case, t, j), s, -np.inf)
                top = s.max(axis=1, keepdims=True)
                top = np.where(np.isneginf(top), 0, top)
                p = np.exp(s - top)
                total = p.sum(axis=1, keepdims=True)
                with np.errstate(divide="ignore"):
                    out["lse"][h, at] = (top + np.log(total))[:, 0]
                p = store(p / np.where(total == 0, 1, total))
                kept = work(1)
                if case.dropout:
                    kept = dropout_factors(case.dropout, case.seed, n * heads + h, rows, len_kv).astype(work)
                out["o"][at, h] = store((p * kept) @ values)
                if not backward:
                    continue
                g = grad_o[at, h]
                out["grad_v"][start_kv : start_kv + len_kv, h // group] += (p * kept).T @ g
                dp = store(g @ values.T) * kept
                ds = store(p * (dp - (p * dp).sum(axis=1, keepdims=True)))
                if case.mask:
                    out["grad_bias"][rows, :len_kv] += ds
                if case.softcap:
                    ds = store(ds * (1 - bent * bent))
                out["grad_q"][at, h] = ds @ scaled
                out["grad_k"][start_kv : start_kv + len_kv, h // group] += (ds.T @ q[at, h]) * work(scale)
    for n, (start_q, len_q, _, len_kv) in enumerate(case.sequences):
        if not len_kv:
            out["lse"][:, start_q : start_q + len_q] = -np.inf
    return {name: x if name == "lse" else store(x) for name, x in out.items()}


def hold(case, tensors):
    """Ends unless this reference says what tests/cli/attention.py says, which rounds its results to f32."""

    def array(x):
        return Array((1, *x.shape), [float(value) for value in x.reshape(-1)])

    meaning = {
        "causal": bool(case.causal),
        "window": case.window,
        "chunk": case.chunk,
        "scale": case.scale,
        "softcap": case.softcap,
        "alibi": (lambda n, h: float(tensors["alibi"][n, h])) if case.alibi else None,
        "bias": (lambda n, h, i, j: float(tensors["bias"][i, j])) if case.mask else None,
        "dropout": (case.dropout, case.seed) if case.dropout else None,
        "spans": case.sequences,
    }
    q, k, v, grad_o = (array(tensors[name]) for name in ("q", "k", "v", "grad_o"))
    o, lse = by_pairs.attention(q, k, v, **meaning)
    wanted = [o, lse, *by_pairs.gradients(q, k, v, grad_o, **meaning)[:3]]
    mine = attention(case, tensors)
    for name, other in zip(("o", "lse", "grad_q", "grad_k", "grad_v"), wanted):
        if not np.allclose(mine[name], np.array(other.data).reshape(mine[name].shape), rtol=2e-7, atol=1e-7):
            sys.exit(f"the references disagree about {name} of {case.name()}")
