"""Named spans of a program: whose memory is whose.

    with torcharena.phase("forward"):
        loss = model(batch)

Counting begins with the first phase, `track` or `report` after CUDA is in use; until then,
and where the arena is not enabled, a phase does nothing."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

from ..loading import core
from ..state import enabled, when_cuda_is_up

__all__ = ["CATEGORIES", "enter", "enter_anew", "leave", "phase", "start", "watching"]

# As in csrc/core/usage/usage.h.
CATEGORIES = (
    "unknown",
    "parameter",
    "gradient",
    "optimizer state",
    "activation",
    "buffer",
    "other",
    "workspace",
)

_BYTES = 63  # of a name that the library keeps


def watching() -> bool:
    """Whether memory is counted by phase now, having begun to where that was possible."""
    if not enabled():
        return False
    library = core()
    if not library.created() or library.forked():
        return False
    library.usage_watch()
    return True


_waiting = False


def start() -> None:
    """Counts from now on, or from the moment when CUDA is in use."""
    global _waiting
    if not watching() and not _waiting:
        _waiting = True
        when_cuda_is_up(watching)


def enter(name: str) -> bytes | None:
    """Enters the phase, whose name is valid; the answer is for `leave`. None: nothing is
    counted in this process."""
    if not enabled() or core().forked():
        return None
    start()
    span: bytes = core().usage_enter(name)
    return span


def enter_anew(name: str) -> bytes | None:
    """The same for a part of a training step, as a hook sees it: whatever the program did
    outside all phases until now, it does no more."""
    library = core()
    span: bytes | None = library.usage_enter_anew(name)
    if span is None and enabled() and not library.forked():  # nothing is counted yet
        library.usage_between(None)
        return enter(name)
    return span


def leave(span: bytes | None) -> None:
    """Leaves what `enter` entered, on that thread."""
    if span is not None:
        core().usage_leave(span)


class phase(contextlib.ContextDecorator):
    """A span of the program by name, for `report`: a context manager, or a decorator.

    Phases nest: one is told apart by its name and the one around it. Inside itself it is the
    same phase. What autograd's threads allocate counts to the phase that the thread which
    called ``backward`` is in; other threads have phases of their own.

    Raises TypeError or ValueError for a name that is not a line of text, RuntimeError where it
    is left without having been entered. Costs allocations
    nothing; entering and leaving take some microseconds."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"phase({name!r}): a name is a str")
        if not name or "\n" in name or "\0" in name or "/" in name:
            raise ValueError(f"phase({name!r}): a name is one line, with no '/' in it")
        if (
            not name.isprintable()
        ):  # a terminal's control sequences, halves of a character
            raise ValueError(f"phase({name!r}): a name is text that can be printed")
        if len(name) > _BYTES // 4:  # no half of a character
            name = name.encode()[:_BYTES].decode(errors="ignore")
        self.name = name
        self._spans: list[tuple[int, bytes | None]] = []  # and by which thread

    def _recreate_cm(self) -> phase:
        return phase(self.name)

    def __enter__(self) -> phase:
        self._spans.append((threading.get_ident(), enter(self.name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._last())

    def _last(self) -> bytes | None:
        """The span that this thread entered last, or any did: a generator's finalizer may run
        elsewhere."""
        if not self._spans:
            raise RuntimeError(f"phase({self.name!r}) was left, but not entered")
        here = threading.get_ident()
        mine = [at for at, (thread, _) in enumerate(self._spans) if thread == here]
        return self._spans.pop(mine[-1] if mine else -1)[1]
