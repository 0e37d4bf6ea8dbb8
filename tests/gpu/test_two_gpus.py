"""Copies between two GPUs, and training on both with NCCL, under the arena."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_case import run_case

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import two_gpus

pytestmark = pytest.mark.two_gpus
STEPS = 10


def good(run: dict[str, Any]) -> dict[str, Any]:
    """The run, which ended well and said nothing of ours."""
    assert "error" not in run, f"{run['error']}\n{run['stderr'][-4000:]}"
    ours = [line for line in run["stderr"].splitlines() if line.startswith("torcharena")]
    assert not ours, ours
    return run


def test_copies() -> None:
    run_case("between_devices", program="life_cases.py")


@pytest.mark.parametrize("way", two_gpus.WAYS)
def test_losses_are_those_of_native(way: str) -> None:
    runs: dict[str, list[dict[str, Any]]] = {"native": [], "arena": []}
    for allocator in ("native", "arena", "native", "arena"):
        runs[allocator].append(good(two_gpus.run_ranks(way, allocator, steps=STEPS)))
    native, arena = rows = two_gpus.compare(way, runs)
    print(two_gpus.table(rows))
    assert len(arena["losses"]) == STEPS
    assert arena["loss_difference"] <= 2 * native["loss_spread"], rows
    assert arena["ratio"] <= 1.05, rows


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_launchers(launcher: str) -> None:
    good(two_gpus.run_ranks("fully_shard", "arena", steps=4, launcher=launcher))
