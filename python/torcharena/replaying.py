"""`torcharena replay`: the figures of replayed traces as a table for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .sizes import format_size

__all__ = ["table"]

_WIDEST = 20  # of a name, so that a row stays within 80 columns


def _name(path: str) -> str:
    name = os.path.basename(path)
    for suffix in (".xz", ".gz", ".trace"):
        name = name.removesuffix(suffix)
    return name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for people, at most 80 columns. Moves, waits and the driver's time are a
    step's, median and most, over the later half of the steps; where none was
    whole (mark ``step``), of all that ran."""
    width = max(len(_name(row["trace"])) for row in [{"trace": "trace"}, *rows])
    lines = [
        f"{'':<{width}} {'':>10} {'':>10} {'':>6} {'each step: median/most':>30}",
        f"{'trace':<{width}} {'asked for':>10} {'reserved':>10} {'ratio':>6} "
        f"{'moves':>9} {'waits':>7} {'driver ms':>12}",
    ]
    for row in rows:
        lines.append(
            f"{_name(row['trace']):<{width}} {format_size(row['peak_requested']):>10} "
            f"{format_size(row['peak_reserved']):>10} {row['ratio']:>6.3f} "
            f"{_both(row, 'page_moves'):>9} {_both(row, 'waits'):>7} "
            f"{_both(row, 'driver_us'):>12}"
        )
        if row["oom"]:
            lines.append(
                f"  out of memory at event {row['oom_event']:,}, after "
                f"{row['steps']:,} whole steps"
            )
    if any(not row["steps"] for row in rows):
        lines.append("a lone number is of all that ran: no step was whole (mark `step`)")
    return "\n".join(lines)


def _both(row: dict[str, Any], key: str) -> str:
    if not row["steps"]:
        return _shown(row[key], key)
    return f"{_shown(row['step_median'][key], key)}/{_shown(row['step_max'][key], key)}"


def _shown(value: float, key: str) -> str:
    return f"{value / 1e3:.2f}" if key == "driver_us" else f"{value:g}"
