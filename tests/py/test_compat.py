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


@pytest.mark.parametrize("gpus", [1, 2])
def test_rows(gpus: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.compat", "--alone"]
    command += ["--gpus", str(gpus), "--seconds", "900"]
    with launch.machine("h200", devices=gpus) as env:
        env["PYTHONPATH"] = str(PACKAGE.parent)
        done = subprocess.run(
            command + (["--only-gpus"] if gpus > 1 else []),
            capture_output=True,
            text=True,
            timeout=1000,
            cwd=ROOT,
            env=env,
        )
    said = done.stdout + done.stderr[-3000:]
    assert done.returncode == 0, said
    assert done.stdout.count(" works") >= (35 if gpus == 1 else 5), said
    assert "no time left" not in said


def test_the_table_is_of_the_results() -> None:
    """docs/compatibility.md says what the committed results do."""
    from tests.compat import rows, table

    rows.load()
    results = table.read(ROOT / "benchmarks" / "results" / "compatibility-h200.jsonl")
    text = table.DOCUMENT.read_text(encoding="utf-8")
    assert "\n".join(table.lines(results)).strip() in text
    assert len(results) >= 14
