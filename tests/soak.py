"""A long run of everything at once, under a cap, that must leave nothing behind.

    python -m tests.soak --steps 10000 --out soak.json     on a GPU: minutes
    torcharena rehearse -m tests.soak --steps 300      with no GPU

A cycle trains a language model on texts of changing length, evaluates it, generates with a
growing cache, switches to a model of pictures and back, copies ahead on a stream of its own,
replays a CUDA graph, runs out of memory and goes on. After each cycle all of it is let go, and
counted: bytes reserved at the highest, live, held on the device; handles and events of the
driver; descriptors, mappings, and resident memory of the process. From the second cycle on
none of them may grow. Exit code 1, and a line for each that does, where one did.

``--leak NAME`` leaves something behind in every cycle; ``--prove`` does so after the run and
fails where that is not noticed."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torcharena
from torch import nn
from torcharena import _core

MIB = 1 << 20
PAGE = 4 * MIB
WARM = 2  # cycles that may still grow


@dataclass(frozen=True)
class Sample:
    """After a cycle, all of it let go. Bytes, or counts."""

    steps: int
    seconds: float
    peak_reserved: int  # of this cycle, before it runs out of memory
    live: int
    device: int  # used on the whole device, as the driver says, after empty_cache
    handles: int
    events: int  # simulated GPU alone, else 0
    descriptors: int
    mappings: int
    resident: int


# How far each may rise above what it was after the first cycles; the rest is noise of others,
# as of malloc and of threads that end late.
ALLOWED = {
    "peak_reserved": 2 * PAGE,
    "live": 0,
    "device": 0,
    "handles": 0,
    "events": 4,
    "descriptors": 0,
    "mappings": 48,
    "resident": 24 * MIB,
}


def complaints(samples: list[Sample]) -> list[str]:
    """What grew, from the highest of the first cycles to the lowest of the last third; of
    reserved bytes, every cycle counts."""
    if len(samples) < WARM + 3:
        raise ValueError(f"{len(samples)} cycles tell nothing: at least {WARM + 3}")
    first, late = samples[:WARM], samples[-max(3, len(samples) // 3) :]
    found = []
    for name, allowed in ALLOWED.items():
        before = max(getattr(one, name) for one in first)
        rest = samples[WARM:] if name == "peak_reserved" else late
        choose = max if name == "peak_reserved" else min
        after = choose(getattr(one, name) for one in rest)
        if after > before + allowed:
            found.append(
                f"{name}: {before} after {first[-1].steps} steps, {after} later"
                f" ({allowed} more are allowed)"
            )
    return found


# --- what is counted ------------------------------------------------------------------------
_simulated = getattr(ctypes.CDLL(None), "ta_simcuda_driver_calls", None)
if _simulated is not None:
    _simulated.argtypes, _simulated.restype = [ctypes.c_char_p], ctypes.c_uint64


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def sample(steps: int, begin: float, peak: int) -> Sample:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free, total = torcharena.device_memory()
    stats = _core.stats(0)
    events = 0
    if _simulated is not None:
        events = int(_simulated(b"event_create")) - int(_simulated(b"event_destroy"))
    assert _core.check() is None, _core.check()
    return Sample(
        steps=steps,
        seconds=round(time.monotonic() - begin, 2),
        peak_reserved=peak,
        live=torch.cuda.memory_allocated(),
        device=total - free,
        handles=stats["calls_create"] - stats["calls_release"],
        events=events,
        descriptors=len(os.listdir("/proc/self/fd")),
        mappings=len(Path("/proc/self/maps").read_text().splitlines()),
        resident=resident(),
    )


# --- what a cycle does ----------------------------------------------------------------------
class Language(nn.Module):
    """A decoder of a few layers; ``cache`` holds a key and a value for each, and grows."""

    def __init__(self, words: int = 2048, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.reads = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.writes = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.thinks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(layers)
        )

    def forward(self, text: Any, cache: list[Any] | None = None) -> Any:
        x = self.words(text)
        for n, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            query, key, value = reads(x).chunk(3, dim=-1)
            if cache is not None:
                if len(cache) > n:
                    key = torch.cat((cache[n][0], key), dim=1)
                    value = torch.cat((cache[n][1], value), dim=1)
                    cache[n] = (key, value)
                else:
                    cache.append((key, value))
            weights = (query @ key.transpose(1, 2)).softmax(dim=-1)
            x = x + writes(weights @ value)
            x = x + self.thinks[n](x)
        return x @ self.words.weight.T


def pictures() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()


def train_language(model: Any, steps: int) -> Iterator[None]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        length = (96, 64, 128, 32, 80)[step % 5]
        text = torch.randint(0, 2048, (8, length)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(text).flatten(0, 1), text.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield
    state = {k: v.cpu() for k, v in model.state_dict().items()}  # as a checkpoint
    model.load_state_dict(state)


@torch.no_grad()
def evaluate(model: Any, steps: int) -> Iterator[None]:
    model.eval()
    for step in range(steps):
        text = torch.randint(0, 2048, (24, 48 + 16 * step)).cuda()
        F.cross_entropy(model(text).flatten(0, 1), text.flatten()).item()
        yield
    model.train()


@torch.no_grad()
def generate(model: Any, steps: int) -> Iterator[None]:
    cache: list[Any] = []
    text = torch.randint(0, 2048, (4, 16)).cuda()
    for _ in range(steps):
        text = model(text, cache)[:, -1:].argmax(dim=-1)
        yield


def train_pictures(model: Any, side: Any, steps: int) -> Iterator[None]:
    """Batches are copied ahead, from pinned memory, on a stream of their own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    main = torch.cuda.current_stream()
    for step in range(steps):
        with torch.cuda.stream(side):
            x = torch.randn(8 + 4 * (step % 3), 3, 32, 32).pin_memory()
            x = x.cuda(non_blocking=True)
        main.wait_stream(side)
        x.record_stream(main)
        with torch.autocast("cuda", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield


def replay(side: Any, steps: int) -> Iterator[None]:
    layer = nn.Linear(256, 256).cuda()
    x = torch.randn(32, 256).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), torch.no_grad():
        layer(x)  # libraries make their workspaces before
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph, stream=side):
        y = layer(x).relu()
    for _ in range(steps):
        graph.replay()
        yield
    torch.cuda.synchronize()
    del y
    graph.reset()


