"""Rehearsals of what programs in the wild do besides training one model: each a few lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import simulated
from test_rehearse_runs import rehearse
from torcharena.rehearsal import api, places
from torcharena.rehearsal.rehearsing import Options

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

ONE_AFTER_ANOTHER = """
import torch
def train():
    model = torch.nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    rows = torch.randint(0, 512, (64,)).cuda()
    h = model(torch.randn(512, 2048, device="cuda"))
    h[rows].sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), "state.pt")
for _ in range(3):
    train()
"""


def test_a_model_that_is_let_go_of_is_gone(tmp_path: Path) -> None:
    """The watcher keeps no optimizer, nor so its model; integers as indices are no guess, nor
    is what is saved one that decides; a copy brings the context up, without which cuBLAS warns."""
    code, found, said = rehearse(tmp_path, ONE_AFTER_ANOTHER, "--allocator", "arena")
    assert code == 0 and found["steps"] == 1
    model = 4 * (
        2048 * 2048 + 2048
    )  # with its gradient and Adam's two moments, four; and
    others = 100 << 20  # what the step takes and cuBLAS keeps
    assert 4 * model < found["peak_requested"] < 4 * model + others
    assert found["values"]["places"] == []
    assert "no current CUDA context" not in said


def test_graph_trees_are_off_under_the_arena(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "f = torch.compile(lambda x: x + 1, mode='reduce-overhead')\n"
        "for _ in range(3):\n"
        "    f(torch.zeros(1 << 20, device='cuda'))\n"
    )
    code, found, said = rehearse(tmp_path, program, "--allocator", "arena", "--no-values")
    assert code == 0 and found["verdict"] == "fits", said


def test_what_the_arena_lacks_is_no_failure_of_torchs_own(tmp_path: Path) -> None:
    program = (
        "import torch\ntorch.cuda.init()\n"
        "torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)\n"
    )
    code, found, _ = rehearse(tmp_path, program, "--no-values")
    assert code == 1 and found["runs"][0]["allocator"] == "arena"
    assert "under torcharena: " in found["runs"][0]["error"]
    assert [row["allocator"] for row in found["runs"]] == [
        "arena",
        "expandable",
        "native",
    ]


def test_ranks_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []
    monkeypatch.setattr(api, "packed", lambda *_: b"")
    monkeypatch.setattr(
        api, "rehearse_command", lambda command, options, **_: asked.append(options)
    )
    api.rehearse(print, gpus=2, ranks="all")
    api.rehearse(print, gpus=8, world_size=64, rank=3)
    assert [(o.gpus, o.ranks, o.world_size, o.rank) for o in asked] == [
        (2, "all", None, 0),
        (8, None, 64, 3),
    ]
    monkeypatch.undo()
    for wrong, why in (
        ({"ranks": "all"}, "how many GPUs"),
        ({"rank": 1}, "world_size=N"),
        ({"ranks": "two", "gpus": 2}, "'all'"),
    ):
        with pytest.raises(ValueError, match=why):
            api.rehearse(print, **wrong)


RESETS = """
import torch
def main():
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    del x
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() < 1 << 30
main()
"""


def test_peaks_that_the_program_resets_count(tmp_path: Path) -> None:
    """And what held one is named at the end, when the optimizer is gone."""
    code, found, _ = rehearse(tmp_path, RESETS, "--allocator", "native", "--no-values")
    assert code == 0
    assert found["peak_requested"] > 1 << 30 and found["peak_reserved"] > 1 << 30
    holders = found["holders"]
    assert holders["requested"] > 1 << 30
    parameters = 4 * (1024 * 1024 + 1024)
    assert holders["kinds"]["parameters"] == parameters
    assert holders["kinds"]["optimizer state"] == parameters
    assert holders["places"][0]["place"] == "program.py:8 main"


def test_a_signal_ends_the_program_too(tmp_path: Path) -> None:
    """As batch systems and CI send it; nothing stays behind."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = dict(
        os.environ, PYTHONPATH=str(simulated.PACKAGE.parent), TMPDIR=str(temporary)
    )
    command = [sys.executable, "-m", "torcharena.rehearsal", str(script)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)
    assert list(temporary.iterdir()) == []


def test_places_of_threads_that_libraries_begin() -> None:
    torch = "/x/lib/python3.11/site-packages/torch/"
    frames = [
        {"filename": f"{torch}_ops.py", "line": 1, "name": "__call__"},
        {"filename": f"{torch}nn/modules/linear.py", "line": 2, "name": "forward"},
        {"filename": threading.__file__, "line": 3, "name": "run"},
    ]
    assert places._place(frames) == ("torch/nn/modules/linear.py:2 forward", "")
    assert places._place(frames[:1]) == ("backward (autograd's own thread)", "")
