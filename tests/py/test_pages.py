"""Timelines and pages: of reports made under the real PyTorch on the simulated GPU, and of
data of our own; the page in a real browser, where there is one."""

from __future__ import annotations

import copy
import html
import html.parser
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import simulated
from test_reporting import DATA
from torcharena import Report
from torcharena.reports import address_map, reporting, timelines
from torcharena.reports.page import compact, page
from torcharena.reports.pictures import byte_ticks, map_svg, second_ticks, timeline_svg

with_torch = pytest.mark.skipif(bool(simulated.missing()), reason=simulated.missing())
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

TIMELINE: dict[str, Any] = {
    "interval_seconds": 0.5,
    "seconds": [0.5 * i for i in range(12)],
    "live": [i << 28 for i in range(12)],
    "reserved": [12 << 28] * 12,
    "categories": {
        "parameter": [min(i, 4) << 28 for i in range(12)],
        "activation": [max(i - 4, 0) << 28 for i in range(12)],
    },
    "phase": [0, 1, 1, 2] * 3,
    "phases": ["", "forward", "</script><b>&"],
    "steps": [[2.0, 1], [4.0, 2]],
}
MAP = {
    "page_bytes": 4 << 20,
    "cell_pages": 1,
    "arenas": [
        {
            "kind": "large",
            "stream": 0,
            "bytes": 24 << 20,
            "live": 10 << 20,
            "full": 2,
            "partly": 1,
            "idle": 3,
            "cells": [100, 100, 50, 0, address_map.GAP, 0, 0],
        }
    ],
    "arenas_left_out": 0,
    "bytes_left_out": 0,
    "ready": 0,
}
WHOLE = {**DATA, "timeline": TIMELINE, "map": MAP}


# --- in the browser --------------------------------------------------------------------------
# Moves the pointer over the timeline, looks closer and back, and tells what came of it.
POINTER = """
<script>
const svg = document.querySelector(".plot svg"), frame = svg.getBoundingClientRect();
const at = (kind, part) => svg.dispatchEvent(new PointerEvent(kind, {bubbles: true,
  pointerId: 1, clientX: frame.left + frame.width * part, clientY: frame.top + 40}));
svg.setPointerCapture = () => {};
at("pointermove", 0.3);
const first = document.querySelector(".tip").textContent;
at("pointerdown", 0.4); at("pointermove", 0.6); at("pointerup", 0.6);
const closer = svg.viewBox.baseVal.width;
svg.dispatchEvent(new MouseEvent("dblclick"));
at("pointermove", 0.99);
const last = document.querySelector(".tip").textContent;
const wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.dataset.told = JSON.stringify([first, closer, svg.viewBox.baseVal.width,
  last, wide]);
console.error("the end of the test");
</script></body>"""


