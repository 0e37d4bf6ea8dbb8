"""torcharena: a memory allocator for PyTorch on NVIDIA GPUs.

    import torcharena
    torcharena.enable(limit="16GiB")   # before the first CUDA allocation

Importing the package changes nothing and imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .caps import device_memory, limit, set_limit
from .installing import enable
from .phases import phase
from .recording import Recording, mark, record
from .state import enabled
from .stats import memory_stats, memory_summary

if TYPE_CHECKING:
    from .reporting import Report, report
    from .timelines import Timeline, timeline
    from .tracking import Tracking, track
    from .rehearsal.api import find_batch_size, is_rehearsal, rehearse

__version__ = "0.1.0"

__all__ = [
    "Recording",
    "Report",
    "Timeline",
    "Tracking",
    "__version__",
    "device_memory",
    "enable",
    "enabled",
    "find_batch_size",
    "is_rehearsal",
    "limit",
    "mark",
    "memory_stats",
    "memory_summary",
    "phase",
    "record",
    "rehearse",
    "report",
    "set_limit",
    "timeline",
    "track",
]

# Imported when first used.
_LATE = {
    "Report": "reporting",
    "Timeline": "timelines",
    "Tracking": "tracking",
    "find_batch_size": "rehearsal.api",
    "is_rehearsal": "rehearsal.api",
    "rehearse": "rehearsal.api",
    "report": "reporting",
    "timeline": "timelines",
    "track": "tracking",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
