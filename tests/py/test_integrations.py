"""Figures in progress bars, TensorBoard and Trainers."""

from __future__ import annotations

from typing import Any

import pytest
import simulated
import torcharena
from fake_core import FakeCore
from torcharena.integrations import figures, tensorboard

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


class Writer:
    def __init__(self) -> None:
        self.said: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.said.append((name, value, step))


def test_figures(arena: FakeCore) -> None:
    arena.alloc(6 << 20)
    assert torcharena.tqdm_postfix(0) == {"gpu": "8 MiB", "peak": "8 MiB"}
    writer = Writer()
    tensorboard.add_scalars(writer, 3, device=0)
    assert ("torcharena/peak_reserved_GiB", 8 / 1024, 3) in writer.said
    assert ("torcharena/waits", 4, 3) in writer.said
    assert "reserved 8 MiB, at most 8 MiB; asked for at most 6 MiB" in figures.epoch_line(
        0
    )


def test_nothing_where_the_arena_is_not_enabled() -> None:
    assert torcharena.tqdm_postfix() == {}
    writer: Any = Writer()
    tensorboard.add_scalars(writer, 1)
    assert writer.said == []


@with_torch
def test_transformers_trainer() -> None:
    pytest.importorskip("transformers")
    found = simulated.said(
        simulated.run(
            """
import json, logging, tempfile
import torcharena
torcharena.enable()
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from torcharena.reports import reporting
from torcharena.integrations.huggingface import ArenaCallback
from torcharena.loading import log
from torcharena.reports.tracking import trackings

lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
log.addHandler(Kept())
log.setLevel("INFO")
config = GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100, n_positions=16,
                    bos_token_id=0, eos_token_id=1)
row = {"input_ids": torch.zeros(16, dtype=torch.long), "labels": torch.zeros(16).long()}
with tempfile.TemporaryDirectory() as folder:
    path = folder + "/memory.json"
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(folder, per_device_train_batch_size=2, num_train_epochs=1,
                          logging_steps=2, report_to=[], save_strategy="no",
                          disable_tqdm=True),
        train_dataset=[row] * 8, callbacks=[ArenaCallback(report=path)])
    trainer.train()
    data = reporting.load(path).data
mine = ArenaCallback()
for _ in range(2):  # an error ended the first
    mine.on_train_begin(None, None, None, model=trainer.model)
logged = [entry for entry in trainer.state.log_history if "gpu_peak_GiB" in entry]
print({"logged": len(logged), "phases": {r["path"]: r["entries"] for r in data["phases"]},
       "steps": data["steps"], "lines": [line for line in lines if "epoch" in line],
       "parameter": data["now"]["categories"]["parameter"],
       "sum": sum(p.nbytes for p in trainer.model.parameters()),
       "trackings": len(trackings())})
""",
            values=False,
        )
    )
    assert found["steps"] == 4
    assert found["phases"]["forward"] == 4 == found["phases"]["backward"]
    assert found["phases"]["optimizer"] == 4
    assert found["logged"] >= 2
    assert found["parameter"] == found["sum"]
    assert len(found["lines"]) == 1
    assert found["trackings"] == 1


@with_torch
def test_a_closure_is_no_optimizers_phase() -> None:
    """As Lightning steps, and LBFGS."""
    found = simulated.said(
        simulated.run(
            """
import torcharena
torcharena.enable()
model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
torcharena.track(model, [optimizer])

def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 1000, device="cuda")).sum()
    loss.backward()
    return loss

for _ in range(3):
    optimizer.step(closure)
print({r["path"]: r["entries"] for r in torcharena.report().data["phases"]})
""",
            values=False,
        )
    )
    assert found.pop("", 0) == 0
    assert found == {"zero_grad": 3, "forward": 3, "backward": 3, "optimizer": 3}


LENT = """
import gc, sys, types
import torcharena
torcharena.enable()
torch.cuda.init()
memory = torch.cuda.memory_allocated

# CuPy, as far as an allocator sees it.
stream = torch.cuda.Stream()
class Memory:
    def __init__(self, address, size, owner, device):
        self.ptr, self.size, self.owner, self.device_id = address, size, owner, device
class Pointer:
    def __init__(self, memory, offset):
        self.mem, self.ptr = memory, memory.ptr + offset
cupy = types.ModuleType("cupy")
cupy.cuda = types.SimpleNamespace(
    runtime=types.SimpleNamespace(getDevice=lambda: 0),
    get_current_stream=lambda: types.SimpleNamespace(ptr=stream.cuda_stream),
    UnownedMemory=Memory,
    MemoryPointer=Pointer,
)
sys.modules["cupy"] = cupy
lent = torcharena.cupy_allocator(5 << 20)
assert memory() == 5 << 20 and lent.mem.device_id == 0 and lent.ptr % 512 == 0
segment, = [s for s in torch.cuda.memory_snapshot() if s["address"] <= lent.ptr < s["address"] + s["total_size"]]
assert segment["stream"] == stream.cuda_stream
nothing = torcharena.cupy_allocator(0)
del lent, nothing
gc.collect()
assert memory() == 0

# RMM: its stream is another at the end, whose work the next owner must wait for.
class Resource:
    def __init__(self, allocate, deallocate):
        self.allocate, self.deallocate = allocate, deallocate
class Stream:
    def __init__(self, handle):
        self.handle = handle
    def __cuda_stream__(self):
        return (0, self.handle)
rmm = types.ModuleType("rmm")
rmm.mr = types.SimpleNamespace(CallbackMemoryResource=Resource)
sys.modules["rmm"] = rmm
resource = torcharena.rmm_resource()
address = resource.allocate(3 << 20, Stream(stream.cuda_stream))
assert memory() == 3 << 20
torch.cuda._sleep(10**6)
resource.deallocate(address, 3 << 20, Stream(0))
assert memory() == 0
older = resource.allocate(100)
resource.deallocate(older, 100)
try:
    resource.allocate(100, object())
except TypeError as error:
    assert "RMM 25.02" in str(error)
else:
    raise AssertionError("a stream of unknown handle")
try:
    resource.allocate(1 << 50, Stream(0))
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError("a petabyte")
from torcharena import _core
assert _core.check() is None
"""


@with_torch
def test_lending() -> None:
    simulated.run(LENT, values=False)


def test_lending_needs_the_arena() -> None:
    for call in (lambda: torcharena.cupy_allocator(1), torcharena.rmm_resource):
        with pytest.raises(RuntimeError, match=r"after torcharena\.enable"):
            call()
