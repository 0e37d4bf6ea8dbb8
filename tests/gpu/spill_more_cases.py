"""Host memory, more cases: what chooses itself, every optimizer, what autograd can be asked for.

python spill_more_cases.py NAME [ARGUMENT...]"""

from __future__ import annotations

import collections
import contextlib
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import spill_cases
import torch
import torcharena
from cases import MIB, REAL, assert_sound
from spill_cases import start, stats
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torcharena.spill import link_rates, offload_optimizers, offload_saved


def together(*cases: str) -> None:
    for name in cases:
        setattr(spill_cases, name, globals()[name])
    spill_cases.together(*cases)


def refused(kind: type[BaseException], call: Callable[[], Any], *words: str) -> None:
    """The call raises that, and its text has the words."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), (word, error)
    else:
        raise AssertionError(f"was not refused: {words}")


def on_host(tensor: torch.Tensor) -> bool:
    return torcharena._core.region_of(tensor.data_ptr())[0] > 0


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """The device has room for so much more."""
    gc.collect()
    torch.ones(9, 9, device="cuda") @ torch.ones(9, 9, device="cuda")
    torcharena.empty_cache()
    torcharena.set_limit(stats("reserved_bytes") + size)
    try:
        yield
    finally:
        torcharena.set_limit(None)


# --- optimizers ----------------------------------------------------------------------------
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"foreach": False},
    "Adamax": {},
    "LBFGS": {"max_iter": 2},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
}


def every_optimizer() -> None:
    """All of torch.optim that keep a state: the same parameters, and large state on the host;
    state dicts load into one without us, and back."""
    start()
    offload_optimizers.LEAST = 1
    there = {
        name
        for name, one in vars(torch.optim).items()
        if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)
    }
    assert there - {"Optimizer", "SparseAdam"} <= set(OPTIMIZERS), there
    for name in sorted(there & set(OPTIMIZERS)):
        made = [_a_few_steps(name, offloaded) for offloaded in (False, True)]
        for one, other in zip(*made, strict=True):
            assert torch.equal(one, other), (name, one, other)
    assert_sound()


def _a_few_steps(name: str, offloaded: bool) -> list[torch.Tensor]:
    parameters = [
        nn.Parameter((torch.arange(144.0) % 7 - place).view(12, 12).cuda())
        for place in range(2)
    ]

    def make() -> Any:
        return getattr(torch.optim, name)(parameters, lr=0.01, **OPTIMIZERS[name])

    def closure() -> torch.Tensor:
        for number, parameter in enumerate(parameters):
            parameter.grad = parameter.detach() * 0.5 + number + 1
        return sum(
            (p.detach().square().sum() for p in parameters), torch.zeros(()).cuda()
        )

    optimizer = make()
    if offloaded:
        torcharena.offload_optimizer(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for number in range(3):
        closure()
        optimizer.step(closure if name == "LBFGS" else None)
        schedule.step()
        if number == 1:
            saved = optimizer.state_dict()
            optimizer = make()
            if offloaded:
                torcharena.offload_optimizer(optimizer)
            optimizer.load_state_dict(saved)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if offloaded:
        found = [
            one
            for one in offload_optimizers._tensors(list(optimizer.state.values()))
            if one.is_cuda and one.numel() > 1
        ]
        assert found or name in ("Adafactor", "Muon"), name
        assert all(on_host(one) for one in found), name
        torcharena.onload_optimizer(optimizer)
        assert not any(on_host(one) for one in found), name
    return [p.detach().cpu() for p in parameters]


def shares() -> None:
    """Part of the state: as much as was said, through load_state_dict too, and all when asked."""
    start(values=False)
    offload_optimizers.LEAST = 64 << 10
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    offload_optimizers.share(optimizer, 0, 5 * MIB)
    for most in (5 * MIB, 0, 9 * MIB, 3 * MIB):
        offload_optimizers.share(optimizer, 0, most)
        optimizer.step()
        assert offload_optimizers.host_bytes(optimizer) == most, most
    optimizer.load_state_dict(optimizer.state_dict())
    assert offload_optimizers.host_bytes(optimizer) == 3 * MIB
    optimizer.step()
    assert not offload_optimizers.is_whole(optimizer)
    torcharena.offload_optimizer(optimizer)
    assert offload_optimizers.is_whole(optimizer)
    assert offload_optimizers.host_bytes(optimizer) == 16 * MIB
    offload_optimizers.share(optimizer, 0, 0)  # the program's choice stands
    assert offload_optimizers.host_bytes(optimizer) == 16 * MIB
    torcharena.onload_optimizer(optimizer)
    assert offload_optimizers.host_bytes(optimizer) == 0
    assert_sound()


def moves_between_streams() -> None:
    """State that another stream allocated: its memory is used anew after the copy alone."""
    start(values=False)
    offload_optimizers.LEAST = 1
    side, busy = torch.cuda.Stream(), torch.zeros(MIB, device="cuda")
    for move in (torcharena.offload_optimizer, torcharena.onload_optimizer):
        with torch.cuda.stream(side):
            parameter = nn.Parameter(torch.zeros(4 * MIB, device="cuda"))
            optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            if move is torcharena.onload_optimizer:
                torcharena.offload_optimizer(optimizer)
        torch.cuda.current_stream().wait_stream(side)
        if not REAL:
            spill_cases._touch(busy, True, 5e5)
        move(optimizer)
        with torch.cuda.stream(side):
            if move is torcharena.offload_optimizer:
                again = torch.empty_like(parameter)
            else:
                host = offload_optimizers._offloaded.get(optimizer)
                assert host is None
                again = offload_optimizers.host_tensors(
                    "offload_optimizer", offload_optimizers._REGION
                ).like(parameter)
            if not REAL:
                spill_cases._touch(again, True, 50.0)
        torch.cuda.synchronize()
        assert_sound()
        del again, optimizer, parameter


def another_state() -> None:
    """A program that begins anew with a ``state`` of its own; and one that wraps
    load_state_dict has it back."""
    start(values=False)
    offload_optimizers.LEAST = 1
    parameter = nn.Parameter(torch.zeros(1024, device="cuda"))
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    original = optimizer.load_state_dict

    def theirs(state: Any) -> Any:
        return original(state)

    optimizer.load_state_dict = theirs  # type: ignore[method-assign]
    torcharena.offload_optimizer(optimizer)
    for _ in range(2):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert offload_optimizers.host_bytes(optimizer) == parameter.nbytes
        optimizer.state = collections.defaultdict(dict)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert offload_optimizers.host_bytes(optimizer) == parameter.nbytes
    torcharena.onload_optimizer(optimizer)
    assert optimizer.load_state_dict is theirs
    assert_sound()


# --- what chooses itself -------------------------------------------------------------------
def _model(width: int = 1024, layers: int = 12) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).cuda()


def auto_refuses() -> None:
    """What is no model, no optimizer; a model that nobody calls."""
    start(values=False)
    model = _model(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    auto = torcharena.auto_offload
    refused(TypeError, lambda: auto(lambda x: x, optimizer), "function", "nn.Module")
    refused(TypeError, lambda: auto(model, model), "Sequential", "optimizer")
    refused(TypeError, lambda: auto(model, []), "no optimizer")
    refused(TypeError, lambda: auto(model, [optimizer, None]), "NoneType", "optimizer")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with auto(nn.Linear(1, 1), optimizer):
            for _ in range(4):
                model(torch.ones(1, 64, device="cuda")).sum().backward()
                optimizer.step()
    assert ["forward passes" in str(one.message) for one in said] == [True], said
    assert not optimizer._optimizer_step_pre_hooks
    assert_sound()


def auto_follows() -> None:
    """The need comes and goes: what was on the host is at home again where all fits, and what
    `str` says are the bytes; rates are measured, once."""
    start(values=False)
    link_rates.forget()
    with room(800 * MIB):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with torcharena.auto_offload(model, optimizer) as chosen:
            for step in range(60):
                torch.cuda.synchronize()  # times of the step before can be read
                rows = 512 if step < 3 or step >= 8 else 16384
                y = model(torch.randn(rows, 1024, device="cuda"))
                y.square().mean().backward()
                del y
                optimizer.step()
                optimizer.zero_grad()
                text = str(chosen)
                if step == 2:
                    assert "nothing has to leave" in text, text
                    assert not link_rates._known
                if step == 7:
                    assert "must leave" in text and "rates measured" in text, text
                    assert chosen.expected_seconds >= 0
                    assert "it does cost" in text, text
            assert "nothing has to leave" in text, text
            assert offload_optimizers.host_bytes(optimizer) == 0
    assert not any(key[0][0].startswith("auto_offload") for key in offload_saved._movers)
    assert_sound()


class _Itself(nn.Module):
    """Calls itself without gradients first, and can be interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.interrupted = False
        self.looked: list[bool] = []

    def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
        if self.interrupted:
            raise KeyboardInterrupt
        if again:
            with torch.no_grad():
                x = x + self(x, False)
            self.looked.append(_hooked())
        return self.layer(x)


