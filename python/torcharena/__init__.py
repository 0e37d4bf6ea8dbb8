"""torcharena: a memory allocator for PyTorch on NVIDIA GPUs.

    import torcharena
    torcharena.enable(limit="16GiB")   # before the first CUDA allocation

Importing the package changes nothing and imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .caps import device_memory, limit, set_limit
from .installing import enable
from .limits_table import Limit, Limits, limits
from .phases import phase
from .recording import Recording, mark, record
from .regions import region, sleep, wake_up
from .spilling import empty_cache, step
from .state import enabled
from .stats import memory_stats, memory_summary

if TYPE_CHECKING:
    from .auto_offloading import AutoOffload, auto_offload
    from .batch_sizes import BatchSize
    from .batches import find_batch_size
    from .integrations.figures import tqdm_postfix
    from .lines import stacks
    from .notebook import Watch, watch
    from .offload_optimizers import offload_optimizer, onload_optimizer
    from .offload_saved import offload_activations
    from .out_of_memory import free_exceptions, held_by_exceptions, on_oom
    from .rehearsal.api import is_rehearsal, rehearse
    from .reporting import Report, report
    from .snapshots import snapshot
    from .timelines import Timeline, timeline
    from .tracking import Tracking, track

__version__ = "0.1.0"

__all__ = [
    "AutoOffload",
    "BatchSize",
    "Limit",
    "Limits",
    "Recording",
    "Report",
    "Timeline",
    "Tracking",
    "Watch",
    "__version__",
    "auto_offload",
    "device_memory",
    "empty_cache",
    "enable",
    "enabled",
    "find_batch_size",
    "free_exceptions",
    "held_by_exceptions",
    "is_rehearsal",
    "limit",
    "limits",
    "mark",
    "memory_stats",
    "memory_summary",
    "offload_activations",
    "offload_optimizer",
    "on_oom",
    "onload_optimizer",
    "phase",
    "record",
    "region",
    "rehearse",
    "report",
    "set_limit",
    "sleep",
    "snapshot",
    "stacks",
    "step",
    "timeline",
    "tqdm_postfix",
    "track",
    "wake_up",
    "watch",
]

# Imported when first used.
_LATE = {
    "BatchSize": "batch_sizes",
    "Report": "reporting",
    "Timeline": "timelines",
    "Tracking": "tracking",
    "Watch": "notebook",
    "auto_offload": "auto_offloading",
    "AutoOffload": "auto_offloading",
    "find_batch_size": "batches",
    "free_exceptions": "out_of_memory",
    "held_by_exceptions": "out_of_memory",
    "is_rehearsal": "rehearsal.api",
    "offload_activations": "offload_saved",
    "offload_optimizer": "offload_optimizers",
    "on_oom": "out_of_memory",
    "onload_optimizer": "offload_optimizers",
    "rehearse": "rehearsal.api",
    "report": "reporting",
    "snapshot": "snapshots",
    "stacks": "lines",
    "timeline": "timelines",
    "tqdm_postfix": "integrations.figures",
    "track": "tracking",
    "watch": "notebook",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext torcharena``: the magics ``%arena`` and ``%%arena``."""
    from .notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext torcharena``."""
    from .notebook import unload

    unload(shell)
