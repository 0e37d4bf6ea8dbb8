"""`pool`: memory in the arena while torch's own allocator stays in charge.

    weights = torcharena.pool("weights")
    with weights:
        model = load()
    weights.sleep()                # to the host; the device's memory is free
    weights.wake_up()              # back, every tensor where it was

For those who cannot swap the whole allocator: servers, RL trainers. torch's allocator asks the
arena for the pool's segments, and splits and caches them as ever. Where the arena is enabled
as the process's allocator, a pool is a region of it, by the same handle."""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import guarding, installing, settings, sizes, state
from ..loading import core, pass_on
from ..sizes import format_size
from ..spill import regions
from ..state import SizeLike, enabled

if TYPE_CHECKING:
    from .mempools import MemPools

__all__ = ["Pool", "outside", "pool"]

_ANYTHING = 1 << 60  # bytes: the machine is asked what it has before any is pinned
_SPARES = (2, 14)  # torch gives its cache back, from then on, when a pool finds no memory

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)\. GPU (\d+)")
_TORCH_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

_pools: dict[str, Pool] = {}
_host_budget: sizes.Size | None = None  # None: nobody has said


def pool(
    tag: str,
    *,
    limit: SizeLike = None,
    page: SizeLike = None,
    touch: str | None = None,
    spill: SizeLike = None,
) -> Pool:
    """The pool of that name, made when first asked for. It lives as long as the process.

    ``with pool:`` makes this thread's CUDA allocations its own, on the device that is current
    and on all that this process uses by then; autograd's threads allocate elsewhere. Pools
    nest, the innermost counts. Beside torch's allocator it takes whole segments of 2 MiB and
    more, in pages of their own; where `enable` made the arena the process's allocator it is
    `region` ``tag``, and may be slept and woken by either name.

    limit: bytes of segments that it may hold on each device, what torch calls reserved; a share
        ("50%") is of each device's own memory. None: no limit of its own. Not where the arena is
        enabled, which has a cap for all.
    page: bytes of a page, as for `region`; None: 32 MiB.
    touch: what its addresses do while it sleeps, as for `region`: None or ``"host"``.
    spill: host memory that all pools together may pin to sleep in; None: what the machine can
        spare when it is needed, or TORCHARENA_SPILL. Where the arena is enabled its own holds.

    Raises ValueError for what makes no sense or differs from what this pool was made with.
    CUDA is looked at when it is first used: RuntimeError then, where torch or the GPU cannot."""
    made = Pool(tag, limit=limit, page=page, touch=touch, spill=spill)
    with regions.lock:
        known = _pools.setdefault(made.tag, made)
        if known is not made:
            known._must_match(made)
    return known


