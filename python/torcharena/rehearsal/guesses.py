"""Which contents of a simulated GPU are guesses, and where the program came to see one.

Contents that were not computed, and what was computed out of them, are guesses. As long as
they stay on the device they decide nothing. So what counts is where they leave it: a number
that is read, a copy to the host, a size that is made of values. Each such place is known by
file and line of the program, with how often.

Used by `values.Values` alone. Threads of autograd's come by as well: each entry is one
operation on a dictionary."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from . import places

__all__ = ["COPIED", "READ", "SIZED", "Guesses"]

READ = "read"  #: the program asked for a number
COPIED = "copied to the host"  #: or for a whole tensor
SIZED = "made a size"  #: or a result has the size of its values
SHOWN = 40


class Guesses:
    """Guessed contents by the address of their storage, and places by how often."""

    def __init__(self) -> None:
        self.contents: set[int] = set()
        self.places: Counter[tuple[str, int, str, str]] = Counter()
        self.saving = 0  #: in so many saves: what goes into a file decides nothing

    def among(self, tensors: Iterable[torch.Tensor]) -> bool:
        """True where the contents of one of them are a guess."""
        contents = self.contents
        if contents:
            for tensor in tensors:
                if tensor.is_cuda and _at(tensor) in contents:
                    return True
        return False

    def mark(self, tensors: Iterable[torch.Tensor], guess: bool) -> None:
        """These have been written: with guesses or not. One that was written in part stays
        what it was."""
        if not guess and not self.contents:
            return
        for tensor in tensors:
            at = _at(tensor)
            if guess:
                self.contents.add(at)
            elif at in self.contents and _is_whole(tensor):
                self.contents.discard(at)

    def seen(self, how: str) -> None:
        """The program sees a guess now: notes the line that it is in."""
        if self.saving and how == COPIED:
            return
        file, line, name = _here()
        self.places[file, line, name, how] += 1

    def report(self) -> list[dict[str, Any]]:
        """The places, the most frequent first."""
        found = Counter(dict(list(self.places.items())))
        return [
            {"file": file, "line": line, "function": name, "how": how, "times": times}
            for (file, line, name, how), times in found.most_common(SHOWN)
        ]


def _at(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage."""
    offset = tensor.storage_offset()
    if offset:
        return tensor.data_ptr() - offset * tensor.element_size()
    return tensor.data_ptr()


def _is_whole(tensor: torch.Tensor) -> bool:
    return bool(
        tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    )


def _here() -> tuple[str, int, str]:
    """The innermost line of the program; of a thread that runs none of it, of a library."""
    frame: FrameType | None = sys._getframe(2)
    other: tuple[str, int, str] | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if places.is_users(file):
            return file, frame.f_lineno, frame.f_code.co_name
        if other is None and not places.is_ours(file) and "/torch/" not in file:
            other = file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return other or ("backward (autograd's own thread)", 0, "")
