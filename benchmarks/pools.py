"""What a pool's sleep and wake take beside torch's own allocator, on the GPU that is there.

    python -m benchmarks.pools [--gib 8] [--out pools.json]

One line of JSON: bytes, and seconds of the first sleep (pinning), of later ones, of waking, of
both without contents, and of filling the pool beside filling torch's own memory."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["measure"]

TENSORS = 64


def _timed(call: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(gib: float, rounds: int = 3) -> dict[str, Any]:
    """Of a pool of 64 tensors; best of the rounds but for the first sleep."""
    import torch
    import torcharena

    pool = torcharena.pool("measured")
    size = int(gib * (1 << 30)) // TENSORS
    held: list[Any] = []

    def fill() -> None:
        for _ in range(TENSORS):
            held.append(torch.ones(size, dtype=torch.uint8, device="cuda"))

    with pool:  # the first use makes the library's allocator
        pass
    torch.ones(1, dtype=torch.uint8, device="cuda")  # loads the kernel for both
    native = _timed(fill)
    held.clear()
    torch.cuda.empty_cache()

    def fill_pool() -> None:
        with pool:
            fill()

    filled = _timed(fill_pool)
    kept = [(_timed(pool.sleep), _timed(pool.wake_up)) for _ in range(rounds + 1)]
    dropped = [
        (_timed(lambda: pool.sleep(keep=False)), _timed(pool.wake_up))
        for _ in range(rounds)
    ]
    stats = pool.stats()
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bytes": stats["device_bytes"],
        "fill_native_s": native,
        "fill_pool_s": filled,
        "sleep_first_s": kept[0][0],
        "sleep_s": min(sleep for sleep, _ in kept[1:]),
        "wake_s": min(wake for _, wake in kept[1:]),
        "sleep_dropped_s": min(sleep for sleep, _ in dropped),
        "wake_dropped_s": min(wake for _, wake in dropped),
    }
    found["sleep_gb_s"] = stats["device_bytes"] / found["sleep_s"] / 1e9
    found["wake_gb_s"] = stats["device_bytes"] / found["wake_s"] / 1e9
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = json.dumps(measure(given.gib))
    if given.out is not None:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
