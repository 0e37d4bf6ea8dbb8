"""How many bytes of saved tensors must leave: learned from passes, and foreseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torcharena.spill.offload_plan import Learner, Seen, least_size

MIB = 1 << 20


def a_pass(scale: int, base: int = 1000 * MIB, **more: bool) -> Seen:
    """40 tensors of `scale` MiB, and as much again in temporaries."""
    sizes = (scale * MIB,) * 40
    return Seen(scale * MIB, base, base + 80 * scale * MIB, sizes, **more)


def test_nothing_is_known_at_first() -> None:
    plan = Learner(MIB).plan(8 * MIB, 1000 * MIB, 1100 * MIB, 0)
    assert plan.bytes == 0


def test_what_does_not_fit_leaves_and_no_more() -> None:
    learner = Learner(MIB)
    learner.learn(a_pass(8))  # demand 1640
    assert learner.plan(8 * MIB, 1000 * MIB, 1640 * MIB, 99).bytes == 0
    plan = learner.plan(8 * MIB, 1000 * MIB, 1600 * MIB, 7)
    assert plan.bytes == 40 * MIB + 7
    more = learner.plan(8 * MIB, 1100 * MIB, 1600 * MIB, 0)  # more is there at the begin
    assert more.bytes == 140 * MIB


@pytest.mark.parametrize("scale", [1, 3, 5, 6, 12, 40])
def test_other_sizes_lie_on_the_line_through_those_known(scale: int) -> None:
    learner = Learner(MIB)
    learner.learn(a_pass(2))
    assert learner.demand(scale * MIB, 0) == 80 * scale * MIB  # one known: in proportion
    learner.learn(a_pass(8))
    assert learner.demand(scale * MIB, 0) == 80 * scale * MIB
    fixed = Seen(4 * MIB, 0, 500 * MIB + 4 * MIB, (4 * MIB,))
    other = Seen(16 * MIB, 0, 500 * MIB + 16 * MIB, (16 * MIB,))
    learner = Learner(MIB)
    learner.learn(fixed)
    learner.learn(other)
    assert learner.demand(scale * MIB, 0) == (500 + scale) * MIB


def test_a_step_that_makes_lasting_memory_counts_until_there_is_a_better_one() -> None:
    learner = Learner(MIB)
    learner.learn(a_pass(16, base=0, settled=False))
    learner.learn(Seen(16 * MIB, 0, 99 * MIB, (16 * MIB,)))
    assert learner.demand(16 * MIB, 0) == 99 * MIB
    other = Learner(MIB)
    other.learn(a_pass(16, base=0, settled=False))
    assert other.demand(16 * MIB, 0) == 1280 * MIB


def test_old_passes_are_forgotten() -> None:
    learner = Learner(MIB)
    learner.learn(Seen(MIB, 0, 999 * MIB, (MIB,)))
    for _ in range(8):
        learner.learn(Seen(MIB, 0, 10 * MIB, (MIB,)))
    assert learner.demand(MIB, 0) == 10 * MIB


@given(
    st.lists(st.integers(MIB, 1 << 30), min_size=1, max_size=50),
    st.integers(1, 1 << 36),
)
def test_from_the_chosen_size_on_there_is_enough_or_all_goes(
    sizes: list[int], leave: int
) -> None:
    least = least_size(sizes, leave, MIB)
    chosen = sum(size for size in sizes if size >= least)
    assert least >= MIB
    assert chosen * 2 >= leave * 3 or least == MIB
