"""Where a measurement ran: the GPU, the processor, the versions."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

__all__ = ["host", "machine", "processor", "simulated"]

# Whose version may change what a program asks for, or who is measured.
LIBRARIES = ("torcharena", "rmm", "transformers", "peft", "torchvision")


def processor() -> str:
    """The CPU's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def simulated() -> bool:
    """True in a process whose GPU is simulated, and in those that it starts."""
    return "TORCHARENA_SIM_GPU" in os.environ or "TORCHARENA_SIM_DIR" in os.environ


def host() -> dict[str, Any]:
    """What can be said without torch."""
    return {
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def machine() -> dict[str, Any]:
    """With torch and its device; makes a context."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "simulated": simulated(),
        **host(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": None,
    }
    driver = getattr(torch._C, "_cuda_getDriverVersion", None)
    if driver is not None:
        found["driver"] = driver()
    for module in LIBRARIES:
        loaded = sys.modules.get(module)
        if loaded is not None:
            found[module] = getattr(loaded, "__version__", None)
    return found
