"""Puts the arena under PyTorch: `enable`, and the caps.

`enable` runs before the first CUDA allocation and changes nothing unless all of it works. It
asks the driver whether the device will do; through the environment even that waits until
PyTorch initialises CUDA, since many processes import torch and never use it. A cap in percent
and the line that says what the cap makes wait until then in any case.
Called from Python alone; the lock makes two threads' calls one after the other."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import conf, settings, sizes
from .loading import core, log, pass_on, show_log, speaks_for_node, warn

if TYPE_CHECKING:
    import torch

    DeviceLike = int | str | torch.device | None
    SizeLike = int | str | sizes.Size | None

__all__ = ["device_index", "device_memory", "enable", "enabled", "limit", "set_limit"]

# What PyTorch's object can be told, and our hook for each. Older torch lacks some.
_SETTERS = {
    "set_init_fn": "init",
    "set_reset_fn": "empty_cache",
    "set_memory_fraction_fn": "memory_fraction",
    "set_base_alloc_fn": "base_address",
    "set_record_stream_fn": "record_stream",
    "set_begin_allocate_to_pool": "pool_begin",
    "set_end_allocate_to_pool_fn": "pool_end",
    "set_release_pool": "pool_release",
}
_OLDEST_TORCH = (2, 7)
_NEWEST_TESTED = (2, 14)
# The context's bytes before any kernel is loaded, measured between 0.4 and 0.6 GiB.
_CONTEXT = 1 << 29


@dataclass
class _State:
    allocator: Any = None  # PyTorch calls into it for as long as the process lives
    pid: int = 0
    fallback: bool = False
    page: int = 0
    strict: bool = False
    asked: dict[str, Any] | None = None  # by code; None: the environment alone so far
    # Caps by source and device (None: all), for those that are shares of a device.
    shares: dict[tuple[str, int | None], sizes.Size] = field(default_factory=dict)
    cuda_is_up: bool = False  # torch says so itself only when the queued calls are done
    announced: bool = False
    # CUDA_VISIBLE_DEVICES when the driver was started by us; () before.
    seen: tuple[str | None, ...] = ()


_state = _State()
_lock = threading.RLock()


def _cuda_is_initialized() -> bool:
    import torch

    initialized: Any = torch.cuda.is_initialized
    return bool(initialized())


def enabled() -> bool:
    """Whether this process's CUDA memory comes from the arena."""
    return _state.allocator is not None


def enable(
    limit: SizeLike = None,
    *,
    fallback: bool | None = None,
    strict: bool | None = None,
    record: str | os.PathLike[str] | None = None,
    page: SizeLike = None,
    spill: SizeLike = None,
) -> None:
    """Makes the arena PyTorch's CUDA allocator. To be called before CUDA is first used.

    limit: the cap on each device, bytes as in `sizes`: ``"16GiB"``, ``"80%"``, an int of
        bytes; None: no cap of yours. The CUDA context comes on top. The least of all
        sources' caps holds: this one, TORCHARENA_LIMIT, torch's memory fraction.
    fallback: without virtual memory management take plain driver allocations.
    strict: a cap that another clamps is an error, not a warning.
    record: a file for the trace of every allocation, see `record`.
    page: bytes of a page, a multiple of 2 MiB; None: 4 MiB.
    spill: not in this version.

    What is left out comes from the environment (see `settings`). A second call with the
    same arguments does nothing. Raises ValueError for a value that makes no sense, and
    RuntimeError, saying what to do, where CUDA is already in use, where the arena is
    enabled with other arguments, or where torch or the driver cannot."""
    if spill is not None:
        raise NotImplementedError(
            f"spill={spill!r}: this version has no spilling to host memory; leave it out"
        )
    asked = {
        "limit": sizes.parse(limit, name="limit"),
        "fallback": fallback,
        "strict": strict,
        "record": None if record is None else os.fspath(record),
        "page": settings.page_bytes(sizes.parse(page, name="page")),
    }
    with _lock:
        _enable(asked, settings.from_environment())


