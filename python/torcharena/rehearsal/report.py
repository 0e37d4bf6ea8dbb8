"""What a rehearsal found: `Report`, as text for people and as one JSON object."""

from __future__ import annotations

import json
import os
import shlex
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
_GIB = float(1 << 30)


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
            self._doubts,
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
            f"on a simulated {what}: {format_size(card.memory)}, of which the CUDA context "
            f"takes {format_size(card.context)}{measured}{cap}"
        )
        return [name, *_wrapped(text, width)]

    def _table(self) -> list[str]:
        lines = [
            f"{'allocator':<11}{'verdict':<19}{'asked for':>12}{'reserved':>12}"
            f"{'margin':>12}{'steps':>7}{'s':>6}"
        ]
        for outcome in self.outcomes:
            run, said = outcome.run, outcome.verdict
            margin = "" if said.margin is None else f"{said.margin / _GIB:+.2f} GiB"
            lines.append(
                f"{run.allocator:<11}{said.answer:<19}{format_size(run.peak_requested):>12}"
                f"{format_size(run.peak_reserved):>12}{margin:>12}{run.steps or '':>7}"
                f"{run.seconds:>6.0f}"
            )
        return lines

    def _ends(self, width: int) -> list[str]:
        """How the runs ended, where it was not by themselves and with memory left."""
        lines: list[str] = []
        for outcome in self.outcomes:
            run, said = outcome.run, outcome.verdict
            name = run.allocator
            if run.timed_out:
                lines += _wrapped(f"{name}: stopped when the time was up, here:", width)
                lines += _stack(run.first("stack") or [], width)
            elif run.failed:
                error = run.first("error") or "it printed no Python error"
                error = " ".join(_shortened(error, 400).split())
                lines += _wrapped(
                    f"{name}: the script failed with exit code {run.exit_code}: {error}",
                    width,
                )
                if run.output:
                    lines += [
                        "  " + _shortened(line, width - 2)
                        for line in run.output.splitlines()[-12:]
                    ]
            elif run.oom:
                oom = run.first("oom") or {}
                wanted = oom.get("wanted")
                asked = f" asking for {format_size(wanted)}" if wanted else ""
                needs = (
                    ""
                    if outcome.need is None
                    else f"; with memory enough it takes {format_size(outcome.need)}"
                )
                lines += _wrapped(
                    f"{name}: runs out of memory{asked}{needs}, here:", width
                )
                lines += _stack(oom.get("stack") or [], width)
            elif said.answer == verdict.TOO_CLOSE:
                lines += _wrapped(
                    f"{name}: {format_size(abs(said.margin or 0))} "
                    f"{'left' if (said.margin or 0) >= 0 else 'wanting'}, and no telling "
                    f"within {format_size(said.unsure)} (a share of the peak, and what is "
                    "not measured of the card)",
                    width,
                )
            if run.ooms and run.exit_code == 0:
                lines += _wrapped(
                    f"{name}: refused {run.ooms} requests, and the script went on", width
                )
            if run.retries:
                lines += _wrapped(
                    f"{name}: gave back its cache {run.retries} times to go on", width
                )
            if name != "arena" and any(p["arena"] for p in run.processes):
                lines += _wrapped(
                    f"{name}: the script enables torcharena itself, so this is the arena",
                    width,
                )
            if not run.processes and not run.failed and not run.timed_out:
                lines += _wrapped(f"{name}: it used no CUDA memory", width)
        first = self.outcomes[0].run
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
            f"Rank {most['rank']} asks for most, {format_size(most['peak_requested'])}. Each "
            "rank, what it asks for and what is reserved for it:",
            width,
        )
        head = f"{'rank':>6}{'device':>8}{'asked for':>12}{'steps':>7}"
        lines.append(head + "".join(f"{name:>12}" for name in names))
        for row in rows:
            line = (
                f"{row['rank']:>6}{row['device']:>8}"
                f"{format_size(row['peak_requested']):>12}{row['steps'] or '':>7}"
            )
            for name in names:
                size = row["peak_reserved"].get(name)
                line += f"{'' if size is None else format_size(size):>12}"
            lines.append(line)
        return lines

    def _cap(self, width: int) -> list[str]:
        cap = self.smallest_cap
        if cap is None:
            return []
        return _wrapped(
            f"Smallest cap that works: {format_size(cap)} under the arena, by replaying its "
            f"trace. The context comes on top: {format_size(cap + self.card.context)}.",
            width,
        )

    def _holders(self, width: int) -> list[str]:
        found = self.holders
        if not found or "places" not in found:
            return []
        step = f", step {found['step']}" if found.get("step") else ""
        kinds = ", ".join(
            f"{kind} {format_size(size)}" for kind, size in found["kinds"].items()
        )
        what = "was held when memory ran out" if found.get("now") else "holds the peak"
        lines = _wrapped(
            f"What {what} ({format_size(found['requested'])}{step}): {kinds}", width
        )
        for row in found["places"]:
            kind = "" if row["kind"] == "other" else f" ({row['kind']})"
            within = f", in {row['within']}" if row["within"] else ""
            blocks = "block " if row["blocks"] == 1 else "blocks"
            lines.append(
                _shortened(
                    f"  {format_size(row['bytes']):>10} {row['blocks']:>5} {blocks} "
                    f"{_end_of(row['place'])}{kind}{within}",
                    width,
                )
            )
        return lines

    def _doubts(self, width: int) -> list[str]:
        """What was guessed."""
        lines: list[str] = []
        read = {k: n for k, n in self.guessed.items() if k.startswith(_DECIDING)}
        if read:
            told = ", ".join(
                f"{name} {count:,}" for name, count in list(read.items())[:8]
            )
            lines += _wrapped(
                "Random, since it derives from floats that were not computed, and perhaps "
                f"what decided the program's course (operation, times): {told}",
                width,
            )
        first = self.outcomes[0].run
        spaces = first.first("workspaces")
        if spaces:
            why = f" ({spaces['why']})" if spaces["why"] else ""
            lines += _wrapped(
                f"Workspaces of cuDNN: {spaces['told']:,} as the real libcudnn says, at most "
                f"{format_size(spaces['largest_told'])}; {spaces['guessed']:,} guessed, at most "
                f"{format_size(spaces['largest_guessed'])}{why}.",
                width,
            )
        if first.refused:
            lines += _wrapped(
                "Files that exist and that it was refused to change: "
                + ", ".join(first.refused[:6])
                + " (--keep-files DIR lets it write to copies)",
                width,
            )
        if first.note:
            lines += _wrapped(f"Files: {first.note}.", width)
        return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _end_of(place: str) -> str:
    """A place whose path is long, without its beginning."""
    return place if len(place) <= 52 else f"...{place[-49:]}"


def _tells(file: str) -> bool:
    """Whether a traceback may end there: not in the mode that computes values."""
    return not places.is_ours(file) and not file.endswith("/torch/_ops.py")


def _stack(frames: list[dict[str, Any]], width: int) -> list[str]:
    """A Python traceback, shortened to the program's own lines and the last one."""
    lines = []
    shown = [f for f in frames if places.is_users(f["file"])]
    if frames and frames[-1] not in shown:
        last = next((f for f in reversed(frames) if _tells(f["file"])), None)
        if last is not None:
            shown.append(last)
    for frame in shown[-8:]:
        lines.append(_shortened(f"  {_file(frame)}, in {frame['function']}", width))
        source = _source(frame)
        if source:
            lines.append(_shortened(f"    {source}", width))
    return lines


def _file(frame: dict[str, Any]) -> str:
    file = frame["file"]
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if relative.startswith('..') else relative}:{frame['line']}"


def _source(frame: dict[str, Any]) -> str:
    import linecache

    return linecache.getline(frame["file"], frame["line"]).strip()
