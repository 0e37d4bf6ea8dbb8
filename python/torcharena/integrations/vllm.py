"""vLLM's sleep mode over `torcharena.pool`.

    import torcharena.integrations.vllm as arena
    arena.install()                          # before the engine is made, in its process
    llm = LLM(model, enable_sleep_mode=True)
    llm.sleep(level=1)
    llm.wake_up()

vLLM's workers are processes of their own: TORCHARENA_VLLM=1 in their environment installs it in
each, through vLLM's plug-ins. What vLLM asks of its ``CuMemAllocator`` is what this answers: a pool
for each tag, ``weights`` and ``kv_cache`` as it calls them."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ..loading import core, log
from ..pools.pools import Pool, pool
from ..sizes import format_size

__all__ = ["ArenaAllocator", "install", "plugin"]

_GRAPHS = "cuda_graphs"
_DEFERRABLE = ("weights", "kv_cache")  # a wake-up by tags may leave these asleep alone
_MODULE = "vllm.device_allocator.cumem"


class ArenaAllocator:
    """What `CuMemAllocator.get_instance` returns."""

    default_tag = "default"

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def _pool(self, tag: str) -> Pool:
        known = self._pools.get(tag)
        if known is None:
            known = self._pools[tag] = pool(tag)
        return known

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What is allocated inside belongs to the tag, by default ``default``."""
        one = self._pool(tag or self.default_tag)
        with one:
            yield
        one.empty_cache()  # what loading freed would count as the model's

    @contextlib.contextmanager
    def use_cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The id of a pool that graphs are captured into, so that they sleep too."""
        yield self._pool(_GRAPHS).id

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """All of it leaves the device; what has one of these tags, by default ``default``, and
        captured graphs, with its contents. RuntimeError with the reason where it cannot."""
        kept = {
            _GRAPHS,
            *_tags(self.default_tag if offload_tags is None else offload_tags),
        }
        freed = copied = 0
        for tag, one in self._pools.items():
            gone = one.sleep(keep=tag in kept)
            freed += gone
            copied += gone if tag in kept else 0
        log.info(
            "sleep gave back %s, of which %s is on the host",
            format_size(freed),
            format_size(copied),
        )

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """What has one of these tags leaves the device, without its contents. One that sleeps
        with them already keeps them."""
        for tag in _tags(tags):
            if tag in self._pools:
                self._pools[tag].sleep(keep=False)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """What has one of these tags comes back, and what is neither weights nor cache; all for
        None. torch.OutOfMemoryError without room: that tag sleeps on."""
        for tag, one in self._pools.items():
            if tags is None or tag in tags or tag not in _DEFERRABLE:
                one.wake_up()

    def get_current_usage(self) -> int:
        """Bytes of segments of all pools, awake or asleep."""
        numbers = [one._number for one in self._pools.values() if one._number]
        return sum(int(core().region_get(number)["allocated"]) for number in numbers)


def _tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


_allocator = ArenaAllocator()


def install() -> ArenaAllocator:
    """Makes vLLM's sleep mode use the arena, in this process. Once is enough.

    ImportError without vLLM; RuntimeError where its own allocator is in use already, and where
    this vLLM has none of the interface."""
    module: Any = importlib.import_module(_MODULE)
    theirs = getattr(module, "CuMemAllocator", None)
    if theirs is None or not hasattr(theirs, "get_instance"):
        raise RuntimeError(f"this vLLM's {_MODULE} has no CuMemAllocator.get_instance")
    there = getattr(theirs, "instance", None)
    if there is _allocator:
        return _allocator
    if there is not None and there.get_current_usage():
        raise RuntimeError(
            "vLLM's own allocator holds memory already: install() comes before the engine"
        )
    theirs.instance = _allocator
    module.cumem_available = True
    return _allocator


def plugin() -> None:
    """vLLM calls it in each of its processes: installs it where TORCHARENA_VLLM is 1."""
    if os.environ.get("TORCHARENA_VLLM", "").lower() in ("1", "true", "yes", "on"):
        install()
