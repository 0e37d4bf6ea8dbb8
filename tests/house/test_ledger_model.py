"""The ledger's model, checked by spin: all interleavings, with a kill at any step."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "model" / "ledger.pml"
SOURCE = ROOT / "csrc" / "core" / "ledger" / "ledger.c"

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="spin is not installed (Debian: apt install spin)",
)


def check(model: str, folder: Path) -> str:
    """What the checker says of it."""
    (folder / "model.pml").write_text(model)
    for command in (
        ["spin", "-a", "model.pml"],
        ["gcc", "-O2", "-w", "-DSAFETY", "-o", "pan", "pan.c"],
        ["./pan", "-m200000"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_spin
def test_the_cap_holds_whoever_is_killed_when(tmp_path: Path) -> None:
    said = check(MODEL.read_text(), tmp_path)
    assert "errors: 0" in said and "max search depth too small" not in said, said
    states = re.search(r"(\d+) states, stored", said)
    assert states and int(states[1]) > 100_000, said


@needs_spin
def test_the_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    """Growth that is committed after the lock was dropped."""
    right = MODEL.read_text()
    wrong = right.replace("word[mine] = held + 1;", "drop(); word[mine] = held + 1;")
    wrong = wrong.replace("held++;\n            drop();", "held++;")
    assert wrong.count("drop()") == right.count("drop()")
    assert "errors: 1" in check(wrong, tmp_path)


def test_its_steps_are_those_of_the_code() -> None:
    steps = set(re.findall(r'STEP\("([^"]+)"\)', MODEL.read_text()))
    assert steps == set(re.findall(r'\bstep\("([^"]+)"\)', SOURCE.read_text()))
