"""What a notebook shows of `find_batch_size`: the text, and the curve."""

from __future__ import annotations

import pytest
from torcharena.rehearsal import api, cards, launch, report, verdict

GIB = 1 << 30


def found() -> api.BatchSizes:
    """Half a GiB a sample on 24 GiB: 40 fit, 64 ran out."""
    card = cards.find("24GiB")
    sizes = api.BatchSizes(40, "24GiB")
    for size in (8, 40, 64):
        run = launch.Run("arena", card, None, exit_code=int(size == 64))
        device = {"device": 0, "ooms": run.exit_code, "retries": 0,
                  "peak_requested": size * GIB // 2, "peak_reserved": size * GIB // 2 + GIB}  # fmt: skip
        run.processes = [{"rank": None, "devices": [device], "oom": None}]
        need = None if run.exit_code else run.peak_reserved
        outcome = report.Outcome(run, verdict.judge(run, need))
        sizes.reports[size] = report.Report([f"train({size})"], card, outcomes=[outcome])
    return sizes


def test_a_cells_value_is_the_text() -> None:
    class Printer:
        text = staticmethod(lambda said: shown.append(said))

    shown: list[str] = []
    sizes = found()
    sizes._repr_pretty_(Printer(), False)
    assert shown == [str(sizes)] and "does not fit" in shown[0]
    assert repr(sizes) == "<BatchSizes: 40 on 24GiB>"
    assert repr(sizes.reports[8]) == "<Report: train(8) on custom: fits>"


def test_the_curve_shows_the_room_and_what_ran_out() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    sizes = found()
    axes = sizes.plot()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["asked for"].get_ydata()) == [4.0, 20.0]
    assert list(lines["reserved (arena)"].get_ydata()) == [5.0, 21.0]
    assert list(lines["ran out"].get_xdata()) == [64]
    room = sizes.reports[8].card.room
    doubt = sizes.reports[40].outcomes[0].verdict.unsure
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert band.y1 == pytest.approx(room / GIB)
    assert band.y0 == pytest.approx((room - doubt) / GIB)
