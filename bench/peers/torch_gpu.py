"""Attention of PyTorch on the first GPU as a peer of `attn bench --device cuda`, which starts this as a child process.

Requests on stdin, one a line, each answered by one line on stdout:
    setup BACKEND DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V MASK   -> ok | error WHY
    run CALLS                                                                   -> seconds, the median of the calls
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
BACKEND is cudnn, fa2 or math (scaled_dot_product_attention held to it) or flex (compiled FlexAttention); MASK is full,
causal or window:LEFT (causal, LEFT keys before the row's own). Tensors are contiguous (batch, head, row, dim), random
normal; forward only. A call is timed between two events, L2 overwritten before.
"""

import functools
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
except ImportError as error:
    print("error", error, flush=True)
    sys.exit(1)

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


@functools.cache
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=False)


def flex(q, k, v, mask, gqa):
    from torch.nn.attention.flex_attention import create_block_mask
    rules = {"full": None, "causal": lambda b, h, i, j: i >= j}
    if mask.startswith("window:"):
        left = int(mask.split(":")[1])
        rule = lambda b, h, i, j: (i >= j) & (i - j <= left)
    else:
        rule = rules[mask]
    blocks = create_block_mask(rule, None, None, q.shape[2], k.shape[2]) if rule else None
    return lambda: compiled_flex()(q, k, v, block_mask=blocks, enable_gqa=gqa)


def sdpa(q, k, v, backend, mask, gqa):
    if mask.startswith("window:"):
        raise ValueError("scaled_dot_product_attention has no window")

    def attend():
        with sdpa_kernel(BACKENDS[backend]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal", enable_gqa=gqa)

    return attend


def setup(backend, dtype, *words):
    batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v = map(int, words[:-1])

    def tensor(heads, rows, dim):
        return torch.randn(batch, heads, rows, dim, device="cuda", dtype=DTYPES[dtype])

    q, k, v = tensor(heads_q, len_q, dim_qk), tensor(heads_kv, len_kv, dim_qk), tensor(heads_kv, len_kv, dim_v)
    gqa = heads_q != heads_kv
    if backend == "flex":
        return flex(q, k, v, words[-1], gqa)
    return sdpa(q, k, v, backend, words[-1], gqa)


def run(attend, flush, calls):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for begin, end in events:
        flush.zero_()
        begin.record()
        attend()
        end.record()
    torch.cuda.synchronize()
    return sorted(1e-3 * begin.elapsed_time(end) for begin, end in events)[calls // 2]


@torch.no_grad()
def serve():
    attend = None
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for line in sys.stdin:
        request, *words = line.split()
        try:
            if request == "setup":
                attend = None  # the old tensors go before the new ones come
                attend = setup(*words)
                attend()
                torch.cuda.synchronize()
                answer = "ok"
            else:
                answer = repr(run(attend, flush, int(words[0])))
        except Exception as error:
            answer = "error " + " ".join(str(error).split())[:300]
        print(answer, flush=True)


print("ready", torch.__version__, flush=True)
serve()
