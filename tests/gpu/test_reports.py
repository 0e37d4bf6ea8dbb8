"""Reports on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

import pytest
from gpu_case import HERE, run_case

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

# A process that is number 1 to itself, as in a container, with the same GPU.
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


@lru_cache
def no_container() -> str:
    """Why no process can be put into a pid namespace; empty where it can."""
    try:
        done = subprocess.run(
            [*CONTAINER, "true"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def test_report_against_nvml() -> None:
    print(run_case("report_against_nvml", program="report_cases.py"))


def test_beside_another_process() -> None:
    print(run_case("beside_another_process", program="report_cases.py"))


def test_in_a_pid_namespace() -> None:
    if why := no_container():
        pytest.skip(f"unshare: {why}")
    done = subprocess.run(
        [*CONTAINER, sys.executable, str(HERE / "report_cases.py"), "in_a_pid_namespace"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
