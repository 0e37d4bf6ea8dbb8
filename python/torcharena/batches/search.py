"""What `find_batch_size` found, `BatchSize`, and how it chooses the sizes to try, `Search`.

Neither knows how a size is tried: ``batches`` does that on the card, or in rehearsals."""

from __future__ import annotations

import builtins
import importlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..sizes import format_size

if TYPE_CHECKING:
    from ..rehearsal.report import Report

__all__ = ["BatchSize", "Search", "Try"]

_GIB = float(1 << 30)


@dataclass
class Try:
    """One size, tried. Bytes; of a try that ran out, what there was until then."""

    size: int
    ran: bool
    peak: int | None = None  # asked for, at the highest
    reserved: int | None = None
    why: str = ""  # it did not run: what ran out; in a rehearsal, the verdict
    part: str = ""  # it did not run: "training" or "evaluation", where that is known
    calls: int = 1  # of the function, one after the other
    refused: int = 0  # requests, though it went on
    spilled: bool = False  # it ran, with host memory in place of the device's
    rehearsed: bool = False
    unsure: int = 0  # bytes of doubt, of a rehearsal
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.ran:
            said = "fits" if self.rehearsed else "runs"
        elif self.rehearsed:
            said = self.why
        elif self.spilled:
            said = "only with host memory"
        else:
            said = f"runs out, {self.part}" if self.part == "evaluation" else "runs out"
        if self.peak is None:
            return said
        peak = (
            f"{format_size(self.peak):>11} asked for, "
            f"{format_size(self.reserved or 0):>11} reserved"
        )
        note = f", {self.refused} refused on the way" if self.refused and self.ran else ""
        return f"{said:<22} {peak}{note}" if self.ran else said


