"""Parameters that other projects test their attention with, as values: tests, lengths, heads, dims, features and the rule
of each. Nothing else of theirs is here.

Read from
    flash-attention  tests/test_flash_attn.py and hopper/test_flash_attn.py of Dao-AILab/flash-attention at
                     0251105a2fb19d2957484b7f023cd8c115286ced
    pytorch          test/test_transformers.py of pytorch/pytorch at 00030eb8e81f911c48c4d7634fa6b8bb2fae1a1b

A test's parameters are a product of lists; what runs is a share of it in which every two values of two lists meet in some
case, unless the test skips them. Lengths and dims are theirs. Batch and heads are fewer (shape()): there are 2 heads of
k and v (mqa: 1) and 2 sequences, from 65,536 scores a head on one, from 4,194,304 one head of k and v; packed batches
keep at least 5 sequences where there is a short one among them. flash-attention's numbers of splits and pack_gqa are
left to libattn's planner. Tests that repeat a run for its bits repeat it 3 times.
"""

import random

import numpy as np

from library import rounded

FA2_LENGTHS = [(113, 203), (128, 217), (113, 211), (108, 256), (256, 512)]
FA2_DIMS = [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]
CAUSAL_LENGTHS = [(1, 239), (3, 799), (127, 512), (127, 513), *FA2_LENGTHS, (1023, 1024)]
RACE_LENGTHS = [(1, 239), (239, 1), (3, 799), (799, 3), (1024, 128)] + [
    (n, n) for n in (97, 128, 200, 256, 257, 384, 512, 768, 1024)
]
FA3_LENGTHS = [(1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203), (113, 128), (128, 217)] + [
    *[(113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024)],
    *[(1024, 1023), (4096, 4096), (4224, 4224)],
]
FA3_VARLEN_LENGTHS = [(1, 1), (1, 3), (2, 1), (511, 1), (3, 513), (64, 128), (128, 128), (256, 256), (113, 203)] + [
    *[(128, 217), (113, 211), (108, 256), (256, 512), (307, 256), (640, 128), (512, 256), (1024, 1024)],
    *[(1023, 1024), (1024, 1023), (2048, 2048), (4096, 4096)],
]
LARGE_LENGTHS = [(512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048)]
BOTH, TYPES, SHARING = [False, True], ["f16", "bf16"], ["mha", "mqa", "gqa"]
FULL = [(n, n) for n in (97, 128, 200, 384, 768, 1024, 1025, 2048)]
TORCH = [4, 8, 64, 128, 256, 512, 1024, 2048]
BITS = None  # the rule of tests that ask for the same bits again and nothing else


class Rule:
    """Limits on |out - ref|. flash-attention's: of the greatest error, with ref rounded to the inputs' type, in units of
    that of unfused attention in this type (times; grads: of gradients), plus atol (grad_atol) and, with slack, plus what
    adding and taking away 0.3 in this type does to ref, twice. mean: the mean error likewise."""

    def __init__(self, times=2, grads=2, atol=0.0, grad_atol=0.0, slack=False, mean=0.0):
        self.times, self.grads, self.atol, self.grad_atol, self.slack = times, grads, atol, grad_atol, slack
        self.mean = mean

    def excess(self, name, out, ref, naive, case):
        """The error in units of what is allowed."""
        grad = name != "o"
        ref = rounded(ref, case.dtype).astype(np.float64)
        error, yardstick = abs(out - ref), abs(naive - ref)
        times = (self.grads if grad else self.times) + (1 if self.slack and case.softcap else 0)
        limit = times * yardstick.max(initial=0) + (self.grad_atol if grad else self.atol)
        if self.slack:
            back = rounded(rounded(ref + 0.3, case.dtype) - np.float32(0.3), case.dtype)
            limit += 2 * abs(back - ref).max(initial=0) + (3e-4 if grad and case.softcap else 0)
        worst = ratio(error.max(initial=0), limit)
        if self.mean and error.size:
            worst = max(worst, ratio(error.mean(), self.mean * yardstick.mean() + self.atol))
        return worst


