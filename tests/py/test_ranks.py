"""Rehearsals of one rank without peers, and of several ranks that tell each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import simulated
from ranks_programs import FAILS, NODE, WAYS
from test_rehearse_runs import rehearse
from torcharena.rehearsal import cards, command, launch, ranks, report, verdict

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())

ALONE = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
world, rank = 64, 10
store = dist.TCPStore("127.0.0.1", 29999, world, rank == 0)
mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("data", "model"))
assert (dist.get_world_size(), dist.get_rank()) == (world, rank)
counts = torch.full((2,), 3, device="cuda")
dist.all_reduce(counts)
assert counts.tolist() == [3 * world] * 2, counts
everyone = [None] * world
dist.all_gather_object(everyone, {"rank": rank})
assert everyone == [{"rank": rank}] * world
mine = ["mine"]
dist.broadcast_object_list(mine, src=0)
assert mine == ["mine"]
sent = torch.arange(world, device="cuda")
back = torch.empty_like(sent)
dist.all_to_all_single(back, sent)
assert back.tolist() == sent.tolist()
evens = dist.new_group(list(range(0, world, 2)), backend="gloo")
dist.all_reduce(torch.ones(3), group=evens)
dist.monitored_barrier(evens)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(2)]).cuda()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print("came to the end")
"""

TOLD = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device if EAGER else None)
def of(*values, dtype=torch.long):
    return torch.tensor(values, device=device, dtype=dtype)
total = of(rank + 1, -10 * (rank + 1))
dist.all_reduce(total)
assert total.tolist() == [3, -30], total
for dtype in (torch.float32, torch.bfloat16, torch.half, torch.double, torch.int32):
    high, mean = of(rank + 1, -2, dtype=dtype), of(rank + 1, 4, dtype=dtype)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    assert high.tolist() == [2, -2], (dtype, high)
    if dtype.is_floating_point:
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        assert mean.tolist() == [1.5, 4], (dtype, mean)
everyone = [None, None]
dist.all_gather_object(everyone, "x" * (1 + 5 * rank))
assert [len(e) for e in everyone] == [1, 6]
word = [rank]
dist.broadcast_object_list(word, src=1)
assert word == [1]
sent = torch.arange(4, device=device) + 10 * rank
back = torch.empty_like(sent)
dist.all_to_all_single(back, sent)
assert back.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank], back
part = of(0, 0)
dist.reduce_scatter_tensor(part, sent)
assert part.tolist() == [10 + 4 * rank, 12 + 4 * rank], part
theirs = of(0)
batch = [dist.P2POp(dist.isend, of(5 + rank), 1 - rank),
         dist.P2POp(dist.irecv, theirs, 1 - rank)]
for work in dist.batch_isend_irecv(batch):
    work.wait()
assert theirs.tolist() == [6 - rank]
alone, both = dist.new_group([1]), dist.new_group([0, 1])
number = of(rank)
dist.all_reduce(number, group=both)
assert number.item() == 1
dist.all_reduce(torch.ones(1 << 20, device=device))
dist.barrier()
dist.destroy_process_group()
print("came to the end")
"""


def test_a_rank_alone(tmp_path: Path) -> None:
    options = ("--world-size", "64", "--rank", "10", "--allocator", "native")
    code, found, said = rehearse(tmp_path, ALONE, *options, "--gpu", "16GiB")
    assert code == 0 and "came to the end" in said, said
    assert found["steps"] == 2


def test_objects_from_a_rank_that_is_not_there(tmp_path: Path) -> None:
    script = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "dist.recv_object_list([None], src=1)\n"
    )
    options = ("--world-size", "4", "--rank", "2", "--allocator", "native")
    code, _, said = rehearse(tmp_path, script, *options)
    assert code == 1 and "rank 2 receives objects from rank 1" in said, said


@pytest.mark.parametrize("eager", [False, True])
def test_ranks_tell_each_other(tmp_path: Path, eager: bool) -> None:
    code, found, said = rehearse(
        tmp_path, TOLD.replace("EAGER", str(eager)), "--gpus", "2", "--allocator", "native",
        program=["torchrun", "--nproc-per-node", "2", "--master-port",
                 simulated.port(), "program.py"],
    )  # fmt: skip
    assert code == 0 and said.count("came to the end") == 2, said
    assert sorted(p["rank"] for p in found["processes"]) == ["0", "1"]


# Peaks that do not hang on when NCCL's watchdog looks.
SURE = ("fully_shard", "fsdp", "tensors", "gpipe", "1f1b")


def peaks(said: str) -> dict[tuple[int, str], int]:
    """By rank and way, from the programs' output."""
    rows = re.findall(r"peak (\d) (\w+) (\d+);", said)
    return {(int(rank), way): int(size) for rank, way, size in rows}


