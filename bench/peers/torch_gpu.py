"""Attention of PyTorch on the first GPU as a peer of `attn bench --device cuda`, which starts this as a child process.

Requests on stdin, one per line, each answered by one line on stdout:
    setup BACKEND PASS DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V MASK LEFT FA3 packed|apart [LEN ...]
                -> ok | error WHY
    run CALLS   -> seconds, the median of the calls
    memory 1    -> the most bytes that a call allocates, its inputs and results among them
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
BACKEND is cudnn, fa2 or math (scaled_dot_product_attention held to it), flex (compiled FlexAttention), fa3
(flash_attn_interface from the folder FA3) or fa4 (flash_attn.cute, the package flash-attn-4). PASS is fwd, bwd (from a forward that is not timed) or fwdbwd. MASK is full,
causal, window (causal, LEFT keys before the row's own) or documents (causal within runs of LEN keys). packed: sequences
of LEN rows and keys back to back, each by itself. Tensors are contiguous, random normal, in the order of axes that
suits the backend. A call is timed between two events, L2 overwritten before.
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


class Problem:
    """What a setup asks for."""

    def __init__(self, words):
        self.backend, self.what, dtype = words[:3]
        self.dtype = DTYPES[dtype]
        self.batch, self.heads_q, self.heads_kv, self.len_q, self.len_kv, self.dim_qk, self.dim_v = map(int, words[3:10])
        self.mask, self.left, self.fa3, packed = words[10], int(words[11]), words[12], words[13]
        self.lens = list(map(int, words[14:]))
        self.packed = packed == "packed"

    def tensors(self, rows_first, rows, keys, batch):
        """q, k, v and the gradient of the output."""
        shapes = [(self.heads_q, rows, self.dim_qk), (self.heads_kv, keys, self.dim_qk), (self.heads_kv, keys, self.dim_v),
                  (self.heads_q, rows, self.dim_v)]
        made = []
        for heads, length, dim in shapes:
            shape = (batch, length, heads, dim) if rows_first else (batch, heads, length, dim)
            made.append(torch.randn(shape, device="cuda", dtype=self.dtype))
        for tensor in made[:3]:
            tensor.requires_grad_(self.what != "fwd")
        return made


@functools.cache
def compiled_flex():
    import torch._functorch.config
    torch._functorch.config.donated_buffer = False  # a graph is run backward more than once
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=False)


def flex(p):
    from torch.nn.attention.flex_attention import create_block_mask
    if p.packed:
        raise ValueError("packed sequences are not measured with flex")
    rule = None
    if p.mask == "causal":
        rule = lambda b, h, i, j: i >= j
    elif p.mask == "window":
        rule = lambda b, h, i, j: (i >= j) & (i - j <= p.left)
    elif p.mask == "documents":
        number = torch.repeat_interleave(torch.arange(len(p.lens), device="cuda"), torch.tensor(p.lens, device="cuda"))
        rule = lambda b, h, i, j: (i >= j) & (number[i] == number[j])
    blocks = create_block_mask(rule, None, None, p.len_q, p.len_kv) if rule else None
    q, k, v, grad = p.tensors(False, p.len_q, p.len_kv, p.batch)
    gqa = p.heads_q != p.heads_kv
    return lambda: compiled_flex()(q, k, v, block_mask=blocks, enable_gqa=gqa), (q, k, v), grad


def sdpa(p):
    if p.packed or p.mask not in ("full", "causal"):
        raise ValueError("scaled_dot_product_attention has no such mask")
    q, k, v, grad = p.tensors(False, p.len_q, p.len_kv, p.batch)
    gqa = p.heads_q != p.heads_kv

    def attend():
        with sdpa_kernel(BACKENDS[p.backend]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.mask == "causal",
                                                                    enable_gqa=gqa)

    return attend, (q, k, v), grad


def fa3(p):
    if p.fa3 not in sys.path:
        sys.path.insert(0, p.fa3)
    import flash_attn_interface
    return flash_attention(p, flash_attn_interface)


def fa4(p):
    from flash_attn.cute import interface
    return flash_attention(p, interface)


def flash_attention(p, module):
    """The module has FlashAttention-3's functions."""
    if p.mask == "documents":
        raise ValueError("FlashAttention has no documents")
    how = {"causal": p.mask != "full"}
    if p.mask == "window":
        how["window_size"] = (p.left, 0)
    first = lambda out: out[0] if isinstance(out, tuple) else out
    if not p.packed:
        q, k, v, grad = p.tensors(True, p.len_q, p.len_kv, p.batch)
        return lambda: first(module.flash_attn_func(q, k, v, **how)), (q, k, v), grad
    starts = torch.tensor([0] + p.lens, device="cuda").cumsum(0, dtype=torch.int32)
    q, k, v, grad = (t[0].detach().requires_grad_(t.requires_grad) for t in p.tensors(True, sum(p.lens), sum(p.lens), 1))
    how |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": max(p.lens), "max_seqlen_k": max(p.lens)}
    return lambda: first(module.flash_attn_varlen_func(q, k, v, **how)), (q, k, v), grad


def setup(words):
    """The call to be timed."""
    p = Problem(words)
    attend, inputs, grad = {"flex": flex, "fa3": fa3, "fa4": fa4}.get(p.backend, sdpa)(p)
    if p.what == "fwd":
        return attend
    if p.what == "fwdbwd":
        return lambda: torch.autograd.grad(attend(), inputs, grad)
    out = attend()
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def run(call, flush, calls):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for begin, end in events:
        flush.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(1e-3 * begin.elapsed_time(end) for begin, end in events)[calls // 2]


def memory(call, beside):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - beside


def serve():
    call = None
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for line in sys.stdin:
        request, *words = line.split()
        try:
            if request == "setup":
                call = None  # the old tensors go before the new ones come
                torch.cuda.empty_cache()
                call = setup(words)
                call()
                torch.cuda.synchronize()
                answer = "ok"
            elif request == "memory":
                answer = repr(memory(call, flush.numel()))
            else:
                answer = repr(run(call, flush, int(words[0])))
        except Exception as error:
            answer = "error " + " ".join(str(error).split())[:300]
        print(answer, flush=True)


print("ready", torch.__version__, flush=True)
serve()
