"""Which pages of the arena are full, partly used, idle: for reports."""

from __future__ import annotations

from typing import Any

from ..loading import core

__all__ = ["CELLS", "GAP", "HOST", "collect", "of_segments"]

CELLS = 4096  # at most, of all arenas together
ARENAS = 48  # that are drawn; the rest are summed
GAP = -1  # a cell: no pages between here and there
HOST = -2  # a page that is in host memory, or asleep and nowhere


def collect(index: int, ready: int = 0) -> dict[str, Any]:
    """A device's map. ``ready`` is bytes of pages that are held and mapped nowhere."""
    return {**of_segments(core().snapshot(index)), "ready": ready}


def of_segments(segments: list[Any]) -> dict[str, Any]:
    """Of each arena, the largest first: its pages in address order as cells, how many per
    cent of each hold live bytes, or `HOST`, with a gap where addresses have no pages."""
    arenas: dict[tuple[int, bool, tuple[int, int]], list[Any]] = {}
    for segment in segments:
        key = (segment["stream"], segment["small"], segment["pool"])
        arenas.setdefault(key, []).append(segment)
    streams = {key[0]: 0 for key in sorted(arenas, key=lambda key: key[0])}
    streams = {stream: number for number, stream in enumerate(streams)}
    rows = []
    for (stream, small, pool), runs in arenas.items():
        runs.sort(key=lambda segment: segment["address"])
        kind = "graph pool" if any(pool) else "small" if small else "large"
        rows.append(_arena(runs, {"kind": kind, "stream": streams[stream]}))
    rows.sort(key=lambda row: -row["bytes"])
    each = max(1, -(-sum(len(row["cells"]) for row in rows) // CELLS))
    for row in rows:
        row["cells"] = _fewer(row["cells"], each)
    return {
        "page_bytes": segments[0]["page_bytes"] if segments else 0,
        "cell_pages": each,
        "arenas": rows[:ARENAS],
        "arenas_left_out": len(rows[ARENAS:]),
        "bytes_left_out": sum(row["bytes"] for row in rows[ARENAS:]),
    }


def _arena(runs: list[Any], row: dict[str, Any]) -> dict[str, Any]:
    cells: list[int] = []
    full = partly = idle = host = 0
    for run in runs:
        page = run["page_bytes"]
        used = _used(run, page)
        for address, size in run.get("elsewhere", ()):
            first = (address - run["address"]) // page
            used[first : first + size // page] = [HOST] * (size // page)
        host += used.count(HOST)
        full += sum(size >= page for size in used)
        idle += sum(size == 0 for size in used)
        partly += sum(0 < size < page for size in used)
        if cells:
            cells.append(GAP)
        # Never 0 or 100 by rounding.
        cells += [
            size
            if size in (0, HOST)
            else 100
            if size >= page
            else min(99, max(1, 100 * size // page))
            for size in used
        ]
    return {
        **row,
        "bytes": sum(run["size"] for run in runs),
        "live": sum(run["allocated"] for run in runs),
        "full": full,
        "partly": partly,
        "idle": idle,
        "host": host,
        "cells": cells,
    }


def _used(run: Any, page: int) -> list[int]:
    """Bytes of live and pending blocks on each page of a run."""
    begin = run["address"]
    used = [0] * (-(-run["size"] // page))
    for block in run["blocks"]:
        if block["state"] == "free":
            continue
        low, high = block["address"] - begin, block["address"] - begin + block["size"]
        for at in range(low // page, -(-high // page)):
            used[at] += min(high, (at + 1) * page) - max(low, at * page)
    return used


def _fewer(cells: list[int], each: int) -> list[int]:
    """So many pages as one cell; what is mixed is partly used."""
    if each == 1:
        return cells
    fewer: list[int] = []
    run: list[int] = []

    def close() -> None:
        for at in range(0, len(run), each):
            some = [cell for cell in run[at : at + each] if cell != HOST]
            if not some:
                fewer.append(HOST)
                continue
            fewer.append(sum(some) // len(some) or int(any(some)))
        run.clear()

    for cell in cells:
        if cell == GAP:
            close()
            fewer.append(GAP)
        else:
            run.append(cell)
    close()
    # Gaps are many where memory is scattered: one for a row of them.
    return [
        cell for i, cell in enumerate(fewer) if cell != GAP or (i and fewer[i - 1] != GAP)
    ]
