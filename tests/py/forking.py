"""Python programs that use torch, each in a process of its own that need not import it.

Importing torch takes three seconds of a processor, most of what a small test takes. So a
process that has only done that waits for programs and forks for each: the child runs it as
``__main__``, with the options and the environment that were asked for, and ends as any Python
process does. A test about what happens while torch is imported wants `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
WAITING = 2  # processes that are kept, of the environments used most
SERVER = f"""
import sys
import torch
sys.path.insert(0, {HERE!r})
import forking
sys.path.remove({HERE!r})
_code = forking.serve(globals())
del forking, sys, torch
exec(_code, globals())
"""


class Server:
    def __init__(self, options: tuple[str, ...], env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.socket, self.runs = ours, 0
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", SERVER, str(theirs.fileno())],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def run(self, request: dict[str, Any], timeout: float) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)."""
        self.socket.settimeout(timeout)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                message = json.dumps(request).encode() + b"\n"
                socket.send_fds(self.socket, [b"!"], [out.fileno(), err.fileno()])
                self.socket.sendall(message)
                answer = self.socket.recv(64)
            except TimeoutError:
                self.end()
                raise subprocess.TimeoutExpired(request["argv"], timeout) from None
            out.seek(0)
            err.seek(0)
            texts = (
                out.read().decode(errors="replace"),
                err.read().decode(errors="replace"),
            )
        if not answer:
            self.said.seek(0)
            raise RuntimeError(f"the process that forks has ended: {self.said.read()!r}")
        return int(answer), *texts

    def end(self) -> None:
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.said.close()


_servers: dict[tuple[Any, ...], Server] = {}


@atexit.register
def end_all() -> None:
    """Those of this process."""
    for key in [key for key in _servers if key[0] == os.getpid()]:
        _servers.pop(key).end()


def run(
    *arguments: str,
    env: dict[str, str],
    options: tuple[str, ...] = (),
    cwd: str | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of Python with these ``options`` and ``arguments``: a script and
    its own, or ``-c`` and code."""
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    key = (os.getpid(), options, tuple(sorted(env.items())))
    server = _servers.pop(key, None)
    if server is not None and server.process.poll() is not None:
        server.end()
        server = None
    if server is None:
        while len(_servers) >= WAITING:
            _servers.pop(min(_servers, key=lambda one: _servers[one].runs)).end()
        server = Server(options, env)
    request = {"argv": arguments, "cwd": cwd or os.getcwd()}
    code, out, err = server.run(request, timeout)
    server.runs += 1
    _servers[key] = server
    return subprocess.CompletedProcess(arguments, code, out, err)


def _line(connection: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = connection.recv(1 << 16)
        if not more:
            os._exit(0)
        found += more
    return found


def serve(names: dict[str, Any]) -> Any:
    """In the process that forks: answers until nobody asks any more. Returns in each child,
    with the code of its program, whose names are to be ``names``."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        begun, fds, _, _ = socket.recv_fds(connection, 1, 2)
        if not begun:
            os._exit(0)
        request = json.loads(_line(connection))
        child = os.fork()
        if child == 0:
            break
        for fd in fds:
            os.close(fd)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(str(status).encode())
    connection.close()
    for fd, standard in zip(fds, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(request["cwd"])
    program, *rest = request["argv"]
    if program == "-c":
        text, *rest = rest
        sys.argv, file = ["-c", *rest], "<string>"
    else:
        sys.argv, file = [program, *rest], program
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        names["__file__"] = os.path.abspath(program)
        text = Path(program).read_text()
    return compile(text, file, "exec")
