"""Makes an operation on memory that sleeps an error, where torch's dispatcher can see it.

A dispatch mode at the very bottom of the stack of the thread that called `sleep`, there only
while something sleeps: whatever mode a program enters or leaves above it, each leaves its own.
Operations that make views touch nothing and pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _python_dispatch as stack
from torch.utils._python_dispatch import TorchDispatchMode

from ..loading import core

__all__ = ["Guard"]

_TOUCH_NOTHING = ("record_stream", "set_", "is_pinned", "_local_scalar_dense_meta")


class Guard(TorchDispatchMode):
    """``names``: of the regions that sleep, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self._passes: dict[Any, bool] = {}

    def watch(self, names: dict[int, str]) -> None:
        """Watches these from now on; none: the mode leaves this thread's stack."""
        there = any(mode is self for mode in stack._get_current_dispatch_mode_stack())
        if bool(names) != there:
            self._put(bool(names))
        self.names = names

    def _put(self, there: bool) -> None:
        """At the bottom, or nowhere; the others keep their order."""
        above = []
        while stack._len_torch_dispatch_stack():
            mode = stack._pop_mode()
            if mode is not self:
                above.append(mode)
        if there:
            stack._push_mode(self)
        for mode in reversed(above):
            stack._push_mode(mode)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self.names and not self._touches_nothing(func):
            for tensor in _cuda_tensors((args, named)):
                self._check(func, tensor)
        return func(*args, **named)

    def _check(self, func: Any, tensor: torch.Tensor) -> None:
        number, sleeps = core().region_of(tensor.untyped_storage().data_ptr())
        if sleeps and number in self.names:
            name = self.names[number]
            raise RuntimeError(
                f"{func._schema.name.split('::')[-1]}: a tensor of the region {name!r}, which "
                f"sleeps; torcharena.wake_up({name!r}) brings it back"
            )

    def _touches_nothing(self, func: Any) -> bool:
        known = self._passes.get(func)
        if known is None:
            schema = func._schema
            returns = [one.alias_info for one in schema.returns]
            views = bool(returns) and all(
                alias is not None and not alias.is_write for alias in returns
            )
            name = schema.name.split("::")[-1]
            known = self._passes[func] = views or name in _TOUCH_NOTHING
        return known


def _cuda_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        local = getattr(value, "_local_tensor", value)
        if local.is_cuda:
            yield local
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _cuda_tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _cuda_tensors(one)