def _hooked() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def auto_interrupted() -> None:
    """What KeyboardInterrupt leaves open is closed; a call of itself without gradients ends
    nothing."""
    start(values=False)
    model = _Itself().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(8, 64, device="cuda")
    with torcharena.auto_offload(model, optimizer) as chosen:
        for stop in (False, True, False, True, False):
            model.interrupted = stop
            try:
                y = model(x)
            except KeyboardInterrupt:
                continue
            assert not chosen._open and not _hooked()
            y.sum().backward()
            optimizer.step()
        model.interrupted = True
        with contextlib.suppress(KeyboardInterrupt):
            model(x)
        optimizer.step()
        assert not chosen._open and not _hooked()
    assert model.looked == [True] * 3, model.looked
    assert_sound()


def auto_trains() -> None:
    """Accumulation, a scaler, checkpointing, a closure, several optimizers, evaluation between,
    a scheduler, state loaded: the net has little to do, and nothing is missed."""
    start(values=False)
    for kind in ("accumulate", "scaler", "checkpoint", "closure", "several"):
        offload_saved._movers.clear()
        with room(700 * MIB):
            model = _model()
            layers = list(model)
            parts = [layers[:6], layers[6:]] if kind == "several" else [layers]
            make: Any = torch.optim.LBFGS if kind == "closure" else torch.optim.AdamW
            more = {"history_size": 1, "max_iter": 1} if kind == "closure" else {}
            optimizers = [
                make([p for one in part for p in one.parameters()], lr=1e-4, **more)
                for part in parts
            ]
            scaler = torch.amp.GradScaler("cuda", enabled=kind == "scaler")
            schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], 1)
            if kind == "checkpoint":
                for layer in layers[::2]:
                    _checkpoints(layer)
            before = stats("spill_allocated_bytes")
            with torcharena.auto_offload(model, optimizers) as chosen:
                for _ in range(6):
                    _a_step(kind, model, optimizers, scaler)
                    schedule.step()
                    with torch.no_grad():
                        model(torch.randn(512, 1024, device="cuda"))
                optimizers[0].load_state_dict(optimizers[0].state_dict())
                _a_step(kind, model, optimizers, scaler)
                assert "must leave" in str(chosen), (kind, str(chosen))
                assert chosen.steps == (14 if kind == "several" else 7), kind
            assert stats("spill_allocated_bytes") - before < 3000 * MIB, kind
            del model, layers, parts, optimizers, schedule, chosen
    assert_sound()


