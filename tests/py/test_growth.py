"""What grows from step to step and what does not, from blocks alone; and whose workspaces are
whose, from the text of torch's header."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from torcharena.reports.growth import Left, growth, steps_left
from torcharena.reports.workspaces import layout

KIB, MIB = 1 << 10, 1 << 20
GROUP = ("mine", "other", "", "")


class Kept:
    """A program that keeps blocks: what lives, and what it freed late."""

    def __init__(self) -> None:
        self.blocks: list[Left] = []
        self.freed: list[tuple[int, int]] = []  # step, bytes

    def keep(self, step: int, size: int, group: tuple[str, ...] = GROUP) -> None:
        self.blocks.append(Left(group, step, size))

    def drop_first(self, step: int) -> None:
        gone = self.blocks.pop(0)
        if step - gone.step >= 2:
            self.freed.append((step, gone.size))

    def late(self, step: int) -> dict[str, float]:
        """Of the steps since one of the last two multiples of eight, as usage.h says."""
        rates = [0.0]
        for since in (step - step % 8, max(0, step - step % 8 - 8)):
            if step - since >= 4:
                freed = sum(size for at, size in self.freed if at >= since)
                rates.append(freed / (step - since))
        return {"mine": max(rates)}


def leak(kept: Kept, step: int) -> None:
    kept.keep(step, 3 * MIB)


def window(length: int) -> Callable[[Kept, int], None]:
    def run(kept: Kept, step: int) -> None:
        kept.keep(step, MIB)
        if len(kept.blocks) > length:
            kept.drop_first(step)

    return run


def varied_window(kept: Kept, step: int) -> None:
    kept.keep(step, random.Random(step).randrange(MIB, 2 * MIB))
    if len(kept.blocks) > 6:
        kept.drop_first(step)


def fills_up(kept: Kept, step: int) -> None:
    if step < 9:
        kept.keep(step, MIB)


def fills_by_chance(kept: Kept, step: int) -> None:
    """Twelve shapes, each seen first at some step: 5, 3, 2, 1, 1, then no more."""
    if step in (0, 1, 2, 3, 4, 6, 8, 10, 13, 15, 21, 30):
        kept.keep(step, MIB)


def once(kept: Kept, step: int) -> None:
    if step in (0, 3):  # an average of the weights
        for _ in range(50):
            kept.keep(step, MIB)


def evaluation_leaks(kept: Kept, step: int) -> None:
    if step % 10 == 9:
        kept.keep(step, 10 * MIB)


def emptied_every_tenth(kept: Kept, step: int) -> None:
    while step % 10 == 0 and kept.blocks:
        kept.drop_first(step)
    kept.keep(step, 512)


def leak_beside_window(kept: Kept, step: int) -> None:
    kept.keep(step, MIB)
    kept.blocks.sort(key=lambda block: (block.group != GROUP, block.step))
    if sum(block.group == GROUP for block in kept.blocks) > 5:
        kept.drop_first(step)
    kept.keep(step, KIB, ("mine", "activation", "", ""))


def leak_among(others: int, emptied: int) -> Callable[[Kept, int], None]:
    """In the same phase and of the same kind as a list that is emptied now and then."""

    def run(kept: Kept, step: int) -> None:
        kept.blocks.sort(key=lambda block: (block.size != others, block.step))
        while step % emptied == 0 and kept.blocks and kept.blocks[0].size == others:
            kept.drop_first(step)
        kept.keep(step, MIB)
        kept.keep(step, others)

    return run


def window_after_start(kept: Kept, step: int) -> None:
    kept.blocks.sort(key=lambda block: (block.size != MIB, block.step))
    window(5)(kept, step)
    for _ in range(9 if step < 3 else 0):
        kept.keep(step, KIB)


def leak_among_window(kept: Kept, step: int) -> None:
    kept.blocks.sort(key=lambda block: (block.size != 2 * MIB, block.step))
    kept.keep(step, 2 * MIB)
    if sum(block.size == 2 * MIB for block in kept.blocks) > 5:
        kept.drop_first(step)
    kept.keep(step, MIB)


def run(program: Callable[[Kept, int], None], steps: int) -> list[tuple[int, int]]:
    """Bytes a step and steps between, of each row after so many steps."""
    kept = Kept()
    for step in range(steps):
        program(kept, step)
    rows = growth(kept.blocks, kept.late(steps), steps)
    return [(row["bytes_per_step"], row["every"]) for row in rows]


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (window(5), 12),
        (window(5), 24),
        (window(5), 100),
        (window(20), 27),
        (window(20), 60),
        (window_after_start, 60),
        (varied_window, 40),
        (fills_up, 30),
        (fills_by_chance, 60),
        (once, 12),
        (once, 100),
        (emptied_every_tenth, 60),
        (emptied_every_tenth, 79),
    ],
    ids=[
        "window",
        "window-full",
        "window-later",
        "long-window-soon",
        "long-window",
        "window-after-start",
        "varied-window",
        "fills-up",
        "fills-by-chance",
        "once",
        "once-later",
        "emptied-every-tenth",
        "emptied-soon",
    ],
)
def test_no_growth(program: Callable[[Kept, int], None], steps: int) -> None:
    assert run(program, steps) == []


def test_growth_is_found() -> None:
    for steps in (7, 12, 100, 1000):
        assert run(leak, steps) == [(3 * MIB, 1)]
    assert run(leak_beside_window, 40) == [(KIB, 1)]
    for steps in (60, 200, 1000):
        ((rate, every),) = run(evaluation_leaks, steps)
        assert 0.8 * MIB <= rate <= 1.2 * MIB
        assert 8 <= every <= 12


def test_growth_among_what_only_replaces_itself() -> None:
    for steps in (40, 60, 79, 100, 1000):
        assert run(leak_among_window, steps) == [(MIB, 1)]
        for emptied in (3, 5):
            assert run(leak_among(2 * MIB, emptied), steps) == [(MIB, 1)], (
                steps,
                emptied,
            )


def test_how_long_it_lasts() -> None:
    row = {"bytes_per_step": 4, "size": 4}
    assert steps_left([row], 512 * 1000) == 1000  # in blocks of 512 bytes
    assert steps_left([{"bytes_per_step": 3 * MIB, "size": 3 * MIB}], 30 * MIB) == 10
    assert steps_left([], 1 << 30) is None
    assert steps_left([row], None) is None


def headers() -> Iterator[tuple[str, bool | None]]:
    older = """
TORCH_CUDA_CPP_API std::map<std::tuple<void *, void *>, at::DataPtr>& cublas_handle_stream_to_workspace();
"""
    newer = """
struct WorkspaceMapWithMutex {
  std::map<std::tuple<void*, void*>, %s> map;  // a comment
  std::shared_mutex mutex;
};
TORCH_CUDA_CPP_API WorkspaceMapWithMutex& cublas_handle_stream_to_workspace();
"""
    yield older, False
    yield newer % "at::DataPtr", True
    yield newer % "std::pair<at::DataPtr, size_t>", True
    yield newer % "std::shared_ptr<void>", None
    yield newer.replace("std::map", "std::unordered_map") % "at::DataPtr", None
    yield newer.replace("  std::map", "  int first; std::map") % "at::DataPtr", None
    yield newer.replace("std::shared_mutex", "std::mutex") % "at::DataPtr", None
    yield "", None


def test_a_header_that_says_else_is_not_believed() -> None:
    for text, known in headers():
        assert layout(text) is known, text
