"""`track` in the ways people train: on two GPUs, compiled, under Lightning. Categories against
the tensors themselves, to the byte; phases by how often each was entered."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Any

import pytest
import simulated

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

SUMS = """
import gc
import torcharena

def held(tensors):
    found = {}
    for t in tensors:
        t = getattr(t, "_local_tensor", t)
        if t.is_cuda:
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(found.values())

def sums(model, optimizer):
    states = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return {"parameter": held(model.parameters()), "buffer": held(model.buffers()),
            "gradient": held(p.grad for p in model.parameters() if p.grad is not None),
            "optimizer state": held(states)}

def looked_at(model, optimizer):
    gc.collect()
    report = torcharena.report()
    import torcharena._core as core
    assert core.usage_check() is None and core.check() is None
    return {"sums": sums(model, optimizer), "now": report.data["now"]["categories"],
            "peak": report.data["peak"], "growth": report.data["growth"],
            "phases": {r["path"]: r["entries"] for r in report.data["phases"] if r["path"]}}
"""

TWO = (
    SUMS
    + """
import os
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
torcharena.enable()
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.register_buffer("scale", torch.ones(1000))
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        x = self.blocks[0](x)
        for block in self.blocks[1:]:
            x = checkpoint(block, x, use_reentrant=False)
        return x

def ddp():
    return nn.parallel.DistributedDataParallel(
        Net().to(device), device_ids=[rank], gradient_as_bucket_view=True)

def sharded():
    model = Net().to(device)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)

said = {}
for name, make in (("fully_shard", sharded), ("ddp", ddp)):  # whose peak is higher
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    base = {r["path"]: r["entries"] for r in torcharena.report().data["phases"]}
    with torcharena.track(model, optimizer):
        for step in range(4):
            for part in range(2):  # accumulated
                if name == "ddp":
                    model.require_backward_grad_sync = part == 1
                else:
                    model.set_requires_gradient_sync(part == 1)
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(torch.randn(32, 256, device=device)).square().mean()
                loss.backward()
            optimizer.step()
            if step < 3:
                optimizer.zero_grad()
        del loss
        said[name] = looked_at(model, optimizer)
    phases = said[name]["phases"]
    said[name]["phases"] = {p: n - base.get(p, 0) for p, n in phases.items()}
    del model, optimizer
    gc.collect()
print(said)
dist.destroy_process_group()
"""
)


def two_ranks(code: str) -> list[dict[str, Any]]:
    """What each of two processes, a simulated GPU each, printed last."""
    port = simulated.port()
    env = simulated.environment(devices=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "import torch\n" + code],
            env={**env, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [one.communicate(timeout=simulated.TIMEOUT) for one in ranks]
    for one, (out, errors) in zip(ranks, outputs, strict=True):
        assert one.returncode == 0, f"exit code {one.returncode}\n{out}\n{errors}"
    return [ast.literal_eval(out.strip().splitlines()[-1]) for out, _ in outputs]


def check(found: dict[str, Any], first_buckets: bool = False) -> None:
    """Categories now are what the tensors sum to.

    Args:
        first_buckets: torch may still hold DistributedDataParallel's first buckets, as large
            as those it rebuilt after the first step (seen without torcharena too).
    """
    for category, size in found["sums"].items():
        sizes = [size, 2 * size] if first_buckets and category == "gradient" else [size]
        assert found["now"].get(category, 0) in sizes, (category, found)
    assert sum(found["peak"]["categories"].values()) == found["peak"]["bytes"]


def test_on_two_gpus() -> None:
    """DistributedDataParallel, whose gradients are views of buckets, and `fully_shard`: with
    accumulation, autocast and checkpointed blocks."""
    for rank in two_ranks(TWO):
        for name, found in rank.items():
            check(found, first_buckets=name == "ddp")
            assert found["sums"]["gradient"] > 0 < found["sums"]["optimizer state"]
            assert found["sums"]["buffer"] == 3 * 4000
            wanted = {"forward": 8, "backward": 8, "optimizer": 4, "zero_grad": 3}
            assert {k: v for k, v in found["phases"].items() if v} == wanted, name
            assert found["growth"] == []
            peak = found["peak"]["categories"]
            # At the highest moment, in backward, all parameters and state are there.
            assert peak["parameter"] >= found["sums"]["parameter"]
            assert peak["optimizer state"] == found["sums"]["optimizer state"]


def test_compiled_by_default() -> None:
    """What Inductor makes of forward and backward is seen as what it replaces."""
    pytest.importorskip("triton")
    found = simulated.said(
        simulated.run(
            SUMS
            + """
torcharena.enable()
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU()).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
with torcharena.track(compiled, optimizer):
    for _ in range(3):
        compiled(torch.ones(16, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    compiled(torch.ones(16, 64, device="cuda")).sum().backward()
    print(looked_at(compiled, optimizer))
""",
            values=False,
        )
    )
    check(found)
    assert found["sums"]["gradient"] == found["sums"]["parameter"] > 0
    wanted = {"forward": 4, "backward": 4, "optimizer": 3, "zero_grad": 3}
    assert found["phases"] == wanted


def test_lightnings_trainer() -> None:
    pytest.importorskip("lightning")
    found = simulated.said(
        simulated.run(
            SUMS
            + """
import logging, tempfile
import lightning
from torcharena.integrations.lightning import ArenaCallback
from torcharena.loading import log
from torcharena.reports import reporting
torcharena.enable()
lines = []
class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
log.addHandler(Kept())
log.setLevel("INFO")

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, index):
        self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

class Looks(lightning.Callback):  # while its tensors are there
    def on_train_end(self, trainer, module):
        said.update(looked_at(module, trainer.optimizers[0]))

said = {}
rows = torch.utils.data.TensorDataset(torch.randn(16, 64))
loader = torch.utils.data.DataLoader(rows, batch_size=4)
with tempfile.TemporaryDirectory() as folder:
    path = folder + "/memory.json"
    def trainer_with(*callbacks):
        return lightning.Trainer(
            max_epochs=2, accelerator="cuda", devices=1, logger=False,
            precision="bf16-mixed", enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, callbacks=list(callbacks))
    trainer = trainer_with(Looks(), ArenaCallback(report=path))
    trainer.fit(Module(), loader, loader)
    said["saved"] = {r["path"]: r["entries"] for r in reporting.load(path).data["phases"]}
    class Large(Module):
        def training_step(self, batch, index):
            return self.net(batch[0].new_empty(1 << 40, 64)).sum()
    try:
        trainer_with(ArenaCallback(report=path)).fit(Large(), loader)
    except torch.OutOfMemoryError:
        said["oom"] = reporting.load(path).data["out_of_memory"]
    from torcharena.reports import tracking
    assert tracking.trackings() == []
said["steps"] = trainer.global_step
said["lines"] = [line for line in lines if line.startswith("epoch ")]
print(said)
""",
            values=False,
        )
    )
    check(found)
    assert found["steps"] == 8
    assert found["saved"]["backward"] == found["saved"]["optimizer"] == 8
    assert found["saved"]["forward"] == 8 <= found["saved"]["evaluation"]
    assert found["sums"]["optimizer state"] >= 2 * found["sums"]["parameter"] > 0
    assert len(found["lines"]) == 2
    assert found["oom"]["phase"] == "forward" and found["oom"]["requested"] >= 1 << 47
