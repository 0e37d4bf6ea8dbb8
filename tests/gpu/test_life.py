"""The process's end, its children, out of memory and going on, on a real GPU. The ends of
`g5` are in test_gpu_hooks.py."""

from __future__ import annotations

import pytest
from gpu_case import Started, run_case, start_all

NAMES = [
    "end_busy",
    "end_autograd",
    "end_atexit",
    "end_sys_exit",
    "end_forgotten",
    "loader fork",
    "loader fork plain",
    "loader spawn",
    "forked",
    "spawned",
    "oom_forward",
    "oom_backward",
    "oom_threads",
]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Started:
    return start_all(request, "life_cases.py")


@pytest.mark.parametrize("name", NAMES)
def test_life(started: Started, name: str) -> None:
    started[name].result()


def test_g7() -> None:
    print(run_case("g7", program="life_cases.py"))


def test_g9() -> None:
    """The compiler may say things of its own on standard error."""
    print(run_case("g9", program="life_cases.py", quiet=False))