def in_browser(path: Path) -> tuple[str, list[str]]:
    """The page's document after its scripts, and what they said on the console."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={path.parent / 'profile'}",
            "--enable-logging=stderr",
            "--window-size=1100,900",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_in_a_browser(tmp_path: Path) -> None:
    """No error on the console, which is seen to be listened to; the pointer tells."""
    path = tmp_path / "r.html"
    path.write_text(page(WHOLE).replace("</body>", POINTER))
    document, console = in_browser(path)
    assert len(console) == 1 and "the end of the test" in console[0], console
    told = document.partition('data-told="')[2].partition('"')[0]
    first, closer, whole, last, wide = json.loads(html.unescape(told))
    assert first.startswith("1.50 s, </script><b>&") and "768 MiB" in first
    assert 150 < closer < 250 and whole == 960
    assert "step 2" in last and "activation1.75 GiB" in last
    assert wide, "the page is wider than its window"


# --- without --------------------------------------------------------------------------------
class _Tags(html.parser.HTMLParser):
    """Every tag is closed, in order; nothing is fetched."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert name not in ("src", "onload", "onclick"), (tag, name)
            assert name != "href" or value == "data:,", (tag, value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_pages_are_whole(tmp_path: Path) -> None:
    text = page(WHOLE)
    assert {"svg", "script", "table", "style"} <= _Tags(text).seen
    outside = text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace(
        '"http://www.w3.org/2000/svg"', ""
    )
    assert "http" not in outside and "@import" not in outside and "url(" not in outside
    for words in ("3 GiB", "backward", "3 MiB a step", "2 blocks were not counted"):
        assert words in text, words
    refused = {
        **WHOLE["peak"],
        "requested": 5 << 20,
        "remedies": [{"what": "half the <batch>", "bytes": 7 << 20}],
    }
    more = page({**WHOLE, "out_of_memory": refused})
    assert _Tags(more).seen and "<b>5 MiB</b> were refused" in more
    assert "half the &lt;batch&gt;" in more and "&lt;batch" not in text
    short = compact(WHOLE)
    assert "script" not in _Tags(short).seen and "<b>&" not in short
    for data in (DATA, {**WHOLE, "steps": 0, "phases": [], "growth": [], "cap": 2 << 30}):
        assert "peak" in page(data) and _Tags(compact(data)).seen
    Report(WHOLE).save(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]
    Report(WHOLE).save(tmp_path / "r.json")
    assert reporting.load(tmp_path / "r.json").data == WHOLE
    assert len((tmp_path / "r.json").read_text().splitlines()) < 200


def test_drawings() -> None:
    drawn = timeline_svg(TIMELINE, cap=3 << 30)
    assert drawn.count('data-category="') == 2
    assert "cap 3 GiB" in drawn and "peak 2.75 GiB" in drawn and "step 2" in drawn
    assert "cap" not in timeline_svg(TIMELINE, cap=30 << 30)
    nothing = {**TIMELINE, "seconds": [], "live": [], "reserved": [], "phase": []}
    assert "Nothing has been counted" in timeline_svg(nothing)
    assert map_svg(MAP).count("<rect") == 7  # one more where it is partly used
    assert "2 full, 1 partly used, 3 idle pages of 4 MiB" in map_svg(MAP)
    assert "No pages" in map_svg({**MAP, "arenas": []})
    for most in (1, 700, 5000, 3 << 20, 1000 << 20, 140 << 30, (1 << 40) + 1):
        ticks = byte_ticks(most)
        assert ticks[0] == 0 and 2 <= len(ticks) <= 7 and ticks[-1] <= most, ticks
    for span in (0.0003, 0.7, 12.0, 86400.0):
        ticks_s = second_ticks(3.0, 3.0 + span)
        assert 3 <= len(ticks_s) <= 9 and ticks_s[0] >= 3.0, ticks_s
    assert second_ticks(1.0, 1.0) == []


def test_narrowed() -> None:
    narrow = timelines.narrowed(TIMELINE, 5)
    assert narrow["live"] == [i << 28 for i in (2, 5, 8, 11)]
    assert narrow["categories"]["parameter"] == [2 << 28, 4 << 28, 4 << 28, 4 << 28]
    assert narrow["seconds"] == [0.0, 1.5, 3.0, 4.5] and narrow["interval_seconds"] == 1.5
    assert timelines.narrowed(TIMELINE, 12) is TIMELINE


def test_squeezed() -> None:
    """Idle time is short in a picture, and no moment is lost."""
    live = [1, 5, *[2] * 500, 7, 1]
    flat = {
        **TIMELINE,
        "seconds": [0.5 * i for i in range(len(live))],
        "live": live,
        "reserved": [8] * len(live),
        "phase": [0] * len(live),
        "categories": {"other": live},
    }
    short = timelines.squeezed(flat)
    assert short["live"] == [1, 5, *[2] * 10, 7, 1] == short["categories"]["other"]
    evenly = [1.0 + 25.0 * i for i in range(11)]
    assert short["seconds"] == [0.0, 0.5, *evenly, 251.5]
    assert short["breaks"] == [[1.0, 251.0]]
    assert "nothing changed for 4 min 10 s" in timeline_svg(flat)
    same = timelines.squeezed(TIMELINE)
    assert same == {**TIMELINE, "breaks": []}
    assert timelines.squeezed({**flat, "phase": [0] * 250 + [1] * 254})["breaks"] == [
        [1.0, 125.0],
        [125.0, 251.0],
    ]


def test_maps_add_up() -> None:
    """Against pages counted one by one; and bounded, however many pages there are."""
    page_bytes = 4096

    def segment(address: int, blocks: list[tuple[int, str]], **more: Any) -> Any:
        listed, at = [], address
        for size, state in blocks:
            listed.append({"address": at, "size": size, "state": state})
            at += size
        live = sum(size for size, state in blocks if state != "free")
        return {
            "address": address,
            "size": at - address,
            "allocated": live,
            "page_bytes": page_bytes,
            "stream": 0,
            "small": False,
            "pool": (0, 0),
            "blocks": listed,
            **more,
        }

    runs = [
        segment(1 << 20, [(6144, "live"), (6144, "free"), (4096, "pending")]),
        segment(2 << 20, [(512, "live"), (7680, "free")]),
        segment(3 << 20, [(4096, "free")], stream=77, small=True),
    ]
    found = address_map.of_segments(runs)
    large, small = found["arenas"]
    assert large["cells"] == [100, 50, 0, 100, address_map.GAP, 12, 0]
    assert (large["full"], large["partly"], large["idle"]) == (2, 2, 2)
    assert large["bytes"] == 6 * page_bytes and large["live"] == 6144 + 4096 + 512
    assert small["kind"] == "small" and small["stream"] == 1 and small["idle"] == 1
    away = segment(5 << 20, [(8192, "live"), (8192, "free"), (8192, "live")])
    away["elsewhere"] = [((5 << 20) + 4096, 4096), ((5 << 20) + 16384, 8192)]
    found = address_map.of_segments([away])["arenas"][0]
    host = address_map.HOST
    assert found["cells"] == [100, host, 0, 0, host, host]
    assert [found[name] for name in ("full", "idle", "host")] == [1, 2, 3]
    drawn = map_svg(address_map.of_segments([away]))
    assert "2 idle, 3 on the host; pages of" in drawn
    many = [
        segment(i << 24, [(page_bytes * 3, "live"), (page_bytes * 2 + 512, "free")])
        for i in range(4000)
    ]
    found = address_map.of_segments(many)
    assert len(found["arenas"][0]["cells"]) <= 2 * address_map.CELLS
    assert found["arenas"][0]["full"] == 12000
    assert address_map.of_segments([])["arenas"] == []


@with_torch
def test_a_long_run_is_a_small_report(tmp_path: Path) -> None:
    """S19: a million events, more phases than are kept;
    the report's numbers agree with each other, and the timeline with torch's."""
    found = simulated.said(
        simulated.run(
            """
import os, torcharena
torcharena.enable()
import torcharena._core as core
kept = []
for i in range(1100):
    with torcharena.phase(f"phase {i}"):
        kept.append(torch.empty(1000 * (1 + i % 7), device="cuda"))
early = torcharena.report().data["recorder_bytes"]
for i in range(500_000):
    torch.empty(1 << (10 + i % 12), device="cuda", dtype=torch.uint8)
model = torch.nn.Linear(64, 64).cuda()
rare = torch.nn.Embedding(10, 64, sparse=True).cuda()
both = torch.nn.ModuleList([model, rare])
optimizer = torch.optim.SGD(both.parameters(), 1e-3)
gradients = []  # at the end of each backward, no step but the first being the highest
with torcharena.track(both, optimizer):
    for i in range(4):
        words = torch.zeros(8, dtype=torch.long, device="cuda")
        (model(torch.zeros(8, 64, device="cuda")) + rare(words)).sum().backward()
        gradients.append(sum(b[1] for b in core.usage_blocks(0, 2) if b[4] == 2))
        optimizer.step()
        optimizer.zero_grad()
dense = model.weight.nbytes + model.bias.nbytes
assert gradients[0] == dense, gradients  # told; after that what backward left is taken for them
assert all(dense <= g <= dense + 4096 for g in gradients), gradients  # the sparse one's, too
big = torch.empty(1 << 26, device="cuda", dtype=torch.uint8)
report = torcharena.report()
line = torcharena.timeline()
for name in ("json", "html"):
    report.save(os.path.join(os.environ["OUT"], f"r.{name}"))
short = report._repr_html_()
assert core.usage_check() is None and core.check() is None
now = {name: row[-1] for name, row in line.data["categories"].items()}
assert repr(line).startswith("<torcharena.Timeline: ") and "<svg" in line._repr_html_()
try:
    torcharena.timeline(9)
except ValueError as error:
    assert "device=9" in str(error)
else:
    raise AssertionError("device 9 was taken")
print({"early": early, "bytes": report.data["recorder_bytes"], "short": len(short),
       "high": max(line.data["live"]), "peak": report.data["peak"]["bytes"], "now": now,
       "held": report.data["now"]["categories"], "reserved": line.data["reserved"][-1],
       "stats": core.stats(0)["reserved"][0], "samples": len(line),
       "steps": [step for _, step in line.data["steps"]],
       "map": sum(row["bytes"] for row in report.data["map"]["arenas"]),
       "live": sum(row["live"] for row in report.data["map"]["arenas"]),
       "ready": report.data["map"]["ready"], "blocks": torch.cuda.memory_allocated()})
""",
            values=False,
            OUT=str(tmp_path),
        )
    )
    print(f"the recorder takes {found['bytes']:,} bytes of host memory")
    # Besides what is fixed it goes with the blocks that live, not with the events.
    assert found["early"] <= found["bytes"] < found["early"] + (1 << 15) < 1 << 20
    for name in ("r.json", "r.html"):
        assert (tmp_path / name).stat().st_size < 1 << 20, name
    assert found["short"] < 200_000
    assert found["high"] == found["peak"]
    assert {k: v for k, v in found["now"].items() if v} == found["held"]
    assert found["reserved"] == found["stats"] == found["map"] + found["ready"]
    assert found["live"] == found["blocks"]
    assert 1 < found["samples"] <= 2048
    assert found["steps"][-1] == 4
    data = reporting.load(tmp_path / "r.json").data
    for i, live in enumerate(data["timeline"]["live"]):
        assert sum(row[i] for row in data["timeline"]["categories"].values()) == live


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.png"
    figure = timelines.Timeline(copy.deepcopy(TIMELINE)).plot(path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["parameter", "activation", "reserved"]
    nothing: dict[str, list[Any]] = {
        name: [] for name in ("seconds", "live", "reserved", "phase", "steps")
    }
    timelines.Timeline({**TIMELINE, **nothing, "categories": {}}).plot()
