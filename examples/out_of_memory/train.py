"""Trains a GPT of 185 million parameters, with every mistake and every cure as a flag.

    python train.py                       # runs out on a card of 16 GiB, in step 3
    python train.py --resume last.pt --no-grad --batch-size 8 --accumulate 2

What runs out leaves oom.html, a report of that moment, and last.pt, a checkpoint.
docs/out-of-memory.md walks through it. The batches are random words: nothing is downloaded."""

from __future__ import annotations

import argparse
import os
import random
from typing import Any

import torch
import torcharena
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WORDS = 32000
LENGTHS = (256, 1024)  # of the texts in a batch, from step to step
EVALUATE = 2  # batches after every fourth step


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """x: (batch, length, width); so is the result."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, 64)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Embedding(LENGTHS[1], width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        """tokens: (batch, length) of word numbers; the result: the mean loss."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def optimizer_of(name: str, parameters: Any) -> torch.optim.Optimizer:
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, 1e-3)
    return torch.optim.AdamW(parameters, 1e-4, foreach=name == "adamw")


def batch_of(size: int, step: int) -> Any:
    """As long at the same step, whatever the batch size and however often resumed."""
    draw = random.Random(step)
    length = draw.randrange(*LENGTHS, 64) if step % 5 != 3 else LENGTHS[1]
    return torch.randint(WORDS, (size, length), device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1, metavar="PASSES")
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks")
    parser.add_argument(
        "--optimizer", default="adamw", choices=("adamw", "adamw-one-by-one", "adafactor")
    )
    parser.add_argument("--no-grad", action="store_true", help="in the evaluation")
    parser.add_argument("--item", action="store_true", help="keep numbers, not losses")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--resume", metavar="FILE")
    options = parser.parse_args()

    torcharena.enable()
    torch.manual_seed(0)
    model = GPT(options.width, options.layers, options.checkpoint).cuda()
    optimizer = optimizer_of(options.optimizer, model.parameters())
    step = 0
    if options.resume:
        state = torch.load(options.resume, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"goes on at step {step}")
    torcharena.track(model, optimizer)

    def save() -> None:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            },
            "last.pt.part",
        )
        os.replace("last.pt.part", "last.pt")

    def loss_of(tokens: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=options.bf16):
            return model(tokens)

    def kept(loss: Any) -> Any:
        return loss.item() if options.item else loss

    def evaluate() -> list[Any]:
        found = []
        model.eval()
        with torch.set_grad_enabled(not options.no_grad):
            for batch in range(EVALUATE):
                found.append(kept(loss_of(batch_of(options.batch_size, -batch))))
        model.train()
        return found

    losses: list[Any] = []
    with torcharena.on_oom("oom.html", save=save):
        while step < options.steps:
            for _ in range(options.accumulate):
                loss = loss_of(batch_of(options.batch_size, step)) / options.accumulate
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(kept(loss))
            step += 1
            if step % 4 == 0:
                evaluated = evaluate()
                print(f"step {step}: evaluated {len(evaluated)} batches", flush=True)
    print(torcharena.report())
    print(f"done after {step} steps")


if __name__ == "__main__":
    main()