class TorchRule:
    """PyTorch's: |out - ref| <= atol + rtol |ref|, where atol is the greatest error of unfused attention in the inputs'
    type, at least 1e-3 (f32: 1e-5), times a factor of each gradient's. rtol is the least of PyTorch's, that of the type:
    theirs grows with the greatest relative error of unfused attention."""

    def __init__(self, o=1.0, grad_q=1.0, grad_k=1.0, grad_v=1.0, grad_bias=22.0):
        self.factors = {"o": o, "grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v, "grad_bias": grad_bias}

    def excess(self, name, out, ref, naive, case):
        factor = self.factors[name]
        if name == "o" and case.dim % 8:
            factor *= 3
        atol = factor * max(abs(naive - ref).max(initial=0), 1e-5 if case.dtype == "f32" else 1e-3)
        rtol = factor * {"f32": 1.3e-6, "f16": 1e-3, "bf16": 1.6e-2}[case.dtype]
        return (abs(out - ref) / (atol + rtol * abs(ref))).max(initial=0)


def ratio(error, limit):
    return 0.0 if error == 0 else error / limit if limit else np.inf


class Case:
    """What is computed. layout: dense; qkvpacked, kvpacked: interleaved, by strides; transposed: grad_o with
    rows before sequences; varlen: cu_lens; used: cu_lens and used lengths; cache: used lengths of k; cache_q: likewise,
    with q packed."""

    def __init__(self, suite, test, rule, values, number):
        self.suite, self.test, self.rule, self.number = suite, test, rule, number
        self.dtype, self.causal, self.window, self.chunk = "f16", "", None, 0
        self.softcap = self.alibi = self.dropout = self.scale = 0
        self.mask = self.deterministic = False
        self.layout, self.data, self.repeat, self.backward = "dense", "normal", 1, True
        self.dim_v = self.lens = None
        self.batch, self.sharing, self.seed = 0, "mha", 7 + number
        draw = random.Random(f"{test} {number}")
        for name, value in values.items():
            setattr(self, name, value)
        if "lengths" in values:
            self.len_q, self.len_kv = self.lengths
        if values.get("swap"):
            self.len_q, self.len_kv = self.len_kv, self.len_q
        if self.causal is True:
            self.causal = "bottom"
        if self.window:  # their tests draw both edges
            self.window = (draw.randrange(self.len_kv), draw.randrange(self.len_kv))
        if self.chunk:
            self.chunk = draw.randrange(1, max(2, self.len_kv * 2))
        if self.scale:
            self.scale = 1 / self.dim
        self.dim_v = self.dim_v or self.dim
        self.shape()
        self.place(draw)

    def shape(self):
        scores = self.len_q * self.len_kv
        if not self.batch:
            self.batch = 1 if scores >= 65536 else 2
            if self.layout in ("varlen", "used"):
                self.batch = 5 if scores < 65536 else 2
        kv = 1 if self.sharing == "mqa" or scores >= 4194304 else 2
        self.heads_kv, self.heads = kv, kv * (1 if self.sharing == "mha" else 2)

    def place(self, draw):
        """sequences: (first row of q, rows, first key, keys) of each."""

        def length(most, least):
            return draw.randint(max(least, most - 20), most)

        self.sequences, self.cu_q, self.cu_kv = [], [0], [0]
        for n in range(self.batch):
            room_q, room_kv = self.len_q, self.len_kv
            if self.lens:
                room_q, room_kv = self.lens[n]
            elif self.layout in ("varlen", "used", "cache_q"):
                room_q = length(room_q, 1)
            if not self.lens and self.layout in ("varlen", "used"):
                empty = self.suite == "flash-attention 3" and (n % 5 == 0 or n == self.batch - 1)
                room_kv = 0 if empty and self.batch > 2 else length(room_kv, 1)
            used_q = draw.randint(0, room_q) if self.layout == "used" else room_q
            used_kv = draw.randint(0, room_kv) if self.layout == "used" else room_kv
            if self.layout in ("cache", "cache_q"):
                used_kv = draw.randint(1, room_kv)
            self.sequences.append((self.cu_q[-1], used_q, self.cu_kv[-1], used_kv))
            self.cu_q.append(self.cu_q[-1] + room_q)
            self.cu_kv.append(self.cu_kv[-1] + room_kv)

    def scores(self):
        return self.heads * sum(len_q * len_kv for _, len_q, _, len_kv in self.sequences)

    def name(self):
        return f"{self.suite}: {self.test} {self.number}"

    def words(self):
        """What distinguishes the case, for a failure's line."""
        skip = ("suite", "test", "rule", "number", "sequences", "cu_q", "cu_kv", "lengths", "swap", "lens", "sharing")
        return ", ".join(f"{name} {value}" for name, value in vars(self).items() if name not in skip and value)

    def tensors(self):
        """q, k, v, grad_o as (rows, heads, dim) of f32 in the case's type; alibi; bias."""
        draw = np.random.default_rng(self.seed)
        rows, keys = self.cu_q[-1], self.cu_kv[-1]
        shapes = {
            "q": (rows, self.heads, self.dim),
            "k": (keys, self.heads_kv, self.dim),
            "v": (keys, self.heads_kv, self.dim_v),
            "grad_o": (rows, self.heads, self.dim_v),
        }
        made = {}
        for name, shape in shapes.items():
            x = draw.random(shape) if self.data == "uniform" else draw.standard_normal(shape)
            if self.data == "large":
                x = x * {"q": 5, "k": 3, "v": 3, "grad_o": 1}[name]
            if name == "q" and self.softcap and self.suite == "flash-attention 3":
                x = x * self.softcap / 4
            made[name] = rounded(x, self.dtype)
        if self.alibi:
            made["alibi"] = (draw.random((self.batch, self.heads)) * 0.3).astype(np.float32)
        if self.mask:
            made["bias"] = rounded(draw.random((self.len_q, self.len_kv)), self.dtype)
        return made


# (suite, test, rule, lists of values, values of all, what the test skips)
TESTS = [
    ("flash-attention 2", "qkvpacked", Rule(), {
        "lengths": FULL, "dim": FA2_DIMS, "dtype": TYPES, "deterministic": BOTH, "alibi": BOTH, "window": BOTH,
        "causal": BOTH, "dropout": [0, 0.17]}, {"layout": "qkvpacked"}, None),
    ("flash-attention 2", "varlen_qkvpacked", Rule(), {
        "lengths": [(n, n) for n in (97, 128, 200, 257, 384, 512, 768, 1025, 2048)],
        "dim": [32, 59, 64, 80, 96, 128, 160, 192, 224, 256], "dtype": TYPES, "deterministic": BOTH, "alibi": BOTH,
        "window": BOTH, "causal": BOTH, "dropout": [0, 0.17]}, {"layout": "varlen"}, None),
    ("flash-attention 2", "output", Rule(grads=3), {
        "lengths": FA2_LENGTHS + LARGE_LENGTHS, "dim": [32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256],
        "dtype": TYPES, "sharing": SHARING, "deterministic": BOTH, "alibi": BOTH, "window": BOTH, "causal": BOTH,
        "dropout": [0, 0.17], "softcap": [0, 50.0], "layout": ["dense", "kvpacked"]}, {},
     lambda v: v["dropout"] and v["softcap"]),
    ("flash-attention 2", "varlen_output", Rule(grads=3), {
        "lengths": [(1, 147), *FA2_LENGTHS, *LARGE_LENGTHS], "dim": [32, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256],
        "dtype": TYPES, "sharing": SHARING, "deterministic": BOTH, "alibi": BOTH, "window": BOTH, "causal": BOTH,
        "dropout": [0, 0.17], "softcap": [0, 50.0]}, {"layout": "varlen"},
     lambda v: v["dropout"] and v["softcap"]),
    ("flash-attention 2", "causal", Rule(atol=1e-5, grad_atol=1e-5), {
        "lengths": CAUSAL_LENGTHS, "swap": BOTH, "dim": FA2_DIMS, "dtype": TYPES, "window": BOTH},
     {"causal": True}, None),
    ("flash-attention 2", "varlen_causal", Rule(atol=1e-5, grad_atol=1e-5), {
        "lengths": CAUSAL_LENGTHS, "swap": BOTH, "dim": FA2_DIMS, "dtype": TYPES, "window": BOTH},
     {"causal": True, "layout": "varlen"}, None),
    ("flash-attention 2", "splitkv", Rule(atol=1e-5, grad_atol=2e-4), {
        "lengths": [(3, 1024), (1, 339), (64, 800), (3, 799), (64, 2048), (16, 20000), (16, 100000), (128, 128),
                    (256, 256)], "swap": BOTH,
        "dim": FA2_DIMS, "dtype": TYPES, "deterministic": BOTH, "alibi": BOTH, "window": BOTH, "causal": BOTH}, {}, None),
    ("flash-attention 2", "kvcache", Rule(times=3, atol=1e-5), {
        "lengths": [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000),
                    (1, 131072), (16, 131072), (128, 128)],
        "dim": [32, 59, 64, 80, 128, 256], "sharing": SHARING, "alibi": BOTH, "window": BOTH, "causal": BOTH},
     {"layout": "cache", "backward": False}, None),
    ("flash-attention 2", "race_condition", BITS, {
        "lengths": RACE_LENGTHS, "dim": FA2_DIMS, "causal": BOTH, "dropout": [0, 0.17]},
     {"deterministic": True, "repeat": 3}, None),
    ("flash-attention 2", "deterministic", BITS, {
        "lengths": CAUSAL_LENGTHS, "swap": BOTH, "dim": FA2_DIMS, "dtype": TYPES, "window": BOTH, "causal": BOTH},
     {"deterministic": True, "repeat": 3}, None),
    ("flash-attention 2", "varlen_deterministic", BITS, {
        "lengths": CAUSAL_LENGTHS, "swap": BOTH, "dim": FA2_DIMS, "dtype": TYPES, "window": BOTH, "causal": BOTH},
     {"deterministic": True, "repeat": 3, "layout": "varlen"}, None),
    ("flash-attention 2", "bwd_overflow", Rule(grads=5, grad_atol=1e-3), {
        "lengths": [(n, n) for n in (1, 2, 5, 17, 128)], "dim": [16, 32, 64], "causal": BOTH},
     {"data": "large"}, None),
    ("flash-attention 2", "bwd_transpose", Rule(), {
        "lengths": [(n, n) for n in (97, 128, 200, 256)], "dim": [64, 128], "dtype": TYPES, "causal": BOTH},
     {"layout": "transposed"}, None),
    ("flash-attention 2", "bwd_varlen_overflow", Rule(slack=True), {
        "lengths": [(256, 3)], "dim": [16, 32, 64], "causal": BOTH},
     {"data": "large", "layout": "varlen", "batch": 3, "lens": [(76, 1), (34, 1), (146, 1)]}, None),
    ("flash-attention 3", "output", Rule(slack=True), {
        "lengths": FA3_LENGTHS, "dim": [64, 96, 128, 192, 256], "dim_v": [0, 128, 256, 512], "dtype": TYPES,
        "sharing": SHARING, "softcap": [0, 15.0], "window": BOTH, "causal": BOTH, "chunk": BOTH}, {},
     lambda v: v["dim_v"] not in {64: (0, 256, 512), 192: (0, 128)}.get(v["dim"], (0,))),
    ("flash-attention 3", "varlen_output", Rule(slack=True), {
        "lengths": FA3_VARLEN_LENGTHS, "dim": [64, 96, 128, 192, 256], "dim_v": [0, 128, 256, 512], "dtype": TYPES,
        "sharing": SHARING, "softcap": [0, 15.0], "window": BOTH, "causal": BOTH, "chunk": BOTH,
        "layout": ["varlen", "used"]}, {},
     lambda v: v["dim_v"] not in {64: (0, 256, 512), 192: (0, 128)}.get(v["dim"], (0,))
     or v["chunk"] and v["lengths"][0] > v["lengths"][1]),
    ("flash-attention 3", "kvcache", Rule(atol=1e-5, mean=1.5), {
        "lengths": [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (128, 128),
                    (256, 512), (2048, 3577)],
        "sharing": SHARING, "causal": BOTH, "window": BOTH, "chunk": BOTH, "layout": ["cache", "cache_q"]},
     {"dim": 128, "dtype": "bf16", "backward": False},
     lambda v: v["causal"] and v["window"] or v["chunk"] and not (v["causal"] or v["window"])),
    ("flash-attention 3", "cluster", Rule(slack=True), {
        "lengths": [(64, 8192)], "causal": BOTH}, {"dim": 128, "dtype": "bf16", "sharing": "gqa"}, None),
    ("flash-attention 3", "race_condition", BITS, {
        "lengths": RACE_LENGTHS + [(2048, 2048)], "dim": FA2_DIMS, "causal": BOTH},
     {"dtype": "bf16", "deterministic": True, "repeat": 3}, None),
    ("pytorch", "flash_attention_vs_math_ref_grads", TorchRule(grad_q=4, grad_k=2, grad_v=2), {
        "len_q": [4, 8, 64, 143, 256, 512, 1024, 2048], "len_kv": [4, 8, 64, 128, 256, 587, 1024, 2048],
        "dim": [8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256], "causal": ["", "top"], "dropout": [0, 0.22, 0.48],
        "dtype": TYPES, "scale": BOTH}, {"data": "uniform"},
     lambda v: v["causal"] and v["len_q"] != v["len_kv"]),
    ("pytorch", "mem_efficient_attention_vs_math_ref_grads", TorchRule(grad_q=1.5, grad_k=12), {
        "len_q": TORCH, "len_kv": TORCH, "dim": [8, 16, 32, 64, 72, 96, 128], "causal": ["", "top"],
        "dropout": [0, 0.22], "dtype": ["f32", *TYPES], "scale": BOTH}, {"data": "uniform"},
     lambda v: v["dropout"] and v["len_q"] > 1024),
    ("pytorch", "mem_efficient_attention_attn_mask_vs_math_ref_grads", TorchRule(grad_q=1.5, grad_k=18, grad_bias=12), {
        "len_q": [4, 8, 64, 128, 256, 312, 512, 1024, 2048],
        "len_kv": [4, 8, 64, 65, 128, 256, 408, 512, 1024, 2048],
        "dim": [8, 16, 32, 64, 72, 96, 128], "dropout": [0, 0.22], "dtype": ["f32", *TYPES], "scale": BOTH},
     {"data": "uniform", "mask": True}, lambda v: v["dropout"] and v["len_q"] > 1024),
    ("pytorch", "causal_variants", TorchRule(), {
        "lengths": [(128, 128), (128, 256), (256, 128), (23, 56)], "dim": [16, 32, 15], "causal": ["bottom", "top"]},
     {"data": "uniform"},
     lambda v: v["dim"] != {(128, 128): 16, (23, 56): 15}.get(v["lengths"], 32)
     or v["causal"] == "bottom" and v["lengths"][0] > v["lengths"][1]),
    ("pytorch", "flash_attention_vs_math_ref_grads_nestedtensor", TorchRule(grad_q=4), {
        "len_q": [32, 256], "len_kv": [32, 256], "dim": [8, 64], "dropout": [0, 0.1], "scale": BOTH},
     {"data": "uniform", "layout": "varlen"}, None),
]

