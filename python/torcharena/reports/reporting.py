"""Who used what, when: `report`.

A report is plain numbers, taken at once; `Report.data` is what `save` writes as JSON and
what every view of it is made of."""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..loading import core
from ..state import DeviceLike, device_index, needs_cuda, needs_enabled
from . import address_map, lines, modules, phases, timelines, tracking
from .device_rows import device_rows
from .graphs import rows_of
from .remedies import remedies
from .terminal import WIDEST, comparison, table

__all__ = ["NOW", "Report", "category_of", "load", "paths_of", "report", "write_whole"]

VERSION = 1
_PEAK, _OOM, NOW = range(3)  # as in csrc/core/usage/usage.h
# What is neither told by `track` nor of one of these phases is what forward and backward
# made: activations, and their gradients.
_NOT_ACTIVATIONS = ("optimizer", "zero_grad", "load")
HOLDERS = 12  # of the largest groups at the peak
STEADY = 8  # completed steps that growth is looked for in
_FEWEST = 4  # of them that a growing group must have left something in


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
    paths = paths_of(named)
    now = library.usage_blocks(index, NOW)
    held = _groups(now, paths)
    peak = library.usage_blocks(index, _PEAK)
    stats = library.stats(index)
    graphs = [one.graphs for one in tracking.trackings()]
    unused = rows_of(graphs)
    return Report(
        {
            "torcharena_report": VERSION,
            "device": index,
            "seconds": look["now_us"] / 1e6,
            "steps": look["step"],
            "peak": _moment(
                look["peak"],
                peak,
                paths,
                look["step"],
                sum(one.held_since_before(look["peak"]["us"]) for one in graphs),
            ),
            "out_of_memory": _moment(
                look["out_of_memory"],
                library.usage_blocks(index, _OOM),
                paths,
                look["step"],
                sum(row["alive_bytes"] for row in unused),
            )
            if look["out_of_memory"]["requested"]
            else None,
            "now": {
                "bytes": look["live"],
                "categories": _sums(held, 1),
                "phases": _sums(held, 0),
                "memory": device_rows(stats, index),
            },
            "reserved_peak": stats["reserved"][1],
            "cap": stats["limit"],
            "cap_source": None if stats["limit"] is None else stats["limit_source"],
            "phases": [
                _phase_row(named, paths, number)
                for number in _order(named)
                if named[number]["allocs"] or named[number]["entries"]
            ],
            "modules": modules.rows(index, peak, now),
            "stacks": lines.recorded(),
            "growth": _growth(now, paths, look["step"]),
            "unused_graphs": unused,
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
    when: Any, blocks: modules.Blocks, paths: list[str], step: int, unused: int = 0
) -> dict[str, Any]:
    groups = _groups(blocks, paths)
    together: Groups = {}  # whichever module or line: what the remedies are told from
    passing = _groups((b for b in blocks if _passes(b, when["step"], step)), paths)
    for key, (count, size) in passing.items():
        alike = (key[0], key[1], key[2], "", "")
        had = together.get(alike, (0, 0))
        together[alike] = (had[0] + count, had[1] + size)
    moment = {
        "bytes": when["bytes"],
        "requested": when["requested"],
        "seconds": when["us"] / 1e6,
        "step": when["step"],
        "phase": paths[when["phase"]],
        "categories": _sums(groups, 1),
        "phases": _sums(groups, 0),
        "holders": _largest(groups),
    }
    found = remedies({**moment, "holders": _largest(together)}, unused)
    return {**moment, "remedies": found}


# --- phases ------------------------------------------------------------------------------
def paths_of(named: list[Any]) -> list[str]:
    """Paths such as ``step/forward``, by number; phase 0 is the empty path."""
    paths = [""]
    for one in named[1:]:
        around = paths[one["around"]]
        paths.append(f"{around}/{one['name']}" if around else one["name"])
    return paths


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


def _phase_row(named: list[Any], paths: list[str], number: int) -> dict[str, Any]:
    one = named[number]
    return {
        "path": paths[number],
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
def category_of(number: int, path: str) -> str:
    """A block's category by its number, told or not, and the phase that it is of."""
    name = phases.CATEGORIES[number]
    if name != "unknown":
        return name
    outermost = path.partition("/")[0]
    inner = path.rpartition("/")[2]
    if not path or outermost in _NOT_ACTIVATIONS or inner in _NOT_ACTIVATIONS:
        return "other"
    if inner.startswith("In["):  # a notebook's cell, itself
        return "other"
    return "activation"


# phase, category, size, module (folded), place: count, bytes
Groups = dict[tuple[str, str, int, str, str], tuple[int, int]]


def _groups(blocks: Iterable[modules.Block], paths: list[str]) -> Groups:
    counts = collections.Counter(
        (phase, category, size, module, stack)
        for _, size, _, phase, category, module, stack in blocks
    )
    groups: Groups = {}
    for (phase, category, size, module, stack), count in counts.items():
        key = (
            paths[phase],
            category_of(category, paths[phase]),
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


def _growth(blocks: modules.Blocks, paths: list[str], step: int) -> list[dict[str, Any]]:
    """Groups of one phase, category, module and place that each of many steps added to and nothing freed.
    The step under way, and what lives on for one step, say nothing."""
    last = range(max(1, step - STEADY), step - 1)
    left: dict[tuple[str, ...], dict[int, int]] = collections.defaultdict(dict)
    sizes: dict[tuple[str, ...], set[tuple[int, int]]] = collections.defaultdict(set)
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for _, size, born, phase, category, module, stack in blocks:
        if born in last:
            key = (
                paths[phase],
                category_of(category, paths[phase]),
                modules.folded(module),
                lines.place_of(stack),
            )
            left[key][born] = left[key].get(born, 0) + size
            sizes[key].add((born, size))
            counts[key] += 1
    found = [
        {
            "phase": key[0],
            "category": key[1],
            "bytes_per_step": int(statistics.median(by_step.values())),
            "steps": len(by_step),
            "blocks": counts[key],
            "size": _most_steps_left(sizes[key]),
            **_where(key[2], key[3]),
        }
        for key, by_step in left.items()
        if len(by_step) >= max(_FEWEST, len(last) // 2)
    ]
    return sorted(found, key=lambda row: -row["bytes_per_step"])


def _most_steps_left(born_and_size: set[tuple[int, int]]) -> int:
    """The size, the larger of two, of which most steps left a block."""
    steps = collections.Counter(size for _, size in born_and_size)
    return max(steps, key=lambda size: (steps[size], size))
