"""Host memory over the arena: one function a case.

    python spill_cases.py NAME [ARGUMENT...]

On the simulated GPU small floats are computed by the rehearsal's values mode, so that losses
can be compared to the bit there too; the oracle watches every copy and every reuse."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torcharena
from cases import GIB, MIB, REAL, assert_sound, libraries, watch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torcharena import loading, sizes
from torcharena.spill import offload_optimizers, offload_saved, spilling
from torcharena.spill.host_tensors import PinnedTensors

WIDTH, BATCH = (1024, 4096) if REAL else (64, 1024)
STEPS = 200 if REAL else 2


_values: list[Any] = []


def start(
    limit: str = "2GiB", spill: str | None = "8GiB", *, values: bool = True
) -> None:
    """Enables the arena, or makes it as though it had been enabled so; see `together`."""
    if not torcharena.enabled():
        torcharena.enable(limit=limit, spill=spill)
        torch.cuda.init()  # the allocator is made with it
        watch()
        if not REAL:
            libraries()[1].ta_simcuda_allow_moves(1)
    size = sizes.parse(spill)
    assert size is not None or not spilling.on()
    torcharena._core.set_spill(None if size is None else size.bytes)
    torcharena.set_limit(limit)
    if REAL:
        return
    from torcharena.rehearsal.values import Values

    while _values:
        _values.pop().__exit__(None, None, None)
    if values:
        _values.append(Values())
        _values[0].__enter__()


def together(*cases: str) -> None:
    """Several cases in one process, each as though alone: loading torch is most of one."""
    for case in cases:
        name, _, argument = case.partition(":")
        globals()[name](*([argument] if argument else []))
        gc.collect()
        torcharena.empty_cache(host=True)
        offload_saved._movers.clear()
        loading._said.clear()
        # cuBLAS's workspaces, of each stream and thread
        assert stats("reserved_bytes") <= (640 if REAL else 160) * MIB, case
        if not REAL:
            libraries()[1].ta_simcuda_advance_us(ctypes.c_double(1e6))


def stats(name: str) -> int:
    return int(torcharena.memory_stats()[name])


class Net(nn.Module):
    """An MLP of 8 layers, every other one checkpointed where asked."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if self.checkpointed and number % 2:
                x = x + checkpoint(_block, layer, x, use_reentrant=False)
            else:
                x = x + _block(layer, x)
        return x


def _block(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(layer(x))


Sums = list[torch.Tensor]


def train(
    make: Callable[[Any], Any],
    *,
    steps: int = STEPS,
    around: Callable[[], Any] = nullcontext,
    checkpointed: bool = False,
    autocast: bool = False,
    each: Callable[[Any, Any], Any] = lambda optimizer, model: None,
) -> Sums:
    """Losses of every step, then gradients and parameters of the last, on the CPU."""
    torch.manual_seed(0)
    model = Net(checkpointed).cuda()
    optimizer = make(model.parameters())
    found: Sums = []
    for step in range(steps):
        torch.manual_seed(step + 1)
        x = torch.randn(BATCH, WIDTH).cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            with around():
                y = model(x)
            loss = y.float().square().mean()
        loss.backward()
        del y
        optimizer.step()
        found.append(loss.detach().cpu())
        if step == steps - 1:
            found += [p.grad.cpu() for p in model.parameters()]
        optimizer.zero_grad()
        each(optimizer, model)
    return found + [p.detach().cpu() for p in model.parameters()]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def same(one: Sums, other: Sums) -> None:
    assert len(one) == len(other)
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), (place, a, b)
    assert one[0] != one[1], "nothing was computed"


@contextmanager
def little_room(left: int) -> Iterator[None]:
    """Fills the device up to so many bytes below its cap."""
    torch.cuda.empty_cache()
    cap = torcharena.limit()
    assert cap is not None
    filler = torch.empty(cap - stats("reserved_bytes") - left, dtype=torch.uint8).numel()
    held = torch.empty(filler, dtype=torch.uint8, device="cuda")
    yield
    del held


