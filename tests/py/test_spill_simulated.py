"""Host memory by real PyTorch on the simulated GPU, with the oracle watching: the cases of
tests/gpu, most of them in one process, since loading torch is most of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest

pytest.importorskip("torcharena._core", reason="the C library is not built")
torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip(f"torch {torch.__version__} is not a CUDA build", allow_module_level=True)

from test_hooks_simulated import LIBRARY  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
CASES = ROOT / "tests" / "gpu" / "spill_cases.py"

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason=f"the simulated GPU is not built: no {LIBRARY}"
)


def run(*arguments: str, program: Path = CASES, **more: str) -> str:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "TORCHARENA_SIM_GPU": "16GiB",
    }
    options = ("-W", "ignore")
    done = forking.run(str(program), *arguments, options=options, env=environment | more)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout


def test_cases_that_enable_alike() -> None:
    from test_spill import ALIKE

    run("together", *ALIKE)


def test_more_cases() -> None:
    from spill_more_names import MORE

    run("together", *MORE, program=CASES.with_name("spill_more_cases.py"))


def test_state_cases() -> None:
    from spill_more_names import STATE

    run("together", *STATE, program=CASES.with_name("spill_state_cases.py"))


def test_copies_are_ordered_with_work() -> None:
    run("ordered")


def test_without_spill() -> None:
    run("without")


def test_without_pages_on_the_host() -> None:
    run("pinned", TORCHARENA_SIM_HOST="0")


def test_by_the_environment() -> None:
    """TORCHARENA_SPILL, more of it than the simulated machine has."""
    code = """
import warnings, torch, torcharena
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.zeros(1, device="cuda")
assert ["16 MiB" in str(one.message) for one in said] == [True], said
kept = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
assert torcharena.memory_stats()["spilled_bytes"] > 0
assert torcharena.memory_stats()["spill_budget_bytes"] == 1 << 30
"""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "TORCHARENA_SIM_GPU": "16GiB",
        "TORCHARENA_SIM_HOST": str(16 << 20),
        "TORCHARENA_LIMIT": "24MiB",
        "TORCHARENA_SPILL": "1GiB",
    }
    code = "import torcharena; torcharena.enable()" + code
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_rehearsal_copies_no_large_floats() -> None:
    """Gigabytes of saved tensors that leave would else be this machine's."""
    import simulated

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
