"""Phases and categories of a training loop, found by hooks: `track`.

Forward is from the model's call on, the loss included, until something else begins;
backward is ``torch.autograd.backward``, which ``loss.backward()`` calls; optimizer and
zero_grad are those of the optimizer. Categories are told by address, late: a block counts as
a gradient at the peak too if it is found to be one at the end of backward."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import phases, spilling
from .loading import core
from .state import enabled, needs_enabled

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

__all__ = ["Tracking", "track", "trackings"]

_lock = threading.RLock()
_all: list[Tracking] = []
_original_backward: Callable[..., Any] | None = None


def trackings() -> list[Tracking]:
    """Those under way."""
    return list(_all)


class Tracking:
    """What `track` began. `stop` ends it, as does leaving it as a context manager."""

    def __init__(self, model: torch.nn.Module, optimizers: list[Any]) -> None:
        self._model = weakref.ref(model)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._removals: list[Callable[[], None]] = []
        self._open = _Open()
        self._states: dict[int, int] = {}
        # Of each device, as last walked; DTensors among them.
        self._parameters: dict[int, list[weakref.ref[Any]]] = {}
        self._sharded = False

    # --- hooks ----------------------------------------------------------------------------
    def _start(self) -> None:
        model = self._model()
        assert model is not None
        hooks: list[Any] = [
            model.register_forward_pre_hook(self._forward_begins, prepend=True),
            model.register_forward_hook(self._forward_ends, always_call=True),
        ]
        for index, reference in enumerate(self._optimizers):
            optimizer = reference()
            assert optimizer is not None
            hooks.append(optimizer.register_step_pre_hook(self._step_begins))
            ends = functools.partial(self._step_ends, index)
            hooks.append(optimizer.register_step_post_hook(ends))
            self._removals.append(_wrap_zero_grad(optimizer))
        self._removals += [hook.remove for hook in hooks]
        self.tell()

    def _forward_begins(self, module: torch.nn.Module, inputs: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        self._open.close()  # what an error left open
        core().usage_between(None)
        self._open.enter("forward" if torch.is_grad_enabled() else "evaluation")

    def _forward_ends(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or not self._open.spans:
            return
        core().usage_between(self._open.spans[-1].name)  # the loss belongs to it
        self._open.close()

    def _step_begins(self, optimizer: Any, args: Any, named: Any) -> Any:
        """A closure, which makes the forward and backward passes, is no optimizer's phase."""
        self._open.close()
        core().usage_between(None)
        given = named.get("closure", args[1] if len(args) > 1 else None)
        if given is None:
            self._open.enter("optimizer")
            return None

        @functools.wraps(given)
        def closure(*inside: Any, **more: Any) -> Any:
            self._open.close()
            core().usage_between("forward")
            try:
                return given(*inside, **more)
            finally:
                core().usage_between(None)
                self._open.enter("optimizer")

        if "closure" in named:
            return args, {**named, "closure": closure}
        return (args[0], closure, *args[2:]), named

    def _step_ends(self, index: int, optimizer: Any, *_: Any) -> None:
        self._open.close()
        self.tell_if_highest()
        held = len(optimizer.state)
        if self._states.get(index) != held:
            self._states[index] = held
            _tell(_state_tensors(optimizer), "optimizer state")
        if index == 0:
            core().usage_step()
            spilling.mark()

    def stop(self) -> None:
        """Removes every hook. Does nothing the second time."""
        with _lock:
            if self not in _all:
                return
            _all.remove(self)
            for remove in self._removals:
                remove()
            self._removals.clear()
            if not _all:
                _unwrap_backward()
        core().usage_between(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- categories -------------------------------------------------------------------------
    def tell(self) -> None:
        """Says which blocks are parameters, gradients, buffers and optimizer state now."""
        model = self._model()
        if model is None or not phases.watching():
            return
        self._walk(model)
        _tell(model.buffers(), "buffer")
        _tell(model.parameters(), "parameter")
        _tell(_gradients(model), "gradient")
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                _tell(_state_tensors(optimizer), "optimizer state")

    def _walk(self, model: torch.nn.Module) -> None:
        self._parameters = {}
        self._sharded = False
        for parameter in model.parameters():
            if parameter.is_cuda:
                held = self._parameters.setdefault(parameter.device.index, [])
                held.append(weakref.ref(parameter))
                self._sharded = self._sharded or hasattr(parameter, "_local_tensor")

    def tell_gradients(self) -> None:
        """At the end of every backward, since the next step has others: about half a
        microsecond each. Views of a larger block are left to `tell`."""
        model = self._model()
        if model is None or not phases.watching():
            return
        if not self._parameters:
            self._walk(model)
        number = phases.CATEGORIES.index("gradient")
        for device, references in self._parameters.items():
            found = (parameter.grad for parameter in _alive(references))
            gradients = [g for g in found if g is not None and not g.is_sparse]
            if self._sharded:
                gradients = [getattr(g, "_local_tensor", g) for g in gradients]
            addresses = [g.data_ptr() for g in gradients]
            core().usage_set_category(device, addresses, number)

    def tell_if_highest(self) -> None:
        """The same, where this step has the highest peak so far. Gradients are there from
        the end of backward on, and seldom later than the next step."""
        model = self._model()
        if model is None or not phases.watching():
            return
        if not self._parameters:
            self._walk(model)
        looks = [core().usage_look(device) for device in self._parameters]
        if any(look["peak"]["step"] == look["step"] for look in looks):
            self.tell()


class _Open(threading.local):
    """Phases that hooks entered on this thread."""

    def __init__(self) -> None:
        self.spans: list[phases.phase] = []

    def enter(self, name: str) -> None:
        self.spans.append(phases.phase(name))
        self.spans[-1].__enter__()

    def close(self) -> None:
        while self.spans:
            self.spans.pop().__exit__(None, None, None)


def track(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | Iterable[Any] | None = None
) -> Tracking:
    """Sets the phases of a training step (forward, backward, optimizer, zero_grad,
    evaluation: a forward without gradients) and the category of each block (parameter,
    gradient, optimizer state, buffer, activation), for `report`.

    ``model`` is what the loop calls: the DistributedDataParallel or compiled one where there
    is one. ``optimizer`` is one or several; a step of the first ends a step. The loss counts
    to forward. Until `stop`, ``torch.autograd.backward`` is wrapped and the optimizers'
    ``zero_grad`` too. Raises RuntimeError where the arena is not enabled, TypeError for what
    is no model or optimizer. In a rehearsal of torch's own allocators it does nothing."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"track({type(model).__name__}): the model is a torch.nn.Module")
    optimizers = [_inner(one) for one in _several(optimizer)]
    tracking = Tracking(model, optimizers)
    if not enabled():
        from .rehearsal.api import is_rehearsal

        if not is_rehearsal():
            needs_enabled("track")
        return tracking
    phases.start()
    with _lock:
        if not _all:
            _wrap_backward()
        _all.append(tracking)
        tracking._start()
    return tracking


def _several(optimizer: Any) -> list[Any]:
    import torch

    if optimizer is None:
        return []
    if isinstance(optimizer, torch.optim.Optimizer) or not isinstance(
        optimizer, Iterable
    ):
        return [optimizer]
    return list(optimizer)


def _inner(optimizer: Any) -> Any:
    """The torch optimizer in what frameworks wrap around it."""
    found = optimizer
    while getattr(found, "optimizer", None) is not None:
        found = found.optimizer
    if not hasattr(found, "_optimizer_step_post_hooks"):
        raise TypeError(
            f"track(..., {type(optimizer).__name__}): an optimizer has step hooks, as those "
            f"of torch.optim do"
        )
    return found


# --- backward and zero_grad -------------------------------------------------------------
def _wrap_backward() -> None:
    global _original_backward
    import torch

    original = torch.autograd.backward
    _original_backward = original

    @functools.wraps(original)
    def backward(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **named)
        core().usage_between(None)
        with phases.phase("backward"):
            original(*args, **named)
        for tracking in trackings():
            tracking.tell_gradients()
            tracking.tell_if_highest()

    torch.autograd.backward = backward


def _unwrap_backward() -> None:
    global _original_backward
    import torch

    ours = getattr(torch.autograd.backward, "__wrapped__", None)
    if _original_backward is not None and ours is _original_backward:
        torch.autograd.backward = _original_backward
    _original_backward = None


def _wrap_zero_grad(optimizer: Any) -> Callable[[], None]:
    """An attribute of this one optimizer, over the method of its class."""
    original = optimizer.zero_grad

    @functools.wraps(original)
    def zero_grad(*args: Any, **named: Any) -> Any:
        core().usage_between(None)
        with phases.phase("zero_grad"):
            return original(*args, **named)

    optimizer.zero_grad = zero_grad
    reference = weakref.ref(optimizer)

    def undo() -> None:
        held = reference()
        if held is not None and held.__dict__.get("zero_grad") is zero_grad:
            del held.zero_grad

    return undo


# --- blocks of tensors ------------------------------------------------------------------
def _tell(tensors: Iterable[Any], category: str) -> None:
    """Where the tensors' memory is on CUDA, it is of this category."""
    by_device: dict[int, list[int]] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if local.is_cuda:
            device = by_device.setdefault(local.device.index, [])
            device.append(local.untyped_storage().data_ptr())
    number = phases.CATEGORIES.index(category)
    for device_index, addresses in by_device.items():
        core().usage_set_category(device_index, addresses, number)


def _gradients(model: torch.nn.Module) -> Iterator[Any]:
    for parameter in model.parameters():
        if parameter.grad is not None and not parameter.grad.is_sparse:
            yield parameter.grad


def _alive(references: list[weakref.ref[Any]]) -> Iterator[Any]:
    return (one for reference in references if (one := reference()) is not None)


def _state_tensors(optimizer: Any) -> Iterator[Any]:
    import torch

    waiting = list(optimizer.state.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
