"""Tests of a program's CUDA memory, without a GPU: a plugin for pytest.

In ``conftest.py`` at the root of your tests::

    pytest_plugins = ["torcharena.testing"]

Two ways to use it. A test that asks what a function would take, each call a process of its
own::

    def test_fits_on_a_small_card(rehearse):
        report = rehearse(train_one_epoch, 32, gpu="16GiB")
        assert report.fits
        assert report.peak_requested < 12 * 2**30

Or the whole session on a simulated GPU: ``pytest --simulated-gpu 16GiB``. Then tests that need
CUDA run on any machine, and `cuda_memory` says what they took::

    def test_frees_its_cache(cuda_memory):
        run()
        assert cuda_memory.peak < 512 * 2**20
        assert cuda_memory.left == 0

Kernels compute nothing there beyond integers and small floats: test memory, not results."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .selftest import unable

if TYPE_CHECKING:
    from .rehearsal.report import Report

__all__ = ["CudaMemory", "cuda_memory", "rehearse"]

_INSIDE = "TORCHARENA_REHEARSAL_PYTEST"


class CudaMemory:
    """Bytes that torch's allocator has handed out on the current device since the test
    began: ``peak`` at the highest, ``left`` now; negative where it gave back more."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self.restart()

    def restart(self) -> None:
        """Counts anew from here."""
        self._cuda.synchronize()
        self._cuda.reset_peak_memory_stats()
        self._before = self._requested("current")

    def _requested(self, kind: str) -> int:
        stats = self._cuda.memory_stats()
        return int(stats.get(f"requested_bytes.all.{kind}", 0))

    @property
    def peak(self) -> int:
        return self._requested("peak") - self._before

    @property
    def left(self) -> int:
        return self._requested("current") - self._before

    def __repr__(self) -> str:
        return f"CudaMemory(peak={self.peak}, left={self.left})"


@pytest.fixture
def rehearse() -> Callable[..., Report]:
    """`torcharena.rehearse`, under the arena and torch's allocators unless ``allocator`` says
    which; the test is skipped, with the reason, where nothing can be rehearsed."""
    reason = unable()
    if reason:
        pytest.skip(reason)
    from .rehearsal import api

    return api.rehearse


@pytest.fixture
def cuda_memory() -> Iterator[CudaMemory]:
    """What the test takes, on the simulated GPU or on a real one; skipped without either."""
    import gc

    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: run pytest with --simulated-gpu 16GiB")
    torch.cuda.init()
    gc.collect()
    yield CudaMemory()


# --- the whole session on a simulated GPU --------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torcharena")
    group.addoption(
        "--simulated-gpu",
        metavar="CARD",
        help="run the tests on a simulated GPU: a card such as t4, or a size such as 16GiB",
    )
    group.addoption(
        "--simulated-gpus", type=int, default=1, metavar="N", help="how many (1)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Runs pytest again in a process that has the simulated GPU, since it must be there before
    torch is."""
    gpu = config.getoption("--simulated-gpu")
    if not gpu or os.environ.get(_INSIDE):
        return None
    from .rehearsal import cards, launch

    try:
        card = cards.find(gpu)
    except ValueError as error:
        raise pytest.UsageError(f"--simulated-gpu: {error}") from None
    reason = unable()
    if reason:
        raise pytest.UsageError(f"--simulated-gpu: {reason}")
    with tempfile.TemporaryDirectory(prefix="torcharena-") as folder:
        env = launch.watched_environment(
            card, folder=folder, gpus=config.getoption("--simulated-gpus")
        )
        env[_INSIDE] = "1"
        arguments = list(config.invocation_params.args)
        command = [sys.executable, "-m", "pytest", *map(str, arguments)]
        return subprocess.run(
            command, env=env, cwd=Path(config.invocation_params.dir), check=False
        ).returncode


def pytest_report_header(config: pytest.Config) -> str | None:
    if not os.environ.get(_INSIDE):
        return None
    return f"torcharena: on a simulated GPU, {config.getoption('--simulated-gpu')}"
