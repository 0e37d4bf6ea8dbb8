"""A callback for transformers' Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..loading import log
from ..reports import tracking
from ..reports.reporting import report
from ..state import enabled
from .figures import epoch_line, figures

__all__ = ["ArenaCallback"]


class ArenaCallback(TrainerCallback):
    """Phases and categories of a Trainer's run, and its figures in the Trainer's logs:

        Trainer(..., callbacks=[ArenaCallback(report="memory.json")])

    Adds ``gpu_reserved_GiB`` and ``gpu_peak_GiB`` to the log history and to what callbacks
    after this one are given, a line at level INFO to
    the logger ``torcharena`` at each epoch's end, and writes the report, if named, at the end
    of training. Does nothing where the arena is not enabled."""

    def __init__(self, report: str | None = None) -> None:
        self.path = report
        self._tracking: tracking.Tracking | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        model = named.get("model")
        if self._tracking is not None:  # of a training that an error ended
            self._tracking.stop()
            self._tracking = None
        if enabled() and model is not None:
            self._tracking = tracking.track(model, named.get("optimizer"))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any
    ) -> None:
        found = figures()
        if logs is not None and found:
            ours = {
                "gpu_reserved_GiB": round(found["reserved_bytes"] / (1 << 30), 3),
                "gpu_peak_GiB": round(found["peak_reserved_bytes"] / (1 << 30), 3),
            }
            logs.update(ours)
            if state.log_history:  # it has a copy already
                state.log_history[-1].update(ours)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if enabled():
            log.info("epoch %.0f: %s", state.epoch, epoch_line())

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self._tracking is None:
            return
        if self.path is not None and state.is_world_process_zero:
            report().save(self.path)
        self._tracking.stop()
        self._tracking = None
