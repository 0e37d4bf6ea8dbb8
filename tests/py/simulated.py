"""Runs code by the real PyTorch on simulated GPUs, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "torcharena"
TIMEOUT = 300  # seconds; a busy machine takes ten times what an idle one does

# Puts the values mode around the code, as a rehearsal does.
_VALUES = """
from torcharena.rehearsal.values import Values
values = Values()
values.__enter__()
"""


def missing() -> str:
    """Why such tests cannot run here; empty where they can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if not (PACKAGE / "lib" / "libcuda.so.1").exists():
        return "the simulated GPU is not built"
    from torch.version import cuda

    return "" if cuda else "this torch is a build without CUDA"


def environment(
    gpu: str = "16GiB", devices: int = 1, *, real: bool = False, **more: str
) -> dict[str, str]:
    """A process's environment with simulated GPUs and this source tree's package. ``real``:
    the process takes them for real ones, no rehearsal."""
    from torcharena import rehearsal

    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTORCH_", "TORCHARENA_", "TMS_"))
    }
    env = rehearsal.environment(gpu, devices, base=kept)
    if real:
        del env["TORCHARENA_REHEARSAL"]
    env["PYTHONPATH"] = str(PACKAGE.parent)
    return env | more


def run(
    code: str, *, gpu: str = "16GiB", devices: int = 1, values: bool = True, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` after ``import torch``; keyword arguments in capitals go to its
    environment. A code that fails makes the test fail with what it printed."""
    text = "import torch, ctypes\n" + (_VALUES if values else "") + textwrap.dedent(code)
    if any(word in code for word in (".backward(", "grad(", "torch.func")):
        # autograd's threads may not be done when backward() returns; where Python ends first
        # on a busy machine, torch aborts ("terminate called ..."), on any allocator.
        text += "\nimport time\ntime.sleep(0.25)\n"
    return _ended_well(
        ["-W", "ignore", "-c", text], TIMEOUT, environment(gpu, devices, **more)
    )


def run_program(
    program: Path,
    *arguments: str,
    gpu: str = "16GiB",
    devices: int = 1,
    silent: bool = False,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """The same for a file, as those of tests/gpu are, which takes its GPU for a real one.
    ``silent``: it may write nothing to standard error, no warning either."""
    return _ended_well(
        [*([] if silent else ["-W", "ignore"]), str(program), *arguments],
        2 * TIMEOUT,
        environment(gpu, devices, real=True, **more),
        silent,
    )


def _ended_well(
    arguments: list[str], timeout: float, env: dict[str, str], silent: bool = False
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0 and not (silent and done.stderr), (
        f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the code printed last, a Python literal."""
    import ast

    value: dict[str, Any] = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    return value
