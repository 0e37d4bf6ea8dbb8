"""scripts/environments.py: which torch serves, and what an environment is keyed by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import environments
import pytest


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ({}, "no torch"),
        ({"torch": "2.6.1+cu126", "cuda": "12.6"}, "older than 2.7"),
        ({"torch": "1.13.1", "cuda": "11.7"}, "older than 2.7"),
        ({"torch": "2.13.0+cpu", "cuda": None}, "not a CUDA build"),
        ({"torch": "nightly", "cuda": "13.0"}, "older than 2.7"),
    ],
)
def test_does_not_serve(found: dict[str, str | None], word: str) -> None:
    assert word in environments.serves(found)


@pytest.mark.parametrize("version", ["2.7.0", "2.11.0+cu130", "2.14.1", "3.0.0"])
def test_serves(version: str) -> None:
    assert environments.serves({"torch": version, "cuda": "13.0"}) == ""


def fake_torch(folder: Path, cuda: str | None) -> None:
    home = folder / "torch"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    (home / "version.py").write_text(f"__version__ = '2.9.1'\ncuda = {cuda!r}\n")


def test_the_probe_reads_torch_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(tmp_path, "12.8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = environments.active()
    assert (found["torch"], found["cuda"]) == ("2.9.1", "12.8")
    assert found["site"] == str(tmp_path)


def test_an_interrupted_environment_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / "v"
    (venv / "bin").mkdir(parents=True)
    (venv / "left-over").touch()
    base = tmp_path / "base"
    base.mkdir()
    (base / "only_there.py").write_text("value = 5\n")
    environments.make(venv, sys.executable, base, [])
    assert not (venv / "left-over").exists()
    assert (venv / ".ready").exists()
    code = "import only_there; print(only_there.value)"
    out = subprocess.run(
        [venv / "bin" / "python", "-c", code], capture_output=True, text=True
    )
    assert out.stdout == "5\n"


def test_the_key_follows_what_it_holds() -> None:
    assert environments.digest("3.11", "a") != environments.digest("3.11", "b")
    assert environments.digest("ab", "c") != environments.digest("a", "bc")
    assert environments.digest("3.11", "a") == environments.digest("3.11", "a")


def test_a_list_counts_with_those_it_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\none>=1\n")
    (tmp_path / "b.txt").write_text("two==2\n")
    assert "two==2" in environments.list_text(tmp_path / "a.txt")
    for path in environments.LISTS.values():
        assert environments.list_text(path).strip()


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert environments.main(["nonsense"]) == 2
    assert "KIND is" in capsys.readouterr().err


def test_the_wanted_torch_is_not_the_packages_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(environments, "prepare", lambda kind: tmp_path / "bin" / "python")
    monkeypatch.setattr(os, "execve", lambda file, words, env: started.append(env))
    monkeypatch.setenv("TORCHARENA_TORCH", "2.11.0")
    monkeypatch.setenv("TORCHARENA_LIMIT", "1GiB")
    environments.main(["test", "-m", "pytest"])
    (env,) = started
    assert "TORCHARENA_TORCH" not in env
    assert env["TORCHARENA_LIMIT"] == "1GiB"
