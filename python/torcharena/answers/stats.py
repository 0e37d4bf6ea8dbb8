"""The core's counters in the shape of torch's memory_stats. Pure: no torch, no library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["nested"]

_METRICS = ("current", "peak", "allocated", "freed")
_ALL, _SMALL, _LARGE = 0, 1, 2  # places in the core's threes
_POOLS = (("all", _ALL), ("small_pool", _SMALL), ("large_pool", _LARGE))
_NOTHING = (0, 0, 0, 0)


def _one(gauge: Sequence[int]) -> dict[str, int]:
    return dict(zip(_METRICS, gauge, strict=True))


def _three(gauges: Sequence[Sequence[int]]) -> dict[str, dict[str, int]]:
    return {pool: _one(gauges[place]) for pool, place in _POOLS}


def nested(
    raw: Mapping[str, Any],
    *,
    newer: bool = False,
    segments: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """torch's nested dictionary from ``raw``, a device's counters (ta_stats by name).

    A segment is a page: what the driver is asked for. ``inactive_split`` counts the free
    pieces between blocks, ``inactive_split_bytes`` the free part of pages that also hold
    blocks: what no release gives back. ``newer``: with the entries that torch 2.14 added, of
    which one is about graph pools, from the device's ``segments``."""
    partly, highest = raw["partly_used"], raw["largest_idle_partly_used"]
    split = (partly, max(partly, highest), partly, 0)
    reserved = _reserved(raw)
    page = raw["page_bytes"] or 1  # 0: a device never used
    found: dict[str, Any] = {
        "allocation": _three(raw["allocations"]),
        "segment": _three([[value // page for value in gauge] for gauge in reserved]),
        "active": _three(raw["active_blocks"]),
        "inactive_split": _three([_only(count) for count in raw["holes"]]),
        "allocated_bytes": _three(raw["allocated"]),
        "reserved_bytes": _three(reserved),
        "active_bytes": _three(raw["active"]),
        "inactive_split_bytes": _three((split, _NOTHING, split)),
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
        found["reserved_bytes_by_private_pools"] = _by_private_pools(segments)
    return found


def _reserved(raw: Mapping[str, Any]) -> tuple[Sequence[int], ...]:
    """Reserved bytes (all, small, large): small is what is mapped there, large all the rest,
    pages kept ready included, so that the two add up.

    Pages pass from one pool to the other: they come from the driver and from the small pool
    to the large one, and leave it for those. So ``allocated`` and ``freed`` rise alone, but
    do not add up over the pools. A pool's peak is the highest that is known to have been."""
    everything, small = raw["reserved"], raw["mapped"][_SMALL]
    now = everything[0] - small[0]
    peak = min(
        max(now, raw["mapped"][_LARGE][1], everything[1] - small[1]), everything[1]
    )
    return (
        everything,
        small,
        (now, peak, everything[2] + small[3], everything[3] + small[2]),
    )


def _by_private_pools(
    segments: Iterable[Mapping[str, Any]],
) -> dict[tuple[int, int], Any]:
    """What each graph pool holds now, by its id. Of each only the present is known, which
    stands for the peak and for what was allocated too."""
    sums: dict[tuple[int, int], list[int]] = {}
    for segment in segments:
        pool = (int(segment["pool"][0]), int(segment["pool"][1]))
        if pool != (0, 0):
            sizes = sums.setdefault(pool, [0, 0, 0])
            sizes[_ALL] += segment["size"]
            sizes[_SMALL if segment["small"] else _LARGE] += segment["size"]
    return {
        pool: _three([_only(size) for size in sizes])
        for pool, sizes in sorted(sums.items())
    }


def _only(value: int) -> tuple[int, int, int, int]:
    """A gauge of which only the present is known."""
    return value, value, value, 0
