"""Models of Transformers, made small: each gives what eager attention gives, or is refused by a sentence of libattn's.

A sample of types runs always; ATTN_TEST_MODELS=all runs every type, ATTN_TEST_MODELS=bert,opt those. With -s each type
prints its line, and the counts come last.
"""
import collections
import contextlib
import copy
import functools
import inspect
import os
import signal
import time
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES  # noqa: E402

import libattn  # noqa: E402
import libattn.transformers as lt  # noqa: E402

SAMPLE = ("bart bert bigbird_pegasus bloom convbert deepseek_v3 distilbert doge electra falcon_h1 gemma gpt2 gpt_neox "
          "llama mistral mpnet mpt opt qwen2_vl_text qwen3_next rembert roformer squeezebert t5 tapas vit xglm").split()
SMALL = {
    32: "hidden_size d_model n_embd dim embed_dim embedding_size word_embed_proj_dim emb_dim image_size hidden_dim",
    48: "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers "
       "num_encoder_layers num_key_value_heads num_experts_per_tok eos_token_id attn_layer_period",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
       "num_decoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts",
    8: "head_dim d_kv patch_size qk_nope_head_dim qk_rope_head_dim v_head_dim mamba_n_heads mamba_d_head rotary_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank mamba_d_state mamba_chunk_size "
        "hidden_size_per_layer_input",
    6: "sliding_window", 64: "max_position_embeddings n_positions max_seq_len mamba_d_ssm",
    99: "vocab_size n_vocab vocab_size_per_layer_input",
    0: "pad_token_id", 1: "bos_token_id decoder_start_token_id n_shared_experts n_group topk_group attn_layer_offset"}
SMALL = {name: value for value, names in SMALL.items() for name in names.split()}
LARGEST = 30_000_000  # parameters
LONGEST = 120  # seconds that eager attention, and libattn's, may take for a class
TABLES = [getattr(modeling_auto, f"MODEL_{name}MAPPING_NAMES")
          for name in ("", "FOR_CAUSAL_LM_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_MASKED_LM_")]
PADDINGS = {"none": torch.ones(2, 12, dtype=torch.bool), "right": torch.arange(12) < torch.tensor([[12], [7]]),
            "left": torch.arange(12) >= torch.tensor([[0], [5]])}


