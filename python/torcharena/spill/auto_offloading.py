"""Offloading chosen by itself: `auto_offload`.

Each forward pass says, when it is over, how many bytes it would have had on the device with
nothing away; what is above the room must leave. Which bytes that are is `choose`'s to say, by
the rates of this machine's link and by how long computing takes: of both a few steps are timed by
events on the program's stream, and of the waits for copies too, so what it costs is measured as
it is expected. How many saved tensors leave in a pass is found anew before each (`offload_saved`);
here the optimizer's share is decided, at the end of a step."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..loading import core, log, warn
from ..sizes import format_size
from ..state import enabled, is_rehearsal, takes_part
from . import offload_optimizers, offload_saved, spilling
from .host_tensors import HostTensors, host_tensors
from .link_rates import link_rates
from .offload_choice import ASSUMED, Choice, Rates, Situation, choose
from .offload_choice import seconds as _seconds
from .step_clock import StepClock

if TYPE_CHECKING:
    import torch

    Self = TypeVar("Self", bound="AutoOffload")

__all__ = ["AutoOffload", "auto_offload"]

_ENOUGH = 0.95  # of the room: more than that has no room
_BLIND = 3  # steps after which a model that was never called is told
_KEPT = 32  # passes whose need counts
_GAIN = 0.05  # of a step: less is not worth moving for
# Tensors of state for each parameter, where none is there yet; by the optimizer's class.
_STATES = {
    "ASGD": 1,
    "Adafactor": 0,
    "Adagrad": 0,  # there from the begin
    "LBFGS": 0,
    "Lion": 1,
    "Muon": 1,
    "SparseAdam": 2,
}
_numbers = itertools.count(1)


class _PassSeen(NamedTuple):
    """A forward pass and its backward, on one device; bytes."""

    demand: int  # on the device, had nothing been away
    saved: int
    sent: int


class _Device:
    """What is known of one device."""

    def __init__(self) -> None:
        self.seen: deque[_PassSeen] = deque(maxlen=_KEPT)
        self.room = 0
        self.margin = 0
        self.noted: Any = None  # the newest pass that was seen, or will be
        self.passes = 0  # in this step
        self.rates = ASSUMED
        self.choice = Choice(0, 0, 0.0)

    @property
    def need(self) -> int:
        """Bytes that must leave in a pass."""
        most = max((one.demand for one in self.seen), default=0)
        return most - self.room + self.margin if most > self.room else 0


class _Hook:
    """A hook of the model. In a copy of the model, or a pickle of it, it does nothing, and has
    nothing of torcharena."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class AutoOffload:
    """What `auto_offload` began. ``str()`` says what was chosen, what it is expected to cost and
    what it does cost; `stop`, or leaving it as a context manager, ends it."""

    def __init__(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        self._model = weakref.ref(model)
        self._optimizers = [weakref.ref(one) for one in optimizers]
        self._parameters = [weakref.ref(p) for p in model.parameters()]
        self._saved = offload_saved.offload_activations()
        self._number = f"auto_offload {next(_numbers)}"
        offload_saved.of_its_own(self._saved, self._number)
        # Of each call of the model under way; None where it saves nothing.
        self._open: list[offload_saved.offload_activations | None] = []
        self._removals: list[Callable[[], None]] = []
        self._host: HostTensors | None = None
        self._there: dict[int, _Device] = {}
        self._clock = StepClock()
        self.steps = 0
        self._forwards = 0
        self._stepped = False  # an optimizer did, and no forward pass began since
        self.state_bytes = 0  # of optimizer state on the host; 0: it is on the device
        if enabled():
            self._host = host_tensors(
                "auto_offload", offload_saved.REGION
            )  # or a refusal
            self._hook(model, optimizers)

    def _hook(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        import torch

        # The model may be compiled afterwards, its hooks with it. torch's optimizers have loaded
        # the compiler already.
        begins = _Hook(torch.compiler.disable(self._forward_begins))
        ends = _Hook(torch.compiler.disable(self._forward_ends))
        hooks: list[Any] = [
            model.register_forward_pre_hook(begins, prepend=True),
            model.register_forward_hook(ends, always_call=True),
        ]
        for optimizer in optimizers:
            hooks.append(optimizer.register_step_pre_hook(self._step_begins))
            hooks.append(optimizer.register_step_post_hook(self._step_ends))
        self._removals = [hook.remove for hook in hooks]

    # --- hooks ----------------------------------------------------------------------------
    def _forward_begins(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if self._open and self._calls() < 2:
            self._close()  # what an interrupt left open
        if not torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing():
            self._open.append(None)
            return
        self._forwards += 1
        if not any(self._open):  # a model that calls itself is in one pass
            if self._stepped:
                self._stepped = False
                for device in self._there.values():
                    device.passes = 0
            self._note_passes()
            self._clock.forward_begins()
        self._open.append(self._saved.__enter__())
        mover = offload_saved.mover_of(self._saved)
        if mover is not None:
            mover.waits = self._clock.waits
            if not mover.stay:
                mover.stay = self._addresses()

    def _forward_ends(self, module: Any, inputs: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or not self._open:
            return
        ended = self._open.pop()
        if ended is not None:
            ended.__exit__(None, None, None)
            if not any(self._open):
                self._clock.forward_ends()

    def _calls(self) -> int:
        """How many calls of the model this thread is in: torch calls no hook at the end of one
        that KeyboardInterrupt ends."""
        model, found = self._model(), 0
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "_call_impl":
                found += frame.f_locals.get("self") is model
            frame = frame.f_back
        return found

    def _close(self) -> None:
        while self._open:
            ended = self._open.pop()
            if ended is not None:
                ended.__exit__(None, None, None)

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        if self._open:
            if self._calls():
                return
            self._close()
        self._note_passes()
        self._clock.step_begins()
        if not optimizer.state and not offload_optimizers.is_whole(optimizer):
            self._before_there_is_state(optimizer)

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        spilling.mark()
        self.steps += 1
        if self.steps == _BLIND and not self._forwards:
            warn(
                f"torcharena.auto_offload: {_BLIND} steps, and none of the model's forward "
                "passes was seen, so no saved tensor can leave: give it the module that the "
                "loop calls, and compile before",
                stacklevel=0,
            )
        if self._stepped:
            self._clock.step_goes_on(self.state_bytes)
        else:
            self._clock.step_ends(self._is_away(), self.state_bytes)
        self._stepped = True
        self._choose()

    # --- what the passes tell -----------------------------------------------------------------
    def _addresses(self) -> set[int]:
        alive = (reference() for reference in self._parameters)
        return {
            _local(p).untyped_storage().data_ptr()
            for p in alive
            if p is not None and _local(p).is_cuda
        }

    def _note_passes(self) -> None:
        """The pass before is over, its backward too, or nearly."""
        mover = offload_saved.mover_of(self._saved)
        if mover is None:
            return
        for index, now in list(mover.current.items()):
            device = self._there.setdefault(index, _Device())
            if device.noted is now:
                continue
            device.noted = now
            device.passes += 1
            demand, saved = now.demand_now()
            device.seen.append(
                _PassSeen(demand + self._state_on_host(index), saved, now.sent)
            )
            device.room = now.room
            device.margin = now.margin + mover.missed.get(index, 0)

    def _alive(self) -> Iterable[Any]:
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def _state_on_host(self, device: int) -> int:
        if not self.state_bytes:
            return 0
        return sum(
            offload_optimizers.host_bytes(one, device)
            for one in self._alive()
            if not offload_optimizers.is_whole(one)
        )

    def _is_away(self) -> bool:
        sent = any(one.seen and one.seen[-1].sent for one in self._there.values())
        return bool(sent or self.state_bytes)

    # --- the choice -------------------------------------------------------------------------
    def _situation(self, index: int, device: _Device, state: int) -> Situation:
        saved = max((one.saved for one in device.seen), default=0)
        return Situation(
            device.need,
            saved,
            state,
            self._clock.forward,
            self._clock.backward,
            max(device.passes, 1),
        )

    def _rates(self, index: int, device: _Device) -> Rates:
        """Measured when something has to leave; work in place as the optimizer's own."""
        if not device.rates.measured and self._host is not None:
            live = core().room(index)[0]
            device.rates = link_rates(index, self._host, device.room - live)
        rates = device.rates
        place = self._clock.place
        return rates if place is None else replace(rates, place=place)

    def _before_there_is_state(self, optimizer: Any) -> None:
        """Its first step is about to make it."""
        for index, device in self._there.items():
            wanted = _state_of(optimizer, index)
            if not wanted:
                continue
            live = self._device_now(index)
            no_room = live + wanted - int(device.room * _ENOUGH)
            most = max((one.demand for one in device.seen), default=0)
            over = most + wanted - device.room + device.margin
            now = self._situation(index, device, wanted)
            found = choose(
                Situation(over, now.saved, wanted, now.forward, now.backward),
                device.rates,
            )
            state = min(max(found.state, no_room), wanted)
            if state > 0:
                self._share([optimizer], index, state, found)

    def _device_now(self, index: int) -> int:
        mover = offload_saved.mover_of(self._saved)
        now = None if mover is None else mover.current.get(index)
        return core().room(index)[0] if now is None else now.device_now()

    def _choose(self) -> None:
        needed = any(one.need > 0 for one in self._there.values())
        if not needed and not self._is_away():
            self._clock.on = False
            return
        self._clock.on = not is_rehearsal()  # where nothing takes its time
        chosen = [
            one
            for one in self._alive()
            if not offload_optimizers.is_whole(one) and one.state
        ]
        for index, device in self._there.items():
            there = sum(offload_optimizers.host_bytes(one, index) for one in chosen)
            could = sum(offload_optimizers.state_bytes(one, index) for one in chosen)
            rates = self._rates(index, device)
            now = self._situation(index, device, could)
            found = choose(now, rates)
            if self._is_better(now, found, there, rates):
                self._share(chosen, index, found.state, found)
            else:
                device.choice = Choice(
                    max(now.need - there, 0),
                    there,
                    _seconds(now, there, rates),
                    found.short,
                )
        self._count_state()

    def _is_better(self, now: Situation, found: Choice, there: int, rates: Rates) -> bool:
        """Whether it is worth moving the state for."""
        if found.state == there or abs(found.state - there) < max(there, now.need) // 32:
            return False
        if found.state > there and found.saved + there < now.need - found.short:
            return True  # saved tensors do not suffice
        step = self._clock.seconds
        if step is None or now.forward is None:
            return False  # nothing is known yet to gain
        return _seconds(now, there, rates) - found.seconds > _GAIN * step

    def _share(
        self, optimizers: list[Any], index: int, state: int, found: Choice
    ) -> None:
        """So many bytes of the optimizers' state go to the host, the first one's first."""
        left = state
        for optimizer in optimizers:
            has = offload_optimizers.state_bytes(optimizer, index) or state
            part = min(has, left)
            left -= part
            try:
                offload_optimizers.share(optimizer, index, part)
            except RuntimeError as error:  # OutOfMemoryError is one
                warn(
                    "torcharena.auto_offload: optimizer state could not move: "
                    + str(error).partition("\n")[0],
                    stacklevel=0,
                )
        self._there[index].choice = found
        self._clock.changed()
        self._count_state()
        log.info(
            "auto_offload: GPU %d: %s of optimizer state to be on the host, and %s of saved "
            "tensors in each pass; expected to cost %.1f ms a step",
            index,
            format_size(state),
            format_size(found.saved),
            found.seconds * 1e3,
        )

    def _count_state(self) -> None:
        self.state_bytes = sum(
            offload_optimizers.host_bytes(one) for one in self._alive()
        )

    # --- for people ---------------------------------------------------------------------------
    def __str__(self) -> str:
        lines, clock = ["torcharena.auto_offload:"], self._clock
        for index, device in sorted(self._there.items()):
            state = sum(offload_optimizers.host_bytes(o, index) for o in self._alive())
            sent = device.seen[-1].sent if device.seen else 0
            if not sent and not state:
                continue
            rates = self._rates(index, device)
            how = "measured" if rates.measured else "assumed"
            lines.append(
                f"  GPU {index}: {format_size(device.need)} must leave of what a pass wants, "
                f"for room of {format_size(device.room)}; rates {how}"
            )
            if sent:
                lines.append(
                    f"  saved tensors: {format_size(sent)} leave in each forward pass, "
                    f"{sent / rates.out * 1e3:.1f} ms of copies at {rates.out / 1e9:.1f} GB/s, "
                    f"and come back at {rates.back / 1e9:.1f}, beside the computing"
                )
            if state:
                lines.append(
                    f"  optimizer state: {format_size(state)} on the host, read and written "
                    f"in place: {state / rates.place * 1e3:.1f} ms a step at "
                    f"{rates.place / 1e9:.1f} GB/s each way"
                )
            if device.choice.short:
                lines.append(
                    f"  {format_size(device.choice.short)} more should leave than can: the "
                    "safety net takes them"
                )
        if len(lines) == 1:
            return lines[0] + "\n  nothing has to leave the device"
        lines.append("  " + self._costs())
        if clock.seconds is not None:
            text = f"  a step takes {clock.seconds * 1e3:.1f} ms"
            if clock.free_seconds is not None:
                text += f"; steps with all on the device took {clock.free_seconds * 1e3:.1f} ms"
            lines.append(text)
        return "\n".join(lines)

    @property
    def expected_seconds(self) -> float:
        """What the choice was expected to cost a step, by the rates and the time of computing."""
        return sum(device.choice.seconds for device in self._there.values())

    @property
    def cost_seconds(self) -> float | None:
        """What it does cost a step: waits for copies, and the optimizer's own step where its
        state is on the host, beyond what that takes on the device. None: not known yet."""
        return self._clock.cost

    def _costs(self) -> str:
        cost, known = self.cost_seconds, self._clock.forward is not None
        text = f"expected to cost {self.expected_seconds * 1e3:.1f} ms a step"
        text += "" if known else " (computing not timed yet)"
        if cost is None:
            return text + "; what it does cost is not known yet"
        text += f"; it does cost {cost * 1e3:.1f} ms"
        if self.state_bytes and self._clock.optimizer_free is None:
            text += ", all of the optimizer's step counted"
        return text

    def stop(self) -> None:
        """Removes the hooks. The optimizer's state stays where it is: `onload_optimizer`."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._close()
        offload_saved.forget(self._saved)

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

    ``model`` is what the loop calls, ``optimizer`` what steps it, or a list of several. From the
    first steps it finds how much must leave, measures the link and how long computing takes, and
    sends what costs least: saved tensors beside the computing, as much of the optimizer's state
    as is cheaper, or as does not fit otherwise. A step of an optimizer marks a step, as `step`
    does. Print what it returns for the choice, what it is expected to cost and what it does.

    Raises RuntimeError where the arena is not enabled or was given no host memory
    (``spill=``), TypeError for what is no model or optimizer. In a rehearsal of torch's own
    allocators it does nothing."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"auto_offload({type(model).__name__}): the model is a torch.nn.Module"
        )
    several = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not several:
        raise TypeError("auto_offload: no optimizer was given")
    inner = [offload_optimizers.inner(one, "auto_offload") for one in several]
    takes_part("auto_offload")
    return AutoOffload(model, list(dict.fromkeys(inner)))


def _local(parameter: Any) -> Any:
    return getattr(parameter, "_local_tensor", parameter)


def _state_of(optimizer: Any, device: int) -> int:
    """Bytes of state that its first step will make, as far as its class tells."""
    chosen, name = optimizer.defaults, type(optimizer).__name__
    count = _STATES.get(name, 2)
    if name in ("SGD", "RMSprop"):
        count = int(name == "RMSprop") + bool(chosen.get("momentum"))
        count += bool(chosen.get("centered"))
    count += bool(chosen.get("amsgrad"))
    found = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local = _local(parameter)
            if parameter.requires_grad and local.is_cuda and local.device.index == device:
                found += count * int(local.nbytes)
    return found
