"""One process as one rank of a job that is larger than the machine: no peer is there, or
only those of one node (``--ranks all``).

NCCL's stand-ins need none: a communicator of any size exists at once. What is left is the
meeting place, torch's store, where ranks wait for each other's entries, and the process
groups on the CPU (gloo), which connect to every peer. Here the store answers for the ranks
that are not there, and torch's own "fake" backend takes gloo's place."""

from __future__ import annotations

import datetime
import importlib
import threading
from typing import Any

from . import ranks

__all__ = ["environment", "install"]

_ID = 128  # bytes of a NCCL id, what a rank other than 0 is given


def environment(
    world_size: int, rank: int, local_world_size: int, *, peers: bool = False
) -> dict[str, str]:
    """What a launcher would say to that rank, of nodes of ``local_world_size``. ``peers``:
    all the others are there."""
    said = {
        "WORLD_SIZE": str(world_size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(rank // local_world_size),
        "GROUP_WORLD_SIZE": str(-(-world_size // local_world_size)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "NODE_RANK": str(rank // local_world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "rehearsal",
        # Its thread would ask the store, which is Python's, at the very end too.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    if not peers:
        said["TORCHARENA_SIM_ALONE"] = "1"  # for NCCL's stand-ins
    return said


def install(world_size: int, rank: int, here: int = 1) -> None:
    """Lets `torch.distributed.init_process_group` succeed without peers. The program may give
    its own world size and rank; those count. ``here``: so many ranks, from 0, are there."""
    dist: Any = importlib.import_module("torch.distributed")
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d

    class Alone(dist.Store):
        """A store in which the others have always been there already."""

        def __init__(self) -> None:
            super().__init__()
            self.known: dict[str, bytes] = {}
            self.guard = threading.Lock()

        def set(self, key: str, value: Any) -> None:
            with self.guard:
                self.known[key] = value.encode() if isinstance(value, str) else value

        def get(self, key: str) -> bytes:
            return self.known.get(key, bytes(_ID))

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[Any]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def add(self, key: str, amount: int) -> int:
            """A counter that every rank has added to as this one does."""
            with self.guard:
                now = int(self.known.get(key, b"0")) + amount * world_size
                self.known[key] = str(now).encode()
            return now

        def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
            with self.guard:
                known = self.known.setdefault(key, wanted.encode())
            return known

        def check(self, keys: list[str]) -> bool:
            return all(key in self.known for key in keys)

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            return

        def delete_key(self, key: str) -> bool:
            with self.guard:
                return self.known.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self.known)

        def clone(self) -> Any:
            return self

        def set_timeout(self, timeout: datetime.timedelta) -> None:
            return

    store = Alone()
    start = c10d.init_process_group
    new_group = c10d.new_group

    def without_gloo(backend: Any) -> Any:
        if backend is None:
            return "cpu:fake,cuda:nccl"
        text = str(backend)
        if ":" not in text and text == "gloo":
            return "fake"
        return text.replace("gloo", "fake")

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        _register_fake()
        ranks.settle_pipelines()
        if args:  # init_method came by place
            kwargs["init_method"] = args[0]
        kwargs.pop("init_method", None)
        kwargs["store"] = store
        if kwargs.get("world_size", -1) in (-1, None):
            kwargs["world_size"] = world_size
        if kwargs.get("rank", -1) in (-1, None):
            kwargs["rank"] = rank
        return start(without_gloo(backend), **kwargs)

    def new(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") is not None:
            kwargs["backend"] = without_gloo(kwargs["backend"])
        return new_group(*args, **kwargs)

    ranks.replace(dist, "init_process_group", init_process_group)
    ranks.replace(dist, "new_group", new)
    ranks.install(dist, store, rank, here)


def _register_fake() -> None:
    """torch registers its backend that does nothing when this module is imported."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
