"""TORCHARENA_DEBUG=guard on a GPU: the cases of tests/py, and a kernel that writes too far."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[1] / "py" / "guard_cases.py"


@pytest.mark.parametrize("names", ["overrun freed behind twice sound", "kernel"])
def test_guard(names: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CASES), *names.split()],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TORCHARENA_DEBUG": "guard"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
