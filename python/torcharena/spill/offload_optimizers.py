"""Optimizer state in host memory, updated in place by the GPU: `offload_optimizer`.

The state's tensors stay CUDA tensors, at other addresses: what the optimizer does with them is
the same, bit for bit. Each moves when it is put into the state, so that never more than one of
them is on the device."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..loading import warn
from ..sizes import format_size
from ..state import takes_part
from . import regions
from .host_tensors import ArenaTensors, HostTensors, host_tensors

if TYPE_CHECKING:
    import torch

__all__ = [
    "host_bytes",
    "inner",
    "is_whole",
    "offload_optimizer",
    "onload_optimizer",
    "share",
    "state_bytes",
]

T = TypeVar("T")
Self = TypeVar("Self", bound="_Watched")

LEAST = (
    64 << 10
)  # bytes; smaller tensors stay: they save nothing, and each is a read far away
_REGION = "torcharena.optimizer_state"
_OURS = 3  # references to a state that nobody else holds: the states, the containers, the call

_offloaded: weakref.WeakKeyDictionary[Any, _Offloaded] = weakref.WeakKeyDictionary()


def offload_optimizer(optimizer: T) -> T:
    """Keeps the optimizer's state in host memory from now on; returns the optimizer.

    Any of torch.optim's, and others that keep their tensors in ``state``: what is there
    moves now, what is created later moves when it is. Tensors of less than 64 KiB stay on the
    device. State dicts, checkpoints and `load_state_dict`, before or after, are as ever.
    A fused optimizer (``fused=True``) reads and writes each byte once a step; foreach ones
    several times. `onload_optimizer` takes it back.

    Raises RuntimeError where the arena is not enabled or was given no host memory
    (``spill=``), TypeError for what is no optimizer, torch.OutOfMemoryError where host memory
    does not suffice. In a rehearsal of torch's own allocators it does nothing."""
    found = inner(optimizer, "offload_optimizer")
    if not takes_part("offload_optimizer"):
        return optimizer
    host = host_tensors("offload_optimizer", _REGION)
    offloaded = _offloaded.get(found)
    if offloaded is None:
        offloaded = _Offloaded(found, host)
        offloaded.begin()
        _offloaded[found] = offloaded
    elif offloaded.most is not None:
        offloaded.share(None)
    return optimizer


def share(optimizer: Any, device: int, most: int) -> None:
    """So many bytes of the device's state are on the host, at most: what is too much there
    comes back, what there is room for goes, now and when it is made. Raises as
    `offload_optimizer`; what has not moved by then is where it was."""
    offloaded = _offloaded.get(optimizer)
    if offloaded is None:
        host = host_tensors("offload_optimizer", _REGION)
        offloaded = _Offloaded(optimizer, host, {device: most})
        offloaded.begin()
        _offloaded[optimizer] = offloaded
    elif offloaded.most is not None:
        offloaded.share(offloaded.most | {device: most})


def onload_optimizer(optimizer: T) -> T:
    """Takes `offload_optimizer` back: the state returns to the device. Returns the optimizer;
    does nothing for one whose state is there. Raises torch.OutOfMemoryError where there is no
    room: what has not come back stays on the host and in use."""
    found = inner(optimizer, "onload_optimizer")
    offloaded = _offloaded.get(found)
    if offloaded is not None:
        offloaded.end()
        del _offloaded[found]
    return optimizer


def host_bytes(optimizer: Any, device: int | None = None) -> int:
    """Bytes of the optimizer's state that are on the host; of one device, or of all."""
    offloaded = _offloaded.get(optimizer)
    if offloaded is None:
        return 0
    found = offloaded.count()
    return sum(found.values()) if device is None else found.get(device, 0)


def state_bytes(optimizer: Any, device: int) -> int:
    """Bytes of the state that are on the host or could be, of one device."""
    local = [_local(tensor) for tensor in _tensors(list(optimizer.state.values()))]
    return sum(
        one.nbytes
        for one in local
        if one.is_cuda and one.device.index == device and one.nbytes >= LEAST
    )


def is_whole(optimizer: Any) -> bool:
    """Whether all of its state is to be on the host: the program's own choice."""
    offloaded = _offloaded.get(optimizer)
    return offloaded is not None and offloaded.most is None


def inner(optimizer: Any, what: str) -> Any:
    """The torch optimizer in what frameworks wrap around it."""
    found = optimizer
    while getattr(found, "optimizer", None) is not None:
        found = found.optimizer
    if not hasattr(found, "register_step_post_hook") or not hasattr(found, "state"):
        raise TypeError(
            f"{what}({type(optimizer).__name__}): an optimizer has a state and step hooks, as "
            "those of torch.optim do"
        )
    return found


