"""Rows that add up to what a device has in use: what is ours, and by NVML whose the rest is."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ..caps.caps import device_memory
from ..top.nvml import processes_of

__all__ = ["DROPPED", "ON_HOST", "device_rows", "rows_of"]

# Below zero, where there are any: what is asked for, and not on the device.
ON_HOST = "of that in host memory"
DROPPED = "of that asleep, not kept"


def device_rows(stats: Any, index: int) -> dict[str, int | None]:
    """A device's rows, in bytes; those that nobody tells are None."""
    try:
        free, total = device_memory(index)
    except RuntimeError:  # the driver does not answer, while the numbers are ours
        return rows_of(stats, None, None, {}, 0)
    processes: dict[int, int] = {}
    with contextlib.suppress(
        Exception
    ):  # no nvidia-ml-py, no NVML, another device's name
        import torch

        processes = processes_of(str(torch.cuda.get_device_properties(index).uuid))

    return rows_of(stats, total - free, total, processes, os.getpid())


def rows_of(
    stats: Any, used: int | None, total: int | None, processes: dict[int, int], own: int
) -> dict[str, int | None]:
    """The same from the core's numbers, the bytes in use and in all, and NVML's of each
    process. In a container NVML may hide processes, or have other numbers for them: where
    ours is not told, or holds less than we know of, nobody's is believed."""
    allocated, requested = stats["allocated"][0][0], stats["requested"][0][0]
    reserved = stats["reserved"][0]
    rows: dict[str, int | None] = {
        "asked for": requested,
        "rounding": allocated - requested,
        "freed, a stream still uses it": stats["pending"][0],
        "partly used pages": stats["partly_used"],
        "idle pages": stats["idle"],
    }
    # reserved + spilled + dropped = active + idle + partly used, as torcharena.h has it.
    for name, away in ((ON_HOST, stats["spilled"][0]), (DROPPED, stats["dropped"][0])):
        if away:
            rows[name] = -away
    rows["reserved"] = reserved
    if used is not None:
        rest = used - reserved
        told = processes.get(own, -1)
        if told >= reserved:
            others = sum(size for pid, size in processes.items() if pid != own)
            # Asked for at different moments, so no more than there is.
            rows["context and libraries"] = context = min(told - reserved, max(0, rest))
            rows["other processes"] = other = min(others, max(0, rest - context))
            rest -= context + other
        rows["unattributed"] = rest
    rows["device in use"] = used
    rows["device"] = total
    return rows
