"""Drawings of a report as SVG, with no script in them: the timeline, the address map.

Pure. Text takes the colour of its surroundings, so that they are right on light and dark
ground; numbers appear where the pointer rests, by titles."""

from __future__ import annotations

import bisect
from html import escape
from typing import Any

from ..sizes import format_size
from .address_map import GAP, HOST
from .timelines import ORDER, narrowed, squeezed

__all__ = ["COLOURS", "bar", "legend", "map_svg", "phase_colour", "timeline_svg"]

# Of like lightness, told apart by people who do not see all colours, on white and on black.
COLOURS = {
    "parameter": "#3f78c3",
    "buffer": "#8fb0dc",
    "optimizer state": "#8a63b8",
    "gradient": "#e08a2e",
    "activation": "#37a07a",
    "workspace": "#b9a545",
    "other": "#8d939c",
}
_PHASES = {
    "forward": "#5aa9d6",
    "backward": "#e5866a",
    "optimizer": "#a985cf",
    "zero_grad": "#c7b2de",
    "evaluation": "#7cc0a0",
    "load": "#d8bf6a",
    "": "#b9bec6",
}
_MORE = ("#cf6f9b", "#6fb3b8", "#b8935f", "#8c9fd9", "#9fb84f", "#d6a3c4")
# Of pages.
FULL, IDLE, ON_HOST = "#3f78c3", "#d98a5a", "#a58bc9"

_LEFT, _RIGHT, _TOP = 66, 12, 16  # around a timeline, in its own units
_APART = 44  # labels of steps
_STRIP = 12  # height of the row of phases


def phase_colour(path: str) -> str:
    """The same for the same phase in every report."""
    name = path.rpartition("/")[2]
    return _PHASES.get(name) or _MORE[sum(map(ord, name)) % len(_MORE)]


def seconds_text(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s``, ``3 h 20 min``."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds:.2f} s"
    if seconds < 7200:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02} min"


