"""Memory events for torch.profiler: `profile_memory=True`, and `export_memory_timeline`.

torch's profiler is told of allocations by torch's own allocator. While one is on, the C
library tells it (csrc/torch/profile.c); here the functions that begin and end one are
followed. torch.autograd.profiler, which torch.profiler stands on, holds them by name."""

from __future__ import annotations

import threading
from typing import Any

from ..loading import core, warn
from ..state import cuda_is_initialized, when_cuda_is_up

__all__ = ["install"]


class _Profilers:
    """How many are on, and how many of them the C library knows of: others wait for CUDA."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on = self.told = 0

    def _tell(self) -> None:
        with self.lock:
            library = core()
            while self.told < self.on:
                try:
                    library.profile(True)
                except library.Error as error:
                    warn(
                        "torcharena: torch.profiler will have no memory events of the GPU: "
                        f"{error}. torcharena.report() and torcharena.timeline() "
                        "work"
                    )
                    self.on = self.told
                    return
                self.told += 1
            while self.told > self.on:
                library.profile(False)
                self.told -= 1

    def change(self, by: int) -> None:
        with self.lock:
            self.on = max(0, self.on + by)
        if cuda_is_initialized() or by > 0:
            when_cuda_is_up(self._tell)


_profilers = _Profilers()


def install(torch: Any) -> None:
    """Follows the two functions."""
    module = torch.autograd.profiler
    enable = getattr(module, "_enable_profiler", None)
    disable = getattr(module, "_disable_profiler", None)
    if enable is None or disable is None:
        return

    def begin(*args: Any, **kwargs: Any) -> Any:
        _profilers.change(1)
        try:
            return enable(*args, **kwargs)
        except BaseException:
            _profilers.change(-1)
            raise

    def end(*args: Any, **kwargs: Any) -> Any:
        try:
            return disable(*args, **kwargs)
        finally:
            _profilers.change(-1)

    module._enable_profiler, module._disable_profiler = begin, end
