"""A report as a page: `page` is a whole HTML file, `compact` a view for a notebook's cell.

Pure: both are made of `Report.data` alone. The page has its style and script inside and asks
the network for nothing; the compact view has no script at all."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..sizes import format_size
from .pictures import (
    COLOURS,
    bar,
    legend,
    map_legend,
    map_svg,
    phase_colour,
    seconds_text,
    timeline_svg,
)
from .terminal import (
    cap_source,
    growth_size,
    held_by_error,
    module_title,
    peak_in,
    steps_left,
    unused_graphs,
)
from .timelines import ORDER, narrowed, squeezed

__all__ = ["compact", "page"]

_LASTS = 1_000_000  # steps; growth that takes longer to fill the device is no alarm
POINTS = 900  # of the page's timeline: a point is about a pixel
_MEMORY_COLOURS = {
    "asked for": "#3f78c3",
    "rounding": "#8fb0dc",
    "freed, a stream still uses it": "#e08a2e",
    "partly used pages": "#c9b458",
    "idle pages": "#d98a5a",
    "context and libraries": "#a58bc9",
    "other processes": "#6f7783",
    "unattributed": "#8d939c",
    "not ours": "#8d939c",  # in reports of before
}


def page(data: dict[str, Any]) -> str:
    """The whole report as one self-contained HTML file."""
    folder = Path(__file__).with_name("pages")
    peak = data["peak"]
    line = data.get("timeline")
    narrow = narrowed(squeezed(line), POINTS) if line else None
    script = (folder / "report.js").read_text()
    refused = data.get("out_of_memory")
    sections = [
        _tiles(data),
        _section("Out of memory", _refusal(refused), "refusal") if refused else "",
        _section("Over time", _timeline(data, narrow), "timeline") if narrow else "",
        '<div class="columns">',
        _section("What it held", _categories(data)),
        _section("The device now", _memory(data)),
        "</div>",
        _section("Phases", _phases(data)),
        _section("Modules", _modules(data)),
        _section("Largest at the peak", _holders(peak)),
        _section("Autograd graphs that were never run backward", _unused(data)),
        _section("Growth from step to step", _growth(data)),
        _section("Held by errors that are over", _held_by_errors(data)),
        _section("What would save most then, at most", _remedies(data)),
        _section("Pages of the arena now", _map(data["map"])) if data.get("map") else "",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>torcharena: peak {format_size(peak['bytes'])}</title>"
        '<link rel="icon" href="data:,">'
        f"<style>{(folder / 'report.css').read_text()}</style></head><body>"
        f"<header><h1>torcharena</h1><p>{_headline(data)}</p></header>"
        f"<main>{''.join(sections)}</main>"
        f"<footer>{_footer(data)}</footer>"
        f'<script type="application/json" id="timeline">{_embedded(narrow)}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def compact(data: dict[str, Any]) -> str:
    """The same for a notebook's cell, short: what, when, over time, by category."""
    line = data.get("timeline")
    parts = [
        '<div class="torcharena" style="max-width:960px;font-family:system-ui,sans-serif">',
        f'<p style="margin:.3em 0"><b>peak {format_size(data["peak"]["bytes"])}</b>, '
        f"{_headline(data, peak=False)}</p>",
    ]
    if line:
        parts.append(timeline_svg(line, points=220, height=220, cap=data["cap"]))
        parts.append(legend(line))
    parts.append(
        '<details style="margin:.5em 0"><summary style="cursor:pointer">categories, phases, '
        "largest holders, growth, device</summary>"
        f"{_categories(data)}{_phases(data)}{_modules(data)}{_holders(data['peak'])}"
        f"{_growth(data)}{_unused(data)}{_held_by_errors(data)}"
        f"{_remedies(data)}{_memory(data)}</details>"
    )
    if data.get("map"):
        parts.append(
            '<details style="margin:.5em 0"><summary style="cursor:pointer">pages of the arena'
            f"</summary>{_map(data['map'])}</details>"
        )
    parts.append("</div>")
    return "".join(parts)


