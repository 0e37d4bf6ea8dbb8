"""The smallest cap, in steps of 0.005 of the peak that a program asks for, at which it runs to
its end under a contender: by halving between one at which memory ran out and one at which it
did not. Anything else that goes wrong is an error and ends the search.

The arena is given its limit, torch's allocators a fraction of the device, RMM's pool its most,
RMM's arena its size. Every run is kept, so that a search that was cut off is gone on with."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..harness.catalogue import RANKS
from ..harness.progress import Progress
from ..harness.runs import run_program
from ..harness.store import Store
from .packing import figures

__all__ = ["CONTENDERS", "STEP", "requested", "run", "search"]

CONTENDERS = ("arena", "expandable", "native", "async", "rmm_pool", "rmm_arena")
DEFAULT = ("arena", "expandable")
STEP = 0.005
FIRST = {
    "arena": 2,
    "expandable": 4,
}  # steps above what is asked for that are tried first
MOST = 400  # steps: three times what is asked for
GROUPS = ("packing", "rehearsed")

Trial = Callable[[int], bool | str]  # steps: True it fits, False it does not, else why


def search(trial: Trial, first: int, tried: dict[int, bool]) -> int | str:
    """The least number of steps that fits, or what went wrong. ``tried`` has what is known and
    gets what is found. What fits with n is taken to fit with more."""

    def fits(n: int) -> bool | str:
        if n not in tried:
            found = trial(n)
            if isinstance(found, str):
                return found
            tried[n] = found
        return tried[n]

    low = max((n for n, good in tried.items() if not good), default=-1)
    above = [n for n, good in tried.items() if good and n > low]
    high, jump = min(above, default=None), 2
    at = max(first, low + 1)
    while high is None:
        found = fits(at)
        if isinstance(found, str):
            return found
        if found:
            high = at
        else:
            low, at, jump = at, at + jump, 2 * jump
            if at > MOST:
                return f"out of memory at {1 + low * STEP:.3f} of what is asked for"
    while high - low > 1:
        middle = (low + high) // 2
        found = fits(middle)
        if isinstance(found, str):
            return found
        low, high = (low, middle) if found else (middle, high)
    return high


def requested(store: Store, program: str) -> int | None:
    """The peak of what it asks for, as far as the store knows."""
    for group in ("caps", "packing"):
        for row in store.of(group):
            if row["case"] == program and row.get("requested"):
                return int(row["requested"])
    return None


class Search:
    """The search of one program under one contender."""

    def __init__(
        self, store: Store, lock: threading.Lock, program: str, name: str
    ) -> None:
        self.store, self.lock, self.program, self.name = store, lock, program, name
        old = store.rows.get(("caps", program, name), {})
        self.row: dict[str, Any] = {
            "group": "caps",
            "case": program,
            "contender": name,
            "tried": dict(old.get("tried", {})),
        }

    def run(self, until: float, timeout: float) -> str:
        """What went wrong, or nothing."""
        asked = requested(self.store, self.program)
        if asked is None:
            found = run_program(self.program, "arena", timeout=timeout)
            if not found.get("requested"):
                return self.keep(error=found.get("error", "nothing was asked for"))
            with self.lock:
                self.store.on(found["machine"])
            asked = int(found["requested"])
        self.row["requested"] = asked
        tried = {round((float(r) - 1) / STEP): v for r, v in self.row["tried"].items()}

        def trial(steps: int) -> bool | str:
            left = until - time.monotonic()
            if left < 20:
                return "not finished, out of time"
            cap = asked * (200 + steps) // 200
            found = run_program(
                self.program, self.name, cap=cap, timeout=min(timeout, left)
            )
            if "error" in found:
                return str(found["error"])
            fits = "out_of_memory" not in found
            self.row["tried"][f"{1 + steps * STEP:.3f}"] = fits
            if fits:
                self.row["at_smallest"] = figures(found)
            return fits

        least = search(trial, FIRST.get(self.name, 20), tried)
        if isinstance(least, str):
            return self.keep(error=least)
        return self.keep(smallest=round(1 + least * STEP, 3))

    def keep(self, **more: Any) -> str:
        with self.lock:
            self.store.put(self.row | more)
        return str(more.get("error", ""))


def run(
    store: Store,
    names: list[str],
    programs: Sequence[str],
    *,
    jobs: int = 1,
    seconds: float = 500,
    timeout: float = 300,
) -> list[str]:
    """Searches what the store lacks. Returns what went wrong, in words."""
    until = time.monotonic() + seconds
    todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    count = 0
    for program in programs:
        for name in names:
            if RANKS.get(program, 1) == 1 and not store.has("caps", program, name):
                todo.put((program, name))
                count += 1
    lock, wrong = threading.Lock(), []
    progress = Progress("caps", count)

    def work() -> None:
        while True:
            try:
                program, name = todo.get_nowait()
            except queue.Empty:
                return
            one = Search(store, lock, program, name)
            said = one.run(until, timeout)
            with lock:
                if said:
                    wrong.append(f"{program} {name}: {said}")
                progress.say(f"{program:<26} {name:<11} {one.row['tried']}")
                progress.step(f"{program} {name}")

    threads = [threading.Thread(target=work) for _ in range(min(jobs, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    return wrong
