"""Two tasks of the Long-Range Arena: an encoder with standard attention, with libattn's, and with libattn's over blocks.
Accuracy, time to a fixed number of steps, memory, and attention's share (arXiv 2011.04006)."""
from __future__ import annotations

import concurrent.futures
import functools
import gc
import multiprocessing
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Tuple

import torch
import torch.nn.functional as F
from torch import nn

import libattn.torch
from libattn import Blocks

from ..lra import listops, pathfinder
from . import measure
from .length import BLOCK
from .measure import OURS, Run


class Task(NamedTuple):
    name: str
    draw: Callable[..., Tuple[Any, Any, Any]]  # (seed=, count=) -> tokens, lens, labels
    length: int
    vocabulary: int
    classes: int
    batch: int
    steps: int


def tasks(run: Run) -> Dict[str, Task]:
    if run.quick:
        words = functools.partial(listops.batch, length=128, shortest=20, longest=128)
        return {"ListOps": Task("ListOps", words, 128, listops.VOCABULARY, 10, 4, 4),
                "Pathfinder": Task("Pathfinder", functools.partial(pathfinder.batch, side=16), 256, 256, 2, 4, 4)}
    steps, batch = (1500, 32) if run.on_gpu else (10, 2)
    made = {"ListOps 2K": Task("ListOps 2K", functools.partial(listops.batch, length=2048), 2048, listops.VOCABULARY,
                               10, batch, steps)}
    for side, name, few in ((32, "1K", steps), (64, "4K", steps // 3), (128, "16K", 10)):
        if side < 128 or run.on_gpu:
            made[f"Pathfinder {name}"] = Task(f"Pathfinder {name}", functools.partial(pathfinder.batch, side=side),
                                              side * side, 256, 2, max(batch * 32 * 32 // side ** 2, 1), max(few, 5))
    return made


def drawn(task: Task, seeds: Iterable[int], side_by_side: bool) -> List[Tuple[Any, Any, Any]]:
    """A batch for each seed. side_by_side: by a process for each processor, so that a GPU need not wait for minutes;
    new ones, since a copy of a process that uses a GPU cannot."""
    draw = functools.partial(task.draw, count=task.batch)
    if not side_by_side:
        return [draw(seed) for seed in seeds]
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(draw, seeds, chunksize=8))


# ---- the model ---------------------------------------------------------------------------------


def window_and_global(length: int, device: torch.device) -> Blocks:
    """Each block of rows sees its neighbours and the first block: (BLOCK, BLOCK), a band."""
    count = -(-length // BLOCK)
    table = torch.zeros(1, 1, count, count, dtype=torch.int32)
    counts = torch.zeros(1, 1, count, dtype=torch.int32)
    for i in range(count):
        kept = sorted({0, *range(max(i - 1, 0), min(i + 2, count))}) if i else list(range(count))
        table[0, 0, i, :len(kept)] = torch.tensor(kept, dtype=torch.int32)
        counts[0, 0, i] = len(kept)
    return Blocks(BLOCK, BLOCK, counts.to(device), table.to(device))


def standard(q: Any, k: Any, v: Any, lens: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.arange(k.shape[2], device=k.device) >= lens[:, None, None, None]
    return (scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ v).transpose(1, 2)


def attends(task: Task, device: torch.device) -> Dict[str, Callable[..., Any]]:
    listed = window_and_global(task.length, device)
    return {"standard": standard,
            OURS: lambda q, k, v, lens: libattn.torch.attention(q, k, v, lens_kv=lens),
            "libattn blocks": lambda q, k, v, lens: libattn.torch.attention(q, k, v, lens_kv=lens, blocks=listed)}


class Encoder(nn.Module):
    """Pre-norm layers; the class is read from the mean of the rows that are there."""

    def __init__(self, task: Task, attend: Callable[..., Any], width: int, heads: int, layers: int):
        super().__init__()
        self.attend, self.heads = attend, heads
        self.words, self.places = nn.Embedding(task.vocabulary, width), nn.Embedding(task.length, width)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
            "mlp": nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))}) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.classes)

    def forward(self, tokens: Any, lens: Any) -> Any:
        x = self.words(tokens) + self.places.weight[:tokens.shape[1]]
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm"](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
            x = x + layer["out"](self.attend(q, k, v, lens).flatten(2))
            x = x + layer["mlp"](x)
        used = (torch.arange(tokens.shape[1], device=tokens.device) < lens[:, None])[..., None]
        return self.head((self.norm(x) * used).sum(1) / lens[:, None])


