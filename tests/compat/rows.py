"""What a row is, and the list of them.

A row is a generator: it sets up a real model with random weights, and yields a loss after
every step; what stands before the first yield is set-up. Seeds are set before it starts, so
that two runs do the same work. A row that finds something wrong raises."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "ROWS", "Row", "load", "row"]

Body = Callable[[], Iterator[Any]]

# In the table's order.
FAMILIES = {
    "precision": "Precision",
    "recomputation": "Recomputation",
    "batching": "Batching",
    "several_gpus": "Several GPUs",
    "offload": "Offload by others",
    "model_size": "Model size",
    "data": "Data",
    "frameworks": "Frameworks",
    "compilation": "Compilation and graphs",
    "sharing": "Sharing",
    "process": "Life of a process",
    "servers": "Servers: memory that sleeps",
    "tools": "Tools",
}
ROWS: dict[str, Row] = {}


@dataclass(frozen=True)
class Row:
    """``needs`` are modules that it imports; ``processes`` run it at once, one a GPU;
    ``rehearsed``: it is run on the simulated GPU in CI too; ``exact`` False: two runs differ
    in their losses by more than rounding; ``compare`` False: they tell nothing. ``expects`` is a part of the error's text where
    the technique does not work, and ``instead`` what to do then."""

    name: str
    family: str
    title: str
    body: Body
    needs: tuple[str, ...] = ()
    gpus: int = 1
    processes: int = 1
    rehearsed: bool = True
    compare: bool = True
    exact: bool = True
    expects: str = ""
    instead: str = ""


def row(title: str, **options: Any) -> Callable[[Body], Body]:
    """Makes a function a row of the family that its file is."""

    def add(body: Body) -> Body:
        family = body.__module__.rpartition(".")[2]
        assert family in FAMILIES, family
        assert body.__name__ not in ROWS, body.__name__
        ROWS[body.__name__] = Row(body.__name__, family, title, body, **options)
        return body

    return add


def load() -> dict[str, Row]:
    """Every row, by name, in the table's order. Imports torch."""
    from . import families

    names = {found.name for found in pkgutil.iter_modules(families.__path__)}
    assert names <= set(FAMILIES), names - set(FAMILIES)
    for name in FAMILIES:
        if name in names:
            importlib.import_module(f"{families.__name__}.{name}")
    return ROWS
