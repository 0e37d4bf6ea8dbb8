"""The child of `startup`: times the backing of so many bytes, twice."""

from __future__ import annotations

import sys
import time
from typing import Any

from ..harness.contenders import install
from ..harness.machine import machine
from ..harness.turns import serve


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds to allocate ``bytes`` in pieces of ``piece`` (0: in one), cold and again."""
    import torch

    size = asked["bytes"]
    piece = asked["piece"] or size
    found = {}
    for key in ("cold", "again"):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = [
            torch.empty(piece, dtype=torch.uint8, device="cuda")
            for _ in range(size // piece)
        ]
        found[key] = time.perf_counter() - start
        del kept
    return found


def main() -> None:
    install(sys.argv[1])
    import torch

    torch.empty(512, device="cuda")
    serve({"machine": machine()}, answer)


if __name__ == "__main__":
    main()
