"""torch.cuda.memory and its relatives over the arena, by the real PyTorch on the simulated
GPU. The cases are in arena_cases.py, each a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
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


def _environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}
    return kept | {
        "LD_PRELOAD": str(SIMULATED),
        "TORCHARENA_SIM_GPU": "16GiB",
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), str(HERE)]),
        **more,
    }


COMMAND = [sys.executable, str(HERE / "arena_cases.py")]


class Server:
    """Processes that have torch already, one for each case. See `arena_cases.serve`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "serve"],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, case: str, folder: Path, **environment: str) -> tuple[int, str]:
        """One case, in ``folder``: its exit code and what it had to complain of."""
        assert self._process.stdin is not None and self._process.stdout is not None
        wanted = {"case": case, "folder": str(folder), "environment": environment}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        said = folder / "stderr"
        return code, said.read_text() if said.exists() else ""

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


ONE_DEVICE = [
    "numbers",
    "accelerator",
    "every_function",
    "raw_memory",
    "refusals",
    "share_of_the_device",
    "cap_is_exact",
    "out_of_memory_is_caught",
    "same_depth_twice",
    "out_of_memory_in_backward",
    "between_the_reports",
    "touched_before",
    "enable_twice",
    "snapshot",
    "long_history",
    "pools",
    "pool_in_two_threads",
    "pool_hooks_drop_the_gil",
    "graph",
    "train",
    "lora",
    "forked_child",
    "fork_before_cuda",
    "loader_workers",
    "exit_with_live_tensors",
    "exit_from_a_thread",
]


@pytest.mark.parametrize("case", ONE_DEVICE)
def test_one_device(server: Server, case: str, tmp_path: Path) -> None:
    code, said = server.run(case, tmp_path)
    assert code == 0, said
    assert "torcharena" not in said, said
    if case.startswith("exit_"):
        assert said == ""


def test_two_devices(server: Server, tmp_path: Path) -> None:
    code, said = server.run("two_devices", tmp_path, TORCHARENA_SIM_DEVICES="2")
    assert code == 0, said


def test_a_recording_ends_with_the_program(server: Server, tmp_path: Path) -> None:
    code, said = server.run("recorded", tmp_path)
    assert code == 0, said
    assert {"x.trace.xz", "z.trace"} <= set(os.listdir(tmp_path))
    assert "a 1 1048576 0" in (tmp_path / "z.trace").read_text()


def alone(case: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """One case in a process that imports torch itself."""
    return subprocess.run(
        [*COMMAND, case],
        env=_environment(**more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def _has_entry_point() -> bool:
    from importlib import metadata

    return any(
        e.name == "torcharena" for e in metadata.entry_points(group="torch.backends")
    )


@pytest.mark.skipif(not _has_entry_point(), reason="the package is not installed")
def test_no_line_of_code(tmp_path: Path) -> None:
    done = alone(
        "from_the_environment", tmp_path, TORCHARENA_ENABLE="1", TORCHARENA_LIMIT="2GiB"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not _has_entry_point(), reason="the package is not installed")
def test_a_misspelt_setting_stops_the_program(tmp_path: Path) -> None:
    done = alone(
        "from_the_environment", tmp_path, TORCHARENA_ENABLE="1", TORCHARENA_LIMT="2GiB"
    )
    assert done.returncode != 0 and "TORCHARENA_LIMT" in done.stderr
