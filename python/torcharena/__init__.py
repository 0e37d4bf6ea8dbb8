"""torcharena: a memory allocator for PyTorch on NVIDIA GPUs.

    import torcharena
    torcharena.enable(limit="16GiB")   # before the first CUDA allocation

Importing the package changes nothing and imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .caps import device_memory, limit, set_limit
from .installing import enable
from .limits_table import Limit, Limits, limits
from .recording import Recording, mark, record
from .state import enabled
from .stats import memory_stats, memory_summary

if TYPE_CHECKING:
    from .rehearsal.api import find_batch_size, is_rehearsal, rehearse

__version__ = "0.1.0"

__all__ = [
    "Limit",
    "Limits",
    "Recording",
    "__version__",
    "device_memory",
    "enable",
    "enabled",
    "find_batch_size",
    "is_rehearsal",
    "limit",
    "limits",
    "mark",
    "memory_stats",
    "memory_summary",
    "record",
    "rehearse",
    "set_limit",
]

_REHEARSALS = ("find_batch_size", "is_rehearsal", "rehearse")


def __getattr__(name: str) -> Any:
    """What only rehearsals need is imported when it is first used."""
    if name in _REHEARSALS:
        from .rehearsal import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