# --- axes ----------------------------------------------------------------------------------
def byte_ticks(most: int) -> list[int]:
    """Three to six round values from 0 up to ``most``, in powers of 1,024."""
    unit = 1
    while most >= unit * 1024:
        unit *= 1024
    for step in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for part in (4, 2, 1):  # quarters and halves of a unit where it is few of them
            if unit // part and most / (unit * step / part) <= 5:
                each = max(1, unit * step // part)
                return list(range(0, most + 1, each))
    return [0, most]


def second_ticks(begin: float, end: float) -> list[float]:
    """Some round values between."""
    span = end - begin
    if span <= 0:
        return []
    each = 1e-6
    for factor in (2, 2.5, 2) * 20:
        if span / each <= 8:
            break
        each *= factor
    first = -(-begin // each)
    return [round((first + i) * each, 9) for i in range(int(span / each) + 1)]


def _tick_text(at: float, step: float) -> str:
    return f"{at:.6f}".rstrip("0").rstrip(".") if step < 60 else f"{at:,.0f}"


# --- the timeline ----------------------------------------------------------------------------
def timeline_svg(
    data: dict[str, Any],
    *,
    points: int = 800,
    width: int = 960,
    height: int = 280,
    cap: int | None = None,
    titles: bool = True,
) -> str:
    """Live bytes by category over time, what was reserved as a line, and below them the
    phases and steps. ``titles``: the numbers of an interval where the pointer rests."""
    if "breaks" not in data:
        data = narrowed(squeezed(data), points)
    live = data["live"]
    if not live:
        return "<p>Nothing has been counted yet.</p>"
    interval = data["interval_seconds"]
    starts = [*data["seconds"], data["seconds"][-1] + interval]
    begin, end = starts[0], starts[-1]
    most = max(1, *live, *data["reserved"])
    if cap and cap < 1.5 * most:
        most = max(most, cap)
    bottom = height - 44  # of the plot
    x_scale = (width - _LEFT - _RIGHT) / len(live)
    y_scale = (bottom - _TOP) / (most * 1.06)

    def x(at: float) -> str:
        i = min(max(bisect.bisect_right(starts, at) - 1, 0), len(live) - 1)
        inside = (at - starts[i]) / ((starts[i + 1] - starts[i]) or 1)
        return f"{_LEFT + (i + min(1.0, inside)) * x_scale:.1f}".removesuffix(".0")

    def y(size: float) -> str:
        return f"{bottom - size * y_scale:.1f}".removesuffix(".0")

    edges = [f"{_LEFT + i * x_scale:.1f}".removesuffix(".0") for i in range(len(starts))]
    parts = [
        f'<svg class="ta-timeline" viewBox="0 0 {width} {height}" '
        f'xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="live bytes by category over time" '
        f'style="width:100%;max-width:{width}px;height:auto;display:block;'
        f'font:11px system-ui,sans-serif;fill:currentColor">',
        _axes(width, bottom, most, y, begin, end, x),
    ]
    below = [0] * len(live)
    for name in [n for n in ORDER if n in data["categories"]]:
        row = data["categories"][name]
        above = [low + size for low, size in zip(below, row, strict=True)]
        outline = _steps(edges, [y(size) for size in above])
        back = _steps(edges[::-1], [y(size) for size in below[::-1]])
        parts.append(
            f'<path d="M{outline}L{back}Z" fill="{COLOURS[name]}" '
            f'data-category="{escape(name)}"/>'
        )
        below = above
    if any(data["reserved"]):
        line = _steps(edges, [y(size) for size in data["reserved"]])
        parts.append(
            f'<path d="M{line}" fill="none" stroke="currentColor" '
            f'stroke-opacity=".65" stroke-width="1" stroke-dasharray="4 2"/>'
        )
    if cap and cap < 1.5 * most:
        parts.append(
            f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y(cap)}" y2="{y(cap)}" '
            f'stroke="#c8403a" stroke-width="1.2"/><text x="{width - _RIGHT}" '
            f'y="{float(y(cap)) - 3:.0f}" text-anchor="end" fill="#c8403a">cap '
            f"{format_size(cap)}</text>"
        )
    parts.append(_peak(data, edges, y, width))
    parts.append(_strip(data, edges, bottom + 4))
    for low, high in data["breaks"]:
        middle = (float(x(low)) + float(x(high))) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{bottom + 14}" text-anchor="middle" '
            f'font-weight="700">⋯<title>nothing changed for '
            f"{seconds_text(high - low)}</title></text>"
        )
    parts.append(_step_marks(data, x, bottom))
    if titles:
        parts.append(_titles(data, edges, bottom))
    parts.append("</svg>")
    return "".join(parts)


def _steps(edges: list[str], heights: list[str]) -> str:
    """A path along flat pieces, without the points at which nothing changes."""
    out = []
    before = ""
    for i, height in enumerate(heights):
        if height != before:
            out.append(f"{edges[i]} {before} {edges[i]} {height}" if before else "")
            out[-1] = out[-1] or f"{edges[i]} {height}"
        before = height
    return " ".join([*out, f"{edges[-1]} {before}"])


def _axes(
    width: int, bottom: int, most: int, y: Any, begin: float, end: float, x: Any
) -> str:
    parts = []
    for size in byte_ticks(most):
        parts.append(
            f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y(size)}" y2="{y(size)}" '
            f'stroke="currentColor" stroke-opacity=".14"/>'
            f'<text x="{_LEFT - 6}" y="{float(y(size)) + 4:.0f}" text-anchor="end" '
            f'opacity=".75">{format_size(size)}</text>'
        )
    ticks = second_ticks(begin, end)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    last = -1e9
    for at in ticks:
        if float(x(at)) - last < 34:  # where time is shortened
            continue
        last = float(x(at))
        parts.append(
            f'<text x="{x(at)}" y="{bottom + 40}" text-anchor="middle" opacity=".75">'
            f"{_tick_text(at, step)} s</text>"
        )
    return "".join(parts)


def _peak(data: dict[str, Any], edges: list[str], y: Any, width: int) -> str:
    live = data["live"]
    at = max(range(len(live)), key=live.__getitem__)
    left = f"{(float(edges[at]) + float(edges[at + 1])) / 2:.1f}"
    end = float(left) > width - 130
    anchor, move = ("end", -7) if end else ("start", 7)
    return (
        f'<circle cx="{left}" cy="{y(live[at])}" r="3.2" fill="#fff" stroke="#c8403a" '
        f'stroke-width="1.6"/><text x="{float(left) + move:.0f}" '
        f'y="{max(11.0, float(y(live[at])) - 6):.0f}" text-anchor="{anchor}" '
        f'font-weight="600" class="ta-peak">peak {format_size(live[at])}</text>'
    )


