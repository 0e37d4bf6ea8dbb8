"""Snapshots and memory history in the shape that torch's tools read. Pure: no torch.

torch's viewer starts from the segments as they are now and walks the trace backwards, so
blocks must tile each segment, and an event's address must lie in a segment that was mapped
at that time. Runs of mapped pages are segments here, and mapping and unmapping their pages
are the events torch has for expandable segments."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..reports.lines import frames_of

__all__ = ["Mapped", "segments", "trace"]

_STATES = {
    "live": "active_allocated",
    "pending": "active_pending_free",
    "free": "inactive",
}
_ACTIONS = {
    "alloc": "alloc",
    "free": "free_requested",
    "free_done": "free_completed",
    "map": "segment_map",
    "unmap": "segment_unmap",
    "oom": "oom",
}


def segments(
    found: Iterable[Mapping[str, Any]], pool: tuple[int, int] = (0, 0)
) -> list[dict[str, Any]]:
    """torch's segments from the core's, in order of address; of one graph pool unless 0, 0."""
    shaped = [
        {
            "device": run["device"],
            "address": run["address"],
            "total_size": run["size"],
            "allocated_size": run["allocated"],
            "active_size": run["active"],
            "requested_size": run["requested"],
            "stream": run["stream"],
            "segment_type": "small" if run["small"] else "large",
            "segment_pool_id": tuple(run["pool"]),
            "is_expandable": True,
            "frames": [],
            "blocks": [
                {
                    "address": block["address"],
                    "size": block["size"],
                    "requested_size": block["requested"],
                    "state": _STATES[block["state"]],
                    "frames": [],
                }
                for block in run["blocks"]
            ],
        }
        for run in found
        if pool == (0, 0) or tuple(run["pool"]) == pool
    ]
    return sorted(shaped, key=lambda segment: (segment["device"], segment["address"]))


class Mapped:
    """Which addresses are mapped: disjoint ranges, in order, none touching the next."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """[start, end) is mapped from now on."""
        low = bisect.bisect_left(self._ends, start)
        high = bisect.bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def remove(self, start: int, end: int) -> None:
        """[start, end) is not mapped any more."""
        low = bisect.bisect_right(self._ends, start)
        high = bisect.bisect_left(self._starts, end)
        if low >= high:
            return
        first, last = self._starts[low], self._ends[high - 1]
        pieces = [(first, start)] if first < start else []
        if end < last:
            pieces.append((end, last))
        self._starts[low:high] = [piece[0] for piece in pieces]
        self._ends[low:high] = [piece[1] for piece in pieces]

    def __contains__(self, address: int) -> bool:
        place = bisect.bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._ends[place]

    def ranges(self) -> list[tuple[int, int]]:
        """Every range, [start, end)."""
        return list(zip(self._starts, self._ends, strict=True))


def trace(
    events: Sequence[Mapping[str, Any]],
    device: int,
    mapped: Mapped,
    skip: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """One device's trace entries, oldest first. ``mapped`` is what is mapped after the last
    event; it is used up. Entries at addresses that were not mapped are left out: the events
    that mapped them are older than the history."""
    entries = []
    for event in reversed(events):
        action = _ACTIONS.get(event["kind"])
        if event["device"] != device or action is None:
            continue
        start, end = event["address"], event["address"] + event["size"]
        if action == "segment_unmap":
            mapped.add(start, end)
        known = action == "oom" or start in mapped
        if action == "segment_map":
            mapped.remove(start, end)
        if known and action not in skip:
            entries.append(_entry(event, action))
    entries.reverse()
    return entries


def _entry(event: Mapping[str, Any], action: str) -> dict[str, Any]:
    place = (
        {"device_free": event["free"]} if action == "oom" else {"addr": event["address"]}
    )
    return {
        "action": action,
        **place,
        "size": event["size"],
        "stream": event["stream"],
        "time_us": event["time_us"],
        "frames": frames_of(event.get("stack", 0)),
        "compile_context": "",
        "user_metadata": "",
        "pool_id": (0, 0),
    }
