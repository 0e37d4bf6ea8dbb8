"""A language model of many words: a two-layer LSTM over packed sentences of varying lengths and
a softmax over 120,000 words, of the real tokens alone."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

WORDS, WIDTH, HIDDEN, BATCH, STEPS = 120_000, 512, 1024, 32, 20


class Model(nn.Module):
    """Sentences one after the other, packed, to logits: (tokens, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, 2, dropout=0.2)
        self.project = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, sentences: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.words(sentences))
        packed = pack_padded_sequence(x, lengths, enforce_sorted=True)
        out, _ = self.lstm(packed)
        return self.head(self.project(self.drop(out.data)))


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(17)
    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(STEPS):
        longest = draw.randrange(24, 128)
        lengths = sorted(
            (draw.randrange(8, longest + 1) for _ in range(BATCH)), reverse=True
        )
        sizes = torch.tensor(lengths)
        sentences = torch.randint(0, WORDS, (lengths[0] + 1, BATCH)).cuda()
        wanted = pack_padded_sequence(sentences[1:], sizes, enforce_sorted=True).data
        logits = model(sentences[:-1], sizes)
        loss = F.cross_entropy(logits, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: {len(wanted)} tokens, {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
