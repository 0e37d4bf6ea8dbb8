"""One of several processes that share a GPU: does what it is told, a line at a time.

    python shared_cases.py < orders > answers

An order is a word and its argument: `grow MIB`, `free`, `limits`, `room`, `nvml`, `work S`,
`fill S`.
Each is answered by a line of JSON. The administrator's file is that of TORCHARENA_TEST_LIMITS,
and who runs the tests stands for root."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

from torcharena.caps import admin_file, ledgers, trust

MIB = 1 << 20


def main() -> None:
    """Enables the arena, then answers until the orders end."""
    admin_file.PATH = os.environ.get("TORCHARENA_TEST_LIMITS", "/nonexistent/limits.toml")
    trust.TRUSTED = {0, os.getuid()}
    if os.getuid() != 0:  # only root makes a directory that others share
        ledgers.unusable = lambda path: ""
    said: list[str] = []
    warnings.showwarning = lambda message, *_, **__: said.append(str(message))
    import torch
    import torcharena

    kept: list[Any] = []
    try:
        torcharena.enable()
        torch.cuda.init()
    except Exception as error:  # torch's own about CUDA's start is no RuntimeError
        answer({"error": str(error)})
        return
    answer({"pid": os.getpid(), "said": said})
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        before = time.monotonic()
        found: dict[str, Any] = {}
        try:
            if word == "grow":
                kept.append(
                    torch.empty(int(argument) * MIB, dtype=torch.uint8, device="cuda")
                )
            elif word == "free":
                kept.clear()
            elif word == "work":
                found["refused"] = work(torch, kept, float(argument), 64)
            elif word == "fill":
                found["refused"] = work(torch, kept, float(argument), 2048)
            elif word == "limits":
                found["text"] = str(torcharena.limits())
                found["limits"] = torcharena.limits().as_json()
            elif word == "room":
                found["room"] = torch.cuda.mem_get_info()
            elif word == "nvml":
                found["used"] = used(torch)
        except torch.OutOfMemoryError as error:
            found["error"] = str(error)
        found["seconds"] = time.monotonic() - before
        found["reserved"] = torch.cuda.memory_reserved()
        found["live"] = torch.cuda.memory_allocated()
        found["said"], said[:] = list(said), []
        answer(found)


def work(torch: Any, kept: list[Any], seconds: float, most: int) -> int:
    """Grows and shrinks at random for so long, by at most so many MiB; how often it was
    refused."""
    import random

    rng, refused, end = random.Random(os.getpid()), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if kept and rng.random() < 0.45:
            kept.pop(rng.randrange(len(kept)))
            if rng.random() < 0.2:
                torch.cuda.empty_cache()
            continue
        try:
            size = rng.randrange(1, most) * MIB
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            refused += 1
            kept[:] = kept[len(kept) // 2 :]
    return refused


def used(torch: Any) -> int:
    """What anybody holds of the device, by NVML."""
    from torcharena.top import nvml

    cards, why = nvml.cards()
    assert cards, why
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    (card,) = [card for card in cards if uuid in card.uuid]
    assert card.used is not None
    return card.used


def answer(found: dict[str, Any]) -> None:
    """A line of JSON."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
