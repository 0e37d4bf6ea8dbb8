"""Pools beside torch's own allocator, by real PyTorch on the simulated GPU with the oracle
watching: the cases of tests/gpu, most of them in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import simulated

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
POOLS = GPU / "pool_cases.py"

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def test_cases_alike() -> None:
    from test_pools import ALIKE

    simulated.run_program(POOLS, "together", *ALIKE)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("host_full", {}),
        ("no_host_pages", {"TORCHARENA_SIM_HOST": "0"}),
        ("two_devices", {"TORCHARENA_SIM_DEVICES": "2"}),
        ("enabled", {}),
        ("no_budget", {"TORCHARENA_SPILL": "0"}),
        ("environment", {"TORCHARENA_LIMIT": "64MiB", "TORCHARENA_SPILL": "16MiB"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_alone(name: str, more: dict[str, str]) -> None:
    simulated.run_program(POOLS, name, **more)


@pytest.mark.parametrize("how", ["asleep", "inside", "forked"])
def test_end(how: str) -> None:
    simulated.run_program(POOLS, "end", how)


def test_servers() -> None:
    """The adapters, through the interfaces that vLLM and SGLang call."""
    from test_servers import ALIKE

    simulated.run_program(GPU / "server_cases.py", "together", *ALIKE)
