"""CUDA graphs over the arena, beside `graph_replay` of cases.py: one function a case.

    python graph_cases.py NAME[,NAME...]

A case leaves the process as it found it, so that several can follow each other. On the
simulated GPU the oracle watches, and values are not looked at."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import torch
import torcharena
from cases import GIB, MIB, REAL, assert_sound, watch
from torch import nn


def begin(limit: str | None = None) -> int:
    """Bytes reserved before the case."""
    torcharena.enable()
    watch()
    torcharena.set_limit(limit)
    torch.ones(1, device="cuda")
    return settled()


def settled() -> int:
    """Bytes reserved once all that can go has gone."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def end(reserved: int) -> None:
    """Nothing of the case is left, save a page or two with what torch keeps."""
    left = settled()
    assert left <= reserved + 16 * MIB, (left, reserved)
    torcharena.set_limit(None)
    assert_sound()


def is_all(tensor: torch.Tensor, wanted: float) -> None:
    if REAL:
        low, high = tensor.min().item(), tensor.max().item()
        assert low == high == wanted, (low, high, wanted)


def full(size: int, value: int) -> torch.Tensor:
    """``size`` bytes, each with the value."""
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def graphed_callables() -> None:
    """make_graphed_callables trains to the same losses as the model without it."""
    reserved = begin()
    quiet = "set_warn_on_accumulate_grad_stream_mismatch"  # torch's advice, not to us
    getattr(torch.autograd.graph, quiet, bool)(False)

    def losses(graphed: bool) -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.Tanh()
        ).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = torch.randn(20, 64, 256, device="cuda")
        run = model
        if graphed:
            sample = torch.randn(64, 256, device="cuda")
            run = torch.cuda.make_graphed_callables(model, (sample,))
            torch.cuda.synchronize()  # what it freed after capturing has surely passed
        found = []
        for step in range(20):
            between = full(1 + step * 7 * MIB, step)
            optimizer.zero_grad(set_to_none=True)
            loss = (run(data[step]) - data[step]).square().mean()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
            is_all(between, step)
        return found

    plain, captured = losses(False), losses(True)
    if REAL:
        torch.testing.assert_close(
            torch.tensor(captured), torch.tensor(plain), rtol=1e-4, atol=1e-5
        )
        assert plain[-1] < plain[0]
    end(reserved)


def shared_pool() -> None:
    """Two captures of one pool: right while both live, while one does; then all goes."""
    reserved = begin()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x = torch.zeros(4 * MIB, device="cuda")
    with torch.cuda.graph(first):
        middle = x * 2
    with torch.cuda.graph(second, pool=first.pool()):
        scratch = middle + 1
        out = scratch * 3
        del scratch
    for step in range(60):
        x.fill_(step)
        between = full(1 + step * 3 * MIB, step)
        first.replay()
        second.replay()
        is_all(out, (2 * step + 1) * 3)
        is_all(between, step)
    del first
    settled()
    for step in range(20):
        middle.fill_(step)
        between = full(1 + step * 5 * MIB, step)
        second.replay()
        is_all(out, (step + 1) * 3)
    held = settled()
    assert held >= reserved + 32 * MIB
    del second, out, middle, between, x
    end(reserved)


def released() -> None:
    """A graph deleted while its replay still runs: its bytes wait, then serve others."""
    reserved = begin("1GiB")
    side = torch.cuda.Stream()
    for round_ in range(12):
        x = full(64 * MIB, round_ + 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda._sleep(20_000_000)
            out = x + 1
            again = out + 1
        graph.replay()
        copy = again[: 8 * MIB].clone()
        del out, again, graph, x
        with torch.cuda.stream(side):  # more than the cap has, but for the pool's pages
            junk = [full(96 * MIB, 255) for _ in range(9)]
        is_all(copy, round_ + 3)
        del junk, copy
        side.synchronize()
    end(reserved)


def under_pressure() -> None:
    """At the cap a graph's memory stays its own, whatever is refused beside it."""
    reserved = begin("1GiB")
    x = full(64 * MIB, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (x + 1) * 2
    for step in range(40):
        x.fill_(step)
        held = []
        try:
            for size in range(1, 200):
                held.append(full((1 + size % 40) * MIB, 99))
        except torch.OutOfMemoryError as error:
            assert "allowed" in str(error), error
        else:
            raise AssertionError("the cap did not hold")
        graph.replay()
        is_all(out, 2 * (step + 1))
        is_all(held[0], 99)
        del held
    del graph, out, x
    whole = full(900 * MIB, 5)
    is_all(whole, 5)
    del whole
    end(reserved)


def refused_in_capture() -> None:
    """Out of memory while capturing: caught; then another capture works."""
    reserved = begin("512MiB")
    x = full(32 * MIB, 7)
    for round_ in range(3):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                kept = x + 1
                torch.empty(GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 1.00 GiB" in str(error), error
        else:
            raise AssertionError("the cap did not hold")
        del graph, kept
        gc.collect()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = x + round_
        graph.replay()
        is_all(out, 7 + round_)
        del graph, out
        gc.collect()
    del x
    end(reserved)


def many_streams_in_capture() -> None:
    """A capture that forks to a side stream and joins, replayed between allocations."""
    reserved = begin()
    side = torch.cuda.Stream()
    x = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        left = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            right = x * 5
            right.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        out = left + right
        del left, right
    for step in range(100):
        x.fill_(step)
        between = full(1 + (step * 7919) % (32 * MIB), step)
        graph.replay()
        is_all(out, 6 * step + 1)
        is_all(between, step)
    del graph, out, x, between
    end(reserved)


CASES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        graphed_callables,
        shared_pool,
        released,
        under_pressure,
        refused_in_capture,
        many_streams_in_capture,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        print(name, flush=True)
        CASES[name]()
