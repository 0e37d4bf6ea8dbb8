"""The adapters for servers' own interfaces, on a real GPU."""

from __future__ import annotations

from gpu_case import run_case

ALIKE = ["memory_saver", "sleep_mode"]


def test_adapters() -> None:
    run_case("together", *ALIKE, program="server_cases.py", quiet=False)
