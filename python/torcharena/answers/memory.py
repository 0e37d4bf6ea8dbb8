"""Makes torch.cuda.memory and torch.accelerator right over the arena.

torch looks its C functions up in torch._C at each call. Those that fail or answer 0 over a
plug-in allocator, because they return C++ objects that no hook can make, are replaced there
by functions of this file; every public function above them then works. What has no meaning
here raises a RuntimeError that names the remedy. `install` runs once, under `enable`'s lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .. import conf
from ..caps import table
from ..loading import core, pass_on, warn
from ..state import when_cuda_is_up
from . import checkpoints, snapshot, stats

__all__ = ["install", "mem_get_info", "replaced"]

_torch: Any = None
_original: dict[str, Any] = {}
_fractions: dict[int, float] = {}
_metadata = threading.local()

# What an unbounded history would take: an event is some tens of bytes.
_LONGEST_HISTORY = 1 << 20


class _History:
    """What `_record_memory_history` was last told."""

    enabled: str | None = None
    skip: frozenset[str] = frozenset()


def _device(index: int) -> int:
    count = _torch.cuda.device_count()
    if not 0 <= index < count:
        raise RuntimeError(
            f"Invalid device argument {index}: there are {count} CUDA devices"
        )
    return index


# --- numbers -----------------------------------------------------------------------------


def _memory_stats(device: int) -> dict[str, Any]:
    pass_on()
    library, newer = core(), _newer()
    raw = library.stats(_device(device))
    # A snapshot takes its time: only where a graph pool is there to be told of.
    pools = library.snapshot(device) if newer and raw["pool_arenas"] else ()
    return stats.nested(raw, newer=newer, segments=pools)


def _newer() -> bool:
    """Whether this torch's reports have the entries that 2.14 added."""
    return hasattr(_torch._C, "_cuda_memoryMetadataSupported")


def _reset_peak(device: int) -> None:
    core().reset_peaks(_device(device))


def _reset_accumulated(device: int) -> None:
    core().reset_accumulated(_device(device))


def mem_get_info(device: int) -> tuple[int, int]:
    """(bytes that can still be had, bytes in all): under a cap, of the cap."""
    library = core()
    device = _device(device)
    free, total = library.device_memory(device)
    caps = table.room(device)
    if not caps:
        return free, total
    return min([free, *(left for left, _ in caps)]), min(total, *(cap for _, cap in caps))


def _set_fraction(fraction: float, device: int) -> None:
    _, total = core().device_memory(_device(device))
    # All of the device is no cap: the driver refuses above it anyway.
    core().set_limit(device, "fraction", None if fraction >= 1 else int(total * fraction))
    _fractions[device] = fraction
    pass_on()


def _get_fraction(device: int) -> float:
    return _fractions.get(_device(device), 1.0)


# --- snapshots and history ---------------------------------------------------------------


def memory_snapshot(wanted: Sequence[Any] | None = None) -> dict[str, Any]:
    """``wanted``: None, or (pool, pool) and, from torch 2.14 on, whether with traces."""
    library = core()
    pool = (0, 0) if wanted is None else (int(wanted[0]), int(wanted[1]))
    with_traces = wanted is None or len(wanted) < 3 or bool(wanted[2])
    count = _torch.cuda.device_count()
    if not library.created():  # CUDA has not been used yet
        count, with_traces = 0, False
    events, runs = _at_one_moment(library, count, with_traces)
    traces: list[list[dict[str, Any]]] = []
    for device in range(count if with_traces else 0):
        mapped = snapshot.Mapped(
            (run["address"], run["address"] + run["size"]) for run in runs[device]
        )
        traces.append(snapshot.trace(events, device, mapped, _History.skip))
    pass_on()
    host: dict[str, Any] = {"host_segments": [], "host_traces": []} if _newer() else {}
    return host | {
        "segments": snapshot.segments((run for dev in runs for run in dev), pool),
        "device_traces": traces if with_traces else [[] for _ in range(count)],
        "allocator_settings": _settings(),
        "external_annotations": [],
    }


