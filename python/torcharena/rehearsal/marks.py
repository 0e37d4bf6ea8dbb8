"""What the trace of a rehearsal would not say of itself, put into it as marks.

`through_torch` reads them: under torch's own allocators, too, a cache is given back where the
program says so; and a program that has pools, or sets its own cap, is not one whose trace
stands for it."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["EMPTIED", "SILENT", "install"]

# Lines of the trace.
EMPTIED = "m torcharena: cache emptied"
_POOL = "m torcharena: a pool of memory"
_FRACTION = "m torcharena: a cap of the program's own"
SILENT = frozenset({_POOL, _FRACTION})


def install(torch: Any) -> None:
    """Called once, in a process whose arena is recorded, after that is enabled."""
    _after(torch._C, "_cuda_emptyCache", EMPTIED)
    _after(torch._C, "_cuda_setMemoryFraction", _FRACTION)
    _after(torch.cuda.CUDAGraph, "capture_begin", _POOL)
    _after(getattr(torch.cuda, "MemPool", None), "__init__", _POOL)


def _after(where: Any, name: str, line: str) -> None:
    from .. import recording

    inner = getattr(where, name, None)
    if inner is None:
        return

    @functools.wraps(inner)
    def marked(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        recording.mark(line[len("m ") :])
        return result

    setattr(where, name, marked)
