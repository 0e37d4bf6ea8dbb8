"""Peak bytes reserved over peak bytes asked for, program by program and contender by contender:
run on a GPU, or rehearsed on any machine, one at a time.

Several programs run side by side where ``--jobs`` says so: peaks do not depend on what else the
GPU does, step times do, so the share of a step that the arena took is told of runs that were
alone."""

from __future__ import annotations

import importlib.metadata
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from ..harness.catalogue import ALONE, RANKS
from ..harness.catalogue import PROGRAMS as TRUE_PROGRAMS
from ..harness.machine import host
from ..harness.progress import Progress
from ..harness.runs import run_program
from ..harness.store import Store
from ..rehearsals import rehearse

__all__ = ["CONTENDERS", "NEW", "PROGRAMS", "line", "run", "run_rehearsed"]

CONTENDERS = ("native", "expandable", "async", "rmm_pool", "arena")
REHEARSED = ("native", "expandable", "arena")
# Written to be hard on an allocator.
NEW = (
    "long_context",
    "two_models",
    "accumulated",
    "wide_words",
    "graph_topk",
    "shard_pair",
)
PROGRAMS = (*NEW, *TRUE_PROGRAMS)
GIB = float(1 << 30)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """A row's figures of a run's."""
    row: dict[str, Any] = {
        key: found[key]
        for key in ("requested", "allocated", "reserved", "retries", "seconds", "error")
        if key in found
    }
    if "out_of_memory" in found:
        row["error"] = f"out of memory: {found['out_of_memory'][:160]}"
    times = found.get("step_seconds", ())
    late = slice(len(times) // 2, None)
    if len(times) >= 4:
        row["steps"] = len(times)
        row["step_ms"] = 1e3 * statistics.fmean(times[late])
        if found.get("steps"):
            counts = found["steps"][late]
            row["arena_ms"] = 1e3 * statistics.fmean(c["slow_seconds"] for c in counts)
            row["wait_ms"] = 1e3 * statistics.fmean(c["wait_seconds"] for c in counts)
            row["moves"] = statistics.fmean(c["page_moves"] for c in counts)
            row["waits"] = statistics.fmean(c["waits"] for c in counts)
            row["longest_ms"] = 1e3 * max(
                (c["wait_seconds"] for c in found["steps"][1:]), default=0.0
            )
    if "total" in found:
        row["moves_in_all"] = found["total"]["page_moves"]
    return row


def ratio(store: Store, group: str, row: dict[str, Any]) -> float | None:
    """Reserved over asked for; contenders that cannot tell what was asked have it from those
    that can, of the same program."""
    asked = row.get("requested") or next(
        (r["requested"] for r in store.of(group) if same(r, row) and r.get("requested")),
        None,
    )
    return row["reserved"] / asked if asked and row.get("reserved") else None


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(a["case"] == b["case"])


def line(store: Store, row: dict[str, Any]) -> str:
    """A row for the eye."""
    start = f"{row['case']:<26} {row['contender']:<11}"
    if "error" in row:
        return f"{start} failed: {row['error'][:110]}"
    over = ratio(store, row["group"], row)
    return (
        f"{start} reserved {row['reserved'] / GIB:7.3f} GiB, "
        f"{'?' if over is None else f'{over:.3f}'} of what was asked, {row['seconds']:.0f} s"
    )


class Sitting:
    """Works through a list of runs, several at a time; each row is kept as it comes."""

    def __init__(self, store: Store, jobs: int, timeout: float, until: float) -> None:
        self.store, self.jobs, self.timeout, self.until = store, jobs, timeout, until
        self.lock = threading.Lock()
        self.wrong: list[str] = []

    def run(self, wanted: Sequence[tuple[str, str]]) -> None:
        self.progress = Progress("packing", len(wanted))
        crowd = [key for key in wanted if key[0] not in ALONE]
        self._several(crowd, self.jobs)
        self._several([key for key in wanted if key[0] in ALONE], 1)
        self.progress.close()

    def _several(self, wanted: Sequence[tuple[str, str]], jobs: int) -> None:
        todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        for key in wanted:
            todo.put(key)
        threads = [
            threading.Thread(target=self._work, args=(todo, jobs))
            for _ in range(min(jobs, len(wanted)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, todo: queue.SimpleQueue[tuple[str, str]], jobs: int) -> None:
        while True:
            try:
                program, contender = todo.get_nowait()
            except queue.Empty:
                return
            left = self.until - time.monotonic()
            if left < 15:
                with self.lock:
                    self.wrong.append(f"{program} {contender}: not begun, out of time")
                continue
            found = run_program(program, contender, timeout=min(self.timeout, left))
            row: dict[str, Any] = {"group": "packing", "case": program}
            row |= {"contender": contender}
            row |= {"jobs": jobs, **figures(found)}
            with self.lock:
                if "machine" in found:
                    self.store.on(found["machine"])
                self.store.put(row)
                self.progress.say(line(self.store, row))
                if "error" in row:
                    self.wrong.append(f"{program} {contender}: {row['error']}")
                self.progress.step(f"{program} {contender}")


def run(
    store: Store,
    names: list[str],
    programs: Sequence[str],
    *,
    jobs: int = 3,
    seconds: float = 500,
    timeout: float = 300,
    gpus: int = 1,
) -> list[str]:
    """Measures what the store lacks. Returns what went wrong, in words."""
    wanted = [
        (program, name)
        for program in programs
        for name in names
        if RANKS.get(program, 1) <= gpus and not store.has("packing", program, name)
    ]
    for program in programs:
        if RANKS.get(program, 1) > gpus:
            print(
                f"packing: without {program}: it needs {RANKS[program]} GPUs", flush=True
            )
    sitting = Sitting(store, jobs, timeout, time.monotonic() + seconds)
    sitting.run(wanted)
    return sitting.wrong


def run_rehearsed(
    store: Store,
    names: list[str],
    programs: Sequence[str],
    *,
    gpu: str = "h200",
    seconds: float | None = None,
    timeout: float = 1200,
) -> list[str]:
    """The same without a GPU, one after the other; rows are of the group ``rehearsed``."""
    until = None if seconds is None else time.monotonic() + seconds
    store.on(
        host()
        | {"gpu": gpu, "simulated": True, "torch": importlib.metadata.version("torch")}
    )
    wanted = [
        (program, name)
        for program in programs
        for name in names
        if not store.has("rehearsed", program, name)
    ]
    wrong: list[str] = []
    progress = Progress("rehearsed", len(wanted))
    for program, name in wanted:
        if until is not None and time.monotonic() >= until:
            wrong.append(f"{program} {name}: not begun, out of time")
            continue
        found = rehearse(
            program, name, f"{timeout:.0f}s", gpu, ranks=RANKS.get(program, 1)
        )
        row: dict[str, Any] = {"group": "rehearsed", "case": program, "contender": name}
        if "error" in found:
            row["error"] = found["error"]
            wrong.append(f"{program} {name}: {row['error']}")
        else:
            row |= {
                "requested": found["peak_requested"],
                "reserved": found["peak_reserved"],
                "seconds": found["seconds"],
            }
        store.put(row)
        progress.say(line(store, row))
        progress.step(f"{program} {name}")
    progress.close()
    return wrong
