"""The cases of tests/gpu, beside those of the hooks, by real PyTorch on the simulated GPU
with the oracle watching; two devices with NCCL; loops of fixed shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torcharena._core", reason="the C library is not built")
torch = pytest.importorskip("torch")
if torch.version.cuda is None:
    pytest.skip(f"torch {torch.__version__} is not a CUDA build", allow_module_level=True)

from test_hooks_simulated import LIBRARY, on_the_simulated_gpu  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import fixed_shapes, two_gpus  # noqa: E402

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason=f"the simulated GPU is not built: no {LIBRARY}"
)
GRAPHS = ROOT / "tests" / "gpu" / "graph_cases.py"
HOLES = ROOT / "tests" / "gpu" / "hole_cases.py"
LIFE = ROOT / "tests" / "gpu" / "life_cases.py"


def test_graphs() -> None:
    names = [
        "shared_pool",
        "released",
        "under_pressure",
        "refused_in_capture",
        "many_streams_in_capture",
        "graphed_callables",
    ]
    on_the_simulated_gpu(GRAPHS, ",".join(names))


@pytest.mark.parametrize(
    "name",
    [
        "end_busy",
        "end_autograd",
        "end_atexit",
        "end_sys_exit",
        "end_forgotten",
        "loader fork",
        "loader spawn",
        "forked",
        "spawned",
        "oom_forward",
        "oom_backward",
        "oom_threads",
        "g7",
    ],
)
def test_life(name: str) -> None:
    on_the_simulated_gpu(LIFE, *name.split())


@pytest.mark.parametrize("names", ["shared", "unshared"])
def test_holes(names: str) -> None:
    on_the_simulated_gpu(HOLES, names)


def test_holes_in_one_process() -> None:
    names = ["profiled", "pools", "trees", "trees_backward", "misanswered", "promised"]
    on_the_simulated_gpu(HOLES, ",".join(names), devices=2)


def test_copies_between_devices() -> None:
    on_the_simulated_gpu(LIFE, "between_devices", devices=2)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started from here are on one simulated machine with two GPUs."""
    for name, value in (
        ("LD_PRELOAD", str(LIBRARY)),
        ("LD_LIBRARY_PATH", str(LIBRARY.parent)),
        ("TORCHARENA_SIM_GPU", "16GiB"),
        ("TORCHARENA_SIM_DEVICES", "2"),
        ("TORCHARENA_SIM_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("way", "launcher"), [("ddp", "plain"), ("fully_shard", "torchrun"), ("ddp", "spawn")]
)
def test_two_ranks(way: str, launcher: str) -> None:
    run: dict[str, Any] = two_gpus.run_ranks(
        way, "arena", steps=2, launcher=launcher, timeout=240
    )
    assert "error" not in run, f"{run['error']}\n{run['stderr'][-4000:]}"
    assert not [t for t in run["stderr"].splitlines() if t.startswith("torcharena")]
    for rank in run["ranks"]:
        assert len(rank["losses"]) == 2 and rank["wrong"] is None
        assert rank["peak_requested"] > 1 << 28
        assert rank["peak_reserved"] <= 1.06 * rank["peak_requested"], rank


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("model", ["gpt", "gpt_prefetch", "cnn", "checkpointed"])
def test_fixed_shapes(model: str) -> None:
    found = fixed_shapes.run(model, steps=8, warm=5, timeout=240)
    assert "error" not in found, fixed_shapes.line(found)
    assert found["maps"][0] > 0
    if model in fixed_shapes.RECORDING:
        assert max(found["events"][5:]) <= 2, found["events"]
