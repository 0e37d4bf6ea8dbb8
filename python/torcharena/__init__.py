"""torcharena: a memory allocator for PyTorch on NVIDIA GPUs.

    import torcharena
    torcharena.enable(limit="16GiB")   # before the first CUDA allocation

Importing the package changes nothing and imports no torch."""

from __future__ import annotations

from .caps import device_memory, limit, set_limit
from .installing import enable
from .recording import Recording, mark, record
from .state import enabled
from .stats import memory_stats, memory_summary

__version__ = "0.1.0"

__all__ = [
    "Recording",
    "__version__",
    "device_memory",
    "enable",
    "enabled",
    "limit",
    "mark",
    "memory_stats",
    "memory_summary",
    "record",
    "set_limit",
]
