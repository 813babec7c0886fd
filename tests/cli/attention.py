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


class Row:
    """A query row: its sequence, head, place in q, first row of k; its visible pairs as key -> (score, its derivative by
    scale q.k, factor of dropout); the distribution's top and sum, the LSE."""

    def __init__(self, n, b, h, i, q_row, k_row, t):
        self.n, self.b, self.h, self.i, self.q_row, self.k_row, self.t = n, b, h, i, q_row, k_row, t
        self.pairs, self.lse, self.sink = {}, -math.inf, None

    def probabilities(self):
        for j, (s, slope, kept) in self.pairs.items():
            yield j, math.exp(s - self.lse), slope, kept


def rows_of(
    q,
    k,
    causal=False,
    window=None,
    chunk=0,
    prefix=None,
    scale=None,
    softcap=None,
    alibi=None,
    bias=None,
    sink=None,
    lens_q=None,
    lens_kv=None,
    visible=None,
    dropout=None,
    spans=None,
):
    """q, k: (batch, row, head, dim). alibi: a function of (batch, head); bias, visible: of (batch, head, row, key);
    spans: (first row of q, rows, first row of k, keys) a sequence, all in batch 0."""
    batch, rows, heads, dim = q.shape
    group, packed = heads // k.shape[2], spans is not None
    spans = spans or [(0, rows, 0, k.shape[1])] * batch
    for n, (start_q, len_q, start_kv, len_kv) in enumerate(spans):
        b, used = (0 if packed else n), (lens_kv[n] if lens_kv else len_kv)
        len_q = lens_q[n] if lens_q else len_q
        for h in range(heads):
            for i in range(len_q):
                row = Row(n, b, h, i, start_q + i, start_kv, i + used - len_q)
                for j in range(used):
                    if not seen_by_range(row.t, j, causal, window, chunk, prefix):
                        continue
                    if visible and not visible(n, h, i, j):
                        continue
                    s = sum(q[b, start_q + i, h, d] * k[b, start_kv + j, h // group, d] for d in range(dim))
                    s, slope, kept = s * (scale or 1 / math.sqrt(dim)), 1, 1
                    if softcap:
                        s = math.tanh(s / softcap)
                        s, slope = softcap * s, 1 - s * s
                    s -= alibi(n, h) * abs(row.t - j) if alibi else 0
                    if dropout:
                        threshold = int(256 * dropout[0] + 0.5)
                        keep = dropout_byte(dropout[1], n * heads + h, i, j) >= threshold
                        kept = 256 / (256 - threshold) if keep else 0
                    row.pairs[j] = s + (bias(n, h, i, j) if bias else 0), slope, kept
                row.sink = sink[h] if sink else None
                logits = [s for s, _, _ in row.pairs.values()] + ([row.sink] if sink else [])
                top = max(logits, default=-math.inf)
                if logits:
                    row.lse = top + math.log(sum(math.exp(s - top) for s in logits))
                yield row


def attention(q, k, v, **meaning):
    """O and the LSE (batch, head, row); v: (batch, row, head, dim); meaning: as rows_of."""
    batch, rows, heads, _ = q.shape
    dim_v, group = v.shape[3], heads // k.shape[2]
    o = [0.0] * (batch * rows * heads * dim_v)
    lse = [0.0] * (batch * heads * rows)
    for row in rows_of(q, k, **meaning):
        lse[(row.b * heads + row.h) * rows + row.q_row] = row.lse
        for j, p, _, kept in row.probabilities():
            for d in range(dim_v):
                o[((row.b * rows + row.q_row) * heads + row.h) * dim_v + d] += (
                    p * kept * v[row.b, row.k_row + j, row.h // group, d]
                )
    return Array((batch, rows, heads, dim_v), o), Array((batch, heads, rows), lse)


def gradients(q, k, v, do, dlse=None, **meaning):
    """dq, dk, dv as arrays, then functions of what the scores' terms depend on, as dicts: dbias of (sequence, head, row,
    key), dalibi of (sequence, head), dsink of the head. do: like O; dlse: (batch, head, row)."""
    batch, rows, heads, dim = q.shape
    keys, heads_kv, dim_v, group = k.shape[1], k.shape[2], v.shape[3], heads // k.shape[2]
    scale = meaning.get("scale") or 1 / math.sqrt(dim)
    dq, dk = [0.0] * (batch * rows * heads * dim), [0.0] * (batch * keys * heads_kv * dim)
    dv = [0.0] * (batch * keys * heads_kv * dim_v)
    dbias, dalibi, dsink = {}, {}, {}
    for row in rows_of(q, k, **meaning):
        n, b, h, i, g = row.n, row.b, row.h, row.i, row.h // group
        at_q, terms = ((b * rows + row.q_row) * heads + h) * dim, []
        up = [do[b, row.q_row, h, d] for d in range(dim_v)]
        for j, p, slope, kept in row.probabilities():
            at_v = ((b * keys + row.k_row + j) * heads_kv + g) * dim_v
            for d in range(dim_v):
                dv[at_v + d] += p * kept * up[d]
            terms.append((j, p, slope, kept * sum(up[d] * v[b, row.k_row + j, g, d] for d in range(dim_v))))
        mean = sum(p * dp for _, p, _, dp in terms) - (dlse[b, h, row.q_row] if dlse else 0)
        for j, p, slope, dp in terms:
            ds = p * (dp - mean)
            at_k = ((b * keys + row.k_row + j) * heads_kv + g) * dim
            for d in range(dim):
                dq[at_q + d] += scale * slope * ds * k[b, row.k_row + j, g, d]
                dk[at_k + d] += scale * slope * ds * q[b, row.q_row, h, d]
            dbias[n, h, i, j] = ds
            dalibi[n, h] = dalibi.get((n, h), 0) - ds * abs(row.t - j)
        if row.sink is not None:
            dsink[h] = dsink.get(h, 0) - math.exp(row.sink - row.lse) * mean
    return Array(q.shape, dq), Array(k.shape, dk), Array(v.shape, dv), dbias, dalibi, dsink