def attention_alone(run: Run, task: Task, attend: Any, width: int, heads: int, layers: int,
                    lens: Any) -> Callable[[], Any]:
    """Attention of all layers of a step, forward and backward, on tensors of the same sizes."""
    torch.manual_seed(2)
    tensors = [torch.randn(task.batch, task.length, heads, width // heads, device=run.device, dtype=run.dtype,
                           requires_grad=True) for _ in range(3)]
    grad = torch.randn_like(tensors[0])

    def call() -> None:
        for _ in range(layers):
            torch.autograd.grad(attend(*tensors, lens), tensors, grad)

    return call


def one_task(run: Run, task: Task) -> None:
    width, heads, layers = (32, 2, 2) if run.quick or not run.on_gpu else (512, 8, 6)
    half = run.dtype != torch.float32

    def up(given: Any) -> Any:
        return [torch.as_tensor(x).to(run.device) for x in given]

    models: Dict[str, Any] = {}
    steps: Dict[str, Callable[[], Any]] = {}
    more: Dict[str, Dict[str, Any]] = {}
    seeds = [*range(task.steps), *range(1 << 20, (1 << 20) + (2 if run.quick else 10))]
    batches = [up(batch) for batch in drawn(task, seeds, run.on_gpu and not run.quick)]
    data, unseen = batches[:task.steps], batches[task.steps:]
    run.say(f"{task.name}: {len(data)} batches drawn")
    seconds: Dict[str, float] = {}
    for name, attend in attends(task, run.device).items():
        torch.manual_seed(0)
        model = Encoder(task, attend, width, heads, layers).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-4 if run.on_gpu else 1e-3)

        def step(i: int = 0, model: Any = model, optimizer: Any = optimizer) -> Any:
            tokens, lens, labels = data[i]
            with torch.autocast(run.device.type, run.dtype, enabled=half):
                loss = F.cross_entropy(model(tokens, lens), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        if not measure.fits(run, step):
            run.row(task.name, name, batch=task.batch, length=task.length, note="memory does not suffice")
            continue
        models[name], steps[name] = model, step
        more[name] = {"peak_mib": measure.peak_mib(run, step)}
    measure.compare(run, f"{task.name}, a step", steps, task.batch * task.length, more=more, batch=task.batch,
                    length=task.length)
    lens = data[0][1]
    alone = {name: attention_alone(run, task, attend, width, heads, layers, lens)
             for name, attend in attends(task, run.device).items() if name in steps}
    for call in alone.values():
        call()
    measure.compare(run, f"{task.name}, attention of a step", alone, rounds=min(run.rounds, 10), batch=task.batch,
                    length=task.length)
    if "16K" in task.name:  # time only
        return
    for name, step in steps.items():
        def train(step: Any = step) -> None:
            for i in range(task.steps):
                step(i)

        seconds[name] = measure.turns(run, {name: train}, 1)[name][0] / 1e3
        right = count = 0
        with torch.no_grad(), torch.autocast(run.device.type, run.dtype, enabled=half):
            for tokens, lens, labels in unseen:
                right += int((models[name](tokens, lens).argmax(-1) == labels).sum())
                count += len(labels)
        run.row(task.name, name, figure="accuracy", value=right / count, batch=task.batch, length=task.length,
                note=f"after {task.steps} steps in {seconds[name]:.1f} s; of {count} examples")


def main(run: Run) -> None:
    for name, task in tasks(run).items():
        if not run.wants(name):
            continue
        one_task(run, task)
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()
