"""What a rehearsal found: `Report`, as text for people and as one JSON object."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import textwrap
from dataclasses import dataclass, field
from typing import Any

from ..sizes import format_size
from . import places, verdict
from .cards import Card
from .launch import Run
from .verdict import Verdict

__all__ = ["Outcome", "Report"]

_STAGES = ("an evaluation", "a save")
# Operations whose results programs branch on, or which have the size of their values.
_DECIDING = (
    "item",
    "nonzero",
    "masked_select",
    "unique",
    "_unique",
    "bincount",
    "arg",
    "max",
    "min",
    "topk",
    "sort",
    "multinomial",
    "nms",
    "repeat_interleave",
    "is_nonzero",
    "equal",
)
_REST = "activations and the rest"
_OUTSIDE = "outside phases"
_GROWTH_STEPS = 6  # before which growth cannot be told
_SEEN = 8  # places of guesses in the text
_WORKSPACES = {
    "told": "as the real libcudnn says of the card",
    "measured": "by formulas that meet what libcudnn asks for",
    "guessed": "by default (cuSOLVER, cuSPARSE, cuFFT, no libcudnn)",
}
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass
class Outcome:
    """One allocator's run and verdict. ``need``: bytes that it must back (see ``verdict``);
    ``cap``: the smallest cap, the arena's alone."""

    run: Run
    verdict: Verdict
    need: int | None = None
    cap: int | None = None

    def as_json(self) -> dict[str, Any]:
        run = self.run
        found: dict[str, Any] = {
            "allocator": run.allocator,
            "verdict": self.verdict.answer,
            "why": self.verdict.why,
            "margin": self.verdict.margin,
            "unsure": self.verdict.unsure,
            "need": self.need,
            "smallest_cap": self.cap,
            "peak_requested": run.peak_requested,
            "peak_allocated": run.figure("peak_allocated"),
            "peak_reserved": run.peak_reserved,
            "allocations": run.figure("allocations"),
            "retries": run.retries,
            "replayed": run.replayed,
            "oom": run.oom,
            "ooms": run.ooms,
            "exit_code": run.exit_code,
            "timed_out": run.timed_out,
            "seconds": run.seconds,
            "steps": run.steps,
            "ended": run.ended,
        }
        oom = run.first("oom")
        if oom:
            found["where"] = oom["stack"]
        error = run.first("error")
        if error:
            found["error"] = error
        if run.timed_out:
            found["where"] = run.first("stack")
        found["processes"] = [
            {key: p.get(key) for key in ("pid", "rank", "devices", "steps", "ended")}
            for p in run.processes
        ]
        return found


