"""Who used what, when: `report`.

A report is plain numbers, taken at once; `Report.data` is what `save` writes as JSON and
what every view of it is made of."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..loading import core
from ..state import DeviceLike, device_index, needs_cuda, needs_enabled
from . import address_map, growth, lines, modules, phases, timelines, tracking
from .device_rows import device_rows
from .graphs import rows_of
from .remedies import remedies
from .terminal import WIDEST, comparison, table

__all__ = [
    "NOW",
    "Report",
    "category_of",
    "known_phases",
    "load",
    "paths_of",
    "report",
    "write_whole",
]

VERSION = 1
_PEAK, _OOM, NOW = range(3)  # as in csrc/core/usage/usage.h
HOLDERS = 12  # of the largest groups at the peak


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all; what is no file, a device or a pipe, as it is.
    Raises OSError."""
    whole = Path(path).resolve()  # a link stays one
    if whole.exists() and not whole.is_file():
        whole.write_bytes(data)
        return
    part = whole.with_name(f"{whole.name[:200]}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, whole)
    except OSError as error:
        with contextlib.suppress(OSError):  # as where a folder is none
            part.unlink()
        error.filename = os.fspath(path)
        del error.filename2  # None would be told too
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _columns() -> int:
    """Of the terminal; where the text goes elsewhere, the most."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDEST
    return max(60, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


class Report:
    """A report's numbers: ``data``, in bytes and seconds, a dictionary as JSON has them."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __str__(self) -> str:
        """A table as wide as the terminal, of 60 to 100 columns."""
        return table(self.data, _columns())

    def __repr__(self) -> str:
        peak = self.data["peak"]
        return f"<torcharena.Report: peak {peak['bytes']} bytes in {peak['phase']!r}>"

    def _repr_html_(self) -> str:
        from .page import compact

        return compact(self.data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it, whole or not at all: as one self-contained page where the name ends in
        ``.html``, else as JSON, which `load` reads. Raises OSError."""
        if Path(path).suffix.lower() in (".html", ".htm"):
            from .page import page

            text = page(self.data)
        else:  # lists of numbers on a line each
            text = json.dumps(self.data, indent=1) + "\n"
            text = re.sub(r"(?<=[\[\d,])\n\s+(?=[-\d\]])", "", text)
        write_whole(path, text.encode())

    def compare(self, other: Report) -> str:
        """A table of what differs from this one to the other. Raises TypeError for what is
        no report."""
        if not isinstance(other, Report):
            raise TypeError(f"compare({type(other).__name__}): another Report")
        return comparison(self.data, other.data, _columns())


def load(path: str | os.PathLike[str]) -> Report:
    """A report that `Report.save` wrote. Raises OSError, or ValueError for another file."""
    try:
        data = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not a report: {error}") from None
    if not isinstance(data, dict) or "torcharena_report" not in data:
        raise ValueError(f"{path}: not a report of torcharena's")
    if data["torcharena_report"] != VERSION:
        raise ValueError(
            f"{path}: a report of version {data['torcharena_report']}; this is {VERSION}"
        )
    made = Report(data)
    try:
        str(made)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a whole report: {error!r}") from None
    return made


def report(device: DeviceLike = None) -> Report:
    """What the device's memory was used for, from the first phase, `track` or `report` on.

    Raises RuntimeError where the arena is not enabled."""
    needs_enabled("report")
    needs_cuda()
    phases.start()
    tracking.tell_all()
    for one in tracking.trackings():
        one.tell_modules()
    index = device_index(device)
    library = core()
    look = library.usage_look(index)
    named = library.usage_phases(index)
    known = known_phases(named)
    now = library.usage_blocks(index, NOW)
    held = _groups(now, known)
    peak = library.usage_blocks(index, _PEAK)
    stats = library.stats(index)
    graphs = [one.graphs for one in tracking.trackings()]
    unused = rows_of(graphs)
    full_precision = any(one.full_precision() for one in tracking.trackings())
    memory = device_rows(stats, index)
    grown = _growth(now, known, look["step"])
    return Report(
        {
            "torcharena_report": VERSION,
            "device": index,
            "seconds": look["now_us"] / 1e6,
            "steps": look["step"],
            "peak": _moment(
                look["peak"],
                peak,
                known,
                look["step"],
                sum(one.held_since_before(look["peak"]["us"]) for one in graphs),
                full_precision,
            ),
            "out_of_memory": _moment(
                look["out_of_memory"],
                library.usage_blocks(index, _OOM),
                known,
                look["step"],
                sum(row["alive_bytes"] for row in unused),
                full_precision,
            )
            if look["out_of_memory"]["requested"]
            else None,
            "now": {
                "bytes": look["live"],
                "categories": _sums(held, 1),
                "phases": _sums(held, 0),
                "memory": memory,
            },
            "reserved_peak": stats["reserved"][1],
            "cap": stats["limit"],
            "cap_source": None if stats["limit"] is None else stats["limit_source"],
            "phases": [
                _phase_row(named[number], known[number].path)
                for number in _order(named)
                if named[number]["allocs"] or named[number]["entries"]
            ],
            "modules": modules.rows(index, peak, now),
            "stacks": lines.recorded(),
            "growth": grown,
            "steps_left": growth.steps_left(
                grown, _room(memory, stats["limit"], look["live"])
            ),
            "unused_graphs": unused,
            "held_by_errors": _held_by_errors(look["live"]),
            "not_counted": look["lost"],
            "recorder_bytes": look["bytes"],
            "timeline": timelines.collect(index),
            "map": address_map.collect(
                index, stats["reserved"][0] - stats["mapped"][0][0]
            ),
        }
    )


def _passes(block: modules.Block, step: int, now: int) -> bool:
    """Whether it was of the step of a moment, rather than something that stays: a library's
    workspace, which nobody told a category of and which outlives the step that made it."""
    address, born = block[0], block[2]
    return born == step and (not address or born == now)


def _moment(
    when: Any,
    blocks: modules.Blocks,
    known: list[Named],
    step: int,
    unused: int = 0,
    full_precision: bool = False,
) -> dict[str, Any]:
    groups = _groups(blocks, known)
    together: Groups = {}  # whichever module or line: what the remedies are told from
    passing = _groups((b for b in blocks if _passes(b, when["step"], step)), known)
    for key, (count, size) in passing.items():
        alike = (key[0], key[1], key[2], "", "")
        had = together.get(alike, (0, 0))
        together[alike] = (had[0] + count, had[1] + size)
    moment = {
        "bytes": when["bytes"],
        "requested": when["requested"],
        "seconds": when["us"] / 1e6,
        "step": when["step"],
        "phase": known[when["phase"]].path,
        "categories": _sums(groups, 1),
        "phases": _sums(groups, 0),
        "holders": _largest(groups),
    }
    found = remedies({**moment, "holders": _largest(together)}, unused, full_precision)
    return {**moment, "remedies": found}


def _held_by_errors(live: int) -> list[dict[str, Any]]:
    """Tensors that errors which are over keep alive, the largest; none where they are little
    of what lives."""
    from .out_of_memory import held_by_exceptions  # which imports this

    held = []
    with contextlib.suppress(Exception):  # objects of others, which may do anything
        held = held_by_exceptions()
    if sum(one.bytes for one in held) * 100 < max(1, live):
        return []
    sums: dict[tuple[str, str, str], list[int]] = {}
    for one in held:
        had = sums.setdefault((one.exception, one.place, one.name), [0, 0])
        had[0] += 1
        had[1] += one.bytes
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])[:HOLDERS]
    return [
        {
            "exception": kind,
            "place": place,
            "name": name,
            "tensors": count,
            "bytes": size,
        }
        for (kind, place, name), (count, size) in ranked
    ]


# --- phases ------------------------------------------------------------------------------
def paths_of(named: list[Any]) -> list[str]:
    """Paths such as ``step/forward``, by number; phase 0 is the empty path."""
    paths = [""]
    for one in named[1:]:
        around = paths[one["around"]]
        paths.append(f"{around}/{one['name']}" if around else one["name"])
    return paths


class Named(NamedTuple):
    """A phase that the library knows: its path, and whether what it allocated, and nobody told
    a category of, is taken for activations; and what it frees late."""

    path: str
    activations: bool = False
    late: float = 0.0  # bytes a step, as the library has them


def known_phases(named: list[Any]) -> list[Named]:
    """All of them, by number."""
    told = zip(paths_of(named), named, strict=False)  # of none in a forked child
    return [Named(path, one["activations"], one["late"]) for path, one in told] or [
        Named("")
    ]


def _order(named: list[Any]) -> list[int]:
    """Numbers of phases, each after the one around it; phase 0 last."""
    inside: dict[int, list[int]] = collections.defaultdict(list)
    for number, one in enumerate(named[1:], 1):
        inside[one["around"]].append(number)

    def below(number: int) -> Iterable[int]:
        for inner in inside[number]:
            yield inner
            yield from below(inner)

    return [*below(0), 0]


def _phase_row(one: Any, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "entries": one["entries"],
        "seconds": one["us"] / 1e6,
        "peak": one["peak"],
        "kept": one["kept"] if one["entries"] else one["live"],
        "live": one["live"],
        "allocations": one["allocs"],
        "allocated": one["bytes"],
        "page_moves": one["page_moves"],
        "spilled": one["spilled"],
        "waits": one["waits"],
        "wait_seconds": one["wait_us"] / 1e6,
    }


# --- blocks ------------------------------------------------------------------------------
def category_of(number: int, phase: Named) -> str:
    """A block's category by its number, told or not, and the phase that it is of."""
    name = phases.CATEGORIES[number]
    if name != "unknown":
        return name
    return "activation" if phase.activations else "other"


# phase, category, size, module (folded), place: count, bytes
Groups = dict[tuple[str, str, int, str, str], tuple[int, int]]


def _groups(blocks: Iterable[modules.Block], known: list[Named]) -> Groups:
    counts = collections.Counter(
        (phase, category, size, module, stack)
        for _, size, _, phase, category, module, stack in blocks
    )
    groups: Groups = {}
    for (phase, category, size, module, stack), count in counts.items():
        key = (
            known[phase].path,
            category_of(category, known[phase]),
            size,
            modules.folded(module),
            lines.place_of(stack),
        )
        had = groups.get(key, (0, 0))
        groups[key] = (had[0] + count, had[1] + count * size)
    return groups


def _sums(groups: Groups, by: int) -> dict[str, int]:
    """Bytes by phase (0) or category (1), the largest first."""
    sums: dict[str, int] = collections.defaultdict(int)
    for key, (_, size) in groups.items():
        sums[str(key[by])] += size
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _largest(groups: Groups) -> list[dict[str, Any]]:
    ranked = sorted(groups.items(), key=lambda item: -item[1][1])[:HOLDERS]
    return [
        {
            "phase": phase,
            "category": category,
            "size": size,
            "blocks": count,
            "bytes": total,
            **_where(module, place),
        }
        for (phase, category, size, module, place), (count, total) in ranked
    ]


def _where(module: str, place: str) -> dict[str, str]:
    """Of a row: the module and the place, where they are known."""
    return {
        **({"module": module} if module else {}),
        **({"place": place} if place else {}),
    }


def _growth(
    blocks: modules.Blocks, known: list[Named], step: int
) -> list[dict[str, Any]]:
    """What each of many steps added to and nothing freed."""
    left = (
        growth.Left(
            (
                known[phase].path,
                category_of(category, known[phase]),
                modules.folded(module),
                lines.place_of(stack),
            ),
            born,
            size,
        )
        for _, size, born, phase, category, module, stack in blocks
    )
    late = {one.path: one.late for one in known}
    return [
        {
            "phase": row["group"][0],
            "category": row["group"][1],
            **{key: value for key, value in row.items() if key != "group"},
            **_where(*row["group"][2:]),
        }
        for row in growth.growth(left, late, step)
    ]


def _room(memory: dict[str, int | None], cap: int | None, live: int) -> int | None:
    """Bytes that may be asked for yet, of the device's or the cap's."""
    whole, used = memory["device"], memory["device in use"]
    rooms = [] if cap is None else [cap - live]
    if whole is not None and used is not None:
        rooms.append(whole - used + (memory["reserved"] or 0) - live)
    return max(0, min(rooms)) if rooms else None
