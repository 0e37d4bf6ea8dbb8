"""An `Overview` as lines of text, for a terminal of a given width.

Each line is a list of (text, style) pieces: styles are rich's, and without rich the texts
alone are the picture. Sizes are short, 20.1G for 20.1 GiB; --json has bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .top import Gpu, Overview, Process

__all__ = ["Line", "lines", "plain", "short"]

Line = list[tuple[str, str]]
_SOURCES = {"environment": "env", "fraction": "frac", "admin": "admin", "api": "api"}
_MARKS = "█▒·┃…"
_ASCII = "#+.|~"
_NARROW = 100  # columns: below, less is shown


def short(size: int | None) -> str:
    """Four characters or so: ``0``, ``512M``, ``20.1G``; a ``-`` for not known."""
    if size is None:
        return "-"
    if size == 0:
        return "0"
    for unit, scale in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= scale - scale // 2000:
            value = size / scale
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
    return f"{size}B"


def plain(found: list[Line]) -> str:
    """The texts alone."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in found)


def lines(view: Overview, width: int, unicode: bool = True) -> list[Line]:
    """The whole picture, no line wider than ``width`` columns."""
    when = time.strftime("%H:%M:%S", time.localtime(view.time))
    mode = f"mode {view.mode}" if view.mode else "no administrator's file"
    where = f"ledger {view.ledger}" if view.ledger else "no ledger"
    marks = _MARKS if unicode else _ASCII
    legend = f"{marks[0]} counted {marks[1]} not {marks[3]} cap"
    found: list[Line] = [
        [("torcharena top", "bold"), (f"  {when}  {mode}, {where}", "")],
        [(f"cooperative: counts only processes that load torcharena   {legend}", "dim")],
    ]
    if view.problem:
        found += _wrapped(view.problem, width, "red")
    if view.nvml:
        found += _wrapped(f"device memory unknown: {view.nvml}", width, "dim")
    if not view.gpus and not view.problem:
        found += [[], [("nobody has been counted here yet", "")]]
    for gpu in view.gpus:
        found += [[], *_gpu(gpu, width, marks)]
        if not gpu.processes and not gpu.problem and not view.problem:
            found.append([("  no process is counted on it", "dim")])
    return [_cut(line, width) for line in found]


def _gpu(gpu: Gpu, width: int, marks: str) -> list[Line]:
    name = "GPU" if gpu.index is None else f"GPU {gpu.index}"
    head: Line = [(name, "bold")]
    if gpu.name:
        head.append((f"  {gpu.name}", "bold"))
    found = [[*head, (f"  {gpu.uuid}", "dim")]]
    if gpu.total and gpu.used is not None:
        found.append(_bar(gpu, gpu.total, gpu.used, min(width, 120) - 4, marks))
    counted: Line = [("  counted ", ""), (short(gpu.counted), "bold")]
    if gpu.cap is not None:
        style = "red" if gpu.counted > gpu.cap else "bold"
        counted += [(" of a cap of ", ""), (short(gpu.cap), style)]
        source = "the administrator" if gpu.cap_source == "admin" else gpu.cap_source
        counted.append((f" ({source})", "dim"))
    else:
        counted.append((", no cap over all", ""))
    found.append(counted)
    found.append(_device(gpu))
    if any(one.cap is not None for one in gpu.tenants):
        found += _tenants(gpu)
    if gpu.problem:
        found += _wrapped(gpu.problem, width, "red", "  ")
    if gpu.processes:
        found += _table(gpu.processes, width, marks[4])
    return found


def _device(gpu: Gpu) -> Line:
    if gpu.used is None:
        return [("  device  used unknown", "dim")]
    line: Line = [("  device  used ", ""), (short(gpu.used), "bold")]
    line.append((f" of {short(gpu.total)}, ", ""))
    contexts = sum(one.context or 0 for one in gpu.processes)
    others = sum(gpu.strangers.values())
    parts = [f"contexts {short(contexts)}"] if contexts else []
    if others:
        parts.append(f"others {short(others)}")
    line += [(short(gpu.unaccounted), "bold"), (" unaccounted for", "")]
    why = ", ".join(parts) or "contexts, others"
    line.append((f": {why}", "dim"))
    return line


def _tenants(gpu: Gpu) -> list[Line]:
    line: Line = [("  tenants ", "")]
    for place, one in enumerate(gpu.tenants):
        style = "red" if one.cap is not None and one.reserved > one.cap else ""
        of = f" of {short(one.cap)}" if one.cap is not None else ""
        text = f"{one.name or '(none)'} {short(one.reserved)}{of}"
        line += [(", " if place else "", ""), (text, style)]
    return [line]


