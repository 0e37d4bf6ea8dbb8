"""Does it fit? What a run and its card say together.

    need + context <= memory of the card

``need`` is what the allocator must back with device memory: for the arena the smallest cap
under which its recorded trace replays, for torch's own allocators the peak they reserved. A
difference within ``unsure`` is no answer; then torch's own allocators, which can give back
their caches, are run again with that much less."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .. import traces
from ..state import DEFAULT_PAGE
from .cards import Card
from .launch import Run

__all__ = [
    "CANNOT_TELL",
    "DOES_NOT_FIT",
    "FAILED",
    "FITS",
    "TOO_CLOSE",
    "Verdict",
    "judge",
    "peak_step",
    "smallest_cap",
    "together",
]

FITS = "fits"
DOES_NOT_FIT = "does not fit"
TOO_CLOSE = "too close to tell"
CANNOT_TELL = "cannot tell"
FAILED = "the script failed"
_CODES = {FITS: 0, FAILED: 1, DOES_NOT_FIT: 3, TOO_CLOSE: 4, CANNOT_TELL: 4}
# How far a simulated peak may be from a GPU's (docs/rehearsal.md has the measurements).
_INEXACT = {"arena": 0.01, "expandable": 0.02, "native": 0.02}


@dataclass
class Verdict:
    """``margin``: bytes left over, negative where they are wanting, None where unknown.
    ``unsure``: within so many bytes of the limit there is no telling."""

    answer: str
    margin: int | None = None
    unsure: int = 0
    why: str = ""

    @property
    def code(self) -> int:
        return _CODES[self.answer]


def room(card: Card, limit: int | None, sharing: int) -> int:
    """Bytes that a process's allocator may back."""
    free = (card.memory - sharing * card.context) // max(1, sharing)
    return free if limit is None else min(free, limit)


def judge(run: Run, need: int | None) -> Verdict:
    """The verdict on one run. ``need``: bytes, None where it is not known (the run ran out
    and was not repeated with more)."""
    free = room(run.card, run.limit, run.sharing)
    capped = run.limit is not None and run.limit < free + run.card.unsure
    unsure = 0 if capped and run.limit == free else run.card.unsure
    if run.timed_out:
        return Verdict(CANNOT_TELL, why="time ran out first")
    if run.failed:
        return Verdict(FAILED, why=f"exit code {run.exit_code}")
    if need is None:
        return Verdict(DOES_NOT_FIT, why="it runs out of memory")
    unsure += int(need * _INEXACT[run.allocator])
    margin = free - need
    if run.oom:
        answer = TOO_CLOSE if margin >= -unsure else DOES_NOT_FIT
        return Verdict(answer, min(margin, 0), unsure, "it runs out of memory")
    if margin <= unsure:
        return Verdict(TOO_CLOSE, margin, unsure)
    return Verdict(FITS, margin, unsure)


def together(verdicts: list[Verdict]) -> Verdict:
    """The answer for all that were asked: the script's failure first, then the worst."""
    for answer in (FAILED, DOES_NOT_FIT, CANNOT_TELL, TOO_CLOSE):
        for verdict in verdicts:
            if verdict.answer == answer:
                return verdict
    return verdicts[0]


def smallest_cap(run: Run, seconds: float = 20.0) -> int | None:
    """The least cap, bytes and whole pages, under which the recorded trace replays without
    running out; None without a trace, or where it does not replay. Of several processes the
    one that needs most. After ``seconds`` the best so far is good enough."""
    worst: int | None = None
    until = time.monotonic() + seconds
    for trace in run.traces:
        try:
            need = _smallest(trace, until)
        except (OSError, ValueError, RuntimeError):
            continue
        if need is not None and (worst is None or need > worst):
            worst = need
    return worst


def _replays(trace: str, limit: int) -> bool:
    (figures,) = traces.replay(trace, limit=limit)
    return not figures["oom"]


def _smallest(trace: str, until: float) -> int | None:
    (free,) = traces.replay(trace)
    if free["oom"] or not free["events"]:
        return None
    low = free["peak_requested"] // DEFAULT_PAGE  # pages that are too few, but for luck
    high = -(-free["peak_reserved"] // DEFAULT_PAGE)
    while not _replays(trace, high * DEFAULT_PAGE):
        high += max(1, high // 100)
        if time.monotonic() > until:
            return None
    low = min(low, high - 1)
    while high - low > 1 and time.monotonic() < until:
        middle = (low + high) // 2
        if _replays(trace, middle * DEFAULT_PAGE):
            high = middle
        else:
            low = middle
    return high * DEFAULT_PAGE


def peak_step(run: Run) -> int | None:
    """The optimizer step, from 1, in which the requested peak stands in the recorded trace;
    None where there is no such step. Where several reach it, the first."""
    best, found = 0, None
    for trace in run.traces:
        try:
            lines = traces.read(trace).decode("ascii", "replace").splitlines()
        except (OSError, ValueError):
            continue
        peak, step, last = _peak_of(lines)
        if peak > best:
            best, found = peak, step if step <= last else None
    return found


def _peak_of(lines: list[str]) -> tuple[int, int, int]:
    """(peak bytes, the step it stands in, steps in all)."""
    sizes: dict[str, int] = {}
    current = peak = at = steps = 0
    for line in lines:
        parts: list[Any] = line.split(" ", 3)
        if parts[0] == "a":
            sizes[parts[1]] = int(parts[2])
            current += sizes[parts[1]]
            if current > peak:
                peak, at = current, steps + 1
        elif parts[0] == "f":
            current -= sizes.pop(parts[1], 0)
        elif line == "m step":
            steps += 1
    return peak, at, steps
