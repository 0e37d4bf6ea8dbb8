"""CUDA graphs on a real GPU; `graph_replay` of test_gpu_hooks.py is the 1,000 replays."""

from __future__ import annotations

import pytest
from gpu_case import Started, start_all

NAMES = [
    "graphed_callables",
    "shared_pool",
    "released",
    "under_pressure",
    "refused_in_capture",
    "many_streams_in_capture",
]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Started:
    return start_all(request, "graph_cases.py")


@pytest.mark.parametrize("name", NAMES)
def test_graph(started: Started, name: str) -> None:
    started[name].result()
