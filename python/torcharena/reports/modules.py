"""Which module allocates: `track(..., modules=True)`.

Hooks before and after each module's forward say it of the thread. Autograd's nodes are told
apart by where the forward pass made them: what a module gives back, and what it is given, has
a node each, which says whose it is before it runs. Nodes between those, and the gradients of
parameters, count to the one that ran before them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..loading import core

if TYPE_CHECKING:
    import torch

__all__ = ["Modules", "around_compiled", "folded", "mark", "rows", "runs"]

MOST = 8191  # numbers, as in csrc/core/usage/usage.h; modules beyond count to the one around them
ROWS = 100  # of a report, folded ones
EACH = 2000  # modules in all of them
_MARK = "torcharena"  # in a node's metadata
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_PARALLEL = ("DistributedDataParallel", "DataParallel", "OptimizedModule")

# By number: a module's name, and the one in which those of its kind are one.
_names: list[tuple[str, str]] = [("", "")]
_numbers: dict[str, int] = {}
# Models under way, and what the names of their modules begin with.
_tracked: list[tuple[weakref.ref[Any], str]] = []
_runs: dict[tuple[int, int], Callable[..., None]] = {}


def folded(number: int) -> str:
    """The name of a module and those like it, such as ``blocks.*.attn``; "" for none."""
    return _names[number][1] if number < len(_names) else ""


def runs(module: int, stack: int) -> Callable[..., None]:
    """A node's hook that says where it was made."""
    key = (module, stack)
    found = _runs.get(key)
    if found is None:
        if len(_runs) > 4 * MOST:
            _runs.clear()
        found = _runs[key] = functools.partial(core().place_runs, module, stack)
    return found


def mark(value: Any, module: int, stack: int = 0) -> None:
    """The nodes that made these tensors were made there, but for those that are known."""
    import torch

    if isinstance(value, torch.Tensor):
        node = value.grad_fn
        if node is None:
            return
        known = node.metadata
        if _MARK not in known:
            known[_MARK] = True
            node.register_prehook(runs(module, stack))
    elif isinstance(value, (tuple, list)):
        for one in value:
            mark(one, module, stack)
    elif isinstance(value, dict):
        for one in value.values():
            mark(one, module, stack)


