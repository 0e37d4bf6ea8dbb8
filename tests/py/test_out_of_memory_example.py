"""examples/out_of_memory: its figures in docs/out-of-memory.md are what its command gives, and
a run that died goes on with a smaller batch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import simulated

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "out_of_memory"
sys.path.insert(0, str(EXAMPLE))

import measure  # noqa: E402

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def row_in_docs(name: str) -> tuple[float, str]:
    """GiB with all above, and the verdict."""
    _, _, rest = measure.DOC.read_text().partition(measure.BEGIN)
    table, _, _ = rest.partition(measure.END)
    (row,) = [one for one in table.splitlines() if f"| {measure.WHAT[name]} |" in one]
    _, _, _, _, all_above, verdict, _ = (cell.strip() for cell in row.split("|"))
    return float(all_above.removesuffix(" GiB")), verdict


@with_torch
@pytest.mark.parametrize("name", ["bf16", "accumulate"])
def test_the_docs_figures_are_what_the_command_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(simulated.PACKAGE.parent))
    found = measure.rehearse(measure.flags_above(name))
    gib, verdict = row_in_docs(name)
    assert found["need"] / measure.GIB == pytest.approx(gib, rel=0.02)
    assert found["verdict"] == verdict


def test_the_table_has_every_row() -> None:
    assert row_in_docs("as it is")[1] == "does not fit"
    assert all(row_in_docs(name)[0] > 1 for name in measure.ROWS)
    assert measure.flags_above("item") == "--no-grad --item"
    assert "one-by-one" not in measure.flags_above("adafactor")


NUMBER = re.compile(r"\d[\d.]*")


def words(text: str) -> list[str]:
    return NUMBER.sub("#", text).split()


def numbers(text: str) -> list[float]:
    """But for seconds."""
    text = re.sub(r"[0-9.]+ s after", "", text)
    return [float(one.rstrip(".")) for one in NUMBER.findall(text)]


KEEPS_LITTLE = """
import runpy, sys
import torch, torcharena
torch.save = lambda state, path: open(path, "w").close()  # two GiB
on_oom = torcharena.on_oom
torcharena.on_oom = lambda path, save: on_oom("oom.json", save=save)
sys.argv = ["train.py"]
runpy.run_path(FILE, run_name="__main__")
"""


@with_torch
def test_it_says_what_the_docs_show(tmp_path: Path) -> None:
    """The error, and the report of its moment, but for what differs by torch's version."""
    program = KEEPS_LITTLE.replace("FILE", repr(str(EXAMPLE / "train.py")))
    died = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env=simulated.environment(measure.CARD),
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert died.returncode == 1, died.stderr
    docs = measure.DOC.read_text(encoding="utf-8")
    _, error, rest = docs.partition("torch.OutOfMemoryError: CUDA")
    error += rest.partition("```")[0]
    said = died.stderr[died.stderr.rindex("torch.OutOfMemoryError: CUDA") :]
    assert words(said) == words(error)
    assert numbers(said) == pytest.approx(numbers(error), rel=0.02, abs=2)
    from torcharena.reports.reporting import load

    text = str(load(tmp_path / "oom.json"))
    _, _, shown = docs.partition("torcharena report oom.json`:\n\n```\n")
    lines = [one for one in shown.partition("```")[0].splitlines() if one.strip()]
    assert len(lines) == 10, lines
    for line in lines:
        near = pytest.approx(numbers(line), rel=0.02, abs=2)
        alike = [one for one in text.splitlines() if words(one) == words(line)]
        assert any(numbers(one) == near for one in alike), line


@with_torch
def test_what_died_goes_on_with_half_the_batch(tmp_path: Path) -> None:
    env = simulated.environment(TORCHARENA_LIMIT="6GiB")

    def run(*flags: str) -> Any:
        small = ("--width", "128", "--layers", "2")
        return subprocess.run(
            [sys.executable, "-W", "ignore", str(EXAMPLE / "train.py"), *small, *flags],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=simulated.TIMEOUT,
            check=False,
        )

    died = run()
    assert died.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory." in died.stderr
    assert "step 4" not in died.stdout
    assert "Out of memory" in (tmp_path / "oom.html").read_text()
    (tmp_path / "oom.html").unlink()
    went_on = run("--resume", "last.pt", "--batch-size", "8", "--accumulate", "2")
    assert went_on.returncode == 0, went_on.stderr
    lines = went_on.stdout.splitlines()
    assert lines[0] == "goes on at step 3"
    assert lines[1] == "step 4: evaluated 2 batches"
    assert lines[-1] == "done after 6 steps"
    assert not (tmp_path / "oom.html").exists()
    import torch

    state = torch.load(tmp_path / "last.pt", map_location="cpu")
    assert state["step"] == 3 == state["optimizer"]["state"][0]["step"]
