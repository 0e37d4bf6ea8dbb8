"""A process's life over the arena: its end, its children, running out of memory and going
on. What cases.py has not: one function a case.

    python life_cases.py NAME [ARGUMENT...]"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torcharena
from cases import GIB, MIB, REAL, assert_sound, sums_to, watch
from torch import nn


# --- the end -------------------------------------------------------------------------------
def end_busy() -> None:
    """The GPU still works when the process ends."""
    torcharena.enable()
    globals()["kept"] = [torch.ones(8 * MIB, device="cuda") for _ in range(8)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
        globals()["more"] = globals()["kept"][0] * 2
    globals()["kept"][0].record_stream(side)
    del globals()["kept"][0]


def end_autograd() -> None:
    """Autograd's threads have allocated, and the whole graph is alive."""
    torcharena.enable()
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    globals()["kept"] = (model, model(torch.randn(64, 512, device="cuda")).sum())


def end_atexit() -> None:
    """A function at exit still allocates and frees."""
    torcharena.enable()
    kept = [torch.ones(MIB, device="cuda")]

    def last() -> None:
        kept.append(torch.ones(3 * MIB, device="cuda"))
        torch.cuda.synchronize()
        kept.pop(0)

    atexit.register(last)


def end_sys_exit() -> None:
    """sys.exit while another thread still allocates, and finishes after it."""
    torcharena.enable()
    torch.ones(1, device="cuda")

    def work() -> None:
        stop = time.monotonic() + 0.6
        while time.monotonic() < stop:
            torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        globals()["kept"] = torch.ones(MIB, device="cuda")

    threading.Thread(target=work).start()
    time.sleep(0.2)
    sys.exit(0)


def end_forgotten() -> None:
    """torch's own reference to the allocator is gone as well as ours, a pool is alive."""
    torcharena.enable()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        globals()["inside"] = torch.ones(MIB, device="cuda")
    globals()["pool"] = pool
    from torcharena import state

    assert state.current.allocator is not None
    state.current.allocator = None
    del sys.modules["torcharena"]
    gc.collect()
    globals()["kept"] = torch.ones(MIB, device="cuda")


# --- children ------------------------------------------------------------------------------
class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.full((1000,), float(place))


