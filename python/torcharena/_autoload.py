"""The `torch.backends` entry point: `import torch` calls `load` at its end."""

from __future__ import annotations

import atexit
import os
import sys

from . import settings

__all__ = ["load"]


def load() -> None:
    """Enables the arena where TORCHARENA_ENABLE says so; otherwise does nothing but see to
    it that no setting is silently without effect. Raises where one cannot take effect."""
    if not any(variable.startswith(settings.PREFIX) for variable in os.environ):
        return
    try:
        wanted = settings.on()
    except ValueError as error:
        atexit.register(_say_refused, str(error))
        raise
    if wanted:
        from .installing import enable_from_environment

        try:
            enable_from_environment()
        except (ValueError, RuntimeError, ImportError) as error:
            # torch's own error, which comes last, names neither the reason nor the remedy.
            atexit.register(_say_refused, str(error))
            raise
        return
    if strangers := settings.unknown():
        from .loading import warn

        warn(f"torcharena: unknown setting {', '.join(strangers)}", stacklevel=4)
    if "TORCHARENA_ENABLE" not in os.environ:
        atexit.register(_say_unused)


def _say_refused(reason: str) -> None:
    """At exit, after any traceback: why the arena that was asked for is not there."""
    from .loading import say_refused
    from .state import enabled

    if not enabled():
        say_refused(reason)


def _say_unused() -> None:
    """At exit: CUDA was used, settings were there, and nobody enabled the arena."""
    from .loading import warn
    from .state import enabled

    torch = sys.modules.get("torch")
    given = [s.variable for s in settings.SETTINGS if s.variable in os.environ]
    if not given or enabled() or torch is None or not torch.cuda.is_initialized():
        return
    warn(
        f"torcharena: {', '.join(given)} had no effect: nothing enabled the arena "
        "(TORCHARENA_ENABLE=1, or torcharena.enable())"
    )
