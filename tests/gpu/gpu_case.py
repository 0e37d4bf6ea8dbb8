"""Runs a case of cases.py in a process of its own: a process has one allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run_case(
    name: str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    timeout: float = 300,
) -> str:
    """Runs one function of cases.py in a new process; its standard output.

    Fails where the exit code is not 0 or anything stands on standard error."""
    done = subprocess.run(
        [sys.executable, str(HERE / "cases.py"), name, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    assert done.stderr == ""
    return done.stdout
