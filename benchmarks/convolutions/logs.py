"""The logs that convolutions.c writes, read: what PyTorch asked of cuDNN's backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "CONVOLUTIONS",
    "DESCRIPTOR",
    "HANDLE",
    "OPERATIONS",
    "Node",
    "Tree",
    "graphs",
    "nodes",
]

# cudnnBackendDescriptorType_t
CONVOLUTIONS = {10: "forward", 11: "weights", 12: "data"}
OPERATIONS = 801  # cudnnBackendAttributeName_t
HANDLE, DESCRIPTOR = 0, 15  # cudnnBackendAttributeType_t

# A descriptor as a tree: [type, [[attribute, its type, [value or tree, ...]], ...]].
Tree = list[Any]


class Node:
    """A descriptor of a log: what was set, what was got, how finalizing went."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.sets: dict[int, tuple[int, list[Any]]] = {}
        self.gets: dict[int, list[Any]] = {}
        self.status: int | None = None
        self.executed = 0
        self.failed = 0  # executions

    def tree(self) -> Tree:
        """Without handles."""
        return [
            self.kind,
            [
                [
                    name,
                    kind,
                    [v.tree() if isinstance(v, Node) else v for v in values],
                ]
                for name, (kind, values) in self.sets.items()
                if kind != HANDLE
            ],
        ]


def nodes(lines: Iterable[str]) -> Iterator[Node]:
    """Every descriptor of a log, in order of creation, as it was at its end."""
    alive: dict[str, Node] = {}
    made: list[Node] = []
    for line in lines:
        what, *words = line.split()
        if what == "C":
            alive[words[1]] = Node(int(words[0]))
            made.append(alive[words[1]])
            continue
        node = alive.get(words[0])
        if node is None:
            continue
        if what == "F":
            node.status = int(words[1])
        elif what == "X":
            node.executed += 1
            node.failed += words[1] != "0"
        elif what == "D":
            del alive[words[0]]
        elif words[3] == "0":
            name, kind = int(words[1]), int(words[2])
            values: list[Any]
            if kind == DESCRIPTOR:
                values = [alive.get(word) for word in words[4:]]
                values = [value for value in values if value is not None]
            elif kind in (4, 5):
                values = [float(word) for word in words[4:]]
            else:
                values = [int(word) for word in words[4:]]
            if what == "S":
                node.sets[name] = kind, values
            elif values or name not in node.gets:
                node.gets[name] = values
    yield from made


def graphs(lines: Iterable[str]) -> list[Tree]:
    """The operation graphs of one convolution each that a log has, each once."""
    found: dict[str, Tree] = {}
    for node in nodes(lines):
        _, operations = node.sets.get(OPERATIONS, (0, []))
        if len(operations) == 1 and operations[0].kind in CONVOLUTIONS:
            tree = node.tree()
            found.setdefault(json.dumps(tree), tree)
    return list(found.values())