def _checkpoints(layer: nn.Module) -> None:
    inside = layer.forward
    layer.forward = lambda x: checkpoint(inside, x, use_reentrant=False)  # type: ignore


def _a_step(kind: str, model: nn.Module, optimizers: list[Any], scaler: Any) -> None:
    def work() -> torch.Tensor:
        y = model(torch.randn(16384, 1024, device="cuda"))
        loss = y.square().mean()
        scaler.scale(loss).backward()
        return loss.detach()

    if kind == "closure":
        optimizers[0].step(work)
    else:
        for _ in range(2 if kind == "accumulate" else 1):
            work()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


# --- what autograd can be asked for ----------------------------------------------------------
def _all() -> Any:
    return torcharena.offload_activations("1GiB", least=1)


def _input(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)) % 13 / 7 - 1).view(shape).cuda().requires_grad_()


def _twice(around: Callable[[], Any]) -> list[torch.Tensor]:
    x = _input(3000)
    with around():
        y = x.sin()
        z = (y * y * y).sum()
    first = torch.autograd.grad(z, x, create_graph=True)[0]
    return [first.detach(), torch.autograd.grad(first.sum(), x)[0]]


def _threads(around: Callable[[], Any]) -> list[torch.Tensor]:
    x = _input(3000)
    with around():
        z = (x.sin() * x.cos()).sum()
    thread = threading.Thread(target=z.backward)
    thread.start()
    thread.join()
    return [x.grad] if REAL else []  # values are not computed in other threads


def _streams(around: Callable[[], Any]) -> list[torch.Tensor]:
    x, side = _input(3000), torch.cuda.Stream()
    with around():
        z = (x.sin() * x.cos()).sum()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z.backward()
    torch.cuda.current_stream().wait_stream(side)
    return [x.grad]


def _nested(around: Callable[[], Any]) -> list[torch.Tensor]:
    x, same = _input(3000), around()
    with same:
        y = x.sin() * x.cos()
        with same, around():
            z = (y.exp() * y).sum()
        z = z * z
    z.backward()
    return [x.grad]


def _views(around: Callable[[], Any]) -> list[torch.Tensor]:
    x = _input(30, 1)
    with around():
        y = x.sin().expand(30, 100)
        a, b = y * y, y.t()[::2]
        nothing = torch.empty(0, device="cuda", requires_grad=True)
        whole = (x.cos() * 1.0).expand(30, 40).contiguous()
        part = whole[::2, 1::3]
        z = a.sum() + (b * b).sum() + (nothing * nothing).sum() + (part * part).sum()
    z.backward()
    return [x.grad]


def _graphs_at_once(around: Callable[[], Any]) -> list[torch.Tensor]:
    x, graphs = _input(3000), []
    for _ in range(3):
        with around():
            graphs.append((x.sin() * x.cos()).sum())
    for number in (1, 0, 2):
        graphs[number].backward()
    return [x.grad]


