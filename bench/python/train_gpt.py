"""A training step of a small GPT in torch on the CPU, with libattn's attention and with torch's SDPA.

    pip install . torch
    python bench/python/train_gpt.py [--rounds 5]

4 layers of 256, 4 heads of 64, 1,024 tokens, batch 2, f32: forward, loss, backward and AdamW. Alternating steps, the
least of each.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional

import libattn.torch

WIDTH, HEADS, LAYERS, LENGTH, BATCH, WORDS = 256, 4, 4, 1024, 2, 256


def by_libattn(q, k, v):
    return libattn.torch.attention(q, k, v, causal=True)


def by_sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(attend) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places.weight)))


def step_of(attend, tokens):
    """A function that does one step and returns its loss."""
    torch.manual_seed(0)
    model = Gpt(attend)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1))
    steps = {"libattn": step_of(by_libattn, tokens), "SDPA": step_of(by_sdpa, tokens)}
    times = {name: [] for name in steps}
    for number in range(options.rounds):
        losses = []
        for name, step in steps.items():
            begin = time.perf_counter()
            losses.append(step())
            times[name].append(time.perf_counter() - begin)
        print(f"step {number + 1}: losses {losses[0]:.5f}, {losses[1]:.5f}")
    least = {name: min(taken) for name, taken in times.items()}
    print(", ".join(f"{name} {1e3 * taken:.1f} ms" for name, taken in least.items())
          + f": {least['SDPA'] / least['libattn']:.2f} x")


if __name__ == "__main__":
    main()
