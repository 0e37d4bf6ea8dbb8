"""How exact a rehearsal is: its peaks beside those of a GPU.

    python -m benchmarks.rehearsals [--only vit_ema,loop:moe] [--allocators native,expandable]
                                    [--out results.jsonl] [--write-docs] [--check]

Rehearses every program of benchmarks/programs and the five loops, each in its own process
and to its end, and prints the relative differences to benchmarks/results/truth-h200.jsonl.
Run it by a Python whose torch is the truth's, 2.11: the same program asks for other bytes
under another version. What has no truth yet is rehearsed only where ``--only`` names it or
``--all`` is given, and goes to ``--out`` alone. ``--write-docs`` puts the table into
docs/rehearsal.md, with the rows of ``--have`` (files that ``--out`` made before) in place of
rehearsing them again; ``--check`` ends with code 1 where a figure misses what is wanted:
requested within 0.5 % for nine in ten and 2 % at worst, reserved within 2 % and 5 %, the
arena's own within 1 %.

The truth is made on a GPU by ``python -m benchmarks.truths``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .harness.building import ROOT
from .harness.catalogue import ALLOCATORS, PROGRAMS, command

TRUTH = ROOT / "benchmarks" / "results" / "truth-h200.jsonl"
DOCS = ROOT / "docs" / "rehearsal.md"
BEGIN, END = "<!-- rehearsals: begin -->", "<!-- rehearsals: end -->"
KINDS = ("requested", "reserved")
# (nine in ten, worst), relative.
WANTED = {"requested": (0.005, 0.02), "reserved": (0.02, 0.05)}
ARENA = (0.01, 0.01)  # its own reserved bytes


def load(path: Path = TRUTH) -> list[dict[str, Any]]:
    """The truth: a row a program and allocator."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def rehearse(
    program: str, allocator: str, timeout: str, gpu: str, ranks: int = 1
) -> dict[str, Any]:
    """The rehearsal's object; ``error`` where there is none. ``ranks``: processes of a node,
    each on a GPU of its own; the worst is told of."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torcharena.rehearsal", "--json", "--steps", "0"),
            *("--gpu", gpu, "--allocator", allocator, "--timeout", timeout),
            *(() if ranks == 1 else ("--gpus", str(ranks), "--ranks", "all")),
            *command(program),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    if found["verdict"] in ("cannot tell", "the script failed"):
        found["error"] = found.get("error") or found["verdict"]
    return found


def compare(truth: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A row of results: bytes, relative differences, seconds. ``measured`` says whether there
    is anything to compare with."""
    row: dict[str, Any] = {
        "program": truth["program"],
        "allocator": truth["allocator"],
        "measured": any(truth.get(kind) for kind in KINDS),
        "seconds": found.get("seconds"),
    }
    if "error" in found:
        row["error"] = found["error"]
        return row
    for kind in KINDS:
        said, real = found[f"peak_{kind}"], truth.get(kind)
        row[kind], row[f"{kind}_gpu"] = said, real
        row[f"{kind}_off"] = None if not real else said / real - 1
    return row


def plan(
    truths: list[dict[str, Any]], programs: list[str], allocators: list[str]
) -> list[dict[str, Any]]:
    """The truth's row for each program and allocator, one without figures where there is
    none; allocator by allocator of one program after the other."""
    known = {(row["program"], row["allocator"]): row for row in truths}
    return [
        known.get((program, allocator), {"program": program, "allocator": allocator})
        for program in programs
        for allocator in allocators
    ]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| program | allocator | requested, GPU | rehearsed | off | reserved, GPU | "
        "rehearsed | off | seconds |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        start = f"| {row['program']} | {row['allocator']} |"
        if "error" in row:
            lines.append(f"{start} failed: {row['error'][:60]} | | | | | | |")
            continue
        cells = []
        for kind in KINDS:
            off = row[f"{kind}_off"]
            cells += [
                _gib(row[f"{kind}_gpu"]),
                _gib(row[kind]),
                "" if off is None else f"{100 * off:+.2f} %",
            ]
        lines.append(f"{start} {' | '.join(cells)} | {row['seconds']:.0f} |")
    return "\n".join(lines)


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / (1 << 30):.3f} GiB"


def misses(rows: list[dict[str, Any]]) -> list[str]:
    """What falls short of `WANTED`, in words."""
    said = [
        f"{r['program']} {r['allocator']}: {r['error']}" for r in rows if "error" in r
    ]
    for kind, (most, worst) in WANTED.items():
        torchs = [r for r in rows if kind == "requested" or r["allocator"] != "arena"]
        said += _short(kind, torchs, kind, most, worst)
    arena = [r for r in rows if r["allocator"] == "arena"]
    return said + _short("the arena's reserved", arena, "reserved", *ARENA)


def _short(
    name: str, rows: list[dict[str, Any]], kind: str, most: float, worst: float
) -> list[str]:
    off = sorted(
        (abs(r[f"{kind}_off"]), f"{r['program']} {r['allocator']}")
        for r in rows
        if r.get(f"{kind}_off") is not None
    )
    if not off:
        return []
    said = []
    nine = off[max(0, -(-9 * len(off) // 10) - 1)][0]
    if nine > most:
        said.append(f"{name}: nine in ten are within {nine:.2%}, wanted {most:.1%}")
    if off[-1][0] > worst:
        over = ", ".join(f"{where} {by:.2%}" for by, where in off if by > worst)
        said.append(f"{name}: wanted {worst:.0%} at worst: {over}")
    return said


def write_docs(text: str, path: Path = DOCS) -> None:
    """Puts the table between its marks. Raises ValueError where they are missing."""
    old = path.read_text()
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} lacks the lines {BEGIN} and {END}")
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rehearsals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", help="programs, by commas (those with a truth)")
    parser.add_argument("--all", action="store_true", help="also what has no truth yet")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--have", action="append", default=[], metavar="FILE")
    parser.add_argument("--gpu", default="h200", help="the card that the truth is of")
    parser.add_argument("--timeout", default="20m", help="of each rehearsal (20m)")
    parser.add_argument("--out", help="a file for the rows, a line of JSON each")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 with ``--check`` where a figure misses."""
    options = parse(arguments)
    truths = load()
    allocators = options.allocators.split(",")
    wanted = options.only.split(",") if options.only else list(PROGRAMS)
    unknown = set(wanted) - set(PROGRAMS) - {t["program"] for t in truths}
    if unknown:
        print(f"no such program: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    have = {
        (row["program"], row["allocator"]): row
        for file in options.have
        for row in load(Path(file))
        if "error" not in row
    }
    rows = []
    for truth in plan(truths, wanted, allocators):
        measured = any(truth.get(kind) for kind in KINDS)
        if not (measured or options.only or options.all):
            continue
        program, allocator = truth["program"], truth["allocator"]
        found = have.get((program, allocator))
        if found is not None:
            found = found | {f"peak_{kind}": found[kind] for kind in KINDS}
        else:
            found = rehearse(program, allocator, options.timeout, options.gpu)
        rows.append(compare(truth, found))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps({**rows[-1], "torch": truth.get("torch")}) + "\n")
    print(f"\n{table(rows)}")
    measured_rows = [row for row in rows if row["measured"]]
    if options.write_docs:
        write_docs(table(measured_rows))
    short = misses(rows)
    for line in short:
        print(f"misses: {line}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
