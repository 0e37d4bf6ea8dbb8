"""Regions: memory that goes to sleep together and wakes at the same addresses.

    with torcharena.region("weights"):
        model = load()                     # on the device, in pages of its own
    torcharena.sleep("weights")            # to the host; the device's memory is free
    torcharena.wake_up("weights")          # back, every tensor where it was

Names and lists of tags as servers know them."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from .. import settings, sizes, state
from ..loading import core, pass_on
from ..sizes import format_size
from ..state import SizeLike, enabled, needs_cuda, needs_enabled, takes_part

__all__ = ["asleep", "inside", "open_region", "region", "sleep", "wake_up"]

Tags = str | Iterable[str] | None

_OUT_OF_MEMORY, _NO_HOST_MEMORY = 1, 8  # of torcharena.h
lock = threading.RLock()  # of pools too
# Set by pools beside torch's own allocator, which must have their say.
before_sleep: Callable[[str], None] | None = None


def _after_fork_child() -> None:
    """A thread that had the lock is not there to give it back."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_child)


class region(contextlib.ContextDecorator):
    """What is allocated inside belongs to the region ``name``: it sleeps and wakes together.

    A context manager, or a decorator; regions nest, the innermost counts. Autograd's threads
    and others that are in no region allocate in the one that the leading thread is in. What
    was captured into a CUDA graph's pool stays the graph's.

    page: bytes of a page, a power of two from the arena's own, 4 MiB, to 256 MiB; None: 32 MiB.
        Larger pages sleep faster, smaller ones waste less.
    touch: what the addresses do while the region sleeps. None: nothing is there, and a kernel
        that touches them ends the CUDA context, as any bad address does; operations from
        Python on the thread that called `sleep` are a RuntimeError instead. ``"host"``: they
        reach the host's memory, slow but right.

    Raises ValueError for a name, page or touch that makes no sense or differs from how the
    region was opened. Where the arena is not enabled it raises RuntimeError; in a rehearsal of
    torch's own allocators it does nothing."""

    def __init__(
        self, name: str, page: SizeLike = None, touch: str | None = None
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"region({name!r}): a name is a str")
        if not name or not name.isprintable() or len(name.encode()) > 63:
            raise ValueError(f"region({name!r}): a name is one line of at most 63 bytes")
        if touch not in (None, "host"):
            raise ValueError(f"region(touch={touch!r}): None or 'host'")
        self.name = name
        self.page = settings.page_bytes(sizes.parse(page, name="page"))
        self.touch = touch

    def _recreate_cm(self) -> region:
        return self

    def __enter__(self) -> region:
        if not takes_part("region"):
            _entered.levels.append(_Level(self, None))
            return self
        _enter(self, open_region(self.name, self.page, touch_host=self.touch == "host"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = _entered.take(self)
        if left is None:
            raise left_elsewhere("region", self.name)
        _end(*left)


class Level:
    """What a thread entered, and by whom."""

    def __init__(self, owner: object) -> None:
        self.owner = owner


Entering = TypeVar("Entering", bound=Level)


class Entered(threading.local, Generic[Entering]):
    """What each thread is in. The innermost is in force; levels may be left in any order."""

    def __init__(self) -> None:
        self.levels: list[Entering] = []  # the innermost last

    def take(self, owner: object) -> tuple[Entering, int] | None:
        """Takes out what the owner entered last, and says where it was; None: not here."""
        for at in reversed(range(len(self.levels))):
            if self.levels[at].owner is owner:
                return self.levels.pop(at), at
        return None


def left_elsewhere(kind: str, name: str) -> RuntimeError:
    return RuntimeError(
        f"torcharena.{kind}({name!r}) is left by a thread that is not in it: the thread that "
        f"entered a {kind} leaves it"
    )


class _Level(Level):
    """The region that is in force without it; None: in a rehearsal, where there are none."""

    def __init__(self, owner: object, before: int | None) -> None:
        super().__init__(owner)
        self.before = before


_entered: Entered[_Level] = Entered()


def _enter(owner: object, number: int) -> None:
    _entered.levels.append(_Level(owner, core().region_enter(number)))


def _end(level: _Level, at: int) -> None:
    """It was taken from there."""
    if level.before is None:
        return
    if at == len(_entered.levels):
        core().region_enter(level.before)
    else:  # that one is in force, or waits for its turn
        _entered.levels[at].before = level.before


_opened: dict[str, tuple[int, tuple[int, bool, bool]]] = {}


def open_region(
    name: str, page: int = 0, *, on_host: bool = False, touch_host: bool = False
) -> int:
    """The number of the region, made where there is none. Raises ValueError where it is
    there with another page or touch, and where there are too many."""
    needs_cuda()
    wanted = (page, on_host, touch_host)
    with lock:
        known = _opened.get(name)
        if known is not None and known[1] == wanted:
            return known[0]
        try:
            number = int(core().region_open(name, *wanted))
        except core().Error as error:
            if known is None:
                least = format_size(state.current.page or state.DEFAULT_PAGE)
                raise ValueError(
                    f"region({name!r}, page={format_size(page)}): {error}; a page has at least "
                    f"the arena's {least}, and there are at most 64 regions"
                ) from None
            raise ValueError(
                f"region({name!r}, page={format_size(page) if page else None}, "
                f"touch={'host' if touch_host else None!r}): it was opened with another page "
                "or touch, which hold for all of it"
            ) from None
        _opened[name] = number, wanted
    return number


@contextlib.contextmanager
def inside(number: int) -> Iterator[None]:
    """This thread allocates in the region of that number."""
    owner = object()
    _enter(owner, number)
    try:
        yield
    finally:
        left = _entered.take(owner)
        if left is not None:  # else another thread came to end it
            _end(*left)


def _all() -> list[tuple[int, dict[str, Any]]]:
    """Every region, by number."""
    found: list[tuple[int, dict[str, Any]]] = []
    for number in itertools.count(1):
        info = core().region_get(number)
        if info is None:
            return found
        found.append((number, info))
    return found


def _chosen(tags: Tags, what: str) -> list[tuple[int, dict[str, Any]]]:
    """The regions that the tags name; all that live on the device for None."""
    if not state.current.pools:
        needs_enabled(what)
    needs_cuda()
    there = _all()
    if tags is None:
        return [one for one in there if not one[1]["on_host"]]
    wanted = [tags] if isinstance(tags, str) else list(tags)
    names = {info["name"] for _, info in there}
    for tag in wanted:
        if tag not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ValueError(
                f"{what}({tag!r}): there is no such region (there are: {known})"
            )
    return [one for one in there if one[1]["name"] in wanted]


def asleep() -> list[str]:
    """Names of the regions that sleep now."""
    if not core().created():
        return []
    return [info["name"] for _, info in _all() if info["asleep"]]


def sleep(tags: Tags = None, keep: bool = True) -> int:
    """Sends the regions of these names (one, several, or None for all) away from the device;
    their tensors stay, at the same addresses. Bytes of device memory given back.

    With ``keep`` the bytes go to the host; without it they are dropped, and undefined after
    waking. Waits for all work of the device: no other thread may launch work meanwhile. Until
    `wake_up` nothing can be allocated in them; freeing works. Raises RuntimeError with the
    reason, and the region that it met awake, during a capture of a CUDA graph, while blocks
    are freed but still used by a stream, and where host memory does not suffice; ValueError
    for a name that no region has. Regions that went to sleep before that stay asleep."""
    freed = 0
    with lock:
        try:
            for number, info in _chosen(tags, "sleep"):
                if before_sleep is not None:
                    before_sleep(info["name"])
                freed += _sleep(number, info, keep)
        finally:
            _watch()
    pass_on()
    return freed


def _sleep(number: int, info: dict[str, Any], keep: bool) -> int:
    done = core().region_sleep(number, bool(keep))
    if done["status"] == 0:
        return int(done["device"])
    why = done["why"] or done["text"]
    if done["status"] in (_OUT_OF_MEMORY, _NO_HOST_MEMORY) and keep:
        from . import spilling

        if enabled() and not spilling.on():
            why += "; torcharena.enable(spill='64GiB') allows host memory, keep=False needs none"
    raise RuntimeError(f"torcharena.sleep({info['name']!r}): {why}")


def wake_up(tags: Tags = None) -> int:
    """Brings the regions of these names back, at the same addresses; None: all that sleep.
    Bytes of device memory taken. CUDA graphs that were captured over them replay right after.

    Raises torch.OutOfMemoryError where there is no room: that region still sleeps whole, and
    the call can be made again; ValueError for a name that no region has."""
    taken = 0
    with lock:
        try:
            for number, info in _chosen(tags, "wake_up"):
                done = core().region_wake(number)
                if done["status"] == _OUT_OF_MEMORY and not enabled():
                    _empty_torchs_cache()
                    done = core().region_wake(number)
                if done["status"] == _OUT_OF_MEMORY:
                    _refuse_to_wake(info, done)
                if done["status"] != 0:
                    why = done["why"] or done["text"]
                    raise RuntimeError(f"torcharena.wake_up({info['name']!r}): {why}")
                taken += int(done["device"])
        finally:
            _watch()
    pass_on()
    return taken


def _empty_torchs_cache() -> None:
    """Its own allocator is in charge: what that keeps for nobody goes first."""
    import torch

    with contextlib.suppress(RuntimeError):  # inside a pool some versions refuse
        torch.cuda.empty_cache()


def _refuse_to_wake(info: dict[str, Any], done: dict[str, Any]) -> None:
    import torch

    why = f" ({done['why']})" if done["why"] else ""
    raise torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to wake {format_size(info['host'] + info['dropped'])} of "
        f"the region {info['name']!r}{why}. It still sleeps, whole: free memory and call "
        f"torcharena.wake_up({info['name']!r}) again."
    )


# --- a touch while it sleeps --------------------------------------------------------------
_guard: Any = None


def _watch() -> None:
    """While a region sleeps whose addresses lead nowhere, this thread's operations on it are
    errors."""
    global _guard
    names = {
        number: info["name"]
        for number, info in _all()
        if info["asleep"] and not info["touch_host"]
    }
    if names and _guard is None:
        from .sleeping_guard import Guard

        _guard = Guard()
    if _guard is not None:
        _guard.watch(names)
