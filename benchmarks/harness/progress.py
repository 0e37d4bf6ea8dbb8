"""Progress on standard error: tqdm's bar where it is installed, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["Progress"]

EVERY = 20.0  # seconds between lines where there is no bar


class Progress:
    """Counts towards a total that is known."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.begin = self.last = time.monotonic()
        self.bar: Any = None
        if total and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=total, desc=what, dynamic_ncols=True, leave=False)

    def step(self, now: str) -> None:
        """One is done: ``now`` says which."""
        self.done += 1
        if self.bar is not None:
            self.bar.set_postfix_str(now)
            self.bar.update()
        elif time.monotonic() - self.last >= EVERY or self.done == self.total:
            self.last = time.monotonic()
            seconds = self.last - self.begin
            print(
                f"{self.what}: {self.done} of {self.total}, {seconds:.0f} s, {now}",
                file=sys.stderr,
                flush=True,
            )

    def say(self, line: str) -> None:
        """A line of results, above the bar."""
        if self.bar is not None:
            self.bar.write(line)
        else:
            print(line, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
