"""torcharena: a memory allocator for PyTorch on NVIDIA GPUs.

    import torcharena
    torcharena.enable(limit="16GiB")   # before the first CUDA allocation

Importing the package changes nothing and imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .caps.caps import device_memory, limit, set_limit
from .caps.table import Limit, Limits, limits
from .installing import enable
from .recording import Recording, mark, record
from .reports.phases import phase
from .spill.regions import region, sleep, wake_up
from .spill.spilling import empty_cache, step
from .state import enabled, is_rehearsal
from .stats import memory_stats, memory_summary

if TYPE_CHECKING:
    from .batches.batches import find_batch_size
    from .batches.search import BatchSize
    from .integrations.figures import tqdm_postfix
    from .integrations.lending import cupy_allocator, rmm_resource
    from .pools.pools import Pool, pool
    from .rehearsal.api import rehearse
    from .reports.lines import stacks
    from .reports.notebook import Watch, watch
    from .reports.out_of_memory import free_exceptions, held_by_exceptions, on_oom
    from .reports.reporting import Report, report
    from .reports.snapshots import snapshot
    from .reports.timelines import Timeline, timeline
    from .reports.tracking import Tracking, track
    from .selftest import test
    from .spill.auto_offloading import AutoOffload, auto_offload
    from .spill.offload_optimizers import offload_optimizer, onload_optimizer
    from .spill.offload_saved import offload_activations

__version__ = "0.1.0"

__all__ = [
    "AutoOffload",
    "BatchSize",
    "Limit",
    "Limits",
    "Pool",
    "Recording",
    "Report",
    "Timeline",
    "Tracking",
    "Watch",
    "__version__",
    "auto_offload",
    "cupy_allocator",
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
    "pool",
    "record",
    "region",
    "rehearse",
    "report",
    "rmm_resource",
    "set_limit",
    "sleep",
    "snapshot",
    "stacks",
    "step",
    "test",
    "timeline",
    "tqdm_postfix",
    "track",
    "wake_up",
    "watch",
]

# Imported when first used.
_LATE = {
    "BatchSize": "batches.search",
    "Report": "reports.reporting",
    "Timeline": "reports.timelines",
    "Tracking": "reports.tracking",
    "Watch": "reports.notebook",
    "auto_offload": "spill.auto_offloading",
    "AutoOffload": "spill.auto_offloading",
    "cupy_allocator": "integrations.lending",
    "find_batch_size": "batches.batches",
    "free_exceptions": "reports.out_of_memory",
    "held_by_exceptions": "reports.out_of_memory",
    "offload_activations": "spill.offload_saved",
    "offload_optimizer": "spill.offload_optimizers",
    "on_oom": "reports.out_of_memory",
    "onload_optimizer": "spill.offload_optimizers",
    "pool": "pools.pools",
    "Pool": "pools.pools",
    "rehearse": "rehearsal.api",
    "report": "reports.reporting",
    "rmm_resource": "integrations.lending",
    "snapshot": "reports.snapshots",
    "stacks": "reports.lines",
    "test": "selftest",
    "timeline": "reports.timelines",
    "tqdm_postfix": "integrations.figures",
    "track": "reports.tracking",
    "watch": "reports.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext torcharena``: the magics ``%arena`` and ``%%arena``."""
    from .reports.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext torcharena``."""
    from .reports.notebook import unload

    unload(shell)
