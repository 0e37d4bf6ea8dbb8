"""Phases, categories and reports under the real PyTorch on the simulated GPU; and their text
and files without it."""

from __future__ import annotations

import importlib.util
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import simulated
from torcharena import Report, cli, phase
from torcharena.reports import reporting
from torcharena.reports.device_rows import rows_of
from torcharena.reports.page import page
from torcharena.reports.remedies import remedies
from torcharena.reports.terminal import comparison, table

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

MODEL = """
import gc
import torcharena
torcharena.enable()
from torch import nn
import torcharena._core as core

def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                         nn.Linear(4 * width, width))

def model_of(width=256, deep=4, words=3000):
    model = nn.Sequential(nn.Embedding(words, width), *[block(width) for _ in range(deep)],
                          nn.Linear(width, words))
    model.register_buffer("mask", torch.ones(1000))
    return model.cuda()

def step(model, optimizer, batch=8, length=64, words=3000):
    tokens = torch.randint(0, words, (batch, length), device="cuda")
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()

def bytes_of(tensors):
    return sum(t.untyped_storage().nbytes() for t in tensors if t.is_cuda)

def state(optimizer):
    return [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]

def checked():
    assert core.usage_check() is None and core.check() is None
"""


def run(code: str, **more: Any) -> dict[str, Any]:
    return simulated.said(simulated.run(MODEL + code, values=False, **more))


@with_torch
def test_categories_are_what_the_tensors_sum_to() -> None:
    """And a training step without `track` makes no call of ours, with it some."""
    found = run("""
import os, sys
package = os.path.dirname(torcharena.__file__)
def calls_of_ours(call):
    found = []
    def told(frame, event, what):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            found.append(frame.f_code.co_name)
        elif event == "c_call" and getattr(what, "__module__", None) == core.__name__:
            found.append(what.__name__)
    sys.setprofile(told)
    call()
    sys.setprofile(None)
    return len(found)
small = torch.nn.Linear(8, 8).cuda()
small_optimizer = torch.optim.AdamW(small.parameters())
def small_step():
    small(torch.ones(4, 8, device="cuda")).sum().backward()
    small_optimizer.step()
    small_optimizer.zero_grad()
small_step()
untracked, driver = 0, torcharena.memory_stats()["driver_calls"]
for _ in range(3):
    untracked += calls_of_ours(small_step)
driver = torcharena.memory_stats()["driver_calls"] - driver
with torcharena.track(small, small_optimizer):
    tracked = calls_of_ours(small_step)
assert untracked == driver == 0 < tracked, (untracked, driver, tracked)
assert calls_of_ours(small_step) == 0
del small, small_optimizer
gc.collect()
began = {row["path"]: row["entries"] for row in torcharena.report().data["phases"]}
model = model_of()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
tracking = torcharena.track(model, optimizer)
for _ in range(3):
    step(model, optimizer)
# The peak is now where all gradients are there: in a step of the optimizer.
step(model, None, batch=2)
big = torch.empty(1 << 28, device="cuda")
del big
grads = [p.grad for p in model.parameters()]
report = torcharena.report()
checked()
def requested():
    return torch.cuda.memory_stats()["requested_bytes.all.current"]
live = requested()
torch._C._cuda_clearCublasWorkspaces()
now = requested() if report.data["now"]["categories"].get("workspace") else live
print({"peak": report.data["peak"], "now": report.data["now"],
       "parameter": bytes_of(model.parameters()), "gradient": bytes_of(grads),
       "optimizer state": bytes_of(state(optimizer)), "buffer": bytes_of(model.buffers()),
       "phases": {row["path"]: row for row in report.data["phases"]},
       "steps": report.data["steps"], "began": began, "live": live, "freed": live - now,
       "kept": torcharena.report().data["now"]["categories"].get("workspace", 0)})
""")
    for at in ("peak", "now"):
        categories = found[at]["categories"]
        for name in ("parameter", "gradient", "optimizer state", "buffer"):
            assert categories[name] == found[name], (at, name)
        assert sum(categories.values()) == found[at]["bytes"]
        assert sum(found[at]["phases"].values()) == found[at]["bytes"]
    assert found["now"]["bytes"] == found["live"]
    assert found["freed"] == found["now"]["categories"].get("workspace", 0)
    assert found["kept"] == 0
    if tuple(map(int, version("torch").split(".")[:2])) >= (2, 9):
        assert found["freed"] >= 8 << 20  # cuBLAS had some in forward and in backward
    assert found["steps"] == 4
    phases = found["phases"]
    for name, times in (("forward", 4), ("backward", 4), ("optimizer", 3)):
        assert phases[name]["entries"] == times + found["began"][name] == times + 1
    assert phases["zero_grad"]["entries"] == 4
    assert (
        phases["forward"]["peak"] < phases["backward"]["peak"] <= found["peak"]["bytes"]
    )
    assert phases["optimizer"]["kept"] == found["optimizer state"]
    memory = found["now"]["memory"]
    rows = list(memory)
    parts = rows[: rows.index("reserved")]
    assert sum(memory[name] for name in parts) == memory["reserved"]
    rest = rows[rows.index("reserved") + 1 : rows.index("device in use")]
    assert (
        memory["reserved"] + sum(memory[name] for name in rest)
        == (memory["device in use"])
    )
    if importlib.util.find_spec("pynvml") is not None:
        assert memory["context and libraries"] == 530 << 20  # as the simulated GPU has it
        assert memory["other processes"] == memory["unattributed"] == 0


