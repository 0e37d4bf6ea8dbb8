"""Batches split, and their size searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..models import STEPS, gpt, tokens, train
from ..rows import row


@row("gradient accumulation", needs=("transformers",))
def gradient_accumulation() -> Iterator[torch.Tensor]:
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        total = torch.zeros((), device="cuda")
        for part in tokens(step).chunk(4):
            loss = model(input_ids=part, labels=part).loss / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield total


def _limited(bytes_more: int) -> None:
    """This much more than is reserved now may be."""
    total = torch.cuda.get_device_properties(0).total_memory
    may = torch.cuda.memory_reserved() + bytes_more
    torch.cuda.set_per_process_memory_fraction(may / total)


@row(
    "accelerate's find_executable_batch_size",
    needs=("accelerate", "transformers"),
    compare=False,  # the arena may find a larger one
)
def accelerate_finder() -> Iterator[torch.Tensor]:
    from accelerate.utils import find_executable_batch_size

    model = gpt().cuda()
    _limited(512 << 20)
    tried = []

    @find_executable_batch_size(starting_batch_size=512)
    def training(batch_size: int) -> list[torch.Tensor]:
        tried.append(batch_size)
        model.zero_grad(set_to_none=True)
        losses = []
        for _ in range(3):
            batch = tokens(0, batch_size)
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            losses.append(loss.detach().float())
        return losses

    losses = training()
    assert 1 <= tried[-1] < 512, tried
    yield from losses


@row("Lightning's batch size finder", needs=("lightning",), compare=False)
def lightning_finder() -> Iterator[float]:
    import lightning
    from lightning.pytorch.tuner import Tuner
    from torch.utils.data import DataLoader, TensorDataset

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 64
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(64, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1)
            )

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

        def train_dataloader(self) -> Any:
            noise = torch.randn(1 << 13, 64)
            return DataLoader(TensorDataset(noise), batch_size=self.batch_size)

    torch.cuda.init()
    _limited(64 << 20)
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    found = Tuner(trainer).scale_batch_size(
        module, mode="binsearch", init_val=64, steps_per_trial=1, max_trials=8
    )
    assert found and 64 < found < 1 << 13, found
    yield 0.0


@row("after an error: a smaller batch", needs=("transformers",))
def smaller_after_error() -> Iterator[torch.Tensor]:
    model = gpt().cuda()
    _limited(768 << 20)
    try:
        batch = tokens(0, 512)
        model(input_ids=batch, labels=batch).loss.backward()
        raise AssertionError("512 sequences should not have fitted")
    except torch.cuda.OutOfMemoryError:
        pass
    model.zero_grad(set_to_none=True)
    yield from train(model, torch.optim.SGD(model.parameters(), 1e-3))
