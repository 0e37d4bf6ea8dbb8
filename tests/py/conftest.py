"""What the tests of the package share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_core import FakeCore

# Files by the time that they take: the longest come first, so that no worker is left with
# one of them at the end (`--no-loadscope-reorder` keeps this order).
LONGEST = (
    *("rehearse_runs", "gpu_cases_simulated", "ranks", "compat", "simcuda_training"),
    *("spill_simulated", "rehearse_breadth", "pools_simulated", "reports_training"),
    *("find_batch_size", "rehearse_report", "notebooks", "hooks_simulated", "benchmarks"),
    *("simcuda_values", "rehearse_compile", "integrations", "packaging", "reports_edges"),
    *("out_of_memory", "graphs", "installing", "isolation", "limits", "limits_shared"),
    *("soak", "simcuda_libraries", "simcuda_runtime", "simcuda_inside", "truths"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person who runs the tests reaches them."""
    kept = ("TORCHARENA_SIM_", "TORCHARENA_REHEARSAL", "TORCHARENA_TEST_")
    for variable in list(os.environ):
        ours = variable.startswith(("TORCHARENA_", "PYTORCH_"))
        if ours and not variable.startswith(kept):
            monkeypatch.delenv(variable)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    """The model in the library's place."""
    from torcharena import loading

    core = FakeCore()
    monkeypatch.setattr(loading, "_core", core)
    monkeypatch.setattr(loading, "_said", set())
    yield core


@pytest.fixture
def arena(fake: FakeCore, monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    """The model, and the package as though enable() had been called."""
    from torcharena import state

    enabled = state.State(allocator=object(), creator=os.getpid(), asked={})
    monkeypatch.setattr(state, "current", enabled)
    fake.is_created = True
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    return fake
