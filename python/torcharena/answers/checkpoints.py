"""The state of a CUDA graph's pool, taken and set back: what `torch.compile` in mode
"reduce-overhead" (CUDA graph trees) needs.

torch's own state object is its own allocator's. Here a state is the list of the pool's live
blocks. It is set back by torch's function, which also gives storages their deleters; the
virtual function that it calls is ours (csrc/torch/checkpoint.c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..loading import core

__all__ = ["State", "get", "install", "put"]

_torch: Any = None
_set: Any = None

REMEDY = (
    "torch._inductor.config.triton.cudagraph_trees = False keeps CUDA graphs and works"
)


class State(NamedTuple):
    """What lived in a pool: (address, bytes, bytes asked for, stream) of each block."""

    device: int
    pool: tuple[int, int]
    blocks: list[tuple[int, int, int, int]]


def _refuse_where_missing() -> None:
    said = core().torch_status().get("setCheckpointPoolState", "not in this library")
    if said != "ok":
        raise RuntimeError(
            "CUDA graph trees (torch.compile mode 'reduce-overhead') are not available "
            f"under torcharena with this torch ({said}): {REMEDY}"
        )


def get(device: int, pool: tuple[int, int]) -> State:
    """torch._C._cuda_getCheckpointState."""
    _refuse_where_missing()
    library = core()
    try:
        blocks = library.pool_blocks(device, *pool)
    except library.Error as error:
        raise RuntimeError(
            f"the state of a CUDA graph pool cannot be told: {error}"
        ) from None
    return State(device, (int(pool[0]), int(pool[1])), blocks)


def put(
    device: int, state: State, stale: Sequence[int], live: Sequence[int] = ()
) -> None:
    """torch._C._cuda_setCheckpointPoolState: storages are given by their addresses."""
    _refuse_where_missing()
    if not isinstance(state, State) or state.device != device:
        raise RuntimeError(
            "this state of a CUDA graph pool is not torcharena's, or of another device"
        )
    # torch's allocate, which is called for each block, works on the current device.
    with _torch.cuda.device(device):
        core().pool_restoring(
            *state.pool, state.blocks, lambda: _set(device, None, [*stale], [*live])
        )


def install(torch: Any, set_state: Any) -> None:
    """Remembers torch's function."""
    global _torch, _set
    _torch, _set = torch, set_state
