"""What programs take on a GPU: the truth that rehearsals are held against.

    python -m benchmarks.truths --out truth.jsonl [--programs vit_ema,loop:moe]
        [--allocators native,expandable,arena] [--again] [--jobs 3] [--seconds 500]
        [--record FOLDER]
    python -m benchmarks.truths --merge truth.jsonl

Runs every program of benchmarks/programs and the five loops under each allocator, each in a
process of its own and to its end, the rows most wanted first: the programs and loops under
torch's two allocators, then all under the arena. A row is appended to ``--out`` as soon as it
is there, so that who is interrupted keeps what was measured. What
benchmarks/results/truth-h200.jsonl has already is left out unless ``--again``.

Peaks do not depend on what else the GPU does as long as it has room, so ``--jobs`` programs
run side by side; those that time their kernels to choose among them run alone, at the end.
After ``--seconds`` no program is begun; those that run get ``--timeout`` seconds each.

``--record`` keeps the arena's traces of programs other than the loops, for `benchmarks.apart`.

``--merge`` puts such a file's rows into the results, in place of older ones. Rows of a
simulated GPU are never merged."""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .harness.catalogue import ALLOCATORS, ALONE, PROGRAMS, command
from .harness.contenders import environment
from .harness.runs import run_child
from .rehearsals import TRUTH

__all__ = ["merge", "order", "whole"]

MARK = "TRUTH "  # of programs/truth.py
RECORD = "BENCHMARKS_RECORD"  # the file for a child's trace

Key = tuple[str, str]


def order(programs: Iterable[str], allocators: Iterable[str]) -> list[Key]:
    """(program, allocator), the most wanted first: torch's own allocators, program by program,
    then the arena; those that run alone at the end of each half."""
    programs, allocators = list(programs), list(allocators)
    torchs = [a for a in allocators if a != "arena"]
    halves = ([torchs] if torchs else []) + [["arena"]] * ("arena" in allocators)
    return [
        (program, allocator)
        for half in halves
        for alone in (False, True)
        for program in programs
        if (program in ALONE) == alone
        for allocator in half
    ]