class Pool(contextlib.ContextDecorator):
    """What `pool` returns: a context manager and decorator that can sleep."""

    def __init__(
        self,
        tag: str,
        *,
        limit: SizeLike = None,
        page: SizeLike = None,
        touch: str | None = None,
        spill: SizeLike = None,
    ) -> None:
        self._region = regions.region(tag, page, touch)  # judges them
        self._limit = sizes.parse(limit, name="limit")
        self._spill = sizes.parse(spill, name="spill")
        settings.spill_bytes(self._spill)
        if self._limit is not None and not (self._limit.bytes or self._limit.share):
            raise ValueError(f"pool(limit={limit!r}): a pool of nothing")
        self._number = 0  # of the region; 0: not used yet
        self._mempools: MemPools | None = None  # None: the arena is the allocator
        self._inside = 0  # threads and levels that are in it

    @property
    def tag(self) -> str:
        """Its name."""
        return self._region.name

    def _settings(self) -> dict[str, object]:
        return {
            "limit": self._limit,
            "page": self._region.page or None,
            "touch": self._region.touch,
            "spill": self._spill,
        }

    def _must_match(self, asked: Pool) -> None:
        mine = self._settings()
        for name, value in asked._settings().items():
            if value is not None and value != mine[name]:
                raise ValueError(
                    f"pool({self.tag!r}, {name}={value}): it was made with {name}="
                    f"{mine[name]}, which holds for all of it"
                )

    # --- allocating in it ---------------------------------------------------------------
    def _recreate_cm(self) -> Pool:
        return self

    def __enter__(self) -> Pool:
        self._ready()
        with regions.lock:
            if self.asleep:
                raise RuntimeError(
                    f"torcharena.pool({self.tag!r}) sleeps: wake_up() comes before allocating "
                    "in it"
                )
            if self._mempools is not None:
                self._inside += 1  # from now on it does not go to sleep
        if self._mempools is None:
            self._region.__enter__()
            return self
        try:
            _enter(self._mempools, self)
        except BaseException:
            with regions.lock:
                self._inside -= 1
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mempools is None:
            self._region.__exit__(kind, error, trace)
            return
        left = _entered.take(self)
        if left is None:
            raise regions.left_elsewhere("pool", self.tag)
        try:
            _end(*left)
        finally:
            with regions.lock:
                self._inside -= 1
        _explain(error)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id on the current device, for ``torch.cuda.graph(pool=p.id)``: what is
        captured then sleeps and wakes with it. RuntimeError where the arena is enabled, whose
        regions no graph is captured into, and with torch 2.7."""
        self._ready()
        if self._mempools is None:
            raise RuntimeError(
                f"torcharena.pool({self.tag!r}).id: the arena is the process's allocator, and "
                "captured memory belongs to its graph: leave pool= out of torch.cuda.graph()"
            )
        return self._mempools.id()

    # --- sleeping -----------------------------------------------------------------------
    @property
    def asleep(self) -> bool:
        """Whether it sleeps now."""
        return bool(self._number and core().region_get(self._number)["asleep"])

    def sleep(self, keep: bool = True) -> int:
        """Sends its bytes to the host, or drops them without ``keep``; `torcharena.sleep` of
        its name. Bytes of device memory given back.

        After all work of the devices, and no other thread may launch any meanwhile. RuntimeError
        with the reason, and nothing changed: inside ``with``, while a graph is captured, and
        where host memory does not suffice."""
        self._ready()
        return regions.sleep(self.tag, keep)

    def wake_up(self) -> int:
        """Brings it back at the same addresses; `torcharena.wake_up` of its name. Bytes of
        device memory taken. torch.OutOfMemoryError: there is no room, and it still sleeps."""
        self._ready()
        return regions.wake_up(self.tag)

    def empty_cache(self) -> int:
        """Gives the driver what torch keeps of it and nobody uses, and the rest of torch's
        cache; `torch.cuda.empty_cache` leaves a pool's alone. Bytes of the pool's given back."""
        import torch

        self._ready()
        before = core().region_get(self._number)["device"]
        with regions.lock:
            if self._mempools is not None and not self._inside and not _capturing():
                self._mempools.shed(all_of_it=True)
        torch.cuda.empty_cache()
        core().mempool_settle()
        pass_on()
        return int(before - core().region_get(self._number)["device"])

    # --- numbers ------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """Bytes on all devices: ``live_bytes`` of tensors, ``reserved_bytes`` of torch's
        segments (of blocks, where the arena is enabled), ``device_bytes`` and ``host_bytes`` of
        pages there, ``dropped_bytes`` that sleep without their contents; ``asleep``;
        ``limit_bytes`` on the current device, None without a limit."""
        self._ready()
        info = core().region_get(self._number)
        live = info["allocated"]
        if self._mempools is not None:
            live = sum(segment["allocated_size"] for segment in self._segments())
        return {
            "asleep": info["asleep"],
            "live_bytes": int(live),
            "reserved_bytes": info["allocated"],
            "device_bytes": info["device"],
            "host_bytes": info["host"],
            "dropped_bytes": info["dropped"],
            "limit_bytes": self._limit_bytes(),
        }

    def _segments(self) -> list[dict[str, Any]]:
        """torch's, of pools of this name that have ended too."""
        import torch

        return [
            segment
            for segment in torch.cuda.memory_snapshot()
            if core().region_of(segment["address"])[0] == self._number
        ]

    def __repr__(self) -> str:
        if not self._number:
            return f"<torcharena.pool {self.tag!r}, not used yet>"
        now = self.stats()
        where = ", ".join(
            f"{format_size(now[key])} {text}"
            for key, text in (
                ("device_bytes", "on the device"),
                ("host_bytes", "on the host"),
                ("dropped_bytes", "dropped"),
            )
            if now[key]
        )
        return (
            f"<torcharena.pool {self.tag!r}{', asleep' if now['asleep'] else ''}: "
            f"{format_size(now['live_bytes'])} live of {format_size(now['reserved_bytes'])} "
            f"reserved; {where or 'nothing held'}>"
        )

    # --- its beginning ------------------------------------------------------------------
    def _limit_bytes(self, device: int | None = None) -> int | None:
        if self._limit is None:
            return None
        index = state.device_index(device)
        return self._limit.resolve(int(core().device_memory(index)[1]))

    def _ready(self) -> None:
        """Looks at CUDA, the first time."""
        if core().forked():
            raise RuntimeError(
                f"torcharena.pool({self.tag!r}) in a forked child of the process that has it: "
                "the child cannot use its CUDA memory; start it with the spawn method"
            )
        if not self._number:
            with regions.lock:
                self._first_use()

    def _first_use(self) -> None:
        if self._number:  # another thread's was first
            return
        whole = enabled()
        if whole and (self._limit is not None or self._spill is not None):
            raise ValueError(
                f"pool({self.tag!r}, limit=, spill=): the arena is the process's allocator, "
                "whose cap and host memory enable() and set_limit() set"
            )
        if not whole:
            _begin(self._spill)
        number = regions.open_region(
            self.tag, self._region.page, touch_host=self._region.touch == "host"
        )
        if not whole:
            from .mempools import MemPools

            if self._limit is not None:
                for device in range(_devices()):
                    core().mempool_limit(number, device, self._limit_bytes(device))
            self._mempools = MemPools(number)
        self._number = number