def small(config_class):
    """A config with the sizes above wherever its class has them, and its parts likewise."""
    usual = config_class()
    given = {name: SMALL[name] for name, value in vars(usual).items()
             if name in SMALL and (isinstance(value, int) or name.endswith(("token_id", "experts_per_tok")))}
    if hasattr(usual, "kv_lora_rank") and "num_attention_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]  # each head has its own keys
    if hasattr(usual, "attn_layer_indices"):
        given["attn_layer_indices"] = [1]
    parts = {name: getattr(usual, name, None) for name in config_class.sub_configs}
    given.update({name: small(type(part)) for name, part in parts.items() if part is not None})
    config = config_class(**given)
    if set(vars(config).get("layer_types") or ()) == {"linear_attention"}:
        config = config_class(**given, layer_types=["linear_attention", "full_attention"])
    rope = getattr(config, "rope_parameters", None)
    if rope and "rope_type" in rope:  # how much of half a head each of three positions turns; most models ignore it
        half = int((getattr(config, "head_dim", None) or 8) * rope.get("partial_rotary_factor", 1)) // 2
        rope["mrope_section"] = [half - half // 2, (half // 2 + 1) // 2, half // 4]
    return config


def classes_of(model_type):
    names = [table[model_type] for table in TABLES if model_type in table]
    names = [name for given in names for name in ([given] if isinstance(given, str) else given)]
    return [getattr(transformers, name) for name in dict.fromkeys(names)]


@functools.cache
def inputs_of(model_class):
    """What the class's forward() takes of what is known here; None: nothing."""
    takes = inspect.signature(model_class.forward).parameters
    torch.manual_seed(6)
    if "input_ids" in takes:
        inputs = {"input_ids": torch.randint(3, 99, (2, 12))}
        if "decoder_input_ids" in takes:
            inputs["decoder_input_ids"] = torch.randint(3, 99, (2, 5))
        return inputs
    return {"pixel_values": torch.randn(2, 3, 32, 32)} if "pixel_values" in takes else None


def made(model_class, config, implementation):
    config = copy.deepcopy(config)  # _from_config() writes into it
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class._from_config(config, attn_implementation=implementation).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    return model_class._from_config(config, attn_implementation=implementation, dtype=torch.float32).eval()


def draw_weights(model):
    """Weights with which attention counts: those that models start with are too small, and some are zero."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, weight[0].numel() ** -0.5)
            else:
                weight.normal_(float("bias" not in name), 0.1)


def outputs_of(model, inputs, used):
    """Hidden states and logits: of the rows that are used where there are as many as tokens."""
    if "input_ids" in inputs and "attention_mask" in inspect.signature(model.forward).parameters:
        inputs = dict(inputs, attention_mask=used.long())
    torch.manual_seed(8)
    with torch.no_grad():
        given = model(**inputs)
    tensors = [given[name] for name in ("last_hidden_state", "encoder_last_hidden_state", "logits")
               if torch.is_tensor(given.get(name))]
    return [x[used] if x.shape[:2] == used.shape else x for x in tensors]


@contextlib.contextmanager
def limited(seconds):
    """TimeoutError where what is inside takes longer: some models loop over tokens and states in Python.

    The timer goes on: Python drops an exception that a signal raises inside a destructor or a weak reference's call.
    """
    def stop(*_):
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sort_of(model_class, config):
    """(what came of it, why) for a class."""
    calls = []

    def counted(*arguments, **keywords):
        calls.append(1)
        return lt.attention_forward(*arguments, **keywords)

    try:
        inputs = inputs_of(model_class)
        if inputs is None:
            return "not run", "no known inputs"
        with limited(LONGEST):
            eager = made(model_class, config, "eager")
            draw_weights(eager)
            wanted = {padding: outputs_of(eager, inputs, used) for padding, used in PADDINGS.items()}
        if not all(values and all(x.isfinite().all() for x in values) for values in wanted.values()):
            return "not run", "no outputs, or not finite ones, from eager attention"
    except Exception as error:  # whatever Transformers raises for a config that does not suit a class
        return "not run", f"{type(error).__name__}: {error}"
    transformers.AttentionInterface.register("libattn", counted)
    try:
        with limited(LONGEST):
            ours = made(model_class, config, "libattn")
            ours.load_state_dict(eager.state_dict())
            results = {padding: outputs_of(ours, inputs, used) for padding, used in PADDINGS.items()}
        for padding, found in results.items():
            for y, x in zip(found, wanted[padding], strict=True):
                error = float((y - x).abs().max() / x.abs().max())
                if not error <= 2 ** 11 * torch.finfo(x.dtype).eps:
                    return "WRONG", f"padding {padding}: relative error {error:.2g}"
    except libattn.Error as error:
        return "refused", str(error)
    except Exception as error:
        return "WRONG", f"{type(error).__name__}: {error}"
    finally:
        lt.register()
    return ("equal", "by libattn") if calls else ("equal", "has no attention that calls the interface")


asked = os.environ.get("ATTN_TEST_MODELS", "")
TYPES = list(CONFIG_MAPPING_NAMES) if asked == "all" else asked.split(",") if asked else SAMPLE
COUNTS = collections.Counter()


@pytest.fixture(scope="module", autouse=True)
def counts():
    yield
    print("\n" + "\n".join(f"{count:5} {what}" for what, count in sorted(COUNTS.items())))


def test_a_class_that_takes_too_long_is_reported(monkeypatch):
    monkeypatch.setattr(f"{__name__}.LONGEST", 0.1)
    monkeypatch.setattr(f"{__name__}.outputs_of", lambda *_: time.sleep(10))
    config = small(CONFIG_MAPPING["bert"])
    assert sort_of(transformers.BertModel, config) == ("not run", "TimeoutError: longer than 0.1 s")


@pytest.mark.parametrize("model_type", TYPES)
def test_equals_eager_or_is_refused(model_type):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            classes = classes_of(model_type)
            config = small(CONFIG_MAPPING[model_type])
        except Exception as error:
            COUNTS["types not run"] += 1
            pytest.skip(f"{type(error).__name__}: {error}"[:200])
        wrong = []
        for model_class in classes:
            sort, why = sort_of(model_class, config)
            COUNTS[f"{sort}, {why}" if sort == "equal" else sort] += 1
            print(f"{model_type} {model_class.__name__}: {sort}, {' '.join(why.split())[:160]}", flush=True)
            if sort == "WRONG" or sort == "not run" and not asked:
                wrong.append(f"{model_class.__name__}: {sort}, {why}")
    assert not wrong, "\n".join(wrong)
