"""Graphs of varying sizes through three levels of message passing, each followed by keeping the
nodes with the best scores and the edges between them: sizes that hang on values."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
import truth  # noqa: F401
from torch import nn

IN, WIDTH, CLASSES, KEEP, STEPS = 64, 256, 10, 0.6, 14


class Level(nn.Module):
    """Nodes (n, in), edges (2, e) to the best nodes, their edges, and a sum of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.update = nn.Linear(width + WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        sent = self.message(torch.cat([x[edges[0]], x[edges[1]]], -1))
        got = sent.new_zeros(len(x), WIDTH).index_add(0, edges[1], sent)
        x = F.relu(self.update(torch.cat([x, got], -1)))
        scores = self.score(x).squeeze(-1)
        best = scores.topk(int(KEEP * len(x))).indices
        place = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        place[best] = torch.arange(len(best), device=x.device)
        moved = place[edges]
        edges = moved[:, (moved >= 0).all(0)]
        x = x[best] * scores[best].sigmoid()[:, None]
        return x, edges, x.mean(0)


class Model(nn.Module):
    """A graph to the logits of its class."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Level(width) for width in (IN, WIDTH, WIDTH))
        self.head = nn.Linear(3 * WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sums = []
        for level in self.levels:
            x, edges, mean = level(x, edges)
            sums.append(mean)
        return self.head(torch.cat(sums))


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(5)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        logits, wanted = [], []
        for _ in range(draw.randrange(2, 5)):
            nodes = draw.randrange(8000, 36000)
            edges = torch.randint(0, nodes, (2, nodes * draw.randrange(6, 16))).cuda()
            logits.append(model(torch.randn(nodes, IN).cuda(), edges))
            wanted.append(draw.randrange(CLASSES))
        loss = F.cross_entropy(torch.stack(logits), torch.tensor(wanted).cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: {len(wanted)} graphs, {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
