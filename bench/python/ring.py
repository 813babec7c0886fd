#!/usr/bin/env python3
"""Attention over ranks on the GPUs of one machine, against one GPU: bf16, causal, zigzag.

    bench/python/ring.py [--tokens N,...] [--pieces N,...] [--transport nccl,peer] [--heads N --heads-kv N --dim N]
                         [--csv FILE] [PART ...]

Parts, in this order unless some are named:
    check    errors of O, dQ, dK and dV over ranks, over those of one GPU, against float64
    speed    TFLOP/s of forward and of forward + backward, of all GPUs, and as a share of one GPU's times their number
    hidden   the same work without transfers, transfers alone, the predicted time, and by a trace of the GPU what share
             of the time of transfers kernels of attention run too
    million  1,048,576 tokens: forward, then forward + backward

A row of CSV per number: part, tokens, pass, how (transport and pieces), GPUs, what, value, unit. Every number is the
slowest rank's."""
import argparse
import csv
import ctypes
import json
import os
import socket
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import libattn.torch as la
from libattn import _c, _parallel, _torch_parallel

PARTS = ("check", "speed", "hidden", "million")
MILLION = 1 << 20


def flops(args, tokens, backward):
    """Of a causal problem; the backward's beside the forward's."""
    return 2.0 * tokens * (tokens + 1) * args.heads * args.dim * (3.5 if backward else 1)


def qkv(args, tokens, seed=0):
    made = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, tokens, heads, args.dim, generator=made, device="cuda", dtype=torch.bfloat16)
            for heads in (args.heads, args.heads_kv, args.heads_kv)]


class Bench:
    """A rank's measuring."""

    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        self.file = open(args.csv, "w", newline="") if args.csv and not rank else None
        self.rows = csv.writer(self.file or sys.stdout)
        if not rank:
            self.rows.writerow(("part", "tokens", "pass", "how", "GPUs", "what", "value", "unit"))

    def say(self, part, tokens, kind, how, what, value, unit):
        if self.rank:
            return
        self.rows.writerow((part, tokens, kind, how, self.args.gpus, what, f"{value:.5g}", unit))
        if self.file:
            self.file.flush()
            print(f"{part:8} {tokens:8} {kind:8} {how:6} {what:28} {value:10.4g} {unit}", flush=True)

    def seconds(self, call, together=True):
        """Of one call: the least of some turns, of the slowest rank; of a call of half a second or more: one turn."""
        call()
        torch.cuda.synchronize()
        begin = time.monotonic()
        call()
        torch.cuda.synchronize()
        once = torch.tensor(time.monotonic() - begin, device="cuda")
        if together:
            dist.all_reduce(once, dist.ReduceOp.MAX)
        if once.item() > 0.5:
            return once.item()
        count = max(1, min(20, int(0.15 / once.item())))
        best = float("inf")
        for _ in range(3):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if together:
                dist.barrier()
            first.record()
            for _ in range(count):
                call()
            last.record()
            torch.cuda.synchronize()
            took = torch.tensor(first.elapsed_time(last) / 1e3 / count, device="cuda")
            if together:
                dist.all_reduce(took, dist.ReduceOp.MAX)
            best = min(best, took.item())
        return best

    def alone(self, call):
        """Of rank 0 alone, told to all."""
        took = torch.zeros((), device="cuda", dtype=torch.float64)
        if not self.rank:
            took += self.seconds(call, together=False)
        dist.broadcast(took, 0)
        return took.item()


def forward(attend, tensors):
    def call():
        with torch.no_grad():
            attend(*tensors)
    return call


def both(attend, tensors, grad):
    leaves = [x.detach().requires_grad_() for x in tensors]

    def call():
        torch.autograd.grad(attend(*leaves), leaves, grad)
    return call


class Way:
    """A transport and a number of pieces."""

    def __init__(self, transport, pieces):
        self.transport, self.pieces = transport, pieces

    def __format__(self, form):
        return format(f"{self.transport} {self.pieces}", form)

    __str__ = __repr__ = lambda self: format(self)

    def __call__(self, *x):
        return la.context_parallel_attention(*x, causal=True, pieces=self.pieces, transport=self.transport)


def ways(args):
    return [Way(transport, pieces) for transport in args.transport for pieces in args.pieces]


def one_gpu(*x):
    return la.attention(*x, causal=True)


