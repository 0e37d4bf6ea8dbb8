"""Trains five models under torch's own allocator and under the arena, and compares.

    python -m benchmarks.loops [--loops moe,bert_amp] [--steps 20] [--repeat 3]
        [--slack 1.02] [--out F.json]

Each run is a process of its own; the allocators take turns, so that a GPU that grows warm or
a busy host is shared by both. Prints a line as each run ends, and a table last; ``--out``
writes every figure with the machine and the versions, anew after each loop. Runs on a GPU, or on the simulated one
under ``torcharena rehearse -m benchmarks.loops``, where times and losses mean nothing.

A step's time ends when its loss has been read. Times are compared over the second half of
the steps, memory over the whole run."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from .harness.catalogue import ALLOCATORS, LOOPS
from .harness.comparing import largest_difference, paired_ratio, spread, upper_bound
from .harness.contenders import environment
from .harness.machine import machine
from .harness.runs import run_child, tell

# What a step may not do once it is warm, where its shapes are fixed.
MAP_CALLS = ("create", "map", "access", "unmap", "release")
GIB = float(1 << 30)


# --- in the child ------------------------------------------------------------------------


def run_loop(
    name: str,
    allocator: str,
    steps: int | None,
    limit: str | None,
    slack: float | None,
) -> dict[str, Any]:
    """One training run in this process; its figures."""
    if allocator == "arena":
        import torcharena

        torcharena.enable(limit=limit, slack=slack)
    import torch

    from . import training

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run on a GPU, or under `torcharena rehearse`")
    torch.manual_seed(0)
    losses: list[float] = []
    times: list[float] = []
    calls: list[dict[str, float]] = [driver_calls(allocator)]
    kwargs = {} if steps is None else {"steps": steps}
    start = begin = time.perf_counter()
    for loss in training.LOOPS[name](lambda phase: None, **kwargs):
        now = time.perf_counter()
        times.append(now - begin)
        losses.append(loss)
        calls.append(driver_calls(allocator))
        begin = time.perf_counter()
    stats = torch.cuda.memory_stats()
    return {
        "loop": name,
        "allocator": allocator,
        "losses": losses,
        "step_seconds": times,
        "seconds": time.perf_counter() - start,
        "peak_requested": stats["requested_bytes.all.peak"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "driver_calls": [
            {key: after[key] - before[key] for key in after}
            for before, after in pairwise(calls)
        ],
        "machine": machine(),
    }


# What the arena counts beside: of seconds, `slow` is the time of the requests that needed a
# page, and `wait` the part of it in which the host waited for a stream.
COUNTED = ("page_moves", "waits", "slow_allocations", "slow_seconds", "wait_seconds")


def driver_calls(allocator: str) -> dict[str, float]:
    """Counts so far. Torch's own allocator counts what it asked the driver for; in a call of
    ours one page is one."""
    import torch

    if allocator == "arena":
        import torcharena

        if not torch.cuda.is_initialized():
            return dict.fromkeys(("maps", "events", *COUNTED), 0)
        stats = torcharena.memory_stats()
        return {
            "maps": sum(stats[f"driver_calls.{call}"] for call in MAP_CALLS),
            "events": stats["driver_calls.event"],
            **{key: stats[key] for key in COUNTED},
        }
    stats = torch.cuda.memory_stats() if torch.cuda.is_initialized() else {}
    return {"maps": stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)}


# --- in the parent -----------------------------------------------------------------------


def one_run(name: str, allocator: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own: its figures, or ``error``."""
    command = [sys.executable, "-m", "benchmarks.loops", "--child", name, allocator]
    if options.steps is not None:
        command += ["--steps", str(options.steps)]
    if options.limit is not None:
        command += ["--limit", options.limit]
    if options.slack is not None:
        command += ["--slack", str(options.slack)]
    found = run_child(command, environment(allocator), options.timeout)
    return {"loop": name, "allocator": allocator} | found