def enable_from_environment() -> None:
    """What `import torch` does where TORCHARENA_ENABLE is set."""
    with _lock:
        if not enabled():
            _enable(None, settings.from_environment())


def _enable(asked: dict[str, Any] | None, environment: dict[str, Any]) -> None:
    given = (
        {} if asked is None else {k: v for k, v in asked.items() if v not in (None, 0)}
    )
    merged = {s.name: s.default for s in settings.SETTINGS} | environment | given
    if enabled():
        _again(asked, merged)
        return
    torch = _checked_torch()
    conf.check(os.environ)
    library = core()
    if asked is not None:
        _refuse_unfit(library, bool(merged["fallback"]))
    allocator = _allocator(torch, library)
    made = (bool(merged["fallback"]), int(merged["page"]))
    if not library.created():
        library.create(*made)
        _state.fallback, _state.page = made
    elif made != (_state.fallback, _state.page):
        raise RuntimeError(
            f"an earlier enable() failed after it had made the allocator with fallback="
            f"{_state.fallback}, page={_state.page}: ask for the same"
        )

    from . import torch_memory

    torch.cuda.memory.change_current_allocator(allocator)
    library.torch_install()
    _state.allocator = allocator
    _state.pid = os.getpid()
    _state.strict, _state.asked = bool(merged["strict"]), asked
    torch_memory.install(torch)
    _set_if_said("environment", environment.get("limit"))
    if asked is not None:
        _set_if_said("api", asked["limit"])
    if merged["record"] is not None:
        from . import recording

        recording.start_with_cuda(merged["record"])
    if merged["log"] is not None:
        show_log(merged["log"])
    torch.cuda._lazy_call(_cuda_is_up)


def _again(asked: dict[str, Any] | None, merged: dict[str, Any]) -> None:
    """A call when the arena is there: the same settings do nothing."""
    if asked is None or asked == _state.asked:
        return
    if os.getpid() != _state.pid:
        raise RuntimeError(
            "torcharena.enable() in a forked child of a process that has it: the child "
            "cannot use the parent's CUDA memory; start it with the spawn method"
        )
    same = (bool(merged["fallback"]), int(merged["page"])) == (
        _state.fallback,
        _state.page,
    )
    if _state.asked is not None or not same:
        raise RuntimeError(
            f"torcharena is enabled with {_spoken(_state.asked)} and cannot become "
            f"{_spoken(asked)}; torcharena.set_limit() changes the cap later"
        )
    # The environment enabled it and the program now says its own: a source of its own.
    if merged["strict"]:
        _state.strict = True
    _set_if_said("api", asked["limit"])
    if asked["record"] is not None:
        from . import recording

        recording.start_with_cuda(asked["record"])
    _state.asked = asked


def _spoken(asked: dict[str, Any] | None) -> str:
    if asked is None:
        return (
            f"the environment's settings (fallback={_state.fallback}, page={_state.page})"
        )
    said = ", ".join(
        f"{name}={str(value)!r}" if isinstance(value, sizes.Size) else f"{name}={value!r}"
        for name, value in asked.items()
        if value not in (None, 0)
    )
    return f"enable({said})"


def _checked_torch() -> Any:
    """torch, where the arena can go under it. Raises RuntimeError that says what to do."""
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _OLDEST_TORCH:
        raise RuntimeError(
            f"torcharena needs torch 2.7 or later; this is {torch.__version__}"
        )
    if torch.version.cuda is None:
        raise RuntimeError(
            f"torcharena needs a CUDA build of torch; {torch.__version__} has no CUDA "
            "(pip install torch, from PyPI, is one on Linux)"
        )
    if int(torch.version.cuda.split(".")[0]) < 12:
        raise RuntimeError(
            f"torcharena needs CUDA 12 or 13; torch has {torch.version.cuda}"
        )
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError(
            "this process was forked from one that uses CUDA, so it cannot use CUDA itself; "
            "start it with torch.multiprocessing.get_context('spawn')"
        )
    if _cuda_is_initialized():
        raise RuntimeError(
            "torcharena.enable() must come before CUDA is first used, and PyTorch has "
            "already initialised it. Call enable() right after `import torch`, before any "
            ".cuda(), device='cuda', or import that touches the GPU; or run with "
            "TORCHARENA_ENABLE=1 or `torcharena run`, which come before all of them"
        )
    backend = torch._C._cuda_getAllocatorBackend()
    if backend == "pluggable":
        raise RuntimeError(
            "another CUDA allocator has been installed by change_current_allocator(); "
            "PyTorch takes one: remove that call, or do not enable torcharena"
        )
    if version > _NEWEST_TESTED:
        newest = ".".join(map(str, _NEWEST_TESTED))
        warn(
            f"torcharena is tested with torch up to {newest}; this is {torch.__version__}"
        )
    return torch


