"""Who is measured: what users of PyTorch can pick, the arena, and a plug-in that does nothing.

Each runs in a process of its own: `environment` is that process's, `install` is called in it
before anything allocates, and `caps` and `room` reach each contender by its own means."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .building import ROOT, build_floor, compiler
from .machine import simulated

__all__ = [
    "CONTENDERS",
    "NAMES",
    "Contender",
    "environment",
    "install",
    "out_of_memory",
    "pick",
    "why_not",
]

MIB = 1 << 20
GIB = 1 << 30
Books = Callable[[], dict[str, Any]]  # peaks in bytes, what the contender can tell


@dataclass(frozen=True)
class Contender:
    """``settings``: of PYTORCH_CUDA_ALLOC_CONF."""

    name: str
    what: str
    settings: str = ""
    torch_counts: bool = True  # torch's statistics work
    capped: bool = True  # can be held under a cap


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("native", "PyTorch's own allocator"),
        Contender(
            "expandable", "the same, expandable_segments:True", "expandable_segments:True"
        ),
        Contender(
            "async", "cudaMallocAsync, the driver's pool", "backend:cudaMallocAsync"
        ),
        Contender("rmm_pool", "RMM's pool", torch_counts=False),
        Contender(
            "rmm_arena", "RMM's arena, a fixed block of memory", torch_counts=False
        ),
        Contender("arena", "torcharena"),
        Contender(
            "floor", "a plug-in that does nothing", torch_counts=False, capped=False
        ),
    )
}
NAMES = tuple(CONTENDERS)


def environment(name: str) -> dict[str, str]:
    """The child's: no setting of ours or of torch's allocator leaks in from outside."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        and key not in ("TORCHARENA_ENABLE", "TORCHARENA_LIMIT", "TORCHARENA_RECORD")
        and key not in ("TORCHARENA_PAGE", "TORCHARENA_SLACK", "TORCHARENA_FALLBACK")
        and key not in ("TORCHARENA_SPILL",)
    }
    if CONTENDERS[name].settings:
        # The newer name alone is not read before torch 2.9, the older one still is by all.
        kept["PYTORCH_CUDA_ALLOC_CONF"] = CONTENDERS[name].settings
    kept["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return kept


def why_not(name: str) -> str:
    """Why it cannot run here; empty where it can."""
    if name.startswith("rmm"):
        if simulated():
            return "it brings a CUDA runtime of its own, which needs a real driver"
        if importlib.util.find_spec("rmm") is None:
            return "rmm is not installed (pip install rmm-cu13)"
    if name == "floor" and compiler() is None:
        return "there is no C compiler to build it"
    return ""


def pick(
    names: Iterable[str] | None, among: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Of ``among`` those named, all for None: who can run here, and why others cannot. Raises
    ValueError for a name that is not there."""
    among = list(among)
    wanted = among if names is None else list(names)
    for name in wanted:
        if name not in among:
            raise ValueError(f"{name}: not one of {', '.join(among)}")
    reasons = {name: why_not(name) for name in wanted}
    return (
        [name for name in wanted if not reasons[name]],
        {name: why for name, why in reasons.items() if why},
    )


# --- in the child ------------------------------------------------------------------------

_kept: list[Any] = []  # what must live as long as the process


def install(name: str, cap: int | None = None, room: int = 8 * GIB) -> Books:
    """Makes ``name`` this process's allocator, to take at most ``cap`` bytes. ``room`` is what
    those take at once that cannot grow. Returns what tells its peaks later."""
    if name == "arena":
        import torcharena

        torcharena.enable(limit=cap)
        return torch_books
    if name in ("native", "expandable", "async"):
        if cap is not None:
            import torch

            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(cap / total)
        return torch_books
    if cap is not None and not CONTENDERS[name].capped:
        raise ValueError(f"{name} has no cap")
    return floor() if name == "floor" else rmm_books(name, cap, room)


def torch_books() -> dict[str, Any]:
    """By torch's own statistics."""
    import torch

    stats = torch.cuda.memory_stats()
    return {
        "requested": stats.get("requested_bytes.all.peak", 0),
        "allocated": stats.get("allocated_bytes.all.peak", 0),
        "reserved": stats.get("reserved_bytes.all.peak", 0),
        "retries": stats.get("num_alloc_retries", 0),
    }


def floor() -> Books:
    """Its blocks are no memory: they must not be touched."""
    import torch

    path = str(build_floor())
    plug = torch.cuda.memory.CUDAPluggableAllocator(path, "floor_alloc", "floor_free")
    torch.cuda.memory.change_current_allocator(plug)
    _kept.append(plug)
    return dict


def rmm_books(name: str, cap: int | None, room: int) -> Books:
    """Its pool grows from nothing; its arena takes its memory, the cap or ``room``, at once."""
    import rmm
    import torch
    from rmm.allocators.torch import rmm_torch_allocator

    upstream = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
    if name == "rmm_pool":
        whole = None if cap is None else cap // 256 * 256
        resource = rmm.mr.PoolMemoryResource(
            upstream, initial_pool_size=2 * MIB, maximum_pool_size=whole
        )
    else:
        resource = rmm.mr.ArenaMemoryResource(upstream, arena_size=cap or room)
    rmm.mr.set_current_device_resource(resource)
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    _kept.extend([upstream, resource, rmm_torch_allocator])
    return lambda: {"reserved": upstream.allocation_counts.peak_bytes}


def out_of_memory(error: BaseException) -> bool:
    """True for what says that memory ran out, however the contender says it."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, MemoryError)) and (
        "out_of_memory" in text or "Maximum pool size exceeded" in text
    )