@with_torch
def test_what_backward_leaves_is_no_gradient_for_that() -> None:
    """A hook keeps a tensor of each backward. At a peak and in a report gradients are what
    `.grad` holds all the same; parameters are not walked in steps without a new peak."""
    found = run("""
from torcharena.reports import tracking
walks, kept, said = [], [], []
walk = tracking._gradients
tracking._gradients = lambda alive: walks.append(1) or walk(alive)
model = model_of(words=500, deep=2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
def keep(module, inputs, outputs):  # lets go of the one before, in the next backward
    kept[:] = [torch.empty(1 << 20, device="cuda")]
model[1].register_full_backward_hook(keep)

def now():
    sums = [0] * len(torcharena.reports.phases.CATEGORIES)
    for block in core.usage_blocks(0, 2):
        sums[block[4]] += block[1]
    return sums[2]

with torcharena.track(model, optimizer):
    for batch in (8, 4, 4, 4, 16):
        before = len(walks)
        tokens = torch.randint(0, 500, (batch, 64), device="cuda")
        model(tokens).sum().backward()
        grads = bytes_of(p.grad for p in model.parameters())
        provisional, walked = now(), len(walks) - before
        report = torcharena.report().data if batch > 4 else None
        said.append({
            "walks": walked, "gradients": grads, "provisional": provisional,
            "exact": report and report["now"]["categories"]["gradient"],
            "peak": report and report["peak"]["categories"].get("gradient", 0),
            "step": report and report["peak"]["step"]})
        optimizer.step()
        optimizer.zero_grad()
checked()
print({"said": said})
""")
    first, *later, last = found["said"]
    for step in (first, last):
        assert step["walks"] == 1
        assert step["provisional"] == step["exact"] == step["gradients"]
        assert step["peak"] <= step["gradients"]
    assert (first["step"], last["step"]) == (0, 4)
    for step in later[1:]:  # the first step's optimizer state is a new peak in the second
        assert step["walks"] == 0
        assert step["provisional"] == step["gradients"] + (4 << 20)


