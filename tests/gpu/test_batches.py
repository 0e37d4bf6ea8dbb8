"""The batch finder on a GPU, G15 above all."""

from __future__ import annotations

import pytest
from gpu_case import run_case


@pytest.mark.parametrize("allocator", ["native", "expandable", "arena"])
@pytest.mark.parametrize("name", ["trains", "goes_on", "decorated"])
def test_case(name: str, allocator: str) -> None:
    run_case(name, allocator, program="batch_cases.py")
