"""Programs for test_ranks.py: what two ranks do in each of torch's parallel ways, what the
ranks of one node hear of a job of four nodes, and one rank that fails."""

# Each way trains twice; of each the peak is printed, bytes.
WAYS = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

local, rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
device = torch.device("cuda", local)
torch.cuda.set_device(device)
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world,))
blocks = lambda: nn.Sequential(Block(), Block()).to(device)
def sharded():
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
def fsdp():
    return FullyShardedDataParallel(nn.Sequential(Block(), Block()), device_id=local,
        auto_wrap_policy=ModuleWrapPolicy({Block}), sync_module_states=True)
def tensors():
    model = blocks()
    for block in model:
        parallelize_module(
            block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model
def pipeline(kind):
    def make():
        model = blocks()
        made, given = (torch.zeros(8, 128, device="meta", requires_grad=grad)
            for grad in (True, rank > 0))
        stage = PipelineStage(model, rank, world, device, input_args=given, output_args=made)
        model.schedule = kind(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        return model
    return make
def train(name, make):
    model = make()
    rows = 16 * (1 + local) if name in ("ddp", "fully_shard", "fsdp") else 16
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(rows, 128, device=device)
        if hasattr(model, "schedule"):
            target = {"target": x} if rank == world - 1 else {}
            model.schedule.step(*([x] if rank == 0 else []), **target)
        else:
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()
for name, make in (
    ("ddp", lambda: nn.parallel.DistributedDataParallel(blocks(), device_ids=[local])),
    ("fully_shard", sharded), ("fsdp", fsdp), ("tensors", tensors),
    ("gpipe", pipeline(ScheduleGPipe)), ("1f1b", pipeline(Schedule1F1B)),
):
    torch.cuda.reset_peak_memory_stats()
    os.write(1, f"peak {rank} {name} {train(name, make)};\\n".encode())
dist.destroy_process_group()
"""

# Rank 0 and 1 of 8, on nodes of two.
NODE = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device if EAGER else None)
mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("data", "model"))
def of(*values, dtype=torch.long):
    return torch.tensor(values, device=device, dtype=dtype)
def summed(value, group=None, op=dist.ReduceOp.SUM):
    dist.all_reduce(value, group=group, op=op)
    return value.tolist()
# Nodes are alike: 4 times 1 + 2.
assert summed(of(1 + rank)) == [12]
assert summed(of(1 + rank), op=dist.ReduceOp.PRODUCT) == [16]
assert summed(of(1 + rank), op=dist.ReduceOp.MAX) == [2]
mean = of(1 + rank, dtype=torch.float32)
assert summed(mean, op=dist.ReduceOp.AVG) == [1.5]
assert summed(of(1 + rank), mesh["model"].get_group()) == [3]
assert summed(of(1 + rank), mesh["data"].get_group()) == [4 * (1 + rank)]
odd = dist.new_group([1, 2, 3])  # of whom rank 1 alone is here
if rank == 1:
    assert summed(of(5), odd) == [15]
everyone = torch.empty(world, dtype=torch.long, device=device)
dist.all_gather_into_tensor(everyone, of(rank))
assert everyone.tolist() == [0, 1] * 4, everyone
part = of(0)
dist.reduce_scatter_tensor(part, torch.arange(world, device=device) * (1 + rank))
assert part.tolist() == [12 * rank], part
for source, heard in ((1, 1), (6, 0), (7, 1)):
    value = of(rank)
    dist.broadcast(value, src=source)
    assert value.tolist() == [heard], (source, value)
objects = [None] * world
dist.all_gather_object(objects, "x" * (1 + rank))
assert objects == ["x", "xx"] * 4, objects
word = [f"of {rank}"]
dist.broadcast_object_list(word, src=1)
assert word == ["of 1"]
back = torch.empty(world, dtype=torch.long, device=device)
dist.all_to_all_single(back, torch.arange(world, device=device) + 10 * rank)
assert back[:2].tolist() == [rank, 10 + rank], back
theirs = of(0)
if rank == 0:
    dist.send(of(7), dst=1)
else:
    dist.recv(theirs, src=0)
    assert theirs.item() == 7
dist.barrier()
dist.destroy_process_group()
print("came to the end")
"""

FAILS = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
kept = torch.ones((1 + rank) << 20, device="cuda")
number = torch.ones(1, dtype=torch.long, device="cuda")
dist.all_reduce(number)
if rank == 1:
    raise ValueError("rank 1 does not want to")
dist.all_reduce(number)  # to which rank 1 does not come
time.sleep(100)
"""
