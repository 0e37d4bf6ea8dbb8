"""Puts the arena under PyTorch: `enable`.

It runs before the first CUDA allocation and changes nothing unless all of it works. The
library's allocator is made when PyTorch initialises CUDA; a cap in percent and the line that
says what the cap makes wait until then too. Called from Python alone; the lock makes two
threads' calls one after the other."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import warnings
from typing import Any

from . import conf, guarding, settings, sizes, state
from .caps import administrator, caps, watching
from .loading import core, log, pass_on, say_refused, show_log, speaks_for_node, warn
from .spill import spilling
from .state import SizeLike, cuda_is_initialized, enabled

__all__ = ["SETTERS", "enable", "enable_from_environment", "probed"]

# What PyTorch's object can be told, and our hook for each. Older torch lacks some.
SETTERS = {
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


def enable(
    limit: SizeLike = None,
    *,
    fallback: bool | None = None,
    strict: bool | None = None,
    record: str | os.PathLike[str] | None = None,
    page: SizeLike = None,
    slack: float | None = None,
    spill: SizeLike = None,
) -> None:
    """Makes the arena PyTorch's CUDA allocator. To be called before CUDA is first used.

    limit: the cap on each device, bytes as in `sizes`: ``"16GiB"``, ``"80%"``, an int of
        bytes; None: no cap of yours. The CUDA context comes on top. The least of all
        sources' caps holds: this one, TORCHARENA_LIMIT, torch's memory fraction.
    fallback: without virtual memory management take plain driver allocations.
    strict: a cap that another clamps is an error, not a warning.
    record: a file for the trace of every allocation, see `record`.
    page: bytes of a page, a power of two from 2 MiB to 256 MiB; None: 4 MiB.
    slack: reserved over live peak at which idle pages are reused before new ones are made,
        1.0 or more. Less holds less memory and moves more pages; None: 1.02.
    spill: host memory that the process may pin, ``"64GiB"``, where the cap leaves no room:
        a block for which there is none is put there instead of failing, slow but right, and
        what `sleep`, `offload_optimizer` and `offload_activations` send away goes there; None:
        none. See docs/spill.md.

    What is left out comes from the environment (see `settings`). A second call with the
    same arguments does nothing. Raises ValueError for a value that makes no sense, and
    RuntimeError, saying what to do, where CUDA is already in use, where the arena is
    enabled with other arguments, or where torch or the driver cannot."""
    asked = {
        "limit": sizes.parse(limit, name="limit"),
        "fallback": fallback,
        "strict": strict,
        "record": None if record is None else os.fspath(record),
        "page": settings.page_bytes(sizes.parse(page, name="page")) or None,
        "slack": settings.slack_ratio(slack) or None,
        "spill": settings.spill_bytes(sizes.parse(spill, name="spill")),
    }
    with state.lock:
        _enable(asked, settings.from_environment())


def enable_from_environment() -> None:
    """What `import torch` does where TORCHARENA_ENABLE is set."""
    with state.lock:
        if not enabled():
            _enable(None, settings.from_environment())


def _enable(asked: dict[str, Any] | None, environment: dict[str, Any]) -> None:
    given = {k: v for k, v in (asked or {}).items() if v is not None}
    merged = {s.name: s.default for s in settings.SETTINGS} | environment | given
    if asked is not None:  # its import may enable: by the environment, or in a rehearsal
        importlib.import_module("torch")
    if enabled():
        _again(asked, merged)
        return
    torch = _checked_torch()
    conf.check(os.environ)
    library = core()
    if asked is not None:
        found = probed(library)
        refuse_unfit(found, bool(merged["fallback"]))
        spilling.refuse_unfit(found, merged["spill"])
    guard = merged["debug"] == "guard"
    if guard:
        guarding.refuse_with(merged)
    allocator = _allocator(torch, library)
    admin = administrator.begin(merged)
    wanted = state.State(
        allocator=allocator,
        fallback=bool(merged["fallback"]),
        page=int(merged["page"]),
        slack=float(merged["slack"]),
        strict=bool(merged["strict"]),
        spill=merged["spill"],
        guard=guard,
        asked=asked,
        waiting=state.Waiting(int(merged["page"])),
        admin=admin,
    )
    before, state.current = state.current, wanted
    try:
        admin.before_cuda(caps.keeper())
        _put("environment", environment.get("limit"))
        if asked is not None:
            _put("api", asked["limit"])
        torch.cuda.memory.change_current_allocator(allocator)
    except BaseException:
        state.current = before
        raise

    from .answers import memory

    library.torch_install()
    memory.install(torch)
    torch.cuda._lazy_call(_cuda_is_up)
    if merged["record"] is not None:
        from . import recording

        recording.start_with_cuda(merged["record"])
    if merged["log"] is not None:
        show_log(merged["log"])
    if guard:
        guarding.start()
    atexit.register(pass_on)


def _put(source: str, size: sizes.Size | None) -> None:
    if size is not None:
        caps.put(source, None, size, state.current.strict)


def _again(asked: dict[str, Any] | None, merged: dict[str, Any]) -> None:
    """A call when the arena is there: the same settings do nothing."""
    if asked is None or asked == state.current.asked:
        return
    if state.current.creator not in (0, os.getpid()):
        raise RuntimeError(
            "torcharena.enable() in a forked child of a process that has it: the child "
            "cannot use the parent's CUDA memory; start it with the spawn method"
        )
    now = state.current
    same = (bool(merged["fallback"]), int(merged["page"]), float(merged["slack"])) == (
        now.fallback,
        now.page,
        now.slack,
    )
    if state.current.asked is not None or not same:
        raise RuntimeError(
            f"torcharena is enabled with {_spoken(state.current.asked)} and cannot become "
            f"{_spoken(asked)}; torcharena.set_limit() changes the cap later"
        )
    # The environment enabled it and the program now says its own: a source of its own.
    if merged["strict"]:
        state.current.strict = True
    _put("api", asked["limit"])
    if asked["spill"] not in (None, now.spill):
        if now.spill is not None:
            raise RuntimeError(
                f"torcharena is enabled with {_spoken(None)} and cannot become "
                f"{_spoken(asked)}"
            )
        library = core()
        spilling.refuse_unfit(probed(library), asked["spill"])
        if library.created():
            spilling.apply(library, asked["spill"], now.strict)
        now.spill = asked["spill"]
    if asked["record"] is not None:
        from . import recording

        recording.start_with_cuda(asked["record"])
    state.current.asked = asked


def _spoken(asked: dict[str, Any] | None) -> str:
    if asked is None:
        now = state.current
        return (
            f"the environment's settings (fallback={now.fallback}, "
            f"page={now.page or state.DEFAULT_PAGE}"
            + (f", spill={sizes.spell(now.spill)!r}" if now.spill else "")
            + (f", slack={now.slack:g})" if now.slack else ")")
        )
    in_words = asked | {"spill": sizes.spell(asked["spill"])} if asked["spill"] else asked
    said = ", ".join(
        f"{name}={str(value)!r}" if isinstance(value, sizes.Size) else f"{name}={value!r}"
        for name, value in in_words.items()
        if value is not None
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
    if cuda_is_initialized():
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


_PROBE_SECONDS = 30.0  # a driver that starts cold takes several


def probed(library: Any) -> Any:
    """What the driver says of the first device, without starting it in this process: that
    would spoil CUDA in forked children, and CUDA_VISIBLE_DEVICES set after us."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork where threads are
        child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(library.probe(0)).encode())
        finally:
            os._exit(0)
    os.close(write)
    # A child of a process with threads may find a lock of the loader's taken for good.
    with open(read, "rb") as answer:
        in_time = select.select([answer], [], [], _PROBE_SECONDS)[0]
        said = answer.read() if in_time else b""
    if not in_time:
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
        os.waitpid(child, 0)
    found = json.loads(said) if said else {"reason": "the driver did not answer"}
    # Where the driver runs here already, a child cannot ask it, and asking spoils nothing.
    return library.probe(0) if found["reason"] else found


