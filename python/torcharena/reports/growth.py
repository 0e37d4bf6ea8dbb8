"""What grows from step to step, from the blocks that live and the steps they were made in.

A group (of one phase, category, module and line) grows where the steps of a window each left
something behind that nobody freed: most of the last eight; or, since some things happen in
every tenth step only, steps all over a longer window. The window reaches back to the first
step at most; that one and the step under way say nothing. What only keeps the last so many
steps frees as much a step as it leaves, which the library counts by phase
(`ta_usage_phase.late`): such a group does not grow, but by what each step of the run's first half
left and is there yet."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = ["Left", "growth", "steps_left"]

STEADY = 8  # steps of the shortest window
_FEWEST = 4  # of them that left something
_QUARTERS = 4  # of a longer window, each of which must have
_AGAIN = 4  # the next window is so many times as long
_FREED = 0.55  # of what a group leaves a step; where so much is freed, it only replaces


class Left(NamedTuple):
    """A live block: its group, of which the first is the phase, and what it left when."""

    group: tuple[str, ...]
    step: int
    size: int


class _Grown(NamedTuple):
    group: tuple[str, ...]
    bytes_per_step: int
    every: int  # steps between those that left something
    steps: int  # that did
    blocks: int
    size: int  # the most of them have
    stays: int  # bytes that every step of the run's first half left for good


def growth(
    blocks: Iterable[Left], late: dict[str, float], step: int
) -> list[dict[str, Any]]:
    """Rows of what grows, the most first: ``group``, ``bytes_per_step`` on average, ``every``
    so many steps, in how many ``steps``, by how many ``blocks`` of mostly which ``size``.

    Args:
        late: by phase, the bytes a step that are freed two or more steps after their own.
        step: the one under way, from 0.
    """
    found: dict[tuple[str, ...], list[Left]] = collections.defaultdict(list)
    for block in blocks:
        if 0 < block.step < step - 1:
            found[block.group].append(block)
    grown = [row for left in found.values() if (row := _grown(left, step)) is not None]
    grown.sort(key=lambda row: -row.bytes_per_step)
    rows = sorted(_without_windows(grown, late), key=lambda row: -row.bytes_per_step)
    return [
        {key: value for key, value in row._asdict().items() if key != "stays"}
        for row in rows
    ]


def _windows(step: int) -> Iterator[range]:
    """Of completed steps, from the shortest on to all but the first."""
    length = STEADY
    while True:
        window = range(max(1, step - length), step - 1)
        yield window
        if window.start <= 1:
            return
        length *= _AGAIN


def _grown(left: list[Left], step: int) -> _Grown | None:
    for number, window in enumerate(_windows(step)):
        by_step: dict[int, int] = collections.defaultdict(int)
        for block in left:
            if block.step in window:
                by_step[block.step] += block.size
        whole = len(window)
        if len(by_step) >= max(_FEWEST, whole // 2):
            rate, every = int(statistics.median(by_step.values())), 1
        elif number and _all_over(by_step, window):
            rate, every = sum(by_step.values()) // whole, round(whole / len(by_step))
        else:
            continue
        inside = [block for block in left if block.step in by_step]
        return _Grown(
            left[0].group,
            rate,
            every,
            len(by_step),
            len(inside),
            _usual_size(inside),
            _stays(left, step),
        )
    return None


def _stays(left: list[Left], step: int) -> int:
    """What frees its oldest blocks, or all of them, leaves nothing of some step."""
    first = range(1, step // 2)
    by_step = dict.fromkeys(first, 0)
    for block in left:
        if block.step in first:
            by_step[block.step] += block.size
    if len(first) < STEADY or not all(by_step.values()):
        return 0
    return int(statistics.median(by_step.values()))


def _all_over(by_step: dict[int, int], window: range) -> bool:
    """Whether steps in each quarter left something, and the last no less than half of what
    one does on average: what fills up leaves less and less."""
    quarters = [0] * _QUARTERS
    for at, size in by_step.items():
        quarters[(at - window.start) * _QUARTERS // len(window)] += size
    return (
        len(by_step) >= _FEWEST
        and min(quarters) > 0
        and quarters[-1] >= sum(quarters) / _QUARTERS / 2
    )


def _usual_size(blocks: list[Left]) -> int:
    """The size, the larger of two, of which most steps left a block."""
    steps = collections.Counter(
        size for _, size in {(block.step, block.size) for block in blocks}
    )
    return max(steps, key=lambda size: (steps[size], size))


def _without_windows(rows: list[_Grown], late: dict[str, float]) -> Iterator[_Grown]:
    """Those whose phase does not free as much: what it frees is taken to be of the largest
    that it can be; but of none that stays."""
    freed = dict(late)
    for row in rows:
        phase = row.group[0]
        if row.stays:
            if freed.get(phase, 0.0) and row.stays < row.bytes_per_step:
                freed[phase] = max(0.0, freed[phase] - row.bytes_per_step + row.stays)
                row = row._replace(bytes_per_step=row.stays)
            yield row
        elif freed.get(phase, 0.0) >= _FREED * row.bytes_per_step:
            freed[phase] = max(0.0, freed[phase] - row.bytes_per_step)
        else:
            yield row


def steps_left(rows: list[dict[str, Any]], room: int | None) -> int | None:
    """After how many more steps at this rate ``room`` bytes are used up; None: never, or it
    is not known. A block takes 512 bytes or a multiple."""
    rate = sum(
        row["bytes_per_step"] * (-(-row["size"] // 512) * 512) / max(1, row["size"])
        for row in rows
    )
    return None if room is None or not rate else int(room / rate)
