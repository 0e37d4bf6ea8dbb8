"""A user's program with every public name, as mypy sees it: `make lint` runs mypy over it,
and test_packaging.py finds that no name is missing. It is not run."""

from __future__ import annotations

from typing import Any

import torcharena
from torcharena import (
    AutoOffload,
    BatchSize,
    Limit,
    Limits,
    Pool,
    Recording,
    Report,
    Timeline,
    Tracking,
    Watch,
)


def settings() -> None:
    torcharena.enable(
        limit="16GiB",
        fallback=False,
        strict=True,
        record="x.trace.xz",
        page="4MiB",
        slack=1.02,
        spill="64GiB",
    )
    on: bool = torcharena.enabled()
    torcharena.set_limit("80%", device=0)
    cap: int | None = torcharena.limit()
    every: Limits = torcharena.limits()
    one: Limit = every[0]
    free, total = torcharena.device_memory()
    numbers: dict[str, int | float] = torcharena.memory_stats()
    text: str = torcharena.memory_summary()
    version: str = torcharena.__version__
    fine: bool = torcharena.test(verbose=False)
    print(on, cap, one, free + total, numbers, text, version, fine)


def spilling(model: Any, optimizer: Any) -> None:
    with torcharena.region("weights"):
        pass
    memory: Pool = torcharena.pool("cache", limit="4GiB")
    with memory:
        pass
    torcharena.sleep("weights")
    torcharena.wake_up("weights")
    torcharena.step()
    given: int = torcharena.empty_cache(host=True)
    auto: AutoOffload = torcharena.auto_offload(model, optimizer)
    auto.stop()
    torcharena.offload_optimizer(optimizer)
    torcharena.onload_optimizer(optimizer)
    with torcharena.offload_activations():
        pass
    print(given)


def telling(model: Any, optimizer: Any) -> None:
    tracked: Tracking = torcharena.track(model, optimizer)
    with torcharena.phase("forward"), torcharena.stacks():
        torcharena.mark("here")
    told: Report = torcharena.report()
    times: Timeline = torcharena.timeline()
    watching: Watch = torcharena.watch()
    torcharena.snapshot("x.pickle")
    torcharena.on_oom("oom.html")
    let_go: int = torcharena.free_exceptions()
    held = torcharena.held_by_exceptions()
    bar: dict[str, str] = torcharena.tqdm_postfix()
    recording: Recording = torcharena.record("y.trace.xz")
    print(tracked, told, times, watching, let_go, held, bar, recording)


def lending() -> None:
    for_rmm = torcharena.rmm_resource(0)
    print(torcharena.cupy_allocator, for_rmm)


def trying() -> None:
    def train(batch_size: int) -> None:
        print(batch_size)

    size: BatchSize = torcharena.find_batch_size(train, max=64)
    rehearsed = torcharena.rehearse(train, 8, gpu="16GiB")
    inside: bool = torcharena.is_rehearsal()
    print(size + 1, rehearsed, inside)
