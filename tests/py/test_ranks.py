"""Rehearsals of one rank without peers, and of several ranks that tell each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import simulated
from test_rehearse_runs import rehearse

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
                 str(29551 + eager), "program.py"],
    )  # fmt: skip
    assert code == 0 and said.count("came to the end") == 2, said
    assert sorted(p["rank"] for p in found["processes"]) == ["0", "1"]
