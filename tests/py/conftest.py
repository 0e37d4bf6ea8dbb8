"""What the tests of the package share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_core import FakeCore


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
