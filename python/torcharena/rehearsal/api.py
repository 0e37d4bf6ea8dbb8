"""Rehearsals from Python: `rehearse`, `find_batch_size`, `is_rehearsal`.

A function runs in a child process; ``packing`` takes it there."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import sizes
from ..settings import spill_bytes
from ..sizes import format_size
from . import cards
from .launch import ALLOCATORS
from .packing import packed
from .rehearsing import Options, rehearse_command
from .report import Report

__all__ = ["BatchSizes", "find_batch_size", "is_rehearsal", "rehearse"]


def is_rehearsal() -> bool:
    """True in a program that runs on simulated GPUs. ``TORCHARENA_REHEARSAL=1`` says the
    same without this package."""
    return os.environ.get("TORCHARENA_REHEARSAL") == "1"


def rehearse(
    fn: Callable[..., Any],
    *args: Any,
    gpu: str = "h100",
    gpus: int = 1,
    limit: int | str | None = None,
    spill: int | str | None = None,
    allocator: str = "all",
    steps: int | None = None,
    timeout: float | None = 600.0,
    seed: int = 0,
    values: bool = True,
    ranks: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    **kwargs: Any,
) -> Report:
    """Runs ``fn(*args, **kwargs)`` in a process on simulated GPUs; returns its `Report`.

    gpu: a card of the catalogue, a size such as ``"16GiB"``, or both.
    gpus: how many. limit: a cap on each device, bytes as in `sizes`.
    spill: host memory that the arena may use where there is no room.
    allocator: ``arena``, ``native``, ``expandable`` or ``all``: one run each.
    steps: end after so many optimizer steps; 0: run to the end; None: a run of more than
        half a minute ends when its peak no longer moves.
    timeout: seconds for each run, None for no end. seed: of values that are random.
    ranks: ``"all"``: the function runs once for each of ``gpus`` ranks of a node, at the same
        time, each in a process with the environment that torchrun would set.
    world_size, rank: the function runs as this one rank of so many, alone; with
        ``ranks="all"``, as the first node's ranks of so many.

    The function's result is lost. Its exceptions are no exceptions here: the report's
    ``verdict`` is then ``the script failed`` and it has the text. Raises ValueError for
    arguments that make no sense, TypeError for a function that cannot be taken to another
    process, FileNotFoundError where the simulated GPU was not built."""
    if allocator != "all" and allocator not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: {', '.join(ALLOCATORS)} or all")
    size = sizes.parse(limit, name="limit")
    options = Options(
        gpu=gpu,
        gpus=gpus,
        limit=None if size is None else size.resolve(cards.find(gpu).memory),
        spill=spill_bytes(sizes.parse(spill, name="spill")),
        allocators=ALLOCATORS if allocator == "all" else (allocator,),
        steps=steps,
        timeout=timeout,
        seed=seed,
        values=values,
        ranks=ranks,
        world_size=world_size,
        rank=rank,
        quiet=True,
    )
    return _rehearse(fn, args, kwargs, options)


def _rehearse(
    fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], options: Options
) -> Report:
    shown = [f"{getattr(fn, '__qualname__', fn)}({_call(args, kwargs)})"]
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        payload = os.path.join(folder, "call")
        with open(payload, "wb") as file:
            file.write(packed(fn, args, kwargs))
        command = [sys.executable, "-m", "torcharena.rehearsal.calling", payload]
        return rehearse_command(command, options, shown=shown)


def _call(args: Any, kwargs: dict[str, Any]) -> str:
    said = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return ", ".join(text if len(text) <= 24 else f"{text[:21]}..." for text in said)


# --- batch sizes --------------------------------------------------------------------------
@dataclass(repr=False)
class BatchSizes:
    """What `find_batch_size` found. ``sizes`` were tried, in ascending order, each with its
    ``reports``; ``best`` is the largest that fits, 0 where not even the first does."""

    best: int
    gpu: str
    reports: dict[int, Report] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self.reports)

    def peaks(self) -> dict[int, int]:
        """Bytes requested at the highest, by batch size; only of those that ran through."""
        return {
            size: self.reports[size].peak_requested
            for size in self.sizes
            if self.reports[size].outcomes[0].run.exit_code == 0
        }

    def __repr__(self) -> str:
        return f"<BatchSizes: {self.best or 'none'} on {self.gpu}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def __str__(self) -> str:
        lines = [f"largest batch size on {self.gpu}: {self.best or 'none'}"]
        for size in self.sizes:
            report = self.reports[size]
            run = report.outcomes[0].run
            peak = (
                f"{format_size(run.peak_requested):>11} asked for, "
                f"{format_size(run.peak_reserved):>11} reserved"
                if run.exit_code == 0
                else ""
            )
            lines.append(f"{size:>8}  {report.verdict:<18} {peak}".rstrip())
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """The peaks over the batch size, the card's room and the doubt about it, on
        matplotlib's axes (new ones where none are given), which are returned. A cross is a
        size that ran out of memory. Raises ImportError without matplotlib."""
        if ax is None:
            plt: Any = importlib.import_module("matplotlib.pyplot")

            _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        gib = float(1 << 30)
        peaks = self.peaks()
        first = next(iter(self.reports.values()))
        ax.plot(list(peaks), [p / gib for p in peaks.values()], "o-", label="asked for")
        reserved = [self.reports[s].peak_reserved / gib for s in peaks]
        allocator = first.outcomes[0].run.allocator
        ax.plot(list(peaks), reserved, "s--", label=f"reserved ({allocator})")
        room = (
            first.card.room if first.limit is None else min(first.limit, first.card.room)
        )
        doubts = [self.reports[s].outcomes[0].verdict.unsure for s in peaks]
        sure = (room - builtins.max(doubts, default=0)) / gib
        most = builtins.max(peaks, default=self.sizes[-1])
        beyond = [size for size in self.sizes if most < size <= 2 * most]
        beyond += [size for size in self.sizes if size not in peaks and size < most]
        if beyond:
            crosses = [room / gib] * len(beyond)
            ax.plot(beyond, crosses, "x", color="C3", label="ran out", zorder=3)
        ax.axhline(room / gib, color="0.4", linewidth=1)
        ax.axhspan(sure, room / gib, color="0.9", zorder=0, label="too close to tell")
        allowance = "limit" if first.limit is not None else f"room on {self.gpu}"
        ax.annotate(
            f"{allowance}, {room / gib:.4g} GiB",
            (0, room / gib),
            xycoords=("axes fraction", "data"),
            xytext=(4, 4),
            textcoords="offset points",
            color="0.3",
        )
        if self.best:
            ax.axvline(self.best, color="0.5", linewidth=1, linestyle=":")
        ax.set_title(f"largest batch size on {self.gpu}: {self.best or 'none'}")
        ax.set_xlabel("batch size")
        ax.set_ylabel("peak, GiB")
        ax.set_ylim(0, 1.12 * builtins.max(room / gib, *reserved, 0.0))
        ax.legend(frameon=False, loc="lower right")
        return ax


def find_batch_size(
    fn: Callable[[int], Any],
    start: int = 1,
    max: int = 1024,
    gpu: str = "h100",
    *,
    limit: int | str | None = None,
    allocator: str = "arena",
    steps: int | None = None,
    timeout: float | None = 600.0,
    multiple: int = 1,
    gpus: int = 1,
    ranks: str | None = None,
    show: Callable[[str], None] | None = None,
) -> BatchSizes:
    """The largest batch size from ``start`` to ``max`` for which ``fn(batch_size)`` fits.

    Doubles until one does not fit, then halves the interval; each size is a rehearsal.
    multiple: only sizes that are ``start`` plus multiples of it. allocator: whose verdict.
    show: told a line after each; by default those lines come and go on a terminal or below a
    notebook's cell. The others as in `rehearse`. What is too close to tell counts as not
    fitting. Raises ValueError for bounds that make no sense, RuntimeError with
    the text where ``fn`` itself fails or takes too long."""
    if start < 1 or max < start or multiple < 1:
        raise ValueError(
            f"start={start}, max={max}, multiple={multiple}: 1 <= start <= max, 1 <= multiple"
        )
    if allocator not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: one of {', '.join(ALLOCATORS)}")
    card = cards.find(gpu)
    parsed = sizes.parse(limit, name="limit")
    options = Options(
        gpu=gpu,
        gpus=gpus,
        limit=None if parsed is None else parsed.resolve(card.memory),
        allocators=(allocator,),
        steps=steps,
        timeout=timeout,
        ranks=ranks,
        again=False,
        quiet=True,
    )
    found = BatchSizes(0, gpu)
    say = _passing() if show is None else show

    def fits(size: int) -> bool:
        if show is None:
            say(f"batch size {size} ...")
        report = _rehearse(fn, (size,), {}, options)
        outcome = report.outcomes[0]
        if outcome.run.failed or outcome.run.timed_out:
            raise RuntimeError(f"find_batch_size: {report}")
        found.reports[size] = report
        if report.fits:
            found.best = builtins.max(found.best, size)
        say(f"batch size {size}: {report.verdict}")
        return bool(report.fits)

    try:
        low, high = _bracket(fits, start, max, multiple)
        while high is not None and high - low > multiple:
            middle = low + (high - low) // 2 // multiple * multiple
            if fits(middle):
                low = middle
            else:
                high = middle
    finally:
        if show is None:
            say("")
    return found


def _passing() -> Callable[[str], None]:
    """Shows a line in the place of the one before; "" takes it away."""

    def say(text: str) -> None:
        if sys.stderr.isatty() or "ipykernel" in sys.modules:
            print(f"\r{text:<60}\r{text}", end="", file=sys.stderr, flush=True)

    return say


def _bracket(
    fits: Callable[[int], bool], start: int, most: int, multiple: int
) -> tuple[int, int | None]:
    """The largest doubling that fits and the next, which does not; None: all do, or none."""
    last = start + (most - start) // multiple * multiple
    low, size = start, start
    while fits(size):
        low = size
        if size == last:
            return low, None
        doubled = start + (2 * size - start) // multiple * multiple
        size = min(last, builtins.max(size + multiple, doubled))
    return low, (None if size == start else size)
