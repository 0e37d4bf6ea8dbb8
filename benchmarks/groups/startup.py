"""What the first memory costs: the time to back many bytes in a fresh process, cold and again
after they were freed, and a first step's extra time over the tenth's. Processes one at a time,
the contenders taking turns, in an order that changes from round to round."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from ..harness.progress import Progress
from ..harness.runs import run_program
from ..harness.store import Store
from ..harness.turns import Failed, Player

__all__ = ["CONTENDERS", "SIZES", "run"]

CONTENDERS = ("native", "expandable", "async", "arena")
GIB = 1 << 30
SIZES = (24, 120)  # GiB
PIECES = (64 << 20, 0)  # bytes of a piece; 0: all in one
SPARE = 6 * GIB  # of the device, for contexts
PROGRAM = "fixed_gpt"


def case_of(size: int, piece: int) -> str:
    how = f"in pieces of {piece >> 20} MiB" if piece else "in one piece"
    return f"{size} GiB {how}"


def back(
    store: Store,
    name: str,
    cases: Sequence[tuple[int, int]],
    rounds: dict[str, list[Any]],
) -> str:
    """One fresh process for each case. What went wrong, or nothing."""
    for size, piece in cases:
        player = Player(name, "benchmarks.groups.startup_player", [name])
        try:
            hello = player.hello()
            store.on(hello["machine"])
            if size * GIB + SPARE > hello["machine"]["gpu_bytes"]:
                continue
            rounds[case_of(size, piece)].append(player.ask(bytes=size * GIB, piece=piece))
        except Failed as error:
            return f"{case_of(size, piece)}: {error}"
        finally:
            player.close()
    return ""


def first_step(name: str, timeout: float) -> dict[str, Any]:
    """Seconds of the first step and of the tenth, and the arena's part."""
    found = run_program(PROGRAM, name, timeout=timeout)
    if "error" in found or "out_of_memory" in found:
        return {"error": found.get("error", "out of memory")}
    times = found["step_seconds"]  # of which the first is the building of the model
    row = {"first": times[1], "tenth": times[10]}
    if found.get("steps"):
        counts = found["steps"]
        row["arena_ms"] = 1e3 * counts[1]["slow_seconds"]
        row["longest_wait_ms"] = 1e3 * max(c["wait_seconds"] for c in counts[2:])
    return row


def run(
    store: Store,
    names: Sequence[str],
    *,
    rounds: int = 3,
    seconds: float = 400,
    timeout: float = 200,
) -> list[str]:
    """Measures what the store lacks, as many rounds as there is time for; a contender's figures
    are kept as soon as it has been its turn. Returns what went wrong, in words."""
    until = time.monotonic() + seconds
    cases = [
        (size, piece)
        for size in SIZES
        for piece in PIECES
        if not all(store.has("startup", case_of(size, piece), name) for name in names)
    ]
    steps = not all(store.has("startup", "first step", name) for name in names)
    if not cases and not steps:
        return []
    wrong: list[str] = []
    backed: dict[str, dict[str, list[Any]]] = {
        name: {case_of(*case): [] for case in cases} for name in names
    }
    stepped: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    draw = random.Random(1)
    progress = Progress("startup", rounds * len(names))
    longest = 0.0
    for number in range(rounds):
        # In the first round as told, what most hangs on first; else in an order of its own.
        first = sorted(names, key=lambda name: name != "arena")
        for name in first if number == 0 else draw.sample(list(names), len(names)):
            begin = time.monotonic()
            if begin + longest > until:
                if number == 0:
                    wrong.append(f"startup {name}: no time left")
                continue
            if (said := back(store, name, cases, backed[name])) and number == 0:
                wrong.append(said)
            if steps:
                stepped[name].append(first_step(name, min(timeout, until - begin + 30)))
            progress.step(name)
            longest = max(longest, time.monotonic() - begin)
            mine = rows_of({name: backed[name]}, {name: stepped[name]} if steps else {})
            for row in mine:
                store.put(row)
                if "error" in row and number == 0:
                    wrong.append(f"{row['case']} {row['contender']}: {row['error']}")
    progress.close()
    return wrong


def rows_of(
    backed: dict[str, dict[str, list[Any]]], stepped: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Medians of the rounds."""
    rows: list[dict[str, Any]] = []
    for name, cases in backed.items():
        for case, found in cases.items():
            if found:
                row = {"group": "startup", "case": case, "contender": name}
                row |= {
                    key: 1e3 * statistics.median(one[key] for one in found)
                    for key in ("cold", "again")
                }
                rows.append(row | {"rounds": len(found)})
    for name, runs in stepped.items():
        good = [one for one in runs if "error" not in one]
        row = {"group": "startup", "case": "first step", "contender": name}
        if not good:
            rows.append(row | {"error": runs[0]["error"] if runs else "not run"})
            continue
        row["extra_ms"] = 1e3 * statistics.median(r["first"] - r["tenth"] for r in good)
        row["tenth_ms"] = 1e3 * statistics.median(r["tenth"] for r in good)
        for key in ("arena_ms", "longest_wait_ms"):
            if key in good[0]:
                row[key] = statistics.median(r[key] for r in good)
        rows.append(row | {"rounds": len(good)})
    return rows
