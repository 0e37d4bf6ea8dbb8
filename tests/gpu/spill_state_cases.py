"""Host memory, cases of what is copied, saved, put in by odd ways, forked, or finds no room.

python spill_state_cases.py NAME [ARGUMENT...]"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import signal
import sys
import threading
from collections import defaultdict
from typing import Any

import spill_cases
import torch
import torcharena
from cases import assert_sound
from spill_cases import Net, adamw, same, start, train
from spill_more_cases import on_host
from torch import nn
from torcharena.spill import offload_optimizers, offload_saved


def together(*cases: str) -> None:
    for name in cases:
        setattr(spill_cases, name, globals()[name])
    spill_cases.together(*cases)


def _saved(value: Any) -> Any:
    """By torch.save and torch.load; there is nothing of ours in it."""
    held = io.BytesIO()
    torch.save(value, held)
    assert b"torcharena" not in held.getvalue()
    held.seek(0)
    return torch.load(held, weights_only=False)


def _pickled(value: Any) -> Any:
    text = pickle.dumps(value)
    assert b"torcharena" not in text
    return pickle.loads(text)


def _a_step(model: nn.Module, optimizer: Any) -> None:
    torch.manual_seed(3)
    model(torch.randn(64, spill_cases.WIDTH).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _moments(optimizer: Any) -> list[torch.Tensor]:
    return [state["exp_avg"] for state in optimizer.state.values()]


def copies() -> None:
    """Models and optimizers copied, pickled and saved whole are as they would be without us, and
    train on alike; what they are copies of stays offloaded."""
    start()
    offload_optimizers.LEAST = 1
    model = Net().cuda()
    optimizer = adamw(model.parameters())
    with torcharena.auto_offload(model, optimizer) as auto:
        torcharena.offload_optimizer(optimizer)
        for _ in range(2):
            _a_step(model, optimizer)
        ways = {"saved": _saved, "pickled": _pickled, "copied": copy.deepcopy}
        made = {name: way((model, optimizer)) for name, way in ways.items()}
        shallow = [dict(optimizer.state | {}), dict(optimizer.state.copy())]
        shallow.append(dict(copy.copy(optimizer.state)))
        assert all({type(one) for one in held.values()} == {dict} for held in shallow)
        seen = auto._forwards
        for name, (other, its) in made.items():
            assert type(its.state) is defaultdict, name
            assert not on_host(_moments(its)[0]), name
            _a_step(other, its)
            assert auto._forwards == seen, (
                f"the model {name} is taken for the one watched"
            )
        _a_step(model, optimizer)
        assert auto._forwards == seen + 1
        assert all(map(on_host, _moments(optimizer)))
        parameters = [p.cpu() for p in model.parameters()]
        for other, its in made.values():
            for one, two in zip(parameters, other.parameters(), strict=True):
                assert torch.equal(one, two.cpu())
            torcharena.offload_optimizer(its)
            assert all(map(on_host, _moments(its)))
            for one, two in zip(_moments(optimizer), _moments(its), strict=True):
                assert torch.equal(one.cpu(), two.cpu())
    assert_sound()


def round_trips() -> None:
    """torch's own way to get and set state dicts of a model and its optimizer, while both are
    offloaded."""
    from torch.distributed.checkpoint import state_dict as way

    start()
    offload_optimizers.LEAST = 1
    model = Net().cuda()
    optimizer = torcharena.offload_optimizer(adamw(model.parameters()))
    with torcharena.auto_offload(model, optimizer):
        _a_step(model, optimizer)
        kept = copy.deepcopy(way.get_state_dict(model, optimizer))
        before = [p.detach().cpu() for p in (*model.parameters(), *_moments(optimizer))]
        _a_step(model, optimizer)
        way.set_state_dict(
            model, optimizer, model_state_dict=kept[0], optim_state_dict=kept[1]
        )
        after = [p.detach().cpu() for p in (*model.parameters(), *_moments(optimizer))]
        for one, two in zip(before, after, strict=True):
            assert torch.equal(one, two)
        assert all(map(on_host, _moments(optimizer)))
        _a_step(model, optimizer)
    assert_sound()


class _OwnDictionaries(torch.optim.Optimizer):
    """Holds on to the dictionaries that it puts into its state; as some do. ``held``: from
    step to step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.held: list[dict[str, Any]] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter in self.state:
                state = self.state[parameter]
            else:
                state = self.state[parameter] = {}
                if len(self.state) == 2:
                    self.held.append(state)
                state["count"] = torch.zeros_like(parameter)
            state["count"].add_(1)


