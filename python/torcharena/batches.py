"""`find_batch_size`: the largest batch size that runs, on the card at hand or in rehearsals.

On the card a size is tried by calling the function, and what that changed is put back
(``rollback``); ``failures`` tells what ran out of memory from other errors; ``batch_sizes``
chooses the sizes. docs/batch-size.md is the manual."""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .batch_ranks import Ranks
from .batch_sizes import BatchSize, Search, Try
from .failures import Grades, let_go, why_out_of_memory
from .loading import warn
from .rollback import Rollback
from .sizes import format_size

__all__ = ["find_batch_size"]

_CLOSE = 0.96  # of the largest size that could run, where no size below is left out
_SETTLED_SECONDS = 10.0  # a try shorter than this runs to its end
_SETTLED_STEPS = 20
_KEPT = 1 << 20  # bytes; a call that keeps more, such as optimizer state, is made twice
_REMAINS = 1 << 20  # bytes that are worth a word


def find_batch_size(
    fn: Callable[..., Any] | None = None,
    start: int | None = None,
    min: int | None = None,
    max: int = 1024,
    gpu: str | None = None,
    effective: int | None = None,
    *,
    evaluate: Callable[..., Any] | None = None,
    multiple: int = 1,
    steps: int | None = None,
    narrow: bool = True,
    limit: int | str | None = None,
    allocator: str | None = None,
    timeout: float | None = 600.0,
    gpus: int = 1,
    ranks: str | None = None,
    show: Callable[[str], None] | None = None,
) -> Any:
    """The largest batch size from ``min`` to ``max`` for which ``fn(batch_size)`` runs, a
    `BatchSize`: an int that knows more.

    Without ``gpu`` it is tried on the current CUDA device, up to the cap that holds: within
    5 % of the true limit, and the size returned has run, warm. Model, optimizer, gradients,
    random state and memory are as before then. With ``gpu``, a card of the catalogue or a
    size such as ``"24GiB"``, every try is a rehearsal and no GPU is needed; the answer is 0
    where nothing fits, and what is too close to tell counts as not fitting.

    start: the first size tried; the search goes up or down from it. min: by default
        ``multiple``. multiple: only multiples of it.
    effective: only sizes that divide it; ``.accumulation`` of the answer is how often. A
        ``fn`` with a parameter of the name ``accumulation`` is given it.
    evaluate: another function of a batch size, for which ``.evaluation`` is found by itself.
    steps: a try ends after so many optimizer steps; 0: it runs to its end; None: one of more
        than ten seconds (in a rehearsal, half a minute) ends when its peak no longer moves.
    narrow: on a card, first rehearse two sizes where ``fn`` can go to another process.
    limit, allocator (``arena``), timeout, gpus, ranks: of rehearsals, as in `rehearse`.
    show: told a line after each try; by default those lines come and go on a terminal or
        below a notebook's cell.

    Without ``fn`` it is a decorator: the first call finds the size for its arguments, puts
    all back, and calls the function with it, as every later call does; the function is called
    without its parameter ``batch_size`` (or, if none has that name, its first).

    Raises ValueError for arguments that make no sense; RuntimeError where there is no GPU and
    none was named, or in a rehearsal ``fn`` fails; torch.OutOfMemoryError where not even the
    smallest size runs on the card; and what ``fn`` raises that is not out of memory."""
    wanted = _Wanted(start, min, max, effective, multiple)
    settings: dict[str, Any] = {
        "evaluate": evaluate,
        "steps": steps,
        "narrow": narrow,
        "show": show,
    }
    of_rehearsals = {"limit": limit, "allocator": allocator, "ranks": ranks}
    if gpu is None:
        for name, value in of_rehearsals.items():
            if value is not None:
                more = "; torcharena.set_limit() caps this process" if name == "limit" else ""
                raise ValueError(
                    f"{name}={value!r} is of rehearsals, which gpu= asks for{more}"
                )
        find = functools.partial(_on_the_card, wanted=wanted, **settings)
    else:
        from .rehearsal import batches

        options = batches.options(
            gpu, steps=steps, timeout=timeout, gpus=gpus, **of_rehearsals
        )
        find = functools.partial(
            batches.find, wanted=wanted, options=options, evaluate=evaluate, show=show
        )
    if fn is None:
        return functools.partial(_decorated, find=find)
    if not callable(fn):
        raise TypeError(f"find_batch_size({fn!r}): a function of the batch size")
    return find(_Call(fn))


