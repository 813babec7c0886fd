"""A small language model, trained on a book with its context split over processes.

    torchrun --nproc-per-node 2 examples/python/context_parallel.py [--steps 50] [--device cuda]
    python examples/python/context_parallel.py              # one process: the same losses

Each process has the model whole and some rows of every sequence. Only attention, the gradients and the loss that is
printed go from process to process. Needs `pip install .` and PyTorch.
"""
import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from libattn.torch import context_parallel_attention, context_parallel_positions, context_parallel_shard

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 500, 2
BOOK = pathlib.Path(__file__).parents[2] / "demo" / "alice.txt"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, group):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        x = x + self.out(context_parallel_attention(q, k, v, group, causal=True).flatten(2))
        return x + self.mlp(self.norm_mlp(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, letters, group):
        x = self.letters(letters) + self.places(context_parallel_positions(CONTEXT, group, device=letters.device))
        for block in self.blocks:
            x = block(x, group)
        return self.head(self.norm(x))


def train(steps, group=None, device="cpu"):
    """The loss of each step."""
    torch.manual_seed(0)  # the same weights and batches in every process
    book = torch.tensor(list(BOOK.read_bytes()))
    model, losses = Model().to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        begins = torch.randint(len(book) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([book[begin:begin + CONTEXT + 1] for begin in begins])
        letters, targets = (context_parallel_shard(x, group).to(device) for x in (batch[:, :-1], batch[:, 1:]))
        scores = model(letters, group)
        loss = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum") / (BATCH * CONTEXT)
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        for tensor in (loss, *(parameter.grad for parameter in model.parameters())):
            dist.all_reduce(tensor, group=group)  # each process has the share of its own rows
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:  # as torchrun says
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    losses = train(options.steps, device=device)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses, 1):
            print(f"step {step}: loss {loss:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