# --- pieces --------------------------------------------------------------------------------
def _embedded(value: Any) -> str:
    """JSON that cannot end the script it is in."""
    if value is not None:
        value = {**value, "colours": COLOURS, "order": ORDER}
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _section(title: str, inside: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{title}</h2>{inside}</section>' if inside else ""


def _title(path: str) -> str:
    return escape(path or "outside phases")


def _headline(data: dict[str, Any], peak: bool = True) -> str:
    top = data["peak"]
    where = f" in <b>{escape(top['phase'])}</b>" if top["phase"] else ""
    step = f", step {top['step']}" if data["steps"] else ""
    begin = f"peak {format_size(top['bytes'])}, " if peak else ""
    return (
        f"{begin}device {data['device']}{where}{step}, {seconds_text(top['seconds'])} after "
        f"the start; reserved at most {format_size(data['reserved_peak'])}"
    )


def _tiles(data: dict[str, Any]) -> str:
    top = data["peak"]
    tiles = [
        ("peak", format_size(top["bytes"]), f"in {_title(top['phase'])}"),
        (
            "reserved at most",
            format_size(data["reserved_peak"]),
            f"{data['reserved_peak'] / top['bytes']:.3f} of the peak"
            if top["bytes"]
            else "",
        ),
        (
            "cap",
            "none" if data["cap"] is None else format_size(data["cap"]),
            "" if data["cap"] is None else escape(f"by {cap_source(data)}"),
        ),
        ("now", format_size(data["now"]["bytes"]), ""),
        ("steps", f"{data['steps']:,}", f"in {seconds_text(data['seconds'])}"),
    ]
    rows = data["growth"]
    left = data.get("steps_left")
    grows = bool(rows) and (left is None or left < _LASTS)
    if data["steps"] >= 6:
        each = sum(row["bytes_per_step"] for row in rows)
        tiles.append(
            (
                "growth",
                format_size(each) if rows else "none",
                "a step" if rows else "from step to step",
            )
        )
    boxes = "".join(
        f'<div class="tile{" warn" if name == "growth" and grows else ""}">'
        f"<span>{name}</span><strong>{value}</strong><small>{more}</small></div>"
        for name, value, more in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def _timeline(data: dict[str, Any], narrow: dict[str, Any]) -> str:
    drawn = timeline_svg(narrow, points=POINTS, height=320, cap=data["cap"], titles=False)
    span = seconds_text(narrow["interval_seconds"])
    return (
        f'<div class="plot">{drawn}<div class="tip" hidden></div></div>{legend(narrow)}'
        f'<p class="note">A point is the highest moment of {span}; ⋯ stands for time in which '
        "nothing changed. Drag to look closer, double click to see all.</p>"
    )


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: int | Container[int],
    total: bool = False,
) -> str:
    """Columns from the number ``numbers`` on are numbers, or these."""
    listed = list(rows)
    right = range(numbers, len(heads)) if isinstance(numbers, int) else numbers

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"right" if i in right else "left"};'
            f'padding:.15em .7em">{cell}</{tag}>'
            for i, cell in enumerate(row)
        )

    body = "".join(
        f"<tr{' class=total' if total and row is listed[-1] else ''}>{cells(row, 'td')}</tr>"
        for row in listed
    )
    return (
        '<div class="scroll"><table style="border-collapse:collapse;font:13px system-ui,'
        f'sans-serif;font-variant-numeric:tabular-nums"><thead><tr>{cells(heads, "th")}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _dot(colour: str) -> str:
    return (
        '<span style="display:inline-block;width:.75em;height:.75em;border-radius:2px;'
        f'margin-right:.5em;background:{colour}"></span>'
    )


def _categories(data: dict[str, Any]) -> str:
    peak, now = data["peak"], data["now"]
    names = [n for n in ORDER if peak["categories"].get(n) or now["categories"].get(n)]
    if not names:
        return ""
    rows = [
        (
            _dot(COLOURS[name]) + name,
            format_size(peak["categories"].get(name, 0)),
            f"{100 * peak['categories'].get(name, 0) / max(1, peak['bytes']):.1f} %",
            format_size(now["categories"].get(name, 0)),
        )
        for name in sorted(names, key=lambda n: -peak["categories"].get(n, 0))
    ]
    rows.append(("in all", format_size(peak["bytes"]), "", format_size(now["bytes"])))
    pieces = [(n, peak["categories"].get(n, 0), COLOURS[n]) for n in names]
    return bar(pieces, peak["bytes"]) + _table(
        ("category", "at the peak", "", "now"), rows, 1, total=True
    )


def _map(data: dict[str, Any]) -> str:
    on_host = any(row.get("host") for row in data["arenas"])
    return f'<div class="map">{map_svg(data)}</div>{map_legend(on_host)}'


def _memory(data: dict[str, Any]) -> str:
    memory = data["now"]["memory"]
    whole = memory.get("device") or memory.get("device in use") or memory["reserved"]
    away = sum(size for size in memory.values() if size and size < 0)
    pieces = [
        (name, (memory.get(name) or 0) + (away if name == "asked for" else 0), colour)
        for name, colour in _MEMORY_COLOURS.items()
    ]
    rows = []
    for name, size in memory.items():
        if size is not None:
            colour = _MEMORY_COLOURS.get(name, "none" if size < 0 else None)
            first = _dot(colour) + escape(name) if colour else f"<b>{escape(name)}</b>"
            last = format_size(size) if colour else f"<b>{format_size(size)}</b>"
            rows.append((first, last))
    return bar(pieces, whole or 0) + _table(("", ""), rows, 1)


def _phases(data: dict[str, Any]) -> str:
    rows = []
    spilled = any(row.get("spilled") for row in data["phases"])
    for row in data["phases"][:200]:
        around, _, name = row["path"].rpartition("/")
        deep = around.count("/") + 1 if around else 0
        timed = bool(row["entries"])
        rows.append(
            (
                f'<span style="padding-left:{1.2 * deep}em"></span>'
                f"{_dot(phase_colour(row['path']))}{_title(name)}",
                f"{row['entries']:,}" if timed else "",
                seconds_text(row["seconds"]) if timed else "",
                peak_in(row),
                format_size(row["kept"]),
                format_size(row["allocated"]),
                f"{row['allocations']:,}",
                f"{row['page_moves']:,}",
                f"{row['waits']:,}",
                *([format_size(row.get("spilled", 0))] if spilled else []),
            )
        )
    heads = (
        "phase",
        "times",
        "time",
        "peak",
        "kept",
        "allocated",
        "allocations",
        "page moves",
        "waits",
        *(["spilled"] if spilled else []),
    )
    more = len(data["phases"]) - len(rows)
    note = f'<p class="note">and {more:,} more phases</p>' if more > 0 else ""
    return _table(heads, rows, 1) + note if rows else ""


def _modules(data: dict[str, Any]) -> str:
    """A row for the modules of one kind, which opens to show each of them."""
    found = data.get("modules") or []
    if not found:
        return ""
    whole = max(1, data["peak"]["bytes"])
    most = max(1, *(row["peak"] for row in found))

    def cells(row: dict[str, Any], name: str) -> str:
        share = 100 * row["peak"] / whole
        drawn = (
            f'<span style="display:inline-block;height:.7em;border-radius:2px;opacity:.75;'
            f"background:{COLOURS['activation']};"
            f'width:{max(0.1, 8 * row["peak"] / most):.2f}em"></span>'
        )
        values = (
            format_size(row["peak"]),
            f"{share:.1f} %",
            drawn,
            format_size(row["now"]),
            format_size(row["allocated"]),
            f"{row['allocations']:,}",
        )
        body = "".join(
            f'<td style="text-align:{"left" if value is drawn else "right"};'
            f'padding:.15em .7em">{value}</td>'
            for value in values
        )
        return (
            f'<tr><td style="padding:.15em .7em;text-align:left">{name}</td>{body}</tr>'
        )

    lines = []
    for row in found:
        title = escape(module_title(row))
        if row["each"]:
            inside = "".join(
                f'<div style="padding-left:1.2em;opacity:.8">{escape(one["module"])}: '
                f"{format_size(one['peak'])}, allocated {format_size(one['allocated'])}</div>"
                for one in sorted(row["each"], key=lambda one: -one["peak"])
            )
            title = (
                f'<details><summary style="cursor:pointer">{title}</summary>{inside}'
                "</details>"
            )
        lines.append(cells(row, title))
    heads = ("module", "at the peak", "of all", "", "now", "allocated", "allocations")
    head = "".join(
        f'<th style="text-align:{"right" if i and title else "left"};padding:.15em .7em">'
        f"{title}</th>"
        for i, title in enumerate(heads)
    )
    return (
        '<div class="scroll"><table style="border-collapse:collapse;font:13px system-ui,'
        f'sans-serif;font-variant-numeric:tabular-nums"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _where(row: dict[str, Any], between: str = ", ") -> str:
    """Where a row was allocated, as far as it was told: phase, module, line."""
    parts = [_title(row["phase"])]
    if row.get("module"):
        parts.append(f"<b>{escape(row['module'])}</b>")
    if row.get("place"):
        parts.append(f"<code>{escape(row['place'])}</code>")
    return between.join(parts)


def _holders(peak: dict[str, Any]) -> str:
    rows = [
        (
            format_size(row["bytes"]),
            f"{100 * row['bytes'] / max(1, peak['bytes']):.1f} %",
            _dot(COLOURS.get(row["category"], COLOURS["other"]))
            + escape(row["category"]),
            _where(row),
            f"{row['blocks']:,} × {format_size(row['size'])}",
        )
        for row in peak["holders"]
    ]
    heads = ("bytes", "of all", "category", "allocated in", "blocks")
    return _table(heads, rows, (0, 1, 4)) if rows else ""


def _growth(data: dict[str, Any]) -> str:
    if data["steps"] < 6:
        return ""
    if not data["growth"]:
        return "<p>No growth: nothing piles up from step to step.</p>"
    rows = [
        (
            f"{format_size(row['bytes_per_step'])} a step",
            _dot(COLOURS.get(row["category"], COLOURS["other"]))
            + escape(row["category"]),
            _where(row, "<br>"),
            f"mostly {growth_size(row)}",
        )
        for row in data["growth"]
    ]
    note = (
        f'<p class="note">{left}.</p>' if (left := steps_left(data).capitalize()) else ""
    )
    return _table(("grows by", "category", "allocated in", "blocks"), rows, (0,)) + note


def _unused(data: dict[str, Any]) -> str:
    rows = data.get("unused_graphs")
    if not rows:
        return ""
    said = "".join(f"<li>{escape(unused_graphs(row))}</li>" for row in rows)
    return (
        f"<ul>{said}</ul><p>What backward would need was kept for nothing: "
        "<code>with torch.no_grad():</code> around them keeps none.</p>"
    )


def _held_by_errors(data: dict[str, Any]) -> str:
    rows = [
        (format_size(row["bytes"]), f"<code>{escape(held_by_error(row))}</code>")
        for row in data.get("held_by_errors") or ()
    ]
    note = (
        '<p class="note">An error remembers its frames, and they their variables, with the '
        "graphs behind them: "
        "<code>torcharena.free_exceptions()</code> lets go of them.</p>"
    )
    return _table(("bytes", "in"), rows, (0,)) + note if rows else ""


def _refusal(moment: dict[str, Any]) -> str:
    where = f" in <b>{escape(moment['phase'])}</b>" if moment["phase"] else ""
    held = ", ".join(
        f"{_dot(COLOURS.get(name, COLOURS['other']))}{escape(name)} {format_size(size)}"
        for name, size in moment["categories"].items()
    )
    return (
        f"<p><b>{format_size(moment['requested'])}</b> were refused{where}, step "
        f"{moment['step']}, {seconds_text(moment['seconds'])} after the start, while "
        f"{format_size(moment['bytes'])} lived:</p><p>{held}</p>{_holders(moment)}"
    )


def _remedies(data: dict[str, Any]) -> str:
    moment = data.get("out_of_memory") or data["peak"]
    rows = [
        (
            format_size(row["bytes"]),
            escape(row["what"]),
            '<span style="display:inline-block;white-space:normal;min-width:16em;'
            f'max-width:40em">{escape(row.get("how", ""))}</span>',
        )
        for row in moment.get("remedies", ())
    ]
    return _table(("saves", "remedy", "how"), rows, (0,)) if rows else ""


def _footer(data: dict[str, Any]) -> str:
    lost = (
        f" {data['not_counted']:,} blocks were not counted for want of host memory."
        if data["not_counted"]
        else ""
    )
    return (
        f"Bytes are those that tensors asked for, in 1,024s. Counting took "
        f"{format_size(data['recorder_bytes'])} of host memory.{lost}"
    )
