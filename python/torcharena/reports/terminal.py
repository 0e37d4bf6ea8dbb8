"""A report as text for a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from ..caps.caps import SOURCES
from ..sizes import format_size

__all__ = [
    "WIDEST",
    "cap_source",
    "comparison",
    "growth_size",
    "held_by_error",
    "module_title",
    "peak_in",
    "steps_left",
    "table",
    "unused_graphs",
]

MODULES = 15  # rows of the table
PHASES = 30
WIDEST = 100  # columns of a terminal that are used
_NAMES = 36  # the most of a phase's name


def _title(path: str) -> str:
    return path or "outside phases"


def cap_source(data: dict[str, Any]) -> str:
    """Whose the cap is, in words."""
    named = SOURCES.get(data["cap_source"], str(data["cap_source"]))
    return named.removeprefix("torcharena.")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def table(data: dict[str, Any], width: int = WIDEST) -> str:
    """The whole report, in so many columns: where they are few, those of a table that say
    least are left out."""
    peak, now = data["peak"], data["now"]
    where = f" in {peak['phase']}" if peak["phase"] else ""
    step = f", step {peak['step']}" if data["steps"] else ""
    first = (
        f"torcharena, device {data['device']}: peak {format_size(peak['bytes'])}{where}"
        f"{step}, {peak['seconds']:.1f} s after the start"
    )
    reserved = f"reserved at most {format_size(data['reserved_peak'])}"
    if data["cap"] is not None:
        reserved += f" of the cap of {format_size(data['cap'])} by {cap_source(data)}"
    whole = f"{first}; {reserved}"
    lines = [
        *([whole] if len(whole) <= width else [first, f"  {reserved}"]),
        "",
        f"  {'what it held':<20}{'at the peak':>14}{'':>9}{'now':>14}",
    ]
    names = dict.fromkeys([*peak["categories"], *now["categories"]])
    for name in names:
        then, here = peak["categories"].get(name, 0), now["categories"].get(name, 0)
        lines.append(
            f"  {name:<20}{format_size(then):>14}{_share(then, peak['bytes']):>9}"
            f"{format_size(here):>14}"
        )
    lines.append(
        f"  {'in all':<20}{format_size(peak['bytes']):>14}{'':>9}"
        f"{format_size(now['bytes']):>14}"
    )
    lines += _refusal(data["out_of_memory"])
    lines += _phases(data, width)
    lines += _modules(data, width)
    lines += _holders(peak, width)
    lines += _growth(data)
    lines += _unused(data)
    lines += _held_by_errors(data)
    lines += _remedies(data["out_of_memory"] or peak)
    lines += _memory(now["memory"])
    lines += ["", f"  counting took {format_size(data['recorder_bytes'])} of host memory"]
    if data["not_counted"]:
        lines += [
            f"  {data['not_counted']:,} blocks were not counted: no host memory",
        ]
    return "\n".join(part for line in lines for part in _folded(line, width)) + "\n"


def _folded(line: str, width: int) -> list[str]:
    """A sentence in as many lines as it takes."""
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_on_hyphens=False
    )


# Of a table: its title, its width, what a row says there, and whether any row says much.
_Column = tuple[str, int, Callable[[dict[str, Any]], str], bool]


# Those that can be spared, the first first; what no row says anything of goes before them.
_SPARED = ("allocs", "allocated", "moves", "waits", "seconds")


def _that_fit(columns: list[_Column], names: int, width: int) -> list[_Column]:
    """The columns that there is room for beside names so wide; dull ones only where names
    need not be cut, the others as long as 16 characters are left of these."""
    kept = list(columns)

    def over(least: int) -> bool:
        return 2 + least + 1 + sum(one[1] for one in kept) > width

    for one in [one for one in columns[::-1] if not one[3]]:
        if over(names):
            kept.remove(one)
    for title in _SPARED:
        if over(min(names, 16)):
            kept = [one for one in kept if one[0] != title]
    return kept


def peak_in(row: dict[str, Any]) -> str:
    """Of a phase's row: it has a peak where something was allocated in it."""
    return format_size(row["peak"]) if row["peak"] else "-"