# --- hooks ----------------------------------------------------------------------------------
class _Hook:
    """Of one module. Copies of the model keep it; a saved one does not."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __deepcopy__(self, memo: Any) -> _Hook:
        return self

    def __reduce__(self) -> Any:
        return _Gone, ()


class _Gone:
    """What a hook is once it was saved."""

    def __call__(self, *_: Any) -> None:
        pass


class _Enters(_Hook):
    outermost = False

    def __call__(self, module: Any, args: Any, named: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled():
            around = core().place_now()[0]
            mark(args, around)
            if named:
                mark(named, around)
        core().place_enter(self.number, self.outermost)


class _EntersModel(_Enters):
    outermost = True


class _Leaves(_Hook):
    def __call__(self, module: Any, args: Any, output: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        core().place_leave(self.number)
        if output is not None and torch.is_grad_enabled():
            mark(output, self.number)


class _Compiled:
    """Around what `Module.compile` made of a module, in which hooks are not run."""

    def __init__(self, original: Any, before: Any, after: Any) -> None:
        self.original = original
        self.before = before
        self.after = after

    def __call__(self, *args: Any, **named: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return self.original(*args, **named)
        self.before(None, args, named)
        output = None
        try:
            output = self.original(*args, **named)
        finally:
            self.after(None, args, output)
        return output


def around_compiled(
    module: Any,
    before: Callable[[Any, Any, Any], None],
    after: Callable[[Any, Any, Any], None],
) -> Callable[[], None] | None:
    """Runs these around a module that `Module.compile` has compiled; returns what undoes it,
    None for another module."""
    compiled = module.__dict__.get("_compiled_call_impl")
    if compiled is None:
        return None
    wrapped = _Compiled(compiled, before, after)
    module._compiled_call_impl = wrapped
    reference = weakref.ref(module)

    def undo() -> None:
        held = reference()
        if held is not None and held.__dict__.get("_compiled_call_impl") is wrapped:
            held._compiled_call_impl = compiled

    return undo


class Modules:
    """The hooks of one model's modules."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._removals: list[Callable[[], None]] = []
        self._own: list[tuple[Any, int]] = []  # weak references to modules
        self._model = weakref.ref(model)
        prefix, known = _prefix(model), 0
        whole = prefix or _kind(model)
        if all(name.isdigit() for name in _inner(model)._modules):
            prefix = whole  # of a bare Sequential: numbers alone say nothing
        for path, like, module in _walk(model):
            if not path:
                path = like = whole
            else:
                path, like = _joined(prefix, path), _joined(prefix, like)
            number = _number(path, like)
            number = known if number is None else number
            known = known or number
            self._own.append((weakref.ref(module), number))

    def start(self) -> None:
        """From now on blocks remember the module."""
        core().place_begin()
        self._removals.append(core().place_end)
        self._removals.append(self._forget)
        for index, (reference, number) in enumerate(self._own):
            module = reference()
            enters = (_Enters if index else _EntersModel)(number)
            leaves = _Leaves(number)
            for hook in (
                module.register_forward_pre_hook(enters, prepend=True, with_kwargs=True),
                module.register_forward_hook(leaves, always_call=True),
            ):
                self._removals.append(hook.remove)
            undo = around_compiled(module, enters, leaves)
            if undo is not None:
                self._removals.append(undo)

    def enter_now(self) -> None:
        """The model was called before its hooks were there."""
        if self._own:
            core().place_enter(self._own[0][1], True)

    def stop(self) -> None:
        """Removes every hook. Does nothing the second time."""
        while self._removals:
            self._removals.pop()()

    def _forget(self) -> None:
        _tracked[:] = [one for one in _tracked if one[0] != self._model]

    def tell(self, optimizers: Iterable[Any]) -> None:
        """Parameters, buffers and the optimizer's state count to the module that has them,
        whoever allocated them."""
        owners: dict[Any, int] = {}
        told: list[tuple[Any, int]] = []
        for reference, number in self._own:
            module = reference()
            if module is None:
                continue
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, number)
            told += [(buffer, number) for buffer in module.buffers(recurse=False)]
        told += owners.items()
        for optimizer in optimizers:
            for parameter, state in list(optimizer.state.items()):
                if parameter in owners and isinstance(state, dict):
                    told += [(value, owners[parameter]) for value in state.values()]
        by_device: dict[int, tuple[list[int], list[int]]] = {}
        for tensor, number in told:
            local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
            if getattr(local, "is_cuda", False):
                addresses, numbers = by_device.setdefault(local.device.index, ([], []))
                addresses.append(local.untyped_storage().data_ptr())
                numbers.append(number)
        for device, (addresses, numbers) in by_device.items():
            core().usage_set_modules(device, addresses, numbers)


# --- names ----------------------------------------------------------------------------------
def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else path or prefix


def _prefix(model: Any) -> str:
    """What the names of a model's modules begin with: nothing for the first of those under
    way."""
    _tracked[:] = [one for one in _tracked if one[0]() is not None]
    for reference, prefix in _tracked:
        if reference() is model:
            return prefix
    taken, kind = {prefix for _, prefix in _tracked}, _kind(model)
    found, count = "", 1
    while found in taken:
        found = kind if count == 1 else f"{kind}#{count}"
        count += 1
    _tracked.append((weakref.ref(model), found))
    return found


def _kind(model: Any) -> str:
    """The class of the model in what was wrapped around it."""
    cls = type(_inner(model))
    names = [base.__name__ for base in cls.__mro__]
    return names[2] if names[1:2] == ["FSDPModule"] else cls.__name__


def _number(name: str, like: str) -> int | None:
    found = _numbers.get(name)
    if found is None and len(_names) <= MOST:
        found = _numbers[name] = len(_names)
        _names.append((name, like))
    return found


def _inner(model: Any) -> Any:
    """The model in what was wrapped around it."""
    while (inside := _wrapped(model)) is not None:
        model = inside
    return model


def _wrapped(module: Any) -> Any:
    names = ("module", *_WRAPPERS) if type(module).__name__ in _PARALLEL else _WRAPPERS
    for name in names:
        if name in module._modules:
            return module._modules[name]
    return None


