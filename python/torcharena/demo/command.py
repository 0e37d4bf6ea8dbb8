"""`torcharena demo`: a small GPT on each allocator, and what each one reserved for it.

Every run is a process of its own, with real PyTorch: on this machine's GPU, or where there
is none, on the simulated one. First all allocators without a cap, then all under a cap just
above what the program asks for."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..sizes import format_size

__all__ = ["main"]

_NAMES = {"native": "native", "expandable": "expandable segments", "arena": "torcharena"}
_ROUND = 32 << 20  # a cap is a multiple of it
_BAR = 44


class Failed(RuntimeError):
    """A run ended without its figures; the text is the end of what it printed."""


def main(steps: int, as_json: bool) -> int:
    """Runs it all and prints. 0, or 1 where a run could not be done."""
    try:
        with (
            warnings.catch_warnings()
        ):  # torch warns where NumPy is absent; nothing needs it
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")
            import torch
    except ImportError:
        print("torcharena demo needs torch: pip install torch", file=sys.stderr)
        return 1
    if torch.version.cuda is None:
        print(
            f"torcharena demo needs a CUDA build of torch (on a machine with no GPU too); "
            f"this is {torch.__version__}: pip install torch",
            file=sys.stderr,
        )
        return 1
    simulated = not _has_gpu()
    where = "a simulated GPU: there is none here" if simulated else "this machine's GPU"
    print(f"A GPT of 42 million parameters trains {steps} steps on {where}.", flush=True)
    rows: list[dict[str, Any]] = []
    try:
        with _progress(6 * steps) as advance:
            for allocator in _NAMES:
                rows.append(_run(allocator, steps, 0, simulated, advance))
            cap = _cap(rows)
            for allocator in _NAMES:
                rows.append(_run(allocator, steps, cap, simulated, advance))
    except Failed as error:
        print(f"torcharena demo: {error}", file=sys.stderr)
        return 1
    print(report(rows, simulated))
    if as_json:
        print(
            json.dumps({"simulated": simulated, "steps": steps, "cap": cap, "runs": rows})
        )
    return 0


def _has_gpu() -> bool:
    """Asked in a process of its own: this one starts no driver."""
    program = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False)
    return done.returncode == 0


def _cap(rows: list[dict[str, Any]]) -> int:
    """Two hundredths above what the program asks for at its highest."""
    wanted = int(rows[-1]["peak_requested"] * 1.02)
    return -(-wanted // _ROUND) * _ROUND


def _run(
    allocator: str,
    steps: int,
    cap: int,
    simulated: bool,
    advance: Callable[[int, str], None],
) -> dict[str, Any]:
    """One child; its last line of JSON. Raises Failed."""
    command = [
        sys.executable,
        "-m",
        "torcharena.demo.train",
        allocator,
        str(steps),
        str(cap),
    ]
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTORCH_", "TORCHARENA_"))
    }
    environment["PYTHONWARNINGS"] = "ignore"
    package = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        [package, *filter(None, [environment.get("PYTHONPATH")])]
    )
    title = _NAMES[allocator] + (f" under {format_size(cap)}" if cap else "")
    if simulated:
        from .. import rehearsal

        environment = rehearsal.environment("16GiB", 1, "native", environment)
    if allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    result, done, tail = None, 0, list[str]()
    advance(0, title)
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            tail = [*tail[-20:], line]
            continue
        if "step" in said:
            advance(said["step"] - done, title)
            done = said["step"]
        else:
            result = said
    code = process.wait()
    advance(steps - done, title)
    if result is None or code != 0:
        raise Failed(f"{title} ended with code {code}:\n{''.join(tail).rstrip()}")
    return {**result, "steps": done}


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar where there is a terminal, else nothing: advance(steps, title)."""
    if not sys.stdout.isatty():
        yield lambda steps, title: None
        return
    try:
        from rich.progress import Progress
    except ImportError:
        with _plain_bar(total) as advance:
            yield advance
        return
    with Progress(transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda steps, title: progress.update(task, advance=steps, description=title)


@contextlib.contextmanager
def _plain_bar(total: int) -> Iterator[Callable[[int, str], None]]:
    done = 0

    def advance(steps: int, title: str) -> None:
        nonlocal done
        done += steps
        full = 30 * done // total
        bar = "#" * full + "." * (30 - full)
        print(f"\r{bar} {100 * done // total:3d} % {title:<40.40}", end="", flush=True)

    yield advance
    print("\r" + " " * 80, end="\r", flush=True)


def report(rows: list[dict[str, Any]], simulated: bool) -> str:
    """The table and the bars."""
    free, capped = rows[:3], rows[3:]
    highest = max(row["peak_reserved"] for row in free)
    asked = free[-1]["peak_requested"]
    lines = [
        "",
        f"{'A simulated GPU of 16 GiB' if simulated else free[0]['device']}, "
        f"torch {free[0]['torch']}; "
        f"the program asks for at most {format_size(asked)}",
        "",
        f"{'peak reserved':<22}{'':<{_BAR}}{'':>10}{'over asked for':>17}",
    ]
    for row in free:
        length = max(1, round(_BAR * row["peak_reserved"] / highest))
        over = row["peak_reserved"] / row["peak_requested"]
        lines.append(
            f"{_NAMES[row['allocator']]:<22}{'█' * length:<{_BAR}}"
            f"{format_size(row['peak_reserved']):>10}{over:>16.3f}x"
        )
    cap = capped[0]["cap"]
    lines += ["", f"under a cap of {format_size(cap)}"]
    for row in capped:
        ended = (
            f"out of memory after step {row['steps']}"
            if row["oom"]
            else "trains to the end"
        )
        lines.append(f"{_NAMES[row['allocator']]:<22}{ended}")
    if simulated:
        lines += [
            "",
            "Simulated: every allocation is real, no kernel computes; no times.",
        ]
    return "\n".join(lines)
