"""What a call from Python costs above the C library's own call, and what `import libattn` costs beyond NumPy's.

    pip install . torch
    python bench/python/overhead.py [--seconds 2]

One row, one key, one head of 8, one thread: the C call takes a microsecond or two. It is called through ctypes, whose
share (a call of attn_version) is taken off. A row is the median in microseconds, alternating with the C call.
"""
import argparse
import subprocess
import sys
import time

import numpy as np

import libattn
from libattn import _c

try:
    import torch

    import libattn.torch
except ImportError:
    torch = None

SHAPE = (1, 1, 1, 8)


def alternating(calls, seconds):
    """The median time of each call, in microseconds."""
    times = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for call, taken in zip(calls, times):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
    return [1e6 * float(np.median(taken)) for taken in times]


def c_call(direction):
    """attn_run of that direction on arrays of its own, with nothing left to prepare."""
    names = ["q", "k", "v", "o"] + (["grad_o", "grad_q", "grad_k", "grad_v"] if direction else [])
    arrays = {name: np.ones(SHAPE, np.float32) for name in names}
    arrays["lse"] = np.zeros(SHAPE[:3], np.float32)
    plan = libattn.plan(*(arrays[name] for name in "qkv"), threads=1, backward=bool(direction))
    workspace = np.empty(max(plan.workspace_bytes, 1), np.uint8)
    args = _c.Args()
    for name, array in arrays.items():
        setattr(args, name, array.ctypes.data)
    run, handle, place = _c.run, plan._handle, workspace.ctypes.data

    def call(held=(arrays, workspace, plan)):
        run(handle, args, _c.ARGS_SIZE, place, None)

    _c.check(run(handle, args, _c.ARGS_SIZE, place, None))
    return call


def importing(code):
    """Seconds that a new interpreter takes for it after importing NumPy, the least of ten."""
    program = f"import time, numpy; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
               for _ in range(10))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    forward, backward = c_call(_c.FORWARD), c_call(_c.BACKWARD)
    nothing = _c.version
    q, k, v = (np.ones(SHAPE, np.float32) for _ in range(3))
    out = np.empty(SHAPE, np.float32)
    rows = [("NumPy", lambda: libattn.attention(q, k, v, threads=1), 1, 0),
            ("NumPy, out=", lambda: libattn.attention(q, k, v, threads=1, out=out), 1, 0)]
    if torch is not None:
        torch.set_num_threads(1)
        tq, tk, tv = (torch.ones(SHAPE) for _ in range(3))
        gq, gk, gv = (torch.ones(SHAPE, requires_grad=True) for _ in range(3))
        grad = torch.ones(SHAPE)

        def step():
            libattn.torch.attention(gq, gk, gv, threads=1).backward(grad)

        sdpa = torch.nn.functional.scaled_dot_product_attention

        def sdpa_step():
            sdpa(gq, gk, gv).backward(grad)

        rows += [("torch, libattn.attention", lambda: libattn.attention(tq, tk, tv, threads=1), 1, 0),
                 ("torch, operator", lambda: libattn.torch.attention(tq, tk, tv, threads=1), 1, 0),
                 ("torch, operator, recorded", lambda: libattn.torch.attention(gq, gk, gv, threads=1), 1, 0),
                 ("torch, operator and backward", step, 1, 1),
                 ("torch, its own SDPA", lambda: sdpa(tq, tk, tv), 0, 0),
                 ("torch, its own SDPA, backward", sdpa_step, 0, 0)]
    for _, call, *_ in rows:
        call()
    print(f"{'microseconds':<30} {'call':>8} {'in C':>8} {'above':>8}")
    for name, call, forwards, backwards in rows:
        taken, in_forward, in_backward, empty = alternating([call, forward, backward, nothing], options.seconds)
        in_c = forwards * (in_forward - empty) + backwards * (in_backward - empty)
        print(f"{name:<30} {taken:8.1f} {in_c:8.1f} {taken - in_c:8.1f}")
    print(f"import libattn: {importing('import libattn'):.4f} s beyond NumPy's")


if __name__ == "__main__":
    main()
