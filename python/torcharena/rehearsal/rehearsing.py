"""One rehearsal from beginning to end: the runs that a question needs, and the verdicts.

The arena goes first: its recorded trace gives the smallest cap and the step of the peak.
Then torch's own allocators: the program runs under the last one again, with the places of
what it holds, and the trace stands for it under the other. A run that runs out of memory is
repeated once on a card that has enough, to say how much is wanting; one whose margin is too
small to tell, once with that much less: for torch's allocators by the trace again, where it
stands for the program (`through_torch`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..sizes import format_size
from . import through_torch, verdict
from .cards import Card, find
from .launch import ALLOCATORS, Run, run
from .report import Outcome, Report

__all__ = ["Options", "rehearse_command"]

_ENOUGH = 4  # times the card, and at least so many bytes:
_AT_LEAST = 64 << 30
_MOST = 1 << 40


@dataclass(frozen=True)
class Options:
    """What a rehearsal is asked. ``gpu``: as `cards.find` reads it."""

    gpu: str = "h100"
    gpus: int = 1
    limit: int | None = None  # bytes on each device
    spill: int | None = None  # bytes of host memory, for the arena
    allocators: tuple[str, ...] = ALLOCATORS
    steps: int | None = None  # 0: to the end
    timeout: float | None = 600.0  # seconds, of each run
    seed: int = 0
    values: bool = True
    values_limit: int | None = None
    world_size: int | None = None  # one process as rank `rank` of so many, without peers
    rank: int = 0
    ranks: str | None = None  # "all": the ranks of the first node, each a process
    record: str | None = None
    report: str | None = None  # where who used what is written, .html or .json
    keep_files: str | None = None
    share: tuple[str, ...] = ()  # folders that it changes in earnest
    again: bool = True  # repeat a run that ran out, or is too close, with other memory
    quiet: bool = False


def rehearse_command(
    command: Sequence[str],
    options: Options,
    *,
    shown: Sequence[str] | None = None,
    extra: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Runs ``command`` (an argument list) under each allocator asked for. ``shown``: how the
    report names it. ``say`` is told what is being done. Raises ValueError for options that
    make no sense, FileNotFoundError where the simulated GPU was not built."""
    card = find(options.gpu)
    if options.limit is not None and options.limit > card.memory:
        raise ValueError(
            f"limit: {format_size(options.limit)} are more than the card has, "
            f"{format_size(card.memory)}"
        )
    _check_ranks(options)
    if options.report is not None:
        check_report(options.report, options.allocators)
    report = Report(list(shown or command), card, options.gpus, options.limit)
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        session = _Session(list(command), card, options, folder, extra, say, report)
        for allocator in (a for a in ALLOCATORS if a in options.allocators):
            outcome = session.outcome(allocator)
            report.outcomes.append(outcome)
            hopeless = outcome.verdict.answer in (verdict.FAILED, verdict.CANNOT_TELL)
            if hopeless and not _arena_alone(outcome.run):
                break
    order = {name: i for i, name in enumerate(options.allocators)}
    report.outcomes.sort(key=lambda o: order[o.run.allocator])
    return report


def _arena_alone(run: Run) -> bool:
    """It failed for what the arena does not have, which torch's own allocators do."""
    return run.allocator == "arena" and " under torcharena" in (run.first("error") or "")


def _check_ranks(options: Options) -> None:
    """Raises ValueError for ranks, worlds and GPUs that do not go together."""
    world, gpus = options.world_size, options.gpus
    if world is not None and not 0 <= options.rank < world:
        raise ValueError(f"rank {options.rank} is none of a world of {world}")
    if options.ranks is None:
        if world is None and options.rank:
            raise ValueError(
                f"rank {options.rank} of how many? The world's size is missing "
                "(--world-size N, world_size=N)"
            )
        return
    if options.ranks != "all":
        raise ValueError(f"ranks {options.ranks!r}: 'all', or one by its number, rank")
    if options.rank:
        raise ValueError("all ranks and one rank exclude each other")
    if gpus < 2:
        raise ValueError(
            "all ranks of one node, one a GPU: say how many GPUs there are (--gpus N, gpus=N)"
        )
    if world is not None and world % gpus:
        raise ValueError(
            f"a world of {world} ranks is no whole number of nodes of {gpus} GPUs"
        )


