"""Driver calls of training loops with fixed shapes: none may map, once warm.

    python -m benchmarks.fixed_shapes [--models gpt,cnn] [--steps 20] [--out FILE.json]

Each model trains in a process of its own under the arena. Printed: for each step the calls
that reserve, create, map, set access, unmap or release, and the events recorded. After
``--warm`` steps (5) there must be none of the former, and events only where the loop calls
``record_stream``: the exit code is 1 otherwise. The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.building import ROOT
from benchmarks.harness.contenders import environment
from benchmarks.harness.machine import machine
from benchmarks.harness.runs import run_child, tell

KINDS = ("reserve", "create", "map", "access", "unmap", "release")
BATCH, LENGTH, WORDS = 8, 512, 16384


# --- the loops: each yields after every step ---------------------------------------------
def gpt_step(model: Any, optimizer: Any, tokens: Any) -> None:
    """One step of the demo's GPT, bf16 autocast."""
    import torch

    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, WORDS).float(), tokens[:, 1:].reshape(-1)
        )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def gpt(steps: int) -> Iterator[None]:
    """GPT with AdamW; the loss is never read, so the host runs ahead."""
    import torch
    from torcharena.demo.train import build

    model = build(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for _ in range(steps):
        gpt_step(
            model, optimizer, torch.randint(0, WORDS, (BATCH, LENGTH + 1), device="cuda")
        )
        yield


def gpt_prefetch(steps: int) -> Iterator[None]:
    """The same, its batches copied on a stream of their own and given to record_stream."""
    import torch
    from torcharena.demo.train import build

    model = build(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    side = torch.cuda.Stream()
    pinned = torch.randint(0, WORDS, (BATCH, LENGTH + 1)).pin_memory()
    for _ in range(steps):
        with torch.cuda.stream(side):
            tokens = pinned.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        tokens.record_stream(torch.cuda.current_stream())
        gpt_step(model, optimizer, tokens)
        del tokens
        yield


def cnn(steps: int) -> Iterator[None]:
    """Convolutions with batch norm, SGD with momentum, a loss that is read."""
    import torch
    from torch import nn

    layers: list[Any] = []
    for wide, out in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(wide, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)
    )
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(steps):
        images = torch.randn(64, 3, 128, 128, device="cuda")
        labels = torch.randint(0, 100, (64,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss.item()
        yield


def checkpointed(steps: int) -> Iterator[None]:
    """Activation checkpointing: backward allocates what forward freed."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
        for _ in range(8)
    ).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters())
    for _ in range(steps):
        x = torch.randn(2048, 1024, device="cuda", requires_grad=True)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


MODELS: dict[str, Callable[[int], Iterator[None]]] = {
    "gpt": gpt,
    "gpt_prefetch": gpt_prefetch,
    "cnn": cnn,
    "checkpointed": checkpointed,
}
RECORDING = {"gpt_prefetch"}  # those that call record_stream


# --- measuring -----------------------------------------------------------------------------
def count(name: str, steps: int, warm: int) -> dict[str, Any]:
    """In a child: the calls of each step, and what is wrong with them, if anything."""
    import torcharena

    torcharena.enable()
    import torch

    torch.manual_seed(0)
    loop = MODELS[name](steps)
    seen = []
    for _ in loop:
        stats = torcharena.memory_stats()
        seen.append({kind: stats[f"driver_calls.{kind}"] for kind in (*KINDS, "event")})
    torch.cuda.synchronize()
    calls = [{k: b[k] - a[k] for k in b} for a, b in pairwise(seen)]
    calls.insert(0, seen[0])
    late = calls[warm:]
    found: dict[str, Any] = {
        "model": name,
        "maps": [sum(step[kind] for kind in KINDS) for step in calls],
        "events": [step["event"] for step in calls],
        "by_kind": {kind: sum(step[kind] for step in late) for kind in KINDS},
        "peak_reserved": torcharena.memory_stats()["reserved_bytes.peak"],
        "peak_requested": torcharena.memory_stats()["requested_bytes.peak"],
        "machine": machine(),
    }
    if any(found["maps"][warm:]):
        found["error"] = f"after {warm} steps, calls that map: {found['by_kind']}"
    elif name not in RECORDING and any(found["events"][warm:]):
        found["error"] = f"after {warm} steps, events without record_stream"
    return found


def run(name: str, steps: int, warm: int, timeout: float) -> dict[str, Any]:
    """``count`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fixed_shapes", "--child", name]
    command += ["--steps", str(steps), "--warm", str(warm)]
    found = run_child(command, environment("arena"), timeout, whole=True)
    return {"model": name} | found


def line(row: dict[str, Any]) -> str:
    if "maps" not in row:
        return f"{row['model']:<14} failed: {row['error']}"
    shown = (
        f"{row['model']:<14} maps a step {' '.join(map(str, row['maps']))}\n"
        f"{'':<14} events      {' '.join(map(str, row['events']))}"
    )
    return shown + (f"\n{'':<14} failed: {row['error']}" if "error" in row else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fixed_shapes", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--models", default=",".join(MODELS), help="names, by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5, help="steps that may map (5)")
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds a model may take"
    )
    parser.add_argument("--out", help="file for all figures, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        found = count(options.child, options.steps, options.warm)
        tell(found)
        return 0
    rows = []
    for name in options.models.split(","):
        if name not in MODELS:
            parser.error(f"{name}: not one of {', '.join(MODELS)}")
        rows.append(run(name, options.steps, options.warm, options.timeout))
        print(line(rows[-1]), flush=True)
    answer = {"warm": options.warm, "models": rows}
    if options.out:
        Path(options.out).write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