def compare(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A loop's figures, each allocator's and those that set one against native."""
    found: dict[str, Any] = {"loop": name, "allocators": {}}
    native = [run for run in runs.get("native", ()) if "error" not in run]
    for allocator, all_runs in runs.items():
        good = [run for run in all_runs if "error" not in run]
        row: dict[str, Any] = {"runs": len(all_runs)}
        found["allocators"][allocator] = row
        if len(good) < len(all_runs):
            row["error"] = next(run["error"] for run in all_runs if "error" in run)
            continue
        row["peak_requested"] = max(run["peak_requested"] for run in good)
        row["peak_reserved"] = max(run["peak_reserved"] for run in good)
        row["ratio"] = row["peak_reserved"] / row["peak_requested"]
        row["step_ms"] = 1e3 * statistics.median(t for run in good for t in late(run))
        row["driver_calls"] = {
            key: {
                "median": statistics.median(
                    step[key] for run in good for step in late_calls(run)
                ),
                "max": max(step[key] for run in good for step in late_calls(run)),
            }
            for key in good[0]["driver_calls"][0]
        }
        if allocator == "arena":
            row["arena_ms"] = 1e3 * statistics.mean(
                step["slow_seconds"] for run in good for step in late_calls(run)
            )
        row["loss_spread"] = spread([run["losses"] for run in good])
        if allocator == "native" or len(native) != len(good):
            continue
        ours, theirs = [late(run) for run in good], [late(run) for run in native]
        row["time_ratio"] = paired_ratio(ours, theirs)
        row["time_ratio_bound95"] = upper_bound(ours, theirs)
        row["loss_difference"] = max(
            largest_difference(a["losses"], b["losses"]) for a in good for b in native
        )
    return found


def late(run: dict[str, Any]) -> list[float]:
    """Seconds of the steps in the second half: the first ones load kernels and grow."""
    times: list[float] = run["step_seconds"]
    return times[len(times) // 2 :]


def late_calls(run: dict[str, Any]) -> list[dict[str, float]]:
    """Driver calls of the same steps."""
    calls: list[dict[str, float]] = run["driver_calls"]
    return calls[len(calls) // 2 :]


def table(loops: list[dict[str, Any]]) -> str:
    """For people. A row an allocator."""
    head = (
        f"{'loop':<20} {'allocator':<10} {'asked GiB':>9} {'reserved':>8} {'ratio':>6} "
        f"{'step ms':>8} {'x native':>8} {'95 %':>6} {'maps/step':>9} {'max':>6} "
        f"{'arena ms':>8} {'loss differs':>12}"
    )
    lines = [head, "-" * len(head)]
    for loop in loops:
        for allocator, row in loop["allocators"].items():
            start = f"{loop['loop']:<20} {allocator:<10} "
            if "error" in row:
                lines.append(f"{start}failed: {row['error'][:80]}")
                continue
            ratio, bound = row.get("time_ratio"), row.get("time_ratio_bound95")
            calls = row["driver_calls"]["maps"]
            differs = row.get("loss_difference", row["loss_spread"])
            own = row.get("arena_ms")
            lines.append(
                f"{start}{row['peak_requested'] / GIB:9.3f} "
                f"{row['peak_reserved'] / GIB:8.3f} {row['ratio']:6.3f} "
                f"{row['step_ms']:8.1f} {'' if ratio is None else f'{ratio:.3f}':>8} "
                f"{'' if bound is None else f'{bound:.3f}':>6} {calls['median']:9.0f} "
                f"{calls['max']:6.0f} {'' if own is None else f'{own:.3f}':>8} "
                f"{'' if differs is None else f'{differs:.2e}':>12}"
            )
    lines.append(
        "asked: peak bytes the program asked for; ratio: reserved over asked; x native: step "
        "time over\nnative's, median of paired runs, and its upper 95 % bound; arena ms: time a "
        "step in requests that\nneeded a page, mean, waits included; loss differs: from "
        "native's, most at any step, and for native\nbetween its own runs"
    )
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loops", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--loops", default=",".join(LOOPS), help="names, by commas")
    parser.add_argument(
        "--allocators", default="native,arena", help="of " + ", ".join(ALLOCATORS)
    )
    parser.add_argument(
        "--steps", type=int, help="steps of each run (default: the loop's own)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--limit", help="a cap for the arena, such as 16GiB")
    parser.add_argument("--slack", type=float, help="the arena's slack, such as 1.02")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds a run may take"
    )
    parser.add_argument("--out", help="file for all figures, as JSON")
    parser.add_argument(
        "--child", nargs=2, metavar=("LOOP", "ALLOCATOR"), help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    options.loops = options.loops.split(",")
    options.allocators = options.allocators.split(",")
    for given, known in ((options.loops, LOOPS), (options.allocators, ALLOCATORS)):
        for name in given:
            if name not in known:
                parser.error(f"{name}: not one of {', '.join(known)}")
    if options.slack is not None and not 1.0 <= options.slack < float("inf"):
        parser.error("--slack is at least 1.0")
    if options.repeat < 1 or (options.steps is not None and options.steps < 2):
        parser.error("--repeat is at least 1, --steps at least 2")
    return options


def measure(name: str, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All runs of a loop, the allocators taking turns at going first."""
    runs: dict[str, list[dict[str, Any]]] = {a: [] for a in options.allocators}
    for repetition in range(options.repeat):
        order = options.allocators if repetition % 2 == 0 else options.allocators[::-1]
        for allocator in order:
            run = one_run(name, allocator, options)
            runs[allocator].append(run)
            said = run.get("error") or (
                f"{1e3 * statistics.median(late(run)):.1f} ms a step, "
                f"{run['peak_reserved'] / GIB:.3f} GiB reserved, last loss {run['losses'][-1]:.4f}"
            )
            print(
                f"{name} {allocator} {repetition + 1}/{options.repeat}: {said}",
                flush=True,
            )
    return runs


def save(
    options: argparse.Namespace,
    where: dict[str, Any] | None,
    loops: list[dict[str, Any]],
    runs: list[dict[str, Any]],
) -> None:
    """All figures so far to ``--out``, whole or not at all: who ends us loses one loop."""
    command = {k: v for k, v in vars(options).items() if k not in ("child", "out")}
    figures = {"machine": where, "options": command, "loops": loops, "runs": runs}
    part = Path(f"{options.out}.part")
    part.write_text(json.dumps(figures, indent=1) + "\n")
    part.replace(options.out)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a run failed."""
    options = parse(arguments)
    if options.child:
        name, allocator = options.child
        result = run_loop(name, allocator, options.steps, options.limit, options.slack)
        tell(result)
        return 0
    loops: list[dict[str, Any]] = []
    all_runs: list[dict[str, Any]] = []
    where: dict[str, Any] | None = None
    for name in options.loops:
        runs = measure(name, options)
        all_runs += [run for several in runs.values() for run in several]
        loops.append(compare(name, runs))
        where = next((run["machine"] for run in all_runs[::-1] if "machine" in run), None)
        if options.out:
            save(options, where, loops, all_runs)
    if where is not None:
        simulated = ", simulated" if where["simulated"] else ""
        print(
            f"\n{where['gpu']}{simulated}, {where['gpu_bytes'] / GIB:.1f} GiB, "
            f"torch {where['torch']}, CUDA {where['cuda']}, Python {where['python']}, "
            f"{where['cpus']} CPUs"
        )
    print(table(loops))
    return 1 if any("error" in run for run in all_runs) else 0


if __name__ == "__main__":
    sys.exit(main())
