"""What cuDNN answers about a program's convolutions on a GPU, to hold a rehearsal against.

    python -m benchmarks.convolutions --out FOLDER [--programs a,b] [--seconds 150]

Runs the programs under the arena with a library preloaded (convolutions.c, compiled here by
gcc) that writes down what PyTorch asks of cuDNN's backend and what it answers. Then asks
again, about every operation seen: which engines the heuristics list by the real handle, and
which by the device's own description, with their knobs and workspaces. FOLDER gets

    traces.tar      PROGRAM.trace.xz of each: the arena's recorded allocations
    asked.tar.xz    PROGRAM.PID.log of each: see convolutions.c
    lists.jsonl.xz  an operation a line, with its lists
    calls.json      the machine; the driver's functions that libcudnn calls, by what for

logs.py reads the logs, lists.py asks. It runs in a rehearsal too: there the handle's lists are
those of the simulated card."""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from ..harness.building import ROOT
from ..harness.catalogue import ALONE, PROGRAMS
from ..harness.contenders import environment
from ..truths import RECORD
from .lists import Backend, Calls, Failed, ask
from .logs import Tree, graphs

WANTED = ("detector_boxes", "loop:resnet50_multiscale", "unet_denoise", "dqn_replay")
SOURCE = Path(__file__).with_name("convolutions.c")
LOG = "CONVOLUTIONS_LOG"  # the beginning of the name of a process's log

# --- the children ------------------------------------------------------------------------


def child_program(program: str) -> None:
    from ..truths import child

    child(program, "arena")


