"""What the arena's run asked for, asked of torch's own allocators: one run answers for three.

A program asks for the same memory whoever serves it, so the trace that the arena's run leaves
says what native and expandable segments would have reserved, without running the program
again: `again` has the real PyTorch make the recorded allocations on the simulated card, in
seconds. Replays of an H200's traces reserve what it did, to the byte.

A trace does not say which memory was a pool's (CUDA graphs, `MemPool`), nor how soon a stream
was done with what ``record_stream`` named; and a program that asks how much is reserved, or
goes on after it ran out, may take another course under another allocator. `whole` is false for
such a run, for one of several processes, and for one that was cut short (``os._exit``). The
program is then run again. This file is also what the process runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

if __name__ == "__main__":  # by its path, under a Python that need not have torcharena
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "../..")))

from torcharena import traces
from torcharena.rehearsal import launch, marks
from torcharena.rehearsal.cards import Card

__all__ = ["again", "whole"]

_STREAMS = 32  # of a device: torch hands the same ones out again then


def whole(run: launch.Run) -> bool:
    """The arena's run is one that a replay stands for: it came to its end in one process, was
    refused nothing, and its trace says all that matters."""
    if run.exit_code or run.timed_out or len(run.traces) != 1 or len(run.processes) != 1:
        return False
    if run.ooms or run.processes[0]["ended"] == "killed":
        return False
    try:
        return _says_all(_lines(run.traces[0]))
    except (OSError, ValueError):
        return False


def again(
    run: launch.Run,
    allocator: str,
    card: Card,
    limit: int | None,
    *,
    gpus: int = 1,
    timeout: float | None = None,
) -> launch.Run | None:
    """The arena's ``run`` (see `whole`) as it would have been on ``card`` under one of torch's
    allocators: with other peaks, and with exit code 1 where that runs out of memory. None
    where it could not be replayed."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("TORCHARENA_")}
    made = run.processes[0].get("conf")  # by the script itself, it may be
    if made:
        base["PYTORCH_CUDA_ALLOC_CONF"] = made
    env = launch.environment(card.spelt(), gpus, allocator, base)
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, run.traces[0], str(limit or 0)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    process = {**run.processes[0], "devices": found["devices"], "arena": False}
    process.update(holders=None, oom=None, trees_off=False)
    return replace(
        run,
        allocator=allocator,
        card=card,
        limit=limit,
        exit_code=int(found["oom"]),
        seconds=round(time.monotonic() - started, 2),
        processes=[process],
        traces=[],
        replayed=True,
    )


def _lines(path: str) -> list[str]:
    return traces.read(path).decode("ascii", "replace").splitlines()


def _device(words: list[str]) -> int:
    """Of the words of a line that allocates."""
    return int(words[4]) if len(words) > 4 else 0


def _says_all(lines: list[str]) -> bool:
    streams: dict[int, set[str]] = {}
    asked = False
    for line in lines:
        if line.startswith("r ") or line in marks.SILENT:
            return False
        asked = asked or line == marks.ASKED
        if line.startswith("a "):
            if asked:
                return False
            words = line.split(" ")
            streams.setdefault(_device(words), set()).add(words[3])
    return all(len(seen) <= _STREAMS for seen in streams.values())


# --- the process ---------------------------------------------------------------------------
def _replay(lines: list[str], limit: int) -> dict[str, Any]:
    import torch

    used = {_device(line.split(" ")) for line in lines if line.startswith("a ")}
    for device in used if limit else ():
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    oom = False
    try:
        _make(torch, lines)
    except torch.OutOfMemoryError:
        oom = True
    devices = [_peaks(torch, device) for device in sorted(used)]
    return {"oom": oom, "devices": devices}


def _make(torch: Any, lines: list[str]) -> None:
    """Every allocation and every free, in order."""
    alive: dict[str, Any] = {}
    streams: dict[str, Any] = {}
    begun: set[int] = set()
    current = None
    for line in lines:
        what, _, rest = line.partition(" ")
        if what == "a":
            name, size, stream = rest.split(" ")[:3]
            if stream not in streams:  # a device's first is taken for its default stream
                device = _device(line.split(" "))
                make = torch.cuda.Stream if device in begun else torch.cuda.default_stream
                streams[stream] = make(device)
                begun.add(device)
            if stream != current:
                torch.cuda.set_stream(streams[stream])
                current = stream
            alive[name] = torch.empty(int(size), dtype=torch.uint8, device="cuda")
        elif what == "f":
            del alive[rest]
        elif line == marks.EMPTIED:
            torch.cuda.empty_cache()


def _peaks(torch: Any, device: int) -> dict[str, int]:
    stats = torch.cuda.memory_stats(device)
    kinds = ("requested", "allocated", "reserved")
    return {
        "device": device,
        **{f"peak_{kind}": stats.get(f"{kind}_bytes.all.peak", 0) for kind in kinds},
        "allocations": stats.get("allocation.all.allocated", 0),
        "retries": stats.get("num_alloc_retries", 0),
        "ooms": stats.get("num_ooms", 0),
    }


if __name__ == "__main__":
    print(json.dumps(_replay(_lines(sys.argv[1]), int(sys.argv[2]))))
