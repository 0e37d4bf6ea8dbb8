"""Processes that are all alive at once and take turns: what drifts or disturbs one disturbs
all. The parent asks over a pipe, a line of JSON each way."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

from .building import ROOT
from .contenders import environment

__all__ = ["Failed", "Pipe", "Player", "close_all", "serve"]


class Failed(Exception):
    """A player ended, said that it failed, or did not answer."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


class Player:
    """A child process. Made at once, greeted by `hello`, so that several start together."""

    def __init__(
        self, name: str, module: str, arguments: list[str], label: str | None = None
    ) -> None:
        """``name``: a contender. The child runs ``python -m module arguments``. ``label``
        tells players of one contender apart."""
        self.name = label or name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=environment(name),
        )
        self._rest = b""

    def hello(self, timeout: float = 180) -> dict[str, Any]:
        """What the child says when it is ready."""
        return self._answer(timeout)

    def ask(self, timeout: float = 120, **what: Any) -> dict[str, Any]:
        """The child's answer. Raises `Failed`."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(what).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise Failed(self.name, self._last_words()) from None
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        until = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise Failed(self.name, f"no answer in {timeout:.0f} s")
            got = os.read(pipe.fileno(), 1 << 20)
            if not got:
                raise Failed(self.name, self._last_words())
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise Failed(self.name, found["failed"])
        return found

    def _last_words(self) -> str:
        try:
            code: int | str = self._process.wait(10)
        except subprocess.TimeoutExpired:
            code = "none"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"exit code {code}: {' '.join(lines[-2:])[-500:]}"

    def close(self) -> None:
        """Ends the child; it may be gone already."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def close_all(players: list[Player]) -> None:
    for player in players:
        player.close()


class Pipe:
    """The child's side. What programs print goes to standard error."""

    def __init__(self) -> None:
        self._out: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, what: dict[str, Any]) -> None:
        print(json.dumps(what), file=self._out, flush=True)

    def hear(self) -> dict[str, Any] | None:
        """What the parent asks; None when it asks no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None


def serve(
    hello: dict[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Answers until the parent closes the pipe. Ends the process without teardown: some
    plug-ins do not survive one."""
    pipe = Pipe()
    pipe.say(hello)
    while (asked := pipe.hear()) is not None:
        try:
            found = answer(asked)
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
        pipe.say(found)
    os._exit(0)
