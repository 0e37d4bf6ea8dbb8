"""`torcharena rehearse --report`: who used what in a program that has not run yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simulated
from test_rehearse_runs import rehearse
from test_reporting import DATA
from torcharena.rehearsal import api, cards, command, launch, rehearsing, report, verdict
from torcharena.reports import reporting

MIB = 1 << 20

TRAIN = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(64, 64)

    def forward(self, x):
        return x + torch.relu(self.inside(x))

model = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(64, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loss_of = nn.MSELoss()
kept = []

def keep():
    kept.append(torch.empty(3 << 18, device="cuda"))

for step in range(10):
    x = torch.ones(20_000, 64, device="cuda")
    loss = loss_of(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    keep()
"""
OWN = """
import torch, torcharena
model = torch.nn.Linear(64, 64).cuda()
model(torch.ones(8, 64, device="cuda"))
tracking = torcharena.track(model)
with torcharena.phase("mine"):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    kept = [torch.empty(1 << 28, device="cuda") for _ in range(3)]
"""


@pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
def test_a_program_that_does_not_track_itself(tmp_path: Path) -> None:
    code, found, _ = rehearse(
        tmp_path, TRAIN, *("--report", "r.json", "--allocator", "arena", "--gpu", "16GiB")
    )
    assert code == 0 and found["reports"] == ["r.json"]
    data = reporting.load(tmp_path / "r.json").data
    assert data["peak"]["bytes"] == found["peak_requested"]
    phases = {row["path"]: row["entries"] for row in data["phases"]}
    assert phases["forward"] == phases["backward"] == phases["optimizer"] == 10
    assert data["steps"] == 10
    rows = {row["module"]: row for row in data["modules"]}
    inside = rows["Sequential.*.inside"]
    assert inside["modules"] == 3 and inside["allocated"] > 90 * MIB
    assert data["now"]["categories"]["optimizer state"] == found_state(data)
    (growth,) = data["growth"]
    assert growth["bytes_per_step"] == 3 * MIB
    assert growth["place"].endswith("program.py:19 keep")
    assert data["timeline"]["live"]
    tracked = found["tracked"]
    assert tracked["bytes"] == data["peak"]["bytes"]
    assert tracked["categories"] == data["peak"]["categories"]
    assert tracked["growth"] == data["growth"]


def found_state(data: dict[str, Any]) -> int:
    """Two moments of each parameter; its steps are on the host."""
    return 2 * int(data["now"]["categories"]["parameter"])


@pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
def test_a_program_that_tracks_itself_and_runs_out(tmp_path: Path) -> None:
    code, found, _ = rehearse(
        tmp_path, OWN, *("--report", "r.html", "--allocator", "arena", "--gpu", "3GiB")
    )
    assert code == 3 and found["reports"] == ["r.html"]
    tracked = found["tracked"]
    assert tracked["requested"] == 1 << 30 and tracked["phase"] == "mine"
    # Its modules are not told, but for the call before it did.
    assert {row["module"] for row in tracked["modules"]} <= {"", "Linear"}
    html = (tmp_path / "r.html").read_text()
    assert "<b>1 GiB</b> were refused" in html


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--report", "r.txt"], "a name that ends in .html or .json"),
        (["--report", "/nowhere/r.html"], "there is no folder /nowhere"),
        (["--report", "r.html", "--allocator", "native"], "accepted are the allocators"),
    ):
        assert command.main([*options, "-m", "json"]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="accepted are the allocators arena and all"):
        api.rehearse(print, allocator="expandable", report=tmp_path / "r.json")


def test_files_of_several_ranks(tmp_path: Path) -> None:
    found = []
    for rank in ("0", "1"):
        path = tmp_path / f"report.{rank}.json"
        path.write_text(json.dumps(DATA))
        found.append((rank, str(path)))
    for wanted, names in (
        ("r.json", ["r.rank0.json", "r.rank1.json"]),
        ("%r/r.html", ["0/r.html", "1/r.html"]),
    ):
        for rank, _ in found:
            (tmp_path / rank).mkdir(exist_ok=True)
        written = rehearsing._write_reports(found, str(tmp_path / wanted))
        assert written == [str(tmp_path / name) for name in names]
        assert all(Path(one).stat().st_size for one in written)
    one = rehearsing._write_reports(found[:1], str(tmp_path / "one.json"))
    assert one == [str(tmp_path / "one.json")]


def test_text() -> None:
    tracked = {
        "bytes": 3 << 30,
        "requested": 0,
        "phase": "backward",
        "step": 3,
        "steps": 9,
        "categories": {"activation": 2 << 30, "parameter": 1 << 30},
        "phases": {"forward": 2 << 30, "": 1 << 30},
        "modules": [
            {"module": "blocks.*.up", "modules": 12, "peak": 2 << 30},
            {"module": "", "modules": 1, "peak": 1 << 30},
        ],
        "growth": [
            {
                "bytes_per_step": 3 * MIB,
                "category": "other",
                "phase": "",
                "place": "train.py:7 keep",
            }
        ],
    }
    run = launch.Run("arena", cards.find("16GiB"), None)
    device = {
        "device": 0,
        "peak_requested": 3 << 30,
        "peak_allocated": 3 << 30,
        "peak_reserved": 3 << 30,
        "ooms": 0,
        "retries": 0,
    }
    row = {"devices": [device], "steps": 9, "ended": "itself", "seen": [], "oom": None}
    run.processes = [{**row, "tracked": tracked}]
    outcome = report.Outcome(run, verdict.judge(run, 3 << 30), need=3 << 30)
    made = report.Report(["train.py"], run.card, outcomes=[outcome], pages=["r.html"])
    text = made.text(100)
    assert "At the arena's peak (3 GiB, in backward, step 3): activation 2 GiB" in text
    assert "allocated in: forward 2 GiB, outside phases 1 GiB" in text
    assert "by module: blocks.*.up (12) 2 GiB, outside 1 GiB" in text
    assert "grows by 3 MiB a step: other, allocated in outside phases, train.py:7" in text
    assert text.endswith("Who used what, and when: r.html")
    made.pages = []
    assert "No report was written: no process used the GPU's memory." in made.text(100)
    made.pages = None
    assert "report" not in made.text(100)
