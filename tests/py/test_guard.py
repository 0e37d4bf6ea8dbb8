"""TORCHARENA_DEBUG=guard with the real PyTorch, on the simulated GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forking
import pytest
import simulated
from torcharena import guarding, settings

CASES = Path(__file__).with_name("guard_cases.py")
simulated_only = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def run(*names: str) -> subprocess.CompletedProcess[str]:
    env = simulated.environment(TORCHARENA_DEBUG="guard")
    return forking.run(str(CASES), *names, env=env)


@simulated_only
def test_faults_are_found() -> None:
    done = run("overrun", "freed", "behind", "twice", "sound")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "guard" not in done.stderr, done.stderr


@simulated_only
def test_what_is_left_is_told_at_the_end() -> None:
    done = run("at_exit")
    assert done.returncode == 0, done.stderr
    assert "4 bytes outside of a block were written" in done.stderr


def test_what_cannot_go_with_it_is_refused() -> None:
    with pytest.raises(RuntimeError, match="TORCHARENA_DEBUG=guard and spill"):
        guarding.refuse_with({"spill": 1 << 30})
    guarding.refuse_with({"spill": None})
    with pytest.raises(RuntimeError, match="a pool beside torch's own allocator"):
        guarding.refuse_beside({"debug": "guard"})
    guarding.refuse_beside({})


def test_the_setting() -> None:
    read = settings.from_environment
    assert read({"TORCHARENA_DEBUG": "Guard"}) == {"debug": "guard"}
    assert read({"TORCHARENA_DEBUG": ""}) == {"debug": None}
    with pytest.raises(ValueError, match=r"TORCHARENA_DEBUG='gaurd'.*accepted: guard"):
        read({"TORCHARENA_DEBUG": "gaurd"})