def _at_one_moment(
    library: ModuleType, count: int, with_traces: bool
) -> tuple[list[Any], list[list[Any]]]:
    """The history and what is mapped after its last event; other threads may allocate."""
    events: list[Any] = []
    for _ in range(8):
        seen = library.history_seen()
        events = list(library.history()) if with_traces else []
        runs = [list(library.snapshot(device)) for device in range(count)]
        if not with_traces or library.history_seen() == seen:
            break
    return events, runs


def _settings() -> dict[str, Any]:
    """What torch's viewer shows of the allocator's settings: there are none to turn."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": True,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
        "graph_capture_record_stream_reuse": False,
    }


def _with_cuda(call: Callable[[], Any]) -> None:
    """Now, or once CUDA is initialised."""
    when_cuda_is_up(call)


def _record_history(
    enabled: str | None,
    context: str | None = None,
    stacks: str = "python",
    max_entries: int = _LONGEST_HISTORY,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    if enabled not in (None, "state", "all"):
        raise RuntimeError(
            f"expected state to be 'state', 'all', or None, not {enabled!r}"
        )
    if record_pinned_host_memory or not record_cuda:
        raise RuntimeError(
            "torcharena records the history of CUDA memory alone: leave out "
            "record_pinned_host_memory and record_cuda"
        )
    library = core()
    if enabled is None:
        _with_cuda(library.history_stop)
        _History.enabled = None
        return
    if context is not None:
        warn(
            "torcharena: the memory history has no stack traces of its own (allocating never "
            "waits for Python); allocate inside `with torcharena.stacks():` for lines. "
            "context=None says that none are expected",
            stacklevel=5,
        )
    if _LONGEST_HISTORY < max_entries < sys.maxsize:  # that much is torch's default
        warn(
            f"torcharena: the memory history keeps the newest {_LONGEST_HISTORY:,} entries, "
            f"not {max_entries:,}",
            stacklevel=5,
        )
    if compile_context or global_record_annotations:
        warn(
            "torcharena: the memory history has neither compile_context nor "
            "global_record_annotations",
            stacklevel=5,
        )
    if clear_history or enabled == "state":
        _with_cuda(library.history_stop)
    if enabled == "all":
        longest = max(1, min(int(max_entries), _LONGEST_HISTORY))
        _with_cuda(lambda: library.history_start(longest))
    _History.enabled = enabled
    _History.skip = frozenset(skip_actions)


def _record_history_legacy(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    _record_history(
        "all" if enabled else None,
        "all" if record_context or trace_alloc_record_context else None,
        "python",
        trace_alloc_max_entries,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
        record_pinned_host_memory,
        record_cuda,
    )


def _history_enabled() -> bool:
    return _History.enabled is not None


def _allocation_traceback(address: int) -> None:
    return None


# --- what has no meaning here --------------------------------------------------------------


def _unavailable(what: str, remedy: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{what} is not available under torcharena: {remedy}")

    return refuse


def _enable_caching(value: bool) -> None:
    if not value:
        raise RuntimeError(
            "torcharena cannot be switched off in a running process: for memory straight "
            "from the driver run without torcharena.enable() and TORCHARENA_ENABLE"
        )


def _change_allocator(allocator: Any) -> None:
    raise RuntimeError(
        "torcharena is this process's CUDA allocator and PyTorch takes one: remove the call "
        "of change_current_allocator(), or do not enable torcharena"
    )


def _set_metadata(metadata: str) -> None:
    if metadata:
        warn(
            "torcharena: user metadata does not appear in the memory history; "
            "torcharena.mark(text) puts a mark into traces",
            stacklevel=5,
        )
    _metadata.text = metadata


def _get_metadata() -> str:
    return getattr(_metadata, "text", "")


def _annotate(address: int, metadata: str) -> None:
    warn(
        "torcharena: annotations of tensors do not appear in the memory history; "
        "torcharena.mark(text) puts a mark into traces",
        stacklevel=5,
    )


# The name since torch 2.9, and the one before.
_SETTINGS_FUNCTIONS = (
    "_accelerator_setAllocatorSettings",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
)


def _set_allocator_settings(text: str) -> None:
    idle = conf.without_meaning(text)
    if idle:
        raise RuntimeError(
            f"{', '.join(idle)}: without meaning under torcharena, and ignoring would be "
            "silent; settings that start with pinned_ work"
        )
    for name in _SETTINGS_FUNCTIONS:
        if name in _original:
            _original[name](text)
            return


def _check_pool(device: int, pool: tuple[int, int], expected: set[int]) -> bool:
    """Whether the pool's live blocks are exactly those at the expected addresses."""
    live = {
        block["address"]
        for run in core().snapshot(_device(device))
        if tuple(run["pool"]) == tuple(pool)
        for block in run["blocks"]
        if block["state"] == "live"
    }
    return live == set(expected)


