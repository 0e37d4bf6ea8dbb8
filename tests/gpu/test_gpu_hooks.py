"""The cases of the hooks, streams and graphs, by real PyTorch on a real GPU."""

from __future__ import annotations

import pytest
from gpu_case import run_case


@pytest.mark.parametrize(
    "name",
    [
        "g1",
        "g2",
        "g3",
        "g4",
        "g6",
        "g6_twice",
        "g8_loop",
        "g8_backward",
        "fraction",
        "record_stream",
        "own_stream",
        "external_stream_destroyed",
        "graph_replay",
        "warm_loop",
    ],
)
def test_case(name: str) -> None:
    run_case(name)


@pytest.mark.parametrize("how", ["tensors", "thread", "graph", "deleted"])
def test_exit(how: str) -> None:
    run_case("g5", how)


@pytest.mark.two_gpus
def test_two_gpus() -> None:
    run_case("two_gpus")