@with_torch
def test_ways_to_train() -> None:
    """Autocast, checkpointing, accumulation, evaluation, errors, phases of the user's and a
    thread's own, a compiled model; and all as before once tracking stops."""
    found = run("""
import threading
from torch.utils.checkpoint import checkpoint
before = torch.autograd.backward
model = model_of(words=500)
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
said = {}

def phases():
    return {row["path"]: row for row in torcharena.report().data["phases"]}

with torcharena.track(model, optimizer):
    for _ in range(2):  # accumulation
        with torch.autocast("cuda", torch.bfloat16):
            step(model, None, words=500)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.zeros(2, 8, dtype=torch.long, device="cuda"))
    try:
        model("wrong")
    except Exception:
        pass
    with torcharena.phase("epoch"):
        step(model, optimizer, words=500)
        with torcharena.phase("epoch"):
            kept = torch.empty(1 << 20, device="cuda")

    def prefetch():
        with torcharena.phase("prefetch"):
            said["batch"] = torch.empty(1 << 18, device="cuda")

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()

    @torcharena.phase("decorated")
    def decorated():
        return torch.empty(1 << 10, device="cuda")

    other = decorated()
said["phases"] = phases()
said.pop("batch")
assert torch.autograd.backward is before, torch.autograd.backward
assert "zero_grad" not in optimizer.__dict__
calls = said["phases"]["forward"]["entries"]
step(model, optimizer, words=500)
assert phases()["forward"]["entries"] == calls

deep = nn.ModuleList(block(128) for _ in range(4)).cuda()
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = deep
    def forward(self, x):
        for one in self.deep:
            x = checkpoint(one, x, use_reentrant=False)
        return x
model = Checkpointed()
with torcharena.track(model):
    model(torch.randn(64, 128, device="cuda", requires_grad=True)).sum().backward()
said["after"] = phases()
checked()
print(said)
""")
    phases = found["phases"]
    assert phases["forward"]["entries"] == 3  # the one that failed too
    assert phases["epoch/forward"]["entries"] == 1
    assert phases["epoch/backward"]["entries"] == 1
    assert phases["backward"]["entries"] == 2
    assert phases["evaluation"]["entries"] == 1
    assert phases["epoch"]["entries"] == 1
    assert phases["epoch"]["live"] >= 4 << 20
    assert phases["prefetch"]["allocated"] == 1 << 20
    assert phases["decorated"]["allocated"] == 4 << 10
    assert found["after"]["backward"]["entries"] == 3


@with_torch
def test_growth_is_named() -> None:
    """S24: phases load, forward, backward, step, evaluation; one leaks 3 MiB a step."""
    found = run("""
model = model_of(words=500)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
kept = []
said = {}
with torcharena.track(model, optimizer):
    for i in range(24):
        with torcharena.phase("load"):
            tokens = torch.empty(1000, device="cuda")
        step(model, optimizer, length=32 + i % 5, words=500)
        if i >= 12:
            with torcharena.phase("metrics"):
                kept.append(torch.empty(3 << 18, device="cuda"))
        if i == 11:
            said["none"] = torcharena.report().data["growth"]
            text = str(torcharena.report())
    said["growth"] = torcharena.report().data["growth"]
    said["text"] = [line for line in text.splitlines() if "growth" in line]
checked()
print(said)
""")
    assert found["none"] == []
    assert found["text"] == ["  no growth from step to step"]
    (growth,) = found["growth"]
    assert growth["phase"] == "metrics"
    assert growth["bytes_per_step"] == 3 << 20
    assert growth["size"] == 3 << 20


@with_torch
def test_phases_that_are_left_in_no_order() -> None:
    """Generators that take turns, a tracking that is stopped in the middle of a forward
    pass, a thread that ends inside a phase: what comes later is outside of them all."""
    found = run("""
import threading, time
def turns(name):
    with torcharena.phase(name):
        yield
        yield
model = model_of()
first, second = turns("first"), turns("second")
for one in (first, second, first, second):
    next(one)
for one in (first, second):
    next(one, None)
kept = [torch.empty(1 << 20, device="cuda")]
tracking = torcharena.track(model)
model[0].register_forward_hook(lambda *_: tracking.stop())
model(torch.randint(0, 3000, (1, 8), device="cuda"))
kept.append(torch.empty(1 << 20, device="cuda"))
def ends():
    torcharena.phase("unended").__enter__()
thread = threading.Thread(target=ends)
thread.start()
thread.join()
time.sleep(0.1)  # the system's thread ends after Python's
kept.append(torch.empty(1 << 20, device="cuda"))
checked()
now = torcharena.report().data["now"]["phases"]
names = [row["path"] for row in torcharena.report().data["phases"]]
print({"": now[""], "others": sum(now.values()) - now[""], "names": names,
       "model": bytes_of(model.parameters())})
""")
    assert found[""] >= found["model"] + (12 << 20)
    assert found["others"] < 4 << 20
    assert set(found["names"]) <= {
        "first",
        "first/second",
        "forward",
        "unended",
        "",
    }


