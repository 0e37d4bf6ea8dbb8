"""When memory runs out: a report of that moment, a checkpoint, and letting go of what an
error still holds. `on_oom` and `free_exceptions`."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from ..loading import core, warn
from ..state import enabled, takes_part
from . import phases
from .reporting import Report, report

__all__ = ["Held", "free_exceptions", "held_by_exceptions", "on_oom"]

# Where they have the frame in which they wait; None once they have ended.
_FRAMES: dict[type, str] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


class on_oom(contextlib.ContextDecorator):
    """Where CUDA memory runs out inside, writes a report of that moment to ``path``, calls
    ``save()``, and lets the error go on.

        with torcharena.on_oom("oom.html", save=lambda: torch.save(state(), "last.pt")):
            train()

    A decorator too. ``path`` ends in .json or .html, or is None for no report. The report is
    of the moment of the refusal, whatever was freed on the way out; it counts what phases,
    `track` and this know. ``save`` is called when the frames of the error are gone, so with
    their memory free; an error of its own is a warning. Raises RuntimeError where the arena is
    not enabled, but in a rehearsal of torch's own allocators."""

    def __init__(
        self, path: str | os.PathLike[str] | None, save: Callable[[], Any] | None = None
    ) -> None:
        path = None if path is None else os.fspath(path)
        if path is not None and not path.endswith((".json", ".html")):
            raise ValueError(f"on_oom({path!r}): a path that ends in .json or .html")
        if save is not None and not callable(save):
            raise TypeError(f"on_oom(save={save!r}): a function without arguments")
        self.path = path
        self.save = save
        self.report: Report | None = None

    def _recreate_cm(self) -> on_oom:
        return self

    def __enter__(self) -> on_oom:
        if takes_part("on_oom"):
            phases.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or not _is_oom(error):
            return
        if enabled() and core().created():
            self.report = report(_device_of(error))
            if self.path is not None:
                self._careful("the report", lambda: self._write(self.path))
        if self.save is not None:
            _clear(error)
            self._careful("save()", self.save)

    def _write(self, path: str | None) -> None:
        assert self.report is not None
        assert path is not None
        self.report.save(path)

    def _careful(self, what: str, call: Callable[[], Any]) -> None:
        """The user's error goes on, whatever ours is."""
        try:
            call()
        except Exception as error:
            warn(
                f"torcharena.on_oom: {what} failed: {type(error).__name__}: {error}",
                once=False,
                stacklevel=4,
            )


def _is_oom(error: BaseException) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)


def _device_of(error: BaseException) -> int | None:
    """The device that torch's text names."""
    text = str(error)
    _, found, rest = text.partition("GPU ")
    digits = rest.split(" ", 1)[0]
    return int(digits) if found and digits.isdigit() else None


# --- what errors hold -----------------------------------------------------------------------
class Held(NamedTuple):
    """A tensor that lives on because an exception remembers the frame it is in."""

    exception: str
    place: str  # file:line, function
    name: str
    bytes: int


def held_by_exceptions() -> list[Held]:
    """CUDA tensors in frames of exceptions that are over: those that Python or a notebook
    keeps as the last error, and those in variables. The largest first; each once."""
    found: dict[int, Held] = {}
    suspended = _suspended()
    for error in _finished():
        for frame, line in _frames(error, suspended):
            if frame.f_locals is frame.f_globals:  # variables of a module or a notebook
                continue
            for name, value in frame.f_locals.items():
                for tensor in _tensors(value):
                    storage = tensor.untyped_storage()
                    code = frame.f_code
                    found.setdefault(
                        storage.data_ptr(),
                        Held(
                            type(error).__name__,
                            f"{code.co_filename}:{line}, {code.co_name}",
                            name,
                            storage.nbytes(),
                        ),
                    )
    return sorted(found.values(), key=lambda held: -held.bytes)


def free_exceptions() -> int:
    """Lets go of what finished exceptions hold: their frames are cleared and the last error
    of Python and of a notebook is forgotten. Exceptions being handled now stay whole.

    Returns the bytes of CUDA tensors that this frees."""
    held = sum(one.bytes for one in held_by_exceptions())
    suspended = _suspended()
    for error in _finished():
        _clear(error, suspended)
        error.__traceback__ = None
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    shown = getattr(shell, "InteractiveTB", None)
    for name in ("etype", "evalue", "tb"):
        if getattr(shown, name, None) is not None:
            setattr(shown, name, None)
    gc.collect()
    left = sum(one.bytes for one in held_by_exceptions())
    return held - left


def _finished() -> list[BaseException]:
    """Exceptions that are not being handled by any thread."""
    handled = _being_handled()
    errors: list[BaseException] = []
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    # A list made of both would hold itself, and so all there is.
    for one in itertools.chain((last,), gc.get_objects()):
        # isinstance would ask an object's own __class__, which may do anything
        if not issubclass(type(one), BaseException) or id(one) in handled:
            continue
        if one.__traceback__ is not None and not any(one is other for other in errors):
            errors.append(one)
    return errors


def _being_handled() -> set[int]:
    """Ids of what threads are handling, with what those errors came from."""
    handled: set[int] = set()
    waiting: list[Any] = [
        one[1] if isinstance(one, tuple) else one  # a tuple before Python 3.12
        for one in sys._current_exceptions().values()
    ]
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in handled:
            handled.add(id(error))
            waiting += [error.__context__, error.__cause__]
    return handled


# Ids and no frames: a set of frames would hold its own, and all that its callers have.
def _running() -> set[int]:
    """Frames that threads are in."""
    found: set[int] = set()
    at: FrameType | None
    for at in sys._current_frames().values():
        while at is not None:
            found.add(id(at))
            at = at.f_back
    return found


def _suspended() -> set[int]:
    """Frames of generators and coroutines that may go on."""
    found: set[int] = set()
    for one in gc.get_objects():
        name = _FRAMES.get(type(one))
        if name is not None:
            found.add(id(getattr(one, name)))
    return found


def _clear(error: BaseException, suspended: set[int] | None = None) -> None:
    suspended = _suspended() if suspended is None else suspended
    for frame, _ in list(_frames(error, suspended)):
        with contextlib.suppress(RuntimeError):  # it runs after all
            frame.clear()


def _frames(error: BaseException, suspended: set[int]) -> Iterator[tuple[FrameType, int]]:
    """Frames of the error that have ended, with their lines."""
    running = _running()
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if id(frame) not in running and id(frame) not in suspended:
            yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _tensors(value: Any, depth: int = 2) -> Iterator[Any]:
    """CUDA tensors in a variable, and in containers two deep."""
    import torch

    if issubclass(type(value), torch.Tensor):
        if value.is_cuda:
            yield value
    elif depth and type(value) in (list, tuple, set, dict):
        inner = value.values() if type(value) is dict else value
        for one in list(inner):
            yield from _tensors(one, depth - 1)
