"""Activations computed again in backward instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..models import Mlp, gpt, train
from ..rows import row


class _Checkpointed(Mlp):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()  # the reentrant kind asks for it
        for block in self.blocks:
            x = x + checkpoint(block, x, **self.options)
        return x


@row("torch.utils.checkpoint, not reentrant")
def checkpoint_not_reentrant() -> Iterator[torch.Tensor]:
    yield from train(_Checkpointed(use_reentrant=False).cuda())


@row("torch.utils.checkpoint, reentrant")
def checkpoint_reentrant() -> Iterator[torch.Tensor]:
    yield from train(_Checkpointed(use_reentrant=True).cuda())


def _keep_products(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    keep = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


@row("selective checkpointing: products kept")
def checkpoint_selective() -> Iterator[torch.Tensor]:
    contexts = partial(create_selective_checkpoint_contexts, _keep_products)
    yield from train(_Checkpointed(use_reentrant=False, context_fn=contexts).cuda())


@row("transformers' gradient_checkpointing_enable", needs=("transformers",))
def checkpoint_transformers() -> Iterator[torch.Tensor]:
    model = gpt().cuda().train()
    model.gradient_checkpointing_enable()
    yield from train(model)
