"""Host memory on a GPU: what pinning, copies and work in place reach.

    python -m benchmarks.host_pages [--gib 8] [--only pin,copies,sleep,adamw,saved]

One JSON object a line; GB/s are 10^9 bytes a second, each beside the pinned copy rate of the same
run. `pin` makes pages of 32 MiB by 1 to 16 threads. `copies` also tells which engine copies to a
page on the host: a product that runs beside one on the multiprocessors takes longer. `saved`
sets `offload_activations` beside torch's own save_on_cpu(pin_memory=True), at equal bytes sent."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import gc
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torcharena

GIB = 1 << 30
PAGE = 32 << 20


def say(what: str, **figures: Any) -> None:
    short = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"what": what, **short}), flush=True)


def seconds(work: Callable[[], Any], times: int = 3) -> float:
    """The best of several, from one wait for the device to the next."""
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


# --- pinning -------------------------------------------------------------------------------
class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def pin(gib: int) -> None:
    """Pages made by several threads at once, at the GPU's NUMA node."""
    cuda = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda")
    node = max(torcharena._core.probe(0)["numa_node"], 0)
    made: list[int] = []

    def make(count: int) -> None:
        wanted = _Properties(type=1, location=_Location(type=3, id=node))
        for _ in range(count):
            handle = ctypes.c_ulonglong()
            result = cuda.cuMemCreate(
                ctypes.byref(handle),
                ctypes.c_size_t(PAGE),
                ctypes.byref(wanted),
                ctypes.c_ulonglong(0),
            )
            assert result == 0, f"cuMemCreate: {result}"
            made.append(handle.value)

    pages = gib * GIB // PAGE
    for count in (1, 2, 4, 8, 16):
        threads = [
            threading.Thread(target=make, args=(pages // count,)) for _ in range(count)
        ]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begin
        begin = time.perf_counter()
        size = len(made) * PAGE
        while made:
            assert cuda.cuMemRelease(ctypes.c_ulonglong(made.pop())) == 0
        back = time.perf_counter() - begin
        say("pin", threads=count, GBs=size / took / 1e9, release_GBs=size / back / 1e9)


# --- copies --------------------------------------------------------------------------------
def pinned_rates(size: int = GIB) -> tuple[float, float, float]:
    """GB/s of pinned copies to the host, to the device, and of each way with both at once."""
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    one, two = torch.cuda.Stream(), torch.cuda.Stream()

    def out() -> None:
        with torch.cuda.stream(one):
            host[0].copy_(device[0], non_blocking=True)

    def back() -> None:
        with torch.cuda.stream(two):
            device[1].copy_(host[1], non_blocking=True)

    def both() -> None:
        out()
        back()

    rates = [size / seconds(work) / 1e9 for work in (out, back, both)]
    return rates[0], rates[1], rates[2]


def copies(gib: int) -> None:
    out, back, both = pinned_rates()
    say("pinned copies", to_host=out, to_device=back, each_of_both=both)
    from torcharena.spill.host_tensors import ArenaTensors

    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    page = ArenaTensors("benchmark").flat(GIB, device.device)
    pinned = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    side = torch.cuda.Stream()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)

    def product() -> None:
        for _ in range(32):
            torch.mm(a, a, out=b)

    alone = seconds(product)
    for name, to, source in (
        ("to a page", page, device),
        ("from a page", device, page),
        ("to pinned", pinned, device),
        ("from pinned", device, pinned),
    ):

        def copy(to: torch.Tensor = to, source: torch.Tensor = source) -> None:
            with torch.cuda.stream(side):
                for _ in range(4):
                    to.copy_(source, non_blocking=True)

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        rate = 4 * GIB / seconds(copy) / 1e9
        copy()
        begin.record()
        product()
        end.record()
        torch.cuda.synchronize()
        slower = begin.elapsed_time(end) / 1e3 / alone
        say("copy", way=name, GBs=rate, product_beside_it=slower)


# --- sleep and wake ------------------------------------------------------------------------
def sleeping(gib: int) -> None:
    out, back, _ = pinned_rates()
    with torcharena.region("benchmark weights"):
        held = [
            torch.empty(GIB // 4, dtype=torch.uint8, device="cuda")
            for _ in range(4 * gib)
        ]
    for number in range(4):
        took = []
        for call in (torcharena.sleep, torcharena.wake_up):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            size = call("benchmark weights")
            took.append(size / (time.perf_counter() - begin) / 1e9)
        say(
            "sleep" if number else "first sleep, pinning",
            GiB=gib,
            sleep_GBs=took[0],
            wake_GBs=took[1],
            over_pinned=[round(took[0] / out, 3), round(took[1] / back, 3)],
        )
    del held
    gc.collect()
    torcharena.empty_cache(host=True)


# --- work in place -------------------------------------------------------------------------
def adamw(gib: int) -> None:
    """Fused AdamW, its moments on the device and on the host."""
    count = gib * GIB // 16
    parameters = [
        torch.nn.Parameter(torch.randn(count // 8, device="cuda")) for _ in range(8)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    optimizer.step()
    took = seconds(optimizer.step)
    before = torcharena.memory_stats()["reserved_bytes"]
    say("adamw", where="device", parameters=count, ms=took * 1e3)
    torcharena.offload_optimizer(optimizer)
    torcharena.empty_cache()
    down = before - torcharena.memory_stats()["reserved_bytes"]
    took = seconds(optimizer.step)
    say(
        "adamw",
        where="host",
        ms=took * 1e3,
        each_way_GBs=8 * count / took / 1e9,
        device_bytes_down_over_state=down / (8 * count),
    )
    del optimizer, parameters, parameter
    gc.collect()
    torcharena.empty_cache(host=True)


# --- saved tensors -------------------------------------------------------------------------
def saved(gib: int) -> None:
    """A deep MLP whose saved tensors take about `gib` GiB, all of them sent."""
    width, layers = 4096, 24
    rows = max(gib * GIB // (2 * layers * width * 4), 256)
    torch.manual_seed(0)
    model = torch.nn.ModuleList(
        torch.nn.Linear(width, width) for _ in range(layers)
    ).cuda()
    x = torch.randn(rows, width, device="cuda")

    def step(around: Callable[[], Any]) -> float:
        with around():
            y = x
            for layer in model:
                y = y + torch.nn.functional.gelu(layer(y))
            loss = y.square().mean()
        loss.backward()
        model.zero_grad()
        return loss.item()

    ways: dict[str, Callable[[], Any]] = {
        "kept": contextlib.nullcontext,
        "offload_activations": lambda: torcharena.offload_activations("1TiB"),
        "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(pin_memory=True),
    }
    for name, around in ways.items():
        loss = step(around)
        step(around)
        torcharena.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        took = seconds(functools.partial(step, around))
        peak = torcharena.memory_stats()["reserved_bytes.peak"]
        say("saved", way=name, ms=took * 1e3, peak_GiB=peak / GIB, loss=loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--only", default="pin,copies,sleep,adamw,saved")
    options = parser.parse_args()
    torcharena.enable(spill=f"{4 * options.gib + 8}GiB")
    parts: dict[str, Callable[[int], None]] = {
        "pin": pin,
        "copies": copies,
        "sleep": sleeping,
        "adamw": adamw,
        "saved": saved,
    }
    for name in options.only.split(","):
        parts[name](options.gib)


if __name__ == "__main__":
    main()
