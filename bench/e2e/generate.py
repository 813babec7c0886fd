"""Generation: a Llama-style model, token by token, with a growing cache, a static one, and pages from Python."""
from __future__ import annotations

import gc
from typing import Any, Callable, Dict, List, Tuple

import torch

import libattn
import libattn.torch

from . import measure
from .measure import OURS, Run
from .models import NAMES, build, config_of

PAGED, PAGE = "libattn paged", 64


def sizes(run: Run) -> List[Tuple[int, int]]:
    """(batch, tokens in the cache)."""
    if run.quick:
        return [(1, 60), (3, 60)]
    if not run.on_gpu:
        return [(1, 1024), (8, 256)]
    return [(batch, context) for context in (1024, 8192, 32768) for batch in (1, 32)]


# ---- pages -------------------------------------------------------------------------------------


class Pages:
    """The cache of all layers in pages: a prompt that all sequences share, then each one's own tokens. Layers call
    attention() below with it as the keyword `cache_kwargs`."""

    def __init__(self, config: Any, prompt: int, batch: int, new: int, device: torch.device, dtype: torch.dtype):
        own = -(-new // PAGE) + 2
        shape = (prompt // PAGE + 1 + batch * own, PAGE, config.num_key_value_heads,
                 config.hidden_size // config.num_attention_heads)
        self.pool = libattn.Pool(pages=shape[0], page_size=PAGE, sequences=batch + 1, width=prompt // PAGE + own)
        self.k, self.v = ([torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
                          for _ in range(2))
        self.device, self.prompt = device, self.pool.create()

    def begin(self, tokens: int) -> None:
        """A chunk of the prompt."""
        self.pool.append(self.prompt, count=tokens)
        self._tables([self.prompt], tokens)

    def fork(self, batch: int) -> None:
        self.sequences = [self.pool.fork(self.prompt) for _ in range(batch)]

    def next(self) -> None:
        """A token of each sequence; a page that they share and grow into is copied first."""
        copies = libattn.PageCopies(len(self.sequences))
        for sequence in self.sequences:
            self.pool.append(sequence, count=1, copies=copies)
        pairs = torch.as_tensor(copies.pairs.copy(), device=self.device).long().reshape(-1, 2)
        if len(pairs):
            for cache in (*self.k, *self.v):
                cache[pairs[:, 1]] = cache[pairs[:, 0]]
        self._tables(self.sequences, 1)

    def _tables(self, sequences: Any, new: int) -> None:
        table, lens = self.pool.tables(sequences)
        self.table, self.lens = torch.as_tensor(table).to(self.device), torch.as_tensor(lens - new).to(self.device)


def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scaling: Any = None,
              cache_kwargs: Any = None, **_: Any) -> Tuple[torch.Tensor, None]:
    pages, layer = cache_kwargs, module.layer_idx
    o = libattn.torch.attention_with_kvcache(
        query.transpose(1, 2), pages.k[layer], pages.v[layer], key.transpose(1, 2), value.transpose(1, 2),
        cache_seqlens=pages.lens, page_table=pages.table, causal=True, scale=scaling)
    return o, None


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register("libattn_paged", attention)
    AttentionMaskInterface.register("libattn_paged", lambda *_, **__: None)


# ---- steps -------------------------------------------------------------------------------------


def dynamic(model: Any, prompt: torch.Tensor, steps: int, sdpa: Any) -> Callable[[], Any]:
    """A function that writes `steps` tokens after the prompt, from the cache that the prompt left."""
    from transformers import DynamicCache

    with measure.backend(sdpa):
        filled = DynamicCache(config=model.config)
        model(prompt, past_key_values=filled, logits_to_keep=1)

    def run() -> Any:
        token = prompt[:, -1:]
        with measure.backend(sdpa):
            for _ in range(steps):
                token = model(token, past_key_values=filled, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        filled.crop(-steps)
        return token

    return run


def static(run_: Run, model: Any, prompt: torch.Tensor, steps: int, sdpa: Any) -> Callable[[], Any]:
    """The same in a StaticCache, the step compiled (--quick: traced alone) and, on a GPU, captured as a graph."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + steps)
    how = dict(backend="eager") if run_.quick else dict(mode="reduce-overhead")
    place = torch.zeros(1, 1, dtype=torch.long, device=prompt.device)

    def one(token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return model(token, past_key_values=cache, position_ids=place.expand(len(token), 1)).logits[:, -1].argmax(
            -1, keepdim=True)

    step = torch.compile(one, fullgraph=False, **how)

    def run() -> Any:
        cache.reset()
        with measure.backend(sdpa):
            model(prompt, past_key_values=cache, logits_to_keep=1)
            token = prompt[:, -1:]
            for i in range(steps):
                torch.compiler.cudagraph_mark_step_begin()
                token = step(token.clone(), place.fill_(prompt.shape[1] + i))
        return token

    return run


def paged(model: Any, prompt: torch.Tensor, steps: int) -> Callable[[], Any]:
    """All sequences continue one prompt, whose pages are filled once."""
    batch, length = prompt.shape
    pages = Pages(model.config, length, batch, steps, prompt.device, model.dtype)
    pages.begin(length)
    model(prompt[:1], use_cache=False, cache_kwargs=pages, logits_to_keep=1)

    def run() -> Any:
        pages.fork(batch)
        token = prompt[:, -1:]
        for i in range(steps):
            pages.next()
            place = torch.full((batch, 1), length + i, device=prompt.device)
            token = model(token, position_ids=place, use_cache=False, cache_kwargs=pages,
                          logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        for sequence in pages.sequences:
            pages.pool.free(sequence)
        return token

    return run


# ---- accuracy ----------------------------------------------------------------------------------


def logits(run: Run, models: Dict[str, Any], exact: Any, sdpa: str) -> None:
    """Every subject reads the same tokens. Its logits are compared with those of eager attention in f32."""
    from transformers import DynamicCache

    length, prompt = (80, 40) if run.quick else (320, 200)
    torch.manual_seed(2)
    tokens = torch.randint(0, exact.config.vocab_size, (2, length), device=run.device)
    wanted = exact(tokens, use_cache=False).logits[:, prompt:].float()
    for name, model in models.items():
        cache, found = DynamicCache(config=model.config), []
        with measure.backend(sdpa if name == "sdpa" else None):
            model(tokens[:, :prompt], past_key_values=cache, logits_to_keep=1)
            for i in range(prompt, length):
                found.append(model(tokens[:, i:i + 1], past_key_values=cache).logits)
        error = (torch.cat(found, 1).float() - wanted).pow(2).mean().sqrt().item()
        run.row("teacher-forced logits", name, figure="RMS error against f32", value=error, batch=2, length=length)


# ---- host time ---------------------------------------------------------------------------------


def host(run: Run) -> None:
    """Time of a layer's attention in a step, where there is next to nothing to compute: the call itself, on one thread.
    The cache grows by torch.cat before each call, which is not timed; on a GPU what the call starts is not awaited."""
    from transformers import AttentionInterface

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layer = torch.nn.Module()
    layer.is_causal, layer.num_key_value_groups = True, 1
    for batch in (1, 32):
        torch.manual_seed(3)
        q, new = (torch.randn(batch, 2, 1, 16, device=run.device, dtype=run.dtype) for _ in range(2))
        times: Dict[str, List[float]] = {"sdpa": [], OURS: []}
        for turn in range(40 if run.quick else 1000):
            if turn % 100 == 0:
                state = [torch.randn(batch, 2, 16, 16, device=run.device, dtype=run.dtype) for _ in range(2)]
            state = [torch.cat([x, new], 2) for x in state]
            for name in sorted(times, reverse=bool(turn % 2)):
                function = AttentionInterface()[NAMES[name]]
                run.wait()
                begin = run.clock()
                function(layer, q, *state, None, dropout=0.0, scaling=0.25)
                times[name].append(1e6 * (run.clock() - begin))
        for name, taken in times.items():
            run.row(f"call of a layer, growing cache, batch {batch}", name, figure="us per call",
                    value=measure.interval(taken)[0], rounds=len(taken), batch=batch, length=116)
    torch.set_num_threads(threads)


@torch.no_grad()
def main(run: Run) -> None:
    register()
    steps = 8 if run.quick else 32
    config = config_of("llama-0.5b", run.quick or not run.on_gpu, 33000, False)
    models = {name: build(config, kind, run.device, run.dtype).eval() for name, kind in NAMES.items()}
    pages = build(config, "libattn_paged", run.device, run.dtype).eval()
    exact = build(config, "eager", run.device).eval()
    host(run)
    chosen = ""
    for batch, context in sizes(run):
        torch.manual_seed(1)
        prompt = torch.randint(0, config.vocab_size, (1, context), device=run.device).expand(batch, context)
        for kind in ("dynamic", "static") if batch == 1 or not run.quick else ("dynamic",):
            torch._dynamo.reset()
            subjects, more = {}, {}
            for name, model in models.items():
                run.say(f"{kind} {batch} x {context}: {name}")
                make = (lambda backend: dynamic(model, prompt, steps, backend)) if kind == "dynamic" else (
                    lambda backend: static(run, model, prompt, steps, backend))
                if name == "sdpa" and kind == "dynamic":
                    chosen = measure.best_backend(run, lambda: make(None)())
                made: List[Any] = []
                if not measure.fits(run, lambda: made.append(make(chosen if name == "sdpa" else None))) or (
                        not measure.fits(run, made[0])):
                    run.row(f"{kind} {batch} x {context}", name, note="memory does not suffice")
                    continue
                made[0]()  # warm
                subjects[name] = made[0]
                more[name] = {"backend": chosen if name == "sdpa" else ""}
            if kind == "dynamic" and measure.fits(run, lambda: subjects.update({PAGED: paged(pages, prompt, steps)})):
                subjects[PAGED]()
            measure.compare(run, f"{kind} {batch} x {context}", subjects, batch * steps, more=more, batch=batch,
                            length=context)
            subjects.clear()
            gc.collect()
    logits(run, models, exact, chosen)
