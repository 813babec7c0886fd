"""Generation: a Llama-style model, token by token, with a growing cache, a static one, and pages from Python."""
from __future__ import annotations

import copy
import functools
import gc
from typing import Any, Callable, Dict, List, Tuple

import torch

import libattn
import libattn.torch

from . import measure
from .measure import OURS, Run
from .models import NAMES, build, config_of

PAGED, PAGE = "libattn paged", 64
FEW_LAYERS = 4  # of the models whose step is compiled, which takes a time per layer


def sizes(run: Run, kind: str) -> List[Tuple[int, int]]:
    """(batch, tokens in the cache)."""
    if run.quick:
        return [(1, 60), (3, 60)] if kind == "dynamic" else [(1, 60)]
    if not run.on_gpu:
        return [(1, 1024), (8, 256)]
    contexts = (1024, 8192, 32768) if kind == "dynamic" else (8192,)
    return [(batch, context) for context in contexts for batch in (1, 32)]


def name_of(kind: str, batch: int, context: int) -> str:
    return f"{kind} {batch} x {context}" + (f", {FEW_LAYERS} layers" if kind == "static" else "")


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


def prefill(model: Any, prompt: torch.Tensor) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer that a prompt of one sequence leaves, (1, head, key, dim)."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(prompt, past_key_values=cache, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in cache.layers]


