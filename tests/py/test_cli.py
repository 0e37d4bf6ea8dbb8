"""The command line: what it runs, what it refuses, and its exit codes."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torcharena
from fake_core import FakeCore
from torcharena import cli, doctor, recording, replaying
from torcharena.demo import command as demo

GIB = 1 << 30


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"torcharena {torcharena.__version__}\n"
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    for word in ("run", "doctor", "replay", "rehearse", "demo", "TORCHARENA_LIMIT"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        (["run", "--limit", "16GB", "x.py"], "write 16GiB"),
        (["run", "--limit", "16", "x.py"], "needs a unit"),
        (["replay", "--limit", "lots", "x"], "16GiB"),
        (["replay", "--limit-ratio", "-1", "x"], "1.02"),
        (["replay", "--limit-ratio", "many", "x"], "1.02"),
        (["replay", "--limit-ratio", "1.02", "--limit", "1GiB", "x"], "not allowed with"),
        (["replay"], "FILE"),
        (["dance"], "doctor"),
    ],
)
def test_nonsense_is_refused_with_what_is_accepted(
    arguments: list[str], accepted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert accepted in capsys.readouterr().err


# --- run -----------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `run` would have become."""
    found: list[Any] = []

    def execve(file: str, command: list[str], environment: dict[str, str]) -> None:
        found.append((command, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(cli, "_needs_entry_point", lambda: None)
    return found


def test_run_asks_for_the_arena_in_the_environment(
    executed: list[Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(SystemExit):
        options = ["--limit", "1.5GiB", "--record", "x.xz", "--strict"]
        cli.main(["run", *options, str(script), "--limit", "7", "-m"])
    ((command, environment),) = executed
    assert command == [sys.executable, str(script), "--limit", "7", "-m"]
    assert environment["TORCHARENA_ENABLE"] == "1"
    assert environment["TORCHARENA_LIMIT"] == "1536MiB"
    assert environment["TORCHARENA_STRICT"] == "1"
    assert environment["TORCHARENA_RECORD"] == os.path.abspath("x.xz")
    assert "TORCHARENA_FALLBACK" not in environment


def test_run_a_module_or_a_launcher(executed: list[Any]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "-m", "package.train", "--epochs", "3"])
    with pytest.raises(SystemExit):
        cli.main(["run", "--limit", "80%", "sh", "-c", "true"])
    (module, _), (launcher, environment) = executed
    assert module == [sys.executable, "-m", "package.train", "--epochs", "3"]
    assert launcher[0].endswith("/sh") and launcher[1:] == ["-c", "true"]
    assert environment["TORCHARENA_LIMIT"] == "80%"


@pytest.mark.parametrize("limit", ["none", "0"])
def test_run_takes_none_and_zero(
    executed: list[Any], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "8GiB")
    with pytest.raises(SystemExit):
        cli.main(["run", "--limit", limit, "sh"])
    assert executed[0][1]["TORCHARENA_LIMIT"] == limit


def test_run_names_a_script_that_is_not_there(
    executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "nowhere.py"]) == 2
    assert "nowhere.py: no such script" in capsys.readouterr().err


def test_run_refuses_a_bad_environment(
    executed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCHARENA_LIMT", "1GiB")
    assert cli.main(["run", "sh"]) == 2
    assert "TORCHARENA_LIMT" in capsys.readouterr().err


def test_run_refuses_where_torch_would_not_find_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **group: [])
    assert cli.main(["run", "sh"]) == 2
    assert "without the arena" in capsys.readouterr().err


# --- replay --------------------------------------------------------------------------------

FIGURES = {
    "events": 10,
    "peak_requested": 3 * GIB,
    "peak_reserved": 4 * GIB,
    "ratio": 4 / 3,
    "oom": False,
    "page_moves": 5,
    "driver_calls": 6,
    "driver_us": 7.5,
    "seconds": 0.5,
    "events_per_second": 20.0,
    "waits": 2,
    "steps": 4,
    "step_median": {"page_moves": 3, "waits": 0, "driver_calls": 7, "driver_us": 129.6},
    "step_max": {"page_moves": 1160, "waits": 2.5, "driver_calls": 9, "driver_us": 84982},
    "oom_event": 12345,
}


def test_the_replays_table(tmp_path: Path) -> None:
    rows = [
        {"trace": "a/moe.trace.xz", **FIGURES},
        {"trace": "b", **FIGURES, "oom": True},
        {"trace": "c" * 99, **FIGURES, "peak_reserved": 1023 << 30, "steps": 0},
    ]
    shown = replaying.table(rows).splitlines()
    assert shown[2].split()[0] == "moe"
    assert shown[2].split()[-4:] == ["1.333", "3/1160", "0/2.5", "0.13/84.98"]
    assert shown[4] == "  out of memory at event 12,345, after 4 whole steps"
    assert shown[5].split()[-3:] == ["5", "2", "0.01"]  # of the whole trace
    assert len(shown) == 7 and "all that ran" in shown[6]
    assert max(map(len, shown)) <= 80


def test_replay_prints_json_or_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def replay(path: str, **options: Any) -> Any:
        asked.append((path, options))
        if path == "bad":
            raise ValueError("bad:3: no such block")
        yield {"trace": path, **FIGURES, "oom": path == "full"}

    monkeypatch.setattr("torcharena.traces.replay", replay)
    assert cli.main(["replay", "x", "y", "--json", "--limit-ratio", "1.02"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["trace"] for line in lines] == ["x", "y"]
    assert asked[0] == ("x", {"limit": None, "limit_ratio": 1.02})
    assert cli.main(["replay", "x", "--limit", "1GiB"]) == 0
    assert asked[-1][1] == {"limit": GIB, "limit_ratio": None}
    assert cli.main(["replay", "full"]) == 1
    assert cli.main(["replay", "bad", "x"]) == 2
    captured = capsys.readouterr()
    assert "bad:3: no such block" in captured.err and "x " in captured.out
    assert cli.main(["replay", "x", "--limit", "80%"]) == 2


# --- doctor --------------------------------------------------------------------------------


def test_doctor_judges_a_good_machine(fake: FakeCore) -> None:
    report = doctor.Report()
    doctor._devices(report, fake)
    doctor._status(report, fake.torch_status())
    text = str(report)
    assert report.usable and "Model 64, 64 GiB" in text and "in units of 2 MiB" in text
    assert "reaches device 1 directly" in text
    assert "torch's own stays" in text and "enable() works here" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vmm": False}, "fallback=True"),
        ({"vmm": False, "wsl2": True}, "WSL2"),
        ({"driver_version": 11080}, "CUDA 11.8"),
    ],
)
def test_doctor_says_what_is_wrong(
    fake: FakeCore, change: dict[str, Any], said: str
) -> None:
    fake.facts |= change
    report = doctor.Report()
    doctor._devices(report, fake)
    assert not report.usable and said in str(report)


@pytest.mark.parametrize(
    ("variables", "facts", "said"),
    [
        ({}, {}, "would take pages of 4 MiB; no cap, so up to all of 64 GiB"),
        (
            {"TORCHARENA_LIMIT": "16GiB", "TORCHARENA_PAGE": "32MiB"},
            {},
            "would take pages of 32 MiB; cap 16 GiB by TORCHARENA_LIMIT, the CUDA context",
        ),
        ({"TORCHARENA_LIMIT": "25%"}, {}, "cap 16 GiB by TORCHARENA_LIMIT"),
        (
            {"TORCHARENA_FALLBACK": "1"},
            {"vmm": False, "granularity": 0},
            "would take ranges of the driver's; no cap",
        ),
        ({}, {"name": "NVIDIA GeForce RTX 4090"}, "a desktop on it takes memory"),
    ],
)
def test_doctor_says_what_the_allocator_would_do(
    fake: FakeCore,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    facts: dict[str, Any],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fake.facts |= facts
    report = doctor.Report()
    doctor._devices(report, fake)
    assert report.usable and said in str(report)


def test_doctor_works_with_no_gpu(fake: FakeCore) -> None:
    fake.problem = "libcuda.so.1: not there"
    report = doctor.Report()
    doctor._devices(report, fake)
    assert not report.usable and "libcuda.so.1: not there" in str(report)
    assert report.as_json()["findings"][0]["verdict"] == "bad"


def test_doctor_notes_lesser_things(fake: FakeCore) -> None:
    fake.facts |= {"host_pages": False, "mig": True, "context": True}
    report = doctor.Report()
    doctor._devices(report, fake)
    assert report.usable
    assert sum(finding.verdict == "note" for finding in report.findings) == 6


def test_doctor_works_with_no_torch(
    fake: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = doctor.Report()
    doctor._torch(report, fake)
    assert (
        report.findings[0].verdict == "note" and "pip install" in report.findings[0].text
    )


def a_torch(cuda: str | None, cudnn: int | None) -> Any:
    def version() -> int | None:
        if cudnn == 0:
            raise RuntimeError("cuDNN version incompatibility\nmore")
        return cudnn

    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=version)),
    )