def test_every_way_with_and_without_peers(tmp_path: Path) -> None:
    options = ("--gpus", "2", "--allocator", "native")
    code, found, said = rehearse(tmp_path, WAYS, *options, "--ranks", "all")
    assert code == 0, said
    together = peaks(said)
    assert len(together) == 12
    rows = found["ranks"]
    assert [(row["rank"], row["device"]) for row in rows] == [(0, 0), (1, 1)]
    assert rows[1]["peak_requested"] > rows[0]["peak_requested"] > 0
    assert rows[1]["peak_requested"] == found["peak_requested"]
    options = (*options, "--world-size", "2", "--rank", "0")
    code, found, said = rehearse(tmp_path, WAYS, *options)
    assert code == 0 and found["ranks"] == [], said
    alone = peaks(said)
    # To a collective's buffer or two: a thread of PyTorch's lets go of them now and then.
    for way in SURE:
        assert alone[0, way] == pytest.approx(together[0, way], abs=3 << 19), way


@pytest.mark.parametrize("eager", [False, True])
def test_a_node_of_a_larger_job(tmp_path: Path, eager: bool) -> None:
    options = ("--gpus", "2", "--world-size", "8", "--ranks", "all")
    script = NODE.replace("EAGER", str(eager))
    code, found, said = rehearse(tmp_path, script, *options, "--allocator", "native")
    assert code == 0 and said.count("came to the end") == 2, said
    assert [row["rank"] for row in found["ranks"]] == [0, 1]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    options = ("--gpus", "2", "--ranks", "all", "--allocator", "native")
    code, found, said = rehearse(tmp_path, FAILS, *options)
    assert code == 1 and found["exit_code"] == 1, said
    assert found["error"] == "ValueError: rank 1 does not want to"
    ended = {p["rank"]: p["ended"] for p in found["processes"]}
    assert ended == {"0": "stopped", "1": "itself"} and found["seconds"] < 90
    assert "rank 1 of 2 has ended before rank 0" in said


def test_a_table_of_the_ranks() -> None:
    def process(rank: int, requested: int, reserved: int) -> dict[str, Any]:
        device = {"device": rank, "peak_requested": requested, "peak_reserved": reserved,
                  "peak_allocated": requested, "ooms": 0, "retries": 0}  # fmt: skip
        return {"rank": str(rank), "devices": [device], "steps": 3, "ended": "itself",
                "oom": None, "seen": [], "arena": False}  # fmt: skip

    card = cards.find("16GiB")
    run = launch.Run("native", card, None)
    run.processes = [process(1, 5 << 30, 6 << 30), process(0, 4 << 30, 7 << 30)]
    outcome = report.Outcome(run, verdict.judge(run, run.peak_reserved))
    told = report.Report(["train.py"], card, 2, outcomes=[outcome])
    assert run.peak_requested == 5 << 30 and run.peak_reserved == 7 << 30
    lines = told.text(100).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Rank 1 asks for"))
    assert "5 GiB" in lines[start]
    table = [line.split() for line in lines[start:] if line.startswith("  ")]
    assert table[-3:] == [
        ["rank", "device", "asked", "for", "steps", "native"],
        ["0", "0", "4", "GiB", "3", "7", "GiB"],
        ["1", "1", "5", "GiB", "3", "6", "GiB"],
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--ranks all", "say how many GPUs there are (--gpus N, gpus=N)"),
        ("--ranks all --world-size 4", "say how many GPUs there are (--gpus N, gpus=N)"),
        ("--ranks all --gpus 4 --world-size 6", "no whole number of nodes of 4 GPUs"),
        ("--ranks all --gpus 4 --world-size 2", "no whole number of nodes of 4 GPUs"),
        ("--ranks all --gpus 2 --world-size 4 --rank 1", "exclude each other"),
        ("--rank 1", "world_size=N"),
        ("--rank 4 --world-size 4", "none of a world of 4"),
    ],
)
def test_ranks_that_make_no_sense(
    options: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert command.main([*options.split(), str(script)]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("options", ["--ranks all --gpus 2", "--world-size 8"])
def test_a_launcher_starts_the_ranks_itself(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torchrun = ["-m", "torch.distributed.run", "train.py"]
    assert command.main([*options.split(), *torchrun]) == 2
    assert "starts the ranks itself" in capsys.readouterr().err


def test_who_stands_for_whom() -> None:
    assert ranks.stand_ins(range(8), 2) == [0, 1, 0, 1, 0, 1, 0, 1]
    assert ranks.stand_ins([0, 1], 2) == [0, 1]
    assert ranks.stand_ins([1, 3, 5, 7], 2) is None
    assert ranks.stand_ins([0, 2, 5], 4) == [0, 1, 0]
    assert ranks.stand_ins([2, 3], 2) is None
