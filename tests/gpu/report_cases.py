"""A report's rows against the device's own numbers. Run by test_reports.py, a process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torcharena

ALLOWED = 64 << 20  # bytes
HELD = 1 << 30  # bytes that another process takes
# Whose the device's bytes are, in a report; together they are all that is in use.
OURS, CONTEXT, OTHERS, NOBODYS = (
    "reserved",
    "context and libraries",
    "other processes",
    "unattributed",
)


def used() -> int:
    """Bytes of the device in use, by NVML."""
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(0).uuid
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return int(memory.used)


def checked_rows() -> dict[str, Any]:
    """A report's rows of the device, which sum to NVML's bytes within 64 MiB."""
    before = used()
    rows: dict[str, Any] = torcharena.report().data["now"]["memory"]
    after = used()
    told = sum(rows.get(name) or 0 for name in (OURS, CONTEXT, OTHERS, NOBODYS))
    print(f"NVML used {before} and {after}, the rows' sum {told}: {rows}")
    # Between the two looks of NVML others may have taken or given back.
    assert min(before, after) - ALLOWED <= told <= max(before, after) + ALLOWED
    assert told == rows["device in use"]
    assert all((rows.get(name) or 0) >= 0 for name in (OURS, CONTEXT, OTHERS, NOBODYS))
    parts = list(rows.values())[: list(rows).index(OURS)]
    assert sum(parts) == rows[OURS], rows
    return rows


def report_against_nvml() -> None:
    """G13: rows add up to what NVML says is in use; categories to what the tensors take."""
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
    checked_rows()
    state = [t for s in optimizer.state.values() for t in s.values() if t.is_cuda]
    for moment in ("peak", "now"):
        categories = report.data[moment]["categories"]
        assert categories["parameter"] == sum(p.nbytes for p in model.parameters())
        assert categories["optimizer state"] == sum(t.nbytes for t in state)
    phases = {row["path"]: row["entries"] for row in report.data["phases"]}
    assert phases["forward"] == phases["backward"] == phases["optimizer"] == 3, phases
    print(report)


def hold() -> None:
    """The other process: says when it holds the bytes, and lets go when its input ends."""
    held = torch.empty(HELD, dtype=torch.uint8, device="cuda")
    print(held.numel(), flush=True)
    sys.stdin.read()
    os._exit(0)


def beside_another_process() -> None:
    """What another process takes is a row of its own, or, where processes are hidden, part of
    ``unattributed``; never ours. The rows add up before, meanwhile and afterwards."""
    torcharena.enable()
    kept = torch.empty(HELD // 4, dtype=torch.uint8, device="cuda")
    before = checked_rows()
    command = [sys.executable, __file__, "hold"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert int(other.stdout.readline()) == HELD
        meanwhile = checked_rows()
        other.stdin.close()
        other.wait(60)
    for _ in range(50):  # the driver takes back what the process had a little later
        afterwards = checked_rows()
        if theirs(afterwards) < theirs(before) + HELD:
            break
        time.sleep(0.1)
    assert theirs(meanwhile) >= theirs(before) + HELD, (before, meanwhile)
    assert theirs(afterwards) < theirs(before) + HELD, (before, afterwards)
    for rows in (before, meanwhile, afterwards):
        assert rows[OURS] == before[OURS] >= kept.numel()
        assert abs((rows.get(CONTEXT) or 0) - (before.get(CONTEXT) or 0)) <= ALLOWED


def theirs(rows: dict[str, Any]) -> int:
    return (rows.get(OTHERS) or 0) + (rows.get(NOBODYS) or 0)


def in_a_pid_namespace() -> None:
    """As in a container: this process has another number to NVML than to itself. Nothing that
    cannot be known is believed, and the rows add up all the same."""
    torcharena.enable()
    kept = torch.empty(HELD // 4, dtype=torch.uint8, device="cuda")
    rows = checked_rows()
    assert kept.is_cuda and rows["device in use"] > rows[OURS]
    if CONTEXT not in rows:
        assert rows[NOBODYS] == rows["device in use"] - rows[OURS]
    print(json.dumps(rows))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