@dataclass
class _Session:
    command: list[str]
    card: Card
    options: Options
    folder: str
    extra: dict[str, str] | None
    say: Callable[[str], None]
    report: Report
    count: int = 0
    peak_step: int | None = None
    steps: int | None = None  # where the first run ended by itself, the others do
    full: Run | None = None  # the arena's, whose trace stands for torch's allocators too
    ran_out: bool = False  # the arena, on the card that was asked for

    def once(self, allocator: str, card: Card, limit: int | None, **more: Any) -> Run:
        options = self.options
        self.count += 1
        places = allocator != "arena" and (
            allocator == "native" or "native" not in options.allocators
        )
        done = run(
            self.command,
            card,
            folder=os.path.join(self.folder, str(self.count)),
            allocator=allocator,
            gpus=options.gpus,
            limit=limit,
            spill=options.spill,
            steps=options.steps if self.steps is None else self.steps,
            timeout=options.timeout,
            seed=options.seed,
            values=options.values,
            values_limit=options.values_limit,
            world_size=options.world_size,
            rank=options.rank,
            ranks=1 if options.ranks is None else options.gpus,
            find_places=places,
            peak_step=self.peak_step,
            report=options.report is not None and self.count == 1,
            keep_files=options.keep_files if self.count == 1 else None,
            share=options.share,
            quiet=options.quiet or self.count > 1,
            extra=self.extra,
            cache=os.path.join(self.folder, "compiled"),
            **more,
        )
        if done.ended == "settled" and self.steps is None:
            self.steps = done.steps
        return done

    def outcome(self, allocator: str) -> Outcome:
        """The verdict under one allocator, of one run or two."""
        card, limit = self.card, self.options.limit
        done = None
        # What is held, and where memory runs out, a run alone can say.
        others = "native" in self.options.allocators and not self.ran_out
        if allocator == "expandable" and others:
            done = self.replayed(allocator, card, limit)
        if done is None or done.oom:
            self.say(f"{allocator}: running")
            done = self.once(allocator, card, limit)
        if allocator == "arena":
            return self.arena(done)
        return self.torchs(done)

    def replayed(self, allocator: str, card: Card, limit: int | None) -> Run | None:
        """The program under one of torch's allocators, by the arena's trace; None where that
        does not stand for it."""
        if self.full is None:
            return None
        self.say(f"{allocator}: replaying")
        options = self.options
        return through_torch.again(
            self.full,
            allocator,
            card,
            limit,
            gpus=options.gpus,
            timeout=options.timeout,
        )

    def again(self, allocator: str, card: Card, limit: int | None) -> Run:
        """Where only the figures matter."""
        done = self.replayed(allocator, card, limit)
        return self.once(allocator, card, limit) if done is None else done

    def arena(self, done: Run) -> Outcome:
        if self.options.record is not None:
            _keep(done.traces, self.options.record)
        if self.options.report is not None:
            self.report.pages = _write_reports(done.reports, self.options.report)
        if done.failed or done.timed_out:
            return Outcome(done, verdict.judge(done, None))
        full = done
        if done.oom:
            self.ran_out = True
            if not self.options.again:
                return Outcome(done, verdict.judge(done, None))
            full = self.with_enough("arena")
            if full.exit_code != 0 or full.timed_out:
                return Outcome(done, verdict.judge(done, None))
        spilled = max((p.get("spilled", 0) for p in done.processes), default=0)
        if spilled and not done.oom:
            why = f"with at most {format_size(spilled)} in host memory"
            self.peak_step = verdict.peak_step(done)
            return Outcome(
                done, verdict.Verdict(verdict.FITS, why=why), need=done.peak_reserved
            )
        self.full = full if through_torch.whole(full) else None
        self.say("arena: replaying for the smallest cap")
        cap = verdict.smallest_cap(full)
        self.peak_step = verdict.peak_step(full)
        need = cap if cap is not None else full.peak_reserved
        outcome = Outcome(done, verdict.judge(done, need), need=need, cap=cap)
        if self.full is not None:  # by replaying under caps all is said
            return outcome
        return self.with_less(outcome, "it takes what is there")

    def torchs(self, done: Run) -> Outcome:
        if done.failed or done.timed_out:
            return Outcome(done, verdict.judge(done, None))
        if done.oom:
            need = None
            if self.options.again:
                full = self.with_enough(done.allocator)
                if full.exit_code == 0 and not full.timed_out:
                    need = full.peak_reserved
            return Outcome(done, verdict.judge(done, need), need=need)
        outcome = Outcome(
            done, verdict.judge(done, done.peak_reserved), need=done.peak_reserved
        )
        # It fits, but hardly: the caches may be what fills the card.
        return self.with_less(outcome, "it gives back its cache")

    def with_less(self, outcome: Outcome, why: str) -> Outcome:
        """Where it is too close to tell, once more with as much less as that is in doubt."""
        first, done = outcome.verdict, outcome.run
        close = first.answer == verdict.TOO_CLOSE and not done.oom
        if not close or not self.options.again:
            return outcome
        self.say(f"{done.allocator}: once more with less memory")
        less = verdict.room(self.card, self.options.limit, done.sharing) - first.unsure
        if less > 0:
            if self.options.limit is None:
                smaller = self.card.of_size(self.card.memory - first.unsure)
                second = self.again(done.allocator, smaller, None)
            else:
                second = self.again(done.allocator, self.card, less)
            if second.exit_code == 0 and not second.timed_out:
                outcome.verdict = replace(
                    first, answer=verdict.FITS, why=f"also with less: {why}"
                )
        return outcome

    def with_enough(self, allocator: str) -> Run:
        self.say(f"{allocator}: it runs out; once more with memory enough")
        memory = min(_MOST, max(_AT_LEAST, _ENOUGH * self.card.memory))
        return self.again(allocator, self.card.of_size(memory), None)


