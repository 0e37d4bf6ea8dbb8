"""What torch, for the process or the thread, is set to do: `Switches` keeps it and puts it
back. For `rollback`."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

__all__ = ["Switches"]

_Switch = tuple[Callable[[], Any], Callable[[Any], Any]]


class Switches:
    """How they are set now; `restore` sets those that are otherwise, as often as one likes."""

    def __init__(self) -> None:
        self._kept: list[tuple[_Switch, Any]] = []
        for get, put in _switches():
            # A program that mixes two ways of setting a precision cannot ask the older one.
            with contextlib.suppress(RuntimeError):
                self._kept.append(((get, put), get()))

    def restore(self) -> None:
        for (get, put), kept in self._kept:
            with contextlib.suppress(RuntimeError):
                if get() != kept:
                    put(kept)


def _switches() -> list[_Switch]:
    """The current device last: a stream's is made current with it."""
    import torch

    from ..state import cuda_is_initialized

    cuda = torch.backends.cuda
    found: list[_Switch] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_default_device, torch.set_default_device),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda kept: torch.set_anomaly_enabled(*kept),
        ),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda kept: torch.use_deterministic_algorithms(kept[0], warn_only=kept[1]),
        ),
        (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        (cuda.math_sdp_enabled, cuda.enable_math_sdp),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    ]
    for name in ("enabled", "benchmark", "deterministic", "allow_tf32"):
        found.append(_attribute(torch.backends.cudnn, name))
    for kind in ("cuda", "cpu"):
        found.append(_autocast(kind))
    if cuda_is_initialized():
        found.append((torch.cuda.current_stream, torch.cuda.set_stream))
        found.append((torch.cuda.current_device, torch.cuda.set_device))
    return found


def _attribute(module: Any, name: str) -> _Switch:
    return (lambda: getattr(module, name), lambda kept: setattr(module, name, kept))


def _autocast(kind: str) -> _Switch:
    import torch

    def put(kept: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(kind, kept[0])
        torch.set_autocast_dtype(kind, kept[1])

    return (
        lambda: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
        put,
    )


def _default_device() -> Any:
    """None where none was set."""
    import torch

    here: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    context = getattr(here, "device_context", None)
    return None if context is None else context.device
