"""What one allocation and its free cost, through torch and in the core alone.

All contenders' processes are alive at once and take turns in rounds of a millisecond or so
each, in an order drawn anew for each round, on one processor (but for the threads): what
slows the machine down slows all. Time a call is the median over the rounds of a block of calls; the
ratio to the floor, the plug-in that does nothing, is the median of the rounds' own ratios,
with the bound that it stays below with 95 %. Percentiles are of single calls. A generation is
a set of fresh processes: how a process happens to lie in memory makes a difference, too."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from ..harness.building import build_core
from ..harness.comparing import ratio_bound
from ..harness.machine import host
from ..harness.progress import Progress
from ..harness.store import Store
from ..harness.turns import Failed, Player, close_all

__all__ = ["CASES", "CONTENDERS", "run", "run_core"]

CONTENDERS = ("floor", "native", "expandable", "async", "rmm_pool", "rmm_arena", "arena")
SIZES = (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30)
CASES: tuple[tuple[str, int], ...] = (
    *(("size", size) for size in SIZES),
    *(("live", 10**n) for n in range(2, 6)),
    *(("threads", 2**n) for n in range(4)),
    *(("streams", n) for n in (1, 4, 16, 64)),
)
CALLS, EACH = 300, 150  # of a turn: in a block, and one by one
LEAST = 12  # rounds of a case in a generation


def name_of(case: tuple[str, int]) -> str:
    """``size 1 MiB``, ``live 100``."""
    kind, n = case
    return f"{kind} {size_text(n) if kind == 'size' else n}"


def size_text(size: int) -> str:
    """A power of two in its largest unit."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Figures:
    """What a case has so far: by contender, the rounds of each generation, and single calls."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[list[float]]] = {}
        self.each: dict[str, list[float]] = {}

    def generation(self, names: Sequence[str]) -> None:
        for name in names:
            self.blocks.setdefault(name, []).append([])
            self.each.setdefault(name, [])

    def add(self, name: str, answer: dict[str, Any]) -> None:
        self.blocks[name][-1].append(answer["ns"])
        self.each[name] += answer["each"]

    def rows(self, case: tuple[str, int]) -> list[dict[str, Any]]:
        """A row for each contender that has rounds."""
        rows = []
        floor = self.blocks.get("floor")
        for name, generations in self.blocks.items():
            found = [block for blocks in generations for block in blocks]
            if not found:
                continue
            each = sorted(self.each[name])
            row: dict[str, Any] = {
                "group": "latency",
                "case": name_of(case),
                "contender": name,
                "ns": statistics.median(found),
                "p50": percentile(each, 0.5),
                "p99": percentile(each, 0.99),
                "p999": percentile(each, 0.999),
                "rounds": len(found),
                "generations": len(generations),
            }
            if floor and name != "floor":
                row["ratio"], row["bound95"] = ratio_bound(generations, floor)
            rows.append(row)
        return rows


def rounds(
    players: list[Player], case: tuple[str, int], until: float, figures: Figures
) -> None:
    """Rounds of a case until the time given (of time.monotonic()), at least `LEAST`."""
    kind, n = case
    cpus = sorted(os.sched_getaffinity(0))
    for player in players:
        player.ask(do="prepare", kind=kind, n=n, cpu=cpus[-1], cpus=cpus)
    draw = random.Random(n)
    done = 0
    while done < LEAST or time.monotonic() < until:
        order = draw.sample(players, len(players))
        for player in order:
            figures.add(player.name, player.ask(do="run", calls=CALLS, each=EACH))
        done += 1


def run(
    store: Store,
    names: list[str],
    *,
    cases: Sequence[tuple[str, int]] = CASES,
    seconds: float = 120,
    generations: int = 2,
    room: int = 4 << 30,
) -> list[str]:
    """Measures what the store lacks. Returns what went wrong, in words."""
    cases = [
        case
        for case in cases
        if not all(store.has("latency", name_of(case), n) for n in names)
    ]
    figures = {case: Figures() for case in cases}
    wrong: list[str] = []
    end = time.monotonic() + seconds
    progress = Progress("latency", len(cases) * generations)
    start = 15.0  # seconds until a set of processes stands ready
    for generation in range(generations if cases else 0):
        begin = time.monotonic()
        players = [
            Player(name, "benchmarks.groups.latency_player", [name, str(room)])
            for name in names
        ]
        try:
            players, said = greeted(players, store)
            wrong += said
            start = time.monotonic() - begin
            for number, case in enumerate(cases):
                left = (generations - generation - 1) * len(cases) + len(cases) - number
                spare = start * (generations - generation - 1)
                slice_ = max(0.0, end - time.monotonic() - spare) / left
                figures[case].generation([player.name for player in players])
                try:
                    rounds(players, case, time.monotonic() + slice_, figures[case])
                except Failed as error:
                    wrong.append(f"{name_of(case)}: {error}")
                    # The others go on without it.
                    lost = [p for p in players if p.name == error.name]
                    players = [p for p in players if p.name != error.name]
                    close_all(lost)
                for row in figures[case].rows(case):
                    store.put(row)
                progress.step(name_of(case))
        finally:
            close_all(players)
    progress.close()
    return wrong


def greeted(players: list[Player], store: Store) -> tuple[list[Player], list[str]]:
    """Those that are ready, and what the others said."""
    ready, wrong = [], []
    for player in players:
        try:
            hello = player.hello()
        except Failed as error:
            wrong.append(str(error))
            player.close()
            continue
        store.on(hello["machine"])
        ready.append(player)
    return ready, wrong


# --- the core alone ----------------------------------------------------------------------


def run_core(store: Store, *, rounds: int = 5, timeout: float = 300) -> list[str]:
    """Times the core without torch, beside the C library's malloc and free. Returns what went
    wrong, in words."""
    if any(store.has("core", row["case"], "arena") for row in store.of("core")):
        return []
    try:
        program = build_core()
    except RuntimeError as error:
        return [str(error)]
    threads = [str(n) for n in (1, 2, 4, 8)]
    command = [str(program), "--json", "--rounds", str(rounds), "--threads", *threads]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        return [f"core: exit code {done.returncode}: {done.stderr.strip()}"]
    store.on(host())
    for line in done.stdout.splitlines():
        found = json.loads(line)
        case = (
            f"{found['threads']} threads"
            if "threads" in found
            else f"{found['live']} live, {found['way']}"
        )
        store.put({"group": "core", "case": case, "contender": "arena", **found})
    return []
