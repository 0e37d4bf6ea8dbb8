"""What `torcharena.track` costs: five training loops with it and without, step by step.

    python -m benchmarks.tracking [--loops moe,bert_amp] [--seconds 16] [--within 145]
        [--out F.json]

Each loop is a process of its own, under the arena. In it every length is trained three times:
once to warm up, once with `track` (phases, categories and the timeline) and once with nothing
counted at all, and who goes first takes turns: on, off, off, on. Such four steps are a unit; printed are the
median of the units' ratios and what it stays below with 95 % probability, and the time that
tracking itself took: in its hooks, measured in them, and in allocations, by the difference
that it makes to one. The noise of the machine touches neither. Beginning and ending between
steps are not counted.

Runs on a GPU, or on the simulated one under ``torcharena rehearse -m benchmarks.tracking``,
where only the second figure means anything."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .comparing import paired_ratio, upper_bound
from .contenders import environment
from .loops import NAMES, save
from .machine import machine
from .program import RESULT

WARM = 9  # steps before the first unit: kernels are loaded, the arena grows
INSPECTED = 6  # steps at the end, whose hooks are timed
ENOUGH = 4000  # steps that a generator is asked for
LEAST = 3  # units
BEGINNING = 15.0  # seconds that a loop's process is taken to need beside its measuring
# Whether the timed steps of a unit are tracked; the first and the second have one length, the
# third and the fourth another. Before each two comes one of their length that is not timed: the
# first of a length loads and chooses kernels.
UNIT = (True, False, False, True)

# --- in the child ------------------------------------------------------------------------


def thrice(lengths: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """Every length three times in a row."""

    @functools.wraps(lengths)
    def repeated(count: int, *args: Any, **named: Any) -> list[int]:
        found = lengths((count + 2) // 3, *args, **named)
        return [one for length in found for one in (length,) * 3][:count]

    return repeated


class Steps:
    """A loop's steps one by one, tracked or not."""

    def __init__(self, loop: Callable[..., Iterator[float]]) -> None:
        self.marks: list[str] = []
        self._loop: Any = loop(self.marks.append, steps=ENOUGH)
        self._tracked: tuple[Any, Any] | None = None
        self.count = 0

    def track(self) -> Any:
        """Tracks the loop's model and optimizer."""
        import torcharena

        if self._tracked is None:  # looking keeps what the frame holds then, so once
            held = self._loop.gi_frame.f_locals
            self._tracked = held["model"], held["optimizer"]
        return torcharena.track(*self._tracked)

    def step(self, tracked: bool) -> tuple[float, tuple[str, ...]]:
        """Seconds of the next step, and the phases that it had."""
        from torcharena import _core

        tracking = self.track() if tracked else None
        self.marks.clear()
        begin = time.perf_counter()
        next(self._loop)
        took = time.perf_counter() - begin
        self.count += 1
        if tracking is not None:
            tracking.stop()
            _core.usage_unwatch()
        return took, tuple(self.marks)

    def close(self) -> None:
        self._loop.close()


def units(
    steps: list[tuple[bool, float, tuple[str, ...]]],
) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds with and without, by unit, of (tracked, seconds, phases) of whole units. Where
    one step of a pair had a phase that the other had not, an evaluation, the pair is left out."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for first in range(0, len(steps) - len(UNIT) + 1, len(UNIT)):
        with_it: list[float] = []
        without: list[float] = []
        for at in (first, first + 2):
            one, other = sorted(steps[at : at + 2], key=lambda step: not step[0])
            if one[2] == other[2]:
                with_it.append(one[1])
                without.append(other[1])
        if with_it:
            ours.append(with_it)
            theirs.append(without)
    return ours, theirs


def share(within: float | None, spent: list[tuple[float, float]], loops: int) -> float:
    """Seconds for the next loop's measuring so that the ``loops`` that are left end in time.
    ``spent``: of those before, in all and in measuring."""
    if within is None:
        return float("inf")
    beside = max([BEGINNING, *(whole - measured for whole, measured in spent)])
    return max(1.0, (within - sum(whole for whole, _ in spent)) / loops - beside)


def hooks_of(run: Callable[[], Any]) -> float:
    """Seconds that ``run()``, which tracks, spends in what `track` hung into the loop; the
    timers' own are in it."""
    from torcharena.reports import phases, tracking

    spent = 0.0
    inside = False

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal spent, inside
            if inside:
                return call(*args, **named)
            inside, begin = True, time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                spent += time.perf_counter() - begin
                inside = False

        return wrapped

    hooks: dict[Any, list[str]] = {
        tracking.Tracking: [
            "_forward_begins",
            "_forward_ends",
            "_step_begins",
            "_step_ends",
        ],
        tracking: ["_backward_begins", "_backward_ends", "_zero_grad_begins"],
        phases: ["leave"],
    }
    kept = [(kind, n, getattr(kind, n)) for kind, names in hooks.items() for n in names]
    for kind, name, call in kept:
        setattr(kind, name, timed(call))
    try:
        run()
    finally:
        for kind, name, call in kept:
            setattr(kind, name, call)
    return spent


def of_an_allocation(rounds: int = 60, calls: int = 1000) -> float:
    """Seconds that counting adds to an allocation and its release: the median difference."""
    import torch
    from torcharena import _core

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            torch.empty(4096, device="cuda")
        return time.perf_counter() - begin

    once()
    found = []
    for _ in range(rounds):
        _core.usage_watch()
        counted = once()
        _core.usage_unwatch()
        found.append((counted - once()) / calls)
    return statistics.median(found)


def allocations() -> int:
    """Counted so far, by every phase."""
    from torcharena import _core

    return sum(phase["allocs"] for phase in _core.usage_phases(0))


