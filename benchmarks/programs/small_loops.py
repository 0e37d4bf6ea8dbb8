"""A small GPT or a small CNN, a few steps of varying shapes: ``small_loops.py gpt``.

PyTorch alone, so that it runs under any of its versions (benchmarks/versions.py)."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
import truth
from torch import nn


class Block(nn.Module):
    """Causal attention and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(n, t, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(n, t, width))
        return x + self.feed(self.norm2(x))


def gpt() -> None:
    words, width = 16_000, 512
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(Block(width) for _ in range(6)),
        nn.LayerNorm(width),
        nn.Linear(width, words),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for length in (256, 512, 384, 512, 128, 448):
        tokens = torch.randint(0, words, (8, length + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"length {length}: {loss.item():.3f}", flush=True)


class Bottleneck(nn.Module):
    """Three convolutions with batch norms around a residual."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()

        def layer(i: int, o: int, size: int, step: int = 1) -> list[nn.Module]:
            conv = nn.Conv2d(i, o, size, step, size // 2, bias=False)
            return [conv, nn.BatchNorm2d(o)]

        self.body = nn.Sequential(
            *layer(before, width, 1),
            nn.ReLU(inplace=True),
            *layer(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *layer(width, 4 * width, 1),
        )
        self.short = nn.Sequential(*layer(before, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x), inplace=True)


def cnn() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Bottleneck(64, 64, 1),
        Bottleneck(256, 128, 2),
        Bottleneck(512, 256, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1024, 1000),
    ).cuda()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for side in (160, 224, 192, 224, 128, 256):
        images = torch.randn(32, 3, side, side).cuda(non_blocking=True)
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (32,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"side {side}: {loss.item():.3f}", flush=True)
    model.eval()
    with torch.inference_mode():
        print(
            model(torch.randn(64, 3, 224, 224, device="cuda")).argmax(1).unique().numel()
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    truth.variant = sys.argv[1]
    {"gpt": gpt, "cnn": cnn}[sys.argv[1]]()