def ways_in() -> None:
    """By whatever way a tensor is put into the state it goes to the host; what leaves is no
    longer counted; and a dictionary that the program holds on to is the state's."""
    start(values=False)
    offload_optimizers.LEAST = 1
    one, two = (nn.Parameter(torch.zeros(1024, device="cuda")) for _ in range(2))
    optimizer = torcharena.offload_optimizer(torch.optim.SGD([one, two], 0.1))
    state: Any = optimizer.state

    def fresh() -> dict[str, Any]:
        return {"mine": torch.zeros(1024, device="cuda")}

    state.update({one: fresh()})
    assert on_host(state[one]["mine"])
    state |= {one: fresh()}
    assert optimizer.state is state and on_host(state[one]["mine"])
    assert on_host(state.setdefault(two, fresh())["mine"])
    inner = state[two]
    inner |= {"more": fresh()["mine"]}
    assert state[two] is inner and on_host(inner["more"])
    assert inner.setdefault("more") is inner["more"]
    state[two] = inner
    assert state[two] is inner
    found = offload_optimizers.host_bytes
    assert found(optimizer) == 3 * one.nbytes
    inner.pop("more"), state.pop(one), inner.clear()
    assert (inner.pop("more", 7), state.pop(one, None)) == (7, None)
    assert found(optimizer) == 0
    torcharena.onload_optimizer(optimizer)

    theirs = torcharena.offload_optimizer(_OwnDictionaries([one, two]))
    for _ in range(3):
        theirs.step()
        for parameter in (one, two):
            assert list(theirs.state[parameter]) == ["count"]
            assert on_host(theirs.state[parameter]["count"])
    for name in ("late", "later"):
        theirs.held[0][name] = fresh()["mine"]
        assert theirs.state[two][name] is theirs.held[0][name]
        theirs.step()
        assert on_host(theirs.state[two][name])
    assert isinstance(theirs.state[one], offload_optimizers._OfParameter)

    # A share of the state: what was there and left makes room for others.
    part = torch.optim.SGD([one, two], 0.1)
    offload_optimizers.share(part, 0, one.nbytes)
    for removes in (
        lambda: part.state[one].clear(),
        lambda: part.state.pop(one),
        lambda: part.state.clear(),
        lambda: part.state[one].__delitem__("mine"),
        lambda: part.state.popitem(),
    ):
        part.state[one] = fresh()
        part.state[two] = fresh()
        assert (on_host(part.state[one]["mine"]), on_host(part.state[two]["mine"])) == (
            True,
            False,
        )
        part.state.pop(two)
        removes()
        assert found(part) == 0
    assert_sound()


def replaced() -> None:
    """A share of a state whose tensors are made anew in each step: it stays as large as it
    may be, and is not counted through for each of them."""
    start(values=False)
    offload_optimizers.LEAST = 1
    many = [nn.Parameter(torch.zeros(128, device="cuda")) for _ in range(50)]
    optimizer: Any = torch.optim.SGD(many, 0.1)
    most = 60 * many[0].nbytes
    offload_optimizers.share(optimizer, 0, most)
    looks = []
    count = offload_optimizers._Offloaded.count

    def counts(self: Any) -> dict[int, int]:
        looks.append(1)
        return count(self)

    offload_optimizers._Offloaded.count = counts  # type: ignore[method-assign]
    try:
        for step in range(4):
            for parameter in many:
                state = optimizer.state[parameter]
                state["step"] = step
                state["same"] = (
                    state["same"].add_(1) if step else torch.zeros_like(parameter)
                )
                for name in ("one", "two"):
                    state[name] = torch.zeros_like(parameter)
            there = count(offload_optimizers._offloaded[optimizer])[0]
            assert most - many[0].nbytes <= there <= most, (step, there)
    finally:
        offload_optimizers._Offloaded.count = count  # type: ignore[method-assign]
    assert len(looks) < 10, len(looks)
    # What moves from one name to another is counted once.
    for parameter in many:
        state = optimizer.state[parameter]
        state["before"] = state["one"]
        state["one"] = torch.zeros_like(parameter)
    assert offload_optimizers.host_bytes(optimizer) <= most
    assert_sound()


def forked() -> None:
    """A child that was forked while a thread held our lock: what it collects waits for
    nothing."""
    start(values=False)
    x = torch.ones(1 << 18, device="cuda", requires_grad=True)
    with torcharena.offload_activations("64MiB", least=1):
        y = x.sin()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with offload_saved._lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        del y
        gc.collect()
        with offload_saved._lock:
            os._exit(7)
    over.set()
    thread.join()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 7, code
    y.sum().backward()
    assert_sound()


def no_room_ahead() -> None:
    """Bytes that find no room ahead of their need come when they are needed; there they take
    the place of what came too early."""
    start(limit="256MiB")
    plain = train(adamw)
    bring, ahead = offload_saved._Pass._bring, offload_saved._Pass._bring_ahead
    looks, inside = [0, 0], [False]

    def ahead_of_need(self: Any, held: int) -> None:
        inside[0] = True
        self.highest = self.room
        try:
            ahead(self, held)
        finally:
            inside[0] = False

    def refuse(self: Any, item: Any) -> None:
        looks[0] += inside[0]
        if inside[0] and looks[0] % 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if not inside[0] and self.ahead:
            looks[1] += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")
        bring(self, item)

    def sums(around: Any) -> list[torch.Tensor]:
        """In an order that nobody foresees."""
        xs = [torch.full((4096,), n / 9, device="cuda") for n in range(9 << 6)]
        leaves = [x.requires_grad_() for x in xs]
        with around:
            ys = [(x * x).sin().sum() for x in leaves]
        for y in (*ys[300:310], *ys[:20], ys[560]):
            y.backward()
        found = [x.grad.cpu() for x in leaves if x.grad is not None]
        return [found[0].sum(), found[1].sum(), *found]

    def away() -> Any:
        return torcharena.offload_activations("256MiB", least=1)

    there = sums(torch.enable_grad())
    offload_saved._Pass._bring_ahead = ahead_of_need  # type: ignore[method-assign]
    offload_saved._Pass._bring = refuse  # type: ignore[method-assign]
    try:
        same(plain, train(adamw, around=away))
        assert looks[0], "nothing was to come ahead"
        same(there, sums(away()))
        assert looks[1], "nothing was asked for out of turn"
    finally:
        offload_saved._Pass._bring_ahead = ahead  # type: ignore[method-assign]
        offload_saved._Pass._bring = bring  # type: ignore[method-assign]
    assert_sound()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