class _Watched(dict[Any, Any]):
    """Whatever is put in, by any way that a dictionary has, is taken to the host. Copies and
    pickles are plain dictionaries."""

    home: _Offloaded | None = None

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.home is None:
            return super().__setitem__(key, value)
        before = self.get(key)
        self.home.take(value, another=value is not before)
        super().__setitem__(key, value)
        if value is not before:
            self.home.leaves(before)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self: Self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def _loses(self) -> None:
        if self.home is not None:
            self.home.lost = True

    def __delitem__(self, key: Any) -> None:
        self._loses()
        super().__delitem__(key)

    def pop(self, *arguments: Any) -> Any:
        self._loses()
        return super().pop(*arguments)

    def popitem(self) -> tuple[Any, Any]:
        self._loses()
        return super().popitem()

    def clear(self) -> None:
        self._loses()
        super().clear()


class _OfParameter(_Watched):
    """The state of one parameter."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def copy(self) -> dict[Any, Any]:
        return dict(self)


class _States(_Watched, defaultdict[Any, Any]):
    """An optimizer's ``state``."""

    def __init__(self, home: _Offloaded) -> None:
        defaultdict.__init__(self, dict)
        self.home = home

    def __missing__(self, key: Any) -> Any:
        self.watch(key, {})
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, _OfParameter) and value.home is not self.home:
            self.watch(key, value)  # another optimizer's
        else:
            super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if type(default) is dict and key not in self:
            self.watch(key, default)  # the program goes on with what this returns
        return super().setdefault(key, default)

    def watch(self, key: Any, value: Any) -> None:
        """The same, by a dictionary of ours where ``value`` is one. One that the program puts
        in is its own until a step ends and it no longer holds on to it: it may fill it."""
        if type(value) in (dict, _OfParameter):
            of_parameter = _OfParameter()
            of_parameter.home = self.home
            of_parameter.update(value)
            value = of_parameter
        dict.__setitem__(self, key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = {key: _plain(value) for key, value in self.items()}
        return defaultdict, (dict, plain)

    def copy(self) -> Any:
        return defaultdict(dict, {key: _plain(value) for key, value in self.items()})

    __copy__: Any = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, _OfParameter) else value


