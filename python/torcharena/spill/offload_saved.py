"""Saved tensors on the host between forward and backward: `offload_activations`.

What autograd saves is kept by what the hooks here return: a handle that holds the tensor, later
its copy on the host, later the bytes back on the device. Two streams of our own copy, one each
way, beside the program's:

    pack     the copy out waits for the program's stream; the device's bytes are let go when
             it is done, or when the program's stream has been told to wait for it
    unpack   the bytes come to memory of the program's stream, in the reverse order of saving,
             ahead of need as far as there is room; the program's stream waits for the copy

So every reuse of memory is ordered on the device, and the host waits for nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import sizes
from ..loading import core, pass_on, warn
from ..sizes import format_size
from ..state import SizeLike, takes_part
from .host_tensors import HostTensors, host_tensors
from .offload_plan import Learner, Plan, Seen

if TYPE_CHECKING:
    import torch

__all__ = ["figures", "offload_activations"]

REGION = "torcharena.saved_tensors"
_LEAST = 1 << 20
_QUIET = 8  # passes
_QUIET_SHARE = 0.75  # of the room: the highest of all that was allocated

# Which way the copy goes that is waited for; before the wait, and after it.
Waited = tuple[str, "torch.cuda.Event", "torch.cuda.Event"]

_lock = threading.RLock()  # over everything below
_movers: dict[Any, _Mover] = {}
_child = False  # a forked one, which cannot use its parent's CUDA


def _after_fork_child() -> None:
    """A thread that had the lock is not there to give it back; what was saved is the parent's."""
    global _child, _lock
    _child, _lock = True, threading.RLock()


os.register_at_fork(after_in_child=_after_fork_child)


class offload_activations(contextlib.ContextDecorator):
    """Tensors that autograd saves inside go to the host by asynchronous copies, and are back
    before backward needs them. Around forward, or around a whole step; a context manager or a
    decorator.

    budget: bytes that leave in each forward pass, at most (``"8GiB"``), the earliest saved
        first. None: learned from the passes before, just as many as the cap, or the card,
        demands; nothing where all fits.
    least: smaller tensors stay, bytes; 1 MiB.

    Each storage goes once, however many views of it are saved. Parameters, leaves that require
    gradients, tensor subclasses and what is saved while a CUDA graph is captured stay. What is
    computed again in backward (checkpointing) stays too; the inputs of checkpoints go. The
    values are those at saving; one changed in place before backward is the error that it is
    without this. Gradients are the same, bit for bit.

    Raises ValueError for a size that makes no sense, RuntimeError where the arena is not enabled
    or was given no host memory (``spill=``). Where host memory runs out the rest stays on the
    device, which warns once. In a rehearsal of torch's own allocators it does nothing."""

    def __init__(self, budget: SizeLike = None, *, least: SizeLike = _LEAST) -> None:
        self._budget = _in_bytes(budget, "budget")
        self._least = max(_in_bytes(least, "least") or 0, 1)
        frame = sys._getframe(1)
        place = (frame.f_code.co_filename, frame.f_lineno)
        self._key: tuple[tuple[str, int], int | None, int] = (
            place,
            self._budget,
            self._least,
        )
        self._open: list[Any] = []

    def _recreate_cm(self) -> offload_activations:
        return self

    def __enter__(self) -> offload_activations:
        self._begins()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.pop().__exit__(kind, error, trace)
        pass_on()

    def _begins(self) -> None:
        if not takes_part("offload_activations"):
            self._open.append(contextlib.nullcontext())
            return
        import torch

        host = host_tensors("offload_activations", REGION)
        with _lock:
            mover = _movers.get(self._key)
            if mover is None:
                mover = _movers[self._key] = _Mover(host, self._budget, self._least)
            mover.begin()
            needed = not mover.is_quiet()
        hooks: Any = contextlib.nullcontext()
        if needed:
            hooks = torch.autograd.graph.saved_tensors_hooks(
                _untraced(mover.pack), _untraced(mover.unpack)
            )
        hooks.__enter__()
        self._open.append(hooks)


