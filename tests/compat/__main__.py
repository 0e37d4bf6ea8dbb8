"""python -m tests.compat [ROW...]: runs rows and writes what they took.

    python -m tests.compat --out results.jsonl        every row that this machine can run
    python -m tests.compat autocast_float16 --trace   one, with the error's traceback
    python -m tests.compat --list
    python -m tests.compat --table results.jsonl      docs/compatibility.md from results

Each row runs under native, the arena, and native again: two native runs tell how far apart
losses may be. A machine without a GPU needs `torcharena rehearse`'s simulated one: see
tests/py/test_compat.py. On a machine with two GPUs give `--gpus 2` to run those rows too."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import running, table
from .rows import ROWS, Row, load


def measured(row: Row, timeout: float, alone: bool = False) -> dict[str, Any]:
    """The row under each allocator (``alone``: the arena), or why it was not run."""
    found: dict[str, Any] = {"row": row.name}
    lacking = running.missing(row)
    if lacking:
        return {**found, "not_run": f"{lacking} is not installed here"}
    if not alone:
        found["native"] = running.run(row, "native", timeout)
    found["arena"] = running.run(row, "arena", timeout)
    if not alone and row.compare and not table.simulated():
        found["native again"] = running.run(row, "native", timeout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat")
    parser.add_argument("rows", nargs="*", help="names; none: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--trace", action="store_true", help="print errors whole")
    parser.add_argument("--out", type=Path, help="append a JSON line a row")
    parser.add_argument("--alone", action="store_true", help="the arena, without native")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only-gpus", action="store_true", help="no row of fewer GPUs")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all")
    parser.add_argument("--timeout", type=float, default=90.0, help="for one run")
    parser.add_argument("--table", type=Path, metavar="RESULTS")
    asked = parser.parse_args()
    load()
    if asked.list:
        for row in ROWS.values():
            print(f"{row.name:28}{row.family:16}{row.title}")
        return 0
    if asked.table:
        table.write(table.read(asked.table))
        return 0
    unknown = [name for name in asked.rows if name not in ROWS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such row; --list shows them")
    running.print_errors = asked.trace
    chosen = [ROWS[name] for name in asked.rows] or [
        row
        for row in ROWS.values()
        if row.gpus <= asked.gpus and not (asked.only_gpus and row.gpus < asked.gpus)
    ]
    if table.simulated() and not asked.rows:
        chosen = [row for row in chosen if row.rehearsed]
    ends = time.monotonic() + asked.seconds
    machine = table.machine()
    failed = 0

    def one(row: Row) -> dict[str, Any] | None:
        left = ends - time.monotonic()
        if left < 10:
            return None
        return {**measured(row, min(asked.timeout, left), asked.alone), **machine}

    running.warm(chosen)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row, found in zip(chosen, pool.map(one, chosen), strict=True):
            if found is None:
                print(f"{row.name:28}not run: no time left", flush=True)
                continue
            said = table.judged(row, found)
            failed += said.startswith("fails")
            print(f"{row.name:28}{said}", flush=True)
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
