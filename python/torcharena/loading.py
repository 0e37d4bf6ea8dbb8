"""Finds the C library, and passes on what it has to say.

``torcharena._core`` is loaded when it is first needed, so that importing the package does
nothing. The library never prints: its messages wait until the next call from Python."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from types import ModuleType

__all__ = [
    "core",
    "loaded",
    "log",
    "pass_on",
    "say_refused",
    "show_log",
    "speaks_for_node",
    "warn",
]

log = logging.getLogger("torcharena")

_core: ModuleType | None = None


def show_log(level: str) -> None:
    """Prints what is logged from ``level`` on to standard error, where the program has not
    said where it should go."""
    log.setLevel(level)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("torcharena: %(message)s"))
        log.addHandler(handler)


def core() -> ModuleType:
    """The C library. Raises ImportError saying what was tried."""
    global _core
    if _core is None:
        try:
            _core = importlib.import_module("torcharena._core")
        except ImportError as error:
            here = os.path.dirname(os.path.abspath(__file__))
            found = sorted(name for name in os.listdir(here) if name.startswith("_core."))
            raise ImportError(
                f"torcharena's C library does not load: {error}\n"
                f"  looked in {here} for _core.abi3.so; there is "
                f"{', '.join(n for n in found if not n.endswith('.pyi')) or 'none'}\n"
                "  remedy: `pip install .` in the repository, with a C compiler; a checkout "
                "of the sources alone has no library in it"
            ) from error
    return _core


def loaded() -> ModuleType | None:
    """The C library where it has been loaded, else None."""
    return _core


# The launchers' names for a process's number on its node.
_LOCAL_RANKS = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
)


def speaks_for_node() -> bool:
    """True in one process of a node: the first rank, and no worker of it."""
    import multiprocessing

    if multiprocessing.parent_process() is not None:
        return False
    for variable in _LOCAL_RANKS:
        if variable in os.environ:
            return os.environ[variable] == "0"
    return True


_said: set[str] = set()


def warn(text: str, *, once: bool = True, stacklevel: int = 3) -> None:
    """A warning for the user: once a process and, of several ranks, by the first. It points
    to the caller that ``stacklevel`` says, 0: to the first line outside of this package."""
    if once and text in _said:
        return
    _said.add(text)
    if speaks_for_node():
        warnings.warn(text, UserWarning, stacklevel=stacklevel or _outside())


def _outside() -> int:
    """The stack level, for `warn`, of the first line outside of this package."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("torcharena."):
        level, frame = level + 1, frame.f_back
    return level


def say_refused(reason: str) -> None:
    """At exit, after any traceback: why there is no arena though it was asked for; once."""
    text = f"torcharena: not enabled: {reason}"
    if speaks_for_node() and text not in _said:
        _said.add(text)
        print(text, file=sys.stderr)


def pass_on() -> None:
    """Warns of what the C library has had to say since the last call."""
    if _core is not None:
        for text in _core.messages():
            warn(text, stacklevel=4)
