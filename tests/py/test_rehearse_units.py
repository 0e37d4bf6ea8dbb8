"""The rehearsal's parts that need no torch: cards, times, verdicts, reports, holders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torcharena.rehearsal import (
    api,
    cards,
    command,
    launch,
    places,
    rehearsing,
    verdict,
)
from torcharena.rehearsal.isolation import wrapping
from torcharena.rehearsal.launch import Run
from torcharena.rehearsal.report import Outcome, Report

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30


def test_a_snapshot_imports_no_compiler() -> None:
    """torch looks frames up in `torch._inductor.codecache`, which it imports for that."""
    from types import ModuleType

    torch: Any = ModuleType("torch")
    with places._no_compiled_frames(torch):
        frames = torch._inductor.codecache.PyCodeCache.stack_frames_for_code
        assert frames("train.py", 3) is None
    assert not hasattr(torch, "_inductor")
    torch._inductor = real = ModuleType("torch._inductor")
    with places._no_compiled_frames(torch):
        assert torch._inductor is real
    assert torch._inductor is real


# --- cards ------------------------------------------------------------------------------


def test_c_has_the_same_cards() -> None:
    assert (ROOT / "csrc/simcuda/cards.inc").read_text() == cards.as_c()


def test_every_card_is_found_by_its_key_and_spelt_as_c_reads_it() -> None:
    assert len({card.key for card in cards.CARDS}) == len(cards.CARDS)
    for card in cards.CARDS:
        assert cards.find(card.key) is card
        assert card.spelt() == card.key
        assert 0 < card.context < card.memory


def test_sizes_and_cards_of_a_size() -> None:
    assert cards.find("16GiB").memory == 16 * GIB
    assert cards.find("16Gi").spelt() == f"{16 * MIB}KiB"
    card = cards.find("rtx4090:20GiB")
    assert (card.memory, card.sms) == (20 * GIB, 128)
    assert card.spelt() == f"rtx4090:{20 * MIB}KiB"
    assert cards.find("A100_40G").key == "a100-40g"
    assert cards.find("a100").key == "a100-80g"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rtx409", "rtx4090"),
        ("", "no card of the catalogue"),
        ("16GB", "write 16GiB"),
        ("16", "needs a unit"),
        ("80%", "is a size"),
        ("h100:none", "is a size"),
        ("100MiB", "context alone takes"),
        ("moon:16GiB", "no card"),
    ],
)
def test_wrong_cards_say_what_is_accepted(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cards.find(text)


# --- the command line -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("90s", 90), ("1.5h", 5400), ("7", 7), ("none", None)],
)
def test_times(text: str, seconds: float | None) -> None:
    assert command.seconds(text) == seconds


@pytest.mark.parametrize(
    "arguments",
    [
        ["--timeout", "soon", "x.py"],
        ["--timeout", "0", "x.py"],
        ["--gpu", "moon", "x.py"],
        ["--gpus", "0", "x.py"],
        ["--gpus", "two", "x.py"],
        ["--steps", "-1", "x.py"],
        ["--limit", "16GB", "x.py"],
        ["--allocator", "malloc", "x.py"],
        ["--seed", "x", "x.py"],
        ["--gp", "h100", "x.py"],
    ],
)
def test_malformed_options_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "what is to be rehearsed"),
        (["no-such-script.py"], "no such script"),
        (["--world-size", "4", "--rank", "4", "-m", "x"], "none of a world of 4"),
        (
            ["--limit", "900GiB", "--gpu", "t4", "-m", "x"],
            "900 GiB are more than the card has, 14.56 GiB",
        ),
        (["--record", "/no/such/x.trace", "-m", "x"], "there is no folder"),
        (["--keep-files", "/etc", "-m", "x"], "--keep-files /etc: it is not empty"),
        (["--keep-files", "/proc/none", "-m", "x"], "--keep-files /proc/none: No such"),
        (["--record", "x.trace", "--allocator", "native", "-m", "x"], "only the arena's"),
    ],
)
def test_command_lines_without_sense(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert says in capsys.readouterr().err


def test_the_catalogue_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list-gpus"]) == 0
    out = capsys.readouterr().out
    assert "rtx5090" in out and "a100-1g.5gb" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80


def test_options_after_the_program_are_its_own() -> None:
    options = command.parser().parse_args(
        ["--gpu", "t4", "-m", "mod", "--gpu", "x", "-m"]
    )
    assert (options.gpu, options.module, options.program) == ("t4", True, "mod")
    assert options.arguments == ["--gpu", "x", "-m"]


def test_command_forms(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    assert launch.command_of(str(script)) == [sys.executable, str(script)]
    assert launch.command_of("mod", module=True) == [sys.executable, "-m", "mod"]
    assert launch.command_of("sh")[0].endswith("/sh")
    with pytest.raises(FileNotFoundError, match="no such script"):
        launch.command_of("nothing-of-this-name")


def test_the_trace_answers_for_torchs_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out only the arena's run is repeated; where it does not, expandable
    segments are not run at all."""
    ran: list[tuple[str, bool]] = []
    replayed: list[tuple[str, bool]] = []
    fits = False

    def runs(_: Any, card: cards.Card, *, allocator: str, **__: Any) -> Run:
        ran.append((allocator, card.memory > 16 * GIB))
        if fits or card.memory > 16 * GIB:
            return a_run(allocator)
        return a_run(allocator, exit_code=1, ooms=1)

    def replays(_: Run, allocator: str, card: cards.Card, *__: Any, **___: Any) -> Run:
        replayed.append((allocator, card.memory > 16 * GIB))
        short = not fits and card.memory <= 16 * GIB
        return a_run(allocator, reserved=30 * GIB, exit_code=int(short), ooms=int(short))

    monkeypatch.setattr(rehearsing, "run", runs)
    monkeypatch.setattr(rehearsing.through_torch, "whole", lambda run: True)
    monkeypatch.setattr(rehearsing.through_torch, "again", replays)
    monkeypatch.setattr(verdict, "smallest_cap", lambda run: 20 * GIB)
    options = rehearsing.Options(gpu="16GiB")
    report = rehearsing.rehearse_command(["x.py"], options)
    assert ran == [
        ("arena", False), ("arena", True), ("expandable", False), ("native", False)
    ]  # fmt: skip
    assert replayed == [("expandable", True), ("native", True)]
    assert [o.need for o in report.outcomes] == [20 * GIB, 30 * GIB, 30 * GIB]
    ran.clear()
    replayed.clear()
    fits = True
    rehearsing.rehearse_command(["x.py"], options)
    assert ran == [("arena", False), ("native", False)]
    assert replayed[0] == ("expandable", False)


