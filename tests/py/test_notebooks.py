"""The notebooks run, on the simulated GPU; and what is committed has outputs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import simulated

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_has_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    assert "torcharena.enable(" in text
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["execution_count"], cell["source"]
            assert all(out["output_type"] != "error" for out in cell["outputs"])
    assert path.stat().st_size < 1 << 20
    assert "\n> The outputs below are from " in "".join(notebook["cells"][0]["source"])


@pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
@pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    """One of them as a rehearsal, where the arena is there as soon as torch is: not before
    the notebook's own `enable`. One as outputs are written: where they are from is said."""
    command, arguments, gpu = ["-W", "ignore"], [str(path)], "16GiB"
    if path.stem == "what_fills_my_gpu":
        command += ["-m", "torcharena", "rehearse", "--allocator", "arena"]
        command += ["--gpu", "16GiB", "--steps", "0"]
    if path.stem == "fit_32_into_16":
        gpu = "h200"
        arguments += ["--instead", "steps=5", "steps=2"]
    if path.stem == "first_look":
        written = Path(shutil.copy(path, tmp_path))
        arguments = [str(written), "--write"]
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "scripts" / "notebooks.py"), *arguments],
        env=simulated.environment(gpu),
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cells ran" in done.stdout
    if path.stem == "first_look":
        first = json.loads(written.read_text(encoding="utf-8"))["cells"][0]["source"]
        (line,) = [one for one in first if one.startswith("> The outputs below")]
        assert "from a **simulated** " in line and "times and losses mean nothing" in line


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) >= 4
