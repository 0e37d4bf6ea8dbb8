"""The benchmarks' arithmetic, and that the loops are those whose traces are recorded."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import loops, replays, tracking  # noqa: E402
from benchmarks.harness import comparing  # noqa: E402


def test_a_paired_ratio_is_the_median_of_the_pairs() -> None:
    native = [[1.0, 1.0], [2.0, 2.0], [1.0, 3.0]]
    arena = [[1.1, 1.1], [2.0, 2.0], [4.0, 4.0]]
    assert comparing.paired_ratio(arena, native) == pytest.approx(1.1)
    assert comparing.upper_bound(native, native) == 1.0
    bound = comparing.upper_bound(arena, native)
    assert 1.1 < bound <= 4.0
    assert bound == comparing.upper_bound(arena, native)


def test_losses() -> None:
    nan = float("nan")
    assert comparing.largest_difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert comparing.largest_difference([nan, 1.0], [nan, 1.0]) == 0.0
    assert comparing.largest_difference([nan], [1.0]) != comparing.largest_difference(
        [1], [1]
    )
    assert comparing.spread([[1.0]]) is None
    assert comparing.spread([[1.0], [2.0], [4.0]]) == 3.0


def a_run(allocator: str, second: float, loss: float) -> dict[str, Any]:
    own = {"slow_seconds": second / 1000} if allocator == "arena" else {}
    return {
        "loop": "moe",
        "allocator": allocator,
        "losses": [3.0, loss],
        "step_seconds": [9.0, second],
        "peak_requested": 1000,
        "peak_reserved": 1100 if allocator == "native" else 1010,
        "driver_calls": [{"maps": 100, **own}, {"maps": 4, **own}],
    }


def test_a_comparison() -> None:
    runs = {
        "native": [a_run("native", 1.0, 2.0), a_run("native", 1.0, 2.5)],
        "arena": [a_run("arena", 1.02, 2.0), a_run("arena", 1.04, 2.25)],
    }
    found = loops.compare("moe", runs)
    native, arena = found["allocators"]["native"], found["allocators"]["arena"]
    assert native["ratio"] == 1.1
    assert native["loss_spread"] == 0.5
    assert "time_ratio" not in native
    assert arena["ratio"] == 1.01
    assert arena["time_ratio"] == pytest.approx(1.03)
    assert 1.03 <= arena["time_ratio_bound95"] <= 1.04 + 1e-9
    assert arena["loss_difference"] == 0.5
    assert arena["driver_calls"]["maps"] == {"median": 4, "max": 4}
    assert arena["arena_ms"] == pytest.approx(1.03) and "arena_ms" not in native
    head, _, row_of_native, row_of_arena, *_ = loops.table([found]).splitlines()
    at = slice(head.index("arena ms"), head.index("arena ms") + len("arena ms"))
    assert row_of_arena[at].strip() == "1.030" and row_of_native[at].strip() == ""


def test_turns_with_tracking_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = tracking.repeating(lambda count, low: list(range(low, low + count)))(23, 3)
    assert lengths == [*range(3, 13), *range(3, 13), 3, 4, 5]
    asked: list[str] = []

    class Player:
        """Its later turns take longer: those before the first that counts are left out."""

        def __init__(
            self, name: str, module: str, arguments: list[str], label: str
        ) -> None:
            self.name = "on" if "--track" in arguments else "off"
            self.turns = 0

        def hello(self, timeout: float) -> dict[str, Any]:
            return {"machine": {"device": "a"}}

        def ask(self, timeout: float, **what: Any) -> dict[str, Any]:
            if what:
                return {"hooks_seconds": 0.0, "allocations": 1, "allocation_seconds": 0.0}
            asked.append(self.name)
            self.turns += 1
            return {"seconds": [float(self.turns)] * 10}

        def close(self) -> None:
            pass

    monkeypatch.setattr(tracking, "Player", Player)
    found = tracking.run_loop("moe", 0.0, 60.0)
    assert found["ours"] == found["theirs"] == [[turn] * 10 for turn in (3.0, 4.0, 5.0)]
    assert asked == ["off", "on", "on", "off"] * 2 + ["off", "on"]
    row = tracking.compare(
        {
            "loop": "moe",
            "ours": [[1.1, 2.2], [1.1, 2.2]],
            "theirs": [[1.0, 2.0], [1.0, 2.0]],
            "hooks_seconds": 0.005,
            "allocations": 1000,
            "allocation_seconds": 1e-5,
        }
    )
    assert row["time_ratio"] == pytest.approx(1.1) == row["time_ratio_bound95"]
    assert row["own_ratio"] == pytest.approx(1.01)
    text = tracking.table([row, {"loop": "bert_amp", "error": "over 60 s"}])
    assert "failed: over 60 s" in text
    assert max(map(len, text.splitlines())) <= 100


def test_loops_share_the_time() -> None:
    assert tracking.share(None, [], 5) == float("inf")
    assert tracking.share(145, [], 5) == 145 / 5 - tracking.BEGINNING
    assert tracking.share(200, [(44.0, 14.0)], 4) == (200 - 44) / 4 - 30
    assert tracking.share(145, [(144.0, 14.0)], 4) == 1.0


def test_what_is_measured_is_written_after_every_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(name: str, options: Any) -> dict[str, list[dict[str, Any]]]:
        if name == "moe":
            raise KeyboardInterrupt
        return {"native": [a_run("native", 1.0, 2.0)]}

    monkeypatch.setattr(loops, "measure", measure)
    out = tmp_path / "figures.json"
    with pytest.raises(KeyboardInterrupt):
        loops.main(["--loops", "bert_amp,moe", "--out", str(out)])
    assert [loop["loop"] for loop in json.loads(out.read_text())["loops"]] == ["bert_amp"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_child_gets_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        assert "TORCHARENA_SLACK" not in options["env"]
        commands.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setenv("TORCHARENA_SLACK", "2")
    monkeypatch.setattr(subprocess, "run", run)
    given = ["--slack", "1.05", "--limit", "8GiB", "--steps", "4"]
    loops.one_run("moe", "arena", loops.parse(given))
    child = loops.parse(commands[0][3:])
    assert (child.slack, child.limit, child.steps) == (1.05, "8GiB", 4)
    assert child.child == ["moe", "arena"]


def test_a_run_that_failed_is_shown() -> None:
    runs = {
        "native": [a_run("native", 1.0, 2.0)],
        "arena": [{"loop": "moe", "allocator": "arena", "error": "no such thing"}],
    }
    found = loops.compare("moe", runs)
    assert found["allocators"]["arena"]["error"] == "no such thing"
    assert "failed: no such thing" in loops.table([found])


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert loops.parse(["--loops", "moe,bert_amp"]).loops == ["moe", "bert_amp"]
    for wrong in (
        ["--loops", "nix"],
        ["--allocators", "nix"],
        ["--steps", "1"],
        ["--slack", "0.9"],
    ):
        with pytest.raises(SystemExit):
            loops.parse(wrong)
    assert "nix: not one of" in capsys.readouterr().err


# Bytes of a step's input by its length: what the loop allocates before `forward`.
INPUT = {
    "gpt2_varlen": lambda n: 8 * n * 8,
    "bert_amp": lambda n: 32 * n * 8,
    "resnet50_multiscale": lambda n: 64 * 3 * n * n * 4,
    "llama_lora": lambda n: 4 * n * 8,
    "moe": lambda n: 8 * n * 8,
}
DRAWN = {
    "gpt2_varlen": (30, 128, 1024, 7),
    "bert_amp": (40, 32, 512, 11),
    "resnet50_multiscale": (24, 192, 448, 3, 32),
    "llama_lora": (20, 256, 2048, 5),
    "moe": (24, 256, 1024, 13),
}


@pytest.mark.parametrize("name", sorted(INPUT))
def test_lengths_are_those_of_the_trace(name: str) -> None:
    training = pytest.importorskip("benchmarks.training", reason="torch is not installed")
    file = ROOT / "tests" / "traces" / f"{name}.trace.xz"
    since_step: list[int] = []
    inputs: list[list[int]] = []
    for text in lzma.decompress(file.read_bytes()).decode().splitlines():
        if text.startswith("a "):
            since_step.append(int(text.split()[2]))
        elif text == "m forward":
            inputs.append(since_step)
        elif text == "m step":
            since_step = []
    wanted = [INPUT[name](n) for n in training.lengths(*DRAWN[name])]
    assert len(inputs) == len(wanted)
    for step, (sizes, size) in enumerate(zip(inputs, wanted, strict=True)):
        assert size in sizes, f"step {step}"


def test_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.trace"
    file.write_text("a 1 8388608 0\nm step\nf 1\nm step\n")
    assert replays.main([str(file), "--out", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [row["limit_ratio"] for row in figures["rows"]] == list(replays.RATIOS)
    assert figures["rows"][0]["trace"] == "small.trace"
    assert figures["rows"][0]["null_events_per_second"] > 0
    assert "small" in capsys.readouterr().out
