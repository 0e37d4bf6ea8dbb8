"""Autograd graphs that were never run backward are named, and no others. Real PyTorch on the
simulated GPU."""

from __future__ import annotations

from typing import Any

import pytest
import simulated
from test_reporting import DATA
from torcharena.reports.graphs import Graphs, rows_of
from torcharena.reports.page import compact, page
from torcharena.reports.remedies import remedies
from torcharena.reports.terminal import table

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

MODEL = """
import torcharena
torcharena.enable()
from torch import nn
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self, reentrant=None, width=64):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                          nn.Linear(4 * width, width)) for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = x + (block(x) if self.reentrant is None
                     else checkpoint(block, x, use_reentrant=self.reentrant))
        return {"features": x, "more": [x * 2]}

def fresh(*arguments):
    model = Model(*arguments).cuda()
    return model, torch.optim.AdamW(model.parameters(), 1e-3)

def batch(**more):
    return torch.randn(2048, 64, device="cuda", **more)

def loss_of(model, **more):
    return model(batch(**more))["features"].square().mean()

def train(model, optimizer, **more):
    loss_of(model, **more).backward()
    optimizer.step()
    optimizer.zero_grad()

said = {}
"""


@with_torch
def test_an_evaluation_without_no_grad_is_named() -> None:
    code = """
model, optimizer = fresh()
with torcharena.track(model, optimizer) as tracking:
    def rows():
        return tracking.graphs.rows()
    for _ in range(2):
        train(model, optimizer)
    said["trained"] = rows()
    model.eval()
    before = torch.cuda.memory_allocated()
    out = model(batch())
    kept = torch.cuda.memory_allocated() - before
    del out
    for _ in range(2):
        loss_of(model)
    said["dropped"] = rows()
    losses = [loss_of(model) for _ in range(3)]  # the last one may yet run
    said["kept"] = rows()
    model.train()
    train(model, optimizer)
    said["later"] = rows()
    report = torcharena.report()
    said["peak"] = {row["what"]: row["bytes"] for row in report.data["peak"]["remedies"]}
    said["data"] = report.data["unused_graphs"]
    said["text"] = [line for line in str(report).splitlines() if "forward pass" in line]
    losses.clear()
    said["gone"] = rows()
    said["bytes"] = kept - 3 * 2048 * 64 * 4  # without its input and outputs
    torcharena.set_limit(torch.cuda.memory_allocated() + (32 << 20))
    model.eval()
    try:
        while True:
            losses.append(loss_of(model))
    except torch.OutOfMemoryError as error:
        said["refusal"] = str(error)
    remedies = torcharena.report().data["out_of_memory"]["remedies"]
    said["remedies"] = [row["what"] for row in remedies]
    losses.clear()
torcharena.set_limit(None)
model = Model().cuda()
with torcharena.track(model) as alone:  # nothing ever runs backward here
    kept = [model(batch()) for _ in range(3)]
    said["training mode"] = alone.graphs.rows()
print(said)
"""
    found = simulated.said(simulated.run(MODEL + code, values=False))
    assert found["trained"] == []
    (dropped,) = found["dropped"]
    each = dropped["bytes"]
    assert dropped == {
        "mode": "evaluation",
        "passes": 3,
        "bytes": each,
        "alive": 0,
        "alive_bytes": 0,
    }
    assert abs(each - found["bytes"]) < 0.02 * each
    assert (found["kept"][0]["passes"], found["kept"][0]["alive"]) == (5, 2)
    (later,) = found["later"]
    assert (later["passes"], later["alive"]) == (6, 3)
    assert later["alive_bytes"] == 3 * each
    assert found["data"] == found["later"]
    (line,) = found["text"]
    assert line.startswith("    6 forward passes in evaluation mode, ")
    assert "; 3 of them live on: " in line
    assert found["peak"]["evaluate under torch.no_grad()"] == 3 * each
    assert found["gone"] == [{**later, "alive": 0, "alive_bytes": 0}]
    assert "torch.no_grad() in evaluation, whose graphs never" in found["refusal"]
    held = found["refusal"].split("By what they hold: ")[1]
    assert held.startswith("workspaces ") and ", activations " in held
    assert "evaluate under torch.no_grad()" in found["remedies"]
    (training,) = found["training mode"]
    assert (training["mode"], training["alive"]) == ("training", 1)


