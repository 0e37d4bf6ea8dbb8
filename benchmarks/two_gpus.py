"""Trains a small GPT on two GPUs with NCCL, under torch's own allocators and the arena.

    python -m benchmarks.two_gpus [--ways ddp,fully_shard] [--steps 12] [--repeat 2] [--out F]

``ddp`` is DistributedDataParallel, ``fully_shard`` torch's FSDP with bf16 parameters. Each run
is a process for each rank, as torchrun would start them (``--launcher torchrun`` has it do so;
``spawn`` starts them by torch.multiprocessing). Lengths vary from step to step and from rank
to rank; the kernels are deterministic ones, so that two native runs lose the same. Prints a
table, and one JSON object on the last line. Exit code 1 where a run failed."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__mp_main__":  # a spawned rank: the file's folder is all that it knows
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness.building import ROOT
from benchmarks.harness.catalogue import ALLOCATORS
from benchmarks.harness.comparing import largest_difference, spread
from benchmarks.harness.contenders import environment
from benchmarks.harness.runs import NVLS, free_port, ranks_environment, wait_all
from benchmarks.loops import GIB

WAYS = ("ddp", "fully_shard")
LAUNCHERS = ("plain", "torchrun", "spawn")
RANKS = 2
BATCH, SHORTEST, LONGEST, WORDS = 8, 128, 1024, 16384


# --- in a rank ---------------------------------------------------------------------------
def model_of(way: str) -> Any:
    """The demo's GPT, wrapped."""
    import torch
    from torcharena.demo.train import build

    model = build(torch)
    if way == "ddp":
        device = torch.cuda.current_device()
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def train(way: str, rank: int, steps: int) -> dict[str, list[float]]:
    """Losses and seconds of each step."""
    import torch

    torch.manual_seed(0)
    model = model_of(way)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    draw = random.Random(4 + rank)
    torch.manual_seed(1 + rank)
    losses: list[float] = []
    times: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        length = draw.randrange(SHORTEST, LONGEST + 1, 8)
        tokens = torch.randint(0, WORDS, (BATCH, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, WORDS).float(), tokens[:, 1:].reshape(-1)
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        times.append(time.perf_counter() - start)
    return {"losses": losses, "step_seconds": times}


def rank_main(way: str, allocator: str, steps: int, folder: str) -> None:
    """One rank; what it found goes to a file of the folder."""
    if allocator == "arena":
        import torcharena

        torcharena.enable()
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    found: dict[str, Any] = {"way": way, "allocator": allocator, "rank": rank}
    found.update(train(way, rank, steps))
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    found["peak_requested"] = stats["requested_bytes.all.peak"]
    found["peak_reserved"] = stats["reserved_bytes.all.peak"]
    found["gpu"], found["torch"] = torch.cuda.get_device_name(), torch.__version__
    if allocator == "arena":
        assert torch.cuda.get_allocator_backend() == "pluggable"
        ours = torcharena.memory_stats()
        found["page_moves"], found["waits"] = ours["page_moves"], ours["waits"]
        from torcharena import _core

        found["wrong"] = _core.check()
    dist.destroy_process_group()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))


def spawned(rank: int, port: int, arguments: tuple[str, str, int, str]) -> None:
    """A rank that torch.multiprocessing started."""
    os.environ.update(ranks_environment(RANKS, port, rank))
    rank_main(*arguments)


