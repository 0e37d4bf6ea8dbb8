"""Reports on a GPU."""

from __future__ import annotations

import pytest
from gpu_case import run_case


def test_report_against_nvml() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    run_case("report_against_nvml", program="report_cases.py")
