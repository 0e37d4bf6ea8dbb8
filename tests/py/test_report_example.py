"""examples/report: the sample in docs/reports.md is what its program prints today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import simulated

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "report"
sys.path.insert(0, str(EXAMPLE))

pytestmark = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())


def shape(text: str) -> list[str]:
    """The lines but for their numbers; blocks of one size come in any order."""
    masked = re.sub(r"\d[\d,.]*", "#", text)
    return sorted(" ".join(line.split()) for line in masked.splitlines())


def row(text: str, name: str) -> list[float]:
    (line,) = [one for one in text.splitlines() if one.strip().startswith(name + "  ")]
    return [float(number) for number in re.findall(r"[\d.]+", line)]


def test_the_sample_is_what_it_prints() -> None:
    import write_docs

    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLE / "train.py")],
        env=simulated.environment(write_docs.GPU),
        capture_output=True,
        text=True,
        timeout=simulated.TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text, sample = done.stdout.rstrip("\n"), write_docs.sample().rstrip("\n")
    assert shape(text) == shape(sample)
    for name in ("parameter", "optimizer state", "in all"):
        assert row(text, name) == pytest.approx(row(sample, name), rel=0.02), name
    assert "3 MiB a step  other, allocated in outside phases" in text


def test_the_picture_stands_by_itself() -> None:
    import write_docs

    svg = write_docs.PICTURE.read_text(encoding="utf-8")
    assert svg.startswith("<svg") and 'fill="#fff"' in svg[:600] and "step 12" in svg
    assert "currentColor" not in svg.split(">")[0]
