"""How long the parts of a training step take, by events on the program's stream.

A few steps are timed after every change, and one in sixteen later; a step whose events have not
passed is looked at later: the host waits for none. Waits for copies are timed each, so that what
is left of forward and backward is computing, and the waits are what offloading costs."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.cuda import Event

__all__ = ["StepClock"]

_FIRST = 6  # steps timed after a change
_EVERY = 16  # later
_PENDING = 3
_KEPT = 8


class _Step:
    """Events of one step. ``waits``: which way, before the wait, after it."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, Event, Event]] = []
        self.forwards: list[list[Event]] = []
        self.begin: Event | None = None  # of the optimizer's step
        self.end: Event | None = None
        self.state = 0  # bytes on the host


class StepClock:
    def __init__(self) -> None:
        self.on = False  # until something must leave nothing is timed
        self.forward: float | None = None  # seconds of computing in a pass
        self.backward: float | None = None
        self.seconds: float | None = (
            None  # a step's, from end to end, with something away
        )
        self.free_seconds: float | None = None  # with nothing away
        self.waited: float | None = None  # seconds a step for copies
        self.optimizer: float | None = None  # its step, with state on the host
        self.optimizer_free: float | None = None
        self.place: float | None = None  # bytes a second, each way
        self._now: _Step | None = None
        self._pending: deque[_Step] = deque()
        self._count = 0  # of steps since the change
        self._last: float | None = None
        self._samples: dict[str, deque[float]] = {}
        self._newest: _Step | None = None  # whose end may not be the last
        self._named = ""  # the sample of the step that ended last

    @property
    def waits(self) -> list[Any] | None:
        """Where waits of this step are to be put; None: nobody looks."""
        return None if self._now is None else self._now.waits

    def changed(self) -> None:
        """Another choice: waits and steps so far say nothing of it."""
        self._count = 0
        self._now = None
        self._pending.clear()
        self._last = self._newest = None
        self._named = ""
        for name in ("waited", "seconds", "optimizer"):
            self._samples.pop(name, None)
        self.waited = self.seconds = self.optimizer = None

    # --- marks --------------------------------------------------------------------------------
    def forward_begins(self) -> None:
        if self.on and self._now is None and self._is_due():
            self._now = _Step()
        if self._now is not None and self._now.begin is None:
            self._now.forwards.append([_mark()])

    def forward_ends(self) -> None:
        now = self._now
        if now is not None and now.forwards and len(now.forwards[-1]) == 1:
            now.forwards[-1].append(_mark())

    def step_begins(self) -> None:
        now = self._now
        if now is not None and now.forwards and now.begin is None:
            now.begin = _mark()

    def step_ends(self, away: bool, state: int) -> None:
        """``away``: something was on the host in this step, ``state`` bytes of it state."""
        while self._pending and self._pending[0].end.query():  # type: ignore[union-attr]
            self._read(self._pending.popleft())
        clock = time.perf_counter()
        self._named = ""
        if self._last is not None:
            self._named = "seconds" if away else "free_seconds"
            self._take(self._named, clock - self._last)
        self._last = clock
        now, self._now = self._now, None
        self._count += 1
        self._newest = None
        if now is not None and now.begin is not None:
            now.end = _mark()
            now.state = state
            self._pending.append(now)
            self._newest = now

    def step_goes_on(self, state: int) -> None:
        """Another optimizer's, with no forward pass between: one step of the program."""
        clock = time.perf_counter()
        if self._named and self._last is not None:
            held = self._samples[self._named]
            self._take(self._named, held.pop() + clock - self._last)
        if self._last is not None:
            self._last = clock
        if self._newest is not None:
            self._newest.end = _mark()
            self._newest.state = state

    def _is_due(self) -> bool:
        if len(self._pending) >= _PENDING:
            return False  # the host is far ahead
        return self._count < _FIRST or self._count % _EVERY == 0

    # --- what they tell -----------------------------------------------------------------------
    def _take(self, name: str, value: float) -> None:
        """Of several the median."""
        held = self._samples.setdefault(name, deque(maxlen=_KEPT))
        held.append(value)
        setattr(self, name, statistics.median(held))

    def _read(self, step: _Step) -> None:
        begin, end = step.begin, step.end
        assert begin is not None
        assert end is not None
        whole = [pair for pair in step.forwards if len(pair) == 2]
        if len(whole) < len(step.forwards):
            return  # a forward that failed
        out = sum(_between(a, b) for way, a, b in step.waits if way == "out")
        back = sum(_between(a, b) for way, a, b in step.waits if way == "back")
        inside = sum(_between(a, b) for a, b in whole)
        outside = _between(whole[0][0], begin) - inside
        self._take("forward", max(inside - out, 0.0) / len(whole))
        self._take("backward", max(outside - back, 0.0) / len(whole))
        self._take("waited", out + back)
        took = _between(begin, end)
        if not step.state:
            self._take("optimizer_free", took)
            return
        self._take("optimizer", took)
        alone = took - (self.optimizer_free or 0.0)
        if alone > 0.25 * took:
            self._take("place", step.state / alone)

    @property
    def cost(self) -> float | None:
        """Seconds that a step takes longer, as measured."""
        if self.waited is None:
            return None
        cost = self.waited
        if self.optimizer is not None:
            cost += max(self.optimizer - (self.optimizer_free or 0.0), 0.0)
        return cost


def _mark() -> Event:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(one: Event, other: Event) -> float:
    return float(one.elapsed_time(other)) / 1e3