@dataclass(repr=False)
class Report:
    """The answer to "will it fit?". ``str()`` is the text that the command prints; notebooks
    show it too."""

    command: list[str]
    card: Card
    gpus: int = 1
    limit: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    #: Files that say who used what; None: not asked for.
    pages: list[str] | None = None

    # --- for programs -----------------------------------------------------------------------
    @property
    def verdict(self) -> str:
        """``fits``, ``does not fit``, ``too close to tell``, ``cannot tell``, ``the script
        failed``: of the allocators asked for, the worst."""
        return self._together.answer

    @property
    def _together(self) -> Verdict:
        return verdict.together([o.verdict for o in self.outcomes])

    @property
    def exit_code(self) -> int:
        """The command's: 0 fits, 3 does not, 4 cannot tell, 1 the script failed."""
        return self._together.code

    @property
    def fits(self) -> bool | None:
        """None where there is no telling, or the script failed."""
        return {verdict.FITS: True, verdict.DOES_NOT_FIT: False}.get(self.verdict)

    def of(self, allocator: str) -> Outcome:
        """Raises KeyError where it was not run."""
        for outcome in self.outcomes:
            if outcome.run.allocator == allocator:
                return outcome
        raise KeyError(allocator)

    @property
    def peak_requested(self) -> int:
        """Bytes that the program asks for at its highest."""
        return max(o.run.peak_requested for o in self.outcomes)

    @property
    def peak_reserved(self) -> int:
        """Bytes reserved at the highest, by the first allocator."""
        return self.outcomes[0].run.peak_reserved

    @property
    def smallest_cap(self) -> int | None:
        """The least cap, bytes, under which the arena runs the program."""
        return next((o.cap for o in self.outcomes if o.cap is not None), None)

    @property
    def holders(self) -> dict[str, Any] | None:
        """What holds the peak: ``kinds`` (bytes) and ``places`` (the largest)."""
        for outcome in reversed(self.outcomes):
            found: dict[str, Any] | None = outcome.run.first("holders")
            if found:
                return found
        return None

    @property
    def tracked(self) -> dict[str, Any] | None:
        """Where a report was asked for, of the process that requested most: the peak's bytes,
        ``phase``, ``step``, ``categories``, ``phases``, the largest ``modules``, and
        ``growth``."""
        for outcome in self.outcomes:
            found: dict[str, Any] | None = outcome.run.first("tracked")
            if found:
                return found
        return None

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Of a job of several ranks a row for each: ``rank``, ``device``, ``steps``, and bytes:
        ``peak_requested``, and ``peak_reserved`` by allocator. Else none."""
        rows: dict[int, dict[str, Any]] = {}
        for outcome in self.outcomes:
            for found in outcome.run.ranks:
                row = rows.setdefault(
                    found["rank"],
                    {
                        "rank": found["rank"],
                        "device": found["device"],
                        "steps": 0,
                        "peak_requested": 0,
                        "peak_reserved": {},
                    },
                )
                for key in ("steps", "peak_requested"):
                    row[key] = max(row[key], found[key])
                row["peak_reserved"][outcome.run.allocator] = found["peak_reserved"]
        return [rows[rank] for rank in sorted(rows)]

    @property
    def not_seen(self) -> list[str]:
        """Stages that a run which was ended early did not come to."""
        first = self.outcomes[0].run
        if first.ended == "itself" or not first.steps:
            return []
        seen = {stage for p in first.processes for stage in p["seen"]}
        return [stage for stage in _STAGES if stage not in seen]

    @property
    def guessed(self) -> dict[str, int]:
        """Operations whose result was a guess, and how often."""
        return self.outcomes[0].run.first("guessed") or {}

    def as_json(self) -> dict[str, Any]:
        card = self.card
        found: dict[str, Any] = {
            "command": self.command,
            "script": self.command[0],
            "gpu": {
                "key": card.key,
                "name": card.name,
                "memory": card.memory,
                "context": card.context,
                "context_measured": card.context_measured,
            },
            "gpus": self.gpus,
            "limit": self.limit,
            "rehearsal_exit_code": self.exit_code,
        }
        rows = [outcome.as_json() for outcome in self.outcomes]
        if len(rows) == 1:
            found.update(rows[0])
        else:
            found.update(
                peak_requested=self.peak_requested,
                oom=any(row["oom"] for row in rows),
                timed_out=any(row["timed_out"] for row in rows),
                exit_code=next((r["exit_code"] for r in rows if r["exit_code"]), 0),
                seconds=round(sum(row["seconds"] for row in rows), 2),
            )
        found.update(
            verdict=self.verdict,
            smallest_cap=self.smallest_cap,
            ranks=self.ranks,
            holders=self.holders,
            tracked=self.tracked,
            reports=self.pages,
            not_seen=self.not_seen,
            guessed=self.guessed,
            workspaces=self.outcomes[0].run.first("workspaces"),
            values=self.outcomes[0].run.first("values"),
            runs=rows,
        )
        return found

    def json(self) -> str:
        return json.dumps(self.as_json())

    def __str__(self) -> str:
        return self.text()

    # --- for people -------------------------------------------------------------------------
    def text(self, width: int = 80) -> str:
        """The report in lines of at most ``width`` columns, at least 60."""
        width = max(60, width)
        lines = [*self._head(width), "", *self._table()]
        for section in (
            self._ends,
            self._ranks,
            self._cap,
            self._holders,
            self._tracked,
            self._doubts,
            self._pages,
        ):
            told = section(width)
            if told:
                lines += ["", *told]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Report: {self._name()} on {self.card.key}: {self.verdict}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else str(self))

    def _name(self) -> str:
        """The command; of a function the call."""
        words = self.command
        return words[0] if len(words) == 1 else " ".join(map(shlex.quote, words))

    def _head(self, width: int) -> list[str]:
        name = _shortened(self._name(), width)
        card = self.card
        what = f"{self.gpus} x {card.name}" if self.gpus > 1 else card.name
        measured = "" if card.context_measured else ", not measured"
        cap = "" if self.limit is None else f"; capped at {format_size(self.limit)}"
        text = (
            f"on a simulated {what}: {_down(card.memory)}, of which the CUDA context "
            f"takes {_up(card.context)}{measured}{cap}"
        )
        return [name, *_wrapped(text, width)]

    def _table(self) -> list[str]:
        lines = [
            f"{'allocator':<11}{'verdict':<19}{'asked for':>12}{'reserved':>13}"
            f"{'margin':>12}{'steps':>7}{'s':>6}"
        ]
        for outcome in self.outcomes:
            run, said = outcome.run, outcome.verdict
            margin = "" if said.margin is None else _margin(said.margin)
            more = "> " if run.oom else ""  # it had that much when it asked for more
            lines.append(
                f"{run.allocator:<11}{said.answer:<19}"
                f"{more + _up(run.peak_requested):>12}{more + _up(run.peak_reserved):>13}"
                f"{margin:>12}{run.steps or '':>7}"
                f"{run.seconds:>6.0f}"
            )
        return lines

    def _ends(self, width: int) -> list[str]:
        """How the runs ended, where it was not by themselves and with memory left."""
        lines: list[str] = []
        before: list[str] = []  # where the run before it ran out
        for outcome in self.outcomes:
            run, said = outcome.run, outcome.verdict
            name = run.allocator
            if run.timed_out:
                lines += _wrapped(f"{name}: stopped when the time was up, here:", width)
                stack = run.first("stack") or []
                lines += _stack(stack, width)
                if _waits_for_a_value(stack, _seen(run)):
                    lines += _wrapped(
                        "  It reads a value there that was not computed: a loop that only "
                        "such a value ends has no end in a rehearsal.",
                        width,
                    )
            elif run.failed:
                error = run.first("error") or _silent(run.exit_code)
                error = " ".join(_shortened(error, 400).split())
                lines += _wrapped(
                    f"{name}: the script failed with exit code {run.exit_code}: {error}",
                    width,
                )
                stack = _stack(run.first("traceback") or [], width)
                lines += stack
                if run.output and not stack:
                    lines += [
                        "  " + _shortened(line, width - 2)
                        for line in run.output.splitlines()[-12:]
                    ]
            elif run.oom:
                oom = run.first("oom") or {}
                asked = _wanted(oom, run.first("error") or "")
                needs = (
                    ""
                    if outcome.need is None
                    else f" (with memory enough it takes {_up(outcome.need)})"
                )
                stack = _stack(oom.get("stack") or [], width)
                where = "at the same place" if stack and stack == before else "here"
                lines += _wrapped(
                    f"{name}: runs out of memory {where}{asked}{needs}"
                    f"{':' if where == 'here' else ''}",
                    width,
                )
                lines += stack if where == "here" else []
                before = stack
            elif said.answer == verdict.TOO_CLOSE:
                margin = said.margin or 0
                left = (
                    f"{_down(margin)} left" if margin >= 0 else f"{_up(-margin)} wanting"
                )
                lines += _wrapped(
                    f"{name}: {left}, and no telling within {_up(said.unsure)} (a share of "
                    "the peak, and what is not measured of the card)",
                    width,
                )
            if run.replayed:
                lines += _wrapped(
                    f"{name}: not run; asked once more for what the arena was asked for",
                    width,
                )
            if run.ooms and run.exit_code == 0:
                lines += _wrapped(
                    f"{name}: refused {_count(run.ooms, 'request')}, and the script went on",
                    width,
                )
            if run.retries and not run.oom:
                lines += _wrapped(
                    f"{name}: gave back its cache {_count(run.retries, 'time')} to go on",
                    width,
                )
            if name != "arena" and any(p["arena"] for p in run.processes):
                lines += _wrapped(
                    f"{name}: the script enables torcharena itself, so this is the arena",
                    width,
                )
            if any(p.get("trees_off") for p in run.processes):
                lines += _wrapped(
                    f"{name}: CUDA graphs were captured each for itself; on a GPU they are in "
                    "trees, whose graphs share memory",
                    width,
                )
            if not run.processes and not run.failed and not run.timed_out:
                lines += _wrapped(f"{name}: it used no CUDA memory", width)
        first = self.outcomes[0].run
        chose = next((c for o in self.outcomes if (c := o.run.first("chose"))), None)
        if chose:
            lines += _wrapped(
                f"The script asks for {chose} itself; each row here is of the allocator "
                "that it names all the same.",
                width,
            )
        if first.sharing > 1:
            lines += _wrapped(
                f"{first.sharing} processes use one device: each is judged by an equal part "
                "of it, with a context of its own.",
                width,
            )
        if first.ended == "settled":
            lines += _wrapped(
                f"Stopped by itself after {first.steps} optimizer steps: the peak last moved in "
                f"step {first.first('moved_at')} (--steps 0 runs to the end).",
                width,
            )
        elif first.ended == "steps":
            lines += _wrapped(f"Stopped after {first.steps} optimizer steps.", width)
        if self.not_seen:
            lines += _wrapped(
                f"Not seen: {', '.join(self.not_seen)}. Their memory is not in the peak.",
                width,
            )
        return lines

    def _ranks(self, width: int) -> list[str]:
        """Of a job of several ranks a row for each."""
        rows = self.ranks
        if not rows:
            return []
        most = max(rows, key=lambda row: row["peak_requested"])
        names = [o.run.allocator for o in self.outcomes if o.run.ranks]
        lines = _wrapped(
            f"Rank {most['rank']} asks for most, {_up(most['peak_requested'])}. Each "
            "rank, what it asks for and what is reserved for it:",
            width,
        )
        head = f"{'rank':>6}{'device':>8}{'asked for':>12}{'steps':>7}"
        lines.append(head + "".join(f"{name:>12}" for name in names))
        for row in rows:
            line = (
                f"{row['rank']:>6}{row['device']:>8}"
                f"{_up(row['peak_requested']):>12}{row['steps'] or '':>7}"
            )
            for name in names:
                size = row["peak_reserved"].get(name)
                line += f"{'' if size is None else _up(size):>12}"
            lines.append(line)
        return lines

    def _cap(self, width: int) -> list[str]:
        for outcome in self.outcomes:
            if "in host memory" in outcome.verdict.why:
                return _wrapped(f"The arena runs it {outcome.verdict.why}.", width)
        cap = self.smallest_cap
        if cap is None:
            return []
        return _wrapped(
            f"Smallest cap that works: {_up(cap)} under the arena, by replaying its "
            f"trace. The context comes on top: {_up(cap + self.card.context)}.",
            width,
        )

    def _holders(self, width: int) -> list[str]:
        found = self.holders
        if not found or "places" not in found:
            return []
        step = f", step {found['step']}" if found.get("step") else ""
        kinds = ", ".join(
            f"{_REST if kind == 'other' else kind} {_up(size)}"
            for kind, size in found["kinds"].items()
            if list(found["kinds"]) != ["other"]
        )
        what = "was held when memory ran out" if found.get("now") else "holds the peak"
        lines = _wrapped(
            f"What {what} ({_up(found['requested'])}{step}): {kinds}".rstrip(), width
        )
        for row in found["places"]:
            kind = "" if row["kind"] == "other" else f" ({row['kind']})"
            blocks = "block " if row["blocks"] == 1 else "blocks"
            line = (
                f"  {_up(row['bytes']):>10} {row['blocks']:>5} {blocks} "
                f"{_end_of(row['place'])}{kind}"
            )
            room = width - len(line) - len(", in ")
            if row["within"] and room >= 16:  # the end of it says which
                line += f", in {_end_of(row['within'], room)}"
            lines.append(_shortened(line, width))
        return lines

    def _tracked(self, width: int) -> list[str]:
        """By category, phase and module, where the run was tracked."""
        found = self.tracked
        if not found or "categories" not in found:
            return []

        def listed(sizes: dict[str, int]) -> str:
            shown = [(name, size) for name, size in sizes.items() if size][:6]
            return ", ".join(f"{name or _OUTSIDE} {_up(size)}" for name, size in shown)

        when = f"in {found['phase']}" if found["phase"] else "outside phases"
        step = f", step {found['step']}" if found["steps"] else ""
        moment = "When it ran out" if found["requested"] else "At the arena's peak"
        lines = _wrapped(
            f"{moment} ({_up(found['bytes'])}, {when}{step}): {listed(found['categories'])}",
            width,
        )
        lines += _wrapped(f"  allocated in: {listed(found['phases'])}", width)
        modules = {
            f"{row['module'] or 'outside'}"
            + (f" ({row['modules']})" if row["modules"] > 1 else ""): row["peak"]
            for row in found["modules"]
        }
        if modules:
            lines += _wrapped(f"  by module: {listed(modules)}", width)
        for row in found["growth"]:
            lines += _wrapped(
                f"  It grows by {_up(row['bytes_per_step'])} a step: {row['category']}, "
                f"allocated in {row['phase'] or _OUTSIDE}"
                + (f", {row['module']}" if row.get("module") else "")
                + (f", {row['place']}" if row.get("place") else ""),
                width,
            )
        if not found["growth"] and found["steps"] >= _GROWTH_STEPS:
            lines.append("  It does not grow from step to step.")
        return lines

    def _pages(self, width: int) -> list[str]:
        """Where the reports are."""
        if self.pages is None:
            return []
        if self.pages:
            return _wrapped(f"Who used what, and when: {', '.join(self.pages)}", width)
        problem = (self.tracked or {}).get("problem", "no process used the GPU's memory")
        return _wrapped(f"No report was written: {problem}.", width)

    def _doubts(self, width: int) -> list[str]:
        """What was guessed."""
        lines: list[str] = []
        first = self.outcomes[0].run
        seen = _seen(first)
        read = {k: n for k, n in self.guessed.items() if k.startswith(_DECIDING)}
        if seen:
            lines += _wrapped(
                "Where the program saw values that were not computed (if sizes hang on one, "
                "another course, and another peak, is as likely):",
                width,
            )
            for row in seen[:_SEEN]:
                where = _file(row) if row["line"] else row["file"]
                name = f" {row['function']}" if row["function"] else ""
                times = f"  {row['times']:>9,} x {row['how']:<18} "
                lines.append(times + _end_of(where + name, width - len(times)))
            if len(seen) > _SEEN:
                more = _count(len(seen) - _SEEN, "place")
                lines.append(f"  and {more} more (--json has them)")
        elif read:
            told = ", ".join(
                f"{name} {count:,}" for name, count in list(read.items())[:8]
            )
            lines += _wrapped(
                "Random, since it derives from floats that were not computed, and perhaps "
                f"what decided the program's course (operation, times): {told}",
                width,
            )
        spaces = first.first("workspaces")
        if spaces:
            lines += _workspaces(spaces, width)
        if first.refused:
            shown = ", ".join(map(_shown, first.refused[:6]))
            others = len(first.refused) - 6
            lines += _wrapped(
                "Files that exist, which it was refused to change: "
                + shown
                + (f", and {others} more" if others > 0 else "")
                + ". Have it write to a new place (what it makes anew is taken away at the "
                "end), or let it write in earnest below one that you name: --share DIR.",
                width,
            )
        if first.note:
            lines += _wrapped(f"Files: {first.note}.", width)
        return lines


def _workspaces(spaces: dict[str, Any], width: int) -> list[str]:
    """What is known of workspaces, by where it is known from."""
    lines = ["Workspaces of NVIDIA's libraries:"]
    why = spaces.get("why", "")
    for kind, words in _WORKSPACES.items():
        count = spaces.get(kind, 0)
        if count:
            largest = _up(spaces.get(f"largest_{kind}", 0))
            lines.append(f"  {count:>9,} up to {largest:>10} {words}")
    if spaces.get("guessed") and why not in ("", "not asked"):
        lines += _wrapped(f"  (the real libcudnn is not asked: {why})", width)
    return lines


def _rounded(size: int, up: bool) -> str:
    """Two decimals at most, upwards or downwards."""
    units = (("GiB", _GIB), ("MiB", _MIB), ("KiB", 1 << 10), ("B", 1))
    name, unit = next((u for u in units if size >= u[1]), units[-1])
    hundredths = -(-size * 100 // unit) if up else size * 100 // unit
    if hundredths == 102400 and unit < _GIB:
        return _rounded(unit << 10, up)
    return f"{hundredths / 100:.{0 if hundredths % 100 == 0 else 2}f} {name}"


def _up(size: int) -> str:
    """What is needed: no digit that is left out makes it less."""
    return _rounded(size, True)


def _down(size: int) -> str:
    """What is there: no digit that is left out makes it more."""
    return _rounded(size, False)


def _margin(size: int) -> str:
    """GiB with a sign, downwards: what is wanting never shows as nothing."""
    return f"{size * 100 // _GIB / 100:+.2f} GiB"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _end_of(place: str, width: int = 52) -> str:
    """A place whose path is long, without its beginning."""
    return place if len(place) <= width else f"...{place[3 - width :]}"


def _silent(code: int) -> str:
    """What ended a program that has left no Python error."""
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code if code < 0 else code - 128).name}"
    return "it printed no Python error"


def _stack(frames: list[dict[str, Any]], width: int) -> list[str]:
    """A Python traceback, shortened to the program's own lines and the last one."""
    lines = []
    shown = [f for f in frames if places.is_users(f["file"])]
    if frames and frames[-1] not in shown:
        last = next((f for f in reversed(frames) if not _is_dispatch(f["file"])), None)
        if last is not None:
            shown.append(last)
    for frame in shown[-8:]:
        lines.append(_shortened(f"  {_file(frame)}, in {frame['function']}", width))
        source = _source(frame)
        if source:
            lines.append(_shortened(f"    {source}", width))
    return lines


def _is_dispatch(file: str) -> bool:
    """Ours, and what torch puts between us and its operators."""
    return places.is_ours(file) or file.endswith("/torch/_ops.py")


def _wanted(oom: dict[str, Any], error: str) -> str:
    """What the request that failed was for, as far as it is known."""
    if oom.get("wanted"):
        return f", asking for {_up(oom['wanted'])}"
    said = re.search(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)", error)
    return f", asking for {said[1]}" if said else ""


def _seen(run: Run) -> list[dict[str, Any]]:
    """Where the program saw values that were not computed."""
    return list((run.first("values") or {}).get("places") or [])


def _waits_for_a_value(stack: list[dict[str, Any]], seen: list[dict[str, Any]]) -> bool:
    lines = {(frame["file"], frame["line"]) for frame in stack}
    return any((row["file"], row["line"]) in lines for row in seen)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _file(frame: dict[str, Any]) -> str:
    return f"{_shown(frame['file'])}:{frame['line']}"


def _shown(path: str) -> str:
    """From the working folder, if it is there."""
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _source(frame: dict[str, Any]) -> str:
    import linecache

    return linecache.getline(frame["file"], frame["line"]).strip()