# (suite, what, why)
NOT_EXPRESSED = [
    ("flash-attention 2", "kvcache and varlen_causal with pages", "no page tables yet"),
    ("flash-attention 2", "kvcache with new keys", "no append yet"),
    ("flash-attention 2", "kvcache with rotary embedding", "none yet"),
    ("flash-attention 2", "kvcache with leftpad or a batch index", "none yet"),
    ("flash-attention 2", "probabilities as an output", "never stored; one-hot values give them"),
    ("flash-attention 2", "gradients of q, k, v interleaved as one tensor", "outputs may not overlap"),
    ("flash-attention 3", "e4m3, descales, V transposed", "no fp8 yet"),
    ("flash-attention 3", "qv", "none yet"),
    ("flash-attention 3", "kvcache with pages, new keys, rotary embedding, leftpad, a batch index", "none yet"),
    ("flash-attention 3", "combine", "splits are combined inside a run"),
    ("pytorch", "nested tensors with broadcast heads or sequences", "cu_lens name each sequence once"),
    ("pytorch", "fused_attention_vs_math_ref_grads_cudagraph", "the same numbers; graphs are tested in tests/gpu"),
]


def meetings(values, lists):
    """Every two (list, place in it) that meet in this case."""
    places = [(name, lists[name].index(values[name])) for name in lists]
    return {(a, b) for i, a in enumerate(places) for b in places[i + 1 :]} | {(a, a) for a in places}


def cover(test, lists, skip):
    """Cases in which every two values of two lists meet, unless skipped: greedy, the same each time."""
    draw, names = random.Random(test), list(lists)
    open_pairs = [
        ((a, i), (b, j))
        for x, a in enumerate(names)
        for b in names[x:]
        for i in range(len(lists[a]))
        for j in range(len(lists[b]))
        if a != b or i == j
    ]
    met, chosen = set(), []
    for first, second in open_pairs:
        if (first, second) in met:
            continue
        best, most = None, 0
        for attempt in range(200):
            if attempt >= 12 and best:
                break
            values = {name: draw.choice(lists[name]) for name in names}
            for name, place in (first, second):
                values[name] = lists[name][place]
            if skip and skip(values):
                continue
            new = len(meetings(values, lists) - met)
            if new > most:
                best, most = values, new
        if best:
            chosen.append(best)
            met |= meetings(best, lists)
    return chosen


def all_cases():
    for suite, test, rule, lists, fixed, skip in TESTS:
        for number, values in enumerate(cover(test, lists, skip)):
            yield Case(suite, test, rule, {**values, **fixed}, number)
