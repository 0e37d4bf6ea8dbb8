"""`find_batch_size`: the largest batch size that runs, on the card at hand or in rehearsals.

    calls      what is asked                     search     the answer, and which size is next
    card       tries a size on the card          rollback   puts back what that changed
    ranks      several ranks agree               switches   what torch is set to do
    failures   which errors are out of memory

docs/batch-size.md is the manual."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..loading import warn
from ..state import is_rehearsal
from .calls import Call, Wanted, passing, whole
from .card import Card
from .ranks import Ranks
from .search import BatchSize, Search, Try

__all__ = ["find_batch_size"]

_CLOSE = 0.96  # of the largest size that could run, where no size below is left out


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
    wanted = Wanted(start, min, max, effective, multiple)
    if steps is not None and (steps := whole("steps", steps, "a number of steps")) < 0:
        raise ValueError(f"steps={steps}: 0 or more")
    for name, one in (("evaluate", evaluate), ("show", show)):
        if one is not None and not callable(one):
            raise TypeError(f"find_batch_size({name}={one!r}): a function")
    evaluation = None if evaluate is None else Call(evaluate)
    find: Callable[[Call], BatchSize]
    if gpu is None:
        of_rehearsals = {"limit": limit, "allocator": allocator, "ranks": ranks}
        for name, value in of_rehearsals.items():
            if value is not None:
                more = (
                    "; torcharena.set_limit() caps this process"
                    if name == "limit"
                    else ""
                )
                raise ValueError(
                    f"{name}={value!r} is of rehearsals, which gpu= asks for{more}"
                )
        find = functools.partial(
            _on_the_card,
            wanted=wanted,
            evaluation=evaluation,
            steps=steps,
            narrow=narrow,
            show=show,
        )
    else:
        from ..rehearsal import batches

        options = batches.options(
            gpu,
            limit=limit,
            allocator=allocator,
            steps=steps,
            timeout=timeout,
            gpus=gpus,
            ranks=ranks,
        )
        find = functools.partial(
            batches.find, wanted=wanted, options=options, evaluate=evaluate, show=show
        )
    if fn is None:
        return functools.partial(_decorated, find=find)
    if not callable(fn):
        raise TypeError(f"find_batch_size({fn!r}): a function of the batch size")
    return find(Call(fn))


def _decorated(fn: Callable[..., Any], *, find: Callable[[Call], BatchSize]) -> Any:
    """The function without its batch size. Its ``batch_size`` is what was found; set to None,
    the next call searches again."""
    Call(fn)  # or a TypeError, now

    @functools.wraps(fn)
    def with_its_size(*args: Any, **kwargs: Any) -> Any:
        call = Call(fn, args, kwargs)
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


# --- on the card --------------------------------------------------------------------------
def _on_the_card(
    call: Call,
    *,
    wanted: Wanted,
    evaluation: Call | None,
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
        if evaluation is not None:
            found.evaluation = _search(
                evaluation, wanted.alone(int(found)), steps, False, say
            )
    finally:
        say("")
    if found.failed_in == "evaluation" and evaluation is None:
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
    call: Call,
    wanted: Wanted,
    steps: int | None,
    narrow: bool,
    say: Callable[[str], None],
) -> BatchSize:
    ranks = Ranks()
    card = Card(call, steps, ranks)
    try:
        search = wanted.search(card.room, _CLOSE)
        tried: list[Try] = []
        why_not = _cannot_narrow(card, search, narrow)
        if not why_not:
            from ..rehearsal import batches

            say("rehearsing ...")
            search.forecast, why_not = batches.forecast(call, wanted, search.start, steps)
            for size, peak in search.forecast.items():
                tried.append(_rehearsed(size, peak, card.room))
        while True:
            chosen = search.next()
            size = search.best if chosen is None else chosen
            sure = chosen is None  # the answer is to run once more, where it ran but once
            if sure and (not size or card.warm(size)):
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
    above = [
        one for one in tried if not one.ran and not one.rehearsed and one.size > best
    ]
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


def _cannot_narrow(card: Card, search: Search, narrow: bool) -> str:
    """Why no rehearsal comes first; empty where one may."""
    if not narrow:
        return "not asked for"
    if is_rehearsal():
        return "this is a rehearsal itself"
    if card.ranks.many:
        return "there are several ranks"
    if card.kept.reaches_cuda:
        return (
            "the function uses tensors that live on the GPU, which stay in this process"
        )
    if len(search.sizes) < 8:
        return "there are few sizes to choose from"
    return ""
