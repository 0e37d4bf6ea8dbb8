"""Autograd graphs that were never run backward: an evaluation without ``no_grad``. For `track`.

A forward pass is looked at where it is in evaluation mode, or follows another with no backward
between: so the steps of ordinary training are not. Its graph is watched at its outputs and at
the far end of one way through it. What dies there without a backward having passed was for
nothing. What lives is only called so where it cannot be used any more, or all others of its
kind were not: losses that wait to be summed are no waste."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Graphs", "rows_of"]

_OUTPUTS = 16  # that are watched
_DEPTH = 4  # of containers
_LONGEST = 20000  # nodes of a way


@dataclasses.dataclass
class _Pass:
    """A forward pass that is watched."""

    number: int
    step: int
    evaluation: bool
    bytes: int  # that it left behind, its outputs aside
    us: float  # when it was over, as usage counts
    ran: bool = False


class _Watcher:
    """Hangs in a graph, which alone holds it."""

    __slots__ = ("__weakref__", "_graphs", "_pass")

    def __init__(self, graphs: Graphs, one: _Pass) -> None:
        self._graphs = graphs
        self._pass = one

    def __call__(self, gradients: Any) -> None:
        self._pass.ran = True
        if self._pass.evaluation:
            self._graphs.evaluation_ran = True


class Graphs:
    """The forward passes of one tracked model. ``look`` gives the bytes that live on the
    model's device now, and the time; ``tell`` is told how many of them such graphs hold, for the text of
    refusals."""

    def __init__(
        self,
        look: Callable[[], tuple[int, float]],
        tell: Callable[[int], None],
        optimizers: bool,
    ) -> None:
        self._look = look
        self._tell = tell
        self._told = 0
        self.optimizers = optimizers  # steps are theirs
        self._number = self._step = 0
        self._unanswered = False  # no backward since the last forward
        self._training = False  # the mode of the last one
        self._any_ran = self._training_ran = False
        self.evaluation_ran = False
        self._begun: tuple[bool, int] | None = None  # evaluation, live bytes
        self._alive: dict[int, tuple[weakref.ref[_Watcher], _Pass]] = {}
        self._wasted: dict[bool, list[int]] = {}  # by evaluation: passes, most bytes

    # --- what happens -----------------------------------------------------------------------
    def forward_begins(self, module: Any) -> None:
        """With gradients enabled."""
        import torch

        self._begun = None
        if torch._C._current_graph_task_id() != -1:  # recomputed, in backward
            return
        self._number += 1
        if self._alive or self._told:
            wasted = [
                one.bytes for _, one in [*self._alive.values()] if self._is_waste(one)
            ]
            if self._told != sum(wasted):
                self._told = sum(wasted)
                self._tell(self._told)
        if not module.training or self._unanswered:
            self._begun = not module.training, self._look()[0]
        self._unanswered = True
        self._training = module.training

    @property
    def watched(self) -> bool:
        """Whether the forward pass under way is."""
        return self._begun is not None

    def forward_ends(self, output: Any) -> None:
        """``output``: None after an error."""
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        # Not what has no storage or takes no hooks, as within transforms of functions.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._watch(output, *begun)

    def _watch(self, output: Any, evaluation: bool, before: int) -> None:
        outputs = list(_tensors(output))[:_OUTPUTS]
        nodes = [t.grad_fn for t in outputs if t.grad_fn is not None]
        if not nodes:
            return
        sizes = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in outputs
        }
        live, us = self._look()
        left = max(0, live - before - sum(sizes.values()))
        one = _Pass(self._number, self._step, evaluation, left, us)
        watcher = _Watcher(self, one)
        for node in {id(n): n for n in [*nodes, _far_end(nodes[0])]}.values():
            node.register_prehook(watcher)
        key = self._number
        self._alive[key] = weakref.ref(watcher, lambda _: self._gone(key)), one

    def _gone(self, key: int) -> None:
        _, one = self._alive.pop(key)
        if not one.ran:
            wasted = self._wasted.setdefault(one.evaluation, [0, 0])
            wasted[0] += 1
            wasted[1] = max(wasted[1], one.bytes)

    def backward_ends(self) -> None:
        self._unanswered = False
        self._any_ran = True
        self._training_ran = self._training_ran or self._training

    def step_ends(self) -> None:
        self._step += 1

    # --- what is known ----------------------------------------------------------------------
    def _is_waste(self, one: _Pass) -> bool:
        """Lives, has not run, and will not: parameters have changed since, or this program
        never runs those of its kind."""
        if one.ran or one.number == self._number:
            return False
        if one.step < self._step:
            return True
        if one.evaluation and self._training_ran:
            return not self.evaluation_ran
        return not self.optimizers and not self._any_ran

    def held_since_before(self, us: float) -> int:
        """Bytes of graphs that were made before then, live, and will not run."""
        alive = [one for _, one in [*self._alive.values()] if self._is_waste(one)]
        return sum(one.bytes for one in alive if one.us < us)

    def rows(self) -> list[dict[str, Any]]:
        """By mode of the model: how many ``passes``, the most ``bytes`` that one left behind;
        how many of them are ``alive``, and the bytes of those."""
        found = []
        for evaluation in (True, False):
            passes, largest = self._wasted.get(evaluation, (0, 0))
            alive = [
                one
                for _, one in list(self._alive.values())
                if one.evaluation == evaluation and self._is_waste(one)
            ]
            if passes or alive:
                found.append(
                    {
                        "mode": "evaluation" if evaluation else "training",
                        "passes": passes + len(alive),
                        "bytes": max([largest, *(one.bytes for one in alive)]),
                        "alive": len(alive),
                        "alive_bytes": sum(one.bytes for one in alive),
                    }
                )
        return found


def rows_of(several: list[Graphs]) -> list[dict[str, Any]]:
    """The rows of all models."""
    found: dict[str, dict[str, Any]] = {}
    for row in (row for graphs in several for row in graphs.rows()):
        had = found.setdefault(row["mode"], {**row, "bytes": 0} | dict.fromkeys(_SUMS, 0))
        had["bytes"] = max(had["bytes"], row["bytes"])
        for key in _SUMS:
            had[key] += row[key]
    return list(found.values())


_SUMS = ("passes", "alive", "alive_bytes")


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """CUDA tensors in what a forward pass gave."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for one in list(value.values() if isinstance(value, dict) else value):
            yield from _tensors(one, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name, None), depth - 1)


def _far_end(node: Any) -> Any:
    """The last node of one way towards the inputs, the leaves aside."""
    for _ in range(_LONGEST):
        further = None
        for follower, _index in node.next_functions:
            if follower is not None and follower.name() != _LEAF:
                further = follower
                break
        if further is None:
            return node
        node = further
    return node


_LEAF = "torch::autograd::AccumulateGrad"