def _bar(gpu: Gpu, total: int, used: int, room: int, marks: str) -> Line:
    """Counted, used but not counted, free; and where the cap is."""
    full, other, free, mark = tuple(marks[:4])
    counted = min(gpu.counted, used)
    one = max(min(round(room * counted / total), room), 1 if counted else 0)
    two = max(min(round(room * used / total), room) - one, 0)
    cells = [(full, "green")] * one + [(other, "yellow")] * two
    cells += [(free, "dim")] * (room - len(cells))
    if gpu.cap is not None and gpu.cap <= total:
        cells[min(int(room * gpu.cap / total), room - 1)] = (mark, "red")
    line: Line = [("  ", "")]
    for text, style in cells:
        if line[-1][1] == style:
            line[-1] = (line[-1][0] + text, style)
        else:
            line.append((text, style))
    return line


@dataclass(frozen=True)
class _Column:
    head: str
    text: Callable[[Process], str]
    right: bool = True
    least: int = 0  # columns; 0: as wide as what stands in it


def _name(one: Process) -> str:
    return f"{one.tenant}?" if one.claimed else one.tenant


def _name_in_full(one: Process) -> str:
    return f"{one.tenant} (claimed)" if one.claimed else one.tenant


def _cap(one: Process) -> str:
    if one.cap is None:
        return "none"
    source = one.cap_source or ""
    return f"{short(one.cap)} {_SOURCES.get(source, source)}"


def _columns(processes: Sequence[Process], width: int) -> list[_Column]:
    wide = width >= _NARROW
    pid = _Column("PID", lambda one: str(one.pid))
    sizes = [
        _Column("RESERVED", lambda one: short(one.reserved)),
        _Column("PEAK", lambda one: short(one.peak)),
        _Column("IDLE", lambda one: short(one.unused)),
        _Column("SPILLED", lambda one: short(one.spilled)),
    ]
    rest = [
        _Column("CAP", _cap),
        _Column("REFUSED", lambda one: str(one.refused)),
        _Column("STATE", lambda one: one.state, right=False),
    ]
    if not wide:
        sizes = sizes[:2] + sizes[3:] * any(one.spilled for one in processes)
    user = [_Column("USER", lambda one: one.user, right=False)] if wide else []
    names = [
        _Column("TENANT", _name_in_full if wide else _name, right=False, least=8),
        _Column("LABEL", lambda one: one.label, right=False, least=8),
    ]
    return [pid, *user, *names, *sizes, *rest]


def _table(processes: list[Process], width: int, cut: str) -> list[Line]:
    columns = _columns(processes, width)
    texts = [[column.text(one) for column in columns] for one in processes]
    widths = [
        max(len(c.head), *(len(row[n]) for row in texts)) for n, c in enumerate(columns)
    ]
    gap = 2 if sum(widths) + 2 * len(widths) <= width else 1
    over = sum(widths) + gap * (len(widths) - 1) + 2 - width
    while over > 0:  # the widest of the names gives
        names = [n for n, c in enumerate(columns) if c.least and widths[n] > c.least]
        if not names:
            break
        widths[max(names, key=lambda n: widths[n])] -= 1
        over -= 1
    found: list[Line] = [
        [(_row([c.head for c in columns], columns, widths, gap, cut), "dim")]
    ]
    for one, row in zip(processes, texts, strict=True):
        style = "dim" if one.state == "draining" else ("yellow" if one.refused else "")
        found.append([(_row(row, columns, widths, gap, cut), style)])
    return found


def _row(
    texts: list[str], columns: list[_Column], widths: list[int], gap: int, cut: str
) -> str:
    cells = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        if len(text) > width:
            end = width // 2  # what tells ranks apart stands there
            text = text[: width - 1 - end] + cut + text[-end:]
        cells.append(text.rjust(width) if column.right else text.ljust(width))
    return "  " + (" " * gap).join(cells)


def _wrapped(text: str, width: int, style: str, indent: str = "") -> list[Line]:
    import textwrap

    parts = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    return [[(part, style)] for part in parts]


def _cut(line: Line, width: int) -> Line:
    found: Line = []
    for text, style in line:
        if text := text[:width]:
            found.append((text, style))
            width -= len(text)
    return found
