"""Trains a small MLP, keeps something at every step, and shows who used what, when.

    torcharena rehearse --allocator arena --gpu 16GiB train.py       # no GPU is needed

What it prints is the sample of docs/reports.md, which
`python examples/report/write_docs.py` writes anew, picture included."""

from __future__ import annotations

import argparse

import torch
import torcharena
from torch import nn
from torch.nn import functional as F


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", metavar="FILE", help="the report: .json, or .html")
    options = parser.parse_args()

    torcharena.enable()
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 4000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    torcharena.track(model, optimizer)

    kept = []
    for step in range(12):
        images = torch.randn(4096, 1024, device="cuda")
        labels = torch.randint(4000, (4096,), device="cuda")
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(images[:768].clone())  # 3 MiB that are never let go
        if step % 6 == 5:
            model.eval()
            with torch.no_grad():
                model(images)
            model.train()

    report = torcharena.report()
    print(report)
    if options.save:
        report.save(options.save)


if __name__ == "__main__":
    main()
