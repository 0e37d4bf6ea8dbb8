"""Training on two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..models import STEPS, Mlp, gpt, noise, train, update
from ..rows import row


@row("DataParallel", gpus=2)
def data_parallel() -> Iterator[torch.Tensor]:
    model = nn.DataParallel(Mlp().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step, 64 + 32 * (step % 3))
        loss = model(x).square().mean()
        yield update(loss, optimizer)


@row("DistributedDataParallel", gpus=2, processes=2, needs=("transformers",))
def distributed_data_parallel() -> Iterator[torch.Tensor]:
    model = nn.parallel.DistributedDataParallel(gpt().cuda())
    yield from train(model, torch.optim.AdamW(model.parameters(), 1e-3))


def _sharded(**options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = gpt()
    if "offload_policy" not in options:
        model = model.cuda()
    for block in model.transformer.h:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


@row("fully_shard", gpus=2, processes=2, needs=("transformers",))
def fully_sharded() -> Iterator[torch.Tensor]:
    yield from train(_sharded())


@row("fully_shard with CPU offload", gpus=2, processes=2, needs=("transformers",))
def fully_sharded_offload() -> Iterator[torch.Tensor]:
    from torch.distributed.fsdp import CPUOffloadPolicy

    dist.new_group(backend="gloo")  # the norms of offloaded gradients go that way
    yield from train(_sharded(offload_policy=CPUOffloadPolicy()))


@row("FullyShardedDataParallel (the first)", gpus=2, processes=2)
def fsdp_first() -> Iterator[torch.Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Mlp().cuda(), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step)
        loss = model(x).square().mean()
        yield update(loss, optimizer)


@row("tensor parallel", gpus=2, processes=2)
def tensor_parallel() -> Iterator[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (2,))
    model = Mlp().cuda()
    for block in model.blocks:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    yield from train(model)


@row("pipeline (torch.distributed.pipelining)", gpus=2, processes=2, rehearsed=False)
def pipeline() -> Iterator[torch.Tensor]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    module = Mlp(layers=2).cuda()
    stage = PipelineStage(module, rank, 2, torch.device("cuda", rank))
    schedule = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    for step in range(STEPS):
        x = noise(step)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=torch.zeros_like(x), losses=losses)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = torch.stack(losses).mean() if losses else torch.zeros((), device="cuda")
        dist.broadcast(mean, 1)
        yield mean.detach()


@row("a model split by hand over two devices", gpus=2)
def split_by_hand() -> Iterator[torch.Tensor]:
    first, second = Mlp(layers=2).to("cuda:0"), Mlp(layers=2).to("cuda:1")
    both = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.AdamW(both, 1e-3)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(64 + 32 * (step % 3), 512, generator=draw).to("cuda:0")
        loss = second(first(x).to("cuda:1", non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize("cuda:1")
        yield loss.detach()
