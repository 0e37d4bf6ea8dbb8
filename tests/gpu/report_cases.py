"""A report's rows against the device's own numbers. Run by test_reports.py, a process each."""

from __future__ import annotations

import sys

import torch
import torcharena

ALLOWED = 64 << 20  # bytes


def report_against_nvml() -> None:
    """G13: rows add up to what NVML says is in use; categories to what the tensors take."""
    import pynvml

    torcharena.enable()
    layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with torcharena.track(model, optimizer):
        for rows in (512, 1024, 768):
            loss = model(torch.randn(rows, 2048, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        report = torcharena.report()
    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(0).uuid
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    rows_now = report.data["now"]["memory"]
    print(
        f"NVML used {memory.used}, reserved by the driver {memory.reserved}; {rows_now}"
    )
    assert abs(memory.used - rows_now["device in use"]) <= ALLOWED
    state = [t for s in optimizer.state.values() for t in s.values() if t.is_cuda]
    for moment in ("peak", "now"):
        categories = report.data[moment]["categories"]
        assert categories["parameter"] == sum(p.nbytes for p in model.parameters())
        assert categories["optimizer state"] == sum(t.nbytes for t in state)
    phases = {row["path"]: row["entries"] for row in report.data["phases"]}
    assert phases["forward"] == phases["backward"] == phases["optimizer"] == 3, phases
    print(report)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
