"""Writes the sample report of docs/reports.md and its picture anew, from a rehearsal of
train.py. Needs no GPU.

    python examples/report/write_docs.py"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torcharena.reports.pictures import timeline_svg
from torcharena.reports.reporting import load

HERE = Path(__file__).resolve().parent
DOC = HERE.parents[1] / "docs" / "reports.md"
PICTURE = DOC.with_name("report_timeline.svg")
BEGIN, END = "<!-- report: begin -->\n```\n", "```\n<!-- report: end -->"
GPU = "16GiB"


def sample() -> str:
    """The report as it stands in the manual."""
    return DOC.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def measured(report: Path) -> None:
    """Runs train.py on a simulated GPU; its report goes into the file, JSON."""
    command = [sys.executable, "-m", "torcharena", "rehearse", "--gpu", GPU]
    command += ["--allocator", "arena", "--share", str(report.parent)]
    subprocess.run(
        [*command, str(HERE / "train.py"), "--save", str(report)],
        stdout=subprocess.DEVNULL,
        timeout=600,
        check=True,
    )


def picture(timeline: dict[str, Any]) -> str:
    """As an image by itself: on white, whatever is around it."""
    svg = timeline_svg(timeline, points=400, titles=False)
    head, _, rest = svg.partition(">")
    style = "font:11px system-ui,sans-serif;fill:#445;color:#445"
    head = re.sub(r'style="[^"]*"', f'style="{style}"', head)
    return f'{head}><rect width="960" height="280" fill="#fff"/>{rest}\n'


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.json"
        measured(path)
        report = load(str(path))
    text = DOC.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOC.write_text(f"{before}{BEGIN}{report}{END}{after}", encoding="utf-8")
    PICTURE.write_text(picture(report.data["timeline"]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
