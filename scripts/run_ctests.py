"""Runs the C test programs, some at once, each under a time limit.

    python3 scripts/run_ctests.py [--jobs 2] [--timeout 120] PROGRAM...

A program passes where it exits 0 in time. What it printed is shown where it failed; where
it passed, its last line. Programs with /tsan/ in their path run without address space
randomisation, which ThreadSanitizer of older compilers does not survive on newer kernels.
Those that take longest come first, so that none is left to run alone at the end; those that
mostly wait run beside the others.
The last line is `N passed, N failed`: of programs, each in each way it was built.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}

# Of tests/c, by the seconds that they take.
LONGEST = ("test_faults", "test_spill_random", "test_random", "test_replay", "test_spill")
# A crowd of processes that rest now and then: in CI for a minute.
WAITING = ("test_ledger_crowd",)


def in_order(programs: list[str]) -> list[str]:
    """The slowest first: under TSan, then plain with its checks, then under ASan."""

    def rank(program: str) -> tuple[int, int]:
        path = Path(program)
        which = LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
        ways = ("tsan", "plain", "asan")
        way = path.parent.name
        return which, ways.index(way) if way in ways else len(ways)

    return sorted(programs, key=rank)


def fixed_addresses() -> list[str]:
    """The prefix that switches randomisation off; empty where that is not allowed."""
    command = [shutil.which("setarch") or "setarch", platform.machine(), "-R"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else []


def run(program: str, timeout: float, prefix: list[str]) -> tuple[bool, float, str]:
    """Whether it passed, the seconds it took, and what it printed. At the time limit the
    program and its children are killed."""
    start = time.monotonic()
    command = [*(prefix if "/tsan/" in program else []), str(Path(program).resolve())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**SANITIZERS, **os.environ},
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        text, _ = process.communicate(timeout=timeout)
        note = "" if process.returncode == 0 else f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        note = f"not done after {timeout:.0f} s"
    return not note, time.monotonic() - start, f"{text.rstrip()}\n{note}".strip()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="runs C test programs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args(arguments)
    prefix = fixed_addresses()
    failed = []
    begin = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool, ThreadPoolExecutor(1) as aside:
        started = {}
        for program in in_order(options.programs):
            place = aside if Path(program).name in WAITING else pool
            started[place.submit(run, program, options.timeout, prefix)] = program
        for done in as_completed(started):
            passed, seconds, text = done.result()
            program = started[done]
            if passed:
                last = text.splitlines()[-1] if text else ""
                print(f"ok     {program} ({seconds:.1f} s) {last}", flush=True)
            else:
                failed.append(program)
                print(f"FAILED {program} ({seconds:.1f} s)\n{text}\n", flush=True)
    for program in sorted(failed):
        print(f"failed: {program}")
    print(f"all of them took {time.monotonic() - begin:.0f} s")
    print(
        f"{len(options.programs) - len(failed)} passed, {len(failed)} failed", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
