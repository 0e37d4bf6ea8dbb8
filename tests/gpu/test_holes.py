"""What torch's plug-in interface has no hook for, on a real GPU."""

from __future__ import annotations

import pytest
from gpu_case import Started, run_case, start_all

NAMES = [
    "trees",
    "trees_backward",
    "shared",
    "unshared",
    "misanswered",
    "profiled",
    "pools",
]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Started:
    return start_all(request, "hole_cases.py")


@pytest.mark.parametrize("name", NAMES)
def test_hole(started: Started, name: str) -> None:
    started[name].result()


def test_promised() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run_case("promised", program="hole_cases.py", quiet=False)
