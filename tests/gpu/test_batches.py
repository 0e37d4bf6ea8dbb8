"""The batch finder on a GPU."""

from __future__ import annotations

import pytest
from gpu_case import run_case

CASES = ("s25", "trains", "goes_on", "decorated", "sharded", "hostile")


@pytest.mark.parametrize("allocator", ["native", "expandable", "arena"])
def test_batches(allocator: str) -> None:
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    environment = expandable if allocator == "expandable" else None
    run_case(
        allocator,
        *CASES,
        program="batch_cases.py",
        environment=environment,
        quiet=False,  # NCCL says things of its own
    )


def test_with_host_memory() -> None:
    run_case("spill", "spills", program="batch_cases.py")