@with_torch
def test_what_spills() -> None:
    """What is in host memory is named by phase, and the rows add up to the device's."""
    found = run(
        """
torcharena.set_limit("256MiB")
with torcharena.phase("load"):
    kept = [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
with torcharena.phase("more"):
    kept += [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
report = torcharena.report()
checked()
print({"memory": report.data["now"]["memory"], "text": str(report),
       "map": report.data["map"]["arenas"],
       "page": "in host memory</span>" in __import__("torcharena.reports.page").reports.page.page(report.data),
       "spilled": {row["path"]: row["spilled"] for row in report.data["phases"]}})
""",
        TORCHARENA_SPILL="1GiB",
    )
    assert found["spilled"]["more"] == 80 << 20 and found["spilled"]["load"] == 0
    memory = found["memory"]
    assert memory["of that in host memory"] == -80 << 20
    parts = list(memory.values())[: list(memory).index("reserved")]
    assert sum(parts) == memory["reserved"] == 240 << 20
    assert sum(arena["host"] for arena in found["map"]) == 20
    assert sum(arena["full"] for arena in found["map"]) == 60
    assert "kept     spilled" in found["text"] and found["page"]


@with_torch
def test_phases_before_cuda_and_in_children() -> None:
    found = run("""
import os
with torcharena.phase("before"):
    assert not torch.cuda.is_initialized()
with torcharena.phase("load"):
    tensor = torch.empty(1 << 20, device="cuda")
pid = os.fork()
if pid == 0:
    with torcharena.phase("child"):
        pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print({row["path"]: row["live"] for row in torcharena.report().data["phases"]})
""")
    assert found["load"] == 4 << 20
    assert "child" not in found


@with_torch
def test_what_begins_while_cuda_is_being_initialised() -> None:
    """torch calls what was queued with its lock held: a rehearsal's history begins there."""
    found = run("""
def begin():
    torch.cuda.memory._record_memory_history(context=None)
    with torcharena.phase("early"):
        pass

torch.cuda._lazy_call(begin)
with torcharena.phase("load"):
    kept = torch.empty(1 << 20, device="cuda")
print({row["path"]: row["live"] for row in torcharena.report().data["phases"]}
      | {"events": len(core.history())})
""")
    assert found["load"] == 4 << 20
    assert found["events"] >= 1


def test_phase_names() -> None:
    for name in ("", "a/b", "a\nb", "a\0b"):
        with pytest.raises(ValueError, match="a name is one line"):
            phase(name)
    for name in ("\x1b[31m", "\ud800"):
        with pytest.raises(ValueError, match="can be printed"):
            phase(name)
    assert phase("a" + "é" * 50).name == "a" + "é" * 31
    assert phase("日本語" * 30).name == "日本語" * 7
    with pytest.raises(TypeError, match="a name is a str"):
        phase(3)  # type: ignore[arg-type]
    with phase("not enabled"):
        pass


