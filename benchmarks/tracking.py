"""What `torcharena.track` costs: five training loops with it and without.

    python -m benchmarks.tracking [--loops moe,bert_amp] [--seconds 16] [--within 145]
        [--out F.json]

Each loop runs in two processes under the arena, alike to the seed: one calls `track` once,
before its second step, as a user's program does (phases, categories and the timeline), the
other never. Both are alive at once and take turns, ten steps each, so that a GPU that grows
warm or a busy host is shared by both. The ten lengths of a turn are the same in every turn:
the first two turns load and choose kernels and find the peak, and are not counted; then who
goes first takes turns too. Printed are the median of the turns' ratios and what it stays below
with 95 % probability; and the time that tracking itself took: in its hooks, measured in them,
and in allocations, by the difference that it makes to one. The machine's noise touches
neither.

Runs on a GPU, or on the simulated one under ``torcharena rehearse -m benchmarks.tracking``,
where only the second figure means anything."""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from .harness.catalogue import LOOPS
from .harness.comparing import paired_ratio, upper_bound
from .harness.machine import machine
from .harness.turns import Failed, Player, close_all, serve
from .loops import save

TURN = 10  # steps; the loops evaluate at every tenth
WARM = 2  # turns before those that count
ENOUGH = 40000  # steps that a generator is asked for
LEAST = 3  # turns that count
BEGINNING = 25.0  # seconds that two processes are taken to need beside their measuring

# --- in the child ------------------------------------------------------------------------


