"""One of the loops of benchmarks/training.py by its name: ``python loop.py moe``."""

import sys
from pathlib import Path

import torch
import truth

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.training import LOOPS

name = sys.argv[1]
truth.variant = name
torch.manual_seed(0)
for loss in LOOPS[name](lambda phase: None):
    print(f"{loss:.4f}")
