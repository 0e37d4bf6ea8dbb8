"""Reports at their edges: narrow terminals, wrong calls, phases left in odd ways, children."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import simulated
from test_reporting import DATA, run
from torcharena import phase
from torcharena.reports import modules, notebook, reporting, tracking
from torcharena.reports.page import page
from torcharena.reports.terminal import comparison, table

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def long_report() -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    row = data["phases"][0]
    data["phases"] += [
        {**row, "path": "epoch/validation_over_all_the_data/postprocessing", "waits": 0},
        {**row, "path": "x", "spilled": 5 << 30},
    ]
    data["modules"] = [
        {
            "module": "model.encoder.layers.*.attention.output.dense",
            "modules": 24,
            "peak": 1 << 30,
            "now": 1 << 20,
            "allocated": 7 << 40,
            "allocations": 123456789,
            "each": [],
        }
    ]
    data["growth"][0]["place"] = (
        "train.py:123 in a_function_with_quite_a_long_name_of_its_own"
    )
    data["unused_graphs"] = [
        {
            "mode": "evaluation",
            "passes": 12,
            "bytes": 1 << 30,
            "alive": 3,
            "alive_bytes": 1 << 30,
        }
    ]
    return data


@pytest.mark.parametrize("width", [60, 80, 100])
def test_tables_fit_the_terminal(width: int) -> None:
    data = long_report()
    text = table(data, width)
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= width, longest
    head = next(line for line in text.splitlines() if line.startswith("  phase"))
    assert "peak" in head and "kept" in head  # what is read first is never left out
    for word in ("forward", "half the batch", "a_function_with", "dense (24)", "spilled"):
        assert word in text
    other = comparison(data, data, width)
    assert max(map(len, other.splitlines())) <= width


def test_columns_of_noughts_go_first() -> None:
    data = copy.deepcopy(DATA)
    for row in data["phases"]:
        row["page_moves"] = row["waits"] = 0
    head = next(line for line in table(data, 80).splitlines() if "allocs" in line)
    assert "moves" not in head and "waits" not in head
    assert "moves" in table(data, 100)


def test_tables_of_the_page_have_room() -> None:
    """Beside another, that of growth lost its last column; remedies say how."""
    text = page(long_report())
    paired = [
        part.split("</div></main>")[0] for part in text.split('class="columns"')[1:]
    ]
    assert len(paired) == 1 and "by hand" in text
    inside = paired[0].split("Phases</h2>")[0]
    assert "What it held" in inside and "a step" not in inside


def test_a_phase_left_but_not_entered() -> None:
    with pytest.raises(RuntimeError, match=r"phase\('load'\) was left, but not entered"):
        phase("load").__exit__(None, None, None)


def test_watch_wants_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "needs_enabled", lambda what: None)
    for given in ({"interval": "x"}, {"most": None}, {"interval": True}):
        with pytest.raises(TypeError, match=r"a number of seconds, such as 0\.5"):
            notebook.watch(**given)  # type: ignore[arg-type]


def test_what_outlives_its_step_is_nothing_to_checkpoint() -> None:
    """A library's workspace: allocated in the first forward, kept for good."""
    known = [reporting.Named(""), reporting.Named("forward", True)]
    when = {"bytes": 0, "requested": 0, "us": 0.0, "step": 3, "phase": 1}
    activations = [(0, 8 << 20, 3, 1, 0, 0, 0)] * 4  # of the peak's step, freed since
    kept = [(512 * i, 32 << 20, born, 1, 0, 0, 0) for i, born in ((1, 0), (2, 0), (3, 3))]
    when["bytes"] = sum(block[1] for block in activations + kept)
    moment = reporting._moment(when, activations + kept, known, 5)
    found = {row["what"]: row["bytes"] for row in moment["remedies"]}
    assert found["checkpoint the repeated blocks"] == 32 << 20
    assert moment["categories"]["activation"] == when["bytes"]  # as ever


@with_torch
def test_names_of_a_bare_sequential() -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    names = modules.Modules(model)
    titles = {
        (modules._names[number][0], modules.folded(number)) for _, number in names._own
    }
    names._forget()
    assert titles == {
        ("Sequential", "Sequential"),
        ("Sequential.0", "Sequential.*"),
        ("Sequential.1", "Sequential.1"),
        ("Sequential.2", "Sequential.*"),
    }


@with_torch
def test_other_threads_and_children() -> None:
    """A phase that another thread leaves is over for the thread that entered it; a child is
    told that the numbers are its parent's."""
    found = run("""
import os, threading
said = {}
shared = torcharena.phase("far")
def inside():
    shared.__enter__()
    said["in"] = torch.empty(1 << 18, device="cuda")
    entered.set()
    left.wait()
    said["out"] = torch.empty(1 << 19, device="cuda")
entered, left = threading.Event(), threading.Event()
with torcharena.phase("main"):
    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait()
    shared.__exit__(None, None, None)
    left.set()
    thread.join()
phases = {row["path"]: row for row in torcharena.report().data["phases"]}
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    texts = []
    for call in (torcharena.timeline, torcharena.report):
        try:
            texts.append(repr(call()))
        except Exception as error:
            texts.append(str(error))
    with torcharena.phase("child"):
        pass
    os.write(writer, repr(texts).encode())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
checked()
print({"far": phases["far"], "main": phases["main"],
       "child": eval(os.read(reader, 4096).decode())})
""")
    assert found["far"]["entries"] == 1
    assert found["far"]["live"] == 1 << 20
    assert found["main"]["live"] == 2 << 20
    assert ["forked child" in text for text in found["child"]] == [True, True]


def test_what_zero_grad_was_is_put_back() -> None:
    class Optimizer:
        def zero_grad(self) -> None:
            pass

    for own in ({}, {"zero_grad": lambda: None}):
        for order in ((0, 1), (1, 0)):
            optimizer = Optimizer()
            vars(optimizer).update(own)
            undo = [tracking._wrap_zero_grad(optimizer) for _ in range(2)]
            for which in order:
                undo[which]()
            assert vars(optimizer) == own


@with_torch
def test_steps_that_two_track_are_counted_once() -> None:
    code = """
import torcharena
torcharena.enable()
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
first = torcharena.track(model, optimizer)
second = torcharena.track(model, optimizer)
found = []
for ended in (first, second):
    for _ in range(3):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found.append(torcharena.report().data["steps"])
    ended.stop()
print({"steps": found})
"""
    assert simulated.said(simulated.run(code))["steps"] == [3, 6]
