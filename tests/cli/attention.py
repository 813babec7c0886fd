"""Attention from its definition, in double precision, pair by pair."""

import math

from arrays import Array


def philox(counter, seed):
    c, k0, k1, full = list(counter), seed & 0xFFFFFFFF, seed >> 32, 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & full, (p0 >> 32) ^ c[3] ^ k1, p0 & full]
        k0, k1 = (k0 + 0x9E3779B9) & full, (k1 + 0xBB67AE85) & full
    return c


def dropout_byte(seed, batch_head, row, key):
    r, k = row % 16, key % 16
    words = philox([row // 16 * 4 + r % 8 // 2, key // 16 * 4 + k % 8 // 2, batch_head, 0], seed)
    return words[r % 2 + r // 8 * 2] >> 8 * (k % 2 + k // 8 * 2) & 255


def seen_by_range(t, j, causal, window, chunk, prefix):
    seen = not causal or j <= t
    if window:
        left, right = window
        seen = seen and (left < 0 or j >= t - left) and (right < 0 or j <= t + right)
    if prefix is not None and j < prefix:
        seen = True
    return seen and (not chunk or t // chunk == j // chunk)


def attention(
    q,
    k,
    v,
    causal=False,
    window=None,
    chunk=0,
    prefix=None,
    scale=None,
    softcap=None,
    alibi=None,
    bias=None,
    sink=None,
    lens_kv=None,
    visible=None,
    dropout=None,
    spans=None,
):
    """q, k, v: (batch, row, head, dim). alibi: a function of (batch, head); bias, visible: of (batch, head, row, key);
    spans: (first row of q, rows, first row of k, keys) a sequence, all in batch 0. Returns o and the LSE
    (batch, head, row)."""
    batch, rows, heads, dim = q.shape
    dim_v, group = v.shape[3], heads // k.shape[2]
    packed = spans is not None
    spans = spans or [(0, rows, 0, k.shape[1])] * batch
    o = [0.0] * (batch * rows * heads * dim_v)
    lse = [0.0] * (batch * heads * rows)
    for n, (start_q, len_q, start_kv, len_kv) in enumerate(spans):
        b, used = (0 if packed else n), (lens_kv[n] if lens_kv else len_kv)
        for h in range(heads):
            for i in range(len_q):
                t, scores = i + used - len_q, {}
                for j in range(used):
                    if not seen_by_range(t, j, causal, window, chunk, prefix) or visible and not visible(n, h, i, j):
                        continue
                    s = sum(q[b, start_q + i, h, d] * k[b, start_kv + j, h // group, d] for d in range(dim))
                    s *= scale or 1 / math.sqrt(dim)
                    s = softcap * math.tanh(s / softcap) if softcap else s
                    s -= alibi(n, h) * abs(t - j) if alibi else 0
                    scores[j] = s + (bias(n, h, i, j) if bias else 0)
                logits = list(scores.values()) + ([sink[h]] if sink else [])
                top = max(logits, default=-math.inf)
                total = sum(math.exp(s - top) for s in logits)
                lse[(b * heads + h) * rows + start_q + i] = top + math.log(total) if total else -math.inf
                for j, s in scores.items():
                    p = math.exp(s - top) / total
                    if dropout:
                        threshold = int(256 * dropout[0] + 0.5)
                        kept = dropout_byte(dropout[1], n * heads + h, i, j) >= threshold
                        p = p * 256 / (256 - threshold) if kept else 0
                    for d in range(dim_v):
                        o[((b * rows + start_q + i) * heads + h) * dim_v + d] += p * v[b, start_kv + j, h // group, d]
    return Array((batch, rows, heads, dim_v), o), Array((batch, heads, rows), lse)
