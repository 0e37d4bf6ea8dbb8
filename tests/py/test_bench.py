"""The harness `python -m benchmarks`: what is kept, searched, compared and shown, and that
processes take turns, with the real PyTorch on a simulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from simulated import environment, missing

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import __main__ as command  # noqa: E402
from benchmarks.groups import (  # noqa: E402
    caps,
    latency,
    packing,
    report,
    spill_child,
    spill_report,
    startup,
    steps,
)
from benchmarks.harness import catalogue, comparing, contenders, runs  # noqa: E402
from benchmarks.harness.store import Store  # noqa: E402

GIB = 1 << 30
needs_torch = pytest.mark.skipif(bool(missing()), reason=missing())


def a_row(contender: str, **more: Any) -> dict[str, Any]:
    return {"group": "packing", "case": "p", "contender": contender} | more


# --- the file of results -------------------------------------------------------------------
def test_a_file_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "results" / "bench.json"
    store = Store(path)
    store.on({"gpu": "one", "torch": "2"})
    store.put(a_row("native", reserved=5))
    store.put(a_row("arena", error="no such thing"))
    again = Store(path)
    assert again.has("packing", "p", "native") and not again.has("packing", "p", "arena")
    again.put(a_row("native", error="worse luck"))
    assert again.get("packing", "p", "native") == a_row("native", reserved=5)
    assert not Store(path, again=True).has("packing", "p", "native")
    with pytest.raises(ValueError, match="of gpu one, this is two"):
        again.on({"gpu": "two"})
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"]
    path.write_text("[]")
    with pytest.raises(ValueError, match="no file of results"):
        Store(path)


# --- caps ----------------------------------------------------------------------------------
@pytest.mark.parametrize("least", [0, 1, 2, 3, 7, 40, 111])
def test_the_smallest_cap_is_found(least: int) -> None:
    asked: list[int] = []

    def trial(n: int) -> bool:
        asked.append(n)
        return n >= least

    tried: dict[int, bool] = {}
    assert caps.search(trial, 2, tried) == least
    assert tried == {n: n >= least for n in asked} and len(asked) == len(set(asked))
    assert len(asked) <= 14
    asked.clear()
    assert caps.search(trial, 2, tried) == least and not asked


def test_a_search_ends_where_something_else_goes_wrong() -> None:
    tried: dict[int, bool] = {}
    answers: dict[int, bool | str] = {2: False, 4: "exit code 1: no such file"}
    assert caps.search(lambda n: answers[n], 2, tried) == "exit code 1: no such file"
    assert tried == {2: False}
    found = caps.search(lambda n: False, 2, {})
    assert isinstance(found, str) and found.startswith("out of memory at")


def test_a_cut_off_search_keeps_what_it_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[float] = []

    def run_program(program: str, name: str, *, cap: int, **_: Any) -> dict[str, Any]:
        seen.append(cap / 1000)
        if len(seen) == 2:
            return {"error": "over 9 s"}
        return (
            {"out_of_memory": "CUDA out of memory"} if cap < 1015 else {"reserved": cap}
        )

    monkeypatch.setattr(caps, "run_program", run_program)
    store = Store(tmp_path / "caps.json")
    store.put(a_row("arena", requested=1000))
    assert caps.run(store, ["arena"], ["p"]) == ["p arena: over 9 s"]
    assert store.get("caps", "p", "arena") is None
    assert caps.run(Store(store.path), ["arena"], ["p"]) == []
    assert Store(store.path).rows["caps", "p", "arena"]["smallest"] == 1.015
    assert seen == [1.01, 1.02, 1.015]


def test_want_of_memory_is_told_from_other_ends() -> None:
    good = 'RESULT {"reserved": 11, "requested": 10}'
    worse = 'RESULT {"reserved": 13, "requested": 10}'
    short = 'RESULT {"out_of_memory": "CUDA out of memory"}'
    judge = runs.judge
    assert judge([(0, f"step\n{good}\n", "")], False, 9)["reserved"] == 11
    assert judge([(0, good, ""), (0, worse, "")], False, 9)["reserved"] == 13
    assert "out_of_memory" in judge([(0, good, ""), (0, short, "")], False, 9)
    assert "out_of_memory" in judge([(0, short, ""), (-9, "", "")], True, 9)
    assert judge([(0, "", "")], False, 9)["error"] == "it said nothing"
    assert (
        judge([(1, "", "a\nKeyError: 1\n")], False, 9)["error"]
        == "exit code 1: KeyError: 1"
    )
    assert judge([(0, good, ""), (-9, "", "")], True, 9)["error"] == "not done after 9 s"


# --- comparing -----------------------------------------------------------------------------
def test_the_ratio_of_rounds() -> None:
    floor = [[1.0, 2.0, 4.0], [1.0, 1.0]]
    ours = [
        [1.1, 2.2, 4.4],
        [1.1, 1.1, 9.0],
    ]  # a round that the floor lacks does not count
    middle, bound = comparing.ratio_bound(ours, floor)
    assert middle == pytest.approx(1.1) and bound == pytest.approx(1.1)
    ours[1][0] = 1.3
    middle, bound = comparing.ratio_bound(ours, floor)
    assert middle == pytest.approx(1.1) and middle < bound <= 1.3


def test_who_sits_beside_whom() -> None:
    sizes = {"native": 50.0, "expandable": 30.0, "arena": 25.0, "arena@1.02": 24.0}
    assert steps.sittings(sizes, 130) == [["arena", "native", "expandable", "arena@1.02"]]
    assert steps.sittings(sizes, 80) == [
        ["arena", "native"],
        ["arena", "expandable", "arena@1.02"],
    ]
    assert steps.sittings({"arena": 1.0}, 80) == [["arena"]]
    assert steps.sittings({"native": 99.0}, 80) == [["native"]]


def test_steps_of_a_sitting() -> None:
    def played(seconds: float, slow: float | None = None) -> list[dict[str, Any]]:
        counts = dict.fromkeys(
            ("page_moves", "waits", "slow_seconds", "wait_seconds"), slow
        )
        more = {} if slow is None else {"counts": counts}
        return [{"seconds": 9.0} | more] * 2 + [{"seconds": seconds} | more] * 4

    taken = {"native": played(1.0), "arena": played(1.1, 0.01), "arena@1.02": []}
    results: dict[str, dict[str, Any]] = {
        "native": {"cap": None, "reserved": 13, "requested": 10},
        "arena": {"cap": None, "reserved": 11, "requested": 10},
        "arena@1.02": {"out_of_memory": "CUDA out of memory"},
    }
    native, arena, capped = steps.rows_of("p", taken, results)
    assert native["over"] == {} and native["step_ms"] == pytest.approx(1000)
    assert arena["over"] == {"native": [pytest.approx(1.1), pytest.approx(1.1)]}
    assert arena["arena_ms"] == pytest.approx(10) and arena["moves"] == pytest.approx(
        0.01
    )
    assert capped["error"].startswith("out of memory")


def test_rows_of_a_start() -> None:
    backed = {
        "native": {"24 GiB": [{"cold": 0.3, "again": 0.1}, {"cold": 0.1, "again": 0.1}]}
    }
    stepped = {"arena": [{"first": 1.5, "tenth": 1.0, "arena_ms": 90.0}, {"error": "no"}]}
    one, two = startup.rows_of(backed, stepped)
    assert one["cold"] == pytest.approx(200) and one["rounds"] == 2
    assert two["extra_ms"] == pytest.approx(500) and two["arena_ms"] == 90.0


# --- names ---------------------------------------------------------------------------------
def test_programs_and_contenders_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    options = command.parse(["packing", "--programs", "llama_lora,new"])
    assert options.programs == ["loop:llama_lora", *packing.NEW]
    assert command.parse(["latency", "--cases", "threads"]).cases == [
        ("threads", n) for n in (1, 2, 4, 8)
    ]
    for wrong in (
        ["latency", "--only", "nix"],
        ["packing", "--only", "floor"],
        ["packing", "--programs", "nix"],
        ["latency", "--cases", "nix"],
        ["nix"],
    ):
        with pytest.raises(SystemExit):
            command.parse(wrong)
    assert "nix: not one of" in capsys.readouterr().err
    for program in packing.NEW:
        assert "truth" in Path(catalogue.command(program)[0]).read_text()


def test_who_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "compiler", lambda: None)
    monkeypatch.setenv("TORCHARENA_SIM_GPU", "16GiB")
    found, why = contenders.pick(None, latency.CONTENDERS)
    assert found == ["native", "expandable", "async", "arena"]
    assert "compiler" in why["floor"] and "driver" in why["rmm_pool"]
    with pytest.raises(ValueError, match="nix: not one of"):
        contenders.pick(["nix"], latency.CONTENDERS)


def test_no_setting_leaks_into_a_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHARENA_LIMIT", "1GiB")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    env = contenders.environment("expandable")
    assert env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "TORCHARENA_LIMIT" not in env and "PYTORCH_ALLOC_CONF" not in env
    assert "PYTORCH_CUDA_ALLOC_CONF" not in contenders.environment("native")


# --- tables --------------------------------------------------------------------------------
def test_tables_of_packing() -> None:
    store = Store()
    store.put(a_row("native", requested=10 * GIB, reserved=15 * GIB, seconds=1.0))
    store.put(a_row("rmm_pool", reserved=20 * GIB, seconds=1.0))
    store.put(a_row("arena", error="exit code 1"))
    text = report.tables(store)
    row = next(line for line in text.splitlines() if line.startswith("| p, 10.00 GiB"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["1.500", "2.000", "failed"]


def test_the_committed_results_make_the_document() -> None:
    assert report.main(check=True) == 0


def test_a_stale_document_is_noticed(tmp_path: Path) -> None:
    folder, out = tmp_path / "results", tmp_path / "RESULTS.md"
    store = Store(folder / "bench-a.json")
    store.on({"processor": "a cpu", "cpus": 2})
    assert report.main(False, folder, out) == 0 and report.main(True, folder, out) == 0
    store.put(a_row("arena", requested=GIB, reserved=GIB))
    assert report.main(True, folder, out) == 1
    assert report.main(False, folder, out) == 0 and "a cpu, 2 CPUs" in out.read_text()


# --- with the real PyTorch -----------------------------------------------------------------
def bench(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        env=environment("16GiB", **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_what_is_sent_is_of_the_step_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import torcharena
    from torcharena.spill import offload_saved

    def mover(sent: int) -> Any:
        current = types.SimpleNamespace(sent=sent)
        # The pass before sent another number.
        return types.SimpleNamespace(
            current={0: current}, last={0: (9, 1)}, passes={0: 2}
        )

    movers = {"one": mover(5), "other": mover(7)}
    monkeypatch.setattr(offload_saved, "_movers", movers)
    monkeypatch.setattr(torcharena, "memory_stats", lambda: {"spill_allocated_bytes": 3})
    assert spill_child.counts("saved") == {"sent": 12, "by_net": 3, "calls": 0}


def test_no_bound_without_rates() -> None:
    step = {"seconds": 2.0, "sent": GIB, "by_net": 0}
    row = {"steps": [step] * 2, "losses": [], "reserved": 0, "state_on_host": GIB}
    row |= {"group": "spill", "case": "m @ cap", "contender": "auto"}
    plain = {"steps": [{"seconds": 1.0}] * 2, "losses": []}
    store = Store()
    store.put(row)
    ((*_, over, bound, _equal),) = spill_report.trained(store, plain, ["m @ cap"], None)
    assert (over, bound) == ("2.00", "no rates")
    rated = {**plain, "rates": {"both": GIB / 1e9}}
    ((*_, bound, _equal),) = spill_report.trained(store, rated, ["m @ cap"], None)
    assert bound == "0.67 (0.67)"


@needs_torch
def test_processes_take_turns(tmp_path: Path) -> None:
    """The floor too: what does nothing must yet keep PyTorch alive."""
    out = tmp_path / "latency.json"
    done = bench(
        *(
            "latency",
            "--only",
            "floor,arena",
            "--cases",
            "threads",
            "--seconds",
            "1",
        ),
        *("--generations", "1", "--out", str(out)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = Store(out).of("latency")
    assert {(row["case"], row["contender"]) for row in rows} == {
        (f"threads {n}", name) for n in (1, 2, 4, 8) for name in ("floor", "arena")
    }
    for row in rows:
        assert row["rounds"] >= latency.LEAST
        assert 0 < row["p50"] <= row["p99"] <= row["p999"]
        assert ("ratio" in row) == (row["contender"] != "floor")
    assert json.loads(out.read_text())["machine"]["simulated"] is True


@needs_torch
def test_a_program_that_a_cap_is_too_small_for() -> None:
    code = (
        "import json; from benchmarks.harness.runs import run_program\n"
        "print(json.dumps(run_program('small_loops:gpt', 'arena', cap=100 << 20)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment("16GiB"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert "CUDA out of memory" in found["out_of_memory"] and "error" not in found
    assert found["cap"] == 100 << 20 and found["reserved"] <= 100 << 20
