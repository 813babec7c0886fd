"""PyTorch's scaled_dot_product_attention on the CPU as a peer of `attn bench`, which starts this as a child process.

Requests on stdin, one per line, each answered by one line on stdout:
    setup PASS DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V CAUSAL THREADS   -> ok FORM | error WHY
    run CALLS                                                                          -> seconds a call
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
PASS is fwd, decode (a forward), bwd (torch.autograd.grad of a forward that ran before) or fwdbwd (both); forwards alone
run without autograd. FORM is what PyTorch chose: flash, math, ...
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


def setup(what, dtype, *numbers):
    """The function to time, and its form."""
    batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v, causal, threads = map(int, numbers)
    torch.set_num_threads(threads)
    training = what in ("bwd", "fwdbwd")

    def tensor(heads, rows, dim):
        return torch.randn(batch, heads, rows, dim).to(DTYPES[dtype])

    q, k, v = tensor(heads_q, len_q, dim_qk), tensor(heads_kv, len_kv, dim_qk), tensor(heads_kv, len_kv, dim_v)
    options = {"is_causal": bool(causal)}
    if heads_q != heads_kv:
        options["enable_gqa"] = True

    def forward():
        with torch.set_grad_enabled(training):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    if training:
        for t in (q, k, v):
            t.requires_grad_()
        grad_o = tensor(heads_q, len_q, dim_v)
    backend = SDPBackend(torch._fused_sdp_choice(q, k, v, **options))
    form = FORMS.get(backend, backend.name.lower())
    if what == "bwd":
        o = forward()
        return lambda: torch.autograd.grad(o, (q, k, v), grad_o, retain_graph=True), form
    if what == "fwdbwd":
        return lambda: torch.autograd.grad(forward(), (q, k, v), grad_o), form
    return forward, form


def serve():
    attend = None
    for line in sys.stdin:
        request, *words = line.split()
        try:
            if request == "setup":
                attend = None  # the old tensors go before the new ones come
                attend, form = setup(*words)
                attend()
                answer = "ok " + form
            else:
                calls = int(words[0])
                start = time.perf_counter()
                for _ in range(calls):
                    attend()
                answer = repr((time.perf_counter() - start) / calls)
        except Exception as error:
            answer = "error " + " ".join(str(error).split())
        print(answer, flush=True)


print("ready", torch.__version__, flush=True)
serve()
