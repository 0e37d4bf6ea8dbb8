"""The same two loops rehearsed under several versions of PyTorch, CUDA 12 and 13 builds.

    python -m benchmarks.versions [--torch 2.7.1,2.9.1,2.11.0,2.14.1] [--python PATH ...]
                                  [--loops gpt,cnn] [--out versions.jsonl]

Each version comes from the first interpreter given by ``--python`` (a path, repeatable) that
has it, else from a virtual environment of its own in .venv/torch-*, made where it is missing:
5 GB each. Prints one table: peaks under each allocator, and whether the loop ran to its end."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .harness.building import ROOT
from .harness.catalogue import command

sys.path.insert(0, str(ROOT / "scripts"))

import environments

# The oldest that is supported, the GPU machine's, CI's, and one between; the default wheels
# are of CUDA 12.6, 12.8, 13.0 and 13.0.
TORCHES = ("2.7.1", "2.9.1", "2.11.0", "2.14.1")
LOOPS = ("gpt", "cnn")
PROGRAM = "small_loops"


def torch_of(python: str) -> dict[str, str | None]:
    """An interpreter's torch and CUDA version, without importing torch. Raises OSError where
    it is none."""
    done = subprocess.run(
        [python, "-c", environments.PROBE], capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        raise OSError(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def choose(wanted: Iterable[str], pythons: Iterable[str]) -> dict[str, str]:
    """The interpreter of each version that one was given for. ``2.9`` is any 2.9.x, as is
    2.9.1: a given environment of the same minor version is taken rather than made anew."""

    def minor(version: str) -> str:
        return ".".join(version.split("+")[0].split(".")[:2])

    given: dict[str, str] = {}
    for python in pythons:
        found = torch_of(python).get("torch")
        if found:
            given.setdefault(minor(found), python)
    return {v: given[minor(v)] for v in wanted if minor(v) in given}


def made(version: str) -> str:
    """The interpreter of the project's own environment of that version."""
    found = environments.active()
    venv = environments.VENVS / (
        f"torch-{environments.digest(str(found['python']), version)}"
    )
    with environments.locked():
        environments.make(venv, str(found["executable"]), None, [f"torch=={version}"])
    return str(venv / "bin" / "python")


def rehearse(python: str, loop: str, timeout: str) -> list[dict[str, Any]]:
    """A row for each allocator: its peaks, or ``error``."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run(
        [
            *(python, "-m", "torcharena.rehearsal", "--json", "--steps", "0"),
            *("--gpu", "h200", "--allocator", "all", "--timeout", timeout),
            *command(f"{PROGRAM}:{loop}"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        runs = json.loads(done.stdout.strip().splitlines()[-1])["runs"]
    except (IndexError, ValueError, KeyError):
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return [{"allocator": "all", "error": why}]
    rows = []
    for run in runs:
        row = {key: run[key] for key in ("allocator", "verdict", "seconds")}
        row |= {key: run[f"peak_{key}"] for key in ("requested", "reserved")}
        if run["verdict"] != "fits":
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            row["error"] = " ".join([f"{run['verdict']}, {run.get('why') or ''}:", *last])
        rows.append(row)
    return rows


def table(rows: Iterable[dict[str, Any]]) -> str:
    """For the eye."""
    lines = [
        f"{'torch':<14} {'CUDA':<6} {'loop':<5} {'allocator':<11} {'asked for':>11} "
        f"{'reserved':>11} {'s':>5}  ok"
    ]
    for row in rows:
        start = (
            f"{row['torch']:<14} {row['cuda'] or '':<6} {row['loop']:<5} "
            f"{row['allocator']:<11}"
        )
        if "error" in row:
            lines.append(f"{start} no: {row['error'][:100]}")
            continue
        sizes = [
            f"{row[kind] / (1 << 20):7.1f} MiB" for kind in ("requested", "reserved")
        ]
        lines.append(f"{start} {sizes[0]} {sizes[1]} {row['seconds']:5.0f}  yes")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a loop did not run to its end."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--torch", default=",".join(TORCHES), help="versions, by commas")
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--timeout", default="10m", help="of each run (10m)")
    parser.add_argument("--out", type=Path, help="a file for the rows, JSON lines")
    options = parser.parse_args(arguments)
    wanted = options.torch.split(",")
    pythons = choose(wanted, options.python)
    rows: list[dict[str, Any]] = []
    for version in wanted:
        python = pythons.get(version) or made(version)
        found = torch_of(python)
        for loop in options.loops.split(","):
            for row in rehearse(python, loop, options.timeout):
                row = {"torch": found["torch"], "cuda": found["cuda"], "loop": loop} | row
                rows.append(row)
                print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
                if options.out:
                    with open(options.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(rows))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