def _phases(data: dict[str, Any], width: int) -> list[str]:
    every = data["phases"]
    if not every:
        return []
    rows = _most_telling(every)

    def counted(key: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: f"{row[key]:,}"

    def sized(key: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: format_size(row.get(key, 0))

    def times(row: dict[str, Any]) -> str:
        return f"{row['entries']:,}" if row["entries"] else ""

    def seconds(row: dict[str, Any]) -> str:
        return f"{row['seconds']:.2f}" if row["entries"] else ""

    columns: list[_Column] = [
        ("times", 7, times, True),
        ("seconds", 9, seconds, True),
        ("peak", 12, peak_in, True),
        ("kept", 12, sized("kept"), True),
        ("allocated", 12, sized("allocated"), True),
        ("allocs", 9, counted("allocations"), True),
        ("moves", 7, counted("page_moves"), any(row["page_moves"] for row in every)),
        ("waits", 7, counted("waits"), any(row["waits"] for row in every)),
    ]
    if any(
        row.get("spilled") for row in every
    ):  # told where there is room for little, too
        columns.insert(4, ("spilled", 12, sized("spilled"), True))
    names = [_indented(row["path"]) for row in rows]
    lines = _rows("phase", names, rows, columns, width, _cut)
    if len(every) > len(rows):
        lines.append(f"  and {len(every) - len(rows):,} more phases")
    return lines


def _rows(
    name: str,
    names: list[str],
    rows: list[dict[str, Any]],
    columns: list[_Column],
    width: int,
    shortened: Callable[[str, int], str],
) -> list[str]:
    """A table: an empty line, the titles, a line a row."""
    longest = max(16, *map(len, names))
    kept = _that_fit(columns, min(_NAMES, longest), width)
    room = width - 2 - sum(one[1] for one in kept)
    wide = min(_NAMES + 1, room, longest + 1)
    lines = ["", f"  {name:<{wide}}" + "".join(f"{one[0]:>{one[1]}}" for one in kept)]
    for title, row in zip(names, rows, strict=True):
        cells = "".join(f"{one[2](row):>{one[1]}}" for one in kept)
        lines.append(f"  {shortened(title, wide - 1):<{wide}}{cells}")
    return lines


def _most_telling(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Few enough to read, in their order: those with the highest peaks, each with the ones
    around it."""
    if len(every) <= PHASES + 1:
        return every
    ranked = sorted(every, key=lambda row: (row["peak"], row["seconds"]), reverse=True)
    shown: set[str] = set()
    for row in ranked:
        names = row["path"].split("/")
        around = {"/".join(names[: i + 1]) for i in range(len(names))}
        if len(shown | around) <= PHASES:
            shown |= around
    return [row for row in every if row["path"] in shown]


def module_title(row: dict[str, Any]) -> str:
    """A row's module as people read it, with how many it stands for."""
    name = row["module"] or "outside modules"
    return f"{name} ({row['modules']:,})" if row["modules"] > 1 else str(name)


def _modules(data: dict[str, Any], width: int) -> list[str]:
    rows = data.get("modules")
    if not rows:
        return []
    shown = rows if len(rows) <= MODULES + 1 else rows[:MODULES]
    whole = data["peak"]["bytes"]
    columns: list[_Column] = [
        ("at the peak", 13, lambda row: format_size(row["peak"]), True),
        ("", 9, lambda row: _share(row["peak"], whole), True),
        ("now", 12, lambda row: format_size(row["now"]), True),
        ("allocated", 12, lambda row: format_size(row["allocated"]), True),
        ("allocs", 9, lambda row: f"{row['allocations']:,}", False),
    ]
    names = [module_title(row) for row in shown]
    lines = _rows("module", names, shown, columns, width, _end_of)
    rest = rows[len(shown) :]
    if rest:
        held = sum(row["peak"] for row in rest)
        lines.append(f"  and {len(rest):,} more rows, {format_size(held)} at the peak")
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _end_of(text: str, width: int) -> str:
    return text if len(text) <= width else f"...{text[3 - width :]}"


def _place(row: dict[str, Any], width: int) -> str:
    """Where a row was allocated, as far as it was told: phase, module, line; less of it
    where that would be too long."""
    phase, module, place = _title(row["phase"]), row.get("module"), row.get("place")
    line = place.partition(" ")[0] if place else None
    for parts in ((phase, module, place), (phase, module, line), (module or phase, line)):
        text = ", ".join(part for part in parts if part)
        if len(text) <= width:
            break
    return _end_of(text, width)


def _indented(path: str) -> str:
    around, _, name = path.rpartition("/")
    return "  " * (around.count("/") + 1 if around else 0) + _title(name)


def _refusal(moment: dict[str, Any] | None) -> list[str]:
    if moment is None:
        return []
    held = ", ".join(
        f"{name} {format_size(size)}"
        for name, size in moment["categories"].items()
        if size * 200 >= moment["bytes"]  # else not worth its place
    )
    return [
        "",
        f"  out of memory in {_title(moment['phase'])}, step {moment['step']}, "
        f"{moment['seconds']:.1f} s after the start: "
        f"{format_size(moment['requested'])} more were asked for",
        f"    held then: {held or 'nothing'}",
    ]


def _holders(peak: dict[str, Any], width: int) -> list[str]:
    if not peak["holders"]:
        return []
    lines = ["", "  largest at the peak"]
    for row in peak["holders"]:
        each = f"{row['blocks']:,} x {format_size(row['size'])}"
        lines.append(
            f"  {format_size(row['bytes']):>12}  {each:<22} {row['category']:<17}"
            f"{_place(row, max(16, min(42, width - 56)))}"
        )
    return lines


def _growth(data: dict[str, Any]) -> list[str]:
    if data["steps"] < 6:
        return []
    if not data["growth"]:
        return ["", "  no growth from step to step"]
    lines = ["", "  growth from step to step"]
    for row in data["growth"]:
        lines.append(
            f"  {format_size(row['bytes_per_step']):>12} a step  {row['category']}, "
            f"allocated in {_title(row['phase'])}, mostly {growth_size(row)}"
        )
        if row.get("module") or row.get("place"):
            where = ", ".join(row[key] for key in ("module", "place") if row.get(key))
            lines.append(f"{'':>23}in {_end_of(where, 74)}")
    return [*lines, *([f"    {left}"] if (left := steps_left(data)) else [])]


def growth_size(row: dict[str, Any]) -> str:
    """Of a row of growth: how large, and how often where that is not in every step."""
    every = row.get("every", 1)
    often = f", in one step of {every:,}" if every > 1 else ""
    return f"{format_size(row['size'])} each{often}"


def steps_left(data: dict[str, Any]) -> str:
    """A sentence about when growth ends the program; empty where it is not known."""
    left = data.get("steps_left")
    if left is None:
        return ""
    if left >= 10_000_000:
        return "at this rate the memory lasts more than ten million steps"
    if left >= 100:  # two digits of it are known
        left = round(left, 2 - len(str(left)))
    return f"at this rate the memory is full after some {left:,} more steps"


def unused_graphs(row: dict[str, Any]) -> str:
    """A sentence about passes whose graphs never ran backward."""
    several = row["passes"] != 1
    text = (
        f"{row['passes']:,} forward pass{'es' if several else ''} in {row['mode']} mode, "
        f"{format_size(row['bytes'])}{' each at most' if several else ''}"
    )
    if row["alive"]:
        which = "it lives" if not several else f"{row['alive']:,} of them live"
        text += f"; {which} on: {format_size(row['alive_bytes'])}"
    return text


def _unused(data: dict[str, Any]) -> list[str]:
    rows = data.get("unused_graphs")
    if not rows:
        return []
    return [
        "",
        "  autograd graphs that were never run backward: use torch.no_grad()",
        *(f"    {unused_graphs(row)}" for row in rows),
    ]


def held_by_error(row: dict[str, Any]) -> str:
    """What an error holds: a variable, where, and how many tensors that is."""
    many = f" ({row['tensors']:,} tensors)" if row["tensors"] > 1 else ""
    return f"{row['name']}{many} in {row['place']}, of a {row['exception']}"


def _held_by_errors(data: dict[str, Any]) -> list[str]:
    rows = data.get("held_by_errors")
    if not rows:
        return []
    return [
        "",
        "  held by errors that are over, their graphs aside: "
        "torcharena.free_exceptions() lets go",
        *(f"  {format_size(row['bytes']):>12}  {held_by_error(row)}" for row in rows),
    ]


def _remedies(moment: dict[str, Any]) -> list[str]:
    if not moment["remedies"]:
        return []
    lines = ["", "  what would save most then, at most"]
    for row in moment["remedies"]:
        lines.append(f"  {format_size(row['bytes']):>12}  {row['what']}")
    return lines


def _memory(rows: dict[str, int | None]) -> list[str]:
    lines = ["", "  the device now"]
    for name, size in rows.items():
        if size is not None:
            sums = name in ("reserved", "device in use", "device")  # of those above
            lines.append(f"  {'' if sums else '  '}{name:<32}{format_size(size):>14}")
    return lines


def comparison(one: dict[str, Any], other: dict[str, Any], width: int = WIDEST) -> str:
    """What the second has more or less of than the first."""
    names = [*_by_module(one), *_by_module(other), *one["peak"]["phases"]]
    wide = min(
        width - 44, 48, max(24, 3 + max(map(len, [*names, *other["peak"]["phases"], ""])))
    )
    lines = [f"  {'':<{wide}}{'first':>14}{'second':>14}{'difference':>14}"]

    def row(name: str, first: int, second: int) -> None:
        sign = "+" if second > first else "-" if second < first else ""
        by = f"{sign}{format_size(abs(second - first))}" if sign else "same"
        lines.append(
            f"  {_end_of(name, wide - 1):<{wide}}{format_size(first):>14}{format_size(second):>14}{by:>14}"
        )

    row("peak", one["peak"]["bytes"], other["peak"]["bytes"])
    row("reserved at most", one["reserved_peak"], other["reserved_peak"])
    held = [
        ("at the peak", one["peak"]["categories"], other["peak"]["categories"]),
        ("peak by phase", one["peak"]["phases"], other["peak"]["phases"]),
        ("peak by module", _by_module(one), _by_module(other)),
    ]
    for title, first, second in held:
        if not first and not second:
            continue
        lines += ["", f"  {title}"]
        for name in dict.fromkeys([*first, *second]):
            row(f"  {_title(name)}", first.get(name, 0), second.get(name, 0))
    return "\n".join(lines) + "\n"


def _by_module(data: dict[str, Any]) -> dict[str, int]:
    rows = data.get("modules") or []
    return {row["module"] or "outside modules": row["peak"] for row in rows[:MODULES]}
