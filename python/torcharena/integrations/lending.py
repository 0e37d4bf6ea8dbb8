"""The arena's memory for other libraries in the process: CuPy and RMM.

One allocator, one cap, one report for all of them, and no second cache that holds what torch
could use. Each function imports its library when it is called."""

from __future__ import annotations

import ctypes
from typing import Any

from ..loading import core
from ..state import device_index, needs_enabled

__all__ = ["cupy_allocator", "rmm_resource"]


class _Block:
    """Memory on a device for work on a stream; given back with the object."""

    __slots__ = ("_give_back", "address")

    def __init__(self, size: int, device: int, stream: int) -> None:
        import torch

        self.address = 0
        self._give_back = torch.cuda.caching_allocator_delete
        self.address = torch.cuda.caching_allocator_alloc(max(size, 1), device, stream)

    def __del__(self) -> None:
        if self.address:
            address, self.address = self.address, 0
            self._give_back(address)


def cupy_allocator(size: int) -> Any:
    """``size`` bytes of the arena as a ``cupy.cuda.MemoryPointer``, for CuPy's current device
    and stream: ``cupy.cuda.set_allocator(torcharena.cupy_allocator)``.

    An array that another stream uses, too, needs what CuPy's own pool asks for: that the
    stream is done before the array goes. Raises RuntimeError before `enable`, ImportError
    without CuPy, torch.OutOfMemoryError at the cap."""
    needs_enabled("cupy_allocator")
    import cupy

    device = cupy.cuda.runtime.getDevice()
    block = _Block(size, device, cupy.cuda.get_current_stream().ptr)
    memory = cupy.cuda.UnownedMemory(block.address, size, block, device)
    return cupy.cuda.MemoryPointer(memory, 0)


def _stream_of(stream: Any) -> int:
    """The handle of what RMM calls with."""
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(
        f"{type(stream).__name__} has no __cuda_stream__: torcharena.rmm_resource() needs "
        "RMM 25.02 or later"
    )


def rmm_resource(device: int | None = None) -> Any:
    """The arena as an ``rmm.mr.CallbackMemoryResource`` of one device, None: the current one:
    ``rmm.mr.set_current_device_resource(torcharena.rmm_resource())``. cuDF, cuML and what
    else allocates by RMM then share memory and cap with torch.

    Raises RuntimeError before `enable`, ImportError without RMM, ValueError for no CUDA device
    of this machine."""
    needs_enabled("rmm_resource")
    import rmm
    import torch

    index = device_index(device)
    hook = core().hooks()["record_stream"]
    uses = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(hook)

    def allocate(size: int, stream: Any = None) -> int:
        handle = _stream_of(stream)
        return int(torch.cuda.caching_allocator_alloc(max(size, 1), index, handle))

    def deallocate(address: int, size: int, stream: Any = None) -> None:
        # Work queued elsewhere than where it was allocated comes before the next use.
        uses(address, _stream_of(stream))
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
