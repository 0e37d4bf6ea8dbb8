"""The interface of the package torch_memory_saver, over `torcharena.pool`.

    from torcharena.integrations.torch_memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="kv_cache"):
        cache = make_cache()
    torch_memory_saver.pause("kv_cache")
    torch_memory_saver.resume("kv_cache")

`install` puts this module where ``import torch_memory_saver`` finds it, for programs that say
that themselves: SGLang's memory saver, verl, slime. It needs no LD_PRELOAD. Tags are pools; those
of regions with ``enable_cpu_backup`` keep their contents, in pools ``TAG (kept)``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..loading import core, warn
from ..pools.pools import Pool, outside, pool

if TYPE_CHECKING:
    import torch

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

_DEFAULT = "default"
_YES = ("1", "true", "yes")


class TorchMemorySaver:
    """What ``torch_memory_saver.torch_memory_saver`` is: regions that pause and resume."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, bool], Pool] = {}
        self._hook_mode = "torch"
        self._retain = os.environ.get("TMS_RETAIN_CPU_BACKUP", "").lower() in _YES

    def _pool(self, tag: str, kept: bool) -> Pool:
        known = self._pools.get((tag, kept))
        if known is None:
            # What is kept can be read where it is, by `get_cpu_backup`.
            known = pool(f"{tag} (kept)", touch="host") if kept else pool(tag)
            self._pools[tag, kept] = known
        return known

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """What is allocated inside, by this thread, pauses and resumes; ``enable_cpu_backup``
        keeps its contents, in pinned memory. RuntimeError for a disk as their place."""
        _judge_backend(cpu_backup_backend, enable_cpu_backup)
        if enable_disk_backup:
            raise RuntimeError(
                "torcharena keeps what sleeps in pinned host memory: leave out "
                "enable_disk_backup"
            )
        with self._pool(tag, enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """`torch.cuda.graph` whose own memory pauses and resumes too: the tag's pool is that of
        the graph. Where the arena is the process's allocator what is captured stays, with its
        contents: RuntimeError for a ``tag`` or backup that asks otherwise, and ``pool`` is
        passed on."""
        import torch

        from ..state import enabled

        _judge_backend(cpu_backup_backend, enable_cpu_backup)
        if enabled():
            _judge_captured(tag, enable_cpu_backup)
            taken = pool
        else:
            taken = self._pool(tag, enable_cpu_backup).id
        with torch.cuda.graph(
            cuda_graph, pool=taken, stream=stream, capture_error_mode=capture_error_mode
        ):
            yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Inside a region: what is allocated here is ordinary memory."""
        with outside():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the device memory of this tag's regions back, of all for None. RuntimeError with
        the reason where they cannot sleep."""
        for kept, one in self._chosen(tag):
            one.sleep(keep=kept)

    def resume(self, tag: str | None = None) -> None:
        """Brings them back, at the same addresses. torch.OutOfMemoryError without room."""
        for _, one in self._chosen(tag):
            one.wake_up()
        if not self._retain and core().created():
            core().host_trim()

    def _chosen(self, tag: str | None) -> list[tuple[bool, Pool]]:
        return [
            (kept, one)
            for (name, kept), one in self._pools.items()
            if tag is None or name == tag
        ]

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """There is one way here, torch's own pools; either name may be set."""
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, value: str) -> None:
        if value not in ("torch", "preload"):
            raise ValueError(f"hook_mode={value!r}: 'torch' or 'preload'")
        self._hook_mode = value

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether pinned memory is kept for the next pause, since pinning is what takes long, or
        is given back to the machine at each resume. At first as TMS_RETAIN_CPU_BACKUP says."""
        return self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retain = bool(value)

    @property
    def memory_margin_bytes(self) -> int:
        """0: no allocation is refused for the sake of what others may need. A cap, by a pool's
        ``limit`` or TORCHARENA_LIMIT, does that; setting another margin says so."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            warn(
                f"torcharena keeps no margin of device memory: memory_margin_bytes={value!r} "
                "changes nothing; TORCHARENA_LIMIT caps what all regions take",
                stacklevel=0,
            )

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> Any:
        """The contents of a tensor of a region with backup while it is paused, on the CPU, read
        over the link; always a copy. None where it is not paused or keeps nothing."""
        number, sleeps = core().region_of(x.data_ptr())
        held = [one._number for (_, kept), one in self._pools.items() if kept]
        return x.cpu() if sleeps and number in held else None


def _judge_backend(asked: str | None, kept: bool) -> None:
    if asked is None:
        return
    if not kept:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    if asked not in ("pinned", "mmap"):
        raise ValueError(f"cpu_backup_backend={asked!r}: 'pinned' or 'mmap'")
    if asked == "mmap":
        warn(
            "torcharena keeps what sleeps in pinned host memory: cpu_backup_backend="
            "'mmap' changes nothing",
            stacklevel=0,
        )


def _judge_captured(tag: str, kept: bool) -> None:
    asked = (
        f"tag={tag!r}" if tag != _DEFAULT else "enable_cpu_backup=True" if kept else ""
    )
    if asked:
        raise RuntimeError(
            f"torch_memory_saver.cuda_graph({asked}): torcharena is the process's allocator "
            "(enable()), under which a graph's own memory does not pause; leave tag and "
            "enable_cpu_backup out and it stays on the device, or do not call enable(): then "
            "it pauses with its tag"
        )


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Children need nothing in their environment: it changes none of it."""
    yield


def install() -> None:
    """``import torch_memory_saver`` gives this module from now on, in this process; before the
    program imports it. RuntimeError where it has the other one already."""
    here = sys.modules[__name__]
    there = sys.modules.get("torch_memory_saver")
    if there is not None and there is not here:
        raise RuntimeError(
            "torch_memory_saver is imported already: call install() before what imports it"
        )
    sys.modules["torch_memory_saver"] = here
