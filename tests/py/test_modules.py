"""Which module and which line allocated, under the real PyTorch on the simulated GPU."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import simulated
from torcharena.reports import modules, reporting
from torcharena.reports.page import page
from torcharena.reports.terminal import comparison, table

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

MODEL = """
import copy, io
import torcharena
torcharena.enable()
from torch import nn
from torch.utils.checkpoint import checkpoint
import torcharena._core as core
KIB = 1024

class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, fail=False):
        out = x + self.down(self.act(self.up(x)))
        if fail:
            raise ValueError
        return out

class Net(nn.Module):
    def __init__(self, how="plain", deep=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(deep))
        self.head = nn.Linear(64, 64)
        self.how = how

    def forward(self, x, fail=False):
        for block in self.blocks:
            if self.how == "plain":
                x = block(x=x, fail=fail)
            else:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)

def allocated():
    rows = torcharena.report().data["modules"]
    assert core.usage_check() is None
    return {m["module"]: m["allocated"] for row in rows for m in (row["each"] or [row])}

def trained(net, **options):
    # Bytes by module of one forward and backward pass over 1,000 rows.
    rows = torch.zeros(1000, 64, device="cuda", requires_grad=True)
    (rows @ rows.mT).sum().backward()  # cuBLAS takes its workspaces
    net(rows).sum().backward()
    before = allocated()
    with torcharena.track(net, **options):
        net(rows).sum().backward()
        after = allocated()
    return {name: size - before.get(name, 0) for name, size in after.items()
            if size != before.get(name, 0)}
"""


def run(code: str, **more: Any) -> dict[str, Any]:
    return simulated.said(simulated.run(MODEL + code, values=False, **more))


def test_forward_and_backward() -> None:
    """Each way to call a module; the bytes of each are known."""
    found = run("""
said = {}
for how in ("plain", "checkpoint", "reentrant"):
    said[how] = trained(Net(how).cuda(), modules=True)
with torch.autocast("cuda", torch.bfloat16):
    said["autocast"] = trained(Net().cuda(), modules=True)
net = Net().cuda()
for block in net.blocks:
    block.compile(backend="eager")
compiled = [block._compiled_call_impl for block in net.blocks]
said["compiled blocks"] = trained(net, modules=True)
assert [block._compiled_call_impl for block in net.blocks] == compiled
net = Net().cuda()
from torch._dynamo.utils import counters
counters.clear()
said["compiled"] = trained(torch.compile(net, backend="eager"), modules=True)
said["breaks"] = sum(counters["graph_break"].values())
print(said)
""")
    kib = 1024
    one = 1000 * 64 * 4  # a row of floats in and out of a block
    wide = 4 * one
    weight = 64 * 256 * 4
    # up: its output; backward: the gradients of its input, weight and bias.
    up = wide + one + weight + 256 * 4
    down = one + wide + weight + 64 * 4
    act = wide + wide
    plain = found["plain"]
    mib = 1 << 20  # older versions of torch take a workspace of so much in each product
    for i in (0, 1, 2):
        assert plain[f"blocks.{i}.act"] == act
        assert 0 <= (plain[f"blocks.{i}.up"] - up) % mib <= kib
        assert 0 <= (plain[f"blocks.{i}.down"] - down) % mib <= kib
        assert plain[f"blocks.{i}"] >= one
    assert set(plain) - {"Net"} == {
        "",
        "head",
        *(f"blocks.{i}{part}" for i in range(3) for part in ("", ".up", ".act", ".down")),
    }
    for how in ("checkpoint", "reentrant"):  # computed again, in backward
        again = found[how]
        assert again["blocks.1.act"] == act + wide
        assert again["blocks.1.up"] >= plain["blocks.1.up"] + wide
        # The first way stops before the last operation of a block.
        assert (again["blocks.1.down"] > plain["blocks.1.down"]) == (how == "reentrant")
        assert again["head"] == plain["head"]
    assert found["autocast"]["blocks.1.act"] == act // 2
    blocks = found["compiled blocks"]
    assert "blocks.1.up" not in blocks
    inside = sum(plain[f"blocks.1{part}"] for part in ("", ".up", ".act", ".down"))
    assert abs(blocks["blocks.1"] - inside) % mib <= 4 * kib
    assert found["breaks"] == 0
    assert set(found["compiled"]) <= {"", "Net"}
    assert found["compiled"]["Net"] > 3 * inside


def test_what_is_told_of_a_training() -> None:
    found = run("""