@with_torch
def test_what_is_no_waste_is_not_named() -> None:
    code = """
model, optimizer = fresh()
def watched(name, run, *models):
    with torcharena.track(model, optimizer) as tracking:
        run()
        said[name] = tracking.graphs.rows()
        optimizer.step()
        optimizer.zero_grad()
        run()
        said[name + ", again"] = tracking.graphs.rows()
        model.train()

def accumulated():
    for _ in range(3):
        loss_of(model).backward()

def summed():
    losses = [loss_of(model) for _ in range(3)]
    said["summed, before"] = torcharena.reports.tracking.trackings()[0].graphs.rows()
    torch.stack(losses).sum().backward()

def summed_in_evaluation_mode():  # batch norm is to stand still, say
    model.eval()
    summed()

def one_of_two_outputs():
    for _ in range(2):
        out = model(batch())
        out["more"][0].sum().backward()

def by_grad():
    model.eval()
    x = batch(requires_grad=True)
    torch.autograd.grad(model(x)["features"].sum(), x)

def inference():
    model.eval()
    with torch.no_grad():
        kept = [model(batch()) for _ in range(3)]
    with torch.inference_mode():
        kept += [model(batch()) for _ in range(3)]
    loss_of(model).backward()

def failed():
    for _ in range(3):
        try:
            model("wrong")
        except Exception:
            pass
    loss_of(model).backward()

for run in (accumulated, summed, summed_in_evaluation_mode, one_of_two_outputs, by_grad,
            inference, failed):
    watched(run.__name__, run)

critic, critics = fresh()
with torcharena.track(model, optimizer) as one, torcharena.track(critic, critics) as two:
    for _ in range(3):  # two models against each other
        fake = model(batch())["features"]
        (critic(fake.detach())["features"].mean() - loss_of(critic)).backward()
        critics.step()
        said.setdefault("two models, inside", []).extend(one.graphs.rows())
        critic(fake)["features"].mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        critics.zero_grad()
    said["two models"] = one.graphs.rows() + two.graphs.rows()

for reentrant in (True, False):  # recomputed in backward
    model, optimizer = fresh(reentrant)
    with torcharena.track(model, optimizer) as tracking:
        for _ in range(2):
            train(model, optimizer, requires_grad=True)
        said[f"checkpointed {reentrant}"] = tracking.graphs.rows()
model, optimizer = fresh()
with torcharena.track(model, optimizer) as tracking:
    for _ in range(2):  # the whole model
        out = checkpoint(model, batch(requires_grad=True), use_reentrant=False)
        out["features"].sum().backward()
        optimizer.step()
    said["checkpointed whole"] = tracking.graphs.rows()

for where in ("track the compiled", "compile the tracked"):
    model, optimizer = fresh()
    compiled = torch.compile(model, backend="aot_eager")
    with torcharena.track(compiled if "the c" in where else model, optimizer) as tracking:
        for _ in range(2):
            losses = [loss_of(compiled) for _ in range(2)]
            sum(losses).backward()
            optimizer.step()
        said[where] = tracking.graphs.rows()
print({name: rows for name, rows in said.items() if rows} | {"cases": len(said)})
"""
    found = simulated.said(simulated.run(MODEL + code, values=False))
    assert found == {"cases": 22}


def test_passes_of_several_models_are_one_row() -> None:
    class Found(Graphs):
        def __init__(self, *rows: Any) -> None:
            self.found = list(rows)

        def rows(self) -> list[dict[str, Any]]:
            return self.found

    def row(mode: str, passes: int, size: int, alive: int) -> dict[str, Any]:
        return {
            "mode": mode,
            "passes": passes,
            "bytes": size,
            "alive": alive,
            "alive_bytes": alive * size,
        }

    rows = rows_of(
        [Found(row("evaluation", 2, 10, 1)), Found(), Found(row("evaluation", 3, 7, 3))]
    )
    assert rows == [row("evaluation", 5, 10, 0) | {"alive": 4, "alive_bytes": 31}]
    assert rows_of([]) == []


def test_views() -> None:
    row = {"mode": "evaluation", "passes": 3, "bytes": 210 << 20}
    data = {**DATA, "unused_graphs": [{**row, "alive": 2, "alive_bytes": 420 << 20}]}
    said = (
        "3 forward passes in evaluation mode, 210 MiB each at most; 2 of them live on: "
    )
    for view in (table(data), page(data), compact(data)):
        assert said + "420 MiB" in view
    data["unused_graphs"] = [{**row, "passes": 1, "alive": 1, "alive_bytes": 5 << 20}]
    assert "1 forward pass in evaluation mode, 210 MiB; it lives on: 5 MiB" in table(data)
    for none in (DATA, {**DATA, "unused_graphs": []}):
        for view in (table(none), page(none), compact(none)):
            assert "never run backward" not in view
    moment = {"bytes": 1000, "categories": {"activation": 400}, "holders": []}
    assert remedies(moment, 300)[0]["what"] == "evaluate under torch.no_grad()"
