"""Where two recorded traces of one program part: a GPU's and a rehearsal's.

    python -m benchmarks.apart GPU.trace.xz REHEARSED.trace.xz [--most 20]

A trace is recorded by ``TORCHARENA_RECORD`` or ``python -m benchmarks.truths --record`` on a
GPU, by ``torcharena rehearse --record`` in a rehearsal. Prints the first allocations that
differ, and the sizes that one of the two asked for more often, the largest first."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))


def sizes(text: str) -> list[int]:
    """Bytes of each allocation, in order."""
    return [int(line.split()[2]) for line in text.splitlines() if line.startswith("a ")]


def first(one: list[int], other: list[int]) -> int:
    """The number of allocations before the two part."""
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


def report(gpu: list[int], rehearsed: list[int], most: int = 20) -> str:
    """For the eye. Empty where the two are equal."""
    if gpu == rehearsed:
        return ""
    at = first(gpu, rehearsed)
    lines = [
        f"{len(gpu)} allocations on the GPU, {len(rehearsed)} rehearsed; the first {at} agree",
        f"then on the GPU:  {', '.join(map(str, gpu[at : at + 6]))}",
        f"then rehearsed:   {', '.join(map(str, rehearsed[at : at + 6]))}",
    ]
    more, fewer = Counter(gpu), Counter(rehearsed)
    more.subtract(fewer)
    apart = sorted(((size, n) for size, n in more.items() if n), reverse=True)
    if not apart:
        lines.append("the same sizes, in another order")
    for size, n in apart[:most]:
        where = "the GPU" if n > 0 else "the rehearsal"
        lines.append(f"{size:>14} bytes: {abs(n):>5} more on {where}")
    if len(apart) > most:
        lines.append(f"and {len(apart) - most} smaller sizes")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where they differ."""
    from torcharena import traces

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.apart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("gpu")
    parser.add_argument("rehearsed")
    parser.add_argument("--most", type=int, default=20, help="sizes shown (20)")
    options = parser.parse_args(arguments)
    one, other = (
        sizes(traces.read(path).decode()) for path in (options.gpu, options.rehearsed)
    )
    text = report(one, other, options.most)
    print(text or f"the same {len(one)} allocations")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
