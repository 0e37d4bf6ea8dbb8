"""A report of the moment when memory ran out, a checkpoint, and what errors hold; a snapshot
for torch's viewer. Real PyTorch on the simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import simulated
from test_reporting import MODEL
from torcharena import on_oom
from torcharena.reports import snapshots

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


@with_torch
def test_a_report_and_a_checkpoint(tmp_path: Path) -> None:
    found = simulated.said(
        simulated.run(
            MODEL
            + f"""
folder = {str(tmp_path)!r}
torcharena.set_limit("64MiB")
model = model_of(words=500)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torcharena.track(model, optimizer)
said = {{}}

def save():
    said["free"] = (64 << 20) - torch.cuda.memory_allocated()
    torch.save({{k: v.cpu() for k, v in model.state_dict().items()}}, folder + "/last.pt")
    raise OSError("a disk that is full")

def train():
    held = torch.empty(3 << 20, device="cuda")
    for batch in range(4, 400, 40):
        step(model, optimizer, batch=batch, words=500)

import warnings
try:
    with warnings.catch_warnings(record=True) as told, torcharena.on_oom(
            folder + "/oom.json", save=save) as watch:
        warnings.simplefilter("always")
        train()
except torch.OutOfMemoryError as error:
    said["text"] = str(error)
said["told"] = [str(one.message) for one in told]
said["oom"] = watch.report.data["out_of_memory"]
said["live"] = watch.report.data["now"]["bytes"]
said["printed"] = [l for l in str(watch.report).splitlines() if "out of memory" in l]
said["parameter"] = bytes_of(model.parameters())
checked()
print(said)
""",
            values=False,
        )
    )
    assert "CUDA out of memory" in found["text"]
    assert found["told"] == [
        "torcharena.on_oom: save() failed: OSError: a disk that is full"
    ]
    oom = found["oom"]
    assert oom["phase"] in ("forward", "backward")
    assert oom["requested"] > 0
    assert oom["bytes"] + oom["requested"] > 60 << 20
    assert oom["categories"]["parameter"] == found["parameter"]
    of = oom["categories"]
    assert of["activation"] + of.get("workspace", 0) > 20 << 20
    assert found["free"] > 12 << 20  # what train() held is gone
    assert len(found["printed"]) == 1
    assert (tmp_path / "oom.json").exists()
    assert (tmp_path / "last.pt").exists()


@with_torch
def test_what_errors_hold() -> None:
    found = simulated.said(
        simulated.run(
            MODEL
            + """
import sys

def fails(size):
    batch = [torch.empty(size, device="cuda")]
    logits = torch.empty(size, device="cuda")
    raise ValueError("of the user's")

def kept():
    try:
        fails(1 << 20)
    except ValueError as error:
        return error

def generator():
    mine = torch.empty(1 << 20, device="cuda")
    try:
        raise KeyError("inside")
    except KeyError:
        yield 1
    yield mine.numel()

said = {}
suspended = generator()
next(suspended)
error = kept()
try:
    fails(1 << 18)
except ValueError:
    sys.last_value = sys.exc_info()[1]
    said["while handling"] = len(torcharena.held_by_exceptions())
held = torcharena.held_by_exceptions()
said["held"] = [(one.exception, one.name, one.bytes) for one in held]
said["place"] = held[0].place
del held
rows = torcharena.report().data["held_by_errors"]
said["reported"] = [(row["exception"], row["name"], row["bytes"]) for row in rows]
before = torch.cuda.memory_allocated()
said["freed"] = torcharena.free_exceptions()
said["gone"] = before - torch.cuda.memory_allocated()
said["left"] = torcharena.held_by_exceptions()
said["goes on"] = next(suspended)

def ends():
    ended = torch.empty(1 << 19, device="cuda")
    yield 1
    raise KeyError(ended.numel())

async def waits():
    waited = torch.empty(1 << 18, device="cuda")
    list(ends())

import asyncio, gc, weakref
gc.disable()
try:
    asyncio.run(waits())
except KeyError as one:
    of_the_module = torch.empty(1 << 17, device="cuda")  # no error holds it
    try:
        raise ValueError("another, while the first is handled")
    except ValueError as two:
        error = two
