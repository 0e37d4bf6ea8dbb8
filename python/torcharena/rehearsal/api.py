"""Rehearsals from Python: `rehearse`, `find_batch_size`, `is_rehearsal`.

A function runs in a child process, which needs its code: by cloudpickle where that is
installed, else by name where it lives in a module, else (``__main__``, a notebook) by its
source together with what it refers to."""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
import pickle
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import sizes
from ..sizes import format_size
from . import cards
from .launch import ALLOCATORS
from .rehearsing import Options, rehearse_command
from .report import Report

__all__ = ["BatchSizes", "find_batch_size", "is_rehearsal", "rehearse"]


def is_rehearsal() -> bool:
    """True in a program that runs on simulated GPUs. ``TORCHARENA_REHEARSAL=1`` says the
    same without this package."""
    return os.environ.get("TORCHARENA_REHEARSAL") == "1"


def rehearse(
    fn: Callable[..., Any],
    *args: Any,
    gpu: str = "h100",
    gpus: int = 1,
    limit: int | str | None = None,
    allocator: str = "all",
    steps: int | None = None,
    timeout: float | None = 600.0,
    seed: int = 0,
    values: bool = True,
    **kwargs: Any,
) -> Report:
    """Runs ``fn(*args, **kwargs)`` in a process on simulated GPUs; returns its `Report`.

    gpu: a card of the catalogue, a size such as ``"16GiB"``, or both.
    gpus: how many. limit: a cap on each device, bytes as in `sizes`.
    allocator: ``arena``, ``native``, ``expandable`` or ``all``: one run each.
    steps: end after so many optimizer steps; 0: run to the end; None: a run of more than
        half a minute ends when its peak no longer moves.
    timeout: seconds for each run, None for no end. seed: of values that are random.

    The function's result is lost. Its exceptions are no exceptions here: the report's
    ``verdict`` is then ``the script failed`` and it has the text. Raises ValueError for
    arguments that make no sense, TypeError for a function that cannot be taken to another
    process, FileNotFoundError where the simulated GPU was not built."""
    if allocator != "all" and allocator not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: {', '.join(ALLOCATORS)} or all")
    size = sizes.parse(limit, name="limit")
    options = Options(
        gpu=gpu,
        gpus=gpus,
        limit=None if size is None else size.resolve(cards.find(gpu).memory),
        allocators=ALLOCATORS if allocator == "all" else (allocator,),
        steps=steps,
        timeout=timeout,
        seed=seed,
        values=values,
        quiet=True,
    )
    return _rehearse(fn, args, kwargs, options)


def _rehearse(
    fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], options: Options
) -> Report:
    shown = [f"{getattr(fn, '__qualname__', fn)}({_call(args, kwargs)})"]
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        payload = os.path.join(folder, "call")
        with open(payload, "wb") as file:
            file.write(_packed(fn, args, kwargs))
        command = [sys.executable, "-m", "torcharena.rehearsal.calling", payload]
        return rehearse_command(command, options, shown=shown)


def _call(args: Any, kwargs: dict[str, Any]) -> str:
    said = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return ", ".join(text if len(text) <= 24 else f"{text[:21]}..." for text in said)


