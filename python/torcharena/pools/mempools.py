"""torch's `MemPool` objects over a region of the arena, one for each device.

torch's own allocator asks the arena for segments, and splits and caches them. What of it is
torch's business, and what its releases get wrong, is in this file."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from ..loading import core

__all__ = ["MemPools", "why_unfit"]

# torch calls into them for as long as the process lives.
_forever: list[Any] = []


def why_unfit(torch: Any) -> str:
    """Why pools cannot be had from this torch; empty where they can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} has no CUDA"
    if not hasattr(torch.cuda, "MemPool"):
        return f"torch {torch.__version__} has no torch.cuda.MemPool; 2.7 has"
    backend = torch._C._cuda_getAllocatorBackend()
    if backend == "cudaMallocAsync":
        return "backend:cudaMallocAsync in PYTORCH_ALLOC_CONF has no pools; leave it out"
    if backend != "native":
        return "another allocator was installed by change_current_allocator(): remove that"
    return ""


class MemPools:
    """Of the region of this number."""

    def __init__(self, number: int) -> None:
        import torch

        self._torch = torch
        library = core()
        self.allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(
            library.library_path(), f"ta_mempool_alloc_{number}", "ta_mempool_free"
        )
        _forever.append(self.allocator)
        self._of_device: dict[int, Any] = {}
        self._named: set[int] = set()  # devices whose pool's id others know
        # torch 2.7 asks by thread which pool is meant, and so takes one at a time; what it
        # gives back by that rule it may never have had from us, so there it gives back nothing.
        self._by_thread = hasattr(torch._C, "_MemPoolContext")

    def devices(self) -> list[int]:
        """The current one, and all that this process has a context on."""
        cuda = self._torch.cuda
        current = cuda.current_device()
        if self._by_thread:
            return [current]
        there = getattr(self._torch._C, "_cuda_hasPrimaryContext", None)
        others = range(cuda.device_count()) if there is not None else ()
        return [current, *(i for i in others if i != current and there(i))]

    def route(self) -> contextlib.ExitStack:
        """This thread's allocations come from here until the stack is closed."""
        stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.push(stack)
            for device in self.devices():
                stack.enter_context(
                    self._torch.cuda.use_mem_pool(self._pool(device), device)
                )
            undo.pop_all()
        return stack

    def _pool(self, device: int) -> Any:
        pool = self._of_device.get(device)
        if pool is None:
            with self._torch.cuda.device(device):  # a pool is of the one that is current
                pool = self._torch.cuda.MemPool(self.allocator.allocator())
            # Its end aborts the process while a graph uses it too, as at the interpreter's
            # end: it has none unless `_drop` found that it may.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
            self._of_device[device] = pool
        return pool

    def id(self) -> tuple[int, int]:
        """The current device's, for `torch.cuda.graph(pool=)`. RuntimeError in torch 2.7."""
        if self._by_thread:
            raise RuntimeError(
                "torch 2.7 captures a graph beside a pool's own memory: torch 2.9 and later "
                "capture into it"
            )
        device = self._torch.cuda.current_device()
        self._named.add(device)
        found: tuple[int, int] = self._pool(device).id
        return found

    def shed(self, all_of_it: bool = False) -> None:
        """Whole segments in torch's cache go back to the arena, which gives them to the driver.

        torch does that only at a pool's end: the pool ends, its live tensors stay, and the
        next one is new. What is free in segments beside live tensors is then lost until those
        die, so it is done where more is won; with ``all_of_it`` where anything is."""
        if self._by_thread:
            return
        for device, pool in list(self._of_device.items()):
            if device in self._named or pool.use_count() != 1:
                continue
            segments = self._torch.cuda.memory_snapshot(pool.id)
            whole = sum(s["total_size"] for s in segments if not s["active_size"])
            beside = sum(
                s["total_size"] - s["active_size"] for s in segments if s["active_size"]
            )
            if whole > (0 if all_of_it else beside):
                del self._of_device[device]
                self._drop(pool)

    def _drop(self, pool: Any) -> None:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(pool))
