"""Tensors of the simulated GPU as what they are: bytes of this process.

For `values`, which computes them, and `guessing`, which makes them up. `Simulated` has the
functions by which the preloaded library touches few of those bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

__all__ = [
    "FLOATS",
    "WIDEST",
    "Simulated",
    "is_dense",
    "is_float",
    "tensors_in",
    "view_of",
]

WIDEST = 8  #: bytes of an element
_VIEWS = 8192  # that are kept: parameters and their states come again every step
#: Types of floats and complex numbers.
FLOATS = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
)
_views: dict[Any, torch.Tensor] = {}


def tensors_in(values: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among arguments or results, lists and tuples included."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            tensors_in(value, found)
    return found


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOATS


def is_dense(tensor: torch.Tensor) -> bool:
    """Its elements, in some order of the dimensions, lie side by side."""
    if tensor.is_contiguous():
        return True
    next_to = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != next_to:
                return False
            next_to *= size
    return True


def view_of(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same bytes as a tensor of the simulated GPU. It is nobody's own:
    the next that asks for the same bytes in the same shape gets it too."""
    storage = tensor.untyped_storage()
    key = (
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        storage.nbytes(),
        tensor.storage_offset(),
    )
    view = _views.get(key)
    if view is not None and not tensor.is_conj():
        return view
    if torch.is_inference_mode_enabled():  # later, others may write to it outside
        with torch.inference_mode(False):
            view = _view(tensor)
    else:
        view = _view(tensor)
    if not (tensor.is_conj() or tensor.numel() == 0):
        if len(_views) >= _VIEWS:
            _views.clear()
        _views[key] = view
    return view


def _view(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 0:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
    storage = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), torch.device("cpu"), storage.nbytes()
    )
    view = torch.empty((0,), dtype=tensor.dtype, device="cpu").set_(
        memory, tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    if tensor.is_conj():
        view = view.conj()
    return view


class Simulated:
    """Which contents are kept, and the library's own functions; None where it is not
    preloaded. ``limit``: elements up to which floats are kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.skip = self._function("ta_simcuda_skip_above", ctypes.c_size_t)
        self.device_skip = self._function("ta_simcuda_device_skip_above", ctypes.c_size_t)
        self.own_modes = self._function("ta_simcuda_own_modes", ctypes.c_int)
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.touched = self._function(
            "ta_simcuda_copy_touched", address, address, size, gives=size
        )
        self.zero = self._function("ta_simcuda_zero", address, size, gives=ctypes.c_int)

    @staticmethod
    def _function(name: str, *takes: Any, gives: Any = None) -> Any:
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function.argtypes, function.restype = list(takes), gives
        return function

    def known(self, tensor: torch.Tensor) -> bool:
        """True where the contents are kept: integers, booleans, small floats, the CPU's."""
        if not tensor.is_cuda:
            return True
        floats = tensor.dtype in FLOATS
        if floats and tensor.numel() > self.limit:
            return False
        if tensor.layout is not torch.strided or tensor._is_zerotensor():
            return False  # the latter: forward derivatives' zeros, which have no memory
        if tensor.is_nested:  # of no shape: its kernels are not the CPU's to do
            return False
        if not floats:
            return True
        return bool(
            tensor.untyped_storage().nbytes() <= self.limit * tensor.element_size()
        )

    def zeroed(self, tensor: torch.Tensor) -> bool:
        """Zeros need no computing; large ones are made by giving their pages back."""
        size = tensor.numel() * tensor.element_size()
        if not tensor.is_cuda or not tensor.is_contiguous():
            return False
        if size <= self.limit * WIDEST:
            ctypes.memset(tensor.data_ptr(), 0, size)
            return True
        return bool(self.zero is not None and self.zero(tensor.data_ptr(), size) == 0)
