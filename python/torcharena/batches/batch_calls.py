"""What `find_batch_size` is asked: the sizes that may be tried, `Wanted`; the function with
all but its batch size, `Call`; and who is told of it, `passing`."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .batch_sizes import Search

__all__ = ["Call", "Wanted", "passing"]


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
        given = {"start": start, "min": least, "max": most, "multiple": multiple}
        for name, value in {**given, "effective": effective}.items():
            if value is not None and (not isinstance(value, int) or value is True):
                raise ValueError(f"{name}={value!r}: a batch size is a whole number")
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