# --- in the parent -----------------------------------------------------------------------
def commands(
    launcher: str, arguments: list[str], port: int
) -> list[tuple[list[str], dict[str, str]]]:
    """The processes to start, each with what its environment has besides."""
    module = ["-m", "benchmarks.two_gpus", *arguments]
    if launcher == "torchrun":
        run = ["-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
        return [([sys.executable, *run, f"--master-port={port}", *module], {})]
    if launcher == "spawn":
        return [([sys.executable, *module, "--spawn", str(port)], {})]
    return [
        ([sys.executable, *module], ranks_environment(RANKS, port, rank))
        for rank in range(RANKS)
    ]


def run_ranks(
    way: str, allocator: str, *, steps: int, launcher: str = "plain", timeout: float = 120
) -> dict[str, Any]:
    """One run: ``ranks`` (figures of each), ``exit_codes``, ``stderr`` of all processes; and
    ``error`` where it did not end well."""
    inherited = environment(allocator)
    for name, value in (
        NVLS,
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("OMP_NUM_THREADS", "1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    ):
        inherited.setdefault(name, value)
    with tempfile.TemporaryDirectory(prefix="two-gpus-") as folder:
        arguments = ["--child", way, allocator, folder, "--steps", str(steps)]
        started = []
        for number, (command, more) in enumerate(
            commands(launcher, arguments, free_port())
        ):
            with open(Path(folder, f"stderr{number}"), "wb") as errors:
                process = subprocess.Popen(
                    command,
                    env={**inherited, **more},
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
            started.append(process)
        late = wait_all(started, timeout)
        files = sorted(Path(folder).glob("rank*.json"))
        errors_text = "".join(
            file.read_text(errors="replace")
            for file in sorted(Path(folder).glob("stderr*"))
        )
        run: dict[str, Any] = {
            "way": way,
            "allocator": allocator,
            "launcher": launcher,
            "ranks": [json.loads(file.read_text()) for file in files],
            "exit_codes": [process.returncode for process in started],
            "stderr": errors_text,
        }
    wrong = [rank["wrong"] for rank in run["ranks"] if rank.get("wrong")]
    if late:
        run["error"] = f"not done after {timeout:.0f} s"
    elif any(run["exit_codes"]) or len(run["ranks"]) != RANKS:
        told = [line for line in errors_text.splitlines() if "Error" in line]
        run["error"] = f"exit codes {run['exit_codes']}: {(told or ['?'])[-1][:200]}"
    elif wrong:
        run["error"] = f"the books do not balance: {wrong[0]}"
    return run


def compare(way: str, runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each allocator: its worst rank's figures; losses against native's."""
    native = [run for run in runs.get("native", ()) if "error" not in run]
    rows = []
    for allocator, all_runs in runs.items():
        row: dict[str, Any] = {"way": way, "allocator": allocator, "runs": len(all_runs)}
        rows.append(row)
        good = [run for run in all_runs if "error" not in run]
        if len(good) < len(all_runs):
            row["error"] = next(run["error"] for run in all_runs if "error" in run)
            continue
        ranks = [rank for run in good for rank in run["ranks"]]
        worst = max(
            ranks, key=lambda rank: rank["peak_reserved"] / rank["peak_requested"]
        )
        row["peak_requested"] = worst["peak_requested"]
        row["peak_reserved"] = worst["peak_reserved"]
        row["ratio"] = worst["peak_reserved"] / worst["peak_requested"]
        times = [
            t
            for rank in ranks
            for t in rank["step_seconds"][len(rank["step_seconds"]) // 2 :]
        ]
        row["step_ms"] = 1e3 * statistics.median(times)
        row["losses"] = good[0]["ranks"][0]["losses"]
        row["loss_spread"] = spread([losses(run) for run in good])
        row["page_moves"] = max((rank.get("page_moves", 0) for rank in ranks), default=0)
        if native and allocator != "native":
            row["loss_difference"] = max(
                largest_difference(losses(a), losses(b)) for a in good for b in native
            )
    return rows


def losses(run: dict[str, Any]) -> list[float]:
    """Of all ranks, one after the other."""
    return [loss for rank in run["ranks"] for loss in rank["losses"]]


def table(rows: list[dict[str, Any]]) -> str:
    head = (
        f"{'way':<12} {'allocator':<10} {'asked GiB':>9} {'reserved':>8} {'ratio':>6} "
        f"{'step ms':>8} {'moves':>6} {'last loss':>9} {'loss differs':>12}"
    )
    lines = [head, "-" * len(head)]
    for row in rows:
        start = f"{row['way']:<12} {row['allocator']:<10} "
        if "error" in row:
            lines.append(f"{start}failed: {row['error']}")
            continue
        differs = row.get("loss_difference", row["loss_spread"])
        lines.append(
            f"{start}{row['peak_requested'] / GIB:9.3f} {row['peak_reserved'] / GIB:8.3f} "
            f"{row['ratio']:6.3f} {row['step_ms']:8.1f} {row['page_moves']:6} "
            f"{row['losses'][-1]:9.4f} {'' if differs is None else f'{differs:.1e}':>12}"
        )
    lines.append(
        "the worse rank's; loss differs: from native's, at any step of either rank, and for "
        "native\nbetween its own runs"
    )
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs; their rows."""
    rows, all_runs = [], []
    for way in options.ways:
        runs: dict[str, list[dict[str, Any]]] = {a: [] for a in options.allocators}
        for repetition in range(options.repeat):
            order = options.allocators[:: 1 if repetition % 2 == 0 else -1]
            for allocator in order:
                run = run_ranks(
                    way,
                    allocator,
                    steps=options.steps,
                    launcher=options.launcher,
                    timeout=options.timeout,
                )
                runs[allocator].append(run)
                if "error" in run:
                    print(f"{way} {allocator}: {run['error']}", file=sys.stderr)
                    print(run["stderr"][-3000:], file=sys.stderr, flush=True)
        rows += compare(way, runs)
        all_runs += [run for several in runs.values() for run in several]
    ranks = [rank for run in all_runs for rank in run["ranks"]]
    where = {key: ranks[0][key] for key in ("gpu", "torch")} if ranks else {}
    return {"machine": where, "rows": rows, "runs": all_runs}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_gpus", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ways", default=",".join(WAYS), help="names, by commas")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=2, help="runs of each (default 2)")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="plain")
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds a run may take"
    )
    parser.add_argument("--out", help="file for all figures, as JSON")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--spawn", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for given, known in (("ways", WAYS), ("allocators", ALLOCATORS)):
        names = getattr(options, given).split(",")
        setattr(options, given, names)
        for name in names:
            if name not in known:
                parser.error(f"{name}: not one of {', '.join(known)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.child:
        way, allocator, folder = options.child
        if options.spawn is None:
            rank_main(way, allocator, options.steps, folder)
            return 0
        import torch.multiprocessing as processes

        asked = (way, allocator, options.steps, folder)
        processes.spawn(spawned, (options.spawn, asked), nprocs=RANKS)
        return 0
    found = measure(options)
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    where = found["machine"]
    print(f"two of {where.get('gpu', 'unknown')}, torch {where.get('torch', 'unknown')}")
    print(table(found["rows"]))
    print(json.dumps({"machine": where, "rows": found["rows"]}))
    return 1 if any("error" in row for row in found["rows"]) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
