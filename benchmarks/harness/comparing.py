"""Figures of paired runs: step times, losses. Pure; needs no torch."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import combinations

__all__ = ["largest_difference", "paired_ratio", "ratio_bound", "spread", "upper_bound"]

Times = Sequence[float]


def paired_ratio(ours: Sequence[Times], theirs: Sequence[Times]) -> float:
    """Our time over theirs: for each pair of runs the sum over steps, then the median of the
    pairs. ``ours[i]`` and ``theirs[i]`` ran next to each other, step for step the same work."""
    return statistics.median(sum(a) / sum(b) for a, b in zip(ours, theirs, strict=True))


def upper_bound(
    ours: Sequence[Times], theirs: Sequence[Times], level: float = 0.95, draws: int = 2000
) -> float:
    """What `paired_ratio` stays below with probability ``level``: a one-sided bootstrap that
    draws pairs and, within a pair, steps, both with replacement. Seeded: the same figures
    give the same bound."""
    draw = random.Random(1)
    pairs = list(zip(ours, theirs, strict=True))
    found = []
    for _ in range(draws):
        ratios = []
        for a, b in draw.choices(pairs, k=len(pairs)):
            steps = draw.choices(range(len(a)), k=len(a))
            ratios.append(sum(a[i] for i in steps) / sum(b[i] for i in steps))
        found.append(statistics.median(ratios))
    found.sort()
    return found[min(len(found) - 1, int(level * len(found)))]


def largest_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest difference of two runs' losses at the same step. Two NaN are equal: without
    values, in a rehearsal, losses mean nothing."""
    return max(
        (abs(x - y) for x, y in zip(a, b, strict=True) if x == x or y == y), default=0.0
    )


def spread(runs: Sequence[Sequence[float]]) -> float | None:
    """The largest difference between any two of the runs; None where there is one alone."""
    if len(runs) < 2:
        return None
    return max(largest_difference(a, b) for a, b in combinations(runs, 2))


def ratio_bound(
    ours: Sequence[Times], theirs: Sequence[Times], level: float = 0.95, draws: int = 200
) -> tuple[float, float]:
    """The median of the rounds' own ratios, and what that median stays below with probability
    ``level``. ``ours[g][r]`` and ``theirs[g][r]`` are of the same round of generation g, where
    both have it. A one-sided bootstrap over generations and, within each, rounds; seeded."""
    ratios = [
        [x / y for x, y in zip(a, b, strict=False)]
        for a, b in zip(ours, theirs, strict=False)
    ]
    ratios = [of_one for of_one in ratios if of_one]
    middle = statistics.median(x for of_one in ratios for x in of_one)
    draw = random.Random(1)
    found = sorted(
        statistics.median(
            x
            for of_one in draw.choices(ratios, k=len(ratios))
            for x in draw.choices(of_one, k=len(of_one))
        )
        for _ in range(draws)
    )
    return middle, max(middle, found[min(draws - 1, int(level * draws))])
