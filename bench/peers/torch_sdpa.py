"""PyTorch's scaled_dot_product_attention on the CPU as a peer of `attn bench`, which starts this as a child process.

Requests on stdin, one per line, each answered by one line on stdout:
    setup PASS DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V CAUSAL THREADS [NAME=VALUE ...]
                -> ok FORM | error WHY
    run CALLS   -> seconds a call
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
PASS is fwd, decode (a forward), bwd (torch.autograd.grad of a forward that ran before) or fwdbwd (both); forwards alone
run without autograd. FORM is what PyTorch chose: flash, math, ...
NAME=VALUE is a feature: dropout=P, or what becomes an attn_mask. That is of pairs, true where one is visible:
window=LEFT, chunk=KEYS, prefix=KEYS, documents=LEN (back to back), first=KEY, position=OF_ROW_0,
blocks=SIZE:SHARE and bits=SHARE:BATCH:HEADS (so many of them). Or of numbers: alibi=1 and
bias=DTYPE:BATCH:HEADS:ROWS:KEYS:GRAD (extents; GRAD 1: its gradient, too), -inf where a pair is not visible.
full=1 and places=1 change nothing. clock=processor: counts only the seconds in which the thread runs.
Tensors are contiguous (batch, head, row, dim), random normal.
"""

import sys
import time

try:
    import torch
    from torch.nn.attention import SDPBackend
except ImportError as error:
    print("error", error, flush=True)
    sys.exit(1)

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FORMS = {SDPBackend.MATH: "math", SDPBackend.FLASH_ATTENTION: "flash"}


def pairs_of(features, len_q, len_kv, causal):
    """Which pairs are visible; None: all, or all that a causal mask shows."""
    number = {name: int(value) for name, value in features.items()
              if name in ("window", "chunk", "prefix", "documents", "first", "position")}
    if not number and not {"bits", "blocks"} & set(features):
        return None
    row, key = torch.arange(len_q)[:, None] + number.get("position", 0), torch.arange(len_kv)[None]
    pairs = key <= row if causal else torch.ones(len_q, len_kv, dtype=torch.bool)
    if "window" in number:
        pairs = pairs & (row - key <= number["window"])
    if "prefix" in number:
        pairs = pairs | (key < number["prefix"])
    if "chunk" in number:
        pairs = pairs & (key // number["chunk"] == row // number["chunk"])
    if "documents" in number:
        pairs = pairs & (key // number["documents"] == row // number["documents"])
    if "first" in number:
        pairs = pairs & (key >= number["first"])
    if "blocks" in features:
        size, share = features["blocks"].split(":")
        rows, columns = -(-len_q // int(size)), -(-len_kv // int(size))
        kept = torch.rand(rows, columns).argsort(1)[:, :max(1, round(float(share) * columns))]
        listed = torch.zeros(rows, columns, dtype=torch.bool).scatter_(1, kept, True)
        pairs = pairs & listed.repeat_interleave(int(size), 0).repeat_interleave(int(size), 1)[:len_q, :len_kv]
    if "bits" in features:
        share, *planes = features["bits"].split(":")
        pairs = pairs & (torch.rand(*map(int, planes), len_q, len_kv) < float(share))
    return pairs


def mask_of(features, heads, len_q, len_kv, causal, dtype, training):
    """attn_mask, or None, and whether its gradient is wanted."""
    pairs, mask, wanted = pairs_of(features, len_q, len_kv, causal), None, False
    if "bias" in features:
        kind, *extent, grad = features["bias"].split(":")
        wanted = grad == "1" and training
        mask = torch.randn(*map(int, extent)).to(DTYPES[kind]).to(DTYPES[dtype])  # another dtype is not taken
    if "alibi" in features:
        distance = (torch.arange(len_q)[:, None] - torch.arange(len_kv)[None]).abs()
        mask = -distance * torch.exp2(-8 * torch.arange(1, heads + 1) / heads)[:, None, None]
        mask = mask[None].to(DTYPES[dtype])
    if mask is None:
        return pairs, False
    if pairs is None and causal:
        pairs = torch.ones(len_q, len_kv, dtype=torch.bool).tril()
    if pairs is not None:
        mask = mask.masked_fill(~pairs, float("-inf"))
    return mask.requires_grad_() if wanted else mask, wanted


def setup(what, dtype, *words):
    """The function to time, and its form."""
    numbers, features = words[:9], dict(word.split("=") for word in words[9:])
    batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v, causal, threads = map(int, numbers)
    torch.set_num_threads(threads)
    training = what in ("bwd", "fwdbwd")

    def tensor(heads, rows, dim):
        return torch.randn(batch, heads, rows, dim).to(DTYPES[dtype])

    q, k, v = tensor(heads_q, len_q, dim_qk), tensor(heads_kv, len_kv, dim_qk), tensor(heads_kv, len_kv, dim_v)
    mask, wanted = mask_of(features, heads_q, len_q, len_kv, causal, dtype, training)
    options = {"is_causal": bool(causal) and mask is None, "dropout_p": float(features.get("dropout", 0))}
    if mask is not None:
        options["attn_mask"] = mask
    if heads_q != heads_kv:
        options["enable_gqa"] = True

    def forward():
        with torch.set_grad_enabled(training):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    if training:
        for t in (q, k, v):
            t.requires_grad_()
        grad_o = tensor(heads_q, len_q, dim_v)
    inputs = (q, k, v, mask) if wanted else (q, k, v)
    backend = SDPBackend(torch._fused_sdp_choice(q, k, v, **options))
    form = FORMS.get(backend, backend.name.lower())
    if what == "bwd":
        o = forward()
        return lambda: torch.autograd.grad(o, inputs, grad_o, retain_graph=True), form
    if what == "fwdbwd":
        return lambda: torch.autograd.grad(forward(), inputs, grad_o), form
    return forward, form


def serve():
    attend = clock = None
    for line in sys.stdin:
        request, *words = line.split()
        try:
            if request == "setup":
                attend = None  # the old tensors go before the new ones come
                attend, form = setup(*words)
                clock = time.thread_time if "clock=processor" in words else time.perf_counter
                attend()
                answer = "ok " + form
            else:
                calls = int(words[0])
                start = clock()
                for _ in range(calls):
                    attend()
                answer = repr((clock() - start) / calls)
        except Exception as error:
            answer = "error " + " ".join(str(error).split())
        print(answer, flush=True)


print("ready", torch.__version__, flush=True)
serve()
