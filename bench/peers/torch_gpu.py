"""Attention of PyTorch on the first GPU as a peer of `attn bench --device cuda`, which starts this as a child process.

Requests on stdin, one per line, each answered by one line on stdout:
    setup BACKEND PASS DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V MASK LEFT FA3 KEYS [LEN ...]
          [NAME=VALUE ...]
                -> ok | error WHY
    run CALLS   -> seconds, the median of the calls
    memory 1    -> the most bytes that a call allocates, its inputs and results among them
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
BACKEND is cudnn, fa2, efficient or math (scaled_dot_product_attention held to it), flex (compiled FlexAttention), fa3
(flash_attn_interface from the folder FA3; -: the package fa3-fwd, forward alone), fa4 (flash_attn.cute, the package
flash-attn-4) or flashinfer (its package, decode alone). DTYPE may be e4m3 with fa3: scales of 1 per sequence and head,
and O in bf16. PASS is fwd, decode (a forward over a cache of keys, as a CUDA graph), bwd (from a forward that is not
timed) or fwdbwd. MASK is full, causal, window (causal, LEFT keys before the row's own), documents (causal within runs
of LEN keys) or sink, which no backend has. KEYS is apart, packed (sequences of LEN rows and keys back to back, each by
itself), pages:SIZE (LEN keys of each sequence, or LEN_KV, in pages of SIZE in order) or cascade:SIZE (besides LEN_KV
keys in common, in pages before theirs; flashinfer alone). NAME=VALUE is a feature beside the mask: full=1 (what MASK
names is not causal), window=LEFT, chunk=KEYS, prefix=KEYS, bits=SHARE:BATCH:HEADS (a bit per pair, so many of them
set), blocks=SIZE:SHARE (in each row of blocks so many), softcap=CAP, alibi=1, dropout=P,
bias=DTYPE:BATCH:HEADS:ROWS:KEYS:GRAD (extents; GRAD 1: its gradient, too), places=1 (of rows and keys) and
block-scales=1, which no backend has. Tensors are contiguous, random normal, in the order of axes that suits the backend. A call is timed
between two events, L2 overwritten before.
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

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Problem:
    """What a setup asks for."""

    def __init__(self, words):
        self.backend, self.what, dtype = words[:3]
        self.dtype = DTYPES[dtype]
        self.batch, self.heads_q, self.heads_kv, self.len_q, self.len_kv, self.dim_qk, self.dim_v = map(int, words[3:10])
        self.mask, self.left, self.fa3, keys = words[10], int(words[11]), words[12], words[13]
        self.lens = [int(word) for word in words[14:] if "=" not in word]
        self.features = dict(word.split("=") for word in words[14:] if "=" in word)
        self.causal = self.mask != "full" and "full" not in self.features
        self.packed, self.cascade = keys == "packed", keys.startswith("cascade:")
        self.page = int(keys.partition(":")[2] or 0)

    @property
    def one_byte(self):
        return self.dtype == DTYPES["e4m3"]

    def normal(self, shape):
        return torch.randn(shape, device="cuda", dtype=DTYPES["bf16"] if self.one_byte else self.dtype).to(self.dtype)

    def tensors(self, rows_first, rows, keys, batch):
        """q, k, v and the gradient of the output."""
        shapes = [(self.heads_q, rows, self.dim_qk), (self.heads_kv, keys, self.dim_qk), (self.heads_kv, keys, self.dim_v),
                  (self.heads_q, rows, self.dim_v)]
        made = []
        for heads, length, dim in shapes:
            shape = (batch, length, heads, dim) if rows_first else (batch, heads, length, dim)
            made.append(self.normal(shape))
        for tensor in made[:3]:
            tensor.requires_grad_(self.what in ("bwd", "fwdbwd"))
        return made

    def number(self, name):
        return float(self.features.get(name, 0))

    def only(self, *known):
        """Fails where there is a feature besides these."""
        others = set(self.features) - {"full", *known}
        if others:
            raise ValueError("%s has no %s" % (self.backend, ", ".join(sorted(others))))

    def bias(self):
        """The tensor, or None; whether its gradient is asked for."""
        if "bias" not in self.features:
            return None, False
        dtype, *extent, grad = self.features["bias"].split(":")
        wanted = grad == "1" and self.what in ("bwd", "fwdbwd")
        tensor = torch.randn(tuple(map(int, extent)), device="cuda", dtype=DTYPES[dtype])
        return tensor.requires_grad_(wanted), wanted

    def bits(self):
        """True where a pair is visible, or None."""
        if "bits" not in self.features:
            return None
        share, batch, heads = self.features["bits"].split(":")
        return torch.rand(int(batch), int(heads), self.len_q, self.len_kv, device="cuda") < float(share)

    def blocks(self):
        """A size, and which blocks are visible, in each row as many; or None."""
        if "blocks" not in self.features:
            return None
        size, share = self.features["blocks"].split(":")
        rows, columns = -(-self.len_q // int(size)), -(-self.len_kv // int(size))
        kept = torch.rand(rows, columns, device="cuda").argsort(1)[:, :max(1, round(float(share) * columns))]
        return int(size), torch.zeros(rows, columns, dtype=torch.bool, device="cuda").scatter_(1, kept, True)

    def pages(self, size):
        """The sequences' lengths, in a cascade before them what they share, how many pages of this size each has, and
        q, k and v, in pages back to back."""
        lens = [self.len_kv] * self.cascade + (self.lens or [self.len_kv] * self.batch)
        lens = torch.tensor(lens, dtype=torch.int32)
        counts = (lens + size - 1) // size
        shapes = [(self.batch, self.len_q, self.heads_q, self.dim_qk)]
        shapes += [(int(counts.sum()), size, self.heads_kv, dim) for dim in (self.dim_qk, self.dim_v)]
        return lens, counts, [self.normal(shape) for shape in shapes]


def compiled_flex():
    """Compiled anew for each problem: after a few of them one function would run as it is, unfused."""
    import torch._dynamo
    import torch._functorch.config
    torch._functorch.config.donated_buffer = False  # a graph is run backward more than once
    torch._dynamo.reset()
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=False)


def flex_rule(p):
    """What says whether a row sees a key, or None, and the batch and heads that differ in it. The causal mask, which a
    window narrows and a prefix widens, and the others, each of which hides more."""
    from torch.nn.attention.flex_attention import and_masks, or_masks
    left, prefix, chunk = (int(p.number(name)) for name in ("window", "prefix", "chunk"))
    conditions = [lambda b, h, i, j: i >= j] if p.causal else []
    if p.mask == "window" or "window" in p.features:
        left = p.left if p.mask == "window" else left
        conditions.append(lambda b, h, i, j: i - j <= left)
    if prefix:
        conditions = [or_masks(and_masks(*conditions), lambda b, h, i, j: j < prefix)]
    if chunk:
        conditions.append(lambda b, h, i, j: i // chunk == j // chunk)
    if p.mask == "documents":
        number = torch.repeat_interleave(torch.arange(len(p.lens), device="cuda"), torch.tensor(p.lens, device="cuda"))
        conditions.append(lambda b, h, i, j: number[i] == number[j])
    bits, blocks, planes = p.bits(), p.blocks(), (None, None)
    if bits is not None:
        many, own = bits.shape[0] > 1, bits.shape[1] > 1
        planes = p.batch if many else None, p.heads_q if own else None
        conditions.append(lambda b, h, i, j: bits[b if many else 0, h if own else 0, i, j])
    if blocks:
        block, listed = blocks
        conditions.append(lambda b, h, i, j: listed[i // block, j // block])
    if len(conditions) == 1:
        return conditions[0], planes
    return and_masks(*conditions) if conditions else None, planes


def flex_score(p, bias):
    """How a score is changed, or None."""
    cap, changes = p.number("softcap"), []
    if cap:
        changes.append(lambda s, b, h, i, j: cap * torch.tanh(s / cap))
    if "alibi" in p.features:
        slopes = torch.exp2(-8 * torch.arange(1, p.heads_q + 1, device="cuda") / p.heads_q)
        changes.append(lambda s, b, h, i, j: s - slopes[h] * torch.abs(i - j))
    if bias is not None:
        many, own, rows = (extent > 1 for extent in bias.shape[:3])
        changes.append(lambda s, b, h, i, j: s + bias[b if many else 0, h if own else 0, i if rows else 0, j])

    def change(s, b, h, i, j):
        for one in changes:
            s = one(s, b, h, i, j)
        return s

    return change if changes else None


def flex(p):
    from torch.nn.attention.flex_attention import create_block_mask
    p.only("window", "chunk", "prefix", "bits", "blocks", "softcap", "alibi", "bias")
    if p.packed or p.page or (p.what == "decode" and p.mask != "full"):
        raise ValueError("packed sequences, pages and decode with a mask are not measured with flex")
    (bias, wanted), (rule, planes) = p.bias(), flex_rule(p)
    blocks = create_block_mask(rule, *planes, p.len_q, p.len_kv) if rule else None
    score, attention = flex_score(p, bias), compiled_flex()
    q, k, v, grad = p.tensors(False, p.len_q, p.len_kv, p.batch)
    gqa = p.heads_q != p.heads_kv
    inputs = (q, k, v, bias) if wanted else (q, k, v)
    return lambda: attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=gqa), inputs, grad


def sdpa(p):
    if p.packed or p.page or p.mask not in ("full", "causal") or (p.mask == "causal" and p.len_q != p.len_kv):
        raise ValueError("scaled_dot_product_attention has no such mask, nor pages")
    p.only("bits", "bias", "dropout")
    (mask, wanted), bits = p.bias(), p.bits()
    if mask is not None and bits is not None:
        mask = mask.masked_fill(~bits, float("-inf"))
    elif bits is not None:
        mask = bits
    if mask is not None and p.causal:  # which goes without a mask beside it
        rows = torch.ones(p.len_q, p.len_kv, dtype=torch.bool, device="cuda").tril()
        mask = mask & rows if mask.dtype == torch.bool else mask.detach().masked_fill(~rows, float("-inf"))
        mask.requires_grad_(wanted)
    if mask is not None and mask.dtype != torch.bool and mask.dtype != p.dtype:
        raise ValueError("scaled_dot_product_attention takes a bias of q's dtype")
    q, k, v, grad = p.tensors(False, p.len_q, p.len_kv, p.batch)
    gqa, dropped = p.heads_q != p.heads_kv, p.number("dropout")
    causal = p.causal and mask is None

    def attend():
        with sdpa_kernel(BACKENDS[p.backend]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropped,
                                                                    is_causal=causal, enable_gqa=gqa)

    return attend, (q, k, v, mask) if wanted else (q, k, v), grad


def fa3(p):
    if p.fa3 == "-":
        import fa3_fwd_interface as module
    else:
        if p.fa3 not in sys.path:
            sys.path.insert(0, p.fa3)
        import flash_attn_interface as module
    return (flash_cache if p.what == "decode" else flash_attention)(p, module)


def flash_scales(p):
    """What FlashAttention-3 asks for beside q, k and v of e4m3."""
    one = torch.ones(len(p.lens) if p.packed else p.batch, p.heads_kv, device="cuda")
    return dict.fromkeys(("q_descale", "k_descale", "v_descale"), one) if p.one_byte else {}


def fa4(p):
    if p.what == "decode":
        raise ValueError("FlashAttention-4 does not split keys on Hopper")
    from flash_attn.cute import interface
    return flash_attention(p, interface)


def flash_attention(p, module):
    """The module has FlashAttention-3's functions."""
    p.only("softcap")
    if p.mask == "documents":
        raise ValueError("FlashAttention has no documents")
    how = {"causal": p.mask != "full"} | flash_scales(p)
    if p.mask == "window":
        how["window_size"] = (p.left, 0)
    if "softcap" in p.features:
        how["softcap"] = p.number("softcap")
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
    how = {"causal": p.mask != "full"} | flash_scales(p)
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
    if p.one_byte and p.backend != "fa3":
        raise ValueError("%s takes no e4m3" % p.backend)
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
