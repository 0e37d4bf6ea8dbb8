"""Offloading chosen by itself: `auto_offload`.

Cheapest first. Saved tensors cross the link beside the computing, so they go first, as many as
the cap demands. Where all of them do not suffice, or the optimizer's state has no room to be
made, the state goes too, whose every byte is read and written once a step with nothing beside it."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ..loading import core, log
from ..sizes import format_size
from ..state import enabled, needs_enabled
from . import offload_optimizers, offload_saved, spilling
from .host_tensors import host_tensors

if TYPE_CHECKING:
    import torch

    Self = TypeVar("Self", bound="AutoOffload")

__all__ = ["AutoOffload", "auto_offload"]

# GB/s by which costs are foreseen: PCIe 5 x16, pinned copies and work in place, each way.
_COPY_RATE = 50.0
_PLACE_RATE = 40.0
_ENOUGH = 0.95  # of the room: more than that has no room
_MOMENTS = 2  # tensors of optimizer state for each parameter, where none is there yet


class AutoOffload:
    """What `auto_offload` began. ``str()`` says what was chosen, what it is expected to cost and
    what it does cost; `stop`, or leaving it as a context manager, ends it."""

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._parameters = [weakref.ref(p) for p in model.parameters()]
        self._saved = offload_saved.offload_activations()
        self._saved.of_its_own()  # two models in one program learn nothing of each other
        self._open: list[offload_saved.offload_activations] = []
        self._removals: list[Callable[[], None]] = []
        self._last = 0.0
        self._spilled = 0
        self.state_bytes = 0  # of optimizer state on the host; 0: it is on the device
        self.steps = 0
        self.free_seconds: list[float] = []  # of steps in which nothing was on the host
        self.seconds: list[float] = []  # of the others
        if enabled():
            self._hook(model, optimizer)

    def _hook(self, model: torch.nn.Module, optimizer: Any) -> None:
        hooks = [
            model.register_forward_pre_hook(self._forward_begins, prepend=True),
            model.register_forward_hook(self._forward_ends, always_call=True),
            optimizer.register_step_pre_hook(self._step_begins),
            optimizer.register_step_post_hook(self._step_ends),
        ]
        self._removals = [hook.remove for hook in hooks]

    # --- hooks ----------------------------------------------------------------------------
    def _forward_begins(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._open.append(self._saved.__enter__())

    def _forward_ends(self, module: Any, inputs: Any, output: Any) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        import torch

        if self.state_bytes or torch.cuda.is_current_stream_capturing():
            return
        if reason := self._why_state_must_leave(optimizer):
            self._send_state(optimizer, reason)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        spilling.mark()
        now = time.perf_counter()
        if self.steps:
            self._timed(now - self._last)
        self._last = now
        self.steps += 1
        if self.state_bytes:
            self.state_bytes = _host_bytes(optimizer) or self.state_bytes

    def _timed(self, seconds: float) -> None:
        """Of the steps alike the newest count, so that warming up is forgotten."""
        spilled = sum(core().stats(device)["spill_bytes"] for device in self._devices())
        away = self.state_bytes or spilled != self._spilled or self._sent()
        self._spilled = spilled
        times = self.seconds if away else self.free_seconds
        times.append(seconds)
        del times[:-32]

    # --- the choice -------------------------------------------------------------------------
    def _devices(self) -> set[int]:
        alive = (reference() for reference in self._parameters)
        return {p.device.index for p in alive if p is not None and p.is_cuda}

    def _sent(self) -> int:
        mover = offload_saved.mover_of(self._saved)
        last = {} if mover is None else mover.last
        return sum(last.get(device, (0, 0))[1] for device in self._devices())

    def _why_state_must_leave(self, optimizer: Any) -> str:
        """Empty where it may stay."""
        for device in self._devices():
            mover = offload_saved.mover_of(self._saved)
            now = None if mover is None else mover.current.get(device)
            if now is None:
                continue
            live = now.device_now()
            if not optimizer.state:
                wanted = sum(
                    _MOMENTS * max(p.nbytes, 4 * p.numel())
                    for reference in self._parameters
                    if (p := reference()) is not None
                    and p.requires_grad
                    and p.is_cuda
                    and p.device.index == device
                )
                if live + wanted > now.room * _ENOUGH:
                    return (
                        f"{format_size(wanted)} of it have no room beside the parameters"
                    )
                continue
            saved = sum(item.size for item in now.items)
            if now.plan.bytes > saved:
                return (
                    f"{format_size(now.plan.bytes)} must leave, and saved tensors are "
                    f"{format_size(saved)}"
                )
        return ""

    def _send_state(self, optimizer: Any, reason: str) -> None:
        offload_optimizers.offload_optimizer(optimizer)
        self.state_bytes = _host_bytes(optimizer) or 1
        log.info("auto_offload: the optimizer's state goes to the host: %s", reason)

    # --- for people ---------------------------------------------------------------------------
    def __str__(self) -> str:
        state, lines = self.state_bytes, ["torcharena.auto_offload:"]
        sent = self._sent()
        if not sent and not state:
            lines.append("  nothing has to leave the device")
        if sent:
            crossing = 2 * sent / _COPY_RATE / 1e6
            lines.append(
                f"  saved tensors: {format_size(sent)} leave in each forward pass and come "
                f"back: {crossing:.1f} ms of copies at {_COPY_RATE:.0f} GB/s, beside the "
                "computing"
            )
        if state:
            place = state / _PLACE_RATE / 1e6
            lines.append(
                f"  optimizer state: {format_size(state)} on the host, read and written in "
                f"place: {place:.1f} ms a step at {_PLACE_RATE:.0f} GB/s each way"
            )
        if self.seconds:
            took = statistics.median(self.seconds) * 1e3
            text = f"  a step takes {took:.1f} ms"
            if self.free_seconds:
                free = statistics.median(self.free_seconds) * 1e3
                text += f"; it took {free:.1f} ms with all on the device"
            lines.append(text)
        return "\n".join(lines)

    def stop(self) -> None:
        """Removes the hooks. The optimizer's state stays where it is: `onload_optimizer`."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._forward_ends(None, None, None)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def auto_offload(model: torch.nn.Module, optimizer: Any) -> AutoOffload:
    """Lets saved tensors and optimizer state leave for host memory, just enough for the cap, or
    the card; where all fits it does nothing.

    ``model`` is what the loop calls, ``optimizer`` what steps it. From the first steps it finds
    how much must leave: saved tensors first, the optimizer's state where they do not suffice.
    A step of the optimizer marks a step, as `step` does. Print what it returns for the choice
    and its cost.

    Raises RuntimeError where the arena is not enabled or was given no host memory
    (``spill=``), TypeError for what is no model or optimizer. In a rehearsal of torch's own
    allocators it does nothing."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"auto_offload({type(model).__name__}): the model is a torch.nn.Module"
        )
    inner = offload_optimizers.inner(optimizer, "auto_offload")
    if not enabled():
        from ..rehearsal.api import is_rehearsal

        if not is_rehearsal():
            needs_enabled("auto_offload")
    else:
        host_tensors("auto_offload", offload_saved.REGION)  # or a refusal, now
    return AutoOffload(model, inner)


def _host_bytes(optimizer: Any) -> int:
    return offload_optimizers.host_bytes(optimizer)