def loader(context: str, pinned: str = "pinned") -> None:
    """Workers, forked or spawned, with pinned memory; twice, with blocks live meanwhile."""
    torcharena.enable()
    watch()
    kept = torch.ones(MIB, device="cuda")
    rows = torch.utils.data.DataLoader(
        Rows(),
        batch_size=8,
        num_workers=2,
        multiprocessing_context=context,
        pin_memory=pinned == "pinned",
        persistent_workers=context == "spawn",
    )
    for _ in range(2):
        for number, batch in enumerate(rows):
            moved = batch.to("cuda", non_blocking=True)
            back = moved.cpu()
            wanted = torch.arange(8 * number, 8 * number + 8).float()
            assert torch.equal(back[:, 0], wanted) and torch.equal(back[:, -1], wanted)
            torch.empty((1 + number) * 3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 4 * MIB + moved.nbytes // 512 * 512 + 512
    sums_to(kept, MIB)
    del rows
    assert_sound()


def forked() -> None:
    """A forked child cannot allocate, and says so; the parent's memory stays."""
    torcharena.enable()
    kept = torch.arange(4 * MIB, dtype=torch.int32).to("cuda")
    with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(kept.cpu(), torch.arange(4 * MIB, dtype=torch.int32))
    assert_sound()


def child_trains(rank: int, limit: str) -> None:
    """In a spawned child."""
    torcharena.enable(limit=limit)
    train(nn.Linear(256, 256).cuda(), 3, 64)
    assert torcharena.limit() == int(limit[:-3]) * MIB
    assert_sound()


def spawned() -> None:
    """Spawned children have allocators, and caps, of their own."""
    torcharena.enable()
    kept = torch.ones(MIB, device="cuda")
    torch.multiprocessing.spawn(child_trains, ("512MiB",), nprocs=2 if REAL else 1)
    sums_to(kept, MIB)
    assert torcharena.limit() is None
    assert_sound()


# --- out of memory -------------------------------------------------------------------------
def full(size: int, value: int) -> torch.Tensor:
    """``size`` bytes, each with the value."""
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def train(model: Any, steps: int, batch: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(batch, 256, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def deep() -> Any:
    layers: list[Any] = []
    for _ in range(12):
        layers += [nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)]
    return nn.Sequential(*layers).cuda()


def refused(call: Callable[[], Any]) -> str:
    """The call runs out of memory; the text."""
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("did not run out of memory")


def base_of(model: Any) -> int:
    for parameter in model.parameters():
        parameter.grad = None
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def comes_back(model: Any, base: int) -> bool:
    """What was allocated for a step is gone. Autograd's thread lets go of the last of it after
    `backward` has returned or raised: within seconds on a machine that others load."""
    for _ in range(500):
        if base_of(model) == base:
            return True
        time.sleep(0.01)
    return False


def oom_forward() -> None:
    """Too large a batch in forward, three times; a smaller one trains after each."""
    torcharena.enable(limit="512MiB")
    watch()
    model = deep()
    train(model, 1, 64)
    base = base_of(model)
    for _ in range(3):
        text = refused(lambda: train(model, 1, 65536))
        assert "512" in text and "allowed" in text, text
        assert comes_back(model, base)
        train(model, 2, 512)
        assert comes_back(model, base)
    assert torch.cuda.memory_reserved() <= 512 * MIB
    assert_sound()


class Wider(torch.autograd.Function):
    """Backward asks for 16 times what forward held."""

    wide = 16

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.repeat(Wider.wide, 1, 1).sum(0)


def oom_backward() -> None:
    """Backward runs out, in autograd's thread, with many saved tensors; then it goes on,
    with and without checkpointing."""
    from torch.utils.checkpoint import checkpoint

    torcharena.enable(limit="512MiB")
    watch()
    model = deep()
    train(model, 1, 64)
    base = base_of(model)

    def step(recompute: bool) -> None:
        x = torch.randn(16384, 256, device="cuda", requires_grad=True)
        y = Wider.apply(x)
        for layer in model[:6]:
            y = checkpoint(layer, y, use_reentrant=False) if recompute else layer(y)
        y.sum().backward()

    for recompute in (False, True, False, True):
        Wider.wide = 64
        refused(lambda: step(recompute))  # noqa: B023
        assert comes_back(model, base)
        Wider.wide = 2
        step(recompute)
        assert comes_back(model, base)
    assert_sound()


def oom_threads() -> None:
    """Four threads at one cap: refusals come as exceptions, and the books balance."""
    torcharena.enable(limit="256MiB")
    watch()
    torch.ones(1, device="cuda")
    wrong: list[BaseException] = []
    counts = [0, 0]

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for round_ in range(40):
                    held = []
                    try:
                        for size in range(1, 14):
                            held.append(full(size * MIB, number))
                        counts[0] += 1
                    except torch.OutOfMemoryError:
                        counts[1] += 1
                    for tensor in held[:: 1 + round_ % 3]:
                        stream.synchronize()
                        assert not REAL or tensor[-1].item() == number
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    gc.collect()
    assert torch.cuda.memory_reserved() <= 256 * MIB
    assert counts[0] + counts[1] == 160 and counts[0] > 0, counts
    assert_sound()


# --- the driver's own numbers, compilers -----------------------------------------------------
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def used_bytes() -> int:
    """Of device 0, as NVML has it: all processes, with no context of ours."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    handle, memory = ctypes.c_void_p(), Memory()
    if visible.isdigit():
        found = nvml.nvmlDeviceGetHandleByIndex_v2(int(visible), ctypes.byref(handle))
    else:
        found = nvml.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(handle))
    assert found == 0, found
    assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return int(memory.used)


def g7() -> None:
    """At a cap of 2 GiB the driver's excess is the context, and the report says so. Runs
    alone: another process's memory would count."""
    before = used_bytes()
    torcharena.enable(limit="2GiB")
    held = []
    refused(lambda: [held.append(full(32 * MIB, 1)) for _ in range(100)])
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() == 2 * GIB == torcharena.limit()
    excess = used_bytes() - before - 2 * GIB
    assert 0 <= excess <= 1536 * MIB, excess
    report = torcharena.memory_summary()
    assert "cap: 2 GiB" in report and "context comes on top" in report, report
    print(f"context: {excess / MIB:.0f} MiB on top of the cap")
    assert_sound()


def g9() -> None:
    """torch.compile(mode="reduce-overhead"): five steps, or one line with the remedy."""
    torcharena.enable()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(8, 64, device="cuda")
    try:
        for _ in range(5):
            compiled(x).sum().backward()
        print("works")
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if "cudagraph_trees" in line]
        assert lines, error
        print(lines[0])
    sums_to(torch.ones(10, device="cuda"), 10)


# --- two GPUs --------------------------------------------------------------------------------
def between_devices() -> None:
    """Copies both ways, of blocks that were there before the other device was first used and
    of later ones, by driver and by kernel, on other streams, after pages have moved."""
    torcharena.enable()
    watch()
    size = 5 * MIB + 77
    on_cpu = torch.arange(size, dtype=torch.int32)
    early = on_cpu.to("cuda:0")
    small = on_cpu[:1000].to("cuda:0")
    assert torch.cuda.memory_reserved(1) == 0
    assert torch.cuda.can_device_access_peer(0, 1)

    there = early.to("cuda:1")
    assert torch.equal(there.cpu(), on_cpu)
    assert torch.equal(small.to("cuda:1").cpu(), on_cpu[:1000])
    late = (on_cpu + 1).to("cuda:0")
    assert torch.equal(late.to("cuda:1").cpu(), on_cpu + 1)
    back = torch.empty(size, dtype=torch.int32, device="cuda:0")
    back.copy_(there, non_blocking=True)
    assert torch.equal(back.cpu(), on_cpu)
    early.copy_(late.to("cuda:1"))  # written from the other side
    assert torch.equal(early.cpu(), on_cpu + 1)

    for first, second in ((0, 1), (1, 0)):  # strided: a kernel reads the peer's memory
        view = on_cpu[: 4 * MIB].view(2048, 2048).to(f"cuda:{first}").t()
        moved = view.to(f"cuda:{second}").cpu()
        assert not REAL or torch.equal(moved, on_cpu[: 4 * MIB].view(2048, 2048).t())

    side = torch.cuda.Stream(1)
    for round_ in range(30):
        source = torch.full((size,), round_, dtype=torch.int32).to("cuda:0")
        side.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(side):
            copy = source.to("cuda:1", non_blocking=True)
        source.record_stream(side)
        del source
        torch.full((size,), -1, dtype=torch.int32).to("cuda:0")
        side.synchronize()
        assert copy[0].item() == copy[-1].item() == round_
        if round_ % 10 == 9:
            torch.cuda.empty_cache()
    del early, small, there, late, back, view, copy
    gc.collect()
    for device in (0, 1):
        torch.cuda.synchronize(device)
        assert torch.cuda.memory_allocated(device) == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) == torch.cuda.memory_reserved(1) == 0
    assert_sound()


CASES: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        end_busy,
        end_autograd,
        end_atexit,
        end_sys_exit,
        end_forgotten,
        loader,
        forked,
        spawned,
        oom_forward,
        oom_backward,
        oom_threads,
        g7,
        g9,
        between_devices,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        print(name, flush=True)
        CASES[name](*sys.argv[2:])