def run_loop(name: str, seconds: float) -> dict[str, Any]:
    """One loop in this process, for about so long; its figures."""
    import torcharena

    torcharena.enable()
    import torch

    from . import training

    training.lengths = thrice(training.lengths)
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run on a GPU, or under `torcharena rehearse`")
    torch.manual_seed(0)
    steps = Steps(training.LOOPS[name])
    steps.step(False)  # makes the model
    while steps.count < WARM:
        steps.step(steps.count % 2 == 0)
    measured: list[tuple[bool, float, tuple[str, ...]]] = []
    begin = time.perf_counter()
    while len(measured) < LEAST * len(UNIT) or time.perf_counter() - begin < seconds:
        for at, tracked in enumerate(UNIT):
            if at % 2 == 0:
                steps.step(False)
            measured.append((tracked, *steps.step(tracked)))
    counted = 0

    def inspected() -> None:
        nonlocal counted
        with steps.track():
            before = allocations()
            for _ in range(INSPECTED):
                steps.step(False)
            counted = allocations() - before

    hooks = hooks_of(inspected)
    steps.close()
    each = of_an_allocation()
    ours, theirs = units(measured)
    return {
        "loop": name,
        "ours": ours,
        "theirs": theirs,
        "hooks_seconds": hooks / INSPECTED,
        "allocations": counted / INSPECTED,
        "allocation_seconds": each,
        "machine": machine(),
    }


# --- in the parent -----------------------------------------------------------------------


def run_child(name: str, seconds: float, timeout: float) -> dict[str, Any]:
    """One loop in a process of its own: its figures, or ``error``."""
    command = [sys.executable, "-m", "benchmarks.tracking", "--child", name]
    command += ["--seconds", str(seconds)]
    try:
        done = subprocess.run(
            command,
            env=environment("arena"),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"loop": name, "error": f"over {timeout} s"}
    for line in done.stdout.splitlines():
        if line.startswith(RESULT):
            return dict(json.loads(line[len(RESULT) :]))
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    why = last[0] if last else f"exit code {done.returncode}"
    return {"loop": name, "error": why, "stderr": done.stderr[-4000:]}


def compare(run: dict[str, Any]) -> dict[str, Any]:
    """A loop's ratio, its bound, and the share of the step that is tracking's own."""
    if "error" in run:
        return {"loop": run["loop"], "error": run["error"]}
    step = statistics.median(t for unit in run["theirs"] for t in unit)
    own = run["hooks_seconds"] + run["allocations"] * run["allocation_seconds"]
    return {
        "loop": run["loop"],
        "units": len(run["ours"]),
        "step_ms": 1e3 * step,
        "time_ratio": paired_ratio(run["ours"], run["theirs"]),
        "time_ratio_bound95": upper_bound(run["ours"], run["theirs"]),
        "hooks_ms": 1e3 * run["hooks_seconds"],
        "allocations": run["allocations"],
        "allocation_ns": 1e9 * run["allocation_seconds"],
        "own_ratio": 1 + own / step,
    }


def table(loops: list[dict[str, Any]]) -> str:
    """For people. A row a loop."""
    head = (
        f"{'loop':<20} {'units':>5} {'step ms':>8} {'on/off':>7} {'95 %':>6} "
        f"{'hooks ms':>8} {'allocations':>11} {'ns each':>7} {'own':>7}"
    )
    lines = [head, "-" * len(head)]
    for row in loops:
        if "error" in row:
            lines.append(f"{row['loop']:<20} failed: {row['error'][:80]}")
            continue
        lines.append(
            f"{row['loop']:<20} {row['units']:5} {row['step_ms']:8.1f} "
            f"{row['time_ratio']:7.4f} {row['time_ratio_bound95']:6.3f} "
            f"{row['hooks_ms']:8.3f} {row['allocations']:11.0f} "
            f"{row['allocation_ns']:7.0f} {row['own_ratio']:7.4f}"
        )
    lines.append(
        "on/off: step time with track over without, median of the units, and its upper 95 % "
        "bound; hooks\nms: a step's time in track's hooks; ns each: what counting adds to an "
        "allocation and its release;\nown: 1 + (hooks + allocations x ns each) over the step"
    )
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tracking", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--loops", default=",".join(NAMES), help="names, by commas")
    parser.add_argument(
        "--seconds", type=float, default=16, help="of measuring a loop (default 16)"
    )
    parser.add_argument(
        "--within", type=float, help="seconds for everything: loops are measured for less"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds that a loop may take in all"
    )
    parser.add_argument("--out", help="file for all figures, as JSON")
    parser.add_argument("--child", metavar="LOOP", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.loops = options.loops.split(",")
    for name in options.loops:
        if name not in NAMES:
            parser.error(f"{name}: not one of {', '.join(NAMES)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a run failed."""
    options = parse(arguments)
    if options.child:
        result = run_loop(options.child, options.seconds)
        print(RESULT + json.dumps(result), flush=True)
        return 0
    loops: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    spent: list[tuple[float, float]] = []
    for number, name in enumerate(options.loops):
        left = share(options.within, spent, len(options.loops) - number)
        seconds = min(options.seconds, left)
        begin = time.perf_counter()
        runs.append(run_child(name, seconds, options.timeout))
        spent.append((time.perf_counter() - begin, seconds))
        loops.append(compare(runs[-1]))
        said = loops[-1].get("error") or f"{loops[-1]['time_ratio']:.4f}"
        print(f"{name}: {said}, {spent[-1][0]:.0f} s", flush=True)
        if options.out:
            where = next((run["machine"] for run in runs[::-1] if "machine" in run), None)
            save(options, where, loops, runs)
    print(table(loops))
    return 1 if any("error" in run for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
