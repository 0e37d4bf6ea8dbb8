"""The soak on the simulated GPU: nothing grows, and what is left behind is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("TA_TEST_LONG") == "1"


@pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
def test_nothing_grows_and_leaks_are_noticed() -> None:
    steps = "2000" if LONG else "195"
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--steps", steps, "--prove"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500 if LONG else simulated.TIMEOUT,
        env=simulated.environment(),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].endswith("nothing grew")
