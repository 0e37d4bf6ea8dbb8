"""Memory that sleeps: servers and RL trainers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torcharena

from ..models import STEPS, Mlp, noise, update
from ..rows import row


@row("torcharena.pool: weights and a cache that sleep between steps", rehearsed=False)
def pool_sleeps() -> Iterator[torch.Tensor]:
    weights, cache = torcharena.pool("weights"), torcharena.pool("cache")
    with weights:
        model = Mlp().cuda()
    with cache:
        kept = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        kept.fill_(step)
        loss = update(model(noise(step)).square().mean(), optimizer)
        yield loss
        cache.sleep(keep=False)
        if not torcharena.enabled():  # the table's arena has no host memory
            weights.sleep()
            weights.wake_up()
        cache.wake_up()


def _adapter(region: Any, pause: Any, resume: Any) -> Iterator[torch.Tensor]:
    with region():
        model = Mlp().cuda()
    copies = {name: one.cpu() for name, one in model.state_dict().items()}
    for step in range(STEPS):
        with torch.no_grad():
            yield model(noise(step)).square().mean()
        before = torch.cuda.mem_get_info()[0]
        pause()
        assert torch.cuda.mem_get_info()[0] > before
        resume()
        model.load_state_dict(copies)


@row(
    "SGLang's TorchMemorySaverAdapter over torcharena's torch_memory_saver",
    needs=("sglang",),
    rehearsed=False,
)
def sglang_adapter() -> Iterator[torch.Tensor]:
    from torcharena.integrations import torch_memory_saver

    torch_memory_saver.install()
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

    adapter = TorchMemorySaverAdapter.create(enable=True)
    yield from _adapter(
        lambda: adapter.region("weights"),
        lambda: adapter.pause("weights"),
        lambda: adapter.resume("weights"),
    )


@row("vLLM's CuMemAllocator over torcharena", needs=("vllm",), rehearsed=False)
def vllm_sleep_mode() -> Iterator[torch.Tensor]:
    from torcharena.integrations import vllm

    vllm.install()
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    yield from _adapter(
        lambda: allocator.use_memory_pool(tag="weights"),
        lambda: allocator.sleep(offload_tags=()),
        allocator.wake_up,
    )
