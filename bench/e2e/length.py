"""Length: forward and backward of one attention, time and memory, against the number of rows."""
from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F

import libattn
import libattn.torch
from libattn import Blocks

from . import measure
from .measure import OURS, Run

BLOCK, WINDOW = 128, 256
SHARES = (0.05, 0.125, 0.25, 0.5, 0.75, 1.0)


def blocks_of(length: int, share: float, device: torch.device) -> Blocks:
    """Blocks of 128 x 128: the diagonal, and others at random until `share` of each row's are kept, the same number in
    each."""
    count = -(-length // BLOCK)
    kept = max(round(share * count), 1)
    draw = torch.rand(count, count, generator=torch.Generator().manual_seed(4))
    draw.fill_diagonal_(2)
    lists = draw.topk(kept, dim=1).indices.sort(1).values.int()
    table = torch.zeros(1, 1, count, count, dtype=torch.int32)
    table[0, 0, :, :kept] = lists
    counts = torch.full((1, 1, count), kept, dtype=torch.int32)
    return Blocks(BLOCK, BLOCK, counts.to(device), table.to(device))


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """With the whole matrix of scores, (batch, row, head, dim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)


def step_of(attend: Callable[..., torch.Tensor], tensors: Any, grad: torch.Tensor, backend: Optional[str] = None):
    def step() -> None:
        with measure.backend(backend):
            torch.autograd.grad(attend(*tensors), tensors, grad)

    return step


CAUSAL = "sdpa causal"


def subjects_of(run: Run, length: int, heads: int, shares: Any) -> Tuple[Dict[str, Callable[[], None]], str]:
    """The subjects, and SDPA's backend that is fastest with a causal mask."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, length, heads, 64, device=run.device, dtype=run.dtype, requires_grad=True)
               for _ in range(3)]
    grad = torch.randn_like(tensors[0])
    attend = libattn.torch.attention
    made = {OURS: step_of(attend, tensors, grad), "standard": step_of(standard, tensors, grad)}
    for name in ("flash", "cudnn", "efficient"):
        made[f"sdpa {name}"] = step_of(sdpa, tensors, grad, name)
    made["libattn causal"] = step_of(lambda *x: attend(*x, causal=True), tensors, grad)
    best = measure.best_backend(run, step_of(lambda *x: sdpa(*x, causal=True), tensors, grad), ("math",))
    made[CAUSAL] = step_of(lambda *x: sdpa(*x, causal=True), tensors, grad, best)
    made[f"libattn window {WINDOW}"] = step_of(
        lambda *x: attend(*x, causal=True, window=(WINDOW - 1, 0)), tensors, grad)
    for share in shares:
        if share * length >= BLOCK:
            listed = blocks_of(length, share, run.device)
            made[f"libattn blocks {100 * share:g} %"] = step_of(
                lambda *x, listed=listed: attend(*x, blocks=listed), tensors, grad)
    return made, best


def main(run: Run) -> None:
    lengths = [128, 256, 512] if run.quick else [128 << i for i in range(10 if run.on_gpu else 6)]
    heads = 16 if run.on_gpu else 1
    line = (lengths[-1],) if run.quick else (16384, 65536) if run.on_gpu else (lengths[-1],)
    limit = 16384 if run.on_gpu else 4096  # rows up to which all of the scores are stored
    budget = 40e3 if run.on_gpu else 25e3  # ms for a length
    for length in lengths:
        if not run.wants(f"{length} rows"):
            continue
        subjects, more = {}, {}
        spent = 0.0
        steps, best = subjects_of(run, length, heads, SHARES if length in line else (0.125, 0.25))
        for name, step in steps.items():
            if name == "standard" and length > limit:
                run.row(f"{length} rows", name, batch=1, length=length, note=f"not run above {limit} rows")
                continue
            try:
                if not measure.fits(run, step):
                    run.row(f"{length} rows", name, batch=1, length=length, note="memory does not suffice")
                    continue
            except RuntimeError as problem:
                if not measure.NO_KERNEL.search(str(problem)):
                    raise
                run.row(f"{length} rows", name, batch=1, length=length, note="PyTorch has no such kernel here")
                continue
            more[name] = {"peak_mib": measure.peak_mib(run, step), "backend": best if name == CAUSAL else ""}
            subjects[name] = step
            spent += measure.turns(run, {name: step}, 1)[name][0]
        rounds = min(run.rounds, max(measure.LEAST, int(budget / max(spent, 1e-3))))
        measure.compare(run, f"{length} rows", subjects, rounds=rounds, more=more, against={CAUSAL: "libattn causal"},
                        batch=1, length=length)
    if run.wants("memory of one head"):
        one_head(run, lengths)


def one_head(run: Run, lengths: Any) -> None:
    """Memory of forward and backward of one head: standard attention's and ours."""
    torch.manual_seed(0)
    for length in [n for n in lengths if n >= 1024 or run.quick]:
        tensors = [torch.randn(1, length, 1, 64, device=run.device, dtype=run.dtype, requires_grad=True)
                   for _ in range(3)]
        for name, attend in ((OURS, libattn.torch.attention), ("standard", standard)):
            step = step_of(attend, tensors, torch.ones_like(tensors[0]))
            if name == "standard" and length > 16384 or not measure.fits(run, step):
                continue
            run.row("memory of one head", name, batch=1, length=length, figure="MiB",
                    value=measure.peak_mib(run, step))