class _Offloaded:
    """What `offload_optimizer` began."""

    def __init__(
        self, optimizer: Any, host: HostTensors, most: dict[int, int] | None = None
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.host = host
        self.most = most  # bytes on the host, by device; None: all
        self._there: dict[int, int] = {}  # of them, where there is a most
        self._containers: list[Any] = []  # tensors come into them by ways we do not see
        self._removals: list[Callable[[], None]] = []
        self._loading = False
        self.lost = (
            False  # something left the state, and may be counted in `_there` still
        )
        self.shared = 0  # bytes that stay on the device, others having them too

    def begin(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        self._adopt(optimizer)
        if self.shared:
            warn(
                f"torcharena.offload_optimizer: {format_size(self.shared)} of the state stay "
                "on the device: the program has other tensors over the same bytes",
                once=False,
            )
        self._removals += [
            optimizer.register_step_post_hook(self._step_ends).remove,
            optimizer.register_state_dict_post_hook(_state_dict_is_plain).remove,
            _wrap_load(optimizer, self),
        ]

    def _adopt(self, optimizer: Any) -> None:
        """The optimizer's state is one of ours, with what was in it."""
        self._there = {}
        states = _States(self)
        for key, value in optimizer.state.items():
            if type(value) not in (dict, _OfParameter):
                self.take(value)
            states.watch(key, value)
        optimizer.state = states

    def count(self) -> dict[int, int]:
        """Bytes on the host, by device."""
        optimizer = self._optimizer()
        assert optimizer is not None
        found: dict[int, int] = {}
        for tensor in _tensors(list(optimizer.state.values())):
            local = _local(tensor)
            if local.is_cuda and self.host.holds(local):
                index = int(local.device.index)
                found[index] = found.get(index, 0) + local.nbytes
        return found

    def share(self, most: dict[int, int] | None) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        self.most, self._there = most, self.count()
        tensors = list(_tensors(list(optimizer.state.values())))
        if most is not None:
            for tensor in reversed(tensors):
                local = _local(tensor)
                if not local.is_cuda or not self.host.holds(local):
                    continue
                index = int(local.device.index)
                if self._there[index] > most.get(index, 0):
                    _move(local, _on_device(local))
                    self._there[index] -= local.nbytes
        for tensor in tensors:
            self.take(tensor)

    def _has_room(self, local: torch.Tensor) -> bool:
        """Whether it may be on the host; it is counted there from now on."""
        if self.most is None:
            return True
        index = int(local.device.index)
        if self.lost:
            self.lost, self._there = False, self.count()
        there = self._there.get(index, 0) + local.nbytes
        if there > self.most.get(index, 0):
            return False
        self._there[index] = there
        return True

    def end(self) -> None:
        optimizer = self._optimizer()
        assert optimizer is not None
        for tensor in _tensors(list(optimizer.state.values())):
            local = _local(tensor)
            if local.is_cuda and self.host.holds(local):
                _move(local, _on_device(local))
        for remove in self._removals:
            remove()
        states: defaultdict[Any, Any] = defaultdict(dict)
        states.update({key: _plain(value) for key, value in optimizer.state.items()})
        optimizer.state = states

    def leaves(self, value: Any) -> None:
        """Another is in its place in the state now."""
        import torch

        if self.most is None or self.lost:
            return
        if not isinstance(value, torch.Tensor):
            self.lost = isinstance(value, (list, tuple, dict))
            return
        local = _local(value)
        if local.is_cuda and self.host.holds(local):
            index = int(local.device.index)
            self._there[index] = max(0, self._there.get(index, 0) - local.nbytes)

    def take(self, value: Any, *, another: bool = False) -> None:
        """What is put into the state: large tensors on the device go to the host, in place.
        ``another``: it may be in the state already, at another place."""
        import torch

        if isinstance(value, torch.Tensor):
            local = _local(value)
            if not local.is_cuda or local.layout != torch.strided:
                return
            if torch.cuda.is_current_stream_capturing():
                return
            if isinstance(value, torch.nn.Parameter) or not local.nbytes:
                return
            storage = local.untyped_storage()
            if storage.nbytes() < LEAST:
                if self.host.holds(local):  # where load_state_dict put it
                    _move(local, _on_device(local))
            elif self.host.holds(local):
                if self._loading and not self._has_room(local):
                    _move(local, _on_device(local))
                self.lost |= another
            else:
                if storage.nbytes() != local.nbytes or not _is_alone(local):
                    self.shared += local.nbytes
                elif self._has_room(local):
                    _move(local, self.host.like(local))
        elif isinstance(value, (list, tuple, dict)):
            if not any(value is one for one in self._containers):
                self._containers.append(value)
            for one in _tensors(value):
                self.take(one, another=another)

    def _adopt_another(self, optimizer: Any) -> None:
        """The program, or load_state_dict, put another ``state`` in the place of ours."""
        self._loading = True  # of its tensors some may be on the host
        try:
            self._adopt(optimizer)
        finally:
            self._loading = False

    def _step_ends(self, optimizer: Any, *_: Any) -> None:
        if not isinstance(optimizer.state, _States):
            self._adopt_another(optimizer)
        if self._containers:
            held, self._containers = self._containers, []
            states = optimizer.state
            for key in list(states):
                if isinstance(states[key], _OfParameter):
                    continue
                if type(states[key]) is dict and sys.getrefcount(states[key]) <= _OURS:
                    states.watch(key, states[key])
                elif isinstance(states[key], dict):
                    self.take(states[key])
            there = [
                value
                for state in states.values()
                for value in (state.values() if isinstance(state, dict) else (state,))
            ]
            for container in held:
                if any(container is value for value in there):
                    self.take(container)

    def load(self, original: Callable[..., Any], args: Any, named: Any) -> Any:
        """load_state_dict, with what it allocates on the host."""
        optimizer = self._optimizer()
        assert optimizer is not None
        try:
            if isinstance(self.host, ArenaTensors):
                with regions.inside(self.host.number):
                    return original(optimizer, *args, **named)
            return original(optimizer, *args, **named)
        finally:
            if not isinstance(optimizer.state, _States):
                self._adopt_another(optimizer)


def _wrap_load(optimizer: Any, offloaded: _Offloaded) -> Callable[[], None]:
    before = optimizer.__dict__.get("load_state_dict")
    # Bound to nothing: what is offloaded must not keep its optimizer alive.
    original = getattr(optimizer.load_state_dict, "__func__", None)
    if original is None:  # wrapped already, by somebody else
        inside = optimizer.load_state_dict

        def original(self: Any, *args: Any, **named: Any) -> Any:
            return inside(*args, **named)

    @functools.wraps(original)
    def load_state_dict(*args: Any, **named: Any) -> Any:
        return offloaded.load(original, args, named)

    optimizer.load_state_dict = load_state_dict
    reference = weakref.ref(optimizer)

    def undo() -> None:
        held = reference()
        if held is not None and held.__dict__.get("load_state_dict") is load_state_dict:
            if before is None:
                del held.load_state_dict
            else:
                held.load_state_dict = before

    return undo


def _state_dict_is_plain(optimizer: Any, found: dict[str, Any]) -> dict[str, Any]:
    state = {key: _plain(value) for key, value in found["state"].items()}
    return {**found, "state": state}


# --- tensors --------------------------------------------------------------------------------
def _local(tensor: Any) -> torch.Tensor:
    """A DTensor's own part."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _move(tensor: torch.Tensor, to: torch.Tensor) -> None:
    """The tensor keeps its identity, and its bytes are where ``to``'s are."""
    import torch

    with torch.no_grad():
        to.copy_(tensor, non_blocking=True)
        # What it leaves may be of another stream, which does not wait for the copy.
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
        tensor.data = to


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(tensor, memory_format=torch.preserve_format)


def _uses(tensor: torch.Tensor) -> int:
    import torch

    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata))


@functools.lru_cache(maxsize=1)
def _alone() -> int:
    import torch

    return _uses(torch.empty(1))


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether nothing else has the tensor's storage: it would not move with it."""
    return _uses(tensor) <= _alone()
