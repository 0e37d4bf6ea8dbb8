"""Host memory behind the arena: how much may be used, a step's mark, giving it back.

Where the cap is reached and nothing idle is left, a new block is put into pages of host memory
that the GPU reads and writes over its link: slow, and right. `step` marks the end of a training
step: there, and only there, what is on the host comes back where room has appeared."""

from __future__ import annotations

from typing import Any

from .. import sizes, state
from ..loading import core, pass_on, warn
from ..sizes import format_size
from ..state import needs_cuda, needs_enabled, takes_part

__all__ = [
    "apply",
    "empty_cache",
    "mark",
    "needs_host",
    "on",
    "refuse_unfit",
    "step",
]

_BUSY = 9  # of torcharena.h


def refuse_unfit(found: Any, spill: int | None) -> None:
    """Raises RuntimeError where the first device cannot spill, whose facts are ``found``."""
    if spill is None:
        return
    if not found["vmm"]:
        raise RuntimeError(
            f"spill={sizes.spell(spill)}: {found['name']} has no virtual memory "
            "management, so memory cannot go to the host under its own addresses; leave "
            "spill out. torcharena.offload_optimizer() and offload_activations() work"
        )
    if not found["host_pages"]:
        raise RuntimeError(
            f"spill={sizes.spell(spill)}: this driver makes no pages of host memory "
            f"for {found['name']} (CUDA 12.2 and later do, where the system lets them); leave "
            "spill out. torcharena.offload_optimizer() and offload_activations() work"
        )


def apply(library: Any, spill: int | None, strict: bool) -> None:
    """CUDA is up: from now on so much of the host may be used. What the machine has not got
    is a warning, with ``strict`` a RuntimeError."""
    if spill is None:
        return
    there = library.host_memory()
    if there is not None and there < spill:
        text = (
            f"torcharena: spill={sizes.spell(spill)} was asked for; this machine, or the "
            f"job's control group, has {format_size(there)} of memory left now: it ends there"
        )
        if strict:
            raise RuntimeError(text)
        warn(text, stacklevel=0)
    library.set_spill(spill, True)


def on() -> bool:
    """Whether host memory may be used."""
    return state.enabled() and state.current.spill is not None


def needs_host(what: str) -> None:
    """Raises RuntimeError where no host memory was allowed."""
    needs_enabled(what)
    if not on():
        raise RuntimeError(
            f"torcharena.{what}() needs host memory: torcharena.enable(spill='64GiB') or "
            "TORCHARENA_SPILL=64GiB says how much of it may be used"
        )


def step() -> None:
    """Marks the end of a training step.

    What is in host memory for want of room comes back to the device as far as there is room
    now; where a cap was lowered below what is live, or others under a shared cap lack memory,
    live memory goes to the host. That is after all work of the device: no other thread may
    launch work meanwhile. With nothing to move it waits for nothing. Also counts as a step for
    `report`, unless `track` does. Raises RuntimeError while a CUDA graph is captured, and where the arena
    is not enabled; in a rehearsal of torch's own allocators it does nothing."""
    if not takes_part("step") or not core().created():
        return
    import torch

    if torch.cuda.is_current_stream_capturing() or not mark():
        raise RuntimeError(
            "torcharena.step() while a CUDA graph is captured: memory cannot change places "
            "then; call it after the capture"
        )
    from ..reports.tracking import trackings

    if not trackings():
        core().usage_step()


def mark() -> bool:
    """The step's mark alone. False, and nothing moved, while a graph is captured."""
    if on():
        done = core().step(-1)
        if done["status"] == _BUSY:
            return False
        if done["status"] != 0:
            warn(
                "torcharena: memory on the host could not be brought back: "
                f"{done['text']}; it stays there, and the next step tries again",
                stacklevel=4,
            )
    pass_on()
    return True


def empty_cache(host: bool = False) -> int:
    """Gives idle memory of the devices back to the driver, as `torch.cuda.empty_cache`; with
    ``host`` also the host memory that is kept pinned and holds nothing. Bytes given back."""
    needs_enabled("empty_cache")
    needs_cuda()
    released = int(core().trim())
    if host:
        released += int(core().host_trim())
    pass_on()
    return released