held = torcharena.held_by_exceptions()
said["chain"] = [(one.exception, one.name, one.bytes) for one in held]
said["chain freed"] = torcharena.free_exceptions()
dies = weakref.ref(of_the_module)
torcharena.held_by_exceptions()
del of_the_module
said["nobody holds it"] = dies() is None
print(said)
""",
            values=False,
        )
    )
    assert found["while handling"] == 2
    assert found["held"][:2] == [
        ("ValueError", "batch", 4 << 20),
        ("ValueError", "logits", 4 << 20),
    ]
    assert found["held"][2:] == [
        ("ValueError", "batch", 1 << 20),
        ("ValueError", "logits", 1 << 20),
    ]
    assert found["place"].endswith(", fails")
    assert found["reported"] == [
        ("ValueError", "batch", 5 << 20),
        ("ValueError", "logits", 5 << 20),
    ]
    assert found["freed"] == found["gone"] == 10 << 20
    assert found["left"] == []
    assert found["goes on"] == 1 << 20
    assert found["chain"] == [
        ("KeyError", "ended", 2 << 20),
        ("KeyError", "waited", 1 << 20),
    ]
    assert found["chain freed"] == 3 << 20
    assert found["nobody holds it"]


@with_torch
def test_a_snapshot_opens_in_torchs_viewer(tmp_path: Path) -> None:
    found = simulated.said(
        simulated.run(
            MODEL
            + f"""
import pickle, time
from torch.cuda import _memory_viz
folder = {str(tmp_path)!r}
model = model_of(words=500)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torcharena.track(model, optimizer)
step(model, optimizer, words=500)
torcharena.snapshot(folder + "/now.pickle")
torch.cuda.memory._record_memory_history(context=None)
for _ in range(300):
    step(model, optimizer, words=500)
begin = time.perf_counter()
torcharena.snapshot(folder + "/history.pickle")
took = time.perf_counter() - begin
said = {{"took": took}}
for name in ("now", "history"):
    with open(f"{{folder}}/{{name}}.pickle", "rb") as file:
        data = pickle.load(file)
    said[name] = [e.get("category") for e in data["device_traces"][0]]
    said[name + " sizes"] = sum(e["size"] for e in data["device_traces"][0]
                                if e.get("category") == "parameter")
    _memory_viz.trace_plot(data)
    _memory_viz.segsum(data)
said["parameter"] = bytes_of(model.parameters())
print(said)
""",
            values=False,
        )
    )
    for name in ("now", "history"):
        assert found[name][-1] == "unknown"
        assert "optimizer state" in found[name] or name == "history"
    assert found["now sizes"] == found["parameter"]
    assert found["took"] < 60


def test_annotations_need_one_unknown_entry() -> None:
    segments: list[Any] = [
        {
            "address": 4096,
            "stream": 0,
            "blocks": [
                {"size": 512, "requested_size": 500, "state": "active_allocated"},
                {"size": 512, "requested_size": 0, "state": "inactive"},
                {"size": 512, "requested_size": 512, "state": "active_pending_free"},
            ],
        }
    ]
    trace: list[Any] = []
    told = {4096: ("parameter", "", 0), 5120: ("gradient", "backward", 0)}
    snapshots.annotate(segments, trace, told)
    assert [(e["action"], e["category"], e["size"]) for e in trace] == [
        ("alloc", "parameter", 500),
        ("snapshot", "unknown", 0),
    ]
    assert segments[0]["blocks"][0]["frames"][0]["name"] == "outside phases"
    again = [
        {"action": "alloc", "addr": 4096, "size": 100, "time_us": 1},
        {"action": "free", "addr": 4096, "size": 100, "time_us": 2},
        {"action": "alloc", "addr": 4096, "size": 500, "time_us": 3},
    ]
    snapshots.annotate(segments, again, told)
    assert [e.get("category") for e in again] == ["unknown", None, "parameter", "unknown"]


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"ends in \.json or \.html"):
        on_oom("report.txt")
    assert on_oom(Path("report.html")).path == "report.html"
    with pytest.raises(TypeError, match="a function without arguments"):
        on_oom(None, save=3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"after torcharena.enable\(\)"), on_oom(None):
        pass
