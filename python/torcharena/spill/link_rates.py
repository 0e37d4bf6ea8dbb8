"""How fast the link to host memory is, measured where it matters: on this machine, once.

A few copies of 32 MiB each way and one kernel in place, about 10 ms of the device, on the
calling thread's stream. Asked for when something has to leave for the first time. In a rehearsal
they are assumed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from ..loading import core, log
from ..state import is_rehearsal
from .host_tensors import ArenaTensors, HostTensors
from .offload_choice import ASSUMED, Rates

__all__ = ["link_rates"]

_SIZE = 32 << 20
_TIMES = 3  # the first warms up

_lock = threading.Lock()
_known: dict[int, Rates] = {}


def link_rates(device: int, host: HostTensors, room: int) -> Rates:
    """Of that device. ``room``: bytes that it has left; where they do not suffice, or anything
    goes wrong, the rates are assumed, and the next call tries again."""
    with _lock:
        known = _known.get(device)
        if known is not None:
            return known
        if room < 2 * _SIZE or is_rehearsal():
            return ASSUMED
        try:
            found = _measure(device, host)
        except RuntimeError as error:  # OutOfMemoryError is one
            log.info("the link's rates are assumed: %s", str(error).partition("\n")[0])
            return ASSUMED
        if found is None:
            return ASSUMED
        _known[device] = found
        return found


def _measure(device: int, host: HostTensors) -> Rates | None:
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    spilled = core().stats(device)["spill_bytes"]
    with torch.cuda.device(device), torch.no_grad():
        where = torch.device("cuda", device)
        here = torch.empty(_SIZE, dtype=torch.uint8, device=where)
        there = host.flat(_SIZE, where)
        worked = (
            host.like(here).zero_()
            if not isinstance(host, ArenaTensors)
            else there.zero_()
        ).view(torch.float32)
        here.zero_()
        if core().stats(device)["spill_bytes"] != spilled:
            return None  # it is on the host itself
        took = [
            _seconds(lambda: there.copy_(here, non_blocking=True)),
            _seconds(lambda: here.copy_(there, non_blocking=True)),
            _seconds(lambda: worked.mul_(1.0)),
        ]
    if min(took) <= 0:
        return None
    out, back, place = (_SIZE / one for one in took)
    return Rates(out, back, place)


def _seconds(work: Callable[[], Any]) -> float:
    """The best of a few, on the device."""
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_TIMES + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    marks[-1].synchronize()
    times = [one.elapsed_time(other) for one, other in itertools.pairwise(marks)]
    return min(times) / 1e3


def forget() -> None:
    """All that was measured: for tests."""
    with _lock:
        _known.clear()
