"""Contents that nobody can know, made up: random numbers, booleans, choices.

What `values` cannot compute is one of these. Unknown floats are uniform in [0, 1) whatever
they would be on a GPU, booleans half true; an arg-max, a top-k or a draw picks places at
random; a factorisation goes well. Equal seeds give equal guesses. Which contents are guesses,
and where the program sees one, is noted by `guesses`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .contents import Simulated, is_float, view_of

__all__ = ["CHOICES", "EQUALITIES", "SPRINKLED", "Guesser"]

SPRINKLED = 1 << 24  #: booleans up to which all are random, and how many are beyond:
_SPOTS = 16  # in so many parts, of a mebibyte each
EQUALITIES = ("eq", "ne", "isnan", "isinf", "isfinite")
CHOICES = (
    "argmax",
    "argmin",
    "max",
    "min",
    "topk",
    "sort",
    "argsort",
    "multinomial",
    "mode",
)


class Guesser:
    """``memory``: which contents are kept. ``seed``: of the random numbers. Not thread-safe
    beyond what its generator is."""

    def __init__(self, memory: Simulated, seed: int) -> None:
        self.memory = memory
        self.generator = torch.Generator().manual_seed(seed)
        self.tile = torch.rand(1 << 18, generator=self.generator)
        self.bits = self.tile > 0.5
        # The same in each type, to be copied: (address, bytes, the tensor that keeps it).
        self.tiles: dict[torch.dtype, tuple[int, int, torch.Tensor]] = {}
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.bool):
            few = self.tile[: memory.limit * 2]
            tile = self.bits if dtype is torch.bool else few.to(dtype)
            size = tile.numel() * tile.element_size()
            self.tiles[dtype] = (tile.data_ptr(), size, tile)

    def number(self) -> float:
        """One that was not computed."""
        return float(torch.rand((), generator=self.generator))

    def fill(self, tensor: torch.Tensor) -> None:
        """Random contents: floats in [0, 1), booleans, small integers left as they are."""
        tile = self.tiles.get(tensor.dtype)
        if tile is not None and tensor.is_contiguous():
            size = tensor.numel() * tensor.element_size()
            if size <= tile[1]:
                ctypes.memmove(tensor.data_ptr(), tile[0], size)
                return
            if tensor.dtype is torch.bool:
                self._sprinkle(tensor.data_ptr(), size)
                return
        out = view_of(tensor)
        if out.dtype is torch.bool:
            source = self.bits
        elif is_float(out):
            source = self.tile
        else:
            return
        count = out.numel()
        if count <= source.numel():
            out.copy_(source[:count].view(out.shape))
            return
        whole = source.repeat(-(-count // source.numel()))[:count]
        out.copy_(whole.view(out.shape))

    def _sprinkle(self, address: int, size: int) -> None:
        """Random booleans; where there are very many, in parts of them, spread evenly, and
        none between: a mask over large floats takes little host memory."""
        source, most, _ = self.tiles[torch.bool]
        zero = self.memory.zero
        if size > SPRINKLED and zero is not None and not zero(address, size):
            part = SPRINKLED // _SPOTS
            step = size // _SPOTS // part * part
            for spot in range(_SPOTS):
                for at in range(0, part, most):
                    ctypes.memmove(address + spot * step + at, source, most)
            return
        for at in range(0, size, most):
            ctypes.memmove(address + at, source, min(most, size - at))

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Random numbers in the shape of a tensor whose contents are unknown."""
        count = tensor.numel()
        start = int(torch.randint(0, 1 << 12, (1,), generator=self.generator))
        repeats = -(-(count + start) // self.tile.numel())
        flat = self.tile if repeats == 1 else self.tile.repeat(repeats)
        return flat[start : start + count].view(tensor.shape).to(tensor.dtype)

    def factor(self, name: str, outputs: list[torch.Tensor]) -> None:
        """A factorisation of an unknown matrix: it succeeds, without exchanges of rows. Of
        random numbers most fail."""
        for place, tensor in enumerate(outputs):
            if not self.memory.known(tensor) or not tensor.numel():
                continue
            if is_float(tensor):
                self.fill(tensor)
            elif name == "linalg_lstsq":  # the rank
                view_of(tensor).fill_(outputs[0].shape[-2])
            elif name.endswith("_ex") and place == len(outputs) - 1:
                view_of(tensor).zero_()
            else:
                pivots = torch.arange(1, tensor.shape[-1] + 1, dtype=tensor.dtype)
                view_of(tensor).copy_(pivots.expand(tensor.shape))

    def choose(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        outputs: list[torch.Tensor],
        source: torch.Tensor,
    ) -> bool:
        """Random results without looking at large floats. False where it cannot tell how."""
        if name in ("argmax", "argmin", "max", "min", "mode", "topk", "multinomial"):
            position = 2 if name in ("topk", "multinomial") else 1
            dim = args[position] if len(args) > position else kwargs.get("dim")
            if name in ("topk", "multinomial") and not isinstance(dim, int):
                dim = -1
            high = source.numel() if dim is None else source.shape[dim]
            for tensor in outputs:
                if is_float(tensor):
                    if self.memory.known(tensor):
                        self.fill(tensor)
                    continue
                out = view_of(tensor)
                if name == "topk" and dim is not None:
                    # distinct along the dimension
                    count = tensor.shape[dim]
                    shape = list(tensor.shape)
                    shape[dim] = 1
                    first = torch.randint(0, high, shape, generator=self.generator)
                    steps = torch.arange(count).view(
                        [
                            -1 if d == dim % tensor.dim() else 1
                            for d in range(tensor.dim())
                        ]
                    )
                    out.copy_((first + steps * max(1, high // max(1, count))) % high)
                else:
                    out.random_(0, max(1, high), generator=self.generator)
            return True
        if name in ("sort", "argsort"):
            return False
        for tensor in outputs:
            if tensor.dtype is torch.bool:
                if name in ("isnan", "isinf", "isneginf", "isposinf", "eq", "ne"):
                    # Two random numbers are hardly ever equal; the same one always is.
                    same = len(args) > 1 and args[0] is args[1]
                    value = (name == "ne") != same if name in ("eq", "ne") else False
                    if value or not self.memory.zeroed(tensor):
                        view_of(tensor).fill_(value)
                elif name == "isfinite":
                    view_of(tensor).fill_(True)
                else:
                    self.fill(tensor)
            elif is_float(tensor) and self.memory.known(tensor):
                self.fill(tensor)
        return True