def check_report(path: str, allocators: Sequence[str]) -> None:
    """Raises ValueError where no report can be written there."""
    if "arena" not in allocators:
        raise ValueError(
            "report: only the arena's run is tracked; accepted are the allocators arena and "
            "all"
        )
    if not path.endswith((".html", ".htm", ".json")):
        raise ValueError(f"report {path!r}: a name that ends in .html or .json")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ValueError(f"report {path!r}: there is no folder {folder}")


def _write_reports(found: list[tuple[str, str]], path: str) -> list[str]:
    """Each process's report goes where the user wants it: ``%r`` is the rank, without which
    several get it before the name's end. Returns the files."""
    from ..reports import reporting

    if len(found) > 1 and "%r" not in path:
        stem, end = os.path.splitext(path)
        path = f"{stem}.rank%r{end}"
    written = []
    for rank, file in found:
        target = path.replace("%r", rank)
        reporting.load(file).save(target)
        written.append(target)
    return written


def _keep(traces: list[str], path: str) -> None:
    """The recorded traces go where the user wants them; of several, each by its number."""
    from ..recording import _compress

    for index, trace in enumerate(traces):
        target = path
        if len(traces) > 1:
            folder, name = os.path.split(path)
            stem, dot, rest = name.partition(".")
            target = os.path.join(folder, f"{stem}.{index}{dot}{rest}")
        copy = f"{trace}.copy"
        shutil.copyfile(trace, copy)
        if target.endswith((".xz", ".gz")):
            _compress(copy, target)
        else:
            shutil.move(copy, target)
