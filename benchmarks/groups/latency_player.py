"""The child of `latency`: times ``torch.empty`` and its free under one contender.

Answers ``prepare`` (a case), ``run`` (blocks of calls). Times are nanoseconds; those of single
calls have the clock's own time taken off."""

from __future__ import annotations

import gc
import itertools
import os
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..harness.contenders import install
from ..harness.machine import machine
from ..harness.turns import serve

clock = time.perf_counter_ns
WARM = 30  # calls before each block: other processes had the caches
KEPT = 100  # blocks alive beside, where a case has no number of its own


def clock_ns() -> float:
    """What reading the clock twice takes."""
    times = []
    for _ in range(2000):
        start = clock()
        times.append(clock() - start)
    return statistics.median(times)


def some_sizes(count: int, low: int = 512, high: int = 64 << 10) -> list[int]:
    """As many sizes of each order of magnitude, multiples of nothing."""
    draw = random.Random(count)
    return [int(low * (high / low) ** draw.random()) for _ in range(count)]


class OneSize:
    """One size, again and again."""

    def __init__(self, torch: Any, size: int) -> None:
        self.empty, self.size = torch.empty, size
        self.how = {"dtype": torch.uint8, "device": torch.device("cuda", 0)}
        self.kept = [torch.empty(n, **self.how) for n in some_sizes(KEPT)]
        self.block(1000)

    def block(self, calls: int) -> float:
        empty, size, dtype, device = self.empty, self.size, *self.how.values()
        start = clock()
        for _ in itertools.repeat(None, calls):
            empty(size, dtype=dtype, device=device)
        return (clock() - start) / calls

    def each(self, calls: int) -> list[int]:
        empty, size, dtype, device = self.empty, self.size, *self.how.values()
        times = []
        for _ in itertools.repeat(None, calls):
            start = clock()
            empty(size, dtype=dtype, device=device)
            times.append(clock() - start)
        return times


class ManyLive:
    """Random ones of ``live`` blocks are replaced by new ones of their sizes."""

    def __init__(self, torch: Any, live: int) -> None:
        self.empty = torch.empty
        self.how = {"dtype": torch.uint8, "device": torch.device("cuda", 0)}
        self.sizes = some_sizes(live)
        self.blocks = [torch.empty(n, **self.how) for n in self.sizes]
        draw = random.Random(1)
        self.order = itertools.cycle([draw.randrange(live) for _ in range(1 << 16)])
        self.block(min(4 * live, 20000))

    def block(self, calls: int) -> float:
        empty, sizes, blocks, dtype, device = (
            *(self.empty, self.sizes, self.blocks),
            *self.how.values(),
        )
        start = clock()
        for i in itertools.islice(self.order, calls):
            blocks[i] = empty(sizes[i], dtype=dtype, device=device)
        return (clock() - start) / calls

    def each(self, calls: int) -> list[int]:
        empty, sizes, blocks, dtype, device = (
            *(self.empty, self.sizes, self.blocks),
            *self.how.values(),
        )
        times = []
        for i in itertools.islice(self.order, calls):
            start = clock()
            blocks[i] = empty(sizes[i], dtype=dtype, device=device)
            times.append(clock() - start)
        return times


class Threads:
    """``threads`` threads, each on a stream of its own. A block's time is the time until all
    are done, over all calls."""

    SIZE = 64 << 10

    def __init__(self, torch: Any, threads: int) -> None:
        self.torch, self.count = torch, threads
        self.cases: list[OneSize] = []
        self.barrier = threading.Barrier(threads)
        self.pool = ThreadPoolExecutor(threads)
        list(self.pool.map(self._begin, range(threads)))

    def _begin(self, _: int) -> None:
        self.barrier.wait()  # so that each thread takes one
        self.torch.cuda.set_stream(self.torch.cuda.Stream())
        self.cases.append(OneSize(self.torch, self.SIZE))
        self.barrier.wait()

    def _share(self, case: OneSize, calls: int) -> tuple[int, int, list[int]]:
        self.barrier.wait()
        start = clock()
        times = case.each(calls)
        return start, clock(), times

    def _all(self, calls: int) -> list[tuple[int, int, list[int]]]:
        each = max(1, calls // self.count)
        return list(self.pool.map(self._share, self.cases, [each] * self.count))

    def block(self, calls: int) -> float:
        done = self._all(calls)
        span = max(end for _, end, _ in done) - min(start for start, _, _ in done)
        return span / sum(len(times) for _, _, times in done)

    def each(self, calls: int) -> list[int]:
        return [t for _, _, times in self._all(calls) for t in times]


class Streams:
    """``streams`` streams in turn, a block on each; changing the stream is not timed."""

    SIZE = 64 << 10

    def __init__(self, torch: Any, streams: int) -> None:
        self.torch = torch
        # The pool of each priority has 32.
        self.streams = [
            torch.cuda.Stream(priority=-(i // 32 % 2)) for i in range(streams)
        ]
        self.turn = itertools.cycle(self.streams)
        self.how = {"dtype": torch.uint8, "device": torch.device("cuda", 0)}
        self.clock_ns = clock_ns()
        self.each(20 * streams)

    def block(self, calls: int) -> float:
        return statistics.fmean(self.each(calls)) - self.clock_ns

    def each(self, calls: int) -> list[int]:
        empty, size, dtype, device = self.torch.empty, self.SIZE, *self.how.values()
        change = self.torch.cuda.set_stream
        times = []
        for stream in itertools.islice(self.turn, calls):
            change(stream)
            start = clock()
            empty(size, dtype=dtype, device=device)
            times.append(clock() - start)
        change(self.torch.cuda.default_stream())
        return times


KINDS: dict[str, Any] = {
    "size": OneSize,
    "live": ManyLive,
    "threads": Threads,
    "streams": Streams,
}


class Measure:
    """Answers the parent."""

    def __init__(self) -> None:
        self.case: Any = None
        self.clock_ns = clock_ns()

    def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
        import torch

        if asked["do"] == "prepare":
            self.case = None
            if asked["kind"] == "threads" or asked["cpu"] is None:
                os.sched_setaffinity(0, asked["cpus"])
            else:
                os.sched_setaffinity(0, {asked["cpu"]})
            self.case = KINDS[asked["kind"]](torch, asked["n"])
            self.clock_ns = clock_ns()
            return {}
        self.case.block(WARM)
        found = self.case.block(asked["calls"])
        each = [max(0.0, t - self.clock_ns) for t in self.case.each(asked["each"])]
        return {"ns": found, "each": each}


def main() -> None:
    name, room = sys.argv[1], int(sys.argv[2])
    install(name, room=room)
    import torch

    torch.empty(512, device="cuda")
    gc.disable()
    serve({"machine": machine()}, Measure())


if __name__ == "__main__":
    main()