def _walk(model: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, folded name, module), each module once, those around others first; the model's
    own name is empty."""
    import torch

    seen: set[int] = set()
    signatures: dict[int, int] = {}

    def below(module: Any, path: str, like: str) -> Iterator[tuple[str, str, Any]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        if not isinstance(module, torch.jit.ScriptModule):
            yield path, like, module
        inside = _wrapped(module)
        folds = _folds(module, signatures)
        for name, child in module._modules.items():
            if child is None:
                continue
            if child is inside:
                yield from below(child, path, like)
            else:
                shown = folds.get(name, name)
                yield from below(child, _joined(path, name), _joined(like, shown))

    return below(model, "", "")


def _folds(module: Any, signatures: dict[int, int]) -> dict[str, str]:
    """Of a module's children with numbers for names: those that are alike have one name,
    ``*``; where several kinds take turns, ``*Kind``."""
    groups: dict[int, list[str]] = {}
    for name, child in module._modules.items():
        if child is not None and name.isdigit():
            groups.setdefault(_signature(child, signatures), []).append(name)
    large = sorted((g for g in groups.values() if len(g) > 1), key=len, reverse=True)
    kinds = [type(module._modules[group[0]]).__name__ for group in large]
    found = {}
    for place, group in enumerate(large):
        if len(large) == 1:
            star = "*"
        elif kinds.count(kinds[place]) == 1:
            star = f"*{kinds[place]}"
        elif place == 0:
            star = "*"
        else:
            continue
        found.update(dict.fromkeys(group, star))
    return found


def _signature(module: Any, known: dict[int, int]) -> int:
    found = known.get(id(module))
    if found is None:
        shapes = tuple(
            tuple(getattr(p, "shape", ()))
            if type(p).__name__ != "UninitializedParameter"
            else ()
            for p in module._parameters.values()
            if p is not None
        )
        inside = tuple(
            (name, _signature(child, known))
            for name, child in module._modules.items()
            if child is not None
        )
        found = known[id(module)] = hash((type(module).__name__, shapes, inside))
    return found


# --- rows of a report -----------------------------------------------------------------------
Block = tuple[int, int, int, int, int, int, int]
Blocks = list[Block]


def rows(device: int, peak: Blocks, now: Blocks) -> list[dict[str, Any]]:
    """By folded module, those first that hold most at the peak; each with the modules in it.
    Empty where no module was told."""
    allocated = core().usage_modules(device)
    at_peak, here = _by_module(peak), _by_module(now)
    numbers = {*allocated, *at_peak, *here}
    if not numbers - {0}:
        return []
    groups: dict[str, list[dict[str, Any]]] = {}
    for number in sorted(numbers):
        count, total = allocated.get(number, (0, 0))
        name, like = _names[number] if number < len(_names) else ("", "")
        groups.setdefault(like, []).append(
            {
                "module": name,
                "peak": at_peak.get(number, 0),
                "now": here.get(number, 0),
                "allocated": total,
                "allocations": count,
            }
        )
    found = [
        {
            "module": like if len(each) > 1 else each[0]["module"],
            "modules": len(each),
            **{
                key: sum(row[key] for row in each)
                for key in ("peak", "now", "allocated", "allocations")
            },
            "each": each if len(each) > 1 else [],
        }
        for like, each in groups.items()
    ]
    found.sort(key=lambda row: (-row["peak"], -row["allocated"]))
    return _bounded(found)


def _by_module(blocks: Blocks) -> dict[int, int]:
    sums: dict[int, int] = {}
    for block in blocks:
        sums[block[5]] = sums.get(block[5], 0) + block[1]
    return sums


def _bounded(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest rows, and what all the others are in one."""
    kept, rest = found[:ROWS], found[ROWS:]
    left = EACH
    for row in kept:
        if len(row["each"]) > left:
            row["each"] = []
        left -= len(row["each"])
    if rest:
        keys = ("modules", "peak", "now", "allocated", "allocations")
        sums = {key: sum(row[key] for row in rest) for key in keys}
        kept.append({"module": "all others", **sums, "each": []})
    return kept