def _untraced(function: Any) -> Any:
    """Called where a function is being compiled, piece by piece, it is no piece of it."""
    if "torch._dynamo" not in sys.modules:
        return function
    import torch

    return torch.compiler.disable(function)


def _in_bytes(value: SizeLike, name: str) -> int | None:
    size = sizes.parse(value, name=name)
    if size is not None and size.bytes is None:
        raise ValueError(f"{name}={size}: a share of what? Give bytes, as 8GiB")
    return None if size is None else size.bytes


def mover_of(context: offload_activations) -> _Mover | None:
    """What the context manager's passes are kept in; None before the first."""
    return _movers.get(context._key)


def of_its_own(context: offload_activations, name: object) -> None:
    """What the context learns is its own, not of the place where it was made."""
    context._key = ((str(name), id(name)), context._budget, context._least)


def forget(context: offload_activations) -> None:
    """Nobody goes through it again: what it learned goes. What it sent comes back still."""
    with _lock:
        _movers.pop(context._key, None)


def figures(device: int) -> dict[str, int]:
    """Bytes of saved tensors in the last pass: ``saved`` in all that could leave, ``sent`` of
    them; ``passes`` so far. All 0 where there was none."""
    found = {"saved": 0, "sent": 0, "passes": 0}
    with _lock:
        for mover in _movers.values():
            last = mover.last.get(device)
            if last is not None:
                found["saved"] += last[0]
                found["sent"] += last[1]
                found["passes"] += mover.passes[device]
    return found


class _Mover:
    """What `offload_activations` of one place in the program is about."""

    def __init__(self, host: HostTensors, budget: int | None, least: int) -> None:
        self.host = host
        self.budget = budget
        self.least = least
        self.current: dict[int, _Pass] = {}
        self.learners: dict[int, Learner] = {}
        self.links: dict[int, _Links] = {}
        self.host_bytes: dict[int, int] = {}  # of copies on the host, by device
        self.last: dict[int, tuple[int, int]] = {}
        self.passes: dict[int, int] = {}  # begun, by device
        self.full = False  # of host memory there is no more
        self.missed: dict[int, int] = {}  # bytes that the net had to take, though planned
        self.waits: list[Waited] | None = (
            None  # of the program's streams; None: not wanted
        )
        self.stay: set[int] = set()  # addresses of storages that stay
        self.quiet = 0  # passes in a row of which all was known to fit

    def is_quiet(self) -> bool:
        """Whether all has fitted for long, with so much to spare that autograd need not be
        looked at: as soon as there is less to spare it is again."""
        if self.quiet < _QUIET:
            return False
        for index, last in self.current.items():
            if core().room(index)[1] > last.room * _QUIET_SHARE:
                self.quiet = 0
                return False
        return True

    def begin(self) -> None:
        """A new pass begins with the next tensor saved."""
        for one in self.current.values():
            one.over = True

    def pack(self, tensor: torch.Tensor) -> Any:
        now = self.current.get(tensor.get_device())
        if now is not None and now.plan.idle and not now.over:
            return tensor
        if _stays(tensor):
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < self.least or tensor.nbytes * 4 < storage.nbytes():
            return tensor
        if self.stay and storage.data_ptr() in self.stay:
            return tensor
        with _lock:
            now = self._pass(tensor.device)
            return tensor if now.plan.idle else now.pack(tensor, storage)

    def unpack(self, packed: Any) -> torch.Tensor:
        if type(packed) is not _Handle:
            found: torch.Tensor = packed
            now = self.current.get(found.get_device())
            if now is not None:
                now.over = True
            return found
        with _lock:
            return packed.item.owner.unpack(packed)

    def _pass(self, device: torch.device) -> _Pass:
        index = int(device.index)
        now = self.current.get(index)
        if now is None or now.over:
            if now is not None:
                now.finish()
            if index not in self.links:
                self.links[index] = _Links(device)
                self.learners[index] = Learner(self.least)
            self.full = False
            self.passes[index] = self.passes.get(index, 0) + 1
            now = self.current[index] = _Pass(self, device)
        return now


