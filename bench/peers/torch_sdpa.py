"""PyTorch's scaled_dot_product_attention on the CPU as a peer of `attn bench`, which starts this as a child process.

Requests on stdin, one a line, each answered by one line on stdout:
    setup DTYPE BATCH HEADS_Q HEADS_KV LEN_Q LEN_KV DIM_QK DIM_V CAUSAL THREADS   -> ok | error WHY
    run CALLS                                                                     -> seconds a call
The first line out is `ready VERSION` or `error WHY`. Ends with its stdin.
Tensors are contiguous (batch, head, row, dim), random normal; forward only, without autograd.
"""

import sys
import time

try:
    import torch
except ImportError as error:
    print("error", error, flush=True)
    sys.exit(1)

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def setup(dtype, *numbers):
    batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v, causal, threads = map(int, numbers)
    torch.set_num_threads(threads)

    def tensor(heads, rows, dim):
        return torch.randn(batch, heads, rows, dim).to(DTYPES[dtype])

    q, k, v = tensor(heads_q, len_q, dim_qk), tensor(heads_kv, len_kv, dim_qk), tensor(heads_kv, len_kv, dim_v)
    options = {"is_causal": bool(causal)}
    if heads_q != heads_kv:
        options["enable_gqa"] = True
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


@torch.no_grad()
def serve():
    attend = None
    for line in sys.stdin:
        request, *words = line.split()
        try:
            if request == "setup":
                attend = None  # the old tensors go before the new ones come
                attend = setup(*words)
                attend()
                answer = "ok"
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
