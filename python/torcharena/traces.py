"""Recorded allocation traces: reading them, and replaying them on the simulated device.

A trace is lines of text (``csrc/driver/replay_trace.h`` has the format), plain or compressed
by xz or gzip. Needs no torch and no GPU."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from .loading import core

__all__ = ["TraceError", "read", "replay"]

# As they stand in a line of JSON; `replay` says what comes after them.
KEYS = (
    "trace",
    "events",
    "peak_requested",
    "peak_reserved",
    "ratio",
    "oom",
    "page_moves",
    "driver_calls",
    "driver_us",
    "seconds",
    "events_per_second",
    "waits",
    "steps",
)


class TraceError(ValueError):
    """A trace that cannot be read: ``path``, ``line`` (from 1; 0: not about a line),
    ``reason``."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def read(path: str | os.PathLike[str]) -> bytes:
    """The text of a trace. By its first bytes, not by its name, it is taken for xz, gzip or
    plain. Raises OSError where the file cannot be read, TraceError where it is damaged."""
    name = os.fspath(path)
    with open(name, "rb") as file:
        data = file.read()
    try:
        if data.startswith(b"\xfd7zXZ\x00"):
            return lzma.decompress(data)
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
    except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise TraceError(name, 0, f"damaged or cut short: {error}") from error
    return data


def replay(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    limit: int | None = None,
    limit_ratio: float | None = None,
    page_bytes: int | None = None,
    null_driver: bool = False,
) -> Iterator[dict[str, Any]]:
    """Replays each trace through the allocator on the simulated device, and yields its
    figures as they come: the keys of `KEYS`, bytes and microseconds where not said otherwise.

    ``limit`` caps each device at so many bytes, ``limit_ratio`` at so many times the trace's
    own peak of requested bytes there; of both the lesser holds. ``page_bytes`` is the page's
    size, else the trace's, else the default. ``null_driver``: driver calls do nothing, so
    that ``events_per_second`` is the allocator's own speed.

    ``oom`` is true where a request was refused; the replay ends there, and ``oom_event`` (from
    1) and ``oom_text`` say where and why. ``driver_us`` is what the driver would have taken for
    its calls. ``steps`` has the number of marks ``step`` and, over the later half of the
    steps, ``median`` and ``max`` of each step's page_moves, waits, driver_calls (those that map,
    unmap, create or release) and driver_us.

    Raises TraceError for a malformed trace, OSError for a file that cannot be read, ValueError
    for options that make no sense, RuntimeError where the allocator broke a rule."""
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: bytes, 0 or more")
    if limit_ratio is not None and not 0 < limit_ratio < float("inf"):
        raise ValueError(f"limit_ratio={limit_ratio}: a number above 0, such as 1.02")
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    for path in paths:
        yield _replay(os.fspath(path), limit, limit_ratio, page_bytes, null_driver)


def _replay(
    path: str,
    limit: int | None,
    limit_ratio: float | None,
    page_bytes: int | None,
    null_driver: bool,
) -> dict[str, Any]:
    text = read(path)
    try:
        figures = core().replay(
            text,
            limit=limit,
            limit_ratio=limit_ratio or 0.0,
            page_bytes=page_bytes or 0,
            null_driver=null_driver,
        )
    except ValueError as error:
        # The library's error for a malformed text has the line and the reason.
        if len(error.args) == 2 and isinstance(error.args[0], int):
            raise TraceError(path, error.args[0], error.args[1]) from None
        raise
    result: dict[str, Any] = {"trace": path, **figures}
    wanted = [*KEYS, "step_median", "step_max"]
    if result["oom"]:
        wanted += ["oom_event", "oom_text"]
    return {key: result[key] for key in wanted}
