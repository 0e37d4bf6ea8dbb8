"""Replays the recorded traces with no cap and under tight ones, and prints what each took.

    python -m benchmarks.replays [--out FILE.json] [TRACE...]

Needs no GPU and no torch: the simulated device alone. Speed is that of the fastest of three
replays with driver calls that do nothing. Figures a step are over the later half of the
steps: median and largest."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from torcharena import traces

from .harness.machine import host

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "traces"
RATIOS = (None, 1.05, 1.02, 1.01)


def rows_of(path: str) -> list[dict[str, Any]]:
    """A trace's figures at every cap; the uncapped row also has the speed."""
    rows = []
    for ratio in RATIOS:
        row = next(traces.replay(path, limit_ratio=ratio))
        row["limit_ratio"] = ratio
        rows.append(row)
    fast = [next(traces.replay(path, null_driver=True)) for _ in range(3)]
    rows[0]["null_events_per_second"] = max(row["events_per_second"] for row in fast)
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    name = Path(row["trace"]).name.partition(".")[0]
    cap = "none" if row["limit_ratio"] is None else f"{row['limit_ratio']:.2f}"
    middle, most = row["step_median"], row["step_max"]
    speed = row.get("null_events_per_second")
    return (
        f"{name:<20} {cap:>5} {row['peak_requested'] / 2**30:8.3f} {row['ratio']:7.4f} "
        f"{'yes' if row['oom'] else 'no':>4} {row['page_moves']:7,} {row['waits']:6,} "
        f"{middle['page_moves']:6,} {most['page_moves']:6,} {most['waits']:5,} "
        f"{middle['driver_us'] / 1e3:7.2f} {most['driver_us'] / 1e3:7.2f} "
        f"{'' if speed is None else f'{speed / 1e6:.1f}':>7}"
    )


HEAD = (
    f"{'trace':<20} {'cap':>5} {'asked':>8} {'ratio':>7} {'oom':>4} {'moves':>7} {'waits':>6} "
    f"{'moves':>6} {'most':>6} {'waits':>5} {'driver':>7} {'most':>7} {'speed':>7}\n"
    f"{'':<20} {'':>5} {'GiB':>8} {'':>7} {'':>4} {'in all':>7} {'in all':>6} "
    f"{'a step':>6} {'':>6} {'most':>5} {'ms/step':>7} {'':>7} {'M ev/s':>7}"
)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where memory ran out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replays",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", nargs="*", help="files (default: tests/traces)")
    parser.add_argument("--out", help="file for all figures, as JSON")
    options = parser.parse_args(arguments)
    paths = options.traces or [str(p) for p in sorted(RECORDED.glob("*.trace.xz"))]
    print(HEAD, flush=True)
    rows = []
    for path in paths:
        for row in rows_of(path):
            rows.append(row)
            print(line(row), flush=True)
    machine = host()
    print(f"{machine['processor']}, {machine['cpus']} CPUs; the device is simulated")
    if options.out:
        for row in rows:
            row["trace"] = Path(row["trace"]).name
        figures = {"machine": machine, "rows": rows}
        Path(options.out).write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if any(row["oom"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
