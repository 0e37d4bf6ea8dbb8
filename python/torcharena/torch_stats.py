"""The core's counters in the shape of torch's memory_stats. Pure: no torch, no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["nested"]

_METRICS = ("current", "peak", "allocated", "freed")
_POOLS = (("all", 0), ("small_pool", 1), ("large_pool", 2))  # places in the core's threes
_NOTHING = (0, 0, 0, 0)


def _one(gauge: Sequence[int]) -> dict[str, int]:
    return dict(zip(_METRICS, gauge, strict=True))


def _three(gauges: Sequence[Sequence[int]]) -> dict[str, dict[str, int]]:
    return {pool: _one(gauges[place]) for pool, place in _POOLS}


def nested(raw: Mapping[str, Any], *, newer: bool = False) -> dict[str, Any]:
    """torch's nested dictionary from ``raw``, a device's counters (ta_stats by name).

    A segment is a page: what the driver is asked for. ``inactive_split`` is the free part of
    pages that also hold blocks: what no release gives back. ``newer``: with the entries that
    torch 2.14 added."""
    partly, highest = raw["partly_used"], raw["largest_idle_partly_used"]
    split = (partly, max(partly, highest), partly, 0)
    found: dict[str, Any] = {
        "allocation": _three(raw["allocations"]),
        "segment": _three(_split(raw["pages"])),
        "active": _three(raw["active_blocks"]),
        "inactive_split": _three(_split(_NOTHING)),
        "allocated_bytes": _three(raw["allocated"]),
        "reserved_bytes": _three(_split(raw["reserved"])),
        "active_bytes": _three(raw["active"]),
        "inactive_split_bytes": _three(_split(split)),
        "requested_bytes": _three(raw["requested"]),
        "oversize_allocations": _one(_NOTHING),
        "oversize_segments": _one(_NOTHING),
        "num_alloc_retries": raw["retry_count"],
        "num_ooms": raw["oom_count"],
        "num_sync_all_streams": raw["waits"],
        "num_device_alloc": raw["calls_create"],
        "num_device_free": raw["calls_release"],
        "max_split_size": -1,
    }
    if newer:
        found["num_oom_rejections"] = 0
        found["reserved_bytes_by_private_pools"] = {}
    return found


def _split(gauge: Sequence[Any]) -> Sequence[Sequence[int]]:
    """By pool where the core counts by pool. Where it counts the sum alone, pages pass from
    one kind to the other, and they stand under the large ones."""
    if len(gauge) == 3:
        return gauge
    return gauge, _NOTHING, gauge
