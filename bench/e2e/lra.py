"""Two tasks of the Long-Range Arena: an encoder with libattn's attention, with libattn's over blocks, and with standard
attention. Time of a step, its memory, attention's share, and accuracy (arXiv 2011.04006). An encoder without attention
shows which accuracy the words alone give."""
from __future__ import annotations

import concurrent.futures
import functools
import gc
import multiprocessing
import os
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


WITHOUT = "without attention"
WARM = 200  # steps in which the rate rises


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
        steps = run.steps or 4
        return {"ListOps": Task("ListOps", words, 128, listops.VOCABULARY, 10, 4, steps),
                "Pathfinder": Task("Pathfinder", functools.partial(pathfinder.batch, side=16), 256, 256, 2, 4, steps)}
    steps, batch = (run.steps or 1500, 32) if run.on_gpu else (run.steps or 10, 2)
    made = {"ListOps 2K": Task("ListOps 2K", functools.partial(listops.batch, length=2048), 2048, listops.VOCABULARY,
                               10, batch, steps)}
    for side, name, few in ((32, "1K", steps), (64, "4K", steps // 3), (128, "16K", 10)):
        if side < 128 or run.on_gpu:
            made[f"Pathfinder {name}"] = Task(f"Pathfinder {name}", functools.partial(pathfinder.batch, side=side),
                                              side * side, 256, 2, max(batch * 32 * 32 // side ** 2, 1), max(few, 5))
    return made


def drawn(task: Task, seeds: Iterable[int], side_by_side: bool) -> List[Tuple[Any, Any, Any]]:
    """A batch for each seed. side_by_side: by a process for each processor, 32 at most, so that a GPU need not wait for
    minutes; new ones, since a copy of a process that uses a GPU cannot."""
    draw = functools.partial(task.draw, count=task.batch)
    if not side_by_side:
        return [draw(seed) for seed in seeds]
    with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, 32),
                                                multiprocessing.get_context("spawn")) as pool:
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
    """What is compared; the slowest is the last."""
    listed = window_and_global(task.length, device)
    return {OURS: lambda q, k, v, lens: libattn.torch.attention(q, k, v, lens_kv=lens),
            "libattn blocks": lambda q, k, v, lens: libattn.torch.attention(q, k, v, lens_kv=lens, blocks=listed),
            "standard": standard}


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


def sizes(run: Run) -> Tuple[int, int, int]:
    """(width, heads, layers) of an encoder."""
    return (32, 2, 2) if run.quick or not run.on_gpu else (512, 8, 6)


def rate_of(run: Run) -> float:
    return run.rate or (3e-4 if run.on_gpu else 1e-3)


def learner(run: Run, task: Task, attend: Any, data: List[Any]) -> Tuple[Any, Callable[..., Any]]:
    """(model, step): a new model, the same whatever its attention, and a function that trains it on a batch and returns
    the loss. No step waits for the GPU."""
    torch.manual_seed(0)
    model = Encoder(task, attend, *sizes(run)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), rate_of(run))
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min((done + 1) / WARM, 1.0))

    def step(i: int = 0) -> Any:
        tokens, lens, labels = data[i]
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            loss = F.cross_entropy(model(tokens, lens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        return loss.detach()

    return model, step


# ---- time --------------------------------------------------------------------------------------


def attention_alone(run: Run, task: Task, attend: Any, lens: Any) -> Callable[[], Any]:
    """Attention of all layers of a step, forward and backward, on tensors of the same sizes."""
    width, heads, layers = sizes(run)
    torch.manual_seed(2)
    tensors = [torch.randn(task.batch, task.length, heads, width // heads, device=run.device, dtype=run.dtype,
                           requires_grad=True) for _ in range(3)]
    grad = torch.randn_like(tensors[0])

    def call() -> None:
        for _ in range(layers):
            torch.autograd.grad(attend(*tensors, lens), tensors, grad)

    return call


def times(run: Run, task: Task, data: List[Any]) -> None:
    case, alone, of = f"{task.name}, a step", f"{task.name}, attention of a step", {
        "batch": task.batch, "length": task.length}
    if run.wants(case):
        steps: Dict[str, Callable[[], Any]] = {}
        more: Dict[str, Dict[str, Any]] = {}
        for name, attend in attends(task, run.device).items():
            _, step = learner(run, task, attend, data)
            if not measure.fits(run, step):
                run.row(case, name, **of, note="memory does not suffice")
                continue
            steps[name], more[name] = step, {"peak_mib": measure.peak_mib(run, step)}
        measure.compare(run, case, steps, task.batch * task.length, more=more, **of)
    if run.wants(alone):
        calls = {name: attention_alone(run, task, attend, data[0][1])
                 for name, attend in attends(task, run.device).items()}
        for name, call in list(calls.items()):
            if not measure.fits(run, call):
                run.row(alone, name, **of, note="memory does not suffice")
                del calls[name]
        measure.compare(run, alone, calls, rounds=min(run.rounds, 10), **of)


# ---- accuracy ----------------------------------------------------------------------------------


def accuracy(run: Run, model: Any, unseen: List[Any]) -> Tuple[float, int]:
    """(the share of the examples whose class is found, how many they are)."""
    right, count = torch.zeros((), dtype=torch.long, device=run.device), 0
    with torch.no_grad(), torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
        for tokens, lens, labels in unseen:
            right += (model(tokens, lens).argmax(-1) == labels).sum()
            count += len(labels)
    return int(right) / count, count


def train(run: Run, task: Task, name: str, attend: Any, data: List[Any], unseen: List[Any]) -> None:
    """Rows of the accuracy after each 500 steps and at the end, which comes early when the time is over."""
    model, step = learner(run, task, attend, data)
    often, spent, begin = (2 if run.quick else 500), 0.0, run.clock()
    for done in range(1, task.steps + 1):
        loss = step(done - 1)
        is_last = done == task.steps or run.over()
        if done % often == 0 or is_last:
            run.wait()
            spent += run.clock() - begin
            found, count = accuracy(run, model, unseen)
            run.row(f"{task.name}, {done} steps", name, figure="accuracy", value=found, batch=task.batch,
                    length=task.length, note=f"standard error {(found * (1 - found) / count) ** 0.5:.4f}, of {count} "
                    f"examples; {done} steps in {spent:.1f} s; rate {rate_of(run):g}, loss {float(loss):.3f}")
            begin = run.clock()
        elif done % 100 == 0:
            run.say(f"{task.name}, {name}: {done} steps, loss {float(loss):.3f}")
        if is_last:
            break


def one_task(run: Run, task: Task) -> None:
    def up(given: Any) -> Any:
        return [torch.as_tensor(x).to(run.device) for x in given]

    trained = {} if "16K" in task.name else {**attends(task, run.device), WITHOUT: lambda q, k, v, lens: v * 0}
    trained = {name: attend for name, attend in sorted(trained.items(), key=lambda pair: pair[0] == "standard")
               if run.only.search(f"{task.name}, accuracy, {name}")}
    if run.over() or not (trained or any(run.only.search(f"{task.name}, {what}")
                                         for what in ("a step", "attention of a step"))):
        return
    tested = 2 if run.quick else -(-2048 // task.batch) if run.on_gpu else 10
    seeds = [*range(task.steps), *range(1 << 20, (1 << 20) + tested)] if trained else [0]
    batches = [up(batch) for batch in drawn(task, seeds, run.on_gpu and not run.quick and len(seeds) > 1)]
    run.say(f"{task.name}: {len(batches)} batches drawn")
    data, unseen = (batches[:task.steps], batches[task.steps:]) if trained else (batches, [])
    times(run, task, data)
    for name, attend in trained.items():
        if run.wants(f"{task.name}, accuracy, {name}") and not measure.fits(
                run, lambda attend=attend, name=name: train(run, task, name, attend, data, unseen)):
            run.row(f"{task.name}, {task.steps} steps", name, batch=task.batch, length=task.length,
                    note="memory does not suffice")


def main(run: Run) -> None:
    for task in tasks(run).values():
        one_task(run, task)
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()