def _strip(data: dict[str, Any], edges: list[str], top: int) -> str:
    parts = []
    phase = data["phase"]
    begin = 0
    for i in range(1, len(phase) + 1):
        if i == len(phase) or phase[i] != phase[begin]:
            path = data["phases"][phase[begin]]
            wide = float(edges[i]) - float(edges[begin])
            parts.append(
                f'<rect x="{edges[begin]}" y="{top}" width="{wide:.1f}" '
                f'height="{_STRIP}" fill="{phase_colour(path)}">'
                f"<title>{escape(path or 'outside phases')}</title></rect>"
            )
            begin = i
    return "".join(parts)


def _step_marks(data: dict[str, Any], x: Any, bottom: int) -> str:
    """At most twenty steps have their number, two hundred a mark."""
    steps = data["steps"]
    marks = steps[:: max(1, -(-len(steps) // 200))]
    drawn = "".join(f"M{x(at)} {bottom + 4 + _STRIP}v3" for at, _ in marks)
    parts = [f'<path d="{drawn}" stroke="currentColor" stroke-opacity=".5"/>']
    places = [(float(x(at)), step) for at, step in steps]
    shown: list[tuple[float, int]] = []
    for left, step in places:
        if not shown or left - shown[-1][0] >= _APART:
            shown.append((left, step))
    if shown and shown[-1] != places[-1]:  # the last one says how many there were
        shown = [one for one in shown if places[-1][0] - one[0] >= _APART]
        shown.append(places[-1])
    parts += [
        f'<text x="{left:.0f}" y="{bottom + 28}" text-anchor="middle" '
        f'font-size="9" opacity=".6">step {step}</text>'
        for left, step in shown
    ]
    return "".join(parts)


def _titles(data: dict[str, Any], edges: list[str], bottom: int) -> str:
    """Rectangles that are not seen, and say what the interval held."""
    parts = ['<g fill="transparent">']
    for i, size in enumerate(data["live"]):
        lines = [
            f"{seconds_text(data['seconds'][i])}: {format_size(size)}",
            data["phases"][data["phase"][i]] or "outside phases",
        ]
        lines += [
            f"{name}: {format_size(row[i])}"
            for name, row in data["categories"].items()
            if row[i]
        ]
        wide = float(edges[i + 1]) - float(edges[i])
        parts.append(
            f'<rect x="{edges[i]}" y="{_TOP}" width="{wide:.1f}" '
            f'height="{bottom - _TOP}"><title>{escape(chr(10).join(lines))}</title></rect>'
        )
    parts.append("</g>")
    return "".join(parts)


def _chip(colour: str, text: str, more: str = "") -> str:
    return (
        f'<span style="white-space:nowrap;margin-right:1.1em;font:12px system-ui,'
        f'sans-serif"{more}><span style="display:inline-block;width:.8em;height:.8em;'
        f"border-radius:2px;margin-right:.35em;vertical-align:-.05em;"
        f'background:{colour}"></span>{escape(text)}</span>'
    )


def legend(data: dict[str, Any]) -> str:
    """What the timeline's colours mean: categories, then phases, at most ten of them."""
    chips = [_chip(COLOURS[name], name) for name in ORDER if name in data["categories"]]
    counts = [data["phase"].count(i) for i in range(len(data["phases"]))]
    often = sorted(range(len(counts)), key=lambda i: -counts[i])[:10]
    names = [data["phases"][i] for i in sorted(often)]
    phases = [_chip(phase_colour(name), name or "outside phases") for name in names]
    if any(data["reserved"]):
        chips.append(
            '<span style="white-space:nowrap;font:12px system-ui,sans-serif">'
            '<span style="display:inline-block;width:1.4em;border-top:1px dashed;'
            'margin-right:.35em;vertical-align:.25em"></span>reserved</span>'
        )
    return (
        f'<div style="line-height:1.7">{"".join(chips)}</div>'
        f'<div style="line-height:1.7;opacity:.85">'
        f'<span style="font:12px system-ui,sans-serif;margin-right:.8em">below, the '
        f"phase:</span>{''.join(phases)}</div>"
    )


# --- the address map ---------------------------------------------------------------------------
_CELL, _COLUMNS = 11, 90


def map_svg(data: dict[str, Any], arenas: int = 16) -> str:
    """Each arena's pages in address order: full, partly used, idle, on the host."""
    rows = data["arenas"][:arenas]
    if not rows:
        return "<p>No pages are mapped.</p>"
    width = _COLUMNS * _CELL
    parts, top = [], 4
    page = format_size(data["page_bytes"])
    each = "" if data["cell_pages"] == 1 else f", a cell {data['cell_pages']} of them"
    for row in rows:
        parts.append(
            f'<text x="0" y="{top + 11}" opacity=".85">{escape(row["kind"])}, stream '
            f"{row['stream']}: {format_size(row['bytes'])}, {row['full']:,} full, "
            f"{row['partly']:,} partly used, {row['idle']:,} idle"
            f"{f', {host:,} on the host;' if (host := row.get('host')) else ''}"
            f" pages of {page}{each}"
            f"</text>"
        )
        top += 17
        column = 0
        for cell in row["cells"]:
            if cell == GAP:
                column += 0 if column == 0 or column >= _COLUMNS else 1
                continue
            if column >= _COLUMNS:
                column, top = 0, top + _CELL
            parts.append(_cell(cell, column * _CELL, top))
            column += 1
        top += _CELL + 9
    left = data["arenas_left_out"] + len(data["arenas"]) - len(rows)
    if left:
        size = data["bytes_left_out"] + sum(
            row["bytes"] for row in data["arenas"][arenas:]
        )
        parts.append(f'<text y="{top + 11}">and {left} more: {format_size(size)}</text>')
        top += 17
    return (
        f'<svg class="ta-map" viewBox="0 0 {width} {top}" '
        f'xmlns="http://www.w3.org/2000/svg" role="img" aria-label="pages of the arena" '
        f'style="width:100%;max-width:{width}px;height:auto;display:block;font:12px '
        f'system-ui,sans-serif;fill:currentColor">{"".join(parts)}</svg>'
    )


def _cell(used: int, left: int, top: int) -> str:
    inside = _CELL - 1.5
    place = f'x="{left}" y="{top}" width="{inside}"'
    if used == HOST:
        return f'<rect {place} height="{inside}" fill="{ON_HOST}"/>'
    if used >= 100:
        return f'<rect {place} height="{inside}" fill="{FULL}"/>'
    if used == 0:
        return (
            f'<rect x="{left + 0.5}" y="{top + 0.5}" width="{inside - 1}" '
            f'height="{inside - 1}" fill="none" stroke="{IDLE}"/>'
        )
    high = max(1.5, inside * used / 100)
    return (
        f'<g><title>{used} % used</title><rect {place} height="{inside}" '
        f'fill="currentColor" opacity=".16"/><rect x="{left}" y="{top + inside - high:.1f}" '
        f'width="{inside}" height="{high:.1f}" fill="{FULL}"/></g>'
    )


def map_legend(on_host: bool = False) -> str:
    """What the map's cells mean."""
    idle = f"none;box-shadow:inset 0 0 0 1px {IDLE}"
    partly = f"linear-gradient(to top,{FULL} 50%,rgba(128,128,128,.35) 50%)"
    return (
        f'<div style="line-height:1.7">{_chip(FULL, "full")}'
        f"{_chip(partly, 'partly used, filled as far as it is')}"
        f"{_chip(idle, 'idle: mapped, nothing on it')}"
        f"{_chip(ON_HOST, 'in host memory') if on_host else ''}</div>"
    )


def bar(parts: list[tuple[str, int, str]], whole: int) -> str:
    """One bar of several parts (name, bytes, colour) of a whole."""
    pieces = "".join(
        f'<span title="{escape(name)}: {format_size(size)}" style="display:inline-block;'
        f'height:100%;width:{100 * size / whole:.3f}%;background:{colour}"></span>'
        for name, size, colour in parts
        if size > 0 and whole
    )
    return (
        f'<div style="height:1.1em;border-radius:3px;overflow:hidden;white-space:nowrap;'
        f'font-size:14px;line-height:0;background:rgba(128,128,128,.18)">{pieces}</div>'
    )
