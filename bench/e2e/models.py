"""Models of Transformers with random weights, and attention's share of a step."""
from __future__ import annotations

import contextlib
import copy
import sys
import time
from typing import Any, Callable, Dict, Iterator, Tuple

import torch

import libattn.transformers  # noqa: F401 - registers "libattn"
from . import measure

NAMES = {"eager": "eager", "sdpa": "sdpa", measure.OURS: "libattn"}


def config_of(name: str, quick: bool, positions: int, dropout: bool) -> Any:
    """The configuration. dropout: the model's default, 10 % of the probabilities (Llama has none)."""
    import transformers as t

    if name in ("gpt2-small", "gpt2-medium", "gpt2-4x256"):
        large = {"gpt2-small": {}, "gpt2-medium": dict(n_embd=1024, n_layer=24, n_head=16),
                 "gpt2-4x256": dict(n_embd=256, n_layer=4, n_head=4, vocab_size=256)}[name]
        sizes = dict(n_embd=64, n_layer=2, n_head=2, vocab_size=256) if quick else large
        return t.GPT2Config(n_positions=positions, bos_token_id=0, eos_token_id=None,
                            **sizes, **({} if dropout else dict(attn_pdrop=0.0)))
    if name == "bert-large":
        sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=256)
        large = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        return t.BertConfig(max_position_embeddings=positions, **(sizes if quick else large),
                            **({} if dropout else dict(attention_probs_dropout_prob=0.0)))
    if name == "llama-0.5b":
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=256) if quick else dict(
            hidden_size=1280, intermediate_size=3456, num_hidden_layers=24, num_attention_heads=20,
            num_key_value_heads=4, vocab_size=32000)
        return t.LlamaConfig(max_position_embeddings=positions, bos_token_id=0, eos_token_id=None, **sizes)
    raise measure.Failure(f"{name} is no model of this benchmark: gpt2-small, gpt2-medium, gpt2-4x256, bert-large, "
                          "llama-0.5b")


def build(config: Any, implementation: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """The model, the same weights whatever the implementation."""
    import transformers as t

    kind = t.AutoModelForMaskedLM if config.model_type == "bert" else t.AutoModelForCausalLM
    torch.manual_seed(0)
    with device:
        return kind.from_config(copy.deepcopy(config), attn_implementation=implementation).to(device, dtype)


# ---- attention's share -------------------------------------------------------------------------

_REGION = "bench.e2e attention"


@contextlib.contextmanager
def _marked(model: Any) -> Iterator[None]:
    """While it lasts, what a layer calls for attention is a region of the profile."""
    from transformers import AttentionInterface

    name, file = model.config._attn_implementation, sys.modules[type(model).__module__]
    holder, key = (vars(file), "eager_attention_forward") if name == "eager" else (
        AttentionInterface._global_mapping, name)
    inner = holder[key]

    def region(*arguments: Any, **keywords: Any) -> Any:
        with torch.profiler.record_function(_REGION):
            return inner(*arguments, **keywords)

    holder[key] = region
    try:
        yield
    finally:
        holder[key] = inner


def attention_of(run: measure.Run, model: Any, step: Callable[[], Any]) -> Tuple[float, int]:
    """Milliseconds of a step within attention, forward and backward, and how many copies of tensors are among them:
    what ran below the layers' calls, and the gradients of the operators there, which carry their sequence numbers."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if run.on_gpu else [])
    with _marked(model), profile(activities=kinds) as profiled:
        step()
        run.wait()
    events = profiled.events()
    time_of = (lambda event: event.device_time_total) if run.on_gpu else (lambda event: event.cpu_time_total)
    on_cpu = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]

    def below(event: Any) -> Iterator[Any]:
        for child in event.cpu_children:
            yield child
            yield from below(child)

    tops = [event for event in on_cpu if event.name == _REGION]
    numbers = {child.sequence_nr for event in tops for child in below(event) if child.sequence_nr >= 0}
    tops += [event for event in on_cpu
             if event.name.startswith("autograd::engine::evaluate_function") and event.sequence_nr in numbers]
    copies = sum(child.name == "aten::copy_" for event in tops for child in below(event))
    return sum(time_of(event) for event in tops) / 1e3, copies


def profile_all(run: measure.Run, models: Dict[str, Any],
                steps: Dict[str, Callable[[], Any]]) -> Dict[str, Dict[str, Any]]:
    if run.clock is not time.perf_counter:  # the profiler knows no processor time
        return {}
    found = {name: attention_of(run, models[name], steps[name]) for name in steps}
    return {name: {"attention_ms": ms, "figure": "copies within attention", "value": copies}
            for name, (ms, copies) in found.items()}
