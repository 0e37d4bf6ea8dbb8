"""The batch finder on a card: what it finds runs, is near the true limit, and leaves
nothing behind. Run by test_batches.py, a process for each of torch's own allocators and the
arena.

    python batch_cases.py native|expandable|arena|spill NAME..."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torcharena
from torch import nn

# On the simulated GPU kernels compute nothing: a large batch tells no more than a small one.
REAL = "libcuda.so.1" not in os.environ.get("LD_PRELOAD", "")
CAP = 1 << 30 if REAL else 192 << 20  # bytes
MOST = 1 << 20


def capped(size: int) -> None:
    """The process may have so many bytes."""
    if torcharena.enabled():
        torcharena.set_limit(size)
    else:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(size / total)


class Training:
    """A small network with all that training has: state that a step makes, buffers, a loss
    scale, a schedule, an average, and numbers drawn at random."""

    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 16),
        ).cuda()  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        self.average = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.losses: list[torch.Tensor] = []
        self.sizes: set[int] = set()
        self.last: Any = None

    def step(self, batch_size: int) -> None:
        """One of training."""
        random.random()
        self.model.train()
        x = torch.randn(batch_size, 256, device="cuda")
        y = torch.randint(0, 16, (batch_size,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            self.last = self.model(x)
            loss = nn.functional.cross_entropy(self.last, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.average[name].lerp_(parameter, 0.1)
        self.losses.append(loss)
        self.sizes.add(batch_size)

    def state(self) -> dict[str, Any]:
        """All of it, contents on the host."""
        parameters = list(self.model.parameters())
        return {
            "model": {k: v.cpu() for k, v in self.model.state_dict().items()},
            "grads": [None if p.grad is None else p.grad.cpu() for p in parameters],
            "places": [p.data_ptr() for p in parameters],
            "optimizer": _on_host(self.optimizer.state_dict()),
            "held": len(self.optimizer.state),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": {k: v.cpu() for k, v in self.average.items()},
            "losses": list(self.losses),
            "sizes": set(self.sizes),
            "last": self.last,
            "training": [m.training for m in self.model.modules()],
        }


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {k: _on_host(v) for k, v in value.items()}
    return [_on_host(v) for v in value] if isinstance(value, (list, tuple)) else value


def same(one: Any, other: Any, at: str = "") -> None:
    """Asserts that two states are equal, to the bit."""
    assert type(one) is type(other), (at, type(one), type(other))
    if isinstance(one, torch.Tensor):
        bits = torch.uint8
        assert one.dtype == other.dtype and one.shape == other.shape, at
        assert one.reshape(-1).view(bits).equal(other.reshape(-1).view(bits)), at
    elif isinstance(one, dict):
        assert list(one) == list(other), (at, list(one), list(other))
        for key in one:
            same(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), (at, len(one), len(other))
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{at}[{index}]")
    else:
        assert one == other, (at, one, other)


def drawn() -> list[Any]:
    """The state of every generator."""
    return [torch.get_rng_state(), torch.cuda.get_rng_state(), random.getstate()]


def runs(make: Callable[[], Training], size: int) -> bool:
    """Three steps of a training made anew, by hand."""
    training = make()
    try:
        for _ in range(3):
            training.step(size)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False
    finally:
        del training
        gc.collect()
        torch.cuda.empty_cache()
    return True


def limit_by_hand(make: Callable[[], Training], most: int) -> int:
    """Within 1 %."""
    low, high = 0, most
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(make, middle) else (low, middle)
    return low


def trains() -> None:
    """G15: at least 0.95 of the true limit; all is as before; then it trains at that."""
    capped(CAP)
    limit = limit_by_hand(Training, 1 << 17 if REAL else 1 << 13)
    training = Training()
    gc.collect()
    torch.cuda.synchronize()
    before, live = training.state(), torch.cuda.memory_allocated()
    generators = drawn()
    found = torcharena.find_batch_size(training.step, start=64, max=MOST)
    torch.cuda.synchronize()
    same(before, training.state())
    same(generators, drawn())
    del before
    gc.collect()
    left = torch.cuda.memory_allocated() - live
    assert left == 0, left
    assert not found.notes, found.notes
    print(f"limit by hand {limit}, found {found!r}, ratio {found / limit:.3f}")
    print(found.table())
    assert 0.95 * limit <= found <= 1.1 * limit, (found, limit)
    assert found.failed_in == "training"
    for _ in range(20):
        training.step(found)
        training.losses[-1] = training.losses[-1].item()
    torch.cuda.synchronize()


def goes_on() -> None:
    """In the middle of a training: the steps after it are those without it, to the bit."""
    capped(CAP)

    def trained(search: bool) -> dict[str, Any]:
        torch.manual_seed(1)
        random.seed(1)
        training = Training()
        for step in range(6):
            if step == 3 and search:
                torcharena.find_batch_size(training.step, start=512, max=1 << 12)
            training.step(32)
        torch.cuda.synchronize()
        state = training.state()
        del state["places"], state["losses"], state["last"]
        return state

    torch.use_deterministic_algorithms(True)
    same(trained(False), trained(True))
    torch.use_deterministic_algorithms(False)


def decorated() -> None:
    """The first call finds the size, and runs from the state before."""
    capped(CAP)
    training = Training()

    @torcharena.find_batch_size(start=512, max=MOST, effective=1 << 17)
    def train(batch_size: int, accumulation: int, steps: int = 2) -> tuple[int, int]:
        for _ in range(steps):
            training.step(batch_size)
        return batch_size, accumulation

    first = train(steps=3)
    assert first[0] * first[1] == 1 << 17, first
    assert training.schedule.last_epoch == 3, training.schedule.last_epoch
    assert train() == first == (train.batch_size, train.batch_size.accumulation)
    tried = {one.size: one.ran for one in train.batch_size.tried}
    assert tried[first[0]] and not tried[2 * first[0]], tried


def sharded() -> None:
    """A model of fully_shard, whose parameters come and go: it trains on after the search,
    which ran out of memory in the middle of a step."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    capped(CAP)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)]).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size: int) -> None:
        x = torch.randn(batch_size, 256, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    weights = [p.full_tensor().cpu() for p in model.parameters()]
    found = torcharena.find_batch_size(step, start=1024, max=MOST)
    assert found.failed_in == "training" and not optimizer.state, found.table()
    same(weights, [p.full_tensor().cpu() for p in model.parameters()])
    for _ in range(3):
        step(found)
    dist.destroy_process_group()


# --- S25: an oracle, of which 100 samples of 8 MiB fit --------------------------------------
SAMPLE = 8 << 20


class Oracle:
    """Functions of a batch size, and what was asked of them. The finder does not put back
    what is in a queue."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.called: list[int] = []
        self.told: list[str] = []
        self.base = torch.cuda.memory_allocated()

    def take(self, size: int) -> torch.Tensor:
        self.called.append(size)
        self.asked.put(size)
        return torch.empty(size * SAMPLE, dtype=torch.uint8, device="cuda")

    def evaluate(self, size: int) -> None:
        self.model.eval()
        with torch.no_grad():
            self.take(2 * size)

    def both(self, size: int) -> None:
        self.take(size)
        self.evaluate(size)

    def skips(self, size: int) -> None:
        with contextlib.suppress(torch.OutOfMemoryError):
            self.take(size)

    def library(self, size: int) -> torch.Tensor:
        """Says what cuBLAS does where it finds no memory."""
        try:
            return self.take(size)
        except torch.OutOfMemoryError:
            status = "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            raise RuntimeError(f"CUDA error: {status}") from None

    def find(self, fn: Callable[[int], Any], **named: Any) -> tuple[Any, list[int]]:
        """What was found, and the sizes asked for."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = torcharena.find_batch_size(fn, **named)
        self.told = [str(one.message) for one in told]
        self.nothing_is_left()
        return found, [self.asked.get() for _ in range(self.asked.qsize())]

    def nothing_is_left(self) -> None:
        assert not self.called and self.model.training and torch.is_grad_enabled()
        left = torch.cuda.memory_allocated() - self.base
        assert left == 0, left


def s25() -> None:
    """The first size fails; min and max are given; only evaluation fails; 100 from 128. And
    other errors than out of memory are raised as they are."""
    capped(100 * SAMPLE)
    oracle = Oracle()
    found, asked = oracle.find(oracle.take, start=128)
    assert 95 <= found <= 100 and asked[0] == 128 and len(asked) <= 10, (found, asked)
    assert found.failed_in == "training" and not oracle.told
    assert asked.count(found) >= 2
    found, asked = oracle.find(oracle.take, start=8, min=4, max=64)
    assert found == 64 and not found.failed_in
    assert all(4 <= size <= 64 for size in asked)
    found, _ = oracle.find(oracle.take, start=120, multiple=8)
    assert found == 96
    found, _ = oracle.find(oracle.library, start=64)
    assert 95 <= found <= 100

    found, _ = oracle.find(oracle.both, start=8)
    assert 48 <= found <= 50 and found.failed_in == "evaluation", found.table()
    assert len(oracle.told) == 1 and "not its training" in oracle.told[0], oracle.told
    assert "evaluate=function" in found.table()
    found, _ = oracle.find(oracle.take, start=8, evaluate=oracle.evaluate)
    assert 95 <= found <= 100 and 48 <= found.evaluation <= 50
    assert not oracle.told, oracle.told
    found, _ = oracle.find(oracle.skips, start=64, max=128)
    assert found == 128 and "went on" in found.table()

    error = KeyError("of the user's")

    def fails(size: int) -> None:
        held = oracle.take(size)
        if held.numel() > 40 * SAMPLE:
            raise error

    for wrong, kind, named in (
        (fails, KeyError, {}),
        (oracle.take, torch.OutOfMemoryError, {"min": 120, "start": 256}),
    ):
        try:
            torcharena.find_batch_size(wrong, **named)
        except kind as raised:
            raised.__traceback__ = None  # its frames hold what they held
            oracle.nothing_is_left()
            assert (
                raised is error
                or "even with a batch size of 120 (training): CUDA" in (str(raised))
            ), raised
        else:
            raise AssertionError("nothing was raised")


# --- what functions do besides ---------------------------------------------------------------
def _settings() -> dict[str, Any]:
    backends = torch.backends
    return {
        "grad": torch.is_grad_enabled(), "dtype": torch.get_default_dtype(),
        "place": torch.empty(0).device.type, "autocast": torch.is_autocast_enabled("cuda"),
        "cudnn": (backends.cudnn.benchmark, backends.cudnn.deterministic),
        "tf32": (backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()),
        "sdp": (backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled()),
        "stream": torch.cuda.current_stream(), "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(), "garbage": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
    }  # fmt: skip


def _set_all(oracle: Oracle, size: int) -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_autocast_enabled("cuda", True)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.set_anomaly_enabled(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    torch.set_default_device("cuda")
    gc.disable()
    oracle.take(size)


def hostile() -> None:
    """Whatever a function sets, is or raises, all is as before it, and what is found is right."""
    capped(100 * SAMPLE)
    oracle = Oracle()
    before, generators = _settings(), drawn()
    found, _ = oracle.find(lambda size: _set_all(oracle, size), start=64)
    assert 95 <= found <= 100
    assert _settings() == before, (_settings(), before)
    same(generators, drawn())

    def by_name(*, batch_size: int) -> None:
        oracle.take(batch_size)

    assert 95 <= oracle.find(by_name, start=64)[0] <= 100

    def grouped(size: int) -> None:
        try:
            oracle.take(size)
        except torch.OutOfMemoryError as error:
            raise Group("both", [error]) from None

    class Group(Exception):  # as Python 3.11's
        def __init__(self, text: str, errors: list[Exception]) -> None:
            super().__init__(text)
            self.exceptions = tuple(errors)

    assert 95 <= oracle.find(grouped, start=64)[0] <= 100

    def inner(size: int) -> None:
        assert torcharena.find_batch_size(oracle.take, 4, max=8) == 8
        oracle.take(size)

    assert 95 <= oracle.find(inner, start=64)[0] <= 100
    for error in (KeyboardInterrupt(), SystemExit(3)):

        def stops(size: int, error: BaseException = error) -> None:
            held = oracle.take(size)
            if held.numel() >= 64 * SAMPLE:
                raise error

        try:
            torcharena.find_batch_size(stops, 16)
        except type(error) as raised:
            assert raised is error
            raised.__traceback__ = None
        oracle.nothing_is_left()

    from torcharena.batches import rollback

    restore, broken = rollback.Rollback.restore, [True]

    def interrupted(kept: Any) -> None:  # in the middle of putting back
        if broken:
            broken.clear()
            raise KeyboardInterrupt
        restore(kept)

    rollback.Rollback.restore = interrupted
    try:
        torcharena.find_batch_size(oracle.take, 16)
    except KeyboardInterrupt as raised:
        raised.__traceback__ = None
    else:
        raise AssertionError("the interrupt is gone")
    finally:
        rollback.Rollback.restore = restore
    oracle.nothing_is_left()
    assert _settings() == before


def spills() -> None:
    """With host memory to spare: what needs it for want of room does not fit the card; a function
    that sends part of it there by plan is taken as it runs."""
    capped(100 * SAMPLE)
    oracle = Oracle()
    found, _ = oracle.find(oracle.take, start=64)
    assert 95 <= found <= 100, found.table()
    assert "only with host memory" in found.table() and found.failed_in == "training"

    def planned(size: int) -> None:
        with torcharena.offload_activations():
            x = torch.ones(size * SAMPLE // 32, device="cuda", requires_grad=True)
            for _ in range(16):
                x = x.sin()
        x.sum().backward()

    found, _ = oracle.find(planned, start=16, max=256)
    assert found > 100, found.table()  # 42 without


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if sys.argv[1] in ("arena", "spill"):
        torcharena.enable(spill="4GiB" if sys.argv[1] == "spill" else None)
    torch.cuda.init()
    for name in sys.argv[2:]:
        globals()[name]()
        gc.collect()
        torch.cuda.empty_cache()