# --- taking a function to another process ---------------------------------------------------
def _packed(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bytes:
    """What ``calling`` reads: sys.path, then how to get at the function."""
    path = [os.path.abspath(p or ".") for p in sys.path]
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pass
    else:
        call = cloudpickle.dumps((fn, args, kwargs))
        return pickle.dumps({"path": path, "how": "pickle", "call": call})
    try:
        values = pickle.dumps((args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(
            f"rehearse: the arguments cannot be taken to another process ({error}); with "
            "cloudpickle installed more can (pip install cloudpickle)"
        ) from None
    if getattr(fn, "__module__", "__main__") != "__main__":
        try:
            call = pickle.dumps((fn, args, kwargs))
        except (pickle.PicklingError, TypeError, AttributeError):
            raise _stuck(fn, "it is not a function of a module's top level") from None
        return pickle.dumps({"path": path, "how": "pickle", "call": call})
    source = _sources(fn)
    return pickle.dumps({"path": path, "how": "source", "call": values, **source})


def _stuck(fn: Any, why: str) -> TypeError:
    name = getattr(fn, "__qualname__", repr(fn))
    return TypeError(
        f"rehearse: {name} cannot be taken to another process without cloudpickle: {why}. "
        "pip install cloudpickle, or put the function in a module of its own"
    )


def _sources(fn: Any) -> dict[str, Any]:
    """The text of a function of ``__main__``, and of all it refers to there: modules by
    name, functions and classes by their text, other values pickled. Raises TypeError."""
    texts: dict[str, tuple[str, str, int]] = {}
    modules: dict[str, str] = {}
    plain: dict[str, bytes] = {}
    waiting = [fn]
    seen = {id(fn)}
    while waiting:
        this = waiting.pop()
        if not isinstance(this, (types.FunctionType, type)):
            raise _stuck(fn, f"{this!r} is neither a function nor a class")
        if isinstance(this, types.FunctionType) and (
            this.__closure__ or this.__name__ == "<lambda>"
        ):
            raise _stuck(fn, "it is a lambda, or uses variables of a function around it")
        try:
            lines, first = inspect.getsourcelines(this)
            file = inspect.getsourcefile(this) or f"<{this.__name__}>"
            texts[this.__name__] = (textwrap.dedent("".join(lines)), file, first)
        except (OSError, TypeError):
            raise _stuck(fn, f"the source of {this.__name__} is not to be had") from None
        space = vars(sys.modules["__main__"])
        for name in _names(this):
            if name not in space or hasattr(builtins, name) or id(space[name]) in seen:
                continue
            value = space[name]
            seen.add(id(value))
            if isinstance(value, types.ModuleType):
                modules[name] = value.__name__
            elif getattr(value, "__module__", None) == "__main__" and isinstance(
                value, (types.FunctionType, type)
            ):
                waiting.append(value)
            else:
                try:
                    plain[name] = pickle.dumps(value)
                except (pickle.PicklingError, TypeError, AttributeError):
                    raise _stuck(fn, f"it uses {name}, which cannot be pickled") from None
    return {
        "texts": texts,
        "modules": modules,
        "plain": plain,
        "name": fn.__name__,
    }


def _names(this: Any) -> set[str]:
    """Every global name that a function or class may look up, annotations and bases too."""
    tree = compile(textwrap.dedent(inspect.getsource(this)), "<source>", "exec")
    names: set[str] = set()
    codes = [tree]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return names


# --- batch sizes --------------------------------------------------------------------------
@dataclass
class BatchSizes:
    """What `find_batch_size` found. ``sizes`` were tried, in ascending order, each with its
    ``reports``; ``best`` is the largest that fits, 0 where not even the first does."""

    best: int
    gpu: str
    reports: dict[int, Report] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self.reports)

    def peaks(self) -> dict[int, int]:
        """Bytes requested at the highest, by batch size; only of those that ran through."""
        return {
            size: self.reports[size].peak_requested
            for size in self.sizes
            if self.reports[size].outcomes[0].run.exit_code == 0
        }

    def __str__(self) -> str:
        lines = [f"largest batch size on {self.gpu}: {self.best or 'none'}"]
        for size in self.sizes:
            report = self.reports[size]
            run = report.outcomes[0].run
            peak = (
                f"{format_size(run.peak_requested):>11} asked for, "
                f"{format_size(run.peak_reserved):>11} reserved"
                if run.exit_code == 0
                else ""
            )
            lines.append(f"{size:>8}  {report.verdict:<18} {peak}".rstrip())
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """The peaks over the batch size, and the card's room, on matplotlib's axes (new
        ones where none are given), which are returned. Raises ImportError without it."""
        if ax is None:
            plt: Any = importlib.import_module("matplotlib.pyplot")

            _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        gib = float(1 << 30)
        peaks = self.peaks()
        first = next(iter(self.reports.values()))
        ax.plot(list(peaks), [p / gib for p in peaks.values()], "o-", label="asked for")
        reserved = [self.reports[s].peak_reserved / gib for s in peaks]
        allocator = first.outcomes[0].run.allocator
        ax.plot(list(peaks), reserved, "s--", label=f"reserved ({allocator})")
        room = (
            first.card.room if first.limit is None else min(first.limit, first.card.room)
        )
        ax.axhline(room / gib, color="0.4", linewidth=1)
        ax.annotate(
            f"room on {self.gpu}",
            (0, room / gib),
            xycoords=("axes fraction", "data"),
            xytext=(4, -12),
            textcoords="offset points",
            color="0.3",
        )
        if self.best:
            ax.axvline(self.best, color="0.7", linewidth=1, linestyle=":")
        ax.set_xlabel("batch size")
        ax.set_ylabel("peak, GiB")
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False, loc="lower right")
        return ax


def find_batch_size(
    fn: Callable[[int], Any],
    start: int = 1,
    max: int = 1024,
    gpu: str = "h100",
    *,
    limit: int | str | None = None,
    allocator: str = "arena",
    steps: int | None = None,
    timeout: float | None = 600.0,
    multiple: int = 1,
    show: Callable[[str], None] | None = None,
) -> BatchSizes:
    """The largest batch size from ``start`` to ``max`` for which ``fn(batch_size)`` fits.

    Doubles until one does not fit, then halves the interval; each size is a rehearsal.
    multiple: only sizes that are ``start`` plus multiples of it. allocator: whose verdict.
    show: told a line after each. The others as in `rehearse`. What is too close to tell
    counts as not fitting. Raises ValueError for bounds that make no sense, RuntimeError with
    the text where ``fn`` itself fails or takes too long."""
    if start < 1 or max < start or multiple < 1:
        raise ValueError(
            f"start={start}, max={max}, multiple={multiple}: 1 <= start <= max, 1 <= multiple"
        )
    if allocator not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: one of {', '.join(ALLOCATORS)}")
    card = cards.find(gpu)
    parsed = sizes.parse(limit, name="limit")
    options = Options(
        gpu=gpu,
        limit=None if parsed is None else parsed.resolve(card.memory),
        allocators=(allocator,),
        steps=steps,
        timeout=timeout,
        again=False,
        quiet=True,
    )
    found = BatchSizes(0, gpu)

    def fits(size: int) -> bool:
        report = _rehearse(fn, (size,), {}, options)
        outcome = report.outcomes[0]
        if outcome.run.failed or outcome.run.timed_out:
            raise RuntimeError(f"find_batch_size: {report}")
        found.reports[size] = report
        if report.fits:
            found.best = builtins.max(found.best, size)
        if show is not None:
            show(f"batch size {size}: {report.verdict}")
        return bool(report.fits)

    low, high = _bracket(fits, start, max, multiple)
    while high is not None and high - low > multiple:
        middle = low + (high - low) // 2 // multiple * multiple
        if fits(middle):
            low = middle
        else:
            high = middle
    return found


def _bracket(
    fits: Callable[[int], bool], start: int, most: int, multiple: int
) -> tuple[int, int | None]:
    """The largest doubling that fits and the next, which does not; None: all do, or none."""
    last = start + (most - start) // multiple * multiple
    low, size = start, start
    while fits(size):
        low = size
        if size == last:
            return low, None
        doubled = start + (2 * size - start) // multiple * multiple
        size = min(last, builtins.max(size + multiple, doubled))
    return low, (None if size == start else size)
