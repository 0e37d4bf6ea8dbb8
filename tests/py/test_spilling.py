"""Host memory in Python, on a model of the library."""

from __future__ import annotations

from typing import Any

import pytest
import torcharena
from fake_core import FakeCore
from torcharena import state

GIB = 1 << 30


def test_numbers_and_the_summary(arena: FakeCore) -> None:
    arena.spill = 64 * GIB
    found = torcharena.memory_stats(0)
    assert found["spill_budget_bytes"] == 64 * GIB
    assert (found["host_bytes"], found["spilled_bytes.peak"]) == (3 * GIB, 3 * GIB)
    assert found["spill_wait_seconds"] == 0.25
    text = torcharena.memory_summary(0)
    assert "5 requests went to the host for want of room, 6 GiB in all" in text
    assert (
        "moved 8 GiB to the host and 4 GiB back; waited 0.250 s for it, 51.5 GB/s" in text
    )


def test_where_spill_is_off_the_summary_has_none_of_it(
    arena: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = arena.stats(0) | {"host": (0, 0, 0, 0)}
    monkeypatch.setattr(arena, "stats", lambda index: raw)
    assert torcharena.memory_stats(0)["spill_budget_bytes"] is None
    assert "host" not in torcharena.memory_summary(0)


def test_a_step_is_marked_where_spill_is_on(
    arena: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena.usage_step = lambda: arena.calls.append(("usage_step",))  # type: ignore[attr-defined]
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torcharena.step()
    assert ("step", -1) not in arena.calls and ("usage_step",) in arena.calls
    state.current.spill = GIB
    arena.said = ["spilling has begun"]
    with pytest.warns(UserWarning, match="has begun"):
        torcharena.step()
    assert ("step", -1) in arena.calls
    failed: dict[str, Any] = {"status": 7, "text": "the driver failed"}
    monkeypatch.setattr(arena, "step", lambda index: failed)
    with pytest.warns(UserWarning, match="could not be brought back: the driver failed"):
        torcharena.step()
    monkeypatch.setattr(arena, "step", lambda index: {"status": 9, "text": "busy"})
    with pytest.raises(RuntimeError, match="captured"):
        torcharena.step()


def test_before_it_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "current", state.State())
    monkeypatch.delenv("TORCHARENA_REHEARSAL", raising=False)
    for call in (
        torcharena.step,
        torcharena.empty_cache,
        torcharena.sleep,
        torcharena.wake_up,
        lambda: torcharena.region("weights").__enter__(),
        lambda: torcharena.offload_activations().__enter__(),
    ):
        with pytest.raises(RuntimeError, match="enable"):
            call()


def test_in_a_rehearsal_of_torchs_own_allocators_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "current", state.State())
    monkeypatch.setenv("TORCHARENA_REHEARSAL", "1")
    torcharena.step()
    with torcharena.region("weights"), torcharena.offload_activations():
        pass


def test_the_cache_of_the_host_is_given_back_when_asked(arena: FakeCore) -> None:
    assert torcharena.empty_cache() == 0
    assert ("host_trim",) not in arena.calls
    assert torcharena.empty_cache(host=True) == GIB


@pytest.mark.parametrize(
    "named",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 64},
        {"name": "x", "touch": "device"},
        {"name": "x", "page": "3MiB"},
    ],
)
def test_a_region_that_makes_no_sense(named: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"region|page"):
        torcharena.region(**named)


@pytest.mark.parametrize("budget", ["50%", "8GB"])
def test_a_budget_that_makes_no_sense(budget: str) -> None:
    with pytest.raises(ValueError, match="budget="):
        torcharena.offload_activations(budget)
