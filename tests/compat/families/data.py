"""Data on its way to the GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ..models import Convolutions
from ..rows import row


def _learn(loader: DataLoader, non_blocking: bool = True) -> Iterator[torch.Tensor]:
    model = Convolutions().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for pictures, classes in loader:
        x = pictures.to("cuda", non_blocking=non_blocking)
        y = classes.to("cuda", non_blocking=non_blocking)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def _pictures(count: int = 96) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randn(count, 3, 64, 64, generator=draw)
    return TensorDataset(pictures, torch.arange(count) % 10)


@row("DataLoader with workers and pinned memory")
def loader_workers() -> Iterator[torch.Tensor]:
    torch.cuda.init()  # workers are forked after it, as in most programs
    loader = DataLoader(_pictures(), batch_size=16, num_workers=2, pin_memory=True)
    yield from _learn(loader)


@row("DataLoader with spawned workers that last")
def loader_spawned() -> Iterator[torch.Tensor]:
    torch.cuda.init()
    loader = DataLoader(
        _pictures(32),
        batch_size=8,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
        pin_memory=True,
    )
    yield from _learn(loader)


class _Mapped(Dataset):
    def __init__(self, path: Path) -> None:
        self.pictures = numpy.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.pictures[index].copy()), index % 10


@row("a memory-mapped data set")
def memory_mapped() -> Iterator[torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.npy"
        draw = numpy.random.default_rng(1)
        numpy.save(path, draw.standard_normal((96, 3, 64, 64), dtype=numpy.float32))
        yield from _learn(DataLoader(_Mapped(path), batch_size=16))


@row("copies ahead on a stream of their own (record_stream)")
def prefetching() -> Iterator[torch.Tensor]:
    model = Convolutions().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    copies = torch.cuda.Stream()
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fetch(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        with torch.cuda.stream(copies):
            x, y = (part.pin_memory().to("cuda", non_blocking=True) for part in batch)
            waiting.append((x, y))

    batches = iter(DataLoader(_pictures(), batch_size=16))
    fetch(next(batches))
    while waiting:
        torch.cuda.current_stream().wait_stream(copies)
        x, y = waiting.pop()
        for part in (x, y):
            part.record_stream(torch.cuda.current_stream())
        following = next(batches, None)
        if following is not None:
            fetch(following)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