def run_out() -> Iterator[None]:
    held = []
    try:
        while True:
            held.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        held.clear()
    yield


def cycle(number: int, side: Any) -> Iterator[None]:
    torch.manual_seed(number % 2)
    model = Language().cuda()
    yield from train_language(model, 12)
    yield from evaluate(model, 3)
    yield from generate(model, 8)
    del model
    other = pictures()
    yield from train_pictures(other, side, 9)
    model = Language(layers=2).cuda()  # both at once
    yield from evaluate(model, 2)
    yield from replay(side, 4)


class Leaks:
    """What a cycle leaves behind, on demand."""

    NAMES = ("live", "descriptors", "mappings", "resident", "events", "handles")

    def __init__(self, names: list[str]) -> None:
        self.names = set(names)
        self.kept: list[Any] = []

    def leak(self) -> None:
        if self.names & {"live", "handles"}:
            self.kept.append(torch.empty(MIB, device="cuda"))
        if "descriptors" in self.names:
            self.kept.append(os.dup(0))
        if "mappings" in self.names:
            for protection in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE) * 40:
                self.kept.append(mmap.mmap(-1, mmap.PAGESIZE, prot=protection))
        if "resident" in self.names:
            self.kept.append(bytearray(b"x") * (40 * MIB))
        if "events" in self.names:
            events = [torch.cuda.Event() for _ in range(8)]
            for event in events:
                event.record()
            self.kept.append(events)


@functools.cache
def the_other_stream() -> Any:
    """One, always: torch keeps a workspace of cuBLAS for each stream that ever multiplied."""
    return torch.cuda.Stream()


def soak(steps: int, seconds: float, leaks: Leaks, show: bool) -> list[Sample]:
    begin = time.monotonic()
    done, number, samples = 0, 0, []
    side = the_other_stream()
    while done < steps and time.monotonic() - begin < seconds:
        done += sum(1 for _ in cycle(number, side))
        peak = torch.cuda.max_memory_reserved()
        done += sum(1 for _ in run_out())
        leaks.leak()
        number += 1
        samples.append(sample(done, begin, peak))
        if show and (number < 4 or number % 20 == 0):
            print(json.dumps(asdict(samples[-1])), flush=True)
    return samples


def unnoticed(steps: int) -> list[str]:
    """After a run that is clean: another, with everything leaked; what nobody complains of."""
    names = [n for n in Leaks.NAMES if n != "events" or _simulated is not None]
    told = complaints(soak(steps, 1e9, Leaks(names), False))
    named = {line.partition(":")[0] for line in told}
    return [f"{name}: leaked, and not noticed" for name in names if name not in named]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=500, help="no cycle begins after"
    )
    parser.add_argument("--limit", default="256MiB")
    parser.add_argument("--leak", action="append", default=[], choices=Leaks.NAMES)
    parser.add_argument(
        "--prove", action="store_true", help="then leak, and see that it is noticed"
    )
    parser.add_argument("--out", type=Path, help="every cycle's counts, as JSON")
    options = parser.parse_args(arguments)
    torcharena.enable(limit=options.limit)
    torch.backends.cudnn.benchmark = False
    samples = soak(options.steps, options.seconds, Leaks(options.leak), True)
    found = complaints(samples)
    last = samples[-1]
    if options.prove:
        found += unnoticed(min(options.steps, 250))
    if options.out:
        options.out.write_text(
            json.dumps(
                {
                    "gpu": torch.cuda.get_device_name(0),
                    "torch": torch.__version__,
                    "limit": options.limit,
                    "complaints": found,
                    "cycles": [asdict(one) for one in samples],
                }
            )
        )
    for line in found:
        print(f"grew: {line}")
    said = "with complaints" if found else "nothing grew"
    print(f"{last.steps} steps, {len(samples)} cycles, {last.seconds:.0f} s: {said}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
