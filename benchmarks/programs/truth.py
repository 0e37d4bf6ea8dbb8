"""Imported first by a program here: prints its peak bytes as one line of JSON at exit.

On a GPU these lines are the truth that rehearsals are held against
(benchmarks/results/truth-h200.jsonl); see benchmarks/truths.py."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Words that tell this run from others of the same program: a loop's name.
variant = ""
# Called at the end of each step by programs without an optimizer.
watchers: list[Callable[[], None]] = []
# Whose version may change what a program asks for.
LIBRARIES = (
    "torchvision",
    "transformers",
    "timm",
    "peft",
    "accelerate",
    "torch_geometric",
)


def step() -> None:
    """A step of the program's own has ended."""
    for watcher in watchers:
        watcher()


@atexit.register
def _tell() -> None:
    stats = torch.cuda.memory_stats()

    def peak(kind: str) -> int:
        return int(stats.get(f"{kind}_bytes.all.peak", 0))

    conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    allocator = "expandable" if "expandable_segments:True" in conf else "native"
    backend: Any = torch.cuda.memory.get_allocator_backend()
    if backend == "pluggable":
        allocator = "arena"
    found = {
        "program": Path(sys.argv[0]).stem + (f":{variant}" if variant else ""),
        "allocator": allocator,
        "rank": os.environ.get("RANK"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "requested": peak("requested"),
        "allocated": peak("allocated"),
        "reserved": peak("reserved"),
        "allocations": stats.get("allocation.all.allocated"),
        "retries": stats.get("num_alloc_retries"),
        "libraries": {
            name: getattr(sys.modules[name], "__version__", None)
            for name in LIBRARIES
            if name in sys.modules
        },
    }
    if "TORCHARENA_SIM_DIR" in os.environ:
        found["simulated"] = True
    print("TRUTH " + json.dumps(found), flush=True)
