"""``TORCHARENA_DEBUG=guard``: finds what writes out of bounds or touches freed memory.

Every block gets a mapping of its own with nothing mapped behind it, and is unmapped when it is
freed; see docs/debugging.md. The work is the C library's. Here: what cannot go with it, lines
of the program for what is found, and a last look when the program ends."""

from __future__ import annotations

import atexit
from typing import Any

from .loading import core, log, pass_on
from .reports import lines

__all__ = ["refuse_with", "start"]


def refuse_with(settings: dict[str, Any]) -> None:
    """Raises RuntimeError where another setting asks for what guarded memory cannot do."""
    if settings["spill"] is not None:
        raise RuntimeError(
            "TORCHARENA_DEBUG=guard and spill: guarded memory does not go to the host; leave "
            "one of them out"
        )


def start() -> None:
    """Notes which lines of this thread allocate, and looks at all blocks when the program
    ends."""
    library = core()
    lines.named = library.guard_name
    lines.stacks().start()
    atexit.register(_last_look)
    log.info(
        "guarded memory: each block takes pages of 2 MiB of its own, and each free waits; for "
        "finding faults, not for work"
    )


def _last_look() -> None:
    library = core()
    if not library.forked():
        library.guard_look()
        pass_on()