def _refuse_unfit(library: Any, fallback: bool) -> None:
    """Raises RuntimeError where there is no device, or the first one has no virtual memory
    management."""
    _state.seen = (os.environ.get("CUDA_VISIBLE_DEVICES"),)
    found = library.probe(0)
    if found["reason"]:
        raise RuntimeError(
            f"there is no NVIDIA GPU to enable torcharena on: {found['reason']}. "
            "`torcharena doctor` says more; `torcharena rehearse` needs no GPU"
        )
    if not found["vmm"] and not fallback:
        where = " under WSL2" if found["wsl2"] else ""
        raise RuntimeError(
            f"{found['name']}{where} has no virtual memory management, which torcharena packs "
            "memory by; torcharena.enable(fallback=True) takes plain driver allocations: "
            "caps and reports hold, packing is the driver's. `torcharena doctor` says more"
        )


def _allocator(torch: Any, library: Any) -> Any:
    """PyTorch's object over our hooks, complete and not yet installed."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library.library_path(), "ta_torch_alloc", "ta_torch_free"
    )
    hooks = library.hooks()
    for setter, hook in _SETTERS.items():
        if hasattr(allocator.allocator(), setter):
            getattr(allocator.allocator(), setter)(hooks[hook])
    return allocator


# --- caps --------------------------------------------------------------------------------


def device_index(device: DeviceLike) -> int:
    """The CUDA ordinal of what torch would call a device; None is the current one."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    import torch

    if device is None:
        return torch.cuda.current_device() if _cuda_is_initialized() else 0
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"device={device}: torcharena manages CUDA devices")
    return device.index if device.index is not None else device_index(None)


def set_limit(
    size: SizeLike, device: DeviceLike = None, *, strict: bool | None = None
) -> None:
    """Sets your cap to ``size`` bytes (see `sizes`), None for none; on every device, or one.

    It may raise or lower what you set, never what another source set: where another's is
    lower that one holds, which warns once and, with ``strict``, raises RuntimeError and
    changes nothing. What is over a lowered cap is given back as far as idle pages go."""
    _needs_enabled("set_limit")
    with _lock:
        wanted = sizes.parse(size, name="size")
        index = None if device is None else device_index(device)
        _set("api", index, wanted, _state.strict if strict is None else strict)
    pass_on()


def limit(device: DeviceLike = None) -> int | None:
    """The cap that holds on the device, in bytes; None: there is none."""
    _needs_enabled("limit")
    bytes_, _ = core().limit(device_index(device))
    return bytes_  # type: ignore[no-any-return]


def device_memory(device: DeviceLike = None) -> tuple[int, int]:
    """The driver's own pair for the device: bytes that nobody holds, bytes in all.

    `torch.cuda.mem_get_info` says what is left under the cap instead."""
    if enabled():
        free, total = core().device_memory(device_index(device))
        return free, total
    import torch

    return torch.cuda.mem_get_info(device)


def _needs_enabled(what: str) -> None:
    if not enabled():
        raise RuntimeError(f"torcharena.{what}() comes after torcharena.enable()")