DATA: dict[str, Any] = {
    "torcharena_report": 1,
    "device": 0,
    "seconds": 9.5,
    "steps": 12,
    "peak": {
        "bytes": 3 << 30,
        "seconds": 4.25,
        "step": 7,
        "requested": 0,
        "phase": "backward",
        "categories": {"activation": 2 << 30, "parameter": 1 << 30},
        "phases": {"forward": 2 << 30, "": 1 << 30},
        "holders": [
            {
                "phase": "",
                "category": "parameter",
                "size": 1 << 20,
                "blocks": 1024,
                "bytes": 1 << 30,
            }
        ],
        "remedies": [{"what": "half the batch", "bytes": 1 << 30, "how": "by hand"}],
    },
    "out_of_memory": None,
    "now": {
        "bytes": 1 << 30,
        "categories": {"parameter": 1 << 30},
        "phases": {"": 1 << 30},
        "memory": {"asked for": 1 << 30, "reserved": 2 << 30, "device in use": None},
    },
    "reserved_peak": 3 << 30,
    "cap": None,
    "cap_source": None,
    "phases": [
        {
            "path": "epoch/forward",
            "entries": 12,
            "seconds": 1.5,
            "peak": 2 << 30,
            "kept": 1 << 30,
            "live": 1 << 30,
            "allocations": 1234,
            "allocated": 5 << 30,
            "page_moves": 3,
            "waits": 1,
            "wait_seconds": 0.001,
        }
    ],
    "growth": [
        {
            "phase": "epoch",
            "category": "other",
            "bytes_per_step": 3 << 20,
            "steps": 8,
            "blocks": 8,
            "size": 3 << 20,
        }
    ],
    "not_counted": 2,
    "recorder_bytes": 100000,
}


def test_text() -> None:
    text = table(DATA)
    assert "peak 3 GiB in backward, step 7, 4.2 s after the start" in text
    assert "2 GiB   66.7 %" in text
    assert "3 MiB a step  other, allocated in epoch, mostly 3 MiB each" in text
    assert "  counting took 97.66 KiB of host memory" in text
    assert "2 blocks were not counted" in text
    assert max(map(len, text.splitlines())) <= 100


def test_many_phases_are_a_short_table() -> None:
    row = DATA["phases"][0]
    name = "a name that is longer than any that a terminal has room for"
    paths = [f"step/{i}" for i in range(500)] + [f"{name}/{name}/last"]
    rows = [
        {**row, "path": path, "peak": i << 20, "seconds": 0.0}
        for i, path in enumerate(["step", *paths, name, f"{name}/{name}"])
    ]
    text = table({**DATA, "phases": rows})
    lines = text.splitlines()
    assert "  step" in text
    assert "  and 474 more phases" in lines
    assert any(line.startswith("    499 ") for line in lines)
    assert not any(line.startswith("    3 ") for line in lines)
    assert len(lines) < 70 and max(map(len, lines)) <= 125


def test_rows_of_the_device() -> None:
    """Whatever NVML tells, they add up."""
    stats = {
        "allocated": [(50, 0)],
        "requested": [(40, 0)],
        "reserved": (100, 0),
        "pending": (5, 0),
        "partly_used": 20,
        "idle": 25,
        "spilled": (0, 0),
        "dropped": (0, 0),
    }
    spilled = {**stats, "reserved": (60, 0), "spilled": (30, 0), "dropped": (10, 0)}
    rows = rows_of(spilled, 100, 1000, {}, 7)
    parts = list(rows.values())[: list(rows).index("reserved")]
    assert sum(size or 0 for size in parts) == rows["reserved"] == 60
    data = {**DATA, "now": {**DATA["now"], "memory": rows}}
    assert "of that in host memory" in table(data) and "-30 B" in table(data)
    assert "-30 B" in page(data)
    for processes, expected in (
        ({}, {"unattributed": 80}),
        (
            {7: 130},
            {"context and libraries": 30, "other processes": 0, "unattributed": 50},
        ),
        (
            {7: 130, 8: 40},
            {"context and libraries": 30, "other processes": 40, "unattributed": 10},
        ),
        # asked for at other moments
        (
            {7: 130, 8: 90},
            {"context and libraries": 30, "other processes": 50, "unattributed": 0},
        ),
        ({8: 40}, {"unattributed": 80}),  # the container's numbers are not the host's
        ({7: 90, 8: 40}, {"unattributed": 80}),  # that is another's 7
    ):
        rows = rows_of(stats, 180, 1000, processes, 7)
        names = list(rows)
        rest = names[names.index("reserved") + 1 : names.index("device in use")]
        assert {name: rows[name] for name in rest} == expected, processes
        parts = [*names[: names.index("reserved")], *rest]
        assert sum(rows[name] or 0 for name in parts) == rows["device in use"] == 180
    assert "unattributed" not in rows_of(stats, None, None, {}, 7)


