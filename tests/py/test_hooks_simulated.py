"""The hooks on the simulated GPU: called as torch calls them, and by torch itself, with the
oracle watching. On a real GPU tests/gpu runs the same cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest

pytest.importorskip("torcharena._core", reason="the C library is not built")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "python" / "torcharena" / "lib" / "libcuda.so.1"
CASES = ROOT / "tests" / "gpu" / "cases.py"

if not LIBRARY.exists():
    import torcharena

    LIBRARY = Path(torcharena.__file__).parent / "lib" / "libcuda.so.1"
pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason=f"the simulated GPU is not built: no {LIBRARY}"
)


def on_the_simulated_gpu(
    program: Path, *arguments: str, gpu: str = "16GiB", devices: int = 1
) -> str:
    """Standard output of a program that must end well and say nothing else."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "TORCHARENA_SIM_GPU": gpu,
        "TORCHARENA_SIM_DEVICES": str(devices),
    }
    if program.parent == HERE:  # without torch
        done = subprocess.run(
            [sys.executable, str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
        )
    else:
        done = forking.run(str(program), *arguments, env=environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "sizes",
        "odd_frees",
        "base_address",
        "refusals",
        "fraction",
        "pool_filter",
        "fork",
        "numbers",
    ],
)
def test_hook(name: str) -> None:
    on_the_simulated_gpu(HERE / "hooks_simulated.py", name)


def test_recording(tmp_path: Path) -> None:
    on_the_simulated_gpu(HERE / "hooks_simulated.py", "recording", str(tmp_path))


# --- by torch ------------------------------------------------------------------------------
@pytest.fixture
def torch() -> None:
    module = pytest.importorskip("torch")
    if module.version.cuda is None:
        pytest.skip(f"torch {module.__version__} is not a CUDA build")


@pytest.mark.usefixtures("torch")
class TestTorch:
    def test_cases_that_enable_alike(self) -> None:
        names = ["g2", "g1", "fraction", "g4", "record_stream", "own_stream", "warm_loop"]
        on_the_simulated_gpu(CASES, "together", *names)

    @pytest.mark.parametrize(
        "name",
        ["g3", "g6", "g6_twice", "g8_loop", "g8_backward", "external_stream_destroyed"],
    )
    def test_case(self, name: str) -> None:
        on_the_simulated_gpu(CASES, name)

    def test_graph_replay(self) -> None:
        on_the_simulated_gpu(CASES, "graph_replay", "100")

    @pytest.mark.parametrize("how", ["tensors", "thread", "graph", "deleted"])
    def test_exit(self, how: str) -> None:
        on_the_simulated_gpu(CASES, "g5", how)

    def test_two_gpus(self) -> None:
        on_the_simulated_gpu(CASES, "two_gpus", devices=2)