def child_lists(
    folder: Path, programs: list[str], part: int, parts: int, seconds: float, out: Path
) -> None:
    """One process's share of the operations, until its time is up."""
    end = time.monotonic() + seconds
    trees: dict[str, tuple[str, Tree]] = {}
    for program in programs:
        for log in sorted(folder.glob(f"{program}.*.log")):
            with open(log, errors="replace") as file:
                for tree in graphs(file):
                    trees.setdefault(json.dumps(tree), (program, tree))
    chosen = list(trees.values())
    random.Random(0).shuffle(chosen)
    backend = Backend()
    with open(out, "w") as file:
        for i, (program, tree) in enumerate(chosen):
            if i % parts != part:
                continue
            if time.monotonic() > end:
                break
            row = {"program": program, "of": len(chosen)}
            row |= ask(backend, tree, i // parts % 6 == 0)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()


def child_calls(folder: Path) -> None:
    """The driver's calls of a handle, a heuristic, a plan; the machine."""
    import torch

    from ..harness.machine import machine

    told: dict[str, Any] = {}
    trees: list[Tree] = []
    for log in sorted(folder.glob("*.log")):
        with open(log, errors="replace") as file:
            trees += graphs(file)[:12]
    torch.empty(1, device="cuda")
    try:
        calls = Calls()
    except (Failed, OSError, AttributeError) as error:
        told["error"] = str(error)[:200]
        calls = None
    backend = Backend()
    told["machine"] = machine() | {"cudnn": torch.backends.cudnn.version()}
    told["description"] = json.loads(backend.text)
    if not told["machine"]["simulated"]:
        # The devices as the library knows them: more than the text says (cudnn_real.c).
        for name, d in (("device", backend.device), ("described", backend.described)):
            told[name] = ctypes.string_at(d.value or 0, 0x228).hex()
    steps: list[Any] = []
    if calls:
        steps.append({"create": calls.take()})
    for tree in trees[::6]:
        made: list[Any] = []
        step: dict[str, Any] = {"operation": tree[1][0][2][0][0]}
        try:
            for by_handle in (True, False):
                graph = backend.build(tree, by_handle, made)
                way = "handle" if by_handle else "described"
                if calls:
                    step[f"graph_{way}"] = calls.take()
                backend.list(graph, 0, by_handle)
                if calls:
                    step[f"list_{way}"] = calls.take()
                backend.list(graph, 0, by_handle, 8)
                if calls:
                    step[f"list_and_plans_{way}"] = calls.take()
        except Failed as error:
            step["error"] = str(error)
        backend.drop(*reversed(made))
        steps.append(step)
    told["calls"] = steps
    print(json.dumps(told))


# --- the command -------------------------------------------------------------------------


def start(
    arguments: list[str], env: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.convolutions", *arguments],
            env=env,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def wait(processes: dict[str, subprocess.Popen[bytes]], until: float) -> dict[str, int]:
    """Exit codes, of those that were still running -1."""
    codes = {}
    for name, process in processes.items():
        try:
            codes[name] = process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes[name] = -1
    return codes


def tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(lines[-3:])[:400]


def measure(out: Path, programs: list[str], seconds: float, parts: int) -> int:
    begin = time.monotonic()
    until = begin + seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shim = folder / "convolutions.so"
        command = ["gcc", "-O2", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden"]
        subprocess.run([*command, "-o", shim, SOURCE, "-ldl", "-lpthread"], check=True)
        plain = environment("arena")
        before = plain.get("LD_PRELOAD")
        told: dict[str, Any] = {}

        def program(name: str) -> subprocess.Popen[bytes]:
            env = plain | {
                "LD_PRELOAD": ":".join(filter(None, [str(shim), before])),
                LOG: str(folder / name),
                RECORD: str(folder / f"{name}.trace.xz"),
            }
            return start(["--child", "program", name], env, folder / f"{name}.out")

        def logged(names: list[str]) -> None:
            for name in names:
                for log in folder.glob(f"{name}.[0-9]*[0-9]"):
                    log.rename(log.with_name(log.name + ".log"))

        def lists(names: list[str], spare: float) -> dict[str, subprocess.Popen[bytes]]:
            left = str(max(5.0, until - spare - time.monotonic()))
            return {
                f"lists-{names[0]}-{part}": start(
                    [
                        *("--child", "lists", str(folder), ",".join(names)),
                        *(str(part), str(parts), left),
                        str(folder / f"{names[0]}-{part}.jsonl"),
                    ],
                    plain,
                    folder / f"lists-{names[0]}-{part}.out",
                )
                for part in range(parts)
            }

        together = [name for name in programs if name not in ALONE]
        alone = [name for name in programs if name in ALONE]
        codes = wait({name: program(name) for name in together}, begin + seconds * 0.4)
        logged(together)
        asking = lists(together, 12 + seconds * 0.2) if together else {}
        for name in alone:
            codes |= wait({name: program(name)}, until - 30)
            logged([name])
        asking |= lists(alone, 16) if alone else {}
        calls = start(["--child", "calls", str(folder)], plain, folder / "calls.out")
        codes |= wait(asking | {"calls": calls}, until - 10)
        for line in (folder / "calls.out").read_text(errors="replace").splitlines():
            if line.startswith("{"):
                told = json.loads(line)
        told["codes"] = codes
        told["failed"] = {
            name: tail(folder / f"{name}.out") for name, code in codes.items() if code
        }
        told["said"] = {name: tail(folder / f"{name}.out") for name in programs}
        told["seconds"] = round(time.monotonic() - begin, 1)
        (out / "calls.json").write_text(json.dumps(told, indent=1) + "\n")
        with tarfile.open(out / "traces.tar", "w") as tar:
            for path in sorted(folder.glob("*.trace.xz")):
                tar.add(path, path.name)
        with lzma.open(out / "lists.jsonl.xz", "wb", preset=1) as file:
            for path in sorted(folder.glob("*.jsonl")):
                file.write(path.read_bytes())
        with tarfile.open(out / "asked.tar.xz", "w:xz", preset=1) as tar:
            for path in sorted(folder.glob("*.log")):
                tar.add(path, path.name)
    for name, code in codes.items():
        print(f"{name:<32} exit code {code} {told['failed'].get(name, '')}")
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if any(codes.values()) else 0


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where a part failed; what the others found is there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convolutions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="a folder for the four files")
    parser.add_argument("--programs", default=",".join(WANTED), help="by commas")
    parser.add_argument("--seconds", type=float, default=150, help="in all (150)")
    parser.add_argument("--parts", type=int, default=5, help="processes that ask (5)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        what, *words = options.child
        if what == "program":
            child_program(*words)
        elif what == "calls":
            child_calls(Path(words[0]))
        else:
            folder, names, part, parts, seconds, out = words
            child_lists(
                *(Path(folder), names.split(","), int(part), int(parts)),
                *(float(seconds), Path(out)),
            )
        return 0
    programs = options.programs.split(",")
    unknown = set(programs) - set(PROGRAMS)
    if options.out is None or unknown:
        parser.error(f"no such program: {unknown}" if unknown else "--out is wanted")
    return measure(options.out, programs, options.seconds, options.parts)


if __name__ == "__main__":
    sys.exit(main())
