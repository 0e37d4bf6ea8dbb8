"""What is to leave: the cheapest, by the link's rates and the time of computing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torcharena.spill import step_clock
from torcharena.spill.offload_choice import Choice, Rates, Situation, choose, seconds

GIB = 1 << 30
RATES = Rates(50e9, 50e9, 40e9)


def test_nothing_leaves_where_all_fits() -> None:
    for need in (0, -GIB):
        assert choose(Situation(need, 9 * GIB, 9 * GIB, 0.1, 0.2), RATES) == Choice(
            0, 0, 0.0
        )


def test_what_crosses_beside_the_computing_is_free_and_goes_first() -> None:
    found = choose(Situation(4 * GIB, 10 * GIB, 8 * GIB, 0.2, 0.4), RATES)
    assert found == Choice(4 * GIB, 0, 0.0)
    unknown = choose(Situation(4 * GIB, 10 * GIB, 8 * GIB), RATES)
    assert unknown == found, "computing not timed yet"


def test_the_state_goes_where_the_link_is_full_both_ways() -> None:
    # A byte of saved tensors costs 1 / 50 + 1 / 50 then, one of state 1 / 40.
    found = choose(Situation(9 * GIB, 10 * GIB, 2 * GIB, 0.01, 0.01), RATES)
    assert found.state == 2 * GIB and found.saved == 7 * GIB
    # Out alone is full: 1 / 50 is less.
    found = choose(Situation(9 * GIB, 10 * GIB, 2 * GIB, 0.01, 9.0), RATES)
    assert found.state == 0
    # So many passes to a step, each of them sent: the state is touched once.
    found = choose(Situation(9 * GIB, 10 * GIB, 2 * GIB, 0.01, 9.0, passes=4), RATES)
    assert found.state == 2 * GIB


def test_just_enough_of_the_state_where_saved_tensors_do_not_suffice() -> None:
    found = choose(Situation(5 * GIB, 2 * GIB, 9 * GIB, 1.0, 1.0), RATES)
    assert found.state == 5 * GIB - int(2 * GIB * 0.9)
    assert found.short == 0
    found = choose(Situation(5 * GIB, GIB, GIB, 1.0, 1.0), RATES)
    assert found.state == GIB
    assert found.short == 5 * GIB - GIB - int(GIB * 0.9)


sizes = st.integers(0, 64 * GIB)
times = st.one_of(st.none(), st.floats(0, 2))


@given(sizes, sizes, sizes, times, times, st.integers(1, 8), st.floats(0, 1))
def test_nothing_is_cheaper(
    need: int,
    saved: int,
    state: int,
    forward: float | None,
    backward: float | None,
    passes: int,
    part: float,
) -> None:
    now = Situation(need, saved, state, forward, backward, passes)
    found = choose(now, RATES)
    assert 0 <= found.state <= min(state, need)
    assert found.saved <= saved
    assert found.saved + found.state + found.short == need
    least = min(max(need - int(saved * 0.9), 0), min(state, need))
    other = least + int((min(state, need) - least) * part)
    assert found.seconds <= seconds(now, other, RATES) + 1e-9


def test_steps_of_several_optimizers_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = step_clock.StepClock(), [0.0]
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: now[0])
    for begin in range(0, 80, 10):
        now[0] = begin
        clock.step_ends(True, 0)
        now[0] = begin + 1.0
        clock.step_goes_on(0)
    assert clock.seconds == 10.0
    assert clock.free_seconds is None