# --- beside torch's own allocator ---------------------------------------------------------
def _begin(spill: sizes.Size | None) -> None:
    """The library's allocator, for pools alone; host memory for them."""
    global _host_budget
    import torch

    from .mempools import why_unfit

    if reason := why_unfit(torch):
        raise RuntimeError(f"torcharena.pool(): {reason}")
    torch.cuda.init()
    library = core()
    given = settings.from_environment()
    guarding.refuse_beside(given)
    with state.lock:
        if not library.created():
            found = library.probe(0)
            installing.refuse_unfit(found, False)
            library.create(False, given.get("page", 0), given.get("slack", 0.0))
            state.current.pools = True
            regions.before_sleep = _prepare
            cap = given.get("limit")
            if cap is not None:
                for device in range(torch.cuda.device_count()):
                    total = torch.cuda.get_device_properties(device).total_memory
                    library.set_limit(device, "environment", cap.resolve(total))
            if "spill" in given:  # 0 and none: none may be
                _allow(library, sizes.Size(bytes=given["spill"] or 0))
            else:
                library.set_spill(_ANYTHING, False)
        if spill is not None and spill != _host_budget:
            if _host_budget is not None:
                raise ValueError(
                    f"pool(spill={spill}): all pools have one budget of host memory, and "
                    f"spill={_host_budget} was given before"
                )
            _allow(library, spill)


def _devices() -> int:
    import torch

    return int(torch.cuda.device_count())


def _allow(library: Any, spill: sizes.Size) -> None:
    global _host_budget
    if spill.bytes and not library.probe(0)["host_pages"]:
        raise RuntimeError(
            f"torcharena.pool(spill={spill}): this driver makes no pages of host memory (CUDA "
            "12.2 and later do, where the system lets them); leave spill out: "
            "sleep(keep=False) needs none"
        )
    library.set_spill(spill.bytes, False)
    _host_budget = spill


class _Level(regions.Level):
    """Where a thread allocates: in some pools of torch's, or in its ordinary memory."""

    def __init__(self, mempools: MemPools | None, owner: object) -> None:
        super().__init__(owner)
        self.mempools = mempools
        self._routed: contextlib.ExitStack | None = None

    def begin(self) -> None:
        if self.mempools is not None:
            self._routed = self.mempools.route()

    def end(self) -> None:
        routed, self._routed = self._routed, None
        if routed is not None:
            routed.close()


_entered: regions.Entered[_Level] = regions.Entered()


def _enter(mempools: MemPools | None, owner: object) -> None:
    """Of several pools torch takes the first or the last entered, by its version: one at a
    time is in force."""
    levels = _entered.levels
    if mempools is not None:
        core().mempool_refusal()  # an old one
        _make_room()
    outer = levels[-1] if levels else None
    level = _Level(mempools, owner)
    if outer is not None:
        outer.end()
    try:
        level.begin()
    except BaseException:
        if outer is not None:
            outer.begin()
        raise
    levels.append(level)


def _end(level: _Level, at: int) -> None:
    """It was taken from there; if it was not the innermost, nothing changes for that one."""
    levels = _entered.levels
    if at < len(levels):
        return
    level.end()
    if levels:
        levels[-1].begin()


@contextlib.contextmanager
def outside() -> Any:
    """Inside a pool: this thread allocates in torch's ordinary memory."""
    owner = object()
    _enter(None, owner)
    try:
        yield
    finally:
        left = _entered.take(owner)
        if left is not None:  # else another thread came to end it
            _end(*left)


def _make_room() -> None:
    """torch keeps its cache when a pool finds no memory, up to some version: where that is
    more than the device has left, it gives it back now."""
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= _SPARES or torch.cuda.is_current_stream_capturing():
        return
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if cached > torch.cuda.mem_get_info()[0]:
        torch.cuda.empty_cache()


def _explain(error: BaseException | None) -> None:
    """torch's text knows nothing of the pool's limit and of the arena's caps."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError):
        return
    told = core().mempool_refusal()
    if told is not None and _is_of(str(error), told[1], told[2]):
        error.args = (f"{error}\n{told[0]}", *error.args[1:])


def _is_of(text: str, device: int, size: int) -> bool:
    """torch's error tells of this segment on this device, and not of another that was asked
    for since, elsewhere or by somebody else."""
    found = _TRIED.search(text)
    if found is None or int(found[3]) != device:
        return False
    unit = _TORCH_UNITS[found[2]]
    return abs(float(found[1]) * unit - size) <= 0.006 * unit  # two digits are told


def _capturing() -> bool:
    import torch

    return bool(torch.cuda.is_current_stream_capturing()) or core().mempool_capturing()


def _prepare(name: str) -> None:
    """Called before the region of that name goes to sleep. RuntimeError where it must not."""
    with regions.lock:
        known = _pools.get(name)
        if known is None or known._mempools is None:
            return
        if _capturing():
            raise RuntimeError(
                f"torcharena.sleep({name!r}): a CUDA graph is being captured; call it after "
                "the capture"
            )
        if known._inside:
            raise RuntimeError(
                f"torcharena.sleep({name!r}): a thread is inside `with pool({name!r})`, and "
                "would be given memory that sleeps; leave it first"
            )
        known._mempools.shed()
        core().mempool_settle()
