"""Tries batch sizes on the current CUDA device and puts back what that changed: `Card`."""

from __future__ import annotations

import builtins
import contextlib
import gc
import sys
import time
from typing import Any

from ..loading import core
from ..sizes import format_size
from .calls import Call
from .failures import Grades, let_go, why_out_of_memory
from .ranks import Ranks
from .rollback import Rollback
from .search import Try

__all__ = ["Card"]

_SETTLED_SECONDS = 10.0  # a try shorter than this runs to its end
_SETTLED_STEPS = 20
_KEPT = 1 << 20  # bytes; a call that keeps more, such as optimizer state, is made twice
_REMAINS = 1 << 20  # bytes that are worth a word


class _Enough(BaseException):
    """Ends a try from within its optimizer: past handlers of Exception."""


class Card:
    """Tries sizes on the current device, and puts back what that changed. ``room``: bytes
    that the process can have there."""

    def __init__(self, call: Call, steps: int | None, ranks: Ranks) -> None:
        import torch

        from ..state import enabled

        torch.cuda.init()
        self.call, self.ranks = call, ranks
        self.steps = 0 if steps is None and ranks.many else steps
        self.kept = Rollback(call.fn, call.args, call.kwargs)
        self.device = torch.cuda.current_device()
        self.name = str(torch.cuda.get_device_name(self.device))
        self.packs = enabled()  # what is asked for decides, not what is reserved
        self.last_error = ""
        self.calls = 0  # of a try; 0: not yet known
        self._warm: set[int] = set()
        self._dirty = False  # a try was not put back whole
        self._steps = self._moved_at = self._peak = 0
        self._began = 0.0
        self._clean()
        self.before = torch.cuda.memory_allocated(self.device)
        self.room = builtins.min(one["room"] for one in ranks.all({"room": self._room()}))
        # What is there now is not looked through after every try, only at the end.
        self._froze = gc.get_freeze_count() == 0
        if self._froze:
            gc.freeze()

    def warm(self, size: int) -> bool:
        """It ran more than once in a row."""
        return size in self._warm

    def figure(self, one: Try) -> int | None:
        """What must stay below the room, for a line through several."""
        return one.peak if self.packs else one.reserved

    def attempt(self, size: int, accumulation: int, again: bool) -> Try:
        """Calls the function, twice where that tells more. Raises what is not for want of
        memory, as it is."""
        import torch

        spared = sys.exc_info()[1]
        one = Try(size, True, calls=0)
        grades = Grades()
        calls = 2 if again else self.calls or 1
        kept = 0
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        refused = self._stats()["num_ooms"]
        self._steps = self._moved_at = self._peak = 0
        self._began = time.monotonic()
        hook = self._each_step()
        spills = 0
        self._dirty = True
        try:
            with grades, self.ranks.alone(self.kept.replicas):
                while one.calls < calls:
                    spilled, passes = self._spilled(), self._planned_passes()
                    with contextlib.suppress(_Enough):
                        self.call(size, accumulation)
                    torch.cuda.synchronize(self.device)
                    if one.calls == 0:
                        kept = torch.cuda.memory_allocated(self.device) - before
                    one.calls += 1
                    if self.calls == 0 and one.calls == 1 and self._steps < 2:
                        calls = 2
                    spills = self._spilled() - spilled
                    if self._planned_passes() > passes:
                        spills = 0  # some of it is meant to be there
        except BaseException as error:
            one.why = why_out_of_memory(error, full=self._is_full())
            if not one.why:
                with contextlib.suppress(Exception):  # the user's error goes on, not ours
                    self._undo()
                self.ranks.give_up(error)
                raise
            one.ran, one.part = False, grades.part_of(error)
            self.last_error = f"{error}".partition("\n")[0]
            let_go(error, spared)
            vars(error).clear()
        finally:
            hook.remove()
        stats = self._stats()
        one.seconds = time.monotonic() - self._began
        one.peak, one.reserved = (
            stats["requested_bytes.all.peak"],
            stats["reserved_bytes.all.peak"],
        )
        one.refused = builtins.max(0, stats["num_ooms"] - refused)
        if one.ran and spills:
            one.ran, one.part, one.spilled = False, "training", True
            one.why = "the device's memory: part of it went to the host's"
            self.last_error = f"CUDA out of memory: {format_size(spills)} found room in host memory alone"
        self._undo()
        self._agree(one, kept)
        return one

    def _agree(self, one: Try, kept: int) -> None:
        """What all ranks make of it. ``kept``: bytes, by the first call."""
        mine = {
            "ran": one.ran, "peak": one.peak, "reserved": one.reserved, "part": one.part,
            "keeps": kept > _KEPT, "warm": one.calls > 1 or self._steps > 1,
        }  # fmt: skip
        said = self.ranks.all(mine, f"batch size {one.size}")
        failed = [theirs for theirs in said if not theirs["ran"]]
        if failed and one.ran:
            one.ran, one.part = False, failed[0]["part"]
            one.why = "another rank's memory"
            self.last_error = "another rank ran out of memory"
        one.peak = builtins.max(theirs["peak"] for theirs in said)
        one.reserved = builtins.max(theirs["reserved"] for theirs in said)
        if not one.ran:
            self._warm.discard(one.size)
            return
        if all(theirs["warm"] for theirs in said):
            self._warm.add(one.size)
        if one.calls > 1:  # at first cuBLAS keeps something too, later no more
            self.calls = 2 if any(theirs["keeps"] for theirs in said) else 1
        elif self._steps > 1:
            self.calls = 1

    def _each_step(self) -> Any:
        """Counts optimizer steps, and ends the try when there were enough."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(*_: Any) -> None:
            self._steps += 1
            if self.steps:
                if self._steps % self.steps == 0:
                    raise _Enough
            elif self.steps is None and self._settled():
                raise _Enough

        return register_optimizer_step_post_hook(stepped)

    def _settled(self) -> bool:
        peak = self._stats()["requested_bytes.all.peak"]
        if peak > self._peak:
            self._peak, self._moved_at = peak, self._steps
        enough = builtins.max(2 * self._moved_at, self._moved_at + _SETTLED_STEPS)
        long = time.monotonic() - self._began > _SETTLED_SECONDS
        return self._steps >= enough and long

    def _stats(self) -> dict[str, Any]:
        import torch

        return torch.cuda.memory_stats(self.device)

    def _room(self) -> int:
        import torch

        free, total = torch.cuda.mem_get_info(self.device)
        room = int(free + torch.cuda.memory_reserved(self.device))
        with contextlib.suppress(AttributeError, RuntimeError, NotImplementedError):
            share = torch.cuda.get_per_process_memory_fraction(self.device)
            room = builtins.min(room, int(share * total))
        return room

    def _is_full(self) -> bool:
        """The process came near its room, or nothing else is free on the device."""
        import torch

        with contextlib.suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info(self.device)
            if free < total // 32:
                return True
            return bool(8 * self._stats()["reserved_bytes.all.peak"] > 7 * self.room)
        return False

    def _spilled(self) -> int:
        """Bytes so far that went to the host for want of room."""
        return int(core().stats(self.device)["spill_bytes"]) if self.packs else 0

    def _planned_passes(self) -> int:
        """Forward passes so far whose saved tensors may go to the host."""
        module: Any = sys.modules.get("torcharena.spill.offload_saved")
        return 0 if module is None else int(module.figures(self.device)["passes"])

    def _undo(self) -> None:
        import torch

        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):
                torch.cuda.synchronize(device)
        self.kept.restore()
        self._clean()
        self._dirty = False

    def _clean(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

    def end(self) -> None:
        """Gives back what libraries keep from call to call, if they had nothing before."""
        import torch

        if self._froze:
            gc.unfreeze()
        with contextlib.suppress(RuntimeError):  # the error under way is of more interest
            if self._dirty:  # interrupted in the middle
                self._undo()
            self._clean()
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None and self._left() > 0 and not _has_graphs():
                clear()
                self._clean()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _left(self) -> int:
        import torch

        return int(torch.cuda.memory_allocated(self.device) - self.before)

    def said(self) -> list[str]:
        """What was not put back."""
        notes = [f"Not put back: {text}." for text in self.kept.notes]
        if self._left() >= _REMAINS:
            notes.append(
                f"{format_size(self._left())} of the device's memory are still held by what "
                "was run: by an object that the function does not name, or a library."
            )
        return notes


def _has_graphs() -> bool:
    """A captured graph may use the workspaces of cuBLAS."""
    import torch

    segments: Any = torch.cuda.memory_snapshot()
    return any(tuple(one.get("segment_pool_id", (0, 0))) != (0, 0) for one in segments)
