"""For notebooks: ``%load_ext torcharena``, ``%arena``, ``%%arena``, and `watch`.

IPython is imported here alone, and only when one of these is used."""

from __future__ import annotations

import ast
import threading
import weakref
from html import escape
from typing import Any

from ..loading import core
from ..sizes import format_size
from ..state import DeviceLike, device_index, enabled, needs_cuda, needs_enabled
from . import phases, timelines
from .terminal import peak_in

__all__ = ["Cell", "State", "Watch", "load", "unload", "watch"]

POINTS = 200  # of a live view's timeline


class _Shown:
    """Text on a terminal, HTML where a notebook asks for it."""

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class State(_Shown):
    """What ``%arena`` shows: a device's numbers at one moment, in bytes."""

    def __init__(self, index: int) -> None:
        needs_cuda()
        phases.start()
        stats, look = core().stats(index), core().usage_look(index)
        self.device = index
        self.live = stats["requested"][0][0]
        self.peak = look["peak"]["bytes"]
        self.reserved = stats["reserved"][0]
        self.idle = stats["idle"]
        self.cap = stats["limit"]
        self.data = timelines.collect(index)

    def __str__(self) -> str:
        cap = "no cap" if self.cap is None else f"cap {format_size(self.cap)}"
        return (
            f"device {self.device}: {format_size(self.live)} live, at most "
            f"{format_size(self.peak)}; {format_size(self.reserved)} reserved, of that "
            f"{format_size(self.idle)} idle; {cap}"
        )

    def _repr_html_(self) -> str:
        from .pictures import legend, timeline_svg

        drawn = timeline_svg(self.data, points=POINTS, height=200, cap=self.cap)
        return f"<div>{escape(str(self))}</div>{drawn}{legend(self.data)}"


class Cell(_Shown):
    """What a cell used and kept: ``%%arena`` shows it, and leaves it in ``_arena``.

    Bytes: ``before`` it and ``after`` it, its ``peak``, ``kept`` of what was allocated in
    it, by category ``held``; ``reserved`` after it; ``held_by_errors`` in tensors that errors
    keep alive, this cell's too. ``seconds`` it took."""

    def __init__(self, name: str, index: int) -> None:
        self.name, self.device = name, index
        self.before = self.after = self.peak = self.kept = self.reserved = 0
        self.allocations = self.page_moves = 0
        self.seconds = 0.0
        self.held_by_errors = 0
        self.held: dict[str, int] = {}
        self.inside: list[dict[str, Any]] = []  # its phases

    def __str__(self) -> str:
        grown = self.after - self.before
        lines = [
            f"{self.name}: peak {format_size(self.peak)}, "
            f"{format_size(max(0, self.peak - self.before))} above what lived before; "
            f"kept {format_size(self.kept)} of its own, "
            f"{'+' if grown >= 0 else ''}{format_size(grown)} in all; "
            f"{self.seconds:.2f} s"
        ]
        if len(self.inside) > 1:
            wide = max(len(row["path"]) for row in self.inside) + 2
            lines.append(
                f"  {'':<{wide}}{'times':>7}{'peak':>12}{'kept':>12}{'allocations':>13}"
            )
            lines += [
                f"  {row['path']:<{wide}}{row['entries'] or '':>7}"
                f"{peak_in(row):>12}{format_size(row['live']):>12}"
                f"{row['allocations']:>13,}"
                for row in self.inside
            ]
        if self.held:
            parts = ", ".join(f"{k} {format_size(v)}" for k, v in self.held.items())
            lines.append(f"  kept: {parts}")
        if self.held_by_errors:
            lines.append(
                f"  errors that are over hold {format_size(self.held_by_errors)}, and "
                "their graphs: torcharena.free_exceptions()"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from .pictures import COLOURS, bar

        first, *rest = str(self).split("\n")
        pieces = [(k, v, COLOURS[k]) for k, v in self.held.items()]
        more = f"<pre style='margin:.3em 0;font-size:12px'>{escape(chr(10).join(rest))}</pre>"
        return (
            f"<div><b>{escape(self.name)}</b>{escape(first[len(self.name) :])}</div>"
            f"{bar(pieces, self.peak) if pieces else ''}{more if rest else ''}"
        )


def run_cell(shell: Any, source: str, index: int) -> tuple[Cell, Any, Any]:
    """Runs a cell as a phase of its number. Also returns the value of its last expression,
    and the error that it ended with, None where it did not."""
    from .reporting import report

    # The number is that of the history: the counter of newer shells is one ahead by now.
    number = max(1, len(shell.user_ns.get("In", ())) - 1)
    cell = Cell(f"In[{number}]", index)
    needs_cuda()
    phases.start()
    cell.before = core().usage_look(index)["live"]
    value = error = None
    with phases.phase(cell.name):
        try:
            value = _execute(shell, source)
        except BaseException as raised:
            error = raised
    data = report(index).data
    cell.after = data["now"]["bytes"]
    cell.reserved = data["now"]["memory"]["reserved"]
    cell.inside = [
        row
        for row in data["phases"]
        if row["path"] == cell.name or row["path"].startswith(f"{cell.name}/")
    ]
    cell.peak = max([cell.before, cell.after, *(row["peak"] for row in cell.inside)])
    cell.kept = sum(row["live"] for row in cell.inside)
    cell.allocations = sum(row["allocations"] for row in cell.inside)
    cell.page_moves = sum(row["page_moves"] for row in cell.inside)
    cell.seconds = cell.inside[0]["seconds"] if cell.inside else 0.0
    cell.held = _held(index, cell.name)
    cell.held_by_errors = sum(row["bytes"] for row in data["held_by_errors"])
    return cell, value, error


def _execute(shell: Any, source: str) -> Any:
    """In the notebook's names, magics and all; without ``await`` outside of functions."""
    text = shell.transform_cell(source)
    name = shell.compile.cache(text, shell.execution_count, raw_code=source)
    tree = ast.parse(text, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, name, "exec"), shell.user_ns)
    return None if last is None else eval(compile(last, name, "eval"), shell.user_ns)


