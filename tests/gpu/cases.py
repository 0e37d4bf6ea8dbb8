"""What runs in the child processes: one function a case.

    python cases.py NAME [ARGUMENT...]

A case that is not as it should be ends with an AssertionError. The functions use torch as a
program would, after torcharena.enable()."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torcharena

# On the simulated GPU kernels compute nothing: what they would give is not looked at.
REAL = "libcuda.so.1" not in os.environ.get("LD_PRELOAD", "")
GIB = 1 << 30
MIB = 1 << 20
_watched = False


def driver_work() -> dict[str, int]:
    """Driver calls that create, release, map or unmap, so far."""
    stats = torcharena.memory_stats()
    return {
        kind: stats[f"driver_calls.{kind}"]
        for kind in ("create", "release", "map", "unmap")
    }


def watch() -> None:
    """On the simulated GPU the oracle judges every reuse from now on."""
    global _watched
    if REAL or _watched:
        return
    _watched = True
    torch.cuda.init()  # the allocator is made with it
    core, gpu = libraries()
    core.ta_process_allocator.restype = ctypes.c_void_p
    gpu.ta_simcuda_machine.restype = ctypes.c_void_p
    machine = ctypes.c_void_p(gpu.ta_simcuda_machine())
    allocator = ctypes.c_void_p(core.ta_process_allocator())
    assert machine and allocator
    assert core.ta_add_observer(allocator, gpu.ta_simcuda_observe, machine) == 0


def libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The C core and the simulated GPU."""
    from torcharena import _core

    return ctypes.CDLL(_core.library_path()), ctypes.CDLL(None)


def sums_to(tensor: torch.Tensor, wanted: float) -> None:
    found = tensor.sum().item()
    assert not REAL or found == wanted, (found, wanted)


def assert_sound() -> None:
    from torcharena import _core

    torch.cuda.synchronize()
    wrong = _core.check()
    assert wrong is None, wrong
    if not REAL:
        gpu = libraries()[1]
        gpu.ta_simcuda_violation.restype = ctypes.c_char_p
        broken = gpu.ta_simcuda_violation(None)
        assert broken is None, broken.decode()


# --- out of memory -----------------------------------------------------------------------
def is_out_of_memory_for_lightning(error: BaseException) -> bool:
    """Lightning's condition, in our words; its own where it is installed."""
    try:
        from lightning.pytorch.utilities.memory import is_oom_error
    except ImportError:
        return (
            isinstance(error, RuntimeError)
            and len(error.args) == 1
            and "CUDA" in error.args[0]
            and "out of memory" in error.args[0]
        )
    return bool(is_oom_error(error))


def is_out_of_memory_for_accelerate(error: BaseException) -> bool:
    """accelerate's condition, in our words; its own where it is installed."""
    try:
        from accelerate.utils.memory import should_reduce_batch_size
    except ImportError:
        return (
            isinstance(error, RuntimeError)
            and len(error.args) == 1
            and " out of memory." in error.args[0]
        )
    return bool(should_reduce_batch_size(error))


def g1() -> None:
    """A tensor far too large is a torch.OutOfMemoryError; then a small one works."""
    torcharena.enable()
    for _ in range(2):
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert is_out_of_memory_for_lightning(error), text
            assert is_out_of_memory_for_accelerate(error), text
            opening = (
                "CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has a total"
            )
            assert text.startswith(opening), text
        else:
            raise AssertionError("no OutOfMemoryError")
        small = torch.ones(1000, device="cuda")
        sums_to(small, 1000)
    assert_sound()


