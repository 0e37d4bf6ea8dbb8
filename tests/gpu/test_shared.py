"""Several processes on one real GPU under an administrator's file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_processes import Shared, shared

GIB, MIB = 1 << 30, 1 << 20
CONTEXT = GIB  # by which contexts may grow while processes run; a whole one is about half


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Shared]:
    ours, simulated = "TORCHARENA_", "TORCHARENA_SIM_"
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(simulated) or not name.startswith(ours)
    }
    with shared(tmp_path, kept) as made:
        yield made


def test_one_greedy_of_four(machine: Shared) -> None:
    """G14: four processes with caps from the environment; only the greedy one fails."""
    machine.write('mode = "observe"')
    modest = machine.start(3, TORCHARENA_LIMIT="4GiB")
    (greedy,) = machine.start(1, TORCHARENA_LIMIT="4GiB")
    got = 0
    while "error" not in (answer := greedy.ask("grow 512")):
        got += 512
    assert got == 4096 and "4.00 GiB" in answer["error"], answer
    for one in modest:
        one.grow(4000)
        assert one.ask("free")["live"] == 0
        one.grow(2000)
    print(machine.top("--once"))
    gpu = machine.gpu()
    assert len(gpu["processes"]) == 4
    assert all(row["reserved_bytes"] <= 4 * GIB for row in gpu["processes"])
    print(greedy.ask("limits")["text"])


def test_the_heir_of_60_gib(machine: Shared) -> None:
    """kill -9 of a holder of 60 GiB; another that asks for it at once gets it as soon as the
    driver has it back, and without an error."""
    machine.write('[limits]\ndevice = "64GiB"')
    holder, heir = machine.start(2)
    holder.grow(60 << 10)
    heir.grow(1 << 10)
    assert "64.00 GiB" in heir.refused(60 << 10)
    heir.ask("free")
    before = time.monotonic()
    holder.kill()
    found = heir.grow(60 << 10)
    print(f"60 GiB had after {time.monotonic() - before:.2f} s, the kill included")
    assert found["reserved"] >= 60 * GIB
    gpu = machine.gpu()
    assert gpu["counted_bytes"] <= 64 * GIB
    assert [row["state"] for row in gpu["processes"]] == ["alive"]


def test_two_under_one_cap_as_nvml_sees_them(machine: Shared) -> None:
    """The device's used bytes are never above the cap and the contexts, which `top` shows."""
    cap = 20 * GIB
    machine.write('[limits]\ndevice = "20GiB"')
    one, other, watcher = machine.start(3)
    for each in (one, other, watcher):
        each.grow(1)
    idle = watcher.ask("nvml")["used"]  # contexts, and whoever else is there
    highest, stop = 0, threading.Event()

    def read() -> None:
        nonlocal highest
        while not stop.is_set():
            highest = max(highest, watcher.ask("nvml")["used"])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for each in (one, other):
            each.tell("fill 8")
        refused = [each.hear()["refused"] for each in (one, other)]
    finally:
        stop.set()
        reader.join()
    print(
        f"highest {highest / GIB:.2f} GiB, before it {idle / GIB:.2f}, refused {refused}"
    )
    assert max(refused) > 0
    assert cap - 2 * GIB < highest - idle <= cap + CONTEXT
    picture = machine.top("--once")
    print(picture)
    gpu = machine.gpu()
    assert gpu["counted_bytes"] <= cap
    assert gpu["unaccounted_bytes"] == gpu["used_bytes"] - gpu["counted_bytes"]
    assert abs(gpu["unaccounted_bytes"] - idle) < CONTEXT
    assert "unaccounted for" in picture
