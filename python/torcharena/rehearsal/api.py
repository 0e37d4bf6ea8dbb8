"""Rehearsals from Python: `rehearse`, `is_rehearsal`.

A function runs in a child process; ``packing`` takes it there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from .. import sizes
from ..settings import spill_bytes
from ..state import is_rehearsal
from . import cards
from .launch import ALLOCATORS
from .packing import packed
from .rehearsing import Options, rehearse_command
from .report import Report

__all__ = ["is_rehearsal", "rehearse", "rehearsed"]


def rehearse(
    fn: Callable[..., Any],
    *args: Any,
    gpu: str = "h100",
    gpus: int = 1,
    limit: int | str | None = None,
    spill: int | str | None = None,
    allocator: str = "all",
    steps: int | None = None,
    timeout: float | None = 600.0,
    seed: int = 0,
    values: bool = True,
    ranks: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    report: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Report:
    """Runs ``fn(*args, **kwargs)`` in a process on simulated GPUs; returns its `Report`.

    gpu: a card of the catalogue, a size such as ``"16GiB"``, or both.
    gpus: how many. limit: a cap on each device, bytes as in `sizes`.
    spill: host memory that the arena may use where there is no room.
    allocator: ``arena``, ``native``, ``expandable`` or ``all``: one run each.
    steps: end after so many optimizer steps; 0: run to the end; None: a run of more than
        half a minute ends when its peak no longer moves.
    timeout: seconds for each run, None for no end. seed: of values that are random.
    ranks: ``"all"``: the function runs once for each of ``gpus`` ranks of a node, at the same
        time, each in a process with the environment that torchrun would set.
    world_size, rank: the function runs as this one rank of so many, alone; with
        ``ranks="all"``, as the first node's ranks of so many.
    report: a file, .html or .json, for who used what under the arena: phases, categories,
        modules, timeline, growth. ``%r`` is the rank.

    The function's result is lost. Its exceptions are no exceptions here: the report's
    ``verdict`` is then ``the script failed`` and it has the text. Raises ValueError for
    arguments that make no sense, TypeError for a function that cannot be taken to another
    process, FileNotFoundError where the simulated GPU was not built."""
    if allocator != "all" and allocator not in ALLOCATORS:
        raise ValueError(f"allocator={allocator!r}: {', '.join(ALLOCATORS)} or all")
    size = sizes.parse(limit, name="limit")
    options = Options(
        gpu=gpu,
        gpus=gpus,
        limit=None if size is None else size.resolve(cards.find(gpu).memory),
        spill=spill_bytes(sizes.parse(spill, name="spill")),
        allocators=ALLOCATORS if allocator == "all" else (allocator,),
        steps=steps,
        timeout=timeout,
        seed=seed,
        values=values,
        ranks=ranks,
        world_size=world_size,
        rank=rank,
        report=None if report is None else os.fspath(report),
        quiet=True,
    )
    return rehearsed(fn, args, kwargs, options)


def rehearsed(
    fn: Callable[..., Any], args: Any, kwargs: dict[str, Any], options: Options
) -> Report:
    """`rehearse` with its options together."""
    shown = [f"{getattr(fn, '__qualname__', fn)}({_call(args, kwargs)})"]
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        payload = os.path.join(folder, "call")
        with open(payload, "wb") as file:
            file.write(packed(fn, args, kwargs))
        command = [sys.executable, "-m", "torcharena.rehearsal.calling", payload]
        return rehearse_command(command, options, shown=shown)


def _call(args: Any, kwargs: dict[str, Any]) -> str:
    said = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return ", ".join(text if len(text) <= 24 else f"{text[:21]}..." for text in said)
