"""libattn.transformers: small models with random weights give what Transformers' eager attention gives."""
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
        "mistral": lambda: t.MistralConfig(**GROUPED, sliding_window=5),
        "gemma2": lambda: t.Gemma2Config(**GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=6,
                                         attn_logit_softcapping=5.0),
        "gpt_oss": lambda: t.GptOssConfig(**GROUPED, head_dim=16, sliding_window=6, num_local_experts=2,
                                          num_experts_per_tok=1, rope_scaling=None),
    }[name]()


def both(config, kind=transformers.AutoModelForCausalLM):
    torch.manual_seed(5)
    eager = kind.from_config(config, attn_implementation="eager").eval()
    ours = kind.from_config(config, attn_implementation="libattn").eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "libattn"
    return eager, ours


def padded():
    """Tokens and a mask: two sequences of 12, of which the second is padded by 4 on the left."""
    torch.manual_seed(6)
    tokens, mask = torch.randint(2, 99, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    tokens[1, :4], mask[1, :4] = 0, 0
    return tokens, mask


DECODERS = ["gpt2", "llama", "qwen2", "mistral", "gemma2", "gpt_oss"]


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


def test_what_is_not_known_raises(monkeypatch):
    module, q = torch.nn.Module(), torch.randn(1, 2, 5, 8)
    with pytest.raises(libattn.InvalidError, match="block_size, tree"):
        lt.attention_forward(module, q, q, q, None, tree=3, block_size=4, head_mask=None)
    with pytest.raises(libattn.UnsupportedError, match="output_attentions"):
        lt.attention_forward(module, q, q, q, None, output_attentions=True)
    with pytest.raises(libattn.InvalidError, match="int64"):
        lt.attention_forward(module, q, q, q, torch.ones(1, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(libattn.InvalidError, match="attention_mask has shape"):
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
