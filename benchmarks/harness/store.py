"""The file of results: a row for each figure that is measured, written as it comes.

A row is named by ``group``, ``case`` and ``contender``. Who goes on with a file measures what
it lacks; rows that failed count as lacking. All rows of a file are of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Store"]

Key = tuple[str, str, str]
# What must be equal for rows to stand in one file.
SAME = ("gpu", "torch", "simulated", "processor")


class Store:
    """Rows in memory and, where there is a path, in a file."""

    def __init__(self, path: Path | None = None, again: bool = False) -> None:
        """``again``: what is there is no reason not to measure. Raises ValueError where the
        file is no such file."""
        self.path = path
        self.again = again
        self.machine: dict[str, Any] = {}
        self.rows: dict[Key, dict[str, Any]] = {}
        self._fresh: set[Key] = set()
        if path is not None and path.exists():
            try:
                old = json.loads(path.read_text())
                self.machine = old["machine"]
                self.rows = {key_of(row): row for row in old["rows"]}
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is no file of results: {error!r}") from error

    def on(self, machine: dict[str, Any]) -> None:
        """Says where the coming rows are measured. Raises ValueError where the file's are of
        another machine."""
        for key in SAME:
            mine, theirs = machine.get(key), self.machine.get(key)
            if mine is not None and theirs is not None and mine != theirs:
                raise ValueError(f"{self.path} is of {key} {theirs}, this is {mine}")
        self.machine |= {k: v for k, v in machine.items() if v is not None}

    def has(self, group: str, case: str, contender: str) -> bool:
        """True where it need not be measured."""
        key = (group, case, contender)
        if self.again and key not in self._fresh:
            return False
        return key in self.rows and "error" not in self.rows[key]

    def get(self, group: str, case: str, contender: str) -> dict[str, Any] | None:
        """The row, if it is there and good."""
        row = self.rows.get((group, case, contender))
        return None if row is None or "error" in row else row

    def of(self, group: str) -> list[dict[str, Any]]:
        """A group's rows, in the order they came in first."""
        return [row for row in self.rows.values() if row["group"] == group]

    def put(self, row: dict[str, Any]) -> None:
        """Adds or replaces, and writes the file whole. A failure replaces no figure."""
        key = key_of(row)
        if "error" in row and self.get(*key) is not None:
            return
        self.rows[key] = row
        self._fresh.add(key)
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        text = json.dumps(
            {"machine": self.machine, "rows": list(self.rows.values())}, indent=1
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(text + "\n")
        part.replace(self.path)


def key_of(row: dict[str, Any]) -> Key:
    return row["group"], row["case"], row["contender"]
