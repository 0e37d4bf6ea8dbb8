"""Magics and the live view in IPython, under the real PyTorch on the simulated GPU."""

from __future__ import annotations

import importlib.util

import pytest
import simulated

pytestmark = [
    pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing()),
    pytest.mark.skipif(
        importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
    ),
]

SHELL = """
import sys
assert "IPython" not in sys.modules
import torcharena
assert "IPython" not in sys.modules
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
shell.user_ns["torch"] = torch

def cell(text, good=True):
    with capture_output() as out:
        result = shell.run_cell(text, store_history=True)
    assert result.success is good, (text, out.stdout, out.stderr)
    return result, out
"""


def test_magics() -> None:
    found = simulated.said(
        simulated.run(
            SHELL
            + """
cell("%load_ext torcharena")
_, out = cell("%arena")
early = out.stdout
result, _ = cell("%%arena" + chr(10) + "3 + 4")  # it runs all the same
assert result.result == 7
cell("import torcharena; torcharena.enable(limit='1GiB')")
result, out = cell("%arena")
state = str(result.result)
assert "<svg" in result.result._repr_html_() or "Nothing" in result.result._repr_html_()
result, out = cell('''%%arena
import gc
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tracking = torcharena.track(model, optimizer)
big = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
del big
model(torch.zeros(64, 256, device="cuda")).sum().backward()
optimizer.step()
%time kept = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
torch.cuda.is_available()''')
assert result.result is True, result
one = shell.user_ns["_arena"]
text, page = str(one), one._repr_html_()
_, out = cell('''%%arena 0
def deeper(): return torch.empty(1 << 31, device="cuda", dtype=torch.uint8)
other = torch.empty(1 << 21, device="cuda", dtype=torch.uint8)
deeper()''', good=False)
two = shell.user_ns["_arena"]
cell("%arena 7", good=False)
cell("%arena 0 1", good=False)
cell("%arena cuda:0")
cell("%unload_ext torcharena")
cell("%arena", good=False)
import torcharena._core as core
assert core.usage_check() is None and core.check() is None
print({"early": early, "state": state, "text": text, "page": page,
       "kept": one.kept, "held": one.held, "peak": one.peak, "before": one.before,
       "failed": out.stdout, "other": two.kept, "name": two.name})
""",
            values=False,
        )
    )
    assert "not enabled" in found["early"]
    assert "cap 1 GiB" in found["state"]
    weights = (256 * 256 + 256) * 4
    assert found["held"]["parameter"] == weights == found["held"]["gradient"]
    assert found["held"]["optimizer state"] == 2 * weights
    assert found["held"]["other"] >= 1 << 20  # `kept`, which is no activation
    assert found["kept"] == sum(found["held"].values()) >= (1 << 20) + 4 * weights
    assert (1 << 28) <= found["peak"] < (1 << 28) + (2 << 20)
    assert found["text"].startswith("In[6]: peak 256")
    assert "/backward" in found["text"] and "kept: " in found["text"]
    assert "<b>In[6]</b>" in found["page"]
    assert "OutOfMemoryError" in found["failed"] and "deeper()" in found["failed"]
    assert found["failed"].count("Traceback") == 1
    assert found["other"] == 1 << 21


def test_watching() -> None:
    found = simulated.said(
        simulated.run(
            SHELL
            + """
import gc, time, threading
try:
    torcharena.watch()
except RuntimeError as error:
    assert "after torcharena.enable()" in str(error)
torcharena.enable()
kept = torch.empty(1 << 20, device="cuda")
for wrong in ({"interval": 0.01}, {"interval": float("nan")}, {"most": 0.5}):
    try:
        torcharena.watch(**wrong)
    except ValueError:
        continue
    raise AssertionError(wrong)

def until(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)

with capture_output() as out:
    view = torcharena.watch(interval=0.1)
    until(lambda: view.updates >= 2)
    kept = torch.empty(1 << 24, device="cuda")
    second = torcharena.watch(interval=0.1)  # one a device
    assert not view.running
    second.stop()
    second.stop()
    assert not second.running
    count = second.updates
    with torcharena.watch(interval=0.1, most=0.3) as third:
        until(lambda: not third.running)  # its time is up
    fourth = torcharena.reports.notebook.Watch(0, 0.1, 100.0)
    thread = fourth._thread
    del fourth
    gc.collect()
    until(lambda: not thread.is_alive())  # nobody holds it
    torcharena.watch(interval=60.0)  # ends with the program
assert second.updates == count
print({"outputs": [str(one.data.get("text/plain")) for one in out.outputs][:2],
       "svg": sum("<svg" in one.data.get("text/html", "") for one in out.outputs)})
""",
            values=False,
        )
    )
    assert "live" in found["outputs"][0]
    assert found["svg"] >= 2
