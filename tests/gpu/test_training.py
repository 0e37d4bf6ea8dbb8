"""Training loops with fixed shapes make no driver call that maps, once warm, on a real GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import fixed_shapes


@pytest.mark.parametrize("model", list(fixed_shapes.MODELS))
def test_fixed_shapes(model: str) -> None:
    found = fixed_shapes.run(model, steps=20, warm=5, timeout=120)
    print(fixed_shapes.line(found))
    assert "error" not in found, fixed_shapes.line(found)
    assert len(found["maps"]) == 20 and found["maps"][0] > 0
    if model in fixed_shapes.RECORDING:
        assert max(found["events"][5:]) <= 2, found["events"]