def test_files_are_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    path = tmp_path / "r.json"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            Report(DATA).save(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    for where, why in (
        ("no", "No such file or directory"),
        ("r.json", "Not a directory"),
    ):
        with pytest.raises(OSError, match=why) as caught:
            Report(DATA).save(tmp_path / where / "r.html")
        assert str(caught.value).endswith(f": '{tmp_path / where / 'r.html'}'")
    link = tmp_path / "latest.json"
    link.symlink_to(path)
    Report(DATA).save(link)
    assert link.is_symlink() and reporting.load(path).data == DATA
    os.mkfifo(tmp_path / "pipe")  # as /dev/null, never replaced by a file
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    Report(DATA).save(tmp_path / "pipe")
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_remedies_are_ranked_by_what_they_save_here() -> None:
    moment = {
        "bytes": 1000,
        "categories": {
            "activation": 400,
            "optimizer state": 400,
            "parameter": 100,
            "gradient": 100,
        },
        "holders": [
            {
                "category": "activation",
                "phase": "epoch/forward",
                "blocks": 9,
                "bytes": 250,
            },
            {"category": "activation", "phase": "forward", "blocks": 1, "bytes": 100},
            {"category": "activation", "phase": "backward", "blocks": 5, "bytes": 50},
        ],
    }
    full = [row["what"] for row in remedies(moment, full_precision=True)]
    assert (
        full.index("autocast to bf16")
        == full.index("half the batch, two steps accumulated") - 1
    )
    found = [(row["bytes"], row["what"]) for row in remedies(moment)]
    assert found == [
        (500, "train a few adapters only"),
        (400, "the optimizer's state in host memory"),
        (300, "shard over two GPUs"),
        (300, "an optimizer with 8-bit state"),
        (250, "checkpoint the repeated blocks"),
        (200, "half the batch, two steps accumulated"),
    ]
    assert remedies({"bytes": 0, "categories": {}, "holders": []}) == []
    assert "  1 GiB  half the batch" in table(DATA)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Report(DATA).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]
    assert reporting.load(path).data == DATA
    other = json.loads(json.dumps(DATA))
    other["peak"]["bytes"] = 4 << 30
    other["peak"]["categories"]["gradient"] = 1 << 30
    lines = Report(DATA).compare(Report(other)).splitlines()
    assert any("gradient" in line and "+1 GiB" in line for line in lines)
    assert comparison(DATA, DATA).count("same") == 6
    named = {"module": "transformer.h.*.attn.resid_dropout", "peak": 1 << 30}
    lines = comparison({**DATA, "modules": [named]}, DATA).splitlines()
    assert len({len(line) for line in lines if line.endswith(("B", "same"))}) == 1
    for other_thing in (None, DATA):
        with pytest.raises(TypeError, match="another Report"):
            Report(DATA).compare(other_thing)  # type: ignore[arg-type]
    version = '{"torcharena_report": 1}'
    for wrong in ("", "[]", "{}", '{"torcharena_report": 99}', version):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"r\.json: "):
            reporting.load(path)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Report(DATA).save("r.json")
    assert cli.main(["report", "r.json"]) == 0
    assert capsys.readouterr().out == table(DATA)
    assert cli.main(["report", "r.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == DATA
    assert cli.main(["report", "r.json", "r.json"]) == 0
    assert "same" in capsys.readouterr().out
    for wrong, said in (
        (["no.json"], "no.json: No such file"),
        (["r.json", "--html", "r.pdf"], "ends in .html"),
        (["r.json", "--html", "no/r.html"], "no/r.html: No such file"),
        (["r.json", "r.json", "--html", "r.html"], "one report, not two"),
    ):
        assert cli.main(["report", *wrong]) == 2
        assert said in capsys.readouterr().err
