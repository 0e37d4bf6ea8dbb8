"""Batch sizes by rehearsals: `find` tries every size in one, `forecast` asks two of them how
much memory a size takes, before the card is asked. Called by ``torcharena.batches``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from .. import sizes
from ..batches.calls import Call, Wanted, passing
from ..batches.search import BatchSize, Try
from . import cards, launch
from .api import rehearsed
from .launch import ALLOCATORS
from .packing import packed
from .rehearsing import Options

__all__ = ["find", "forecast", "options"]

_FORECAST_STEPS = 3
_FORECAST_SECONDS = 90.0
_APART = 16  # the second size of a forecast is so many times the first
_ENOUGH = 1 << 40  # bytes, so that a forecast never runs out


def options(
    gpu: str,
    *,
    limit: int | str | None,
    allocator: str | None,
    steps: int | None,
    timeout: float | None,
    gpus: int,
    ranks: str | None,
) -> Options:
    """Raises ValueError for what makes no sense."""
    chosen = allocator or "arena"
    if chosen not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: one of {', '.join(ALLOCATORS)}")
    card = cards.find(gpu)
    parsed = sizes.parse(limit, name="limit")
    return Options(
        gpu=gpu,
        gpus=gpus,
        limit=None if parsed is None else parsed.resolve(card.memory),
        allocators=(chosen,),
        steps=steps,
        timeout=timeout,
        ranks=ranks,
        again=False,
        quiet=True,
    )


def find(
    call: Call,
    wanted: Wanted,
    options: Options,
    evaluate: Callable[..., Any] | None,
    show: Callable[[str], None] | None,
) -> BatchSize:
    """The largest size whose rehearsal fits, 0 for none. Raises RuntimeError with the report
    where the function itself fails or takes too long."""
    say = passing(show)
    try:
        found = _search(call, wanted, options, say)
        if evaluate is not None:
            alone = wanted.alone(int(found))
            found.evaluation = _search(Call(evaluate), alone, options, say)
    finally:
        say("")
    return found


def _search(
    call: Call, wanted: Wanted, options: Options, say: Callable[[str], None]
) -> BatchSize:
    card = cards.find(options.gpu)
    room = card.room if options.limit is None else min(options.limit, card.room)
    search = wanted.search(room, 1.0)
    tried, reports = [], {}
    while (size := search.next()) is not None:
        say(f"batch size {size} ...")
        args, kwargs = call.arguments(size, wanted.accumulation(size))
        report = rehearsed(call.sent, args, kwargs, options)
        outcome = report.outcomes[0]
        if outcome.run.failed or outcome.run.timed_out:
            raise RuntimeError(f"find_batch_size: {report}")
        reports[size] = report
        one = Try(size, bool(report.fits), why=report.verdict, rehearsed=True)
        if outcome.run.exit_code == 0:
            one.peak, one.reserved = report.peak_requested, outcome.run.peak_reserved
            one.unsure = outcome.verdict.unsure
        tried.append(one)
        search.tell(size, one.ran, one.reserved)
        say(f"batch size {size}: {report.verdict}")
    best = search.best
    found = BatchSize(best, wanted.accumulation(best) if best else 1)
    found.tried, found.reports, found.rehearsed = tried, reports, True
    found.on, found.room = options.gpu, room
    return found


def forecast(
    call: Call, wanted: Wanted, start: int, steps: int | None
) -> tuple[dict[int, int], str]:
    """Bytes asked for at the peak by two sizes, each rehearsed for a few steps with memory
    enough; or none, and why."""
    first = max((n for n in wanted.sizes if n <= start), default=wanted.sizes[0])
    second = max(n for n in wanted.sizes if n <= max(_APART * first, wanted.sizes[1]))
    if second == first:
        first = wanted.sizes[0]
    peaks: dict[int, int] = {}
    for size in (first, second):
        try:
            args, kwargs = call.arguments(size, wanted.accumulation(size))
            peak, why = _peak(call.sent, args, kwargs, steps)
        except TypeError as error:
            return {}, str(error).removeprefix("rehearse: ")
        except (FileNotFoundError, OSError) as error:
            return {}, f"no rehearsal can be made: {error}"
        if not peak:
            return {}, f"the rehearsal of {size} {why}"
        peaks[size] = peak
    return peaks, ""


def _peak(fn: Any, args: Any, kwargs: Any, steps: int | None) -> tuple[int, str]:
    """Bytes; 0 and why where there is no telling."""
    card = cards.find("h100").of_size(_ENOUGH)
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        payload = os.path.join(folder, "call")
        with open(payload, "wb") as file:
            file.write(packed(fn, args, kwargs))
        done = launch.run(
            [sys.executable, "-m", "torcharena.rehearsal.calling", payload],
            card,
            folder=os.path.join(folder, "run"),
            steps=_FORECAST_STEPS if steps is None else steps,
            timeout=_FORECAST_SECONDS,
            quiet=True,
        )
    if done.timed_out:
        return 0, f"took more than {_FORECAST_SECONDS:.0f} s"
    if done.exit_code:
        error = done.first("error") or f"ended with exit code {done.exit_code}"
        return 0, f"failed: {' '.join(str(error).split())[:200]}"
    return done.peak_requested, "used no CUDA memory"