def _stays(tensor: torch.Tensor) -> bool:
    """What is never sent."""
    import torch

    if type(tensor) is not torch.Tensor or not tensor.is_cuda:
        return True
    if tensor.requires_grad and tensor.is_leaf:
        return True
    base = tensor._base
    if base is not None and base.requires_grad and base.is_leaf:
        return True
    return (
        tensor.layout != torch.strided
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_quantized
        or tensor.is_nested
        or torch._C._current_graph_task_id() != -1  # computed again, in backward
        or torch.cuda.is_current_stream_capturing()
        or torch.compiler.is_compiling()
    )


class _Links:
    """The streams of a device's copies, and the program's by cheap names: what torch.cuda does
    in Python for each is most of the time of a small copy."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self._known: dict[Any, torch.cuda.Stream] = {}

    def current(self) -> torch.cuda.Stream:
        """The calling thread's."""
        import torch

        key = torch._C._cuda_getCurrentStream(self.device.index)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > 64:
                self._known.clear()
            found = self._known[key] = torch.cuda.current_stream(self.device)
        return found


class _On:
    """Work goes to that stream; as torch.cuda.stream()."""

    __slots__ = ("device", "old", "stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        import torch

        stream, c = self.stream, torch._C
        self.device = c._cuda_getDevice()
        self.old = c._cuda_getCurrentStream(stream.device_index)
        _set_stream(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *_: Any) -> None:
        import torch

        _set_stream(*self.old)
        if self.device != self.old[1]:
            torch.cuda.set_device(self.device)


def _set_stream(number: int, device: int, kind: int) -> None:
    import torch

    torch._C._cuda_setStream(stream_id=number, device_index=device, device_type=kind)


class _Item:
    """A storage that was saved. ``held``: a tensor over it; ``host``: its copy there, complete
    when ``left`` has passed; ``there``: its bytes back on the device, when ``came`` has."""

    def __init__(self, owner: _Pass, index: int, tensor: torch.Tensor, size: int) -> None:
        self.owner = owner
        self.index = index
        self.size = size
        self.held: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        # Copied as what it is: a rehearsal spares itself the contents of large floats.
        self.dtype = _copied_as(tensor.dtype, size)
        self.broken = False
        self.stream = owner.links.current()
        self.host: torch.Tensor | None = None
        self.left: torch.cuda.Event | None = None
        self.there: torch.Tensor | None = None
        self.came: torch.cuda.Event | None = None
        self.came_to: torch.cuda.Stream | None = None
        self.handles = 0
        self.waiting = 0  # of them, not unpacked yet

    def is_away(self) -> bool:
        return self.held is None and self.there is None and self.host is not None

    def changed(self) -> bool:
        if self.held is not None and self.held._version != self.version:
            self.broken = True
        return self.broken


class _Handle:
    """What autograd keeps in the tensor's place."""

    __slots__ = ("dtype", "item", "offset", "size", "stride", "used")

    def __init__(self, item: _Item, tensor: torch.Tensor) -> None:
        self.item = item
        self.dtype = tensor.dtype
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.used = False
        item.handles += 1
        item.waiting += 1

    def __del__(self) -> None:
        if _child:
            return
        try:
            with _lock:
                self.item.handles -= 1
                if not self.used:
                    self.item.waiting -= 1
                if not self.item.handles:
                    self.item.owner.forget(self.item)
        except (RuntimeError, AttributeError, TypeError):  # the interpreter is going
            return


class _Pass:
    """A forward pass on one device, and its backward."""

    def __init__(self, mover: _Mover, device: torch.device) -> None:
        self.mover = mover
        self.device = device
        self.number = int(device.index)
        self.links = mover.links[self.number]
        self.over = False
        self.items: list[_Item] = []
        self.by_storage: dict[int, tuple[Any, _Item]] = {}
        self.leaving: deque[_Item] = (
            deque()
        )  # the copy out is queued, the device's still held
        self.in_flight = 0  # bytes of them
        self.sent = 0
        self.away = 0  # bytes of items with no memory on the device
        self.oldest = 0  # items before it are sent, or stay
        self.next = -1  # the next to come back, downwards
        self.ahead = 0  # bytes that came back and wait for their use
        self.largest = 0  # of those sent
        self.plan = Plan(0, mover.least)
        self._look_around()

    # --- what is where ------------------------------------------------------------------
    def _look_around(self) -> None:
        from ..answers.memory import mem_get_info

        stats = core().stats(self.number)
        self.room = mem_get_info(self.number)[0] + stats["reserved"][0]
        self.at_home = _at_home() - self.mover.host_bytes.get(self.number, 0)
        self.spilled = stats["spill_bytes"]
        core().room(self.number)  # the highest counts from here
        self.highest = 0  # bytes held on the device
        self.base = self._device_now(stats["allocated"][0][0])
        self.demand = self.base

    def _device_now(self, live: int) -> int:
        """Of bytes in blocks, those that are or want to be on the device."""
        return live - self.at_home - self.mover.host_bytes.get(self.number, 0)

    def device_now(self) -> int:
        """Bytes in blocks that are on the device, or want to be."""
        return self._device_now(core().room(self.number)[0])

    def _sample(self) -> int:
        """Bytes held on the device now."""
        live, peak, held, _ = core().room(self.number)
        highest = self._device_now(max(live, peak))
        self.demand = max(self.demand, highest + self.away)
        self.highest = max(self.highest, held)
        return int(held)

    @property
    def stash(self) -> int:
        """Bytes whose copies out may be under way while the device's are still held."""
        return max(2 * self.largest, max(self.plan.bytes, self.sent) // 16)

    @property
    def margin(self) -> int:
        """Bytes to be left free for what is allocated between two looks."""
        return self.stash + self.room // 64

    def demand_now(self) -> tuple[int, int]:
        """Bytes that it would have had on the device with nothing away, so far, and those of
        the tensors that it saved."""
        self._sample()
        return self.demand, sum(item.size for item in self.items)

    def finish(self) -> None:
        """The next pass begins."""
        _, saved = self.demand_now()
        self.mover.last[self.number] = saved, self.sent
        self.by_storage.clear()
        if self.plan.bytes:
            missed = core().stats(self.number)["spill_bytes"] - self.spilled
            before = self.mover.missed.get(self.number, 0)
            self.mover.missed[self.number] = min(max(missed, before), self.room // 8)
        self.mover.quiet = self.mover.quiet + 1 if self.plan.idle else 0
        if self.items and not self.plan.idle:
            seen = tuple(item.size for item in self.items)
            left = self._device_now(core().room(self.number)[0]) + self.away
            settled = abs(left - self.base) <= self.room // 64
            learner = self.mover.learners[self.number]
            learner.learn(Seen(seen[0], self.base, self.demand, seen, settled))

    # --- forward ---------------------------------------------------------------------------
    def pack(self, tensor: torch.Tensor, storage: Any) -> Any:
        from torch.multiprocessing.reductions import StorageWeakRef

        known = self.by_storage.get(storage._cdata)
        if known is not None and known[1].version == tensor._version:
            return _Handle(known[1], tensor)
        size = storage.nbytes()
        held = self._sample()
        if not self.items:
            self._make_plan(size)
            if self.plan.idle:
                return tensor
        item = _Item(self, len(self.items), tensor, size)
        # The weak reference keeps the key from being another storage's.
        self.by_storage[storage._cdata] = StorageWeakRef(storage), item
        self.items.append(item)
        self.next = item.index
        handle = _Handle(item, tensor)
        if self.mover.budget is not None:
            if self.sent + size <= self.mover.budget:
                self._send(item)
        elif self.sent < self.plan.bytes and size >= self.plan.least:
            self._send(item)
        self._let_go(held)
        return handle

    def _make_plan(self, first: int) -> None:
        if self.mover.budget is None:
            learner = self.mover.learners[self.number]
            least = learner.plan(first, self.base, self.room, 0)
            margin = self.room // 64 + self.mover.missed.get(self.number, 0)
            self.plan = learner.plan(first, self.base, self.room, margin)
            if least.bytes:  # what is still being copied counts as not gone
                self.largest = max(self.largest, self.plan.largest)
                self.plan = replace(self.plan, bytes=self.plan.bytes + self.stash)

    def _send(self, item: _Item) -> None:
        """Queues the copy out."""
        if self.mover.full or item.held is None or item.host is not None:
            return
        current = self.links.current()
        out = self.links.out
        out.wait_stream(current)
        if item.stream != current:
            out.wait_stream(item.stream)
        try:
            with _On(out):
                host = self.mover.host.flat(item.size, self.device).view(item.dtype)
                host.copy_(_flat(item.held, host), non_blocking=True)
        except RuntimeError as error:  # OutOfMemoryError is one
            self.mover.full = True
            text = str(error).partition("\n")[0]
            warn(
                "torcharena.offload_activations: host memory does not suffice: what is saved "
                f"from here on stays on the device ({text})",
                stacklevel=0,
            )
            return
        # It is let go sooner than without us: a stream that is not its own must be known.
        item.held.record_stream(item.stream)
        item.host = host
        item.left = out.record_event()
        self.leaving.append(item)
        self.in_flight += item.size
        self.sent += item.size
        self.largest = max(self.largest, item.size)
        held = self.mover.host_bytes
        held[self.number] = held.get(self.number, 0) + item.size

    def _let_go(self, held: int) -> None:
        """Gives the device's memory back of what has left; under pressure, of more."""
        pressed = self.mover.budget is None and held > self.room - self.margin
        if pressed:
            self._send_oldest(held - (self.room - self.margin))
        while self.leaving:
            item = self.leaving[0]
            assert item.left is not None
            if not item.left.query():
                if not pressed and self.in_flight <= self.stash:
                    return
                self._order(item)
            self.leaving.popleft()
            self._dropped(item)
            if pressed:
                pressed = self._sample() > self.room - self.margin

    def _send_oldest(self, over: int) -> None:
        over -= self.in_flight
        while over > 0 and self.oldest < len(self.items):
            item = self.items[self.oldest]
            self.oldest += 1
            if item.held is not None and item.host is None and item.waiting:
                self._send(item)
                over -= item.size

    def _order(self, item: _Item) -> None:
        """Those who may reuse the bytes wait for the copy out, on the device."""
        assert item.left is not None
        current = self.links.current()
        if current != item.stream:
            item.stream.wait_event(item.left)
        self._await(current, item.left, "out")

    def _await(
        self, stream: torch.cuda.Stream, event: torch.cuda.Event, way: str
    ) -> None:
        """The program's stream waits; for how long, where somebody wants to know."""
        if self.mover.waits is None:
            stream.wait_event(event)
            return
        begin = stream.record_event(_timing())
        stream.wait_event(event)
        self.mover.waits.append((way, begin, stream.record_event(_timing())))

    def _dropped(self, item: _Item) -> None:
        self.in_flight -= item.size
        if item.held is not None:
            item.changed()
            item.held = None
            if item.there is None:
                self.away += item.size

    # --- backward --------------------------------------------------------------------------
    def unpack(self, handle: _Handle) -> torch.Tensor:
        import torch

        self.over = True
        item = handle.item
        if item.changed():
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of {handle.dtype}, shape {tuple(handle.size)}, "
                "after it was saved inside torcharena.offload_activations()"
            )
        held = self._sample()
        if item.is_away():
            self._bring_now(item)
            held += item.size
        self._bring_ahead(held)
        current = self.links.current()
        if item.held is not None:
            source = item.held
        else:
            assert item.there is not None
            assert item.came is not None
            self._await(current, item.came, "back")
            if item.came_to != current:
                item.there.record_stream(current)
            source = item.there
        found = torch.empty(0, dtype=handle.dtype, device=self.device)
        found.set_(source.untyped_storage(), handle.offset, handle.size, handle.stride)
        if not handle.used:
            handle.used = True
            item.waiting -= 1
        if item.there is not None and item.waiting <= 0:
            self._leave_there(item)
        while self.leaving and self.leaving[0].left.query():  # type: ignore[union-attr]
            self._dropped(self.leaving.popleft())
        return found

    def _bring(self, item: _Item) -> None:
        """Queues the copy back."""
        import torch

        assert item.host is not None
        assert item.left is not None
        current = self.links.current()
        back = self.links.back
        count = item.host.numel()
        item.there = torch.empty(count, dtype=item.dtype, device=self.device)
        back.wait_stream(current)
        back.wait_event(item.left)
        with _On(back):
            item.there.copy_(item.host, non_blocking=True)
        item.came = back.record_event()
        item.came_to = current
        self.mover.host.used_by(item.host, back)
        self.away -= item.size
        self.ahead += item.size

    def _leave_there(self, item: _Item) -> None:
        """It is on the host alone again; asked for again, it comes again."""
        item.there = None
        self.ahead -= item.size
        self.away += item.size

    def _bring_now(self, item: _Item) -> None:
        """What came ahead of its need makes room where there is none; it comes again."""
        import torch

        try:
            return self._bring(item)
        except torch.OutOfMemoryError:
            if not self.ahead:
                raise
        for other in self.items:
            if other.there is not None:
                other.there.record_stream(self.links.back)
                self._leave_there(other)
                self.next = max(self.next, other.index)
        self._bring(item)

    def _bring_ahead(self, held: int) -> None:
        """What is needed next: enough that a copy is always under way, and as far as there is
        room beside what backward itself allocates between two looks."""
        import torch

        usual = max(4 * self.largest, self.room // 32)
        most = self.room - usual
        if self.mover.budget is not None:
            most = min(most, self.highest)
        while self.next >= 0:
            item = self.items[self.next]
            if item.is_away() and item.waiting:
                if self.ahead and (self.ahead >= usual or held + item.size > most):
                    return
                if held + item.size > self.room - usual // 2:
                    return
                try:
                    self._bring(item)
                except torch.OutOfMemoryError:
                    return  # it comes when it is asked for
                held += item.size
            self.next -= 1

    # --- the end of an item ------------------------------------------------------------------
    def forget(self, item: _Item) -> None:
        """Its last handle is gone: the graph was freed, perhaps without a backward."""
        if item in self.leaving:
            self.leaving.remove(item)
            self.in_flight -= item.size
            if item.held is not None:
                item.held.record_stream(self.links.out)
        elif item.is_away():
            self.away -= item.size
        if item.there is not None:
            self.ahead -= item.size
            item.there.record_stream(self.links.back)
        if item.host is not None:
            self.mover.host_bytes[self.number] -= item.size
        item.held = item.host = item.there = None


def _at_home() -> int:
    """Bytes of blocks, on all devices, in regions at home on the host."""
    library, number, found = core(), 1, 0
    while (info := library.region_get(number)) is not None:
        if info["on_host"]:
            found += info["allocated"]
        number += 1
    return found


def _timing() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)


def _copied_as(dtype: torch.dtype, size: int) -> torch.dtype:
    import torch

    plain = dtype.is_floating_point and dtype.itemsize > 1 and size % dtype.itemsize == 0
    return dtype if plain else torch.uint8


def _flat(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The bytes of the tensor's storage."""
    import torch

    flat = torch.empty(0, dtype=like.dtype, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), 0, (like.numel(),), (1,))


def line(device: int) -> str | None:
    """For `memory_summary`."""
    found = figures(device)
    if not found["passes"]:
        return None
    if not found["sent"]:
        return "saved tensors: all of them stayed on the device in the last pass"
    return (
        f"saved tensors: {format_size(found['sent'])} of {format_size(found['saved'])} went "
        "to the host in the last pass"
    )
