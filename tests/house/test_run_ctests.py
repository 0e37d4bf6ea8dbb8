"""scripts/run_ctests.py: outcomes counted, failures shown, the time limit kept."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "run_ctests.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_all_pass(tmp_path: Path) -> None:
    done = run(program(tmp_path / "a", "echo 7 ok"), program(tmp_path / "b", "exit 0"))
    assert done.returncode == 0
    assert "7 ok" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_a_failure_is_shown_whole(tmp_path: Path) -> None:
    bad = program(tmp_path / "bad", "echo first; echo second >&2; exit 3")
    done = run(program(tmp_path / "good", "exit 0"), bad)
    assert done.returncode == 1
    for text in ("first", "second", "exit status 3", f"failed: {bad}"):
        assert text in done.stdout
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_time_limit_kills_children_too(tmp_path: Path) -> None:
    # The child holds the pipe: were only the shell killed, this would last its 30 seconds.
    slow = program(tmp_path / "slow", "echo begun; sleep 30 & wait")
    done = run("--timeout", "1", slow)
    assert done.returncode == 1
    assert "begun" in done.stdout
    assert "not done after 1 s" in done.stdout


def test_a_killed_program_fails(tmp_path: Path) -> None:
    done = run(program(tmp_path / "killed", "kill -SEGV $$"))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


def test_the_longest_come_first(tmp_path: Path) -> None:
    for way in ("asan", "plain", "tsan"):
        (tmp_path / way).mkdir()
    quick = program(tmp_path / "plain" / "test_a", "exit 0")
    slow = [
        program(tmp_path / way / "test_faults", "exit 0")
        for way in ("tsan", "plain", "asan")
    ]
    beside = program(tmp_path / "plain" / "test_ledger_crowd", "exit 0")
    done = run("--jobs", "1", quick, *slow[::-1], beside)
    ran = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok")]
    assert done.returncode == 0 and beside in ran
    assert [one for one in ran if one != beside] == [*slow, quick]
