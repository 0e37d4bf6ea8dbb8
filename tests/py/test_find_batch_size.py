"""`find_batch_size` by real PyTorch on the simulated GPU, whose memory is a true limit: S25,
the cases of tests/gpu, rehearsals that come first, two ranks."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import simulated

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
CASES = Path(__file__).resolve().parents[1] / "gpu" / "batch_cases.py"

# A sample takes 8 MiB, so that 100 fit. `seen` is nothing that the finder puts back.
ORACLE = """
import queue, warnings
import torcharena
SAMPLE, ROOM = 8 << 20, 800 << 20
if ALLOCATOR == "arena":
    torcharena.enable(limit=ROOM)
    torch.cuda.init()
else:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
model = torch.nn.Linear(4, 4)
called, seen, said = [], queue.SimpleQueue(), []

def take(size):
    called.append(size)
    seen.put(size)
    return torch.empty(int(size * SAMPLE), dtype=torch.uint8, device="cuda")

def evaluate(size):
    model.eval()
    with torch.no_grad():
        take(size)

def find(fn, *args, **named):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = torcharena.find_batch_size(fn, *args, **named)
    left_behind()
    sizes = [seen.get() for _ in range(seen.qsize())]
    said.append({"found": int(found), "first": sizes[0], "sizes": sizes,
                 "told": [str(one.message) for one in told], "in": found.failed_in})
    return found

def left_behind():
    assert not called and model.training and torch.is_grad_enabled()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()

def raised(fn, **named):
    try:
        torcharena.find_batch_size(fn, **named)
    except Exception as error:
        error.__traceback__ = None  # whose frames hold what they held
        left_behind()
        while seen.qsize(): seen.get()
        return error
"""
S25 = """
find(take, start=128)
find(take, start=8, min=4, max=64)
both = find(lambda size: (take(size), evaluate(2 * size))[0], start=8)
with_own = find(lambda size: take(size), start=8, evaluate=lambda size: evaluate(2 * size))
slack = find(lambda size: take(size * 0.01), start=4, multiple=8, max=1000)

class Mine(Exception):
    pass

mine = Mine("of the user's")
def fails(size):
    held = take(size)
    if size > 40:
        raise mine
wrong = raised(fails, start=8)
assert wrong is mine and wrong.__cause__ is None, wrong
none = raised(take, start=256, min=120, max=512)
assert type(none) is torch.OutOfMemoryError, none

def library(size):  # what cuBLAS says where it finds no memory
    try:
        return take(size)
    except torch.OutOfMemoryError:
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        ) from None
find(library, start=64)

def skips(size):
    try:
        take(size)
    except torch.OutOfMemoryError:
        pass
skipped = find(skips, start=64, max=128)
print({"said": said, "none": str(none), "table": both.table(),
       "evaluation": int(with_own.evaluation), "skipped": skipped.table(),
       "slack": int(slack), "why": both.not_narrowed})
"""


@pytest.mark.parametrize("allocator", ["arena", "native"])
def test_s25(allocator: str) -> None:
    code = f"ALLOCATOR = {allocator!r}\n" + ORACLE + S25
    found: dict[str, Any] = simulated.said(simulated.run(code, values=False))
    first, bounds, both, own, slack, library, skipped = found["said"]
    assert 95 <= first["found"] <= 100 and first["first"] == 128
    assert first["in"] == "training" and not first["told"]
    assert len(first["sizes"]) <= 10
    assert first["sizes"][-1] == first["found"] or first["found"] in first["sizes"]
    assert bounds["found"] == 64 and bounds["in"] == ""
    assert all(4 <= size <= 64 for size in bounds["sizes"])
    assert 32 <= both["found"] <= 33 and both["in"] == "evaluation"
    assert len(both["told"]) == 1 and "not its training" in both["told"][0]
    assert "evaluate=function" in found["table"]
    assert 95 <= own["found"] <= 100 and 48 <= found["evaluation"] <= 50
    assert not own["told"]
    assert slack["found"] == 1000 and all(size % 8 == 0 for size in slack["sizes"])
    assert 95 <= library["found"] <= 100
    assert skipped["found"] == 128 and "went on" in found["skipped"]
    assert "does not run even with a batch size of 120 (training): CUDA out of" in found["none"]
    assert found["why"] == "this is a rehearsal itself"


@pytest.mark.parametrize(
    ("allocator", "names"), [("arena", "trains goes_on decorated"), ("native", "trains")]
)
def test_cases(allocator: str, names: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CASES), allocator, *names.split()],
        env=simulated.environment(),
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


NARROWED = """
import os, sys, types
import torcharena
del os.environ["TORCHARENA_REHEARSAL"]  # as if this were a real card

def fn(batch_size, samples=8 << 20):
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    batch = torch.empty(batch_size * samples, dtype=torch.uint8, device="cuda")
fn.__globals__["torch"] = torch

tensor = torch.zeros(1, device="cuda")
def uses(batch_size):
    return tensor * batch_size

torcharena.find_batch_size(uses, max=16)
found = torcharena.find_batch_size(fn, max=1 << 16)
print({"found": int(found), "why": found.not_narrowed, "rehearsed":
       [one.size for one in found.tried if one.rehearsed], "real":
       [one.size for one in found.tried if not one.rehearsed], "table": found.table(),
       "why not": torcharena.find_batch_size(uses, max=16).not_narrowed})
"""


def test_rehearsals_come_first_where_they_can_be_made() -> None:
    found = simulated.said(simulated.run(NARROWED, gpu="4GiB", values=False))
    assert found["rehearsed"] == [1, 16] and not found["why"], found
    assert len(found["real"]) <= 4, found
    assert min(found["real"]) > 300
    assert ", rehearsed" in found["table"]
    assert "live on the GPU" in found["why not"]


RANKS = """
import os, queue
import torcharena
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torcharena.enable(limit=("400MiB", "300MiB")[rank])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())

def train(size):
    held = torch.empty(size << 20, dtype=torch.uint8, device="cuda")
    model(torch.ones(4, 4, device="cuda")).sum().backward()

def fails(size):
    if rank == 1:
        raise KeyError("of rank 1")

found = torcharena.find_batch_size(train, start=8, max=2048)
said = [None, None]
dist.all_gather_object(said, (int(found), [(one.size, one.ran) for one in found.tried]))
assert model.require_backward_grad_sync and model.require_forward_param_sync
model(torch.ones(4, 4, device="cuda")).sum().backward()
try:
    torcharena.find_batch_size(fails)
except Exception as error:
    text = f"{type(error).__name__}: {error}"
print({"said": said, "error": text})
import time
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_agree() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = simulated.environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "import torch\n" + RANKS],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [one.communicate(timeout=simulated.TIMEOUT) for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], outputs
    first, second = (ast.literal_eval(out.splitlines()[-1]) for out, _ in outputs)
    assert first["said"] == second["said"] and first["said"][0] == first["said"][1]
    assert 280 <= first["said"][0][0] <= 300, first
    assert second["error"] == "KeyError: 'of rank 1'"
    assert "batch size 1 failed on rank 1: KeyError: 'of rank 1'" in first["error"]
