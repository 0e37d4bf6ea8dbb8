"""A snapshot for torch's memory viewer, with categories as colours: `snapshot`.

The viewer shows what `torch.cuda.memory._record_memory_history` recorded; where nothing was,
the live blocks in the order of their allocation. A block's category colours it, and stands
with its phase where a stack trace would."""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

from ..answers.memory import memory_snapshot
from ..loading import core
from ..state import needs_cuda, needs_enabled
from . import lines, phases, reporting, tracking

__all__ = ["annotate", "snapshot"]

_UNKNOWN = "unknown"
# By address of a live block: category, phase, stack.
Told = dict[int, tuple[str, str, int]]


def snapshot(path: str | os.PathLike[str], *, stacks: bool = False) -> None:
    """Writes all devices' memory to ``path``, a pickle for https://pytorch.org/memory_viz.

    Opens there and with ``python -m torch.cuda._memory_viz``. ``stacks``: with the lines that
    allocated, which `torcharena.stacks` or ``track(..., stacks=True)`` has noted. Raises
    RuntimeError where the arena is not enabled, or ``stacks`` is asked for and none was noted;
    OSError for the file."""
    needs_enabled("snapshot")
    if stacks and not lines.recorded():
        raise RuntimeError(
            "snapshot(stacks=True): no lines were noted; allocate inside `with "
            "torcharena.stacks():`, or with track(model, optimizer, stacks=True)"
        )
    needs_cuda()
    phases.start()
    tracking.tell_all()
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of objects, none of them in a cycle
    try:
        _write(path, stacks)
    finally:
        if collecting:
            gc.enable()


def _write(path: str | os.PathLike[str], stacks: bool) -> None:
    found = memory_snapshot()
    library = core()
    for device, trace in enumerate(found["device_traces"]):
        known = reporting.known_phases(library.usage_phases(device))
        told = {
            address: (
                reporting.category_of(category, known[phase]),
                known[phase].path,
                stack if stacks else 0,
            )
            for address, _, _, phase, category, _, stack in library.usage_blocks(
                device, reporting.NOW
            )
        }
        if not stacks:
            for entry in trace:
                entry["frames"] = []
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


def _frames(told: tuple[str, str, int]) -> list[dict[str, Any]]:
    category, path, stack = told
    what = {"filename": category, "line": 0, "name": path or "outside phases"}
    return [*lines.frames_of(stack), what]
