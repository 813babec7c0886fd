"""Attention of PyTorch on the first GPU as a peer of `attn bench --device cuda`, which starts this as a child process.

Requests on stdin, one per line, each answered by one line on stdout:
    setup BACKEND PASS DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V MASK LEFT FA3 KEYS [LEN ...]
                -> ok | error WHY
    run CALLS   -> seconds, the median of the calls
    memory 1    -> the most bytes that a call allocates, its inputs and results among them
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
BACKEND is cudnn, fa2 or math (scaled_dot_product_attention held to it), flex (compiled FlexAttention), fa3
(flash_attn_interface from the folder FA3), fa4 (flash_attn.cute, the package flash-attn-4) or flashinfer (its package,
decode alone). PASS is fwd, decode (a forward over a cache of keys, as a CUDA graph), bwd (from a forward that is not
timed) or fwdbwd. MASK is full, causal, window (causal, LEFT keys before the row's own), documents (causal within runs
of LEN keys) or sink, which no backend has. KEYS is apart, packed (sequences of LEN rows and keys back to back, each by
itself), pages:SIZE (LEN keys of each sequence, or LEN_KV, in pages of SIZE in order) or cascade:SIZE (besides LEN_KV
keys in common, in pages before theirs; flashinfer alone). Tensors are contiguous, random normal, in the order of axes
that suits the backend. A call is timed between two events, L2 overwritten before.
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
        self.mask, self.left, self.fa3, keys = words[10], int(words[11]), words[12], words[13]
        self.lens = list(map(int, words[14:]))
        self.packed, self.cascade = keys == "packed", keys.startswith("cascade:")
        self.page = int(keys.partition(":")[2] or 0)

    def tensors(self, rows_first, rows, keys, batch):
        """q, k, v and the gradient of the output."""
        shapes = [(self.heads_q, rows, self.dim_qk), (self.heads_kv, keys, self.dim_qk), (self.heads_kv, keys, self.dim_v),
                  (self.heads_q, rows, self.dim_v)]
        made = []
        for heads, length, dim in shapes:
            shape = (batch, length, heads, dim) if rows_first else (batch, heads, length, dim)
            made.append(torch.randn(shape, device="cuda", dtype=self.dtype))
        for tensor in made[:3]:
            tensor.requires_grad_(self.what in ("bwd", "fwdbwd"))
        return made

    def pages(self, size):
        """The sequences' lengths, in a cascade before them what they share, how many pages of this size each has, and
        q, k and v, in pages back to back."""
        lens = [self.len_kv] * self.cascade + (self.lens or [self.len_kv] * self.batch)
        lens = torch.tensor(lens, dtype=torch.int32)
        counts = (lens + size - 1) // size
        shapes = [(self.batch, self.len_q, self.heads_q, self.dim_qk)]
        shapes += [(int(counts.sum()), size, self.heads_kv, dim) for dim in (self.dim_qk, self.dim_v)]
        return lens, counts, [torch.randn(shape, device="cuda", dtype=self.dtype) for shape in shapes]


@functools.cache
def compiled_flex():
    import torch._functorch.config
    torch._functorch.config.donated_buffer = False  # a graph is run backward more than once
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=False)


def flex(p):
    from torch.nn.attention.flex_attention import create_block_mask
    if p.packed or p.page or (p.what == "decode" and p.mask != "full"):
        raise ValueError("packed sequences, pages and decode with a mask are not measured with flex")
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
    if p.packed or p.page or p.mask not in ("full", "causal") or (p.mask == "causal" and p.len_q != p.len_kv):
        raise ValueError("scaled_dot_product_attention has no such mask, nor pages")
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
    return (flash_cache if p.what == "decode" else flash_attention)(p, flash_attn_interface)


def fa4(p):
    if p.what == "decode":
        raise ValueError("FlashAttention-4 does not split keys on Hopper")
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


def flash_cache(p, module):
    """FlashAttention-3 over a cache; where lengths differ, what it prepares of them is in the call."""
    how = {"causal": p.mask != "full"}
    if p.mask == "window":
        how["window_size"] = (p.left, 0)
    if p.page:
        lens, counts, (q, k, v) = p.pages(p.page)
        table = torch.zeros(p.batch, int(counts.max()), dtype=torch.int32)
        first = 0
        for row, count in zip(table, counts.tolist()):
            row[:count] = torch.arange(first, first + count)
            first += count
        how |= {"cache_seqlens": lens.cuda(), "page_table": table.cuda()}
    else:
        q, k, v, _ = p.tensors(True, p.len_q, p.len_kv, p.batch)
    return lambda: module.flash_attn_with_kvcache(q, k, v, **how), (q, k, v), None


def flashinfer(p):
    """The fastest of its forms, each planned before, for these very lengths."""
    import flashinfer
    if p.what != "decode" or p.mask not in ("full", "causal") or p.dim_qk != p.dim_v:
        raise ValueError("FlashInfer is measured in decode, without a window")
    forms, tensors = (flashinfer_cascade if p.cascade else flashinfer_decode)(p, flashinfer)
    flush, times, why = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), [], None
    for number, form in enumerate(forms):
        try:
            call = form()
            times.append((run(graph_of(call), flush, 50), number, call))
        except Exception as error:  # a kernel may lack a number of heads, or have but one row
            why = error
    if not times:
        raise why
    return min(times)[2], tensors, None


def flashinfer_decode(p, module):
    """Functions that plan and return a call, and the tensors: on tensor cores and without; one sequence also as such.
    Keys that lie apart are in pages of 16."""
    size = p.page or 16
    lens, counts, (q, k, v) = p.pages(size)
    keys = [t.flatten(0, 1)[:p.len_kv] for t in (k, v)]

    def batch(tensor_cores):
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(flashinfer_workspace(), use_tensor_cores=tensor_cores)
        wrapper.plan(*flashinfer_pages(lens, counts, 0, size), p.heads_q, p.heads_kv, p.dim_qk, size,
                     q_data_type=p.dtype, kv_data_type=p.dtype, q_len_per_req=p.len_q)
        return lambda: wrapper.run(q.flatten(0, 1), (k, v))

    def single(tensor_cores):
        return lambda: module.single_decode_with_kv_cache(q[0, 0], *keys, use_tensor_cores=tensor_cores)

    kinds = [batch, single] if p.batch == p.len_q == 1 and not p.page else [batch]
    return [functools.partial(kind, tensor_cores) for kind in kinds for tensor_cores in (True, False)], (q, k, v)


def flashinfer_cascade(p, module):
    """The same of its cascade: what MultiLevelCascadeAttentionWrapper does, by the kernel that it takes (FA3), and by
    FA2's, which splits keys."""
    lens, counts, (q, k, v) = p.pages(p.page)
    starts = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda")

    def level(backend, starts, which, first):
        wrapper = module.BatchPrefillWithPagedKVCacheWrapper(flashinfer_workspace(), backend=backend)
        wrapper.plan(starts, *flashinfer_pages(lens[which], counts[which], first, p.page), p.heads_q, p.heads_kv,
                     p.dim_qk, p.page, q_data_type=p.dtype, kv_data_type=p.dtype)
        return lambda: wrapper.run(q[:, 0], (k, v), return_lse=True)

    def levels(backend):
        shared = level(backend, starts[[0, -1]], slice(1), 0)
        own = level(backend, starts, slice(1, None), int(counts[0]))

        def call():
            out, lse = own()
            module.merge_state_in_place(out, lse, *shared())
            return out

        return call

    return [functools.partial(levels, backend) for backend in ("auto", "fa2")], (q, k, v)


def flashinfer_workspace():
    return torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")


def flashinfer_pages(lens, counts, first, size):
    """Of sequences whose pages lie back to back from the first on: where each one's begin, pages, slots of its last."""
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)])
    ids = torch.arange(first, first + int(counts.sum()), dtype=torch.int32)
    return starts.cuda(), ids.cuda(), ((lens - 1) % size + 1).cuda()


def graph_of(call):
    """Replays what the call does, and keeps its tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda keep=call: graph.replay()


def setup(words):
    """The call to be timed."""
    p = Problem(words)
    if p.mask == "sink":
        raise ValueError("sinks are not measured")
    known = {"flex": flex, "fa3": fa3, "fa4": fa4, "flashinfer": flashinfer}
    attend, inputs, grad = known.get(p.backend, sdpa)(p)
    if p.what == "fwd":
        return attend
    if p.what == "decode":
        return graph_of(attend)
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