def g8_loop() -> None:
    """Out of memory in a loop, caught, twice: the same depth, nothing leaked."""
    torcharena.enable(limit="4GiB")
    torch.ones(1, device="cuda")
    depths = []
    base = torch.cuda.memory_allocated()
    for _ in range(2):
        held = []
        try:
            while True:
                held.append(torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            depths.append(len(held))
        del held
        gc.collect()
        assert torch.cuda.memory_allocated() == base
    assert depths[0] == depths[1] == 40, depths
    assert_sound()


def g8_backward() -> None:
    """Out of memory in backward, in autograd's thread; then training goes on."""
    torcharena.enable(limit="2GiB")

    class Greedy(torch.autograd.Function):
        greedy = True

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if Greedy.greedy:
                torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
            return gradient * 2

    weight = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    Greedy.apply(weight).sum().detach()
    gc.collect()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    for _ in range(3):
        try:
            Greedy.apply(weight).sum().backward()
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 4.00 GiB" in str(error)
        else:
            raise AssertionError("no OutOfMemoryError")
        gc.collect()
        assert torch.cuda.memory_allocated() == base
    Greedy.greedy = False
    Greedy.apply(weight).sum().backward()
    assert weight.grad is not None
    sums_to(weight.grad, 2_000_000)
    assert_sound()


# --- numbers -------------------------------------------------------------------------------
def g2() -> None:
    """torch's own functions say what is allocated."""
    torcharena.enable()
    torch.empty(1, device="cuda")
    gc.collect()
    base = torch.cuda.memory_allocated()
    assert base == 0
    block = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == GIB
    assert torch.cuda.max_memory_allocated() == GIB
    assert torch.cuda.memory_reserved() >= GIB
    del block
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == GIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["allocated_bytes.all.allocated"] >= GIB
    assert stats["num_ooms"] == 0
    assert "Allocated memory" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert_sound()


def fraction() -> None:
    """A memory fraction is a cap; 1.0 is none."""
    torcharena.enable()
    torch.ones(1, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    limit = torcharena.limit()
    assert limit is not None and GIB - 32 * MIB <= limit <= GIB, limit
    try:
        torch.empty(GIB + 1, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "allowed" in str(error)
    else:
        raise AssertionError("no OutOfMemoryError")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torcharena.limit() is None
    torch.empty(GIB + 1, dtype=torch.uint8, device="cuda")


# --- workspaces, sizes -----------------------------------------------------------------------
def g3() -> None:
    """cudnn.benchmark asks for the largest workspace that can be had."""
    torcharena.enable()
    torch.manual_seed(0)
    for side, channels in ((32, 16), (56, 32), (96, 64)):
        weight = torch.randn(channels, channels, 3, 3, device="cuda")
        image = torch.randn(8, channels, side, side, device="cuda", requires_grad=True)
        results = []
        for benchmark in (False, True):
            torch.backends.cudnn.benchmark = benchmark
            image.grad = None
            out = torch.nn.functional.conv2d(image, weight, padding=1)
            out.square().sum().backward()
            assert image.grad is not None
            results.append((out.detach().clone(), image.grad.clone()))
        for plain, tuned in zip(*results, strict=True):
            if REAL:
                torch.testing.assert_close(plain, tuned, rtol=2e-2, atol=2e-1)
    assert_sound()


def g4() -> None:
    """0.75 of the card, freed, then 0.875: nothing is fragmented."""
    torcharena.enable()
    total = torch.cuda.get_device_properties(0).total_memory
    for share in (0.75, 0.875):
        block = torch.empty(int(total * share), dtype=torch.uint8, device="cuda")
        block[-1] = 7
        assert not REAL or block[-1].item() == 7
        del block
    assert_sound()


# --- the process's end -----------------------------------------------------------------------
def g5(how: str) -> None:
    """The process ends well, whatever is alive."""
    torcharena.enable()
    kept = [torch.ones(MIB, device="cuda") for _ in range(8)]
    if how == "thread":
        thread = threading.Thread(
            target=lambda: kept.append(torch.ones(9, device="cuda"))
        )
        thread.start()
        thread.join()
        threading.Thread(target=time.sleep, args=(1.5,), daemon=True).start()
    elif how == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.append(kept[0] * 2)
        graph.replay()
        globals()["graph"] = graph
    elif how == "deleted":
        from torcharena import state

        state.current.allocator = None
        gc.collect()
        kept.append(torch.ones(MIB, device="cuda"))
    globals()["kept"] = kept


def g6() -> None:
    """Enabling too late is an error that says what to do; twice the same does nothing."""
    torch.ones(1, device="cuda")
    try:
        torcharena.enable()
    except RuntimeError as error:
        assert "before CUDA is first used" in str(error), error
        assert "TORCHARENA_ENABLE=1" in str(error), error
    else:
        raise AssertionError("enabled after CUDA was used")
    sums_to(torch.ones(10, device="cuda"), 10)


def g6_twice() -> None:
    torcharena.enable(limit="8GiB")
    kept = torch.ones(10, device="cuda")
    torcharena.enable(limit="8GiB")
    try:
        torcharena.enable(limit="9GiB")
    except RuntimeError as error:
        assert "8" in str(error)
    else:
        raise AssertionError("enabled with another limit")
    assert torcharena.limit() == 8 * GIB
    sums_to(kept, 10)


# --- streams and graphs ----------------------------------------------------------------------
def record_stream() -> None:
    """Bytes used by a slow stream are not given to another before it has passed."""
    torcharena.enable()
    watch()
    side = torch.cuda.Stream()
    wrong = 0
    for round_ in range(50):
        source = torch.full((4 * MIB,), round_, dtype=torch.int32, device="cuda")
        copy = torch.zeros_like(source)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy.copy_(source)
        source.record_stream(side)
        copy.record_stream(side)
        del source
        for value in range(4):  # would land on the bytes of `source`
            torch.full((4 * MIB,), -1 - value, dtype=torch.int32, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        wrong += int((copy != round_).sum().item())
    assert not REAL or wrong == 0, f"{wrong} words were overwritten"
    torch.cuda.synchronize()
    del copy
    assert torch.cuda.memory_allocated() == 0
    assert_sound()


def own_stream() -> None:
    """torch's streams last; one that others own may be destroyed, unless it is current."""
    torcharena.enable()
    watch()
    library = libraries()[0]
    life = library.ta_test_stream_life
    life.restype = ctypes.c_int
    life.argtypes = [ctypes.c_int, ctypes.c_void_p]
    strange, exists, lasts = range(3)
    torch.ones(1, device="cuda")
    assert life(0, 0) == lasts and life(0, 2) == exists
    for priority in (0, -1):
        pooled = torch.cuda.Stream(priority=priority)
        assert life(0, pooled.cuda_stream) == lasts
        with torch.cuda.stream(pooled):
            assert life(0, pooled.cuda_stream) == lasts
    handle = ctypes.c_void_p()
    runtime = torch.cuda.cudart()
    assert runtime.cudaStreamCreate(ctypes.addressof(handle)) == runtime.cudaError.success
    foreign = torch.cuda.ExternalStream(handle.value)
    assert life(0, foreign.cuda_stream) == strange
    with torch.cuda.stream(foreign):
        assert life(0, foreign.cuda_stream) == exists
        for _ in range(10):
            torch.full((8 * MIB,), 3, dtype=torch.int32, device="cuda")
    foreign.synchronize()
    assert runtime.cudaStreamDestroy(handle.value) == runtime.cudaError.success
    torch.cuda.empty_cache()
    sums_to(torch.full((8 * MIB,), 4, device="cuda"), 32 * MIB)
    assert_sound()


def external_stream_destroyed() -> None:
    """Tensors freed after the owner of their stream destroyed it, which torch's own allocator
    allows: the process goes on, nothing is lost, and the bytes serve others."""
    torcharena.enable(limit="512MiB")
    watch()
    runtime = torch.cuda.cudart()
    others: list[int] = []  # made in between, perhaps with a handle that was another's
    for round_ in range(40):
        handle = ctypes.c_void_p()
        made = runtime.cudaStreamCreate(ctypes.addressof(handle))
        assert made == runtime.cudaError.success and handle.value is not None
        foreign = torch.cuda.ExternalStream(handle.value)
        recorded = torch.full((8 * MIB,), round_, dtype=torch.int32, device="cuda")
        foreign.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(foreign):
            own = recorded + 1
            small = recorded[:100] * 2
        recorded.record_stream(foreign)
        foreign.synchronize()
        sums_to(own[: 1 << 10], (round_ + 1) << 10)
        del recorded  # while the stream that it is recorded for exists, as torch needs it
        assert runtime.cudaStreamDestroy(handle.value) == runtime.cudaError.success
        if round_ % 4 == 3:  # while the destroyed one's tensors still live
            again = ctypes.c_void_p()
            made = runtime.cudaStreamCreate(ctypes.addressof(again))
            assert made == runtime.cudaError.success and again.value is not None
            others.append(again.value)
        del own, small, foreign
        if round_ % 8 == 7:  # most of the cap: what those left behind is needed
            most = torch.full((100 * MIB,), 7, dtype=torch.int32, device="cuda")
            sums_to(most[: 1 << 10], 7 << 10)
            del most
    for value in others:
        assert runtime.cudaStreamDestroy(value) == runtime.cudaError.success
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= 8 * MIB
    assert_sound()
    print({key: torcharena.memory_stats()[key] for key in ("waits", "page_moves")})


def graph_replay(times: str = "1000") -> None:
    """A captured graph gives right results between other allocations."""
    torcharena.enable(limit="2GiB")
    watch()
    torch.manual_seed(0)
    x = torch.zeros(512, 512, device="cuda")
    weight = torch.randn(512, 512, device="cuda") / 23

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x @ weight
        for _ in range(4):
            y = torch.relu(y @ weight) + x
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work(x)
    held: list[torch.Tensor] = []
    for step in range(int(times)):
        fresh = torch.randn(512, 512, device="cuda")
        size = 1 + (step * 7919) % (96 * MIB)
        held.append(torch.full((size,), step % 251, dtype=torch.uint8, device="cuda"))
        if len(held) > 6:
            old = held.pop(0)
            assert not REAL or old[0] == old[-1]
        x.copy_(fresh)
        graph.replay()
        if REAL and (step % 50 == 0 or step > int(times) - 5):
            torch.testing.assert_close(out, work(fresh), rtol=1e-3, atol=1e-3)
        if step % 97 == 0:
            torch.cuda.empty_cache()
    del out, graph
    held.clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert_sound()


def warm_loop() -> None:
    """A loop of fixed shapes makes no driver call that maps once it is warm."""
    torcharena.enable()
    watch()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[
            torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU())
            for _ in range(8)
        ]
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(512, 1024, device="cuda")
    before: dict[str, int] = {}
    for step in range(20):
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        if step == 5:
            before = driver_work()
    assert driver_work() == before, (before, driver_work())
    assert_sound()


# --- two GPUs --------------------------------------------------------------------------------
def two_gpus() -> None:
    """Copies between devices, and memory freed while the other device is current."""
    torcharena.enable()
    watch()
    for size in (1000, 8 * MIB, 64 * MIB):
        a = torch.arange(size, dtype=torch.int32, device="cuda:0")
        b = a.to("cuda:1")
        c = (b + 1).to("cuda:0")
        assert not REAL or torch.equal(c, a + 1)
        with torch.cuda.device(1):
            del a
        with torch.cuda.device(0):
            del b
    del c
    gc.collect()
    assert torch.cuda.memory_allocated(0) == 0
    assert torch.cuda.memory_allocated(1) == 0
    assert_sound()


CASES: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        g1,
        g2,
        g3,
        g4,
        g5,
        g6,
        g6_twice,
        g8_loop,
        g8_backward,
        fraction,
        record_stream,
        own_stream,
        external_stream_destroyed,
        graph_replay,
        warm_loop,
        two_gpus,
    )
}


def together(*names: str) -> None:
    """Several cases in one process: those that enable in the same way."""
    for name in names:
        CASES[name]()


CASES["together"] = together

if __name__ == "__main__":
    CASES[sys.argv[1]](*sys.argv[2:])
