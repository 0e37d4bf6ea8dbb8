"""What torch's plug-in interface has no hook for, on a real GPU."""

from __future__ import annotations

import pytest
from gpu_case import Started, start_all

NAMES = ["trees", "trees_backward", "shared", "unshared", "profiled", "pools"]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Started:
    return start_all(request, "hole_cases.py")


@pytest.mark.parametrize("name", NAMES)
def test_hole(started: Started, name: str) -> None:
    started[name].result()