net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
tracking = torcharena.track(net, optimizer, modules=True)
second = nn.Sequential(nn.Linear(8, 8)).cuda()
torcharena.track(second, modules=True)
kept = []
for _ in range(10):
    net(torch.zeros(1000, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(net.blocks[1].up(torch.zeros(1000, 64, device="cuda")))
try:
    net(torch.zeros(8, 64, device="cuda"), fail=True)
except ValueError:
    pass
assert core.place_now() == (0, 0)
report = torcharena.report()
copied = copy.deepcopy(net)
copied(torch.zeros(8, 64, device="cuda"))
file = io.BytesIO()
torch.save(net, file)
tracking.stop()
hooks = [str(h) for m in net.modules()
         for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
file.seek(0)
torch.load(file, weights_only=False)(torch.zeros(8, 64, device="cuda"))
state = {name: 2 * sum(p.numel() * 4 for p in m.parameters(recurse=False))
         for name, m in net.named_modules()}
print({"data": report.data, "hooks": hooks, "state": state, "after": core.place_now()})
""")
    data = found["data"]
    assert found["hooks"] == [] and found["after"] == (0, 0)
    rows = {row["module"]: row for row in data["modules"]}
    assert {"blocks.*.up", "blocks.*.act", "blocks.*", "head", "Sequential.0"} <= set(
        rows
    )
    assert rows["blocks.*.up"]["modules"] == 3 == len(rows["blocks.*.up"]["each"])
    for at in ("peak", "now"):
        assert sum(row[at] for row in data["modules"]) == data[at]["bytes"]
    # Parameters and state are the module's that has them, whoever allocated them.
    assert rows["head"]["now"] >= 3 * found["state"]["head"] // 2
    growing = {row.get("module"): row["bytes_per_step"] for row in data["growth"]}
    assert growing["blocks.*.up"] == 1000 * 256 * 4
    assert {row.get("module") for row in data["peak"]["holders"]} >= {"blocks.*.act"}
    # The remedies are as without modules: of all blocks of one size together.
    assert any("checkpoint" in row["what"] for row in data["peak"]["remedies"])
    text = table(data)
    assert "blocks.*.up (3)" in text and "in blocks.*.up" in text
    assert max(map(len, text.splitlines()[1:])) <= 100
    html = page(data)
    assert "<h2>Modules</h2>" in html and "blocks.2.up: " in html
    assert "blocks.*.up" in comparison(data, data)


def test_lines(tmp_path: Path) -> None:
    """The places of holders and growth; a snapshot's frames; modes in any order."""
    found = run(f"""
path = {str(tmp_path / "x.pickle")!r}
net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
try:
    torcharena.snapshot(path, stacks=True)
except RuntimeError as error:
    said = str(error)
torch.cuda.memory._record_memory_history(max_entries=10_000)
kept = []

def leak():
    kept.append(torch.empty(3 << 18, device="cuda"))

with torcharena.track(net, optimizer, stacks=True):
    for _ in range(10):
        with torch.device("cuda"):
            net(torch.zeros(1000, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        leak()
    report = torcharena.report()
    torcharena.snapshot(path, stacks=True)
lines = torcharena.stacks()
lines.start()
with torch.device("cuda"):
    lines.stop()
    assert torch.empty(1).is_cuda
assert not torch.empty(1).is_cuda and core.place_now() == (0, 0)
print({{"data": report.data, "said": said}})
""")
    assert "no lines were noted" in found["said"]
    (growth,) = found["data"]["growth"]
    assert growth["place"].endswith(" leak")
    holders = found["data"]["peak"]["holders"]
    assert any(row.get("place", "").endswith(" forward") for row in holders), holders
    assert found["data"]["modules"] == []
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    trace = snapshot["device_traces"][0]
    allocs = [entry for entry in trace if entry["action"] == "alloc"]
    named = [entry for entry in allocs if len(entry["frames"]) > 1]
    assert len(named) > 0.9 * len(allocs)
    leaks = [e for e in allocs if e["size"] == 3 << 20]
    assert len(leaks) == 10
    assert {e["frames"][0]["name"] for e in leaks} == {"leak"}
    assert {e["frames"][1]["name"] for e in leaks} == {"<module>"}
    blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
    assert any(len(b["frames"]) > 1 for b in blocks)


def test_names_of_modules() -> None:
    found = run("""
from torcharena.reports import modules
import torch.nn.functional as F

class Mamba(Block):
    pass

mixed = nn.Sequential(nn.Embedding(9, 64), Block(), Mamba(), Block(), Mamba(), nn.Linear(64, 9))
shared = nn.Linear(4, 4)
tied = nn.ModuleDict({"one": shared, "two": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)),
                      "three": shared})
class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner
print({name: [(path, like) for path, like, _ in modules._walk(model)]
       for name, model in {"mixed": mixed, "tied": tied, "wrapped": Wrapper(tied)}.items()}
      | {"kind": modules._kind(Wrapper(tied)), "prefixes": [
          modules._prefix(tied), modules._prefix(mixed), modules._prefix(tied)]})
""")
    mixed = dict(found["mixed"])
    assert mixed["1"] == mixed["3"] == "*Block" and mixed["2.up"] == "*Mamba.up"
    assert mixed["0"] == "0" and mixed["5"] == "5"
    assert dict(found["tied"]) == {
        path: path for path in ("", "one", "two", "two.0", "two.1")
    }
    assert dict(found["wrapped"]) == dict(found["tied"])
    assert found["kind"] == "ModuleDict"
    assert found["prefixes"] == ["", "Sequential", ""]


def test_bounded_rows() -> None:
    row = {"peak": 1, "now": 1, "allocated": 1, "allocations": 1, "modules": 50}
    each = [dict(row) for _ in range(50)]
    rows = modules._bounded([{**row, "each": list(each)} for _ in range(300)])
    assert len(rows) == modules.ROWS + 1
    assert rows[-1]["module"] == "all others" and rows[-1]["peak"] == 200
    assert sum(len(one["each"]) for one in rows) <= modules.EACH


def test_reports_of_before(tmp_path: Path) -> None:
    """A report that has no modules reads as ever."""
    from test_reporting import DATA

    assert "  module " not in table(DATA)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(DATA))
    assert "Modules" not in page(reporting.load(path).data)
