"""torch's `MemPool` objects over a region of the arena, one for each device.

torch's own allocator asks the arena for segments, and splits and caches them. What of it is
torch's business, and what its releases get wrong, is in this file."""

from __future__ import annotations

import contextlib
import ctypes
import threading
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
        return (
            "another allocator was installed by change_current_allocator(): remove that"
        )
    return ""


class _Alone:
    """One thread at a time, which torch 2.7 needs: another one's allocations would meet an
    assertion of torch's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0

    def enter(self) -> None:
        with self._lock:
            if self._thread not in (0, threading.get_ident()):
                raise RuntimeError(
                    "torcharena.pool(): another thread is inside a pool, and torch 2.7 has room "
                    "for one; torch 2.9 has for any number"
                )
            self._thread = threading.get_ident()

    def leave(self) -> None:
        self._thread = 0


_alone = _Alone()


class MemPools:
    """Of the region of this number."""

    def __init__(self, number: int) -> None:
        import torch

        self._torch: Any = torch
        library = core()
        self.allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(
            library.library_path(), f"ta_mempool_alloc_{number}", "ta_mempool_free"
        )
        _forever.append(self.allocator)
        # By device. torch lets one thread at a time allocate in each, and no capture beside it.
        self._idle: dict[int, list[Any]] = {}
        self._graphs: dict[int, Any] = {}
        self._lock = threading.Lock()
        # torch 2.7 asks by thread which pool is meant, and so takes one at a time; what it
        # gives back by that rule it may never have had from us, so there it gives back nothing.
        self._by_thread = hasattr(torch._C, "_MemPoolContext")

    def devices(self) -> list[int]:
        """The current one, and all that this process has a context on."""
        cuda = self._torch.cuda
        current = cuda.current_device()
        if self._by_thread:
            return [current]
        in_use: Any = getattr(self._torch._C, "_cuda_hasPrimaryContext", lambda _: False)
        others = (i for i in range(cuda.device_count()) if i != current)
        return [current, *(i for i in others if in_use(i))]

    def route(self) -> contextlib.ExitStack:
        """This thread's allocations come from here until the stack is closed."""
        with contextlib.ExitStack() as stack:
            if self._by_thread:
                _alone.enter()
                stack.callback(_alone.leave)
            for device in self.devices():
                pool = self._take(device)
                stack.callback(self._put, device, pool)
                stack.enter_context(self._torch.cuda.use_mem_pool(pool, device))
            return stack.pop_all()

    def _take(self, device: int) -> Any:
        with self._lock:
            idle = self._idle.setdefault(device, [])
            return idle.pop() if idle else self._new(device)

    def _put(self, device: int, pool: Any) -> None:
        with self._lock:
            self._idle[device].append(pool)

    def _new(self, device: int) -> Any:
        with self._torch.cuda.device(device):  # a pool is of the one that is current
            pool = self._torch.cuda.MemPool(self.allocator.allocator())
        # Its end aborts the process while a graph uses it too, or another pool is in use, as
        # at the interpreter's end: it has none.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        return pool

    def id(self) -> tuple[int, int]:
        """The current device's, for `torch.cuda.graph(pool=)`. RuntimeError in torch 2.7."""
        if self._by_thread:
            raise RuntimeError(
                "torch 2.7 captures a graph beside a pool's own memory: torch 2.9 and later "
                "capture into it"
            )
        device = self._torch.cuda.current_device()
        with self._lock:
            if device not in self._graphs:
                self._graphs[device] = self._new(device)
            found: tuple[int, int] = self._graphs[device].id
            return found

    def shed(self, all_of_it: bool = False) -> None:
        """Whole segments in torch's cache go back to the arena, which gives them to the driver,
        with the rest of torch's cache; those of graphs stay.

        torch does that for a pool that nobody uses: this one is given up, its live tensors
        stay, and the next one is new. What is free in segments beside live tensors is then
        lost until those die, so it is done where more is won; with ``all_of_it`` where
        anything is. (The end of torch's object would do it too, and ends the process where
        another thread is inside a pool or captures.)"""
        if self._by_thread:
            return
        given_up = False
        with self._lock:
            for device, idle in self._idle.items():
                for pool in [one for one in idle if self._worth(one, all_of_it)]:
                    idle.remove(pool)
                    self._torch._C._cuda_releasePool(device, pool.id)
                    given_up = True
        if given_up:
            self._torch.cuda.empty_cache()

    def _worth(self, pool: Any, all_of_it: bool) -> bool:
        if pool.use_count() != 1:
            return False
        segments = self._torch.cuda.memory_snapshot(pool.id)
        whole = sum(s["total_size"] for s in segments if not s["active_size"])
        beside = sum(
            s["total_size"] - s["active_size"] for s in segments if s["active_size"]
        )
        return bool(whole > (0 if all_of_it else beside))