class _Wanted:
    """The sizes that may be tried. Raises ValueError."""

    def __init__(
        self,
        start: int | None,
        least: int | None,
        most: int,
        effective: int | None,
        multiple: int,
    ) -> None:
        said = ", ".join(
            f"{name}={value}"
            for name, value in (
                ("start", start), ("min", least), ("max", most), ("multiple", multiple)
            )
            if value is not None
        )  # fmt: skip
        rule = "1 <= min <= start <= max, 1 <= multiple"
        low = multiple if least is None else least
        first = low if start is None else start
        if builtins.min(multiple, low, first) < 1 or not low <= most >= first:
            raise ValueError(f"{said}: {rule}")
        if least is not None and first < least:
            raise ValueError(f"{said}: {rule}")
        self.effective = effective
        lowest = -(-low // multiple) * multiple
        self.sizes: Sequence[int] = range(lowest, most + 1, multiple)
        if effective is not None:
            if effective < 1:
                raise ValueError(f"effective={effective}: a batch size")
            self.sizes = [n for n in self.sizes if effective % n == 0]
        if not self.sizes:
            what = "no multiple" if effective is None else f"no divisor of {effective}"
            raise ValueError(f"{said}: {what} lies in between")
        self.start = builtins.max(low, low if start is None else start)

    def accumulation(self, size: int) -> int:
        """Steps to accumulate."""
        return 1 if self.effective is None else self.effective // size

    def search(self, room: int | None, close: float) -> Search:
        """One among these sizes; where there are few, exact."""
        start = builtins.max(self.start, self.sizes[0])
        return Search(self.sizes, start, room, close if self.effective is None else 1.0)


class _Call:
    """A function with all its arguments but the batch size. Can be pickled if they can."""

    def __init__(
        self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs or {}
        self.sent = fn  # what goes to another process
        self.place, self.takes_accumulation = _parameters(fn)

    def arguments(self, size: int, accumulation: int) -> tuple[Any, dict[str, Any]]:
        """For this size. Raises TypeError where too many were given."""
        at = self.place
        args = (*self.args[:at], size, *self.args[at:])
        more = {"accumulation": accumulation} if self.takes_accumulation else {}
        return args, {**more, **self.kwargs}

    def __call__(self, size: int, accumulation: int) -> Any:
        args, kwargs = self.arguments(size, accumulation)
        return self.fn(*args, **kwargs)

    @property
    def name(self) -> str:
        """For people."""
        return str(getattr(self.fn, "__qualname__", self.fn))


def _parameters(fn: Callable[..., Any]) -> tuple[int, bool]:
    """The place of the batch size, and whether ``fn`` asks for ``accumulation``."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return 0, False
    place = names.index("batch_size") if "batch_size" in names else 0
    return place, "accumulation" in names and names.index("accumulation") != place


def _decorated(fn: Callable[..., Any], *, find: Callable[[_Call], BatchSize]) -> Any:
    """The function without its batch size. Its ``batch_size`` is what was found; set to None,
    the next call searches again."""

    @functools.wraps(fn)
    def with_its_size(*args: Any, **kwargs: Any) -> Any:
        call = _Call(fn, args, kwargs)
        if "batch_size" in kwargs:
            raise TypeError(
                f"{call.name}() finds its batch_size by itself: call it without one"
            )
        with contextlib.suppress(ValueError):  # a function without a signature
            given, named = call.arguments(1, 1)
            inspect.signature(fn).bind(*given, **named)  # a TypeError before any search
        found = with_its_size.batch_size  # type: ignore[attr-defined]
        if found is None:
            found = find(call)
            if not found:
                raise RuntimeError(f"{call.name}: no batch size fits\n{found.table()}")
            with_its_size.batch_size = found  # type: ignore[attr-defined]
        return call(int(found), found.accumulation)

    with_its_size.batch_size = None  # type: ignore[attr-defined]
    with_its_size._torcharena_inner = fn  # type: ignore[attr-defined]
    return with_its_size


def passing(show: Callable[[str], None] | None) -> Callable[[str], None]:
    """Tells ``show`` of each try; by default shows a line in the place of the one before, and
    "" takes it away."""

    def say(text: str) -> None:
        if sys.stderr.isatty() or "ipykernel" in sys.modules:
            print(f"\r{text:<70}\r{text}", end="", file=sys.stderr, flush=True)

    def told(text: str) -> None:
        if text and not text.endswith("..."):
            assert show is not None
            show(text)

    return say if show is None else told


# --- on the card --------------------------------------------------------------------------
def _on_the_card(
    call: _Call,
    wanted: _Wanted,
    evaluate: Callable[..., Any] | None,
    steps: int | None,
    narrow: bool,
    show: Callable[[str], None] | None,
) -> BatchSize:
    """Raises RuntimeError without a GPU."""
    if not _has_gpu():
        raise RuntimeError(
            'find_batch_size: there is no GPU here. Say which one to rehearse on: gpu="24GiB", '
            'or a card such as gpu="a100-40g" (torcharena rehearse --list-gpus)'
        )
    say = passing(show)
    try:
        found = _search(call, wanted, steps, narrow, say)
        if evaluate is not None:
            other = _Wanted(
                builtins.max(wanted.sizes[0], int(found)), wanted.sizes[0],
                builtins.max(wanted.sizes), None, 1,
            )  # fmt: skip
            found.evaluation = _search(_Call(evaluate), other, steps, False, say)
    finally:
        say("")
    if found.failed_in == "evaluation" and evaluate is None:
        warn(
            f"find_batch_size: {int(found)} for {call.name}; above it is its evaluation that "
            "runs out of memory, not its training. evaluate=function finds a batch size for "
            "that alone",
            once=False,
            stacklevel=0,
        )
    return found


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _search(
    call: _Call,
    wanted: _Wanted,
    steps: int | None,
    narrow: bool,
    say: Callable[[str], None],
) -> BatchSize:
    ranks = Ranks()
    card = _Card(call, steps, ranks)
    try:
        search = wanted.search(card.room, _CLOSE)
        tried: list[Try] = []
        why_not = _cannot_narrow(card, search, narrow)
        if not why_not:
            from .rehearsal import batches

            say("rehearsing ...")
            search.forecast, why_not = batches.forecast(call, wanted, search.start, steps)
            for size, peak in search.forecast.items():
                tried.append(_rehearsed(size, peak, card.room))
        while True:
            size = search.next()
            sure = size is None
            if size is None:  # the answer is to run once more, where it has run but once
                size = search.best
                if not size or card.warm(size):
                    break
            say(f"batch size {size} ...")
            one = card.attempt(size, wanted.accumulation(size), again=sure)
            tried.append(one)
            search.tell(size, one.ran, card.figure(one))
            say(f"batch size {size}: {one}")
    finally:
        card.end()
    best = search.best
    found = BatchSize(best, wanted.accumulation(best) if best else 1)
    found.tried, found.on, found.room = tried, card.name, card.room
    found.not_narrowed = why_not
    found.notes = card.said()
    refused = sum(one.refused for one in tried if one.size == best and one.ran)
    if refused:
        found.notes.append(
            f"At {best} memory was refused {refused} times, and {call.name} went on: by "
            "other means, or without that batch."
        )
    above = [one for one in tried if not one.ran and not one.rehearsed and one.size > best]
    if above:
        found.failed_in = builtins.min(above, key=lambda one: one.size).part
    if not best:
        import torch

        size = search.sizes[0]
        part = f" ({found.failed_in})" if found.failed_in else ""
        raise torch.OutOfMemoryError(
            f"find_batch_size: {call.name} does not run even with a batch size of "
            f"{size}{part}: {card.last_error}"
        )
    return found


def _rehearsed(size: int, peak: int, room: int) -> Try:
    fits = peak <= room
    return Try(size, fits, peak, why="" if fits else "does not fit", rehearsed=True)


def _cannot_narrow(card: _Card, search: Search, narrow: bool) -> str:
    """Why no rehearsal comes first; empty where one may."""
    from .rehearsal.api import is_rehearsal

    if not narrow:
        return "not asked for"
    if is_rehearsal():
        return "this is a rehearsal itself"
    if card.ranks.many:
        return "there are several ranks"
    if card.kept.reaches_cuda:
        return "the function uses tensors that live on the GPU, which stay in this process"
    if len(search.sizes) < 8:
        return "there are few sizes to choose from"
    return ""


class _Enough(BaseException):
    """Ends a try from within its optimizer: past handlers of Exception."""


class _Card:
    """Tries sizes on the current device, and puts back what that changed. ``room``: bytes
    that the process can have there."""

    def __init__(self, call: _Call, steps: int | None, ranks: Ranks) -> None:
        import torch

        from .state import enabled

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
        try:
            with grades, self.ranks.alone(self.kept.replicas):
                while one.calls < calls:
                    with contextlib.suppress(_Enough):
                        self.call(size, accumulation)
                    torch.cuda.synchronize(self.device)
                    if one.calls == 0:
                        kept = torch.cuda.memory_allocated(self.device) - before
                    one.calls += 1
                    if self.calls == 0 and one.calls == 1 and self._steps < 2:
                        calls = 2
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
        one.peak, one.reserved = stats["requested_bytes.all.peak"], stats["reserved_bytes.all.peak"]
        one.refused = builtins.max(0, stats["num_ooms"] - refused)
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

    def _undo(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)
        self.kept.restore()
        self._clean()

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
