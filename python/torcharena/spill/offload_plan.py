"""How many bytes of saved tensors must leave the device, learned from the passes before. Pure.

A *pass* is a forward pass and what follows until the next one. Its *demand* is the most that
it would have had on the device had nothing left; above what was there at its begin, demand is
taken to grow with the size of the first tensor saved, which in most models is that of the
input: so a pass of another length than any before is foreseen too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Learner", "Plan", "Seen"]

_KEPT = 32  # passes remembered
_IDLE = 0.9  # of the room, up to which a pass that is known is left alone
_MOST = 8  # of one size, whose highest demand counts


@dataclass(frozen=True)
class Seen:
    """A pass that is over; all in bytes."""

    first: int  # the first tensor saved
    base: int  # on the device when it began
    demand: int
    sizes: tuple[int, ...]  # of what was saved, in order
    settled: bool = True  # as much was there at its end as at its begin


@dataclass(frozen=True)
class Plan:
    """Bytes to send away, the earliest saved first; only tensors of at least ``least``."""

    bytes: int
    least: int
    idle: bool = False  # all fits, with much to spare: there is nothing to look after
    largest: int = 0  # of those that will leave, if all is as before


class Learner:
    """What is known of the passes of one place in a program."""

    def __init__(self, least: int) -> None:
        self.least = least
        self._seen: deque[Seen] = deque(maxlen=_KEPT)

    def learn(self, seen: Seen) -> None:
        if seen.sizes:
            self._seen.append(seen)

    def demand(self, first: int, base: int) -> int | None:
        """What a pass will want that begins so; None where none was seen."""
        rises: dict[int, int] = {}
        counted: dict[int, int] = {}
        # A first step makes its optimizer's state: it counts until there is a better one.
        newest = list(self._seen)[::-1]
        for seen in sorted(newest, key=lambda seen: not seen.settled):
            if not seen.settled and seen.first in rises:
                continue
            counted[seen.first] = counted.get(seen.first, 0) + 1
            if counted[seen.first] <= _MOST:
                rise = max(seen.demand - seen.base, 0)
                rises[seen.first] = max(rises.get(seen.first, 0), rise)
        if not rises:
            return None
        return base + _rise(rises, first)

    def plan(self, first: int, base: int, room: int, margin: int) -> Plan:
        """``room``: bytes that the device can hold; ``margin``: of them, to be left free."""
        demand = self.demand(first, base)
        if demand is None or demand <= room:
            known = sum(seen.settled and seen.first == first for seen in self._seen)
            idle = demand is not None and known > 1 and demand <= room * _IDLE
            return Plan(0, self.least, idle)
        leave = demand - room + margin
        sizes = self._seen[-1].sizes
        size = least_size(sizes, leave, self.least)
        return Plan(leave, size, largest=_largest(sizes, leave, size))


def _rise(rises: dict[int, int], first: int) -> int:
    """The rise at ``first``, by those known: the same, or a line through the two nearest."""
    if first in rises:
        return rises[first]
    nearest = sorted(rises, key=lambda other: max(other / first, first / other))
    one = nearest[0]
    along = rises[one] * first / one
    if len(nearest) > 1:
        other = nearest[1]
        slope = (rises[one] - rises[other]) / (one - other)
        line = rises[one] + slope * (first - one)
        if slope >= 0 and line > 0:
            along = line
    return int(along)


def _largest(sizes: Iterable[int], leave: int, least: int) -> int:
    """Of the first that leave."""
    found = gone = 0
    for size in sizes:
        if size >= least and gone < leave:
            gone += size
            found = max(found, size)
    return found


def least_size(sizes: Iterable[int], leave: int, least: int) -> int:
    """The size from which on tensors leave: large ones are cheap to send, so as large as
    suffices, with half as much again to choose from."""
    held = sorted(sizes, reverse=True)
    if not held:
        return least
    size = held[0] // 4
    while size > least and sum(one for one in held if one >= size) * 2 < leave * 3:
        size //= 2
    return max(size, least)
