"""What one allocation costs: ``torch.empty(n, device="cuda")`` and its free, in one thread.

    python benchmarks/latency.py [--rounds 12] [--allocators native arena] [--json]

Each round starts a process for every allocator, in a changing order, so that a machine that
warms up or slows down does so for all of them. A process warms up, then times blocks of
calls for each size and reports the median block. Printed: the median over the rounds in
microseconds, its 95 % interval (of the median, by the rounds' order statistics), and the
paired difference to native with its 95 % interval. The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from math import comb
from typing import Any

SIZES = (512, 1 << 20, 16 << 20)
CALLS = 2000  # in a block
BLOCKS = 60


def measure(allocator: str) -> dict[str, float]:
    """In a child: microseconds of an allocation and its free, by size."""
    if allocator == "arena":
        import torcharena

        torcharena.enable()
    import torch

    device = torch.device("cuda")
    found = {}
    keep = [torch.empty(n, dtype=torch.uint8, device=device) for n in SIZES]
    for size in SIZES:
        for _ in range(CALLS):
            torch.empty(size, dtype=torch.uint8, device=device)
        times = []
        for _ in range(BLOCKS):
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                torch.empty(size, dtype=torch.uint8, device=device)
            times.append((time.perf_counter_ns() - start) / CALLS / 1000)
        found[str(size)] = statistics.median(times)
    del keep
    return found


def child(allocator: str) -> dict[str, float]:
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    done = subprocess.run(
        [sys.executable, __file__, "--child", allocator],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode != 0:
        raise SystemExit(f"{allocator}: exit code {done.returncode}\n{done.stderr}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median, from order statistics; below six the range, which says
    less."""
    ordered = sorted(values)
    n = len(ordered)
    outside = 0.0
    cut = 0
    for k in range(n // 2):
        outside += 2 * comb(n, k) / 2**n
        if outside > 0.05:
            break
        cut = k
    return ordered[cut], ordered[n - 1 - cut]


def figures(values: list[float]) -> dict[str, float]:
    low, high = interval(values)
    return {"median": statistics.median(values), "low": low, "high": high}


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if "model name" in line
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def machine() -> dict[str, Any]:
    import torch

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": processor(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--allocators", nargs="+", default=["native", "arena"])
    parser.add_argument("--json", action="store_true", help="the JSON line alone")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in options.allocators}
    for round_ in range(options.rounds):
        shift = round_ % len(options.allocators)
        for name in options.allocators[shift:] + options.allocators[:shift]:
            rounds[name].append(child(name))
    result: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "us": {}}
    for size in map(str, SIZES):
        result["us"][size] = {}
        for name, answers in rounds.items():
            row: dict[str, Any] = figures([answer[size] for answer in answers])
            if "native" in rounds and name != "native":
                pairs = zip(answers, rounds["native"], strict=True)
                row["minus_native"] = figures([a[size] - b[size] for a, b in pairs])
            result["us"][size][name] = row
            if not options.json:
                print(table_line(size, name, row))
    print(json.dumps(result))


def table_line(size: str, name: str, row: dict[str, Any]) -> str:
    line = (
        f"{int(size):>9} B  {name:<10} {row['median']:6.2f} us "
        f"[{row['low']:.2f}, {row['high']:.2f}]"
    )
    if "minus_native" in row:
        more = row["minus_native"]
        line += f"  {more['median']:+.2f} us to native [{more['low']:+.2f}, {more['high']:+.2f}]"
    return line


if __name__ == "__main__":
    main()