def test_a_program_that_takes_what_is_there_is_run_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The arena's trace does not stand for it: a real run tells."""
    ran: list[int] = []

    def runs(_: Any, card: cards.Card, *, allocator: str, **__: Any) -> Run:
        ran.append(card.memory)
        return a_run(allocator, reserved=card.memory - card.context - (1 << 20))

    monkeypatch.setattr(rehearsing, "run", runs)
    monkeypatch.setattr(rehearsing.through_torch, "whole", lambda run: False)
    monkeypatch.setattr(verdict, "smallest_cap", lambda run: None)
    options = rehearsing.Options(gpu="16GiB", allocators=("arena",))
    report = rehearsing.rehearse_command(["x.py"], options)
    assert report.verdict == "fits" and len(ran) == 2 and ran[1] < ran[0]
    monkeypatch.setattr(rehearsing.through_torch, "whole", lambda run: True)
    report = rehearsing.rehearse_command(["x.py"], options)
    assert report.verdict == "too close to tell" and len(ran) == 3


def test_runs_share_what_they_compile(tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    found = launch.cache_environment(str(folder), {"TRITON_CACHE_DIR": "/theirs"})
    assert found == {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    assert folder.is_dir()
    # Where there is no layer over the files, the guard keeps out of it.
    shared = [str(folder)]
    assert wrapping._below(found["TORCHINDUCTOR_CACHE_DIR"], shared)
    assert not wrapping._below(f"{folder}s/inductor", shared)
    assert not wrapping._below(None, shared)


def test_a_launcher_on_path_may_be_of_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    other, own = tmp_path / "other", tmp_path / "own"
    for folder in (other, own):
        folder.mkdir()
    stranger = other / "torchrun"
    stranger.write_text("#!/bin/sh\n")
    stranger.chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    module = [str(own / "python"), "-m", "torch.distributed.run"]
    assert launch.command_of("torchrun") == module
    (own / "torchrun").write_text("")
    assert launch.command_of("torchrun") == [str(own / "torchrun")]


def test_the_allocators_settings_are_kept_but_for_the_choice() -> None:
    base = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    try:
        native = launch.environment("t4", 1, "native", base)
    except FileNotFoundError:
        pytest.skip("the simulated GPU is not built")
    assert native["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    both = launch.environment("t4", 1, "expandable", base)["PYTORCH_CUDA_ALLOC_CONF"]
    assert both == "max_split_size_mb:64,expandable_segments:True"
    with pytest.raises(ValueError, match="none of"):
        launch.environment("t4", 1, "malloc", base)


# --- verdicts ---------------------------------------------------------------------------


def a_run(
    allocator: str = "native",
    *,
    gpu: str = "16GiB",
    limit: int | None = None,
    reserved: int = GIB,
    ooms: int = 0,
    exit_code: int = 0,
    timed_out: bool = False,
    **process: Any,
) -> Run:
    device = {
        "device": 0,
        "peak_requested": reserved * 9 // 10,
        "peak_allocated": reserved * 9 // 10,
        "peak_reserved": reserved,
        "allocations": 100,
        "retries": 0,
        "ooms": ooms,
    }
    default: dict[str, Any] = {
        "pid": 1, "rank": None, "devices": [device], "steps": 0, "ended": "itself", "moved_at": 0, "seen": [],
        "oom": None, "holders": None, "guessed": {}, "arena": allocator == "arena",
    }  # fmt: skip
    run = Run(allocator, cards.find(gpu), limit, exit_code=exit_code, timed_out=timed_out)
    run.processes.append(default | process)
    return run


def test_verdicts() -> None:
    judge = verdict.judge
    fits = judge(a_run(), GIB)
    assert (fits.answer, fits.code) == (verdict.FITS, 0)
    assert fits.margin == cards.find("16GiB").room - GIB
    failed = judge(a_run(exit_code=3), None)
    assert (failed.answer, failed.code) == (verdict.FAILED, 1)
    late = judge(a_run(exit_code=124, timed_out=True), None)
    assert (late.answer, late.code) == (verdict.CANNOT_TELL, 4)
    out = judge(a_run(exit_code=1, ooms=1), None)
    assert (out.answer, out.code) == (verdict.DOES_NOT_FIT, 3)
    far = judge(a_run(exit_code=1, ooms=1), 30 * GIB)
    assert far.answer == verdict.DOES_NOT_FIT and far.margin is not None
    assert far.margin < -14 * GIB
    near = judge(a_run(exit_code=1, ooms=1), cards.find("16GiB").room + MIB)
    assert (near.answer, near.code) == (verdict.TOO_CLOSE, 4)
    assert judge(a_run(), cards.find("16GiB").room - MIB).answer == verdict.TOO_CLOSE


def test_refusals_that_the_script_survived_do_not_count() -> None:
    run = a_run(ooms=2)
    assert not run.oom and verdict.judge(run, GIB).answer == verdict.FITS


def test_under_a_cap_what_the_context_takes_is_no_doubt() -> None:
    free = verdict.judge(a_run(gpu="16GiB"), GIB)
    capped = verdict.judge(a_run(gpu="16GiB", limit=2 * GIB), GIB)
    assert capped.margin == GIB
    assert capped.unsure == int(GIB * 0.02) < free.unsure


def test_processes_share_a_device() -> None:
    run = a_run()
    run.processes.append(dict(run.processes[0], pid=2))
    assert run.sharing == 2
    card = run.card
    assert verdict.room(card, None, 2) == (card.memory - 2 * card.context) // 2


def test_the_answer_for_all_is_the_worst() -> None:
    V = verdict.Verdict
    fits, out = V(verdict.FITS), V(verdict.DOES_NOT_FIT)
    close, failed = V(verdict.TOO_CLOSE), V(verdict.FAILED)
    assert verdict.together([fits, fits]) is fits
    assert verdict.together([fits, close, out]) is out
    assert verdict.together([fits, close]) is close
    assert verdict.together([out, failed]) is failed


def test_smallest_cap_and_the_peaks_step(tmp_path: Path) -> None:
    pytest.importorskip("torcharena._core")
    trace = tmp_path / "trace.1.trace"
    trace.write_text(
        f"a 0 {8 * MIB} 0\nm step\na 1 {40 * MIB} 0\nf 1\nm step\na 2 {16 * MIB} 0\nm step\n"
    )
    run = a_run("arena")
    run.traces = [str(trace)]
    cap = verdict.smallest_cap(run)
    assert cap is not None and 48 * MIB <= cap <= 56 * MIB and cap % (4 * MIB) == 0
    assert verdict.peak_step(run) == 2
    trace.write_text("a 0 1000000 0\n")
    assert verdict.peak_step(run) is None  # in no step
    trace.write_text("nonsense\n")
    assert verdict.smallest_cap(run) is None


# --- reports ----------------------------------------------------------------------------


def a_report() -> Report:
    stack = [
        {
            "file": str(ROOT / "tests/py/test_rehearse_units.py"),
            "line": 1,
            "function": "f",
        },
        {"file": "/x/lib/python3/site-packages/torch/nn.py", "line": 5, "function": "g"},
    ]
    holders = {
        "device": 0, "requested": 3 * GIB, "now": False, "step": 7, "blocks": 3,
        "kinds": {"other": 2 * GIB, "parameters": GIB},
        "places": [
            {"place": "a/very/long/path/" * 8 + "train.py:12 step", "within": "lib/x.py:3 f",
             "kind": "parameters", "bytes": GIB, "blocks": 12},
        ],
    }  # fmt: skip
    arena = a_run(
        "arena", steps=40, ended="settled", moved_at=7, seen=["a save"],
        guessed={"sum": 3, "argmax": 4000},
    )  # fmt: skip
    native = a_run(
        exit_code=1, ooms=1, holders=holders, oom={"wanted": 5 * GIB, "stack": stack},
    )  # fmt: skip
    report = Report(["train.py", "--lr", "a b"], cards.find("16GiB"))
    report.outcomes = [
        Outcome(arena, verdict.judge(arena, GIB), need=GIB, cap=GIB),
        Outcome(native, verdict.judge(native, 30 * GIB), need=30 * GIB),
    ]
    return report


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_keeps_to_its_columns(width: int) -> None:
    text = a_report().text(width)
    assert max(map(len, text.splitlines())) <= width
    for words in (
        "train.py --lr 'a b'", "not measured", "does not fit", "+14.48 GiB", "step 7",
        "runs out of memory here, asking for 5 GiB", "Smallest cap that works: 1 GiB",
        "Not seen: an evaluation", "Stopped by itself after 40", "argmax 4,000",
        "test_rehearse_units.py:1", "What holds the peak",
    ):  # fmt: skip
        assert words in " ".join(text.split()), words


def test_the_text_says_where_guesses_were_seen_and_what_helps() -> None:
    report = a_report()
    run = report.outcomes[0].run
    places = [
        {"file": "train.py", "line": 50, "function": "main", "how": "read", "times": 2000}
    ] * 9
    run.processes[0]["values"] = {"places": places}
    run.processes[0]["workspaces"] = {
        "told": 12, "largest_told": 40 * MIB, "measured": 0, "largest_measured": 0,
        "guessed": 1234, "largest_guessed": 512, "why": "no libcudnn.so.9 is loaded",
    }  # fmt: skip
    run.refused = ["/data/results.csv"]
    text = report.text(80)
    assert max(map(len, text.splitlines())) <= 80
    said = " ".join(text.split())
    for words in (
        "2,000 x read train.py:50 main", "and 1 place more", "12 up to 40 MiB as the real",
        "1,234 up to 512 B by default", "not asked: no libcudnn.so.9",
        "/data/results.csv. Have it write to a new place", "--share DIR",
    ):  # fmt: skip
        assert words in said, words
    assert "--keep-files" not in said and "formulas" not in said


def test_the_text_of_a_run_that_is_out_of_memory() -> None:
    """What it asked for is known from the error too; caches that did not help are no news;
    the last line is no part of what stands between the program and torch's operators."""
    site = "/x/lib/python3/site-packages/torch"
    stack = [
        {"file": str(ROOT / "setup.py"), "line": 1, "function": "f"},
        {"file": f"{site}/nn/x.py", "line": 2, "function": "g"},
        {"file": f"{site}/_ops.py", "line": 865, "function": "__call__"},
    ]
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0"
    run = a_run(exit_code=1, ooms=1, error=error, oom={"wanted": None, "stack": stack})
    run.processes[0]["devices"][0]["retries"] = 3
    report = Report(["x.py"], cards.find("16GiB"))
    report.outcomes = [Outcome(run, verdict.judge(run, None))]
    text = report.text()
    assert "asking for 64.00 MiB" in text and "nn/x.py:2" in text
    assert "_ops.py" not in text and "gave back" not in text
    survived = a_run(ooms=1)
    survived.processes[0]["devices"][0]["retries"] = 1
    report.outcomes = [Outcome(survived, verdict.judge(survived, GIB))]
    text = report.text()
    assert "refused 1 request, and" in text and "its cache 1 time to go on" in text


def test_a_loop_that_waits_for_a_value_is_told() -> None:
    frame = {"file": "train.py", "line": 24, "function": "fit"}
    run = a_run(exit_code=124, timed_out=True, stack=[frame])
    report = Report(["train.py"], cards.find("16GiB"))
    report.outcomes = [Outcome(run, verdict.judge(run, None))]
    assert "has no end in a rehearsal" not in " ".join(report.text().split())
    run.processes[0]["values"] = {"places": [{**frame, "how": "read", "times": 279}]}
    assert "has no end in a rehearsal" in " ".join(report.text().split())


def test_a_signal_that_ended_it_is_named() -> None:
    for code, says in (
        (-11, "ended by SIGSEGV"),
        (137, "SIGKILL"),
        (9, "no Python error"),
    ):
        run = a_run(exit_code=code)
        report = Report(
            ["x.py"], run.card, outcomes=[Outcome(run, verdict.judge(run, None))]
        )
        assert says in str(report)


def test_rounding_never_says_that_it_fits() -> None:
    """What is needed is rounded up, what is there down, and a margin down."""
    card = cards.find("16GiB")
    native = a_run(reserved=card.room + 1)
    short = verdict.judge(native, card.room + 1)
    cap = 3 * GIB + 1
    report = Report(["x.py"], card)
    report.outcomes = [Outcome(native, short, need=card.room + 1, cap=cap)]
    text = " ".join(report.text().split())
    assert "-0.01 GiB" in text and "1 B wanting" in text
    assert "Smallest cap that works: 3.01 GiB" in text
    enough = Outcome(native, verdict.judge(native, card.room - 5 * MIB))
    report.outcomes = [enough]
    text = " ".join(report.text().split())
    assert "+0.00 GiB" in text and "5 MiB left" in text


def test_the_object_is_one_line_of_json() -> None:
    report = a_report()
    text = report.json()
    assert "\n" not in text
    found = json.loads(text)
    assert found["verdict"] == "does not fit" and found["rehearsal_exit_code"] == 3
    assert report.exit_code == 3 and report.fits is False
    assert found["smallest_cap"] == GIB
    assert [row["allocator"] for row in found["runs"]] == ["arena", "native"]
    assert found["not_seen"] == ["an evaluation"]
    one = Report(["x"], cards.find("t4"), outcomes=[report.outcomes[1]]).as_json()
    assert one["peak_reserved"] == GIB and one["oom"] is True


def test_options_refuse_a_cap_beyond_the_card() -> None:
    with pytest.raises(ValueError, match="more than the card"):
        rehearsing.rehearse_command(["x"], rehearsing.Options("t4", limit=100 * GIB))


# --- what holds the peak ----------------------------------------------------------------


def test_the_highest_moment_is_found_in_the_history() -> None:
    def frames(line: int) -> list[dict[str, Any]]:
        return [
            {"filename": "/x/site-packages/torch/nn/m.py", "line": 1, "name": "forward"},
            {"filename": "/x/site-packages/lib/model.py", "line": 2, "name": "block"},
            {"filename": "/home/me/train.py", "line": line, "name": "step"},
        ]

    entries = [
        {"action": "alloc", "addr": 100, "size": 10, "frames": frames(1)},
        {"action": "alloc", "addr": 200, "size": 50, "frames": frames(2)},
        {"action": "free_requested", "addr": 100, "size": 10},
        {"action": "free_completed", "addr": 100, "size": 10},
        {"action": "alloc", "addr": 100, "size": 20, "frames": frames(3)},
        {"action": "free_requested", "addr": 900, "size": 7},  # older than the history
        {"action": "free_requested", "addr": 200, "size": 50},
    ]
    block = {"state": "active_allocated", "requested_size": 5, "size": 512, "frames": []}
    segments = [{"address": 5000, "blocks": [block]}]
    blocks = places._history(segments, entries)
    live, peak = places._live(blocks, len(entries), False)
    assert peak == 50 + 20 + 7 + 5
    found = places._summary(live)
    assert found["kinds"] == {"other": peak}
    first = found["places"][0]
    assert (first["place"], first["within"]) == (
        "/home/me/train.py:2 step",
        "lib/model.py:2 block",
    )
    assert {row["place"] for row in found["places"]} >= {
        "before the history begins",
        "backward (autograd's own thread)",
    }
    now, size = places._live(blocks, len(entries), True)
    assert size == 25 and len(now) == 2


# --- functions --------------------------------------------------------------------------


def test_wrong_arguments_from_python() -> None:
    with pytest.raises(ValueError, match="allocator"):
        api.rehearse(print, allocator="malloc")


def test_without_cloudpickle_a_function_goes_by_its_source(tmp_path: Path) -> None:
    program = tmp_path / "notebook.py"
    program.write_text(
        "import math, sys\n"
        "sys.modules['cloudpickle'] = None\n"
        "import torcharena\n"
        "from torcharena.rehearsal import packing\n"
        "FACTOR = 3\n"
        "class Base:\n    k = 2\n"
        "class Model(Base):\n    def size(self): return self.k * FACTOR\n"
        "def helper(): return Model().size() + math.floor(1.5)\n"
        "def fn(n): print('got', n * helper())\n"
        "@torcharena.find_batch_size(gpu='h100')\n"
        "def sized(n): print('inside', n * helper())\n"
        "if __name__ == '__main__':\n"
        "    import subprocess\n"
        "    open('call', 'wb').write(packing.packed(fn, (2,), {}))\n"
        "    run = [sys.executable, '-m', 'torcharena.rehearsal.calling', 'call']\n"
        "    subprocess.run(run, check=True)\n"
        "    inner = sized._torcharena_inner\n"
        "    open('call', 'wb').write(packing.packed(inner, (3,), {}))\n"
        "    subprocess.run(run, check=True)\n"
        "    lock = __import__('threading').Lock()\n"
        "    def bad(): return lock\n"
        "    for f in (bad, lambda: 1):\n"
        "        try: packing.packed(f, (), {})\n"
        "        except TypeError as error: print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "python"), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "got 14" in done.stdout, done.stderr
    assert "inside 21" in done.stdout, done.stderr
    assert "it uses lock, which cannot be pickled" in done.stdout
    assert "it is a lambda" in done.stdout


def test_a_rehearsal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torcharena

    monkeypatch.delenv("TORCHARENA_REHEARSAL", raising=False)
    assert not torcharena.is_rehearsal()
    monkeypatch.setenv("TORCHARENA_REHEARSAL", "1")
    assert torcharena.is_rehearsal()
