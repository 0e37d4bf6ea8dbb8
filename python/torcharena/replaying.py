"""`torcharena replay`: the figures of replayed traces as a table for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .sizes import format_size

__all__ = ["table"]


def _name(path: str) -> str:
    name = os.path.basename(path)
    for suffix in (".xz", ".gz", ".trace"):
        name = name.removesuffix(suffix)
    return name


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for people."""
    names = [_name(row["trace"]) for row in rows]
    width = max(len(name) for name in ["trace", *names])
    lines = [
        f"{'trace':<{width}} {'events':>10} {'requested':>12} {'reserved':>12} {'ratio':>7} "
        f"{'moves':>8} {'driver calls':>13} {'driver':>10} {'events/s':>11}"
    ]
    for name, row in zip(names, rows, strict=True):
        lines.append(
            f"{name:<{width}} {row['events']:>10,} "
            f"{format_size(row['peak_requested']):>12} "
            f"{format_size(row['peak_reserved']):>12} {row['ratio']:>7.3f} "
            f"{row['page_moves']:>8,} {row['driver_calls']:>13,} "
            f"{row['driver_us'] / 1e3:>7.1f} ms {row['events_per_second']:>11,.0f}"
            + ("  out of memory" if row["oom"] else "")
        )
    return "\n".join(lines)
