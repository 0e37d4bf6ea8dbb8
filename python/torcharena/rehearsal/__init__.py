"""Will it fit? Runs real PyTorch programs on simulated GPUs, and says.

A program is run by child processes that preload ``lib/libcuda.so.1``, which stands for CUDA
and its libraries: every allocation happens, no kernel runs. docs/rehearsal.md is the manual.

    cards       the catalogue of GPUs             launch      starting, and what comes back
    child       what runs inside the program      verdict     fits, or does not
    values      which values are true             rehearsing  the runs that a question needs
    places      what holds the peak               report      as text and JSON
    command     `torcharena rehearse`             api         from Python"""

from __future__ import annotations

from collections.abc import Sequence

from .launch import environment, library, machine

__all__ = ["environment", "library", "machine", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """``torcharena rehearse``; returns the exit code."""
    from . import command

    return command.main(argv)
