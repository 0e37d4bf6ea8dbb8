"""Rows of docs/compatibility.md run under the arena on the simulated GPU. Losses mean nothing
there: they are compared on a GPU, by `python -m tests.compat`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from simulated import PACKAGE, missing
from torcharena.rehearsal import launch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
why = missing() or ("" if importlib.util.find_spec("transformers") else "no transformers")
pytestmark = pytest.mark.skipif(bool(why), reason=why)


# Those of which the simulated GPU tells what no other test does.
HERE = {
    1: [
        "checkpoint_reentrant",
        "checkpoint_selective",
        "accelerate_finder",
        "smaller_after_error",
        "save_on_cpu",
        "accelerate_offload",
        "device_map",
        "layer_by_layer",
        "saved_meanwhile",
        "pruning",
        "loader_workers",
        "loader_spawned",
        "prefetching",
        "accelerator",
        "cuda_graph",
        "graphed_callables",
        "mempool",
        "switching",
        "emptied",
        "cells_again",
        "forked",
        "exits",
    ],
    2: ["data_parallel", "fully_sharded_offload", "split_by_hand"],
}


@pytest.mark.parametrize("gpus", HERE)
def test_rows(gpus: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.compat", "--alone"]
    with launch.machine("h200", devices=gpus) as env:
        env["PYTHONPATH"] = str(PACKAGE.parent)
        done = subprocess.run(
            [*command, "--seconds", "900", *HERE[gpus]],
            capture_output=True,
            text=True,
            timeout=1000,
            cwd=ROOT,
            env=env,
        )
    said = done.stdout + done.stderr[-3000:]
    assert done.returncode == 0, said
    for name in HERE[gpus]:
        assert f"{name:28}works" in done.stdout, said


def test_the_table_is_of_the_results() -> None:
    """docs/compatibility.md says what the committed results do."""
    from tests.compat import rows, table

    rows.load()
    results = table.read(ROOT / "benchmarks" / "results" / "compatibility-h200.jsonl")
    text = table.DOCUMENT.read_text(encoding="utf-8")
    assert "\n".join(table.lines(results)).strip() in text
    assert len(results) >= 14
