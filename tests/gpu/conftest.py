"""Tests on a GPU. Each case runs in a process of its own: a process has one allocator."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@lru_cache
def devices() -> tuple[int, str]:
    """How many GPUs a child process sees, and why none."""
    try:
        import torch
    except ImportError as error:
        return 0, f"no torch: {error}"
    if torch.version.cuda is None:
        return 0, f"torch {torch.__version__} is not a CUDA build"
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    count = int(done.stdout.strip() or 0)
    return count, "" if count else "no GPU: torch.cuda.device_count() is 0"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "two_gpus: needs two GPUs of one host")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    count, why = devices()
    for item in items:
        if HERE not in item.path.parents:
            continue
        wanted = 2 if item.get_closest_marker("two_gpus") else 1
        if count < wanted:
            reason = why or f"needs {wanted} GPUs, there is {count}"
            item.add_marker(pytest.mark.skip(reason=reason))
