"""Pools beside torch's own allocator on a real GPU."""

from __future__ import annotations

import pytest
from gpu_case import run_case

ALIKE = [
    "values",
    "values:host",
    "no_room",
    "refused",
    "graphs",
    "lifetimes",
    "busy",
    "parked",
    "threads",
    "out_of_order",
    "driver_fails",
]


def test_cases_alike() -> None:
    """`python pool_cases.py NAME [ARGUMENT]` runs one of them alone."""
    run_case("together", *ALIKE, program="pool_cases.py", quiet=False, timeout=300)


@pytest.mark.parametrize("name", ["host_full", "enabled"])
def test_alone(name: str) -> None:
    run_case(name, program="pool_cases.py", quiet=False)


def test_two_devices() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run_case("two_devices", program="pool_cases.py", quiet=False)


@pytest.mark.parametrize("how", ["asleep", "forked"])
def test_end(how: str) -> None:
    run_case("end", how, program="pool_cases.py")
