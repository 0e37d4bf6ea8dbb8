"""The program that a rehearsed function is: ``python -m torcharena.rehearsal.calling FILE``."""

from __future__ import annotations

import importlib
import linecache
import os
import pickle
import sys
from typing import Any


def main(file: str) -> None:
    """Calls what `api._packed` wrote."""
    with open(file, "rb") as source:
        packed: dict[str, Any] = pickle.load(source)
    sys.path[:] = [*sys.path, *(p for p in packed["path"] if p not in sys.path)]
    if packed["how"] == "pickle":
        fn, args, kwargs = pickle.loads(packed["call"])
    else:
        fn = _from_source(packed)
        args, kwargs = pickle.loads(packed["call"])
    fn(*args, **kwargs)


def _from_source(packed: dict[str, Any]) -> Any:
    space = vars(sys.modules["__main__"])
    for name, module in packed["modules"].items():
        space[name] = importlib.import_module(module)
    for name, value in packed["plain"].items():
        space[name] = pickle.loads(value)
    waiting = dict(packed["texts"])
    while waiting:  # a base class or a decorator must stand first
        error: NameError | None = None
        for name, (text, file, first) in list(waiting.items()):
            # At the lines where it stands, for what is said of them.
            placed = "\n" * (first - 1) + text
            if not os.path.exists(file):  # a notebook's cell
                linecache.cache[file] = (len(text), None, placed.splitlines(True), file)
            try:
                exec(compile(placed, file, "exec"), space)
            except NameError as missing:
                error = missing
                continue
            del waiting[name]
            break
        else:
            assert error is not None
            raise error
    return space[packed["name"]]


if __name__ == "__main__":
    main(sys.argv[1])
