"""Memory of the host for tensors that the GPU uses: pages of the arena, or pinned memory.

With `spill` the arena's own pages: CUDA tensors whose bytes are on the host, in a region that is
at home there, counted to the byte with all other host memory. Where the driver makes no such
pages, plain pinned memory of torch's."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..loading import core
from ..state import needs_cuda, needs_enabled
from . import regions, spilling

if TYPE_CHECKING:
    import torch

__all__ = ["HostTensors", "host_tensors"]

_PAGE = 0  # the default of regions, 32 MiB


def host_tensors(what: str, name: str) -> HostTensors:
    """For the function ``what``; ``name`` is of the region.

    Raises RuntimeError where the arena is not enabled, and where it could use host memory and
    was not allowed any."""
    needs_enabled(what)
    needs_cuda()
    if spilling.on():
        return ArenaTensors(name)
    import torch

    found = core().probe(torch.cuda.current_device())
    if found["vmm"] and found["host_pages"]:
        spilling.needs_host(what)
    return PinnedTensors()


class HostTensors:
    """Where tensors on the host come from."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same device, type, shape and strides whose bytes are on the host, for
        work on the current stream. Raises torch.OutOfMemoryError where there is no more."""
        raise NotImplementedError

    def flat(self, size: int, device: torch.device) -> torch.Tensor:
        """``size`` bytes on the host, to copy to and from on the current stream. Raises
        torch.OutOfMemoryError where there is no more."""
        raise NotImplementedError

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are on the host, by `like`."""
        raise NotImplementedError

    def used_by(self, flat: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """The stream reads it too."""
        raise NotImplementedError


class ArenaTensors(HostTensors):
    """In a region of the arena."""

    def __init__(self, name: str) -> None:
        self.number = regions.open_region(name, _PAGE, on_host=True)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        with regions.inside(self.number):
            return torch.empty_like(tensor, memory_format=torch.preserve_format)

    def flat(self, size: int, device: torch.device) -> torch.Tensor:
        import torch

        library = core()
        before = library.region_enter(self.number)
        try:
            return torch.empty(size, dtype=torch.uint8, device=device)
        finally:
            library.region_enter(before)

    def holds(self, tensor: torch.Tensor) -> bool:
        return bool(core().region_of(tensor.data_ptr())[0] == self.number)

    def used_by(self, flat: torch.Tensor, stream: torch.cuda.Stream) -> None:
        flat.record_stream(stream)


class PinnedTensors(HostTensors):
    """In pinned memory, which the GPU reaches at the same addresses."""

    def __init__(self) -> None:
        self._there: weakref.WeakValueDictionary[int, _Bytes] = (
            weakref.WeakValueDictionary()
        )

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        size = tensor.untyped_storage().nbytes()
        held = _Bytes(_pinned(size), size)
        # By a copy torch's cache of pinned memory knows the stream: its next user waits for it.
        held.memory[:1].to(tensor.device, non_blocking=True)
        self._there[held.address] = held
        flat: Any = torch.as_tensor(held, device=tensor.device)
        found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found.set_(flat.untyped_storage(), 0, tensor.size(), tensor.stride())
        return found

    def flat(self, size: int, device: torch.device) -> torch.Tensor:
        return _pinned(size)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() in self._there

    def used_by(self, flat: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """torch's own cache of pinned memory waits for the copies."""


def _pinned(size: int) -> torch.Tensor:
    import torch

    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise torch.OutOfMemoryError(f"out of pinned host memory: {error}") from None


class _Bytes:
    """Pinned bytes, as torch takes foreign CUDA memory."""

    def __init__(self, memory: torch.Tensor, size: int) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }
