"""Puts back what a function may have changed: `Rollback`, for `batches`.

It looks at all that the function can reach by name: closures, the globals that its code
names, defaults, a bound method's object, arguments, and what those hold in turn. Contents of
tensors are kept as copies on the host and written back in place, so that addresses stay;
containers, modules, optimizers, schedulers and objects of the program's own classes get the
very values back that they had. Objects of installed libraries are looked through for models
and optimizers, and otherwise left alone."""

from __future__ import annotations

import collections
import dis
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .switches import Switches

__all__ = ["RandomState", "Rollback"]

_MOST = 200_000  # objects looked at
_LARGE_ON_HOST = 64 << 20  # bytes; a larger one there is watched, not copied
# Not state, or of the interpreter's own.
_PLAIN = (
    int, float, complex, str, bytes, type(None), range, slice, property,
    types.BuiltinFunctionType, types.MemberDescriptorType, types.CodeType, types.FrameType, types.TracebackType,
    types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, BaseException,
)  # fmt: skip
# Of torch, what may hold a model, an optimizer, or state of training.
_LOOKED_THROUGH = (
    "torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.utils.data",
    "torch.distributed.fsdp", "torch.distributed.optim",
)  # fmt: skip
_WITH_STATE_BELOW = (
    "torch.distributed",
    "torch.nn.parallel",
    "torch.jit",
    "torch._dynamo",
)
_Undo = Callable[[], None]


class RandomState:
    """Every generator's that a program draws from by default: torch's on the CPU and on CUDA
    devices, numpy's, Python's."""

    def __init__(self) -> None:
        import torch

        self.python = random.getstate()
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if _cuda_is_up() else []
        numpy = _numpy()
        self.numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        """Leaves the generators of devices that came up since as they are."""
        import torch

        random.setstate(self.python)
        torch.set_rng_state(self.cpu)
        for device, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, device)
        numpy = _numpy()
        if self.numpy is not None and numpy is not None:
            numpy.random.set_state(self.numpy)


class Rollback:
    """The state of all that ``roots`` reach, now; `restore` puts it back, as often as one
    likes. ``host_bytes``: what the copies take. ``notes``: what is not kept, for people."""

    def __init__(self, *roots: Any) -> None:
        self.host_bytes = 0
        self.notes: list[str] = []
        self.reaches_cuda = False
        self.replicas: list[Any] = []  # DistributedDataParallel modules
        self._sharded: list[Any] = []
        self._bindings: list[
            _Undo
        ] = []  # before contents, so that tensors are there again
        self._contents: list[_Undo] = []
        self._seen: dict[int, Any] = {}  # held, so that no id comes twice
        self._storages: set[tuple[str, int]] = set()
        self._ours: deque[Any] = deque(roots)
        self._others: deque[Any] = deque()
        self._walk()
        self._seen.clear()
        self._switches = Switches()
        self._random = RandomState()

    def restore(self) -> None:
        """In place. The caller has waited for the device."""
        import torch

        self._switches.restore()
        for module in self._sharded:
            module.reshard()
        with torch.no_grad():
            for undo in self._bindings:
                undo()
            for undo in self._contents:
                undo()
        self._random.restore()

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # --- what is reached ------------------------------------------------------------------
    def _walk(self) -> None:
        while self._ours or self._others:
            ours = bool(self._ours)
            value = (self._ours or self._others).popleft()
            if isinstance(value, _PLAIN) or id(value) in self._seen:
                continue
            if len(self._seen) >= _MOST:
                self.note(f"of what it reaches {_MOST:,} objects, and not the rest")
                return
            self._seen[id(value)] = value
            self._look(value, self._ours if ours else self._others)

    def _look(self, value: Any, then: deque[Any]) -> None:
        import torch

        ours = then is self._ours
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, types.FunctionType):
            self._function(value, then)
        elif isinstance(value, types.MethodType):
            then += [value.__self__, value.__func__]
        elif isinstance(value, (staticmethod, classmethod)):
            then.append(value.__func__)
        elif isinstance(value, functools.partial):
            then += [value.func, value.args, value.keywords]
        elif isinstance(value, type):
            if not _is_library(value.__module__):
                self._attributes_of_class(value)
        elif isinstance(value, types.ModuleType):
            pass
        elif isinstance(value, _known_state()):
            self._state(value)
        elif isinstance(value, torch.Generator):
            self._generator(value.get_state, value.set_state)
        elif isinstance(value, random.Random):
            self._generator(value.getstate, value.setstate)
        elif isinstance(value, (dict, list, set, deque, tuple, frozenset)):
            self._container(value, then, ours)
        elif not self._numbers(value):
            self._object(value, then, ours)

    def _state(self, value: Any) -> None:
        """A module, an optimizer or a schedule."""
        import torch

        if type(value).__module__.startswith(_WITH_STATE_BELOW):
            # What a wrapper keeps elsewhere has moved on: its own attributes stay with it.
            held = vars(value)
            for name in ("_parameters", "_buffers", "_modules"):
                self._ours += list(held.get(name, {}).values())
            if "training" in held:
                undo = functools.partial(_put_in, held, "training", held["training"])
                self._bindings.append(undo)
            if isinstance(value, torch.nn.parallel.DistributedDataParallel):
                self.replicas.append(value)
            if hasattr(value, "reshard"):  # fully_shard's, whose parameters come and go
                self._sharded.append(value)
            return
        self._dictionary(value.__dict__)
        self._ours += list(value.__dict__.values())
        self._ours.append(type(value))

    def _container(self, value: Any, then: deque[Any], ours: bool) -> None:
        if isinstance(value, dict):
            if "__builtins__" in value:  # a module's own
                return
            if ours:
                self._dictionary(value)
            then += [*dict.keys(value), *dict.values(value)]
            return
        if ours and isinstance(value, list):
            self._bindings.append(functools.partial(_refill_list, value, list(value)))
        elif ours and isinstance(value, (set, deque)):
            self._bindings.append(functools.partial(_refill, value, list(value)))
        then += list(value)

    def _object(self, value: Any, then: deque[Any], ours: bool) -> None:
        kind = type(value)
        library = _is_library(kind.__module__)
        if library and kind.__module__.startswith("torch"):
            if not kind.__module__.startswith(_LOOKED_THROUGH):
                return
        elif library and kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            return
        if library:
            then = self._others
        else:
            then.append(kind)
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            if ours and not library:
                self._dictionary(held)
            then += list(held.values())
        for name in () if library else _slots(kind):
            found = getattr(value, name, _MISSING)
            then.append(found)
            if ours:
                undo = functools.partial(_put_attribute, value, name, found)
                self._bindings.append(undo)

    def _dictionary(self, value: dict[Any, Any]) -> None:
        self._bindings.append(
            functools.partial(_refill_dictionary, value, dict(_items(value)))
        )

    def _attributes_of_class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            method = isinstance(value, (types.FunctionType, staticmethod, classmethod))
            if method or not name.startswith("__"):
                self._ours.append(value)
        kept = {k: v for k, v in vars(kind).items() if not k.startswith("__")}
        self._bindings.append(functools.partial(_restore_class, kind, kept))

    # --- functions ------------------------------------------------------------------------
    def _function(self, fn: types.FunctionType, then: deque[Any]) -> None:
        for cell in fn.__closure__ or ():
            found = _inside(cell)
            self._bindings.append(functools.partial(_put_in_cell, cell, found))
            then.append(found)
        then += [fn.__defaults__, fn.__kwdefaults__, *vars(fn).values()]
        space = fn.__globals__
        if _is_library(space.get("__name__", "")):
            return
        for code in _codes(fn.__code__):
            for name in code.co_names:
                found = space.get(name)
                then.append(found)
                if isinstance(found, types.ModuleType) and not _is_library(
                    found.__name__
                ):
                    then += [vars(found).get(inner) for inner in code.co_names]
            for step in dis.get_instructions(code):
                if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                    name = str(step.argval)
                    kept = space.get(name, _MISSING)
                    undo = functools.partial(_put_in, space, name, kept)
                    self._bindings.append(undo)

    # --- contents -------------------------------------------------------------------------
    def _tensor(self, tensor: Any) -> None:
        import torch

        self.reaches_cuda = self.reaches_cuda or tensor.is_cuda
        inner = getattr(tensor, "__tensor_flatten__", None)
        if tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
            return
        if inner is not None:  # a DTensor, a quantised one
            for name in inner()[0]:
                self._ours.append(getattr(tensor, name))
        elif tensor.layout is torch.sparse_coo:
            self._ours += [tensor._indices(), tensor._values()]
        elif tensor.layout is not torch.strided:
            self.note(f"a tensor of layout {tensor.layout}")
        else:
            self._storage(tensor)
        if tensor.is_leaf:
            grad = tensor.grad
            if grad is not None:
                self._ours.append(grad)
            data = tensor.data if inner is None and tensor.requires_grad else None
            undo = functools.partial(_put_leaf, tensor, data, grad, tensor.requires_grad)
            self._bindings.append(undo)

    def _storage(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        key = (str(tensor.device), storage.data_ptr())
        if size == 0 or storage.data_ptr() == 0 or key in self._storages:
            return
        trained = tensor.requires_grad or isinstance(tensor, _parameter())
        if size > _LARGE_ON_HOST and not tensor.is_cuda and not trained:
            before = _version(tensor)
            self._contents.append(lambda: self._watched(tensor, before))
            return
        self._storages.add(key)
        kept = storage.cpu() if tensor.is_cuda else storage.clone()
        self.host_bytes += size
        self._contents.append(functools.partial(_refill_storage, storage, kept, size))

    def _watched(self, tensor: Any, before: int | None) -> None:
        if before is not None and _version(tensor) != before:
            self.note(
                f"a tensor on the host of {tensor.untyped_storage().nbytes() >> 20} MiB, "
                "which it changed"
            )

    def _generator(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        kept = get()
        self._contents.append(lambda: put(kept) and None)

    def _numbers(self, value: Any) -> bool:
        """numpy's arrays and generators."""
        numpy = _numpy()
        if numpy is None:
            return False
        if isinstance(value, numpy.ndarray):
            if value.dtype == object:
                return True
            if value.nbytes > _LARGE_ON_HOST:
                self.note(f"a numpy array of {value.nbytes >> 20} MiB, if it changed it")
            elif value.flags.writeable:
                self.host_bytes += value.nbytes
                kept = value.copy()
                self._contents.append(lambda: numpy.copyto(value, kept))
            return True
        if isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            kept_state = bits.state
            self._contents.append(lambda: setattr(bits, "state", kept_state))
            return True
        if isinstance(value, numpy.random.RandomState):
            self._generator(value.get_state, value.set_state)
            return True
        return isinstance(value, numpy.generic)


# --- putting back -------------------------------------------------------------------------
_MISSING: Any = object()


def _refill_dictionary(value: dict[Any, Any], kept: dict[Any, Any]) -> None:
    same = len(value) == len(kept) and all(
        one is other and mine is theirs
        for (one, mine), (other, theirs) in zip(_items(value), kept.items(), strict=True)
    )
    if same:
        return
    kind = _kind(value)
    kind.clear(value)
    for key, one in kept.items():
        kind.__setitem__(value, key, one)


def _kind(value: dict[Any, Any]) -> Any:
    """Whose methods change it, past what its class may have made of them."""
    ordered = collections.OrderedDict
    return ordered if isinstance(value, ordered) else dict


def _items(value: dict[Any, Any]) -> Any:
    return _kind(value).items(value)


def _refill_list(value: list[Any], kept: list[Any]) -> None:
    if len(value) != len(kept) or any(
        one is not other for one, other in zip(value, kept, strict=True)
    ):
        list.__setitem__(value, slice(None), kept)


def _refill(value: Any, kept: list[Any]) -> None:
    kind = set if isinstance(value, set) else deque
    if len(value) == len(kept) and all(
        one is other for one, other in zip(kind.__iter__(value), kept, strict=True)
    ):
        return
    kind.clear(value)
    for one in kept:
        value.add(one) if kind is set else value.append(one)


def _refill_storage(storage: Any, kept: Any, size: int) -> None:
    if storage.nbytes() != size:
        storage.resize_(size)
    storage.copy_(kept)


def _put_leaf(tensor: Any, data: Any, grad: Any, requires_grad: bool) -> None:
    if data is not None and (
        tensor.data_ptr() != data.data_ptr() or tensor.dtype != data.dtype
    ):
        tensor.grad = None  # it need not match what comes
        tensor.data = data
    if tensor.grad is not grad:
        tensor.grad = grad
    if tensor.is_leaf and tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)


def _put_in(space: dict[str, Any], name: str, kept: Any) -> None:
    if kept is _MISSING:
        space.pop(name, None)
    elif space.get(name, _MISSING) is not kept:
        space[name] = kept


def _put_attribute(value: Any, name: str, kept: Any) -> None:
    now = getattr(value, name, _MISSING)
    if now is kept:
        return
    if kept is _MISSING:
        object.__delattr__(value, name)
    else:
        object.__setattr__(value, name, kept)


def _put_in_cell(cell: types.CellType, kept: Any) -> None:
    if _inside(cell) is kept:
        return
    if kept is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = kept


def _restore_class(kind: type, kept: dict[str, Any]) -> None:
    for name in [n for n in vars(kind) if not n.startswith("__") and n not in kept]:
        delattr(kind, name)
    for name, value in kept.items():
        if vars(kind).get(name, _MISSING) is not value:
            setattr(kind, name, value)


# --- kinds of things ----------------------------------------------------------------------
@functools.cache
def _known_state() -> tuple[type, ...]:
    """Classes, of whatever library, whose objects are state of training."""
    import torch

    return (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
        torch.optim.lr_scheduler.ReduceLROnPlateau,
        torch.amp.GradScaler,
    )


def _parameter() -> Any:
    import torch

    return torch.nn.Parameter


def _numpy() -> Any:
    """numpy, where the program uses it."""
    found = sys.modules.get("numpy")
    return found if hasattr(found, "random") else None


def _cuda_is_up() -> bool:
    from ..state import cuda_is_initialized

    return cuda_is_initialized()


def _version(tensor: Any) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _inside(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _MISSING


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _slots(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        names = one.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                hidden = name.startswith("__") and not name.endswith("__")
                yield f"_{one.__name__.lstrip('_')}{name}" if hidden else name


@functools.cache
def _is_library(module: str) -> bool:
    """Installed, or of Python itself: not the program's own."""
    root = module.partition(".")[0]
    if root in ("__main__", ""):
        return False
    if root in sys.stdlib_module_names or root in ("torch", "torcharena"):
        return True
    found = sys.modules.get(root)
    places = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
    return any(
        place and ("site-packages" in place or "dist-packages" in place)
        for place in places
    )
