"""One rank of two under `fully_shard`: lengths that differ from step to step and from rank to
rank, inputs copied ahead on a stream of their own, an average kept on another:

    torchrun --nproc-per-node 2 shard_pair.py"""

from __future__ import annotations

import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
import truth  # noqa: F401
from parts import Gpt
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WORDS, LONGEST, BATCH, STEPS = 32000, 1536, 6, 10


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = Gpt(WORDS, LONGEST, 1536, 12, 16).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    draw = random.Random(40 + rank)
    ahead, beside = torch.cuda.Stream(), torch.cuda.Stream()

    def load() -> torch.Tensor:
        shape = (BATCH, draw.randrange(128, LONGEST) + 1)
        with torch.cuda.stream(ahead):
            return (
                torch.randint(0, WORDS, shape).pin_memory().to(device, non_blocking=True)
            )

    average = torch.zeros((), device=device)
    coming = load()
    for step in range(STEPS):
        main_stream = torch.cuda.current_stream()
        main_stream.wait_stream(ahead)
        tokens = coming
        tokens.record_stream(main_stream)
        coming = load()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        beside.wait_stream(main_stream)
        with torch.cuda.stream(beside):
            average.lerp_(loss.detach(), 0.1)
            loss.record_stream(beside)
        print(f"step {step}: {tokens.shape[1]} tokens, {loss.item():.3f}", flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
