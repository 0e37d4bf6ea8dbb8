"""Gradients gathered over a number of micro-batches that changes from step to step, each of a
length of its own, with every block's activations computed again in backward."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from parts import Gpt
from torch.utils.checkpoint import checkpoint

WORDS, LONGEST, STEPS = 32000, 3072, 8


class Checkpointed(Gpt):
    """Keeps the inputs of its blocks alone."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(9)
    model = Checkpointed(WORDS, LONGEST, 1536, 12, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for step in range(STEPS):
        pieces = draw.randrange(2, 7)
        total = 0.0
        for _ in range(pieces):
            length = draw.randrange(128, LONGEST)
            tokens = torch.randint(0, WORDS, (4, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(
                    logits.flatten(0, 1).float(), tokens[:, 1:].flatten()
                )
            (loss / pieces).backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: {pieces} pieces, {total / pieces:.3f}", flush=True)


if __name__ == "__main__":
    main()