def refuse_unfit(found: Any, fallback: bool) -> None:
    """Raises RuntimeError where there is no device, or the first one has no virtual memory
    management."""
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
    for setter, hook in SETTERS.items():
        if hasattr(allocator.allocator(), setter):
            getattr(allocator.allocator(), setter)(hooks[hook])
    # Tensors that other processes still have are freed by torch's last destructors.
    library.keep(allocator.allocator())
    return allocator


def _cuda_is_up() -> None:
    """PyTorch has just initialised CUDA, and nothing is allocated yet: the library's
    allocator is made. Not before: a process that forks first and whose children then use
    CUDA is legal, and each of them needs an allocator of its own."""
    library, now = core(), state.current
    with state.lock:
        found = library.probe(0)
        refuse_unfit(found, now.fallback)
        spilling.refuse_unfit(found, now.spill)
        if not library.created():
            # One ratio for both: reused up to it if passed, waited for above it.
            library.create(now.fallback, now.page, now.slack, now.guard)
            now.waiting.hand_over(library)
            spilling.apply(library, now.spill, now.strict)
        now.creator, now.cuda_is_up = os.getpid(), True
        try:
            watching.hold(library)
        except RuntimeError as error:
            atexit.register(say_refused, str(error))  # torch's own error buries it
            raise
        caps.put_waiting()
        caps.check_given()
        first, now.announced = not now.announced, True
    if first and speaks_for_node():
        log.info("%s", caps.announcement())
    pass_on()
