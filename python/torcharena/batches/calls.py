"""What `find_batch_size` is asked: the sizes that may be tried, `Wanted`; the function with
all but its batch size, `Call`; and who is told of it, `passing`."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .search import Search

__all__ = ["Call", "Wanted", "passing", "whole"]

_LARGEST = 1 << 40  # batch sizes above are a slip of the pen


def whole(name: str, value: Any, what: str = "a batch size") -> int:
    """A number as an int, numpy's too. Raises ValueError for what is none."""
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
            if number > _LARGEST:
                raise ValueError(f"{name}={value!r}: more than {_LARGEST:,}")
            return number
    raise ValueError(f"{name}={value!r}: {what} is a whole number")


class Wanted:
    """The sizes that may be tried. Raises ValueError."""

    def __init__(
        self,
        start: int | None,
        least: int | None,
        most: int,
        effective: int | None,
        multiple: int,
    ) -> None:
        start, least, effective = (
            None if value is None else whole(name, value)
            for name, value in (
                ("start", start),
                ("min", least),
                ("effective", effective),
            )
        )
        most, multiple = whole("max", most), whole("multiple", multiple)
        given = {"start": start, "min": least, "max": most, "multiple": multiple}
        said = ", ".join(f"{n}={v}" for n, v in given.items() if v is not None)
        rule = "1 <= min <= start <= max, 1 <= multiple"
        low = multiple if least is None else least
        first = low if start is None else start
        if builtins.min(multiple, low, first) < 1 or not low <= most >= first:
            raise ValueError(f"{said}: {rule}")
        if least is not None and first < least:
            raise ValueError(f"{said}: {rule}")
        self.effective = effective
        self.bounds = low, most
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

    def alone(self, start: int) -> Wanted:
        """The same bounds, all sizes in them, from another start: for an evaluation."""
        least, most = self.bounds
        return Wanted(builtins.max(start, least), least, most, None, 1)

    def search(self, room: int | None, close: float) -> Search:
        """One among these sizes; where there are few, exact."""
        start = builtins.max(self.start, self.sizes[0])
        return Search(self.sizes, start, room, close if self.effective is None else 1.0)


class Call:
    """A function with all its arguments but the batch size. Can be pickled if they can."""

    def __init__(
        self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        fn = getattr(
            fn, "_torcharena_inner", fn
        )  # of one that was decorated, the one inside
        self.fn, self.args, self.kwargs = fn, args, kwargs or {}
        self.sent = fn  # what goes to another process
        self.place, self.takes_accumulation = _parameters(fn)
        if _runs_later(fn):
            raise TypeError(
                f"find_batch_size: {self.name} is a generator or a coroutine: calling it runs "
                "nothing. Give a function that goes through it"
            )

    def arguments(self, size: int, accumulation: int) -> tuple[Any, dict[str, Any]]:
        """For this size. Raises TypeError where too many were given."""
        at = self.place
        more = {"accumulation": accumulation} if self.takes_accumulation else {}
        if at is None:
            return self.args, {"batch_size": size, **more, **self.kwargs}
        return (*self.args[:at], size, *self.args[at:]), {**more, **self.kwargs}

    def __call__(self, size: int, accumulation: int) -> Any:
        args, kwargs = self.arguments(size, accumulation)
        result = self.fn(*args, **kwargs)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                f"find_batch_size: {self.name} returned a coroutine, in which nothing has run. "
                "Give a function that runs it, by asyncio.run"
            )
        return result

    @property
    def name(self) -> str:
        """For people."""
        return str(getattr(self.fn, "__qualname__", self.fn))


def _parameters(fn: Callable[..., Any]) -> tuple[int | None, bool]:
    """The place of the batch size, None where it is given by its name alone; and whether
    ``fn`` asks for ``accumulation``."""
    try:
        found = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return 0, False
    names = list(found)
    if "batch_size" not in names:
        return 0, "accumulation" in names[1:]
    by_name = found["batch_size"].kind is inspect.Parameter.KEYWORD_ONLY
    return None if by_name else names.index("batch_size"), "accumulation" in names


def _runs_later(fn: Callable[..., Any]) -> bool:
    """Calling it gives a generator or a coroutine, and runs nothing."""
    kinds = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    call = getattr(type(fn), "__call__", None)  # noqa: B004
    return any(kind(one) for kind in kinds for one in (fn, call))


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
