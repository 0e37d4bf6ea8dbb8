"""Starts the ranks of one node: ``python -S spawning.py RANKS PORT STOP -- COMMAND...``.

What a launcher does, without one, for ``torcharena rehearse --ranks all``: COMMAND once for
each of RANKS, with the environment that says which. PORT 1: all ranks of the job are here,
and meet at a port of this machine that is free. Once a rank has failed the file STOP is made,
at which the others write what they have and end; the exit code is that of the first that
failed. Needs nothing but the standard library, so that it is there at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

_PATIENCE = 10.0  # seconds for the others to end, once one has failed


def main(arguments: list[str]) -> int:
    cut = arguments.index("--")
    count, port, stop = int(arguments[0]), arguments[1] == "1", arguments[2]
    command = arguments[cut + 1 :]
    common = dict(os.environ)
    common.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    if port:
        common["MASTER_PORT"] = str(_free_port())
    ranks = []
    for rank in range(count):
        said = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
        try:
            ranks.append(subprocess.Popen(command, env={**common, **said}))
        except OSError as error:
            print(f"torcharena: {command[0]}: {error.strerror}", file=sys.stderr)
            _end(ranks, stop)
            return 127
    return _wait(ranks, stop)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(ranks: list[subprocess.Popen[bytes]], stop: str) -> int:
    """Until all have ended, or one has failed."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for code in codes:
            if code:
                _end(ranks, stop)
                return code if code > 0 else 128 - code
        if None not in codes:
            return 0
        time.sleep(0.02)


def _end(ranks: list[subprocess.Popen[bytes]], stop: str) -> None:
    with open(stop, "w"):
        pass
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