def grown(config: Any, filled: Any, batch: int) -> Any:
    """A DynamicCache of sequences that all have this prompt."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for i, pair in enumerate(filled):
        cache.update(*(x.expand(batch, -1, -1, -1) for x in pair), i)
    return cache


def dynamic(model: Any, cache: Any, prompt: torch.Tensor, steps: int, sdpa: Any) -> Callable[[], Any]:
    """A function that writes `steps` tokens after the prompt, and leaves the cache as it was."""
    def run() -> Any:
        token = prompt[:, -1:]
        try:
            with measure.backend(sdpa):
                for _ in range(steps):
                    token = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        finally:  # a backend that has no kernel stops within a step
            for layer in cache.layers:
                layer.crop(prompt.shape[1] - layer.get_seq_length())
        return token

    return run


def fixed(config: Any, filled: Any, batch: int, steps: int) -> Any:
    """A StaticCache of the same, with room for the steps."""
    from transformers import StaticCache

    first, length = filled[0][0], filled[0][0].shape[2]
    cache = StaticCache(config=config, max_cache_len=length + steps)
    cache.early_initialization(batch, first.shape[1], first.shape[3], first.dtype, first.device)
    for layer, (k, v) in zip(cache.layers, filled):
        layer.keys[:, :, :length], layer.values[:, :, :length] = k, v
    return cache


def static(run_: Run, model: Any, cache: Any, prompt: torch.Tensor, steps: int, sdpa: Any) -> Callable[[], Any]:
    """The same in a StaticCache, the step compiled (--quick: traced alone) and, on a GPU, captured as a graph."""
    how = dict(backend="eager") if run_.quick else dict(mode="reduce-overhead")
    place = torch.zeros(1, 1, dtype=torch.long, device=prompt.device)

    def one(token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return model(token, past_key_values=cache, position_ids=place.expand(len(token), 1)).logits[:, -1].argmax(
            -1, keepdim=True)

    step = torch.compile(one, fullgraph=False, dynamic=False, **how)

    def run() -> Any:
        for layer in cache.layers:
            layer.cumulative_length.fill_(prompt.shape[1])
        token = prompt[:, -1:]
        with measure.backend(sdpa):
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


def logits(run: Run, models: Dict[str, Any], exact: Any) -> None:
    """Every subject reads the same tokens. Its logits are compared with those of eager attention in f32."""
    from transformers import DynamicCache

    length, prompt = (80, 40) if run.quick else (320, 200)
    torch.manual_seed(2)
    tokens = torch.randint(0, exact.config.vocab_size, (2, length), device=run.device)
    wanted = exact(tokens, use_cache=False).logits[:, prompt:].float()
    for name, model in models.items():
        cache, found = DynamicCache(config=model.config), []
        model(tokens[:, :prompt], past_key_values=cache, logits_to_keep=1)
        for i in range(prompt, length):
            found.append(model(tokens[:, i:i + 1], past_key_values=cache).logits)
        error = (torch.cat(found, 1).float() - wanted).pow(2).mean().sqrt().item()
        run.row("teacher-forced logits", name, figure="RMS error against f32", value=error, batch=2, length=length)


# ---- host time ---------------------------------------------------------------------------------


def host(run: Run) -> None:
    """Time of a layer's attention in a step, the call itself, on one thread. The cache grows by torch.cat before each
    call, which is not timed. On a GPU what the call starts is not awaited; on a CPU there is little to compute."""
    from transformers import AttentionInterface

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layer = torch.nn.Module()
    heads, heads_kv, dim = (20, 4, 64) if run.on_gpu and not run.quick else (2, 2, 16)
    layer.is_causal, layer.num_key_value_groups = True, heads // heads_kv
    for length in (1024, 8192) if run.on_gpu and not run.quick else (16,):
        for batch in (1, 32):
            case = f"call of a layer, growing cache, {batch} x {length}"
            if not run.wants(case):
                continue
            torch.manual_seed(3)
            q = torch.randn(batch, heads, 1, dim, device=run.device, dtype=run.dtype)
            new = torch.randn(batch, heads_kv, 1, dim, device=run.device, dtype=run.dtype)
            times: Dict[str, List[float]] = {"sdpa": [], OURS: []}
            warm, turns = 20, 40 if run.quick else 300 if run.on_gpu else 1000
            for turn in range(warm + turns):
                if turn % 100 == 0:
                    state = [torch.randn(batch, heads_kv, length, dim, device=run.device, dtype=run.dtype)
                             for _ in range(2)]
                state = [torch.cat([x, new], 2) for x in state]
                for name in sorted(times, reverse=bool(turn % 2)):
                    function = AttentionInterface()[NAMES[name]]
                    run.wait()
                    begin = run.clock()
                    function(layer, q, *state, None, dropout=0.0, scaling=dim ** -0.5)
                    if turn >= warm:
                        times[name].append(1e6 * (run.clock() - begin))
            for name, taken in times.items():
                run.row(case, name, figure="us per call", value=measure.interval(taken)[0], rounds=len(taken),
                        batch=batch, length=length)
    torch.set_num_threads(threads)


def prompt_of(run: Run, config: Any, batch: int, context: int) -> torch.Tensor:
    """The same one for all sequences."""
    torch.manual_seed(1)
    return torch.randint(0, config.vocab_size, (1, context), device=run.device).expand(batch, context)


def dynamic_case(run: Run, models: Dict[str, Any], pages: Any, batch: int, context: int) -> None:
    case, steps, config = name_of("dynamic", batch, context), 8 if run.quick or run.on_gpu else 32, pages.config
    prompt = prompt_of(run, config, batch, context)
    made: List[Any] = []
    if not measure.fits(run, lambda: made.append(grown(config, prefill(models[OURS], prompt[:1]), batch))):
        run.row(case, "all", note="memory does not suffice")
        return
    subjects, more = {}, {}
    for name, model in models.items():
        run.say(f"{case}: {name}")
        chosen = measure.best_backend(run, dynamic(model, made[0], prompt, steps, None)) if name == "sdpa" else None
        call = dynamic(model, made[0], prompt, steps, chosen)
        if not measure.fits(run, call):
            run.row(case, name, note="memory does not suffice")
            continue
        call()  # warm
        subjects[name], more[name] = call, {"backend": chosen or ""}
    if measure.fits(run, lambda: subjects.update({PAGED: paged(pages, prompt, steps)})):
        subjects[PAGED]()
    measure.compare(run, case, subjects, batch * steps, more=more, batch=batch, length=context)


def static_case(run: Run, models: Dict[str, Any], batch: int, context: int) -> None:
    """libattn's row comes first, then each peer's as soon as its step is compiled: in turns with libattn's. SDPA has
    PyTorch's choice of backend: to compile the step for each would take minutes."""
    case, steps, config = name_of("static", batch, context), 8 if run.quick or run.on_gpu else 32, models[OURS].config
    prompt = prompt_of(run, config, batch, context)
    made: List[Any] = []
    if not measure.fits(run, lambda: made.append(fixed(config, prefill(models[OURS], prompt[:1]), batch, steps))):
        run.row(case, "all", note="memory does not suffice")
        return
    subjects: Dict[str, Callable[[], Any]] = {}
    for name in sorted(models, key=[OURS, "sdpa", "eager"].index):
        if run.over():
            run.say(f"{case}, {name}: not begun, the time is over")
            break
        run.say(f"{case}: {name}")
        call = static(run, models[name], made[0], prompt, steps, None)
        try:
            if not measure.fits(run, call):
                run.row(case, name, note="memory does not suffice")
                continue
            call()  # the first one compiled, and captured while it ran
        except (RuntimeError, AssertionError) as problem:  # the others are measured all the same
            run.row(case, name, note=f"not compiled: {' '.join(str(problem).split())[:200]}")
            continue
        subjects = {key: subjects[key] for key in subjects if key == OURS}
        subjects[name] = call
        measure.compare(run, case, subjects, batch * steps, shown=[name], batch=batch, length=context)


@torch.no_grad()
def main(run: Run) -> None:
    register()
    host(run)
    config = config_of("llama-0.5b", run.quick or not run.on_gpu, 33000, False)
    few = copy.deepcopy(config)
    few.num_hidden_layers = min(FEW_LAYERS, config.num_hidden_layers)

    @functools.lru_cache(None)  # made when a case first wants them
    def models(kind: str) -> Dict[str, Any]:
        return {name: build(config if kind == "dynamic" else few, implementation, run.device, run.dtype).eval()
                for name, implementation in NAMES.items()}

    if run.wants("teacher-forced logits"):
        logits(run, models("dynamic"), build(config, "eager", run.device).eval())
    pages = None
    for kind in ("dynamic", "static"):
        for batch, context in sizes(run, kind):
            if not run.wants(name_of(kind, batch, context)):
                continue
            torch._dynamo.reset()
            if kind == "dynamic":
                pages = pages or build(config, "libattn_paged", run.device, run.dtype).eval()
                dynamic_case(run, models(kind), pages, batch, context)
            else:
                static_case(run, models(kind), batch, context)
            gc.collect()
            if run.on_gpu:
                torch.cuda.empty_cache()
