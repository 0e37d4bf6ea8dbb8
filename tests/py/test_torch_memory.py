"""torch.cuda.memory and its relatives over the arena, by the real PyTorch on the simulated
GPU. The cases are in arena_cases.py, each a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torcharena

HERE = Path(__file__).parent
PACKAGE = Path(torcharena.__file__).parent
SIMULATED = PACKAGE / "lib" / "libcuda.so.1"


def _missing() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if not SIMULATED.exists() or not list(PACKAGE.glob("_core.*so")):
        return "the package's libraries are not built (pip install -e .)"
    from torch.version import cuda

    return "" if cuda else "this torch is a build without CUDA"


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


def run(
    case: str, folder: Path, gpu: str = "16GiB", devices: int = 1, **more: str
) -> subprocess.CompletedProcess[str]:
    """One case on the simulated GPU; it works in ``folder``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    environment |= {
        "LD_PRELOAD": str(SIMULATED),
        "TORCHARENA_SIM_GPU": gpu,
        "TORCHARENA_SIM_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(HERE)]),
        **more,
    }
    return subprocess.run(
        [sys.executable, str(HERE / "arena_cases.py"), case],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


ONE_DEVICE = (
    "numbers accelerator every_function raw_memory refusals share_of_the_device cap_is_exact "
    "out_of_memory_is_caught same_depth_twice out_of_memory_in_backward between_the_reports "
    "touched_before enable_twice snapshot long_history pools graph recorded train "
    "forked_child loader_workers exit_with_live_tensors exit_from_a_thread"
).split()


@pytest.mark.parametrize("case", ONE_DEVICE)
def test_one_device(case: str, tmp_path: Path) -> None:
    done = run(case, tmp_path)
    assert done.returncode == 0, done.stderr
    # torch's native allocator is not there to complain, and neither are we.
    assert "torcharena" not in done.stderr, done.stderr
    if case.startswith("exit_"):
        assert done.stderr == ""


def test_two_devices(tmp_path: Path) -> None:
    done = run("two_devices", tmp_path, devices=2)
    assert done.returncode == 0, done.stderr


def test_a_recording_ends_with_the_program(tmp_path: Path) -> None:
    done = run("recorded", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["x.trace.xz", "z.trace"]
    assert "a 1 1048576 0" in (tmp_path / "z.trace").read_text()


def _has_entry_point() -> bool:
    from importlib import metadata

    return any(e.name == "torcharena" for e in metadata.entry_points(group="torch.backends"))


@pytest.mark.skipif(not _has_entry_point(), reason="the package is not installed")
def test_no_line_of_code(tmp_path: Path) -> None:
    done = run(
        "from_the_environment", tmp_path, TORCHARENA_ENABLE="1", TORCHARENA_LIMIT="2GiB"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not _has_entry_point(), reason="the package is not installed")
def test_a_misspelt_setting_stops_the_program(tmp_path: Path) -> None:
    done = run(
        "from_the_environment", tmp_path, TORCHARENA_ENABLE="1", TORCHARENA_LIMT="2GiB"
    )
    assert done.returncode != 0 and "TORCHARENA_LIMT" in done.stderr