def _inner_hooks(around: Callable[[], Any]) -> list[torch.Tensor]:
    x = _input(3000)
    with around(), torch.autograd.graph.save_on_cpu():
        z = (x.sin() * x.cos()).sum()
    with torch.autograd.graph.save_on_cpu(), around():
        z = z + (x.sin() * x.cos()).sum()
    z.backward()
    return [x.grad]


def _checkpointed(around: Callable[[], Any]) -> list[torch.Tensor]:
    x = _input(60, 50)

    def block(y: torch.Tensor) -> torch.Tensor:
        with around():
            return y.sin() * y

    for reentrant in (True, False):
        y = checkpoint(block, x, use_reentrant=reentrant)
        with around():
            z = checkpoint(torch.sin, y, use_reentrant=reentrant)
        z.sum().backward()
    return [x.grad]


def _raised(around: Callable[[], Any]) -> list[torch.Tensor]:
    x, context = _input(3000), around()
    with contextlib.suppress(KeyError), context:
        x.sin().cos()
        raise KeyError
    with context:
        z = (x.sin() * x.cos()).sum()
    z.backward()
    return [x.grad]


def asked_for() -> None:
    """Graphs twice differentiated, in other threads and on other streams, nested, of views;
    others' hooks, checkpoints, errors: the same gradients as without."""
    start()
    for case in (
        *(_twice, _threads, _streams, _nested, _views),
        *(_graphs_at_once, _inner_hooks, _checkpointed, _raised),
    ):
        plain = case(contextlib.nullcontext)
        for one, other in zip(plain, case(_all), strict=True):
            assert one.abs().sum() > 0, case.__name__
            assert torch.equal(one.cpu(), other.cpu()), case.__name__
    torch.cuda.synchronize()
    assert_sound()


def stays() -> None:
    """What has no plain storage stays where it is: nested, sparse, complex by its conjugate,
    subclasses; without gradients nothing is saved; torch.func says that it takes no hooks."""
    start(values=False)
    with _all():
        nested = torch.nested.nested_tensor(
            [torch.ones(3, 4), torch.ones(5, 4)], device="cuda", requires_grad=True
        )
        torch.nested.to_padded_tensor(nested * nested, 0.0).sum().backward()
        start()  # the sizes of sparse ones are values
        index = torch.tensor([[0, 1, 1], [2, 0, 2]], device="cuda")
        sparse = torch.sparse_coo_tensor(index, torch.ones(3, device="cuda"), (2, 3))
        weight = torch.ones(3, 4, device="cuda", requires_grad=True)
        torch.sparse.mm(sparse, weight).sum().backward()
        start(values=False)
        x = torch.ones(300, dtype=torch.complex64, device="cuda", requires_grad=True)
        (x * x.conj()).abs().sum().backward()
        with torch.no_grad():
            weight.sin()
        with torch.inference_mode():
            weight.sin()
        refused(
            RuntimeError,
            lambda: torch.func.grad(lambda y: y.sin().sum())(index.float()),
            "hooks",
        )
        torch.func.vmap(lambda y: (y.sin() * y).sum())(weight).sum().backward()
    for wrong, words in (
        ("12GB", "12GiB"),
        ("50%", "GiB"),
        (-1, "budget"),
        ("x", "budget"),
    ):
        refused(
            ValueError, lambda wrong=wrong: torcharena.offload_activations(wrong), words
        )
    refused(
        ValueError, lambda: torcharena.offload_activations("1GiB", least="1MB"), "least"
    )
    assert_sound()


def compiled() -> None:
    """Around a compiled model its saved tensors leave, its weights stay; in a function that is
    compiled, ours are no part of it; a model compiled after auto_offload is seen."""
    start(values=False)
    model = _model(512, 2)
    whole = torch.compile(model, backend="aot_eager")
    x = torch.ones(4096, 512, device="cuda")

    @torch.compile(backend="aot_eager")
    def inside(x: torch.Tensor) -> torch.Tensor:
        with torcharena.offload_activations("1GiB"):
            return functional.relu(model(x))

    for call in (whole, inside):
        offload_saved._movers.clear()
        with torcharena.offload_activations("1GiB") if call is whole else _nothing():
            y = call(x)
        (mover,) = offload_saved._movers.values()
        sizes = [item.size for item in mover.current[0].items]
        assert len(sizes) >= 2 and set(sizes) == {8 * MIB}, sizes
        assert mover.current[0].sent == sum(sizes)
        del mover
        y.sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcharena.auto_offload(model, optimizer) as chosen:
        model.compile(backend="aot_eager")
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
        assert chosen._forwards == 2
    torch.compiler.reset()
    assert_sound()


_nothing = contextlib.nullcontext

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
