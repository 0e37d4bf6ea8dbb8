"""A callback for Lightning, old name or new."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

from ..loading import log, warn
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
    fit, by an error too; of ranks other than the first only where an error ends it there, as
    ``memory-rank3.json``. Does nothing where the arena is not enabled."""

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

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        """The report of a fit that an error ends: where memory ran out, of that moment."""
        self._is_in(None)
        try:
            if self._tracking is not None:
                self._write(trainer, by_error=True)
        except Exception as error:  # the user's error goes on, whatever ours is
            warn(f"torcharena: the report failed: {error}", once=False, stacklevel=4)
        finally:
            self._end()

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
        self._write(trainer, by_error=False)
        self._end()

    def _write(self, trainer: Any, by_error: bool) -> None:
        if self.path is None or not (trainer.is_global_zero or by_error):
            return
        path = Path(self.path)
        if not trainer.is_global_zero:
            path = path.with_name(f"{path.stem}-rank{trainer.global_rank}{path.suffix}")
        report().save(path)

    def _end(self) -> None:
        if self._tracking is not None:
            self._tracking.stop()
            self._tracking = None
