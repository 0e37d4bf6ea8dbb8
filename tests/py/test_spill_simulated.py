"""Host memory by real PyTorch on the simulated GPU, with the oracle watching: the cases of
tests/gpu, most of them in one process, since loading torch is most of one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import simulated

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
CASES = GPU / "spill_cases.py"

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def test_cases_that_enable_alike() -> None:
    from test_spill import ALIKE

    simulated.run_program(CASES, "together", *ALIKE)


def test_more_cases() -> None:
    from spill_more_names import MORE

    simulated.run_program(GPU / "spill_more_cases.py", "together", *MORE)


def test_state_cases() -> None:
    from spill_more_names import STATE

    simulated.run_program(GPU / "spill_state_cases.py", "together", *STATE)


def test_copies_are_ordered_with_work() -> None:
    simulated.run_program(CASES, "ordered")


def test_without_spill() -> None:
    simulated.run_program(CASES, "without")


def test_without_pages_on_the_host() -> None:
    simulated.run_program(CASES, "pinned", TORCHARENA_SIM_HOST="0")


def test_by_the_environment() -> None:
    """TORCHARENA_SPILL, more of it than the simulated machine has."""
    simulated.run(
        """
import warnings, torcharena
torcharena.enable()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.zeros(1, device="cuda")
assert ["16 MiB" in str(one.message) for one in said] == [True], said
kept = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
assert torcharena.memory_stats()["spilled_bytes"] > 0
assert torcharena.memory_stats()["spill_budget_bytes"] == 1 << 30
""",
        values=False,
        TORCHARENA_SIM_HOST=str(16 << 20),
        TORCHARENA_LIMIT="24MiB",
        TORCHARENA_SPILL="1GiB",
    )


def test_a_rehearsal_copies_no_large_floats() -> None:
    """Gigabytes of saved tensors that leave would else be this machine's."""
    found = simulated.said(
        simulated.run(
            """
import torcharena
torcharena.enable(spill="8GiB")
x = torch.ones(1 << 26, device="cuda", requires_grad=True)
y = x
with torcharena.offload_activations("2GiB"):
    for _ in range(8):
        y = y.sin()
y.sum().backward()
(shared,) = [line.split()[1] for line in open("/proc/self/status") if "RssShmem" in line]
print({"KiB": int(shared), "host": torcharena.memory_stats()["spilled_bytes.peak"]})
"""
        )
    )
    assert found["host"] >= 1 << 30
    assert found["KiB"] < 64 << 10, found
