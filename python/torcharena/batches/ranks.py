"""Several ranks that look for one batch size: they try the same sizes, and a size runs where
it runs on all. They tell each other by torch.distributed's store, which needs no collective."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Ranks"]

_PATIENCE = datetime.timedelta(seconds=180)  # for a rank to come back from a try
_searches = itertools.count()  # all ranks make the same ones


class Ranks:
    """The processes of the default group; alone where there is none."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.many = bool(
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        )
        self.rank = dist.get_rank() if self.many else 0
        self.world = dist.get_world_size() if self.many else 1
        self._place = f"torcharena/batches/{next(_searches)}" if self.many else ""
        self._round = 0

    def all(self, mine: dict[str, Any], what: str = "the start") -> list[dict[str, Any]]:
        """What each rank says, in their order. Raises RuntimeError where one does not come
        back, or failed."""
        if not self.many:
            return [mine]
        store = _store()
        self._round += 1
        keys = [f"{self._place}/{self._round}/{rank}" for rank in range(self.world)]
        store.set(keys[self.rank], json.dumps(mine))
        said = []
        for rank, key in enumerate(keys):
            try:
                store.wait([key], _PATIENCE)
            except RuntimeError:  # torch.distributed.DistStoreError
                raise RuntimeError(
                    f"find_batch_size: rank {rank} has not come back from {what} in "
                    f"{_PATIENCE.seconds} s. Where one rank runs out of memory while others "
                    "wait for it in a collective, they wait for ever: give a function that "
                    "calls none (a DistributedDataParallel model does not, while sizes are "
                    "tried), or find the size in one process first"
                ) from None
            said.append(json.loads(store.get(key)))
            if "failed" in said[-1]:
                raise RuntimeError(
                    f"find_batch_size: {what} failed on rank {rank}: {said[-1]['failed']}"
                )
        return said

    def give_up(self, error: BaseException) -> None:
        """This rank raises an error of the function: the others hear of it."""
        if self.many:
            told = json.dumps({"failed": f"{type(error).__name__}: {error}"})
            with contextlib.suppress(RuntimeError):
                _store().set(f"{self._place}/{self._round + 1}/{self.rank}", told)

    @contextlib.contextmanager
    def alone(self, replicas: Sequence[Any]) -> Iterator[None]:
        """Gradients and buffers of these modules are not exchanged: a rank that runs out of
        memory leaves no other waiting."""
        with contextlib.ExitStack() as stack:
            for module in replicas if self.many else ():
                stack.enter_context(module.no_sync())
                synced = module.require_forward_param_sync
                module.require_forward_param_sync = False
                stack.callback(setattr, module, "require_forward_param_sync", synced)
            yield


def _store() -> Any:
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()
