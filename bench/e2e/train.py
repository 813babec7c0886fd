"""Training steps, and losses: forward, backward and AdamW under autocast."""
from __future__ import annotations

import gc
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch

from . import measure
from .measure import OURS, Run
from .models import NAMES, build, config_of, profile_all

BOOK = os.path.join(os.path.dirname(__file__), "..", "..", "demo", "alice.txt")


class Case(NamedTuple):
    model: str
    length: int
    batch: int
    dropout: bool = False
    padded: bool = False  # half of the tokens are padding; libattn takes the sequences packed


def cases(run: Run) -> List[Case]:
    if run.quick:
        return [Case("gpt2-small", 128, 2, True), Case("bert-large", 64, 4, padded=True), Case("llama-0.5b", 192, 1)]
    if not run.on_gpu:
        return [Case("gpt2-4x256", 1024, 1), Case("gpt2-4x256", 1024, 1, True)]
    return [Case("gpt2-small", 1024, 32), Case("gpt2-small", 1024, 32, True), Case("llama-0.5b", 8192, 2),
            Case("bert-large", 512, 56), Case("bert-large", 512, 56, True), Case("bert-large", 512, 56, padded=True),
            Case("gpt2-small", 4096, 2), Case("gpt2-small", 4096, 2, True), Case("gpt2-small", 4096, 8),
            Case("gpt2-medium", 1024, 16), Case("gpt2-medium", 1024, 16, True), Case("gpt2-medium", 4096, 1),
            Case("gpt2-medium", 4096, 1, True), Case("llama-0.5b", 32768, 1)]


def batch_of(run: Run, case: Case, vocabulary: int) -> Dict[str, Dict[str, torch.Tensor]]:
    """What each implementation's model is called with."""
    torch.manual_seed(1)
    tokens = torch.randint(1, vocabulary, (case.batch, case.length), device=run.device)
    if not case.padded:
        return dict.fromkeys(NAMES, {"input_ids": tokens, "labels": tokens})
    lens = torch.linspace(case.length // 8, case.length, case.batch).long()
    used = torch.arange(case.length)[None] < lens[:, None]
    mask = used.to(run.device)
    padded = {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.masked_fill(~mask, -100)}
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lens.cumsum(0)]).int().to(run.device)
    rows = tokens[mask][None]
    packed: Dict[str, Any] = {"input_ids": rows, "labels": rows, "cu_seq_lens_q": starts, "cu_seq_lens_k": starts,
                              "position_ids": torch.arange(case.length, device=run.device).expand_as(mask)[mask][None],
                              "max_length_q": case.length, "max_length_k": case.length}
    return {name: packed if name == OURS else padded for name in NAMES}


def step_of(run: Run, model: Any, given: Dict[str, Any], sdpa: Optional[str]) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=run.on_gpu)
    half = run.dtype != torch.float32

    def step() -> Any:
        with measure.backend(sdpa), torch.autocast(run.device.type, run.dtype, enabled=half):
            loss = model(**given).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def name_of(case: Case) -> str:
    return f"{case.model} {case.length} x {case.batch}" + (", dropout" if case.dropout else "") + (
        ", padded" if case.padded else "")


def one_case(run: Run, case: Case) -> None:
    config, name = config_of(case.model, run.quick, max(case.length, 256), case.dropout), name_of(case)
    given, models, steps, more = batch_of(run, case, config.vocab_size), {}, {}, {}
    for subject, implementation in NAMES.items():
        run.say(f"{name}: {subject}")
        model = build(config, implementation, run.device).train()
        chosen = None
        if subject == "sdpa":
            chosen = measure.best_backend(run, step_of(run, model, given[subject], None), ("math",))
        step = step_of(run, model, given[subject], chosen)
        if measure.fits(run, step):
            more[subject] = {"backend": chosen or "", "peak_mib": measure.peak_mib(run, step)}
            models[subject], steps[subject] = model, step
        else:
            run.row(name, subject, batch=case.batch, length=case.length, note="memory does not suffice")
        del model, step
        gc.collect()
    for subject in list(steps):
        if not measure.fits(run, steps[subject]):
            run.row(name, subject, batch=case.batch, length=case.length, peak_mib=more[subject]["peak_mib"],
                    note="memory does not suffice beside the other models")
            del models[subject], steps[subject]
            gc.collect()
    for subject, found in profile_all(run, models, steps).items():
        more[subject].update(found)
    tokens = int((given["sdpa"]["labels"] >= 0).sum())
    measure.compare(run, name, steps, tokens, more=more, batch=case.batch, length=case.length)


# ---- losses ------------------------------------------------------------------------------------


def text(run: Run, length: int, batch: int) -> Callable[[int], torch.Tensor]:
    """Bytes of the book, in stretches at random."""
    with open(BOOK, "rb") as file:
        book = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()

    def draw(step: int) -> torch.Tensor:
        places = torch.randint(len(book) - length, (batch,), generator=torch.Generator().manual_seed(step))
        return torch.stack([book[place:place + length] for place in places]).to(run.device)

    return draw


def copying(run: Run, length: int, batch: int) -> Callable[[int], torch.Tensor]:
    """A half at random, and once more: only attention finds what comes next."""
    def draw(step: int) -> torch.Tensor:
        half = torch.randint(1, 32, (batch, length // 2), generator=torch.Generator().manual_seed(step))
        return torch.cat([half, half], 1).to(run.device)

    return draw


def losses(run: Run, task: str, steps: int) -> None:
    length, batch = (32, 16) if task == "copying" or run.quick or not run.on_gpu else (256, 8)
    draw = (copying if task == "copying" else text)(run, length, batch)
    import transformers

    wide = run.on_gpu and task == "book"
    config = transformers.GPT2Config(n_positions=length, vocab_size=256, n_embd=768 if wide else 128,
                                     n_layer=12 if wide else 2, n_head=12 if wide else 4, attn_pdrop=0.0,
                                     resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=None)
    for subject, implementation in NAMES.items():
        model = build(config, implementation, run.device).train()
        optimizer, last = torch.optim.AdamW(model.parameters(), 3e-4 if wide else 3e-3), []
        for step in range(steps):
            tokens = draw(step)
            labels = tokens.clone()
            if task == "copying":
                labels[:, :length // 2] = -100
            with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
                loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            last.append(float(loss.detach()))
        tail = last[-max(steps // 10, 1):]
        run.row(f"{task}, {steps} steps", subject, figure="loss", value=sum(tail) / len(tail), batch=batch,
                length=length, note=f"first {last[0]:.3f}")


def main(run: Run) -> None:
    for case in cases(run):
        if not run.wants(name_of(case)):
            continue
        one_case(run, case)
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()
    steps = 20 if run.quick else 200
    for task in ("book", "copying"):
        if run.wants(f"{task}, {steps} steps"):
            losses(run, task, steps)
