"""torch's memory pools, and sharing of tensors between processes, over the arena.

`torch.cuda.MemPool` is a C++ object that a plug-in allocator cannot serve; the class here
does the same through the pool's begin, end and release. CUDA tensors are
shared with other processes by torch's own functions, over handles of ours
(csrc/torch/share.c)."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from .. import state
from ..loading import core

__all__ = ["Handle", "MemPool", "install", "received"]

_torch: Any = None
_torch_share: Any = None


class MemPool:
    """A pool of memory of its own: `with torch.cuda.use_mem_pool(pool)` allocates from it.

    Holds its memory until it is dropped and its blocks are freed, on the device that was
    current when it was made; on another device, as torch's own pool, only inside each
    ``use_mem_pool``. An ``allocator`` of one's
    own, ``use_on_oom`` and ``no_split`` are refused with RuntimeError."""

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self._held = False
        if allocator is not None:
            raise RuntimeError(
                "torch.cuda.MemPool(allocator=...) is not available under torcharena, which "
                "is the process's one CUDA allocator: leave the argument out, or do not "
                "enable torcharena"
            )
        if use_on_oom or no_split:
            raise RuntimeError(
                "torch.cuda.MemPool(use_on_oom=, no_split=) are not available under "
                "torcharena: a pool's memory stays its own until the pool is dropped (del "
                "pool; torch.cuda.empty_cache()), and no block is split off a segment: "
                "leave them out"
            )
        memory = _torch.cuda.memory
        _torch.cuda._lazy_init()
        self.device = _torch.cuda.current_device()
        self._id = tuple(_torch.cuda.graph_pool_handle())
        # Begun once and not released: the pool lives as long as this object.
        begin = _first_of(
            memory, "_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateToPool"
        )
        end = _first_of(
            memory, "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"
        )
        begin(self.device, self._id)
        end(self.device, self._id)
        self._held = True

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, two ints."""
        return self._id

    @property
    def allocator(self) -> None:
        """The pool's own allocator: it has none."""
        return None

    def use_count(self) -> int:
        """How often the pool is held: by this object."""
        return 1

    def snapshot(self, include_traces: bool = True) -> Any:
        """The pool's segments, as `torch.cuda.memory_snapshot`."""
        return _torch._C._cuda_memorySnapshot((*self._id, include_traces))["segments"]

    def __del__(self) -> None:
        if self._held:
            self._held = False
            try:
                _torch.cuda.memory._cuda_releasePool(self.device, self._id)
            except (
                RuntimeError,
                AttributeError,
                TypeError,
            ):  # the interpreter is going, and its CUDA with it
                return


def _first_of(module: ModuleType, *names: str) -> Any:
    """The first of the names that this torch has: they changed from one to the next."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


class MemPoolContext:
    """torch 2.7's: remembers the active pool and, when dropped, the one before it.

    It routes nothing, there as here: `torch.cuda.use_mem_pool` does."""

    _active = threading.local()

    def __init__(self, pool: MemPool) -> None:
        self._before = self.active_pool()
        MemPoolContext._active.pool = pool

    @staticmethod
    def active_pool() -> MemPool | None:
        """This thread's active pool."""
        return getattr(MemPoolContext._active, "pool", None)

    def __del__(self) -> None:
        MemPoolContext._active.pool = self._before


class Handle(bytes):
    """What names shared memory to another process; it is looked at where it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return received, (bytes(self),)


def received(handle: bytes) -> bytes:
    """A handle that another process sent. Raises RuntimeError where it means nothing."""
    if not state.enabled():
        raise RuntimeError(
            "this CUDA tensor comes from a process that runs torcharena, and this one does "
            "not: call torcharena.enable() at the start of what the process runs, or start "
            "it with TORCHARENA_ENABLE=1 in its environment; or send tensor.cpu()"
        )
    return handle


def _share_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
    said = core().torch_status().get("shareIpcHandle", "not in this library")
    if said != "ok":
        raise RuntimeError(
            "a CUDA tensor cannot be sent to another process under torcharena with this "
            f"torch ({said}): send tensor.cpu(), or use torch.distributed"
        )
    told = list(_torch_share(self, *args, **kwargs))
    if told[1] is not None:
        told[1] = Handle(told[1])
    return tuple(told)


def install(torch: ModuleType) -> None:
    """Puts them in place."""
    global _torch, _torch_share
    _torch = torch
    if hasattr(torch.cuda.memory, "MemPool"):
        torch.cuda.memory.MemPool = MemPool
        torch.cuda.MemPool = MemPool
    if hasattr(torch.cuda.memory, "MemPoolContext"):
        torch.cuda.memory.MemPoolContext = MemPoolContext
        torch.cuda.MemPoolContext = MemPoolContext
    _torch_share = torch.UntypedStorage._share_cuda_
    torch.UntypedStorage._share_cuda_ = _share_cuda
