"""A word-level language model: three LSTM layers under a vocabulary of 50,000 words, truncated
backpropagation over windows of varying length with the state carried on, mixed precision with a
gradient scaler, and an evaluation with smaller batches and longer windows."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn

WORDS, WIDTH, HIDDEN, LAYERS, BATCH, STEPS = 50_000, 512, 1280, 3, 48, 16

State = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """Tied embedding and output, dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.drop = nn.Dropout(0.3)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, LAYERS, dropout=0.2, batch_first=True)
        self.project = nn.Linear(HIDDEN, WIDTH)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, words: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        x, state = self.lstm(self.drop(self.embedding(words)), state)
        x = self.project(self.drop(x))
        return F.linear(x, self.embedding.weight, self.bias), state


def start(batch: int) -> State:
    shape = (LAYERS, batch, HIDDEN)
    return torch.zeros(shape, device="cuda"), torch.zeros(shape, device="cuda")


def window(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.randint(0, WORDS, (batch, length + 1)).cuda()
    return words[:, :-1], words[:, 1:].contiguous()


def evaluate(model: Model) -> float:
    model.eval()
    state, total, count = start(10), 0.0, 0
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for _ in range(3):
            words, wanted = window(10, 200)
            logits, state = model(words, state)
            total += F.cross_entropy(logits.flatten(0, 1), wanted.flatten()).item()
            count += 1
    model.train()
    return total / count


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(1)
    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    state = start(BATCH)
    for step in range(STEPS):
        words, wanted = window(BATCH, draw.randint(24, 96))
        state = (state[0].detach(), state[1].detach())
        with torch.autocast("cuda", torch.float16):
            logits, state = model(words, state)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: length {words.shape[1]}, {loss.item():.3f}", flush=True)
        if step % 8 == 7:
            print(f"evaluation: {evaluate(model):.3f}", flush=True)


if __name__ == "__main__":
    main()
