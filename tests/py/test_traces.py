"""Reading traces, and the replay of every recorded one against the figures to be reached."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from torcharena import traces

RECORDED = Path(__file__).resolve().parent.parent / "traces"
# The highest that peak reserved over peak requested may be with no cap.
RATIO = {
    "bert_amp": 1.05,
    "gpt2_varlen": 1.05,
    "llama_lora": 1.05,
    "moe": 1.05,
    "multistream": 1.10,
    "resnet50_multiscale": 1.05,
}
# Of the parsed trace: lines, and GiB at the peak.
EVENTS = {
    "bert_amp": (123181, 7.54),
    "gpt2_varlen": (165103, 24.35),
    "llama_lora": (160894, 5.69),
    "moe": (157445, 12.05),
    "multistream": (26661, None),
    "resnet50_multiscale": (38279, 9.51),
}


def recorded(name: str) -> Path:
    return RECORDED / f"{name}.trace.xz"


def test_every_recorded_trace_is_tested() -> None:
    assert sorted(RATIO) == sorted(
        p.name.split(".")[0] for p in RECORDED.glob("*.trace.xz")
    )


@pytest.mark.parametrize("name", sorted(RATIO))
def test_no_cap_wastes_little(name: str) -> None:
    (figures,) = traces.replay(recorded(name))
    print(json.dumps(figures))
    events, gib = EVENTS[name]
    assert figures["events"] == events
    if gib is not None:
        assert round(figures["peak_requested"] / 2**30, 2) == gib
    assert not figures["oom"]
    assert 1.0 <= figures["ratio"] <= RATIO[name]
    assert figures["ratio"] == figures["peak_reserved"] / figures["peak_requested"]


@pytest.mark.parametrize("name", sorted(RATIO))
def test_a_cap_one_percent_above_the_peak_is_enough(name: str) -> None:
    (figures,) = traces.replay(recorded(name), limit_ratio=1.01)
    print(json.dumps(figures))
    assert not figures["oom"], figures["oom_text"]
    assert figures["events"] == EVENTS[name][0]
    assert figures["peak_reserved"] <= 1.01 * figures["peak_requested"]


def test_the_keys_of_a_line_of_json() -> None:
    figures = next(traces.replay(str(recorded("multistream"))))
    assert tuple(figures)[: len(traces.KEYS)] == traces.KEYS
    assert figures["trace"] == str(recorded("multistream"))
    assert figures["steps"] == 12
    assert set(figures["step_median"]) == set(figures["step_max"])
    assert figures["driver_us"] > 0
    assert figures["driver_calls"] > 0
    assert figures["seconds"] > 0
    json.dumps(figures)


def test_a_cap_below_the_peak_is_out_of_memory() -> None:
    (figures,) = traces.replay(recorded("multistream"), limit=1 << 30)
    assert figures["oom"] is True
    assert figures["events"] == figures["oom_event"] - 1
    assert "CUDA out of memory. Tried to allocate" in figures["oom_text"]
    assert figures["peak_reserved"] <= 1 << 30


def test_the_lesser_of_two_limits_holds() -> None:
    (figures,) = traces.replay(recorded("multistream"), limit=1 << 40, limit_ratio=0.5)
    assert figures["oom"] is True
    (figures,) = traces.replay(recorded("multistream"), limit=0, limit_ratio=2.0)
    assert figures["oom"] is True
    assert figures["peak_reserved"] == 0


@pytest.mark.parametrize(
    "options", [{"limit": -1}, {"limit_ratio": 0.0}, {"limit_ratio": float("nan")}]
)
def test_options_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        list(traces.replay([], **options))  # type: ignore[arg-type]


TEXT = b"# torcharena trace 1 page 2097152\na 1 4194304 0\nm step\nf 1\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain.trace", TEXT),
        ("x.trace.xz", lzma.compress(TEXT)),
        ("x.trace.gz", gzip.compress(TEXT)),
        ("misnamed.trace", lzma.compress(TEXT)),
    ],
    # Not the bytes: gzip's hold the time, and two workers must collect the same names.
    ids=["plain", "xz", "gz", "misnamed"],
)
def test_reading(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert traces.read(tmp_path / name) == TEXT
    (figures,) = traces.replay(tmp_path / name)
    assert figures["events"] == 3
    assert figures["peak_reserved"] == 4 << 20


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
def test_a_damaged_file(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    file = tmp_path / "x.trace.xz"
    file.write_bytes(pack(TEXT * 100)[:-9])
    with pytest.raises(traces.TraceError, match=r"x\.trace\.xz: damaged or cut short"):
        traces.read(file)


def test_a_malformed_trace_names_file_line_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "bad.trace"
    file.write_text("a 1 5 0\nf 1\nf 1\n")
    with pytest.raises(traces.TraceError) as caught:
        list(traces.replay(file))
    assert str(caught.value) == f"{file}:3: id 1 was freed before"
    assert (caught.value.line, caught.value.reason) == (3, "id 1 was freed before")
    file.write_bytes(b"\x7fELF\x00\x01\n")
    with pytest.raises(traces.TraceError, match="not a line of a trace"):
        list(traces.replay(file))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(traces.replay(tmp_path / "none.trace"))


def test_driver_calls_that_do_nothing() -> None:
    (figures,) = traces.replay(recorded("resnet50_multiscale"), null_driver=True)
    assert not figures["oom"]
    assert figures["events_per_second"] > 0
