"""Profilers and debuggers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ..models import STEPS, Mlp, train
from ..rows import row


@row("torch.profiler with profile_memory", rehearsed=False)
def profiler_memory() -> Iterator[torch.Tensor]:
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    losses = []
    with profile(activities=activities, profile_memory=True, record_shapes=True) as found:
        for loss in train(Mlp().cuda(), steps=STEPS):
            losses.append(loss)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [e for e in events if e.get("name") == "[memory]"]
    on_gpu = [e for e in memory if e["args"].get("Device Type") == 1]
    assert on_gpu, "the trace has no memory events of the GPU"
    assert any(e["args"]["Bytes"] < 0 for e in on_gpu)
    yield from losses


@row("torch.cuda.memory._record_memory_history and its snapshot")
def memory_history() -> Iterator[torch.Tensor]:
    torch.cuda.memory._record_memory_history(max_entries=10000)
    yield from train(Mlp().cuda())
    found = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert found["segments"] and found["device_traces"][0]


@row("torch.cuda.memory_summary, memory_stats and peaks", compare=False)
def memory_functions() -> Iterator[float]:
    x = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() == 4 << 20
    torch.cuda.reset_peak_memory_stats()
    y = torch.empty(1 << 20, device="cuda")
    del y
    assert torch.cuda.max_memory_allocated() == 8 << 20
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert torch.cuda.mem_get_info()[0] > 0
    yield float(x.numel())
