"""The program that a rehearsed function is: ``python -m torcharena.rehearsal.calling FILE``."""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any


def main(file: str) -> None:
    """Calls what `packing.packed` wrote."""
    sys.excepthook = _without_us
    with open(file, "rb") as source:
        packed: dict[str, Any] = pickle.load(source)
    sys.path[:] = [*sys.path, *(p for p in packed["path"] if p not in sys.path)]
    for name, text in packed["cells"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    if packed["how"] == "pickle":
        fn, args, kwargs = pickle.loads(packed["call"])
    else:
        fn = _from_source(packed)
        args, kwargs = pickle.loads(packed["call"])
    # Of one that finds its batch size by itself, the function inside is meant.
    fn = getattr(fn, "_torcharena_inner", fn)
    fn(*args, **kwargs)


def _from_source(packed: dict[str, Any]) -> Any:
    space = vars(sys.modules["__main__"])
    for name, module in packed["modules"].items():
        space[name] = importlib.import_module(module)
    waiting: dict[str, Callable[[], None]] = {}
    for name, value in packed["plain"].items():
        waiting[name] = functools.partial(_unpickle, space, name, value)
    for name, text in packed["texts"].items():
        waiting[name] = functools.partial(_execute, space, *text)
    while waiting:  # a base class, a decorator, a value's class must stand first
        error: Exception | None = None
        for name, make in list(waiting.items()):
            try:
                make()
            except (NameError, AttributeError) as missing:
                error = missing
                continue
            del waiting[name]
            break
        else:
            assert error is not None
            raise error
    return space[packed["name"]]


def _unpickle(space: dict[str, Any], name: str, value: bytes) -> None:
    space[name] = pickle.loads(value)


def _execute(space: dict[str, Any], text: str, file: str, first: int) -> None:
    """At the lines where it stands, for what is said of them."""
    placed = "\n" * (first - 1) + text
    if not os.path.exists(file) and file not in linecache.cache:
        linecache.cache[file] = (len(text), None, placed.splitlines(True), file)
    exec(compile(placed, file, "exec"), space)


def _without_us(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A traceback begins where the function does."""
    inner = trace
    while inner is not None:
        inner = inner.tb_next
        if inner is not None and inner.tb_frame.f_code is main.__code__:
            trace = inner.tb_next or trace
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main(sys.argv[1])