# --- the safety net ------------------------------------------------------------------------
def g11_net() -> None:
    """Spilled under pressure, the same losses and gradients; a step's mark brings it back."""
    start()
    plain = train(adamw)
    assert stats("spill_allocations") == 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with little_room(64 * MIB if REAL else 0):
            squeezed = train(adamw, each=lambda optimizer, model: torcharena.step())
            assert stats("spill_allocations") > 0
            assert stats("host_bytes") >= stats("spilled_bytes.peak") > 0
    same(plain, squeezed)
    texts = [str(one.message) for one in said if "host memory" in str(one.message)]
    assert len(texts) == 1 and "torcharena.step()" in texts[0], texts
    assert "went to the host" in torcharena.memory_summary()
    assert_sound()


def comes_back() -> None:
    """What was born on the host comes back at the mark, with its bytes, at its address."""
    start()
    kept = []
    with little_room(8 * MIB):
        for number in range(8):
            kept.append(torch.full((4 * MIB,), number, dtype=torch.uint8, device="cuda"))
        assert stats("spilled_bytes") >= 24 * MIB
        torcharena.step()  # there is no room yet
        assert stats("spilled_bytes") >= 24 * MIB
    addresses = [one.data_ptr() for one in kept]
    torcharena.step()
    assert stats("spilled_bytes") == 0
    assert stats("to_device_bytes") >= 24 * MIB
    for number, one in enumerate(kept):
        assert torch.equal(one.cpu(), torch.full((4 * MIB,), number, dtype=torch.uint8))
    assert addresses == [one.data_ptr() for one in kept]
    before = stats("driver_calls")
    torcharena.step()
    assert stats("driver_calls") == before
    del kept, one
    gc.collect()
    pinned = stats("host_bytes")
    assert pinned >= 24 * MIB
    assert torcharena.empty_cache(host=True) >= pinned
    assert stats("host_bytes") == 0
    assert_sound()


def host_full() -> None:
    """Beyond the host's budget it is out of memory, whose text says so; then all goes on."""
    start(spill="64MiB")
    torch.cuda.empty_cache()
    torcharena.set_limit(stats("reserved_bytes") + 64 * MIB)
    kept = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    try:
        kept += [
            torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(9)
        ]
    except torch.OutOfMemoryError as error:
        assert "host" in str(error), error
    else:
        raise AssertionError("fits")
    assert len(kept) == 6
    kept.clear()
    torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    assert_sound()


