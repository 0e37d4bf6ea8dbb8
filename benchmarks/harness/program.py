"""One run of a program in this process, under a contender and, where asked for, a cap.

    python -m benchmarks.harness.program PROGRAM CONTENDER [--cap BYTES] [--turns]

A program is a script of benchmarks/programs by its name, or ``loop:NAME``. Prints what it
prints, and last a line ``RESULT {...}``: peaks in bytes, the seconds of each step, what the
arena counted in it; ``out_of_memory`` where memory ran out. A step ends with an optimizer's,
or where the program says so (truth.step).

With ``--turns`` (see `turns`) it waits after every step until the parent says go on, the
device having done all of it, and says what the step took; the result comes last."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from .catalogue import command
from .contenders import NAMES, install, out_of_memory
from .machine import machine
from .runs import tell
from .turns import Pipe

# What the arena counts of a step; `slow` is the time of the requests that needed a page, waits
# included.
COUNTED = ("page_moves", "waits", "slow_allocations", "slow_seconds", "wait_seconds")


class Steps:
    """Seconds of each step, and the arena's counts in it."""

    def __init__(self, arena: bool, pipe: Pipe | None = None) -> None:
        self.arena = arena
        self.pipe = pipe
        self.seconds: list[float] = []
        self.counts: list[dict[str, float]] = []
        self.last_counts = dict.fromkeys(COUNTED, 0.0)
        self.last = time.perf_counter()

    def step(self, *_: Any) -> None:
        if self.pipe is not None:
            import torch

            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        if self.arena:
            counts = arena_counts()
            self.counts.append({k: counts[k] - self.last_counts[k] for k in COUNTED})
            self.last_counts = counts
        if self.pipe is not None:
            said = {"seconds": self.seconds[-1]}
            self.pipe.say(said | {"counts": self.counts[-1]} if self.arena else said)
            if self.pipe.hear() is None:
                os._exit(1)
        self.last = time.perf_counter()


def arena_counts() -> dict[str, float]:
    """So far."""
    import torcharena

    stats = torcharena.memory_stats()
    return {key: stats[key] for key in COUNTED}


def run(
    program: str, contender: str, cap: int | None, pipe: Pipe | None = None
) -> dict[str, Any]:
    """The run's figures. Raises what the program raises, but for want of memory."""
    books = install(contender, cap)
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    script, *arguments = command(program)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    import truth

    steps = Steps(contender == "arena", pipe)
    register_optimizer_step_post_hook(steps.step)
    truth.watchers.append(steps.step)
    begin = time.perf_counter()
    found: dict[str, Any] = {"program": program, "contender": contender, "cap": cap}
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        if not out_of_memory(error):
            raise
        found["out_of_memory"] = str(error)[:400]
    found["program_seconds"] = time.perf_counter() - begin
    found |= books()
    found["step_seconds"] = steps.seconds
    found["steps"] = steps.counts
    found["rank"] = int(os.environ.get("RANK", 0))
    found["machine"] = machine()
    if contender == "arena":
        found["total"] = arena_counts()
    torch.cuda.synchronize()
    return found


def main(arguments: list[str] | None = None) -> None:
    """Ends the process without teardown: some plug-ins do not survive one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.program")
    parser.add_argument("program")
    parser.add_argument("contender", choices=NAMES)
    parser.add_argument("--cap", type=int)
    parser.add_argument("--turns", action="store_true")
    options = parser.parse_args(arguments)
    pipe = Pipe() if options.turns else None
    if pipe is not None:
        pipe.say({})
        pipe.hear()
    found = run(options.program, options.contender, options.cap, pipe)
    if pipe is not None:
        pipe.say({"result": found})
    else:
        tell(found)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
