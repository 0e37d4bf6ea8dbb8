"""Starts processes that share a GPU, and gives them orders; see shared_cases.py."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATIENCE = 120  # seconds for one answer; torch alone takes ten on a busy machine


class Process:
    """One process. ``hello`` is what it said first: its pid, or the error."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "shared_cases.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )
        self.hello: dict[str, Any] = {}

    def begin(self) -> dict[str, Any]:
        """Waits until it has enabled the arena."""
        self.hello = self.hear()
        return self.hello

    def tell(self, order: str) -> None:
        """Gives an order, and does not wait."""
        assert self._child.stdin is not None
        self._child.stdin.write(order + "\n")
        self._child.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to the last order."""
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], PATIENCE)
        assert ready, f"no answer in {PATIENCE} s"
        line = self._child.stdout.readline()
        assert line, f"the process ended with {self._child.wait()}\n{self.said()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, order: str) -> dict[str, Any]:
        """Gives an order and waits for the answer."""
        self.tell(order)
        return self.hear()

    def grow(self, mib: int) -> dict[str, Any]:
        """Asks for so many MiB, which must be had."""
        found = self.ask(f"grow {mib}")
        assert "error" not in found, found["error"]
        return found

    def refused(self, mib: int) -> str:
        """Asks for so many MiB, which must be refused; the error's text."""
        found = self.ask(f"grow {mib}")
        assert "error" in found, found
        text: str = found["error"]
        return text

    def kill(self) -> None:
        """As kill -9 does."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def said(self) -> str:
        """Standard error, after the end of its orders and so of the process."""
        assert self._child.stdin is not None and self._child.stderr is not None
        self._child.stdin.close()
        return self._child.stderr.read()

    def end(self) -> int:
        """The exit code, after the end of its orders."""
        said = self.said()
        assert said == "", said
        return self._child.wait(PATIENCE)


class Shared:
    """A GPU for several processes: its ledger and the administrator's file in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.ledger, self.file = folder / "run", folder / "limits.toml"
        self.ledger.mkdir()
        self.ledger.chmod(0o3770)
        names = ("TORCHARENA_TEST_LIMITS", "TORCHARENA_SIM_LIMITS")
        self.environment = environment | dict.fromkeys(names, str(self.file))
        self.processes: list[Process] = []

    def write(self, text: str) -> None:
        """Another administrator's file, as an editor puts it there."""
        new = self.file.with_suffix(".new")
        new.write_text(f'ledger = "{self.ledger}"\n{text}\n')
        new.chmod(0o644)
        new.rename(self.file)

    def start(self, count: int = 1, **more: str) -> list[Process]:
        """So many processes, all ready."""
        started = [Process(self.environment | more) for _ in range(count)]
        self.processes += started
        for one in started:
            one.begin()
        return started

    def top(self, *options: str) -> str:
        """What `torcharena top` prints in the same environment."""
        code = (
            "import os, sys\n"
            "from torcharena import cli; from torcharena.caps import admin_file, trust\n"
            "admin_file.PATH = os.environ['TORCHARENA_TEST_LIMITS']\n"
            "trust.TRUSTED = {0, os.getuid()}\n"
            "sys.exit(cli.main(['top', *sys.argv[1:]]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *options],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gpu(self) -> dict[str, Any]:
        """The GPU as `top --json` has it."""
        found = json.loads(self.top("--json").splitlines()[-1])
        gpus: list[dict[str, Any]] = found["gpus"]
        return next(gpu for gpu in gpus if gpu["processes"] or len(gpus) == 1)


@contextmanager
def shared(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Shared]:
    """The folder's GPU; at the end every process is gone."""
    made = Shared(folder, dict(os.environ if environment is None else environment))
    try:
        yield made
    finally:
        for one in made.processes:
            one.kill()
