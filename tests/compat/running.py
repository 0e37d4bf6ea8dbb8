"""Runs a row in a process of its own and says what it took.

The process that calls `run` has imported torch and the rows, and has not touched CUDA: each
run is forked from it, so that it does not pay for the imports."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import random
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from .rows import Row

__all__ = ["ALLOCATORS", "missing", "run", "warm"]

ALLOCATORS = ("native", "expandable", "arena")
WARM = 2  # steps that are not timed
print_errors = False
# What libraries import late, and takes seconds.
_LIGHT = {
    "accelerate": ("accelerate.utils",),
    "lightning": ("lightning", "lightning.pytorch.tuner"),
    "peft": ("peft",),
    "timm": ("timm", "timm.utils"),
    "torch_geometric": ("torch_geometric.data", "torch_geometric.nn"),
    "torchvision": ("torchvision.models.detection",),
    "transformers": (
        "transformers.trainer",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
    ),
}


def missing(row: Row) -> str:
    """The modules that the row needs and this Python has not; empty: none."""
    return ", ".join(name for name in row.needs if importlib.util.find_spec(name) is None)


def warm(rows: Iterable[Row]) -> None:
    """Imports what these rows will, where that does not touch CUDA: once, not in each run."""
    wanted = {name for row in rows for name in row.needs} & _LIGHT.keys()
    for name in ["torch._dynamo", *(part for one in wanted for part in _LIGHT[one])]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(row: Row, allocator: str, timeout: float = 120.0) -> dict[str, Any]:
    """One run, in forked processes: ``losses``, ``step_ms``, ``requested``, ``reserved``
    (peak bytes, the highest of all processes), or ``error``."""
    if allocator not in ALLOCATORS:
        raise ValueError(f"{allocator}: not one of {', '.join(ALLOCATORS)}")
    port = random.SystemRandom().randint(20000, 60000)
    children = [_Child(row, allocator, rank, port) for rank in range(row.processes)]
    ends = time.monotonic() + timeout
    found = [child.result(ends) for child in children]
    wrong = [one["error"] for one in found if "error" in one]
    if wrong:
        return {"error": wrong[0]}
    return {
        "losses": found[0]["losses"],
        "step_ms": max(one["step_ms"] for one in found),
        "requested": max(one["requested"] for one in found),
        "reserved": max(one["reserved"] for one in found),
        "gpu": found[0]["gpu"],
    }


class _Child:
    """A forked process at its work; its result comes through a pipe."""

    def __init__(self, row: Row, allocator: str, rank: int, port: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _become(row, allocator, rank, port, write)
        os.close(write)

    def result(self, ends: float) -> dict[str, Any]:
        import select

        text = b""
        while time.monotonic() < ends:
            ready = select.select([self._read], [], [], max(0.0, ends - time.monotonic()))
            part = os.read(self._read, 1 << 16) if ready[0] else b""
            if ready[0] and not part:
                break
            text += part
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        os.close(self._read)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            return {"error": "it had not ended in time"}
        if code or not text:
            return {"error": f"the process ended with {code}"}
        return dict(json.loads(text))


def _become(row: Row, allocator: str, rank: int, port: int, write: int) -> None:
    """In the child: runs the row, tells, and ends as a program does."""
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if row.processes > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(row.processes),
            LOCAL_WORLD_SIZE=str(row.processes),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    try:
        found = _measured(row, allocator, rank)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" ({os.path.basename(f.filename)}:{f.lineno})" for f in last)
        first = str(error).strip().splitlines() or [""]
        found = {"error": f"{type(error).__name__}: {first[0][:300]}{place}"}
        if print_errors:
            traceback.print_exc()
    # What is registered for the end of a program belongs to the row.
    atexit._run_exitfuncs()
    os.write(write, json.dumps(found).encode())
    os._exit(0)


def _measured(row: Row, allocator: str, rank: int) -> dict[str, Any]:
    import torch

    if allocator == "arena":
        import torcharena

        torcharena.enable()
    elif allocator == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.set_device(rank if row.processes > 1 else 0)
    random.seed(1)
    torch.manual_seed(1)
    losses, times = [], []
    with _group(row):
        body = row.body()
        begin = time.perf_counter()
        for loss in body:
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
            losses.append(float(loss))
            begin = time.perf_counter()
        torch.cuda.synchronize()
    stats = [torch.cuda.memory_stats(n) for n in range(torch.cuda.device_count())]
    if allocator == "arena":
        from torcharena import _core

        wrong = _core.check()
        assert wrong is None, wrong
    return {
        "losses": losses,
        "step_ms": round(statistics.median(times[WARM:] or times) * 1e3, 3),
        "requested": max(s.get("requested_bytes.all.peak", 0) for s in stats),
        "reserved": max(s.get("reserved_bytes.all.peak", 0) for s in stats),
        "gpu": torch.cuda.get_device_name(),
    }


@contextlib.contextmanager
def _group(row: Row) -> Iterator[None]:
    if row.processes == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("nccl")
    try:
        yield
    finally:
        dist.destroy_process_group()
