"""Traces of what a program allocated: `record` and `mark`.

A thread of the C library writes plain lines to a file beside the wanted one; when the
recording stops, or the program ends, they are compressed. One recording at a time."""

from __future__ import annotations

import atexit
import gzip
import lzma
import os
import shutil
import threading
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

from .loading import core, loaded, pass_on, warn
from .state import needs_cuda, needs_enabled, when_cuda_is_up

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Recording", "mark", "record", "start_with_cuda"]

_current: Recording | None = None
_lock = threading.RLock()


class Recording:
    """A recording under way. `stop` ends it, as does leaving it as a context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._raw = f"{path}.{os.getpid()}.part"
        self._pid = os.getpid()
        self._running = False

    def _start(self) -> None:
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"record: there is no folder {folder}")
        core().record_start(self._raw)
        self._running = True

    def stop(self) -> None:
        """Ends the recording and writes `path`. Does nothing the second time, or in a forked
        child. Raises OSError where the file cannot be written; the raw lines then stay."""
        global _current
        with _lock:
            if not self._running or os.getpid() != self._pid:
                return
            self._running = False
            if _current is self:
                _current = None
            try:
                core().record_stop()
            finally:
                pass_on()
            _compress(self._raw, self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def record(path: str | os.PathLike[str]) -> Recording:
    """Writes every allocation from now on to ``path``: ``x.trace.xz``, ``x.trace.gz``, or
    plain lines. Ends with `stop`, as a context manager, or with the program.

    ``%p`` in the path becomes the process id, ``%r`` the rank; of several ranks each gets a
    file of its own even where the path does not say so. Raises RuntimeError where a
    recording is under way or the arena is not enabled, OSError for the file."""
    global _current
    needs_enabled("record")
    needs_cuda()
    with _lock:
        if _current is not None:
            raise RuntimeError(
                f"already recording to {_current.path}: stop() that one first"
            )
        recording = Recording(place(os.fspath(path)))
        recording._start()
        _current = recording
    return recording


def start_with_cuda(path: str) -> None:
    """Records from the first allocation on. A process that never uses CUDA, a worker of a
    data loader say, writes nothing."""
    when_cuda_is_up(lambda: record(path))


def mark(text: str) -> None:
    """Puts a mark into the trace that is being recorded: ``forward``, ``step``. Does nothing
    before CUDA is in use and where the arena is not enabled. Raises TypeError or ValueError
    for what is not one line of text."""
    if not isinstance(text, str):
        raise TypeError(f"mark({text!r}): one line of text, a str")
    if "\n" in text or "\r" in text or not text:
        raise ValueError(f"mark({text!r}): one line of text")
    library = loaded()
    if library is not None and library.created():
        library.mark(text)


def place(path: str) -> str:
    """The file for this process."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    several = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
    if "%r" not in path and "%p" not in path and several not in ("", "1"):
        folder, name = os.path.split(path)
        stem, dot, rest = name.partition(".")
        path = os.path.join(folder, f"{stem}.rank%r{dot}{rest}")
    return path.replace("%p", str(os.getpid())).replace("%r", rank)


def _compress(raw: str, path: str) -> None:
    """``raw`` becomes ``path``, whole or not at all."""
    if not path.endswith((".xz", ".gz")):
        os.replace(raw, path)
        return
    finished = f"{raw}.done"
    with open(raw, "rb") as lines, _compressor(path, finished) as out:
        shutil.copyfileobj(lines, cast(Any, out), 1 << 20)
    os.replace(finished, path)
    os.remove(raw)


def _compressor(path: str, file: str) -> IO[bytes]:
    if path.endswith(".xz"):
        return cast(IO[bytes], lzma.open(file, "wb", preset=1))
    return cast(IO[bytes], gzip.open(file, "wb", compresslevel=6))


@atexit.register
def _stop_at_exit() -> None:
    if _current is not None:
        try:
            _current.stop()
        except OSError as error:
            warn(f"torcharena: the recording could not be finished: {error}")
