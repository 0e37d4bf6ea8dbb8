"""What the trace of a rehearsal would not say of itself, put into it as marks.

`through_torch` reads them: under torch's own allocators, too, a cache is given back where the
program says so; and a program that has pools, sets its own cap, or goes on after it has asked
how much is reserved or free, which differs by allocator, is not one whose trace stands for
it."""

from __future__ import annotations

import functools
import sys
from typing import Any

__all__ = ["ASKED", "EMPTIED", "SILENT", "install"]

# Lines of the trace.
EMPTIED = "m torcharena: cache emptied"
ASKED = "m torcharena: the program asked how much is reserved or free"
_POOL = "m torcharena: a pool of memory"
_FRACTION = "m torcharena: a cap of the program's own"
SILENT = frozenset({_POOL, _FRACTION})
# What tells one allocator from another.
_ANSWERS = (
    "get_memory_info",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
)
_OURS = ("torcharena.", "torch.cuda", "torch.accelerator")


def install(torch: Any) -> None:
    """Called once, in a process whose arena is recorded, after that is enabled."""
    _after(torch._C, "_cuda_emptyCache", EMPTIED)
    _after(torch._C, "_cuda_setMemoryFraction", _FRACTION)
    _after(torch.cuda.CUDAGraph, "capture_begin", _POOL)
    _after(getattr(torch.cuda, "MemPool", None), "__init__", _POOL)
    for module in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
        for name in _ANSWERS:
            _after(module, name, ASKED)


def _after(where: Any, name: str, line: str) -> None:
    from .. import recording

    inner = getattr(where, name, None)
    if inner is None:
        return

    @functools.wraps(inner)
    def marked(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if line != ASKED or not caller.startswith(_OURS):
            recording.mark(line[len("m ") :])
        return result

    setattr(where, name, marked)
