"""Which lines of the program allocate: `stacks`, and `track(..., stacks=True)`.

A mode of torch's sees every call of its functions from Python and notes the lines that led to
it, before it goes on; the node of autograd's graph that comes of it says so again when it
runs. An allocation itself never calls Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

from ..loading import core
from ..state import takes_part
from . import modules, phases

__all__ = ["frames_of", "place_of", "recorded", "stacks"]

MOST = 16_384  # different stacks; those beyond are not told apart from none
DEPTH = 32  # innermost lines of each
_OURS = __file__.rpartition("/")[0] + "/"

_places: dict[tuple[int, int], int] = {}  # (code, instruction): its number
_lines: list[tuple[CodeType, int]] = []  # by that: the code, which lives on, and the line
_stacks: dict[tuple[int, ...], int] = {}  # innermost first: the stack's number, from 1
_keys: list[tuple[int, ...]] = [()]
_frames: dict[int, list[dict[str, Any]]] = {0: []}
_names: dict[int, str] = {0: ""}
# Code that stands between the program's lines, by its id; it lives on.
_skipped: dict[int, CodeType] = {}
_full = False
# Is told each new stack's number and what `place_of` calls it, where findings are to name it.
named: Callable[[int, str], None] | None = None


def recorded() -> int:
    """How many different stacks were seen."""
    return len(_keys) - 1


def _number_of(frame: FrameType | None) -> int:
    """The stack's number; 0 where there are too many."""
    global _full
    key: list[int] = []
    while frame is not None and len(key) < DEPTH:
        code = frame.f_code
        at = id(code)
        if at not in _skipped:
            place = (at, frame.f_lasti)
            number = _places.get(place)
            if number is None and code.co_name == "__torch_function__":
                _skip(code)  # of another mode's, as torch.device is
                frame = frame.f_back
                continue
            if number is None:
                if len(_lines) >= 4 * MOST:
                    break
                number = _places[place] = len(_lines)
                _lines.append((code, frame.f_lineno))
            key.append(number)
        frame = frame.f_back
    stack = tuple(key)
    known = _stacks.get(stack)
    if known is None:
        if len(_keys) > MOST:
            _full = True
            return 0
        known = _stacks[stack] = len(_keys)
        _keys.append(stack)
        if named is not None:
            named(known, place_of(known))
    return known


def _skip(code: CodeType) -> None:
    _skipped[id(code)] = code


def frames_of(number: int) -> list[dict[str, Any]]:
    """The lines of a stack, innermost first, as torch's snapshots have them; the same list
    for the same number. Empty for 0."""
    found = _frames.get(number)
    if found is None:
        key = _keys[number] if number < len(_keys) else ()
        found = _frames[number] = [_frame(place) for place in key]
    return found


def _frame(place: int) -> dict[str, Any]:
    code, line = _lines[place]
    return {"filename": code.co_filename, "line": line, "name": code.co_name}


def place_of(number: int) -> str:
    """The program's own line in a stack, ``train.py:12 step``, else the innermost; "" for
    none."""
    found = _names.get(number)
    if found is None:
        from ..rehearsal import places

        frames = frames_of(number)
        own = [one for one in frames if places.is_users(one["filename"])]
        found = ""
        for one in [*own, *frames][:1]:
            found = f"{places.short(one['filename'])}:{one['line']} {one['name']}"
        _names[number] = found
    return found


# --- the mode -------------------------------------------------------------------------------
def _mode() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    module = torch.nn.Module
    for function in (module._call_impl, module._wrapped_call_impl, module.__call__):
        code = getattr(function, "__code__", None)
        if code is not None:
            _skip(code)
    compiling = torch.compiler.is_compiling
    graded = torch.is_grad_enabled
    at, now = core().place_at, core().place_now

    class Lines(TorchFunctionMode):
        """Notes the lines of every call of torch's functions."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if compiling() or getattr(func, "__name__", "") == "__get__":
                return func(*args, **named)
            number = _number_of(sys._getframe(1))
            at(number)
            try:
                result = func(*args, **named)
            finally:
                at(0)
            if number and graded():
                modules.mark(result, now()[0], number)
            return result

    return Lines()


class stacks:
    """Notes which lines of the program allocate, until it is left: a context manager.

    Then `report` names the place of the largest holders and of what grows, and
    ``snapshot(path, stacks=True)`` has the lines of each allocation. Of this thread, of those
    that autograd runs for it, and of no other. Costs some microseconds for every call of a
    torch function from Python, in forward and again in backward; allocations cost the same.

    Raises RuntimeError where the arena is not enabled."""

    def __init__(self) -> None:
        self._mode: Any = None

    def start(self) -> stacks:
        if not takes_part("stacks"):
            return self
        phases.start()
        self._mode = _mode()
        self._mode.__enter__()
        core().place_begin()
        return self

    def stop(self) -> None:
        """Does nothing the second time."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        _take_out(mode)
        core().place_end()

    def __enter__(self) -> stacks:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _take_out(mode: Any) -> None:
    """Of this thread's modes, in whichever order they were entered and are left."""
    from torch import overrides

    above = []
    while overrides._len_torch_function_stack():
        top = overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)
