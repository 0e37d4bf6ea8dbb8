"""Tracks a rehearsed program that does not track itself: for ``rehearse --report``.

The models are the modules that the program calls itself, not from within another; the
optimizers are those that step. Where the program calls `track`, its own holds."""

from __future__ import annotations

import importlib
import json
import os
import warnings
import weakref
from typing import Any

from ..reports import lines, tracking

__all__ = ["Finder"]

_MOST = 64  # models


class Finder:
    """Finds models and optimizers as they are first used."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.over = False
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()  # modules
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.own: list[tracking.Tracking] = []
        self.steppers = 0
        self.hooks: list[Any] = []

    def start(self) -> None:
        module: Any = importlib.import_module("torch.nn.modules.module")
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        self.hooks = [
            module.register_module_forward_pre_hook(self.on_forward),
            optimizer.register_optimizer_step_pre_hook(self.on_step),
        ]
        # torch.compile says that they run once more for a compiled model: they know it.
        warnings.filterwarnings("ignore", message=".*there are global hooks on modules")
        tracking.before_track.append(self.give_way)
        lines.stacks().start()

    def give_way(self) -> None:
        """The program tracks itself."""
        self.over = True
        for hook in self.hooks:
            hook.remove()
        for one in self.own:
            one.stop()
        self.hooks, self.own = [], []

    def on_forward(self, module: Any, inputs: Any) -> None:
        if self.torch.compiler.is_compiling() or self.over or module in self.known:
            return
        self.known.add(module)
        if any(one.in_forward() for one in self.own) or len(self.own) >= _MOST:
            return
        if next(module.parameters(), None) is None:  # a loss
            return
        self.known.update(module.modules())
        try:
            one = tracking.begin(module, [], modules=True)
        except (RuntimeError, TypeError, AttributeError):  # no hooks: torch.jit's
            return
        self.own.append(one)
        one.enter_now(module, inputs)  # its own hooks are from the next call on

    def on_step(self, optimizer: Any, *_: Any) -> None:
        if self.over or optimizer in self.optimizers:
            return
        self.optimizers.add(optimizer)
        owner = self.owner(optimizer)
        if owner is not None:
            owner.add_optimizer(optimizer, self.steppers)
            self.steppers += 1

    def owner(self, optimizer: Any) -> tracking.Tracking | None:
        """The tracking of the model whose parameters it steps, else the first."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for one in self.own:
            if any(id(p) in stepped for p in one.parameters()):
                return one
        return self.own[0] if self.own else None

    def save(self, folder: str) -> dict[str, Any] | None:
        """Writes each used device's report, the one with the highest peak, to the folder; what
        a rehearsal's text says of it. None where nothing can be told."""
        from ..reports import reporting

        reports = [
            reporting.report(device)
            for device in range(self.torch.cuda.device_count())
            if self.torch.cuda.memory_stats(device).get("allocation.all.allocated")
        ]
        if not reports:
            return None
        most = max(reports, key=lambda one: one.data["peak"]["bytes"])
        target = os.path.join(folder, f"report.{os.getpid()}.json")
        reporting.write_whole(target, json.dumps(most.data).encode())
        peak = most.data["out_of_memory"] or most.data["peak"]
        keys = ("bytes", "requested", "phase", "step", "categories", "phases")
        modules = [
            {key: row[key] for key in ("module", "modules", "peak")}
            for row in most.data["modules"][:5]
        ]
        return {
            **{key: peak[key] for key in keys},
            "modules": modules,
            "growth": most.data["growth"],
            "steps": most.data["steps"],
        }
