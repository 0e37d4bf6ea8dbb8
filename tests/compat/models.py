"""Small models with random weights, and their data, for the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "STEPS",
    "Convolutions",
    "Mlp",
    "gpt",
    "images",
    "noise",
    "tokens",
    "train",
    "update",
]

STEPS = 6
VOCABULARY = 4096


def gpt(layers: int = 4, width: int = 256, **options: Any) -> Any:
    """transformers' GPT-2, small, on the CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": 4,
        "vocab_size": VOCABULARY,
        "n_positions": 512,
        "use_cache": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **options,
    }
    return GPT2LMHeadModel(GPT2Config(**settings))


def tokens(step: int, batch: int = 8) -> torch.Tensor:
    """A batch on the current device, of another length at every step."""
    draw = torch.Generator().manual_seed(step)
    length = (128, 96, 160, 64)[step % 4]
    return torch.randint(0, VOCABULARY, (batch, length), generator=draw).cuda()


def noise(step: int, rows: int = 64, width: int = 512) -> torch.Tensor:
    """Normal floats on the current device, others at every step."""
    draw = torch.Generator().manual_seed(step)
    return torch.randn(rows, width, generator=draw).cuda()


def update(loss: torch.Tensor, optimizer: Any) -> torch.Tensor:
    """Backward, the optimizer's step, gradients gone; the loss without its graph."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def images(
    step: int, batch: int = 8, size: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and their classes, of 10."""
    draw = torch.Generator().manual_seed(step)
    shape = (batch, 3, size, size)
    pictures = torch.randn(shape, generator=draw).cuda()
    return pictures, torch.randint(0, 10, (batch,), generator=draw).cuda()


class Mlp(nn.Module):
    """Blocks of linear layers, `width` wide; the output has as many."""

    def __init__(self, layers: int = 4, width: int = 512) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(layers)
        )
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Convolutions(nn.Module):
    """A small classifier of pictures, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).flatten(1))


def train(
    model: nn.Module, optimizer: Any = None, steps: int = STEPS, dtype: Any = None
) -> Iterator[torch.Tensor]:
    """Trains an Mlp on noise, or a transformers language model on `tokens`."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    width = getattr(model, "width", None)
    for step in range(steps):
        if width is None:
            batch = tokens(step)
            loss = model(input_ids=batch, labels=batch).loss
        else:
            x = noise(step, 64 + 32 * (step % 3), width).to(dtype=dtype)
            loss = F.mse_loss(model(x).float(), torch.zeros_like(x).float())
        yield update(loss, optimizer)
