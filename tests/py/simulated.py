"""Runs code by the real PyTorch on simulated GPUs, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import forking

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "torcharena"
TIMEOUT = 300  # seconds; a busy machine takes ten times what an idle one does

# Puts the values mode around the code, as a rehearsal does.
_VALUES = """
from torcharena.rehearsal.values import Values
values = Values()
values.__enter__()
"""


def port() -> str:
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def missing() -> str:
    """Why such tests cannot run here; empty where they can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if not (PACKAGE / "lib" / "libcuda.so.1").exists():
        return "the simulated GPU is not built"
    from torch.version import cuda

    return "" if cuda else "this torch is a build without CUDA"


def environment(gpu: str = "16GiB", devices: int = 1, **more: str) -> dict[str, str]:
    """A process's environment with simulated GPUs and this source tree's package."""
    from torcharena import rehearsal

    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTORCH_", "TORCHARENA_"))
    }
    env = rehearsal.environment(gpu, devices, base=kept)
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
    done = forking.run(
        *("-c", text),
        options=("-W", "ignore"),
        env=environment(gpu, devices, **more),
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, (
        f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the code printed last, a Python literal."""
    import ast

    value: dict[str, Any] = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    return value