def _held(index: int, name: str) -> dict[str, int]:
    """Live bytes of a phase and those inside it, by category."""
    from .reporting import NOW, category_of, known_phases

    library = core()
    blocks = library.usage_blocks(index, NOW)
    known = known_phases(library.usage_phases(index))
    sums: dict[str, int] = {}
    for _, size, _, phase, category, *_ in blocks:
        path = known[phase].path
        if path == name or path.startswith(f"{name}/"):
            kind = category_of(category, known[phase])
            sums[kind] = sums.get(kind, 0) + size
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


# --- the live view -----------------------------------------------------------------------
class Watch:
    """A live view: `watch` made it. `stop` ends it, or leaving it as a context manager; it
    ends by itself when nobody holds it, when its time is up, and with the kernel."""

    def __init__(self, index: int, interval: float, most: float) -> None:
        from IPython.display import display

        self._index = index
        self._stop = threading.Event()
        self.updates = 0
        self.error: BaseException | None = None
        self._handle: Any = display(State(index), display_id=True)
        self._thread = threading.Thread(
            target=_keep_up,
            args=(weakref.ref(self), self._stop, interval, int(most / interval)),
            name="torcharena.watch",
            daemon=True,
        )
        self._thread.start()

    def _update(self) -> None:
        self._handle.update(State(self._index))
        self.updates += 1

    @property
    def running(self) -> bool:
        """Whether it still updates."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends it; the view shows what was last. Again: nothing."""
        if not self._stop.is_set():
            self._stop.set()
            if self._thread is not threading.current_thread():
                self._thread.join(5)
            self._update()

    def __del__(self) -> None:
        self._stop.set()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _keep_up(
    reference: weakref.ref[Watch], stop: threading.Event, interval: float, most: int
) -> None:
    """The thread. Each round it holds the view only while it updates it."""
    for _ in range(most):
        if stop.wait(interval):
            return
        view = reference()
        if view is None:
            return
        try:
            view._update()
        except Exception as error:  # the connection to the page is gone, say
            view.error = error
            return
        del view


_watched: dict[int, Watch] = {}


def watch(
    device: DeviceLike = None, *, interval: float = 1.0, most: float = 3600.0
) -> Watch:
    """A view of the device's memory in a notebook that updates itself every ``interval``
    seconds from a thread, for ``most`` seconds: live bytes over time, by category. One view
    a device: a new one ends the one before.

    Raises RuntimeError where the arena is not enabled, ImportError without IPython,
    ValueError for a device that is not there or an interval under 0.1, TypeError for what is
    no number."""
    needs_enabled("watch")
    for name, seconds in (("interval", interval), ("most", most)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(
                f"watch({name}={seconds!r}): a number of seconds, such as 0.5"
            )
    if not interval >= 0.1 or not most >= interval:
        raise ValueError(
            f"watch(interval={interval}, most={most}): at least 0.1 seconds, and no longer "
            f"than most"
        )
    index = device_index(device)
    before = _watched.pop(index, None)
    if before is not None:
        before.stop()
    _watched[index] = Watch(index, interval, most)
    return _watched[index]


# --- magics --------------------------------------------------------------------------------
def _magic(shell: Any, line: str, cell: str | None = None) -> Any:
    words = line.split()
    if not enabled():
        print(
            "The arena is not enabled: torcharena.enable() in the first cell, before "
            "anything uses CUDA, after a restart of the kernel."
        )
        return None if cell is None else _execute(shell, cell)
    if len(words) > 1:
        raise ValueError(f"%arena {line}: a device, or nothing")
    index = device_index(int(words[0]) if words and words[0].isdigit() else None)
    if words and not words[0].isdigit():
        index = device_index(words[0])
    if cell is None:
        return State(index)
    from IPython.display import display

    made, value, error = run_cell(shell, cell, index)
    shell.user_ns["_arena"] = made
    display(made)
    if error is not None:
        raise error
    return value


def load(shell: Any) -> None:
    """What ``%load_ext torcharena`` calls."""
    shell.register_magic_function(
        lambda line, cell=None: _magic(shell, line, cell), "line_cell", "arena"
    )


def unload(shell: Any) -> None:
    """What ``%unload_ext torcharena`` calls."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("arena", None)
    for view in list(_watched.values()):
        view.stop()
    _watched.clear()
