"""Phases and categories of a training loop, found by hooks: `track`.

Forward is from the model's call on, the loss included, until something else begins;
backward is ``torch.autograd.backward``, which ``loss.backward()`` calls; optimizer and
zero_grad are those of the optimizer. Categories are told by address, late: a block counts as
a gradient at the peak too if it is found to be one at the end of backward. To find them is a
walk over all parameters, half a microsecond each and more; so that is done where there is a
new peak and where somebody looks. In other steps what backward left is taken for gradients."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..loading import core
from ..spill import spilling
from ..state import takes_part
from . import phases, workspaces
from .graphs import Graphs
from .lines import stacks as Stacks
from .modules import Modules, around_compiled

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

__all__ = ["Tracking", "before_track", "begin", "tell_all", "track", "trackings"]

_lock = threading.RLock()
_all: list[Tracking] = []
_original_backward: Callable[..., Any] | None = None
before_track: list[Callable[[], None]] = []  # called when the program itself tracks
_torch: Any = None  # looked up once, not in every hook
_places = False  # some tracking tells modules or lines


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
        # Parameters are all float32, and no forward pass was under autocast.
        self._float32 = False
        self._autocast = False
        self.graphs = Graphs(self._look, core().usage_unused, bool(optimizers))
        self._modules: Modules | None = None
        self._stacks: Stacks | None = None

    def __deepcopy__(self, memo: Any) -> Tracking:
        """A copy of the model keeps its hooks, which are this one's."""
        return self

    def __reduce__(self) -> Any:
        """A model that is saved whole, hooks and all: what is loaded tracks nothing."""
        return _Ended, ()

    # --- hooks ----------------------------------------------------------------------------
    def _start(self) -> None:
        model = self._model()
        assert model is not None
        hooks: list[Any] = [
            model.register_forward_pre_hook(self._forward_begins, prepend=True),
            model.register_forward_hook(self._forward_ends, always_call=True),
        ]
        for index, reference in enumerate(self._optimizers):
            self._hook_optimizer(reference(), index)
        self._removals += [hook.remove for hook in hooks]
        undo = around_compiled(
            model, lambda *inputs: self._forward_begins(*inputs[:2]), self._forward_ends
        )
        if undo is not None:
            self._removals.append(undo)
        if self._modules is not None:
            self._modules.start()
            self._removals.append(self._modules.stop)
        if self._stacks is not None:
            self._stacks.start()
            self._removals.append(self._stacks.stop)
        self.tell()

    def _hook_optimizer(self, optimizer: Any, index: int) -> None:
        """``index``: 0 for the one whose steps end the program's."""
        assert optimizer is not None
        ends = functools.partial(self._step_ends, index)
        self._removals += [
            optimizer.register_step_pre_hook(self._step_begins).remove,
            optimizer.register_step_post_hook(ends).remove,
            _wrap_zero_grad(optimizer),
        ]

    def add_optimizer(self, optimizer: Any, index: int) -> None:
        """One that was found later."""
        self._optimizers.append(weakref.ref(optimizer))
        self.graphs.optimizers = True
        self._hook_optimizer(optimizer, index)

    def in_forward(self) -> bool:
        """Whether this thread is in the model."""
        return bool(self._open.spans)

    def enter_now(self, module: Any, inputs: Any) -> None:
        """As the hooks do, for a call of the model that began before they were there."""
        self._forward_begins(module, inputs)
        if self._modules is not None:
            self._modules.enter_now()

    def parameters(self) -> Iterator[Any]:
        model = self._model()
        return iter(()) if model is None else model.parameters()

    def _forward_begins(self, module: torch.nn.Module, inputs: Any) -> None:
        if _torch.compiler.is_compiling():
            return
        spans = self._open.spans
        if spans:  # what an error left open
            self._open.close()
        name = "evaluation"
        if _torch.is_grad_enabled():
            name = "forward"
            self._autocast = self._autocast or _torch.is_autocast_enabled()
            self.graphs.forward_begins(module)
        spans.append((name, phases.enter_anew(name)))

    def _forward_ends(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if _torch.compiler.is_compiling():
            return
        spans = self._open.spans
        if not spans:
            return
        name, span = spans.pop()
        if span is not None:
            core().usage_leave(span, name)  # the loss belongs to it
        if spans:
            self._open.close()
        if self.graphs.watched:
            self.graphs.forward_ends(output)

    def _step_begins(self, optimizer: Any, args: Any, named: Any) -> Any:
        """A closure, which makes the forward and backward passes, is no optimizer's phase."""
        self._open.close()
        given = named.get("closure", args[1] if len(args) > 1 else None)
        if given is None:
            self._open.enter("optimizer")
            return None
        core().usage_between(None)

        @functools.wraps(given)
        def closure(*inside: Any, **more: Any) -> Any:
            self._open.close()
            core().usage_between("forward")
            try:
                return given(*inside, **more)
            finally:
                self._open.enter("optimizer")

        if "closure" in named:
            return args, {**named, "closure": closure}
        return (args[0], closure, *args[2:]), named

    def _step_ends(self, index: int, optimizer: Any, *_: Any) -> None:
        if self._open.close():  # a new peak, at which there may be other state
            _tell_known()
        held = len(optimizer.state)
        if self._states.get(index) != held:
            self._states[index] = held
            _tell(_state_tensors(optimizer), "optimizer state")
        if index == 0:
            self.graphs.step_ends()
            if self._counts(optimizer) and (core().usage_step() or spilling.on()):
                spilling.mark()

    def _counts(self, optimizer: Any) -> bool:
        """Whether a step of the optimizer is this one's to count: of several that track it, the
        first one's."""
        if len(_all) < 2:
            return True
        theirs = (o for o in _all if o._optimizers and o._optimizers[0]() is optimizer)
        return next(theirs, self) is self

    def stop(self) -> None:
        """Removes every hook. Does nothing the second time."""
        with _lock:
            if self not in _all:
                return
            tell_all()  # nobody will tell what is a guess still
            _all.remove(self)
            _look_at_all()
            for remove in reversed(self._removals):
                remove()
            self._removals.clear()
            if not _all:
                _unwrap_backward()
        self._open.close()  # in the middle of forward, say
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

    def _look(self) -> tuple[int, float]:
        """Bytes that live on the model's device, or its first, and the time."""
        look = core().usage_look(next(iter(self._parameters), 0))
        return look["live"], look["now_us"]

    def tells_places(self) -> bool:
        """Whether blocks remember their module or line."""
        return self._modules is not None or self._stacks is not None

    def tell_modules(self) -> None:
        """Says which module has which parameters and state, where modules are told."""
        if self._modules is not None and phases.watching():
            alive = _alive(self._optimizers)
            self._modules.tell(alive)

    # --- categories -------------------------------------------------------------------------
    def tell(self) -> None:
        """Says which blocks are parameters, gradients, buffers and optimizer state now."""
        model = self._model()
        if model is None or not phases.watching():
            return
        self._walk(model)
        _tell(model.buffers(), "buffer")
        self.tell_known()

    def tell_known(self) -> None:
        """The same without walking the model: some microseconds a parameter."""
        model = self._model()
        if model is None or not phases.watching():
            return
        if not self._parameters:
            self._walk(model)
        for device, held in self._parameters.items():
            alive = list(_alive(held))
            if self._sharded:
                _tell(alive, "parameter")
                _tell(_gradients(alive), "gradient")
            else:
                _tell_on(device, alive, "parameter")
                _tell_on(device, list(_gradients(alive)), "gradient")
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                _tell(_state_tensors(optimizer), "optimizer state")

    def _walk(self, model: torch.nn.Module) -> None:
        self._parameters = {}
        self._sharded = False
        kinds = set()
        for parameter in model.parameters():
            if parameter.is_cuda:
                kinds.add(parameter.dtype)
                held = self._parameters.setdefault(parameter.device.index, [])
                held.append(weakref.ref(parameter))
                self._sharded = self._sharded or hasattr(parameter, "_local_tensor")
        plain = self._autocast or not any(_may_autocast(one) for one in model.modules())
        self._float32 = kinds == {_torch.float32} and plain

    def full_precision(self) -> bool:
        """Whether all is computed in float32, as far as is known."""
        return self._float32 and not self._autocast


def _may_autocast(module: Any) -> bool:
    """Whether its forward was wrapped, as accelerate does for autocast, or names that."""
    forward = getattr(type(module), "forward", None)
    code = getattr(forward, "__code__", None)
    replaced = (
        "forward" in vars(module) and "_orig_mod" not in module._modules
    )  # compiled
    return (
        replaced
        or hasattr(forward, "__wrapped__")
        or "autocast" in getattr(code, "co_names", ())
    )


class _Open(threading.local):
    """Phases that hooks entered on this thread."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, bytes | None]] = []

    def enter(self, name: str) -> None:
        self.spans.append((name, phases.enter_anew(name)))

    def close(self) -> bool:
        """Whether a peak is newer than the last telling, where something was open."""
        due = False
        while self.spans:
            span = self.spans.pop()[1]
            due = span is not None and core().usage_leave(span)
        return due


class _Ended:
    """A tracking's hooks in a model that was saved and loaded: they do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    pass


def track(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[Any] | None = None,
    *,
    modules: bool = False,
    stacks: bool = False,
) -> Tracking:
    """Sets the phases of a training step (forward, backward, optimizer, zero_grad,
    evaluation: a forward without gradients) and the category of each block (parameter,
    gradient, optimizer state, buffer, activation), for `report`.

    ``model`` is what the loop calls: the DistributedDataParallel or compiled one where there
    is one. ``optimizer`` is one or several; a step of the first ends a step. The loss counts
    to forward. ``modules``: the report says too which module allocated, forward and backward.
    ``stacks``: and which line, as `torcharena.stacks` does. Until `stop`, ``torch.autograd.backward`` is wrapped and the optimizers'
    ``zero_grad`` too. Raises RuntimeError where the arena is not enabled, TypeError for what
    is no model or optimizer. In a rehearsal of torch's own allocators it does nothing."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"track({_kind(model)}): first the model, one torch.nn.Module, then the optimizer"
        )
    for call in before_track:
        call()
    return begin(model, optimizer, modules=modules, stacks=stacks)


def begin(
    model: torch.nn.Module, optimizer: Any, *, modules: bool = False, stacks: bool = False
) -> Tracking:
    """`track`, on nobody's behalf."""
    optimizers = [_inner(one) for one in _several(optimizer)]
    tracking = Tracking(model, optimizers)
    if modules:
        tracking._modules = Modules(model)
    if stacks:
        tracking._stacks = Stacks()
    if not takes_part("track"):
        return tracking
    phases.start()
    with _lock:
        if not _all:
            _wrap_backward()
        _all.append(tracking)
        _look_at_all()
        try:
            tracking._start()
        except BaseException:
            tracking.stop()
            raise
    return tracking


def _look_at_all() -> None:
    """Of all those under way, what a hook asks in every step."""
    global _torch, _places
    import torch

    _torch = torch
    _places = any(tracking.tells_places() for tracking in _all)


def _kind(value: Any) -> str:
    """What was given, as people call it."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def _several(optimizer: Any) -> list[Any]:
    import torch

    if optimizer is None:
        return []
    if isinstance(optimizer, torch.optim.Optimizer) or not isinstance(
        optimizer, Iterable
    ):
        return [optimizer]
    return list(optimizer.values() if isinstance(optimizer, dict) else optimizer)


def _inner(optimizer: Any) -> Any:
    """The torch optimizer in what frameworks wrap around it."""
    found = optimizer
    while getattr(found, "optimizer", None) is not None:
        found = found.optimizer
    if not hasattr(found, "_optimizer_step_post_hooks"):
        raise TypeError(
            f"track(..., {_kind(optimizer)}): an optimizer of torch.optim's, one that has its "
            f"step hooks, or a list of such"
        )
    return found


# Of a wrapper of zero_grad: what of the same name the optimizer had; whether it has ended.
_OVER, _UNDONE = "_torcharena_over", "_torcharena_undone"


# --- backward and zero_grad -------------------------------------------------------------
def _backward_begins() -> bytes | None:
    if _places:
        core().place_over()
    return phases.enter_anew("backward")


def _backward_ends(span: bytes | None) -> None:
    """Gradients are there from now on. Not so in the middle of a larger backward, which
    computes again what was checkpointed: there all else that it made lives too."""
    if _places:
        core().place_over()
    for tracking in _all:
        tracking.graphs.backward_ends()
    if span is None:
        return
    whole = _torch._C._current_graph_task_id() == -1
    if core().usage_leave(span, None, whole) and whole:
        _tell_known()


def _zero_grad_begins() -> bytes | None:
    """At a new peak says what are gradients still; and an optimizer's state may be another."""
    if core().usage_due():
        _tell_known()
    return phases.enter_anew("zero_grad")


def _wrap_backward() -> None:
    global _original_backward
    import torch

    original = torch.autograd.backward
    _original_backward = original

    @functools.wraps(original)
    def backward(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **named)
        span = _backward_begins()
        try:
            original(*args, **named)
        except BaseException:
            phases.leave(span)
            raise
        _backward_ends(span)

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
    before = optimizer.__dict__.get("zero_grad")
    original = optimizer.zero_grad

    @functools.wraps(original)
    def zero_grad(*args: Any, **named: Any) -> Any:
        span = _zero_grad_begins()
        try:
            return original(*args, **named)
        finally:
            phases.leave(span)

    optimizer.zero_grad = zero_grad
    reference = weakref.ref(optimizer)
    over = {_OVER: before, _UNDONE: False}  # of another tracking, or the program's own
    vars(zero_grad).update(over)

    def undo() -> None:
        vars(zero_grad)[_UNDONE] = True
        held = reference()
        attributes = {} if held is None else held.__dict__
        while getattr(attributes.get("zero_grad"), _UNDONE, False):
            inner = getattr(attributes["zero_grad"], _OVER)
            if inner is None:
                del attributes["zero_grad"]
            else:
                attributes["zero_grad"] = inner

    return undo


# --- blocks of tensors ------------------------------------------------------------------
def tell_all() -> None:
    """Says of every tracked model's blocks what they are, now."""
    for tracking in trackings():
        tracking.tell()
    workspaces.tell()
    core().usage_told()


def _tell_known() -> None:
    for tracking in trackings():
        tracking.tell_known()
    workspaces.tell()
    core().usage_told()


def _tell(tensors: Iterable[Any], category: str) -> None:
    """Where the tensors' memory is on CUDA, it is of this category."""
    by_device: dict[int, list[Any]] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if local.is_cuda:
            by_device.setdefault(local.get_device(), []).append(local)
    for device, found in by_device.items():
        _tell_on(device, found, category)


def _tell_on(device: int, tensors: list[Any], category: str) -> None:
    """The same where they are all on this device."""
    number = phases.CATEGORIES.index(category)
    try:
        addresses = [tensor.data_ptr() for tensor in tensors]
    except RuntimeError:  # one has no storage of its own
        addresses = [0]
    told = core().usage_set_category(device, addresses, number)
    if told < len(addresses):  # views of larger blocks, then: by their storages
        addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        core().usage_set_category(device, addresses, number)


def _gradients(parameters: Iterable[Any]) -> Iterator[Any]:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            yield gradient


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
