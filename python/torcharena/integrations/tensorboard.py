"""Scalars for `torch.utils.tensorboard`."""

from __future__ import annotations

from typing import Any

from ..state import DeviceLike
from .figures import figures

__all__ = ["add_scalars"]


def add_scalars(
    writer: Any, step: int, device: DeviceLike = None, prefix: str = "torcharena"
) -> None:
    """Writes `figures` to a ``SummaryWriter``, bytes as GiB, under ``prefix/``. Nothing where
    the arena is not enabled."""
    for name, value in figures(device).items():
        shown = value / (1 << 30) if name.endswith("_bytes") else value
        label = name.replace("_bytes", "_GiB")
        writer.add_scalar(f"{prefix}/{label}", shown, step)