def whole(row: dict[str, Any]) -> bool:
    """True for a row that has all figures: the first loops' rows lack the reserved bytes."""
    return "error" not in row and bool(row.get("requested") and row.get("reserved"))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows; none where there is no file. A line that an interruption cut is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def merge(
    old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The old rows with the new ones in their places, what is new at the end. Failed,
    incomplete and simulated rows change nothing."""
    rows = {(row["program"], row["allocator"]): row for row in old}
    for row in new:
        if whole(row) and not row.get("simulated"):
            rows[row["program"], row["allocator"]] = row
    return list(rows.values())


# --- one run -----------------------------------------------------------------------------


def child(program: str, allocator: str) -> None:
    """Runs the program in this process, which then tells its peaks at its exit."""
    if allocator == "arena":
        import torcharena

        torcharena.enable(record=os.environ.get(RECORD))
    import runpy

    script, *arguments = command(program)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def measure(
    program: str, allocator: str, timeout: float, record: Path | None = None
) -> dict[str, Any]:
    """The row of one run in a process of its own; ``error`` where it has none. ``record``: a
    folder for the arena's trace."""
    row: dict[str, Any] = {"program": program, "allocator": allocator}
    begin = time.monotonic()
    env = environment(allocator)
    env.pop(RECORD, None)
    if record is not None and allocator == "arena" and not program.startswith("loop:"):
        env[RECORD] = str(record / f"{program}.trace.xz")
    argv = [sys.executable, "-m", "benchmarks.truths", "--child", program, allocator]
    found = run_child(argv, env, timeout, mark=MARK, whole=True)
    seconds = round(time.monotonic() - begin, 1)
    if "error" in found:
        return row | {"error": found["error"], "seconds": seconds}
    if (found["program"], found["allocator"]) != (program, allocator):
        return row | {
            "error": f"it ran as {found['program']} under {found['allocator']}",
            "seconds": seconds,
        }
    return found | {"seconds": seconds}


class Sitting:
    """Measures in order, several at a time; writes and shows each row as it comes."""

    def __init__(
        self, out: Path, timeout: float, until: float, record: Path | None
    ) -> None:
        self.out = out
        self.timeout = timeout
        self.until = until  # of time.monotonic()
        self.record = record
        self.lock = threading.Lock()
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[Key] = []

    def run(self, wanted: list[Key], jobs: int) -> None:
        """A stretch of programs that bear company side by side, one that does not alone."""
        while wanted:
            alone = wanted[0][0] in ALONE
            count = 0
            while count < len(wanted) and (wanted[count][0] in ALONE) == alone:
                count += 1
            self._together(wanted[:count], 1 if alone else jobs)
            wanted = wanted[count:]

    def _together(self, wanted: list[Key], jobs: int) -> None:
        line: queue.SimpleQueue[Key] = queue.SimpleQueue()
        for key in wanted:
            line.put(key)
        threads = [threading.Thread(target=self._work, args=(line,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, line: queue.SimpleQueue[Key]) -> None:
        while True:
            try:
                key = line.get_nowait()
            except queue.Empty:
                return
            if time.monotonic() >= self.until:
                with self.lock:
                    self.skipped.append(key)
                continue
            row = measure(*key, self.timeout, self.record)
            with self.lock:
                self.rows.append(row)
                with open(self.out, "a") as file:
                    file.write(json.dumps(row) + "\n")
                print(line_of(row), flush=True)


def line_of(row: dict[str, Any]) -> str:
    """A row for the eye."""
    start = f"{row['program']:<26} {row['allocator']:<10} "
    if "error" in row:
        return f"{start} failed: {row['error'][:100]}"
    sizes = [row[kind] / (1 << 30) for kind in ("requested", "reserved")]
    return (
        f"{start} asked {sizes[0]:7.3f} GiB, reserved {sizes[1]:7.3f} GiB, "
        f"{sizes[1] / sizes[0]:.3f}, {row['seconds']:.0f} s"
    )


# --- the command -------------------------------------------------------------------------


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.truths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="a file for the rows, appended to")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="by commas (all)")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--again", action="store_true", help="also what is known already")
    parser.add_argument("--jobs", type=int, default=3, help="side by side (3)")
    parser.add_argument(
        "--seconds", type=float, default=500, help="begin none after (500)"
    )
    parser.add_argument("--timeout", type=float, default=150, help="of each (150)")
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="into the results")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.programs = options.programs.split(",")
    options.allocators = options.allocators.split(",")
    for given, known in (
        (options.programs, PROGRAMS),
        (options.allocators, ALLOCATORS),
    ):
        for name in given:
            if name not in known:
                parser.error(f"{name}: not one of {', '.join(known)}")
    if options.jobs < 1:
        parser.error("--jobs is at least 1")
    if options.out is None and options.merge is None and options.child is None:
        parser.error("--out or --merge is wanted")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a program failed or none was begun for want of time."""
    begin = time.monotonic()
    options = parse(arguments)
    if options.child:
        child(*options.child)
        return 0
    if options.merge:
        rows = merge(read(TRUTH), read(options.merge))
        TRUTH.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{TRUTH}: {len(rows)} rows")
        return 0
    known = {
        (row["program"], row["allocator"])
        for row in (*([] if options.again else read(TRUTH)), *read(options.out))
        if whole(row)
    }
    wanted = [
        key for key in order(options.programs, options.allocators) if key not in known
    ]
    print(f"{len(wanted)} to measure, {len(known)} known already", flush=True)
    if options.record:
        options.record = options.record.resolve()
        options.record.mkdir(parents=True, exist_ok=True)
    sitting = Sitting(
        options.out, options.timeout, begin + options.seconds, options.record
    )
    sitting.run(wanted, options.jobs)
    for program, allocator in sitting.skipped:
        print(f"{program:<26} {allocator:<10}  not begun: out of time")
    failed = any("error" in row for row in sitting.rows)
    return 1 if failed or sitting.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