def repeating(lengths: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """The first ten lengths over and over."""

    @functools.wraps(lengths)
    def repeated(count: int, *args: Any, **named: Any) -> list[int]:
        found = lengths(TURN, *args, **named)
        return list(itertools.islice(itertools.cycle(found), count))

    return repeated


class Steps:
    """A loop's steps one by one."""

    def __init__(self, loop: Callable[..., Any]) -> None:
        self._loop: Any = loop(lambda mark: None, steps=ENOUGH)
        next(self._loop)  # makes the model
        held = self._loop.gi_frame.f_locals
        self._tracked = held["model"], held["optimizer"]

    def track(self) -> Any:
        """Tracks the loop's model and optimizer."""
        import torcharena

        return torcharena.track(*self._tracked)

    def turn(self) -> list[float]:
        """Seconds of each of ten steps."""
        took = []
        for _ in range(TURN):
            begin = time.perf_counter()
            next(self._loop)
            took.append(time.perf_counter() - begin)
        return took


def share(within: float | None, spent: list[tuple[float, float]], loops: int) -> float:
    """Seconds for the next loop's measuring so that the ``loops`` that are left end in time.
    ``spent``: of those before, in all and in measuring."""
    if within is None:
        return float("inf")
    beside = max([BEGINNING, *(whole - measured for whole, measured in spent)])
    return max(1.0, (within - sum(whole for whole, _ in spent)) / loops - beside)


def hooks_of(run: Callable[[Callable[[], float]], Any]) -> None:
    """Runs ``run(spent)``, which tracks: ``spent()`` is the seconds until then in what `track`
    hung into the loop; the timers' own are in it."""
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
        run(lambda: spent)
    finally:
        for kind, name, call in kept:
            setattr(kind, name, call)


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


def own_cost(steps: Steps) -> dict[str, float]:
    """Of a step whose peak is not new: seconds in hooks, allocations, seconds of one."""
    found: dict[str, float] = {}

    def inspected(spent: Callable[[], float]) -> None:
        with steps.track():
            steps.turn()  # the peak, and all that is told then
            before = allocations(), spent()
            steps.turn()
            found["allocations"] = (allocations() - before[0]) / TURN
            found["hooks_seconds"] = (spent() - before[1]) / TURN

    hooks_of(inspected)
    return {**found, "allocation_seconds": of_an_allocation()}


def play(name: str, tracked: bool) -> None:
    """One loop in this process, for a parent that asks for turns."""
    import torcharena

    torcharena.enable()
    import torch

    from . import training

    training.lengths = repeating(training.lengths)
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run on a GPU, or under `torcharena rehearse`")
    torch.manual_seed(0)
    steps = Steps(training.LOOPS[name])
    tracking = [steps.track()] if tracked else []

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if "own" not in asked:
            return {"seconds": steps.turn()}
        for one in tracking:
            one.stop()
        return own_cost(steps)

    serve({"machine": machine()}, answer)


# --- in the parent -----------------------------------------------------------------------


def run_loop(name: str, seconds: float, timeout: float) -> dict[str, Any]:
    """One loop, measured for about so long: its figures, or ``error``."""
    until = time.monotonic() + timeout

    def left() -> float:
        return max(1.0, until - time.monotonic())

    players = [
        Player("arena", "benchmarks.tracking", ["--child", name, *more], label)
        for label, more in ((f"{name}, tracked", ["--track"]), (name, []))
    ]
    tracked, plain = players
    took: dict[Player, list[list[float]]] = {tracked: [], plain: []}
    try:
        where = tracked.hello(left())["machine"]
        plain.hello(left())
        begin = time.monotonic()
        for turn in itertools.count():
            if turn == WARM:
                begin = time.monotonic()
            if turn >= WARM + LEAST and time.monotonic() - begin >= seconds:
                break
            for player in players if turn % 2 else players[::-1]:
                took[player].append(player.ask(left())["seconds"])
        own = tracked.ask(left(), own=True)
    except Failed as error:
        return {"loop": name, "error": str(error)}
    finally:
        close_all(players)
    ours, theirs = took[tracked][WARM:], took[plain][WARM:]
    return {"loop": name, "ours": ours, "theirs": theirs, **own, "machine": where}


def compare(run: dict[str, Any]) -> dict[str, Any]:
    """A loop's ratio, its bound, and the share of the step that is tracking's own."""
    if "error" in run:
        return {"loop": run["loop"], "error": run["error"]}
    step = statistics.median(t for unit in run["theirs"] for t in unit)
    own = run["hooks_seconds"] + run["allocations"] * run["allocation_seconds"]
    return {
        "loop": run["loop"],
        "turns": len(run["ours"]),
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
        f"{'loop':<20} {'turns':>5} {'step ms':>8} {'on/off':>7} {'95 %':>6} "
        f"{'hooks ms':>8} {'allocations':>11} {'ns each':>7} {'own':>7}"
    )
    lines = [head, "-" * len(head)]
    for row in loops:
        if "error" in row:
            lines.append(f"{row['loop']:<20} failed: {row['error'][:80]}")
            continue
        lines.append(
            f"{row['loop']:<20} {row['turns']:5} {row['step_ms']:8.1f} "
            f"{row['time_ratio']:7.4f} {row['time_ratio_bound95']:6.3f} "
            f"{row['hooks_ms']:8.3f} {row['allocations']:11.0f} "
            f"{row['allocation_ns']:7.0f} {row['own_ratio']:7.4f}"
        )
    lines.append(
        "on/off: step time with track over without, median of the turns, and its upper 95 % "
        "bound; hooks\nms: a step's time in track's hooks; ns each: what counting adds to an "
        "allocation and its release;\nown: 1 + (hooks + allocations x ns each) over the step"
    )
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tracking", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--loops", default=",".join(LOOPS), help="names, by commas")
    parser.add_argument(
        "--seconds", type=float, default=16, help="of measuring a loop (default 16)"
    )
    parser.add_argument(
        "--within", type=float, help="seconds for everything: loops are measured for less"
    )
    parser.add_argument(
        "--timeout", type=float, default=180, help="seconds that a loop may take in all"
    )
    parser.add_argument("--out", help="file for all figures, as JSON")
    parser.add_argument("--child", metavar="LOOP", help=argparse.SUPPRESS)
    parser.add_argument("--track", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.loops = options.loops.split(",")
    for name in options.loops:
        if name not in LOOPS:
            parser.error(f"{name}: not one of {', '.join(LOOPS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a run failed."""
    options = parse(arguments)
    if options.child:
        play(options.child, options.track)
    loops: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    spent: list[tuple[float, float]] = []
    for number, name in enumerate(options.loops):
        left = share(options.within, spent, len(options.loops) - number)
        seconds = min(options.seconds, left)
        begin = time.perf_counter()
        runs.append(run_loop(name, seconds, options.timeout))
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