class BatchSize(int):
    """The largest batch size that runs: an int, with what is known of it. `table` is all of
    it as text, `plot` the peaks as a curve.

    accumulation: steps to accumulate for the ``effective`` size asked for, else 1.
    tried: every `Try`, in order. on: the card. room: bytes that tensors can have there.
    failed_in: which part runs out of memory at the next size, ``training`` or
        ``evaluation`` (gradients were off, or the model in evaluation mode); else empty.
    evaluation: the `BatchSize` of the function given as ``evaluate``.
    rehearsed: no size was tried on a card. not_narrowed: why no rehearsal came before.
    notes: what could not be put back, or else should be known.
    reports: of rehearsals, by size."""

    accumulation: int
    tried: list[Try]
    on: str
    room: int | None
    failed_in: str
    evaluation: BatchSize | None
    rehearsed: bool
    not_narrowed: str
    notes: list[str]
    reports: dict[int, Report]

    def __new__(cls, value: int = 0, accumulation: int = 1) -> BatchSize:
        self = super().__new__(cls, value)
        self.accumulation = accumulation
        self.tried, self.notes, self.reports = [], [], {}
        self.on = self.failed_in = self.not_narrowed = ""
        self.room = self.evaluation = None
        self.rehearsed = False
        return self

    def __reduce__(self) -> Any:
        kept = {k: v for k, v in vars(self).items() if k != "reports"}
        return _again, (int(self), self.accumulation, kept)

    @property
    def best(self) -> int:
        """The number alone."""
        return int(self)

    @property
    def sizes(self) -> list[int]:
        """What was tried, ascending."""
        return sorted({one.size for one in self.tried})

    def peaks(self) -> dict[int, int]:
        """Bytes asked for at the highest, by batch size; only of those that ran through."""
        return {
            one.size: one.peak
            for one in self._latest()
            if one.peak is not None and (one.ran or one.rehearsed)
        }

    def _latest(self) -> list[Try]:
        """Of each size the last try, and a real one before a rehearsed one; ascending."""
        latest: dict[int, Try] = {}
        for one in self.tried:
            known = latest.get(one.size)
            if known is None or known.rehearsed or not one.rehearsed:
                latest[one.size] = one
        return [latest[size] for size in sorted(latest)]

    def __repr__(self) -> str:
        more = f", accumulation={self.accumulation}" if self.accumulation > 1 else ""
        return f"BatchSize({int(self)}{more})"

    def __str__(self) -> str:
        return int.__repr__(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else self.table())

    def table(self) -> str:
        """The answer, and below it the sizes that were tried with their peaks."""
        room = "" if self.rehearsed or not self.room else f" in {format_size(self.room)}"
        lines = [
            f"largest batch size{room} on {self.on or 'a card'}: {self.best or 'none'}"
        ]
        if self.accumulation > 1:
            total = self.best * self.accumulation
            lines[0] += f", {total} by {self.accumulation} accumulated steps"
        by_rehearsal = {one.rehearsed for one in self.tried} == {True, False}
        for one in self._latest():
            where = ", rehearsed" if by_rehearsal and one.rehearsed else ""
            lines.append(f"{one.size:>8}  {one}{where}".rstrip())
        if self.failed_in == "evaluation" and self.evaluation is None:
            above = builtins.min(
                s.size for s in self.tried if s.size > self and not s.ran
            )
            lines.append(f"{_EVALUATION.format(size=above)}")
        if self.evaluation is not None:
            lines.append(f"for evaluation, {self.evaluation.table()}")
        lines += self.notes
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """The peaks over the batch size, the card's room and the doubt about it, on
        matplotlib's axes (new ones where none are given), which are returned. A cross is a
        size that ran out of memory. Raises ImportError without matplotlib."""
        if ax is None:
            plt: Any = importlib.import_module("matplotlib.pyplot")

            _, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        peaks = self.peaks()
        rows = {one.size: one for one in self._latest()}
        ax.plot(list(peaks), [p / _GIB for p in peaks.values()], "o-", label="asked for")
        reserved = [(rows[size].reserved or 0) / _GIB for size in peaks]
        first = next(iter(self.reports.values()), None)
        allocator = f" ({first.outcomes[0].run.allocator})" if first is not None else ""
        ax.plot(list(peaks), reserved, "s--", label=f"reserved{allocator}")
        room = self.room or 0
        doubt = builtins.max((rows[size].unsure for size in peaks), default=0)
        most = builtins.max(peaks, default=self.sizes[-1])
        beyond = [size for size in self.sizes if most < size <= 2 * most]
        beyond += [size for size in self.sizes if size not in peaks and size < most]
        if beyond:
            crosses = [room / _GIB] * len(beyond)
            ax.plot(beyond, crosses, "x", color="C3", label="ran out", zorder=3)
        ax.axhline(room / _GIB, color="0.4", linewidth=1)
        if doubt:
            sure = (room - doubt) / _GIB
            ax.axhspan(
                sure, room / _GIB, color="0.9", zorder=0, label="too close to tell"
            )
        limited = first is not None and first.limit is not None
        allowance = "limit" if limited else f"room on {self.on}"
        ax.annotate(
            f"{allowance}, {room / _GIB:.4g} GiB",
            (0, room / _GIB),
            xycoords=("axes fraction", "data"),
            xytext=(4, 4),
            textcoords="offset points",
            color="0.3",
        )
        if self:
            ax.axvline(self.best, color="0.5", linewidth=1, linestyle=":")
        ax.set_title(f"largest batch size on {self.on}: {self.best or 'none'}")
        ax.set_xlabel("batch size")
        ax.set_ylabel("peak, GiB")
        ax.set_ylim(0, 1.12 * builtins.max(room / _GIB, *reserved, 0.0))
        ax.legend(frameon=False, loc="lower right")
        return ax


_EVALUATION = (
    "At {size} it is the evaluation that runs out of memory, not the training: "
    "evaluate=function finds a batch size for it alone."
)


def _again(value: int, accumulation: int, kept: dict[str, Any]) -> BatchSize:
    self = BatchSize(value, accumulation)
    vars(self).update(kept)
    return self


