"""What a step takes, without a cap and under tight ones. All of a program's contenders are
alive at once and run it in lockstep: each makes one step, alone on the device, then the next
does, in an order drawn anew for each. So a step's times stand side by side, and what drifts,
drifts for all. Compared are the steps of the later half.

``arena@1.02`` is the arena at a cap of 1.02 of the peak that is asked for,
``expandable@smallest`` expandable segments at the smallest cap that `caps` found."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from ..harness.catalogue import RANKS
from ..harness.comparing import paired_ratio, upper_bound
from ..harness.progress import Progress
from ..harness.runs import run_program
from ..harness.store import Store
from ..harness.turns import Failed, Player, close_all
from .caps import requested

__all__ = ["LABELS", "run", "sittings"]

LABELS = ("native", "expandable", "arena", "arena@1.02", "expandable@smallest")
# Reserved over asked for, where nothing better is known: what fits beside each other.
GUESS = {"native": 2.5, "expandable": 1.4, "arena": 1.06, "async": 1.5}
CONTEXT = 1 << 30
FULL = 0.93  # of the device


def cap_of(store: Store, program: str, label: str, asked: int) -> int | None:
    """Bytes; None for no cap. Raises LookupError where the smallest is not known."""
    _, _, ratio = label.partition("@")
    if not ratio:
        return None
    if ratio == "smallest":
        row = store.get("caps", program, label.partition("@")[0])
        if row is None:
            raise LookupError("its smallest cap is not known: run caps first")
        return int(asked * row["smallest"])
    return int(asked * float(ratio))


def sittings(sizes: dict[str, float], room: float) -> list[list[str]]:
    """Labels that fit beside each other, `arena` in each sitting that it is wanted in at all:
    it is what others are compared with."""
    base = ["arena"] if "arena" in sizes else []
    others = [label for label in sizes if label not in base]
    found: list[list[str]] = []
    for label in others:
        for sitting in found:
            if sum(sizes[one] for one in [*sitting, label]) <= room:
                sitting.append(label)
                break
        else:
            found.append([*base, label])
    return found or ([base] if base else [])


def play(
    program: str, caps: dict[str, int | None], timeout: float, until: float
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]], list[str]]:
    """The steps of each label, its result, and what went wrong."""
    players = []
    for label, cap in caps.items():
        name = label.partition("@")[0]
        arguments = [
            program,
            name,
            "--turns",
            *([] if cap is None else ["--cap", str(cap)]),
        ]
        players.append(Player(name, "benchmarks.harness.program", arguments, label))
    steps: dict[str, list[dict[str, Any]]] = {label: [] for label in caps}
    results: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    draw = random.Random(program)
    try:
        for player in players:
            player.hello()
        playing = list(players)
        while playing and time.monotonic() < until:
            for player in draw.sample(playing, len(playing)):
                try:
                    said = player.ask(timeout=timeout)
                except Failed as error:
                    wrong.append(str(error))
                    playing.remove(player)
                    continue
                if "result" in said:
                    results[player.name] = said["result"]
                    playing.remove(player)
                else:
                    steps[player.name].append(said)
        wrong += [f"{player.name}: not finished, out of time" for player in playing]
    finally:
        close_all(players)
    return steps, results, wrong


def rows_of(
    program: str,
    steps: dict[str, list[dict[str, Any]]],
    results: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each that ran to its end."""
    rows = []
    for label, result in results.items():
        row: dict[str, Any] = {"group": "steps", "case": program, "contender": label}
        rows.append(row)
        if "out_of_memory" in result:
            row["error"] = f"out of memory: {result['out_of_memory'][:160]}"
            continue
        times = [step["seconds"] for step in steps[label]]
        late = times[len(times) // 2 :]
        row["seconds"] = [round(t, 6) for t in times]
        row["step_ms"] = 1e3 * statistics.fmean(late)
        row["reserved"], row["requested"] = (
            result.get("reserved"),
            result.get("requested"),
        )
        row["cap"] = result["cap"]
        if "counts" in steps[label][-1]:
            counts = [step["counts"] for step in steps[label]]
            row["longest_ms"] = 1e3 * max(c["wait_seconds"] for c in counts[2:])
            for key, name in (
                ("slow_seconds", "arena_ms"),
                ("wait_seconds", "wait_ms"),
                ("page_moves", "moves"),
                ("waits", "waits"),
            ):
                scale = 1e3 if name.endswith("ms") else 1
                row[name] = scale * statistics.fmean(
                    c[key] for c in counts[len(times) // 2 :]
                )
        row["over"] = {}
        for other, theirs in results.items():
            same = len(steps[other]) == len(times) and "out_of_memory" not in theirs
            if other == label or not same or not label.startswith("arena"):
                continue
            beside = [step["seconds"] for step in steps[other]][len(times) // 2 :]
            row["over"][other] = [
                paired_ratio([late], [beside]),
                upper_bound([late], [beside]),
            ]
    return rows


def run(
    store: Store,
    labels: Sequence[str],
    programs: Sequence[str],
    *,
    seconds: float = 500,
    timeout: float = 300,
) -> list[str]:
    """Measures what the store lacks. Returns what went wrong, in words."""
    until = time.monotonic() + seconds
    programs = [
        program
        for program in programs
        if RANKS.get(program, 1) == 1
        and not all(store.has("steps", program, label) for label in labels)
    ]
    wrong: list[str] = []
    progress = Progress("steps", len(programs))
    for program in programs:
        if until - time.monotonic() < 40:
            wrong.append(f"{program}: not begun, out of time")
            continue
        wrong += [
            f"{program}: {text}" for text in one(store, labels, program, until, timeout)
        ]
        progress.step(program)
    progress.close()
    return wrong


def one(
    store: Store, labels: Sequence[str], program: str, until: float, timeout: float
) -> list[str]:
    """A program's sittings."""
    asked = requested(store, program)
    if asked is None or not store.machine.get("gpu_bytes"):
        found = run_program(
            program, "arena", timeout=min(timeout, until - time.monotonic())
        )
        if not found.get("requested"):
            return [found.get("error", "nothing was asked for")]
        store.on(found["machine"])
        asked = int(found["requested"])
    caps: dict[str, int | None] = {}
    sizes: dict[str, float] = {}
    wrong: list[str] = []
    for label in labels:
        try:
            caps[label] = cap = cap_of(store, program, label, asked)
        except LookupError as error:
            wrong.append(f"{label}: {error}")
            continue
        known = store.get("packing", program, label) or {}
        guess = known.get("reserved") or asked * GUESS[label.partition("@")[0]]
        sizes[label] = CONTEXT + (cap or guess)
    over: dict[str, dict[str, list[float]]] = {}
    for sitting in sittings(sizes, FULL * store.machine["gpu_bytes"]):
        chosen = {label: caps[label] for label in sitting}
        steps, results, said = play(program, chosen, timeout, until)
        wrong += said
        for row in rows_of(program, steps, results):
            # The arena sits in several; what it was compared with in each is kept.
            if "over" in row:
                row["over"] = over.setdefault(row["contender"], {}) | row["over"]
                over[row["contender"]] = row["over"]
            store.put(row)
    return wrong