@pytest.mark.parametrize(
    ("mechanism", "torch", "verdicts", "says"),
    [
        ("layer", a_torch("13.0", 91900), ["good", "good"], "cuDNN 9.19.0 itself"),
        ("guard", a_torch("12.6", 90501), ["note", "note"], "cuDNN 9.5.1 describes no"),
        ("layer", a_torch("13.0", None), ["good", "note"], "no libcudnn: workspaces"),
        ("layer", a_torch("13.0", 0), ["good", "note"], "(cuDNN version incompatib"),
        ("layer", a_torch(None, None), ["good", "note"], "built with CUDA"),
    ],
)
def test_doctor_says_what_a_rehearsal_would_have(
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    torch: Any,
    verdicts: list[str],
    says: str,
) -> None:
    from torcharena import rehearsal
    from torcharena.rehearsal import isolation

    monkeypatch.setattr(rehearsal, "library", lambda: None)
    status = isolation.Status(mechanism, f"files: {mechanism}", "/tmp")
    monkeypatch.setattr(isolation, "status", lambda: status)
    monkeypatch.setitem(sys.modules, "torch", torch)
    report = doctor.Report()
    doctor._rehearsal(report)
    assert [finding.verdict for finding in report.findings] == verdicts
    text = str(report)
    assert report.usable and f"files: {mechanism}" in text and says in text, text
    assert report.facts["rehearsal"]["files"] == mechanism