# --- torch.accelerator ----------------------------------------------------------------------


def _accelerator_initialized() -> bool:
    return bool(_torch.cuda.is_initialized())


def _accelerator_empty_cache() -> None:
    _torch._C._cuda_emptyCache()


_REPLACED: dict[str, Callable[..., Any]] = {
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetPeakMemoryStats": _reset_peak,
    "_cuda_resetAccumulatedMemoryStats": _reset_accumulated,
    "_cuda_memorySnapshot": memory_snapshot,
    "_cuda_record_memory_history": _record_history,
    "_cuda_record_memory_history_legacy": _record_history_legacy,
    "_cuda_isHistoryEnabled": _history_enabled,
    "_cuda_allocationTraceback": _allocation_traceback,
    "_cuda_getMemoryFraction": _get_fraction,
    "_cuda_setMemoryFraction": _set_fraction,
    "_cuda_cudaCachingAllocator_enable": _enable_caching,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    "_cuda_changeCurrentAllocator": _change_allocator,
    "_cuda_attach_out_of_memory_observer": _unavailable(
        "An out-of-memory observer",
        "catch torch.OutOfMemoryError, whose text says what held the memory, and call "
        "torch.cuda.memory._snapshot() there",
    ),
    "_cuda_getCheckpointState": checkpoints.get,
    "_cuda_setCheckpointPoolState": checkpoints.put,
    "_cuda_checkPoolLiveAllocations": _check_pool,
    "_cuda_memoryMetadataSupported": lambda: False,
    "_cuda_setMemoryMetadata": _set_metadata,
    "_cuda_getMemoryMetadata": _get_metadata,
    "_cuda_annotateMemory": _annotate,
    "_accelerator_isAllocatorInitialized": _accelerator_initialized,
    "_accelerator_getDeviceStats": _memory_stats,
    "_accelerator_resetPeakStats": _reset_peak,
    "_accelerator_resetAccumulatedStats": _reset_accumulated,
    "_accelerator_emptyCache": _accelerator_empty_cache,
    "_accelerator_getMemoryInfo": mem_get_info,
    **dict.fromkeys(_SETTINGS_FUNCTIONS, _set_allocator_settings),
}


def replaced() -> list[str]:
    """The names in torch._C that this torch has and that are ours now."""
    return sorted(_original)


def install(torch: ModuleType) -> None:
    """Replaces them. Once a process; the second time does nothing."""
    global _torch
    if _torch is not None:
        return
    _torch = torch
    for name, function in _REPLACED.items():
        if hasattr(torch._C, name):
            _original[name] = getattr(torch._C, name)
            setattr(torch._C, name, function)
    checkpoints.install(torch, _original.get("_cuda_setCheckpointPoolState"))
    cudart = getattr(torch._C, "_cudart", None)
    if cudart is not None:
        _original["_cudart.cudaMemGetInfo"] = cudart.cudaMemGetInfo
        cudart.cudaMemGetInfo = mem_get_info

    from . import objects, profiler

    objects.install(torch)
    profiler.install(torch)
