"""Host memory on a real GPU: the safety net, regions, optimizer state, saved tensors."""

from __future__ import annotations

from gpu_case import run_case
from spill_more_names import MORE, STATE

ALIKE = [
    "g11_net",
    "comes_back",
    "host_full",
    "g12",
    "g12:host",
    "asleep",
    "backward_in_region",
    "in_capture",
    "optimizers",
    "resumed",
    "groups",
    "g11:plain",
    "g11:checkpointed",
    "g11:stream",
    "g11:autocast",
    "learned",
    "auto",
    "views_and_changes",
    "saved_host_full",
]


def test_cases_that_enable_alike() -> None:
    """`python spill_cases.py NAME [ARGUMENT]` runs one of them alone."""
    run_case("together", *ALIKE, program="spill_cases.py", quiet=False, timeout=600)


def test_without() -> None:
    run_case("without", program="spill_cases.py")


def test_more_cases() -> None:
    run_case("together", *MORE, program="spill_more_cases.py", quiet=False, timeout=300)


def test_state_cases() -> None:
    run_case("together", *STATE, program="spill_state_cases.py", quiet=False, timeout=300)
