"""Children: starts them, waits, and reads what they say; and how a child says it, `tell`.

`run_program` starts `program`, which runs a benchmark's program; of several ranks a process
for each. `run_child` starts any other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from .building import ROOT
from .catalogue import RANKS
from .contenders import environment

__all__ = [
    "devices",
    "free_port",
    "ranks_environment",
    "run_child",
    "run_program",
    "tell",
    "wait_all",
]

RESULT = "RESULT "  # begins the line in which a child says its figures
NVLS = ("NCCL_NVLS_ENABLE", "0")  # multicast: not every host has it set up


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ranks_environment(count: int, port: int, rank: int) -> dict[str, str]:
    """What torchrun tells a rank, and what keeps NCCL to what every host has."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    } | dict([NVLS])


def run_program(
    program: str, contender: str, *, cap: int | None = None, timeout: float = 300
) -> dict[str, Any]:
    """The figures, of the worst rank where there are several; ``out_of_memory`` where memory
    ran out in any; ``error`` where anything else went wrong."""
    count = RANKS.get(program, 1)
    command = [sys.executable, "-m", "benchmarks.harness.program", program, contender]
    command += [] if cap is None else ["--cap", str(cap)]
    port = free_port() if count > 1 else 0
    begin = time.monotonic()
    started: list[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        for rank in range(count):
            env = environment(contender)
            if count > 1:
                env |= ranks_environment(count, port, rank)
            out: IO[bytes] = open(Path(folder, f"out{rank}"), "w+b")  # noqa: SIM115
            err: IO[bytes] = open(Path(folder, f"err{rank}"), "w+b")  # noqa: SIM115
            process = subprocess.Popen(command, env=env, stdout=out, stderr=err, cwd=ROOT)
            started.append((process, out, err))
        late = wait_all([process for process, _, _ in started], timeout)
        said = []
        for process, out, err in started:
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
                file.close()
            said.append((process.returncode, texts[0], texts[1]))
    found = judge(said, late, timeout)
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def tell(figures: dict[str, Any]) -> None:
    """A child's last word."""
    print(RESULT + json.dumps(figures), flush=True)


def run_child(
    command: list[str],
    env: dict[str, str],
    timeout: float,
    *,
    mark: str = RESULT,
    whole: bool = False,
) -> dict[str, Any]:
    """What one process says, as of `run_program`, and beside an ``error`` the end of what it
    wrote to ``stderr``. ``mark`` begins its line. ``whole``: what it said counts only where
    it ended well, too."""
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return judge([], True, timeout)
    out = "" if whole and done.returncode else done.stdout
    found = judge([(done.returncode, out, done.stderr)], False, timeout, mark)
    return found | {"stderr": done.stderr[-4000:]} if "error" in found else found


def wait_all(processes: list[subprocess.Popen[bytes]], timeout: float) -> bool:
    """Waits for all; ends the others where one fails, or all when time is up (True)."""
    until = time.monotonic() + timeout
    while any(process.poll() is None for process in processes):
        late = time.monotonic() > until
        if late or any(process.returncode for process in processes):
            time.sleep(0 if late else 3)  # the others may have something to say
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            for process in processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            return late
        time.sleep(0.05)
    return False


def judge(
    said: list[tuple[int, str, str]], late: bool, timeout: float, mark: str = RESULT
) -> dict[str, Any]:
    """Of each rank's exit code, output and errors, what came of the run."""
    found = []
    for _, out, _ in said:
        lines = [line for line in out.splitlines() if line.startswith(mark)]
        if lines:
            found.append(dict(json.loads(lines[-1][len(mark) :])))
    for one in found:
        if "out_of_memory" in one:
            return one
    if late:
        return {"error": f"not done after {timeout:.0f} s"}
    if len(found) < len(said):
        for code, _, err in said:
            if code:
                last = [line for line in err.splitlines() if line.strip()][-1:]
                return {"error": f"exit code {code}: {(last or ['?'])[0][:300]}"}
        return {"error": "it said nothing"}
    return max(
        found, key=lambda one: one.get("reserved", 0) / (one.get("requested") or 1)
    )


def devices() -> int:
    """GPUs that this machine has, without making a context."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return int(done.stdout.strip())
    except ValueError:
        return 0