def _totals() -> list[int] | None:
    """Bytes of each device; None while CUDA is not initialised."""
    if not (_state.cuda_is_up or _cuda_is_initialized()):
        return None
    import torch

    return [
        torch.cuda.get_device_properties(index).total_memory
        for index in range(torch.cuda.device_count())
    ]


def _set_if_said(source: str, size: sizes.Size | None) -> None:
    if size is not None:
        _set(source, None, size, _state.strict)


def _set(source: str, device: int | None, size: sizes.Size | None, strict: bool) -> None:
    """One source's cap. A share of a device waits until the device can be asked."""
    library = core()
    if device is None:
        _state.shares = {k: v for k, v in _state.shares.items() if k[0] != source}
    else:
        _state.shares.pop((source, device), None)
    if size is None or size.bytes is not None:
        wanted = None if size is None else size.bytes
        _apply(library, source, -1 if device is None else device, wanted, strict)
        return
    totals = _totals()
    if totals is None:
        _state.shares[source, device] = size
        return
    for index in range(len(totals)) if device is None else [device]:
        _apply(library, source, index, size.resolve(totals[index]), strict)


def _apply(
    library: Any, source: str, device: int, wanted: int | None, strict: bool
) -> None:
    """Tells the core, and says so where another source's cap is lower."""
    shown = range(len(_totals() or [0])) if device < 0 else [device]
    before = {index: library.limit(index) for index in shown}
    if strict:  # known before anything changes
        for holds, holder in before.values():
            if holder != source and _clamps(holds, wanted):
                raise RuntimeError(_clamped(holds, holder, wanted))
    library.set_limit(device, source, wanted)
    for index in shown:
        holds, holder = library.limit(index)
        if holder == source or not _clamps(holds, wanted):
            continue
        if strict:  # ours held before, and hid the other's
            for back in shown:
                library.set_limit(back, source, before[back][0])
            raise RuntimeError(_clamped(holds, holder, wanted))
        warn(_clamped(holds, holder, wanted), stacklevel=5)
        return


def _clamps(holds: int | None, wanted: int | None) -> bool:
    return holds is not None and (wanted is None or wanted > holds)


def _clamped(holds: int, holder: str, wanted: int | None) -> str:
    asked = "no cap" if wanted is None else f"a cap of {sizes.format_size(wanted)}"
    return (
        f"torcharena: {asked} was asked for; the one of {sizes.format_size(holds)} from "
        f"{SOURCES.get(holder, holder)} is lower and holds"
    )


SOURCES = {
    "api": "torcharena.enable(limit=) or set_limit()",
    "environment": "TORCHARENA_LIMIT",
    "fraction": "torch's set_per_process_memory_fraction",
    "admin": "the administrator's file",
}


def _cuda_is_up() -> None:
    """PyTorch has just initialised CUDA, and nothing is allocated yet."""
    library = core()
    _state.cuda_is_up = True
    if _state.seen and _state.seen[0] != os.environ.get("CUDA_VISIBLE_DEVICES"):
        raise RuntimeError(
            "CUDA_VISIBLE_DEVICES was changed after torcharena.enable() had started the "
            "driver, so it has no effect: set it before enable()"
        )
    _refuse_unfit(library, _state.fallback)
    waiting, _state.shares = _state.shares, {}
    for (source, device), size in waiting.items():
        _set(source, device, size, _state.strict)
    if not _state.announced:
        _state.announced = True
        if speaks_for_node():
            log.info("%s", announcement())
    pass_on()


def announcement() -> str:
    """One line: what the cap makes on the card."""
    import torch

    bytes_, source = core().limit(device_index(None))
    page = sizes.format_size(_state.page or (4 << 20))
    if bytes_ is None:
        return f"no cap, pages of {page}"
    name = torch.cuda.get_device_name(device_index(None))
    total = sizes.format_size((_totals() or [0])[0])
    return (
        f"cap {sizes.format_size(bytes_)}, the CUDA context's "
        f"{sizes.format_size(_CONTEXT).replace('512 MiB', '0.5 GiB')} on top "
        f"(from {SOURCES.get(source, source)}; {name}, {total})"
    )
