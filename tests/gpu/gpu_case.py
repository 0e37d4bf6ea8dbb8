"""Runs a case of cases.py in a process of its own: a process has one allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def run_case(
    name: str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    timeout: float = 300,
    program: str = "cases.py",
    quiet: bool = True,
) -> str:
    """Runs one function of cases.py, or of another program here, in a new process; its
    standard output.

    Fails where the exit code is not 0 or, with ``quiet``, anything stands on standard error."""
    done = subprocess.run(
        [sys.executable, str(HERE / program), name, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    assert not quiet or done.stderr == "", done.stderr[-4000:]
    return done.stdout


Started = dict[str, "Future[str]"]


def start_all(request: Any, program: str) -> Started:
    """Starts the chosen tests' cases, each in its process, some at a time: most of a case is
    loading torch. A module's tests are parametrized by ``name``, the case with its arguments,
    separated by spaces. Only for cases that leave most of the GPU's memory to others."""
    mine = [item for item in request.session.items if item.module is request.module]
    chosen = [item.callspec.params for item in mine if hasattr(item, "callspec")]
    names = [params["name"] for params in chosen if "name" in params]
    pool = ThreadPoolExecutor(max(1, min(5, len(os.sched_getaffinity(0)) // 2)))
    request.addfinalizer(lambda: pool.shutdown(cancel_futures=True))
    return {
        name: pool.submit(run_case, *name.split(), program=program, timeout=150)
        for name in names
    }
