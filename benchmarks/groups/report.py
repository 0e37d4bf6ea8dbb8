"""Tables of results: for the terminal, and benchmarks/RESULTS.md, which is made of the files
benchmarks/results/bench-*.json and of nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..harness.building import ROOT
from ..harness.contenders import CONTENDERS
from ..harness.store import Store
from .latency import CASES, name_of
from .packing import ratio
from .spill_report import spill_tables

__all__ = ["RESULTS", "document", "main", "tables"]

FOLDER = ROOT / "benchmarks" / "results"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
GIB = float(1 << 30)
Row = dict[str, Any]


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with its columns in line, the first to the left."""
    widths = [
        max(len(cell) for cell in column) for column in zip(head, *lines, strict=True)
    ]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]

    def shown(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |"

    return "\n".join(shown(cells) for cells in (head, rule, *lines))


def place_of(contender: str) -> tuple[int, str]:
    """In the order of `CONTENDERS`, those under a cap behind the one without."""
    name, _, cap = contender.partition("@")
    return list(CONTENDERS).index(name), cap


def case_place(case: str) -> int:
    """Latencies in the order of `latency.CASES`, what else there is as it came."""
    names = [name_of(one) for one in CASES]
    return names.index(case) if case in names else 0


def of(rows: Sequence[Row], case: str, contender: str) -> Row | None:
    return next(
        (r for r in rows if r["case"] == case and r["contender"] == contender), None
    )


def cross(rows: Sequence[Row], cell: Callable[[Row], str], first: str) -> str:
    """Cases down, contenders across, in the order of `CONTENDERS`."""
    here = dict.fromkeys(row["contender"] for row in rows)
    names = sorted(here, key=place_of)
    lines = []
    for case in sorted(dict.fromkeys(row["case"] for row in rows), key=case_place):
        cells = [case]
        for name in names:
            row = of(rows, case, name)
            cells.append("" if row is None else "failed" if "error" in row else cell(row))
        lines.append(cells)
    return grid([first, *names], lines)


def microseconds(ns: float) -> str:
    return f"{ns / 1000:.2f}"


def latency_tables(store: Store) -> list[str]:
    rows = store.of("latency")
    if not rows:
        return []
    over = [row for row in rows if "ratio" in row]
    found = [
        "### Latency\n\n"
        "`torch.empty` and its free. Microseconds a call, median over rounds:\n\n"
        + cross(rows, lambda r: microseconds(r["ns"]), "case")
    ]
    if over:
        found.append(
            "Over the floor, the median of paired rounds, and what it stays below with 95 %:\n\n"
            + cross(over, lambda r: f"{r['ratio']:.3f} ({r['bound95']:.3f})", "case")
        )
    found.append(
        "Single calls, microseconds at p50 / p99 / p99.9:\n\n"
        + cross(
            rows,
            lambda r: " / ".join(microseconds(r[p]) for p in ("p50", "p99", "p999")),
            "case",
        )
    )
    return found


def core_tables(store: Store) -> list[str]:
    rows = [row for row in store.of("core") if "error" not in row]
    if not rows:
        return []
    alone = [row for row in rows if "threads" not in row]
    crowd = [row for row in rows if "threads" in row]
    lines = [
        [
            row["case"],
            *(f"{row[k]:.0f}" for k in ("p50_ns", "p99_ns", "p999_ns")),
            f"{row['malloc_p50_ns']:.0f}",
            f"{row['p50_ns'] / max(1.0, row['malloc_p50_ns']):.1f}",
        ]
        for row in alone
    ]
    head = ["blocks", "p50 ns", "p99 ns", "p99.9 ns", "malloc+free ns", "ratio"]
    found = [
        "### The core alone\n\nAn alloc and a free of mapped memory:\n\n"
        + grid(head, lines)
    ]
    one = next((r["pairs_per_second"] for r in crowd if r["threads"] == 1), None)
    if crowd and one:
        lines = [
            [
                str(row["threads"]),
                f"{row['pairs_per_second'] / 1e6:.1f}",
                f"{row['pairs_per_second'] / one:.2f}",
                f"{row['malloc_pairs_per_second'] / 1e6:.1f}",
            ]
            for row in crowd
        ]
        head = ["threads", "M pairs/s", "over one thread's", "malloc+free M pairs/s"]
        found.append("A stream for each thread:\n\n" + grid(head, lines))
    return found


def packing_tables(store: Store) -> list[str]:
    found = []
    for group, title in (("packing", "Packing"), ("rehearsed", "Packing, rehearsed")):
        rows = store.of(group)
        if not rows:
            continue

        text = packing_grid(store, group, rows)
        found.append(
            f"### {title}\n\nPeak bytes reserved over the peak of bytes asked for:\n\n{text}"
        )
        worst = summary(store, group, rows)
        if worst:
            found.append(worst)
        costs = [r for r in rows if r["contender"] == "arena" and "arena_ms" in r]
        if costs:
            lines = [
                [
                    r["case"],
                    f"{r['step_ms']:.1f}",
                    f"{r['arena_ms']:.3f}",
                    f"{100 * r['arena_ms'] / r['step_ms']:.2f} %",
                    f"{r['moves']:.1f}",
                    f"{r['waits']:.1f}",
                    f"{r['longest_ms']:.1f}",
                ]
                for r in costs
            ]
            head = ["program", "step ms", "arena ms", "share", "page moves", "waits"]
            found.append(
                "What the arena took of a step, requests that needed a page, waits included "
                "(mean of the later half; the longest wait of any step but the first):\n\n"
                + grid([*head, "longest wait ms"], lines)
            )
    return found


def packing_grid(store: Store, group: str, rows: Sequence[Row]) -> str:
    """Programs with what they asked for; ratios by contender."""
    asked = {row["case"]: row["requested"] for row in rows if row.get("requested")}

    def named(row: Row) -> Row:
        over = ratio(store, group, row)
        size = asked.get(row["case"])
        case = row["case"] if size is None else f"{row['case']}, {size / GIB:.2f} GiB"
        return row | {"case": case, "over": over}

    return cross(
        [named(row) for row in rows],
        lambda row: "?" if row["over"] is None else f"{row['over']:.3f}",
        "program, asked for",
    )


def summary(store: Store, group: str, rows: Sequence[Row]) -> str:
    """Geometric means, and where the arena is above expandable."""
    lines = []
    for name in CONTENDERS:
        found = [
            r
            for row in rows
            if row["contender"] == name and (r := ratio(store, group, row)) is not None
        ]
        if found:
            product = 1.0
            for value in found:
                product *= value
            mean = product ** (1 / len(found))
            lines.append([name, f"{mean:.3f}", f"{max(found):.3f}", str(len(found))])
    return (
        grid(["contender", "geometric mean", "worst", "programs"], lines) if lines else ""
    )


def caps_tables(store: Store) -> list[str]:
    rows = [row for row in store.of("caps") if "smallest" in row]
    if not rows:
        return []
    text = cross(rows, lambda row: f"{row['smallest']:.3f}", "program")
    return [
        "### Caps\n\nThe smallest cap, over the peak of bytes asked for, at which the program "
        f"runs to its end, in steps of 0.005:\n\n{text}"
    ]


def steps_tables(store: Store) -> list[str]:
    rows = [row for row in store.of("steps") if "error" not in row]
    if not rows:
        return []
    found = [
        "### Steps\n\nMilliseconds a step, mean of the later half, all in lockstep:\n\n"
        + cross(rows, lambda row: f"{row['step_ms']:.1f}", "program")
    ]
    lines = []
    for row in rows:
        for other, (middle, bound) in row["over"].items():
            lines.append(
                [row["case"], row["contender"], other, f"{middle:.3f}", f"{bound:.3f}"]
            )
    if lines:
        head = ["program", "contender", "over", "ratio", "95 %"]
        found.append("Step times over each other's, paired:\n\n" + grid(head, lines))
    costs = [row for row in rows if "arena_ms" in row]
    lines = [
        [
            row["case"],
            row["contender"],
            f"{row['step_ms']:.1f}",
            f"{row['arena_ms']:.3f}",
            f"{100 * row['arena_ms'] / row['step_ms']:.2f} %",
            f"{row['wait_ms']:.3f}",
            f"{row['moves']:.1f}",
            f"{row['waits']:.1f}",
            f"{row['longest_ms']:.1f}",
        ]
        for row in costs
    ]
    head = ["program", "contender", "step ms", "arena ms", "share", "of it waits"]
    if lines:
        found.append(
            "What the arena took of a step: requests that needed a page, waits included; the "
            "longest wait in a step, but for the first:\n\n"
            + grid([*head, "page moves", "waits", "longest ms"], lines)
        )
    return found


def startup_tables(store: Store) -> list[str]:
    rows = [row for row in store.of("startup") if "error" not in row]
    if not rows:
        return []
    found = ["### Start-up"]
    backed = [row for row in rows if "cold" in row]
    if backed:
        found.append(
            "Milliseconds to back memory in a fresh process, and again once it was freed:\n\n"
            + cross(backed, lambda r: f"{r['cold']:.1f}, {r['again']:.1f}", "bytes")
        )
    stepped = [row for row in rows if "extra_ms" in row]
    if stepped:
        found.append(
            "The first step's time over the tenth's, milliseconds, and of it the arena's own:\n\n"
            + cross(
                stepped,
                lambda r: (
                    f"{r['extra_ms']:.1f}"
                    + (f" ({r['arena_ms']:.1f})" if "arena_ms" in r else "")
                ),
                "24 GiB",
            )
        )
    return found


def tables(store: Store) -> str:
    """All that the store has."""
    parts = [
        *core_tables(store),
        *latency_tables(store),
        *packing_tables(store),
        *caps_tables(store),
        *steps_tables(store),
        *startup_tables(store),
        *spill_tables(store, grid),
    ]
    return "\n\n".join(parts)


def where(machine: dict[str, Any]) -> str:
    """The machine and the versions, in a line."""
    parts = []
    if machine.get("gpu"):
        simulated = ", simulated" if machine.get("simulated") else ""
        parts.append(f"{machine['gpu']}{simulated}")
    parts.append(f"{machine.get('processor', '?')}, {machine.get('cpus', '?')} CPUs")
    for key, name in (
        ("driver", "driver"),
        ("cuda", "CUDA"),
        ("torch", "torch"),
        ("rmm", "RMM"),
        ("torcharena", "torcharena"),
        ("python", "Python"),
    ):
        if machine.get(key):
            parts.append(f"{name} {machine[key]}")
    return "; ".join(parts)


def document(files: Sequence[Path]) -> str:
    """RESULTS.md."""
    parts = [
        "# Results\n\n"
        "Made by `python -m benchmarks report` from the files named below; how each was "
        "measured is in `benchmarks/results/README.md`. Contenders: "
        + "; ".join(f"`{c.name}`, {c.what}" for c in CONTENDERS.values())
        + "."
    ]
    for file in files:
        store = Store(file)
        parts.append(f"## {file.name}\n\n{where(store.machine)}\n\n{tables(store)}")
    return "\n\n".join(parts) + "\n"


def main(check: bool = False, folder: Path = FOLDER, out: Path = RESULTS) -> int:
    """Writes the document; with ``check`` compares alone, exit code 1 where they differ."""
    text = document(sorted(folder.glob("bench-*.json")))
    if check:
        if not out.exists() or out.read_text() != text:
            print(
                f"{out} is not what the results make: python -m benchmarks report",
                file=sys.stderr,
            )
            return 1
        return 0
    out.write_text(text)
    print(out)
    return 0