def test_doctor_without_the_simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torcharena import rehearsal

    def missing() -> None:
        raise FileNotFoundError("libcuda.so.1 was not built")

    monkeypatch.setattr(rehearsal, "library", missing)
    report = doctor.Report()
    doctor._rehearsal(report)
    assert report.usable and "was not built" in str(report)
    assert report.facts["rehearsal"] == {"built": False}


def test_doctors_exit_code_and_json(
    fake: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["usable"] is True and len(found["devices"]) == 2
    fake.problem = "no driver"
    assert cli.main(["doctor"]) == 1
    assert "does not work here" in capsys.readouterr().out
    monkeypatch.setenv("TORCHARENA_LIMIT", "16GB")
    assert cli.main(["doctor"]) == 1
    assert "16GiB" in capsys.readouterr().out


# --- demo ----------------------------------------------------------------------------------


def test_the_demos_report() -> None:
    row = {"device": "Model", "torch": "2.14.1", "steps": 40, "oom": False, "cap": None}
    rows = [
        {**row, "allocator": name, "peak_requested": GIB, "peak_reserved": reserved}
        for name, reserved in (
            ("native", 2 * GIB),
            ("expandable", GIB + GIB // 8),
            ("arena", GIB),
        )
    ]
    assert demo._cap(rows) == 1056 << 20
    capped = [
        {**one, "cap": 1056 << 20, "oom": one["allocator"] == "native"} for one in rows
    ]
    capped[0]["steps"] = 3
    text = demo.report(rows + capped, simulated=True)
    native, expandable, arena = (line for line in text.splitlines() if "█" in line)
    assert native.count("█") == 2 * arena.count("█") > expandable.count("█")
    assert "2.000x" in native and "1.000x" in arena
    assert "out of memory after step 3" in text and text.count("trains to the end") == 2
    assert "simulated" in text and "no times" in text
    assert "Simulated" not in demo.report(rows + capped, simulated=False)


def test_demo_without_torch_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["demo"]) == 1
    assert "pip install torch" in capsys.readouterr().err
    assert cli.main(["demo", "--steps", "1"]) == 2


# --- record --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unpack"),
    [("x.trace.xz", lzma.open), ("x.trace.gz", gzip.open), ("x.trace", open)],
)
def test_a_recording_is_compressed_by_its_name(
    arena: FakeCore, tmp_path: Path, name: str, unpack: Any
) -> None:
    path = tmp_path / name
    with torcharena.record(path) as recording_:
        torcharena.mark("forward")
        with pytest.raises(RuntimeError, match="already recording"):
            torcharena.record(tmp_path / "y")
    recording_.stop()  # nothing the second time
    with unpack(path, "rt") as file:
        assert file.read() == "a 1 512 0\nf 1\n"
    assert os.listdir(tmp_path) == [name]
    assert ("mark", "forward") in arena.calls


def test_a_recording_needs_its_folder(arena: FakeCore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        torcharena.record(tmp_path / "no" / "x.trace")
    torcharena.record(tmp_path / "x.trace").stop()


@pytest.mark.parametrize("text", ["", "two\nlines", "a\rb"])
def test_a_mark_is_one_line(arena: FakeCore, text: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        torcharena.mark(text)


def test_each_rank_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(variable, raising=False)
    assert recording.place("a/x.trace.xz") == "a/x.trace.xz"
    assert recording.place("x.%p.%r") == f"x.{os.getpid()}.0"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert recording.place("a.b/x.trace.xz") == "a.b/x.rank3.trace.xz"
    assert recording.place("x-%r.trace") == "x-3.trace"


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torcharena", "--version"], capture_output=True, text=True
    )
    assert (
        done.stdout == f"torcharena {torcharena.__version__}\n" and done.returncode == 0
    )