def part_check(bench, args):
    tokens, shard = 16384, la.context_parallel_shard
    tensors, grad = qkv(args, tokens), qkv(args, tokens, 1)[0]  # the same on all ranks

    def run(attend, inputs, grad):
        leaves = [x.detach().requires_grad_() for x in inputs]
        o = attend(*leaves)
        return [o.detach(), *torch.autograd.grad(o, leaves, grad)]

    one = run(one_gpu, tensors, grad)
    group = args.heads // args.heads_kv
    exact = [torch.zeros((), device="cuda", dtype=torch.float64)] * 4
    for way in ways(args):
        found = run(way, [shard(x).contiguous() for x in tensors], shard(grad).contiguous())
        again = run(way, [shard(x).contiguous() for x in tensors], shard(grad).contiguous())
        whole = [la.context_parallel_unshard(x) for x in found]
        if len(exact[0].shape) == 0:  # one KV head with its query heads, in float64
            q, k, v = (x[0, :, :n].double() for x, n in zip(tensors, (group, 1, 1)))
            go, scale = grad[0, :, :group].double(), args.dim ** -0.5
            o, dq = torch.empty_like(q), torch.empty_like(q)
            at = torch.arange(tokens, device="cuda")
            dk, dv = torch.zeros_like(k[:, 0]), torch.zeros_like(v[:, 0])
            for h in range(group):
                for i in range(0, tokens, 2048):
                    rows, keys = slice(i, i + 2048), slice(0, i + 2048)
                    s = scale * q[rows, h] @ k[keys, 0].T
                    p = s.masked_fill_(at[keys] > at[rows, None], float("-inf")).softmax(-1)
                    o[rows, h] = p @ v[keys, 0]
                    dp = go[rows, h] @ v[keys, 0].T
                    ds = p * (dp - (go[rows, h] * o[rows, h]).sum(-1, keepdim=True))
                    dq[rows, h] = scale * ds @ k[keys, 0]
                    dk[keys] += scale * ds.T @ q[rows, h]
                    dv[keys] += p.T @ go[rows, h]
            exact = [o, dq, dk[:, None], dv[:, None]]
        for name, ours, of, right, first, second in zip(("O", "dQ", "dK", "dV"), whole, one, exact, found, again):
            heads = right.shape[1]
            error, own = ((x[0, :, :heads].double() - right).square().mean().sqrt().item() for x in (ours, of))
            bench.say("check", tokens, "both", way, f"{name}: error / one GPU's", error / own, f"(own {own:.3g})")
            difference = (ours.double() - of.double()).abs().max().item()
            bench.say("check", tokens, "both", way, f"{name}: greatest difference", difference, "of all heads")
            if name in ("O", "dK", "dV"):
                bench.say("check", tokens, "both", way, f"{name}: other values the 2nd time",
                          (first != second).sum().item(), "")


def part_speed(bench, args):
    for tokens in args.tokens:
        tensors = qkv(args, tokens)
        grad = torch.randn_like(tensors[0])
        *mine, my_grad = (la.context_parallel_shard(x).contiguous() for x in (*tensors, grad))
        for kind in ("forward", "both"):
            backward = kind == "both"
            work = flops(args, tokens, backward)
            took = bench.alone(both(one_gpu, tensors, grad) if backward else forward(one_gpu, tensors))
            bench.say("speed", tokens, kind, "-", "one GPU", work / took / 1e12, "TFLOP/s")
            for way in ways(args):
                if tokens > 1 << 17 and way.pieces != args.pieces[0]:
                    continue
                all_of = bench.seconds(both(way, mine, my_grad) if backward else forward(way, mine))
                bench.say("speed", tokens, kind, way, "all GPUs", work / all_of / 1e12, "TFLOP/s")
                bench.say("speed", tokens, kind, way, "share", took / all_of / args.gpus, "of one GPU's x GPUs")
        del tensors, grad, mine, my_grad


