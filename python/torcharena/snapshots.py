"""A snapshot for torch's memory viewer, with categories as colours: `snapshot`.

The viewer shows what `torch.cuda.memory._record_memory_history` recorded; where nothing was,
the live blocks in the order of their allocation. A block's category colours it, and stands
with its phase where a stack trace would."""

from __future__ import annotations

import os
import pickle
from typing import Any

from . import phases, reporting, tracking
from .loading import core
from .state import needs_cuda, needs_enabled
from .torch_memory import memory_snapshot

__all__ = ["annotate", "snapshot"]

_UNKNOWN = "unknown"
Told = dict[int, tuple[str, str]]  # by address of a live block: category, phase


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes all devices' memory to ``path``, a pickle for https://pytorch.org/memory_viz.

    Opens there and with ``python -m torch.cuda._memory_viz``. Raises RuntimeError where the
    arena is not enabled, OSError for the file."""
    needs_enabled("snapshot")
    needs_cuda()
    phases.start()
    for one in tracking.trackings():
        one.tell()
    found = memory_snapshot()
    library = core()
    for device, trace in enumerate(found["device_traces"]):
        paths = reporting.paths_of(library.usage_phases(device))
        told = {
            address: (reporting.category_of(category, paths[phase]), paths[phase])
            for address, _, _, phase, category in library.usage_blocks(
                device, reporting.NOW
            )
        }
        segments = [s for s in found["segments"] if s["device"] == device]
        annotate(segments, trace, told)
    reporting.write_whole(path, pickle.dumps(found))


def annotate(segments: list[Any], trace: list[Any], told: Told) -> None:
    """Puts categories and phases into one device's segments and trace entries.

    The viewer colours by the category of an allocation's entry. One entry has to be of the
    category `unknown`, or it stops: so one that is no allocation is."""
    live: list[dict[str, Any]] = []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if address in told and block["state"] == "active_allocated":
                block["frames"] = _frames(told[address])
                live.append(
                    {
                        "action": "alloc",
                        "addr": address,
                        "size": block["requested_size"],
                        "stream": segment["stream"],
                        "time_us": 0,
                        "frames": block["frames"],
                        "category": told[address][0],
                    }
                )
            address += block["size"]
    if not trace:
        trace += live
    else:
        last = {entry["addr"]: entry for entry in trace if entry["action"] == "alloc"}
        for entry in trace:
            if entry["action"] != "alloc":
                continue
            known = last[entry["addr"]] is entry and entry["addr"] in told
            entry["category"] = told[entry["addr"]][0] if known else _UNKNOWN
            if known:
                entry["frames"] = _frames(told[entry["addr"]])
    if any("category" in entry for entry in trace):
        trace.append(
            {
                "action": "snapshot",
                "addr": 0,
                "size": 0,
                "stream": 0,
                "time_us": trace[-1]["time_us"],
                "frames": [],
                "category": _UNKNOWN,
            }
        )


def _frames(told: tuple[str, str]) -> list[dict[str, Any]]:
    category, path = told
    return [{"filename": category, "line": 0, "name": path or "outside phases"}]
