"""`find_batch_size` by real PyTorch on the simulated GPU, whose memory is a true limit: the
cases of tests/gpu, rehearsals that come first, two ranks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest
import simulated

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
long = pytest.mark.skipif(not os.environ.get("TA_TEST_LONG"), reason="a long test")
CASES = Path(__file__).resolve().parents[1] / "gpu" / "batch_cases.py"


@pytest.mark.parametrize(
    ("allocator", "names"),
    [
        ("arena", "s25 trains goes_on decorated sharded"),
        ("native", "s25 trains"),
        ("spill", "hostile spills"),
    ],
)
def test_cases(allocator: str, names: str) -> None:
    arguments = (str(CASES), allocator, *names.split())
    done = forking.run(*arguments, env=simulated.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


NARROWED = """
import os
import torch
import torcharena

def fn(batch_size, samples=8 << 20):
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    batch = torch.empty(batch_size * samples, dtype=torch.uint8, device="cuda")

def uses(batch_size):
    return tensor * batch_size

if __name__ == "__main__":
    del os.environ["TORCHARENA_REHEARSAL"]  # as if this were a real card
    found = torcharena.find_batch_size(fn, max=1 << 16)
    tensor = torch.zeros(1, device="cuda")
    other = torcharena.find_batch_size(uses, max=16)
    print({"found": int(found), "why": found.not_narrowed, "table": found.table(),
           "rehearsed": [one.size for one in found.tried if one.rehearsed],
           "real": [one.size for one in found.tried if not one.rehearsed],
           "why not": other.not_narrowed})
"""


@long
def test_rehearsals_come_first_where_they_can_be_made(tmp_path: Path) -> None:
    program = tmp_path / "script.py"
    program.write_text(NARROWED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env=simulated.environment("4GiB"),
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = simulated.said(done)
    assert found["rehearsed"] == [1, 16] and not found["why"], found
    assert len(found["real"]) <= 4 and min(found["real"]) > 300, found
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
dist.barrier()
dist.destroy_process_group()
"""


@long
def test_ranks_agree() -> None:
    port = simulated.port()
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
    assert 200 <= first["said"][0][0] <= 260, first  # 300 MiB, and cuBLAS
    assert second["error"] == "KeyError: 'of rank 1'"
    assert "batch size 1 failed on rank 1: KeyError: 'of rank 1'" in first["error"]
