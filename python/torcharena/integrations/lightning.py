"""A callback for Lightning, old name or new."""

from __future__ import annotations

import importlib.util
from typing import Any

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

from ..loading import log
from ..reports import phases, tracking
from ..reports.reporting import report
from ..state import enabled
from .figures import epoch_line, figures

__all__ = ["ArenaCallback"]


class ArenaCallback(Callback):
    """Phases and categories of a Lightning run:

        Trainer(..., callbacks=[ArenaCallback(report="memory.json")])

    A training step is forward up to its backward; validation and tests are evaluation. Logs
    ``gpu_peak_GiB`` where the Trainer has a logger, a line at level INFO to the logger
    ``torcharena`` at each epoch's end, and writes the report, if named, at the end of the
    fit. Does nothing where the arena is not enabled."""

    def __init__(self, report: str | None = None) -> None:
        super().__init__()
        self.path = report
        self._tracking: tracking.Tracking | None = None
        self._span: bytes | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._end()  # of a fit that an error ended
        if enabled():
            self._tracking = tracking.track(pl_module, trainer.optimizers)

    # Lightning calls training_step, not the module: track's own hooks see no forward there.
    def on_train_batch_start(self, *_: Any) -> None:
        self._is_in("forward")

    def on_before_zero_grad(self, *_: Any) -> None:
        self._is_in(None)

    def on_before_backward(self, *_: Any) -> None:
        self._is_in(None)

    def on_train_batch_end(self, *_: Any) -> None:
        self._is_in(None)

    def on_validation_batch_start(self, *_: Any) -> None:
        self._is_in("evaluation")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._is_in(None)

    def on_test_batch_start(self, *_: Any) -> None:
        self._is_in("evaluation")

    def on_test_batch_end(self, *_: Any) -> None:
        self._is_in(None)

    def on_predict_batch_start(self, *_: Any) -> None:
        self._is_in("evaluation")

    def on_predict_batch_end(self, *_: Any) -> None:
        self._is_in(None)

    def on_exception(self, *_: Any) -> None:
        self._is_in(None)

    def _is_in(self, name: str | None) -> None:
        phases.leave(self._span)
        self._span = phases.enter_anew(name) if name and enabled() else None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        found = figures()
        if not found:
            return
        log.info("epoch %d: %s", trainer.current_epoch, epoch_line())
        if trainer.logger is not None:
            peak = found["peak_reserved_bytes"] / (1 << 30)
            pl_module.log("gpu_peak_GiB", peak, rank_zero_only=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._tracking is None:
            return
        if self.path is not None and trainer.is_global_zero:
            report().save(self.path)
        self._end()

    def _end(self) -> None:
        if self._tracking is not None:
            self._tracking.stop()
            self._tracking = None
