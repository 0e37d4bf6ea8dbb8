"""Live bytes over time: `timeline`.

The C library samples by itself from the first phase, `track`, `report` or `timeline` on, in
bounded memory: 2,048 intervals, each with the moment of its highest live bytes. When they
are used up neighbours become one and the interval doubles."""

from __future__ import annotations

import os
from typing import Any

from ..loading import core
from ..state import DeviceLike, device_index, needs_cuda, needs_enabled
from . import phases, tracking

__all__ = ["ORDER", "Timeline", "collect", "narrowed", "squeezed", "timeline"]

# From the bottom of a picture to its top: what lives long is below.
ORDER = (
    "parameter",
    "buffer",
    "optimizer state",
    "workspace",
    "gradient",
    "activation",
    "other",
)


class Timeline:
    """A timeline's numbers: ``data``, lists of equal length, one item an interval.

    ``seconds`` is when each begins, since the start, and ``interval_seconds`` how long each
    is; ``live`` the highest live bytes in it, ``categories`` of those the bytes of each
    category, ``reserved`` the most that was reserved (0: not known), ``phase`` an index into
    ``phases``: where the program was at that moment. ``steps`` are pairs of seconds and the
    step that was under way then, one wherever it changed."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data["live"])

    def __repr__(self) -> str:
        return (
            f"<torcharena.Timeline: {len(self)} intervals of "
            f"{self.data['interval_seconds']:g} s>"
        )

    def _repr_html_(self) -> str:
        from .pictures import legend, timeline_svg

        return timeline_svg(self.data, points=240) + legend(self.data)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draws it with matplotlib: live bytes by category in GiB over seconds, what was
        reserved as a line, steps as marks. Saves the picture at ``path`` where one is given.
        Returns the matplotlib figure, which a notebook shows.

        Raises ImportError without matplotlib (``pip install 'torcharena[plot]'``), OSError
        for the file. Not for several threads at once: matplotlib is not."""
        return _plot(self.data, path)


def timeline(device: DeviceLike = None) -> Timeline:
    """How many bytes lived on the device, of what, over the time since counting began: with
    the first phase, `track`, `report` or `timeline`. Bytes and seconds.

    Costs some milliseconds; any thread may call it. Raises RuntimeError where the arena is
    not enabled, ValueError for a device that is not there."""
    needs_enabled("timeline")
    needs_cuda()
    phases.start()
    tracking.tell_all()
    return Timeline(collect(device_index(device)))


def collect(index: int) -> dict[str, Any]:
    """`Timeline.data` of a device, from when something first lived or was reserved there."""
    from .reporting import paths_of  # which imports this

    library = core()
    interval_us, samples = library.usage_timeline(index)
    used = (i for i, sample in enumerate(samples) if sample[0] or sample[1])
    first = max(0, next(used, 0) - 1)
    samples = samples[first:]
    interval = interval_us / 1e6
    seconds = [round((first + i) * interval, 6) for i in range(len(samples))]
    categories = {
        name: [sample[4][phases.CATEGORIES.index(name)] for sample in samples]
        for name in ORDER
    }
    paths = paths_of(library.usage_phases(index))
    used_paths = sorted({sample[2] for sample in samples})
    number = {phase: i for i, phase in enumerate(used_paths)}
    steps: list[list[float]] = []
    for at, sample in zip(seconds, samples, strict=True):
        if not steps or steps[-1][1] != sample[3]:
            steps.append([at, sample[3]])
    return {
        "interval_seconds": interval,
        "seconds": seconds,
        "live": [sample[0] for sample in samples],
        "reserved": [sample[1] for sample in samples],
        "categories": {name: row for name, row in categories.items() if any(row)},
        "phase": [number[sample[2]] for sample in samples],
        "phases": [paths[phase] for phase in used_paths],
        "steps": steps[1:],  # the first one was under way
    }


def squeezed(data: dict[str, Any]) -> dict[str, Any]:
    """The same with fewer intervals where nothing changed for long, between the cells of a
    notebook say. There they are longer; ``breaks`` has each such stretch, begin and end."""
    count = len(data["live"])
    key = list(zip(data["live"], data["reserved"], data["phase"], strict=True))
    starts = [i for i in range(count) if not i or key[i] != key[i - 1]]
    runs = list(zip(starts, [*starts, count][1:], strict=True))
    most = max(4, count // 48)
    kept: list[int] = []
    seconds: list[float] = []
    breaks: list[list[float]] = []
    for begin, end in runs:
        shown = most if end - begin > 2 * most else end - begin
        kept += range(begin, begin + shown)
        each = data["interval_seconds"] * (end - begin) / shown
        seconds += [round(data["seconds"][begin] + k * each, 6) for k in range(shown)]
        if end - begin > shown:
            until = data["seconds"][end - 1] + data["interval_seconds"]
            breaks.append([data["seconds"][begin], round(until, 6)])
    return {
        **data,
        "seconds": seconds,
        "breaks": breaks,
        **{name: [data[name][i] for i in kept] for name in ("live", "reserved", "phase")},
        "categories": {
            name: [row[i] for i in kept] for name, row in data["categories"].items()
        },
    }


def narrowed(data: dict[str, Any], most: int) -> dict[str, Any]:
    """The same in at most ``most`` intervals: of several the one with the highest live
    bytes stands for all."""
    count = len(data["live"])
    each = -(-count // most) if count else 1
    if each == 1:
        return data
    groups = [range(i, min(i + each, count)) for i in range(0, count, each)]
    high = [max(group, key=lambda i: data["live"][i]) for group in groups]
    return {
        **data,
        "interval_seconds": data["interval_seconds"] * each,
        "seconds": [data["seconds"][group[0]] for group in groups],
        "live": [data["live"][i] for i in high],
        "reserved": [max(data["reserved"][i] for i in group) for group in groups],
        "categories": {
            name: [row[i] for i in high] for name, row in data["categories"].items()
        },
        "phase": [data["phase"][i] for i in high],
    }


def _plot(data: dict[str, Any], path: str | os.PathLike[str] | None) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a timeline is plotted with matplotlib: pip install 'torcharena[plot]'"
        ) from error
    from .pictures import COLOURS

    gib = float(1 << 30)
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    interval = data["interval_seconds"]
    edges = [*data["seconds"], data["seconds"][-1] + interval] if data["seconds"] else []
    below = [0.0] * len(data["live"])
    for name in ORDER:
        if name in data["categories"]:
            row = data["categories"][name]
            above = [low + size / gib for low, size in zip(below, row, strict=True)]
            axes.stairs(
                above, edges, baseline=below, fill=True, color=COLOURS[name], label=name
            )
            below = above
    if any(data["reserved"]):
        reserved = [size / gib for size in data["reserved"]]
        axes.stairs(reserved, edges, baseline=None, color="0.4", lw=0.8, label="reserved")
    steps = data["steps"]
    for at, step in steps[:: max(1, len(steps) // 20)]:
        axes.axvline(at, color="0.7", lw=0.5, zorder=0)
        axes.annotate(
            str(step),
            (at, 1),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            va="bottom",
        )
    axes.set_xlabel("seconds" if not steps else "seconds; steps above")
    axes.set_ylabel("GiB")
    if data["categories"]:
        axes.legend(loc="upper left", fontsize=8, ncols=4, frameon=False)
    if data["live"]:
        axes.set_ylim(0, 1.2 * max(*data["live"], *data["reserved"], 1) / gib)
        axes.set_xlim(edges[0], edges[-1])
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
