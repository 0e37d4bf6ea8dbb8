"""Pools beside torch's own allocator, by real PyTorch on the simulated GPU with the oracle
watching: the cases of tests/gpu, most of them in one process."""

from __future__ import annotations

import os
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

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason=f"the simulated GPU is not built: no {LIBRARY}"
)


def run(program: str, *arguments: str, **more: str) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTORCH_", "TORCHARENA_", "TMS_"))
    }
    environment |= {
        "LD_PRELOAD": str(LIBRARY),
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "TORCHARENA_SIM_GPU": "16GiB",
    }
    path = str(ROOT / "tests" / "gpu" / program)
    options = ("-W", "ignore")
    done = forking.run(path, *arguments, options=options, env=environment | more)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"


def test_cases_alike() -> None:
    from test_pools import ALIKE

    run("pool_cases.py", "together", *ALIKE)


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
    run("pool_cases.py", name, **more)


@pytest.mark.parametrize("how", ["asleep", "inside", "forked"])
def test_end(how: str) -> None:
    run("pool_cases.py", "end", how)


def test_servers() -> None:
    """The adapters, through the interfaces that vLLM and SGLang call."""
    from test_servers import ALIKE

    run("server_cases.py", "together", *ALIKE)
