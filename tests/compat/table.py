"""docs/compatibility.md from the results of rows; and what a result says."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .rows import FAMILIES, ROWS, Row

__all__ = ["judged", "machine", "read", "simulated", "write"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
TOLERANCE = 1e-6  # relative, of losses, where two native runs agree
LOOSE = 1e-2  # the same, of rows that are not exact


def simulated() -> bool:
    """Whether GPUs are simulated here: then losses mean nothing."""
    return "TORCHARENA_SIM_DIR" in os.environ


def machine() -> dict[str, Any]:
    """What a figure depends on, besides the GPU."""
    import torch

    return {
        "simulated": simulated(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "day": datetime.date.today().isoformat(),
    }


def _apart(a: list[float], b: list[float]) -> float:
    """The largest relative difference; two NaN are equal, as in a rehearsal."""
    if len(a) != len(b):
        return math.inf
    found = 0.0
    for x, y in zip(a, b, strict=True):
        if x != x and y != y:
            continue
        if x != y:
            found = max(found, abs(x - y) / max(abs(x), abs(y), 1e-12))
    return found


def judged(row: Row, found: dict[str, Any]) -> str:
    """A few words: "works", "works: ...", "fails: ...", "refused: ...", "not run: ..."."""
    if "not_run" in found:
        return f"not run: {found['not_run']}"
    native, arena = found.get("native", {}), found["arena"]
    if "error" in native:
        return f"not run: native fails too: {native['error']}"
    if "error" in arena:
        if row.expects and row.expects in arena["error"]:
            return "refused: with an error that names the remedy"
        return f"fails: {arena['error']}"
    again = found.get("native again")
    if again is None or not row.compare or found.get("simulated"):
        return "works"
    if "error" in again:
        return f"not run: native fails too: {again['error']}"
    ours = _apart(arena["losses"], native["losses"])
    theirs = _apart(again["losses"], native["losses"])
    allowed = max(TOLERANCE if row.exact else LOOSE, 4 * theirs)
    if ours > allowed:
        return f"fails: losses differ by {ours:.2g}, two native runs by {theirs:.2g}"
    return f"works: losses differ by {ours:.1g}, two native runs by {theirs:.1g}"


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last result of each row."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["row"] in ROWS:
            found[one["row"]] = one
    return found


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def lines(results: dict[str, dict[str, Any]]) -> Iterable[str]:
    """The tables, a family each."""
    for family, title in FAMILIES.items():
        rows = [row for row in ROWS.values() if row.family == family]
        if not rows:
            continue
        yield f"## {title}"
        yield "| | | peak reserved, native | arena | step, native | arena |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            found = results.get(row.name)
            verdict = judged(row, found) if found else "not run"
            word, _, detail = verdict.partition(": ")
            if word == "refused":
                detail = f"instead: {row.instead}"
            elif word == "works":
                detail = ""
            cells = ["", "", "", ""]
            if found and word in ("works", "refused") and "error" not in found["native"]:
                native, arena = found["native"], found["arena"]
                cells[0], cells[2] = _mib(native["reserved"]), f"{native['step_ms']:.1f}"
                if "error" not in arena:
                    cells[1] = _mib(arena["reserved"])
                    cells[3] = f"{arena['step_ms']:.1f}"
            said = word + (f": {detail}" if detail else "")
            yield f"| {row.title} | {said} | {' | '.join(cells)} |"
        yield ""


def write(results: dict[str, dict[str, Any]]) -> None:
    """Puts the tables in their place in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    body = "\n".join([BEGIN, "", *lines(results), END])
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    assert pattern.search(text), f"{DOCUMENT} lacks its marks"
    DOCUMENT.write_text(pattern.sub(lambda _: body, text), encoding="utf-8")