class Plain:
    """A plan of libattn_parallel and its run, by C alone; transport None: with an engine that moves nothing."""

    def __init__(self, args, tokens, pieces, backward, rank, transport=None):
        engine = self.nothing(args, rank)
        if transport:
            group = dist.group.WORLD
            engine = _torch_parallel.ranks_of(group).on_device(group, torch.device("cuda", rank), transport)
        desc = _c.Desc(dtype=_c.DTYPES["bfloat16"], device=_c.CUDA, direction=int(backward), flags=_c.CAUSAL, batch=1,
                       heads_q=args.heads, heads_kv=args.heads_kv, len_q=tokens, len_kv=tokens, dim_qk=args.dim)
        self.plan = _parallel.Plan(desc, _parallel.How(layout=_parallel.LAYOUTS["zigzag"], pieces=pieces), engine)
        half = torch.bfloat16  # with numbers everywhere: zeros, say, take a GPU less power
        self.place = torch.randn(self.plan.workspace_bytes // 2 + 1, device="cuda", dtype=half)
        rows = tokens // args.gpus

        def make(heads):
            return torch.randn(rows, heads, args.dim, device="cuda", dtype=half)

        q, k, v, o, grad_o = (make(n) for n in (args.heads, args.heads_kv, args.heads_kv, args.heads, args.heads))
        grads = {f"grad_{name}": torch.empty_like(x) for name, x in zip("qkv", (q, k, v))}
        self.tensors = {"q": q, "k": k, "v": v, "o": o, "grad_o": grad_o, **grads,
                        "lse": torch.full((args.heads, rows), 9.0, device="cuda")}
        self.arguments = _c.Args(**{name: x.data_ptr() for name, x in self.tensors.items()})

    @staticmethod
    def nothing(args, rank):
        types = dict(_parallel.Engine._fields_)
        functions = {name: types[name](lambda *_: 0) for name in ("exchange", "wait", "all_gather", "reduce_scatter")}

        def tell(_, send, receive, size):
            for i in range(args.gpus):
                ctypes.memmove(receive + i * size, send, size)
            return 0

        return _parallel.Engine(rank=rank, ranks=args.gpus, device=_c.CUDA, tell=types["tell"](tell), **functions)

    def __call__(self):
        _c.check(_parallel.library().run(self.plan._handle, self.arguments, _c.ARGS_SIZE, self.place.data_ptr(),
                                         torch.cuda.current_stream().cuda_stream))


def joined(spans):
    """Of (begin, end): those that overlap as one, in order."""
    found = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([begin, end])
    return found


def overlap(transfers, works):
    """How long the transfers take, and how long of that one of the works runs too."""
    total = sum(end - begin for begin, end in joined(transfers))
    both = sum(max(0, min(end, e) - max(begin, b)) for begin, end in joined(transfers) for b, e in joined(works))
    return total, both


def traced(call, calls):
    """(transfers, works): (begin, end) on this GPU, in microseconds. Transfers: NCCL's kernels, and copies to others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name) as text:
            events = json.load(text)["traceEvents"]
    transfers, works = [], []
    for event in events:
        name, span = event.get("name", ""), (event.get("ts", 0), event.get("ts", 0) + event.get("dur", 0))
        if "nccl" in name.lower() and event.get("cat") == "kernel" or "PtoP" in name:
            transfers.append(span)
        elif event.get("cat") == "kernel" and "attn" in name:
            works.append(span)
    return transfers, works


def part_hidden(bench, args):
    for tokens in args.tokens:
        size = tokens // args.gpus * args.heads_kv * args.dim * 2 * 2
        send, receive = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        to, source = (bench.rank + 1) % args.gpus, (bench.rank - 1) % args.gpus

        def transfer():
            both_ways = [dist.P2POp(dist.isend, send, to), dist.P2POp(dist.irecv, receive, source)]
            for work in dist.batch_isend_irecv(both_ways):
                work.wait()

        moved = bench.seconds(transfer)
        bench.say("hidden", tokens, "forward", "-", "keys alone", moved * 1e3, "ms")
        bench.say("hidden", tokens, "forward", "-", "keys alone", size / moved / 1e9, "GB/s")
        for backward in (False, True):
            kind = "backward" if backward else "forward"
            for way in ways(args):
                alone = bench.seconds(Plain(args, tokens, way.pieces, backward, bench.rank))
                call = Plain(args, tokens, way.pieces, backward, bench.rank, way.transport)
                whole = bench.seconds(call)
                bench.say("hidden", tokens, kind, way, "without transfers", alone * 1e3, "ms")
                bench.say("hidden", tokens, kind, way, "with transfers", whole * 1e3, "ms")
                bench.say("hidden", tokens, kind, way, "predicted", call.plan.info.seconds * 1e3, "ms")
                calls = 1 if whole > 0.5 else 5
                total, both = overlap(*traced(call, calls))
                if total:
                    bench.say("hidden", tokens, kind, way, "transfers, by trace", total / 1e3 / calls, "ms")
                    bench.say("hidden", tokens, kind, way, "hidden, by trace", both / total, "of transfers")
                dist.barrier()


def part_million(bench, args):
    way = Way(args.transport[0], 0)
    short = qkv(args, 1 << 14, bench.rank)
    both(way, short, torch.randn_like(short[0]))()  # what is made once: kernels, engines
    mine = qkv(args, MILLION // args.gpus, bench.rank)
    for kind in ("forward", "both"):
        call = both(way, mine, torch.randn_like(mine[0])) if kind == "both" else forward(way, mine)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.monotonic()
        call()
        torch.cuda.synchronize()
        took = torch.tensor(time.monotonic() - begin, device="cuda")
        dist.all_reduce(took, dist.ReduceOp.MAX)
        bench.say("million", MILLION, kind, way, "time", took.item(), "s")
        done = flops(args, MILLION, kind == "both")
        bench.say("million", MILLION, kind, way, "all GPUs", done / took.item() / 1e12, "TFLOP/s")
        bench.say("million", MILLION, kind, way, "memory", torch.cuda.max_memory_allocated() / 1e9, "GB a GPU")


def work(rank, args, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.gpus,
                            timeout=timedelta(seconds=120))
    bench = Bench(args, rank)
    for part in args.part or PARTS:
        globals()[f"part_{part}"](bench, args)
        torch.cuda.empty_cache()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to wait for


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART")
    parser.add_argument("--tokens", type=numbers, default=[1 << 14, 1 << 16, 1 << 18])
    parser.add_argument("--pieces", type=numbers, default=[1, 2, 4])
    parser.add_argument("--transport", type=lambda text: text.split(","), default=["nccl"])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--csv")
    args = parser.parse_args()
    for part in args.part:
        if part not in PARTS:
            parser.error(f"PART is {part!r}; it takes {', '.join(PARTS)}")
    if args.gpus < 2:
        sys.exit(f"ring.py: {args.gpus} GPU here; it takes 2 at least")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (args, port), args.gpus)


if __name__ == "__main__":
    main()
