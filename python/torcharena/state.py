"""What the package knows of this process: one object, and who may ask what of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from . import sizes

if TYPE_CHECKING:
    import torch

__all__ = [
    "DeviceLike",
    "SizeLike",
    "State",
    "cuda_is_initialized",
    "current",
    "device_index",
    "enabled",
    "lock",
    "needs_enabled",
]

DeviceLike = Union[int, str, "torch.device", None]
SizeLike = int | str | sizes.Size | None


@dataclass
class State:
    """Set under `lock`, by `enable` and `set_limit`."""

    allocator: Any = None  # PyTorch calls into it for as long as the process lives
    pid: int = 0
    fallback: bool = False
    page: int = 0
    strict: bool = False
    asked: dict[str, Any] | None = None  # by code; None: the environment alone so far
    # Caps by source and device (None: all), for those that are shares of a device.
    shares: dict[tuple[str, int | None], sizes.Size] = field(default_factory=dict)
    cuda_is_up: bool = False  # torch says so itself only when the queued calls are done
    announced: bool = False
    # CUDA_VISIBLE_DEVICES when the driver was started by us; () before.
    seen: tuple[str | None, ...] = ()


current = State()
lock = threading.RLock()


def cuda_is_initialized() -> bool:
    """Whether torch has initialised CUDA in this process."""
    import torch

    initialized: Any = torch.cuda.is_initialized
    return bool(initialized())


def enabled() -> bool:
    """Whether this process's CUDA memory comes from the arena."""
    return current.allocator is not None


def needs_enabled(what: str) -> None:
    """Raises RuntimeError where `enable` has not been called."""
    if not enabled():
        raise RuntimeError(f"torcharena.{what}() comes after torcharena.enable()")


def device_index(device: DeviceLike) -> int:
    """The CUDA ordinal of what torch would call a device; None is the current one."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    import torch

    if device is None:
        return torch.cuda.current_device() if cuda_is_initialized() else 0
    named: Any = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"device={device}: torcharena manages CUDA devices")
    return int(named.index) if named.index is not None else device_index(None)
