"""Truth and rehearsals side by side: what is measured, in which order, and how it is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import apart, context, rehearsals, truths, versions  # noqa: E402
from benchmarks.harness import catalogue  # noqa: E402


def a_row(
    program: str, allocator: str, reserved: int | None, **more: Any
) -> dict[str, Any]:
    row = {"program": program, "allocator": allocator, "requested": 1000}
    return row | {"reserved": reserved} | more


def test_the_most_wanted_come_first_and_all_come() -> None:
    keys = truths.order(catalogue.PROGRAMS, ("native", "expandable", "arena"))
    assert len(keys) == len(set(keys)) == 3 * len(catalogue.PROGRAMS)
    half = 2 * len(catalogue.PROGRAMS)
    assert {a for _, a in keys[:half]} == {"native", "expandable"}
    assert {a for _, a in keys[half:]} == {"arena"}
    assert keys[0] == ("detector_boxes", "native")
    alone = [p in catalogue.ALONE for p, _ in keys[:half]]
    assert alone == sorted(alone) and any(alone)
    assert truths.order(["vit_ema"], ["arena"]) == [("vit_ema", "arena")]


def test_merging_replaces_and_refuses() -> None:
    old = [a_row("a", "native", None), a_row("b", "native", 1100)]
    new = [
        a_row("a", "native", 1200),
        a_row("b", "native", 9, simulated=True),
        a_row("b", "arena", None),
        {"program": "c", "allocator": "native", "error": "no"},
        a_row("d", "native", 1300),
    ]
    rows = truths.merge(old, new)
    assert [(r["program"], r["reserved"]) for r in rows] == [
        ("a", 1200),
        ("b", 1100),
        ("d", 1300),
    ]


def test_every_program_is_there_and_has_its_place() -> None:
    for program in catalogue.PROGRAMS:
        script, *arguments = catalogue.command(program)
        text = Path(script).read_text()
        assert "import truth" in text
        assert bool(arguments) == program.startswith("loop:")
    assert set(catalogue.ALONE) <= set(catalogue.PROGRAMS)
    benchmarked = {
        p
        for p in catalogue.PROGRAMS
        if "cudnn.benchmark" in Path(catalogue.command(p)[0]).read_text()
    }
    assert benchmarked == set(catalogue.ALONE)


def test_a_sitting_writes_each_row_at_once_and_skips_what_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "truth.jsonl"
    seen: list[tuple[str, str]] = []

    def measure(program: str, allocator: str, *_: Any) -> dict[str, Any]:
        assert len(out.read_text().splitlines()) == 1 + len(seen)
        seen.append((program, allocator))
        if program == "vit_ema":
            return {"program": program, "allocator": allocator, "error": "no such thing"}
        return a_row(program, allocator, 1100, seconds=1.0)

    monkeypatch.setattr(truths, "measure", measure)
    monkeypatch.setattr(truths, "TRUTH", tmp_path / "results.jsonl")
    truths.TRUTH.write_text(json.dumps(a_row("gnn_pool", "native", 1100)) + "\n")
    # of a sitting before, which was cut off in its second line
    out.write_text(json.dumps(a_row("lstm_words", "native", 1100)) + '\n{"program": "l')
    out.write_text(out.read_text().splitlines()[0] + "\n")
    options = ["--out", str(out), "--jobs", "1", "--allocators", "native"]
    programs = ["--programs", "lstm_words,gnn_pool,vit_ema,loop:moe"]
    assert truths.main([*options, *programs]) == 1
    assert seen == [("vit_ema", "native"), ("loop:moe", "native")]
    assert "no such thing" in capsys.readouterr().out
    seen.clear()
    assert truths.main([*options, *programs, "--seconds", "0"]) == 1
    assert not seen and "not begun" in capsys.readouterr().out
    assert truths.main(["--merge", str(out)]) == 0
    assert [r["program"] for r in truths.read(truths.TRUTH)] == [
        "gnn_pool",
        "lstm_words",
        "loop:moe",
    ]


def test_a_cut_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n{"a": ')
    assert truths.read(file) == [{"a": 1}]
    assert truths.read(tmp_path / "none") == []


@pytest.mark.parametrize(
    "stdout, code, error",
    [
        ("", 3, "exit code 3"),
        ("", 0, "it said nothing"),
        ('TRUTH {"program": "vit_ema", "allocator": "native"}', 0, "it ran as"),
    ],
)
def test_a_run_without_its_row_is_an_error(
    monkeypatch: pytest.MonkeyPatch, stdout: str, code: int, error: str
) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert "TORCHARENA_ENABLE" not in options["env"]
        return subprocess.CompletedProcess(command, code, stdout, "")

    monkeypatch.setenv("TORCHARENA_ENABLE", "1")
    monkeypatch.setattr(subprocess, "run", run)
    row = truths.measure("vit_ema", "arena", 9)
    assert row["error"].startswith(error) and (row["program"], row["allocator"]) == (
        "vit_ema",
        "arena",
    )


def test_what_misses_is_said() -> None:
    def row(program: str, allocator: str, off: float, kind: str) -> dict[str, Any]:
        found = {"program": program, "allocator": allocator}
        return found | {"requested_off": 0.0, "reserved_off": None} | {f"{kind}_off": off}

    fine = [row(f"p{i}", "native", 0.001, "reserved") for i in range(9)]
    assert rehearsals.misses([*fine, row("x", "native", 0.049, "reserved")]) == []
    worst = rehearsals.misses([*fine, row("x", "native", -0.06, "reserved")])
    assert worst == ["reserved: wanted 5% at worst: x native 6.00%"]
    arena = rehearsals.misses([*fine, row("x", "arena", 0.02, "reserved")])
    assert arena == [
        "the arena's reserved: nine in ten are within 2.00%, wanted 1.0%",
        "the arena's reserved: wanted 1% at worst: x arena 2.00%",
    ]
    requested = rehearsals.misses([row("x", "arena", 0.03, "requested")])
    assert len(requested) == 2 and all("requested" in line for line in requested)


def test_what_has_no_truth_stays_out_of_the_documentation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docs, out, have = tmp_path / "docs.md", tmp_path / "out.jsonl", tmp_path / "have"
    docs.write_text(f"before\n{rehearsals.BEGIN}\nold\n{rehearsals.END}\nafter\n")
    truth = [a_row("vit_ema", "native", 2000)]
    had = {
        "program": "vit_ema",
        "allocator": "native",
        "requested": 1000,
        "reserved": 1900,
    }
    have.write_text(json.dumps(had | {"seconds": 7.0}) + "\n")
    ran: list[tuple[str, str]] = []

    def rehearse(program: str, allocator: str, *_: Any) -> dict[str, Any]:
        ran.append((program, allocator))
        return {"peak_requested": 5, "peak_reserved": 6, "seconds": 1.0}

    monkeypatch.setattr(
        rehearsals,
        "load",
        lambda p=None: truth if p is None else [json.loads(p.read_text())],
    )
    monkeypatch.setattr(rehearsals, "rehearse", rehearse)
    monkeypatch.setattr(
        rehearsals, "write_docs", lambda text: rehearsals_write(text, docs)
    )
    command = ["--only", "vit_ema,lstm_words", "--allocators", "native", "--write-docs"]
    assert rehearsals.main([*command, "--have", str(have), "--out", str(out)]) == 0
    assert ran == [("lstm_words", "native")]
    text = docs.read_text()
    assert "vit_ema | native" in text and "-5.00 %" in text and "| 7 |" in text
    assert "lstm_words" not in text and text.endswith("after\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["measured"] for row in rows] == [True, False]


rehearsals_write = rehearsals.write_docs


def test_versions_take_given_environments_first(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"one": "2.9.1+cu128", "two": "2.9.0", "three": "2.14.1+cu130", "none": None}
    monkeypatch.setattr(versions, "torch_of", lambda python: {"torch": have[python]})
    found = versions.choose(versions.TORCHES, ["none", "one", "two", "three"])
    assert found == {"2.9.1": "one", "2.14.1": "three"}


def test_a_table_of_versions() -> None:
    good = {"torch": "2.9.1", "cuda": "12.8", "loop": "gpt", "allocator": "arena"}
    good |= {"requested": 1 << 20, "reserved": 1 << 21, "seconds": 3.0}
    bad = {
        "torch": "2.7.1",
        "cuda": None,
        "loop": "cnn",
        "allocator": "all",
        "error": "no",
    }
    lines = versions.table([good, bad]).splitlines()
    assert lines[1].endswith("yes") and "2.0 MiB" in lines[1]
    assert "no: no" in lines[2]


def test_what_a_context_takes_is_shown_by_steps() -> None:
    rows = [
        {"step": "driver's context alone", "bytes": 300 << 20},
        {"step": "torch's context", "bytes": 400 << 20},
        {"step": "cuBLAS", "error": "no cuBLAS"},
        {"step": "cuDNN", "bytes": 450 << 20},
    ]
    lines = context.table(rows).splitlines()
    assert lines[1].split()[-2:] == ["400.0", "+400.0"]
    assert "failed: no cuBLAS" in lines[2] and lines[3].split()[-1] == "+50.0"


def test_where_traces_part() -> None:
    gpu, rehearsed = [512, 1024, 4096, 4096, 512], [512, 1024, 2048, 4096, 512, 512]
    lines = apart.report(gpu, rehearsed).splitlines()
    assert "the first 2 agree" in lines[0] and lines[1].endswith("4096, 4096, 512")
    assert [line.split() for line in lines[3:]] == [
        ["4096", "bytes:", "1", "more", "on", "the", "GPU"],
        ["2048", "bytes:", "1", "more", "on", "the", "rehearsal"],
        ["512", "bytes:", "1", "more", "on", "the", "rehearsal"],
    ]
    assert apart.report(gpu, gpu) == ""
    assert "another order" in apart.report([1, 2], [2, 1])
    assert apart.sizes("# torcharena\na 1 512 0\nm step\nf 1\na 2 8 1\n") == [512, 8]


def test_a_missing_version_gets_the_projects_own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The one that TORCHARENA_TORCH would make, so that neither makes it twice."""
    environments = versions.environments
    asked: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "VENVS", tmp_path / ".venv")
    monkeypatch.setattr(environments, "TORCH_BYTES", 0)
    monkeypatch.setattr(
        environments, "active", lambda: {"python": "3.11", "executable": sys.executable}
    )
    monkeypatch.setattr(
        environments, "make", lambda venv, python, base, what: asked.append((venv, what))
    )
    python = versions.made("2.9.1")
    monkeypatch.setenv("TORCHARENA_TORCH", "2.9.1")
    monkeypatch.setattr(environments, "site_packages", lambda venv: venv)
    with environments.locked():
        environments.torch_site(environments.active(), sys.executable)
    assert asked[0] == asked[1] and asked[0][1] == ["torch==2.9.1"]
    assert python == str(asked[0][0] / "bin" / "python")