def without() -> None:
    """Spill is off: nothing is pinned, and what needs it says what to do."""
    start(limit="64MiB", spill=None)
    for call in (
        lambda: torcharena.offload_optimizer(adamw([nn.Parameter(torch.ones(9).cuda())])),
        lambda: torcharena.offload_activations().__enter__(),
    ):
        try:
            call()
        except RuntimeError as error:
            assert "spill=" in str(error), error
        else:
            raise AssertionError("was not refused")
    with torcharena.region("weights"):
        kept = torch.ones(9 * MIB, dtype=torch.uint8, device="cuda")
    try:
        torcharena.sleep("weights")
    except RuntimeError as error:
        assert "spill=" in str(error) and "'weights'" in str(error), error
    else:
        raise AssertionError("was not refused")
    assert torcharena.sleep("weights", keep=False) >= 9 * MIB
    assert torcharena.wake_up("weights") >= 9 * MIB
    kept.zero_()
    torcharena.step()
    assert stats("host_bytes") == 0
    try:
        torch.empty(65 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "spill" in str(error), error
    else:
        raise AssertionError("fits")
    assert_sound()


# --- regions -------------------------------------------------------------------------------
def _tensors(count: int, least: int) -> list[torch.Tensor]:
    """Tensors of several types, every third with a view; numbered contents."""
    found = []
    types = (torch.bfloat16, torch.int8, torch.float32, torch.int64)
    for number in range(count):
        source = torch.arange(least + number * least // 50) % 113 + number % 7
        one = source.to(types[number % 4]).cuda()
        found.append(one)
        if number % 3 == 0:
            found.append(one[5:least])
    return found


def g12(touch: str = "") -> None:
    """100 tensors with views sleep while others fill the GPU; they wake with their bytes."""
    start(limit="1GiB", values=False)
    with torcharena.region(f"g12{touch}", touch=touch or None):
        held = _tensors(100, 500_000 if REAL else 10_000)
    before = [one.cpu() for one in held]
    addresses = [one.data_ptr() for one in held]
    for _ in range(2):
        reserved = stats("reserved_bytes")
        freed = torcharena.sleep([f"g12{touch}"])
        assert freed == reserved - stats("reserved_bytes") > 0
        assert torcharena.sleep(f"g12{touch}") == 0
        if touch:
            assert all(torch.equal(a, b.cpu()) for a, b in zip(before, held, strict=True))
        with little_room(8 * MIB):
            try:
                torcharena.wake_up()
            except torch.OutOfMemoryError as error:
                assert "still sleeps" in str(error), error
            else:
                raise AssertionError("woke where there is no room")
        assert torcharena.wake_up(f"g12{touch}") == freed
        assert addresses == [one.data_ptr() for one in held]
        assert all(torch.equal(a, b.cpu()) for a, b in zip(before, held, strict=True))
    assert torcharena.sleep(keep=False) == freed
    assert torcharena.wake_up() == freed
    assert_sound()


def asleep() -> None:
    """While it sleeps: views and frees work, a touch and an allocation are errors."""
    start(limit="1GiB")
    with torcharena.region("weights"):
        held = [torch.ones(1000, device="cuda") for _ in range(4)]
    with torcharena.region("cache", page="8MiB"):
        other = torch.ones(1000, device="cuda")
    torcharena.sleep("weights")
    for call in (
        lambda: held[0] + 1,
        lambda: held[1].cpu(),
        lambda: torch.stack([other, held[2]]),
        lambda: torch.add(other, 1, out=held[0]),
    ):
        try:
            call()
        except RuntimeError as error:
            assert "'weights'" in str(error) and "wake_up" in str(error), error
        else:
            raise AssertionError("touched")
    assert held[0].view(10, 100)[2:].shape == (8, 100)
    other.add_(1)
    del held[3]
    try:
        with torcharena.region("weights"):
            torch.empty(1000, device="cuda")
    except RuntimeError as error:
        assert "sleep" in str(error), error
    else:
        raise AssertionError("allocated")
    torcharena.wake_up()
    assert held[0].cpu().sum() == 1000
    assert (held[0] + 1).shape == (1000,)
    for wrong in (
        lambda: torcharena.sleep("wieghts"),
        lambda: torcharena.wake_up(["weights", "x"]),
        lambda: torcharena.region("cache", page="4MiB").__enter__(),
        lambda: torcharena.region("small", page="2MiB").__enter__(),
        lambda: torcharena.region("cache", touch="device"),
        lambda: torcharena.region(""),
    ):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("accepted")
    assert_sound()


def backward_in_region() -> None:
    """Autograd's threads allocate in the region that the program is in."""
    start(limit="1GiB")
    x = torch.ones(4 * MIB // 4, device="cuda", requires_grad=True)
    with torcharena.region("gradients"):
        (x * 2).sum().backward()
    assert x.grad is not None
    address = x.grad.data_ptr()
    assert torcharena.sleep("gradients") > 0
    torcharena.wake_up("gradients")
    assert x.grad.data_ptr() == address
    assert_sound()


def in_capture() -> None:
    """Nothing moves while a graph is captured; what was captured replays after waking."""
    start(limit="1GiB")
    with torcharena.region("weights"):
        weight = torch.ones(1 * MIB, device="cuda")
    other = torch.ones(1 * MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other.copy_(weight)
        for call in (torcharena.step, lambda: torcharena.sleep("weights")):
            try:
                call()
            except RuntimeError as error:
                assert "captur" in str(error), error
            else:
                raise AssertionError("moved")
    weight.fill_(3)
    torcharena.sleep("weights")
    torcharena.wake_up("weights")
    other.zero_()
    graph.replay()
    torch.cuda.synchronize()
    if REAL:
        assert torch.equal(other, weight) and weight[0] == 3
    assert_sound()


# --- optimizer state -------------------------------------------------------------------------
def _kinds() -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {
        "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "capturable": lambda p: torch.optim.Adam(p, capturable=True),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    }
    if REAL:  # where they take no time
        found |= {
            "fused": lambda p: torch.optim.AdamW(p, fused=True),
            "alone": lambda p: torch.optim.AdamW(p, fused=False, foreach=False),
            "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
            "adagrad": lambda p: torch.optim.Adagrad(p),
            "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
        }
    return found


def optimizers(least: str = "1") -> None:
    """Every kind: the same parameters, and the state on the host."""
    start()
    offload_optimizers.LEAST = int(least)
    for name, make in _kinds().items():
        plain = train(make, steps=min(STEPS, 20))
        gc.collect()
        torch.cuda.empty_cache()
        seen: list[int] = []

        def look(optimizer: Any, model: Any, seen: list[int] = seen) -> None:
            for state in optimizer.state.values():
                for value in state.values():
                    if torch.is_tensor(value) and value.is_cuda and value.numel() > 1:
                        number = torcharena._core.region_of(value.data_ptr())[0]
                        assert number, "on the device"
                        seen.append(value.nbytes)

        there = train(
            lambda p, make=make: torcharena.offload_optimizer(make(p)),
            steps=min(STEPS, 20),
            each=look,
        )
        assert seen, name
        same(plain, there)
        gc.collect()
    assert_sound()


def resumed() -> None:
    """State dicts are as ever: saved, loaded before and after, by an optimizer without us."""
    start()
    offload_optimizers.LEAST = 1

    def half(kind: str) -> Sums:
        torch.manual_seed(0)
        model = Net().cuda()
        optimizer = adamw(model.parameters())
        if kind in ("on", "after"):
            assert torcharena.offload_optimizer(optimizer) is optimizer
        for step in range(4):
            if step == 2 and kind != "on":
                saved = io.BytesIO()
                torch.save(optimizer.state_dict(), saved)
                saved.seek(0)
                loaded = torch.load(saved, weights_only=True)
                plain = type(loaded["state"]), type(loaded["state"][0])
                assert plain == (dict, dict)
                optimizer = adamw(model.parameters())
                if kind == "before":
                    optimizer.load_state_dict(loaded)
                    torcharena.offload_optimizer(optimizer)
                elif kind == "after":
                    torcharena.offload_optimizer(optimizer)
                    optimizer.load_state_dict(loaded)
                else:
                    optimizer.load_state_dict(copy.deepcopy(loaded))
            torch.manual_seed(step + 1)
            model(torch.randn(BATCH, WIDTH).cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        moment = optimizer.state[model.layers[0].weight]["exp_avg"]
        on_host = torcharena._core.region_of(moment.data_ptr())[0] > 0
        assert on_host == (kind != "plain"), kind
        assert type(optimizer.state_dict()["state"][0]) is dict
        copied = copy.deepcopy(optimizer.state_dict())
        assert torch.equal(copied["state"][0]["exp_avg"].cpu(), moment.cpu())
        if kind == "after":
            torcharena.onload_optimizer(optimizer)
            moment = optimizer.state[model.layers[0].weight]["exp_avg"]
            assert torcharena._core.region_of(moment.data_ptr())[0] == 0
            assert type(optimizer.state[model.layers[0].weight]) is dict
            torcharena.onload_optimizer(optimizer)
        return [torch.zeros(()), torch.ones(())] + [
            p.detach().cpu() for p in model.parameters()
        ]

    plain = half("plain")
    for kind in ("before", "after", "on"):
        same(plain, half(kind))
    assert_sound()


def groups() -> None:
    """Groups added later, tensors in lists, and those that others have too."""
    start()
    offload_optimizers.LEAST = 1
    one, two = (nn.Parameter(torch.ones(1000, device="cuda")) for _ in range(2))
    optimizer = torcharena.offload_optimizer(torch.optim.AdamW([one]))
    assert torcharena.offload_optimizer(optimizer) is optimizer
    optimizer.add_param_group({"params": [two], "lr": 0.5})
    for parameter in (one, two):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    def on_host(tensor: torch.Tensor) -> bool:
        return torcharena._core.region_of(tensor.data_ptr())[0] > 0

    assert on_host(optimizer.state[two]["exp_avg_sq"])
    shared = torch.ones(1000, device="cuda")
    optimizer.state[one]["mine"] = shared[:500]
    optimizer.state[one]["list"] = [torch.ones(1000, device="cuda")]
    optimizer.state[one].setdefault("more", torch.ones(1000, device="cuda"))
    optimizer.state[one].update(most=torch.ones(1000, device="cuda"))
    assert not on_host(optimizer.state[one]["mine"]), "it is part of another tensor"
    for name in ("more", "most"):
        assert on_host(optimizer.state[one][name]), name
    assert on_host(optimizer.state[one]["list"][0])
    optimizer.state[one]["list"].append(torch.ones(1000, device="cuda"))
    del optimizer.state[one]["mine"], optimizer.state[one]["more"]
    optimizer.step()
    assert on_host(optimizer.state[one]["list"][1])
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None, "it is kept alive"
    try:
        torcharena.offload_optimizer(object())
    except TypeError:
        pass
    else:
        raise AssertionError("accepted")
    assert_sound()


# --- saved tensors ---------------------------------------------------------------------------
def g11(kind: str = "plain") -> None:
    """All saved tensors leave: the same losses and gradients, with checkpointing, autocast, and
    on another stream."""
    start()
    more: dict[str, Any] = {
        "plain": {},
        "checkpointed": {"checkpointed": True},
        "autocast": {"autocast": True},
        "stream": {},
    }[kind]
    stream = torch.cuda.Stream() if kind == "stream" else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        plain = train(adamw, **more)
        offloaded = train(
            adamw,
            around=lambda: torcharena.offload_activations("1GiB", least=1024),
            **more,
        )
    same(plain, offloaded)
    found = offload_saved.figures(0)
    assert found["passes"] == STEPS and found["sent"] == found["saved"] > 0, found
    assert "saved tensors" in torcharena.memory_summary()
    assert_sound()


def learned() -> None:
    """As much leaves as the cap demands, and nothing where all fits. Kernels are not looked
    at."""
    start(values=False)
    torch.ones(9, 9, device="cuda") @ torch.ones(9, 9, device="cuda")
    torch.cuda.empty_cache()
    torcharena.set_limit(stats("reserved_bytes") + 1168 * MIB)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: int) -> tuple[int, int]:
        before = stats("spill_allocated_bytes")
        x = torch.randn(batch, 1024, device="cuda")
        with torcharena.offload_activations():
            y = x
            for layer in model:
                y = y + functional.gelu(layer(y))
        y.square().mean().backward()
        del y
        optimizer.step()
        optimizer.zero_grad()
        torcharena.step()
        (mover,) = offload_saved._movers.values()
        return mover.current[0].sent, stats("spill_allocated_bytes") - before

    assert step(1024)[0] == 0  # 192 MiB
    step(8192)  # 1.5 GiB, and 0.4 besides
    by_the_net = []
    for _ in range(3):
        sent, spilled = step(8192)
        assert 700 * MIB <= sent <= 1200 * MIB, sent >> 20
        by_the_net.append(spilled >> 20)
    assert min(by_the_net) == 0 and sum(by_the_net) <= 128, by_the_net
    sent, spilled = step(6144)  # of a size not seen before
    assert 300 * MIB <= sent <= 900 * MIB, sent >> 20
    assert spilled <= 64 * MIB, spilled >> 20
    assert step(1024) == (0, 0)
    assert_sound()


def views_and_changes() -> None:
    """Views of one storage leave once; a graph used twice, freed unused; changed in place."""
    start()

    def inside() -> Any:
        return torcharena.offload_activations("1GiB", least=1)

    def moved() -> int:
        (mover,) = offload_saved._movers.values()
        return mover.current[0].sent

    x = torch.randn(4000, device="cuda", requires_grad=True)
    with inside():
        y = x * 1.0
        a, b = y.view(2, 2000)
        z = (a * b).sum() + (y * y).sum()
    assert moved() == 16000, "two views and the whole, once"
    z.backward(retain_graph=True)
    first = x.grad.cpu()
    x.grad = None
    z.backward()
    assert torch.equal(first, x.grad.cpu())
    expected = x.detach().cpu()
    wanted = torch.cat([expected[2000:], expected[:2000]]) + 2 * expected
    assert torch.equal(first, wanted)

    with inside():
        y = (x * 2).sin()
        left = y.exp()
    del y, left  # nobody asks for it

    with inside():
        y = x * 1.0
        z = (y * y).sum()
    y.add_(1)
    x.grad = None
    try:
        z.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    else:  # it had left before it was changed: the gradient is that of what was saved
        assert torch.equal(x.grad.cpu(), 2 * expected)
    torch.cuda.synchronize()
    assert_sound()


def saved_host_full() -> None:
    """Where host memory runs out the rest stays on the device: a warning, the same losses."""
    start(spill="32MiB" if not REAL else "128MiB")
    plain = train(adamw, steps=2)
    held = torcharena._core.room(0)[2]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        some = [torch.empty(8 * MIB, device="cuda") for _ in range(4)]

        def around() -> Any:
            return torcharena.offload_activations("1GiB", least=1024)

        big = torch.ones(20 * MIB, device="cuda", requires_grad=True)
        with around():
            y = (big * 1.0).sin().cos()
        y.sum().backward()
        del y, some, big
        offloaded = train(adamw, steps=2, around=around)
    texts = [str(one.message) for one in said]
    assert any("does not suffice" in text for text in texts), texts
    same(plain, offloaded)
    assert held
    assert_sound()


def auto() -> None:
    """Nothing where all fits; saved tensors; the optimizer's state too. After the first steps
    the net has nothing left to do. Kernels are not looked at."""
    start(values=False)
    for _ in range(2):  # of another part of the program, and not to be taken for its own
        with torcharena.offload_activations("64MiB"):
            x = torch.ones(4096, 4096, device="cuda", requires_grad=True)
            (2 * x).square().sum().backward()
    for room, state, saved in (
        (4096, False, False),
        (1600, False, True),
        (900, True, True),
        (4096, False, False),  # of what was learned before it knows nothing
    ):
        gc.collect()
        torcharena.empty_cache(host=True)
        torcharena.set_limit(None)
        torch.ones(9, 9, device="cuda") @ torch.ones(9, 9, device="cuda")
        torcharena.empty_cache()
        torcharena.set_limit(stats("reserved_bytes") + room * MIB)
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(16)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with torcharena.auto_offload(model, optimizer) as chosen:
            for step in range(7):
                if step == 5:
                    before = stats("spill_allocated_bytes")
                y = model(torch.randn(8192, 2048, device="cuda"))
                y.square().mean().backward()
                del y
                optimizer.step()
                optimizer.zero_grad()
            # now and then a copy is later than usual; a step asks for gigabytes
            missed = stats("spill_allocated_bytes") - before
            assert missed <= 384 * MIB, (room, missed >> 20, str(chosen))
            text = str(chosen)
            assert (chosen.state_bytes > 100 * MIB) == state, text
            assert ("optimizer state:" in text) == state, text
            assert ("saved tensors:" in text) == saved, text
            assert ("nothing has to leave" in text) == (not state and not saved), text
        assert not model._forward_pre_hooks and not model._forward_hooks
        del model, optimizer, chosen
    assert_sound()


# --- S20: what work touches is told to the oracle ----------------------------------------------
def _touch(tensor: torch.Tensor, write: bool, us: float) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    code = libraries()[1].ta_simcuda_touch(
        0,
        ctypes.c_void_p(stream),
        ctypes.c_uint64(tensor.data_ptr()),
        ctypes.c_uint64(tensor.nbytes),
        int(write),
        ctypes.c_double(us),
    )
    assert code == 0


class _Work(torch.autograd.Function):
    """Reads what it is given and writes what it gives, in both directions, for a while."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        _touch(x, False, 900.0)
        _touch(y, True, 900.0)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        for tensor in ctx.saved_tensors:
            _touch(tensor, False, 900.0)
        _touch(gradient, False, 900.0)
        result = torch.empty_like(gradient)
        _touch(result, True, 900.0)
        return result


def _broken(links: Any, how: str) -> None:
    """Leaves one of the waits out."""

    def nothing(*_: Any) -> None:
        pass

    if how == "out begins too early":
        links.out.wait_stream = nothing
    elif how == "let go too early":
        offload_saved._Pass._order = nothing  # type: ignore[method-assign]
    elif how == "back begins too early":
        links.back.wait_stream = nothing
    elif how == "back before it is out":
        links.back.wait_event = nothing
    elif how == "used before it is back":

        class Passed(torch.cuda.Event):
            def wait(self, stream: Any = None) -> None:
                pass

        links.back.record_event = lambda event=None: Passed()


def ordered() -> None:
    """No copy misses the work beside it; with one wait left out, the oracle sees it. On the
    simulated GPU alone."""
    start(values=False)
    for how in (
        "",
        "out begins too early",
        "let go too early",
        "back begins too early",
        "back before it is out",
        "used before it is back",
    ):
        _ordered(how)


def _ordered(how: str) -> None:
    gpu = libraries()[1]
    count = ctypes.c_uint64()
    order = offload_saved._Pass._order
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        before = count.value
        with torch.cuda.stream(stream):
            for step in range(3):
                x = torch.randn(512, 1024, device="cuda", requires_grad=True)
                with torcharena.offload_activations("1GiB"):
                    if step == 1:
                        (mover,) = offload_saved._movers.values()
                        _broken(mover.links[0], how)
                    y = x
                    for _ in range(12):
                        y = _Work.apply(y)
                    for _ in range(4):  # memory is used anew
                        _touch(torch.empty_like(y), True, 50.0)
                y.backward(torch.ones_like(y))
                del x, y
        offload_saved._movers.clear()
        offload_saved._Pass._order = order  # type: ignore[method-assign]
        gpu.ta_simcuda_violation(ctypes.byref(count))
        assert (count.value > before) == bool(how), (how, count.value)
    if not how:
        assert_sound()


def pinned() -> None:
    """Without pages on the host: plain pinned memory, and spill= is refused."""
    try:
        torcharena.enable(spill="1GiB")
    except RuntimeError as error:
        assert "pages of host memory" in str(error), error
    else:
        raise AssertionError("enabled")
    start(limit="1GiB", spill=None)
    offload_optimizers.LEAST = 1
    plain = train(adamw)
    offloaded = train(
        lambda p: torcharena.offload_optimizer(adamw(p)),
        around=lambda: torcharena.offload_activations("1GiB", least=1024),
    )
    same(plain, offloaded)
    assert stats("host_bytes") == 0
    assert_sound()
    # What the device still works on is nobody else's.
    there = PinnedTensors().like(torch.zeros(MIB, device="cuda"))
    address, size = there.data_ptr(), there.nbytes
    _touch(torch.zeros(MIB, device="cuda"), True, 1e6)
    del there
    other = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    del other
    later = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    assert address in [one.data_ptr() for one in later], "it comes back"


if __name__ == "__main__":
    assert GIB
    globals()[sys.argv[1]](*sys.argv[2:])