# --- which size is next -------------------------------------------------------------------
@dataclass
class Search:
    """Chooses among ``sizes``, ascending: call `next` for a size to try and `tell` what came
    of it, until `next` gives None. `best` is then within ``close`` of the largest that runs
    (1: it is that one).

    It goes up from ``start`` by doubling, down by halving, and to where a line through the
    two largest peaks meets ``room``; a guess that does not halve what is left costs one try."""

    sizes: Sequence[int]
    start: int
    room: int | None = None  # bytes
    close: float = 1.0
    forecast: dict[int, int] = field(default_factory=dict)  # peaks, of rehearsals
    peaks: dict[int, int] = field(default_factory=dict)  # of sizes that ran
    ran: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    misses: int = 0  # guesses that did not halve what was left
    closings: int = 0  # small steps up in a row, each because the room seemed full
    _guessed: bool = False

    @property
    def best(self) -> int:
        """The largest size that ran below any that failed; 0: none."""
        ceiling = builtins.min(self.failed, default=None)
        below = [s for s in self.ran if ceiling is None or s < ceiling]
        return builtins.max(below, default=0)

    @property
    def _low(self) -> int:
        """The place of `best`, or -1."""
        return bisect_left(self.sizes, self.best) if self.best else -1

    @property
    def _high(self) -> int:
        """The place of the smallest that failed, or one past the last."""
        return (
            bisect_left(self.sizes, builtins.min(self.failed))
            if self.failed
            else len(self.sizes)
        )

    def tell(self, size: int, ran: bool, peak: int | None = None) -> None:
        """A size was tried; ``peak``: bytes, of one that ran."""
        before = self._high - self._low
        (self.ran if ran else self.failed).add(size)
        if not ran:
            self.ran.discard(size)
        if ran and peak is not None:
            self.peaks[size] = peak
        halved = 2 * (self._high - self._low) <= before + 1
        self.misses += self._guessed and not halved

    def next(self) -> int | None:
        """The size to try now; None: the search is over."""
        self._guessed = False
        low, high, sizes = self._low, self._high, self.sizes
        if high - low <= 1:
            return None
        if low >= 0 and high < len(sizes) and sizes[low] >= self.close * sizes[high - 1]:
            return None
        if low < 0:
            return sizes[self._down(high)]
        place = self._up(low) if high == len(sizes) else self._between(low, high)
        return sizes[builtins.min(builtins.max(place, low + 1), high - 1)]

    def _down(self, high: int) -> int:
        """Nothing has run yet."""
        if not self.failed:
            guess = self._meets()
            target = self.start if guess is None else int(0.97 * guess)
            return builtins.max(0, bisect_right(self.sizes, target) - 1)
        target = self.sizes[high] // 2
        return builtins.max(0, builtins.min(bisect_right(self.sizes, target), high) - 1)

    def _up(self, low: int) -> int:
        """Nothing has failed yet."""
        size, guess = self.sizes[low], self._meets()
        if guess is None:
            return bisect_right(self.sizes, 2 * size) - 1
        if guess > size:
            return bisect_right(self.sizes, builtins.min(guess, 16 * size)) - 1
        step = (1 / self.close) ** (2 ** builtins.min(self.closings, 5))
        self.closings += 1
        return bisect_right(self.sizes, builtins.min(step, 2.0) * size)

    def _between(self, low: int, high: int) -> int:
        guess = self._meets() if self.misses < 2 else None
        self._guessed = guess is not None
        if guess is None:
            middle = (self.sizes[low] + self.sizes[high]) // 2
            return bisect_right(self.sizes, middle) - 1
        if guess <= self.sizes[low]:  # if the next one fails, this is the answer
            return bisect_right(self.sizes, self.sizes[low] / self.close)
        if guess >= self.sizes[high]:  # if it runs, it is the answer
            return bisect_left(self.sizes, self.close * self.sizes[high - 1])
        return bisect_right(self.sizes, guess) - 1

    def _meets(self) -> int | None:
        """The size at which a line through the two largest peaks reaches the room."""
        peaks = self.peaks if len(self.peaks) > 1 else self.forecast
        if self.room is None or len(peaks) < 2:
            return None
        (one, low), (two, high) = sorted(peaks.items())[-2:]
        if high <= low:
            return None
        return two + (self.room - high) * (two - one) // (high - low)
