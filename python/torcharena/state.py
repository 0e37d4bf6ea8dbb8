"""What the package knows of this process: one object, and who may ask what of it."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from . import sizes
from .loading import core

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_PAGE",
    "DeviceLike",
    "SizeLike",
    "State",
    "Waiting",
    "cuda_is_initialized",
    "current",
    "device_index",
    "enabled",
    "is_rehearsal",
    "lock",
    "needs_cuda",
    "needs_enabled",
    "when_cuda_is_up",
]

DEFAULT_PAGE = 4 << 20  # bytes, as in torcharena.h
DeviceLike = Union[int, str, "torch.device", None]
SizeLike = int | str | sizes.Size | None


class Waiting:
    """Caps in bytes, until the library's allocator is there to keep them. The same rules:
    the least of all sources holds, rounded down to a page."""

    def __init__(self, page: int = 0) -> None:
        self.page = page or DEFAULT_PAGE
        self._caps: dict[tuple[str, int], int | None] = {}  # -1: every device

    def set_limit(self, device: int, source: str, size: int | None) -> None:
        """One source's cap, None for none; device -1: on every device."""
        if device < 0:
            self._caps = {k: v for k, v in self._caps.items() if k[0] != source}
        self._caps[source, device] = size

    def limit(self, device: int) -> tuple[int | None, str]:
        """The cap that will hold, and whose it is."""
        held = []
        for source in {source for source, _ in self._caps}:
            size = self._caps.get((source, device), self._caps.get((source, -1)))
            if size is not None:
                held.append((size // self.page * self.page, source))
        return min(held, default=(None, "none"))

    def hand_over(self, library: Any) -> None:
        """Tells the library: first what is for every device."""
        for (source, device), size in sorted(
            self._caps.items(), key=lambda cap: cap[0][1]
        ):
            library.set_limit(device, source, size)


@dataclass
class State:
    """Set under `lock`, by `enable` and `set_limit`."""

    allocator: Any = None  # PyTorch calls into it for as long as the process lives
    creator: int = 0  # the process that made the library's allocator; 0: none yet
    fallback: bool = False
    page: int = 0  # bytes; 0: the default
    slack: float = 0.0  # reserved over live peak; 0: the default
    strict: bool = False
    spill: int | None = None  # bytes of host memory that may be used; None: none
    guard: bool = False  # every block apart and watched
    asked: dict[str, Any] | None = None  # by code; None: the environment alone so far
    waiting: Waiting = field(default_factory=Waiting)
    # Caps that are shares of a device, by source and device (None: all), until it is there.
    shares: dict[tuple[str, int | None], sizes.Size] = field(default_factory=dict)
    # Every source's cap as it was put, the same keys.
    given: dict[tuple[str, int | None], sizes.Size | None] = field(default_factory=dict)
    admin: Any = None  # an administrator.Admin
    cuda_is_up: bool = False  # torch says so itself only when the queued calls are done
    announced: bool = False
    pools: bool = False  # the library's allocator is for `pool` alone, under torch's own


current = State()
lock = threading.RLock()


def _after_fork_child() -> None:
    """A thread that had the lock is not there to give it back."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_child)


def cuda_is_initialized() -> bool:
    """Whether torch has initialised CUDA in this process."""
    import torch

    initialized: Any = torch.cuda.is_initialized
    return bool(initialized())


def is_rehearsal() -> bool:
    """True in a program that runs on simulated GPUs. ``TORCHARENA_REHEARSAL=1`` says the
    same without this package."""
    return os.environ.get("TORCHARENA_REHEARSAL") == "1"


def enabled() -> bool:
    """Whether this process's CUDA memory comes from the arena."""
    return current.allocator is not None


def needs_enabled(what: str) -> None:
    """Raises RuntimeError where `enable` has not been called."""
    if not enabled():
        raise RuntimeError(f"torcharena.{what}() comes after torcharena.enable()")


def takes_part(what: str) -> bool:
    """Whether the arena is enabled; False in a rehearsal of torch's own allocators, where
    ``what`` does nothing. Raises RuntimeError where `enable` has not been called."""
    if not enabled() and is_rehearsal():
        return False
    needs_enabled(what)
    return True


def needs_cuda() -> None:
    """Initialises CUDA, and with it the library's allocator, where it is not yet."""
    if not core().created():
        import torch

        torch.cuda.init()


def when_cuda_is_up(call: Callable[[], Any]) -> None:
    """Calls it now, or once CUDA is initialised; from within what torch calls then, after the
    rest of that. torch's own function would wait there for ever, for the lock that is held."""
    import torch

    if getattr(torch.cuda._tls, "is_initializing", False):
        torch.cuda._queued_calls.append((call, traceback.format_stack()))
        return
    lazily: Any = torch.cuda._lazy_call
    lazily(call)


def device_index(device: DeviceLike) -> int:
    """The CUDA ordinal of what torch would call a device; None is the current one.

    Raises ValueError for what is no CUDA device of this machine."""
    import torch

    if device is None:
        return torch.cuda.current_device() if cuda_is_initialized() else 0
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        try:
            named: Any = torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(
                f"device={device!r}: an int, or a name such as 'cuda:0'"
            ) from None
        if named.type != "cuda":
            raise ValueError(f"device={device}: torcharena manages CUDA devices")
        index = device_index(None) if named.index is None else int(named.index)
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        there = (
            f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0" if count else "none"
        )
        raise ValueError(f"device={device}: the CUDA devices here are {there}")
    return index
